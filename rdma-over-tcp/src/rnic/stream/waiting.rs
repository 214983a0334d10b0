//! A message that has come before a receive was posted for it.
//!
//! iWARP has no receiver-not-ready: a message without a receive ends the connection (RFC 5041 §7.2). Programs written
//! for InfiniBand count on the sender's retries all the same. With `Config::receive_wait` the message's first segment
//! is kept, and nothing behind it is taken from the transport, so that TCP's window stops the peer, until a receive is
//! posted or the time is over.
//!
//! The disconnect event comes behind what the peer has sent. But a consumer that waits for that event posts no more
//! receives: when a peer has closed, and [`Config::end_wait`](crate::rnic::Config::end_wait) is over, the event comes
//! all the same. Messages still wait for their receives.

use alloc::{boxed::Box, vec::Vec};

use offload_engine::time::Instant;

use super::failure::Failure;

/// The state of a stream whose message waits for a receive.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The first segment of the message.
    pub(super) ulpdu: Box<[u8]>,
    /// The error that ends the stream if no receive is posted in time.
    pub(super) failure: Box<Failure>,
    /// Octets behind it that a transport delivered which cannot refuse any.
    pub(super) behind: Vec<u8>,
    /// The peer has closed.
    pub(super) is_peer_closed: bool,
    /// When the time is over.
    pub(super) until: Instant,
    /// A deadline has passed: a peer that has closed is not waited for any longer.
    pub(super) is_due: bool,
}
