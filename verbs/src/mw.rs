//! Memory windows.

use std::ffi::c_int;

use flue_verbs_abi::{
    enums::ibv_mw_type,
    objects::{ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp},
};

use crate::guard::{self, Errno};

pub(crate) unsafe extern "C" fn alloc_mw(_pd: *mut ibv_pd, _type: ibv_mw_type) -> *mut ibv_mw {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) unsafe extern "C" fn bind_mw(
    _qp: *mut ibv_qp,
    _mw: *mut ibv_mw,
    _bind: *mut ibv_mw_bind,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) unsafe extern "C" fn dealloc_mw(_mw: *mut ibv_mw) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}
