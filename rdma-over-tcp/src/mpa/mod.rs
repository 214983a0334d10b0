//! MPA: message boundaries in a TCP stream (RFC 5044), and its start-up (RFC 6581).
//!
//! Start-up ([`startup`]) exchanges one Request and one Reply frame. Its result is a
//! [`Negotiated`](startup::Negotiated): CRC or not, markers per direction, read limits, the first message. After those
//! frames each direction is a sequence of FPDUs:
//!
//! ```text
//! ULPDU_Length (2) | ULPDU (one DDP segment) | pad (0..3, zero) | CRC32C (4)
//! ```
//!
//! If the receiver of that direction requested it, a marker of 4 octets is at every 512th octet of the stream.
//! [`Encoder`] builds FPDUs as a [`GatherList`] without copying payload. [`Decoder`] finds them in any segmentation of
//! the stream and returns the ULPDUs whose CRC is right. Both are independent of the transport:
//!
//! ```
//! use bytes::Bytes;
//! use rdma_over_tcp::mpa::{Decoder, Encoder, Slab};
//!
//! let payload = [Bytes::from_static(b"hello")];
//! let mut fpdu: Vec<Bytes> = Vec::new();
//! Encoder::new(true, false).encode(b"header", &payload, &mut Slab::new(), &mut fpdu);
//! assert_eq!(fpdu[1].as_ptr(), payload[0].as_ptr());
//!
//! let stream = fpdu.concat();
//! let mut input = &stream[..];
//! let mut decoder = Decoder::new(true, false);
//! assert_eq!(decoder.next(&mut input).unwrap(), Some(&b"headerhello"[..]));
//! assert!(input.is_empty());
//! ```
//!
//! Limits: ULPDU 1 to [`MULPDU_MAX`] octets sent, up to 65,535 accepted (Linux siw sends such ULPDUs on large MTUs);
//! private data 512 octets; one FPDU at most is staged per decoder ([`STAGE_OCTETS_MAX`]). Timers: none. The caller
//! limits start-up by [`startup::INITIATOR_TIME_LIMIT`] and [`startup::RESPONDER_TIME_LIMIT`].
#![forbid(unsafe_code)]

pub mod crc;
mod decoder;
mod encoder;
mod gather;
mod marker;
pub mod slab;
pub mod startup;

pub use decoder::{Decoder, DecoderCounters, FpduStart, STAGE_OCTETS_MAX};
pub use encoder::{Encoder, Fpdu};
pub use gather::{GatherList, Payload, Source};
pub use slab::Slab;
use thiserror::Error;

use crate::error::WireError;

/// Octets of the ULPDU_Length field.
pub const LENGTH_OCTETS: usize = 2;

/// Largest ULPDU that may be sent, in octets (RFC 5044 §3, MPA-3-4).
pub const MULPDU_MAX: u16 = 64_768;

/// Lower bound of the MULPDU, in octets, however small the segments are (MPA-4.5-5).
pub const MULPDU_MIN: u16 = 128;

/// MPA error of an inbound stream. Nothing after it on that half of the connection is processed (MPA-8-5); the caller
/// sends a Terminate and closes (MPA-8-6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum MpaError {
    /// CRC and octets of an FPDU disagree (code 2).
    #[error("CRC {received:#010x}: expected {computed:#010x}")]
    Crc {
        /// Value of the CRC field.
        received: u32,
        /// CRC computed over the octets received.
        computed: u32,
    },
    /// A marker does not point to the start of the FPDU that holds it (code 3).
    #[error("marker points back {received} octets: expected {expected}, the start of its FPDU")]
    Marker {
        /// FPDUPTR as received, low two bits cleared.
        received: u16,
        /// FPDUPTR by the chain of ULPDU_Length fields.
        expected: u16,
    },
}

impl MpaError {
    /// Returns the error code for a Terminate.
    pub const fn wire(self) -> WireError {
        match self {
            Self::Crc { .. } => WireError::MpaCrc,
            Self::Marker { .. } => WireError::MpaMarker,
        }
    }
}

/// Pad octets after a ULPDU of `ulpdu` octets (MPA-4.1-3).
const fn pad_octets(ulpdu: usize) -> usize {
    (LENGTH_OCTETS + ulpdu).wrapping_neg() % 4
}

/// MULPDU for an EMSS, both in octets: the largest ULPDU whose FPDU fits one TCP segment (RFC 5044 §4.5; MPA-4.5-1,
/// MPA-4.5-2), within [`MULPDU_MIN`] and [`MULPDU_MAX`]. `markers`: true if this side must insert markers.
///
/// ```
/// use rdma_over_tcp::mpa::mulpdu;
/// assert_eq!(mulpdu(1448, false), 1442);
/// assert_eq!(mulpdu(1448, true), 1430);
/// ```
pub fn mulpdu(emss: u32, markers: bool) -> u16 {
    let marker_octets = if markers { 4 * emss.div_ceil(u32::from(marker::INTERVAL)) } else { 0 };
    let overhead = 6 + marker_octets + emss % 4;
    u16::try_from(emss.saturating_sub(overhead)).unwrap_or(u16::MAX).clamp(MULPDU_MIN, MULPDU_MAX)
}

#[cfg(test)]
mod tests;
