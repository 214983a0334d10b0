//! Bar charts: goals and CPU time.

use flue_report::{
    svg::{Anchor, Axis, Canvas, tick_text},
    units::three_digits,
};

use super::marks::{NARROW, Width, class_of};
use crate::{
    contest::Metric,
    outcome::{Contest, Line, Report, Score},
    stats::Summary,
};

/// Pixels: width of a wide chart, height of a bar.
const WIDE: f64 = 1160.0;
const BAR: f64 = 15.0;
/// Distance of the bars of CPU time, and of the name of a row from its first bar.
const TIME_STEP: f64 = 19.0;
const NAME_STEP: f64 = 26.0;
/// Top of the first goal.
const GOAL_TOP: f64 = 26.0;
/// Distance of labels below the bars of goals.
const TICK_GAP: f64 = 36.0;

/// Width of a character, pixels. A longer name is cut off, and complete in the tooltip and the table.
const CHARACTER: f64 = 6.1;

/// Geometry of the goals, pixels. A wide chart has name, bar and result of a goal in one line, a narrow one in three.
struct GoalLayout {
    width: f64,
    /// Left and right end of the bars.
    across: (f64, f64),
    step: f64,
    /// Top of the bar within its goal.
    bar_top: f64,
    /// Position and alignment of the title, the peer and the result, relative to the top of the goal.
    title: ((f64, f64), Anchor),
    peer: Option<(f64, f64)>,
    result: ((f64, f64), Anchor),
}

impl GoalLayout {
    fn of(width: Width) -> Self {
        let base = BAR - 3.0;
        width.of(
            Self {
                width: WIDE,
                across: (480.0, 940.0),
                step: 26.0,
                bar_top: 0.0,
                title: ((468.0, base), Anchor::End),
                peer: None,
                result: ((952.0, base), Anchor::Start),
            },
            Self {
                width: NARROW,
                across: (4.0, NARROW - 4.0),
                step: 60.0,
                bar_top: 35.0,
                title: ((0.0, 11.0), Anchor::Start),
                peer: Some((0.0, 28.0)),
                result: ((NARROW, 28.0), Anchor::End),
            },
        )
    }
}

/// Draws the degree to which each goal is met: right of the line is better than the goal.
pub(super) fn goals(report: &Report, width: Width) -> Option<String> {
    let lines: Vec<(&Contest, &Line, f64)> = report
        .lines()
        .filter_map(|(contest, line)| Some((contest, line, line.progress?)))
        .collect();
    if lines.is_empty() {
        return None;
    }
    let fold = |start, pick: fn(f64, f64) -> f64| lines.iter().map(|it| it.2).fold(start, pick);
    let (least, most) = (fold(0.5, f64::min).max(0.01), fold(2.0, f64::max).min(100.0));
    let layout = GoalLayout::of(width);
    let x = Axis { range: (least / 1.1, most * 1.1), pixels: layout.across, is_log: true };
    let bottom = GOAL_TOP + layout.step * lines.len() as f64 + 2.0;
    let height = bottom + 24.0;
    let mut canvas = Canvas::new((layout.width, height), "Result of each goal");
    let mut free_from = f64::MIN;
    for tick in [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        if tick >= x.range.0 && tick <= x.range.1 {
            let pixel = x.at(tick);
            let class = if tick == 1.0 { "goal" } else { "grid" };
            canvas.line(class, (pixel, GOAL_TOP - 6.0), (pixel, bottom));
            if pixel >= free_from {
                let text = format!("{} ×", tick_text(tick));
                canvas.text("tick", (pixel, height - 8.0), Anchor::Middle, &text);
                free_from = pixel + TICK_GAP;
            }
        }
    }
    let goal = x.at(1.0);
    canvas.text("name", (goal - 6.0, 12.0), Anchor::End, "missed");
    canvas.text("name", (goal + 6.0, 12.0), Anchor::Start, "met");
    for (index, line) in lines.iter().enumerate() {
        goal_bar(&mut canvas, line, &x, &layout, GOAL_TOP + layout.step * index as f64);
    }
    Some(canvas.finish())
}

