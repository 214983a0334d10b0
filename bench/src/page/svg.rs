//! Pieces of an SVG: text that is safe to put there, axes, markers, labels that do not overlap.

use std::fmt::Write;

use crate::contest::{System, three_digits};

/// `text` for the inside of an element or of an attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // No other control character may stand in a document.
            '\t' | '\n' => out.push(character),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// Where a value is between two pixels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Axis {
    /// The least and the most.
    pub(super) range: (f64, f64),
    /// Where they are.
    pub(super) pixels: (f64, f64),
    /// Equal ratios are equally long.
    pub(super) is_log: bool,
}

impl Axis {
    /// The pixel of `value`; of the nearest end when it is outside.
    pub(super) fn at(&self, value: f64) -> f64 {
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

    /// From 0 to a round number that holds all of `values`.
    pub(super) fn linear(values: impl IntoIterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let most = values.into_iter().fold(0.0, f64::max);
        let step = step_of(most);
        let most = if most > 0.0 { (most * 1.02 / step).ceil() * step } else { 1.0 };
        Self { range: (0.0, most), pixels, is_log: false }
    }

    /// From a power of ten (or twice, or five times one) to another that holds all of `values`, which are
    /// above 0.
    pub(super) fn log(values: impl IntoIterator<Item = f64>, pixels: (f64, f64)) -> Self {
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

    /// Where lines of a grid are.
    pub(super) fn ticks(&self) -> Vec<f64> {
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

/// A round step of which four to eight reach `most`.
fn step_of(most: f64) -> f64 {
    if most <= 0.0 {
        return 0.25;
    }
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|it| it * power);
    steps.into_iter().find(|step| most / step <= 6.0).unwrap_or(power * 10.0)
}

/// 1, 2 and 5 times powers of ten within a range.
fn round_numbers(least: f64, most: f64) -> Vec<f64> {
    let first = least.log10().floor() as i32;
    let decades = (first..first + 20).map(|power| 10_f64.powi(power));
    let all = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|it| it * decade));
    all.skip_while(|&it| it < least).take_while(|&it| it <= most).collect()
}

/// A number at a tick.
pub(super) fn tick_text(value: f64) -> String {
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

/// Moves labels apart that are closer than `gap`, as little as can be, within a range. Returns their places
/// in the order of `wanted`.
pub(super) fn spread(wanted: &[f64], gap: f64, range: (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut places: Vec<f64> = order.iter().map(|&index| wanted[index]).collect();
    // Downwards, each below the one before; then upwards from the end of the range.
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

/// The class that gives something the colour of a system.
pub(super) const fn class_of(system: System) -> &'static str {
    match system {
        System::Flue => "flue",
        System::Kernel => "kernel",
        System::Libfabric => "libfabric",
        System::Ucx => "ucx",
        System::Iperf3 => "iperf3",
        System::Smoltcp => "smoltcp",
        System::BareTcp => "bare",
        System::Tap => "tap",
    }
}

/// Where a text stands at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Anchor {
    /// It begins there.
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

/// An SVG under way. Texts are escaped here; classes and paths are this program's own words.
#[derive(Clone, Debug)]
pub(super) struct Canvas {
    out: String,
}

/// A place.
pub(super) type Point = (f64, f64);

impl Canvas {
    /// An empty one, of so many pixels. `label` is for those who do not see it.
    pub(super) fn new((width, height): Point, label: &str) -> Self {
        let label = escaped(label);
        let out =
            format!(r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">"#);
        Self { out }
    }

    /// The text of it.
    pub(super) fn finish(mut self) -> String {
        self.out.push_str("</svg>");
        self.out
    }

    fn add(&mut self, piece: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = self.out.write_fmt(piece);
    }

    /// What `draw` draws, with a title to hover for.
    pub(super) fn titled(&mut self, title: &str, draw: impl FnOnce(&mut Self)) {
        self.add(format_args!("<g><title>{}</title>", escaped(title)));
        draw(self);
        self.out.push_str("</g>");
    }

    /// A straight line.
    pub(super) fn line(&mut self, class: &str, from: Point, to: Point) {
        self.add(format_args!(
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// Straight lines from point to point.
    pub(super) fn path(&mut self, class: &str, points: impl IntoIterator<Item = Point>) {
        self.add(format_args!(r#"<path class="{class}" d=""#));
        for (index, (x, y)) in points.into_iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            self.add(format_args!("{letter}{x:.1} {y:.1}"));
        }
        self.out.push_str(r#""/>"#);
    }

    /// A rectangle, from its corner at the top left.
    pub(super) fn rect(&mut self, class: &str, corner: Point, (width, height): Point) {
        self.add(format_args!(
            r#"<rect class="{class}" x="{:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}"/>"#,
            corner.0, corner.1
        ));
    }

    /// Words of one kind.
    pub(super) fn text(&mut self, class: &str, at: Point, anchor: Anchor, text: &str) {
        self.texts(class, at, anchor, &[("", text)]);
    }

    /// Words of several kinds, in one line: each with a class of its own, or none.
    pub(super) fn texts(&mut self, class: &str, at: Point, anchor: Anchor, parts: &[(&str, &str)]) {
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

    /// A sign of a system: colour is not all that tells them apart.
    pub(super) fn marker(&mut self, system: System, (x, y): Point, r: f64) {
        let class = format!("m {}", class_of(system));
        match system {
            System::Flue => self.add(format_args!(
                r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{r:.1}"/>"#
            )),
            System::Libfabric => {
                self.rect(&class, (x - r * 0.9, y - r * 0.9), (r * 1.8, r * 1.8));
            }
            System::Ucx => {
                let base = y + r * 0.9;
                self.path(&class, [(x, y - r * 1.2), (x + r * 1.15, base), (x - r * 1.15, base)]);
            }
            System::Smoltcp => {
                let top = y - r * 0.9;
                self.path(&class, [(x - r * 1.15, top), (x + r * 1.15, top), (x, y + r * 1.2)]);
            }
            System::Kernel | System::Iperf3 | System::BareTcp | System::Tap => {
                let r = r * 1.3;
                self.path(&class, [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]);
            }
        }
    }

    /// Lines of a grid across, with numbers to their left.
    pub(super) fn grid_across(&mut self, y: &Axis, (left, right): Point) {
        for tick in y.ticks() {
            let pixel = y.at(tick);
            self.line("grid", (left, pixel), (right, pixel));
            self.text("tick", (left - 6.0, pixel + 4.0), Anchor::End, &tick_text(tick));
        }
    }

    /// Upright lines of a grid, with numbers below them.
    pub(super) fn grid_upright(&mut self, x: &Axis, (top, bottom): Point) {
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
    fn text_cannot_leave_its_place() {
        assert_eq!(escaped(r#"<a href="x">&'"#), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
        assert_eq!(escaped("µs\u{0}\u{1b}\n"), "µs\u{fffd}\u{fffd}\n");
    }

    #[test]
    fn axes_hold_their_values_and_have_round_ticks() {
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
    fn ticks_read_well() {
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
    fn labels_are_apart_and_in_order() {
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
        fn a_value_is_within_the_pixels(
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
