//! RDMAP: the operations (RFC 5040).
//!
//! The first octet of DDP's RsvdULP holds version and opcode; the opcode determines the kind of segment and the queue
//! of a message. [`parse`] converts a ULPDU to an [`Inbound`] message part after all checks that need no state. The
//! receivers of [`ddp`](crate::ddp) check the sequence, and the owner of the memory checks access. The functions with
//! the suffix `_header` encode outbound messages. [`Segmenter`] segments a message by the current MULPDU.
//!
//! Atomic Operations and Immediate Data are those of RFC 7306; an implementation that does not support them rejects
//! them as unexpected opcodes. The same holds for two private messages, the acknowledgment and the Send with immediate
//! data, which only queue pairs of reliable connected service exchange. Limits: a message is shorter than 2^32 octets
//! (DDP-5.2-2). This module buffers no data.
#![forbid(unsafe_code)]

use core::fmt;

use thiserror::Error;

use crate::{
    ddp::{
        DdpError, HeaderOctets, Msn, QueueNumber, Segment, Stag, TaggedOffset, TaggedSegment,
        UntaggedSegment,
    },
    error::WireError,
    mpa::startup::RtrKind,
};

mod acknowledgment;
mod atomic;
mod extension;
mod read;
mod segmenter;
mod terminate;

pub use acknowledgment::{ACKNOWLEDGMENT_OCTETS, Acknowledgment, Syndrome};
pub use atomic::{
    ATOMIC_REQUEST_OCTETS, ATOMIC_RESPONSE_OCTETS, ATOMIC_TARGET_OCTETS, AtomicOperation,
    AtomicRequest, AtomicResponse,
};
pub use extension::{Extension, IMMEDIATE_OCTETS};
pub use read::{PendingRead, READ_REQUEST_OCTETS, ReadRequest};
pub use segmenter::{Cut, Segmenter};
pub use terminate::{Reading, ReceivedTerminate, TERMINATE_OCTETS_MAX, Terminate, TerminatePhase};

const VERSION_MASK: u8 = 0xc0;
const VERSION: u8 = 0x40;
const OPCODE_MASK: u8 = 0x0f;
/// Reserved bit of the control octet. In a Send with immediate data: the sink may raise an event.
const SOLICITED: u8 = 0x10;

/// Kind of message (RFC 5040 §4.1, RFC 7306).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data (RFC 7306).
    Immediate = 8,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSolicited = 9,
    /// Atomic Request (RFC 7306).
    AtomicRequest = 10,
    /// Atomic Response (RFC 7306).
    AtomicResponse = 11,
    /// Acknowledgment, a private message.
    Acknowledgment = 14,
    /// Send with immediate data, a private message.
    SendImmediate = 15,
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "RDMA Write",
            Self::ReadRequest => "RDMA Read Request",
            Self::ReadResponse => "RDMA Read Response",
            Self::Send => "Send",
            Self::SendInvalidate => "Send with Invalidate",
            Self::SendSolicited => "Send with Solicited Event",
            Self::SendSolicitedInvalidate => "Send with Solicited Event and Invalidate",
            Self::Terminate => "Terminate",
            Self::Immediate => "Immediate Data",
            Self::ImmediateSolicited => "Immediate Data with Solicited Event",
            Self::AtomicRequest => "Atomic Request",
            Self::AtomicResponse => "Atomic Response",
            Self::Acknowledgment => "Acknowledgment",
            Self::SendImmediate => "Send with Immediate",
        })
    }
}

