//! The timers of one connection: deadlines, no clock.

use crate::time::Instant;

/// Which timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum Timer {
    /// Retransmission (RFC 6298 §5).
    Retransmit,
    /// Tail loss probe (RFC 8985 §7.2).
    TailProbe,
    /// A segment is presumed lost when it runs out (RFC 8985 §6.2 step 5).
    Reordering,
    /// Window probe (RFC 9293 §3.8.6.1) and the override of silly window avoidance (§3.8.6.2.1).
    Persist,
    /// Delayed ACK (RFC 9293 §3.8.6.3).
    DelayedAck,
    /// Keep-alive (RFC 9293 §3.8.4).
    KeepAlive,
    /// The next quantum of paced data.
    Pacing,
    /// A partly filled receive request has waited long enough (CH §10.6).
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

/// The deadline of a timer that does not run. No node lives that long.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Deadlines.
#[derive(Debug)]
pub(super) struct Timers([Instant; ALL.len()]);

impl Default for Timers {
    fn default() -> Self {
        Self([NEVER; ALL.len()])
    }
}

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, deadline: Instant) {
        self.0[timer as usize] = deadline;
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = NEVER;
    }

    pub(super) fn stop_all(&mut self) {
        *self = Self::default();
    }

    pub(super) fn deadline(&self, timer: Timer) -> Option<Instant> {
        Some(self.0[timer as usize]).filter(|deadline| *deadline != NEVER)
    }

    pub(super) fn is_running(&self, timer: Timer) -> bool {
        self.0[timer as usize] != NEVER
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
        let earliest = self.0.into_iter().fold(NEVER, Instant::min);
        Some(earliest).filter(|deadline| *deadline != NEVER)
    }
}
