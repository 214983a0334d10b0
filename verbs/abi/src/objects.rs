//! Objects, tables of functions that inline functions of `infiniband/verbs.h` call, and work requests.
//!
//! One file, since the types refer to each other: a context's table takes queues, which point to their context.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::attributes::{
    ibv_device_attr_ex, ibv_modify_cq_attr, ibv_poll_cq_attr, ibv_port_attr, ibv_qp_cap,
    ibv_query_device_ex_input, ibv_srq_attr, ibv_td_init_attr, ibv_values_ex, ibv_wc_tm_info,
};
use crate::enums::{
    IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX, ibv_event_type, ibv_mw_type, ibv_node_type,
    ibv_qp_state, ibv_qp_type, ibv_srq_type, ibv_transport_type, ibv_wc_opcode, ibv_wc_status,
    ibv_wr_opcode,
};

/// Member that no inline function calls, or whose operation this device does not support: always null.
pub type Absent = Option<unsafe extern "C" fn()>;

/// Value of `ibv_context::abi_compat` for a context that is embedded in a `verbs_context`.
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// Tag matching, XRC, receive-side scaling and device memory have no structures: the device does not support them.
pub type Opaque = c_void;

/// Object of an asynchronous event, by its type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_element {
    /// Completion queue events.
    pub cq: *mut ibv_cq,
    /// Queue pair events.
    pub qp: *mut ibv_qp,
    /// Shared receive queue events.
    pub srq: *mut ibv_srq,
    /// Port events.
    pub port_num: c_int,
}

/// Target of a request, by its opcode and the type of the queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_target {
    /// Read and Write.
    pub rdma: ibv_send_wr_rdma,
    /// Atomic operations.
    pub atomic: ibv_send_wr_atomic,
    /// Datagrams.
    pub ud: ibv_send_wr_ud,
}