impl Opcode {
    /// All opcodes, in ascending order.
    pub const ALL: [Self; 14] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSolicited,
        Self::AtomicRequest,
        Self::AtomicResponse,
        Self::Acknowledgment,
        Self::SendImmediate,
    ];

    const BY_NUMBER: [Option<Self>; 1 + OPCODE_MASK as usize] = {
        let mut table = [None; 1 + OPCODE_MASK as usize];
        let mut next = 0;
        while next < Self::ALL.len() {
            table[Self::ALL[next] as usize] = Some(Self::ALL[next]);
            next += 1;
        }
        table
    };

    /// Parses the control octet. Its reserved bits are ignored (RDM-4.1-4).
    ///
    /// # Errors
    /// [`RdmapError::Version`], [`RdmapError::Opcode`].
    pub fn from_control(control: u8) -> Result<Self, RdmapError> {
        if control & VERSION_MASK != VERSION {
            return Err(RdmapError::Version(control >> 6));
        }
        let opcode = control & OPCODE_MASK;
        Self::BY_NUMBER[usize::from(opcode)].ok_or(RdmapError::Opcode(opcode))
    }

    /// Returns the control octet: version 1 and this opcode.
    pub const fn control(self) -> u8 {
        VERSION | self as u8
    }

    /// True for an opcode of RFC 7306.
    pub const fn is_extension(self) -> bool {
        matches!(
            self,
            Self::Immediate | Self::ImmediateSolicited | Self::AtomicRequest | Self::AtomicResponse
        )
    }

    /// True for a private message, which RFC 5040 and RFC 7306 do not define.
    pub const fn is_private(self) -> bool {
        matches!(self, Self::Acknowledgment | Self::SendImmediate)
    }

    /// Returns the queue of an untagged message; `None` if the message is tagged (RDM-4.1-3).
    pub const fn queue(self) -> Option<QueueNumber> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited
            | Self::SendImmediate => Some(QueueNumber::SEND),
            Self::ReadRequest | Self::AtomicRequest => Some(QueueNumber::READ_REQUEST),
            Self::Terminate => Some(QueueNumber::TERMINATE),
            Self::AtomicResponse => Some(QueueNumber::ATOMIC_RESPONSE),
            Self::Acknowledgment => Some(QueueNumber::ACKNOWLEDGMENT),
        }
    }
}

/// Kind of Send message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendKind {
    /// Send.
    Plain,
    /// Send with Solicited Event.
    Solicited,
    /// Send with Invalidate of this STag.
    Invalidate(Stag),
    /// Send with Solicited Event and Invalidate of this STag.
    SolicitedInvalidate(Stag),
    /// Send with immediate data, a private message.
    Immediate {
        /// Immediate data, in octets.
        data: [u8; 4],
        /// True if the sink may raise an event.
        solicited: bool,
    },
}

impl SendKind {
    /// Returns the kind of a Send that invalidates `invalidate`, if given.
    pub const fn new(invalidate: Option<Stag>, solicited: bool) -> Self {
        match (invalidate, solicited) {
            (None, false) => Self::Plain,
            (None, true) => Self::Solicited,
            (Some(stag), false) => Self::Invalidate(stag),
            (Some(stag), true) => Self::SolicitedInvalidate(stag),
        }
    }

    /// Returns the opcode.
    pub const fn opcode(self) -> Opcode {
        match self {
            Self::Plain => Opcode::Send,
            Self::Solicited => Opcode::SendSolicited,
            Self::Invalidate(_) => Opcode::SendInvalidate,
            Self::SolicitedInvalidate(_) => Opcode::SendSolicitedInvalidate,
            Self::Immediate { .. } => Opcode::SendImmediate,
        }
    }

    /// Returns the control octet.
    const fn control(self) -> u8 {
        match self {
            Self::Immediate { solicited: true, .. } => Opcode::SendImmediate.control() | SOLICITED,
            _ => self.opcode().control(),
        }
    }

    /// Returns the word of the DDP header for RDMAP.
    const fn word(self) -> u32 {
        match self {
            Self::Plain | Self::Solicited => 0,
            Self::Invalidate(stag) | Self::SolicitedInvalidate(stag) => stag.0,
            Self::Immediate { data, .. } => u32::from_be_bytes(data),
        }
    }

    /// True if the sink may raise an event.
    pub const fn is_solicited(self) -> bool {
        match self {
            Self::Plain | Self::Invalidate(_) => false,
            Self::Solicited | Self::SolicitedInvalidate(_) => true,
            Self::Immediate { solicited, .. } => solicited,
        }
    }

    /// Returns the STag that the sink must invalidate (RDM-4.1-2).
    pub const fn invalidate(self) -> Option<Stag> {
        match self {
            Self::Plain | Self::Solicited | Self::Immediate { .. } => None,
            Self::Invalidate(stag) | Self::SolicitedInvalidate(stag) => Some(stag),
        }
    }
}

/// Error detected by RDMAP in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum RdmapError {
    /// Error detected by DDP.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// RV is not 1.
    #[error("RDMAP version {0}: expected 1")]
    Version(u8),
    /// Unknown opcode.
    #[error("opcode {0}: unknown")]
    Opcode(u8),
    /// The opcode is not valid for this kind of segment (RDM-4.1-3).
    #[error("{opcode}: not valid in {} segment", if *.tagged { "a tagged" } else { "an untagged" })]
    SegmentKind {
        /// Opcode received.
        opcode: Opcode,
        /// True if the segment was tagged.
        tagged: bool,
    },
    /// A message of fixed length that is not one segment of exactly that many octets after the DDP header.
    #[error("message of {octets} octets: expected {expected}")]
    Length {
        /// Octets of the segment's payload.
        octets: usize,
        /// Octets of the message.
        expected: usize,
    },
    /// Unknown Atomic Operation (EXT-5.2.1-2).
    #[error("atomic operation {0}: unknown")]
    AtomicOpcode(u8),
    /// Unknown syndrome of an acknowledgment.
    #[error("syndrome {0} of an acknowledgment: unknown")]
    Syndrome(u8),
}