fn goal_bar(
    canvas: &mut Canvas,
    of: &(&Contest, &Line, f64),
    x: &Axis,
    layout: &GoalLayout,
    top: f64,
) {
    let (contest, line, progress) = of;
    let Some(bound) = line.goal else { return };
    let (class, sign) = if line.met == Some(true) { ("met", "✓") } else { ("missed", "✗") };
    let (unit, _) = line.metric.unit();
    let figure = line.flue.map_or_else(String::new, |it| line.metric.shown(it.median));
    let peer = line.peer.as_deref().map_or_else(String::new, |it| format!(" / {it}"));
    let is_time = line.metric == Metric::CpuSecondsPerGbyte;
    let name = format!("{}{}", if is_time { "CPU, " } else { "" }, contest.title);
    let ratio = line.ratio.map(|it| format!("{} ×", three_digits(it.ratio)));
    let reached = ratio.unwrap_or_else(|| format!("{figure} {unit}"));
    let bound = format!("goal {}", bound.shown(line.metric));
    let title = format!("{}: {name}{peer}: {figure} {unit}, {reached}, {bound}", contest.id);
    let (goal, end) = (x.at(1.0), x.at(*progress));
    let below = |at: (f64, f64)| (at.0, top + at.1);
    canvas.titled(&title, |canvas| {
        // The tooltip appears anywhere on the row.
        canvas.rect("hit", (0.0, top - 4.0), (layout.width, layout.step - 2.0));
        let (at, anchor) = layout.title;
        let characters = match layout.peer {
            Some(_) => layout.width / CHARACTER,
            None => at.0 / CHARACTER - peer.chars().count() as f64,
        };
        let name = cut(&name, characters as usize);
        match layout.peer {
            Some(second) => {
                canvas.text("row", below(at), anchor, &name);
                canvas.text("row dim", below(second), Anchor::Start, peer.trim_start());
            }
            None => canvas.texts("row", below(at), anchor, &[("", &name), ("dim", &peer)]),
        }
        let length = (goal - end).abs().max(1.5);
        let corner = (goal.min(end), top + layout.bar_top);
        canvas.rect(&format!("bar {class}"), corner, (length, BAR));
        let result = [(class, sign), ("", " "), ("", &reached), ("", " "), ("dim", &bound)];
        let (at, anchor) = layout.result;
        canvas.texts("row", below(at), anchor, &result);
    });
}

/// Returns the text with at most this number of characters.
fn cut(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(characters.saturating_sub(1)).collect();
    kept.trim_end_matches([' ', ',']).to_owned() + "…"
}

/// Bar of CPU time.
struct Bar<'a> {
    /// Name of the row, at its first bar.
    row: Option<&'a str>,
    score: &'a Score,
    user: f64,
    all: f64,
}

/// Draws the CPU time per gigabyte, user and system.
pub(super) fn cpu_time(contests: &[&Contest], width: Width) -> Option<String> {
    let bars: Vec<Bar<'_>> = contests.iter().flat_map(|contest| bars_of(contest)).collect();
    if bars.is_empty() {
        return None;
    }
    let rows = bars.iter().filter(|bar| bar.row.is_some()).count() as f64;
    let top = 8.0;
    let bottom = top + TIME_STEP * bars.len() as f64 + NAME_STEP * rows + 2.0;
    let height = bottom + 34.0;
    let (width, across) = width.of((WIDE, (100.0, 1100.0)), (NARROW, (96.0, 312.0)));
    let x = Axis::linear(bars.iter().map(|bar| bar.all), across);
    let mut canvas = Canvas::new((width, height), "CPU time per gigabyte");
    canvas.grid_upright(&x, (top, bottom));
    let at = (width / 2.0, height - 4.0);
    let what = "seconds per gigabyte, both ends; pale: in the kernel";
    canvas.text("name", at, Anchor::Middle, what);
    let mut y = top;
    for bar in &bars {
        if let Some(row) = bar.row {
            canvas.text("row", (0.0, y + NAME_STEP - 7.0), Anchor::Start, row);
            y += NAME_STEP;
        }
        time_bar(&mut canvas, bar, &x, y);
        y += TIME_STEP;
    }
    Some(canvas.finish())
}

fn bars_of(contest: &Contest) -> Vec<Bar<'_>> {
    let mut row = Some(contest.title.as_str());
    let bar = |score| {
        let all = Score::summary(score, Metric::CpuSecondsPerGbyte)?.median;
        let parts = score.samples.iter().filter_map(|it| {
            let cpu = it.sample.cpu?;
            Some(cpu.user_seconds / (cpu.user_seconds + cpu.system_seconds))
        });
        let part = Summary::of(parts).map_or(0.0, |it| it.median);
        Some(Bar { row: row.take(), score, user: all * part, all })
    };
    contest.contestants.iter().filter_map(bar).collect()
}

fn time_bar(canvas: &mut Canvas, bar: &Bar<'_>, x: &Axis, top: f64) {
    let Bar { row: _, score, user, all } = bar;
    let class = class_of(score.system);
    let (start, middle, end) = (x.pixels.0, x.at(*user), x.at(*all));
    let base = top + BAR - 3.0;
    let (name, shown) = (&score.name, three_digits(*all));
    let title = format!("{name}: {shown} s/GB, {} of it in user mode", three_digits(*user));
    canvas.titled(&title, |canvas| {
        canvas.text(&format!("row {class}"), (start - 10.0, base), Anchor::End, name);
        canvas.rect(&format!("bar {class}"), (start, top), (middle - start, BAR));
        canvas.rect(&format!("bar pale {class}"), (middle, top), (end - middle, BAR));
        canvas.text("value", (end + 6.0, base), Anchor::Start, &shown);
    });
}
