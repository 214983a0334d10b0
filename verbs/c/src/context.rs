//! Contexts of open devices: the object behind `ibv_context`.

use std::{mem::offset_of, sync::Arc};

use flue_verbs_abi::objects::{ibv_context, verbs_context};

use flue_verbs_core::async_event::{AsyncEvents, OPEN};

use crate::{guard::Errno, inherit, object::Object};

pub(crate) type ContextObject = Object<verbs_context, Arc<AsyncEvents>>;

/// Returns the object that embeds a context.
fn around(context: *mut ibv_context) -> *mut ContextObject {
    if context.is_null() {
        return std::ptr::null_mut();
    }
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// Returns the events of an open device.
///
/// # Safety
/// The pointer is null, or refers to an open device.
pub(crate) unsafe fn events<'a>(context: *mut ibv_context) -> Result<&'a Arc<AsyncEvents>, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { ContextObject::of(around(context)) }
}

/// Returns the events of an open device, for a new object. The child of a fork takes over their queue.
///
/// # Safety
/// As [`events`].
pub(crate) unsafe fn events_of_new(context: *mut ibv_context) -> Result<Arc<AsyncEvents>, Errno> {
    // SAFETY: guaranteed by the caller.
    let events = unsafe { events(context) }?;
    if !events.is_own() {
        inherit::take_queue(events)?;
        OPEN.enter(events);
    }
    Ok(events.clone())
}

/// Closes an open device.
///
/// # Safety
/// The pointer refers to an open device that is no longer used.
pub(crate) unsafe fn close(context: *mut ibv_context) {
    // SAFETY: guaranteed by the caller.
    unsafe { ContextObject::remove(around(context)) }
}
