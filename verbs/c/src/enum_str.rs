//! C interface of enumerations: static strings for messages of programs.

use std::ffi::{CStr, c_char};

use flue_verbs_abi::{
    cm::rdma_cm_event_type,
    enums::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, ibv_wr_opcode},
};

/// Completion statuses by number.
const WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Asynchronous events by number.
const EVENT_TYPE: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

/// Opcodes of work requests by number; 12 and 13 are unassigned.
const WR_OPCODE: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

/// Kinds of devices by number, from 1.
const NODE_TYPE: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// Port states by number, as programs that parse them expect.
const PORT_STATE: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

/// Connection events by number.
const CM_EVENT: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

fn text(list: &[&'static CStr], number: i64, other: &'static CStr) -> *const c_char {
    let found = usize::try_from(number).ok().and_then(|index| list.get(index));
    found.copied().unwrap_or(other).as_ptr()
}

pub(crate) extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    text(&WC_STATUS, status.0.into(), c"unknown")
}

pub(crate) extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    text(&EVENT_TYPE, event.0.into(), c"unknown")
}

pub(crate) extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    text(&NODE_TYPE, node_type.0.into(), c"unknown")
}

pub(crate) extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    text(&PORT_STATE, state.0.into(), c"unknown")
}

pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    text(&WR_OPCODE, opcode.0.into(), c"unknown")
}

pub(crate) extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    text(&CM_EVENT, event.0.into(), c"UNKNOWN EVENT")
}
