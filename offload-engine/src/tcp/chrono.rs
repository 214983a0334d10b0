//! Sender state times: `busy_time` and `rwnd_limited` of tcp_info.
//!
//! Busy: some data is unacknowledged or unsent. Limited by the peer's window: the next segment does not fit into it,
//! although the congestion window has room.

use crate::time::{Duration, Instant};

/// State of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Occupation {
    /// All posted data is acknowledged.
    Idle,
    /// Busy, limited by the network only.
    Busy,
    /// Busy, and limited by the peer's window.
    PeerLimited,
}

/// Accumulated times of the sender states.
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

    /// Enters `occupation` at `now`.
    pub(super) fn turn_to(&mut self, now: Instant, occupation: Occupation) {
        if occupation != self.occupation {
            (self.busy, self.peer_limited) = self.times(now);
            self.occupation = occupation;
            self.since = now;
        }
    }

    /// Total busy time, and the part limited by the peer's window.
    pub(super) fn times(&self, now: Instant) -> (Duration, Duration) {
        let lately = now - self.since;
        match self.occupation {
            Occupation::Idle => (self.busy, self.peer_limited),
            Occupation::Busy => (self.busy + lately, self.peer_limited),
            Occupation::PeerLimited => (self.busy + lately, self.peer_limited + lately),
        }
    }
}
