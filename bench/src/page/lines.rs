//! Line charts over message size or counts: one line per contestant, with its range at each point and its name at the
//! end.

use flue_report::{
    svg::{Anchor, Axis, Canvas, spread},
    units::format_bytes,
};

use super::marks::{NARROW, Width, class_of, marker};
use crate::{
    contest::{Metric, System},
    outcome::Contest,
    stats::Summary,
    text::names_of,
};

/// Geometry, pixels.
#[derive(Clone, Copy)]
struct Layout {
    size: (f64, f64),
    /// Plot area: left and right, top and bottom.
    across: (f64, f64),
    down: (f64, f64),
}

const WIDE: Layout = Layout { size: (560.0, 340.0), across: (48.0, 442.0), down: (24.0, 300.0) };
const NARROW_LAYOUT: Layout =
    Layout { size: (NARROW, 300.0), across: (48.0, 264.0), down: (24.0, 260.0) };
/// Distance of labels on the horizontal axis.
const TICK_GAP: f64 = 34.0;
/// Largest factor between the positions of two points that a line joins: a line over a larger gap would suggest values
/// that were not measured.
const JOINED_FACTOR_MAX: f64 = 10.0;
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
pub(super) fn chart(points: &[&Contest], style: &ChartStyle<'_>, width: Width) -> Option<String> {
    let Layout { size, across, down } = width.of(WIDE, NARROW_LAYOUT);
    let names = names_of(points).into_iter();
    let series: Vec<Series> = names.filter_map(|name| series_of(points, name, style)).collect();
    let places: Vec<f64> = points.iter().filter_map(|it| it.at).map(|at| at as f64).collect();
    let (&first, &last) = (places.first()?, places.last()?);
    if series.is_empty() {
        return None;
    }
    let range = (first, if last > first { last } else { first * 2.0 });
    let x = Axis { range, pixels: (across.0 + 6.0, across.1 - 8.0), is_log: true };
    let (unit, unit_size) = style.metric.unit();
    let values = series.iter().flat_map(|it| &it.points);
    let values = values.flat_map(|(_, it)| [it.min, it.median, it.max]).map(|it| it / unit_size);
    let pixels = (down.1, down.0);
    let y = if style.is_log { Axis::log(values, pixels) } else { Axis::linear(values, pixels) };
    let mut canvas = Canvas::new(size, style.label);
    canvas.grid_across(&y, across);
    canvas.text("name", (0.0, down.0 - 12.0), Anchor::Start, unit);
    let mut free_from = f64::MIN;
    for &place in &places {
        if x.at(place) >= free_from {
            let at = (x.at(place), down.1 + 16.0);
            canvas.text("tick", at, Anchor::Middle, &short(place, style));
            free_from = x.at(place) + TICK_GAP;
        }
    }
    let middle = f64::midpoint(across.0, across.1);
    canvas.text("name", (middle, size.1 - 6.0), Anchor::Middle, style.across);
    // flue is last, so that its line is on top.
    for one in series.iter().rev() {
        draw(&mut canvas, one, &x, &y, style);
    }
    name_all(&mut canvas, &series, &y, unit_size, (across.1, down));
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
fn short(place: f64, style: &ChartStyle<'_>) -> String {
    match place as u64 {
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
    for joined in one.points.chunk_by(|(a, _), (b, _)| b / a <= JOINED_FACTOR_MAX) {
        if joined.len() > 1 {
            let medians = joined.iter().map(|(place, it)| (x.at(*place), at(it.median)));
            canvas.path(&format!("line {class}"), medians);
        }
    }
    for (place, it) in &one.points {
        let at_size =
            if style.in_bytes { format_bytes(*place as u64) } else { short(*place, style) };
        let [median, min, max] = [it.median, it.min, it.max].map(|it| style.metric.shown(it));
        let (name, samples) = (&one.name, it.samples);
        let title = format!("{name}, {at_size}: {median} {unit} ({min}..{max}, {samples} samples)");
        canvas.titled(&title, |canvas| {
            let pixel = x.at(*place);
            canvas.line(&format!("span {class}"), (pixel, at(it.min)), (pixel, at(it.max)));
            marker(canvas, one.system, (pixel, at(it.median)), MARKER);
        });
    }
}

/// Writes each name at the end of its line.
fn name_all(
    canvas: &mut Canvas,
    series: &[Series],
    y: &Axis,
    unit_size: f64,
    (right, down): (f64, (f64, f64)),
) {
    let wanted: Vec<f64> = series
        .iter()
        .filter_map(|it| it.points.last())
        .map(|(_, end)| y.at(end.median / unit_size))
        .collect();
    let places = spread(&wanted, NAME_GAP, down);
    let left = right + 6.0;
    for ((one, end), place) in series.iter().zip(&wanted).zip(places) {
        let class = class_of(one.system);
        canvas.path(&format!("lead {class}"), [(left - 9.0, *end), (left + 2.0, place)]);
        marker(canvas, one.system, (left + 8.0, place), MARKER);
        let at = (left + 16.0, place + 4.0);
        canvas.text(&format!("label {class}"), at, Anchor::Start, &one.name);
    }
}
