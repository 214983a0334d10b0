//! Chart with three panels over one time axis.

use flue_report::svg::{Anchor, Axis, Canvas, Point};

use super::{Connection, Row, State};

/// Size of the chart, and horizontal range of its panels, pixels.
const SIZE: Point = (1200.0, 900.0);
const ACROSS: Point = (70.0, 1180.0);
/// Vertical ranges of the panels, pixels.
const WINDOWS: Point = (70.0, 400.0);
const ROUND_TRIP: Point = (460.0, 630.0);
const RATE: Point = (690.0, 850.0);
/// Columns of a line: only the first, lowest, highest and last point of each are kept.
const COLUMNS: f64 = 2_400.0;
/// Steps of the delivery rate.
const RATE_STEPS: usize = 240;
/// Legend, pixels: height of an entry, length of its sample, width of a character.
const ENTRY: f64 = 20.0;
const SAMPLE: f64 = 18.0;
const CHARACTER: f64 = 7.5;

const STYLE: &str = include_str!("style.css");

type Points = Vec<(f64, f64)>;

/// Time axis: seconds since the first row.
#[derive(Clone, Copy)]
struct Time {
    /// Time of the first row on the node's clock.
    origin: f64,
    end: f64,
}

/// Line of a panel.
struct Line {
    name: &'static str,
    class: &'static str,
    points: Points,
}

/// Unit chosen by the largest value.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    size: f64,
}

/// Panel of the chart.
struct Panel {
    title: &'static str,
    /// Top and bottom, pixels.
    down: Point,
    lines: Vec<Line>,
    units: &'static [(&'static str, f64)],
    /// True if the legend includes the bands.
    names_bands: bool,
}

/// Periods of one sender state, drawn in the background.
struct Band {
    name: &'static str,
    class: &'static str,
    periods: Vec<(f64, f64)>,
}

/// Draws the chart; returns the SVG.
pub(super) fn draw(connection: &Connection) -> String {
    let Connection { name, rows } = connection;
    let time = Time::of(rows);
    let bands = bands(rows, time);
    let mut canvas = Canvas::document(SIZE, &format!("Congestion control of {name}"), STYLE);
    canvas.rect("paper", (0.0, 0.0), SIZE);
    canvas.text("title", (SIZE.0 / 2.0, 30.0), Anchor::Middle, name);
    for panel in [windows(rows, time), round_trip(rows, time), rate(rows, time)] {
        panel.draw(&mut canvas, time, &bands);
    }
    canvas.text("name", (f64::midpoint(ACROSS.0, ACROSS.1), 892.0), Anchor::Middle, "seconds");
    canvas.finish()
}

fn windows(rows: &[Row], time: Time) -> Panel {
    let line = |name, class, value: fn(&Row) -> Option<f64>| Line {
        name,
        class,
        points: time.steps(rows, value),
    };
    Panel {
        title: "windows",
        down: WINDOWS,
        lines: vec![
            line("in flight", "orange", |row| Some(row.in_flight)),
            line("ssthresh", "dashed", |row| row.ssthresh),
            line("cwnd", "blue", |row| row.cwnd),
        ],
        units: &[("bytes", 1.0), ("KiB", 1024.0), ("MiB", 1048576.0), ("GiB", 1073741824.0)],
        names_bands: true,
    }
}

