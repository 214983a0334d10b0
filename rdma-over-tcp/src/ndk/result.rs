//! Completions as NDKPI has them, and reasons of disconnects.

use core::fmt;

use super::{flags::OperationType, status::NtStatus};
use crate::{
    error::{EndReason, ErrorNumber, Loss, Truncation, WireError},
    rnic::cq::{Arrival, Completion, WcOpcode},
};

/// NDK_RESULT: a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdkResult {
    /// Outcome of the request.
    pub status: NtStatus,
    /// Bytes received; meaningful for receives only (NDK-RES-1).
    pub bytes_transferred: u32,
    /// The context given when the queue pair was created (NDK-RES-4).
    pub qp_context: u64,
    /// The context given with the request.
    pub request_context: u64,
}

/// NDK_RESULT_EX: a completion with its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdkResultEx {
    /// Outcome of the request.
    pub status: NtStatus,
    /// Bytes received; meaningful for receives only (NDK-RES-1).
    pub bytes_transferred: u32,
    /// The context given when the queue pair was created (NDK-RES-4).
    pub qp_context: u64,
    /// The context given with the request.
    pub request_context: u64,
    /// Type of the request.
    pub operation: OperationType,
    /// On failure the Terminate's layer, type and code as `0xLTCC`, or 0 (NDK-RES-3).
    pub provider_error_code: u32,
    /// For [`OperationType::ReceiveAndInvalidate`]: the token that was invalidated (NDK-RES-2).
    pub invalidated_token: u32,
    /// For [`OperationType::ReceiveImmediate`]: the immediate data (no part of NDKPI).
    pub immediate: [u8; 8],
}

impl NdkResultEx {
    /// The error that has failed the request, with the side that found it: this side what is wrong with a receive, and
    /// the peer, which says so in a Terminate, what is wrong with a request.
    #[must_use]
    pub fn error(&self) -> Option<EndReason> {
        let number = DisconnectReason(self.provider_error_code).number();
        let reason = match self.operation {
            OperationType::Receive
            | OperationType::ReceiveAndInvalidate
            | OperationType::ReceiveImmediate => EndReason::Found(number),
            _ => EndReason::Terminated(number),
        };
        (self.provider_error_code != 0).then_some(reason)
    }
}

impl From<NdkResultEx> for NdkResult {
    fn from(result: NdkResultEx) -> Self {
        let NdkResultEx {
            status,
            bytes_transferred,
            qp_context,
            request_context,
            operation: _,
            provider_error_code: _,
            invalidated_token: _,
            immediate: _,
        } = result;
        Self { status, bytes_transferred, qp_context, request_context }
    }
}

impl Default for NdkResult {
    fn default() -> Self {
        NdkResultEx::default().into()
    }
}

impl Default for NdkResultEx {
    fn default() -> Self {
        Self {
            status: NtStatus::PENDING,
            bytes_transferred: 0,
            qp_context: 0,
            request_context: 0,
            operation: OperationType::Receive,
            provider_error_code: 0,
            invalidated_token: 0,
            immediate: [0; 8],
        }
    }
}

/// Layer, type and code as one number, `0xLTCC`.
#[inline]
pub(super) fn error_code(error: Option<ErrorNumber>) -> u32 {
    error.map_or(0, |ErrorNumber { layer, etype, code }| {
        u32::from(layer) << 12 | u32::from(etype) << 8 | u32::from(code)
    })
}

/// The reason that a disconnect event gives (NDK-DISC-7): 0 if none is known, else layer, type and code of an error as
/// `0xLTCC`. The bits above give the side that found it: 0 for this side, 3 for the peer, in a Terminate
/// ([`DisconnectReason::terminated`]); the others are the constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DisconnectReason(pub u32);

/// Above the 16 bits of a number: reported by the peer.
const PEER: u32 = 3;

impl DisconnectReason {
    /// The peer's FIN came within an FPDU.
    pub const WITHIN_FPDU: Self = Self(0x1_2001);
    /// The peer's FIN came between two FPDUs of a message, before its last segment.
    pub const WITHIN_MESSAGE: Self = Self(0x2_2001);

    /// The peer has reset the connection.
    pub const RESET: Self = Self(0x4_2001);
    /// The peer does not answer.
    pub const NO_ANSWER: Self = Self(0x5_2001);
    /// The device is gone.
    pub const DEVICE_LOST: Self = Self(0x6_2001);
    /// A completion queue has overrun.
    pub const CQ_OVERRUN: Self = Self(0x7_0000);

    /// The peer has said this number in a Terminate.
    #[must_use]
    pub fn terminated(number: ErrorNumber) -> Self {
        Self(PEER << 16 | error_code(Some(number)))
    }

    pub(super) fn new(reason: Option<EndReason>) -> Self {
        match reason {
            None => Self(0),
            Some(EndReason::Found(number)) => Self(error_code(Some(number))),
            Some(EndReason::Terminated(number)) => Self::terminated(number),
            Some(EndReason::Truncated(Truncation::Fpdu)) => Self::WITHIN_FPDU,
            Some(EndReason::Truncated(Truncation::Message)) => Self::WITHIN_MESSAGE,
            Some(EndReason::Lost(Loss::Reset)) => Self::RESET,
            Some(EndReason::Lost(Loss::NoAnswer)) => Self::NO_ANSWER,
            Some(EndReason::Lost(Loss::Device)) => Self::DEVICE_LOST,
            Some(EndReason::Lost(Loss::Other)) => {
                Self(error_code(Some(WireError::MpaConnectionLost.number())))
            }
            Some(EndReason::CqOverrun) => Self::CQ_OVERRUN,
        }
    }

