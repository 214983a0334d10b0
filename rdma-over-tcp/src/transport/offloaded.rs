//! Transport over offloaded connections.
//!
//! FPDUs are sent as net buffer lists, one net buffer each.

use offload_engine::{
    chimney::client::{ConnectionIo, Disconnect},
    nbl::NetBufferList,
    time::Instant,
};

use super::buffers::{Buffers, Spare};
use crate::rnic::transport::LlpStream;

/// Octets per microsecond of the fastest path: 100 Gbit/s.
const PATH_OCTETS_PER_US: u128 = 12_500;

/// Lower bound of the octets in flight on a path: delayed acknowledgments and batches need some.
const PATH_OCTETS_MIN: usize = 512 * 1024;

/// I/O of a connection during an upcall.
pub(super) struct Io<'a, 'b> {
    pub(super) io: &'a mut ConnectionIo<'b>,
    pub(super) spare: &'a mut Spare,
}

impl LlpStream for Io<'_, '_> {
    type List = Buffers;

    const CAN_REFUSE_DATA: bool = true;
    const READS_PAYLOAD_ONCE: bool = false;

    fn resume_receive(&mut self) {
        self.io.resume_receive();
    }

    #[inline]
    fn now(&self) -> Instant {
        self.io.now
    }

    #[inline]
    fn list(&mut self) -> Buffers {
        self.spare.take()
    }

    #[inline]
    fn keep(&mut self, list: Buffers) {
        self.spare.keep(list.0);
    }

    #[inline]
    fn send(&mut self, serial: u64, list: Buffers) {
        let mut chain = self.io.empty_chain();
        chain.push_back(NetBufferList { net_buffers: list.0, ..NetBufferList::new(serial) });
        self.io.send(chain);
    }

    fn shutdown(&mut self) {
        self.io.disconnect(Disconnect::Graceful, NetBufferList::new(0));
    }

    fn reset(&mut self) {
        self.io.disconnect(Disconnect::Abortive, NetBufferList::new(0));
    }

    #[inline]
    fn send_room(&self) -> usize {
        self.io.send_room()
    }

    #[inline]
    fn send_outstanding(&self) -> usize {
        self.io.send_outstanding()
    }

    fn has_peer_closed(&self) -> bool {
        self.io.query().delegated.state.has_peer_closed()
    }

    fn path_octets(&self) -> usize {
        let Some(min_rtt) = self.io.min_rtt() else { return usize::MAX };
        let octets = min_rtt.as_nanos().saturating_mul(PATH_OCTETS_PER_US) / 1_000;
        usize::try_from(octets).unwrap_or(usize::MAX).max(PATH_OCTETS_MIN)
    }

    fn detach_tail(&mut self, octets_max: usize) -> bool {
        self.io.detach_tail(octets_max)
    }

    fn detach_withdrawn(&mut self) {
        self.io.detach_withdrawn();
    }

    #[inline]
    fn effective_mss(&self) -> usize {
        self.io.effective_mss()
    }

    #[inline]
    fn gso_payload_max(&self) -> usize {
        self.io.gso_payload_max()
    }
}
