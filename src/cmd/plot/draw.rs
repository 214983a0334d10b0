//! The picture: three panels over one time axis.

use plotters::{
    chart::{ChartBuilder, ChartContext, SeriesLabelPosition},
    coord::{Shift, cartesian::Cartesian2d, types::RangedCoordf64},
    element::{PathElement, Rectangle},
    prelude::{DrawingArea, IntoDrawingArea, LineSeries, SVGBackend},
    series::DashedLineSeries,
    style::{Color, RGBColor, ShapeStyle, WHITE},
};

use super::{Connection, Row, State};

/// Pixels of the picture.
const SIZE: (u32, u32) = (1200, 900);
/// Pixels of the panels, from the top; the last one gets what is left.
const HEIGHTS: [u32; 2] = [400, 250];
/// Columns of a line: of each only the first, lowest, highest and last point are kept.
const COLUMNS: f64 = 2_400.0;
/// Steps of the delivery rate.
const RATE_STEPS: usize = 240;

const BLUE: RGBColor = RGBColor(31, 119, 180);
const ORANGE: RGBColor = RGBColor(255, 127, 14);
const GREEN: RGBColor = RGBColor(44, 160, 44);
const RED: RGBColor = RGBColor(214, 39, 40);
const PURPLE: RGBColor = RGBColor(148, 103, 189);
const GREY: RGBColor = RGBColor(90, 90, 90);
const YELLOW: RGBColor = RGBColor(240, 200, 40);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Points = Vec<(f64, f64)>;

/// The time axis: seconds since the first row.
#[derive(Clone, Copy)]
struct Axis {
    /// The first row, on the node's clock.
    origin: f64,
    end: f64,
}

/// Which panel it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// With the names of the bands.
    Top,
    Middle,
    /// With the name of the time axis.
    Bottom,
}

/// A line of a panel.
struct Line {
    name: &'static str,
    color: RGBColor,
    dashed: bool,
    points: Points,
}

/// A unit that fits the largest value.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    size: f64,
}

