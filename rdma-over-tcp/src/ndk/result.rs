//! Completions as NDKPI has them.

use super::{flags::OperationType, status::NtStatus};
use crate::{
    error::ErrorNumber,
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
