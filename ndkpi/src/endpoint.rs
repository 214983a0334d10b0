//! The functions of NDK_SHARED_ENDPOINT_DISPATCH.

use crate::{
    abi::{
        functions::NDK_FN_CREATE_COMPLETION,
        types::{NDK_ADAPTER, NDK_SHARED_ENDPOINT, NTSTATUS, PVOID, SOCKADDR, ULONG},
    },
    adapter, guard,
};
use rdma_over_tcp::ndk::NtStatus;

pub(crate) unsafe extern "C" fn create_shared_endpoint(
    adapter: *mut NDK_ADAPTER,
    _address: *const SOCKADDR,
    _length: ULONG,
    _completion: NDK_FN_CREATE_COMPLETION,
    _context: PVOID,
    _endpoint: *mut *mut NDK_SHARED_ENDPOINT,
) -> NTSTATUS {
    guard::done(|| {
        adapter::get(adapter)?;
        Err(NtStatus::NOT_SUPPORTED)
    })
}
