//! Whether the congestion window is used, and where a round trip begins.
//!
//! A window that is not used must not grow, for nothing has shown that the path carries it (RFC 9438
//! §5.8, RFC 5681 §3.1), and one that has not been used for a while does not describe the path any
//! more: after each RTO of it the window goes halfway to what was used (RFC 2861 §3). Linux does the
//! same. RFC 7661 would keep the window for five minutes instead; it asks for pacing to send what was
//! kept, and pacing is optional here.
//!
//! Used: after a transmission there was no room for another full segment. This holds until all that
//! was in flight then is acknowledged, so ACKs that a batch brings together count alike, and a
//! super-segment that leaves less than an MSS uses the window as well as one that fits exactly. In slow
//! start half of the window is enough: it doubles in one round.

use crate::{
    tcp::seq::Position,
    time::{Duration, Instant},
};

/// The use of one connection's window.
#[derive(Debug)]
pub(in super::super) struct Usage {
    /// What SND.NXT was when the round began.
    round_end: Position,
    /// What is known of the use holds until everything before is acknowledged.
    until: Position,
    /// There was no room for another segment.
    full: bool,
    /// Most bytes in flight.
    peak: u64,
    /// Since when the window is not used.
    since: Instant,
    /// Most bytes in flight since then.
    used: u64,
}

impl Usage {
    /// Nothing is known of the use of what is in flight, up to `nxt`.
    pub(in super::super) const fn new(now: Instant, nxt: Position) -> Self {
        Self { round_end: nxt, until: nxt, full: false, peak: 0, since: now, used: 0 }
    }

    /// Whether a round trip begins as everything before `una` is acknowledged: some of it was sent after
    /// the last one had begun. Then everything up to `nxt` was sent before this one.
    #[inline]
    pub(in super::super) fn round_begins(&mut self, una: Position, nxt: Position) -> bool {
        let begins = una > self.round_end;
        if begins {
            self.round_end = nxt;
        }
        begins
    }

    /// A transmission has left `in_flight` of `cwnd` bytes in flight, in [`una`, `nxt`).
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

    /// Whether the window, and nothing else, holds the sender back.
    #[inline]
    pub(in super::super) fn is_limited(&self, cwnd: u64, slow_start: bool) -> bool {
        self.full || slow_start && self.peak.saturating_mul(2) > cwnd
    }

    /// To be called with each acknowledgement; `limited` is [`Usage::is_limited`]. Returns the most
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
