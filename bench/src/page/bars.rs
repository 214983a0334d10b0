//! Bar charts: goals and CPU time.

use flue_report::{
    svg::{Anchor, Axis, Canvas, tick_text},
    units::three_digits,
};

use super::marks::class_of;
use crate::{
    contest::Metric,
    outcome::{Contest, Line, Report, Score},
    stats::Summary,
};

/// Pixels: width of a chart, height of a bar, distance of bars.
const WIDTH: f64 = 1160.0;
const BAR: f64 = 15.0;
const GOAL_STEP: f64 = 26.0;
const TIME_STEP: f64 = 19.0;
/// Gap between the bars of two rows of the table.
const GROUP_GAP: f64 = 10.0;
/// Left and right end of the bars.
const GOAL_ACROSS: (f64, f64) = (330.0, 910.0);
const TIME_ACROSS: (f64, f64) = (300.0, 1050.0);
/// Top of the first goal's bar.
const GOAL_TOP: f64 = 26.0;

/// Draws the degree to which each goal is met: right of the line is better than the goal.
pub(super) fn goals(report: &Report) -> Option<String> {
    let lines: Vec<(&Contest, &Line, f64)> = report
        .lines()
        .filter_map(|(contest, line)| Some((contest, line, line.progress?)))
        .collect();
    if lines.is_empty() {
        return None;
    }
    let fold = |start, pick: fn(f64, f64) -> f64| lines.iter().map(|it| it.2).fold(start, pick);
    let (least, most) = (fold(0.5, f64::min).max(0.01), fold(2.0, f64::max).min(100.0));
    let x = Axis { range: (least / 1.1, most * 1.1), pixels: GOAL_ACROSS, is_log: true };
    let bottom = GOAL_TOP + GOAL_STEP * lines.len() as f64 + 2.0;
    let height = bottom + 24.0;
    let mut canvas = Canvas::new((WIDTH, height), "Result of each goal");
    for tick in [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        if tick >= x.range.0 && tick <= x.range.1 {
            let pixel = x.at(tick);
            let class = if tick == 1.0 { "goal" } else { "grid" };
            canvas.line(class, (pixel, GOAL_TOP - 6.0), (pixel, bottom));
            let text = format!("{} ×", tick_text(tick));
            canvas.text("tick", (pixel, height - 8.0), Anchor::Middle, &text);
        }
    }
    let goal = x.at(1.0);
    canvas.text("name", (goal - 6.0, 12.0), Anchor::End, "missed");
    canvas.text("name", (goal + 6.0, 12.0), Anchor::Start, "met");
    for (index, line) in lines.iter().enumerate() {
        goal_bar(&mut canvas, line, &x, GOAL_TOP + GOAL_STEP * index as f64);
    }
    Some(canvas.finish())
}

fn goal_bar(canvas: &mut Canvas, of: &(&Contest, &Line, f64), x: &Axis, top: f64) {
    let (contest, line, progress) = of;
    let Some(bound) = line.goal else { return };
    let (class, sign) = if line.met == Some(true) { ("met", "✓") } else { ("missed", "✗") };
    let (unit, _) = line.metric.unit();
    let figure = line.flue.map_or_else(String::new, |it| line.metric.shown(it.median));
    let beside = line.peer.as_deref().map_or_else(String::new, |it| format!(" / {it}"));
    let is_time = line.metric == Metric::CpuSecondsPerGbyte;
    let what = format!("{}{}", if is_time { "CPU, " } else { "" }, contest.id);
    let ratio = line.ratio.map(|it| format!("{} ×", three_digits(it.ratio)));
    let reached = ratio.unwrap_or_else(|| format!("{figure} {unit}"));
    let bound = format!("goal {}", bound.shown(line.metric));
    let title = format!("{}{beside}: {figure} {unit}, {reached}, {bound}", contest.title);
    let (goal, end) = (x.at(1.0), x.at(*progress));
    let base = top + BAR - 3.0;
    canvas.titled(&title, |canvas| {
        // The tooltip appears anywhere on the row.
        canvas.rect("hit", (0.0, top - 4.0), (WIDTH, GOAL_STEP - 2.0));
        let name = (GOAL_ACROSS.0 - 12.0, base);
        canvas.texts(
            "row",
            name,
            Anchor::End,
            &[("", &what), ("", " "), ("dim", beside.trim_start())],
        );
        let length = (goal - end).abs().max(1.5);
        canvas.rect(&format!("bar {class}"), (goal.min(end), top), (length, BAR));
        let result = [(class, sign), ("", " "), ("", &reached), ("", " "), ("dim", &bound)];
        canvas.texts("row", (GOAL_ACROSS.1 + 12.0, base), Anchor::Start, &result);
    });
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
pub(super) fn cpu_time(contests: &[&Contest]) -> Option<String> {
    let bars: Vec<Bar<'_>> = contests.iter().flat_map(|contest| bars_of(contest)).collect();
    if bars.is_empty() {
        return None;
    }
    let rows = bars.iter().filter(|bar| bar.row.is_some()).count() as f64;
    let top = 8.0;
    let bottom = top + TIME_STEP * bars.len() as f64 + GROUP_GAP * rows + 2.0;
    let height = bottom + 34.0;
    let x = Axis::linear(bars.iter().map(|bar| bar.all), TIME_ACROSS);
    let mut canvas = Canvas::new((WIDTH, height), "CPU time per gigabyte");
    canvas.grid_upright(&x, (top, bottom));
    let at = (f64::midpoint(TIME_ACROSS.0, TIME_ACROSS.1), height - 4.0);
    let what = "seconds per gigabyte, both ends; pale: in the kernel";
    canvas.text("name", at, Anchor::Middle, what);
    let mut y = top;
    for bar in &bars {
        if let Some(row) = bar.row {
            y += GROUP_GAP;
            canvas.text("row", (8.0, y + BAR - 3.0), Anchor::Start, row);
        }
        time_bar(&mut canvas, bar, &x, y);
        y += TIME_STEP;
    }
    Some(canvas.finish())
}

fn bars_of(contest: &Contest) -> Vec<Bar<'_>> {
    let mut row = Some(contest.id.as_str());
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
    let (start, middle, end) = (TIME_ACROSS.0, x.at(*user), x.at(*all));
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
