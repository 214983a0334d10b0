//! Encoder from ULPDUs to FPDUs, as gather lists.
//!
//! FPDUs are appended back to back to a [`GatherList`] of the caller. The encoder's own octets (ULPDU_Length and
//! headers, pad and CRC, markers) and copied payload are written to one open piece of a [`Slab`]. Lent payload closes
//! the piece and is a separate entry, of the caller's type ([`Payload`]). Many small FPDUs are therefore one entry,
//! and one large FPDU is three: {headers}, payload, {pad and CRC}; the last one is open for the next FPDU's headers.
//! The octets of an open piece are read once for the CRC, at the end of the FPDU or when the piece is closed: an FPDU
//! without lent payload is read all at once.
//!
//! If the peer requires markers they are written in between (RFC 5044 §4.3): lent payload is split, never copied.
//!
//! FPDUs must be passed to TCP in the order in which they were encoded: each advances the marker grid.

use super::{
    GatherList, LENGTH_OCTETS, MULPDU_MAX, Payload, Slab, Source,
    crc::{CRC_OCTETS, Crc32c, crc32c},
    marker::{Grid, INTERVAL, MARKER_OCTETS},
    pad_octets,
};

/// FPDU encoder of one direction of a stream.
#[derive(Debug)]
pub struct Encoder {
    use_crc: bool,
    /// Marker grid; present if the peer requires markers.
    grid: Option<Grid>,
    /// CRC of an FPDU that spans several pieces.
    crc: Crc32c,
    fpdus: u64,
    octets: u64,
}

impl Encoder {
    /// Creates an encoder at the first octet of Full Operation. `crc`: CRCs are in use; `markers`: the peer requires
    /// markers (MPA-7.1.1-3, MPA-7.1.1-4).
    pub fn new(crc: bool, markers: bool) -> Self {
        let grid = markers.then(Grid::default);
        Self { use_crc: crc, grid, crc: Crc32c::new(), fpdus: 0, octets: 0 }
    }

    /// Returns true if FPDUs have a CRC.
    pub const fn uses_crc(&self) -> bool {
        self.use_crc
    }

    /// Returns the number of FPDUs encoded.
    pub const fn fpdus(&self) -> u64 {
        self.fpdus
    }

    /// Returns the octets of TCP stream encoded, markers included.
    pub const fn octets(&self) -> u64 {
        self.octets
    }

    /// Appends one complete FPDU to `list`. `header` (DDP and RDMAP headers) and `payload` are its ULPDU. The payload
    /// is lent. A reused list needs no allocation in steady state.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn encode<G>(
        &mut self,
        header: &[u8],
        payload: &[G::Payload],
        slab: &mut Slab,
        list: &mut G,
    ) where
        G: GatherList<Payload: Clone>,
    {
        let payload_octets = payload.iter().map(Payload::octets).sum();
        let mut fpdu = self.begin(header, payload_octets, 0, slab, list);
        payload.iter().for_each(|range| fpdu.lend(range.clone()));
        fpdu.finish();
        slab.flush(list);
    }

    /// Begins an FPDU at the end of `list`: `header`, then `payload_octets`, of which `copied_octets` will be copied.
    /// The list is complete after [`Slab::flush`]; until then the same slab and list accept the next FPDU.
    ///
    /// # Panics
    /// If the ULPDU is longer than [`MULPDU_MAX`] (MPA-3-5): callers segment messages by the MULPDU first.
    #[inline]
    pub fn begin<'a, G: GatherList>(
        &'a mut self,
        header: &[u8],
        payload_octets: usize,
        copied_octets: usize,
        slab: &'a mut Slab,
        list: &'a mut G,
    ) -> Fpdu<'a, G> {
        let ulpdu_octets = header.len() + payload_octets;
        assert!(ulpdu_octets <= usize::from(MULPDU_MAX), "ULPDU of {ulpdu_octets} octets");
        let pad_octets = pad_octets(ulpdu_octets);
        let own_octets = LENGTH_OCTETS + header.len() + copied_octets + pad_octets + CRC_OCTETS;
        let needed_octets = match self.grid {
            None => own_octets,
            Some(_) => own_octets + marker_octets_max(own_octets + payload_octets),
        };
        if slab.room() < needed_octets {
            slab.flush(list);
            slab.turn(needed_octets);
        }
        let summed = slab.open().len();
        let mut fpdu = Fpdu {
            encoder: self,
            slab,
            list,
            summed,
            is_split: false,
            pad_octets,
            payload_octets,
            octets: 0,
        };
        fpdu.copy_any(&(ulpdu_octets as u16).to_be_bytes()[..]);
        fpdu.copy_any(header);
        fpdu
    }
}

/// Octets copied before they are added to the CRC: the first-level cache still holds them.
const COPY_OCTETS: usize = 8 * 1024;

/// Upper bound of the octets of markers within `octets` octets of stream.
const fn marker_octets_max(octets: usize) -> usize {
    MARKER_OCTETS * (octets / (INTERVAL as usize - MARKER_OCTETS) + 2)
}

