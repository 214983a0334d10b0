//! Start-up: from two frames to an agreement (RFC 5044 §7.1, RFC 6581 §9).
//!
//! The side that sends the Request is the [`Initiator`], the other the [`Responder`]; who opened
//! the TCP connection does not matter. Both are values without I/O: octets go in, a frame to send
//! or an agreement comes out. The caller owns the clock.
//!
//! | | initiator | responder |
//! |---|---|---|
//! | sends | [`Initiator::request`] | [`Offer::accept`] or [`Offer::reject`] |
//! | receives | [`Initiator::receive`] | [`Responder::receive`] |
//! | waits at most | [`INITIATOR_TIME_LIMIT`] | [`RESPONDER_TIME_LIMIT`] |
//! | first FPDU | the RTR message, or anything | only after it has received one (MPA-7.1.2-10) |
//!
//! This side always speaks enhanced start-up as an initiator with revision 2, since it negotiates
//! IRD and ORD, and never with revision 1. As a responder it answers in the form and revision of
//! the Request.

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

/// How long an initiator waits for the Reply (MPA-7.1.2-15), as Linux siw does.
pub const INITIATOR_TIME_LIMIT: Duration = Duration::from_secs(10);

/// How long a responder waits for the Request, as Linux siw does.
pub const RESPONDER_TIME_LIMIT: Duration = Duration::from_secs(5);

/// RDMA Reads that may be outstanding, per direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadLimits {
    /// Inbound: reads of the peer that this side serves at a time, 0..=[`ReadDepth::MAX`].
    pub ird: u16,
    /// Outbound: reads that this side has outstanding at a time, 0..=[`ReadDepth::MAX`].
    pub ord: u16,
}

/// Configuration of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// Revision of the Request: two with enhanced data, one without.
    pub revision: Revision,
    /// Prefer CRCs. Off only on an administrator's explicit wish (MPA-4.4-2).
    pub crc: bool,
    /// Ask the peer for markers. They help a receiver that places out of order, which this one does
    /// not.
    pub markers: bool,
    /// Reads per direction. A power of two is best as IRD: Linux siw rounds up how many Reads it has
    /// outstanding, and one more than agreed ends the connection.
    pub limits: ReadLimits,
    /// RTR messages that this side can send; none for the client-server model (MPE-9.2-9).
    pub rtr: RtrSet,
    /// For the peer's ULP: with revision two at most [`PRIVATE_DATA_OCTETS_MAX`] less
    /// [`ENHANCED_OCTETS`].
    pub private_data: PrivateData,
}

impl Default for StartupConfig {
    /// Accepted by every known peer: revision 2, CRC, no markers, 16 reads each way, RTR by Write or
    /// Read.
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
    /// CRCs are generated and checked: one side was enough to ask for them (MPA-7.1.1-5).
    pub crc: bool,
    /// The peer demands markers (MPA-7.1.1-4).
    pub send_markers: bool,
    /// This side demanded markers.
    pub receive_markers: bool,
}

impl Framing {
    /// For what this side sends behind its start-up frame.
    pub fn encoder(self) -> Encoder {
        Encoder::new(self.crc, self.send_markers)
    }

    /// For what comes behind the peer's start-up frame.
    pub fn decoder(self) -> Decoder {
        Decoder::new(self.crc, self.receive_markers)
    }
}

/// The side that sent the Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// This side.
    Initiator,
    /// The peer. This side sends no FPDU before it has received one (MPA-7.1.2-10).
    Responder,
}

/// The agreement with which Full Operation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Negotiated {
    /// The side that sent the Request.
    pub role: Role,
    /// Revision of the Reply.
    pub revision: Revision,
    /// IRD, ORD and RTR were negotiated.
    pub enhanced: bool,
    /// Format of FPDUs.
    pub framing: Framing,
    /// Reads per direction.
    pub limits: ReadLimits,
    /// The RTR message: an initiator sends it as its first FPDU (MPE-5-1, MPE-9.2-7); a responder
    /// may expect it, invisible to its ULP unless it is a Send.
    pub rtr: Option<RtrKind>,
}

/// The fate of the connection when start-up fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureAction {
    /// Close TCP at once; nothing is sent (MPA-8-3).
    Close,
    /// Leave MPA. TCP stays open and the ULP decides; closing is the usual answer (MPA-7.1.2-8).
    LeaveMpa,
    /// Send this Terminate as the first and only FPDU, framed so, and close (MPE-9.1-6, MPE-9.2-8).
    Terminate(WireError, Framing),
}

/// Why start-up failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StartupError {
    /// The peer sent something that is no frame.
    #[error("not an MPA frame: {0}")]
    Frame(#[from] FrameError),
    /// Octets came behind a Request, before any Reply.
    #[error("{octets} octets after the Request, expected none before the Reply")]
    EarlyData {
        /// Octets.
        octets: usize,
    },
    /// The responder's ULP refuses.
    #[error("rejected by the peer")]
    Rejected {
        /// Private data of the peer's ULP.
        private_data: Bytes,
        /// Limits that the peer would have needed (MPE-9.1-4), if it says so.
        enhanced: Option<Enhanced>,
    },
    /// The form of the Reply is not that of the Request. To an enhanced Request this means a peer
    /// of the old kind; a new connection with [`Revision::One`] may succeed (MPE-10-3).
    #[error(
        "{}, expected {}{}",
        Form(*.revision, *.enhanced),
        Form(*.requested, *.requested >= Revision::Two),
        remedy(*.requested)
    )]
    Form {
        /// Of the Reply.
        revision: Revision,
        /// The Reply had enhanced data.
        enhanced: bool,
        /// Revision of the Request.
        requested: Revision,
    },
    /// The responder wants more reads outstanding than this side can serve (MPE-9.1-6).
    #[error(
        "the peer's ORD {wanted} exceeds this side's IRD {have}: lower the one or raise the other"
    )]
    InsufficientIrd {
        /// The responder's ORD.
        wanted: u16,
        /// IRD of this side.
        have: u16,
        /// For the Terminate.
        framing: Framing,
    },
    /// No RTR message of the Reply is one of those offered (MPE-9.2-8).
    #[error(
        "no ready-to-receive message in common: the peer's Reply has {theirs}, expected one of {ours}: \
         allow the same one at both ends"
    )]
    NoMatchingRtr {
        /// RTR messages of the Request.
        ours: RtrSet,
        /// RTR messages in the Reply.
        theirs: RtrSet,
        /// For the Terminate.
        framing: Framing,
    },
    /// The only RTR message that suits is a Read, which the responder cannot serve (MPE-9.2-8).
    #[error(
        "ready-to-receive message Read: the peer's IRD is 0, expected at least 1: \
         raise it or allow another message at both ends"
    )]
    ReadRtrWithoutIrd {
        /// For the Terminate.
        framing: Framing,
    },
}

/// Form of a start-up frame in words.
struct Form(Revision, bool);

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(revision, enhanced) = self;
        let preposition = if *enhanced { "with" } else { "without" };
        write!(f, "revision {revision} {preposition} enhanced data")
    }
}

/// Remedy for a Reply of another form than the Request of this revision.
const fn remedy(requested: Revision) -> &'static str {
    match requested {
        Revision::Two => ": connect with revision 1",
        Revision::Zero | Revision::One => "",
    }
}

impl StartupError {
    /// The fate of the connection.
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

    /// The number of this error; a rejection is none.
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
