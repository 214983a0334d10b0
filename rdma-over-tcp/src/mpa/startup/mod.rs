//! Start-up: negotiation by two frames (RFC 5044 §7.1, RFC 6581 §9).
//!
//! The side that sends the Request is the [`Initiator`], the other the [`Responder`]; the side that opened the TCP
//! connection may be either. Both are values without I/O: the input is octets, the output is a frame to send or a
//! [`Negotiated`]. The caller owns the clock.
//!
//! | | initiator | responder |
//! |---|---|---|
//! | sends | [`Initiator::request`] | [`Offer::accept`] or [`Offer::reject`] |
//! | receives | [`Initiator::receive`] | [`Responder::receive`] |
//! | time limit | [`INITIATOR_TIME_LIMIT`] | [`RESPONDER_TIME_LIMIT`] |
//! | first FPDU | the RTR message, or any | only after it has received one (MPA-7.1.2-10) |
//!
//! As an initiator this side uses enhanced start-up with revision 2, since it negotiates IRD and ORD, and never with
//! revision 1. As a responder it replies in the form and revision of the Request.

mod frame;
mod initiator;
mod responder;

use core::{fmt, time::Duration};

use bytes::Bytes;
pub use frame::{
    ENHANCED_OCTETS, Enhanced, FRAME_HEADER_OCTETS, Frame, FrameError, FrameKind, KEY_OCTETS,
    PRIVATE_DATA_OCTETS_MAX, PrivateData, PrivateDataTooLong, ReadDepth, Revision, RtrKind, RtrSet,
};
pub use initiator::{Initiator, Reply};
pub use responder::{Offer, Responder, ResponderConfig};
use thiserror::Error;

use super::{Decoder, Encoder};
use crate::error::WireError;

/// Time limit of an initiator for the Reply (MPA-7.1.2-15), as in Linux siw.
pub const INITIATOR_TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of a responder for the Request, as in Linux siw.
pub const RESPONDER_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Maximum outstanding RDMA Reads, per direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadLimits {
    /// Inbound: reads of the peer that this side serves concurrently, 0..=[`ReadDepth::MAX`].
    pub ird: u16,
    /// Outbound: reads that this side has outstanding concurrently, 0..=[`ReadDepth::MAX`].
    pub ord: u16,
}

/// Configuration of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// Revision of the Request: two with enhanced data, one without.
    pub revision: Revision,
    /// True if CRCs are requested: the default (MPA-4.4-2).
    pub crc: bool,
    /// True if markers are requested from the peer. They help a receiver that places out of order, which this one does
    /// not.
    pub markers: bool,
    /// Reads per direction. A power of two is best as IRD: Linux siw rounds up its number of outstanding Reads, and one
    /// more than negotiated terminates the connection.
    pub limits: ReadLimits,
    /// RTR messages that this side can send; empty for the client-server model (MPE-9.2-9).
    pub rtr: RtrSet,
    /// Private data for the peer's ULP: with revision 2 at most [`PRIVATE_DATA_OCTETS_MAX`] less [`ENHANCED_OCTETS`].
    pub private_data: PrivateData,
}

impl Default for StartupConfig {
    /// Accepted by every known peer: revision 2, CRC, no markers, 16 reads per direction, RTR by Write or Read.
    fn default() -> Self {
        Self {
            revision: Revision::Two,
            crc: true,
            markers: false,
            limits: ReadLimits { ird: 16, ord: 16 },
            rtr: RtrSet { send: false, write: true, read: true },
            private_data: PrivateData::default(),
        }
    }
}

/// Format of FPDUs, per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Framing {
    /// True if CRCs are generated and checked: a request of one side is sufficient (MPA-7.1.1-5).
    pub crc: bool,
    /// True if the peer requires markers (MPA-7.1.1-4).
    pub send_markers: bool,
    /// True if this side requires markers.
    pub receive_markers: bool,
}

impl Framing {
    /// Creates the encoder for the octets after this side's start-up frame.
    pub fn encoder(self) -> Encoder {
        Encoder::new(self.crc, self.send_markers)
    }

    /// Creates the decoder for the octets after the peer's start-up frame.
    pub fn decoder(self) -> Decoder {
        Decoder::new(self.crc, self.receive_markers)
    }
}

/// Side that sent the Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// This side.
    Initiator,
    /// The peer. This side sends no FPDU before it has received one (MPA-7.1.2-10).
    Responder,
}

/// Parameters negotiated for Full Operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Negotiated {
    /// Side that sent the Request.
    pub role: Role,
    /// Revision of the Reply.
    pub revision: Revision,
    /// True if IRD, ORD and RTR were negotiated.
    pub enhanced: bool,
    /// Format of FPDUs.
    pub framing: Framing,
    /// Reads per direction.
    pub limits: ReadLimits,
    /// RTR message: an initiator sends it as its first FPDU (MPE-5-1, MPE-9.2-7). A responder may expect it; it is
    /// invisible to its ULP unless it is a Send.
    pub rtr: Option<RtrKind>,
}

