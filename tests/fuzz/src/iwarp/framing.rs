//! MPA framing: the decoder with any segmentation, compared with the same octets in one piece and with a second
//! parser.
//!
//! Input: octet 0 has the form (1: CRC, 2: markers, 4: the rest is a list of ULPDUs to be encoded first), octet
//! 1 the segmentation. The stream follows.

use bytes::Bytes;
use rdma_over_tcp::mpa::{Decoder, Encoder, MpaError, STAGE_OCTETS_MAX, Slab, crc::crc32c};

/// Result of decoding a stream.
#[derive(PartialEq, Debug, Default)]
struct Outcome {
    ulpdus: Vec<Vec<u8>>,
    error: Option<MpaError>,
    is_between: bool,
}

fn decode(crc: bool, markers: bool, pieces: &[&[u8]]) -> Outcome {
    let mut decoder = Decoder::new(crc, markers);
    let mut outcome = Outcome::default();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            match decoder.next(&mut rest) {
                Ok(Some(ulpdu)) => {
                    assert_eq!(outcome.error, None, "an FPDU after an error (MPA-8-5)");
                    outcome.ulpdus.push(ulpdu.to_vec());
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(outcome.error.is_none_or(|first| first == error), "another error");
                    outcome.error = Some(error);
                    break;
                }
            }
        }
        assert!(rest.is_empty(), "octets remain");
        assert!(decoder.stage_capacity() <= STAGE_OCTETS_MAX);
    }
    outcome.is_between = decoder.is_between_fpdus();
    assert_eq!(decoder.counters().fpdus, outcome.ulpdus.len() as u64);
    outcome
}

/// Segments by the low bits of `how`, which change from segment to segment.
fn pieces(stream: &[u8], how: u8) -> Vec<&[u8]> {
    let (mut rest, mut step, mut found) = (stream, usize::from(how), Vec::new());
    while !rest.is_empty() {
        step = (step * 5 + 1) % 64;
        let (piece, behind) = rest.split_at((step + 1).min(rest.len()));
        found.push(piece);
        rest = behind;
    }
    found
}

/// Parses a stream without markers by RFC 5044 §4.1. Returns the ULPDUs, true if a CRC was wrong, and true if
/// the stream ends with an FPDU.
fn read(crc: bool, mut rest: &[u8]) -> (Vec<Vec<u8>>, bool, bool) {
    let mut ulpdus = Vec::new();
    while let [high, low, ..] = rest {
        let ulpdu = usize::from(*high) << 8 | usize::from(*low);
        let body = (2 + ulpdu).next_multiple_of(4);
        if rest.len() < body + 4 {
            break;
        }
        let field =
            u32::from_le_bytes([rest[body], rest[body + 1], rest[body + 2], rest[body + 3]]);
        if crc && field != crc32c(&rest[..body]) {
            return (ulpdus, true, false);
        }
        ulpdus.push(rest[2..2 + ulpdu].to_vec());
        rest = &rest[body + 4..];
    }
    (ulpdus, false, rest.is_empty())
}

/// Parses records of ULPDUs: a length octet `n`, then 1 + 9`n` octets, padded with `n` at the end of the input.
fn ulpdus(mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while let [length, behind @ ..] = rest {
        let octets = 1 + 9 * usize::from(*length);
        let (content, behind) = behind.split_at(octets.min(behind.len()));
        let mut ulpdu = content.to_vec();
        ulpdu.resize(octets, *length);
        found.push(ulpdu);
        rest = behind;
    }
    found
}

fn encode(crc: bool, markers: bool, ulpdus: &[Vec<u8>]) -> Vec<u8> {
    let (mut encoder, mut slab) = (Encoder::new(crc, markers), Slab::new());
    let mut list: Vec<Bytes> = Vec::new();
    for ulpdu in ulpdus {
        let (header, payload) = ulpdu.split_at(ulpdu.len().min(14));
        encoder.encode(header, &[Bytes::copy_from_slice(payload)], &mut slab, &mut list);
    }
    let stream = list.concat();
    assert_eq!(encoder.octets(), stream.len() as u64);
    stream
}

/// Checks one input.
///
/// # Panics
/// If two parsers differ.
pub fn check(data: &[u8]) {
    let [form, how, rest @ ..] = data else { return };
    let (crc, markers) = (form & 1 != 0, form & 2 != 0);
    let sent = (form & 4 != 0).then(|| ulpdus(rest));
    let encoded = sent.as_ref().map(|ulpdus| encode(crc, markers, ulpdus));
    let stream = encoded.as_deref().unwrap_or(rest);
    let whole = decode(crc, markers, &[stream]);
    assert_eq!(decode(crc, markers, &pieces(stream, *how)), whole, "segmentation matters");
    if let Some(sent) = sent {
        assert_eq!((whole.ulpdus, whole.error, whole.is_between), (sent, None, true));
    } else if !markers {
        let (ulpdus, is_bad, is_between) = read(crc, stream);
        assert_eq!(whole.error.is_some(), is_bad);
        assert_eq!(whole.ulpdus, ulpdus);
        assert!(is_bad || whole.is_between == is_between);
    }
}
