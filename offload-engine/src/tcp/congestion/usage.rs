//! Use of the congestion window, and the start of round trips.
//!
//! An unused window must not grow, as nothing has shown that the path carries it (RFC 9438 §5.8, RFC 5681 §3.1). A
//! window not used for some time no longer reflects the path: after each such RTO it is reduced halfway to the used
//! part (RFC 2861 §3), as in Linux. RFC 7661 would keep the window for five minutes instead. It requires pacing to send
//! such a window, and pacing is optional here.
//!
//! Used: after a transmission there was no room for another full segment. This holds until everything in flight at that
//! time is acknowledged, so that all ACKs of a batch count alike. A GSO packet that leaves less than an MSS uses the
//! window as one that fits exactly. In slow start half of the window is enough: it doubles in one round.

use crate::{
    tcp::seq::Position,
    time::{Duration, Instant},
};

/// Use of one connection's window.
#[derive(Debug)]
pub(in super::super) struct Usage {
    /// SND.NXT at the start of the round.
    round_end: Position,
    /// The state below is valid until everything before this is acknowledged.
    until: Position,
    /// True if there was no room for another segment.
    full: bool,
    /// Most bytes in flight.
    peak: u64,
    /// Time since which the window is not used.
    since: Instant,
    /// Most bytes in flight since then.
    used: u64,
}

impl Usage {
    /// Starts without information about the use of data in flight, up to `nxt`.
    pub(in super::super) const fn new(now: Instant, nxt: Position) -> Self {
        Self { round_end: nxt, until: nxt, full: false, peak: 0, since: now, used: 0 }
    }

    /// Returns true if a round trip begins when everything before `una` is acknowledged: part of it was sent after the
    /// last one had begun. Everything up to `nxt` then belongs to earlier rounds.
    #[inline]
    pub(in super::super) fn round_begins(&mut self, una: Position, nxt: Position) -> bool {
        let begins = una > self.round_end;
        if begins {
            self.round_end = nxt;
        }
        begins
    }

    /// Records a transmission after which `in_flight` of `cwnd` bytes are in flight, in [`una`, `nxt`).
    #[inline]
    pub(in super::super) fn sent(
        &mut self,
        (una, nxt): (Position, Position),
        in_flight: u64,
        cwnd: u64,
        mss: u64,
    ) {
        let full = in_flight.saturating_add(mss) > cwnd;
        if full || una >= self.until || (!self.full && in_flight > self.peak) {
            *self = Self { full, peak: in_flight, until: nxt, ..*self };
        }
    }

    /// True if only the window limits the sender.
    #[inline]
    pub(in super::super) fn is_limited(&self, cwnd: u64, slow_start: bool) -> bool {
        self.full || slow_start && self.peak.saturating_mul(2) > cwnd
    }

    /// Evaluates the use of the window for each acknowledgment; `limited` is [`Usage::is_limited`]. Returns the most
    /// bytes in flight of an RTO in which the window was not used (RFC 2861 §3).
    #[inline]
    pub(in super::super) fn underused(
        &mut self,
        now: Instant,
        rto: Duration,
        limited: bool,
    ) -> Option<u64> {
        self.used = if limited { 0 } else { self.used.max(self.peak) };
        if limited {
            self.since = now;
        }
        if now < self.since + rto {
            return None;
        }
        self.since = now;
        Some(core::mem::take(&mut self.used))
    }
}
