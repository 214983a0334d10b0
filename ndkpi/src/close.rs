//! Functions common to the dispatch tables of all objects: the first two of each.

use rdma_over_tcp::ndk::{Connector, Cq, Listener, Mr, Mw, NtStatus, Pd, SharedEndpoint, Srq};

use crate::{
    abi::{
        functions::NDK_FN_CLOSE_COMPLETION,
        types::{GUID, NDK_EXTENSION_INTERFACE, NDK_OBJECT_HEADER, NDK_VERSION, NTSTATUS, PVOID},
    },
    callbacks, guard,
    objects::{self, Kind},
};

/// Object that its consumer can close.
pub(crate) trait Closable: Kind {
    /// Closes the object. Returns SUCCESS, or PENDING if `completion` follows.
    fn close(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus;
}

macro_rules! closable {
    ($($name:ident)*) => {$(
        impl Closable for $name {
            fn close(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
                Self::close(self, completion)
            }
        }
    )*};
}

closable! { Pd Cq Mr Mw Srq Connector Listener SharedEndpoint }

/// NdkCloseXxx. The handle is stale on return, also if the result is PENDING (NDK-LIFE-2).
pub(crate) unsafe extern "C" fn close<T: Closable>(
    object: *mut NDK_OBJECT_HEADER,
    completion: NDK_FN_CLOSE_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::clean_up(|| {
        let (own, closing) = objects::take::<T>(object.cast())?;
        Ok(own.close(callbacks::closed(completion, context, closing)))
    })
}

/// NdkQueryExtension: no extension is supported.
pub(crate) unsafe extern "C" fn query_extension(
    object: *mut NDK_OBJECT_HEADER,
    _interface: *const GUID,
    _version: NDK_VERSION,
    _extension: *mut NDK_EXTENSION_INTERFACE,
) -> NTSTATUS {
    guard::done(|| {
        objects::get_any(object)?;
        Err(NtStatus::NOT_SUPPORTED)
    })
}
