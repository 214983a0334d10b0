//! Upcalls of the target: NDIS_TCP_OFFLOAD_EVENT_HANDLERS as a Rust trait.
//!
//! All upcalls run on the thread that runs the engine. They must not block. During an upcall the connection is
//! accessible only through its [`ConnectionIo`]. `ConnectionIo` queues requests, and the engine processes them after
//! the upcall returns. So upcalls never nest (CH-RCC-2).

use bytes::Bytes;

pub use crate::tcp::{Disconnect, UploadReason};
use crate::{
    nbl::{NblChain, NetBufferList, ReceiveChain},
    state::{TcpCached, TcpState, TcpUpdate},
    tcp::{Connection, Info},
    time::{Duration, Instant},
};

/// Name of an offloaded object assigned by the host (NdisOffloadHandle). Unique within a node, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OffloadHandle(pub u64);

/// Client of the node that owns a connection: the one that requested connect or listen. Assigned at registration
/// (`engine::Clients`), never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientTag(pub u64);

impl ClientTag {
    /// Tag of no client.
    pub const NONE: Self = Self(0);
}

/// TCP events of an offloaded connection (TCP_OFFLOAD_EVENT_TYPE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionEvent {
    /// The number of bytes that the poster should keep outstanding changed (CH-ST-2).
    SendBacklogChange(usize),
    /// FIN received and all data before it consumed. The send direction stays usable (CH-EVT-6).
    Disconnect,
    /// The target requests an upload of the connection.
    Retrieve(UploadReason),
    /// An acceptable RST was received. No Disconnect follows (CH-EVT-7).
    Abort,
    /// Both directions are closed, every request is completed, and the target released the connection. Always the last
    /// upcall of a connection.
    Released,
}

/// Access to a connection during an upcall.
#[derive(Debug)]
pub struct ConnectionIo<'a> {
    /// Name of the connection assigned by the host.
    pub handle: OffloadHandle,
    /// Time of this upcall.
    pub now: Instant,
    pub(crate) connection: &'a mut Connection,
    pub(crate) gso_payload_max: usize,
    /// True if the link may have borrowed sent data that it has not yet transmitted.
    pub(crate) is_lent: bool,
    /// Buffer of an indication, if parts of it may be kept.
    pub(crate) buffer: Option<&'a Bytes>,
}

