//! Connections in the host stack as a transport: what a stream needs while the offload target does not have it.
//!
//! A stream has a [`HostStream`] from the moment its connection is found in the host, or leaves the target, until the
//! target has it and has been given everything that waited. Then it is a plain offloaded one again, and costs nothing.
//!
//! | place | what is sent meanwhile |
//! |---|---|
//! | `InHost` | goes to the host by [`Request::Send`], as credit allows |
//! | `Offloading` | waits; what reached the host too late comes back by [`Notice::Returned`], and goes first |
//! | `Offloaded` | is posted to the target, once all that was to come back is there |
//! | `Uploading` | waits |
//!
//! The host copies what it sends into smoltcp's buffer on a thread of its own, whenever there is room. So payload that
//! lies in registered memory is copied here, on the thread that places received data.
//!
//! [`Notice::Returned`]: host_stack::socket::Notice::Returned

use alloc::collections::VecDeque;

use host_stack::socket::{Request, SEND_CREDIT_BYTES, SocketPort};
use offload_engine::{
    chimney::client::{ConnectionIo, Disconnect, OffloadHandle},
    nbl::{NblChain, NetBufferList},
    tcp::TcpPhase,
    time::Instant,
};

use super::offloaded::{Buffers, Spare};
use crate::rnic::transport::Transport;

/// Bytes of the largest segment, as long as nobody has said: every path carries them (RFC 9293 §3.7.1).
const DEFAULT_MSS: usize = 536;

/// Where the data path of a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// With the host stack.
    InHost,
    /// On its way down.
    Offloading,
    /// With the target.
    Offloaded,
    /// On its way up.
    Uploading,
}

/// Something to send.
#[derive(Debug)]
enum Item {
    List(NetBufferList),
    Shutdown,
}

/// A stream that is not, or not yet wholly, the target's.
#[derive(Debug)]
pub(super) struct HostStream {
    pub(super) place: Place,
    mss: usize,
    /// Each list begins a segment.
    is_aligned: bool,
    /// Given to nobody yet.
    waiting: VecDeque<Item>,
    /// Come back from the host: older than all of `waiting`.
    returned: VecDeque<Item>,
    /// Bytes of both.
    waiting_bytes: usize,
    /// Lists that the host has, and their bytes; while the stream goes down, those that go along.
    lists: usize,
    bytes: usize,
    /// On the way down: lists that reach the host too late and will come back.
    to_return: usize,
    /// A shutdown was asked of the host and may come back.
    shutdown_in_host: bool,
    /// Our FIN went down with the connection: no request of ours will say that it is acknowledged.
    awaits_fin: bool,
    /// It is to be reset.
    pub(super) is_reset: bool,
}

impl HostStream {
    pub(super) const fn new(is_aligned: bool) -> Self {
        Self {
            place: Place::InHost,
            mss: DEFAULT_MSS,
            is_aligned,
            waiting: VecDeque::new(),
            returned: VecDeque::new(),
            waiting_bytes: 0,
            lists: 0,
            bytes: 0,
            to_return: 0,
            shutdown_in_host: false,
            awaits_fin: false,
            is_reset: false,
        }
    }

    /// The host serves it, from now on or again, and has `lists` that it will answer.
    pub(super) fn enter_host(&mut self, mss: usize, (lists, bytes): (usize, usize)) {
        debug_assert_eq!(self.to_return, 0, "the host returns before it takes back");
        self.place = Place::InHost;
        (self.mss, self.lists, self.bytes) = (mss, lists, bytes);
        self.awaits_fin = false;
        self.requeue();
    }

    /// As [`HostStream::enter_host`], of one that the target has refused: the host has again what went along.
    pub(super) fn refused(&mut self, mss: usize) {
        self.enter_host(mss, (self.lists, self.bytes));
    }

    /// It goes down, with so many of its lists, and perhaps its FIN.
    pub(super) fn leave_host(&mut self, unanswered: usize, shutdown: bool) {
        self.place = Place::Offloading;
        self.to_return = self.lists.saturating_sub(unanswered);
        self.shutdown_in_host &= !shutdown;
        self.awaits_fin |= shutdown;
    }

