//! Policies and time limits of an adapter, limits of its listeners.

use offload_engine::{state::KeepAlive, time::Duration};

use crate::mpa::startup::{INITIATOR_TIME_LIMIT, RESPONDER_TIME_LIMIT, Revision, RtrSet};

/// Size of FPDUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FpduSize {
    /// By the EMSS: no FPDU crosses a segment, and every segment begins with one (RFC 5044 §5.1). Needed by
    /// peers such as siw, which fail when pad and CRC are split over segments.
    Emss,
    /// As large as MPA and the link's super-segment allow: fewer headers and CRCs where super-segments
    /// flow.
    Max,
    /// As [`FpduSize::Max`] where the path carries super-segments, but pad and CRC are never split over the segments
    /// that it is cut into; as [`FpduSize::Emss`] elsewhere, and for peers that demand markers.
    #[default]
    Auto,
}

/// Limits of requests and connections; inclusive.
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
    /// Reads and atomics that a queue pair serves at once (IRD).
    pub ird_max: u32,
    /// Reads and atomics that a queue pair has outstanding at once (ORD).
    pub ord_max: u32,
    /// Receives posted to a queue pair.
    pub receive_depth_max: u32,
    /// Receives posted to a shared receive queue.
    pub srq_depth_max: u32,
    /// Requests posted to the send queue of a queue pair.
    pub send_depth_max: u32,
    /// Entries of a completion queue.
    pub cq_depth_max: u32,
    /// Bytes of private data in either direction, up to 512 (RFC 5044 §7.1.1). In the enhanced form no more than 508
    /// are possible, the default.
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

/// Objects of each kind, at most.
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
    /// Connectors; each incoming request takes one.
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

/// Idle time of a connection before it is probed, unless something else is asked for: with the two below, an idle
/// connection ends a minute after the peer's last segment.
pub const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(15);
/// Time between these probes.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Count of these probes.
pub const KEEP_ALIVE_PROBES: u8 = 3;

/// The thread of an adapter's callbacks. In either case they are called one at a time, in order, and with no lock of
/// the adapter held.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CallbackThread {
    /// The adapter's: the engine's thread of a node with automatic progress, the thread of kernel sockets. Never a
    /// thread within a call of the consumer, who may hold a lock there that the callback takes. With manual progress
    /// the adapter has no thread: callbacks are called by the thread that polls or waits, within that. So are they
    /// behind the loss of the device, when no thread of the adapter is left.
    #[default]
    Own,
    /// Whoever comes first: also the thread of any call, before the call returns. That saves a change of threads, and
    /// is for consumers that hold no lock in their calls which their callbacks take.
    Caller,
}

/// Requests and closes that could end at once end later, some of them: for tests of consumers, which see then what an
/// adapter may do whose hardware takes its time (NDK-ASY-1, -2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deferral {
    /// Draws the requests that pend, and the times. The same seed and the same calls give the same order.
    pub seed: u64,
    /// The longest time that one pends.
    pub delay_max: Duration,
}

