//! Completions as NDKPI has them, and reasons of disconnects.

use core::fmt;

use super::{flags::OperationType, status::NtStatus};
use crate::{
    error::{EndReason, ErrorNumber, Truncation},
    rnic::cq::{Completion, WcOpcode},
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
/// `0xLTCC`. Above these 16 bits the provider says more: [`DisconnectReason::WITHIN_FPDU`],
/// [`DisconnectReason::WITHIN_MESSAGE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DisconnectReason(pub u32);

impl DisconnectReason {
    /// The peer's FIN came within an FPDU.
    pub const WITHIN_FPDU: Self = Self(0x1_2001);
    /// The peer's FIN came between two FPDUs of a message, before its last segment.
    pub const WITHIN_MESSAGE: Self = Self(0x2_2001);

    pub(super) fn new(reason: Option<EndReason>) -> Self {
        match reason {
            None => Self(0),
            Some(EndReason::Error(number)) => Self(error_code(Some(number))),
            Some(EndReason::Truncated(Truncation::Fpdu)) => Self::WITHIN_FPDU,
            Some(EndReason::Truncated(Truncation::Message)) => Self::WITHIN_MESSAGE,
        }
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
        let number = self.number();
        match (*self, number.known()) {
            (Self(0), _) => f.write_str("no reason known"),
            (Self::WITHIN_FPDU, _) => write!(f, "the peer's FIN came within an FPDU ({number})"),
            (Self::WITHIN_MESSAGE, _) => {
                write!(f, "the peer's FIN came within a message ({number})")
            }
            (_, Some(error)) => write!(f, "{error}"),
            (_, None) => write!(f, "unknown error ({number})"),
        }
    }
}

impl From<Completion> for NdkResultEx {
    fn from(completion: Completion) -> Self {
        let Completion { status, opcode, error, bytes, invalidated, qp_context, context } =
            completion;
        Self {
            status: status.into(),
            bytes_transferred: bytes,
            qp_context,
            request_context: context,
            operation: match opcode {
                _ if invalidated.is_some() => OperationType::ReceiveAndInvalidate,
                WcOpcode::Send => OperationType::Send,
                WcOpcode::Write => OperationType::Write,
                WcOpcode::Read => OperationType::Read,
                WcOpcode::FastRegister => OperationType::FastRegister,
                WcOpcode::Invalidate => OperationType::Invalidate,
                WcOpcode::Receive => OperationType::Receive,
            },
            provider_error_code: error_code(error),
            invalidated_token: invalidated.map_or(0, |stag| stag.0),
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

    // NDK-DISC-7: the reason has a text of its own, and the numbers of an error if there is one.
    #[test]
    fn reasons_of_disconnects() {
        let crc = EndReason::Error(WireError::MpaCrc.number());
        let unknown = EndReason::Error(ErrorNumber { layer: 15, etype: 3, code: 0xfe });
        for (reason, code, text) in [
            (None, 0, "no reason known"),
            (Some(crc), 0x2002, "CRC of an FPDU does not match (2/0/02)"),
            (Some(unknown), 0xf3fe, "unknown error (15/3/fe)"),
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
        ] {
            let reason = DisconnectReason::new(reason);
            assert_eq!((reason.0, reason.to_string().as_str()), (code, text));
        }
    }
}
