//! Request and Reply frames (RFC 5044 §7.1.1, with the S bit and the enhanced data of RFC 6581 §6
//! and §9).

use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;
use thiserror::Error;

use crate::error::WireError;

/// Octets of the key at the start of a frame.
pub const KEY_OCTETS: usize = 16;

/// Octets of a frame before its private data.
pub const FRAME_HEADER_OCTETS: usize = KEY_OCTETS + 4;

/// Maximum private data in a frame, in octets, enhanced data included (MPA-7.1.1-11).
pub const PRIVATE_DATA_OCTETS_MAX: usize = 512;

/// Octets of the enhanced data at the front of the private data.
pub const ENHANCED_OCTETS: usize = 4;

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self as u8).fmt(f)
    }
}

/// Kind of a start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Sent by the initiator.
    Request,
    /// Sent by the responder.
    Reply,
}

impl FrameKind {
    /// Returns the 16 octets of the key (MPA-7.1.1-1).
    pub const fn key(self) -> &'static [u8; KEY_OCTETS] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// Version of MPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// Sent by RDMA Consortium peers. Accepted as [`Revision::One`] and answered with the same number.
    Zero = 0,
    /// RFC 5044.
    One = 1,
    /// RFC 6581: may carry enhanced data.
    Two = 2,
}

/// First message of the initiator in the peer-to-peer model, which allows the responder to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RtrKind {
    /// Zero-length Send: consumes a receive and is delivered.
    Send,
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read: needs an IRD of at least 1 at the responder.
    Read,
}

/// Set of [`RtrKind`]s: the flags B, C and D.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RtrSet {
    /// Flag B.
    pub send: bool,
    /// Flag C.
    pub write: bool,
    /// Flag D.
    pub read: bool,
}

impl fmt::Display for RtrSet {
    /// Writes the kinds, such as "Write, Read", or "none".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { send, write, read } = *self;
        let kinds = [(send, "Send"), (write, "Write"), (read, "Read")];
        let mut names = kinds.into_iter().filter_map(|(is_set, name)| is_set.then_some(name));
        f.write_str(names.next().unwrap_or("none"))?;
        names.try_for_each(|name| write!(f, ", {name}"))
    }
}

impl RtrSet {
    /// Empty set.
    pub const NONE: Self = Self { send: false, write: false, read: false };

    /// Returns the set with only `kind`.
    pub const fn only(kind: RtrKind) -> Self {
        Self {
            send: matches!(kind, RtrKind::Send),
            write: matches!(kind, RtrKind::Write),
            read: matches!(kind, RtrKind::Read),
        }
    }

    /// Returns the intersection of both sets.
    pub const fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Returns the kind of the lowest cost: Write before Read before Send.
    pub const fn preferred(self) -> Option<RtrKind> {
        match self {
            Self { write: true, .. } => Some(RtrKind::Write),
            Self { read: true, .. } => Some(RtrKind::Read),
            Self { send: true, .. } => Some(RtrKind::Send),
            Self { send: false, write: false, read: false } => None,
        }
    }
}

/// Number of outstanding RDMA Reads in enhanced data: 14 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadDepth(u16);

impl ReadDepth {
    /// Value 0x3FFF: not negotiated in this frame (RFC 6581 §9.1).
    pub const UNSPECIFIED: Self = Self(0x3fff);

    /// Maximum depth, in reads.
    pub const MAX: u16 = 0x3ffe;

    /// Creates a depth of `reads`, limited to [`MAX`](Self::MAX).
    pub const fn new(reads: u16) -> Self {
        Self(if reads > Self::MAX { Self::MAX } else { reads })
    }

    /// Returns the number of reads, or `None` if unspecified.
    pub const fn reads(self) -> Option<u16> {
        match self {
            Self::UNSPECIFIED => None,
            Self(reads) => Some(reads),
        }
    }

    const fn from_wire(word: u16) -> Self {
        Self(word & 0x3fff)
    }
}

/// Enhanced data (RFC 6581 §9), from its sender's view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Enhanced {
    /// Reads that the sender can serve (IRD).
    pub ird: ReadDepth,
    /// Reads that the sender intends to have outstanding (ORD).
    pub ord: ReadDepth,
    /// A: true if the initiator sends an RTR message first.
    pub peer_to_peer: bool,
    /// B, C, D: kinds of RTR message. Not significant if A is 0.
    pub rtr: RtrSet,
}

impl Enhanced {
    fn from_wire(octets: [u8; ENHANCED_OCTETS]) -> Self {
        let [a, b, c, d] = octets;
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            ird: ReadDepth::from_wire(first),
            ord: ReadDepth::from_wire(second),
            peer_to_peer: first & 0x8000 != 0,
            rtr: RtrSet {
                send: first & 0x4000 != 0,
                write: second & 0x8000 != 0,
                read: second & 0x4000 != 0,
            },
        }
    }

    fn to_wire(self) -> [u8; ENHANCED_OCTETS] {
        let Self { ird, ord, peer_to_peer, rtr: RtrSet { send, write, read } } = self;
        let first = u16::from(peer_to_peer) << 15 | u16::from(send) << 14 | ird.0;
        let second = u16::from(write) << 15 | u16::from(read) << 14 | ord.0;
        (u32::from(first) << 16 | u32::from(second)).to_be_bytes()
    }
}

/// Private data to send: octets of the ULP in a start-up frame.
///
/// Linux siw and cxgb4 accept at most 251 octets of it with enhanced data. The RFC allows 508 there, and 512 in a frame
/// without enhanced data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrivateData(Bytes);

