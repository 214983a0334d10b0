//! The generic half of the chimney: state operations down, completions and adapter status up.
//!
//! | NDIS | here |
//! |---|---|
//! | NDIS_PROVIDER_CHIMNEY_OFFLOAD_GENERIC_CHARACTERISTICS, MiniportTcpOffloadForward | [`OffloadProvider`] |
//! | NDIS_CLIENT_CHIMNEY_OFFLOAD_GENERIC_CHARACTERISTICS | [`OffloadHost`] |
//! | NDIS_PROVIDER_CHIMNEY_OFFLOAD_TCP_CHARACTERISTICS | [`ConnectionIo`](super::client::ConnectionIo) |
//! | NDIS_CLIENT_CHIMNEY_OFFLOAD_TCP_CHARACTERISTICS | [`OffloadClient`](super::client::OffloadClient) |
//!
//! A call moves its tree into the provider. The answer is always asynchronous, and moves the same tree back.
//! Between the host's thread and the engine's these calls are messages: [`HostPort`](crate::engine::port::HostPort)
//! is a provider that sends them, and the engine's thread makes the calls of the other side.

use alloc::vec::Vec;

use super::{
    client::{OffloadHandle, UploadReason},
    tree::{InitiateTree, InvalidateTree, QueryTree, TargetContext, TerminateTree, UpdateTree},
};
use crate::{state::Ticks, status::NdisStatus, time::Instant};

/// The host's calls to the target.
///
/// For one object: nothing but [`OffloadProvider::initiate`] of others while it is being offloaded (CH-INI-1), no
/// update while one is in progress (CH-UPD-3), and [`OffloadProvider::terminate`] only when its other requests have
/// completed (CH-TRM-1). What breaks these rules is answered FAILURE.
pub trait OffloadProvider {
    /// MiniportInitiateOffload: take these objects over. Completed by [`OffloadHost::initiate_complete`].
    fn initiate(&mut self, tree: InitiateTree);

    /// MiniportQueryOffload: any class of any object.
    fn query(&mut self, tree: QueryTree);

    /// MiniportUpdateOffload: new values of cached classes, or paths to another neighbor.
    fn update(&mut self, tree: UpdateTree);

    /// MiniportInvalidateOffload: stop sending on these objects and on all that depend on them.
    fn invalidate(&mut self, tree: InvalidateTree);

    /// MiniportTerminateOffload: give these objects back.
    fn terminate(&mut self, tree: TerminateTree);

    /// MiniportTcpOffloadForward: a segment of the connection that reached the host first (CH-FWD-2), as the frame it
    /// came in, its checksum verified. Completed by [`OffloadHost::forward_complete`].
    fn forward(&mut self, segment: Forward);
}

/// A segment that the host hands back.
#[derive(Debug)]
pub struct Forward {
    /// The connection it is for.
    pub connection: TargetContext,
    /// From the Ethernet header on: the target reads ECN bits and the VLAN tag too, which a bare TCP segment
    /// (CH-FWD-1) has lost.
    pub frame: Vec<u8>,
    /// SUCCESS: processed. UPLOAD_IN_PROGRESS: not processed, the host does it. REQUEST_ABORTED: the connection was
    /// reset, drop it. PENDING on the way down.
    pub status: NdisStatus,
}

/// Status of the whole adapter (NdisMIndicateStatusEx, CH §5.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdapterStatus {
    /// OFFLOAD_PAUSE: offload no more. What is offloaded goes on.
    Pause,
    /// UPLOAD_ALL: terminate everything.
    UploadAll,
    /// OFFLOAD_RESUME: offload again; the capabilities may have changed.
    Resume(OffloadCapabilities),
}

impl AdapterStatus {
    /// The code that NDIS indicates.
    pub const fn code(&self) -> NdisStatus {
        match self {
            Self::Pause => NdisStatus::OFFLOAD_PAUSE,
            Self::UploadAll => NdisStatus::UPLOAD_ALL,
            Self::Resume(_) => NdisStatus::OFFLOAD_RESUME,
        }
    }
}