/// Action for the connection after start-up fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureAction {
    /// Close TCP immediately; no Terminate is sent (MPA-8-3).
    Close,
    /// Exit MPA. TCP stays open and the ULP decides; usually it closes (MPA-7.1.2-8).
    LeaveMpa,
    /// Send this Terminate as the first and only FPDU, in this framing, and close (MPE-9.1-6, MPE-9.2-8).
    Terminate(WireError, Framing),
}

/// Reason why start-up failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StartupError {
    /// The peer's octets are not a start-up frame.
    #[error("not an MPA frame: {0}")]
    Frame(#[from] FrameError),
    /// Octets were received after a Request, before any Reply.
    #[error("{octets} octets after the Request: expected none before the Reply")]
    EarlyData {
        /// Number of octets.
        octets: usize,
    },
    /// The responder's ULP rejected the connection.
    #[error("connection rejected by the peer")]
    Rejected {
        /// Private data of the peer's ULP.
        private_data: Bytes,
        /// Limits that the peer would have accepted (MPE-9.1-4), if it reported them.
        enhanced: Option<Enhanced>,
    },
    /// The form of the Reply differs from that of the Request. For an enhanced Request the peer does not support RFC
    /// 6581; a new connection with [`Revision::One`] may succeed (MPE-10-3).
    #[error(
        "{}, expected {}{}",
        Form(*.revision, *.enhanced),
        Form(*.requested, *.requested >= Revision::Two),
        remedy(*.requested)
    )]
    Form {
        /// Revision of the Reply.
        revision: Revision,
        /// True if the Reply had enhanced data.
        enhanced: bool,
        /// Revision of the Request.
        requested: Revision,
    },
    /// The responder's ORD exceeds this side's IRD (MPE-9.1-6).
    #[error(
        "the peer's ORD {wanted} exceeds this side's IRD {have}: reduce the ORD or increase the IRD"
    )]
    InsufficientIrd {
        /// The responder's ORD.
        wanted: u16,
        /// IRD of this side.
        have: u16,
        /// Framing of the Terminate.
        framing: Framing,
    },
    /// No RTR message of the Reply was offered (MPE-9.2-8).
    #[error(
        "no common ready-to-receive message: the peer's Reply has {theirs}, expected one of {ours}: \
         allow the same one on both sides"
    )]
    NoMatchingRtr {
        /// RTR messages of the Request.
        ours: RtrSet,
        /// RTR messages in the Reply.
        theirs: RtrSet,
        /// Framing of the Terminate.
        framing: Framing,
    },
    /// The only common RTR message is a Read, which the responder cannot serve (MPE-9.2-8).
    #[error(
        "ready-to-receive message Read: the peer's IRD is 0, expected at least 1: \
         increase it or allow another message on both sides"
    )]
    ReadRtrWithoutIrd {
        /// Framing of the Terminate.
        framing: Framing,
    },
}

/// Form of a start-up frame, for error texts.
struct Form(Revision, bool);

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(revision, enhanced) = self;
        let preposition = if *enhanced { "with" } else { "without" };
        write!(f, "revision {revision} {preposition} enhanced data")
    }
}

/// Remedy for a Reply whose form differs from a Request of this revision.
const fn remedy(requested: Revision) -> &'static str {
    match requested {
        Revision::Two => ": connect with revision 1",
        Revision::Zero | Revision::One => "",
    }
}

impl StartupError {
    /// Returns the action for the connection.
    pub const fn action(&self) -> FailureAction {
        match self {
            Self::Frame(_) | Self::EarlyData { .. } | Self::Form { .. } => FailureAction::Close,
            Self::Rejected { .. } => FailureAction::LeaveMpa,
            Self::InsufficientIrd { framing, .. } => {
                FailureAction::Terminate(WireError::MpaInsufficientIrd, *framing)
            }
            Self::NoMatchingRtr { framing, .. } | Self::ReadRtrWithoutIrd { framing } => {
                FailureAction::Terminate(WireError::MpaNoMatchingRtr, *framing)
            }
        }
    }

    /// Returns the wire error; `None` for a rejection.
    pub const fn wire(&self) -> Option<WireError> {
        match self {
            Self::Frame(_) | Self::EarlyData { .. } | Self::Form { .. } => {
                Some(WireError::MpaStartup)
            }
            Self::Rejected { .. } => None,
            Self::InsufficientIrd { .. } => Some(WireError::MpaInsufficientIrd),
            Self::NoMatchingRtr { .. } | Self::ReadRtrWithoutIrd { .. } => {
                Some(WireError::MpaNoMatchingRtr)
            }
        }
    }
}

#[cfg(test)]
mod tests;
