//! Chart with three panels over one time axis.

use flue_report::{
    svg::{Anchor, Axis, Canvas, Point},
    units::three_digits,
};

use super::{Connection, Row, State};

/// Margins of the panels, pixels: left and right.
const MARGINS: Point = (64.0, 16.0);
/// Heights of the panels, and the space below each for the labels of its time axis, pixels.
const WINDOWS: f64 = 330.0;
const ROUND_TRIP: f64 = 170.0;
const RATE: f64 = 160.0;
const BELOW: f64 = 34.0;
/// Columns of a line, one per pixel of the widest panel at most: only the first, lowest, highest and last point of each
/// are kept.
const COLUMNS_MAX: f64 = 500.0;
/// Steps of the delivery rate.
const RATE_STEPS: usize = 240;
/// Legend, pixels: height of a line, length of a sample, width of a character, distance of entries.
const ENTRY: f64 = 20.0;
const SAMPLE: f64 = 18.0;
const CHARACTER: f64 = 8.0;
const ENTRY_GAP: f64 = 16.0;
/// Part of the time whose values an axis covers, unless its range would be less than [`CLIPPED_FACTOR`] larger for all.
const COVERED: f64 = 0.97;
const CLIPPED_FACTOR: f64 = 2.0;

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
    /// Pixels.
    height: f64,
    lines: Vec<Line>,
    units: &'static [(&'static str, f64)],
    /// True if the legend includes the bands.
    names_bands: bool,
}

