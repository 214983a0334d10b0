//! Output of a wire: a line per interval, a table at the end, or one document.

use std::time::Duration;

use offload_engine::{
    link::{LaneStats, Link, Wire, WireEnd},
    time::Instant,
};
use serde_json::{Value, json};

use crate::{
    report::Console,
    table::{Align, Table, cell},
    units::{format_duration, format_rate, rate_of},
};

type Ends = Wire<Box<dyn Link>>;

const DIRECTIONS: [(WireEnd, &str); 2] = [(WireEnd::A, "A to B"), (WireEnd::B, "B to A")];

/// Prints the traffic since the previous report, at intervals.
#[derive(Debug)]
pub(super) struct StatsReporter {
    interval: Option<Duration>,
    reported_at: Instant,
    before: [LaneStats; 2],
}

impl StatsReporter {
    /// Creates a reporter; `None`: no reports.
    pub(super) fn new(interval: Option<Duration>) -> Self {
        Self { interval, reported_at: Instant::ZERO, before: Default::default() }
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.interval.map(|interval| self.reported_at + interval)
    }

    pub(super) fn report_if_due(&mut self, now: Instant, wire: &Ends, console: &mut Console<'_>) {
        if self.next_at().is_none_or(|next| now < next) {
            return;
        }
        let stats = DIRECTIONS.map(|(from, _)| wire.stats(from));
        let passed = now.saturating_since(self.reported_at);
        let parts = [0, 1].map(|at| line(DIRECTIONS[at].1, stats[at], self.before[at], passed));
        let seconds = now.as_nanos() as f64 / 1e9;
        console.step(format_args!("{seconds:7.1} s  {}", parts.join("  |  ")));
        (self.reported_at, self.before) = (now, stats);
    }
}

/// Returns a line such as `A to B 94.1 Mbit/s, 8123 frames, 3 dropped, 0 queue full`.
fn line(name: &str, now: LaneStats, before: LaneStats, passed: Duration) -> String {
    let rate =
        rate_of(now.bytes_out - before.bytes_out, passed).map_or_else(String::new, format_rate);
    let (frames, lost) = (now.frames_out - before.frames_out, now.lost - before.lost);
    let full = now.queue_full - before.queue_full;
    format!("{name} {rate:>11}, {frames:>7} frames, {lost:>5} dropped, {full:>5} queue full")
}

/// Prints the summary. `unfetched`: frames that the kernel dropped before either end.
pub(super) fn summary(
    wire: &Ends,
    elapsed: Duration,
    unfetched: [Option<u64>; 2],
    console: &mut Console<'_>,
) {
    let mut document = json!({ "duration_ns": nanos(elapsed) });
    let mut columns = Vec::new();
    for ((from, name), unfetched) in DIRECTIONS.into_iter().zip(unfetched) {
        let stats = wire.stats(from);
        columns.push(counters(stats, unfetched));
        document[name.replace(' ', "_").to_lowercase()] = as_json(stats, unfetched);
    }
    let mut table = Table::new(&[
        ("", Align::Left),
        (DIRECTIONS[0].1, Align::Right),
        (DIRECTIONS[1].1, Align::Right),
    ]);
    for (one, other) in columns[0].iter().zip(&columns[1]) {
        table.row([one.0.into(), one.1.clone(), other.1.clone()]);
    }
    let late = wire.lateness();
    let quantile = |share| late.quantile(share);
    document["late"] = json!({
        "frames": late.count(),
        "p50_ns": quantile(0.5).map(nanos),
        "p99_ns": quantile(0.99).map(nanos),
        "max_ns": nanos(late.max()),
    });
    console.print(format_args!("{table}duration: {}", format_duration(elapsed)));
    if let (Some(half), Some(most)) = (quantile(0.5), quantile(0.99)) {
        console.print(format_args!(
            "lateness of {} delayed frames: p50 {}, p99 {}, max {}",
            late.count(),
            format_duration(half),
            format_duration(most),
            format_duration(late.max()),
        ));
    }
    console.result(&document);
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the names and values of the counters of a direction.
fn counters(stats: LaneStats, unfetched: Option<u64>) -> Vec<(&'static str, String)> {
    let numbers = [
        ("frames in", stats.frames_in),
        ("bytes in", stats.bytes_in),
        ("frames out", stats.frames_out),
        ("bytes out", stats.bytes_out),
        ("dropped", stats.lost),
        ("queue full", stats.queue_full),
        ("duplicated", stats.duplicated),
        ("reordered", stats.reordered),
        ("corrupted", stats.corrupted),
        ("other drops", stats.overflow + stats.malformed + stats.refused + stats.corrupted_lost),
        ("in flight", stats.in_flight()),
    ];
    let numbers = numbers.map(|(name, number)| (name, number.to_string()));
    numbers.into_iter().chain([("TAP drops", cell(unfetched))]).collect()
}

fn as_json(stats: LaneStats, unfetched: Option<u64>) -> Value {
    let mut document = json!(stats);
    document["in_flight"] = stats.in_flight().into();
    document["tap_drops"] = unfetched.into();
    document
}
