//! From the octets of a TCP stream to validated ULPDUs.
//!
//! The decoder walks the stream in order by ULPDU_Length (MPA-5.2-1) and takes any segmentation. An
//! FPDU that lies whole in the input is checked and handed out where it lies; one that is spread
//! over several inputs, as when Linux siw sends the CRC in a segment of its own, is gathered in one
//! buffer that is reused. Streams with markers are always gathered, because a marker tears the
//! ULPDU; this side asks for markers only if configured so.
//!
//! A pad may hold anything; it counts for the CRC only (MPA-4.1-2). With CRC off the field is
//! skipped unread (MPA-4.1-4). Markers are compared with the chain of lengths once the CRC is known
//! to be right (RFC 5044 §8, code 3).

use alloc::vec::Vec;
use core::ops::Range;

use super::{
    LENGTH_OCTETS, MpaError,
    crc::{CRC_OCTETS, Crc32c, crc32c},
    marker::{Grid, MARKER_OCTETS},
    pad_octets,
};

/// Bound of the staging buffer, in octets: the largest FPDU, its markers taken out.
pub const STAGE_OCTETS_MAX: usize =
    (LENGTH_OCTETS + u16::MAX as usize).next_multiple_of(4) + CRC_OCTETS;

/// Counters of a decoder, from the start of Full Operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderCounters {
    /// FPDUs handed out.
    pub fpdus: u64,
    /// Those of them that were handed out in place, without a copy.
    pub fpdus_in_place: u64,
    /// Octets of TCP stream that these FPDUs took, markers included: what
    /// [`Encoder::octets`](super::Encoder::octets) says at the other end.
    pub octets: u64,
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
    /// Of the FPDU in progress.
    crc: Crc32c,
    /// The FPDU in progress from its ULPDU_Length on, markers taken out.
    stage: Vec<u8>,
    /// `stage` holds an FPDU that has been handed out; the next call forgets it.
    stage_delivered: bool,
    /// The marker in progress.
    marker: [u8; MARKER_OCTETS],
    marker_have: usize,
    /// Octets of markers taken out since the last FPDU.
    marker_octets: usize,
    /// First marker of the FPDU in progress that points elsewhere.
    misled: Option<MpaError>,
    failed: Option<MpaError>,
    counters: DecoderCounters,
}

