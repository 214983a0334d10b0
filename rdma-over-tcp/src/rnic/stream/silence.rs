//! The time for a peer that is to take what ends a connection.
//!
//! A Terminate, or the FIN of a disconnect, goes behind what TCP has been given before: megabytes at times, of which
//! frames get lost, or that the peer's window stops. So the limit is one for the peer's silence
//! ([`Config::terminate_timeout`], [`Config::end_wait`]): as long as the peer goes on acknowledging it has the same
//! time again, up to a limit for all of it. Then the connection is reset.
//!
//! [`Config::terminate_timeout`]: crate::rnic::Config::terminate_timeout
//! [`Config::end_wait`]: crate::rnic::Config::end_wait

use offload_engine::time::{Duration, Instant};

/// Most time from a Terminate to the end of its connection, however slowly the peer acknowledges.
pub(super) const TERMINATE_DRAIN_MAX: Duration = Duration::from_secs(120);

/// A wait for the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// When the connection is reset, however much the peer takes.
    pub(super) until: Instant,
    /// Length of an interval: how long a peer may take nothing.
    pub(super) limit: Duration,
    /// The peer's progress at the start of the current interval.
    pub(super) taken: Taken,
    /// The interval has ended; whether there is another depends on what the peer has taken since.
    pub(super) is_overdue: bool,
}

/// How much the peer has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Lists that TCP was given: where there was room for one, something was acknowledged.
    pub(super) lists: u64,
    /// Bytes that the peer has not acknowledged.
    pub(super) unacknowledged: usize,
}

impl Taken {
    /// Returns whether this is more than at an earlier time.
    pub(super) fn is_more_than(&self, earlier: &Self) -> bool {
        self.lists > earlier.lists || self.unacknowledged < earlier.unacknowledged
    }
}
