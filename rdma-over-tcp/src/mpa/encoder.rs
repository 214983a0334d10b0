//! From ULPDUs to FPDUs, as chains of memory.
//!
//! FPDUs go back to back into a net buffer, the *train*. What the encoder itself adds (ULPDU_Length and headers, pad
//! and CRC, markers) and payload that is copied are written to one open piece of a slab; payload that is lent closes
//! it and is an MDL of its own. So many small FPDUs are one piece of memory, and one large FPDU is three: {headers},
//! payload, {pad and CRC}, the last of them open for the next FPDU's headers. The octets of an open piece are read
//! once for the CRC, when the FPDU ends or the piece is closed: all of an FPDU without lent payload at once.
//!
//! When the peer demands markers they are written between (RFC 5044 §4.3): lent payload is sliced, never copied.
//!
//! FPDUs must go to TCP in the order in which they were encoded: the marker grid advances with each.

use bytes::Bytes;
use offload_engine::nbl::NetBuffer;

use super::{
    LENGTH_OCTETS, MULPDU_MAX, Slab,
    crc::{CRC_OCTETS, Crc32c, crc32c},
    marker::{Grid, INTERVAL, MARKER_OCTETS},
    pad_octets,
};

/// Builds the FPDUs of one direction of a stream.
#[derive(Debug)]
pub struct Encoder {
    use_crc: bool,
    /// Present when the peer demands markers.
    grid: Option<Grid>,
    /// Of an FPDU that lies in several pieces.
    crc: Crc32c,
    fpdus: u64,
    octets: u64,
}

impl Encoder {
    /// An encoder at the first octet of Full Operation. `crc`: CRCs are in use; `markers`: the peer
    /// demands markers (MPA-7.1.1-3, MPA-7.1.1-4).
    pub fn new(crc: bool, markers: bool) -> Self {
        let grid = markers.then(Grid::default);
        Self { use_crc: crc, grid, crc: Crc32c::new(), fpdus: 0, octets: 0 }
    }

    /// FPDUs encoded so far.
    pub const fn fpdus(&self) -> u64 {
        self.fpdus
    }

    /// Octets of TCP stream encoded so far, markers included.
    pub const fn octets(&self) -> u64 {
        self.octets
    }

    /// One FPDU of the ULPDU that `header` (DDP and RDMAP headers) and `payload` make up.
    ///
    /// # Panics
    /// As [`encode_into`](Self::encode_into).
    pub fn encode(&mut self, header: &[u8], payload: &[Bytes], slab: &mut Slab) -> NetBuffer {
        let mut net_buffer = NetBuffer::new();
        self.encode_into(header, payload, slab, &mut net_buffer);
        net_buffer
    }

    /// As [`encode`](Self::encode), into a net buffer that is cleared first and whose storage is
    /// reused: in steady state nothing is allocated.
    ///
    /// # Panics
    /// When the ULPDU is longer than [`MULPDU_MAX`] (MPA-3-5): whoever cuts messages must not cut
    /// larger.
    pub fn encode_into(
        &mut self,
        header: &[u8],
        payload: &[Bytes],
        slab: &mut Slab,
        fpdu: &mut NetBuffer,
    ) {
        fpdu.clear();
        let payload_octets = payload.iter().map(Bytes::len).sum();
        let mut writer = self.begin(header, payload_octets, 0, slab, fpdu);
        payload.iter().for_each(|slice| writer.lend(slice.clone()));
        writer.finish();
        end_train(slab, fpdu);
    }

    /// Begins an FPDU at the end of `train`: `header` and then `payload_octets`, of which `copied_octets` will be
    /// copied. The train is complete after [`end_train`].
    ///
    /// # Panics
    /// As [`encode_into`](Self::encode_into).
    #[inline]
    pub(crate) fn begin<'a>(
        &'a mut self,
        header: &[u8],
        payload_octets: usize,
        copied_octets: usize,
        slab: &'a mut Slab,
        train: &'a mut NetBuffer,
    ) -> Fpdu<'a> {
        let ulpdu_octets = header.len() + payload_octets;
        assert!(ulpdu_octets <= usize::from(MULPDU_MAX), "ULPDU of {ulpdu_octets} octets");
        let pad_octets = pad_octets(ulpdu_octets);
        let own_octets = LENGTH_OCTETS + header.len() + copied_octets + pad_octets + CRC_OCTETS;
        let needed_octets = match self.grid {
            None => own_octets,
            Some(_) => own_octets + marker_octets_max(own_octets + payload_octets),
        };
        if slab.room() < needed_octets {
            end_train(slab, train);
            slab.turn(needed_octets);
        }
        let summed = slab.open().len();
        let mut fpdu = Fpdu {
            encoder: self,
            slab,
            train,
            summed,
            is_split: false,
            pad_octets,
            payload_octets,
            octets: 0,
        };
        fpdu.copy_any(&(ulpdu_octets as u16).to_be_bytes());
        fpdu.copy_any(header);
        fpdu
    }
}