impl Decoder {
    /// A decoder at the first octet of Full Operation. `crc`: CRCs are in use; `markers`: this side
    /// asked the peer for markers.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            check_crc: crc,
            grid: markers.then(Grid::default),
            crc: Crc32c::new(),
            stage: Vec::new(),
            stage_delivered: false,
            marker: [0; MARKER_OCTETS],
            marker_have: 0,
            marker_octets: 0,
            misled: None,
            failed: None,
            counters: DecoderCounters::default(),
        }
    }

    /// Counters so far.
    pub const fn counters(&self) -> DecoderCounters {
        self.counters
    }

    /// Octets of memory that the staging buffer holds, at most [`STAGE_OCTETS_MAX`].
    pub fn stage_capacity(&self) -> usize {
        self.stage.capacity()
    }

    /// The stream stands between two FPDUs: where a graceful close is allowed to fall.
    pub fn is_between_fpdus(&self) -> bool {
        (self.stage.is_empty() || self.stage_delivered) && self.marker_have == 0
    }

    /// Takes octets off the front of `input` up to the end of one FPDU and returns its ULPDU.
    ///
    /// `None` means that all of `input` has been taken and more is needed. Call again until then:
    /// several FPDUs may lie in one input.
    ///
    /// # Errors
    /// [`MpaError`] at the first damaged FPDU. From then on every call drops the input and returns
    /// the same error (MPA-8-5).
    #[inline]
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
        match self.take_in_place(input) {
            Ok(Some(ulpdu)) => return Ok(Some(ulpdu)),
            Ok(None) => {}
            Err(error) => return Err(self.fail(input, error)),
        }
        match self.gather(input) {
            Ok(Some(extent)) => Ok(Some(&self.stage[extent.ulpdu()])),
            Ok(None) => Ok(None),
            Err(error) => Err(self.fail(input, error)),
        }
    }

    #[cold]
    fn fail(&mut self, input: &mut &[u8], error: MpaError) -> MpaError {
        *input = &[];
        self.failed = Some(error);
        self.stage = Vec::new();
        error
    }

    /// An FPDU that lies whole in the input: nothing is copied.
    #[inline]
    fn take_in_place<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<&'i [u8]>, MpaError> {
        if !self.stage.is_empty() || self.grid.is_some() {
            return Ok(None);
        }
        let Some(&length) = input.first_chunk() else { return Ok(None) };
        let extent = Extent::new(length);
        let Some((body, rest)) = input.split_at_checked(extent.body) else { return Ok(None) };
        let Some((&crc_field, rest)) = rest.split_first_chunk() else { return Ok(None) };
        if self.check_crc {
            verify_crc(crc32c(body), crc_field)?;
        }
        *input = rest;
        self.counters.fpdus += 1;
        self.counters.fpdus_in_place += 1;
        self.counters.octets += extent.fpdu() as u64;
        Ok(Some(&body[extent.ulpdu()]))
    }

    /// Copies octets into the stage until an FPDU is complete there.
    fn gather(&mut self, input: &mut &[u8]) -> Result<Option<Extent>, MpaError> {
        while !input.is_empty() {
            if self.grid.as_ref().is_some_and(Grid::is_marker_due) || self.marker_have > 0 {
                self.take_marker(input);
                continue;
            }
            let extent = self.stage.first_chunk().copied().map(Extent::new);
            let wanted = extent.map_or(LENGTH_OCTETS, Extent::fpdu) - self.stage.len();
            let room = self.grid.as_ref().map_or(usize::MAX, Grid::room);
            let (piece, rest) = input.split_at(wanted.min(room).min(input.len()));
            *input = rest;
            self.stage.reserve_exact(wanted);
            self.stage_piece(piece, extent);
            if let Some(extent) = extent
                && piece.len() == wanted
            {
                self.complete(extent)?;
                return Ok(Some(extent));
            }
        }
        Ok(None)
    }

    /// Without an extent the length field itself is in progress.
    fn stage_piece(&mut self, piece: &[u8], extent: Option<Extent>) {
        if self.check_crc {
            let body = extent.map_or(LENGTH_OCTETS, |extent| extent.body);
            let covered = body.saturating_sub(self.stage.len()).min(piece.len());
            self.crc.update(&piece[..covered]);
        }
        self.stage.extend_from_slice(piece);
        self.counters.octets_staged += piece.len() as u64;
        if let Some(grid) = &mut self.grid {
            grid.pass(piece.len());
        }
    }

    /// Takes (a part of) a marker. It is under the CRC of the FPDU around it, or of the next one
    /// when it lies between two (MPA-4.4-10, MPA-4.4-11); either way that is the CRC in progress.
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
        self.marker_octets += MARKER_OCTETS;
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
    fn complete(&mut self, extent: Extent) -> Result<(), MpaError> {
        if self.check_crc
            && let Some(&crc_field) = self.stage[extent.body..].first_chunk()
        {
            let computed = self.crc.value();
            self.crc.reset();
            verify_crc(computed, crc_field)?;
        }
        if let Some(error) = self.misled {
            return Err(error);
        }
        if let Some(grid) = &mut self.grid {
            grid.end_fpdu();
        }
        self.stage_delivered = true;
        self.counters.fpdus += 1;
        let marker_octets = core::mem::take(&mut self.marker_octets);
        self.counters.octets += (extent.fpdu() + marker_octets) as u64;
        Ok(())
    }
}

fn verify_crc(computed: u32, crc_field: [u8; CRC_OCTETS]) -> Result<(), MpaError> {
    let received = u32::from_le_bytes(crc_field);
    if computed == received { Ok(()) } else { Err(MpaError::Crc { received, computed }) }
}

/// Where the parts of an FPDU end, in octets from its ULPDU_Length, markers not counted.
#[derive(Clone, Copy)]
struct Extent {
    /// Of the ULPDU alone.
    ulpdu_octets: usize,
    /// All but the CRC.
    body: usize,
}

impl Extent {
    fn new(length: [u8; LENGTH_OCTETS]) -> Self {
        let ulpdu_octets = usize::from(u16::from_be_bytes(length));
        Self { ulpdu_octets, body: LENGTH_OCTETS + ulpdu_octets + pad_octets(ulpdu_octets) }
    }

    fn fpdu(self) -> usize {
        self.body + CRC_OCTETS
    }

    fn ulpdu(self) -> Range<usize> {
        LENGTH_OCTETS..LENGTH_OCTETS + self.ulpdu_octets
    }
}
