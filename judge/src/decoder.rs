//! Decoder of the peer's direction of Full Operation: octets to ULPDUs, with or without markers.

use crate::wire::{crc_field, hex};

/// Distance of markers in the sequence space, octets (RFC 5044 §4.3).
const MARKER_INTERVAL: usize = 512;

/// Violation that the decoder detects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Malformed {
    /// Rules that it violates.
    pub(crate) rules: &'static [&'static str],
    pub(crate) text: String,
    /// True if decoding cannot continue.
    pub(crate) is_fatal: bool,
}

/// State of the decoder.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// True if the peer sends markers; true if it sends a CRC.
    pub(crate) has_markers: bool,
    pub(crate) has_crc: bool,
    /// Markers found.
    pub(crate) markers: usize,
    position: usize,
    input: Vec<u8>,
    /// FPDU in progress: its octets without markers, and those that the CRC covers.
    clean: Vec<u8>,
    covered: Vec<u8>,
    /// Position of the FPDU's first octet.
    start: Option<usize>,
}

impl Decoder {
    /// Creates the decoder of a stream with CRCs and without markers.
    pub(crate) fn new() -> Self {
        Self { has_crc: true, ..Self::default() }
    }

    pub(crate) fn feed(&mut self, octets: &[u8]) {
        self.input.extend_from_slice(octets);
    }

    /// Returns true between two FPDUs.
    pub(crate) fn is_between(&self) -> bool {
        self.input.is_empty() && self.clean.is_empty()
    }

    /// Returns the next ULPDU, or `None` if more octets are needed. Adds violations to `found`.
    ///
    /// # Errors
    /// A violation after which the stream cannot be decoded.
    pub(crate) fn next(
        &mut self,
        found: &mut Vec<Malformed>,
    ) -> Result<Option<Vec<u8>>, Malformed> {
        let mut taken = 0;
        let result = loop {
            let is_complete = self.clean.len() >= 2 && self.clean.len() == self.length();
            if is_complete {
                break self.finish(found).map(Some);
            }
            let rest = &self.input[taken..];
            if rest.is_empty() {
                break Ok(None);
            }
            // A marker between pad and CRC belongs to this FPDU, a marker after the CRC to the next one.
            if self.has_markers && self.position.is_multiple_of(MARKER_INTERVAL) {
                let Some(marker) = rest.first_chunk::<4>().copied() else { break Ok(None) };
                taken += 4;
                if let Err(malformed) = self.marker(marker) {
                    break Err(malformed);
                }
                continue;
            }
            self.start.get_or_insert(self.position);
            let body = if self.clean.len() < 2 { 2 } else { self.length() - 4 };
            let is_crc = self.clean.len() >= 2 && self.clean.len() >= body;
            let part = if is_crc { self.length() } else { body } - self.clean.len();
            let room = match self.has_markers {
                true => MARKER_INTERVAL - self.position % MARKER_INTERVAL,
                false => rest.len(),
            };
            let piece = &rest[..part.min(room).min(rest.len())];
            self.clean.extend_from_slice(piece);
            if !is_crc {
                self.covered.extend_from_slice(piece);
            }
            taken += piece.len();
            self.position += piece.len();
        };
        self.input.drain(..taken);
        result
    }

    /// Octets of the FPDU in progress, without markers.
    fn length(&self) -> usize {
        let ulpdu = usize::from(u16::from_be_bytes([self.clean[0], self.clean[1]]));
        (2 + ulpdu).next_multiple_of(4) + 4
    }

    fn marker(&mut self, marker: [u8; 4]) -> Result<(), Malformed> {
        let expected = self.start.map_or(0, |start| self.position - start);
        let pointer = usize::from(u16::from_be_bytes([marker[2], marker[3]]));
        if marker[..2] != [0, 0] || pointer != expected {
            let (at, marker) = (self.position, hex(&marker));
            return Err(Malformed {
                rules: &["MPA-4.2-1", "MPA-4.3-2", "MPA-4.3-3"],
                text: format!("marker {marker} at octet {at}: expected FPDUPTR {expected}"),
                is_fatal: true,
            });
        }
        self.covered.extend_from_slice(&marker);
        self.position += 4;
        self.markers += 1;
        Ok(())
    }

