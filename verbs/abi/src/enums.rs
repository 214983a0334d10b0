//! Enumerations and flags of `infiniband/verbs.h`.

/// Constants of this file, list by list.
pub(crate) const VALUES: &[&[(&str, i64)]] = &[
    ibv_node_type::VALUES,
    ibv_transport_type::VALUES,
    ibv_atomic_cap::VALUES,
    ibv_mtu::VALUES,
    ibv_port_state::VALUES,
    ibv_event_type::VALUES,
    ibv_wc_status::VALUES,
    ibv_wc_opcode::VALUES,
    ibv_qp_type::VALUES,
    ibv_qp_state::VALUES,
    ibv_mig_state::VALUES,
    ibv_wr_opcode::VALUES,
    ibv_srq_type::VALUES,
    ibv_mw_type::VALUES,
    ibv_rate::VALUES,
    ibv_gid_type::VALUES,
    ibv_fork_status::VALUES,
    ibv_rereg_mr_err_code::VALUES,
    FLAGS,
    WIDE_FLAGS,
    LENGTHS,
];

c_enum! {
    /// Kind of a device.
    ibv_node_type(i32) {
        IBV_NODE_UNKNOWN = -1,
        IBV_NODE_CA = 1,
        IBV_NODE_SWITCH = 2,
        IBV_NODE_ROUTER = 3,
        /// iWARP adapter.
        IBV_NODE_RNIC = 4,
        IBV_NODE_USNIC = 5,
        IBV_NODE_USNIC_UDP = 6,
        IBV_NODE_UNSPECIFIED = 7,
    }
}

c_enum! {
    /// Transport of a device; programs derive their iWARP branches from it.
    ibv_transport_type(i32) {
        IBV_TRANSPORT_UNKNOWN = -1,
        IBV_TRANSPORT_IB = 0,
        IBV_TRANSPORT_IWARP = 1,
        IBV_TRANSPORT_USNIC = 2,
        IBV_TRANSPORT_USNIC_UDP = 3,
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }
}

c_enum! {
    /// Atomicity of remote atomic operations.
    ibv_atomic_cap(u32) {
        IBV_ATOMIC_NONE = 0,
        /// Among queue pairs of one device.
        IBV_ATOMIC_HCA = 1,
        /// Among devices and CPUs.
        IBV_ATOMIC_GLOB = 2,
    }
}

c_enum! {
    /// Path MTU. 0: none.
    ibv_mtu(u32) {
        IBV_MTU_256 = 1,
        IBV_MTU_512 = 2,
        IBV_MTU_1024 = 3,
        IBV_MTU_2048 = 4,
        IBV_MTU_4096 = 5,
    }
}

c_enum! {
    /// Logical state of a port.
    ibv_port_state(u32) {
        IBV_PORT_NOP = 0,
        IBV_PORT_DOWN = 1,
        IBV_PORT_INIT = 2,
        IBV_PORT_ARMED = 3,
        IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }
}

c_enum! {
    /// Asynchronous events of a device.
    ibv_event_type(u32) {
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_SQ_DRAINED = 5,
        IBV_EVENT_PATH_MIG = 6,
        IBV_EVENT_PATH_MIG_ERR = 7,
        IBV_EVENT_DEVICE_FATAL = 8,
        IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10,
        IBV_EVENT_LID_CHANGE = 11,
        IBV_EVENT_PKEY_CHANGE = 12,
        IBV_EVENT_SM_CHANGE = 13,
        IBV_EVENT_SRQ_ERR = 14,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        IBV_EVENT_CLIENT_REREGISTER = 17,
        IBV_EVENT_GID_CHANGE = 18,
        IBV_EVENT_WQ_FATAL = 19,
    }
}

c_enum! {
    /// Status of a work completion.
    ibv_wc_status(u32) {
        IBV_WC_SUCCESS = 0,
        IBV_WC_LOC_LEN_ERR = 1,
        IBV_WC_LOC_QP_OP_ERR = 2,
        IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_MW_BIND_ERR = 6,
        IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12,
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        IBV_WC_REM_ABORT_ERR = 16,
        IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18,
        IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        IBV_WC_GENERAL_ERR = 21,
        IBV_WC_TM_ERR = 22,
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }
}

c_enum! {
    /// Opcode of a work completion.
    ibv_wc_opcode(u32) {
        IBV_WC_SEND = 0,
        IBV_WC_RDMA_WRITE = 1,
        IBV_WC_RDMA_READ = 2,
        IBV_WC_COMP_SWAP = 3,
        IBV_WC_FETCH_ADD = 4,
        IBV_WC_BIND_MW = 5,
        IBV_WC_LOCAL_INV = 6,
        IBV_WC_TSO = 7,
        IBV_WC_ATOMIC_WRITE = 9,
        /// Bit that is set in all opcodes of receives.
        IBV_WC_RECV = 128,
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
    }
}

