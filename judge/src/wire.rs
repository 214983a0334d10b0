//! Encoder and decoder of MPA frames, FPDUs, DDP segments and RDMAP headers. No code is shared with the adapter, so
//! that a fault of one is visible to the other.

use std::fmt;

use crc_fast::crc32_iscsi;

/// Key of a Request (RFC 5044 §7.1.1).
pub(crate) const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
/// Key of a Reply.
pub(crate) const REPLY: &[u8; 16] = b"MPA ID Rep Frame";
/// Octets of a frame before its private data.
pub(crate) const FRAME_OCTETS: usize = 20;

/// Flags of a frame: markers, CRC, rejected, enhanced (RFC 6581 §6).
pub(crate) const M: u8 = 0x80;
pub(crate) const C: u8 = 0x40;
pub(crate) const R: u8 = 0x20;
pub(crate) const S: u8 = 0x10;

/// Opcodes (RFC 5040 §4.3, RFC 7306 §4).
pub(crate) const WRITE: u8 = 0;
pub(crate) const READ_REQUEST: u8 = 1;
pub(crate) const READ_RESPONSE: u8 = 2;
pub(crate) const SEND: u8 = 3;
pub(crate) const SEND_INVALIDATE: u8 = 4;
pub(crate) const SEND_EVENT: u8 = 5;
pub(crate) const SEND_EVENT_INVALIDATE: u8 = 6;
pub(crate) const TERMINATE: u8 = 7;

/// Octets of a DDP header: tagged, untagged.
const TAGGED_OCTETS: usize = 14;
const UNTAGGED_OCTETS: usize = 18;
/// Octets of the header of a Read Request.
pub(crate) const READ_OCTETS: usize = 28;

/// A value of IRD or ORD that is not specified (RFC 6581 §9.1).
pub(crate) const UNSPECIFIED: u16 = 0x3FFF;

/// Encodes a Request or Reply. `length`: the value of PD_Length, if not the length of the private data.
pub(crate) fn frame_of(
    key: &[u8; 16],
    flags: u8,
    revision: u8,
    private: &[u8],
    length: Option<u16>,
) -> Vec<u8> {
    let length = length.unwrap_or(private.len() as u16);
    [key, &[flags, revision][..], &length.to_be_bytes(), private].concat()
}

/// Enhanced word of RFC 6581 §9: two 16-bit words with limits and the bits A to D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Enhanced {
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    /// Peer-to-peer mode; ready to receive by Send, Write, Read.
    pub(crate) a: bool,
    pub(crate) b: bool,
    pub(crate) c: bool,
    pub(crate) d: bool,
}

/// The word that the judge sends if a case needs no other one.
pub(crate) const ENHANCED: Enhanced =
    Enhanced { ird: 4, ord: 4, a: true, b: false, c: true, d: false };

impl Enhanced {
    pub(crate) fn encode(self) -> [u8; 4] {
        let bit = |is_set: bool, at: u16| u16::from(is_set) << at;
        let first = bit(self.a, 15) | bit(self.b, 14) | self.ird & UNSPECIFIED;
        let second = bit(self.c, 15) | bit(self.d, 14) | self.ord & UNSPECIFIED;
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }

    pub(crate) fn decode(octets: [u8; 4]) -> Self {
        let [first, second] =
            [[octets[0], octets[1]], [octets[2], octets[3]]].map(u16::from_be_bytes);
        Self {
            ird: first & UNSPECIFIED,
            ord: second & UNSPECIFIED,
            a: first & 0x8000 != 0,
            b: first & 0x4000 != 0,
            c: second & 0x8000 != 0,
            d: second & 0x4000 != 0,
        }
    }
}

/// Returns the CRC field of the octets: CRC32C, least significant octet first.
pub(crate) fn crc_field(octets: &[u8]) -> [u8; 4] {
    crc32_iscsi(octets).to_le_bytes()
}

/// Returns an FPDU without its CRC, with a pad of this octet.
pub(crate) fn unsealed(ulpdu: &[u8], pad: u8) -> Vec<u8> {
    let mut octets = [&(ulpdu.len() as u16).to_be_bytes(), ulpdu].concat();
    octets.resize(octets.len().next_multiple_of(4), pad);
    octets
}

/// Returns an FPDU.
pub(crate) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut octets = unsealed(ulpdu, 0);
    let crc = crc_field(&octets);
    octets.extend_from_slice(&crc);
    octets
}

