//! Transport over connections in the host stack: streams that the offload target does not own, or not completely.
//!
//! A stream has a [`HostStream`] from the time its connection is created in the host or uploaded by the target. It is
//! removed when the target owns the connection and has received all queued requests. [`Switch`] selects the stack for
//! each request.
//!
//! The host copies the data to send into smoltcp's buffer on a dedicated thread, whenever there is room. Payload in
//! registered memory is therefore copied first, on the thread that places received data.

use host_stack::{socket::SEND_CREDIT_BYTES, stream::OffloadState, switch::Switch};
use offload_engine::{nbl::NetBufferList, time::Instant};

use super::buffers::{Buffers, Spare};
use crate::rnic::transport::LlpStream;

/// Bytes of the largest segment until the host stack reports it: every path supports it (RFC 9293 §3.7.1).
const DEFAULT_MSS: usize = 536;

/// Stream that the target does not own, or not completely.
#[derive(Debug)]
pub(super) struct HostStream {
    pub(super) switch: Switch,
    /// Bytes of the largest segment.
    pub(super) mss: usize,
}

impl HostStream {
    pub(super) const fn new(switch: Switch) -> Self {
        Self { switch, mss: DEFAULT_MSS }
    }
}

/// I/O of such a stream. Its switch queues the requests.
pub(super) struct HostIo<'a> {
    pub(super) now: Instant,
    pub(super) stream: &'a mut HostStream,
    pub(super) spare: &'a mut Spare,
}

impl LlpStream for HostIo<'_> {
    type List = Buffers;

    const CAN_REFUSE_DATA: bool = false;
    const READS_PAYLOAD_ONCE: bool = false;

    fn resume_receive(&mut self) {}

    fn now(&self) -> Instant {
        self.now
    }

    fn list(&mut self) -> Buffers {
        self.spare.take()
    }

    fn keep(&mut self, list: Buffers) {
        self.spare.keep(list.0);
    }

    fn send(&mut self, serial: u64, list: Buffers) {
        let mut list = NetBufferList { net_buffers: list.0, ..NetBufferList::new(serial) };
        list.net_buffers.iter_mut().for_each(|buffer| buffer.detach(0));
        self.stream.switch.wait(list);
    }

    fn shutdown(&mut self) {
        self.stream.switch.shut_down();
    }

    fn reset(&mut self) {
        self.stream.switch.reset();
    }

    fn send_room(&self) -> usize {
        match self.stream.switch.state() {
            OffloadState::InHost => SEND_CREDIT_BYTES.saturating_sub(self.send_outstanding()),
            _ => 0,
        }
    }

    fn send_outstanding(&self) -> usize {
        self.stream.switch.outstanding()
    }

    fn path_octets(&self) -> usize {
        // The send credit is the limit.
        usize::MAX
    }

    fn detach_tail(&mut self, _octets_max: usize) -> bool {
        // All data is copied, but it is held in the host: it completes when acknowledged.
        false
    }

    fn detach_withdrawn(&mut self) {
        // All queued data is copied. Uploaded data keeps its memory until it is acknowledged.
    }

    fn effective_mss(&self) -> usize {
        self.stream.mss
    }

    fn gso_payload_max(&self) -> usize {
        self.stream.mss
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use host_stack::switch::SendRequest;
    use offload_engine::memory::SharedSpan;

    use super::*;
    use crate::mpa::GatherList;

    // Sends are copies: the memory belongs to the consumer, and peers may write it.
    #[test]
    fn payload_is_copied() {
        let mut switch = Switch::opening();
        switch.begin_in_host();
        let (mut stream, spare) = (HostStream::new(switch), &mut Spare::default());
        let mut io = HostIo { now: Instant::ZERO, stream: &mut stream, spare };
        assert_eq!(io.send_room(), SEND_CREDIT_BYTES);
        let owner = Arc::new(());
        let memory = SharedSpan::allocate(100, 1).unwrap().under(owner.clone());
        let mut list = io.list();
        list.push_payload(memory.into());
        io.send(1, list);
        assert_eq!(Arc::strong_count(&owner), 1, "the memory is still referenced");
        assert_eq!(io.send_room(), SEND_CREDIT_BYTES - 100);
        let sent = stream.switch.poll_host();
        assert!(matches!(sent, Some(SendRequest::List(list)) if list.context == 1));
    }
}