fn round_trip(rows: &[Row], time: Time) -> Panel {
    let bound = time.steps(rows, |row| Some(row.srtt? + 4.0 * row.rttvar?));
    Panel {
        title: "round trip",
        down: ROUND_TRIP,
        lines: vec![
            Line { name: "srtt + 4 rttvar", class: "dashed", points: bound },
            Line { name: "srtt", class: "green", points: time.steps(rows, |row| row.srtt) },
        ],
        units: &[("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)],
        names_bands: false,
    }
}

fn rate(rows: &[Row], time: Time) -> Panel {
    let pacing = time.steps(rows, |row| row.pacing_rate.map(|rate| 8.0 * rate));
    Panel {
        title: "rate",
        down: RATE,
        lines: vec![
            Line { name: "pacing", class: "dashed", points: pacing },
            Line { name: "delivered", class: "purple", points: time.rates(rows) },
        ],
        units: &[("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9)],
        names_bands: false,
    }
}

/// Returns the bands of the states that occur.
fn bands(rows: &[Row], time: Time) -> Vec<Band> {
    let states = [
        (State::Cwr, "ECN response", "yellow"),
        (State::Recovery, "fast recovery", "red"),
        (State::Loss, "RTO recovery", "gray"),
    ];
    let band = |(state, name, class)| Band { name, class, periods: time.bands(rows, state) };
    states.into_iter().map(band).filter(|band| !band.periods.is_empty()).collect()
}

impl Panel {
    fn draw(&self, canvas: &mut Canvas, time: Time, bands: &[Band]) {
        let (top, bottom) = self.down;
        let values = || self.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let unit = Unit::for_values_to(values().fold(0.0, f64::max), self.units);
        let x = Axis { range: (0.0, time.end), pixels: ACROSS, is_log: false };
        let y = Axis::linear(values().map(|value| value / unit.size), (bottom, top));
        for band in bands {
            for (from, to) in band.periods.iter().map(|&(from, to)| (x.at(from), x.at(to))) {
                let class = format!("band {}", band.class);
                canvas.rect(&class, (from, top), (to - from, bottom - top));
            }
        }
        canvas.grid_across(&y, ACROSS);
        canvas.grid_upright(&x, self.down);
        let title = format!("{}, {}", self.title, unit.name);
        canvas.text("name", (ACROSS.0, top - 14.0), Anchor::Start, &title);
        for line in &self.lines {
            let points = line.points.iter().map(|&(at, value)| (x.at(at), y.at(value / unit.size)));
            if !line.points.is_empty() {
                canvas.path(&format!("line {}", line.class), points);
            }
        }
        self.draw_legend(canvas, bands);
    }

    /// Draws the legend in the upper right corner: each name with a sample of its line or band.
    fn draw_legend(&self, canvas: &mut Canvas, bands: &[Band]) {
        let bands = if self.names_bands { bands } else { &[] };
        let lines = self.lines.iter().filter(|line| !line.points.is_empty());
        let bands = bands.iter().map(|band| (band.name, "band", band.class));
        let entries: Vec<_> =
            bands.chain(lines.map(|line| (line.name, "line", line.class))).collect();
        let longest = entries.iter().map(|(name, ..)| name.len()).max().unwrap_or(0) as f64;
        let (width, height) =
            (longest * CHARACTER + SAMPLE + 24.0, entries.len() as f64 * ENTRY + 8.0);
        let (left, top) = (ACROSS.1 - width - 8.0, self.down.0 + 8.0);
        canvas.rect("legend", (left, top), (width, height));
        let (from, to) = (left + 8.0, left + 8.0 + SAMPLE);
        for (index, (name, kind, class)) in entries.into_iter().enumerate() {
            let middle = top + 4.0 + (index as f64 + 0.5) * ENTRY;
            let class = format!("{kind} {class}");
            match kind {
                "band" => canvas.rect(&class, (from, middle - 5.0), (SAMPLE, 10.0)),
                _ => canvas.line(&class, (from, middle), (to, middle)),
            }
            canvas.text("entry", (to + 8.0, middle + 5.0), Anchor::Start, name);
        }
    }
}

impl Time {
    fn of(rows: &[Row]) -> Self {
        let origin = rows.first().map_or(0.0, |row| row.time);
        let end = rows.last().map_or(0.0, |row| row.time);
        // The range must not be empty.
        Self { origin, end: (end - origin).max(1e-3) }
    }

    /// Returns `value` over time as steps: a value holds until the next row.
    fn steps(self, rows: &[Row], value: impl Fn(&Row) -> Option<f64>) -> Points {
        let mut points = Points::new();
        for row in rows {
            let Some(value) = value(row) else { continue };
            let at = row.time - self.origin;
            if let Some((_, before)) = points.last().copied() {
                points.push((at, before));
            }
            points.push((at, value));
        }
        decimate(&points, self.end)
    }

    /// Returns the delivery rate in bits per second, in equal time steps.
    fn rates(self, rows: &[Row]) -> Points {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Points::new() };
        let step = self.end / RATE_STEPS as f64;
        let mut points = Points::new();
        let (mut index, mut before) = (0, first.delivered);
        for n in 1..=RATE_STEPS {
            let end = first.time + step * n as f64;
            while index + 1 < rows.len() && rows[index + 1].time <= end {
                index += 1;
            }
            let delivered = if n == RATE_STEPS { last.delivered } else { rows[index].delivered };
            let rate = 8.0 * (delivered - before) / step;
            points.push((step * (n - 1) as f64, rate));
            points.push((step * n as f64, rate));
            before = delivered;
        }
        points
    }

    /// Returns the periods in which `state` held.
    fn bands(self, rows: &[Row], state: State) -> Vec<(f64, f64)> {
        let mut bands = Vec::new();
        let mut since = None;
        for row in rows {
            let at = row.time - self.origin;
            match (row.state == state, since) {
                (true, None) => since = Some(at),
                (false, Some(from)) => {
                    bands.push((from, at));
                    since = None;
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
        bands.extend(since.map(|from| (from, self.end)));
        bands
    }
}

impl Unit {
    /// Returns the largest unit in which `most` is at least two.
    fn for_values_to(most: f64, units: &[(&'static str, f64)]) -> Self {
        let fits = units.iter().rfind(|(_, size)| most >= 2.0 * size);
        let (name, size) = *fits.or_else(|| units.first()).unwrap_or(&("", 1.0));
        Self { name, size }
    }
}

/// Returns the points that are visible with [`COLUMNS`] columns up to `end`.
fn decimate(points: &[(f64, f64)], end: f64) -> Points {
    let column = |point: &(f64, f64)| (point.0 / end * COLUMNS) as u64;
    let mut kept = Points::new();
    for points in points.chunk_by(|a, b| column(a) == column(b)) {
        let (first, last) = (points[0], points[points.len() - 1]);
        let lowest =
            points.iter().fold(first, |low, point| if point.1 < low.1 { *point } else { low });
        let highest =
            points.iter().fold(first, |high, point| if point.1 > high.1 { *point } else { high });
        kept.push(first);
        if points.len() > 1 {
            kept.extend([lowest, highest, last]);
        }
    }
    kept
}
