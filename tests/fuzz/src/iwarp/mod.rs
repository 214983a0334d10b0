//! iWARP with arbitrary octets: framing, headers, startup, and an adapter's full receive path.
//!
//! Each module has a `check` that takes libFuzzer's octets, compares the library with a second parser, and
//! panics on a difference.

pub mod adapter;
pub mod framing;
pub mod headers;
mod node;
pub mod startup;

use std::path::Path;

use crate::capture::{Frame, tcp_payload};

/// Name of a target and of its seed directory, and its `check`.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 4] = [
    ("mpa", framing::check),
    ("ddp", headers::check),
    ("startup", startup::check),
    ("adapter", adapter::check),
];

/// Seeds of a target from captured frames: the TCP payload in the input format of the target.
#[must_use]
pub fn seeds(target: &str, frames: &[Frame]) -> Vec<Vec<u8>> {
    let payloads = || frames.iter().filter_map(|frame| tcp_payload(&frame.bytes));
    let is_startup = |octets: &Vec<u8>| octets.starts_with(b"MPA ID ");
    match target {
        "mpa" => {
            payloads().filter(|it| !is_startup(it)).map(|it| [&[1, 7], &it[..]].concat()).collect()
        }
        "ddp" => payloads()
            .filter(|it| !is_startup(it) && it.len() > 8)
            .map(|octets| octets[2..octets.len() - 4].to_vec())
            .collect(),
        "startup" => payloads().filter(is_startup).map(|it| [&[0], &it[..]].concat()).collect(),
        _ => adapter::seeds(),
    }
}

/// Runs the inputs found by a target.
///
/// # Panics
/// If an input still fails, or cannot be read.
pub fn replay(found: &Path) -> usize {
    let mut count = 0;
    for (target, check) in TARGETS {
        let Ok(files) = std::fs::read_dir(found.join(target)) else { continue };
        for file in files {
            check(&std::fs::read(file.expect("readable").path()).expect("readable"));
            count += 1;
        }
    }
    count
}
