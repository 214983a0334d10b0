//! NDK_ADAPTER_INFO: limits and features of the adapter.

use super::flags::AdapterFlags;
use crate::{
    mpa::startup::{ENHANCED_OCTETS, PRIVATE_DATA_OCTETS_MAX, ReadDepth, Revision},
    rnic::{COPY_ASIDE_MAX, Config},
};

/// NDK_VERSION.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NdkVersion {
    /// Major version: must be equal.
    pub major: u16,
    /// Minor version: a higher one is a superset.
    pub minor: u16,
}

impl NdkVersion {
    /// True if a provider of version `highest` can serve a consumer that requires this minor version or a higher one.
    #[must_use]
    pub const fn is_met_by(self, highest: Self) -> bool {
        self.major == highest.major && self.minor <= highest.minor
    }
}

/// Interface version in use: the highest minor of major 2 (NDK-VER-1).
pub const NDK_VERSION: NdkVersion = NdkVersion { major: 2, minor: 1 };

/// NDK_RDMA_TECHNOLOGY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RdmaTechnology {
    /// iWARP.
    IWarp = 1,
}

/// NDK_ADAPTER_INFO: limits are inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdapterInfo {
    /// Interface version in use.
    pub version: NdkVersion,
    /// OUI of the vendor: "flu" in ASCII.
    pub vendor_id: u32,
    /// Device id assigned by the vendor.
    pub device_id: u32,
    /// Maximum size of a region, bytes.
    pub max_registration_size: u64,
    /// Maximum size of a window, bytes; 0: windows are not supported.
    pub max_window_size: u64,
    /// Maximum pages per fast registration.
    pub frmr_page_count: u32,
    /// Maximum scatter/gather entries of a send or write.
    pub max_initiator_request_sge: u32,
    /// Maximum scatter/gather entries of a receive.
    pub max_receive_request_sge: u32,
    /// Maximum scatter/gather entries of a read.
    pub max_read_request_sge: u32,
    /// Maximum size of one request, bytes.
    pub max_transfer_length: u32,
    /// Maximum inline data of a send or write, bytes.
    pub max_inline_data_size: u32,
    /// Maximum concurrent inbound reads per queue pair (IRD).
    pub max_inbound_read_limit: u32,
    /// Maximum concurrent outbound reads per queue pair (ORD).
    pub max_outbound_read_limit: u32,
    /// Maximum outstanding receives per queue pair.
    pub max_receive_queue_depth: u32,
    /// Maximum outstanding initiator requests per queue pair.
    pub max_initiator_queue_depth: u32,
    /// Maximum outstanding receives per shared receive queue; 0: not supported (NDK-SRQ-1).
    pub max_srq_depth: u32,
    /// Maximum entries of a completion queue.
    pub max_cq_depth: u32,
    /// Size in bytes above which read and write are more efficient than send and receive.
    pub large_request_threshold: u32,
    /// Maximum private data of a connect, bytes (NDK-CD-6).
    pub max_caller_data: u32,
    /// Maximum private data of an accept or reject, bytes (NDK-CD-6).
    pub max_callee_data: u32,
    /// Guaranteed features.
    pub adapter_flags: AdapterFlags,
    /// RDMA protocol.
    pub rdma_technology: RdmaTechnology,
}

/// Smallest FRMRPageCount that NDKPI allows.
const FRMR_PAGES_MIN: u32 = 16;

impl From<&Config> for AdapterInfo {
    /// Returns the limits of `config`, as far as they are implemented.
    fn from(config: &Config) -> Self {
        let limits = &config.limits;
        let enhanced = if config.revision >= Revision::Two { ENHANCED_OCTETS } else { 0 };
        let private_data_max =
            limits.private_data_max.min((PRIVATE_DATA_OCTETS_MAX - enhanced) as u32);
        let reads_max = u32::from(ReadDepth::MAX);
        Self {
            version: NDK_VERSION,
            vendor_id: 0x0066_6c75,
            device_id: 1,
            max_registration_size: limits.registration_bytes_max,
            max_window_size: limits.registration_bytes_max,
            frmr_page_count: limits.fast_register_pages_max.max(FRMR_PAGES_MIN),
            max_initiator_request_sge: limits.send_sges_max,
            max_receive_request_sge: limits.receive_sges_max,
            max_read_request_sge: limits.read_sges_max,
            max_transfer_length: limits.transfer_bytes_max,
            max_inline_data_size: limits.inline_bytes_max,
            max_inbound_read_limit: limits.ird_max.min(reads_max),
            max_outbound_read_limit: limits.ord_max.min(reads_max),
            max_receive_queue_depth: limits.receive_depth_max,
            max_initiator_queue_depth: limits.send_depth_max,
            max_srq_depth: limits.srq_depth_max,
            max_cq_depth: limits.cq_depth_max,
            large_request_threshold: COPY_ASIDE_MAX,
            max_caller_data: private_data_max,
            max_callee_data: private_data_max,
            adapter_flags: AdapterFlags::IN_ORDER_DMA_SUPPORTED
                | AdapterFlags::RDMA_READ_SINK_NOT_REQUIRED
                | AdapterFlags::RDMA_READ_LOCAL_INVALIDATE_SUPPORTED
                | AdapterFlags::CQ_INTERRUPT_MODERATION_SUPPORTED
                | AdapterFlags::CQ_RESIZE_SUPPORTED
                | AdapterFlags::LOOPBACK_CONNECTIONS_SUPPORTED,
            rdma_technology: RdmaTechnology::IWarp,
        }
    }
}
