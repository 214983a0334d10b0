//! Requests to the host stack and what it answers: the vocabulary of connection set-up.
//!
//! A client (an upper layer that lives with the engine) sends [`Request`]s down a channel and takes
//! [`Notice`]s from another, which brings those of its own connections and listeners. Data of an offloaded
//! connection never passes here: it goes straight through the chimney. Data of a connection that is in the host does,
//! under credits: the client has at most [`SEND_CREDIT_BYTES`] unanswered bytes out, the host at most
//! [`RECEIVE_CREDIT_BYTES`] until TIME-WAIT.
//!
//! A net buffer list is given once and comes back once, complete, however often its connection changes
//! hands meanwhile: by [`Notice::Sent`] if the host has it in the end, by
//! [`OffloadClient::send_complete`](offload_engine::chimney::client::OffloadClient::send_complete) if the target has.

use core::net::SocketAddr;

use bytes::Bytes;
use offload_engine::{
    address::LocalAddress,
    chimney::client::{ClientTag, OffloadHandle},
    nbl::{NblChain, NetBufferList},
    state::KeepAlive,
    tcp::SoftError,
    time::Duration,
};

pub use offload_engine::listing::{ConnectionRow, Moves, OffloadState, Refusal, SocketState};

/// Bytes a client may have sent ([`Request::Send`]) without a [`Notice::Sent`] for them; what an upload has
/// brought counts. A single list may be larger, if nothing else is unanswered.
pub const SEND_CREDIT_BYTES: usize = 256 * 1024;
/// Bytes the host may have delivered ([`Notice::Data`]) without a [`Request::Consumed`] for them. In TIME-WAIT it
/// delivers everything that has come, at most one receive buffer more
/// ([`HostConfig::receive_buffer`](crate::host::HostConfig::receive_buffer)).
pub const RECEIVE_CREDIT_BYTES: usize = 256 * 1024;

/// A listener's name. Unique within a node, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u64);

/// The name of a local endpoint that a client has reserved. Unique within a node, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EndpointId(pub u64);

/// Owner of local endpoints: a client, or the clients of one kind that were registered with several shards together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConsumerId(pub u64);

impl ConsumerId {
    /// The consumer of the clients that the node was started with.
    pub const FIRST: Self = Self(0);
}

offload_engine::option_enum! {
    /// Which connections are offloaded.
    pub enum OffloadPolicy {
        /// Each one, as soon as it is established
        #[default]
        Always,
        /// None
        Never,
        /// Those that have carried 64 KiB in one direction, or as much as is configured, and at once those of queue
        /// pairs
        // More exactly: of clients that want it so.
        Auto,
    }
}

/// Bytes in one direction after which [`OffloadPolicy::Auto`] offloads a connection, by default.
pub const AUTO_OFFLOAD_BYTES: u64 = 64 * 1024;

