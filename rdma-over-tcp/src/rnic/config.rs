//! Policies and time limits of an adapter, and limits of its listeners.

use offload_engine::{state::KeepAlive, time::Duration};

use crate::mpa::startup::{INITIATOR_TIME_LIMIT, RESPONDER_TIME_LIMIT, Revision, RtrSet};

/// FPDU size policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FpduSize {
    /// Bounded by the EMSS: no FPDU crosses a segment, and every segment begins with an FPDU (RFC 5044 §5.1). Required
    /// by peers such as siw, which fail if pad and CRC are split over segments.
    Emss,
    /// As large as MPA and the link's GSO packet allow: fewer headers and CRCs where GSO packets are used.
    Max,
    /// As [`FpduSize::Max`] where the path carries GSO packets, but pad and CRC are never split over segments. As
    /// [`FpduSize::Emss`] otherwise, and for peers that require markers.
    #[default]
    Auto,
}

/// Limits of requests and connections, inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of the largest region.
    pub registration_bytes_max: u64,
    /// Pages of a fast registration.
    pub fast_register_pages_max: u32,
    /// Scatter/gather entries of a Send or Write.
    pub send_sges_max: u32,
    /// Scatter/gather entries of a receive.
    pub receive_sges_max: u32,
    /// Scatter/gather entries of a Read.
    pub read_sges_max: u32,
    /// Bytes of one request.
    pub transfer_bytes_max: u32,
    /// Bytes of inline data of a Send or Write.
    pub inline_bytes_max: u32,
    /// Reads and atomics that a queue pair serves at the same time (IRD).
    pub ird_max: u32,
    /// Reads and atomics that a queue pair has outstanding at the same time (ORD).
    pub ord_max: u32,
    /// Receives posted to a queue pair.
    pub receive_depth_max: u32,
    /// Receives posted to a shared receive queue.
    pub srq_depth_max: u32,
    /// Requests posted to the send queue of a queue pair.
    pub send_depth_max: u32,
    /// Entries of a completion queue.
    pub cq_depth_max: u32,
    /// Bytes of private data in either direction, up to 512 (RFC 5044 §7.1.1). The enhanced form allows at most 508,
    /// the default.
    pub private_data_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            registration_bytes_max: 1 << 40,
            fast_register_pages_max: 256,
            send_sges_max: 16,
            receive_sges_max: 16,
            read_sges_max: 16,
            transfer_bytes_max: 1 << 30,
            inline_bytes_max: 1024,
            ird_max: 128,
            ord_max: 128,
            receive_depth_max: 16 * 1024,
            srq_depth_max: 64 * 1024,
            send_depth_max: 16 * 1024,
            cq_depth_max: 1 << 20,
            private_data_max: 508,
        }
    }
}

/// Maximum number of objects of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Protection domains.
    pub max_pd_count: u32,
    /// Completion queues.
    pub max_cq_count: u32,
    /// Memory regions.
    pub max_mr_count: u32,
    /// Memory windows.
    pub max_mw_count: u32,
    /// Logical address mappings.
    pub max_lam_count: u32,
    /// Queue pairs.
    pub max_qp_count: u32,
    /// Shared receive queues.
    pub max_srq_count: u32,
    /// Connectors; each incoming request uses one.
    pub max_connector_count: u32,
    /// Listeners.
    pub max_listener_count: u32,
    /// Shared endpoints.
    pub max_shared_endpoint_count: u32,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_pd_count: 4096,
            max_cq_count: 65_536,
            max_mr_count: 262_144,
            max_mw_count: 262_144,
            max_lam_count: 262_144,
            max_qp_count: 65_536,
            max_srq_count: 65_536,
            max_connector_count: 65_536,
            max_listener_count: 1024,
            max_shared_endpoint_count: 1024,
        }
    }
}

/// Default idle time of a connection before it is probed. With the two constants below, an idle connection ends one
/// minute after the peer's last segment.
pub const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(15);
/// Default time between keep-alive probes.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Default number of keep-alive probes.
pub const KEEP_ALIVE_PROBES: u8 = 3;

