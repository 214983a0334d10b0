//! DDP: segments with their placement in the header (RFC 5041).
//!
//! A ULPDU of MPA is one DDP segment: a header of 14 octets (tagged: placement by STag and offset) or 18 octets
//! (untagged: placement by queue, message and offset in a posted buffer), then payload. [`Segment`] is a valid header;
//! [`UntaggedReceiver`] and [`TaggedReceiver`] check that the segments of a message are in sequence. The owner of the
//! memory checks STags, bounds and access rights, and reports violations as [`DdpError`].
//!
//! Reserved bits are sent as zero and ignored on receipt (DDP-4.1-5). Only the receivers have state. No limits except
//! those of the fields, no timers.
#![forbid(unsafe_code)]

use core::{fmt, ops::Deref};

use thiserror::Error;

use crate::error::WireError;

mod receive;

pub use receive::{TaggedPlacement, TaggedReceiver, UntaggedPlacement, UntaggedReceiver};

/// Octets of a tagged header.
pub const TAGGED_OCTETS: usize = 14;

/// Octets of an untagged header.
pub const UNTAGGED_OCTETS: usize = 18;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 1;

/// Identifier of a registered buffer. The number is the same in an NDK token, and big-endian on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stag(pub u32);

/// Offset in a tagged buffer, in octets; its origin is agreed at registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaggedOffset(pub u64);

impl TaggedOffset {
    /// Adds `octets`; `None` if the offset wraps (RFC 5041 §4.2).
    pub fn checked_add(self, octets: u64) -> Option<Self> {
        self.0.checked_add(octets).map(Self)
    }
}

/// Number of a queue of untagged buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// Sends and immediate data.
    pub const SEND: Self = Self(0);
    /// Read Requests and Atomic Requests.
    pub const READ_REQUEST: Self = Self(1);
    /// Terminates.
    pub const TERMINATE: Self = Self(2);
    /// Atomic Responses (RFC 7306).
    pub const ATOMIC_RESPONSE: Self = Self(3);
    /// Acknowledgments, a private message of RDMAP.
    pub const ACKNOWLEDGMENT: Self = Self(4);
}

/// Message sequence number of a queue: starts at 1, wraps to 0 (DDP-4.3-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Msn(pub u32);

impl Msn {
    /// MSN of the first message of a queue.
    pub const FIRST: Self = Self(1);

    /// Returns the MSN of the next message.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Tagged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaggedSegment {
    /// L: true in the last segment of a message.
    pub last: bool,
    /// RsvdULP: RDMAP's control octet.
    pub ulp: u8,
    /// STag of the buffer.
    pub stag: Stag,
    /// Tagged offset of the payload.
    pub offset: TaggedOffset,
}

/// Untagged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UntaggedSegment {
    /// L: true in the last segment of a message.
    pub last: bool,
    /// First octet of RsvdULP: RDMAP's control octet.
    pub ulp: u8,
    /// The other four octets of RsvdULP: the STag to invalidate, or zero.
    pub ulp_word: u32,
    /// Queue number.
    pub queue: QueueNumber,
    /// Message sequence number.
    pub msn: Msn,
    /// MO: octets of the message before this payload.
    pub offset: u32,
}

/// DDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Header for a buffer identified by an STag.
    Tagged(TaggedSegment),
    /// Header for the buffer posted to a queue for the message.
    Untagged(UntaggedSegment),
}