/// Entry of a legend: name, kind of its sample, color.
type Entry = (&'static str, &'static str, &'static str);

/// Periods of one sender state, drawn in the background.
struct Band {
    name: &'static str,
    class: &'static str,
    periods: Vec<(f64, f64)>,
}

/// Draws the chart for a width in pixels; returns the SVG.
pub(super) fn draw(connection: &Connection, width: u16) -> String {
    let Connection { name, rows } = connection;
    let time = Time::of(rows);
    let bands = bands(rows, time);
    let panels = [windows(rows, time), round_trip(rows, time), rate(rows, time)];
    let width = f64::from(width);
    let across = (MARGINS.0, width - MARGINS.1);
    let heights = panels.iter().map(|panel| panel.head(across, &bands) + panel.height + BELOW);
    let size = (width, 36.0 + heights.sum::<f64>() + 10.0);
    let mut canvas = Canvas::document(size, &format!("Congestion control of {name}"), STYLE);
    canvas.rect("paper", (0.0, 0.0), size);
    let class = if width < 700.0 { "title small" } else { "title" };
    canvas.text(class, (width / 2.0, 26.0), Anchor::Middle, name);
    let mut top = 36.0;
    for panel in &panels {
        top += panel.head(across, &bands);
        panel.draw(&mut canvas, time, &bands, across, top);
        top += panel.height + BELOW;
    }
    canvas.text(
        "name",
        (f64::midpoint(across.0, across.1), size.1 - 8.0),
        Anchor::Middle,
        "seconds",
    );
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
        height: WINDOWS,
        lines: vec![
            line("in flight", "orange area", |row| Some(row.in_flight)),
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
        height: ROUND_TRIP,
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
        height: RATE,
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
    let of = |name, class, holds: &dyn Fn(&Row) -> bool| Band {
        name,
        class,
        periods: time.bands(rows, holds),
    };
    let all = [
        of("in the host stack", "blue", &|row| row.is_in_host),
        of("ECN response", "yellow", &|row| !row.is_in_host && row.state == State::Cwr),
        of("fast recovery", "red", &|row| !row.is_in_host && row.state == State::Recovery),
        of("RTO recovery", "gray", &|row| !row.is_in_host && row.state == State::Loss),
    ];
    all.into_iter().filter(|band| !band.periods.is_empty()).collect()
}

impl Panel {
    fn draw(&self, canvas: &mut Canvas, time: Time, bands: &[Band], across: Point, top: f64) {
        let bottom = top + self.height;
        let values = || self.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let most = values().fold(0.0, f64::max);
        let shown = self.shown_to();
        let unit = Unit::for_values_to(shown, self.units);
        let x = Axis { range: (0.0, time.end), pixels: across, is_log: false };
        let y = Axis::linear([shown / unit.size], (bottom, top));
        for band in bands {
            for (from, to) in band.periods.iter().map(|&(from, to)| (x.at(from), x.at(to))) {
                let class = format!("band {}", band.class);
                canvas.rect(&class, (from, top), ((to - from).max(1.0), bottom - top));
            }
        }
        canvas.grid_across(&y, across);
        canvas.grid_upright(&x, (top, bottom));
        for line in self.lines.iter().filter(|line| !line.points.is_empty()) {
            let at = |&(at, value): &(f64, f64)| (x.at(at), y.at(value / unit.size));
            let points: Vec<Point> = line.points.iter().map(at).collect();
            if line.class.ends_with("area") {
                let (first, last) = (points[0].0, points[points.len() - 1].0);
                let floor = [(last, bottom), (first, bottom)];
                canvas.path(&format!("fill {}", line.class), points.iter().copied().chain(floor));
            }
            canvas.path(&format!("line {}", line.class), points);
        }
        let head = top - self.head(across, bands);
        let mut title = format!("{}, {}", self.title, unit.name);
        if most / unit.size > y.range.1 {
            let most = three_digits(most / unit.size);
            title += &format!(" (cut off; highest: {most})");
        }
        canvas.text("name", (across.0, head + 16.0), Anchor::Start, &title);
        for ((name, kind, class), (left, down)) in self.legend(across, bands) {
            let middle = head + ENTRY + down + ENTRY / 2.0;
            let (from, to) = (left, left + SAMPLE);
            match kind {
                "line" => canvas.line(&format!("line {class}"), (from, middle), (to, middle)),
                kind => {
                    canvas.rect(&format!("{kind} {class}"), (from, middle - 5.0), (SAMPLE, 10.0));
                }
            }
            canvas.text("entry", (to + 6.0, middle + 5.0), Anchor::Start, name);
        }
    }

    /// Returns the highest value that is shown: all values, or those of almost all of the time if that makes them much
    /// larger. A peak of slow start would leave little room for the rest.
    fn shown_to(&self) -> f64 {
        let covered = |line: &Line| {
            let steps = line.points.windows(2).map(|pair| (pair[0].1, pair[1].0 - pair[0].0));
            let mut steps: Vec<(f64, f64)> = steps.filter(|(_, time)| *time > 0.0).collect();
            steps.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut left = COVERED * steps.iter().map(|(_, time)| time).sum::<f64>();
            let reached = |(_, time): &&(f64, f64)| {
                left -= time;
                left <= 0.0
            };
            steps.iter().find(reached).map_or(0.0, |(value, _)| *value)
        };
        let most = |line: &Line| line.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let [covered, most] = [&covered as &dyn Fn(&Line) -> f64, &most]
            .map(|of| self.lines.iter().map(of).fold(0.0, f64::max));
        if covered > 0.0 && most > CLIPPED_FACTOR * covered { 1.2 * covered } else { most }
    }

    /// Returns the height of title and legend, pixels.
    fn head(&self, across: Point, bands: &[Band]) -> f64 {
        let last = self.legend(across, bands).last().map_or(0.0, |(_, (_, down))| *down);
        2.0 * ENTRY + last + 8.0
    }

    /// Returns the entries of the legend, and the position of each below the title.
    fn legend(&self, (left, right): Point, bands: &[Band]) -> Vec<(Entry, Point)> {
        let bands = if self.names_bands { bands } else { &[] };
        let lines = self.lines.iter().rev().filter(|line| !line.points.is_empty());
        let kind = |line: &Line| if line.class.ends_with("area") { "fill" } else { "line" };
        let entries = lines
            .map(|line| (line.name, kind(line), line.class))
            .chain(bands.iter().map(|band| (band.name, "band", band.class)));
        let (mut at, mut down) = (left, 0.0);
        let mut placed = Vec::new();
        for entry in entries {
            let length = SAMPLE + 6.0 + CHARACTER * entry.0.len() as f64;
            if at > left && at + length > right {
                (at, down) = (left, down + ENTRY);
            }
            placed.push((entry, (at, down)));
            at += length + ENTRY_GAP;
        }
        placed
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
            let delivered = match rows.get(index + 1) {
                _ if n == RATE_STEPS => last.delivered,
                // The trace has no rows of the time in the host stack.
                Some(next) if rows[index].is_in_host => {
                    let row = &rows[index];
                    let part = (end - row.time) / (next.time - row.time);
                    row.delivered + part * (next.delivered - row.delivered)
                }
                _ => rows[index].delivered,
            };
            // The counter may start anew after a time in the host stack.
            let rate = (8.0 * (delivered - before) / step).max(0.0);
            points.push((step * (n - 1) as f64, rate));
            points.push((step * n as f64, rate));
            before = delivered;
        }
        points
    }

    /// Returns the periods in which `holds` was true.
    fn bands(self, rows: &[Row], holds: &dyn Fn(&Row) -> bool) -> Vec<(f64, f64)> {
        let mut bands = Vec::new();
        let mut since = None;
        for row in rows {
            let at = row.time - self.origin;
            match (holds(row), since) {
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

/// Returns the points that are visible with [`COLUMNS_MAX`] columns up to `end`.
fn decimate(points: &[(f64, f64)], end: f64) -> Points {
    let column = |point: &(f64, f64)| (point.0 / end * COLUMNS_MAX) as u64;
    let mut kept = Points::new();
    for points in points.chunk_by(|a, b| column(a) == column(b)) {
        let (first, last) = (points[0], points[points.len() - 1]);
        let lowest =
            points.iter().fold(first, |low, point| if point.1 < low.1 { *point } else { low });
        let highest =
            points.iter().fold(first, |high, point| if point.1 > high.1 { *point } else { high });
        kept.extend([first, lowest, highest, last]);
    }
    kept.dedup();
    kept
}