    /// As the adapter has it; `None`: no reason is known.
    fn end_reason(self) -> Option<EndReason> {
        let number = self.number();
        Some(match self {
            Self(0) => return None,
            Self::WITHIN_FPDU => EndReason::Truncated(Truncation::Fpdu),
            Self::WITHIN_MESSAGE => EndReason::Truncated(Truncation::Message),
            Self::RESET => EndReason::Lost(Loss::Reset),
            Self::NO_ANSWER => EndReason::Lost(Loss::NoAnswer),
            Self::DEVICE_LOST => EndReason::Lost(Loss::Device),
            Self::CQ_OVERRUN => EndReason::CqOverrun,
            Self(code) if code >> 16 == PEER => EndReason::Terminated(number),
            _ if number == WireError::MpaConnectionLost.number() => EndReason::Lost(Loss::Other),
            _ => EndReason::Found(number),
        })
    }

    /// Layer, type and code.
    #[must_use]
    pub const fn number(self) -> ErrorNumber {
        let [_, _, kind, code] = self.0.to_be_bytes();
        ErrorNumber { layer: kind >> 4, etype: kind & 0x0f, code }
    }
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end_reason() {
            None => f.write_str("the peer has closed the connection, and gives no reason"),
            Some(reason) => write!(f, "{reason}"),
        }
    }
}

impl From<Completion> for NdkResultEx {
    #[inline]
    fn from(completion: Completion) -> Self {
        let Completion {
            status,
            opcode,
            error,
            bytes,
            arrival,
            qp_context,
            context,
            solicited: _,
            qp: _,
        } = completion;
        let mut result = Self {
            status: status.into(),
            bytes_transferred: bytes,
            qp_context,
            request_context: context,
            operation: opcode.into(),
            provider_error_code: error_code(error),
            invalidated_token: 0,
            immediate: [0; 8],
        };
        match arrival {
            Arrival::Plain => {}
            Arrival::Invalidating(stag) => {
                result.operation = OperationType::ReceiveAndInvalidate;
                result.invalidated_token = stag.0;
            }
            Arrival::Immediate(data) => {
                result.operation = OperationType::ReceiveImmediate;
                result.immediate = data;
            }
        }
        result
    }
}

impl From<WcOpcode> for OperationType {
    #[inline]
    fn from(opcode: WcOpcode) -> Self {
        match opcode {
            WcOpcode::Send => Self::Send,
            WcOpcode::Write => Self::Write,
            WcOpcode::Read => Self::Read,
            WcOpcode::FastRegister => Self::FastRegister,
            WcOpcode::Invalidate => Self::Invalidate,
            WcOpcode::Bind => Self::Bind,
            WcOpcode::Receive => Self::Receive,
            WcOpcode::FetchAdd => Self::FetchAdd,
            WcOpcode::CompareSwap => Self::CompareSwap,
            WcOpcode::Immediate => Self::Immediate,
        }
    }
}

impl From<Completion> for NdkResult {
    fn from(completion: Completion) -> Self {
        let Completion { status, bytes, qp_context, context, .. } = completion;
        Self {
            status: status.into(),
            bytes_transferred: bytes,
            qp_context,
            request_context: context,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;
    use crate::error::WireError;

    // NDK-DISC-7: each reason has its own value and text, which names the side that found the error.
    #[test]
    fn reasons_of_disconnects() {
        let stag = WireError::TaggedInvalidStag.number();
        let unknown = ErrorNumber { layer: 15, etype: 3, code: 0xfe };
        let lost = |loss| Some(EndReason::Lost(loss));
        for (reason, code, text) in [
            (None, 0, "the peer has closed the connection, and gives no reason"),
            (
                Some(EndReason::Found(WireError::MpaCrc.number())),
                0x2002,
                "this side found an error: MPA: CRC of an FPDU does not match (2/0/02)",
            ),
            (
                Some(EndReason::Terminated(stag)),
                0x3_1100,
                "the peer found an error: DDP, tagged buffer error: \
                 STag of a tagged segment is not valid or not writable (1/1/00)",
            ),
            (
                Some(EndReason::Terminated(unknown)),
                0x3_f3fe,
                "the peer found an error: unknown layer: unknown error (15/3/fe)",
            ),
            (
                Some(EndReason::Truncated(Truncation::Fpdu)),
                0x1_2001,
                "the peer's FIN came within an FPDU (2/0/01)",
            ),
            (
                Some(EndReason::Truncated(Truncation::Message)),
                0x2_2001,
                "the peer's FIN came within a message (2/0/01)",
            ),
            (lost(Loss::Reset), 0x4_2001, "TCP: the peer has reset the connection (2/0/01)"),
            (
                lost(Loss::NoAnswer),
                0x5_2001,
                "TCP: the peer does not answer, neither retransmissions nor probes of keep-alive \
                 (2/0/01)",
            ),
            (lost(Loss::Device), 0x6_2001, "the device of this side is gone (2/0/01)"),
            (lost(Loss::Other), 0x2001, "TCP: this side has lost the connection (2/0/01)"),
            (
                Some(EndReason::CqOverrun),
                0x7_0000,
                "this side found an error: a completion queue has overrun",
            ),
        ] {
            let value = DisconnectReason::new(reason);
            assert_eq!((value.0, value.to_string().as_str()), (code, text));
            assert_eq!(value.end_reason(), reason);
        }
    }
}