/// Closes what is open: the net buffer holds all of its FPDUs.
#[inline]
pub(crate) fn end_train(slab: &mut Slab, train: &mut NetBuffer) {
    if let Some(piece) = slab.close() {
        train.push_mdl(piece);
    }
}

/// Octets of all markers that may fall into so many octets.
const fn marker_octets_max(octets: usize) -> usize {
    MARKER_OCTETS * (octets / (INTERVAL as usize - MARKER_OCTETS) + 2)
}

/// An FPDU in the making: payload is copied or lent piece by piece, then it is finished.
#[derive(Debug)]
pub(crate) struct Fpdu<'a> {
    encoder: &'a mut Encoder,
    slab: &'a mut Slab,
    train: &'a mut NetBuffer,
    /// Octets of the open piece that the CRC covers already, or that are not this FPDU's.
    summed: usize,
    /// A part of this FPDU lies in pieces that are closed, or was lent: the encoder's CRC covers it.
    is_split: bool,
    pad_octets: usize,
    /// Payload that is still to come.
    payload_octets: usize,
    /// Octets of this FPDU so far, markers included.
    octets: usize,
}

impl Fpdu<'_> {
    /// Copies payload.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn copy(&mut self, payload: &[u8]) {
        self.payload_octets -= payload.len();
        self.copy_any(payload);
    }

    /// Adds payload that goes out from where it lies.
    pub(crate) fn lend(&mut self, mut payload: Bytes) {
        self.payload_octets -= payload.len();
        if self.encoder.grid.is_none() {
            self.lend_piece(payload);
            return;
        }
        while !payload.is_empty() {
            self.mark();
            let room = self.encoder.grid.as_ref().map_or(payload.len(), Grid::room);
            self.lend_piece(payload.split_to(room.min(payload.len())));
        }
    }

    /// Pad and CRC. Returns the octets of the FPDU, markers included.
    #[inline]
    pub(crate) fn finish(mut self) -> usize {
        debug_assert_eq!(self.payload_octets, 0, "payload that was announced");
        if self.pad_octets > 0 {
            self.copy_any(&[0; 3][..self.pad_octets]);
        }
        // A marker between pad and CRC belongs to this FPDU (MPA-4.4-11).
        self.mark();
        let crc = self.crc();
        self.put(&crc);
        let Self { encoder, octets, .. } = self;
        if let Some(grid) = &mut encoder.grid {
            grid.end_fpdu();
        }
        encoder.fpdus += 1;
        encoder.octets += octets as u64;
        octets
    }

    /// Writes octets of any kind, and the markers that fall between them.
    #[inline]
    fn copy_any(&mut self, octets: &[u8]) {
        match self.encoder.grid {
            None => self.put(octets),
            Some(_) => self.copy_marked(octets),
        }
    }

    fn copy_marked(&mut self, mut octets: &[u8]) {
        while !octets.is_empty() {
            self.mark();
            let room = self.encoder.grid.as_ref().map_or(octets.len(), Grid::room);
            let (now, later) = octets.split_at(room.min(octets.len()));
            self.put(now);
            octets = later;
        }
    }

    #[inline]
    fn put(&mut self, octets: &[u8]) {
        self.slab.put(octets);
        self.pass(octets.len());
    }

    fn lend_piece(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.sum();
        end_train(self.slab, self.train);
        self.summed = 0;
        if self.encoder.use_crc {
            self.encoder.crc.update(&piece);
        }
        self.pass(piece.len());
        self.train.push_mdl(piece);
    }

    fn pass(&mut self, octets: usize) {
        self.octets += octets;
        if let Some(grid) = &mut self.encoder.grid {
            grid.pass(octets);
        }
    }

    /// The marker that is due here, if one is. One between two FPDUs belongs to the second (MPA-4.3-5, MPA-4.4-10).
    #[inline]
    fn mark(&mut self) {
        let Some(grid) = self.encoder.grid.as_mut().filter(|grid| grid.is_marker_due()) else {
            return;
        };
        let [high, low] = grid.fpduptr().to_be_bytes();
        grid.pass_marker();
        self.slab.put(&[0, 0, high, low]);
        self.octets += MARKER_OCTETS;
    }

    /// Has the encoder's CRC cover what was written.
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

    /// The CRC field. Zero when CRCs are off (MPA-4.4-8).
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
