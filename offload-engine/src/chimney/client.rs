//! The target's upcalls: NDIS_TCP_OFFLOAD_EVENT_HANDLERS as a Rust trait.
//!
//! All upcalls run on the thread that runs the engine. They must not block. The [`ConnectionIo`]
//! that an upcall gets is the only way into the connection while it runs: it queues, the engine
//! drains when the upcall has returned, so upcalls never nest (CH-RCC-2).

use bytes::Bytes;

pub use crate::tcp::{Disconnect, UploadReason};
use crate::{
    nbl::{NblChain, NetBufferList, ReceiveChain},
    state::{TcpCached, TcpState, TcpUpdate},
    tcp::{Connection, Info},
    time::{Duration, Instant},
};

/// The host's name for an offloaded object (NdisOffloadHandle). Unique within a node, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OffloadHandle(pub u64);

/// The client of the node that owns a connection: the one that requested connect or listen. Assigned at its
/// registration (`engine::Clients`), never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientTag(pub u64);

impl ClientTag {
    /// No client's tag.
    pub const NOBODY: Self = Self(0);
}

/// TCP events of an offloaded connection (TCP_OFFLOAD_EVENT_TYPE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionEvent {
    /// The bytes the poster should keep outstanding have changed (CH-ST-2).
    SendBacklogChange(usize),
    /// FIN received and all data before it consumed. The send half stays usable (CH-EVT-6).
    Disconnect,
    /// The target requests an upload of the connection.
    Retrieve(UploadReason),
    /// An acceptable RST was received. No Disconnect follows (CH-EVT-7).
    Abort,
    /// Both halves are closed and every request has been completed: the target has released the
    /// connection. Always the last upcall of a connection.
    Released,
}

/// An upcall's access to its connection.
#[derive(Debug)]
pub struct ConnectionIo<'a> {
    /// The host's name of the connection.
    pub handle: OffloadHandle,
    /// The time of this upcall.
    pub now: Instant,
    pub(crate) connection: &'a mut Connection,
    pub(crate) super_segment_max: usize,
    /// The link may have borrowed of what was sent, and not have sent it yet.
    pub(crate) is_lent: bool,
    /// The buffer of an indication, if pieces of it may be kept.
    pub(crate) buffer: Option<&'a Bytes>,
}