/// Draws the picture; returns the text of the SVG.
pub(super) fn draw(connection: &Connection) -> Result<String, String> {
    let mut svg = String::new();
    draw_into(&mut svg, connection).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn draw_into(svg: &mut String, connection: &Connection) -> Result<(), Box<dyn std::error::Error>> {
    let Connection { name, rows } = connection;
    let axis = Axis::of(rows);
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(name, ("sans-serif", 20))?;
    let (windows, rest) = root.split_vertically(HEIGHTS[0]);
    let (rtt, rate) = rest.split_vertically(HEIGHTS[1]);
    draw_windows(&windows, rows, axis)?;
    draw_rtt(&rtt, rows, axis)?;
    draw_rate(&rate, rows, axis)?;
    root.present()?;
    Ok(())
}

fn draw_windows(
    panel: &Panel<'_>,
    rows: &[Row],
    axis: Axis,
) -> Result<(), Box<dyn std::error::Error>> {
    let line = |name, color, dashed, value: fn(&Row) -> Option<f64>| Line {
        name,
        color,
        dashed,
        points: axis.steps(rows, value),
    };
    let lines = [
        line("in flight", ORANGE, false, |row| Some(row.in_flight)),
        line("ssthresh", GREY, true, |row| row.ssthresh),
        line("cwnd", BLUE, false, |row| row.cwnd),
    ];
    let units = [("bytes", 1.0), ("KiB", 1024.0), ("MiB", 1048576.0), ("GiB", 1073741824.0)];
    draw_panel(panel, "windows", rows, axis, &lines, &units, Place::Top)
}

fn draw_rtt(panel: &Panel<'_>, rows: &[Row], axis: Axis) -> Result<(), Box<dyn std::error::Error>> {
    let lines = [
        Line {
            name: "srtt + 4 rttvar",
            color: GREY,
            dashed: true,
            points: axis.steps(rows, |row| Some(row.srtt? + 4.0 * row.rttvar?)),
        },
        Line {
            name: "srtt",
            color: GREEN,
            dashed: false,
            points: axis.steps(rows, |row| row.srtt),
        },
    ];
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    draw_panel(panel, "round trip", rows, axis, &lines, &units, Place::Middle)
}

fn draw_rate(
    panel: &Panel<'_>,
    rows: &[Row],
    axis: Axis,
) -> Result<(), Box<dyn std::error::Error>> {
    let lines = [
        Line {
            name: "pacing",
            color: GREY,
            dashed: true,
            points: axis.steps(rows, |row| row.pacing_rate.map(|rate| 8.0 * rate)),
        },
        Line { name: "delivered", color: PURPLE, dashed: false, points: axis.rates(rows) },
    ];
    let units = [("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9)];
    draw_panel(panel, "rate", rows, axis, &lines, &units, Place::Bottom)
}

fn draw_panel(
    panel: &Panel<'_>,
    what: &str,
    rows: &[Row],
    axis: Axis,
    lines: &[Line],
    units: &[(&'static str, f64)],
    place: Place,
) -> Result<(), Box<dyn std::error::Error>> {
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(0.0, f64::max);
    let unit = Unit::for_values_to(most, units);
    let top = if most > 0.0 { most / unit.size * 1.08 } else { 1.0 };
    let mut chart = ChartBuilder::on(panel)
        .margin_right(20)
        .margin_left(16)
        .margin_top(12)
        .x_label_area_size(if place == Place::Bottom { 45 } else { 24 })
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..axis.end, 0.0..top)?;
    draw_bands(&mut chart, rows, axis, top, place)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(GREY.mix(0.15))
        .x_desc(if place == Place::Bottom { "seconds" } else { "" })
        .y_desc(format!("{what}, {}", unit.name))
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .draw()?;
    for line in lines.iter().filter(|line| !line.points.is_empty()) {
        draw_line(&mut chart, line, unit)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GREY.mix(0.4))
        .label_font(("sans-serif", 14))
        .draw()?;
    Ok(())
}

fn draw_line<'a>(
    chart: &mut Chart<'a, '_>,
    line: &Line,
    unit: Unit,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = line.points.iter().map(|(x, y)| (*x, *y / unit.size));
    let color = line.color;
    let style: ShapeStyle = color.stroke_width(if line.dashed { 1 } else { 2 });
    let label = if line.dashed {
        chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?
    } else {
        chart.draw_series(LineSeries::new(points, style))?
    };
    label
        .label(line.name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    Ok(())
}

/// What the sender was doing, behind the lines.
fn draw_bands(
    chart: &mut Chart<'_, '_>,
    rows: &[Row],
    axis: Axis,
    top: f64,
    place: Place,
) -> Result<(), Box<dyn std::error::Error>> {
    // The legend names a band where there is one, once in the picture.
    for (state, name, color) in [
        (State::Cwr, "ECN answered", YELLOW),
        (State::Recovery, "fast recovery", RED),
        (State::Loss, "after a time-out", GREY),
    ] {
        let style = color.mix(0.25).filled();
        let bands = axis.bands(rows, state);
        if bands.is_empty() {
            continue;
        }
        let series = chart.draw_series(
            bands.into_iter().map(|(from, to)| Rectangle::new([(from, 0.0), (to, top)], style)),
        )?;
        if place == Place::Top {
            series
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], style));
        }
    }
    Ok(())
}

impl Axis {
    fn of(rows: &[Row]) -> Self {
        let origin = rows.first().map_or(0.0, |row| row.time);
        let end = rows.last().map_or(0.0, |row| row.time);
        // Never empty.
        Self { origin, end: (end - origin).max(1e-3) }
    }

    /// `value` over time: it holds until the next row.
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
        thin(&points, self.end)
    }

    /// Bits delivered for each second, in equal steps of time.
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

    /// The times in which `state` held.
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
    /// The largest unit in which `most` is at least two.
    fn for_values_to(most: f64, units: &[(&'static str, f64)]) -> Self {
        let fits = units.iter().rfind(|(_, size)| most >= 2.0 * size);
        let (name, size) = *fits.or_else(|| units.first()).unwrap_or(&("", 1.0));
        Self { name, size }
    }
}

/// Without digits that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The points that a picture of [`COLUMNS`] columns up to `end` can show.
fn thin(points: &[(f64, f64)], end: f64) -> Points {
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
