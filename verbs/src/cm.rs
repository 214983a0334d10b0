//! Connection management.

use std::ffi::{c_int, c_void};

use flue_verbs_abi::{
    attributes::{ibv_ece, ibv_qp_attr},
    cm::{
        rdma_addr, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex,
        rdma_conn_param, rdma_event_channel, rdma_port_space,
    },
    enums::ibv_event_type,
    objects::{
        ibv_context, ibv_pd, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
        ibv_srq_init_attr_ex,
    },
};
use libc::{sockaddr, sockaddr_storage};

use crate::guard::{self, Errno};

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    guard::pointer(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_event_channel(_channel: *mut rdma_event_channel) {
    guard::nothing(|| {});
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_id(
    _channel: *mut rdma_event_channel,
    _id: *mut *mut rdma_cm_id,
    _context: *mut c_void,
    _ps: rdma_port_space,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_id(_id: *mut rdma_cm_id) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_bind_addr(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_resolve_addr(
    _id: *mut rdma_cm_id,
    _src: *mut sockaddr,
    _dst: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_resolve_route(_id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_qp(
    _id: *mut rdma_cm_id,
    _pd: *mut ibv_pd,
    _attr: *mut ibv_qp_init_attr,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_qp_ex(_id: *mut rdma_cm_id, _attr: *mut ibv_qp_init_attr_ex) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_qp(_id: *mut rdma_cm_id) {
    guard::nothing(|| {});
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_srq(
    _id: *mut rdma_cm_id,
    _pd: *mut ibv_pd,
    _attr: *mut ibv_srq_init_attr,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_srq_ex(_id: *mut rdma_cm_id, _attr: *mut ibv_srq_init_attr_ex) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_srq(_id: *mut rdma_cm_id) {
    guard::nothing(|| {});
}

#[unsafe(no_mangle)]
extern "C" fn rdma_connect(_id: *mut rdma_cm_id, _param: *mut rdma_conn_param) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_establish(_id: *mut rdma_cm_id) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_listen(_id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_request(_listen: *mut rdma_cm_id, _id: *mut *mut rdma_cm_id) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_accept(_id: *mut rdma_cm_id, _param: *mut rdma_conn_param) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_reject(_id: *mut rdma_cm_id, _data: *const c_void, _length: u8) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_reject_ece(_id: *mut rdma_cm_id, _data: *const c_void, _length: u8) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_notify(_id: *mut rdma_cm_id, _event: ibv_event_type) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_disconnect(_id: *mut rdma_cm_id) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

/// Cancelled by `pthread_cancel` while it blocks: no value with `Drop` may live across its read.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_get_cm_event(
    _channel: *mut rdma_event_channel,
    _event: *mut *mut rdma_cm_event,
) -> c_int {
    guard::set_errno(Errno(libc::ENODEV));
    -1
}

#[unsafe(no_mangle)]
extern "C" fn rdma_ack_cm_event(_event: *mut rdma_cm_event) -> c_int {
    guard::done(|| Err(Errno(libc::EINVAL)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_devices(_num_devices: *mut c_int) -> *mut *mut ibv_context {
    guard::pointer(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_free_devices(_list: *mut *mut ibv_context) {
    guard::nothing(|| {});
}

#[unsafe(no_mangle)]
extern "C" fn rdma_set_option(
    _id: *mut rdma_cm_id,
    _level: c_int,
    _name: c_int,
    _value: *mut c_void,
    _length: usize,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENOSYS)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_migrate_id(_id: *mut rdma_cm_id, _channel: *mut rdma_event_channel) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_ep(
    _id: *mut *mut rdma_cm_id,
    _res: *mut rdma_addrinfo,
    _pd: *mut ibv_pd,
    _attr: *mut ibv_qp_init_attr,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_ep(_id: *mut rdma_cm_id) {
    guard::nothing(|| {});
}

#[unsafe(no_mangle)]
extern "C" fn rdma_init_qp_attr(
    _id: *mut rdma_cm_id,
    _attr: *mut ibv_qp_attr,
    _mask: *mut c_int,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENODEV)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_join_multicast(
    _id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_join_multicast_ex(
    _id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
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

#[unsafe(no_mangle)]
extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: see `route`.
    port(unsafe { &raw const (*route(id)).src_storage })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: see `route`.
    port(unsafe { &raw const (*route(id)).dst_storage })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: see `route`.
    unsafe { &raw mut (*route(id)).src_storage }.cast()
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: see `route`.
    unsafe { &raw mut (*route(id)).dst_storage }.cast()
}