c_structs! {
    /// Device. Providers read memory after it, so 1 KiB of zeroed memory must be allocated.
    ibv_device {
        _ops: [*mut c_void; 2],
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        name: [c_char; IBV_SYSFS_NAME_MAX],
        dev_name: [c_char; IBV_SYSFS_NAME_MAX],
        dev_path: [c_char; IBV_SYSFS_PATH_MAX],
        ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
    }

    /// Functions that inline functions call without a null check.
    ibv_context_ops {
        _compat_query_device: Absent,
        _compat_query_port: Absent,
        _compat_alloc_pd: Absent,
        _compat_dealloc_pd: Absent,
        _compat_reg_mr: Absent,
        _compat_rereg_mr: Absent,
        _compat_dereg_mr: Absent,
        /// May be null.
        alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
        _compat_create_cq: Absent,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Absent,
        _compat_resize_cq: Absent,
        _compat_destroy_cq: Absent,
        _compat_create_srq: Absent,
        _compat_modify_srq: Absent,
        _compat_query_srq: Absent,
        _compat_destroy_srq: Absent,
        post_srq_recv:
            Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_qp: Absent,
        _compat_query_qp: Absent,
        _compat_modify_qp: Absent,
        _compat_destroy_qp: Absent,
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_ah: Absent,
        _compat_destroy_ah: Absent,
        _compat_attach_mcast: Absent,
        _compat_detach_mcast: Absent,
        _compat_async_event: Absent,
    }

    /// Open device, as programs use it.
    ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        /// Descriptor, readable while an asynchronous event is queued.
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        /// [`VERBS_ABI_IS_EXTENDED`].
        abi_compat: *mut c_void,
    }

    /// Open device, as inline functions use it. It grows at its front: programs compare `sz`.
    verbs_context {
        query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int>,
        alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
        read_counters: Absent,
        attach_counters_point_flow: Absent,
        create_counters: Absent,
        destroy_counters: Absent,
        reg_dm_mr: Absent,
        alloc_dm: Absent,
        free_dm: Absent,
        modify_flow_action_esp: Absent,
        destroy_flow_action: Absent,
        create_flow_action_esp: Absent,
        modify_qp_rate_limit: Absent,
        alloc_parent_domain:
            Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
        dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
        modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
        post_srq_ops: Absent,
        destroy_rwq_ind_table: Absent,
        create_rwq_ind_table: Absent,
        destroy_wq: Absent,
        modify_wq: Absent,
        create_wq: Absent,
        query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
        create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
        r#priv: *mut c_void,
        query_device_ex: Option<
            unsafe extern "C" fn(
                *mut ibv_context,
                *const ibv_query_device_ex_input,
                *mut ibv_device_attr_ex,
                usize,
            ) -> c_int,
        >,
        ibv_destroy_flow: Absent,
        /// Spelled `ABI_placeholder2` in C.
        abi_placeholder2: Absent,
        ibv_create_flow: Absent,
        /// Spelled `ABI_placeholder1` in C.
        abi_placeholder1: Absent,
        open_qp: Absent,
        create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
        get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
        create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
        open_xrcd: Absent,
        close_xrcd: Absent,
        /// Spelled `_ABI_placeholder3` in C.
        _abi_placeholder3: u64,
        /// Size of this structure.
        sz: usize,
        context: ibv_context,
    }

    /// Protection domain.
    ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// Thread domain.
    ibv_td {
        context: *mut ibv_context,
    }

    /// Input of `alloc_parent_domain`.
    ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Absent,
        free: Absent,
        pd_context: *mut c_void,
    }

    /// Memory region.
    ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// Memory window.
    ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: ibv_mw_type,
    }

    /// Region, range and rights of a memory window.
    ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// Input of `bind_mw`.
    ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }

    /// Device memory, which is not supported.
    ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Absent,
        memcpy_from_dm: Absent,
        comp_mask: u32,
        handle: u32,
    }

    /// Address handle, for datagrams only.
    ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    /// Channel of completion events.
    ibv_comp_channel {
        context: *mut ibv_context,
        /// Descriptor, readable while an event is queued.
        fd: c_int,
        refcnt: c_int,
    }

    /// Completion queue. The library allocates [`ibv_cq_ex`] for each.
    ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// Completion queue with functions that poll and read it entry by entry. Its first members are those of [`ibv_cq`].
    ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        /// Value of the entry polled last.
        status: ibv_wc_status,
        /// Value of the entry polled last.
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
        read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> ibv_wc_opcode>,
        read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
        read_cvlan: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u16>,
        read_flow_tag: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
    }

    /// Input of `create_cq_ex`.
    ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    /// Shared receive queue.
    ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    /// Input of `ibv_create_srq`.
    ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    /// Tag matching of a shared receive queue.
    ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    /// Input of `create_srq_ex`.
    ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: ibv_srq_type,
        pd: *mut ibv_pd,
        xrcd: *mut Opaque,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    /// Queue pair. The library allocates [`ibv_qp_ex`] for each.
    ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: ibv_qp_state,
        qp_type: ibv_qp_type,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    /// Queue pair with functions that build work requests.
    ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        /// Set by the program before each request.
        wr_id: u64,
        /// Set by the program before each request: `IBV_SEND_*`.
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
        wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
        wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
        wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
    }

    /// Input and output of `ibv_create_qp`.
    ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
    }

    /// Packet hashing of raw queue pairs.
    ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    /// Input and output of `create_qp_ex`. `comp_mask` is in the padding of [`ibv_qp_init_attr`].
    ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut Opaque,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut Opaque,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    /// Inline data of one piece.
    ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    /// Scatter/gather element.
    ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// Remote memory of a Read or Write.
    ibv_send_wr_rdma {
        remote_addr: u64,
        rkey: u32,
    }

    /// Remote memory and operands of an atomic operation.
    ibv_send_wr_atomic {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    /// Destination of a datagram.
    ibv_send_wr_ud {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    /// Operands of a bind.
    ibv_send_wr_bind_mw {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    /// Send work request.
    ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        /// Immediate data in network order; for requests that invalidate, the rkey in host order.
        imm_data: u32,
        wr: ibv_send_wr_target,
        /// Remote SRQ of XRC.
        qp_type: u32,
        /// Also for the header of a segmented raw packet, which is not supported.
        bind_mw: ibv_send_wr_bind_mw,
    }

    /// Receive work request.
    ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    /// Work completion.
    ibv_wc {
        wr_id: u64,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        vendor_err: u32,
        byte_len: u32,
        /// Immediate data in network order; with `IBV_WC_WITH_INV`, the invalidated rkey in host order.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// Asynchronous event.
    ibv_async_event {
        element: ibv_async_element,
        event_type: ibv_event_type,
    }
}

assert_layout!(
    ibv_device, 664, node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408,
);
assert_layout!(
    ibv_context_ops, 256, alloc_mw: 56, bind_mw: 64, dealloc_mw: 72, poll_cq: 88, req_notify_cq: 96,
    post_srq_recv: 160, post_send: 200, post_recv: 208,
);
assert_layout!(
    ibv_context, 328, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320,
);
assert_layout!(
    verbs_context, 648, query_port: 0, advise_mr: 8, alloc_null_mr: 16, read_counters: 24, create_counters: 40,
    destroy_counters: 48, alloc_dm: 64, free_dm: 72, modify_qp_rate_limit: 104, alloc_parent_domain: 112,
    dealloc_td: 120, alloc_td: 128, modify_cq: 136, post_srq_ops: 144, create_wq: 184, query_rt_values: 192,
    create_cq_ex: 200, r#priv: 208, query_device_ex: 216, ibv_create_flow: 240, open_qp: 256, create_qp_ex: 264,
    get_srq_num: 272, create_srq_ex: 280, open_xrcd: 288, close_xrcd: 296, _abi_placeholder3: 304, sz: 312,
    context: 320,
);
assert_layout!(ibv_pd, 16, handle: 8);
assert_layout!(ibv_mr, 48, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40);
assert_layout!(ibv_mw, 32);
assert_layout!(ibv_comp_channel, 16, fd: 8, refcnt: 12);
assert_layout!(
    ibv_cq, 128, channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32, cond: 72, comp_events_completed: 120,
    async_events_completed: 124,
);
assert_layout!(
    ibv_cq_ex, 288, comp_mask: 128, status: 132, wr_id: 136, start_poll: 144, next_poll: 152, end_poll: 160,
    read_opcode: 168, read_byte_len: 184, read_qp_num: 200, read_wc_flags: 216, read_completion_ts: 248,
    read_completion_wallclock_ns: 280,
);
assert_layout!(ibv_srq, 128, handle: 24, mutex: 32, events_completed: 120);
assert_layout!(
    ibv_qp, 160, qp_context: 8, pd: 16, send_cq: 24, srq: 40, handle: 48, qp_num: 52, state: 56, qp_type: 60,
    mutex: 64, cond: 104, events_completed: 152,
);
assert_layout!(
    ibv_qp_ex, 352, comp_mask: 160, wr_id: 168, wr_flags: 176, wr_atomic_cmp_swp: 184, wr_local_inv: 208,
    wr_rdma_read: 216, wr_rdma_write: 224, wr_send: 240, wr_send_inv: 256, wr_set_ud_addr: 272,
    wr_set_inline_data: 288, wr_set_inline_data_list: 296, wr_set_sge: 304, wr_set_sge_list: 312, wr_start: 320,
    wr_complete: 328, wr_abort: 336, wr_atomic_write: 344,
);
assert_layout!(ibv_sge, 16);
assert_layout!(
    ibv_send_wr, 128, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, imm_data: 36, wr: 40,
    wr.rdma.rkey: 48, wr.atomic.rkey: 64, wr.ud.remote_qpn: 48, qp_type: 72, bind_mw: 80,
);
assert_layout!(ibv_recv_wr, 32);
assert_layout!(
    ibv_wc, 48, status: 8, opcode: 12, byte_len: 20, imm_data: 24, qp_num: 28, wc_flags: 36, sl: 44,
);
assert_layout!(ibv_qp_init_attr, 64, cap: 32, qp_type: 52, sq_sig_all: 56);
assert_layout!(ibv_qp_init_attr_ex, 136, comp_mask: 60, pd: 64, create_flags: 80, send_ops_flags: 128);
assert_layout!(ibv_cq_init_attr_ex, 56);
assert_layout!(ibv_srq_init_attr, 24);
assert_layout!(ibv_srq_init_attr_ex, 64);
assert_layout!(ibv_async_event, 16);