impl PrivateData {
    /// Creates private data of at most [`PRIVATE_DATA_OCTETS_MAX`] octets. A frame with enhanced data has room for
    /// [`ENHANCED_OCTETS`] less.
    ///
    /// # Errors
    /// [`PrivateDataTooLong`] if `octets` is longer.
    pub fn new(octets: impl Into<Bytes>) -> Result<Self, PrivateDataTooLong> {
        let octets = octets.into();
        match octets.len() {
            0..=PRIVATE_DATA_OCTETS_MAX => Ok(Self(octets)),
            octets => Err(PrivateDataTooLong { octets }),
        }
    }

    /// Returns the octets.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Error: private data longer than a frame can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("private data of {octets} octets: expected at most 512")]
pub struct PrivateDataTooLong {
    /// Octets given.
    pub octets: usize,
}

/// A start-up frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: true if the sender of the frame requests markers on its inbound stream.
    pub markers: bool,
    /// C: true if the sender of the frame prefers CRCs.
    pub crc: bool,
    /// R: true if the responder's ULP rejects. Not significant in a Request.
    pub reject: bool,
    /// Version of MPA.
    pub revision: Revision,
    /// Enhanced data (S), only with [`Revision::Two`].
    pub enhanced: Option<Enhanced>,
    /// Private data of the ULP.
    pub private_data: PrivateData,
}

/// Reason why octets are not a start-up frame. Each closes the connection immediately (RFC 5044 §8, code 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum FrameError {
    /// The key differs (MPA-7.1.1-2); also when both sides are initiators (MPA-7.1.2-13).
    #[error("key of the frame: octet {at} differs")]
    Key {
        /// Index of the first octet that differs.
        at: usize,
    },
    /// Revision not supported by this side (MPA-7.1.1-9).
    #[error("MPA revision {0}: expected 0 to 2")]
    Revision(u8),
    /// More private data than allowed (MPA-7.1.1-10).
    #[error("private data of {0} octets: expected at most {PRIVATE_DATA_OCTETS_MAX}")]
    PrivateDataLength(u16),
    /// S is set, but the private data is too short for the enhanced data.
    #[error("enhanced frame with {0} octets of private data: expected at least {ENHANCED_OCTETS}")]
    EnhancedLength(u16),
}

impl FrameError {
    /// Returns the wire error.
    pub const fn wire(self) -> WireError {
        WireError::MpaStartup
    }
}

impl Frame {
    /// Parses a frame of this kind at the start of a stream. Returns it with its length in octets, or `None` while
    /// octets are missing.
    ///
    /// # Errors
    /// [`FrameError`] as soon as the octets present cannot become a frame: a wrong key is detected at its first wrong
    /// octet. Reserved bits are ignored (MPA-7.1.1-8); with revision 1 S is one of them.
    pub fn parse(kind: FrameKind, octets: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        if let Some(at) = kind.key().iter().zip(octets).position(|(key, octet)| key != octet) {
            return Err(FrameError::Key { at });
        }
        let revision = match octets.get(KEY_OCTETS + 1) {
            None => return Ok(None),
            Some(0) => Revision::Zero,
            Some(1) => Revision::One,
            Some(2) => Revision::Two,
            Some(&other) => return Err(FrameError::Revision(other)),
        };
        let flags = octets[KEY_OCTETS];
        let Some(&[high, low]) = octets[KEY_OCTETS + 2..].first_chunk() else { return Ok(None) };
        let length = u16::from_be_bytes([high, low]);
        if usize::from(length) > PRIVATE_DATA_OCTETS_MAX {
            return Err(FrameError::PrivateDataLength(length));
        }
        let has_enhanced = revision >= Revision::Two && flags & ENHANCED != 0;
        if has_enhanced && usize::from(length) < ENHANCED_OCTETS {
            return Err(FrameError::EnhancedLength(length));
        }
        let end = FRAME_HEADER_OCTETS + usize::from(length);
        let Some(data) = octets.get(FRAME_HEADER_OCTETS..end) else { return Ok(None) };
        let (enhanced, data) = match data.split_first_chunk() {
            Some((&word, rest)) if has_enhanced => (Some(Enhanced::from_wire(word)), rest),
            _ => (None, data),
        };
        let frame = Self {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: flags & REJECT != 0,
            revision,
            enhanced,
            private_data: PrivateData(Bytes::copy_from_slice(data)),
        };
        Ok(Some((frame, end)))
    }

    /// Encodes the frame, to be sent in one segment: peers such as Linux siw accept no octets after it.
    ///
    /// # Panics
    /// If enhanced data precedes more than 508 octets of private data.
    pub fn emit(&self) -> Bytes {
        let Self { kind, markers, crc, reject, revision, enhanced, private_data } = self;
        let enhanced = enhanced.filter(|_| *revision >= Revision::Two);
        let flag = |set: bool, mask: u8| if set { mask } else { 0 };
        let flags = flag(*markers, MARKERS)
            | flag(*crc, CRC)
            | flag(*reject, REJECT)
            | flag(enhanced.is_some(), ENHANCED);
        let length = private_data.0.len() + if enhanced.is_some() { ENHANCED_OCTETS } else { 0 };
        assert!(length <= PRIVATE_DATA_OCTETS_MAX, "{length} octets of private data");
        let mut octets = Vec::with_capacity(FRAME_HEADER_OCTETS + length);
        octets.extend_from_slice(kind.key());
        octets.extend_from_slice(&[flags, *revision as u8]);
        octets.extend_from_slice(&(length as u16).to_be_bytes());
        if let Some(enhanced) = enhanced {
            octets.extend_from_slice(&enhanced.to_wire());
        }
        octets.extend_from_slice(&private_data.0);
        octets.into()
    }
}
