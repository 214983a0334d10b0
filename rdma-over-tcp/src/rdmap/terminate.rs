//! Terminate: the last message of a stream that failed (RFC 5040 §4.8).
//!
//! On the wire, behind the untagged DDP header: layer and type (a nibble each), code, flags M D R,
//! a zero octet, then with D the length of the offending segment and its DDP header, then with R
//! its Read Request header.
//!
//! Linux siw lays these fields out as C bit fields, so little-endian hosts send layer and type
//! exchanged and M, D, R as the low bits 0x01, 0x02, 0x04. [`ReceivedTerminate`] reads both forms,
//! decides which was meant, and keeps both readings for the log. No Terminate is invalid: any ends
//! the stream.

use core::fmt;

use super::{Opcode, READ_REQUEST_OCTETS, ReadRequest};
use crate::{
    ddp::{HeaderCopy, HeaderOctets, Segment, UNTAGGED_OCTETS},
    error::{ErrorNumber, WireError},
};

/// Octets of the largest Terminate behind its DDP header.
pub const TERMINATE_OCTETS_MAX: usize = 4 + 2 + UNTAGGED_OCTETS + READ_REQUEST_OCTETS;

/// M, D, R.
#[derive(Clone, Copy)]
struct Flags {
    length_valid: u8,
    ddp: u8,
    read: u8,
}

const RFC_FLAGS: Flags = Flags { length_valid: 0x80, ddp: 0x40, read: 0x20 };
const SWAPPED_FLAGS: Flags = Flags { length_valid: 0x01, ddp: 0x02, read: 0x04 };
const RFC_FLAG_BITS: u8 = 0xe0;
const SWAPPED_FLAG_BITS: u8 = 0x07;

/// A Terminate: why, and of which segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// Why.
    pub number: ErrorNumber,
    /// Octets of the offending ULPDU, DDP header included. Some senders leave the header out.
    pub segment_octets: Option<u16>,
    /// DDP header of the offending segment, as it came.
    pub header: Option<HeaderCopy>,
    /// Read Request header of the offending segment; of a read that failed midway, what was left of it.
    pub read_request: Option<ReadRequest>,
}

impl Terminate {
    /// A Terminate without a header copy: local and LLP errors (RDM-7.1-2).
    pub const fn new(error: WireError) -> Self {
        Self { number: error.number(), segment_octets: None, header: None, read_request: None }
    }

    /// A Terminate for an error found in an inbound ULPDU, with the headers that belong to that
    /// kind of error (RFC 5040 §4.8, figure 10; RDM-7.1-3, RDM-7.1-4): none for local and LLP
    /// errors, the DDP header and the length for errors of DDP and of RDMAP operations, the Read
    /// Request header too for protection errors. Of a ULPDU that is shorter than its DDP header
    /// nothing is returned.
    pub fn for_ulpdu(error: WireError, ulpdu: &[u8]) -> Self {
        let terminate = Self::new(error);
        let ErrorNumber { layer, etype, code: _ } = terminate.number;
        let Some(header) = HeaderCopy::of(ulpdu) else { return terminate };
        if layer >= 2 || etype == 0 {
            return terminate;
        }
        let opcode = header.segment().and_then(|it| Opcode::from_control(it.ulp()).ok());
        let is_read_request = opcode == Some(Opcode::ReadRequest);
        let request = || ulpdu[header.len()..].first_chunk().map(ReadRequest::from_octets);
        let read_request =
            if (layer, etype) == (0, 1) && is_read_request { request() } else { None };
        Self {
            segment_octets: u16::try_from(ulpdu.len()).ok(),
            header: Some(header),
            read_request,
            ..terminate
        }
    }

    /// A Terminate for a Read Request with this DDP header, of which `left` cannot be answered any more (RDM-7.1-4).
    pub fn for_read(error: WireError, header: HeaderCopy, left: ReadRequest) -> Self {
        let read_request = Some(left);
        Self { read_request, ..Self::for_request(error, header, READ_REQUEST_OCTETS) }
    }

    /// A Terminate for another request with this DDP header and so many octets behind it, which cannot be answered any
    /// more (EXT-8.1-1).
    pub fn for_request(error: WireError, header: HeaderCopy, octets: usize) -> Self {
        let segment_octets = u16::try_from(header.len() + octets).ok();
        Self { segment_octets, header: Some(header), ..Self::new(error) }
    }

    /// The DDP header of the offending segment, unless it cannot be read.
    pub fn segment(&self) -> Option<Segment> {
        self.header?.segment()
    }

