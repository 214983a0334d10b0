//! Completion queues and their channels.

use std::ffi::{c_int, c_uint, c_void};

use flue_verbs_abi::objects::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::guard::{self, Errno};

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(_context: *mut ibv_context) -> *mut ibv_comp_channel {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(_channel: *mut ibv_comp_channel) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    _context: *mut ibv_context,
    _cqe: c_int,
    _cq_context: *mut c_void,
    _channel: *mut ibv_comp_channel,
    _comp_vector: c_int,
) -> *mut ibv_cq {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(_cq: *mut ibv_cq, _cqe: c_int) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(_cq: *mut ibv_cq) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// Cancelled by `pthread_cancel` while it blocks: no value with `Drop` may live across its read.
#[unsafe(no_mangle)]
extern "C-unwind" fn ibv_get_cq_event(
    _channel: *mut ibv_comp_channel,
    _cq: *mut *mut ibv_cq,
    _cq_context: *mut *mut c_void,
) -> c_int {
    guard::set_errno(Errno(libc::EOPNOTSUPP));
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(_cq: *mut ibv_cq, _events: c_uint) {
    guard::nothing(|| {});
}