    /// Sends that reached the host too late.
    pub(super) fn take_returned(&mut self, chain: NblChain, shutdown: bool) {
        for list in chain {
            self.to_return = self.to_return.saturating_sub(1);
            self.answered(&list);
            self.waiting_bytes += list.data_length();
            self.returned.push_back(Item::List(list));
        }
        if shutdown {
            self.shutdown_in_host = false;
            self.returned.push_back(Item::Shutdown);
        }
    }

    /// The host has no longer this list.
    pub(super) fn answered(&mut self, list: &NetBufferList) {
        self.lists = self.lists.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(list.bytes_transferred + list.data_length());
    }

    /// Sends that came back go first.
    fn requeue(&mut self) {
        while let Some(item) = self.returned.pop_back() {
            self.waiting.push_front(item);
        }
    }

    /// Gives the host what waits, as far as its credit goes.
    pub(super) fn push_to_host(&mut self, port: &SocketPort, handle: OffloadHandle) {
        if self.place != Place::InHost {
            return;
        }
        while let Some(item) = self.waiting.front() {
            if let Item::List(list) = item
                && self.bytes > 0
                && self.bytes + list.data_length() > SEND_CREDIT_BYTES
            {
                return;
            }
            match self.waiting.pop_front() {
                Some(Item::List(list)) => {
                    let length = list.data_length();
                    self.waiting_bytes -= length;
                    self.lists += 1;
                    self.bytes += length;
                    port.request(Request::Send { handle, list, apart: self.is_aligned });
                }
                Some(Item::Shutdown) => {
                    self.shutdown_in_host = true;
                    port.request(Request::Shutdown { handle });
                }
                None => return,
            }
        }
    }

    /// Gives the target what waits, when it is the stream's turn. Returns whether nothing is left to be known of the
    /// stream's time in the host.
    pub(super) fn push_to_target(&mut self, io: &mut ConnectionIo<'_>) -> bool {
        if self.place != Place::Offloaded {
            return false;
        }
        if self.is_reset {
            io.disconnect(Disconnect::Abortive, NetBufferList::new(0));
            return true;
        }
        if !self.may_post() {
            return false;
        }
        self.requeue();
        let mut chain = NblChain::new();
        for item in self.waiting.drain(..) {
            match item {
                Item::List(list) => chain.push_back(list),
                Item::Shutdown => {
                    if !chain.is_empty() {
                        io.send(core::mem::take(&mut chain));
                    }
                    io.disconnect(Disconnect::Graceful, NetBufferList::new(0));
                }
            }
        }
        if !chain.is_empty() {
            io.send(chain);
        }
        self.waiting_bytes = 0;
        !self.awaits_fin
    }

    /// Everything older than `waiting` is with the target or in `returned`.
    const fn may_post(&self) -> bool {
        self.to_return == 0 && !self.shutdown_in_host
    }

    /// Returns once whether our FIN, which went down with the connection, is acknowledged.
    pub(super) fn sees_fin(&mut self, phase: impl FnOnce() -> TcpPhase) -> bool {
        let is_seen = self.awaits_fin && matches!(phase(), TcpPhase::FinWait2 | TcpPhase::TimeWait);
        self.awaits_fin &= !is_seen;
        is_seen
    }
}

/// A way into such a stream: what is sent waits, until [`HostStream::push_to_host`] or
/// [`HostStream::push_to_target`].
pub(super) struct HostIo<'a> {
    pub(super) now: Instant,
    pub(super) stream: &'a mut HostStream,
    pub(super) spare: &'a mut Spare,
}

