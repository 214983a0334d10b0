//! C interface of event queues: blocking reads, the only calls that `pthread_cancel` may end.
//!
//! A cancelled thread unwinds through the frames above: those between the program and [`unit`] own nothing. EINTR and
//! EAGAIN are the program's: it has set up its signals and the descriptor.

use std::ffi::{c_int, c_void};

mod c {
    use super::{c_int, c_void};

    unsafe extern "C-unwind" {
        pub(super) fn read(descriptor: c_int, buffer: *mut c_void, count: usize) -> isize;
    }
}

/// Takes a unit of an event descriptor: an event is there for it. Returns whether it did; errno has the reason.
pub(crate) fn unit(descriptor: c_int) -> bool {
    let mut count = 0_u64;
    // SAFETY: the buffer has eight bytes, and outlives the call, however that ends.
    unsafe { c::read(descriptor, (&raw mut count).cast(), 8) == 8 }
}

/// Whether errno says that nothing waits.
pub(crate) fn would_block() -> bool {
    // SAFETY: the C library gives each thread a valid place for its errno.
    unsafe { *libc::__errno_location() == libc::EAGAIN }
}
