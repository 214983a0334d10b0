//! Message that arrived before its receive was posted.
//!
//! iWARP has no receiver-not-ready: a message without a receive ends the connection (RFC 5041 §7.2). Programs written
//! for InfiniBand depend on the sender's retries. With `Config::receive_wait` the first segment of the message is kept,
//! and so is the data after it, up to [`OCTETS_MAX`]. Then no more data is accepted from the transport, so that TCP's
//! window stops the peer. The wait ends when a receive is posted or the time has expired.
//!
//! Responses to requests of this end, and acknowledgments of them, are executed in any case, because the consumer may
//! post its next receive only after them. While this end has requests, up to [`SOUGHT_OCTETS_MAX`] are kept, to reach
//! the responses behind them: more than is in flight when the peer suspends its requests.
//!
//! The disconnect event follows the data of the peer. But a consumer that waits for that event posts no more receives.
//! So when the peer has closed and [`Config::end_wait`](crate::rnic::Config::end_wait) has expired, the event is raised
//! early. Messages continue to wait for their receives.
//!
//! With [`QpService::Rc`](crate::rnic::QpService) the peer is informed when a wait starts, and starts no more requests.
//! The wait ends after the peer's retries ([`RcPeer`](crate::rnic::RcPeer)). The message then fails at the peer, which
//! ends the connection. All later requests of the peer are dropped.

use alloc::{boxed::Box, vec::Vec};

use offload_engine::time::Instant;

use super::failure::Failure;

/// Maximum number of octets kept, with the waiting message.
pub(super) const OCTETS_MAX: usize = 1 << 20;

/// Maximum number of octets kept while this end has requests: the default limits of Linux for the buffers of both ends
/// of a socket are 10 MiB.
pub(super) const SOUGHT_OCTETS_MAX: usize = 16 << 20;

/// State of a stream whose message waits for a receive.
#[derive(Debug)]
pub(super) struct Waiting {
    /// ULPDUs: the first segment of the message, and what follows. Each has its length in two octets before it.
    kept: Vec<u8>,
    /// Position of the first ULPDU.
    start: usize,
    /// Error that ends the stream if no receive is posted in time.
    pub(super) failure: Box<Failure>,
    /// True if the peer has closed.
    pub(super) is_peer_closed: bool,
    /// Start of the wait.
    pub(super) since: Instant,
    /// End of the wait; `None`: unlimited.
    pub(super) until: Option<Instant>,
    /// True if a deadline has expired: the end of the wait, or the disconnect event of a peer that has closed, is due.
    pub(super) is_due: bool,
    /// True if the peer's retries have expired.
    pub(super) is_given_up: bool,
    /// True if this end has requests, whose responses may be in the data that follows.
    pub(super) has_requests: bool,
}

impl Waiting {
    pub(super) fn new(ulpdu: &[u8], failure: Box<Failure>) -> Self {
        let mut waiting = Self {
            kept: Vec::new(),
            start: 0,
            failure,
            is_peer_closed: false,
            since: Instant::ZERO,
            until: None,
            is_due: false,
            is_given_up: false,
            has_requests: false,
        };
        waiting.keep(ulpdu);
        waiting
    }

    /// Keeps a ULPDU, unless the peer's requests are dropped. A ULPDU has at most 2^16 - 1 octets.
    pub(super) fn keep(&mut self, ulpdu: &[u8]) {
        if !self.is_given_up {
            self.kept.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
            self.kept.extend_from_slice(ulpdu);
        }
    }

    /// Returns the first ULPDU.
    pub(super) fn first(&self) -> Option<&[u8]> {
        let (length, rest) = self.kept.get(self.start..)?.split_first_chunk()?;
        rest.get(..usize::from(u16::from_be_bytes(*length)))
    }

    /// Removes the first ULPDU.
    pub(super) fn remove_first(&mut self) {
        let octets = self.first().map_or(0, |first| 2 + first.len());
        self.start += octets;
        if self.start >= self.kept.len() / 2 {
            self.kept.drain(..self.start);
            self.start = 0;
        }
    }

    /// Returns true if no more data is accepted.
    pub(super) fn is_full(&self) -> bool {
        self.octets() >= self.limit()
    }

    /// Returns true if data is accepted again after a refusal. Each refusal costs a copy of the refused data, so not
    /// after each message.
    pub(super) fn has_much_room(&self) -> bool {
        self.octets() <= self.limit() / 2
    }

    fn octets(&self) -> usize {
        self.kept.len() - self.start
    }

    const fn limit(&self) -> usize {
        if self.has_requests { SOUGHT_OCTETS_MAX } else { OCTETS_MAX }
    }

    /// Drops the message and all later requests of the peer.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = true;
        (self.kept, self.start) = (Vec::new(), 0);
        self.until = None;
    }
}