impl Transport for HostIo<'_> {
    type List = Buffers;

    const MAY_REFUSE: bool = false;

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
        self.stream.waiting_bytes += list.data_length();
        self.stream.waiting.push_back(Item::List(list));
    }

    fn shutdown(&mut self) {
        self.stream.waiting.push_back(Item::Shutdown);
    }

    fn reset(&mut self) {
        self.stream.is_reset = true;
    }

    fn send_room(&self) -> usize {
        match self.stream.place {
            Place::InHost => SEND_CREDIT_BYTES.saturating_sub(self.send_outstanding()),
            Place::Offloading | Place::Offloaded | Place::Uploading => 0,
        }
    }

    fn send_outstanding(&self) -> usize {
        self.stream.bytes + self.stream.waiting_bytes
    }

    fn path_octets(&self) -> usize {
        // The credit is the limit.
        usize::MAX
    }

    fn detach_tail(&mut self, _octets_max: usize) -> bool {
        // All is copied; but the host answers for it, so it is done when acknowledged.
        false
    }

    fn detach_withdrawn(&mut self) {
        // All that waits here is copied. What an upload has brought keeps its memory until it is acknowledged.
    }

    fn effective_mss(&self) -> usize {
        self.stream.mss
    }

    fn super_segment_max(&self) -> usize {
        self.stream.mss
    }
}

#[cfg(test)]
mod tests {
    use alloc::{sync::Arc, vec::Vec};

    use bytes::Bytes;
    use host_stack::socket::HostSocketPort;
    use offload_engine::{
        engine::doorbell::Doorbell, memory::SharedSpan, nbl::NetBuffer, status::NdisStatus,
    };

    use super::*;
    use crate::mpa::GatherList;

    struct Bench {
        stream: HostStream,
        port: SocketPort,
        host: HostSocketPort,
    }

    impl Bench {
        fn new(is_aligned: bool) -> Self {
            let (port, host) = SocketPort::pair(Arc::new(Doorbell::new().unwrap()));
            let mut bench = Self { stream: HostStream::new(is_aligned), port, host };
            bench.stream.enter_host(1_000, (0, 0));
            bench.pushed();
            bench
        }

        fn io<T>(&mut self, f: impl FnOnce(&mut HostIo<'_>) -> T) -> T {
            let (now, spare) = (Instant::ZERO, &mut Spare::default());
            f(&mut HostIo { now, stream: &mut self.stream, spare })
        }

        fn send(&mut self, serial: u64, bytes: usize) {
            self.io(|io| {
                let mut list = io.list();
                list.push_encoded(Bytes::from(alloc::vec![serial as u8; bytes]));
                io.send(serial, list);
            });
        }

        /// Sends to the host: serials of lists, and 0 for a FIN.
        fn pushed(&mut self) -> Vec<u64> {
            self.stream.push_to_host(&self.port, OffloadHandle(7));
            let requests = self.host.requests.try_iter();
            let serial = |request| match request {
                Request::Send { list, .. } => Some(list.context),
                Request::Shutdown { .. } => Some(0),
                _ => None,
            };
            requests.filter_map(|request| serial(request.request)).collect()
        }

        fn room(&mut self) -> usize {
            self.io(|io| io.send_room())
        }
    }

    fn list(serial: u64, bytes: usize) -> NetBufferList {
        let net_buffers = alloc::vec![NetBuffer::from(Bytes::from(alloc::vec![0; bytes]))];
        NetBufferList { net_buffers, ..NetBufferList::new(serial) }
    }

    // Sends that reach the host too late come back and go before all later ones: to the host, if the target has refused
    // the connection.
    #[test]
    fn what_comes_back_goes_first() {
        let mut bench = Bench::new(false);
        (1..=3).for_each(|serial| bench.send(serial, 100));
        bench.io(|io| io.shutdown());
        assert_eq!(bench.pushed(), [1, 2, 3, 0]);
        bench.stream.leave_host(1, false);
        assert_eq!((bench.stream.place, bench.room()), (Place::Offloading, 0));
        bench.send(4, 100);
        assert_eq!(bench.pushed(), [] as [u64; 0]);
        bench.stream.take_returned([list(2, 100), list(3, 100)].into(), false);
        assert!(!bench.stream.may_post(), "the FIN is on its way back");
        bench.stream.take_returned(NblChain::new(), true);
        assert!(bench.stream.may_post());
        bench.stream.refused(1_000);
        // List 1 is the host's again, too.
        assert_eq!(bench.io(|io| io.send_outstanding()), 400);
        assert_eq!(bench.pushed(), [2, 3, 0, 4]);
        assert_eq!(bench.room(), SEND_CREDIT_BYTES - 400);
    }

