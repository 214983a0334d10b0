//! Counters and snapshots for monitoring.

use core::net::SocketAddr;

use offload_engine::time::Instant;

use super::connection::read_limit::ReadLimit;
use crate::mpa::startup::Negotiated;

/// Counters of an adapter. Octets and frames of layer 2 are counted by the link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Outbound connections established.
    pub connect: u64,
    /// Inbound connections established.
    pub accept: u64,
    /// Attempts, in either direction, that failed.
    pub connect_failure: u64,
    /// Connections of listeners that were reset before their MPA Request was complete, because others came
    /// ([`ListenerConfig`](super::ListenerConfig)).
    pub requests_displaced: u64,
    /// Zero-length Writes sent because nothing came from the peer behind start-up
    /// ([`Config::nudge_timeout`](super::Config::nudge_timeout)).
    pub nudges: u64,
    /// Established connections that met an error before the consumer disconnected.
    pub connection_error: u64,
    /// Connections established now.
    pub active_connection: u64,
    /// Completion queues that failed.
    pub cq_error: u64,
    /// FPDU bytes received and accepted, markers included.
    pub fpdu_in_octets: u64,
    /// FPDU bytes handed to TCP, markers included.
    pub fpdu_out_octets: u64,
    /// FPDUs received and accepted.
    pub fpdu_in: u64,
    /// FPDUs handed to TCP.
    pub fpdu_out: u64,
}

/// Statistics of one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QpStats {
    /// Sends begun on the wire.
    pub sends: u64,
    /// Writes begun on the wire.
    pub writes: u64,
    /// Read requests sent.
    pub reads: u64,
    /// Atomic Requests sent.
    pub atomics: u64,
    /// Immediate Data messages sent.
    pub immediates: u64,
    /// Sends and immediate data received in full.
    pub receives: u64,
    /// FPDUs of peers' writes placed.
    pub write_segments_placed: u64,
    /// Read requests answered.
    pub read_responses: u64,
    /// Atomic Requests carried out and answered.
    pub atomic_responses: u64,
    /// FPDUs handed to TCP.
    pub fpdu_out: u64,
    /// FPDUs received.
    pub fpdu_in: u64,
    /// Net buffer lists handed to TCP: below `fpdu_out` when small requests were packed.
    pub lists_out: u64,
    /// Payload bytes copied aside so that a request could complete at once.
    pub copied_aside_bytes: u64,
    /// Times the unacknowledged tail of large messages was copied aside so that they could complete.
    pub tails_copied: u64,
    /// Requests completed as Flushed.
    pub flushed: u64,
    /// Terminate messages sent.
    pub terminates_out: u64,
    /// Terminate messages received.
    pub terminates_in: u64,
}

/// A connection of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionEntry {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Number of the queue pair.
    pub qp: u32,
    /// Statistics.
    pub stats: QpStats,
}

/// The hand-overs of a connection, for monitoring.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct History {
    /// TCP's handshake was done, and the hand-over began; `None`: it is with the host stack.
    pub offloading: Option<Instant>,
    /// The target had it.
    pub offloaded: Option<Instant>,
    /// The outcome of MPA's start-up.
    pub negotiated: Option<Negotiated>,
    /// Reads in each direction, as they came to be.
    pub limits: Option<ReadLimit>,
}
