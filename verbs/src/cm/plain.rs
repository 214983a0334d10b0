//! Addresses of identifiers, and calls that nothing stands behind on iWARP: multicast and enhanced establishment.

use std::ffi::{c_int, c_void};

use flue_verbs_abi::{
    attributes::ibv_ece,
    cm::{rdma_addr, rdma_cm_id, rdma_cm_join_mc_attr_ex},
};
use libc::{sockaddr, sockaddr_storage};

use crate::guard::{self, Errno};

pub(crate) extern "C" fn rdma_join_multicast(
    _id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn rdma_join_multicast_ex(
    _id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// Addresses of an id, as the inline functions of today read them.
fn route(id: *mut rdma_cm_id) -> *mut rdma_addr {
    // SAFETY: the caller of each of these functions passes an id that it has not destroyed.
    unsafe { &raw mut (*id).route.addr }
}

/// The port stands at the same place in both families; a port of 0 is that of an address not set yet.
fn port(address: *const sockaddr_storage) -> u16 {
    // SAFETY: an id's addresses are complete `sockaddr_storage`s, which are as large and aligned as either family's.
    unsafe {
        match c_int::from((*address).ss_family) {
            libc::AF_INET => (*address.cast::<libc::sockaddr_in>()).sin_port,
            libc::AF_INET6 => (*address.cast::<libc::sockaddr_in6>()).sin6_port,
            _ => 0,
        }
    }
}

pub(crate) extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: see `route`.
    port(unsafe { &raw const (*route(id)).src_storage })
}

pub(crate) extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: see `route`.
    port(unsafe { &raw const (*route(id)).dst_storage })
}