/// A request of a client to the host stack.
#[derive(Debug)]
pub enum Request {
    /// Reserve a local endpoint for this client, which may listen on it and connect from it. Answered by `Bound` or
    /// `BindFailed`.
    Bind {
        /// The endpoint's name, chosen by the client.
        endpoint: EndpointId,
        /// The address. Port 0: a free ephemeral port. An unspecified address: all of the node's.
        local: SocketAddr,
    },
    /// Release an endpoint. A listener on it and connections from it live on, and keep the port in use.
    Unbind {
        /// Which.
        endpoint: EndpointId,
    },
    /// Connect. Answered by `Established` or `ConnectFailed`.
    Connect {
        /// The new connection's name, chosen by the client.
        handle: OffloadHandle,
        /// Where from; `None`: the node's address of that family, an ephemeral port. Port 0: ephemeral.
        local: Option<SocketAddr>,
        /// The endpoint to connect from, which the client has bound; `local` is ignored then. If there is none of that
        /// name, the local end gets the name, and is reserved until `Unbind`, unless the connection cannot be made.
        endpoint: Option<EndpointId>,
        /// Where to.
        remote: SocketAddr,
        /// How long the handshake may take.
        timeout: Duration,
        /// With [`OffloadPolicy::Auto`]: offload it as soon as it is established.
        at_once: bool,
    },
    /// Listen. Answered by `Listening` or `ListenFailed`.
    Listen {
        /// The listener's name, chosen by the client.
        listener: ListenerId,
        /// Where; port 0: ephemeral. An unspecified address: all of the node's of its families.
        local: LocalAddress,
        /// As for `Connect`.
        endpoint: Option<EndpointId>,
        /// Connections that may be in their handshake at once: 1 to [`BACKLOG_MAX`](crate::host::BACKLOG_MAX).
        backlog: usize,
        /// As for `Connect`.
        at_once: bool,
    },
    /// Stop listening. Connections already accepted live on.
    Unlisten {
        /// Which.
        listener: ListenerId,
    },
    /// Data for a connection that is in the host. The list comes back by `Sent`, or by `Returned`.
    Send {
        /// Which connection.
        handle: OffloadHandle,
        /// The data.
        list: NetBufferList,
        /// It begins a segment: it is sent when all data before it has been sent. A retransmitted segment may begin
        /// elsewhere.
        apart: bool,
    },
    /// The client has consumed so many bytes that `Data` delivered.
    Consumed {
        /// Which connection.
        handle: OffloadHandle,
        /// Bytes.
        count: usize,
    },
    /// No more data from us (FIN after what was sent), for a connection that is in the host.
    Shutdown {
        /// Which connection.
        handle: OffloadHandle,
    },
    /// Reset a connection that is in the host, or forget one that is being set up. One that is on its way to
    /// the host or the target is reset if the host is where it arrives.
    Abort {
        /// Which connection.
        handle: OffloadHandle,
    },
    /// Hand this connection to the target as soon as that is possible, regardless of the policy. The only answer is
    /// the `Offloading` that follows.
    Offload {
        /// Which connection.
        handle: OffloadHandle,
    },
    /// Take this connection back from the target. Followed by `OffloadClient::uploaded`, then `Uploaded`.
    Upload {
        /// Which connection.
        handle: OffloadHandle,
    },
    /// Registers a client and its channel of notices. Each client's first request.
    Register {
        /// Its name in messages.
        name: &'static str,
        /// Its consumer.
        consumer: ConsumerId,
        /// Channel of the notices about its connections and listeners.
        notices: crossbeam_channel::Sender<Notice>,
    },
    /// Keep-alive of this client's connections, wherever they are, unless [`HostConfig::tcp`] asks for keep-alive
    /// of all.
    ///
    /// [`HostConfig::tcp`]: crate::host::HostConfig::tcp
    KeepAlive {
        /// `None`: none. A connection that the host stack serves is probed each `idle`, and ends after `idle` times
        /// `probes` and one.
        keep_alive: Option<KeepAlive>,
    },
    /// Unregisters the client: its listeners are closed, its connections are reset in either stack, and it gets no
    /// more notices.
    Leave,
    /// List listeners and connections by handle.
    List {
        /// The one that is listed; `None`: all.
        only: Option<OffloadHandle>,
        /// Channel for the rows, which must have room.
        reply: crossbeam_channel::Sender<alloc::vec::Vec<ConnectionRow>>,
    },
}

/// Why the host could not do what was asked, or ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// RST in answer to SYN.
    #[error("TCP: connection refused")]
    Refused,
    /// No answer to SYN within the time given.
    #[error("TCP: no answer to SYN within the time limit")]
    TimedOut,
    /// No answer to ARP or neighbor solicitation within the time given.
    #[error("ARP/ND: next hop does not answer")]
    HostUnreachable,
    /// No address of that family, or no route.
    #[error("IP: no route to the address")]
    NetworkUnreachable,
    /// The local address is not the node's.
    #[error("IP: not an address of this node")]
    AddressNotAvailable,
    /// The remote address is the node's own, and nothing but the client itself can make that connection: from this
    /// local address, which is free.
    #[error("IP: the address is this node's own")]
    OwnAddress {
        /// Our end, with the port chosen.
        local: SocketAddr,
        /// The other one.
        remote: SocketAddr,
    },
    /// The local port is taken.
    #[error("TCP: local address in use")]
    AddressInUse,
    /// No ephemeral port (49152-65535) is free.
    #[error("TCP: no ephemeral port is free (49152-65535)")]
    NoPorts,
    /// RST from the peer.
    #[error("TCP: connection reset by peer")]
    Reset,
    /// Retransmission limit.
    #[error("TCP: peer does not answer (retransmission limit)")]
    RetransmissionLimit,
    /// Retransmission limit, with the last ICMP error (RFC 9293 SHLD-25, RFC 5461 §2).
    #[error("TCP: peer does not answer (retransmission limit); ICMP: {0}")]
    Unanswered(SoftError),
    /// The target refused the connection and it could not be kept in the host.
    #[error("chimney: the target refused the connection")]
    OffloadRefused,
    /// The target has lost the connection's state, or the host could not put it back.
    #[error("chimney: the connection's state was lost between target and host")]
    StateLost,
    /// The client has asked for it.
    #[error("TCP: aborted by the client")]
    Aborted,
}

