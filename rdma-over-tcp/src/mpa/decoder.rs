//! Decoder from the octets of a TCP stream to validated ULPDUs.
//!
//! The decoder parses the stream in order by ULPDU_Length (MPA-5.2-1) and accepts any segmentation. An FPDU that is
//! contained in one input is checked and returned in place. An FPDU that spans inputs is gathered in one reused buffer;
//! Linux siw, for example, sends the CRC in a separate segment. Streams with markers are always gathered, because a
//! marker splits the ULPDU; this side requests markers only if configured to.
//!
//! Without CRCs and markers the caller may take an FPDU in parts, as its octets arrive ([`Decoder::start`]): nothing is
//! gathered.
//!
//! A pad may have any content; it counts for the CRC only (MPA-4.1-2). With CRC off the field is skipped (MPA-4.1-4).
//! Markers are compared with the chain of lengths after the CRC is verified (RFC 5044 §8, code 3).

use alloc::vec::Vec;
use core::ops::Range;

use super::{
    LENGTH_OCTETS, MpaError,
    crc::{CRC_OCTETS, Crc32c, crc32c},
    marker::{Grid, MARKER_OCTETS},
    pad_octets,
};

/// Bound of the staging buffer, in octets: the largest FPDU without its markers.
pub const STAGE_OCTETS_MAX: usize =
    (LENGTH_OCTETS + u16::MAX as usize).next_multiple_of(4) + CRC_OCTETS;

/// Counters of a decoder, from the start of Full Operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderCounters {
    /// FPDUs delivered.
    pub fpdus: u64,
    /// FPDUs delivered in place, without a copy.
    pub fpdus_in_place: u64,
    /// Octets of TCP stream that these FPDUs occupy, markers included: equals
    /// [`Encoder::octets`](super::Encoder::octets) of the peer.
    pub octets: u64,
    /// Markers removed.
    pub markers: u64,
    /// Octets copied into the staging buffer.
    pub octets_staged: u64,
}

/// Start of an FPDU that does not end in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FpduStart<'i> {
    /// Octets of the whole ULPDU.
    pub ulpdu_octets: usize,
    /// Octets of the ULPDU in the input.
    pub octets: &'i [u8],
}

/// FPDU that is taken in parts.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// Octets of the ULPDU that are left.
    ulpdu: usize,
    /// Octets of the pad and the CRC field that are left.
    trailer: usize,
    /// Octets of the FPDU.
    octets: usize,
}

/// FPDU decoder of one direction of a TCP stream.
#[derive(Debug)]
pub struct Decoder {
    check_crc: bool,
    /// Marker grid; present if this side requested markers.
    grid: Option<Grid>,
    /// CRC of the FPDU in progress.
    crc: Crc32c,
    /// The FPDU in progress from its ULPDU_Length on, without markers.
    stage: Vec<u8>,
    /// True if `stage` holds an FPDU that was delivered; the next call clears it.
    stage_delivered: bool,
    /// True if FPDUs contained in the input are decoded there: no FPDU is in progress, and there are no markers.
    is_in_place: bool,
    /// FPDU that is taken in parts.
    open: Option<Open>,
    /// Octets of the marker in progress.
    marker: [u8; MARKER_OCTETS],
    marker_octets_read: usize,
    /// Octets of markers removed since the last FPDU.
    marker_octets: usize,
    /// First marker of the FPDU in progress that has a wrong FPDUPTR.
    marker_error: Option<MpaError>,
    failed: Option<MpaError>,
    counters: DecoderCounters,
}

