//! What a stream needs of its connection.
//!
//! A trait of our own in front of [`ConnectionIo`], which only an engine can make: so the tests can
//! join two adapters by a pipe.

use bytes::Bytes;
use offload_engine::{
    chimney::client::{ConnectionIo, Disconnect},
    nbl::{NblChain, NetBuffer, NetBufferList},
    time::Instant,
};

use crate::mpa::GatherList;

/// FPDUs leave as MDLs of a net buffer.
impl GatherList for NetBuffer {
    type Payload = Bytes;

    #[inline]
    fn push_encoded(&mut self, octets: Bytes) {
        self.push_mdl(octets);
    }

    #[inline]
    fn push_payload(&mut self, payload: Bytes) {
        self.push_mdl(payload);
    }
}

/// A connection during an upcall.
pub(crate) trait Wire {
    fn now(&self) -> Instant;
    /// A chain to fill.
    fn empty_chain(&mut self) -> NblChain;
    /// A chain that was emptied.
    fn keep_chain(&mut self, chain: NblChain);
    fn send(&mut self, chain: NblChain);
    fn disconnect(&mut self, kind: Disconnect, nbl: NetBufferList);
    /// Bytes that may be posted before the backlog is full.
    fn send_room(&self) -> usize;
    /// Copies what is unacknowledged if it is at most `bytes_max` bytes; whether it did.
    fn detach_tail(&mut self, bytes_max: usize) -> bool;
    /// Bytes posted and not yet acknowledged.
    fn send_outstanding(&self) -> usize;
    fn effective_mss(&self) -> usize;
    fn super_segment_max(&self) -> usize;
}

impl Wire for ConnectionIo<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn empty_chain(&mut self) -> NblChain {
        ConnectionIo::empty_chain(self)
    }

    fn keep_chain(&mut self, chain: NblChain) {
        ConnectionIo::keep_chain(self, chain);
    }

    fn send(&mut self, chain: NblChain) {
        ConnectionIo::send(self, chain);
    }

    fn disconnect(&mut self, kind: Disconnect, nbl: NetBufferList) {
        ConnectionIo::disconnect(self, kind, nbl);
    }

    fn send_room(&self) -> usize {
        ConnectionIo::send_room(self)
    }

    fn detach_tail(&mut self, bytes_max: usize) -> bool {
        ConnectionIo::detach_tail(self, bytes_max)
    }

    fn send_outstanding(&self) -> usize {
        ConnectionIo::send_outstanding(self)
    }

    fn effective_mss(&self) -> usize {
        ConnectionIo::effective_mss(self)
    }

    fn super_segment_max(&self) -> usize {
        ConnectionIo::super_segment_max(self)
    }
}
