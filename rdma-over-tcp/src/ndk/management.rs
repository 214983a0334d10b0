//! NDIS management structures: capabilities, counters, connections and local endpoints of adapters.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::info::AdapterInfo;
use crate::rnic::{Capabilities, Counters, Rnic};

/// NDIS_MINIPORT_ADAPTER_NDK_ATTRIBUTES. Also available while NDK is disabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdkAttributes {
    /// True if adapters can be opened.
    pub enabled: bool,
    /// Limits of an adapter.
    pub capabilities: NdkCapabilities,
}

/// NDIS_NDK_CAPABILITIES.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdkCapabilities {
    /// Maximum number of queue pairs.
    pub max_qp_count: u32,
    /// Maximum number of completion queues.
    pub max_cq_count: u32,
    /// Maximum number of memory regions.
    pub max_mr_count: u32,
    /// Maximum number of protection domains.
    pub max_pd_count: u32,
    /// Maximum concurrent inbound reads of all queue pairs; 0: only the limits per queue pair apply.
    pub max_inbound_read_limit: u32,
    /// Maximum concurrent outbound reads of all queue pairs; 0: only the limits per queue pair apply.
    pub max_outbound_read_limit: u32,
    /// Maximum number of memory windows.
    pub max_mw_count: u32,
    /// Maximum number of shared receive queues.
    pub max_srq_count: u32,
    /// Mask of the counters of [`NdkPerformanceCounters`] that are not supported.
    pub missing_counter_mask: u64,
    /// Limits and features of an adapter.
    pub info: AdapterInfo,
}

/// Mask of unsupported counters, bits 26 to 29. Octets and frames of layer 2 belong to the link, which also carries
/// other traffic.
pub const MISSING_COUNTERS: u64 = 0xf << 26;

impl NdkCapabilities {
    pub(super) const fn new(capabilities: &Capabilities, info: AdapterInfo) -> Self {
        Self {
            max_qp_count: capabilities.max_qp_count,
            max_cq_count: capabilities.max_cq_count,
            max_mr_count: capabilities.max_mr_count,
            max_pd_count: capabilities.max_pd_count,
            max_inbound_read_limit: 0,
            max_outbound_read_limit: 0,
            max_mw_count: capabilities.max_mw_count,
            max_srq_count: capabilities.max_srq_count,
            missing_counter_mask: MISSING_COUNTERS,
            info,
        }
    }
}

/// NDIS_NDK_PERFORMANCE_COUNTERS, without the reserved counters, which are 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NdkPerformanceCounters {
    /// Bit 0: outbound connections established.
    pub connect: u64,
    /// Bit 1: inbound connections established.
    pub accept: u64,
    /// Bit 2: failed connection attempts, in either direction.
    pub connect_failure: u64,
    /// Bit 3: established connections that failed before the consumer disconnected.
    pub connection_error: u64,
    /// Bit 4: connections currently established.
    pub active_connection: u64,
    /// Bit 25: completion queues that failed.
    pub cq_error: u64,
    /// Bit 26: not supported ([`MISSING_COUNTERS`]).
    pub rdma_in_octets: u64,
    /// Bit 27: not supported.
    pub rdma_out_octets: u64,
    /// Bit 28: not supported.
    pub rdma_in_frames: u64,
    /// Bit 29: not supported.
    pub rdma_out_frames: u64,
}

impl NdkPerformanceCounters {
    /// Adds the counters of another adapter.
    pub(super) fn add(&mut self, other: &Counters) {
        self.connect += other.connect;
        self.accept += other.accept;
        self.connect_failure += other.connect_failure;
        self.connection_error += other.connection_error;
        self.active_connection += other.active_connection;
        self.cq_error += other.cq_error;
    }
}

/// NDIS_NDK_CONNECTION_ENTRY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdkConnectionEntry {
    /// Local address.
    pub local: SocketAddr,
    /// Peer address.
    pub remote: SocketAddr,
    /// True if the owner is a process; false in the odd entries, which have no owner.
    pub user_mode_owner: bool,
    /// PID of the owner; 0 in the odd entries.
    pub owner_pid: u32,
}

/// NDIS_NDK_CONNECTIONS. Each connection has two entries: its NDK addresses at the even index, and those of its TCP
/// connection after it (NDK-MGT-1). Count is the length of `entries`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NdkConnections {
    /// True: each NDK connection maps to one TCP connection.
    pub mapped_to_tcp_connections: bool,
    /// Entries, two per connection.
    pub entries: Vec<NdkConnectionEntry>,
}

/// NDIS_NDK_LOCAL_ENDPOINT_ENTRY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdkLocalEndpointEntry {
    /// Local address.
    pub local: SocketAddr,
    /// True if the owner is a process; false in the odd entries, which have no owner.
    pub user_mode_owner: bool,
    /// True for a listener, false for a shared endpoint.
    pub listener: bool,
    /// PID of the owner; 0 in the odd entries.
    pub owner_pid: u32,
}

/// NDIS_NDK_LOCAL_ENDPOINTS. Each endpoint has two entries, as in [`NdkConnections`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NdkLocalEndpoints {
    /// True: each NDK local endpoint maps to one TCP endpoint.
    pub mapped_to_tcp_local_endpoints: bool,
    /// Entries, two per endpoint.
    pub entries: Vec<NdkLocalEndpointEntry>,
}

impl NdkConnections {
    pub(super) const fn new() -> Self {
        Self { mapped_to_tcp_connections: true, entries: Vec::new() }
    }

    pub(super) fn add(&mut self, rnic: &Rnic) {
        for connection in rnic.connections() {
            let (local, remote) = (connection.local, connection.remote);
            let of_ndk =
                NdkConnectionEntry { local, remote, user_mode_owner: true, owner_pid: own_pid() };
            let of_tcp = NdkConnectionEntry { user_mode_owner: false, owner_pid: 0, ..of_ndk };
            self.entries.extend([of_ndk, of_tcp]);
        }
    }
}

impl NdkLocalEndpoints {
    pub(super) const fn new() -> Self {
        Self { mapped_to_tcp_local_endpoints: true, entries: Vec::new() }
    }

    pub(super) fn add(&mut self, rnic: &Rnic) {
        for (local, listener) in rnic.local_endpoints() {
            let (user_mode_owner, owner_pid) = (true, own_pid());
            let of_ndk = NdkLocalEndpointEntry { local, user_mode_owner, listener, owner_pid };
            let of_tcp = NdkLocalEndpointEntry { user_mode_owner: false, owner_pid: 0, ..of_ndk };
            self.entries.extend([of_ndk, of_tcp]);
        }
    }
}

fn own_pid() -> u32 {
    std::process::id()
}
