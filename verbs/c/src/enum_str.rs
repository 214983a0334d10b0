//! Static strings, which programs print, and conversions of rates.

use std::ffi::{CStr, c_char, c_int};

use flue_verbs_abi::{
    cm::rdma_cm_event_type,
    enums::{
        IBV_RATE_MAX, ibv_event_type, ibv_node_type, ibv_port_state, ibv_rate, ibv_wc_status,
        ibv_wr_opcode,
    },
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

/// Rates: number, multiple of 2.5 Gbit/s, Mbit/s. Lanes of 14 and 25 Gbit/s have no multiple.
const RATES: [(u32, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2500),
    (5, Some(2), 5000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
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

pub(crate) extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate.0).and_then(|row| row.1).unwrap_or(-1)
}

pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.1 == Some(mult)).map_or(IBV_RATE_MAX, |row| ibv_rate(row.0))
}

pub(crate) extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate.0).map_or(-1, |row| row.2)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.2 == mbps).map_or(IBV_RATE_MAX, |row| ibv_rate(row.0))
}
