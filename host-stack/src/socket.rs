//! Requests to the host stack, and its notices.
//!
//! A client (an upper layer on the engine) sends [`Request`]s on one channel and receives [`Notice`]s about its
//! connections and listeners on another. Data of an offloaded connection are not passed here: they use the chimney.
//! Data of a connection in the host are, under credits: the client has at most [`SEND_CREDIT_BYTES`] outstanding, the
//! host at most [`RECEIVE_CREDIT_BYTES`] until TIME-WAIT. Datagrams have credits of their own, and their storage
//! returns to its owner.
//!
//! A net buffer list is posted once and completed once, however often its connection migrates meanwhile.
//! [`Notice::Sent`] completes it if the host has it at the end,
//! [`OffloadClient::send_complete`](offload_engine::chimney::client::OffloadClient::send_complete) if the target has
//! it.

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

pub use offload_engine::listing::{
    ConnectionRow, MigrationCounts, OffloadState, Refusal, SocketState,
};

/// Maximum bytes sent by a client ([`Request::Send`]) and not completed by a [`Notice::Sent`], including lists returned
/// by an upload. A single list may be larger if nothing else is outstanding.
pub const SEND_CREDIT_BYTES: usize = 256 * 1024;
/// Maximum bytes delivered by the host ([`Notice::Data`]) without a [`Request::Consumed`]. In TIME-WAIT it delivers all
/// received data, at most one receive buffer more
/// ([`HostConfig::receive_buffer`](crate::host::HostConfig::receive_buffer)).
pub const RECEIVE_CREDIT_BYTES: usize = 256 * 1024;

/// Maximum number of datagrams sent by a client ([`Request::SendDatagram`]) without a [`Notice::DatagramSent`].
pub const DATAGRAMS_SENT_MAX: usize = 256;
/// Maximum number of datagrams of a port delivered by the host ([`Notice::Datagram`]) without a
/// [`Request::DatagramConsumed`].
pub const DATAGRAMS_DELIVERED_MAX: usize = 256;

/// ID of a listener. Unique within a node, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u64);

/// ID of a local endpoint reserved by a client. Unique within a node, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EndpointId(pub u64);

/// Owner of local endpoints: one client, or the clients of one kind registered with several shards together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConsumerId(pub u64);

impl ConsumerId {
    /// Consumer of the node's first clients.
    pub const FIRST: Self = Self(0);
}

offload_engine::option_enum! {
    /// Selection of offloaded connections.
    pub enum OffloadPolicy {
        /// All, once established
        #[default]
        Always,
        /// None
        Never,
        /// After --offload-after-bytes or --offload-after-age; connections of queue pairs at once
        // More precisely: of clients that request it.
        Auto,
    }
}

/// Default number of bytes in one direction after which [`OffloadPolicy::Auto`] offloads a connection.
pub const AUTO_OFFLOAD_BYTES: u64 = 64 * 1024;

