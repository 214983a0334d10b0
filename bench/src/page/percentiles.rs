//! Chart of latency percentiles: one row per contestant, from the median to the maximum.

use flue_report::{
    svg::{Anchor, Axis, Canvas},
    units::three_digits,
};

use super::marks::{NARROW, Width, class_of, marker};
use crate::{
    outcome::{Contest, Score},
    sample::Latency,
    stats::Summary,
};

/// Geometry, pixels.
const WIDE: f64 = 560.0;
const TOP: f64 = 30.0;
const STEP: f64 = 34.0;
/// Half the width of a label, and width of an entry of the legend, pixels.
const LABEL_HALF: f64 = 15.0;
const ENTRY: f64 = 50.0;

type Pick = fn(&Latency) -> Option<f64>;
const MARKS: [(&str, Pick); 5] = [
    ("p50", |it| it.p50),
    ("p90", |it| it.p90),
    ("p99", |it| it.p99),
    ("p99.9", |it| it.p999),
    ("max", |it| it.max),
];

/// Contestant and its percentiles: index into [`MARKS`], and the median of the rounds in µs.
type Row<'a> = (&'a Score, Vec<(usize, f64)>);

/// Draws the chart; `None` if no contestant has latencies.
pub(super) fn chart(contest: &Contest, width: Width) -> Option<String> {
    let rows: Vec<Row<'_>> =
        contest.contestants.iter().map(row_of).filter(|(_, marks)| !marks.is_empty()).collect();
    if rows.is_empty() {
        return None;
    }
    let (width, across) = width.of((WIDE, (108.0, 530.0)), (NARROW, (98.0, 338.0)));
    let bottom = TOP + STEP * rows.len() as f64 + 2.0;
    let height = bottom + 58.0;
    let values = rows.iter().flat_map(|(_, marks)| marks.iter().map(|&(_, value)| value));
    let x = Axis::log(values, across);
    let mut canvas = Canvas::new((width, height), &format!("Percentiles: {}", contest.title));
    canvas.grid_upright(&x, (TOP - 14.0, bottom));
    let middle = f64::midpoint(across.0, across.1);
    canvas.text("name", (middle, bottom + 30.0), Anchor::Middle, "µs");
    for (mark, (label, _)) in MARKS.iter().enumerate() {
        let (left, middle) = (8.0 + ENTRY * mark as f64, height - 8.0);
        canvas.circle("key", (left, middle), radius(mark));
        canvas.text("tick", (left + 10.0, middle + 4.0), Anchor::Start, label);
    }
    for (index, row) in rows.iter().enumerate() {
        draw(&mut canvas, row, &x, TOP + STEP * (index as f64 + 0.5));
    }
    Some(canvas.finish())
}

/// Returns the radius of the marker of a percentile, pixels.
fn radius(mark: usize) -> f64 {
    6.0 - mark as f64
}

fn row_of(score: &Score) -> Row<'_> {
    let median = |pick: Pick| {
        let values = score.samples.iter().filter_map(|it| pick(it.sample.latency_ns.as_ref()?));
        Summary::of(values.map(|it| it / 1e3)).map(|it| it.median)
    };
    let marks = MARKS.iter().enumerate();
    (score, marks.filter_map(|(index, (_, pick))| Some((index, median(*pick)?))).collect())
}

fn draw(canvas: &mut Canvas, (score, marks): &Row<'_>, x: &Axis, y: f64) {
    let class = class_of(score.system);
    let at = (x.pixels.0 - 12.0, y + 4.0);
    canvas.text(&format!("row {class}"), at, Anchor::End, &score.name);
    let (from, to) = marks.iter().fold((f64::MAX, f64::MIN), |(from, to), &(_, value)| {
        (from.min(x.at(value)), to.max(x.at(value)))
    });
    canvas.line(&format!("reach {class}"), (from, y), (to, y));
    let mut free_from = f64::MIN;
    for &(mark, value) in marks {
        let (label, _) = MARKS[mark];
        let (pixel, shown) = (x.at(value), three_digits(value));
        canvas.titled(&format!("{}: {label} {shown} µs", score.name), |canvas| {
            marker(canvas, score.system, (pixel, y), radius(mark));
            // The median always has a label, the others if there is room.
            if pixel - LABEL_HALF > free_from {
                let (class, text) =
                    if mark == 0 { ("value", shown.as_str()) } else { ("tick", label) };
                canvas.text(class, (pixel, y - 9.0), Anchor::Middle, text);
                free_from = pixel + LABEL_HALF;
            }
        });
    }
}
