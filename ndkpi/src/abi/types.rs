//! Types and structures.

use std::ffi::c_void;

/// Pointer that only the consumer, or only the provider, dereferences.
pub type PVOID = *mut c_void;
/// 8-bit boolean; FALSE is 0.
pub type BOOLEAN = u8;
/// 32-bit unsigned integer, as on Windows.
pub type ULONG = u32;
/// NTSTATUS; errors are negative.
pub type NTSTATUS = i32;
/// Number of bytes.
pub type SIZE_T = usize;
/// Socket address of Linux.
pub type SOCKADDR = libc::sockaddr;
/// `NDK_OBJECT_TYPE`.
pub type NDK_OBJECT_TYPE = u32;
/// `NDK_LOGICAL_ADDRESS`, as a 64-bit number.
pub type NDK_LOGICAL_ADDRESS = u64;

c_structs! {
    /// GUID.
    GUID = 16 { Data1: u32 = 0, Data2: u16 = 4, Data3: u16 = 6, Data4: [u8; 8] = 8 }

    /// GROUP_AFFINITY.
    GROUP_AFFINITY = 16 { Mask: usize = 0, Group: u16 = 8, Reserved: [u16; 3] = 10 }

    /// Range of the consumer's memory, and a pointer to the next one.
    MDL = 24 { Next: *mut MDL = 0, VirtualAddress: PVOID = 8, ByteCount: ULONG = 16 }

    /// NDK_VERSION.
    #[derive(PartialEq, Eq, Debug)]
    NDK_VERSION = 4 { Major: u16 = 0, Minor: u16 = 2 }

    /// NDK_OBJECT_HEADER_RESERVED_BLOCK.
    NDK_OBJECT_HEADER_RESERVED_BLOCK = 32 { Reserved: [PVOID; 4] = 0 }

    /// NDK_OBJECT_HEADER.
    NDK_OBJECT_HEADER = 40 {
        Version: NDK_VERSION = 0,
        ObjectType: NDK_OBJECT_TYPE = 4,
        /// Zero at creation; then reserved for the consumer (NDK-OBJ-1).
        NdkReserved: NDK_OBJECT_HEADER_RESERVED_BLOCK = 8,
    }

    /// NDK_EXTENSION_INTERFACE.
    NDK_EXTENSION_INTERFACE = 8 { Dispatch: *const c_void = 0 }

    /// NDK_ADAPTER. The member `Dispatch` of every object, a pointer to its dispatch table, is written once and never
    /// read (NDK-OBJ-2).
    NDK_ADAPTER = 48 { Header: NDK_OBJECT_HEADER = 0, Dispatch: *const c_void = 40 }

    /// NDK_PD.
    NDK_PD = 48 { Header: NDK_OBJECT_HEADER = 0, Dispatch: *const c_void = 40 }

    /// NDK_CQ.
    NDK_CQ = 48 { Header: NDK_OBJECT_HEADER = 0, Dispatch: *const c_void = 40 }

    /// NDK_QP.
    NDK_QP = 48 { Header: NDK_OBJECT_HEADER = 0, Dispatch: *const c_void = 40 }

    /// NDK_MR.
    NDK_MR = 48 { Header: NDK_OBJECT_HEADER = 0, Dispatch: *const c_void = 40 }

    /// NDK_MW.
    NDK_MW = 48 { Header: NDK_OBJECT_HEADER = 0, Dispatch: *const c_void = 40 }

    /// NDK_SRQ.
    NDK_SRQ = 48 { Header: NDK_OBJECT_HEADER = 0, Dispatch: *const c_void = 40 }

    /// NDK_CONNECTOR.
    NDK_CONNECTOR = 48 {
        Header: NDK_OBJECT_HEADER = 0,
        Dispatch: *const c_void = 40,
    }

    /// NDK_LISTENER.
    NDK_LISTENER = 48 { Header: NDK_OBJECT_HEADER = 0, Dispatch: *const c_void = 40 }

    /// NDK_SHARED_ENDPOINT.
    NDK_SHARED_ENDPOINT = 48 {
        Header: NDK_OBJECT_HEADER = 0,
        Dispatch: *const c_void = 40,
    }

    /// NDK_ADAPTER_INFO.
    NDK_ADAPTER_INFO = 104 {
        Version: NDK_VERSION = 0,
        VendorId: u32 = 4,
        DeviceId: u32 = 8,
        MaxRegistrationSize: SIZE_T = 16,
        MaxWindowSize: SIZE_T = 24,
        FRMRPageCount: ULONG = 32,
        MaxInitiatorRequestSge: ULONG = 36,
        MaxReceiveRequestSge: ULONG = 40,
        MaxReadRequestSge: ULONG = 44,
        MaxTransferLength: ULONG = 48,
        MaxInlineDataSize: ULONG = 52,
        MaxInboundReadLimit: ULONG = 56,
        MaxOutboundReadLimit: ULONG = 60,
        MaxReceiveQueueDepth: ULONG = 64,
        MaxInitiatorQueueDepth: ULONG = 68,
        MaxSrqDepth: ULONG = 72,
        MaxCqDepth: ULONG = 76,
        LargeRequestThreshold: ULONG = 80,
        MaxCallerData: ULONG = 84,
        MaxCalleeData: ULONG = 88,
        AdapterFlags: ULONG = 92,
        RdmaTechnology: u32 = 96,
    }

    /// NDK_RESULT.
    NDK_RESULT = 24 {
        Status: NTSTATUS = 0,
        BytesTransferred: ULONG = 4,
        QPContext: PVOID = 8,
        RequestContext: PVOID = 16,
    }

    /// NDK_RESULT_EX.
    NDK_RESULT_EX = 40 {
        Status: NTSTATUS = 0,
        BytesTransferred: ULONG = 4,
        QPContext: PVOID = 8,
        RequestContext: PVOID = 16,
        Type: u32 = 24,
        ProviderErrorCode: ULONG = 28,
        TypeSpecificCompletionOutput: usize = 32,
    }

    /// NDK_SGE.
    NDK_SGE = 16 {
        /// Virtual or logical address: a union in C.
        VirtualAddress: u64 = 0,
        Length: ULONG = 8,
        MemoryRegionToken: u32 = 12,
    }

    /// NDK_LOGICAL_ADDRESS_MAPPING.
    NDK_LOGICAL_ADDRESS_MAPPING = 16 {
        AdapterContext: PVOID = 0,
        AdapterPageCount: ULONG = 8,
        /// Flexible array of `AdapterPageCount` elements, which follows the structure.
        AdapterPageArray: [NDK_LOGICAL_ADDRESS; 0] = 16,
    }
}
