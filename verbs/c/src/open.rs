//! C interface of open devices: `ibv_open_device` and the tables of functions that `verbs.h` calls inline.

use std::{
    ffi::c_int,
    os::fd::AsRawFd,
    sync::{Arc, OnceLock},
};

use flue_verbs_abi::objects::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_device, verbs_context};
use flue_verbs_core::{
    async_event::{AsyncEvents, OPEN},
    fatal,
    process::{GENERATIONS_MAX, generation},
};

use crate::{
    context::{self, ContextObject},
    cq, device,
    guard::{self, Errno},
    mw, qp, srq,
};

/// Number of interrupt vectors: a nominal one.
const VECTORS: c_int = 1;

/// Opens the device.
fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    let events = Arc::new(AsyncEvents::new()?);
    // Registered before the check, so that a failure of the device in between reaches the queue.
    OPEN.enter(&events);
    if fatal::has_failed() {
        return Err(Errno(libc::ENODEV));
    }
    let mut seen = verbs_context::zeroed();
    seen.sz = size_of::<verbs_context>();
    seen.query_port = Some(device::query_port);
    seen.query_device_ex = Some(device::query_device_ex);
    seen.create_cq_ex = Some(cq::create_cq_ex);
    seen.create_qp_ex = Some(qp::create_qp_ex);
    seen.create_srq_ex = Some(srq::create_srq_ex);
    seen.get_srq_num = Some(srq::get_srq_num);
    seen.context.device = device;
    seen.context.cmd_fd = -1;
    seen.context.async_fd = events.descriptor().as_raw_fd();
    seen.context.num_comp_vectors = VECTORS;
    seen.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    let ops = &mut seen.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(qp::post_send);
    ops.post_recv = Some(qp::post_recv);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(qp::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    let object = ContextObject::make(seen, events);
    // SAFETY: the object was created above.
    Ok(unsafe { &raw mut (*object).seen.context })
}

pub(crate) extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    guard::pointer(|| open(device))
}

pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    guard::done(|| {
        if context.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the program passes a device that it has opened, and no longer uses it.
        unsafe { context::close(context) };
        Ok(())
    })
}

/// Returns the context of identifiers, which connection management opens once in each process and never closes.
pub(crate) fn of_identifiers() -> Result<*mut ibv_context, Errno> {
    static CONTEXTS: [OnceLock<usize>; GENERATIONS_MAX] =
        [const { OnceLock::new() }; GENERATIONS_MAX];
    let place = CONTEXTS.get(generation()).ok_or(Errno(libc::ENODEV))?;
    if let Some(context) = place.get() {
        return Ok(*context as *mut ibv_context);
    }
    let opened = open(device::pointer())?;
    let kept = *place.get_or_init(|| opened as usize);
    if kept != opened as usize {
        // SAFETY: another thread has stored its context; this one has no user.
        unsafe { context::close(opened) };
    }
    Ok(kept as *mut ibv_context)
}
