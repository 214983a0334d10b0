//! C interface of `ibv_fork_init`: no effect, since memory is not pinned and copy-on-write breaks no registration.

use std::ffi::{c_int, c_void};

use flue_verbs_abi::enums::{IBV_FORK_UNNEEDED, ibv_fork_status};

pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub(crate) extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
