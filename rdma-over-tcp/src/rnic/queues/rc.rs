//! Reliable and unreliable connected service between two queue pairs of this implementation.
//!
//! A queue pair of these services behaves as RC or UC of InfiniBand does. It uses the wire protocol of iWARP with two
//! private messages, so both ends must be of this service: their consumers negotiate it in the private data of MPA.

use offload_engine::time::Duration;

/// Service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum QpService {
    /// iWARP (RFC 5040, RFC 7306), with any peer.
    #[default]
    Iwarp,
    /// Reliable connected, with a peer of the same service:
    ///
    /// - A Send, Write or immediate completes when the peer has executed it, not when it was passed to TCP. Until then
    ///   it counts as posted.
    /// - A message without a receive waits for one as long as its sender permits ([`RcPeer`]). Then its sender's
    ///   request completes as [`WcStatus::RnrRetryExceeded`](crate::rnic::WcStatus), and the receiver continues.
    /// - A failed request completes with the status that the peer has determined.
    /// - A connection that ends without an error leaves the queue pair in
    ///   [`QpState::Lost`](crate::rnic::QpState::Lost).
    /// - The consumer's own end of a connection (close, reset, break) is a FIN after the acknowledgments that are due.
    /// - RFC 7306 is always supported. So is [`Operation::SendImmediate`](crate::rnic::Operation::SendImmediate);
    ///   [`Operation::Immediate`](crate::rnic::Operation::Immediate) alone is not.
    /// - A failed connection attempt leaves the queue pair idle, with its receives and its requests.
    Rc,
    /// Unreliable connected, with a peer of the same service. As [`QpService::Rc`], except:
    ///
    /// - A Send, Write or immediate completes when it was passed to TCP, as with iWARP, also if the connection is lost.
    /// - A message that the peer cannot execute is dropped: without a receive, longer than it, or without the rights.
    /// - There are no Reads and atomics.
    Uc,
    /// Unreliable datagram, without a connection ([`Rnic::start_datagrams`](crate::rnic::Rnic::start_datagrams)).
    Ud,
}

/// Parameters of the peer's requests at a queue pair of [`QpService::Rc`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcPeer {
    /// Retries of the peer's messages that find no receive (the peer's `rnr_retry`); `None`: unlimited.
    pub rnr_retries: Option<u8>,
    /// Time per retry (`min_rnr_timer` of this end). A message waits for its receive during all retries.
    pub rnr_timer: Duration,
}

impl Default for RcPeer {
    /// Unlimited retries.
    fn default() -> Self {
        Self { rnr_retries: None, rnr_timer: Duration::ZERO }
    }
}

impl RcPeer {
    /// Time that a message waits for a receive; `None`: unlimited.
    pub(crate) fn receive_wait(&self) -> Option<Duration> {
        self.rnr_retries.map(|retries| self.rnr_timer.saturating_mul(u32::from(retries)))
    }
}

/// Attributes of a queue pair of [`QpService::Rc`] or [`QpService::Uc`].
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RcAttributes {
    pub(crate) peer: RcPeer,
    /// True if requests are queued while the queue pair is not connected.
    pub(crate) allows_sends: bool,
    /// True if no request starts.
    pub(crate) holds_sends: bool,
    /// True for [`QpService::Uc`].
    pub(crate) is_unreliable: bool,
}

impl RcAttributes {
    /// Returns the attributes of a new queue pair; `None`: another service.
    pub(crate) fn of(service: QpService) -> Option<Self> {
        match service {
            QpService::Rc => Some(Self::default()),
            QpService::Uc => Some(Self { is_unreliable: true, ..Self::default() }),
            QpService::Iwarp | QpService::Ud => None,
        }
    }

    /// Returns the attributes after a reset.
    pub(crate) fn reset(self) -> Self {
        Self { is_unreliable: self.is_unreliable, ..Self::default() }
    }
}
