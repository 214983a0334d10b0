//! Logical addresses: NdkBuildLam and NdkReleaseLam.

use rdma_over_tcp::ndk::NtStatus;

use crate::{
    abi::{
        functions::NDK_FN_REQUEST_COMPLETION,
        types::{MDL, NDK_ADAPTER, NDK_LOGICAL_ADDRESS_MAPPING, NTSTATUS, PVOID, SIZE_T, ULONG},
    },
    adapter, guard,
};

pub(crate) unsafe extern "C" fn build(
    adapter: *mut NDK_ADAPTER,
    _mdl: *mut MDL,
    _length: SIZE_T,
    _completion: NDK_FN_REQUEST_COMPLETION,
    _context: PVOID,
    _mapping: *mut NDK_LOGICAL_ADDRESS_MAPPING,
    _size: *mut ULONG,
    _offset: *mut ULONG,
) -> NTSTATUS {
    guard::done(|| {
        adapter::get(adapter)?;
        Err(NtStatus::NOT_SUPPORTED)
    })
}

pub(crate) unsafe extern "C" fn release(
    _adapter: *mut NDK_ADAPTER,
    _mapping: *mut NDK_LOGICAL_ADDRESS_MAPPING,
) {
}