/// Header of a DDP segment with the control octet of RDMAP. The tagged or the untagged fields are encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) is_tagged: bool,
    pub(crate) is_last: bool,
    /// Version of DDP, and reserved bits.
    pub(crate) dv: u8,
    pub(crate) rsvd: u8,
    /// Version of RDMAP, reserved bits, opcode.
    pub(crate) rv: u8,
    pub(crate) rsv: u8,
    pub(crate) op: u8,
    /// STag to invalidate; queue, message sequence number, offset in the message.
    pub(crate) word: u32,
    pub(crate) qn: u32,
    pub(crate) msn: u32,
    pub(crate) mo: u32,
    /// STag and tagged offset.
    pub(crate) stag: u32,
    pub(crate) to: u64,
}

impl Header {
    pub(crate) const fn untagged(op: u8, qn: u32, msn: u32) -> Self {
        let (dv, rv, is_last) = (1, 1, true);
        let (rsvd, rsv, word, mo, stag, to) = (0, 0, 0, 0, 0, 0);
        Self { is_tagged: false, is_last, dv, rsvd, rv, rsv, op, word, qn, msn, mo, stag, to }
    }

    pub(crate) const fn tagged(op: u8, stag: u32, to: u64) -> Self {
        Self { is_tagged: true, stag, to, ..Self::untagged(op, 0, 0) }
    }

    /// Returns the segment of this header and `data`.
    pub(crate) fn with(&self, data: &[u8]) -> Vec<u8> {
        let first =
            u8::from(self.is_tagged) << 7 | u8::from(self.is_last) << 6 | self.rsvd << 2 | self.dv;
        let mut octets = vec![first, self.rv << 6 | self.rsv << 4 | self.op];
        if self.is_tagged {
            octets.extend(self.stag.to_be_bytes());
            octets.extend(self.to.to_be_bytes());
        } else {
            for word in [self.word, self.qn, self.msn, self.mo] {
                octets.extend(word.to_be_bytes());
            }
        }
        octets.extend_from_slice(data);
        octets
    }
}

/// Returns a tagged segment.
pub(crate) fn tagged(op: u8, stag: u32, to: u64, data: &[u8]) -> Vec<u8> {
    Header::tagged(op, stag, to).with(data)
}

/// Returns a Terminate: layer, type, code; the octet of its flags; the octets after its control field.
pub(crate) fn terminate(numbers: (u8, u8, u8), flags: u8, rest: &[u8]) -> Vec<u8> {
    terminate_with(Header::untagged(TERMINATE, 2, 1), numbers, flags, rest)
}

/// Returns a Terminate with another header.
pub(crate) fn terminate_with(
    header: Header,
    (layer, kind, code): (u8, u8, u8),
    flags: u8,
    rest: &[u8],
) -> Vec<u8> {
    header.with(&[&[layer << 4 | kind, code, flags, 0], rest].concat())
}

/// Read Request, and deviations from a valid one.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) header: Header,
    pub(crate) sink: (u32, u64),
    pub(crate) size: u32,
    pub(crate) stag: u32,
    pub(crate) to: u64,
    /// Octets of its header that are sent.
    pub(crate) cut: usize,
    /// Octets after its header.
    pub(crate) extra: &'static [u8],
}

impl Read {
    pub(crate) fn new(msn: u32, size: u32, stag: u32, to: u64) -> Self {
        let header = Header::untagged(READ_REQUEST, 1, msn);
        Self { header, sink: (0x0102_0304, 0x2000), size, stag, to, cut: READ_OCTETS, extra: b"" }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (sink, sink_to) = self.sink;
        let octets = [
            &sink.to_be_bytes()[..],
            &sink_to.to_be_bytes(),
            &self.size.to_be_bytes(),
            &self.stag.to_be_bytes(),
            &self.to.to_be_bytes(),
        ]
        .concat();
        self.header.with(&[&octets[..self.cut.min(READ_OCTETS)], self.extra].concat())
    }
}

/// Returns the RTR by an empty Write, as flue and siw send it.
pub(crate) fn rtr() -> Vec<u8> {
    tagged(WRITE, 1, 0, b"")
}

/// Reads a big-endian integer at `at`; 0 beyond the end.
pub(crate) fn be32(octets: &[u8], at: usize) -> u32 {
    octets.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u32::from_be_bytes(*it))
}

/// As [`be32`].
pub(crate) fn be64(octets: &[u8], at: usize) -> u64 {
    octets.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u64::from_be_bytes(*it))
}

