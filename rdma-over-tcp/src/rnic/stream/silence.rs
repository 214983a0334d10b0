//! The time for a peer to answer a Terminate.
//!
//! A Terminate goes behind what TCP has been given before: megabytes at times, of which frames get lost. So
//! [`Config::terminate_timeout`] is a limit for the peer's silence. As long as the peer goes on acknowledging it has
//! the same time again, up to [`LAST_WORDS_MAX`] for all of it; then the connection is reset.
//!
//! [`Config::terminate_timeout`]: crate::rnic::Config::terminate_timeout

use offload_engine::time::{Duration, Instant};

/// Most time from a Terminate to the end of its connection, however slowly the peer acknowledges.
pub(super) const LAST_WORDS_MAX: Duration = Duration::from_secs(120);

/// The wait behind a Terminate of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastWords {
    pub(super) until: Instant,
    /// Bytes that the peer had not acknowledged when the time began, or began again.
    pub(super) unacknowledged: usize,
    /// The time is over; whether the peer gets more depends on what it has acknowledged since.
    pub(super) is_overdue: bool,
}
