//! Charts as SVG: axes with round ticks, escaped text, labels that do not overlap.

use std::fmt::Write;

use crate::units::three_digits;

/// Returns `text`, escaped for use in an element or an attribute.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML forbids the other control characters.
            '\t' | '\n' => out.push(character),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// Mapping of values to pixels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Axis {
    /// Smallest and largest value.
    pub range: (f64, f64),
    /// Pixels of the smallest and the largest value.
    pub pixels: (f64, f64),
    /// True if the axis is logarithmic.
    pub is_log: bool,
}

impl Axis {
    /// Returns the pixel of `value`, clamped to the range.
    pub fn at(&self, value: f64) -> f64 {
        let (least, most) = self.range;
        let value = value.clamp(least, most);
        let part = if self.is_log {
            (value / least).ln() / (most / least).ln()
        } else {
            (value - least) / (most - least)
        };
        let (from, to) = self.pixels;
        from + part * (to - from)
    }

    /// Creates a linear axis from 0 to a round number not less than any of `values`.
    pub fn linear(values: impl IntoIterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let most = values.into_iter().fold(0.0, f64::max);
        let step = step_of(most);
        let most = if most > 0.0 { (most * 1.02 / step).ceil() * step } else { 1.0 };
        Self { range: (0.0, most), pixels, is_log: false }
    }

    /// Creates a logarithmic axis that covers the positive `values`; both ends are 1, 2 or 5 times a power of ten.
    pub fn log(values: impl IntoIterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let start = (f64::INFINITY, 0.0_f64);
        let (least, most) = values
            .into_iter()
            .filter(|&it| it > 0.0)
            .fold(start, |(a, b), it| (a.min(it), b.max(it)));
        if most <= 0.0 {
            return Self { range: (1.0, 10.0), pixels, is_log: true };
        }
        let below = *round_numbers(least / 10.0, least).last().unwrap_or(&(least / 2.0));
        let above =
            round_numbers(most * 1.0001, most * 10.0).first().copied().unwrap_or(most * 2.0);
        Self { range: (below, above), pixels, is_log: true }
    }

    /// Returns the values of the grid lines.
    pub fn ticks(&self) -> Vec<f64> {
        let (least, most) = self.range;
        if self.is_log {
            let decades = (most / least).log10();
            let ticks = round_numbers(least * 0.9999, most * 1.0001);
            let is_power = |tick: &f64| (tick.log10() - tick.log10().round()).abs() < 1e-6;
            return if decades > 2.2 {
                ticks.into_iter().filter(is_power).collect()
            } else {
                ticks
            };
        }
        let step = step_of(most);
        (0..=20)
            .map(|index| f64::from(index) * step)
            .take_while(|&it| it <= most * 1.0001)
            .collect()
    }
}

/// Returns a round step, of which about five reach `most`.
fn step_of(most: f64) -> f64 {
    if most <= 0.0 {
        return 0.25;
    }
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|it| it * power);
    steps.into_iter().find(|step| most / step <= 6.0).unwrap_or(power * 10.0)
}

/// Returns 1, 2 and 5 times the powers of ten within a range.
fn round_numbers(least: f64, most: f64) -> Vec<f64> {
    let first = least.log10().floor() as i32;
    let decades = (first..first + 20).map(|power| 10_f64.powi(power));
    let all = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|it| it * decade));
    all.skip_while(|&it| it < least).take_while(|&it| it <= most).collect()
}

/// Returns the label of a tick.
pub fn tick_text(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let text = if value < 0.01 { format!("{value:.7}") } else { three_digits(value) };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Returns positions of labels, in the order of `wanted`: as near to `wanted` as possible, at least `gap` apart, none
/// above the end of `range`.
pub fn spread(wanted: &[f64], gap: f64, range: (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut places: Vec<f64> = order.iter().map(|&index| wanted[index]).collect();
    // First move each label down, away from the previous one, then back up from the end of the range.
    for index in 1..places.len() {
        places[index] = places[index].max(places[index - 1] + gap);
    }
    let mut limit = range.1;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - gap;
    }
    let mut result = vec![0.0; wanted.len()];
    for (place, index) in places.into_iter().zip(order) {
        result[index] = place;
    }
    result
}

/// Horizontal alignment of text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// The text starts at the point.
    Start,
    /// The text is centered on the point.
    Middle,
    /// The text ends at the point.
    End,
}

/// An SVG under construction. Text is escaped; class names are not.
#[derive(Clone, Debug)]
pub struct Canvas {
    out: String,
}

/// Pixels from the left and from the top.
pub type Point = (f64, f64);

impl Canvas {
    /// Creates an empty image for an HTML page, whose style sheet applies. `label` is its text for screen readers.
    pub fn new((width, height): Point, label: &str) -> Self {
        let label = escaped(label);
        let out =
            format!(r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">"#);
        Self { out }
    }

    /// Creates an empty image for a separate file, with a style sheet.
    pub fn document((width, height): Point, label: &str, style: &str) -> Self {
        let label = escaped(label);
        let size = format!(r#"width="{width}" height="{height}" viewBox="0 0 {width} {height}""#);
        let out = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}"><style>{style}</style>"#
        );
        Self { out }
    }

    /// Returns the text of the SVG.
    pub fn finish(mut self) -> String {
        self.out.push_str("</svg>");
        self.out
    }

    fn add(&mut self, piece: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.out.write_fmt(piece);
    }