/// Configuration of an adapter.
#[derive(Clone, Debug)]
pub struct Config {
    /// Limits of requests and connections.
    pub limits: Limits,
    /// Table sizes.
    pub capabilities: Capabilities,
    /// Seed of the tokens.
    pub seed: u128,
    /// Size of FPDUs.
    pub fpdu_size: FpduSize,
    /// Ask for CRCs. A peer's wish turns them on anyway.
    pub crc: bool,
    /// Ask the peer for markers.
    pub markers: bool,
    /// Revision of the Request. One for peers that know no other: then there is no RTR, read limits are not
    /// negotiated, and the active consumer has to send first (NDK-CON-9).
    pub revision: Revision,
    /// RTR messages that this side sends and understands (RFC 6581 §9.2); none: the client-server model.
    pub rtr: RtrSet,
    /// TCP handshake of a connect.
    pub connect_timeout: Duration,
    /// From the Request to the Reply, at the active side (RFC 5044 §7.1.2).
    pub reply_timeout: Duration,
    /// From the connection to the Request, at the passive side.
    pub request_timeout: Duration,
    /// From the Request to the consumer's answer, at the passive side; then the peer is refused. From the Reply to the
    /// peer's first FPDU: a consumer may be slow to complete (NDK-CON-6).
    pub accept_timeout: Duration,
    /// From a disconnect to the acknowledgement of its FIN.
    pub disconnect_timeout: Duration,
    /// How long an end waits for a side that does nothing for it. A disconnect with requests outstanding: silence of
    /// the peer, which acknowledges no more of them, until the reset. A peer that has closed behind a message without
    /// a receive ([`Config::receive_wait`]): until the disconnect event, which comes behind that message otherwise.
    pub end_wait: Duration,
    /// Behind a Terminate: silence of the peer, which neither acknowledges more of what was sent nor closes, until the
    /// reset. Behind a Reply that rejects: until the reset, if the peer does not close.
    pub terminate_timeout: Duration,
    /// Time that a message waits until a receive is posted for it, while TCP's window holds back what follows; zero: it
    /// ends the connection at once (RFC 5041 §7.2). For programs that count on InfiniBand's receiver-not-ready retries.
    pub receive_wait: Duration,
    /// Copies the payload of Sends and Writes of any size where CRCs are in use: for consumers that may change memory
    /// while a request reads it. Otherwise payload above 16 KiB is read twice, for the CRC and to be sent; if it
    /// changes in between, the peer finds a CRC error and ends the connection.
    pub copies_payload: bool,
    /// Atomics and immediate data (RFC 7306), for queue pairs that are not told otherwise. MPA cannot negotiate them,
    /// so it is for those who know that their peers can: a peer that cannot ends the connection by a Terminate.
    /// Without it posts are refused, and so is what a peer sends, as an unexpected opcode.
    pub rfc7306: bool,
    /// From the first FPDU of an initiator to a zero-length Write, if nothing has come from the peer. As long as
    /// nothing comes five more follow, each behind twice the time of the one before. Linux siw overlooks FPDUs that
    /// arrive while it accepts, until the next one does.
    pub nudge_timeout: Duration,
    /// With revision 2: connect once more, with revision 1, if the peer has closed or reset the connection instead of
    /// sending a Reply, or its Reply has no enhanced data (MPE-10-3). IRD and ORD are not agreed on then, and no RTR is
    /// sent.
    pub retry_plain: bool,
    /// Probes of idle connections: how a peer that died without a word is found out. `None`: none.
    pub keep_alive: Option<KeepAlive>,
    /// Refuse a local address that a listener or a connection has, also one that it has accepted (NDK-EP-2). Otherwise
    /// the transport decides: TCP lets a listener take the address of another one's connections.
    pub exclusive_endpoints: bool,
    /// Flush when the peer closes, as NDSPI programs expect (NDK-DISC-3). NDKPI says no.
    pub flush_on_peer_close: bool,
    /// The thread of callbacks.
    pub callbacks: CallbackThread,
    /// Has some requests pend that need not ([`Deferral`]); `None`: each ends as soon as it can.
    pub deferral: Option<Deferral>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            capabilities: Capabilities::default(),
            seed: 1,
            fpdu_size: FpduSize::default(),
            crc: true,
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
            nudge_timeout: Duration::from_millis(50),
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

/// Limits of a listener (NDK-EP-9: the provider's choice).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerConfig {
    /// Connections in their TCP handshake at once; the host stack takes at least 1 and at most 1,024.
    pub backlog: usize,
    /// Connections whose handshake is done and whose MPA Request is not complete, at least 1. A new one displaces the
    /// oldest, which is reset and counted (`Counters::requests_displaced`).
    pub requests_max: usize,
    /// Those of one peer address, at least 1: a new one displaces that peer's oldest. By default half of all, so that
    /// one peer may open some hundred connections at once and leaves the others room.
    pub requests_per_peer_max: usize,
    /// True if a listener on `[::]` accepts IPv6 connections only, as with IPV6_V6ONLY; another may listen on `0.0.0.0`
    /// and the same port then. Without effect on any other address.
    pub v6_only: bool,
}

impl ListenerConfig {
    /// A backlog of so many connections, for handshakes and for each peer's Requests.
    pub fn with_backlog(backlog: usize) -> Self {
        Self { backlog, requests_per_peer_max: backlog, ..Self::default() }
    }
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self { backlog: 128, requests_max: 1024, requests_per_peer_max: 512, v6_only: false }
    }
}
