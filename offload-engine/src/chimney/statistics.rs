//! TCP_OFFLOAD_STATS and IP_OFFLOAD_STATS (CH §11): counters of offloaded traffic, for each IP
//! version.
//!
//! The host adds its own to them. Counters wrap. What goes up to the host unprocessed is not counted, whether it is
//! of no offloaded connection or malformed (CH §9.1), so the counters of malformed packets stay 0.

/// Which of the two sets.
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
    /// Segments received, those with errors included.
    pub in_segments: u64,
    /// Segments sent, without those that hold only bytes sent before.
    pub out_segments: u64,
    /// Connections in ESTABLISHED or CLOSE_WAIT. Not a counter: a reset does not change it.
    pub currently_established: u32,
    /// Transitions from ESTABLISHED or CLOSE_WAIT to CLOSED.
    pub reset_established: u32,
    /// Segments sent that hold a byte sent before.
    pub retransmitted_segments: u32,
    /// Segments received with errors that TCP finds.
    pub in_errors: u32,
    /// Segments sent with RST.
    pub out_resets: u32,
}

/// IP_OFFLOAD_STATS. Octets are those of the IP header and what follows it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IpOffloadStats {
    /// Datagrams received.
    pub in_receives: u64,
    /// Octets received.
    pub in_octets: u64,
    /// Datagrams given to TCP.
    pub in_delivers: u64,
    /// Datagrams that TCP has sent down.
    pub out_requests: u64,
    /// Octets sent.
    pub out_octets: u64,
    /// Datagrams too short for a header, or with a bad one.
    pub in_header_errors: u32,
    /// Datagrams shorter than their length field.
    pub in_truncated_packets: u32,
    /// Good datagrams dropped on their way to TCP: those without the neighbor's VLAN tag.
    pub in_discards: u32,
    /// Good datagrams dropped on their way out: what the link dropped, and what may not be sent because an object is
    /// invalid.
    pub out_discards: u32,
    /// Datagrams without a route; a path is one, so there are none.
    pub out_no_routes: u32,
}
