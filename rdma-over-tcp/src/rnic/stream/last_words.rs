//! The time for a peer to answer a Terminate.
//!
//! A Terminate goes behind what TCP has been given before: megabytes at times, of which frames get lost. So
//! [`Config::terminate_timeout`] is a limit for the peer's silence. As long as the peer goes on acknowledging it has
//! the same time again, up to [`LAST_WORDS_MAX`] for all of it; then the connection is reset.
//!
//! [`Config::terminate_timeout`]: crate::rnic::Config::terminate_timeout

use offload_engine::time::{Duration, Instant};

use super::{Ending, Stream};
use crate::rnic::{config::Config, transport::Transport};

/// Most time from a Terminate to the end of its connection, however slowly the peer acknowledges.
pub(super) const LAST_WORDS_MAX: Duration = Duration::from_secs(120);

/// The wait behind a Terminate of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastWords {
    until: Instant,
    /// Bytes that the peer had not acknowledged when the time began, or began again.
    unacknowledged: usize,
    /// The time is over; whether there is more is for [`Stream::judge_silence`] to say.
    pub(super) is_overdue: bool,
}

impl Stream {
    /// A Terminate is sent, or about to be: the time begins.
    pub(super) fn begin_last_words(&mut self, config: &Config, io: &impl Transport) {
        let (now, unacknowledged) = (io.now(), io.unacknowledged());
        let until = now + LAST_WORDS_MAX;
        self.last_words = Some(LastWords { until, unacknowledged, is_overdue: false });
        self.deadline = Some(now + config.terminate_timeout);
    }

    /// The deadline has passed. Returns whether the transport has to be asked about the peer first.
    pub(super) fn expire_last_words(&mut self) -> bool {
        if let Some(words) = &mut self.last_words {
            words.is_overdue = true;
        }
        self.last_words.is_some()
    }

    /// More time for a peer that has acknowledged something; a reset for another one.
    #[cold]
    pub(super) fn judge_silence(&mut self, config: &Config, io: &impl Transport) {
        let Some(words) = &mut self.last_words else { return };
        let (now, unacknowledged) = (io.now(), io.unacknowledged());
        if unacknowledged < words.unacknowledged && now < words.until {
            (words.unacknowledged, words.is_overdue) = (unacknowledged, false);
            self.deadline = Some(words.until.min(now + config.terminate_timeout));
            return;
        }
        self.abort();
        self.ending = Ending::Abort;
    }
}
