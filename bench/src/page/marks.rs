//! Colors and markers of the systems, and the two widths of a chart.

use flue_report::svg::{Canvas, Point};

use crate::contest::System;

/// Width for which a chart is drawn. A page contains each chart in both; the style sheet shows the one for the window,
/// so that text is about as large as that of the page in both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Width {
    /// Windows of more than 1,000 pixels.
    Wide,
    /// Smaller windows, down to 400 pixels.
    Narrow,
}

/// Pixels of a narrow chart: a window of 400 pixels without its margins.
pub(super) const NARROW: f64 = 354.0;

impl Width {
    /// Returns the geometry of this width.
    pub(super) fn of<T>(self, wide: T, narrow: T) -> T {
        match self {
            Self::Wide => wide,
            Self::Narrow => narrow,
        }
    }

    /// Returns the HTML with both widths; `None` if there is nothing to draw.
    pub(super) fn both(draw: impl Fn(Self) -> Option<String>) -> Option<String> {
        let (wide, narrow) = (draw(Self::Wide)?, draw(Self::Narrow)?);
        Some(format!("<div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div>"))
    }
}

/// Returns the style class with the color of a system.
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

/// Draws the marker of a system. Its shape differs too, for readers who cannot distinguish the colors.
pub(super) fn marker(canvas: &mut Canvas, system: System, (x, y): Point, r: f64) {
    let class = format!("m {}", class_of(system));
    match system {
        System::Flue => canvas.circle(&class, (x, y), r),
        System::Libfabric => canvas.rect(&class, (x - r * 0.9, y - r * 0.9), (r * 1.8, r * 1.8)),
        System::Ucx => {
            let base = y + r * 0.9;
            canvas.path(&class, [(x, y - r * 1.2), (x + r * 1.15, base), (x - r * 1.15, base)]);
        }
        System::Smoltcp => {
            let top = y - r * 0.9;
            canvas.path(&class, [(x - r * 1.15, top), (x + r * 1.15, top), (x, y + r * 1.2)]);
        }
        System::Kernel | System::Iperf3 | System::BareTcp | System::Tap => {
            let r = r * 1.3;
            canvas.path(&class, [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]);
        }
    }
}
