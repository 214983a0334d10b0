//! The byte stream below MPA, and datagrams: the contract between the adapter and its transports.
//!
//! A transport carries ordered byte streams. It takes [`Command`]s from the adapter and executes them. It calls the
//! adapter when the state of a stream changes (the `handle_*` methods of [`Rnic`](super::Rnic)), and lends it a
//! [`LlpStream`] during those calls. It calls `handle_room` for the streams of `next_scheduled`, which have data to
//! send. A stream keeps its [`StreamId`] for its whole lifetime, also when the transport migrates it.
//!
//! A transport with datagrams has one socket for each port that a consumer opens. It calls `handle_datagram` for what
//! arrives, and lends the adapter its [`DatagramIo`] for what is to be sent.

use core::net::{IpAddr, SocketAddr};

use offload_engine::{
    address::LocalAddress,
    memory::Span,
    time::{Duration, Instant},
};

use super::objects::id::{ListenerId, SharedEndpointId, StreamId};
use crate::mpa::GatherList;

/// Stream of the lower layer protocol (LLP, RFC 5040), lent to the adapter during a call of the transport.
pub(crate) trait LlpStream {
    /// List of buffers that is sent in one piece: some FPDUs. The transport reads the buffers in place.
    type List: GatherList<Payload = Span>;

    /// True if the transport keeps received data that the adapter does not accept, and delivers it again after
    /// [`LlpStream::resume_receive`].
    const CAN_REFUSE_DATA: bool;

    /// True if the transport reads payload once: it copies it when it sends it, without a checksum over it before.
    const READS_PAYLOAD_ONCE: bool;

    /// Resumes delivery: the adapter accepts data again, and the refused data is delivered first.
    fn resume_receive(&mut self);

    /// Makes the end of the process send a FIN instead of a reset, where the process does not have the TCP state.
    fn send_fin_at_exit(&mut self) {}

    /// Current time.
    fn now(&self) -> Instant;

    /// Returns an empty list, with the storage of a list sent earlier if there is one.
    fn list(&mut self) -> Self::List;

    /// Returns an empty list to the transport for reuse.
    fn keep(&mut self, list: Self::List);

    /// Queues a list after all lists queued before. When the peer has acknowledged all of it, the transport calls
    /// [`Rnic::handle_sent`](super::Rnic::handle_sent) with `serial`; if the stream is lost, without it.
    fn send(&mut self, serial: u64, list: Self::List);

    /// Closes the sending direction after the queued data: a FIN.
    fn shutdown(&mut self);

    /// Aborts the stream immediately: an RST.
    fn reset(&mut self);

    /// Bytes that may be queued before the backlog is full. When there is room again, the transport calls
    /// [`Rnic::handle_room`](super::Rnic::handle_room).
    fn send_room(&self) -> usize;

    /// Bytes queued and not acknowledged.
    fn send_outstanding(&self) -> usize;

    /// Bytes that the peer has not acknowledged, in all queues: [`LlpStream::send_outstanding`], and the data that the
    /// transport has passed on. For infrequent queries: it may be a system call.
    fn unacknowledged(&self) -> usize {
        self.send_outstanding()
    }

    /// Returns true if the peer's FIN has arrived, even if earlier data is not yet accepted. For infrequent queries. A
    /// transport that cannot be refused reports the FIN by its event.
    fn has_peer_closed(&self) -> bool {
        false
    }

    /// Returns true if data does not leave this host.
    fn is_on_one_host(&self) -> bool {
        false
    }

    /// Returns true if so much data is in flight that the adapter is called again soon: posts may be deferred until
    /// then and sent together.
    fn is_busy(&self) -> bool {
        self.send_outstanding() > 2 * self.effective_mss()
    }

    /// Octets in flight that the path can hold. More data only fills queues.
    fn path_octets(&self) -> usize;

    /// Copies the unacknowledged data if it is at most `octets_max`, so that shared buffers may be reused. Returns true
    /// if the data was copied.
    fn detach_tail(&mut self, octets_max: usize) -> bool;

    /// Copies the data in shared memory that its owner has withdrawn
    /// ([`SharedSpan::withdraw`](offload_engine::memory::SharedSpan::withdraw)), acknowledged or not. Data that a
    /// device still reads keeps the memory.
    fn detach_withdrawn(&mut self);

    /// Bytes of the largest segment (EMSS).
    fn effective_mss(&self) -> usize;

    /// Bytes of the largest GSO packet; the EMSS or less if there is no segmentation offload.
    fn gso_payload_max(&self) -> usize;
}

/// Addresses of a datagram: those of an address handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramPath {
    /// Local address.
    pub local: IpAddr,
    /// Address of the peer, with its scope, and the port of the receiving queue pair.
    pub remote: SocketAddr,
}

/// Sockets for datagrams, lent to the adapter during a call of the transport.
pub(crate) trait DatagramIo {
    /// Sends a datagram from the socket of `port`. Returns false if the socket has no room. When it has room again, the
    /// transport calls [`Rnic::handle_datagram_room`](super::Rnic::handle_datagram_room). A datagram that cannot be
    /// sent for another reason is lost.
    fn send(&mut self, port: u16, path: &DatagramPath, datagram: &[u8]) -> bool;
}

/// Request of the adapter to its transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Opens a stream. Answered by `handle_established` or `handle_stream_lost`.
    Connect {
        /// Identifier of the stream from now on.
        stream: StreamId,
        /// Local address; with `None` or port 0 the transport chooses.
        local: Option<SocketAddr>,
        /// Shared endpoint that the local address belongs to, already bound by the transport.
        endpoint: Option<SharedEndpointId>,
        /// Address of the peer.
        remote: SocketAddr,
        /// Time limit of the handshake.
        timeout: Duration,
    },
    /// Starts to listen. Answered by `handle_listening` or `handle_listen_failed`.
    Listen {
        /// Listener.
        listener: ListenerId,
        /// Local address; with port 0 the transport chooses.
        local: LocalAddress,
        /// Connections that may be in their handshake at the same time.
        backlog: usize,
    },
    /// Reserves a local address for connects, also for several at the same time to different peers. Answered by
    /// `handle_bound` or `handle_bind_failed`.
    Bind {
        /// Shared endpoint.
        endpoint: SharedEndpointId,
        /// Local address; with port 0 the transport chooses.
        local: SocketAddr,
    },
    /// Stops listening.
    Unlisten {
        /// Listener.
        listener: ListenerId,
    },
    /// Releases a local address. It is reserved from a successful `Connect`, `Listen` or `Bind` until this command.
    Release {
        /// Reservation.
        reservation: Reservation,
    },
    /// Resets a stream in any state.
    Abort {
        /// Stream.
        stream: StreamId,
    },
    /// Closes the socket for datagrams at a port. Datagrams received and not delivered are dropped.
    CloseDatagrams {
        /// The port.
        port: u16,
    },
}

/// Local address that the transport reserves for the adapter: of a stream that it has opened, a listener, or a shared
/// endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reservation {
    /// Local address of a stream that the adapter has opened.
    Stream(StreamId),
    /// Address of a listener.
    Listener(ListenerId),
    /// Address of a shared endpoint.
    Shared(SharedEndpointId),
}

/// End of a stream, or of one of its directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamEvent {
    /// The peer's FIN was received: no more data arrives.
    PeerClosed,
    /// The local FIN is acknowledged, or the requested reset is done.
    ShutDown,
    /// The peer reset the stream.
    Reset,
    /// The transport has released the stream. No event follows.
    Released,
}
