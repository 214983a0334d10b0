//! C interface of address handles and multicast groups: EOPNOTSUPP, since iWARP has no datagrams.

use std::ffi::{c_int, c_void};

use flue_verbs_abi::{
    attributes::{ibv_ah_attr, ibv_gid},
    objects::{ibv_ah, ibv_context, ibv_pd, ibv_qp, ibv_wc},
};

use crate::guard::{self, Errno};

pub(crate) extern "C" fn ibv_create_ah(_pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut c_void,
    _port: u8,
) -> *mut ibv_ah {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut c_void,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_destroy_ah(_ah: *mut ibv_ah) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_attach_mcast(
    _qp: *mut ibv_qp,
    _gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_detach_mcast(
    _qp: *mut ibv_qp,
    _gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}
