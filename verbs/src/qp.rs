//! Queue pairs.

use std::ffi::c_int;

use flue_verbs_abi::{
    attributes::{ibv_ece, ibv_qp_attr},
    enums::ibv_wr_opcode,
    objects::{ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr},
};

use crate::guard::{self, Errno};

#[unsafe(no_mangle)]
extern "C" fn ibv_create_qp(_pd: *mut ibv_pd, _attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(_qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    std::ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp(
    _qp: *mut ibv_qp,
    _attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(_qp: *mut ibv_qp, _attr: *mut ibv_qp_attr, _mask: c_int) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(_qp: *mut ibv_qp) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}