    // The target is given nothing as long as something older may still come back.
    #[test]
    fn nothing_overtakes() {
        let mut bench = Bench::new(false);
        (1..=2).for_each(|serial| bench.send(serial, 100));
        assert_eq!(bench.pushed(), [1, 2]);
        bench.stream.leave_host(0, false);
        bench.stream.place = Place::Offloaded;
        assert!(!bench.stream.may_post());
        bench.stream.take_returned([list(1, 100)].into(), false);
        assert!(!bench.stream.may_post());
        bench.stream.take_returned([list(2, 100)].into(), false);
        assert!(bench.stream.may_post());
    }

    // More than the host's credit ends a connection: a list too long for what is left of it waits.
    #[test]
    fn credit() {
        let mut bench = Bench::new(false);
        let half = SEND_CREDIT_BYTES / 2;
        for serial in 1..=3 {
            bench.send(serial, half);
        }
        assert_eq!(bench.pushed(), [1, 2]);
        assert_eq!(bench.room(), 0);
        let mut first = list(1, half);
        first.complete(NdisStatus::SUCCESS, half);
        bench.stream.answered(&first);
        assert_eq!(bench.pushed(), [3]);
        // One alone may be as long as it likes.
        let mut bench = Bench::new(false);
        bench.send(1, SEND_CREDIT_BYTES + 1);
        assert_eq!(bench.pushed(), [1]);
    }

    // Lists that an upload has brought count.
    #[test]
    fn uploaded_lists_count() {
        let mut bench = Bench::new(false);
        bench.stream.place = Place::Uploading;
        bench.send(5, 10);
        assert_eq!(bench.pushed(), [] as [u64; 0]);
        bench.stream.enter_host(900, (2, SEND_CREDIT_BYTES - 5));
        assert_eq!(bench.io(|io| io.effective_mss()), 900);
        assert_eq!(bench.pushed(), [] as [u64; 0], "no credit is left for it");
        bench.stream.answered(&list(3, 100));
        assert_eq!(bench.pushed(), [5]);
    }

    // Peers that want FPDUs and segments to begin together get lists that do.
    #[test]
    fn aligned_lists_begin_segments() {
        for is_aligned in [false, true] {
            let mut bench = Bench::new(is_aligned);
            bench.send(1, 100);
            bench.stream.push_to_host(&bench.port, OffloadHandle(7));
            let request = bench.host.requests.try_iter().last().map(|request| request.request);
            assert!(matches!(request, Some(Request::Send { apart, .. }) if apart == is_aligned));
        }
    }

    // Sends are copies: the memory is the consumer's, and peers may write it.
    #[test]
    fn payload_is_copied() {
        let mut bench = Bench::new(false);
        let owner = Arc::new(());
        let memory = SharedSpan::allocate(100, 1).unwrap().under(owner.clone());
        bench.io(|io| {
            let mut list = io.list();
            list.push_payload(memory.into());
            io.send(1, list);
        });
        assert_eq!(Arc::strong_count(&owner), 1, "nobody has the memory any more");
    }

    // A FIN that went down with the connection is acknowledged there; it is said once.
    #[test]
    fn a_fin_on_its_way_down() {
        let mut bench = Bench::new(false);
        bench.io(|io| io.shutdown());
        assert_eq!(bench.pushed(), [0]);
        bench.stream.leave_host(0, true);
        assert!(bench.stream.may_post());
        assert!(!bench.stream.sees_fin(|| TcpPhase::FinWait1));
        assert!(bench.stream.sees_fin(|| TcpPhase::FinWait2));
        assert!(!bench.stream.sees_fin(|| TcpPhase::TimeWait));
        // In the host it is the host that says so.
        bench.stream.leave_host(0, true);
        bench.stream.enter_host(1_000, (0, 0));
        assert!(!bench.stream.sees_fin(|| TcpPhase::FinWait2));
    }
}
