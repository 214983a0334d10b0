//! From the octets of a TCP stream to validated ULPDUs.
//!
//! The decoder walks the stream in order by ULPDU_Length (MPA-5.2-1) and takes any segmentation. An FPDU
//! that lies whole in the input is checked and handed out where it lies; one that is spread over several
//! inputs, as when Linux siw sends the CRC in a segment of its own, is gathered in one buffer that is reused.
//! Streams with markers are always gathered, because a marker tears the ULPDU; this side never asks for
//! markers unless told to.
//!
//! A pad may hold anything; it counts for the CRC only (MPA-4.1-2). With CRC off the field is skipped unread
//! (MPA-4.1-4). Markers are compared with the chain of lengths once the CRC is known to be right
//! (RFC 5044 §8, code 3).

use alloc::vec::Vec;

use super::{
    LENGTH_OCTETS, MpaError,
    crc::{CRC_OCTETS, Crc32c},
    marker::{Grid, MARKER_OCTETS},
    pad_octets,
};

/// Bound of the staging buffer, in octets: the largest FPDU, its markers taken out.
pub const STAGE_OCTETS_MAX: usize =
    (LENGTH_OCTETS + u16::MAX as usize).next_multiple_of(4) + CRC_OCTETS;

/// What a decoder has seen. All count from the start of Full Operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderCounters {
    /// FPDUs handed out.
    pub fpdus: u64,
    /// Those of them that were handed out in place, without a copy.
    pub fpdus_in_place: u64,
    /// Markers taken out.
    pub markers: u64,
    /// Octets copied into the staging buffer.
    pub octets_staged: u64,
}

/// Finds FPDUs in one direction of a TCP stream.
#[derive(Debug)]
pub struct Decoder {
    check_crc: bool,
    /// Present when this side asked for markers.
    grid: Option<Grid>,
    crc: Crc32c,
    /// The FPDU in progress from its ULPDU_Length on, markers taken out.
    stage: Vec<u8>,
    /// `stage` holds an FPDU that has been handed out; the next call forgets it.
    stage_delivered: bool,
    /// The marker in progress.
    marker: [u8; MARKER_OCTETS],
    marker_have: usize,
    /// First marker of the FPDU in progress that points elsewhere.
    misled: Option<MpaError>,
    failed: Option<MpaError>,
    counters: DecoderCounters,
}

