//! What the sender spends its time with: tcp_info's `busy_time` and `rwnd_limited`.
//!
//! Busy: something is unacknowledged or waits to be sent. Limited by the peer's window: the next segment
//! does not fit into it, though the congestion window has room.

use crate::time::{Duration, Instant};

/// What the sender does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Occupation {
    /// Everything that was posted is acknowledged.
    Idle,
    /// Busy, and nothing but the network to wait for.
    Busy,
    /// Busy, and the peer's window is too small.
    PeerLimited,
}

/// How long it did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chrono {
    occupation: Occupation,
    since: Instant,
    busy: Duration,
    peer_limited: Duration,
}

impl Chrono {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            occupation: Occupation::Idle,
            since: now,
            busy: Duration::ZERO,
            peer_limited: Duration::ZERO,
        }
    }

    /// From now on the sender does this.
    pub(super) fn turn_to(&mut self, now: Instant, occupation: Occupation) {
        if occupation != self.occupation {
            (self.busy, self.peer_limited) = self.times(now);
            self.occupation = occupation;
            self.since = now;
        }
    }

    /// How long it was busy, for whatever reason, and limited by the peer's window.
    pub(super) fn times(&self, now: Instant) -> (Duration, Duration) {
        let lately = now - self.since;
        match self.occupation {
            Occupation::Idle => (self.busy, self.peer_limited),
            Occupation::Busy => (self.busy + lately, self.peer_limited),
            Occupation::PeerLimited => (self.busy + lately, self.peer_limited + lately),
        }
    }
}
