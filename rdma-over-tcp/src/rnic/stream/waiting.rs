//! Message that arrived before its receive was posted.
//!
//! iWARP has no receiver-not-ready: a message without a receive ends the connection (RFC 5041 §7.2). Programs written
//! for InfiniBand depend on the sender's retries. With `Config::receive_wait` the first segment of the message is kept.
//! No data after it is accepted from the transport, so that TCP's window stops the peer. The wait ends when a receive
//! is posted or the time has expired.
//!
//! The disconnect event follows the data of the peer. But a consumer that waits for that event posts no more receives.
//! So when the peer has closed and [`Config::end_wait`](crate::rnic::Config::end_wait) has expired, the event is raised
//! early. Messages continue to wait for their receives.

use alloc::{boxed::Box, vec::Vec};

use offload_engine::time::Instant;

use super::failure::Failure;

/// State of a stream whose message waits for a receive.
#[derive(Debug)]
pub(super) struct Waiting {
    /// First segment of the message.
    pub(super) ulpdu: Box<[u8]>,
    /// Error that ends the stream if no receive is posted in time.
    pub(super) failure: Box<Failure>,
    /// Later octets from a transport that cannot be refused.
    pub(super) later_octets: Vec<u8>,
    /// True if the peer has closed.
    pub(super) is_peer_closed: bool,
    /// End of the wait.
    pub(super) until: Instant,
    /// True if a deadline has expired: the disconnect event of a peer that has closed is due.
    pub(super) is_due: bool,
}
