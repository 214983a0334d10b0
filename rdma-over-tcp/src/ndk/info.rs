//! What the adapter offers, and what it counts.

use super::flags::AdapterFlags;

/// NDK_VERSION.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NdkVersion {
    /// Major version: must be equal.
    pub major: u16,
    /// Minor version: a higher one is a superset.
    pub minor: u16,
}

/// The interface version in force: the highest minor of major 2 (NDK-VER-1).
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
    /// Interface version in force.
    pub version: NdkVersion,
    /// OUI of the vendor; ours spells "flu".
    pub vendor_id: u32,
    /// The vendor's device.
    pub device_id: u32,
    /// Bytes of the largest region.
    pub max_registration_size: u64,
    /// Bytes of the largest window; 0: no windows.
    pub max_window_size: u64,
    /// Pages per fast registration.
    pub frmr_page_count: u32,
    /// Scatter/gather entries of a send or write.
    pub max_initiator_request_sge: u32,
    /// Scatter/gather entries of a receive.
    pub max_receive_request_sge: u32,
    /// Scatter/gather entries of a read.
    pub max_read_request_sge: u32,
    /// Bytes of one request.
    pub max_transfer_length: u32,
    /// Inline bytes of a send or write.
    pub max_inline_data_size: u32,
    /// Reads that a queue pair serves at once (IRD).
    pub max_inbound_read_limit: u32,
    /// Reads that a queue pair issues at once (ORD).
    pub max_outbound_read_limit: u32,
    /// Receives posted to a queue pair.
    pub max_receive_queue_depth: u32,
    /// Initiator requests posted to a queue pair.
    pub max_initiator_queue_depth: u32,
    /// Receives posted to a shared receive queue; 0: none are offered (NDK-SRQ-1).
    pub max_srq_depth: u32,
    /// Entries of a completion queue.
    pub max_cq_depth: u32,
    /// Bytes above which read and write beat send and receive.
    pub large_request_threshold: u32,
    /// Private data of a connect, bytes (NDK-CD-6).
    pub max_caller_data: u32,
    /// Private data of an accept or reject, bytes (NDK-CD-6).
    pub max_callee_data: u32,
    /// Promises.
    pub adapter_flags: AdapterFlags,
    /// How it is done.
    pub rdma_technology: RdmaTechnology,
}

impl Default for AdapterInfo {
    fn default() -> Self {
        Self {
            version: NDK_VERSION,
            vendor_id: 0x0066_6c75,
            device_id: 1,
            max_registration_size: 1 << 40,
            max_window_size: 0,
            frmr_page_count: 256,
            max_initiator_request_sge: 16,
            max_receive_request_sge: 16,
            max_read_request_sge: 16,
            max_transfer_length: 1 << 30,
            max_inline_data_size: 1024,
            max_inbound_read_limit: 128,
            max_outbound_read_limit: 128,
            max_receive_queue_depth: 16 * 1024,
            max_initiator_queue_depth: 16 * 1024,
            max_srq_depth: 0,
            max_cq_depth: 1 << 20,
            large_request_threshold: 16 * 1024,
            max_caller_data: 508,
            max_callee_data: 508,
            adapter_flags: AdapterFlags::IN_ORDER_DMA_SUPPORTED
                | AdapterFlags::RDMA_READ_SINK_NOT_REQUIRED
                | AdapterFlags::RDMA_READ_LOCAL_INVALIDATE_SUPPORTED
                | AdapterFlags::CQ_RESIZE_SUPPORTED,
            rdma_technology: RdmaTechnology::IWarp,
        }
    }
}

/// NDIS_NDK_PERFORMANCE_COUNTERS, as far as this layer knows them: octets and frames of layer 2 are
/// counted by the link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Outbound connections established.
    pub connect: u64,
    /// Inbound connections established.
    pub accept: u64,
    /// Attempts, in either direction, that failed.
    pub connect_failure: u64,
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
    /// Sends received in full.
    pub receives: u64,
    /// FPDUs of peers' writes placed.
    pub write_segments_placed: u64,
    /// Read requests answered.
    pub read_responses: u64,
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
    /// Requests completed CANCELLED.
    pub flushed: u64,
    /// Terminate messages sent.
    pub terminates_out: u64,
    /// Terminate messages received.
    pub terminates_in: u64,
}
