//! FPDUs both ways, without a connection.
//!
//! The benchmark in the parent directory times them; the instruction guard in `tests/guard` counts them.

use offload_engine::{
    memory::{Span, to_vec},
    nbl::NetBuffer,
};
use rdma_over_tcp::mpa::{Decoder, Encoder, Slab};

/// Octets of the headers of a tagged message.
const HEADER: [u8; 14] = [0xc1; 14];

/// An encoder with its slab, and the net buffer that it fills.
#[derive(Debug)]
pub(crate) struct Encoding {
    encoder: Encoder,
    slab: Slab,
    fpdu: NetBuffer,
    payload: [Span; 1],
}

impl Encoding {
    /// FPDUs of `payload_octets` that no other owner can write.
    pub(crate) fn new(payload_octets: usize) -> Self {
        Self::lending(vec![0x5a; payload_octets].into())
    }

    /// FPDUs of this payload.
    pub(crate) fn lending(payload: Span) -> Self {
        Self {
            encoder: Encoder::new(true, false),
            slab: Slab::new(),
            fpdu: NetBuffer::new(),
            payload: [payload],
        }
    }

    /// One FPDU.
    pub(crate) fn encode(&mut self) -> &NetBuffer {
        self.fpdu.clear();
        self.encoder.encode(&HEADER, &self.payload, &mut self.slab, &mut self.fpdu);
        &self.fpdu
    }
}

/// A decoder, and an FPDU as received in a segment.
#[derive(Debug)]
pub(crate) struct Decoding {
    decoder: Decoder,
    octets: Vec<u8>,
}

impl Decoding {
    /// FPDUs of `payload_octets`.
    pub(crate) fn new(payload_octets: usize) -> Self {
        let mut encoding = Encoding::new(payload_octets);
        let octets = to_vec(encoding.encode().pieces());
        Self { decoder: Decoder::new(true, false), octets }
    }

    /// Decodes one FPDU in place. Returns the octets of its ULPDU.
    pub(crate) fn decode(&mut self) -> usize {
        let mut input = &self.octets[..];
        let ulpdu = self.decoder.next(&mut input).expect("a good CRC");
        ulpdu.expect("a whole FPDU").len()
    }
}