impl Decoder {
    /// A decoder at the first octet of Full Operation. `crc`: CRCs are in use; `markers`: this side asked
    /// the peer for markers.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            check_crc: crc,
            grid: markers.then(Grid::default),
            crc: Crc32c::new(),
            stage: Vec::new(),
            stage_delivered: false,
            marker: [0; MARKER_OCTETS],
            marker_have: 0,
            misled: None,
            failed: None,
            counters: DecoderCounters::default(),
        }
    }

    /// What has been seen so far.
    pub const fn counters(&self) -> DecoderCounters {
        self.counters
    }

    /// The stream stands between two FPDUs: where a graceful close is allowed to fall.
    pub fn is_between_fpdus(&self) -> bool {
        (self.stage.is_empty() || self.stage_delivered) && self.marker_have == 0
    }

    /// Takes octets off the front of `input` up to the end of one FPDU and returns its ULPDU.
    ///
    /// `None` means that all of `input` has been taken and more is needed. Call again until then: several
    /// FPDUs may lie in one input.
    ///
    /// # Errors
    /// [`MpaError`] at the first damaged FPDU. From then on every call drops the input and returns the same
    /// error (MPA-8-5).
    pub fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<&'s [u8]>, MpaError> {
        if let Some(error) = self.failed {
            *input = &[];
            return Err(error);
        }
        if self.stage_delivered {
            self.stage.clear();
            self.stage_delivered = false;
        }
        let outcome = if self.stage.is_empty() && self.grid.is_none() {
            self.take_in_place(input)
        } else {
            Ok(None)
        };
        match outcome {
            Ok(Some(ulpdu)) => Ok(Some(ulpdu)),
            Ok(None) => match self.gather(input) {
                Ok(Some(ulpdu_octets)) => {
                    Ok(Some(&self.stage[LENGTH_OCTETS..LENGTH_OCTETS + ulpdu_octets]))
                }
                Ok(None) => Ok(None),
                Err(error) => Err(self.fail(input, error)),
            },
            Err(error) => Err(self.fail(input, error)),
        }
    }

    fn fail(&mut self, input: &mut &[u8], error: MpaError) -> MpaError {
        *input = &[];
        self.failed = Some(error);
        self.stage = Vec::new();
        error
    }

    /// An FPDU that lies whole in the input: nothing is copied.
    fn take_in_place<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<&'i [u8]>, MpaError> {
        let Some(&length) = input.first_chunk() else { return Ok(None) };
        let ulpdu_octets = usize::from(u16::from_be_bytes(length));
        let body_octets = LENGTH_OCTETS + ulpdu_octets + pad_octets(ulpdu_octets);
        let Some((body, rest)) = input.split_at_checked(body_octets) else { return Ok(None) };
        let Some((&crc_field, rest)) = rest.split_first_chunk() else { return Ok(None) };
        if self.check_crc {
            self.crc.update(body);
            self.verify_crc(u32::from_le_bytes(crc_field))?;
        }
        *input = rest;
        self.counters.fpdus += 1;
        self.counters.fpdus_in_place += 1;
        Ok(Some(&body[LENGTH_OCTETS..LENGTH_OCTETS + ulpdu_octets]))
    }

    /// Copies octets into the stage until an FPDU is complete there; returns the size of its ULPDU.
    fn gather(&mut self, input: &mut &[u8]) -> Result<Option<usize>, MpaError> {
        while !input.is_empty() {
            if self.grid.as_ref().is_some_and(Grid::is_marker_due) || self.marker_have > 0 {
                self.take_marker(input);
                continue;
            }
            let (wanted, body_octets) = self.wanted();
            let room = self.grid.as_ref().map_or(usize::MAX, Grid::room);
            let (piece, rest) = input.split_at(wanted.min(room).min(input.len()));
            *input = rest;
            self.stage_piece(piece, body_octets);
            if let (0, body_octets) = self.wanted() {
                return self.complete(body_octets).map(Some);
            }
        }
        Ok(None)
    }

    /// Octets that the stage wants next, and where the body (all but the CRC) of its FPDU ends.
    fn wanted(&self) -> (usize, usize) {
        match self.stage.first_chunk() {
            None => (LENGTH_OCTETS - self.stage.len(), LENGTH_OCTETS),
            Some(&length) => {
                let ulpdu_octets = usize::from(u16::from_be_bytes(length));
                let body_octets = LENGTH_OCTETS + ulpdu_octets + pad_octets(ulpdu_octets);
                (body_octets + CRC_OCTETS - self.stage.len(), body_octets)
            }
        }
    }

    fn stage_piece(&mut self, piece: &[u8], body_octets: usize) {
        if self.check_crc {
            let covered = body_octets.saturating_sub(self.stage.len()).min(piece.len());
            self.crc.update(&piece[..covered]);
        }
        self.stage.extend_from_slice(piece);
        self.counters.octets_staged += piece.len() as u64;
        if let Some(grid) = &mut self.grid {
            grid.pass(piece.len());
        }
    }

    /// Takes (a part of) a marker. It is under the CRC of the FPDU around it, or of the next one when it lies
    /// between two (MPA-4.4-10, MPA-4.4-11); either way that is the CRC in progress.
    fn take_marker(&mut self, input: &mut &[u8]) {
        let (piece, rest) = input.split_at((MARKER_OCTETS - self.marker_have).min(input.len()));
        *input = rest;
        self.marker[self.marker_have..][..piece.len()].copy_from_slice(piece);
        self.marker_have += piece.len();
        if self.marker_have < MARKER_OCTETS {
            return;
        }
        self.marker_have = 0;
        self.counters.markers += 1;
        if self.check_crc {
            self.crc.update(&self.marker);
        }
        let Some(grid) = &mut self.grid else { return };
        let [_, _, high, low] = self.marker;
        let received = u16::from_be_bytes([high, low & !3]); // MPA-4.2-3
        let expected = grid.fpduptr();
        grid.pass_marker();
        if received != expected && self.misled.is_none() {
            self.misled = Some(MpaError::Marker { received, expected });
        }
    }

    /// Judges the FPDU in the stage.
    fn complete(&mut self, body_octets: usize) -> Result<usize, MpaError> {
        if self.check_crc {
            let (_, crc_field) = self.stage.split_at(body_octets);
            let crc_field = crc_field.first_chunk().copied().unwrap_or_default();
            self.verify_crc(u32::from_le_bytes(crc_field))?;
        }
        if let Some(error) = self.misled {
            return Err(error);
        }
        if let Some(grid) = &mut self.grid {
            grid.end_fpdu();
        }
        self.stage_delivered = true;
        self.counters.fpdus += 1;
        let length = [self.stage[0], self.stage[1]];
        Ok(usize::from(u16::from_be_bytes(length)))
    }

    /// Compares the CRC in progress, and leaves it ready for the next FPDU.
    fn verify_crc(&mut self, received: u32) -> Result<(), MpaError> {
        let computed = self.crc.value();
        self.crc.reset();
        if computed == received { Ok(()) } else { Err(MpaError::Crc { received, computed }) }
    }
}
