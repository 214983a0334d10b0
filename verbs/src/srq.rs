//! Shared receive queues.

use std::ffi::c_int;

use flue_verbs_abi::{
    attributes::ibv_srq_attr,
    objects::{ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_init_attr, ibv_srq_init_attr_ex},
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

pub(crate) unsafe extern "C" fn post_srq_recv(
    _srq: *mut ibv_srq,
    _wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    _attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}
