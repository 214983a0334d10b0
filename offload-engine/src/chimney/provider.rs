//! Generic part of the chimney: state operations to the target, completions and adapter status to the host.
//!
//! | NDIS | flue |
//! |---|---|
//! | NDIS_PROVIDER_CHIMNEY_OFFLOAD_GENERIC_CHARACTERISTICS, MiniportTcpOffloadForward | [`FromHost`] |
//! | NDIS_CLIENT_CHIMNEY_OFFLOAD_GENERIC_CHARACTERISTICS | [`ToHost`] |
//! | NDIS_PROVIDER_CHIMNEY_OFFLOAD_TCP_CHARACTERISTICS | [`ConnectionIo`](super::client::ConnectionIo) |
//! | NDIS_CLIENT_CHIMNEY_OFFLOAD_TCP_CHARACTERISTICS | [`OffloadClient`](super::client::OffloadClient) |
//!
//! Calls between the host's thread and the engine's are messages. A call moves its tree to the target. The completion
//! is always asynchronous and moves the same tree back.
//!
//! [`FromHost`]: crate::engine::port::FromHost
//! [`ToHost`]: crate::engine::port::ToHost

use alloc::vec::Vec;

use super::tree::TargetContext;
use crate::status::NdisStatus;

/// Segment that the host forwards to the target.
#[derive(Debug)]
pub struct Forward {
    /// Connection of the segment.
    pub connection: TargetContext,
    /// Frame from the Ethernet header on. The target also reads the ECN bits and the VLAN tag, which a bare TCP segment
    /// (CH-FWD-1) does not contain.
    pub frame: Vec<u8>,
    /// SUCCESS: processed. UPLOAD_IN_PROGRESS: not processed, the host must process it. REQUEST_ABORTED: the connection
    /// was reset, the host must drop it. PENDING while it is sent to the target.
    pub status: NdisStatus,
}

/// Status of the whole adapter (NdisMIndicateStatusEx, CH §5.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdapterStatus {
    /// OFFLOAD_PAUSE: no further offloads. Offloaded connections continue.
    Pause,
    /// UPLOAD_ALL: terminate all offloaded objects.
    UploadAll,
    /// OFFLOAD_RESUME: offloads are accepted again. The capabilities may have changed.
    Resume(OffloadCapabilities),
}

impl AdapterStatus {
    /// Status code that NDIS indicates.
    pub const fn code(&self) -> NdisStatus {
        match self {
            Self::Pause => NdisStatus::OFFLOAD_PAUSE,
            Self::UploadAll => NdisStatus::UPLOAD_ALL,
            Self::Resume(_) => NdisStatus::OFFLOAD_RESUME,
        }
    }
}

/// NDIS_TCP_CONNECTION_OFFLOAD, and the limits for which initiate has a status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffloadCapabilities {
    /// True if IPv4 connections can be offloaded.
    pub support_ipv4: bool,
    /// True if IPv6 connections can be offloaded.
    pub support_ipv6: bool,
    /// True if SACK is generated and used.
    pub support_sack: bool,
    /// TcpConnectionOffloadCapacity: concurrent connections of both families. Further connections complete with
    /// OFFLOAD_TCP_ENTRIES.
    pub connections_max: usize,
    /// Concurrent path objects. Further ones complete with OFFLOAD_PATH_ENTRIES.
    pub paths_max: usize,
    /// Concurrent neighbor objects. Further ones complete with OFFLOAD_NEIGHBOR_ENTRIES.
    pub neighbors_max: usize,
    /// Distinct source IP addresses. Further ones complete with OFFLOAD_IP_ADDRESS_ENTRIES.
    pub ip_addresses_max: usize,
    /// Distinct source MAC addresses other than the interface's. Further ones complete with OFFLOAD_HW_ADDRESS_ENTRIES.
    pub hw_addresses_max: usize,
    /// Distinct VLAN ids. Further ones complete with OFFLOAD_VLAN_ENTRIES.
    pub vlans_max: usize,
    /// Bytes of send data that all connections may be offloaded with. More completes with OFFLOAD_TCP_XMIT_BUFFER.
    pub transmit_buffer_max: usize,
    /// Bytes of received data that all connections may be offloaded with. More completes with OFFLOAD_TCP_RCV_BUFFER.
    pub receive_buffer_max: usize,
    /// Largest InitialRcvWnd in bytes. More completes with OFFLOAD_TCP_RCV_WINDOW.
    pub receive_window_max: u32,
    /// Largest path MTU in bytes. More completes with OFFLOAD_PATH_MTU.
    pub path_mtu_max: u32,
}

impl Default for OffloadCapabilities {
    /// All features, and limits that exceed memory: 65,536 objects of each kind, 4,096 VLANs, 1 GiB of offloaded data
    /// per direction. Windows and packets have their largest possible sizes.
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