c_enum! {
    /// Service of a queue pair; iWARP has the reliable connection only.
    ibv_qp_type(u32) {
        IBV_QPT_RC = 2,
        IBV_QPT_UC = 3,
        IBV_QPT_UD = 4,
        IBV_QPT_RAW_PACKET = 8,
        IBV_QPT_XRC_SEND = 9,
        IBV_QPT_XRC_RECV = 10,
        IBV_QPT_DRIVER = 255,
    }
}

c_enum! {
    /// State of a queue pair.
    ibv_qp_state(u32) {
        IBV_QPS_RESET = 0,
        IBV_QPS_INIT = 1,
        IBV_QPS_RTR = 2,
        IBV_QPS_RTS = 3,
        IBV_QPS_SQD = 4,
        IBV_QPS_SQE = 5,
        IBV_QPS_ERR = 6,
        IBV_QPS_UNKNOWN = 7,
    }
}

c_enum! {
    /// Path migration state; InfiniBand only.
    ibv_mig_state(u32) {
        IBV_MIG_MIGRATED = 0,
        IBV_MIG_REARM = 1,
        IBV_MIG_ARMED = 2,
    }
}

c_enum! {
    /// Operation of a send work request.
    ibv_wr_opcode(u32) {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        IBV_WR_LOCAL_INV = 7,
        IBV_WR_BIND_MW = 8,
        IBV_WR_SEND_WITH_INV = 9,
        IBV_WR_TSO = 10,
        IBV_WR_DRIVER1 = 11,
        IBV_WR_ATOMIC_WRITE = 15,
    }
}

c_enum! {
    /// Kind of a shared receive queue.
    ibv_srq_type(u32) {
        IBV_SRQT_BASIC = 0,
        IBV_SRQT_XRC = 1,
        IBV_SRQT_TM = 2,
    }
}

c_enum! {
    /// Kind of a memory window.
    ibv_mw_type(u32) {
        /// Bound by a call, protected by its protection domain.
        IBV_MW_TYPE_1 = 1,
        /// Bound by a work request, protected by its queue pair.
        IBV_MW_TYPE_2 = 2,
    }
}

c_enum! {
    /// Static rate of an address handle.
    ibv_rate(u32) {
        IBV_RATE_MAX = 0,
        IBV_RATE_2_5_GBPS = 2,
        IBV_RATE_10_GBPS = 3,
        IBV_RATE_30_GBPS = 4,
        IBV_RATE_5_GBPS = 5,
        IBV_RATE_20_GBPS = 6,
        IBV_RATE_40_GBPS = 7,
        IBV_RATE_60_GBPS = 8,
        IBV_RATE_80_GBPS = 9,
        IBV_RATE_120_GBPS = 10,
        IBV_RATE_14_GBPS = 11,
        IBV_RATE_56_GBPS = 12,
        IBV_RATE_112_GBPS = 13,
        IBV_RATE_168_GBPS = 14,
        IBV_RATE_25_GBPS = 15,
        IBV_RATE_100_GBPS = 16,
        IBV_RATE_200_GBPS = 17,
        IBV_RATE_300_GBPS = 18,
        IBV_RATE_28_GBPS = 19,
        IBV_RATE_50_GBPS = 20,
        IBV_RATE_400_GBPS = 21,
        IBV_RATE_600_GBPS = 22,
        IBV_RATE_800_GBPS = 23,
        IBV_RATE_1200_GBPS = 24,
    }
}

c_enum! {
    /// Meaning of a GID.
    ibv_gid_type(u32) {
        IBV_GID_TYPE_IB = 0,
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
    }
}

c_enum! {
    /// Result of `ibv_is_fork_initialized`.
    ibv_fork_status(u32) {
        IBV_FORK_DISABLED = 0,
        IBV_FORK_ENABLED = 1,
        IBV_FORK_UNNEEDED = 2,
    }
}

c_enum! {
    /// Errors of `ibv_rereg_mr`: which registration remains valid.
    ibv_rereg_mr_err_code(i32) {
        /// The old registration is valid.
        IBV_REREG_MR_ERR_INPUT = -1,
        /// The region is valid, but pages could not be excluded from fork.
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        /// The region is invalid.
        IBV_REREG_MR_ERR_CMD = -4,
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }
}

