//! NDKPI completions and disconnect reasons.

use core::fmt;

use super::{flags::OperationType, status::NtStatus};
use crate::{
    error::{EndReason, ErrorNumber, Loss, Truncation, WireError},
    rnic::{
        ConnectCause,
        queues::cq::{Arrival, Completion},
    },
};

/// NDK_RESULT: completion of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdkResult {
    /// Status of the request.
    pub status: NtStatus,
    /// Bytes received; valid for receives only (NDK-RES-1).
    pub bytes_transferred: u32,
    /// Context passed to the creation of the queue pair (NDK-RES-4).
    pub qp_context: u64,
    /// Context passed with the request.
    pub request_context: u64,
}

/// NDK_RESULT_EX: completion of a request, with its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdkResultEx {
    /// Status of the request.
    pub status: NtStatus,
    /// Bytes received; valid for receives only (NDK-RES-1).
    pub bytes_transferred: u32,
    /// Context passed to the creation of the queue pair (NDK-RES-4).
    pub qp_context: u64,
    /// Context passed with the request.
    pub request_context: u64,
    /// Type of the request.
    pub operation: OperationType,
    /// Error code (NDK-RES-3): on failure, the Terminate's layer, type and code as `0xLTCC`. [`ErrorNumber::ZERO_CODE`]
    /// encodes 0/0/00; 0: the error has no number.
    pub provider_error_code: u32,
    /// Invalidated token of [`OperationType::ReceiveAndInvalidate`] (NDK-RES-2).
    pub invalidated_token: u32,
    /// Immediate data of [`OperationType::ReceiveImmediate`] (not part of NDKPI).
    pub immediate: [u8; 8],
}