/// Thread of the adapter's callbacks. With either variant they are called one at a time, in order, and with no lock of
/// the adapter held.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CallbackThread {
    /// Thread of the adapter: the engine thread of a node with automatic progress, or the thread of kernel sockets. It
    /// is never a thread within a consumer's call, because the consumer may hold a lock that the callback takes. With
    /// manual progress the adapter has no thread: the thread that polls or waits calls the callbacks. The same holds
    /// after the loss of the device, when no thread of the adapter is left.
    #[default]
    Own,
    /// First available thread: also the thread of any call, before the call returns. This saves a thread switch. It is
    /// for consumers that hold no lock during a call which their callbacks take.
    Caller,
}

/// Delayed completion of some requests and closes that could complete immediately. For tests of consumers: it shows the
/// behavior allowed to slow hardware (NDK-ASY-1, -2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deferral {
    /// Seed that selects the deferred requests and their delays. The same seed and the same calls give the same order.
    pub seed: u64,
    /// Longest delay of a request.
    pub delay_max: Duration,
}

/// Request for CRCs of FPDUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrcRequest {
    /// CRCs are requested: the default of RFC 5044 §4.4.
    On,
    /// CRCs are not requested.
    Off,
    /// CRCs are requested unless the ends have the same IP address, or loopback addresses, on kernel sockets. Data then
    /// stays in the memory of the host.
    Auto,
}

impl CrcRequest {
    /// Returns true if CRCs are requested on a connection.
    pub(crate) fn applies(self, is_on_one_host: impl FnOnce() -> bool) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            Self::Auto => !is_on_one_host(),
        }
    }
}

