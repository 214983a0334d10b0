//! Names and addresses.

use std::ffi::{c_char, c_int};

use flue_verbs_abi::cm::rdma_addrinfo;

use crate::guard::{self, Errno};

#[unsafe(no_mangle)]
extern "C" fn rdma_getaddrinfo(
    _node: *const c_char,
    _service: *const c_char,
    _hints: *const rdma_addrinfo,
    _res: *mut *mut rdma_addrinfo,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_freeaddrinfo(_res: *mut rdma_addrinfo) {
    guard::nothing(|| {});
}