/// A notification from the host stack to a client.
#[derive(Debug)]
pub enum Notice {
    /// The endpoint is reserved.
    Bound {
        /// Which.
        endpoint: EndpointId,
        /// Where, with the port chosen.
        local: SocketAddr,
    },
    /// The endpoint could not be reserved.
    BindFailed {
        /// Which.
        endpoint: EndpointId,
        /// Why.
        error: HostError,
    },
    /// The listener is ready.
    Listening {
        /// Which.
        listener: ListenerId,
        /// Where, with the port chosen.
        local: SocketAddr,
    },
    /// The listener could not be made.
    ListenFailed {
        /// Which.
        listener: ListenerId,
        /// Why.
        error: HostError,
    },
    /// The handshake is done. If `offloading`, the next upcall of the connection is
    /// `OffloadClient::offloaded`; else its data comes as `Data`.
    ///
    /// Comes again, with `offloading` false, when the target has refused a connection that was being
    /// handed to it: the connection is back in the host, which answers by `Sent` what `Offloading` had counted
    /// as unanswered; what came back by `Returned` is the client's to send again.
    Established {
        /// Which connection; chosen by the host for an accepted one.
        handle: OffloadHandle,
        /// The listener that accepted it.
        listener: Option<ListenerId>,
        /// Our end.
        local: SocketAddr,
        /// The peer's end.
        remote: SocketAddr,
        /// It is being handed to the target.
        offloading: bool,
        /// Bytes of the largest segment that the host sends.
        mss: usize,
    },
    /// The handshake failed.
    ConnectFailed {
        /// Which connection.
        handle: OffloadHandle,
        /// Why.
        error: HostError,
    },
    /// A connection that lived in the host is being handed to the target. The lists of `Send` that are not
    /// complete go along, and `Sent` comes no more; what the client sends from now on it posts after
    /// `OffloadClient::offloaded`. Follows an `Established` that is `offloading` too, if there is something to be
    /// counted.
    Offloading {
        /// Which connection.
        handle: OffloadHandle,
        /// Lists given by `Send`, or brought by an upload, that have not been answered by `Sent`: they are with
        /// the target now.
        unanswered: usize,
        /// So is a `Shutdown`.
        shutdown: bool,
    },
    /// `Send` or `Shutdown` that reached the host after the hand-over had begun: not done. The client
    /// posts it itself, after `OffloadClient::offloaded`, in the order it comes back. Every list sent
    /// and not among `Offloading::unanswered` comes back this way.
    Returned {
        /// Which connection.
        handle: OffloadHandle,
        /// The lists as they were given; empty for a shutdown.
        chain: NblChain,
        /// It was a shutdown.
        shutdown: bool,
    },
    /// The connection has come back from the target, and the host serves it: lists that the target had not
    /// completed are answered by `Sent`, data that it had not delivered comes as `Data`.
    Uploaded {
        /// Which connection.
        handle: OffloadHandle,
        /// Lists that it has brought along.
        lists: usize,
        /// Their bytes, acknowledged or not.
        bytes: usize,
        /// Bytes of the largest segment that the host sends.
        mss: usize,
    },
    /// In-order data.
    Data {
        /// Which connection.
        handle: OffloadHandle,
        /// The data.
        data: Bytes,
    },
    /// Lists are complete, in order: SUCCESS, the peer has acknowledged their bytes; REQUEST_ABORTED, the connection
    /// has ended before (CH §6.2).
    Sent {
        /// Which connection.
        handle: OffloadHandle,
        /// The lists.
        chain: NblChain,
    },
    /// The peer's FIN, after all its data.
    PeerClosed {
        /// Which connection.
        handle: OffloadHandle,
    },
    /// The peer has acknowledged our FIN. For a connection that was uploaded the target may have reported it already.
    ShutDown {
        /// Which connection.
        handle: OffloadHandle,
    },
    /// The connection is gone.
    Closed {
        /// Which connection.
        handle: OffloadHandle,
        /// `None`: both FINs were exchanged.
        error: Option<HostError>,
    },
}

/// A request and the client that makes it, which will own the connection or listener. [`ClientTag::NOBODY`]: a caller
/// that gets no notices.
#[derive(Debug)]
pub struct ClientRequest {
    /// The client.
    pub client: ClientTag,
    /// Its request.
    pub request: Request,
}

