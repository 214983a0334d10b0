//! C interface of event queues: blocking reads, the only calls that `pthread_cancel` may end.
//!
//! A canceled thread unwinds through its frames, so those between the program and [`unit`] or [`pause`] must not own
//! values and have no landing pads ([`guard`]). EINTR and EAGAIN are returned to the program, which has configured its
//! signals and the descriptor.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use crate::guard;

mod c {
    use super::{c_int, c_void};

    unsafe extern "C-unwind" {
        pub(super) fn read(descriptor: c_int, buffer: *mut c_void, count: usize) -> isize;
        pub(super) fn nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> c_int;
    }
}

/// Takes one unit, which represents one event, from an event descriptor. Returns false with errno set if it took none.
pub(crate) fn unit(descriptor: c_int) -> bool {
    let mut count = 0_u64;
    // SAFETY: the buffer has eight bytes, and outlives the call, also if the thread is canceled.
    unsafe { c::read(descriptor, (&raw mut count).cast(), 8) == 8 }
}

/// Returns true if errno is EAGAIN because of a withdrawal: the queue `is_blocking`, so the program must not get it.
/// The caller reads again.
#[inline(always)]
pub(crate) fn was_withdrawn(is_blocking: impl FnOnce() -> bool) -> bool {
    // SAFETY: the C library returns a valid pointer to the errno of the thread.
    let would_block = unsafe { *libc::__errno_location() == libc::EAGAIN };
    would_block && guard::value(is_blocking, false)
}

/// Sleeps for 10 ms. A cancellation point, as the read that it replaces.
pub(crate) fn pause() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // SAFETY: the time outlives the call, also if the thread is canceled.
    unsafe { c::nanosleep(&raw const time, ptr::null_mut()) };
}
