//! The timers of one connection: deadlines, no clock.

use crate::time::Instant;

/// Which timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum Timer {
    /// Retransmission (RFC 6298 s5).
    Retransmit,
    /// Tail loss probe (RFC 8985 s7.2).
    TailProbe,
    /// A segment is presumed lost when it runs out (RFC 8985 s6.2 step 5).
    Reordering,
    /// Window probe (RFC 9293 s3.8.6.1) and the override of silly window avoidance (s3.8.6.2.1).
    Persist,
    /// Delayed ACK (RFC 9293 s3.8.6.3).
    DelayedAck,
    /// Keep-alive (RFC 9293 s3.8.4).
    KeepAlive,
    /// The next quantum of paced data.
    Pacing,
    /// A partly filled receive request has waited long enough (CH s10.6).
    Push,
    /// A sample of the traffic is complete (LowActivity).
    Activity,
    /// FIN_WAIT_2 or TIME_WAIT.
    Close,
}

/// Every timer, in the order in which those that are due at once are handled.
pub(super) const ALL: [Timer; 10] = [
    Timer::DelayedAck,
    Timer::Reordering,
    Timer::TailProbe,
    Timer::Retransmit,
    Timer::Persist,
    Timer::KeepAlive,
    Timer::Pacing,
    Timer::Push,
    Timer::Activity,
    Timer::Close,
];

/// Deadlines.
#[derive(Debug, Default)]
pub(super) struct Timers([Option<Instant>; ALL.len()]);

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, deadline: Instant) {
        self.0[timer as usize] = Some(deadline);
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    pub(super) fn stop_all(&mut self) {
        *self = Self::default();
    }

    pub(super) fn deadline(&self, timer: Timer) -> Option<Instant> {
        self.0[timer as usize]
    }

    pub(super) fn is_running(&self, timer: Timer) -> bool {
        self.deadline(timer).is_some()
    }

    /// Whether `timer` is due; stops it if so.
    pub(super) fn expire(&mut self, timer: Timer, now: Instant) -> bool {
        let due = self.deadline(timer).is_some_and(|deadline| deadline <= now);
        if due {
            self.stop(timer);
        }
        due
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }
}
