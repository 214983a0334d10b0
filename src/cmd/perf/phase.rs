//! State of one phase: messages to send, messages sent, and the intervals of clock reads.

use std::time::{Duration, Instant};

use super::{
    cpu::{Cpu, Reading},
    histogram::Histogram,
    kind::Kind,
    message::Bound,
    report::{EndpointCpu, Interval, Measured, Reporter},
};
use crate::{failure::Failure, report::Console};

/// Bytes per gigabyte in the CPU cost per gigabyte.
const GIGABYTE: f64 = 1e9;
/// Polls per clock read.
const POLLS_PER_CLOCK: u32 = 16;
/// Interval of checks for peer activity.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit without peer activity.
pub(super) const INACTIVITY_LIMIT: Duration = Duration::from_secs(15);
/// Time limit for a reply when no data is in flight.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Result of a phase.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) elapsed: Duration,
    pub(super) cpu: Cpu,
    /// Messages sent, or exchanged.
    pub(super) messages: u64,
    /// Messages received, if they are counted.
    pub(super) received: u64,
    pub(super) intervals: Vec<Interval>,
    pub(super) histogram: Histogram,
    /// Failed operations: connections.
    pub(super) failures: u64,
    /// Connections that were offloaded.
    pub(super) offloaded: u64,
}

/// Peer's part of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerHalf {
    pub(super) cpu: Cpu,
    pub(super) messages: u64,
    pub(super) verified: Option<bool>,
}

impl Outcome {
    /// Combines this result and the peer's part into a measurement.
    pub(super) fn measured(
        self,
        kind: Kind,
        size_bytes: u64,
        warm_up_iterations: u64,
        peer: PeerHalf,
    ) -> Measured {
        let Self { elapsed, cpu, messages, received: _, intervals, histogram, failures, offloaded } =
            self;
        let seconds = elapsed.as_secs_f64();
        let iterations = messages + peer.messages;
        let bytes = iterations * size_bytes;
        let used =
            cpu.user_seconds + cpu.system_seconds + peer.cpu.user_seconds + peer.cpu.system_seconds;
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        Measured {
            size_bytes,
            iterations,
            warm_up_iterations,
            seconds,
            bytes,
            bandwidth_bps: kind.is_bandwidth().then(|| per_second(bytes as f64 * 8.0)),
            messages_per_second: per_second(iterations as f64),
            latency_ns: histogram.latency(),
            cpu: EndpointCpu {
                local_user_seconds: cpu.user_seconds,
                local_system_seconds: cpu.system_seconds,
                remote_user_seconds: Some(peer.cpu.user_seconds),
                remote_system_seconds: Some(peer.cpu.system_seconds),
                seconds_per_gbyte: (kind.is_bandwidth() && bytes > 0)
                    .then(|| used / (bytes as f64 / GIGABYTE)),
            },
            intervals,
            verified: peer.verified,
            failures,
            offloaded_connections: (kind == Kind::ConnectRate).then_some(offloaded),
        }
    }
}

/// Budget of messages that may still be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) left: u64,
    until: Option<Instant>,
}

impl Budget {
    fn new(bound: Bound, begun: Instant) -> Self {
        match bound {
            Bound::Iterations(left) => Self { left, until: None },
            Bound::DurationNs(nanos) => {
                Self { left: u64::MAX, until: Some(begun + Duration::from_nanos(nanos)) }
            }
        }
    }

    /// Exhausts the budget if its deadline has passed.
    pub(super) fn update(&mut self, now: Instant) {
        if self.until.is_some_and(|until| until <= now) {
            self.left = 0;
        }
    }

    /// Returns true if no message may be sent.
    pub(super) const fn is_over(&self) -> bool {
        self.left == 0
    }
}

/// Phase in progress.
pub(super) struct Phase<'p, 'r, 'w> {
    pub(super) begun: Instant,
    pub(super) budget: Budget,
    cpu: Reading,
    polls: u32,
    size_bytes: u64,
    intervals: Vec<Interval>,
    interval: Option<Duration>,
    interval_begun: Instant,
    interval_messages: u64,
    reporting: Option<(&'p mut Reporter, &'r mut Console<'w>)>,
    watched: Instant,
    activity: u64,
    active_at: Instant,
    pub(super) histogram: Histogram,
    pub(super) failures: u64,
    pub(super) offloaded: u64,
}

impl<'p, 'r, 'w> Phase<'p, 'r, 'w> {
    /// Starts a phase now.
    pub(super) fn begin(bound: Bound, size_bytes: u64) -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            budget: Budget::new(bound, now),
            cpu: Reading::now(),
            polls: 0,
            size_bytes,
            intervals: Vec::new(),
            interval: None,
            interval_begun: now,
            interval_messages: 0,
            reporting: None,
            watched: now,
            activity: 0,
            active_at: now,
            histogram: Histogram::default(),
            failures: 0,
            offloaded: 0,
        }
    }

    /// Enables interval reports.
    pub(super) fn reporting(
        mut self,
        interval: Option<Duration>,
        reporter: &'p mut Reporter,
        console: &'r mut Console<'w>,
    ) -> Self {
        self.interval = interval;
        self.reporting = Some((reporter, console));
        self
    }

    /// Returns true if the clock must be read.
    pub(super) const fn is_clock_due(&mut self) -> bool {
        self.polls += 1;
        self.polls.is_multiple_of(POLLS_PER_CLOCK)
    }

    /// Reads the clock: updates the budget and reports the interval. `messages` is the number completed so far.
    /// `activity` returns a number that changes with any activity of the peer.
    ///
    /// # Errors
    /// The peer was inactive for longer than the limit.
    pub(super) fn clock(
        &mut self,
        now: Instant,
        messages: u64,
        activity: impl FnOnce() -> u64,
    ) -> Result<(), Failure> {
        self.budget.update(now);
        if let Some(interval) = self.interval
            && now - self.interval_begun >= interval
        {
            self.close_interval(now, messages);
        }
        if now - self.watched >= WATCH_INTERVAL {
            self.watched = now;
            let activity = activity();
            if activity != self.activity {
                (self.activity, self.active_at) = (activity, now);
            } else if now - self.active_at >= INACTIVITY_LIMIT {
                let limit = INACTIVITY_LIMIT.as_secs();
                return Err(Failure::work(format!("peer: no data for {limit} s")));
            }
        }
        Ok(())
    }

    fn close_interval(&mut self, now: Instant, messages: u64) {
        let seconds = (now - self.interval_begun).as_secs_f64();
        let count = messages.saturating_sub(self.interval_messages);
        let interval = Interval::new(seconds, count, self.size_bytes);
        if let Some((reporter, console)) = &mut self.reporting {
            let from = (self.interval_begun - self.begun).as_secs_f64();
            reporter.interval(self.size_bytes, from, &interval, console);
        }
        self.intervals.push(interval);
        (self.interval_begun, self.interval_messages) = (now, messages);
    }

    /// Ends the phase now.
    pub(super) fn end(self, messages: u64, received: u64) -> Outcome {
        Outcome {
            elapsed: self.begun.elapsed(),
            cpu: self.cpu.elapsed(),
            messages,
            received,
            intervals: self.intervals,
            histogram: self.histogram,
            failures: self.failures,
            offloaded: self.offloaded,
        }
    }
}
