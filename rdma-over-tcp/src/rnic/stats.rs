//! Counters and snapshots for monitoring.

use core::net::SocketAddr;

use offload_engine::time::Instant;

use super::connection::read_limit::ReadLimit;
use crate::mpa::startup::Negotiated;

/// Counters of an adapter. The link counts layer 2 octets and frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Outbound connections established.
    pub connect: u64,
    /// Inbound connections established.
    pub accept: u64,
    /// Connection attempts in either direction that failed.
    pub connect_failure: u64,
    /// Connections of listeners that newer connections displaced: reset before their MPA Request was complete
    /// ([`ListenerConfig`](super::ListenerConfig)).
    pub requests_displaced: u64,
    /// Zero-length Writes sent because no data arrived from the peer after start-up
    /// ([`Config::accept_race_timeout`](super::Config::accept_race_timeout)).
    pub empty_writes: u64,
    /// Established connections that failed before the consumer disconnected. A FIN of the peer is no failure.
    pub connection_error: u64,
    /// Connections currently established.
    pub active_connection: u64,
    /// Completion queues that failed.
    pub cq_error: u64,
    /// FPDU bytes received and accepted, markers included.
    pub fpdu_in_octets: u64,
    /// FPDU bytes passed to TCP, markers included.
    pub fpdu_out_octets: u64,
    /// FPDUs received and accepted.
    pub fpdu_in: u64,
    /// FPDUs passed to TCP.
    pub fpdu_out: u64,
    /// Datagrams received that no queue pair has taken: malformed, of an unknown queue pair or another key, or without
    /// a receive that is long enough.
    pub datagrams_dropped: u64,
}

/// Statistics of one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QpStats {
    /// Sends started on the wire.
    pub sends: u64,
    /// Payload bytes of these Sends.
    pub send_bytes: u64,
    /// Writes started on the wire.
    pub writes: u64,
    /// Payload bytes of these Writes.
    pub write_bytes: u64,
    /// Read requests sent.
    pub reads: u64,
    /// Bytes of Read Responses placed.
    pub read_bytes: u64,
    /// Atomic Requests sent.
    pub atomics: u64,
    /// Immediate Data messages sent.
    pub immediates: u64,
    /// Sends and immediate data received in full.
    pub receives: u64,
    /// Payload bytes of the received Sends.
    pub receive_bytes: u64,
    /// Writes of the peer placed in full, without those of no data.
    pub writes_placed: u64,
    /// Payload bytes of the peer's Writes placed.
    pub write_bytes_placed: u64,
    /// FPDUs of the peer's Writes placed.
    pub write_segments_placed: u64,
    /// Read requests answered.
    pub read_responses: u64,
    /// Bytes of Read Responses sent.
    pub read_response_bytes: u64,
    /// Atomic Requests executed and answered.
    pub atomic_responses: u64,
    /// FPDUs passed to TCP.
    pub fpdu_out: u64,
    /// FPDUs received.
    pub fpdu_in: u64,
    /// Net buffer lists passed to TCP: fewer than `fpdu_out` if small requests were packed.
    pub lists_out: u64,
    /// Payload bytes copied so that requests could complete immediately.
    pub copied_aside_bytes: u64,
    /// Times the unacknowledged tail of large messages was copied so that they could complete.
    pub tails_copied: u64,
    /// Requests completed as Flushed.
    pub flushed: u64,
    /// Terminate messages sent.
    pub terminates_out: u64,
    /// Terminate messages received.
    pub terminates_in: u64,
}

/// Connection of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionEntry {
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Number of the queue pair.
    pub qp: u32,
    /// Number of the peer's queue pair, if the consumer has set it.
    pub peer_qp: Option<u32>,
    /// Posted requests that are not complete.
    pub outstanding: usize,
    /// Receives in its receive queue, its own or a shared one, that no message has taken.
    pub receives_posted: usize,
    /// Statistics.
    pub stats: QpStats,
}

/// Offload history of a connection, for monitoring.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct History {
    /// Time when the TCP handshake was complete and the offload began; `None` while the host stack has the connection.
    pub offloading: Option<Instant>,
    /// Time when the offload to the target was complete.
    pub offloaded: Option<Instant>,
    /// Outcome of MPA start-up.
    pub negotiated: Option<Negotiated>,
    /// Negotiated limits of Reads in each direction.
    pub limits: Option<ReadLimit>,
}
