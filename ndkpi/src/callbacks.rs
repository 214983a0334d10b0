//! Calls of the consumer's functions, with the contexts that it gave for them.
//!
//! They run on a thread of the adapter, one at a time, while no lock is held.

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
    /// Nesting depth of callbacks on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if this thread runs a callback of a consumer.
pub(crate) fn is_in_callback() -> bool {
    DEPTH.get() > 0
}

/// Calls a function of the consumer.
pub(crate) fn call(callback: impl FnOnce()) {
    DEPTH.set(DEPTH.get() + 1);
    callback();
    DEPTH.set(DEPTH.get() - 1);
}

/// Pointer that only the consumer dereferences.
#[derive(Clone, Copy)]
pub(crate) struct Context(PVOID);

// SAFETY: it is passed back on any thread, as the interface specifies, and never dereferenced here.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Returns the pointer. Closures that call this method capture the whole value.
    pub(crate) const fn get(self) -> PVOID {
        self.0
    }
}

impl From<PVOID> for Context {
    fn from(context: PVOID) -> Self {
        Self(context)
    }
}

/// Returns the completion of an asynchronous request.
pub(crate) fn request(
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> impl FnOnce(NtStatus) + Send + 'static {
    let context = Context(context);
    move |status| {
        if let Some(completion) = completion {
            // SAFETY: a function of the consumer, called with its context and a status.
            call(|| unsafe { completion(context.get(), status.0.cast_signed()) });
        }
    }
}

/// Returns the completion of a close: the last callback for an object.
pub(crate) fn closed(
    completion: NDK_FN_CLOSE_COMPLETION,
    context: PVOID,
    place: Reserved,
) -> impl FnOnce() + Send + 'static {
    let context = Context(context);
    move || {
        if let Some(completion) = completion {
            // SAFETY: a function of the consumer, called with its context.
            call(|| unsafe { completion(context.get()) });
        }
        drop(place);
    }
}

/// Returns the notification callback of a completion queue, or of a shared receive queue, which has the same type.
pub(crate) fn notification(
    callback: NDK_FN_CQ_NOTIFICATION_CALLBACK,
    context: PVOID,
) -> impl Fn(NtStatus) + Send + Sync + 'static {
    let context = Context(context);
    move |status: NtStatus| {
        if let Some(callback) = callback {
            // SAFETY: a function of the consumer, called with its context and a status.
            call(|| unsafe { callback(context.get(), status.0.cast_signed()) });
        }
    }
}

/// Returns the callback of a disconnect event without a reason.
pub(crate) fn disconnect(
    callback: NDK_FN_DISCONNECT_EVENT_CALLBACK,
    context: PVOID,
) -> Option<DisconnectEvent> {
    let (callback, context) = (callback?, Context(context));
    // SAFETY: a function of the consumer, called with its context.
    Some(Box::new(move |_| call(|| unsafe { callback(context.get()) })))
}

/// Returns the callback of a disconnect event with its reason.
pub(crate) fn disconnect_ex(
    callback: NDK_FN_DISCONNECT_EVENT_CALLBACK_EX,
    context: PVOID,
) -> Option<DisconnectEvent> {
    let (callback, context) = (callback?, Context(context));
    // SAFETY: a function of the consumer, called with its context and a reason.
    Some(Box::new(move |reason| call(|| unsafe { callback(context.get(), reason) })))
}
