//! Asynchronous events.

use std::ffi::c_int;

use flue_verbs_abi::objects::{ibv_async_event, ibv_context};

use crate::guard::{self, Errno};

/// Cancelled by `pthread_cancel` while it blocks: no value with `Drop` may live across its read.
#[unsafe(no_mangle)]
extern "C-unwind" fn ibv_get_async_event(
    _context: *mut ibv_context,
    _event: *mut ibv_async_event,
) -> c_int {
    guard::set_errno(Errno(libc::EOPNOTSUPP));
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {
    guard::nothing(|| {});
}