/// FPDU under construction. Payload is copied or lent piece by piece, exactly as much as was announced to
/// [`Encoder::begin`]; then the FPDU is finished.
#[derive(Debug)]
#[must_use = "an FPDU without its CRC breaks the stream"]
pub struct Fpdu<'a, G> {
    encoder: &'a mut Encoder,
    slab: &'a mut Slab,
    list: &'a mut G,
    /// Octets of the open piece that the CRC already covers, or that belong to an earlier FPDU.
    summed: usize,
    /// True if a part of this FPDU is in closed pieces or was lent: the encoder's CRC covers that part.
    is_split: bool,
    pad_octets: usize,
    /// Octets of payload not yet added.
    payload_octets: usize,
    /// Octets of this FPDU so far, markers included.
    octets: usize,
}

impl<G: GatherList> Fpdu<'_, G> {
    /// Copies payload.
    #[inline]
    pub fn copy(&mut self, payload: &[u8]) {
        self.copy_from(payload);
    }

    /// Copies payload from memory of the caller's own type.
    #[inline]
    pub fn copy_from(&mut self, payload: impl Source) {
        self.payload_octets -= payload.octets();
        match payload.octets() <= COPY_OCTETS {
            true => self.copy_any(payload),
            false => self.copy_long(payload),
        }
    }

    fn copy_long(&mut self, mut payload: impl Source) {
        while payload.octets() > 0 {
            self.copy_any(payload.split_to(payload.octets().min(COPY_OCTETS)));
            self.sum();
        }
    }

    /// Adds payload that is sent from its own memory.
    pub fn lend(&mut self, mut payload: G::Payload) {
        self.payload_octets -= payload.octets();
        if self.encoder.grid.is_none() {
            self.lend_piece(payload);
            return;
        }
        while payload.octets() > 0 {
            self.mark();
            let octets = payload.octets();
            let room = self.encoder.grid.as_ref().map_or(octets, Grid::room);
            self.lend_piece(payload.split_to(room.min(octets)));
        }
    }

    /// Appends pad and CRC. Returns the octets of the FPDU, markers included.
    ///
    /// # Panics
    /// If the payload is not as long as announced.
    #[inline]
    pub fn finish(mut self) -> usize {
        assert!(self.payload_octets == 0, "payload length differs from the announced length");
        if self.pad_octets > 0 {
            self.copy_any(&[0; 3][..self.pad_octets]);
        }
        // A marker between pad and CRC belongs to this FPDU (MPA-4.4-11).
        self.mark();
        let crc = self.crc();
        self.put(&crc[..]);
        let Self { encoder, octets, .. } = self;
        if let Some(grid) = &mut encoder.grid {
            grid.end_fpdu();
        }
        encoder.fpdus += 1;
        encoder.octets += octets as u64;
        octets
    }

    /// Writes octets of any kind, and the markers within them.
    // A function call costs more than the two octets of a length.
    #[inline(always)]
    fn copy_any(&mut self, octets: impl Source) {
        match self.encoder.grid {
            None => self.put(octets),
            Some(_) => self.copy_marked(octets),
        }
    }

    fn copy_marked(&mut self, mut source: impl Source) {
        while source.octets() > 0 {
            self.mark();
            let octets = source.octets();
            let room = self.encoder.grid.as_ref().map_or(octets, Grid::room);
            self.put(source.split_to(room.min(octets)));
        }
    }

    #[inline(always)]
    fn put(&mut self, source: impl Source) {
        let octets = source.octets();
        self.slab.put(source);
        self.pass(octets);
    }

    fn lend_piece(&mut self, piece: G::Payload) {
        let octets = piece.octets();
        if octets == 0 {
            return;
        }
        self.sum();
        self.slab.flush(self.list);
        self.summed = 0;
        if self.encoder.use_crc {
            piece.add_to_crc(&mut self.encoder.crc);
        }
        self.pass(octets);
        self.list.push_payload(piece);
    }

    #[inline]
    fn pass(&mut self, octets: usize) {
        self.octets += octets;
        if let Some(grid) = &mut self.encoder.grid {
            grid.pass(octets);
        }
    }

    /// Writes the marker that is due at this position, if any. One between two FPDUs belongs to the second (MPA-4.3-5,
    /// MPA-4.4-10).
    #[inline]
    fn mark(&mut self) {
        let Some(grid) = self.encoder.grid.as_mut().filter(|grid| grid.is_marker_due()) else {
            return;
        };
        let [high, low] = grid.fpduptr().to_be_bytes();
        grid.pass_marker();
        self.slab.put(&[0, 0, high, low][..]);
        self.octets += MARKER_OCTETS;
    }

    /// Adds the octets written since the last call to the encoder's CRC.
    fn sum(&mut self) {
        let crc = &mut self.encoder.crc;
        if self.encoder.use_crc {
            if !self.is_split {
                crc.reset();
            }
            crc.update(&self.slab.open()[self.summed..]);
        }
        self.is_split = true;
        self.summed = self.slab.open().len();
    }

    /// Returns the CRC field. Zero if CRCs are off (MPA-4.4-8).
    fn crc(&mut self) -> [u8; CRC_OCTETS] {
        let open = &self.slab.open()[self.summed..];
        match (self.encoder.use_crc, self.is_split) {
            (false, _) => [0; CRC_OCTETS],
            (true, false) => crc32c(open).to_le_bytes(),
            (true, true) => {
                if !open.is_empty() {
                    self.encoder.crc.update(open);
                }
                self.encoder.crc.to_wire()
            }
        }
    }
}