/// A client's end of the channels to the host stack. The clients of a shard have one channel down, so their requests
/// are taken in the order in which they were made; each has its own channel up.
#[derive(Clone, Debug)]
pub struct SocketPort {
    client: ClientTag,
    requests: RequestPort,
    notices: crossbeam_channel::Receiver<Notice>,
}

impl SocketPort {
    /// Both ends, for a host stack with one client: that client's, and the host's.
    pub fn pair(
        host_doorbell: std::sync::Arc<offload_engine::engine::doorbell::Doorbell>,
    ) -> (Self, HostSocketPort) {
        let mut pairs = RequestPort::pairs(&host_doorbell, 1);
        let (requests, host) = pairs.remove(0);
        let first = offload_engine::engine::Clients::FIRST;
        (requests.register(first, "client", ConsumerId::FIRST), host)
    }

    /// The client's tag.
    pub const fn client(&self) -> ClientTag {
        self.client
    }

    #[cfg(test)]
    pub(crate) const fn requests(&self) -> &RequestPort {
        &self.requests
    }

    /// A fresh name for an [`OffloadHandle`], a [`ListenerId`] or an [`EndpointId`].
    pub fn allocate(&self) -> u64 {
        self.requests.allocate()
    }

    /// Sends a request and wakes the host stack.
    pub fn request(&self, request: Request) {
        self.requests.request_of(self.client, request);
    }

    /// The next notice, if there is one.
    pub fn notice(&self) -> Option<Notice> {
        // Common case: `is_empty()` is cheaper than `try_recv()`.
        if self.notices.is_empty() {
            return None;
        }
        self.notices.try_recv().ok()
    }

    /// Whether a notice waits.
    pub fn has_notice(&self) -> bool {
        !self.notices.is_empty()
    }
}

/// The channel of requests to the host stack, which the clients of a shard share; for callers that need no notices.
#[derive(Clone, Debug)]
pub struct RequestPort {
    requests: crossbeam_channel::Sender<ClientRequest>,
    host_doorbell: std::sync::Arc<offload_engine::engine::doorbell::Doorbell>,
    next_id: std::sync::Arc<core::sync::atomic::AtomicU64>,
}

impl RequestPort {
    /// Both ends for each of the `count` shards of one host stack: the clients', and the host's. The allocator is
    /// shared, so names are unique within the node.
    pub fn pairs(
        host_doorbell: &std::sync::Arc<offload_engine::engine::doorbell::Doorbell>,
        count: usize,
    ) -> alloc::vec::Vec<(Self, HostSocketPort)> {
        let next_id = std::sync::Arc::new(core::sync::atomic::AtomicU64::new(1));
        let pair = |_| {
            let (requests, host_requests) = crossbeam_channel::unbounded();
            let host = HostSocketPort { requests: host_requests, next_id: next_id.clone() };
            let host_doorbell = host_doorbell.clone();
            (Self { requests, host_doorbell, next_id: next_id.clone() }, host)
        };
        (0..count).map(pair).collect()
    }

    /// A fresh name.
    pub(crate) fn allocate(&self) -> u64 {
        self.next_id.fetch_add(1, core::sync::atomic::Ordering::Relaxed)
    }

    /// Registers a client with the host stack, and returns the client's port.
    pub fn register(
        &self,
        client: ClientTag,
        name: &'static str,
        consumer: ConsumerId,
    ) -> SocketPort {
        let (host_notices, notices) = crossbeam_channel::unbounded();
        self.request_of(client, Request::Register { name, consumer, notices: host_notices });
        SocketPort { client, requests: self.clone(), notices }
    }

    /// Sends a request without a client, and wakes the host stack.
    pub fn request(&self, request: Request) {
        self.request_of(ClientTag::NOBODY, request);
    }

    /// Sends a request of a client, and wakes the host stack.
    pub fn request_of(&self, client: ClientTag, request: Request) {
        // The host's end lives as long as the node; a request to a node that has ended is void.
        let _ = self.requests.send(ClientRequest { client, request });
        self.host_doorbell.ring();
    }
}

/// The host's end of the channel from the clients of a shard. Notices go through the channels of [`Request::Register`];
/// the engine's doorbell is rung after sending, since clients live with the engine.
#[derive(Debug)]
pub struct HostSocketPort {
    /// Requests of the clients.
    pub requests: crossbeam_channel::Receiver<ClientRequest>,
    /// Allocator of handles for accepted connections.
    pub next_id: std::sync::Arc<core::sync::atomic::AtomicU64>,
}