/// Configuration of an adapter.
#[derive(Clone, Debug)]
pub struct Config {
    /// Limits of requests and connections.
    pub limits: Limits,
    /// Table sizes.
    pub capabilities: Capabilities,
    /// Seed of the generator of tokens.
    pub seed: u128,
    /// Size of FPDUs.
    pub fpdu_size: FpduSize,
    /// Request for CRCs. CRCs are also used if the peer requests them.
    pub crc: CrcRequest,
    /// True if markers are requested from the peer.
    pub markers: bool,
    /// Revision of the Request. Revision 1 is for peers that support no other: there is no RTR, read limits are not
    /// negotiated, and the active consumer has to send first (NDK-CON-9).
    pub revision: Revision,
    /// RTR messages that this end sends and accepts (RFC 6581 §9.2); none selects the client-server model.
    pub rtr: RtrSet,
    /// Time limit of the TCP handshake of a connect.
    pub connect_timeout: Duration,
    /// Time limit from the Request to the Reply at the active end (RFC 5044 §7.1.2).
    pub reply_timeout: Duration,
    /// Time limit from the established connection to the Request at the passive end.
    pub request_timeout: Duration,
    /// Time limit from the Request to the consumer's answer at the passive end; on expiry the connection is rejected.
    /// Also from the Reply to the peer's first FPDU: a consumer may be slow to complete (NDK-CON-6).
    pub accept_timeout: Duration,
    /// Time limit from a disconnect to the acknowledgment of its FIN.
    pub disconnect_timeout: Duration,
    /// Time limit of a close that makes no progress. After a disconnect with requests outstanding: time without new
    /// acknowledgments from the peer, until the reset. After the peer has closed following a message without a receive
    /// ([`Config::receive_wait`]): time until the disconnect event, which otherwise follows that message.
    pub end_wait: Duration,
    /// After a Terminate: time in which the peer neither acknowledges more data nor closes, until the reset. After a
    /// Reply that rejects: time until the reset if the peer does not close.
    pub terminate_timeout: Duration,
    /// Time that a message waits for a receive to be posted. The requests that follow wait with it: up to 1 MiB is
    /// kept, then TCP's window holds back the rest. Zero: the message ends the connection immediately (RFC 5041 §7.2).
    /// For programs that depend on InfiniBand's receiver-not-ready retries. Without effect on queue pairs of
    /// [`QpService::Rc`](super::QpService).
    pub receive_wait: Duration,
    /// True if the payload of Sends and Writes of any size is copied where CRCs are in use. For consumers that may
    /// change memory while a request reads it. Otherwise payload above 16 KiB is read twice: for the CRC and for
    /// transmission. If it changes in between, the peer detects a CRC error and ends the connection.
    pub copies_payload: bool,
    /// True if queue pairs support atomics and immediate data (RFC 7306) by default. MPA cannot negotiate them, so the
    /// peers must be known to support them: a peer that does not support them ends the connection with a Terminate. If
    /// false, such posts are refused, and such messages of the peer are refused as an unexpected opcode.
    pub rfc7306: bool,
    /// Time from an initiator's first FPDU to a zero-length Write, if no data has arrived from the peer. If no data
    /// arrives, five more follow, each after twice the previous interval. Workaround for Linux siw, which does not
    /// process FPDUs that arrive during its accept until the next FPDU arrives.
    pub accept_race_timeout: Duration,
    /// True if a connect with revision 2 is retried once with revision 1. The retry follows if the peer closes or
    /// resets the connection instead of sending a Reply, or if its Reply has no enhanced data (MPE-10-3). IRD and ORD
    /// are not negotiated in that case, and no RTR is sent.
    pub retry_plain: bool,
    /// Keep-alive probes of idle connections, which detect a peer that failed silently; `None`: disabled.
    pub keep_alive: Option<KeepAlive>,
    /// True if a local address in use by a listener or a connection, accepted ones included, is refused (NDK-EP-2).
    /// Otherwise the transport decides: TCP allows a listener on the address of another listener's connections.
    pub exclusive_endpoints: bool,
    /// True if the queue pair is flushed when the peer closes, as NDSPI programs expect (NDK-DISC-3). NDKPI does not
    /// flush.
    pub flush_on_peer_close: bool,
    /// Thread of the callbacks.
    pub callbacks: CallbackThread,
    /// Deferred completion of some requests ([`Deferral`]); `None`: each request completes as soon as possible.
    pub deferral: Option<Deferral>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            capabilities: Capabilities::default(),
            seed: 1,
            fpdu_size: FpduSize::default(),
            crc: CrcRequest::On,
            markers: false,
            revision: Revision::Two,
            rtr: RtrSet { send: false, write: true, read: true },
            connect_timeout: Duration::from_secs(30),
            reply_timeout: INITIATOR_TIME_LIMIT,
            request_timeout: RESPONDER_TIME_LIMIT,
            accept_timeout: Duration::from_secs(120),
            disconnect_timeout: Duration::from_secs(30),
            end_wait: Duration::from_secs(30),
            terminate_timeout: Duration::from_secs(5),
            receive_wait: Duration::ZERO,
            copies_payload: false,
            rfc7306: false,
            accept_race_timeout: Duration::from_millis(50),
            retry_plain: false,
            keep_alive: Some(KeepAlive {
                idle: KEEP_ALIVE_IDLE,
                interval: KEEP_ALIVE_INTERVAL,
                probes: KEEP_ALIVE_PROBES,
            }),
            exclusive_endpoints: true,
            flush_on_peer_close: false,
            callbacks: CallbackThread::Own,
            deferral: None,
        }
    }
}

/// Limits of a listener (NDK-EP-9: chosen by the provider).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerConfig {
    /// Connections in their TCP handshake at the same time; the host stack supports 1 to 1,024.
    pub backlog: usize,
    /// Connections whose handshake is done and whose MPA Request is not complete, at least 1. A new connection
    /// displaces the oldest, which is reset and counted (`Counters::requests_displaced`).
    pub requests_max: usize,
    /// The same limit for one peer address, at least 1: a new connection displaces the oldest of that peer. By default
    /// half of the total, so that one peer may open several hundred connections at once and leave room for other peers.
    pub requests_per_peer_max: usize,
    /// True if a listener on `[::]` accepts IPv6 connections only, as with IPV6_V6ONLY. Another listener may then use
    /// `0.0.0.0` and the same port. Without effect on any other address.
    pub v6_only: bool,
}

impl ListenerConfig {
    /// Returns limits with this backlog for handshakes and for the Requests of each peer.
    pub fn with_backlog(backlog: usize) -> Self {
        Self { backlog, requests_per_peer_max: backlog, ..Self::default() }
    }
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self { backlog: 128, requests_max: 1024, requests_per_peer_max: 512, v6_only: false }
    }
}