impl Decoder {
    /// Creates a decoder at the first octet of Full Operation. `crc`: CRCs are in use; `markers`: this side requested
    /// markers from the peer.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            check_crc: crc,
            grid: markers.then(Grid::default),
            crc: Crc32c::new(),
            stage: Vec::new(),
            stage_delivered: false,
            is_in_place: !markers,
            open: None,
            marker: [0; MARKER_OCTETS],
            marker_octets_read: 0,
            marker_octets: 0,
            marker_error: None,
            failed: None,
            counters: DecoderCounters::default(),
        }
    }

    /// Returns the counters.
    pub const fn counters(&self) -> DecoderCounters {
        self.counters
    }

    /// Returns the octets of memory allocated to the staging buffer, at most [`STAGE_OCTETS_MAX`].
    pub fn stage_capacity(&self) -> usize {
        self.stage.capacity()
    }

    /// True if no FPDU is in progress: a graceful close is allowed at this point.
    pub fn is_between_fpdus(&self) -> bool {
        let is_stage_free = self.stage.is_empty() || self.stage_delivered;
        is_stage_free && self.marker_octets_read == 0 && self.open.is_none()
    }

    /// Returns the start of the FPDU that begins with `input` and does not end in it, if it may be taken in parts.
    ///
    /// Call [`Decoder::open`] to do so. [`Decoder::next`] gathers the FPDU instead.
    pub fn start<'i>(&self, input: &'i [u8]) -> Option<FpduStart<'i>> {
        let has_checks = self.check_crc || self.grid.is_some();
        if has_checks || self.failed.is_some() || !self.is_between_fpdus() {
            return None;
        }
        let (&length, rest) = input.split_first_chunk()?;
        let extent = Extent::new(length);
        let octets = &rest[..rest.len().min(extent.ulpdu_octets)];
        (input.len() < extent.fpdu())
            .then_some(FpduStart { ulpdu_octets: extent.ulpdu_octets, octets })
    }

    /// Consumes `input`, for which [`Decoder::start`] has returned the start of an FPDU. The rest of the FPDU is taken
    /// by [`Decoder::take_open`].
    pub fn open(&mut self, input: &mut &[u8]) {
        let Some((&length, rest)) = input.split_first_chunk() else { return };
        let extent = Extent::new(length);
        let octets = extent.fpdu();
        let ulpdu = extent.ulpdu_octets;
        let trailer = octets.saturating_sub(LENGTH_OCTETS + ulpdu);
        self.open = Some(Open { ulpdu, trailer, octets });
        self.is_in_place = false;
        let mut rest = rest;
        self.take_open(&mut rest);
        *input = rest;
    }

    /// Consumes octets of `input` up to the end of the FPDU that is taken in parts, and returns those of its ULPDU;
    /// `None`: there is none.
    pub fn take_open<'i>(&mut self, input: &mut &'i [u8]) -> Option<&'i [u8]> {
        let open = self.open.as_mut()?;
        let (taken, rest) = input.split_at(open.ulpdu.min(input.len()));
        open.ulpdu -= taken.len();
        let rest = if open.ulpdu == 0 {
            let skipped = open.trailer.min(rest.len());
            open.trailer -= skipped;
            &rest[skipped..]
        } else {
            rest
        };
        if open.ulpdu + open.trailer == 0 {
            self.counters.fpdus += 1;
            self.counters.octets += open.octets as u64;
            self.open = None;
            self.is_in_place = true;
        }
        *input = rest;
        Some(taken)
    }

    /// Consumes octets of `input` up to the end of one FPDU and returns its ULPDU.
    ///
    /// `None` means that all of `input` is consumed and more is needed. Call again until `None`: one input may contain
    /// several FPDUs.
    ///
    /// # Errors
    /// [`MpaError`] at the first damaged FPDU. From then on every call drops the input and returns
    /// the same error (MPA-8-5).
    // Inlined: otherwise each FPDU pays for the result in memory.
    #[inline(always)]
    pub fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<&'s [u8]>, MpaError> {
        if let Some(ulpdu) = self.next_in_place(input)? {
            return Ok(Some(ulpdu));
        }
        match self.gather(input) {
            Ok(Some(extent)) => Ok(Some(&self.stage[extent.ulpdu()])),
            Ok(None) => Ok(None),
            Err(error) => Err(self.fail(input, error)),
        }
    }

    /// As [`Decoder::next`], for an FPDU that `input` contains. Else nothing is consumed.
    ///
    /// # Errors
    /// As [`Decoder::next`].
    #[inline(always)]
    pub fn next_in_place<'i>(
        &mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<&'i [u8]>, MpaError> {
        if let Some(error) = self.failed {
            *input = &[];
            return Err(error);
        }
        if self.stage_delivered {
            self.stage.clear();
            self.stage_delivered = false;
            self.is_in_place = self.grid.is_none();
        }
        self.take_in_place(input).map_err(|error| self.fail(input, error))
    }

    #[cold]
    fn fail(&mut self, input: &mut &[u8], error: MpaError) -> MpaError {
        *input = &[];
        self.failed = Some(error);
        self.open = None;
        self.stage = Vec::new();
        error
    }

    /// Decodes an FPDU contained in the input, without a copy.
    #[inline(always)]
    fn take_in_place<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<&'i [u8]>, MpaError> {
        if !self.is_in_place {
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
        self.is_in_place &= input.is_empty();
        while !input.is_empty() {
            if self.grid.as_ref().is_some_and(Grid::is_marker_due) || self.marker_octets_read > 0 {
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

    /// Copies a piece to the stage. Without an extent the length field itself is in progress.
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

    /// Consumes a marker or a part of it. It is covered by the CRC of the FPDU around it, or of the next one if it is
    /// between two (MPA-4.4-10, MPA-4.4-11); either way that is the CRC in progress.
    fn take_marker(&mut self, input: &mut &[u8]) {
        let (piece, rest) =
            input.split_at((MARKER_OCTETS - self.marker_octets_read).min(input.len()));
        *input = rest;
        self.marker[self.marker_octets_read..][..piece.len()].copy_from_slice(piece);
        self.marker_octets_read += piece.len();
        if self.marker_octets_read < MARKER_OCTETS {
            return;
        }
        self.marker_octets_read = 0;
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
        if received != expected && self.marker_error.is_none() {
            self.marker_error = Some(MpaError::Marker { received, expected });
        }
    }

    /// Verifies the CRC and the markers of the FPDU in the stage.
    fn complete(&mut self, extent: Extent) -> Result<(), MpaError> {
        if self.check_crc
            && let Some(&crc_field) = self.stage[extent.body..].first_chunk()
        {
            let computed = self.crc.value();
            self.crc.reset();
            verify_crc(computed, crc_field)?;
        }
        if let Some(error) = self.marker_error {
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

/// Ends of the parts of an FPDU, in octets from its ULPDU_Length, markers not counted.
#[derive(Clone, Copy)]
struct Extent {
    /// Octets of the ULPDU alone.
    ulpdu_octets: usize,
    /// Octets of the FPDU without the CRC.
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
