//! Structures and constants of `rdma/rdma_cma.h`, and those of `infiniband/sa.h` that it uses.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::attributes::{ibv_ah_attr, ibv_gid};
use crate::enums::ibv_qp_type;
use crate::objects::{ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_srq};

/// Constants of this file, list by list.
pub(crate) const VALUES: &[&[(&str, i64)]] =
    &[rdma_cm_event_type::VALUES, rdma_port_space::VALUES, FLAGS, OPTIONS];

c_enum! {
    /// Events of an id.
    rdma_cm_event_type(u32) {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }
}

c_enum! {
    /// Port space of an id; iWARP supports that of TCP only.
    rdma_port_space(u32) {
        RDMA_PS_IPOIB = 0x0002,
        RDMA_PS_TCP = 0x0106,
        RDMA_PS_UDP = 0x0111,
        RDMA_PS_IB = 0x013f,
    }
}

c_constants! {
    /// Flags of `rdma_getaddrinfo` and masks of `rdma_join_multicast_ex`.
    FLAGS: u32 {
        RAI_PASSIVE = 1,
        RAI_NUMERICHOST = 2,
        RAI_NOROUTE = 4,
        RAI_FAMILY = 8,
        /// `responder_resources`: the maximum of the device.
        RDMA_MAX_RESP_RES = 0xff,
        /// `initiator_depth`: the maximum of the device.
        RDMA_MAX_INIT_DEPTH = 0xff,
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1,
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 2,
    }
}

c_constants! {
    /// Levels and options of `rdma_set_option`.
    OPTIONS: c_int {
        RDMA_OPTION_ID = 0,
        RDMA_OPTION_IB = 1,
        RDMA_OPTION_ID_TOS = 0,
        RDMA_OPTION_ID_REUSEADDR = 1,
        RDMA_OPTION_ID_AFONLY = 2,
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
        RDMA_OPTION_IB_PATH = 1,
    }
}

/// Parameters of an event, by the port space of its id.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    /// Connections.
    pub conn: rdma_conn_param,
    /// Datagrams.
    pub ud: rdma_ud_param,
}

c_structs! {
    /// InfiniBand addresses of a route; zero on iWARP.
    rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        pkey: u16,
    }

    /// Addresses of an id, which inline functions read.
    rdma_addr {
        src_storage: sockaddr_storage,
        dst_storage: sockaddr_storage,
        addr: rdma_ib_addr,
    }

    /// Route of an id.
    rdma_route {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }

    /// Path record of InfiniBand; zero on iWARP.
    ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    /// Channel of connection events.
    rdma_event_channel {
        /// Descriptor, readable while an event is queued.
        fd: c_int,
    }

    /// Communication identifier: the RDMA counterpart of a socket.
    rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space,
        port_num: u8,
        /// Event of the last call of a synchronous id.
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type,
    }

    /// Parameters of a connection.
    rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    /// Parameters of a datagram id.
    rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    /// Event of an id.
    rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        param: rdma_cm_event_param,
    }

    /// Addresses to which a name resolves.
    rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    /// Input of `rdma_join_multicast_ex`.
    rdma_cm_join_mc_attr_ex {
        comp_mask: c_uint,
        join_flags: c_uint,
        addr: *mut sockaddr,
    }
}

assert_layout!(
    rdma_cm_id, 416, channel: 8, context: 16, qp: 24, route: 32, route.addr.dst_storage: 160, route.addr.addr: 288,
    route.path_rec: 328, route.num_paths: 336, ps: 344, port_num: 348, event: 352, send_cq_channel: 360,
    recv_cq: 384, srq: 392, pd: 400, qp_type: 408,
);
assert_layout!(rdma_event_channel, 4);
assert_layout!(rdma_conn_param, 24, qp_num: 16);
assert_layout!(rdma_ud_param, 56);
assert_layout!(rdma_cm_event, 80, event: 16, param: 24);
assert_layout!(rdma_addrinfo, 96, ai_src_addr: 24, ai_next: 88);
