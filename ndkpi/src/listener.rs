//! Functions of NDK_LISTENER_DISPATCH.

use std::ffi::c_void;

use rdma_over_tcp::ndk::{Listener, ListenerConfig, NtStatus};

use crate::{
    abi::{
        dispatch::NDK_LISTENER_DISPATCH,
        functions::NDK_FN_REQUEST_COMPLETION,
        types::{BOOLEAN, NDK_LISTENER, NDK_OBJECT_TYPE, NTSTATUS, PVOID, SOCKADDR, ULONG},
        values::NdkObjectTypeListener,
    },
    address, callbacks, close, guard,
    objects::{self, Kind},
};

impl Kind for Listener {
    type Public = NDK_LISTENER;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeListener;

    fn dispatch() -> *const c_void {
        (&raw const DISPATCH).cast()
    }
}

static DISPATCH: NDK_LISTENER_DISPATCH = NDK_LISTENER_DISPATCH {
    NdkCloseListener: close::close::<Listener>,
    NdkQueryExtension: close::query_extension,
    NdkListen: listen,
    NdkGetLocalAddress: get_local_address,
    NdkControlConnectEvents: control_connect_events,
};

unsafe extern "C" fn listen(
    listener: *mut NDK_LISTENER,
    local: *const SOCKADDR,
    length: ULONG,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let listener = objects::get::<Listener>(listener)?;
        // SAFETY: the consumer passes an address of the given length.
        let local = unsafe { address::read(local, length) }?;
        // The default of sockets on the platform of NDKPI: a listener on `[::]` does not accept IPv4.
        let config = ListenerConfig { v6_only: true, ..ListenerConfig::default() };
        Ok(listener.listen_with(local, config, callbacks::request(completion, context)))
    })
}

unsafe extern "C" fn get_local_address(
    listener: *mut NDK_LISTENER,
    local: *mut SOCKADDR,
    length: *mut ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let found = objects::get::<Listener>(listener)?.local_address();
        // SAFETY: the consumer passes a buffer and its length.
        unsafe { address::write(found.ok_or(NtStatus::INVALID_DEVICE_STATE)?, local, length) }
    })
}

unsafe extern "C" fn control_connect_events(listener: *mut NDK_LISTENER, pause: BOOLEAN) {
    guard::value(|| {
        objects::get::<Listener>(listener)?.control_connect_events(pause != 0);
        Ok(())
    });
}
