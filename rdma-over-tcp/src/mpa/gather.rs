//! Gather lists: the output format of the encoder.
//!
//! The layer above MPA decides which type describes memory. A transport that keeps net buffers, `iovec`s or ranges of a
//! buffer implements [`GatherList`] for its list and [`Payload`] for its ranges.

use alloc::vec::Vec;

use bytes::{Bytes, BytesMut};

use super::crc::Crc32c;

/// Payload that is sent without a copy: a range of memory of the caller's own type.
///
/// The encoder does not read the octets. It reads the length, splits the range at a marker, and lets the range add
/// itself to the CRC.
pub trait Payload: Sized {
    /// Octets in the range.
    fn octets(&self) -> usize;

    /// Removes the first `octets` of the range and returns them.
    #[must_use]
    fn split_to(&mut self, octets: usize) -> Self;

    /// Adds all octets of the range to `crc`.
    fn add_to_crc(&self, crc: &mut Crc32c);
}

/// Payload that is copied: a range of memory of the caller's own type.
pub trait Source: Sized {
    /// Octets in the range.
    fn octets(&self) -> usize;

    /// Removes the first `octets` of the range and returns them.
    #[must_use]
    fn split_to(&mut self, octets: usize) -> Self;

    /// Appends all octets of the range to `target`, which has room for them.
    fn append_to(self, target: &mut BytesMut);
}

impl Source for &[u8] {
    #[inline]
    fn octets(&self) -> usize {
        self.len()
    }

    #[inline]
    fn split_to(&mut self, octets: usize) -> Self {
        let (front, back) = self.split_at(octets);
        *self = back;
        front
    }

    #[inline]
    fn append_to(self, target: &mut BytesMut) {
        target.extend_from_slice(self);
    }
}

impl Payload for Bytes {
    #[inline]
    fn octets(&self) -> usize {
        self.len()
    }

    #[inline]
    fn split_to(&mut self, octets: usize) -> Self {
        Self::split_to(self, octets)
    }

    #[inline]
    fn add_to_crc(&self, crc: &mut Crc32c) {
        crc.update(self);
    }
}

/// A gather list: pieces of memory whose octets follow each other in the TCP stream.
pub trait GatherList {
    /// Payload that is not copied.
    type Payload: Payload;

    /// Appends octets that the encoder wrote: headers, pads, CRCs, markers and copied payload.
    fn push_encoded(&mut self, octets: Bytes);

    /// Appends payload that is sent without a copy.
    fn push_payload(&mut self, payload: Self::Payload);
}

impl GatherList for Vec<Bytes> {
    type Payload = Bytes;

    #[inline]
    fn push_encoded(&mut self, octets: Bytes) {
        self.push(octets);
    }

    #[inline]
    fn push_payload(&mut self, payload: Bytes) {
        self.push(payload);
    }
}
