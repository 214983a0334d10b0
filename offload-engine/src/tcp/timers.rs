//! Timers of one connection: deadlines without a clock.

use crate::time::Instant;

/// Timers of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum Timer {
    /// Retransmission (RFC 6298 §5).
    Retransmit,
    /// Tail loss probe (RFC 8985 §7.2).
    TailProbe,
    /// Time after which a segment is presumed lost (RFC 8985 §6.2 step 5).
    Reordering,
    /// Window probe (RFC 9293 §3.8.6.1) and the override of silly window avoidance (§3.8.6.2.1).
    Persist,
    /// Delayed ACK (RFC 9293 §3.8.6.3).
    DelayedAck,
    /// Keep-alive (RFC 9293 §3.8.4).
    KeepAlive,
    /// Next quantum of paced data.
    Pacing,
    /// Delay limit of a partly filled receive request (CH §10.6).
    Push,
    /// End of a traffic sample (LowActivity).
    Activity,
    /// FIN_WAIT_2 or TIME_WAIT.
    Close,
}

/// All timers, in the order of handling if several are due.
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

/// Deadline of a stopped timer; far beyond any uptime.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Deadlines of all timers.
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

    /// Returns true if `timer` is due, and stops it then.
    pub(super) fn expire(&mut self, timer: Timer, now: Instant) -> bool {
        let due = self.deadline(timer).is_some_and(|deadline| deadline <= now);
        if due {
            self.stop(timer);
        }
        due
    }

    /// Earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        let earliest = self.0.into_iter().fold(NEVER, Instant::min);
        Some(earliest).filter(|deadline| *deadline != NEVER)
    }
}