/// NDIS_TCP_CONNECTION_OFFLOAD, and the limits behind the statuses of initiate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffloadCapabilities {
    /// IPv4 connections can be offloaded.
    pub support_ipv4: bool,
    /// IPv6 connections can be offloaded.
    pub support_ipv6: bool,
    /// SACK is generated and used.
    pub support_sack: bool,
    /// TcpConnectionOffloadCapacity: connections at once, both families together; one more is answered
    /// OFFLOAD_TCP_ENTRIES.
    pub connections_max: usize,
    /// Path objects at once; one more is answered OFFLOAD_PATH_ENTRIES.
    pub paths_max: usize,
    /// Neighbor objects at once; one more is answered OFFLOAD_NEIGHBOR_ENTRIES.
    pub neighbors_max: usize,
    /// Different source IP addresses; one more is answered OFFLOAD_IP_ADDRESS_ENTRIES.
    pub ip_addresses_max: usize,
    /// Different source MAC addresses besides the interface's; one more is answered OFFLOAD_HW_ADDRESS_ENTRIES.
    pub hw_addresses_max: usize,
    /// Different VLAN ids; one more is answered OFFLOAD_VLAN_ENTRIES.
    pub vlans_max: usize,
    /// Bytes of send data that all connections may bring along; more is answered OFFLOAD_TCP_XMIT_BUFFER.
    pub transmit_buffer_max: usize,
    /// Bytes of received data that all connections may bring along; more is answered OFFLOAD_TCP_RCV_BUFFER.
    pub receive_buffer_max: usize,
    /// Largest InitialRcvWnd in bytes; more is answered OFFLOAD_TCP_RCV_WINDOW.
    pub receive_window_max: u32,
    /// Largest path MTU in bytes; more is answered OFFLOAD_PATH_MTU.
    pub path_mtu_max: u32,
}

impl Default for OffloadCapabilities {
    /// Everything supported, and limits that memory sets first: 65,536 objects of each kind, 4,096 VLANs, 1 GiB of data
    /// each way brought along, the largest windows and packets there are.
    fn default() -> Self {
        const OBJECTS: usize = 65_536;
        const DATA: usize = 1 << 30;
        Self {
            support_ipv4: true,
            support_ipv6: true,
            support_sack: true,
            connections_max: OBJECTS,
            paths_max: OBJECTS,
            neighbors_max: OBJECTS,
            ip_addresses_max: OBJECTS,
            hw_addresses_max: OBJECTS,
            vlans_max: 4096,
            transmit_buffer_max: DATA,
            receive_buffer_max: DATA,
            receive_window_max: u32::MAX,
            path_mtu_max: 65_535,
        }
    }
}

/// The target's calls to the host. Between threads each call is a message
/// ([`ToHost::call`](crate::engine::port::ToHost::call)); `now` is when the host takes it.
pub trait OffloadHost {
    /// NdisMInitiateOffloadComplete.
    fn initiate_complete(&mut self, now: Instant, tree: InitiateTree);

    /// NdisMQueryOffloadStateComplete.
    fn query_complete(&mut self, now: Instant, tree: QueryTree);

    /// NdisMUpdateOffloadComplete.
    fn update_complete(&mut self, now: Instant, tree: UpdateTree);

    /// NdisMInvalidateOffloadComplete.
    fn invalidate_complete(&mut self, now: Instant, tree: InvalidateTree);

    /// NdisMTerminateOffloadComplete.
    fn terminate_complete(&mut self, now: Instant, tree: TerminateTree);

    /// NdisTcpOffloadForwardComplete.
    fn forward_complete(&mut self, now: Instant, segment: Forward);

    /// TcpIndicateRetrieve: the target requests an upload of the connection. Mandatory reasons mean that it has
    /// stopped.
    fn retrieve(&mut self, now: Instant, connection: OffloadHandle, reason: UploadReason);

    /// NeighborReachabilityQuery (CH §9.7): `neighbor` was not confirmed for NceStaleTicks. The host
    /// answers with an update of the neighbor's HostReachabilityDelta; in Windows the answer is the call's result,
    /// which two threads do not have.
    fn neighbor_reachability_query(
        &mut self,
        now: Instant,
        neighbor: OffloadHandle,
        host_reachability_delta: Ticks,
        nic_reachability_delta: Ticks,
    );

    /// NdisMIndicateStatusEx.
    fn status(&mut self, now: Instant, status: AdapterStatus);
}
