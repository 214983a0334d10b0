//! Sender state times: `busy_time` and `rwnd_limited` of tcp_info.
//!
//! Busy: some data is unacknowledged or unsent. Limited by the peer's window: the next segment does not fit into it,
//! although the congestion window has room.

use crate::time::{Duration, Instant};

/// State of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChronoState {
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
    state: ChronoState,
    since: Instant,
    busy: Duration,
    peer_limited: Duration,
}

impl Chrono {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            state: ChronoState::Idle,
            since: now,
            busy: Duration::ZERO,
            peer_limited: Duration::ZERO,
        }
    }

    /// Enters `state` at `now`.
    pub(super) fn enter(&mut self, now: Instant, state: ChronoState) {
        if state != self.state {
            (self.busy, self.peer_limited) = self.times(now);
            self.state = state;
            self.since = now;
        }
    }

    /// Total busy time, and the part limited by the peer's window.
    pub(super) fn times(&self, now: Instant) -> (Duration, Duration) {
        let elapsed = now - self.since;
        match self.state {
            ChronoState::Idle => (self.busy, self.peer_limited),
            ChronoState::Busy => (self.busy + elapsed, self.peer_limited),
            ChronoState::PeerLimited => (self.busy + elapsed, self.peer_limited + elapsed),
        }
    }
}