impl ConnectionIo<'_> {
    /// Posts a chain: always accepted (PENDING), sent FIFO, completed once and in order (CH-SND-1, -2).
    pub fn send(&mut self, chain: NblChain) {
        self.connection.post_send(self.now, chain);
    }

    /// An empty chain to be posted, of storage that was used before.
    pub fn empty_chain(&mut self) -> NblChain {
        self.connection.empty_chain()
    }

    /// Takes back the chain of a completion once it is emptied, so that the next needs no memory of its own.
    pub fn keep_chain(&mut self, chain: NblChain) {
        self.connection.keep_chain(chain);
    }

    /// Requests a disconnect; `nbl` may carry data to be sent before the FIN.
    pub fn disconnect(&mut self, kind: Disconnect, nbl: NetBufferList) {
        self.connection.disconnect(self.now, kind, nbl);
    }

    /// A piece of the indicated data, to be kept beyond the call (CH-IND-5: it is returned when it is dropped).
    /// `None`: it cannot be, and has to be copied. What is kept holds the whole frame's memory, up to 64 KiB.
    pub fn keep(&self, data: &[u8]) -> Option<Bytes> {
        let buffer = self.buffer?;
        let at = (data.as_ptr() as usize).checked_sub(buffer.as_ptr() as usize)?;
        let end = at.checked_add(data.len())?;
        (end <= buffer.len()).then(|| buffer.slice(at..end))
    }

    /// Posts receive requests: always accepted (PENDING), filled and completed in order, each once (CH-RCV-1,
    /// -2, -8). They come before indications, and lift the stop that a refused one has set (CH-RCV-4,
    /// CH-IND-2). A post only queues: requests that it completes are reported when this upcall has returned (CH-RCC-2).
    /// After the disconnect event they complete INVALID_STATE, after an abort REQUEST_ABORTED (CH-RCV-9).
    pub fn post_receive(&mut self, chain: ReceiveChain) {
        self.connection.post_receive(self.now, chain);
    }

    /// Lifts the stop that a refused or partly accepted receive indication set (in the chimney: a zero-byte receive
    /// request, CH-IND-2).
    pub fn resume_receive(&mut self) {
        self.connection.resume_receive();
    }

    /// Bytes that may still be posted before the send backlog is full: what the windows and the
    /// congestion controller allow beyond what is queued. Posting more is legal.
    pub fn send_room(&self) -> usize {
        self.connection.send_room()
    }

    /// Bytes posted and not yet acknowledged.
    pub fn send_outstanding(&self) -> usize {
        self.connection.send_outstanding()
    }

    /// If at most `bytes_max` bytes wait for their acknowledgement, copies those in shared memory, which may be
    /// used again at once, however long the peer delays. Returns whether it did.
    pub fn detach_tail(&mut self, bytes_max: usize) -> bool {
        !self.is_lent && self.connection.detach_tail(bytes_max)
    }

    /// Copies posted data in shared memory that its owner has withdrawn
    /// ([`SharedSpan::withdraw`](crate::memory::SharedSpan::withdraw)). What the link has borrowed meanwhile keeps the
    /// memory until it is given back.
    pub fn detach_withdrawn(&mut self) {
        self.connection.detach_withdrawn();
    }

    /// The shortest round trip measured, if one was.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.connection.min_rtt()
    }

    /// Payload bytes of a full-sized segment: the effective send MSS after options (EMSS).
    pub fn effective_mss(&self) -> usize {
        self.connection.effective_mss()
    }

    /// Payload bytes of the largest super-segment the link takes; the EMSS without segmentation offload.
    pub fn super_segment_max(&self) -> usize {
        self.super_segment_max
    }

    /// The connection's state as a query sees it (CH §5.2).
    pub fn query(&self) -> TcpState {
        self.connection.tcp_state(self.now)
    }

    /// Updates the cached class of the connection's state (CH §5.3); what has changed takes effect at once.
    pub fn update(&mut self, cached: TcpCached) {
        let update = TcpUpdate::of(&self.query().cached, cached);
        self.connection.update_cached(self.now, &update);
    }

    /// The members of TCP_INFO.
    pub fn info(&self) -> Info {
        self.connection.info(self.now)
    }
}

/// A layer above the target. One value serves all its connections; `io.handle` names the connection of an upcall.
pub trait OffloadClient {
    /// The connection `io.handle` is now offloaded.
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>);

    /// In-order data (NdisTcpOffloadReceiveHandler). Returns the bytes consumed: all means SUCCESS, 0
    /// OFFLOAD_DATA_NOT_ACCEPTED, else OFFLOAD_DATA_PARTIALLY_ACCEPTED. What is not consumed is
    /// buffered by the target, the window shrinks by it, and no further indication comes until
    /// [`ConnectionIo::resume_receive`] or [`ConnectionIo::post_receive`] (CH-IND-1, -2, -6). Bytes that the
    /// connection brought along count as refused: they wait for one of the two (CH-DEL-3). `push`: the data
    /// ends with a PSH.
    ///
    /// The data is lent for the call, out of the frame it came in. What is accepted has been copied or used when the
    /// call returns, or is kept by [`ConnectionIo::keep`], and then returned when it is dropped
    /// (MiniportTcpOffloadReceiveReturn, CH-IND-5).
    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], push: bool) -> usize;

    /// Receive requests are complete, in posting order; each carries its status and bytes
    /// (NdisTcpOffloadReceiveComplete, CH §7.2). Never called inside [`OffloadClient::receive`], nor the
    /// reverse (CH-RCC-2). Not for a client that posts none.
    fn receive_complete(&mut self, io: &mut ConnectionIo<'_>, chain: ReceiveChain);

    /// Posted lists are complete, in posting order; each carries its status and bytes.
    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain);

    /// The connection's backlog has room again after it was full, or after a flush was requested for
    /// the connection: a client that makes its data lazily posts now.
    fn send_room(&mut self, io: &mut ConnectionIo<'_>);

    /// A disconnect request is complete; the list is the disconnect's own (CH-DIS-4).
    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList);

    /// Something happened to the connection.
    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent);

    /// The connection went back to the host (terminate, CH §5.5): the last upcall of it, as
    /// [`ConnectionEvent::Released`] is of one that has ended. Lists that had not completed went along: the host
    /// completes them.
    fn uploaded(&mut self, handle: OffloadHandle);
}
