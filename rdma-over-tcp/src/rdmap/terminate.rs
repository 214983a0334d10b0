//! Terminate: the last message of a failed stream (RFC 5040 §4.8).
//!
//! On the wire, after the untagged DDP header: layer and type (a nibble each), code, flags M D R, a zero octet, then
//! with D the length of the offending segment and its DDP header, then with R its Read Request header.
//!
//! Linux siw defines these fields as C bit fields, so little-endian hosts send layer and type swapped and M, D, R as
//! the low bits 0x01, 0x02, 0x04. [`ReceivedTerminate`] parses both forms, selects the likely one, and keeps both for
//! the log. No Terminate is invalid: any ends the stream.

use core::fmt;

use super::{Opcode, READ_REQUEST_OCTETS, ReadRequest};
use crate::{
    ddp::{HeaderCopy, HeaderOctets, Segment, UNTAGGED_OCTETS},
    error::{ErrorNumber, WireError},
};

/// Octets of the largest Terminate after its DDP header.
pub const TERMINATE_OCTETS_MAX: usize = 4 + 2 + UNTAGGED_OCTETS + READ_REQUEST_OCTETS;

/// Flags M, D and R.
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

/// Terminate message: the error, and the offending segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// Layer, type and code of the error.
    pub number: ErrorNumber,
    /// Octets of the offending ULPDU, DDP header included. Some senders do not count the header.
    pub segment_octets: Option<u16>,
    /// DDP header of the offending segment, as received.
    pub header: Option<HeaderCopy>,
    /// Read Request header of the offending segment; of a read that failed midway, its unanswered rest.
    pub read_request: Option<ReadRequest>,
}

impl Terminate {
    /// Creates a Terminate without a header copy: local and LLP errors (RDM-7.1-2).
    pub const fn new(error: WireError) -> Self {
        Self { number: error.number(), segment_octets: None, header: None, read_request: None }
    }

    /// Creates a Terminate for an error in an inbound ULPDU, with the headers of that kind of error (RFC 5040 §4.8,
    /// figure 10; RDM-7.1-3, RDM-7.1-4). Local and LLP errors have none. Errors of DDP and of RDMAP operations have the
    /// DDP header and the length. Protection errors have the Read Request header, too. A ULPDU shorter than its DDP
    /// header is not returned.
    pub fn for_ulpdu(error: WireError, ulpdu: &[u8]) -> Self {
        let Some(header) = HeaderCopy::of(ulpdu) else { return Self::new(error) };
        let terminate = Self::for_segment(error, header, ulpdu.len());
        let ErrorNumber { layer, etype, code: _ } = terminate.number;
        let opcode = header.segment().and_then(|it| Opcode::from_control(it.ulp()).ok());
        let is_read_request = opcode == Some(Opcode::ReadRequest);
        let request = || ulpdu[header.len()..].first_chunk().map(ReadRequest::from_octets);
        let read_request =
            if (layer, etype) == (0, 1) && is_read_request { request() } else { None };
        Self { read_request, ..terminate }
    }

    /// As [`Terminate::for_ulpdu`], for a ULPDU of `octets` octets with this DDP header, which is no Read Request.
    pub fn for_segment(error: WireError, header: HeaderCopy, octets: usize) -> Self {
        let terminate = Self::new(error);
        let ErrorNumber { layer, etype, code: _ } = terminate.number;
        if layer >= 2 || etype == 0 {
            return terminate;
        }
        Self { segment_octets: u16::try_from(octets).ok(), header: Some(header), ..terminate }
    }

    /// Creates a Terminate for a Read Request with this DDP header, of which `left` cannot be answered (RDM-7.1-4).
    pub fn for_read(error: WireError, header: HeaderCopy, left: ReadRequest) -> Self {
        let read_request = Some(left);
        Self { read_request, ..Self::for_request(error, header, READ_REQUEST_OCTETS) }
    }

    /// Creates a Terminate for another request with this DDP header and `octets` octets after it, which cannot be
    /// answered (EXT-8.1-1).
    pub fn for_request(error: WireError, header: HeaderCopy, octets: usize) -> Self {
        let segment_octets = u16::try_from(header.len() + octets).ok();
        Self { segment_octets, header: Some(header), ..Self::new(error) }
    }

    /// Parses the DDP header of the offending segment; `None` if it cannot be parsed.
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

    /// Parses the fields after the control word, as far as they are present.
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

/// Phase of a stream at the receipt of a Terminate. Start-up errors and operation errors have codes that are equal
/// after layer and type are swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminatePhase {
    /// No other FPDU was received since the Reply was sent.
    Startup,
    /// An FPDU was received before.
    Operation,
}

/// Form of a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reading {
    /// As in RFC 5040.
    Rfc,
    /// Layer and type swapped.
    Swapped,
}

/// Terminate as received, parsed in both forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedTerminate {
    /// Parsed as in RFC 5040.
    pub rfc: Terminate,
    /// Parsed with layer and type swapped.
    pub swapped: Terminate,
    /// Form selected.
    pub reading: Reading,
}

impl ReceivedTerminate {
    /// Parses the octets after the DDP header; `None` if the error is incomplete. Truncated headers are omitted.
    pub fn parse(payload: &[u8], phase: TerminatePhase) -> Option<Self> {
        let (&[kind, code, flags, _reserved], rest) = payload.split_first_chunk()?;
        let number = ErrorNumber { layer: kind >> 4, etype: kind & 0x0f, code };
        Some(Self {
            rfc: Terminate::with_headers(number, flags, RFC_FLAGS, rest),
            swapped: Terminate::with_headers(number.swapped(), flags, SWAPPED_FLAGS, rest),
            reading: select_form(number, flags, phase),
        })
    }

    /// Returns the Terminate in the selected form.
    pub const fn meant(&self) -> &Terminate {
        match self.reading {
            Reading::Rfc => &self.rfc,
            Reading::Swapped => &self.swapped,
        }
    }
}

impl fmt::Display for ReceivedTerminate {
    /// Writes the error in the selected form, and the numbers on the wire if they differ.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rfc, swapped, reading } = self;
        match reading {
            Reading::Rfc => write!(f, "{rfc}"),
            Reading::Swapped => write!(f, "{swapped}, sent as {}", rfc.number),
        }
    }
}

/// The flags, if any, determine the form; otherwise a number that exists in one form only; otherwise the phase, because
/// MPA's codes 05 to 07 belong to start-up.
fn select_form(number: ErrorNumber, flags: u8, phase: TerminatePhase) -> Reading {
    if flags & RFC_FLAG_BITS != 0 {
        return Reading::Rfc;
    }
    if flags & SWAPPED_FLAG_BITS != 0 {
        return Reading::Swapped;
    }
    let swapped = number.swapped();
    // A local catastrophic error has equal nibbles in both forms, and the LLP has no type 1.
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
