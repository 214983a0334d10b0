//! C interface of event queues: blocking reads, the only calls that `pthread_cancel` may end.
//!
//! A canceled thread unwinds through its frames, so those between the program and [`unit`] must not own values. EINTR
//! and EAGAIN are returned to the program, which has configured its signals and the descriptor.

use std::ffi::{c_int, c_void};

mod c {
    use super::{c_int, c_void};

    unsafe extern "C-unwind" {
        pub(super) fn read(descriptor: c_int, buffer: *mut c_void, count: usize) -> isize;
    }
}

/// Takes one unit, which represents one event, from an event descriptor. Returns false with errno set if it took none.
pub(crate) fn unit(descriptor: c_int) -> bool {
    let mut count = 0_u64;
    // SAFETY: the buffer has eight bytes, and outlives the call, also if the thread is canceled.
    unsafe { c::read(descriptor, (&raw mut count).cast(), 8) == 8 }
}

/// Returns true if errno is EAGAIN.
pub(crate) fn would_block() -> bool {
    // SAFETY: the C library returns a valid pointer to the errno of the thread.
    unsafe { *libc::__errno_location() == libc::EAGAIN }
}
