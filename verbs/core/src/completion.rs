//! Completions in the numbers of `ibv_wc`.

use rdma_over_tcp::rnic::{Arrival, Completion, WcOpcode, WcStatus};

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkCompletion {
    /// The request's identifier.
    pub wr_id: u64,
    /// `IBV_WC_*` of `ibv_wc_status`.
    pub status: u32,
    /// `IBV_WC_*` of `ibv_wc_opcode`.
    pub opcode: u32,
    /// Layer, type and code of the Terminate, as `0xLTCC`, [`ErrorNumber::ZERO_CODE`] for 0/0/00; 0 without one.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data as it lay in the message, or the invalidated key.
    pub imm_data_or_key: u32,
    /// The queue pair.
    pub qp_num: u32,
    /// `IBV_WC_WITH_*`.
    pub wc_flags: u32,
}

/// `IBV_WC_WITH_IMM`.
const WITH_IMM: u32 = 2;
/// `IBV_WC_WITH_INV`.
const WITH_INV: u32 = 8;

/// `ibv_wc_status` of a completion.
const fn status(completion: &Completion) -> u32 {
    match completion.status {
        WcStatus::Success => 0,
        WcStatus::LocalLength => 1,
        WcStatus::LocalOperation => 2,
        WcStatus::LocalProtection => 4,
        WcStatus::Flushed => 5,
        WcStatus::RemoteInvalidRequest => 9,
        WcStatus::RemoteAccess => 10,
        // iWARP has no receiver-not-ready: a Send without a receive ends the connection.
        WcStatus::RemoteNotReady | WcStatus::RemoteOperation => 11,
        WcStatus::ConnectionLost => 12,
    }
}

/// `ibv_wc_opcode` of a completion.
const fn opcode(completion: &Completion) -> u32 {
    match completion.opcode {
        WcOpcode::Send => 0,
        // Immediate data stand for a Write with them: nothing else posts any.
        WcOpcode::Write | WcOpcode::Immediate => 1,
        WcOpcode::Read => 2,
        WcOpcode::CompareSwap => 3,
        WcOpcode::FetchAdd => 4,
        WcOpcode::Bind => 5,
        WcOpcode::Invalidate | WcOpcode::FastRegister => 6,
        WcOpcode::Receive if matches!(completion.arrival, Arrival::Immediate(_)) => 129,
        WcOpcode::Receive => 128,
    }
}

impl From<Completion> for WorkCompletion {
    fn from(completion: Completion) -> Self {
        let (imm_data_or_key, wc_flags) = match completion.arrival {
            Arrival::Plain => (0, 0),
            Arrival::Invalidating(stag) => (stag.0, WITH_INV),
            Arrival::Immediate(data) => {
                (u32::from_ne_bytes([data[0], data[1], data[2], data[3]]), WITH_IMM)
            }
        };
        Self {
            wr_id: completion.context,
            status: status(&completion),
            opcode: opcode(&completion),
            vendor_err: completion.error_code(),
            byte_len: completion.bytes,
            imm_data_or_key,
            qp_num: completion.qp.number(),
            wc_flags,
        }
    }
}
