//! Impairments and incidents × operations: outcomes of requests for each combination.
//!
//! A cell is run for many seeds, each with a network, MTU, framing and stack of its own. Either all requests are done
//! and every byte is at its target, or the connection has ended and a side reports the reason. Completed requests are
//! exact, and memory holds only its earlier content and data sent to it. Silent changes are possible only with CRCs
//! off, and the table counts them there.
//!
//! | seeds of each cell | compared with |
//! |---|---|
//! | 10 | `tests/simulation/matrix.txt` |
//! | 100, with `FLUE_SEEDS=100` | `docs/measurements/impairments.txt` |
//!
//! `cargo test -p rdma-over-tcp --test simulation impairments` runs them, faster with `--profile campaign`.
//! `FLUE_BLESS=1` updates the file. For any other number of seeds the table is only printed. `FLUE_CELL="Loss Send"`
//! runs only that cell; with FLUE_SEED and FLUE_PCAP it writes a capture.

mod cell;
mod lossy_network;

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    panic::{catch_unwind, resume_unwind},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use flue_test_support::seeds::from_environment;

use self::cell::Outcome;

/// Seeds of each cell by default.
const SEEDS: u64 = 10;
/// Seeds of the table in the documents.
const SEEDS_OF_DOCUMENT: u64 = 100;

/// Impairment or incident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Impairment {
    Loss,
    Burst,
    Duplication,
    Reordering,
    Delay,
    /// Not detected by TCP's checksum.
    Corruption,
    CorruptionWithoutCrc,
    TinySegments,
    MtuChange,
    Reset,
    WriteMeanwhile,
    Revocation,
    SilentPeer,
}

impl Impairment {
    const ALL: [Self; 13] = [
        Self::Loss,
        Self::Burst,
        Self::Duplication,
        Self::Reordering,
        Self::Delay,
        Self::Corruption,
        Self::CorruptionWithoutCrc,
        Self::TinySegments,
        Self::MtuChange,
        Self::Reset,
        Self::WriteMeanwhile,
        Self::Revocation,
        Self::SilentPeer,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss, 3 %",
            Self::Burst => "loss in bursts, 5 %",
            Self::Duplication => "duplication, 5 %",
            Self::Reordering => "reordering, 10 %",
            Self::Delay => "delay, 20 ± 15 ms",
            Self::Corruption => "corruption",
            Self::CorruptionWithoutCrc => "corruption, CRC off",
            Self::TinySegments => "1-byte segments",
            Self::MtuChange => "MTU change",
            Self::Reset => "RST",
            Self::WriteMeanwhile => "concurrent write",
            Self::Revocation => "concurrent revocation",
            Self::SilentPeer => "end of the process",
        }
    }

    /// True if the impairment only delays data. A connection in the host ends if its path MTU shrinks: smoltcp cannot
    /// reduce its segment size.
    const fn is_harmless(self) -> bool {
        !matches!(
            self,
            Self::Corruption
                | Self::CorruptionWithoutCrc
                | Self::MtuChange
                | Self::Reset
                | Self::Revocation
                | Self::SilentPeer
        )
    }

    /// Reason why the combination does not exist.
    const fn impossible(self, operation: Operation) -> Option<&'static str> {
        match (self, operation) {
            (
                Self::WriteMeanwhile,
                Operation::Send | Operation::SendInvalidate | Operation::Write,
            ) => Some("posted memory must not be written until completion"),
            (Self::WriteMeanwhile, Operation::Immediate) => Some("data is copied into the request"),
            (Self::Revocation, Operation::Immediate) => Some("no registered memory"),
            _ => None,
        }
    }
}

/// Operation under an impairment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Send,
    SendInvalidate,
    Write,
    Read,
    Atomic,
    Immediate,
}

impl Operation {
    const ALL: [Self; 6] =
        [Self::Send, Self::SendInvalidate, Self::Write, Self::Read, Self::Atomic, Self::Immediate];