/// A request of a client to the host stack.
#[derive(Debug)]
pub enum Request {
    /// Reserve a local endpoint for this client, which may listen on it and connect from it. Answered by `Bound` or
    /// `BindFailed`.
    Bind {
        /// ID of the endpoint, chosen by the client.
        endpoint: EndpointId,
        /// Local address. Port 0: an ephemeral port. Unspecified address: all addresses of the node.
        local: SocketAddr,
    },
    /// Release an endpoint. Its listener and connections remain, and keep the port in use.
    Unbind {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// Connect. Answered by `Established` or `ConnectFailed`.
    Connect {
        /// Handle of the new connection, chosen by the client.
        handle: OffloadHandle,
        /// Local address; `None`: the node's address of that family, and an ephemeral port. Port 0: ephemeral.
        local: Option<SocketAddr>,
        /// Endpoint to connect from, bound by the client; `local` is ignored then. A new ID names the local address,
        /// which is reserved until `Unbind` unless the connect fails.
        endpoint: Option<EndpointId>,
        /// Remote address.
        remote: SocketAddr,
        /// Time limit of the handshake.
        timeout: Duration,
        /// True to offload it as soon as it is established, with [`OffloadPolicy::Auto`].
        at_once: bool,
    },
    /// Listen. Answered by `Listening` or `ListenFailed`.
    Listen {
        /// ID of the listener, chosen by the client.
        listener: ListenerId,
        /// Local address; port 0: ephemeral. Unspecified address: all addresses of the node in its families.
        local: LocalAddress,
        /// As for `Connect`.
        endpoint: Option<EndpointId>,
        /// Maximum number of half-open connections: 1 to [`BACKLOG_MAX`](crate::host::BACKLOG_MAX).
        backlog: usize,
        /// As for `Connect`.
        at_once: bool,
    },
    /// Stop listening. Accepted connections remain.
    Unlisten {
        /// The listener.
        listener: ListenerId,
    },
    /// Send data on a connection in the host. The list is returned by `Sent`, or by `Returned`.
    Send {
        /// The connection.
        handle: OffloadHandle,
        /// The data.
        list: NetBufferList,
        /// True to begin a segment, which is sent after all earlier data. Retransmitted segments may begin elsewhere.
        begins_segment: bool,
    },
    /// Report consumption of bytes delivered by `Data`.
    Consumed {
        /// The connection.
        handle: OffloadHandle,
        /// Number of bytes.
        count: usize,
    },
    /// Send FIN after all sent data, on a connection in the host.
    Shutdown {
        /// The connection.
        handle: OffloadHandle,
    },
    /// Reset a connection in the host, or cancel one in its handshake. A connection in transition is reset if the
    /// transition ends in the host.
    Abort {
        /// The connection.
        handle: OffloadHandle,
    },
    /// Offload this connection as soon as possible, regardless of the policy. The only answer is the `Offloading` that
    /// follows.
    Offload {
        /// The connection.
        handle: OffloadHandle,
    },
    /// Upload this connection from the target. Followed by `OffloadClient::uploaded`, then `Uploaded`.
    Upload {
        /// The connection.
        handle: OffloadHandle,
    },
    /// Register a client and its channel of notices. First request of each client.
    Register {
        /// Name in log messages.
        name: &'static str,
        /// Consumer of the client.
        consumer: ConsumerId,
        /// Channel of the notices about its connections and listeners.
        notices: crossbeam_channel::Sender<Notice>,
    },
    /// Set keep-alive of this client's connections in either stack, unless [`HostConfig::tcp`] sets keep-alive for all.
    ///
    /// [`HostConfig::tcp`]: crate::host::HostConfig::tcp
    KeepAlive {
        /// Keep-alive parameters; `None`: disabled. A connection in the host is probed at each `idle` interval, and
        /// aborted after `idle` times `probes` plus one.
        keep_alive: Option<KeepAlive>,
    },
    /// Open a UDP port on all addresses of the node. Answered by `DatagramsOpen` or `DatagramsFailed`.
    OpenDatagrams {
        /// The port.
        port: u16,
    },
    /// Close a UDP port. Its undelivered datagrams are dropped.
    CloseDatagrams {
        /// The port.
        port: u16,
    },
    /// Send a datagram. It is dropped if its port is closed, its addresses have no route, it is longer than the path
    /// MTU, or the next hop does not answer. Answered by `DatagramSent`.
    SendDatagram {
        /// Local address and UDP port, opened by the client.
        from: SocketAddr,
        /// Address of the peer.
        to: SocketAddr,
        /// Payload.
        data: alloc::vec::Vec<u8>,
    },
    /// Report consumption of a datagram delivered by `Datagram`, and return its storage.
    DatagramConsumed {
        /// UDP port that received it.
        port: u16,
        /// Storage.
        data: alloc::vec::Vec<u8>,
    },
    /// Unregister the client: its listeners and UDP ports are closed, its connections are reset in either stack, and it
    /// receives no further notices.
    Unregister,
    /// List listeners and connections by handle.
    List {
        /// Handle to list; `None`: all.
        only: Option<OffloadHandle>,
        /// Channel for the rows, which must have capacity.
        reply: crossbeam_channel::Sender<alloc::vec::Vec<ConnectionRow>>,
    },
}

/// Reason for a failed request, or for the end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// RST in answer to SYN.
    #[error("TCP: connection refused")]
    Refused,
    /// No answer to SYN within the time limit.
    #[error("TCP: no response to SYN within the time limit")]
    TimedOut,
    /// No answer to ARP or neighbor solicitation within the time limit.
    #[error("ARP/ND: no response from the next hop")]
    HostUnreachable,
    /// No address of that family, or no route.
    #[error("IP: no route to the address")]
    NetworkUnreachable,
    /// The local address is not an address of the node.
    #[error("IP: local address not assigned to this node")]
    AddressNotAvailable,
    /// The remote address is an address of the node, so only the client itself can make the connection, from this free
    /// local address.
    #[error("IP: remote address belongs to this node")]
    OwnAddress {
        /// Local address, with the chosen port.
        local: SocketAddr,
        /// Remote address.
        remote: SocketAddr,
    },
    /// The local port is in use.
    #[error("TCP: local address in use")]
    AddressInUse,
    /// No ephemeral port (49152-65535) is free.
    #[error("TCP: no free ephemeral port (49152-65535)")]
    NoPorts,
    /// The node has the maximum number of UDP ports.
    #[error("UDP: too many open ports (limit 256)")]
    TooManyPorts,
    /// RST from the peer.
    #[error("TCP: connection reset by peer")]
    Reset,
    /// Retransmission limit reached.
    #[error("TCP: no response from the peer (retransmission limit)")]
    RetransmissionLimit,
    /// Retransmission limit reached, with the last ICMP error (RFC 9293 SHLD-25, RFC 5461 §2).
    #[error("TCP: no response from the peer (retransmission limit); ICMP: {0}")]
    Unanswered(SoftError),
    /// The target refused the connection and the host could not continue it.
    #[error("chimney: connection refused by the target")]
    OffloadRefused,
    /// The target has lost the connection's state, or the host could not import it.
    #[error("chimney: connection state lost during migration")]
    StateLost,
    /// Aborted on the client's request.
    #[error("TCP: aborted by the client")]
    Aborted,
}

