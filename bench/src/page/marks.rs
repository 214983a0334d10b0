//! Colors and markers of the systems.

use flue_report::svg::{Canvas, Point};

use crate::contest::System;

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