impl RdmapError {
    /// Returns the error code for a Terminate.
    pub const fn wire(self) -> WireError {
        match self {
            Self::Ddp(error) => error.wire(),
            Self::Version(_) => WireError::OperationVersion,
            Self::Opcode(_) | Self::SegmentKind { .. } | Self::AtomicOpcode(_) => {
                WireError::OperationUnexpectedOpcode
            }
            Self::Syndrome(_) => WireError::OperationUnspecified,
            Self::Length { octets, expected } if octets < expected => WireError::MpaMarker,
            Self::Length { .. } => WireError::UntaggedTooLong,
        }
    }
}

/// One inbound ULPDU: a message, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbound<'a> {
    /// Part of an RDMA Write.
    Write {
        /// Placement of the payload.
        segment: TaggedSegment,
        /// Payload.
        payload: &'a [u8],
    },
    /// Part of a Read Response.
    ReadResponse {
        /// Placement of the payload.
        segment: TaggedSegment,
        /// Payload.
        payload: &'a [u8],
    },
    /// A Read Request.
    ReadRequest {
        /// Position in the queue.
        segment: UntaggedSegment,
        /// The request.
        request: ReadRequest,
    },
    /// Part of a Send of any kind.
    Send {
        /// Position in the queue.
        segment: UntaggedSegment,
        /// Kind of Send.
        kind: SendKind,
        /// Payload, for the receive buffer.
        payload: &'a [u8],
    },
    /// A message of RFC 7306, to be parsed by [`Extension::parse`].
    Extension {
        /// Position in its queue.
        segment: UntaggedSegment,
        /// Opcode of the message.
        opcode: Opcode,
        /// Payload of the segment.
        payload: &'a [u8],
    },
    /// A private message: an acknowledgment, to be parsed by [`Acknowledgment::parse`], or a part of a Send with
    /// immediate data ([`immediate_kind`]).
    Private {
        /// Position in its queue.
        segment: UntaggedSegment,
        /// Opcode of the message.
        opcode: Opcode,
        /// Payload of the segment.
        payload: &'a [u8],
    },
    /// A Terminate, to be parsed by [`ReceivedTerminate::parse`]. Any Terminate ends the stream.
    Terminate {
        /// Position in the queue.
        segment: UntaggedSegment,
        /// The Terminate message.
        payload: &'a [u8],
    },
}

/// Checks version, opcode, kind of segment, queue and length of a ULPDU (RDM-7.2-1).
///
/// # Errors
/// [`RdmapError`], in the order of the fields.
// Inlined: most messages are Writes, which need one of the branches.
#[inline(always)]
pub fn parse(ulpdu: &[u8]) -> Result<Inbound<'_>, RdmapError> {
    let (segment, payload) = Segment::parse(ulpdu)?;
    let opcode = Opcode::from_control(segment.ulp())?;
    match segment {
        Segment::Tagged(segment) => match opcode {
            Opcode::Write => Ok(Inbound::Write { segment, payload }),
            Opcode::ReadResponse => Ok(Inbound::ReadResponse { segment, payload }),
            _ => Err(RdmapError::SegmentKind { opcode, tagged: true }),
        },
        Segment::Untagged(segment) => {
            let stag = Stag(segment.ulp_word);
            let send = |kind| Inbound::Send { segment, kind, payload };
            let inbound = match opcode {
                Opcode::Write | Opcode::ReadResponse => {
                    return Err(RdmapError::SegmentKind { opcode, tagged: false });
                }
                Opcode::Send => send(SendKind::Plain),
                Opcode::SendSolicited => send(SendKind::Solicited),
                Opcode::SendInvalidate => send(SendKind::Invalidate(stag)),
                Opcode::SendSolicitedInvalidate => send(SendKind::SolicitedInvalidate(stag)),
                Opcode::ReadRequest => {
                    let request = ReadRequest::parse(payload, segment.last)?;
                    Inbound::ReadRequest { segment, request }
                }
                Opcode::Terminate => Inbound::Terminate { segment, payload },
                Opcode::Immediate
                | Opcode::ImmediateSolicited
                | Opcode::AtomicRequest
                | Opcode::AtomicResponse => Inbound::Extension { segment, opcode, payload },
                Opcode::Acknowledgment | Opcode::SendImmediate => {
                    Inbound::Private { segment, opcode, payload }
                }
            };
            if Some(segment.queue) != opcode.queue() {
                return Err(DdpError::InvalidQueue(segment.queue).into());
            }
            Ok(inbound)
        }
    }
}