    fn finish(&mut self, found: &mut Vec<Malformed>) -> Result<Vec<u8>, Malformed> {
        let end = 2 + usize::from(u16::from_be_bytes([self.clean[0], self.clean[1]]));
        let field = self.clean.len() - 4;
        let expected = crc_field(&self.covered);
        if self.has_crc && self.clean[field..] != expected {
            let (crc, expected) = (hex(&self.clean[field..]), hex(&expected));
            return Err(Malformed {
                rules: &["MPA-4.4-8", "MPA-4.4-9"],
                text: format!("CRC {crc} of an FPDU: expected {expected}"),
                is_fatal: true,
            });
        }
        if self.clean[end..field].iter().any(|octet| *octet != 0) {
            found.push(Malformed {
                rules: &["MPA-4.1-2"],
                text: format!("pad {}: expected zeros", hex(&self.clean[end..field])),
                is_fatal: false,
            });
        }
        let ulpdu = self.clean[2..end].to_vec();
        self.clean.clear();
        self.covered.clear();
        self.start = None;
        Ok(ulpdu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{fpdu, unsealed};

    fn all(decoder: &mut Decoder, octets: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, Malformed> {
        let (mut ulpdus, mut found) = (Vec::new(), Vec::new());
        for part in octets.chunks(piece) {
            decoder.feed(part);
            while let Some(ulpdu) = decoder.next(&mut found)? {
                ulpdus.push(ulpdu);
            }
        }
        found.into_iter().next().map_or(Ok(ulpdus), Err)
    }

    #[test]
    fn ulpdus_are_independent_of_segmentation() {
        let ulpdus: Vec<Vec<u8>> = [0, 1, 2, 3, 700].map(|length| vec![7; length]).into();
        let octets: Vec<u8> = ulpdus.iter().flat_map(|it| fpdu(it)).collect();
        for piece in [1, 2, 3, 5, 1000] {
            let mut decoder = Decoder::new();
            assert_eq!(all(&mut decoder, &octets, piece), Ok(ulpdus.clone()));
            assert!(decoder.is_between());
        }
    }

    #[test]
    fn markers_are_removed_and_checked() {
        // A marker before the first FPDU, and one 510 octets after its start.
        let ulpdu = vec![5; 600];
        let body = unsealed(&ulpdu, 0);
        let mut covered = [&[0; 4][..], &body[..508], &[0, 0, 1, 0xfc], &body[508..]].concat();
        let crc = crc_field(&covered);
        covered.extend(crc);
        let marked = || Decoder { has_markers: true, ..Decoder::new() };
        let mut decoder = marked();
        assert_eq!(all(&mut decoder, &covered, 7), Ok(vec![ulpdu]));
        assert_eq!(decoder.markers, 2);
        covered[515] ^= 4;
        assert_eq!(all(&mut marked(), &covered, 7).unwrap_err().rules[0], "MPA-4.2-1");
    }

    #[test]
    fn wrong_crc_and_pad_are_violations() {
        let mut octets = fpdu(b"abc");
        octets[2] ^= 1;
        let mut decoder = Decoder::new();
        assert!(all(&mut decoder, &octets, 100).unwrap_err().is_fatal);
        let body = unsealed(b"abc", 1);
        let octets = [&body[..], &crc_field(&body)].concat();
        let mut decoder = Decoder::new();
        assert_eq!(all(&mut decoder, &octets, 100).unwrap_err().rules, ["MPA-4.1-2"]);
        let mut decoder = Decoder::default();
        assert!(all(&mut decoder, &[0; 8], 100).is_ok());
    }
}