/// Decoded segment of the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) data: Vec<u8>,
    pub(crate) ulpdu: Vec<u8>,
}

impl Segment {
    /// Decodes a ULPDU; `None`: it is shorter than its header.
    pub(crate) fn decode(ulpdu: Vec<u8>) -> Option<Self> {
        let (first, control) = (*ulpdu.first()?, *ulpdu.get(1)?);
        let is_tagged = first & 0x80 != 0;
        let length = if is_tagged { TAGGED_OCTETS } else { UNTAGGED_OCTETS };
        let data = ulpdu.get(length..)?.to_vec();
        let header = Header {
            is_last: first & 0x40 != 0,
            dv: first & 3,
            rsvd: first >> 2 & 15,
            rv: control >> 6,
            rsv: control >> 4 & 3,
            ..match is_tagged {
                true => Header::tagged(control & 15, be32(&ulpdu, 2), be64(&ulpdu, 6)),
                false => Header {
                    word: be32(&ulpdu, 2),
                    mo: be32(&ulpdu, 14),
                    ..Header::untagged(control & 15, be32(&ulpdu, 6), be32(&ulpdu, 10))
                },
            }
        };
        Some(Self { header, data, ulpdu })
    }

    /// Returns true for a segment of this opcode and kind of buffer.
    pub(crate) fn is(&self, op: u8, is_tagged: bool) -> bool {
        self.header.op == op && self.header.is_tagged == is_tagged
    }
}

/// Name of an opcode.
fn name(op: u8) -> &'static str {
    const NAMES: [&str; 12] = [
        "RDMA Write",
        "Read Request",
        "Read Response",
        "Send",
        "Send with Invalidate",
        "Send with Solicited Event",
        "Send with Solicited Event and Invalidate",
        "Terminate",
        "Immediate Data",
        "Immediate Data with Solicited Event",
        "Atomic Request",
        "Atomic Response",
    ];
    NAMES.get(usize::from(op)).copied().unwrap_or("reserved opcode")
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { is_tagged, is_last, dv, rv, op, word, qn, msn, mo, stag, to, .. } =
            self.header;
        write!(f, "{} ({op:X})", name(op))?;
        match is_tagged {
            true => write!(f, ", tagged, STag {stag:#x}, TO {to:#x}")?,
            false => write!(f, ", QN {qn}, MSN {msn}, MO {mo}")?,
        }
        if word != 0 {
            write!(f, ", invalidate STag {word:#x}")?;
        }
        if (dv, rv) != (1, 1) {
            write!(f, ", DV {dv}, RV {rv}")?;
        }
        let last = if is_last { "" } else { ", not last" };
        write!(f, "{last}, {} octets", self.data.len())?;
        match self.data[..] {
            [first, code, flags, reserved, ..] if op == TERMINATE => {
                write!(f, ", control {first:02x}{code:02x}{flags:02x}{reserved:02x}")
            }
            _ => Ok(()),
        }
    }
}

/// Returns the first octets in hexadecimal.
pub(crate) fn hex(octets: &[u8]) -> String {
    /// Octets that are shown.
    const SHOWN: usize = 64;
    let shown: String = octets.iter().take(SHOWN).map(|octet| format!("{octet:02x}")).collect();
    if octets.len() > SHOWN { format!("{shown}... ({} octets)", octets.len()) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 3720 §B.4: 32 octets of zeros, and of ones.
    #[test]
    fn crc_is_that_of_iscsi() {
        assert_eq!(crc_field(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc_field(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
    }

    #[test]
    fn fields_are_at_the_offsets_of_the_rfcs() {
        assert_eq!(fpdu(&rtr())[..16], *b"\0\x0e\xc1\x40\0\0\0\x01\0\0\0\0\0\0\0\0");
        let send = Header { word: 9, mo: 3, is_last: false, ..Header::untagged(4, 0, 7) };
        let octets = send.with(b"x");
        assert_eq!(octets, b"\x01\x44\0\0\0\x09\0\0\0\0\0\0\0\x07\0\0\0\x03x");
        let segment = Segment::decode(octets).unwrap();
        assert_eq!((segment.header, &segment.data[..]), (send, &b"x"[..]));
        assert_eq!(Segment::decode(b"\xc1\x40\0".to_vec()), None);
        let word = Enhanced { ird: 4, ord: 0x3FFF, a: true, b: false, c: false, d: true };
        assert_eq!(word.encode(), [0x80, 4, 0x7f, 0xff]);
        assert_eq!(Enhanced::decode(word.encode()), word);
    }
}