impl Segment {
    /// Splits a ULPDU into header and payload.
    ///
    /// # Errors
    /// [`DdpError::Short`] and [`DdpError::Version`].
    #[inline]
    pub fn parse(ulpdu: &[u8]) -> Result<(Self, &[u8]), DdpError> {
        let short = DdpError::Short { octets: ulpdu.len() };
        let &control = ulpdu.first().ok_or(short)?;
        let tagged = control & TAGGED != 0;
        let last = control & LAST != 0;
        if control & VERSION_MASK != VERSION {
            return Err(DdpError::Version { tagged, version: control & VERSION_MASK });
        }
        if tagged {
            let (header, payload) = ulpdu.split_first_chunk::<TAGGED_OCTETS>().ok_or(short)?;
            let [_, ulp, s0, s1, s2, s3, offset @ ..] = *header;
            let segment = TaggedSegment {
                last,
                ulp,
                stag: Stag(u32::from_be_bytes([s0, s1, s2, s3])),
                offset: TaggedOffset(u64::from_be_bytes(offset)),
            };
            Ok((Self::Tagged(segment), payload))
        } else {
            let (header, payload) = ulpdu.split_first_chunk::<UNTAGGED_OCTETS>().ok_or(short)?;
            let [_, ulp, w0, w1, w2, w3, q0, q1, q2, q3, m0, m1, m2, m3, offset @ ..] = *header;
            let segment = UntaggedSegment {
                last,
                ulp,
                ulp_word: u32::from_be_bytes([w0, w1, w2, w3]),
                queue: QueueNumber(u32::from_be_bytes([q0, q1, q2, q3])),
                msn: Msn(u32::from_be_bytes([m0, m1, m2, m3])),
                offset: u32::from_be_bytes(offset),
            };
            Ok((Self::Untagged(segment), payload))
        }
    }

    /// Encodes the header.
    // For each FPDU; the compiler's own choice depends on the unit of the callers.
    #[inline(always)]
    pub fn emit(&self) -> HeaderOctets {
        let mut header = HeaderOctets::new();
        let control = |last| if last { LAST | VERSION } else { VERSION };
        match *self {
            Self::Tagged(TaggedSegment { last, ulp, stag, offset }) => {
                header.push(&[TAGGED | control(last), ulp]);
                header.push(&stag.0.to_be_bytes());
                header.push(&offset.0.to_be_bytes());
            }
            Self::Untagged(UntaggedSegment { last, ulp, ulp_word, queue, msn, offset }) => {
                header.push(&[control(last), ulp]);
                for word in [ulp_word, queue.0, msn.0, offset] {
                    header.push(&word.to_be_bytes());
                }
            }
        }
        header
    }

    /// Returns L: true in the last segment of a message.
    pub const fn last(&self) -> bool {
        match self {
            Self::Tagged(segment) => segment.last,
            Self::Untagged(segment) => segment.last,
        }
    }

    /// Returns RDMAP's control octet.
    pub const fn ulp(&self) -> u8 {
        match self {
            Self::Tagged(segment) => segment.ulp,
            Self::Untagged(segment) => segment.ulp,
        }
    }
}

/// DDP header as received, including reserved bits and an invalid version, as returned in a Terminate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeaderCopy {
    octets: [u8; UNTAGGED_OCTETS],
    length: usize,
}

impl HeaderCopy {
    /// Copies the header of a ULPDU; its T bit determines the size. `None` if the header is incomplete.
    pub fn of(ulpdu: &[u8]) -> Option<Self> {
        let is_tagged = ulpdu.first()? & TAGGED != 0;
        let length = if is_tagged { TAGGED_OCTETS } else { UNTAGGED_OCTETS };
        let mut octets = [0; UNTAGGED_OCTETS];
        octets[..length].copy_from_slice(ulpdu.get(..length)?);
        Some(Self { octets, length })
    }

    /// Parses the header; `None` if the version is not 1.
    pub fn segment(&self) -> Option<Segment> {
        Segment::parse(self).ok().map(|(segment, _)| segment)
    }
}

impl Deref for HeaderCopy {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.octets[..self.length]
    }
}

impl fmt::Debug for HeaderCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", &**self)
    }
}

/// Room for the largest header of a ULPDU: an untagged DDP header and a full Terminate.
pub const HEADER_OCTETS_MAX: usize = UNTAGGED_OCTETS + 4 + 2 + UNTAGGED_OCTETS + 28;

/// Headers of one ULPDU, on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeaderOctets {
    octets: [u8; HEADER_OCTETS_MAX],
    length: usize,
}

impl HeaderOctets {
    pub(crate) const fn new() -> Self {
        Self { octets: [0; HEADER_OCTETS_MAX], length: 0 }
    }

