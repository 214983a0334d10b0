//! Unreliable datagram service: queue pairs without a connection.
//!
//! Each request names its destination. It completes when the transport has its datagram, or has dropped it. Nothing is
//! acknowledged or repeated.

use alloc::{collections::VecDeque, vec::Vec};
use hashbrown::HashMap;

use crate::rnic::{objects::id::QpId, transport::DatagramPath};

/// Destination of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Addresses.
    pub path: DatagramPath,
    /// Number of the receiving queue pair. Its low 16 bits are the UDP port.
    pub qp: u32,
    /// Key of the receiving queue pair. With bit 31, that of the sending queue pair.
    pub key: u32,
}

/// Bit of a key in a request that selects the key of the sending queue pair.
const OWN_KEY: u32 = 1 << 31;

impl Destination {
    /// Returns the addresses, with the port.
    pub(crate) fn addressed(&self) -> DatagramPath {
        let mut path = self.path;
        path.remote.set_port(self.qp as u16);
        path
    }

    /// Returns the key for the datagram of a queue pair with this key.
    pub(crate) const fn key_for(&self, own: u32) -> u32 {
        if self.key & OWN_KEY != 0 { own } else { self.key }
    }
}

/// Attributes of a queue pair of [`QpService::Ud`](crate::rnic::QpService).
#[derive(Default, Debug)]
pub(crate) struct UdAttributes {
    /// Key that datagrams to the queue pair contain.
    pub(crate) key: u32,
    /// Octets of the largest payload; 0: no datagrams are received.
    pub(crate) payload_max: u32,
    /// True if no request starts.
    pub(crate) holds_sends: bool,
    /// True if a request has failed: requests are flushed, and receives continue.
    pub(crate) has_failed: bool,
    /// True if the queue pair is scheduled, or waits for room.
    pub(crate) is_scheduled: bool,
    /// Destinations of the queued requests.
    pub(crate) destinations: VecDeque<Destination>,
}

/// Queue pairs of [`QpService::Ud`](crate::rnic::QpService) of an adapter.
#[derive(Default, Debug)]
pub(crate) struct Datagrams {
    /// Queue pairs that receive, by number.
    pub(crate) numbers: HashMap<u32, QpId>,
    /// Queue pairs with requests to send.
    pub(crate) scheduled: VecDeque<QpId>,
    /// Queue pairs whose socket has no room.
    pub(crate) blocked: VecDeque<QpId>,
    /// Storage of the datagram that is sent.
    pub(crate) buffer: Vec<u8>,
}
