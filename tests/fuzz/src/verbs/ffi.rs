//! Functions exported by the library, as C programs declare them, and the inline functions of `verbs.h`.

use core::ffi::{c_int, c_uint, c_void};

use flue_verbs as _;
use flue_verbs_abi::{
    attributes::{ibv_qp_attr, ibv_srq_attr},
    cm::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space},
    enums::ibv_mw_type,
    objects::{
        ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_mw,
        ibv_mw_bind, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
        ibv_srq, ibv_srq_init_attr, ibv_wc, verbs_context,
    },
};
use libc::sockaddr;

macro_rules! exported {
    ($(fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        unsafe extern "C" {
            $(pub(super) fn $name($(_: $argument),*) $(-> $result)?;)*
        }
    };
}

exported! {
    fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(*mut *mut ibv_device);
    fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    fn ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    fn ibv_rereg_mr(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    fn ibv_resize_cq(*mut ibv_cq, c_int) -> c_int;
    fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
    fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_modify_srq(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    fn ibv_query_srq(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
    fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    fn ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    fn ibv_qp_to_qp_ex(*mut ibv_qp) -> *mut ibv_qp_ex;
    fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(*mut ibv_async_event);
    fn rdma_get_devices(*mut c_int) -> *mut *mut ibv_context;
    fn rdma_free_devices(*mut *mut ibv_context);
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_destroy_event_channel(*mut rdma_event_channel);
    fn rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space) -> c_int;
    fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
    fn rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr) -> c_int;
    fn rdma_resolve_addr(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
    fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
    fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
    fn rdma_destroy_qp(*mut rdma_cm_id);
    fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
    fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
    fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
    fn rdma_get_src_port(*mut rdma_cm_id) -> u16;
}

/// Reason why the function pointers of a context are set: the library fills the table when it opens the device.
const FILLED: &str = "the table of an open device is complete";

/// `ibv_post_send`.
///
/// # Safety
/// The queue pair is live; the list and the memory it refers to are valid.
pub(super) unsafe fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*qp).context).ops.post_send.expect(FILLED)(qp, list, bad) }
}

/// `ibv_post_recv`.
///
/// # Safety
/// As [`post_send`].
pub(super) unsafe fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*qp).context).ops.post_recv.expect(FILLED)(qp, list, bad) }
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// As [`post_send`].
pub(super) unsafe fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*srq).context).ops.post_srq_recv.expect(FILLED)(srq, list, bad) }
}

/// `ibv_poll_cq`.
///
/// # Safety
/// The queue is live, and `places` has room for `count` completions.
pub(super) unsafe fn poll_cq(cq: *mut ibv_cq, count: c_int, places: *mut ibv_wc) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*cq).context).ops.poll_cq.expect(FILLED)(cq, count, places) }
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// The queue is live.
pub(super) unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*cq).context).ops.req_notify_cq.expect(FILLED)(cq, solicited_only) }
}

/// `ibv_alloc_mw`.
///
/// # Safety
/// The domain is live.
pub(super) unsafe fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*pd).context).ops.alloc_mw.expect(FILLED)(pd, kind) }
}

/// `ibv_dealloc_mw`.
///
/// # Safety
/// The window is live.
pub(super) unsafe fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*mw).context).ops.dealloc_mw.expect(FILLED)(mw) }
}

/// `ibv_bind_mw`.
///
/// # Safety
/// Queue pair and window are live, and so is the region of the bind.
pub(super) unsafe fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*mw).context).ops.bind_mw.expect(FILLED)(qp, mw, bind) }
}

/// Extended table that contains a context.
pub(super) fn extended(context: *mut ibv_context) -> *mut verbs_context {
    context.wrapping_byte_sub(core::mem::offset_of!(verbs_context, context)).cast()
}
