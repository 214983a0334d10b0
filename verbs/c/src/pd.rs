//! C interface of protection domains: pointers, errno.

use std::{ffi::c_int, sync::Arc};

use flue_verbs_abi::objects::{ibv_context, ibv_pd};
use flue_verbs_core::{device::Device, pd::Pd};

use crate::{
    config,
    guard::{self, Errno},
    object::Object,
};

pub(crate) type PdObject = Object<ibv_pd, Arc<Pd>>;

/// Creates a domain.
pub(crate) fn make(
    context: *mut ibv_context,
    device: &'static Device,
) -> Result<*mut ibv_pd, Errno> {
    Ok(PdObject::make(ibv_pd { context, handle: 0 }, Pd::new(device)?).cast())
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard::pointer(|| make(context, config::device()?))
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes a pointer returned by `ibv_alloc_pd`.
        unsafe {
            PdObject::of(pd)?.destroy()?;
            PdObject::remove(pd);
        }
        Ok(())
    })
}

pub(crate) extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}