impl NdkResultEx {
    /// Returns the error that failed the request, with the side that detected it. This side detects errors of receives.
    /// The peer detects errors of requests and reports them in a Terminate.
    #[must_use]
    pub fn error(&self) -> Option<EndReason> {
        let number = ErrorNumber::from_code(self.provider_error_code);
        let reason = match self.operation {
            OperationType::Receive
            | OperationType::ReceiveAndInvalidate
            | OperationType::ReceiveImmediate => EndReason::Detected(number),
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

/// Reason passed to a disconnect event (NDK-DISC-7).
///
/// 0 if no reason is known, otherwise layer, type and code of an error as `0xLTCC`. The bits above encode the side that
/// detected it:
/// - 0: this side.
/// - 3: the peer, in a Terminate ([`DisconnectReason::terminated`]).
/// - 8: this side, if the number alone has another meaning ([`DisconnectReason::LOCAL`]).
///
/// The other values are the constants below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DisconnectReason(pub u32);

/// Prefix above the 16 bits of a number: reported by the peer.
const PEER: u32 = 3;
/// Prefix above the 16 bits of a number: detected by this side, if the number alone has another meaning.
const OWN: u32 = 8;

impl DisconnectReason {
    /// The peer's FIN arrived within an FPDU.
    pub const WITHIN_FPDU: Self = Self(0x1_2001);
    /// The peer's FIN arrived between two FPDUs of a message, before its last segment.
    pub const WITHIN_MESSAGE: Self = Self(0x2_2001);

    /// The connection was lost on this side, or not established, for a reason not listed below.
    pub const LOST: Self = Self(WireError::MpaConnectionLost.number().code());
    /// The peer reset the connection.
    pub const RESET: Self = Self(0x4_2001);
    /// The peer does not respond.
    pub const NO_ANSWER: Self = Self(0x5_2001);
    /// The device was lost.
    pub const DEVICE_LOST: Self = Self(0x6_2001);
    /// A completion queue overran.
    pub const CQ_OVERRUN: Self = Self(0x7_0000);
    /// RDMAP failed on this side (0/0/00), for example because the request's memory does not permit the access.
    pub const LOCAL: Self = Self(OWN << 16);
    /// The peer's Terminate has no error number.
    pub const TERMINATED_UNNUMBERED: Self = Self(0x9_0000);

    /// Returns the reason for a Terminate of the peer with this number.
    #[must_use]
    pub const fn terminated(number: ErrorNumber) -> Self {
        Self(PEER << 16 | number.code())
    }

    /// Returns the value of a reason. `None`: the peer closed normally.
    #[must_use]
    pub const fn new(reason: Option<EndReason>) -> Self {
        match reason {
            None => Self(0),
            Some(EndReason::Detected(number)) => match number.code() {
                code if code == 0 || code == Self::LOST.0 => Self(OWN << 16 | code),
                code => Self(code),
            },
            Some(EndReason::Terminated(number)) => Self::terminated(number),
            Some(EndReason::TerminatedUnnumbered) => Self::TERMINATED_UNNUMBERED,
            Some(EndReason::Truncated(Truncation::Fpdu)) => Self::WITHIN_FPDU,
            Some(EndReason::Truncated(Truncation::Message)) => Self::WITHIN_MESSAGE,
            Some(EndReason::Lost(Loss::Reset)) => Self::RESET,
            Some(EndReason::Lost(Loss::NoAnswer)) => Self::NO_ANSWER,
            Some(EndReason::Lost(Loss::Device)) => Self::DEVICE_LOST,
            Some(EndReason::Lost(Loss::Other)) => Self::LOST,
            Some(EndReason::CqOverrun) => Self::CQ_OVERRUN,
        }
    }

    /// Returns the reason of a value; `None`: no reason is known.
    #[must_use]
    pub const fn end_reason(self) -> Option<EndReason> {
        let number = self.number();
        Some(match self {
            Self(0) => return None,
            Self::WITHIN_FPDU => EndReason::Truncated(Truncation::Fpdu),
            Self::WITHIN_MESSAGE => EndReason::Truncated(Truncation::Message),
            Self::RESET => EndReason::Lost(Loss::Reset),
            Self::NO_ANSWER => EndReason::Lost(Loss::NoAnswer),
            Self::DEVICE_LOST => EndReason::Lost(Loss::Device),
            Self::CQ_OVERRUN => EndReason::CqOverrun,
            Self::TERMINATED_UNNUMBERED => EndReason::TerminatedUnnumbered,
            Self(code) if code >> 16 == PEER => EndReason::Terminated(number),
            Self::LOST => EndReason::Lost(Loss::Other),
            _ => EndReason::Detected(number),
        })
    }

    /// Returns the reason why a connection was not established. 0 only for a rejection, which is not an error.
    #[must_use]
    pub fn of_attempt(cause: &ConnectCause) -> Self {
        let lost = EndReason::Lost(Loss::Other);
        Self::new(match cause {
            ConnectCause::Ended(reason) => Some(*reason),
            ConnectCause::Startup(error) => error.wire().map(|it| EndReason::Detected(it.number())),
            ConnectCause::NoHandshake(_)
            | ConnectCause::NoReply(_)
            | ConnectCause::NoFirstMessage(_) => Some(EndReason::Lost(Loss::NoAnswer)),
            ConnectCause::Tcp(error) => Some(EndReason::Lost((*error).into())),
            ConnectCause::NotAnswered(_) | ConnectCause::Closed => Some(lost),
        })
    }

    /// Returns layer, type and code.
    #[must_use]
    pub const fn number(self) -> ErrorNumber {
        ErrorNumber::from_code(self.0)
    }
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end_reason() {
            None => f.write_str("connection closed by the peer without a reason"),
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
            error: _,
            bytes,
            arrival,
            qp_context,
            context,
            solicited: _,
            qp: _,
        } = completion;
        use OperationType::{Receive, ReceiveAndInvalidate, ReceiveImmediate};
        let (operation, invalidated_token, immediate) = match arrival {
            Arrival::Plain => (opcode.into(), 0, [0; 8]),
            Arrival::Invalidating(stag) => rare_receive(ReceiveAndInvalidate, stag.0, [0; 8]),
            Arrival::Immediate(data) => rare_receive(ReceiveImmediate, 0, data),
            // NDK has no Send with immediate data.
            Arrival::SendImmediate(_) | Arrival::Datagram { .. } => {
                rare_receive(Receive, 0, [0; 8])
            }
        };
        Self {
            status: status.into(),
            bytes_transferred: bytes,
            qp_context,
            request_context: context,
            operation,
            provider_error_code: completion.error_code(),
            invalidated_token,
            immediate,
        }
    }
}

/// Operation, invalidated token and immediate data of a receive by another message than a plain Send.
// Cold, so that the other results take one branch.
#[cold]
#[inline(never)]
const fn rare_receive(
    operation: OperationType,
    invalidated_token: u32,
    immediate: [u8; 8],
) -> (OperationType, u32, [u8; 8]) {
    (operation, invalidated_token, immediate)
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
    use std::{collections::BTreeSet, string::ToString, vec::Vec};

    use bytes::Bytes;

    use super::*;
    use crate::{
        mpa::startup::{Framing, StartupError},
        rnic::ConnectError,
    };

    // NDK-DISC-7: each reason has its own value and text, which names the side that detected the error.
    #[test]
    fn reasons_of_disconnects() {
        let stag = WireError::TaggedInvalidStag.number();
        let unknown = ErrorNumber { layer: 15, etype: 3, code: 0xfe };
        let lost = |loss| Some(EndReason::Lost(loss));
        for (reason, code, text) in [
            (None, 0, "connection closed by the peer without a reason"),
            (
                Some(EndReason::Detected(WireError::MpaCrc.number())),
                0x2002,
                "error detected by this side: MPA: CRC of an FPDU does not match (2/0/02)",
            ),
            (
                Some(EndReason::Terminated(stag)),
                0x3_1100,
                "error reported by the peer: DDP, tagged buffer error: \
                 STag of a tagged segment is not valid or not writable (1/1/00)",
            ),
            (
                Some(EndReason::Terminated(unknown)),
                0x3_f3fe,
                "error reported by the peer: unknown layer: unknown error (15/3/fe)",
            ),
            (
                Some(EndReason::Truncated(Truncation::Fpdu)),
                0x1_2001,
                "MPA: the peer's FIN arrived within an FPDU (2/0/01)",
            ),
            (
                Some(EndReason::Truncated(Truncation::Message)),
                0x2_2001,
                "RDMAP: the peer's FIN arrived within a message (2/0/01)",
            ),
            (lost(Loss::Reset), 0x4_2001, "TCP: connection reset by peer (2/0/01)"),
            (
                lost(Loss::NoAnswer),
                0x5_2001,
                "TCP: no response from the peer to retransmissions or keep-alive probes \
                 (2/0/01)",
            ),
            (lost(Loss::Device), 0x6_2001, "device of this side: removed (2/0/01)"),
            (lost(Loss::Other), 0x2001, "TCP: connection lost on this side (2/0/01)"),
            (
                Some(EndReason::CqOverrun),
                0x7_0000,
                "error detected by this side: completion queue overrun",
            ),
            (
                Some(EndReason::Detected(WireError::RdmapLocalCatastrophic.number())),
                0x8_0000,
                "error detected by this side: RDMAP, local catastrophic error: RDMAP failed locally (0/0/00)",
            ),
            (
                Some(EndReason::TerminatedUnnumbered),
                0x9_0000,
                "error reported by the peer: Terminate without an error number",
            ),
        ] {
            let value = DisconnectReason::new(reason);
            assert_eq!((value.0, value.to_string().as_str()), (code, text));
            assert_eq!(value.end_reason(), reason);
        }
    }

    /// Index of a reason's kind. A new kind does not compile here, and must be added to [`reasons`].
    const fn kind(reason: EndReason) -> usize {
        match reason {
            EndReason::Detected(_) => 0,
            EndReason::Terminated(_) => 1,
            EndReason::TerminatedUnnumbered => 2,
            EndReason::Truncated(Truncation::Fpdu) => 3,
            EndReason::Truncated(Truncation::Message) => 4,
            EndReason::Lost(Loss::Reset) => 5,
            EndReason::Lost(Loss::NoAnswer) => 6,
            EndReason::Lost(Loss::Device) => 7,
            EndReason::Lost(Loss::Other) => 8,
            EndReason::CqOverrun => 9,
        }
    }
    const KINDS: usize = 10;

    /// Returns every reason, with every number that a Terminate can encode.
    fn reasons() -> Vec<EndReason> {
        let numbers = || (0..=0xffff).map(ErrorNumber::from_code);
        let mut all: Vec<EndReason> = numbers().map(EndReason::Detected).collect();
        all.extend(numbers().map(EndReason::Terminated));
        all.extend([Truncation::Fpdu, Truncation::Message].map(EndReason::Truncated));
        let losses = [Loss::Reset, Loss::NoAnswer, Loss::Device, Loss::Other];
        all.extend(losses.map(EndReason::Lost));
        all.extend([EndReason::TerminatedUnnumbered, EndReason::CqOverrun]);
        all
    }

    // NDK-DISC-7: 0 means that no reason is known, and no other value does.
    #[test]
    fn each_reason_has_its_own_nonzero_value_and_text() {
        let all = reasons();
        let kinds: BTreeSet<usize> = all.iter().map(|reason| kind(*reason)).collect();
        assert_eq!(kinds.len(), KINDS);
        let none = DisconnectReason::new(None);
        let (mut values, mut texts) =
            (BTreeSet::from([none.0]), BTreeSet::from([none.to_string()]));
        for reason in &all {
            let value = DisconnectReason::new(Some(*reason));
            assert_eq!(value.end_reason(), Some(*reason), "{value:?}");
            assert_eq!(value.to_string(), reason.to_string());
            assert!(values.insert(value.0), "{reason:?}: value of another reason: {:#x}", value.0);
            assert!(texts.insert(reason.to_string()), "{reason:?}: text of another reason");
        }
        assert_eq!((values.len(), texts.len()), (all.len() + 1, all.len() + 1));
    }

    // NDK-RES-3: the same for completions, whose type determines the side.
    #[test]
    fn each_error_of_a_completion_is_nonzero_and_is_found_again() {
        use OperationType::{Receive, ReceiveAndInvalidate, ReceiveImmediate, Send, Write};
        for number in (0..=0xffff).map(ErrorNumber::from_code) {
            let provider_error_code = number.nonzero_code();
            assert_ne!(provider_error_code, 0, "{number}");
            for operation in [Receive, ReceiveAndInvalidate, ReceiveImmediate, Send, Write] {
                let result =
                    NdkResultEx { operation, provider_error_code, ..NdkResultEx::default() };
                let expected = match operation {
                    Send | Write => EndReason::Terminated(number),
                    _ => EndReason::Detected(number),
                };
                assert_eq!(result.error(), Some(expected));
            }
        }
        assert_eq!(NdkResultEx::default().error(), None);
    }

    // A connection that was not established was not closed normally.
    #[test]
    fn failed_attempts_have_a_reason_unless_rejected() {
        let limit = core::time::Duration::from_secs(1);
        let framing = Framing { crc: true, send_markers: false, receive_markers: false };
        let found = EndReason::Detected(WireError::ProtectionBounds.number());
        let lost = DisconnectReason::LOST;
        for (cause, expected) in [
            (ConnectCause::Ended(found), DisconnectReason(0x0101)),
            (ConnectCause::Ended(EndReason::Lost(Loss::Reset)), DisconnectReason::RESET),
            (
                ConnectCause::Startup(StartupError::EarlyData { octets: 1 }),
                DisconnectReason(0x2004),
            ),
            (
                ConnectCause::Startup(StartupError::InsufficientIrd {
                    wanted: 2,
                    have: 1,
                    framing,
                }),
                DisconnectReason(0x2006),
            ),
            (
                ConnectCause::Startup(StartupError::Rejected {
                    private_data: Bytes::new(),
                    enhanced: None,
                }),
                DisconnectReason(0),
            ),
            (ConnectCause::NoHandshake(limit), DisconnectReason::NO_ANSWER),
            (ConnectCause::NoReply(limit), DisconnectReason::NO_ANSWER),
            (ConnectCause::NoFirstMessage(limit), DisconnectReason::NO_ANSWER),
            (ConnectCause::Tcp(ConnectError::TimedOut), DisconnectReason::NO_ANSWER),
            (ConnectCause::Tcp(ConnectError::DeviceLost), DisconnectReason::DEVICE_LOST),
            (ConnectCause::Tcp(ConnectError::Refused), lost),
            (ConnectCause::NotAnswered(limit), lost),
            (ConnectCause::Closed, lost),
        ] {
            assert_eq!(DisconnectReason::of_attempt(&cause), expected, "{cause:?}");
        }
    }
}
