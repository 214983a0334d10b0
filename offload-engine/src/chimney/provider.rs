//! The generic half of the chimney: state operations down, completions and adapter status up.
//!
//! | NDIS | here |
//! |---|---|
//! | NDIS_PROVIDER_CHIMNEY_OFFLOAD_GENERIC_CHARACTERISTICS, MiniportTcpOffloadForward | [`FromHost`] |
//! | NDIS_CLIENT_CHIMNEY_OFFLOAD_GENERIC_CHARACTERISTICS | [`ToHost`] |
//! | NDIS_PROVIDER_CHIMNEY_OFFLOAD_TCP_CHARACTERISTICS | [`ConnectionIo`](super::client::ConnectionIo) |
//! | NDIS_CLIENT_CHIMNEY_OFFLOAD_TCP_CHARACTERISTICS | [`OffloadClient`](super::client::OffloadClient) |
//!
//! Between the host's thread and the engine's each call is a message. It moves its tree to the target; the answer is
//! always asynchronous, and moves the same tree back.
//!
//! [`FromHost`]: crate::engine::port::FromHost
//! [`ToHost`]: crate::engine::port::ToHost

use alloc::vec::Vec;

use super::tree::TargetContext;
use crate::status::NdisStatus;

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