impl ConnectionIo<'_> {
    /// Posts a chain. It is always accepted (PENDING), sent in FIFO order, and completed once and in order (CH-SND-1,
    /// -2).
    pub fn send(&mut self, chain: NblChain) {
        self.connection.post_send(self.now, chain);
    }

    /// Returns an empty chain for posting, with recycled storage if available.
    pub fn empty_chain(&mut self) -> NblChain {
        self.connection.empty_chain()
    }

    /// Recycles the storage of a completed chain that was emptied, so that the next chain needs no allocation.
    pub fn recycle_chain(&mut self, chain: NblChain) {
        self.connection.recycle_chain(chain);
    }

    /// Requests a disconnect. `nbl` may carry data to be sent before the FIN.
    pub fn disconnect(&mut self, kind: Disconnect, nbl: NetBufferList) {
        self.connection.disconnect(self.now, kind, nbl);
    }

    /// Returns a reference to part of the indicated data that outlives the call. Dropping it returns the data
    /// (CH-IND-5). `None` if the data cannot be kept and must be copied. A reference retains the memory of the whole
    /// frame, up to 64 KiB.
    pub fn keep(&self, data: &[u8]) -> Option<Bytes> {
        let buffer = self.buffer?;
        let at = (data.as_ptr() as usize).checked_sub(buffer.as_ptr() as usize)?;
        let end = at.checked_add(data.len())?;
        (end <= buffer.len()).then(|| buffer.slice(at..end))
    }

    /// Posts receive requests. They are always accepted (PENDING), filled in order, and completed once and in order
    /// (CH-RCV-1, -2, -8). They take precedence over indications, and resume delivery that a refused indication stopped
    /// (CH-RCV-4, CH-IND-2). A post only queues: requests that it completes are reported after this upcall returns
    /// (CH-RCC-2). After the disconnect event they complete with INVALID_STATE, after an abort with REQUEST_ABORTED
    /// (CH-RCV-9).
    pub fn post_receive(&mut self, chain: ReceiveChain) {
        self.connection.post_receive(self.now, chain);
    }

    /// Resumes delivery after a refused or partly accepted receive indication (in the chimney: a zero-byte receive
    /// request, CH-IND-2).
    pub fn resume_receive(&mut self) {
        self.connection.resume_receive();
    }

    /// Bytes that may still be posted before the send backlog is full: the limit of the windows and the congestion
    /// controller, minus the bytes queued. Posting more is legal.
    pub fn send_room(&self) -> usize {
        self.connection.send_room()
    }

    /// Bytes posted and not yet acknowledged.
    pub fn send_outstanding(&self) -> usize {
        self.connection.send_outstanding()
    }

    /// Copies unacknowledged data out of shared memory if at most `bytes_max` bytes are unacknowledged. The owner can
    /// then reuse that memory immediately, however long the peer delays. Returns true if the data was copied.
    pub fn detach_tail(&mut self, bytes_max: usize) -> bool {
        !self.is_lent && self.connection.detach_tail(bytes_max)
    }

    /// Copies posted data out of shared memory that its owner withdrew
    /// ([`SharedSpan::withdraw`](crate::memory::SharedSpan::withdraw)). Data that the link has borrowed retains the
    /// memory until the link returns it.
    pub fn detach_withdrawn(&mut self) {
        self.connection.detach_withdrawn();
    }

    /// Shortest round trip measured, if any.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.connection.min_rtt()
    }

    /// Payload bytes of a full-sized segment: the effective send MSS (EMSS), after options.
    pub fn effective_mss(&self) -> usize {
        self.connection.effective_mss()
    }

    /// Payload bytes of the largest GSO packet of the link. Equals the EMSS without segmentation offload.
    pub fn gso_payload_max(&self) -> usize {
        self.gso_payload_max
    }

    /// Returns the connection's state as a query reports it (CH §5.2).
    pub fn query(&self) -> TcpState {
        self.connection.tcp_state(self.now)
    }

    /// Updates the cached class of the connection's state (CH §5.3). Changes take effect immediately.
    pub fn update(&mut self, cached: TcpCached) {
        let update = TcpUpdate::of(&self.query().cached, cached);
        self.connection.update_cached(self.now, &update);
    }

    /// Returns the members of TCP_INFO.
    pub fn info(&self) -> Info {
        self.connection.info(self.now)
    }
}

/// Layer above the target. One value serves all its connections; `io.handle` names the connection of an upcall.
pub trait OffloadClient {
    /// The connection `io.handle` is now offloaded.
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>);

    /// Indicates in-order data (NdisTcpOffloadReceiveHandler). Returns the number of bytes consumed: all means SUCCESS,
    /// 0 OFFLOAD_DATA_NOT_ACCEPTED, otherwise OFFLOAD_DATA_PARTIALLY_ACCEPTED. The target buffers the rest and reduces
    /// the window by it. It indicates no more data until [`ConnectionIo::resume_receive`] or
    /// [`ConnectionIo::post_receive`] (CH-IND-1, -2, -6). Bytes offloaded with the connection count as refused until
    /// one of these calls (CH-DEL-3). `push` is true if the data ends with a PSH.
    ///
    /// The data is borrowed from the received frame for the duration of the call. Accepted data must be copied or used
    /// before the call returns, or retained with [`ConnectionIo::keep`]. Retained data is returned when it is dropped
    /// (MiniportTcpOffloadReceiveReturn, CH-IND-5).
    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], push: bool) -> usize;

    /// Completes receive requests, in posting order. Each carries its status and byte count
    /// (NdisTcpOffloadReceiveComplete, CH §7.2). Never called inside [`OffloadClient::receive`], nor the reverse
    /// (CH-RCC-2). Never called for a client that posts none.
    fn receive_complete(&mut self, io: &mut ConnectionIo<'_>, chain: ReceiveChain);

    /// Completes posted lists, in posting order. Each carries its status and byte count.
    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain);

    /// Reports that the connection's backlog has room after it was full, or after a flush was requested for the
    /// connection. A client that produces its data on demand posts it now.
    fn send_room(&mut self, io: &mut ConnectionIo<'_>);

    /// Completes a disconnect request. The list is the one passed with the request (CH-DIS-4).
    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList);

    /// Reports a TCP event of the connection.
    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent);

    /// Reports that the connection was uploaded to the host (terminate, CH §5.5). This is the last upcall of the
    /// connection, as [`ConnectionEvent::Released`] is for one that was closed. Uncompleted lists were uploaded with
    /// it; the host completes them.
    fn uploaded(&mut self, handle: OffloadHandle);
}