    /// Appends the Terminate to its DDP header.
    pub(super) fn emit_into(&self, out: &mut HeaderOctets) {
        let Self {
            number: ErrorNumber { layer, etype, code },
            segment_octets,
            header,
            read_request,
        } = *self;
        let mut flags = 0;
        if header.is_some() {
            flags |= RFC_FLAGS.ddp;
            if segment_octets.is_some() {
                flags |= RFC_FLAGS.length_valid;
            }
            if read_request.is_some() {
                flags |= RFC_FLAGS.read;
            }
        }
        out.push(&[layer << 4 | etype & 0x0f, code, flags, 0]);
        if let Some(header) = header {
            out.push(&segment_octets.unwrap_or(0).to_be_bytes());
            out.push(&header);
            if let Some(request) = read_request {
                out.push(&request.emit());
            }
        }
    }

    /// Reads fields that stand behind the control word, as far as they are there.
    fn with_headers(number: ErrorNumber, flags: u8, known: Flags, rest: &[u8]) -> Self {
        let mut terminate = Self { number, segment_octets: None, header: None, read_request: None };
        if flags & known.ddp == 0 {
            return terminate;
        }
        let Some((&length, rest)) = rest.split_first_chunk() else { return terminate };
        if flags & known.length_valid != 0 {
            terminate.segment_octets = Some(u16::from_be_bytes(length));
        }
        let Some(header) = HeaderCopy::of(rest) else { return terminate };
        terminate.header = Some(header);
        if flags & known.read != 0 {
            terminate.read_request = rest
                .get(header.len()..)
                .and_then(|rest| rest.first_chunk())
                .map(ReadRequest::from_octets);
        }
        terminate
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number.known() {
            Some(error) => write!(f, "{error}"),
            None => write!(f, "unknown error ({})", self.number),
        }
    }
}

/// Where a stream stands when a Terminate arrives. Errors of start-up and errors of operation have
/// numbers that an exchange of layer and type maps to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminatePhase {
    /// No FPDU but this one has been received since the Reply was sent.
    Startup,
    /// Later.
    Operation,
}

/// Which form a Terminate has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reading {
    /// As in the RFC.
    Rfc,
    /// Layer and type exchanged.
    Swapped,
}

/// A Terminate as received, in both readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedTerminate {
    /// By the RFC.
    pub rfc: Terminate,
    /// With layer and type exchanged.
    pub swapped: Terminate,
    /// Which of them was meant.
    pub reading: Reading,
}

impl ReceivedTerminate {
    /// Reads what follows the DDP header; `None` when not even the error is there. Headers that are
    /// cut short are left out.
    pub fn parse(payload: &[u8], phase: TerminatePhase) -> Option<Self> {
        let (&[kind, code, flags, _reserved], rest) = payload.split_first_chunk()?;
        let number = ErrorNumber { layer: kind >> 4, etype: kind & 0x0f, code };
        Some(Self {
            rfc: Terminate::with_headers(number, flags, RFC_FLAGS, rest),
            swapped: Terminate::with_headers(number.swapped(), flags, SWAPPED_FLAGS, rest),
            reading: decide(number, flags, phase),
        })
    }

    /// The reading that was meant.
    pub const fn meant(&self) -> &Terminate {
        match self.reading {
            Reading::Rfc => &self.rfc,
            Reading::Swapped => &self.swapped,
        }
    }
}

impl fmt::Display for ReceivedTerminate {
    /// The error that was meant, and the numbers on the wire when they say something else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rfc, swapped, reading } = self;
        match reading {
            Reading::Rfc => write!(f, "{rfc}"),
            Reading::Swapped => write!(f, "{swapped}, sent as {}", rfc.number),
        }
    }
}

/// Flags determine the form where there are any; then a number that exists in one form only; then the
/// phase, because MPA's numbers 05 to 07 belong to start-up.
fn decide(number: ErrorNumber, flags: u8, phase: TerminatePhase) -> Reading {
    if flags & RFC_FLAG_BITS != 0 {
        return Reading::Rfc;
    }
    if flags & SWAPPED_FLAG_BITS != 0 {
        return Reading::Swapped;
    }
    let swapped = number.swapped();
    // A local catastrophic error has the same two nibbles either way, and type 1 does not exist in
    // the LLP.
    match (number.known(), swapped.known()) {
        _ if number == swapped => Reading::Rfc,
        (Some(_), None) => Reading::Rfc,
        (None, Some(_)) => Reading::Swapped,
        (None, None) if (number.layer, number.etype) == (2, 1) => Reading::Swapped,
        (None, None) => Reading::Rfc,
        (Some(_), Some(_)) => {
            let is_llp = number.layer == 2;
            let is_swapped_llp = swapped.layer == 2;
            match phase {
                TerminatePhase::Startup if is_swapped_llp => Reading::Swapped,
                TerminatePhase::Operation if is_llp => Reading::Swapped,
                TerminatePhase::Startup | TerminatePhase::Operation => Reading::Rfc,
            }
        }
    }
}