    /// Draws a group with `title` as its tooltip.
    pub fn titled(&mut self, title: &str, draw: impl FnOnce(&mut Self)) {
        self.add(format_args!("<g><title>{}</title>", escaped(title)));
        draw(self);
        self.out.push_str("</g>");
    }

    /// Draws a line.
    pub fn line(&mut self, class: &str, from: Point, to: Point) {
        self.add(format_args!(
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// Draws a polyline.
    pub fn path(&mut self, class: &str, points: impl IntoIterator<Item = Point>) {
        self.add(format_args!(r#"<path class="{class}" d=""#));
        for (index, (x, y)) in points.into_iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            self.add(format_args!("{letter}{x:.1} {y:.1}"));
        }
        self.out.push_str(r#""/>"#);
    }

    /// Draws a rectangle; `corner` is its upper left corner.
    pub fn rect(&mut self, class: &str, corner: Point, (width, height): Point) {
        self.add(format_args!(
            r#"<rect class="{class}" x="{:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}"/>"#,
            corner.0, corner.1
        ));
    }

    /// Draws a circle.
    pub fn circle(&mut self, class: &str, (x, y): Point, radius: f64) {
        self.add(format_args!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius:.1}"/>"#
        ));
    }

    /// Draws a text.
    pub fn text(&mut self, class: &str, at: Point, anchor: Anchor, text: &str) {
        self.texts(class, at, anchor, &[("", text)]);
    }

    /// Draws one line of text in several parts, each with its class (or "").
    pub fn texts(&mut self, class: &str, at: Point, anchor: Anchor, parts: &[(&str, &str)]) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = at;
        self.add(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">"#
        ));
        for (class, text) in parts {
            match class {
                &"" => self.out.push_str(&escaped(text)),
                class => {
                    let text = escaped(text);
                    self.add(format_args!(r#"<tspan class="{class}">{text}</tspan>"#));
                }
            }
        }
        self.out.push_str("</text>");
    }

    /// Draws horizontal grid lines, labeled on the left.
    pub fn grid_across(&mut self, y: &Axis, (left, right): Point) {
        for tick in y.ticks() {
            let pixel = y.at(tick);
            self.line("grid", (left, pixel), (right, pixel));
            self.text("tick", (left - 6.0, pixel + 4.0), Anchor::End, &tick_text(tick));
        }
    }

    /// Draws vertical grid lines, labeled below.
    pub fn grid_upright(&mut self, x: &Axis, (top, bottom): Point) {
        for tick in x.ticks() {
            let pixel = x.at(tick);
            self.line("grid", (pixel, top), (pixel, bottom));
            self.text("tick", (pixel, bottom + 15.0), Anchor::Middle, &tick_text(tick));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped(r#"<a href="x">&'"#), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
        assert_eq!(escaped("µs\u{0}\u{1b}\n"), "µs\u{fffd}\u{fffd}\n");
    }

    #[test]
    fn axes_cover_their_values_and_have_round_ticks() {
        let axis = Axis::linear([67.4, 12.0], (100.0, 0.0));
        assert_eq!(axis.range, (0.0, 80.0));
        assert_eq!(axis.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!((axis.at(0.0), axis.at(80.0), axis.at(90.0)), (100.0, 0.0, 0.0));
        let axis = Axis::log([3.1, 39.0], (0.0, 100.0));
        assert_eq!(axis.range, (2.0, 50.0));
        assert_eq!(axis.ticks(), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!((axis.at(2.0), axis.at(10.0), axis.at(50.0)), (0.0, 50.0, 100.0));
        let axis = Axis::log([64.0, 8e6], (0.0, 1.0));
        assert_eq!(axis.ticks(), [1e2, 1e3, 1e4, 1e5, 1e6, 1e7]);
        assert!(Axis::log([], (0.0, 1.0)).ticks().len() > 1);
        assert!(Axis::linear([], (0.0, 1.0)).ticks().len() > 1);
    }

    #[test]
    fn tick_labels_have_no_trailing_zeros() {
        let cases = [
            (0.0, "0"),
            (20.0, "20"),
            (2.5, "2.5"),
            (0.05, "0.05"),
            (0.0001, "0.0001"),
            (0.5, "0.5"),
            (100.0, "100"),
        ];
        for (value, text) in cases {
            assert_eq!(tick_text(value), text);
        }
    }

    #[test]
    fn labels_keep_their_distance_and_order() {
        let places = spread(&[50.0, 10.0, 11.0, 52.0], 10.0, (0.0, 60.0));
        assert_eq!(places, [50.0, 10.0, 20.0, 60.0]);
    }

    proptest! {
        #[test]
        fn labels_never_overlap(wanted in prop::collection::vec(0.0..300.0_f64, 0..12)) {
            let mut places = spread(&wanted, 14.0, (0.0, 300.0));
            places.sort_by(f64::total_cmp);
            for pair in places.windows(2) {
                prop_assert!(pair[1] - pair[0] >= 14.0 - 1e-9);
            }
            prop_assert!(places.iter().all(|&place| place <= 300.0));
        }

        #[test]
        fn every_value_is_mapped_into_the_pixel_range(
            value in 1e-3..1e9_f64,
            others in prop::collection::vec(1e-3..1e9_f64, 1..9),
        ) {
            let log = Axis::log(others.iter().copied(), (10.0, 90.0));
            let linear = Axis::linear(others.iter().copied(), (90.0, 10.0));
            for axis in [log, linear] {
                let pixel = axis.at(value);
                prop_assert!((10.0 - 1e-6..=90.0 + 1e-6).contains(&pixel));
            }
        }
    }
}
