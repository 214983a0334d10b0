//! The way back to the consumer: its functions, with the contexts that it gave for them.
//!
//! They run on a thread of the adapter, one at a time, when no lock is held.

use std::cell::Cell;

use rdma_over_tcp::ndk::{DisconnectEvent, NtStatus};

use crate::{
    abi::{
        functions::{
            NDK_FN_CLOSE_COMPLETION, NDK_FN_CQ_NOTIFICATION_CALLBACK,
            NDK_FN_DISCONNECT_EVENT_CALLBACK, NDK_FN_DISCONNECT_EVENT_CALLBACK_EX,
            NDK_FN_REQUEST_COMPLETION,
        },
        types::PVOID,
    },
    objects::Reserved,
};

thread_local! {
    /// Callbacks that run on this thread, one in the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether this thread is in a callback of a consumer.
pub(crate) fn is_in_one() -> bool {
    DEPTH.get() > 0
}

/// Calls a function of the consumer.
pub(crate) fn call(callback: impl FnOnce()) {
    DEPTH.set(DEPTH.get() + 1);
    callback();
    DEPTH.set(DEPTH.get() - 1);
}

/// A pointer of the consumer's that only the consumer follows.
#[derive(Clone, Copy)]
pub(crate) struct Context(PVOID);

// SAFETY: it is handed back, on whatever thread, as the interface says, and never followed here.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Its value; a method, so that closures take the whole.
    pub(crate) const fn get(self) -> PVOID {
        self.0
    }
}

impl From<PVOID> for Context {
    fn from(context: PVOID) -> Self {
        Self(context)
    }
}

/// The end of an asynchronous request.
pub(crate) fn request(
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> impl FnOnce(NtStatus) + Send + 'static {
    let context = Context(context);
    move |status| {
        if let Some(completion) = completion {
            // SAFETY: the consumer's function, with its context and a status.
            call(|| unsafe { completion(context.get(), status.0.cast_signed()) });
        }
    }
}

/// The end of a close: the last callback for an object.
pub(crate) fn closed(
    completion: NDK_FN_CLOSE_COMPLETION,
    context: PVOID,
    place: Reserved,
) -> impl FnOnce() + Send + 'static {
    let context = Context(context);
    move || {
        if let Some(completion) = completion {
            // SAFETY: the consumer's function, with its context.
            call(|| unsafe { completion(context.get()) });
        }
        drop(place);
    }
}

/// Notifications of a completion queue, or of a shared receive queue, whose type is the same.
pub(crate) fn notification(
    callback: NDK_FN_CQ_NOTIFICATION_CALLBACK,
    context: PVOID,
) -> impl Fn(NtStatus) + Send + Sync + 'static {
    let context = Context(context);
    move |status: NtStatus| {
        if let Some(callback) = callback {
            // SAFETY: the consumer's function, with its context and a status.
            call(|| unsafe { callback(context.get(), status.0.cast_signed()) });
        }
    }
}

/// The event of a disconnect, without a reason.
pub(crate) fn disconnect(
    callback: NDK_FN_DISCONNECT_EVENT_CALLBACK,
    context: PVOID,
) -> Option<DisconnectEvent> {
    let (callback, context) = (callback?, Context(context));
    // SAFETY: the consumer's function, with its context.
    Some(Box::new(move |_| call(|| unsafe { callback(context.get()) })))
}

/// The event of a disconnect, with its reason.
pub(crate) fn disconnect_ex(
    callback: NDK_FN_DISCONNECT_EVENT_CALLBACK_EX,
    context: PVOID,
) -> Option<DisconnectEvent> {
    let (callback, context) = (callback?, Context(context));
    // SAFETY: the consumer's function, with its context and a reason.
    Some(Box::new(move |reason| call(|| unsafe { callback(context.get(), reason) })))
}
