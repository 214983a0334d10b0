//! Line charts over message size or counts: one line per contestant, with its range at each point and its name at the
//! end.

use flue_report::{
    svg::{Anchor, Axis, Canvas, spread},
    units::format_bytes,
};

use super::marks::{class_of, marker};

use crate::{
    contest::{Metric, System},
    outcome::Contest,
    stats::Summary,
    text::names_of,
};

/// Size of a chart, pixels.
const SIZE: (f64, f64) = (560.0, 340.0);
/// Plot area, pixels: left and right, top and bottom.
const ACROSS: (f64, f64) = (48.0, 442.0);
const DOWN: (f64, f64) = (24.0, 300.0);
/// Distance of names, pixels.
const NAME_GAP: f64 = 15.0;
/// Radius of a marker, pixels.
const MARKER: f64 = 3.6;

/// Content of a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChartStyle<'a> {
    /// Name of the horizontal axis.
    pub(super) across: &'a str,
    /// Metric of the vertical axis.
    pub(super) metric: Metric,
    /// True for a logarithmic vertical axis.
    pub(super) is_log: bool,
    /// True if the points are sizes in bytes, false for counts.
    pub(super) in_bytes: bool,
    /// Text for screen readers.
    pub(super) label: &'a str,
}

struct Series {
    name: String,
    system: System,
    points: Vec<(f64, Summary)>,
}

/// Draws the points; `None` without values.
pub(super) fn chart(points: &[&Contest], style: &ChartStyle<'_>) -> Option<String> {
    let names = names_of(points).into_iter();
    let series: Vec<Series> = names.filter_map(|name| series_of(points, name, style)).collect();
    let places: Vec<f64> = points.iter().filter_map(|it| it.at).map(|at| at as f64).collect();
    let (&first, &last) = (places.first()?, places.last()?);
    if series.is_empty() {
        return None;
    }
    let range = (first, if last > first { last } else { first * 2.0 });
    let x = Axis { range, pixels: (ACROSS.0 + 6.0, ACROSS.1 - 8.0), is_log: true };
    let (unit, unit_size) = style.metric.unit();
    let values = series.iter().flat_map(|it| &it.points);
    let values = values.flat_map(|(_, it)| [it.min, it.median, it.max]).map(|it| it / unit_size);
    let pixels = (DOWN.1, DOWN.0);
    let y = if style.is_log { Axis::log(values, pixels) } else { Axis::linear(values, pixels) };
    let mut canvas = Canvas::new(SIZE, style.label);
    canvas.grid_across(&y, ACROSS);
    canvas.text("name", (ACROSS.0, DOWN.0 - 12.0), Anchor::End, unit);
    for &namespaces in &places {
        canvas.text(
            "tick",
            (x.at(namespaces), DOWN.1 + 16.0),
            Anchor::Middle,
            &short(namespaces, style),
        );
    }
    let middle = f64::midpoint(ACROSS.0, ACROSS.1);
    canvas.text("name", (middle, SIZE.1 - 6.0), Anchor::Middle, style.across);
    // flue is last, so that its line is on top.
    for one in series.iter().rev() {
        draw(&mut canvas, one, &x, &y, style);
    }
    name_all(&mut canvas, &series, &y, unit_size);
    Some(canvas.finish())
}

fn series_of(points: &[&Contest], name: String, style: &ChartStyle<'_>) -> Option<Series> {
    let mut system = None;
    let points = points.iter().filter_map(|contest| {
        let score = contest.contestants.iter().find(|it| it.name == name)?;
        system = Some(score.system);
        Some((contest.at? as f64, score.summary(style.metric)?))
    });
    let points: Vec<_> = points.collect();
    (!points.is_empty()).then_some(Series { name, system: system?, points })
}

/// Formats a position, such as "64", "4K" or "1M".
fn short(namespaces: f64, style: &ChartStyle<'_>) -> String {
    match namespaces as u64 {
        count if !style.in_bytes => count.to_string(),
        bytes @ 0..=1_023 => bytes.to_string(),
        bytes @ 1_024..=1_048_575 => format!("{}K", bytes >> 10),
        bytes => format!("{}M", bytes >> 20),
    }
}

fn draw(canvas: &mut Canvas, one: &Series, x: &Axis, y: &Axis, style: &ChartStyle<'_>) {
    let (unit, unit_size) = style.metric.unit();
    let class = class_of(one.system);
    let at = |value: f64| y.at(value / unit_size);
    let medians = one.points.iter().map(|(namespaces, it)| (x.at(*namespaces), at(it.median)));
    canvas.path(&format!("line {class}"), medians);
    for (namespaces, it) in &one.points {
        let at_size = if style.in_bytes {
            format_bytes(*namespaces as u64)
        } else {
            short(*namespaces, style)
        };
        let [median, min, max] = [it.median, it.min, it.max].map(|it| style.metric.shown(it));
        let (name, samples) = (&one.name, it.samples);
        let title = format!("{name}, {at_size}: {median} {unit} ({min}..{max}, {samples} samples)");
        canvas.titled(&title, |canvas| {
            let pixel = x.at(*namespaces);
            canvas.line(&format!("span {class}"), (pixel, at(it.min)), (pixel, at(it.max)));
            marker(canvas, one.system, (pixel, at(it.median)), MARKER);
        });
    }
}

/// Writes each name at the end of its line.
fn name_all(canvas: &mut Canvas, series: &[Series], y: &Axis, unit_size: f64) {
    let wanted: Vec<f64> = series
        .iter()
        .filter_map(|it| it.points.last())
        .map(|(_, end)| y.at(end.median / unit_size))
        .collect();
    let places = spread(&wanted, NAME_GAP, DOWN);
    let left = ACROSS.1 + 6.0;
    for ((one, end), namespaces) in series.iter().zip(&wanted).zip(places) {
        let class = class_of(one.system);
        canvas.path(&format!("lead {class}"), [(left - 9.0, *end), (left + 2.0, namespaces)]);
        marker(canvas, one.system, (left + 8.0, namespaces), MARKER);
        let at = (left + 16.0, namespaces + 4.0);
        canvas.text(&format!("label {class}"), at, Anchor::Start, &one.name);
    }
}