    const fn name(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::SendInvalidate => "Send with Invalidate",
            Self::Write => "Write",
            Self::Read => "Read",
            Self::Atomic => "Atomic",
            Self::Immediate => "Immediate Data",
        }
    }
}

/// Outcomes of a cell, with their counts.
type Counts = BTreeMap<Outcome, usize>;

fn cells() -> impl Iterator<Item = (Impairment, Operation)> {
    let of = |impairment| Operation::ALL.into_iter().map(move |operation| (impairment, operation));
    Impairment::ALL.into_iter().flat_map(of)
}

/// Runs a cell; a failure reports its seed.
fn run(impairment: Impairment, operation: Operation, seeds: impl Iterator<Item = u64>) -> Counts {
    let mut counts = Counts::new();
    for seed in seeds {
        let outcome = catch_unwind(|| cell::run(impairment, operation, seed));
        let outcome = outcome.unwrap_or_else(|panic| {
            eprintln!("FLUE_CELL=\"{impairment:?} {operation:?}\" FLUE_SEED={seed}");
            resume_unwind(panic)
        });
        let may_change = impairment == Impairment::CorruptionWithoutCrc;
        let is_fine = match &outcome {
            Outcome::Exact => true,
            Outcome::Ended { .. } => !impairment.is_harmless(),
            Outcome::Changed => may_change,
        };
        assert!(is_fine, "{impairment:?}, {operation:?}, FLUE_SEED={seed}: {outcome}");
        *counts.entry(outcome).or_default() += 1;
    }
    counts
}

fn table(seeds: &std::ops::Range<u64>) -> String {
    let only = env::var("FLUE_CELL").ok();
    let is_asked = |(impairment, operation): &(Impairment, Operation)| {
        only.as_ref().is_none_or(|only| *only == format!("{impairment:?} {operation:?}"))
    };
    let cells: Vec<_> = cells().filter(is_asked).collect();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![None; cells.len()]));
    let work = || {
        while let Some((at, &(impairment, operation))) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            cells.get(at).map(|cell| (at, cell))
        } {
            if impairment.impossible(operation).is_none() {
                let counts = run(impairment, operation, seeds.clone());
                results.lock().unwrap()[at] = Some(counts);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut text = format!(
        "# Impairment, operation: outcomes of seeds {} to {}, with their counts\n",
        seeds.start,
        seeds.end - 1
    );
    for (&(impairment, operation), counts) in cells.iter().zip(results.into_inner().unwrap()) {
        let _ = write!(text, "\n{} | {} | ", impairment.name(), operation.name());
        match (impairment.impossible(operation), counts) {
            (Some(why), _) => text += &format!("impossible: {why}"),
            (None, Some(counts)) => {
                let texts = counts.iter().map(|(outcome, count)| format!("{count} {outcome}"));
                text += &texts.collect::<Vec<_>>().join("\n    ");
            }
            (None, None) => panic!("{impairment:?}, {operation:?}: not run"),
        }
    }
    text + "\n"
}

// RDM-5.5, DDP-5.1, MPA-4.4-12, MPA-6-1, RDM-7.1-1, RDM-8.1.1-4, EXT-5-1, EXT-6.3-1, NDK-CQ-2
#[test]
fn impairments() {
    let seeds = from_environment().map_or(0..SEEDS, |(seeds, _)| seeds);
    let text = table(&seeds);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = match (seeds.start, seeds.end) {
        (0, SEEDS) => root.join("tests/simulation/matrix.txt"),
        (0, SEEDS_OF_DOCUMENT) => root.join("../docs/measurements/impairments.txt"),
        _ => return println!("{text}"),
    };
    if env::var_os("FLUE_BLESS").is_some() {
        fs::write(path, text).unwrap();
        return;
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(text.lines()).find(|(was, is)| was != is);
    assert!(kept == text, "{}: {differs:#?}\nif intended: FLUE_BLESS=1", path.display());
}