c_constants! {
    /// Flags and masks of 32 bits.
    FLAGS: u32 {
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        IBV_DEVICE_SRQ_RESIZE = 1 << 13,
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        IBV_LINK_LAYER_UNSPECIFIED = 0,
        IBV_LINK_LAYER_INFINIBAND = 1,
        IBV_LINK_LAYER_ETHERNET = 2,
        IBV_PORT_CM_SUP = 1 << 16,
        IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
        IBV_PORT_IP_BASED_GIDS = 1 << 26,
        IBV_WC_GRH = 1,
        IBV_WC_WITH_IMM = 1 << 1,
        IBV_WC_IP_CSUM_OK = 1 << 2,
        IBV_WC_WITH_INV = 1 << 3,
        IBV_WC_EX_WITH_BYTE_LEN = 1,
        IBV_WC_EX_WITH_IMM = 1 << 1,
        IBV_WC_EX_WITH_QP_NUM = 1 << 2,
        IBV_WC_EX_WITH_SRC_QP = 1 << 3,
        IBV_WC_EX_WITH_SLID = 1 << 4,
        IBV_WC_EX_WITH_SL = 1 << 5,
        IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
        IBV_WC_EX_WITH_CVLAN = 1 << 8,
        IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
        IBV_WC_EX_WITH_TM_INFO = 1 << 10,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
        IBV_ACCESS_LOCAL_WRITE = 1,
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        IBV_ACCESS_MW_BIND = 1 << 4,
        /// Addresses relative to the first byte of the region.
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        IBV_ACCESS_ON_DEMAND = 1 << 6,
        IBV_ACCESS_HUGETLB = 1 << 7,
        IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
        /// Bits that an implementation may ignore.
        IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
        IBV_REREG_MR_CHANGE_TRANSLATION = 1,
        IBV_REREG_MR_CHANGE_PD = 1 << 1,
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
        IBV_SRQ_MAX_WR = 1,
        IBV_SRQ_LIMIT = 1 << 1,
        IBV_SRQ_INIT_ATTR_TYPE = 1,
        IBV_SRQ_INIT_ATTR_PD = 1 << 1,
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
        IBV_SRQ_INIT_ATTR_TM = 1 << 4,
        IBV_QP_INIT_ATTR_PD = 1,
        IBV_QP_INIT_ATTR_XRCD = 1 << 1,
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
        IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4,
        IBV_QP_INIT_ATTR_RX_HASH = 1 << 5,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
        IBV_QP_EX_WITH_RDMA_WRITE = 1,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
        IBV_QP_EX_WITH_SEND = 1 << 2,
        IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
        IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
        IBV_QP_EX_WITH_BIND_MW = 1 << 8,
        IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
        IBV_QP_EX_WITH_TSO = 1 << 10,
        IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
        IBV_QP_STATE = 1,
        IBV_QP_CUR_STATE = 1 << 1,
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        IBV_QP_PKEY_INDEX = 1 << 4,
        IBV_QP_PORT = 1 << 5,
        IBV_QP_QKEY = 1 << 6,
        IBV_QP_AV = 1 << 7,
        IBV_QP_PATH_MTU = 1 << 8,
        IBV_QP_TIMEOUT = 1 << 9,
        IBV_QP_RETRY_CNT = 1 << 10,
        IBV_QP_RNR_RETRY = 1 << 11,
        IBV_QP_RQ_PSN = 1 << 12,
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        IBV_QP_ALT_PATH = 1 << 14,
        IBV_QP_MIN_RNR_TIMER = 1 << 15,
        IBV_QP_SQ_PSN = 1 << 16,
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        IBV_QP_PATH_MIG_STATE = 1 << 18,
        IBV_QP_CAP = 1 << 19,
        IBV_QP_DEST_QPN = 1 << 20,
        IBV_QP_RATE_LIMIT = 1 << 25,
        IBV_SEND_FENCE = 1,
        IBV_SEND_SIGNALED = 1 << 1,
        IBV_SEND_SOLICITED = 1 << 2,
        IBV_SEND_INLINE = 1 << 3,
        IBV_SEND_IP_CSUM = 1 << 4,
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1,
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1,
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
        IBV_CQ_ATTR_MODERATE = 1,
        IBV_VALUES_MASK_RAW_CLOCK = 1,
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1,
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    }
}

c_constants! {
    /// Flags of 64 bits.
    WIDE_FLAGS: u64 {
        IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34,
        IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
    }
}

c_constants! {
    /// Lengths of arrays.
    LENGTHS: usize {
        IBV_SYSFS_NAME_MAX = 64,
        IBV_SYSFS_PATH_MAX = 256,
    }
}