/// A notification from the host stack to a client.
#[derive(Debug)]
pub enum Notice {
    /// The endpoint is reserved.
    Bound {
        /// The endpoint.
        endpoint: EndpointId,
        /// Local address, with the chosen port.
        local: SocketAddr,
    },
    /// The endpoint could not be reserved.
    BindFailed {
        /// The endpoint.
        endpoint: EndpointId,
        /// Reason.
        error: HostError,
    },
    /// The listener is ready.
    Listening {
        /// The listener.
        listener: ListenerId,
        /// Local address, with the chosen port.
        local: SocketAddr,
    },
    /// The listener could not be created.
    ListenFailed {
        /// The listener.
        listener: ListenerId,
        /// Reason.
        error: HostError,
    },
    /// The handshake is complete. If `offloading`, the next upcall of the connection is `OffloadClient::offloaded`;
    /// otherwise its data arrives as `Data`.
    ///
    /// Repeated, with `offloading` false, if the target has refused the connection. The host then serves it and
    /// completes by `Sent` the lists that `Offloading` counted as outstanding. The client resends the lists that
    /// `Returned` has returned.
    Established {
        /// The connection; the host chooses the handle of an accepted one.
        handle: OffloadHandle,
        /// Listener that accepted it.
        listener: Option<ListenerId>,
        /// Local address.
        local: SocketAddr,
        /// Remote address.
        remote: SocketAddr,
        /// True if it is being offloaded.
        offloading: bool,
        /// Size of the largest segment that the host sends, in bytes.
        mss: usize,
    },
    /// The handshake failed.
    ConnectFailed {
        /// The connection.
        handle: OffloadHandle,
        /// Reason.
        error: HostError,
    },
    /// A connection in the host is being offloaded. Its incomplete lists of `Send` are offloaded too, and no further
    /// `Sent` follows. The client posts later sends after `OffloadClient::offloaded`. It also follows an `Established`
    /// with `offloading` true if there is anything to count.
    Offloading {
        /// The connection.
        handle: OffloadHandle,
        /// Number of lists sent by `Send`, or returned by an upload, without a `Sent`: the target completes them.
        unanswered: usize,
        /// True if a `Shutdown` was offloaded too.
        shutdown: bool,
    },
    /// A `Send` or `Shutdown` that reached the host after the offload had begun was not executed. The client posts it
    /// itself after `OffloadClient::offloaded`, in the order of return. Every sent list not counted in
    /// `Offloading::unanswered` is returned this way.
    Returned {
        /// The connection.
        handle: OffloadHandle,
        /// Unchanged lists; empty for a shutdown.
        chain: NblChain,
        /// True for a shutdown.
        shutdown: bool,
    },
    /// The connection was uploaded, and the host serves it. Lists that the target had not completed are completed by
    /// `Sent`; data that it had not delivered arrive as `Data`.
    Uploaded {
        /// The connection.
        handle: OffloadHandle,
        /// Number of lists uploaded with it.
        lists: usize,
        /// Their bytes, acknowledged or not.
        bytes: usize,
        /// Size of the largest segment that the host sends, in bytes.
        mss: usize,
    },
    /// In-order data.
    Data {
        /// The connection.
        handle: OffloadHandle,
        /// The data.
        data: Bytes,
    },
    /// Lists are complete, in order. SUCCESS: the peer has acknowledged their bytes. REQUEST_ABORTED: the connection
    /// ended before (CH §6.2).
    Sent {
        /// The connection.
        handle: OffloadHandle,
        /// The lists.
        chain: NblChain,
    },
    /// The peer's FIN has arrived, after all its data.
    PeerClosed {
        /// The connection.
        handle: OffloadHandle,
    },
    /// The peer has acknowledged our FIN. For an uploaded connection the target may have reported it already.
    ShutDown {
        /// The connection.
        handle: OffloadHandle,
    },
    /// The connection is closed.
    Closed {
        /// The connection.
        handle: OffloadHandle,
        /// Reason; `None`: both FINs were exchanged.
        error: Option<HostError>,
    },
    /// The UDP port is open.
    DatagramsOpen {
        /// The port.
        port: u16,
    },
    /// The UDP port could not be opened.
    DatagramsFailed {
        /// The port.
        port: u16,
        /// Reason.
        error: HostError,
    },
    /// Datagram received at a UDP port of the client.
    Datagram {
        /// Address of the peer.
        source: SocketAddr,
        /// Local address and UDP port.
        destination: SocketAddr,
        /// Payload.
        data: alloc::vec::Vec<u8>,
    },
    /// A datagram of the client was sent or dropped, or its next hop does not answer soon; its storage returns to the
    /// client.
    DatagramSent {
        /// Storage.
        data: alloc::vec::Vec<u8>,
    },
}

