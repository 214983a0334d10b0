//! C interface of asynchronous events: pointers, blocking reads, cancellation.

use std::{ffi::c_int, os::fd::AsRawFd, sync::Arc};

use flue_verbs_abi::{
    enums::ibv_event_type,
    objects::{ibv_async_element, ibv_async_event, ibv_context, ibv_cq},
};
use flue_verbs_core::event_queue::Acknowledgments;

use crate::{
    config, context, cq, event_queue,
    guard::{self, Errno, copied},
};

/// Takes one event. `None`: it was withdrawn, and the caller reads again. EIO: the queue is closed.
fn take(context: *mut ibv_context, event: *mut ibv_async_event) -> Result<Option<()>, Errno> {
    // SAFETY: the program passes a pointer to an open device.
    let events = unsafe { context::events(context) }?;
    let Some(taken) = events.take(|event| event.acknowledgments.taken())? else { return Ok(None) };
    let mut raw = ibv_async_event::zeroed();
    raw.element = ibv_async_element { cq: taken.name as *mut ibv_cq };
    raw.event_type = ibv_event_type(taken.kind as u32);
    // SAFETY: the program passes writable memory for an event.
    unsafe { event.write_unaligned(raw) };
    Ok(Some(()))
}

/// `pthread_cancel` may end it while it blocks: no value with `Drop` is live across its read.
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let mut descriptor = -1;
    let found = guard::event(|| {
        config::watch_node();
        // SAFETY: the program passes a pointer to an open device.
        let events = unsafe { context::events(context) }?;
        events.check()?;
        events.check_descriptor()?;
        descriptor = events.descriptor().as_raw_fd();
        Ok(0)
    });
    if found != 0 {
        return -1;
    }
    loop {
        if !event_queue::unit(descriptor) {
            // SAFETY: as above.
            let is_blocking =
                || unsafe { context::events(context) }.is_ok_and(|it| it.is_blocking());
            if !event_queue::was_withdrawn(is_blocking) {
                return -1;
            }
            continue;
        }
        let taken = guard::event(|| Ok(c_int::from(take(context, event)?.is_some())));
        match taken {
            0 => {}
            1 => return 0,
            _ => return -1,
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guard::nothing(|| {
        // SAFETY: the program passes an event that it has taken, of an object that waits for the acknowledgment.
        unsafe {
            let Some(event) = copied(event) else { return };
            if let Some(acknowledgments) = acknowledgments_of(&event) {
                acknowledgments.acknowledged(1);
            }
        }
    });
}

/// # Safety
/// The program has taken the event, and its object exists.
unsafe fn acknowledgments_of<'a>(event: &ibv_async_event) -> Option<&'a Arc<Acknowledgments>> {
    use flue_verbs_abi::enums::{
        IBV_EVENT_CQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED,
        IBV_EVENT_SRQ_LIMIT_REACHED,
    };
    match event.event_type {
        // SAFETY: guaranteed by the caller.
        IBV_EVENT_CQ_ERR => unsafe { cq::async_acknowledgments(event.element.cq) },
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_SQ_DRAINED
        // SAFETY: guaranteed by the caller.
        | IBV_EVENT_QP_LAST_WQE_REACHED => unsafe {
            crate::qp::async_acknowledgments(event.element.qp)
        },
        IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: guaranteed by the caller.
            unsafe { crate::srq::async_acknowledgments(event.element.srq) }
        }
        _ => None,
    }
}
