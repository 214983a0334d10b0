//! Shared receive queues.

use std::ffi::c_int;

use flue_verbs_abi::{
    attributes::ibv_srq_attr,
    objects::{ibv_pd, ibv_srq, ibv_srq_init_attr},
};

use crate::guard::{self, Errno};

#[unsafe(no_mangle)]
extern "C" fn ibv_create_srq(_pd: *mut ibv_pd, _attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr, _mask: c_int) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_srq(_srq: *mut ibv_srq) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}