/// Request and its client, which owns the resulting connection or listener. [`ClientTag::NONE`]: a caller that
/// receives no notices.
#[derive(Debug)]
pub struct ClientRequest {
    /// The client.
    pub client: ClientTag,
    /// Request.
    pub request: Request,
}

/// Client end of the channels to the host stack. The clients of a shard share one request channel, so their requests
/// are processed in the order of sending. Each has its own channel of notices.
#[derive(Clone, Debug)]
pub struct SocketPort {
    client: ClientTag,
    requests: RequestPort,
    notices: crossbeam_channel::Receiver<Notice>,
}

impl SocketPort {
    /// Creates both ends for a host stack with one client: the client's, and the host's.
    pub fn pair(
        host_doorbell: std::sync::Arc<offload_engine::engine::doorbell::Doorbell>,
    ) -> (Self, HostSocketPort) {
        let mut pairs = RequestPort::pairs(&host_doorbell, 1);
        let (requests, host) = pairs.remove(0);
        let first = offload_engine::engine::Clients::FIRST;
        (requests.register(first, "client", ConsumerId::FIRST), host)
    }

    /// Tag of the client.
    pub const fn client(&self) -> ClientTag {
        self.client
    }

    #[cfg(test)]
    pub(crate) const fn requests(&self) -> &RequestPort {
        &self.requests
    }

    /// Allocates a new ID for an [`OffloadHandle`], a [`ListenerId`] or an [`EndpointId`].
    pub fn allocate(&self) -> u64 {
        self.requests.allocate()
    }

    /// Sends a request and wakes the host stack.
    pub fn request(&self, request: Request) {
        self.requests.request_of(self.client, request);
    }

    /// Returns the next notice, if there is one.
    pub fn notice(&self) -> Option<Notice> {
        // Common case: `is_empty()` is cheaper than `try_recv()`.
        if self.notices.is_empty() {
            return None;
        }
        self.notices.try_recv().ok()
    }

    /// True if a notice is pending.
    pub fn has_notice(&self) -> bool {
        !self.notices.is_empty()
    }
}

/// Request channel to the host stack, shared by the clients of a shard; also for callers without notices.
#[derive(Clone, Debug)]
pub struct RequestPort {
    requests: crossbeam_channel::Sender<ClientRequest>,
    host_doorbell: std::sync::Arc<offload_engine::engine::doorbell::Doorbell>,
    next_id: std::sync::Arc<core::sync::atomic::AtomicU64>,
}

impl RequestPort {
    /// Creates both ends for each of the `count` shards of one host stack: the clients', and the host's. They share the
    /// allocator, so IDs are unique within the node.
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

    /// Allocates a new ID.
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
        self.request_of(ClientTag::NONE, request);
    }

    /// Sends a request of a client, and wakes the host stack.
    pub fn request_of(&self, client: ClientTag, request: Request) {
        // The host's receiver lives as long as the node; requests to a stopped node are discarded.
        let _ = self.requests.send(ClientRequest { client, request });
        self.host_doorbell.ring();
    }
}

/// Host end of the request channel of a shard's clients. Notices are sent on the channels of [`Request::Register`]. The
/// engine's doorbell is rung afterwards, since clients run with the engine.
#[derive(Debug)]
pub struct HostSocketPort {
    /// Requests of the clients.
    pub requests: crossbeam_channel::Receiver<ClientRequest>,
    /// Allocator of handles for accepted connections.
    pub next_id: std::sync::Arc<core::sync::atomic::AtomicU64>,
}
