//! The byte stream below MPA: the contract between the adapter and its transports.
//!
//! A transport carries ordered byte streams. It takes [`Command`]s from the adapter and carries them out, calls the
//! adapter when something happens to a stream (the `handle_*` methods of [`Rnic`](super::Rnic)), and lends it a
//! [`LlpStream`] during those calls. It calls `handle_room` for the streams of `next_kick`: they have something to
//! send. A stream keeps its [`StreamId`] for its whole life, wherever the transport moves it meanwhile.

use core::net::SocketAddr;

use offload_engine::{
    address::LocalAddress,
    memory::Span,
    time::{Duration, Instant},
};

use super::objects::id::{ListenerId, SharedEndpointId, StreamId};
use crate::mpa::GatherList;

/// Stream of the lower layer protocol (LLP, RFC 5040), lent to the adapter during a call of the transport.
pub(crate) trait LlpStream {
    /// A list of buffers that leave in one piece: some FPDUs. The transport reads the buffers where they lie.
    type List: GatherList<Payload = Span>;

    /// Whether the transport keeps received data that the adapter does not accept, and delivers it again after
    /// [`LlpStream::resume_receive`].
    const MAY_REFUSE: bool;

    /// The adapter takes data again: what it has not taken comes next.
    fn resume_receive(&mut self);

    /// The time.
    fn now(&self) -> Instant;

    /// An empty list, with the storage of one that was sent before.
    fn list(&mut self) -> Self::List;

    /// Takes an empty list back.
    fn keep(&mut self, list: Self::List);

    /// Queues a list behind what was queued before. When the peer has acknowledged all of it, the transport calls
    /// [`Rnic::handle_sent`](super::Rnic::handle_sent) with `serial`, without it when the stream is lost.
    fn send(&mut self, serial: u64, list: Self::List);

    /// Ends the sending direction behind what is queued: a FIN.
    fn shutdown(&mut self);

    /// Ends the stream at once: an RST.
    fn reset(&mut self);

    /// Bytes that may be queued before the backlog is full. When there is room again, the transport calls
    /// [`Rnic::handle_room`](super::Rnic::handle_room).
    fn send_room(&self) -> usize;

    /// Bytes queued and not acknowledged.
    fn send_outstanding(&self) -> usize;

    /// Bytes that the peer has not acknowledged, wherever they wait: as [`LlpStream::send_outstanding`], and what the
    /// transport has passed on. For rare questions: it may be a system call.
    fn unacknowledged(&self) -> usize {
        self.send_outstanding()
    }

    /// Returns whether the peer's FIN has come, also if data before it has not been taken. For rare questions. Where
    /// nothing can be refused the event says it.
    fn has_peer_closed(&self) -> bool {
        false
    }

    /// Returns whether so much is under way that the adapter is called again soon: posts may wait for that, and leave
    /// together.
    fn is_flowing(&self) -> bool {
        self.send_outstanding() > 2 * self.effective_mss()
    }

    /// Octets in flight that the path can hold: more would only wait in queues.
    fn path_octets(&self) -> usize;

    /// Copies what is not acknowledged, if it is at most `octets_max`, so that shared buffers may be used again.
    /// Returns whether it did.
    fn detach_tail(&mut self, octets_max: usize) -> bool;

    /// Copies what lies in shared memory that its owner wants back
    /// ([`SharedSpan::withdraw`](offload_engine::memory::SharedSpan::withdraw)), acknowledged or not. What a device
    /// still reads keeps the memory.
    fn detach_withdrawn(&mut self);

    /// Bytes of the largest segment (EMSS).
    fn effective_mss(&self) -> usize;

    /// Bytes of the largest super-segment that leaves in one piece; the EMSS or less if there are none.
    fn super_segment_max(&self) -> usize;
}

/// A request of the adapter to its transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Opens a stream. Answered by `handle_established` or `handle_gone`.
    Connect {
        /// The name that the stream has from now on.
        stream: StreamId,
        /// The local end; `None`, or port 0, let the transport choose.
        local: Option<SocketAddr>,
        /// The shared endpoint that it is, which the transport has bound.
        endpoint: Option<SharedEndpointId>,
        /// The peer.
        remote: SocketAddr,
        /// Time limit of the handshake.
        timeout: Duration,
    },
    /// Listens. Answered by `handle_listening` or `handle_listen_failed`.
    Listen {
        /// The listener.
        listener: ListenerId,
        /// Local address; port 0 lets the transport choose.
        local: LocalAddress,
        /// Connections that may be in their handshake at once.
        backlog: usize,
    },
    /// Reserves a local address to connect from, also several times at once to different peers. Answered by
    /// `handle_bound` or `handle_bind_failed`.
    Bind {
        /// The shared endpoint.
        endpoint: SharedEndpointId,
        /// Where; port 0 lets the transport choose.
        local: SocketAddr,
    },
    /// Listens no more.
    Unlisten {
        /// The listener.
        listener: ListenerId,
    },
    /// Releases a local address, which is reserved from a successful `Connect`, `Listen` or `Bind` on until then.
    Release {
        /// The reservation.
        reservation: Reservation,
    },
    /// Resets a stream, in whatever state it is.
    Abort {
        /// The stream.
        stream: StreamId,
    },
}

/// A local address that the transport keeps for the adapter: that of a stream it has opened, or of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reservation {
    /// The local end of a stream that the adapter has asked for.
    Stream(StreamId),
    /// The address of a listener.
    Listener(ListenerId),
    /// That of a shared endpoint.
    Shared(SharedEndpointId),
}

/// The end of a stream, or of one of its directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamEvent {
    /// The peer's FIN: nothing more is received.
    PeerClosed,
    /// Our FIN is acknowledged, or the reset that we asked for is done.
    ShutDown,
    /// The peer has reset the stream.
    Reset,
    /// The transport lets go of the stream. Nothing follows.
    Released,
}
