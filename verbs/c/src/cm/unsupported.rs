//! C interface of multicast and enhanced connection establishment: EOPNOTSUPP, since iWARP has neither.

use std::ffi::{c_int, c_void};

use flue_verbs_abi::{
    attributes::ibv_ece,
    cm::{rdma_cm_id, rdma_cm_join_mc_attr_ex},
};
use libc::sockaddr;

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
