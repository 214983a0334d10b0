//! From ULPDUs to FPDUs, as chains of memory.
//!
//! An FPDU becomes a net buffer: {ULPDU_Length and headers} from a slab, the payload's own slices,
//! {pad and CRC} from the slab. Nothing of the payload is copied; its octets are read once, for the
//! CRC. Without payload all of it is one piece. When the peer demands markers they are pieces of
//! the slab between the others (RFC 5044 §4.3).
//!
//! FPDUs must go to TCP in the order in which they were encoded: the marker grid advances with
//! each.

use bytes::{BufMut, Bytes};
use offload_engine::nbl::NetBuffer;

use super::{
    LENGTH_OCTETS, MULPDU_MAX, Slab,
    crc::{CRC_OCTETS, Crc32c},
    marker::{Grid, MARKER_OCTETS},
    pad_octets,
};

/// Builds the FPDUs of one direction of a stream.
#[derive(Debug)]
pub struct Encoder {
    use_crc: bool,
    /// Present when the peer demands markers.
    grid: Option<Grid>,
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
        let payload_octets: usize = payload.iter().map(Bytes::len).sum();
        let ulpdu_octets = header.len() + payload_octets;
        assert!(ulpdu_octets <= usize::from(MULPDU_MAX), "ULPDU of {ulpdu_octets} octets");
        let length = (ulpdu_octets as u16).to_be_bytes();
        let pad = &[0; 3][..pad_octets(ulpdu_octets)];

        fpdu.clear();
        if self.grid.is_some() {
            self.encode_marked(length, header, payload, pad, slab, fpdu);
        } else if payload_octets == 0 {
            let mut whole = slab.take(LENGTH_OCTETS + header.len() + pad.len() + CRC_OCTETS);
            whole.put_slice(&length);
            whole.put_slice(header);
            whole.put_slice(pad);
            let crc_field = self.crc_field(|crc| crc.update(&whole));
            whole.put_slice(&crc_field);
            fpdu.push_mdl(whole.freeze());
        } else {
            let mut head = slab.take(LENGTH_OCTETS + header.len());
            head.put_slice(&length);
            head.put_slice(header);
            let mut tail = slab.take(pad.len() + CRC_OCTETS);
            tail.put_slice(pad);
            let crc_field = self.crc_field(|crc| {
                crc.update(&head);
                payload.iter().for_each(|slice| crc.update(slice));
                crc.update(pad);
            });
            tail.put_slice(&crc_field);
            fpdu.push_mdl(head.freeze());
            for slice in payload.iter().filter(|slice| !slice.is_empty()) {
                fpdu.push_mdl(slice.clone());
            }
            fpdu.push_mdl(tail.freeze());
        }
        self.fpdus += 1;
        self.octets += fpdu.data_length() as u64;
    }

    /// The CRC field over what `cover` adds; zero when CRCs are off (MPA-4.4-8).
    fn crc_field(&mut self, cover: impl FnOnce(&mut Crc32c)) -> [u8; CRC_OCTETS] {
        if !self.use_crc {
            return [0; CRC_OCTETS];
        }
        self.crc.reset();
        cover(&mut self.crc);
        self.crc.to_wire()
    }

    fn encode_marked(
        &mut self,
        length: [u8; LENGTH_OCTETS],
        header: &[u8],
        payload: &[Bytes],
        pad: &[u8],
        slab: &mut Slab,
        fpdu: &mut NetBuffer,
    ) {
        let Self { use_crc, grid: Some(grid), crc, .. } = self else { return };
        crc.reset();
        let mut put = |mdl: Bytes| {
            crc.update(&mdl);
            fpdu.push_mdl(mdl);
        };
        let mut head = slab.take(LENGTH_OCTETS + header.len());
        head.put_slice(&length);
        head.put_slice(header);
        let head = head.freeze();
        let pad = (!pad.is_empty()).then(|| {
            let mut piece = slab.take(pad.len());
            piece.put_slice(pad);
            piece.freeze()
        });
        // A marker here lies between two FPDUs and belongs to this one (MPA-4.3-5, MPA-4.4-10).
        for mut slice in core::iter::once(&head).chain(payload).chain(&pad).cloned() {
            while !slice.is_empty() {
                if grid.is_marker_due() {
                    put(marker(grid, slab));
                }
                let piece = slice.split_to(slice.len().min(grid.room()));
                grid.pass(piece.len());
                put(piece);
            }
        }
        // A marker between pad and CRC belongs to this FPDU (MPA-4.4-11).
        if grid.is_marker_due() {
            put(marker(grid, slab));
        }
        let crc_field = if *use_crc { crc.to_wire() } else { [0; CRC_OCTETS] };
        let mut tail = slab.take(CRC_OCTETS);
        tail.put_slice(&crc_field);
        fpdu.push_mdl(tail.freeze());
        grid.pass(CRC_OCTETS);
        grid.end_fpdu();
    }
}

/// A marker for this point of the grid, which is passed.
fn marker(grid: &mut Grid, slab: &mut Slab) -> Bytes {
    let mut piece = slab.take(MARKER_OCTETS);
    piece.put_u16(0);
    piece.put_u16(grid.fpduptr());
    grid.pass_marker();
    piece.freeze()
}