/// Header of a part of an RDMA Write. `offset` is the tagged offset of this part, not of the message.
pub fn write_header(last: bool, stag: Stag, offset: TaggedOffset) -> HeaderOctets {
    let ulp = Opcode::Write.control();
    Segment::Tagged(TaggedSegment { last, ulp, stag, offset }).emit()
}

/// Header of a part of a Read Response; `offset` as for a Write.
pub fn read_response_header(last: bool, stag: Stag, offset: TaggedOffset) -> HeaderOctets {
    let ulp = Opcode::ReadResponse.control();
    Segment::Tagged(TaggedSegment { last, ulp, stag, offset }).emit()
}

/// Header of a part of a Send, `offset` octets after the start of the message.
pub fn send_header(last: bool, kind: SendKind, msn: Msn, offset: u32) -> HeaderOctets {
    let segment = UntaggedSegment {
        last,
        ulp: kind.control(),
        ulp_word: kind.word(),
        queue: QueueNumber::SEND,
        msn,
        offset,
    };
    Segment::Untagged(segment).emit()
}

/// Kind of a Send with immediate data with this segment.
pub const fn immediate_kind(segment: &UntaggedSegment) -> SendKind {
    SendKind::Immediate {
        data: segment.ulp_word.to_be_bytes(),
        solicited: segment.ulp & SOLICITED != 0,
    }
}

/// Encodes a whole acknowledgment.
pub fn acknowledgment_header(msn: Msn, acknowledgment: &Acknowledgment) -> HeaderOctets {
    let mut header = whole_untagged(Opcode::Acknowledgment, QueueNumber::ACKNOWLEDGMENT, msn);
    header.push(&acknowledgment.emit());
    header
}

/// Encodes a whole Read Request.
pub fn read_request_header(msn: Msn, request: &ReadRequest) -> HeaderOctets {
    let mut header = whole_untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, msn);
    header.push(&request.emit());
    header
}

/// Encodes a whole Immediate Data message.
pub fn immediate_header(solicited: bool, msn: Msn, data: [u8; IMMEDIATE_OCTETS]) -> HeaderOctets {
    let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
    let mut header = whole_untagged(opcode, QueueNumber::SEND, msn);
    header.push(&data);
    header
}

/// Encodes a whole Atomic Request.
pub fn atomic_request_header(msn: Msn, request: &AtomicRequest) -> HeaderOctets {
    let mut header = whole_untagged(Opcode::AtomicRequest, QueueNumber::READ_REQUEST, msn);
    header.push(&request.emit());
    header
}

/// Encodes a whole Atomic Response.
pub fn atomic_response_header(msn: Msn, response: &AtomicResponse) -> HeaderOctets {
    let mut header = whole_untagged(Opcode::AtomicResponse, QueueNumber::ATOMIC_RESPONSE, msn);
    header.push(&response.emit());
    header
}

/// Encodes a whole Terminate. There is one per stream, so it has the first MSN of its queue.
pub fn terminate_header(terminate: &Terminate) -> HeaderOctets {
    let mut header = whole_untagged(Opcode::Terminate, QueueNumber::TERMINATE, Msn::FIRST);
    terminate.emit_into(&mut header);
    header
}

/// STag of tagged RTR messages. No memory is accessed, but some adapters reject STag 0.
const RTR_STAG: Stag = Stag(1);

/// RTR message of an initiator: its first FPDU, without payload. A Send or a Read has the first MSN of its queue.
pub fn rtr_header(kind: RtrKind) -> HeaderOctets {
    match kind {
        RtrKind::Write => write_header(true, RTR_STAG, TaggedOffset(0)),
        RtrKind::Send => send_header(true, SendKind::Plain, Msn::FIRST, 0),
        RtrKind::Read => {
            let request = ReadRequest {
                sink_stag: RTR_STAG,
                sink_offset: TaggedOffset(0),
                octets: 0,
                source_stag: RTR_STAG,
                source_offset: TaggedOffset(0),
            };
            read_request_header(Msn::FIRST, &request)
        }
    }
}

fn whole_untagged(opcode: Opcode, queue: QueueNumber, msn: Msn) -> HeaderOctets {
    let ulp = opcode.control();
    let segment = UntaggedSegment { last: true, ulp, ulp_word: 0, queue, msn, offset: 0 };
    Segment::Untagged(segment).emit()
}

#[cfg(test)]
mod tests;
