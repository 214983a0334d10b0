//! The pictures.

use std::fmt::Write;

use super::svg::{Axis, class_of, escaped, marker, spread, tick_text};
use crate::{
    cmd::bench::{
        contest::{Metric, System, three_digits},
        outcome::{Contest, Line, Report, Score},
        stats::Summary,
        text::names_of,
    },
    units::format_bytes,
};

/// Pixels of a line chart, and of its margins: left, right, top, bottom.
const SIZE: (f64, f64) = (560.0, 340.0);
const MARGINS: (f64, f64, f64, f64) = (48.0, 118.0, 14.0, 40.0);
/// Pixels between labels.
const LABEL_GAP: f64 = 15.0;
/// Pixels of a bar and what is between two.
const BAR: f64 = 15.0;
const BAR_STEP: f64 = 19.0;

/// Which axes a line chart has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    /// What is along the horizontal axis.
    pub(super) across: &'a str,
    /// The figure.
    pub(super) metric: Metric,
    /// Equal ratios of it are equally high.
    pub(super) is_log: bool,
    /// The points are sizes, not counts.
    pub(super) in_bytes: bool,
    /// One of the words of a caption for those who do not see it.
    pub(super) label: &'a str,
}

struct Series {
    name: String,
    system: System,
    points: Vec<(f64, Summary)>,
}

/// Figures over sizes or counts, a line for everybody.
pub(super) fn lines(points: &[&Contest], look: &Look<'_>) -> Option<String> {
    let (width, height) = SIZE;
    let (left, right, top, bottom) = MARGINS;
    let (_, unit_size) = look.metric.unit();
    let series: Vec<Series> = names_of(points)
        .into_iter()
        .filter_map(|name| series_of(points, name, look.metric))
        .collect();
    let all = || series.iter().flat_map(|it| &it.points);
    if all().count() == 0 {
        return None;
    }
    let across: Vec<f64> = points.iter().filter_map(|it| it.at).map(|at| at as f64).collect();
    let (first, last) = (across.first()?, across.last()?);
    let x = Axis {
        range: (*first, if last > first { *last } else { first * 2.0 }),
        pixels: (left + 6.0, width - right - 8.0),
        is_log: true,
    };
    let values = all().flat_map(|(_, it)| [it.min, it.median, it.max]).map(|it| it / unit_size);
    let pixels = (height - bottom, top);
    let y = if look.is_log { Axis::log(values, pixels) } else { Axis::linear(values, pixels) };
    let mut out = open(width, height, look.label);
    grid(&mut out, &y, (left, width - right), look.metric.unit().0);
    for &at in &across {
        let text = if look.in_bytes { short_bytes(at as u64) } else { format!("{at}") };
        let (pixel, base) = (x.at(at), height - bottom + 16.0);
        let _ = write!(
            out,
            r#"<text class="tick" x="{pixel:.1}" y="{base:.1}" text-anchor="middle">{text}</text>"#
        );
    }
    let (middle, base) = ((left + width - right) / 2.0, height - 6.0);
    let name = escaped(look.across);
    let _ = write!(
        out,
        r#"<text class="name" x="{middle:.1}" y="{base:.1}" text-anchor="middle">{name}</text>"#
    );
    // flue last, so that it is on top.
    for one in series.iter().rev() {
        draw_series(&mut out, one, &x, &y, look);
    }
    label_series(&mut out, &series, &y, unit_size, width - right + 6.0);
    out.push_str("</svg>");
    Some(out)
}

fn series_of(points: &[&Contest], name: String, metric: Metric) -> Option<Series> {
    let mut system = None;
    let points = points.iter().filter_map(|contest| {
        let score = contest.contestants.iter().find(|it| it.name == name)?;
        system = Some(score.system);
        Some((contest.at? as f64, score.summary(metric)?))
    });
    let points: Vec<_> = points.collect();
    (!points.is_empty()).then_some(Series { name, system: system?, points })
}

/// "64", "4K", "1M".
fn short_bytes(bytes: u64) -> String {
    match bytes {
        0..=1_023 => bytes.to_string(),
        1_024..=1_048_575 => format!("{}K", bytes >> 10),
        _ => format!("{}M", bytes >> 20),
    }
}