    pub(crate) fn push(&mut self, octets: &[u8]) {
        self.octets[self.length..][..octets.len()].copy_from_slice(octets);
        self.length += octets.len();
    }
}

impl Deref for HeaderOctets {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.octets[..self.length]
    }
}

impl fmt::Debug for HeaderOctets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", &**self)
    }
}

/// Error detected by DDP in a segment (RFC 5041 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum DdpError {
    /// The ULPDU is shorter than its header. DDP has no code for this; as in Linux siw it is reported as a wrong FPDU
    /// (2/0/03).
    #[error("ULPDU of {octets} octets: shorter than its header")]
    Short {
        /// Length of the ULPDU.
        octets: usize,
    },
    /// DV is not 1.
    #[error("DDP version {version}: expected 1")]
    Version {
        /// True for a tagged segment.
        tagged: bool,
        /// Version received.
        version: u8,
    },
    /// The STag is not valid, or differs from that of the message in progress.
    #[error("STag {:#010x}: not valid for this segment", .0.0)]
    InvalidStag(Stag),
    /// The payload exceeds the buffer, or does not continue the previous segment of the message.
    #[error("tagged offset {:#x}: outside of the buffer, or not the next of its message", .0.0)]
    Bounds(TaggedOffset),
    /// The STag is associated with another stream or protection domain.
    #[error("STag {:#010x}: belongs to another stream or protection domain", .0.0)]
    NotAssociated(Stag),
    /// The payload exceeds the 64-bit offset space.
    #[error("tagged offset {:#x}: payload wraps around the offset space", .0.0)]
    Wrap(TaggedOffset),
    /// Unknown queue, or wrong queue for this message.
    #[error("queue number {}: not valid for this message", .0.0)]
    InvalidQueue(QueueNumber),
    /// No buffer is posted for the message.
    #[error("message {}: no buffer posted", .0.0)]
    NoBuffer(Msn),
    /// The MSN is not the next one of its queue.
    #[error("message sequence number {}: expected {}", received.0, expected.0)]
    InvalidMsn {
        /// MSN received.
        received: Msn,
        /// Next MSN of the queue.
        expected: Msn,
    },
    /// The offset is not the next one of the message.
    #[error("message offset {received}: expected {expected}")]
    InvalidOffset {
        /// Offset received.
        received: u32,
        /// Next offset of the message.
        expected: u32,
    },
    /// The message does not fit its buffer.
    #[error("message of at least {octets} octets: its buffer holds {capacity}")]
    TooLong {
        /// Octets of the message up to the end of this segment.
        octets: u64,
        /// Octets of the buffer.
        capacity: u32,
    },
    /// RsvdULP changes within a message (DDP-4.2-1, DDP-4.3-1): the segment belongs to another message. RDMAP's code
    /// for it is unexpected opcode (0/2/06).
    #[error("message incomplete: next segment belongs to another message")]
    Interleaved,
}

impl DdpError {
    /// Returns the error code for a Terminate.
    pub const fn wire(self) -> WireError {
        match self {
            Self::Short { .. } => WireError::MpaMarker,
            Self::Version { tagged: true, .. } => WireError::TaggedVersion,
            Self::Version { tagged: false, .. } => WireError::UntaggedVersion,
            Self::InvalidStag(_) => WireError::TaggedInvalidStag,
            Self::Bounds(_) => WireError::TaggedBounds,
            Self::NotAssociated(_) => WireError::TaggedNotAssociated,
            Self::Wrap(_) => WireError::TaggedWrap,
            Self::InvalidQueue(_) => WireError::UntaggedQueue,
            Self::NoBuffer(_) => WireError::UntaggedNoBuffer,
            Self::InvalidMsn { .. } => WireError::UntaggedMsn,
            Self::InvalidOffset { .. } => WireError::UntaggedOffset,
            Self::TooLong { .. } => WireError::UntaggedTooLong,
            Self::Interleaved => WireError::OperationUnexpectedOpcode,
        }
    }
}

#[cfg(test)]
mod tests;
