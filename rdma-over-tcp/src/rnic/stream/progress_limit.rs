//! Time limit for a peer to acknowledge the end of a connection.
//!
//! A Terminate, or the FIN of a disconnect, is sent after the data passed to TCP before. That may be megabytes, with
//! losses or a closed window. So the limit applies to the time without progress ([`Config::terminate_timeout`],
//! [`Config::end_wait`]): a peer that acknowledges data gets another interval, up to a total limit. Then the connection
//! is reset.
//! time again, up to a limit for all of it. Then the connection is reset.
//!
//! [`Config::terminate_timeout`]: crate::rnic::Config::terminate_timeout
//! [`Config::end_wait`]: crate::rnic::Config::end_wait

use offload_engine::time::{Duration, Instant};

/// Maximum time from a Terminate to the end of its connection, even if the peer acknowledges slowly.
pub(super) const TERMINATE_DRAIN_MAX: Duration = Duration::from_secs(120);

/// Wait for progress of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgressLimit {
    /// Time of the reset, regardless of progress.
    pub(super) until: Instant,
    /// Length of an interval: maximum time without progress.
    pub(super) limit: Duration,
    /// Progress of the peer at the start of the current interval.
    pub(super) progress: PeerProgress,
    /// True if the interval has expired. Another interval depends on the progress since its start.
    pub(super) is_overdue: bool,
}

/// Progress of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerProgress {
    /// Lists passed to TCP: room for a list implies that data was acknowledged.
    pub(super) lists: u64,
    /// Bytes that the peer has not acknowledged.
    pub(super) unacknowledged: usize,
}

impl PeerProgress {
    /// Returns true if there is progress since an earlier time.
    pub(super) fn exceeds(&self, earlier: &Self) -> bool {
        self.lists > earlier.lists || self.unacknowledged < earlier.unacknowledged
    }
}
