//! TCP_OFFLOAD_STATS and IP_OFFLOAD_STATS (CH §11): counters of offloaded traffic, one set per IP version.
//!
//! The host adds its own counters to them. Counters wrap. Frames passed to the host unprocessed are not counted: frames
//! of connections that are not offloaded, and malformed ones (CH §9.1). So the counters of malformed packets stay 0.

/// IP version of a set of counters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpVersion {
    /// OID_TCP4_OFFLOAD_STATS, OID_IP4_OFFLOAD_STATS.
    V4,
    /// OID_TCP6_OFFLOAD_STATS, OID_IP6_OFFLOAD_STATS.
    V6,
}

/// TCP_OFFLOAD_STATS.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TcpOffloadStats {
    /// Segments received, including those with errors.
    pub in_segments: u64,
    /// Segments sent, except those with only retransmitted bytes.
    pub out_segments: u64,
    /// Connections in ESTABLISHED or CLOSE_WAIT. Not a counter: a reset does not change it.
    pub currently_established: u32,
    /// Transitions from ESTABLISHED or CLOSE_WAIT to CLOSED.
    pub reset_established: u32,
    /// Segments sent with at least one retransmitted byte.
    pub retransmitted_segments: u32,
    /// Segments received with TCP errors.
    pub in_errors: u32,
    /// Segments sent with RST.
    pub out_resets: u32,
}

/// IP_OFFLOAD_STATS. Octets include the IP header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IpOffloadStats {
    /// Datagrams received.
    pub in_receives: u64,
    /// Octets received.
    pub in_octets: u64,
    /// Datagrams delivered to TCP.
    pub in_delivers: u64,
    /// Datagrams that TCP sent.
    pub out_requests: u64,
    /// Octets sent.
    pub out_octets: u64,
    /// Datagrams too short for a header, or with an invalid one.
    pub in_header_errors: u32,
    /// Datagrams shorter than their length field.
    pub in_truncated_packets: u32,
    /// Valid received datagrams that were dropped before TCP: those without the neighbor's VLAN tag.
    pub in_discards: u32,
    /// Valid datagrams that were not sent: dropped by the link, or forbidden because an object is invalid.
    pub out_discards: u32,
    /// Datagrams without a route. Always 0: a path implies a route.
    pub out_no_routes: u32,
}
