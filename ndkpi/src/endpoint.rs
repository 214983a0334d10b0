//! Functions of NDK_SHARED_ENDPOINT_DISPATCH.

use std::ffi::c_void;

use rdma_over_tcp::ndk::{NtStatus, SharedEndpoint};

use crate::{
    abi::{
        dispatch::NDK_SHARED_ENDPOINT_DISPATCH,
        types::{NDK_OBJECT_TYPE, NDK_SHARED_ENDPOINT, NTSTATUS, SOCKADDR, ULONG},
        values::NdkObjectTypeSharedEndpoint,
    },
    address, close, guard,
    objects::{self, Kind},
};

impl Kind for SharedEndpoint {
    type Public = NDK_SHARED_ENDPOINT;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeSharedEndpoint;

    fn dispatch() -> *const c_void {
        (&raw const DISPATCH).cast()
    }
}

static DISPATCH: NDK_SHARED_ENDPOINT_DISPATCH = NDK_SHARED_ENDPOINT_DISPATCH {
    NdkCloseSharedEndpoint: close::close::<SharedEndpoint>,
    NdkQueryExtension: close::query_extension,
    NdkGetLocalAddress: get_local_address,
};

unsafe extern "C" fn get_local_address(
    endpoint: *mut NDK_SHARED_ENDPOINT,
    local: *mut SOCKADDR,
    length: *mut ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let found = objects::get::<SharedEndpoint>(endpoint)?.local_address();
        // SAFETY: the consumer passes a buffer and its length.
        unsafe { address::write(found.ok_or(NtStatus::INVALID_DEVICE_STATE)?, local, length) }
    })
}