fn open(width: f64, height: f64, label: &str) -> String {
    let label = escaped(label);
    format!(r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">"#)
}

fn grid(out: &mut String, y: &Axis, (left, right): (f64, f64), unit: &str) {
    for tick in y.ticks() {
        let (pixel, text) = (y.at(tick), tick_text(tick));
        let (end, base) = (left - 6.0, pixel + 4.0);
        let _ = write!(
            out,
            r#"<line class="grid" x1="{left}" x2="{right}" y1="{pixel:.1}" y2="{pixel:.1}"/><text class="tick" x="{end}" y="{base:.1}" text-anchor="end">{text}</text>"#
        );
    }
    let base = y.pixels.1 - 3.0;
    let start = left + 4.0;
    let _ = write!(out, r#"<text class="name" x="{start}" y="{:.1}">{unit}</text>"#, base + 10.0);
}

fn draw_series(out: &mut String, one: &Series, x: &Axis, y: &Axis, look: &Look<'_>) {
    let (unit, unit_size) = look.metric.unit();
    let class = class_of(one.system);
    let at = |value: f64| y.at(value / unit_size);
    let mut path = String::new();
    for (index, (place, summary)) in one.points.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.1} {:.1}", x.at(*place), at(summary.median));
    }
    let _ = write!(out, r#"<path class="line {class}" d="{path}"/>"#);
    for (place, summary) in &one.points {
        let where_ = if look.in_bytes { format_bytes(*place as u64) } else { format!("{place}") };
        let shown = |value| look.metric.shown(value);
        let title = format!(
            "{}, {where_}: {} {unit} ({}..{}, {} samples)",
            one.name,
            shown(summary.median),
            shown(summary.min),
            shown(summary.max),
            summary.samples
        );
        let (pixel, low, high) = (x.at(*place), at(summary.min), at(summary.max));
        let _ = write!(
            out,
            r#"<g><title>{}</title><line class="span {class}" x1="{pixel:.1}" x2="{pixel:.1}" y1="{low:.1}" y2="{high:.1}"/>"#,
            escaped(&title)
        );
        marker(out, one.system, pixel, at(summary.median), 3.6);
        out.push_str("</g>");
    }
}

/// The names, each at the end of its line.
fn label_series(out: &mut String, series: &[Series], y: &Axis, unit_size: f64, left: f64) {
    let ends: Vec<f64> = series
        .iter()
        .map(|it| it.points.last().map_or(0.0, |(_, end)| y.at(end.median / unit_size)))
        .collect();
    let places = spread(&ends, LABEL_GAP, (y.pixels.1, y.pixels.0));
    for ((one, end), place) in series.iter().zip(ends).zip(places) {
        let class = class_of(one.system);
        let (name, base, text) = (escaped(&one.name), place + 4.0, left + 16.0);
        let knee = left + 2.0;
        let _ = write!(
            out,
            r#"<path class="lead {class}" d="M{:.1} {end:.1}L{knee:.1} {place:.1}"/>"#,
            left - 9.0
        );
        marker(out, one.system, left + 8.0, place, 3.6);
        let _ =
            write!(out, r#"<text class="label {class}" x="{text:.1}" y="{base:.1}">{name}</text>"#);
    }
}

/// How far each goal is reached: to the right of the line is better than asked for.
pub(super) fn goals(report: &Report) -> Option<String> {
    let lines: Vec<(&Contest, &Line)> =
        report.lines().filter(|(_, line)| line.goal.is_some() && line.progress.is_some()).collect();
    if lines.is_empty() {
        return None;
    }
    let (width, left, right, top) = (1160.0, 330.0, 250.0, 26.0);
    let step = 26.0;
    let height = top + step * lines.len() as f64 + 26.0;
    let most = lines.iter().filter_map(|(_, it)| it.progress).fold(2.0, f64::max).min(100.0);
    let least = lines.iter().filter_map(|(_, it)| it.progress).fold(0.5, f64::min).max(0.01);
    let x = Axis { range: (least / 1.1, most * 1.1), pixels: (left, width - right), is_log: true };
    let bottom = height - 24.0;
    let mut out = open(width, height, "How far each goal is reached");
    for tick in [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        if tick < x.range.0 || tick > x.range.1 {
            continue;
        }
        let (pixel, text, base) = (x.at(tick), tick_text(tick), height - 8.0);
        let class = if tick == 1.0 { "goal" } else { "grid" };
        let _ = write!(
            out,
            r#"<line class="{class}" x1="{pixel:.1}" x2="{pixel:.1}" y1="{}" y2="{bottom:.1}"/><text class="tick" x="{pixel:.1}" y="{base:.1}" text-anchor="middle">{text} ×</text>"#,
            top - 6.0
        );
    }
    let goal = x.at(1.0);
    let (before, behind) = (goal - 6.0, goal + 6.0);
    let _ = write!(
        out,
        r#"<text class="name" x="{before:.1}" y="12" text-anchor="end">missed</text><text class="name" x="{behind:.1}" y="12">met, with room to spare</text>"#
    );
    for (index, (contest, line)) in lines.iter().enumerate() {
        goal_bar(&mut out, contest, line, &x, top + step * index as f64, width - right + 12.0);
    }
    out.push_str("</svg>");
    Some(out)
}

fn goal_bar(out: &mut String, contest: &Contest, line: &Line, x: &Axis, top: f64, text_at: f64) {
    let (Some(progress), Some(bound)) = (line.progress, line.goal) else { return };
    let met = line.met == Some(true);
    let (goal, end) = (x.at(1.0), x.at(progress));
    let (from, length) = (goal.min(end), (goal - end).abs().max(1.5));
    let class = if met { "met" } else { "missed" };
    let (unit, _) = line.metric.unit();
    let figure = line.flue.map_or_else(String::new, |it| line.metric.shown(it.median));
    let beside = line.beside.as_deref().map_or_else(String::new, |it| format!(" beside {it}"));
    let what = match line.metric {
        Metric::CpuSecondsPerGbyte => format!("CPU, {}", contest.id),
        _ => contest.id.clone(),
    };
    let ratio = line
        .ratio
        .map_or_else(|| format!("{figure} {unit}"), |it| format!("{} ×", three_digits(it.ratio)));
    let wanted = bound.shown(line.metric);
    let title = format!("{}{beside}: {figure} {unit}, {ratio}; wanted: {wanted}", contest.title);
    let base = top + BAR - 3.0;
    let _ = write!(
        out,
        r#"<g><title>{}</title><rect class="hit" x="0" y="{:.1}" width="1160" height="24"/><text class="row" x="318" y="{base:.1}" text-anchor="end">{}<tspan class="dim">{}</tspan></text><rect class="bar {class}" x="{from:.1}" y="{top:.1}" width="{length:.1}" height="{BAR}" rx="2"/>"#,
        escaped(&title),
        top - 4.0,
        escaped(&what),
        escaped(&beside)
    );
    let sign = if met { "✓" } else { "✗" };
    let _ = write!(
        out,
        r#"<text class="row" x="{text_at:.1}" y="{base:.1}"><tspan class="{class}">{sign}</tspan> {} <tspan class="dim">wanted {}</tspan></text></g>"#,
        escaped(&ratio),
        escaped(&wanted)
    );
}

/// Percentiles of a latency, a row for everybody.
pub(super) fn percentiles(contest: &Contest) -> Option<String> {
    type Pick = fn(&crate::cmd::bench::sample::Latency) -> Option<f64>;
    const MARKS: [(&str, Pick); 5] = [
        ("p50", |it| it.p50),
        ("p90", |it| it.p90),
        ("p99", |it| it.p99),
        ("p99.9", |it| it.p999),
        ("max", |it| it.max),
    ];
    let median = |score: &Score, pick: Pick| {
        let values = score.samples.iter().filter_map(|it| pick(it.sample.latency_ns.as_ref()?));
        Summary::of(values.map(|it| it / 1e3)).map(|it| it.median)
    };
    let scores: Vec<(&Score, Vec<(usize, f64)>)> = contest
        .contestants
        .iter()
        .map(|score| {
            let marks = MARKS.iter().enumerate();
            (
                score,
                marks
                    .filter_map(|(index, (_, pick))| Some((index, median(score, *pick)?)))
                    .collect(),
            )
        })
        .filter(|(_, marks): &(_, Vec<_>)| !marks.is_empty())
        .collect();
    if scores.is_empty() {
        return None;
    }
    let (width, left, top, step) = (560.0, 108.0, 30.0, 34.0);
    let height = top + step * scores.len() as f64 + 36.0;
    let values = scores.iter().flat_map(|(_, marks)| marks.iter().map(|&(_, value)| value));
    let x = Axis::log(values, (left, width - 16.0));
    let mut out = open(width, height, &format!("Percentiles: {}", contest.title));
    let bottom = height - 34.0;
    for tick in x.ticks() {
        let (pixel, text, base) = (x.at(tick), tick_text(tick), bottom + 15.0);
        let _ = write!(
            out,
            r#"<line class="grid" x1="{pixel:.1}" x2="{pixel:.1}" y1="{:.1}" y2="{bottom:.1}"/><text class="tick" x="{pixel:.1}" y="{base:.1}" text-anchor="middle">{text}</text>"#,
            top - 14.0
        );
    }
    let _ = write!(
        out,
        r#"<text class="name" x="{:.1}" y="{:.1}" text-anchor="middle">µs</text>"#,
        (left + width - 16.0) / 2.0,
        height - 4.0
    );
    for (index, (score, marks)) in scores.iter().enumerate() {
        let y = top + step * (index as f64 + 0.5);
        let class = class_of(score.system);
        let name = escaped(&score.name);
        let _ = write!(
            out,
            r#"<text class="row {class}" x="{:.1}" y="{:.1}" text-anchor="end">{name}</text>"#,
            left - 12.0,
            y + 4.0
        );
        let ends = marks.iter().map(|&(_, value)| x.at(value));
        let (from, to) = (ends.clone().fold(f64::MAX, f64::min), ends.fold(f64::MIN, f64::max));
        let _ = write!(
            out,
            r#"<line class="reach {class}" x1="{from:.1}" x2="{to:.1}" y1="{y:.1}" y2="{y:.1}"/>"#
        );
        let mut free_from = f64::MIN;
        for &(mark, value) in marks {
            let (label, _) = MARKS[mark];
            let pixel = x.at(value);
            let (shown, size) = (three_digits(value), 6.0 - mark as f64);
            let title = escaped(&format!("{}: {label} {shown} µs", score.name));
            let _ = write!(out, "<g><title>{title}</title>");
            marker(&mut out, score.system, pixel, y, size);
            // The median is told at once, the others where there is room.
            if pixel - 15.0 > free_from {
                let text = if mark == 0 { shown } else { label.to_owned() };
                let strong = if mark == 0 { "value" } else { "tick" };
                let _ = write!(
                    out,
                    r#"<text class="{strong}" x="{pixel:.1}" y="{:.1}" text-anchor="middle">{text}</text>"#,
                    y - 9.0
                );
                free_from = pixel + 15.0;
            }
            out.push_str("</g>");
        }
    }
    out.push_str("</svg>");
    Some(out)
}

/// Processor time for a gigabyte: the user's part, and the kernel's.
pub(super) fn processor_time(contests: &[&Contest]) -> Option<String> {
    struct Bar<'a> {
        group: Option<&'a str>,
        score: &'a Score,
        user: f64,
        all: f64,
    }
    let mut bars: Vec<Bar<'_>> = Vec::new();
    for contest in contests {
        let mut group = Some(contest.id.as_str());
        for score in &contest.contestants {
            let Some(all) = score.summary(Metric::CpuSecondsPerGbyte) else { continue };
            let parts = score.samples.iter().filter_map(|it| {
                let cpu =
                    it.sample.cpu.filter(|cpu| cpu.user_seconds + cpu.system_seconds > 0.0)?;
                Some(cpu.user_seconds / (cpu.user_seconds + cpu.system_seconds))
            });
            let part = Summary::of(parts).map_or(0.0, |it| it.median);
            bars.push(Bar { group: group.take(), score, user: all.median * part, all: all.median });
        }
    }
    if bars.is_empty() {
        return None;
    }
    let (width, left, right, top) = (1160.0, 300.0, 110.0, 8.0);
    let gap = 10.0;
    let groups = bars.iter().filter(|bar| bar.group.is_some()).count() as f64;
    let height = top + BAR_STEP * bars.len() as f64 + gap * groups + 36.0;
    let x = Axis::linear(bars.iter().map(|bar| bar.all), (left, width - right));
    let bottom = height - 34.0;
    let mut out = open(width, height, "Processor time for a gigabyte");
    for tick in x.ticks() {
        let (pixel, text, base) = (x.at(tick), tick_text(tick), bottom + 15.0);
        let _ = write!(
            out,
            r#"<line class="grid" x1="{pixel:.1}" x2="{pixel:.1}" y1="{top}" y2="{bottom:.1}"/><text class="tick" x="{pixel:.1}" y="{base:.1}" text-anchor="middle">{text}</text>"#
        );
    }
    let _ = write!(
        out,
        r#"<text class="name" x="{:.1}" y="{:.1}" text-anchor="middle">seconds for a gigabyte, both ends; pale: in the kernel</text>"#,
        (left + width - right) / 2.0,
        height - 4.0
    );
    let mut y = top;
    for bar in &bars {
        let Bar { group, score, user, all } = *bar;
        if let Some(group) = group {
            y += gap;
            let _ = write!(
                out,
                r#"<text class="row" x="8" y="{:.1}">{}</text>"#,
                y + BAR - 3.0,
                escaped(group)
            );
        }
        let class = class_of(score.system);
        let (user_end, end, base) = (x.at(user), x.at(all), y + BAR - 3.0);
        let (name, shown) = (escaped(&score.name), three_digits(all));
        let title = escaped(&format!(
            "{}: {shown} s/GB, {} of it in user mode",
            score.name,
            three_digits(user)
        ));
        let _ = write!(
            out,
            r#"<g><title>{title}</title><text class="row {class}" x="{:.1}" y="{base:.1}" text-anchor="end">{name}</text><rect class="bar {class}" x="{left}" y="{y:.1}" width="{:.1}" height="{BAR}"/><rect class="bar pale {class}" x="{user_end:.1}" y="{y:.1}" width="{:.1}" height="{BAR}"/><text class="value" x="{:.1}" y="{base:.1}">{shown}</text></g>"#,
            left - 10.0,
            user_end - left,
            end - user_end,
            end + 6.0
        );
        y += BAR_STEP;
    }
    out.push_str("</svg>");
    Some(out)
}
