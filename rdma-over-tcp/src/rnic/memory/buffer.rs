//! Memory that can be registered, shared by its consumer and the adapter, which accesses it like a device.
//!
//! While a work request or a remote right covers a byte, its content is that of its last writer, as with every RDMA
//! device. The implementation of racing accesses is in [`offload_engine::memory`].
//!
//! [`RegisteredBuffer::load_last`] synchronizes with the adapter's store of the last byte of each placement
//! (IN_ORDER_DMA_SUPPORTED), [`RegisteredBuffer::word`] with the atomics of peers.

use core::{fmt, ops::Range, sync::atomic::AtomicU64};

use bytes::BytesMut;
use offload_engine::memory::{Piece, SharedSlice, SharedSpan, Span};

use crate::mpa::{Payload, Source, crc::Crc32c};

/// Page size in bytes: the alignment of memory allocated by the adapter, and the unit of fast registration.
pub const PAGE_SIZE: usize = 4096;

/// Buffer that can be registered. Clones share the memory.
#[derive(Clone)]
pub struct RegisteredBuffer {
    memory: SharedSpan,
    address: u64,
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredBuffer({:#x}+{})", self.address, self.len())
    }
}

/// Memory of any origin ([`SharedSpan::from_raw`]), at its own address.
impl From<SharedSpan> for RegisteredBuffer {
    fn from(memory: SharedSpan) -> Self {
        let address = memory.as_ptr().expose_provenance() as u64;
        Self { memory, address }
    }
}

impl RegisteredBuffer {
    /// Allocates `len` zeroed bytes at a page boundary; `None` for 0 or if memory is exhausted.
    #[must_use]
    pub fn allocate(len: usize) -> Option<Self> {
        SharedSpan::allocate(len, PAGE_SIZE).map(Self::from)
    }

    /// Returns the same memory at another address: scatter/gather entries and peers address its first byte by
    /// `address`. The address is an index and is never dereferenced.
    #[must_use]
    pub fn at_address(&self, address: u64) -> Self {
        Self { memory: self.memory.clone(), address }
    }

    /// Returns the bytes in `range` with their addresses; `None`: the range is empty or exceeds the buffer, or an
    /// address wraps.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let is_there = range.start < range.end && range.end <= self.len();
        let address = self.address.checked_add(range.start as u64).filter(|_| is_there)?;
        Some(Self { memory: self.memory.slice(range), address })
    }

    /// Returns the bytes in `range` for an inline post ([`Data::InlineSges`](crate::rnic::Data::InlineSges)); `None`:
    /// the range exceeds the buffer.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<SharedSlice<'_>> {
        let is_there = range.start <= range.end && range.end <= self.len();
        is_there.then(|| self.memory.view().slice(range.start, range.len()))
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a buffer that is empty cannot be registered")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Virtual address used by scatter/gather entries and peers (NDK-MEM-3).
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Memory of the buffer.
    pub(crate) const fn memory(&self) -> &SharedSpan {
        &self.memory
    }

    /// Copies `data` into the buffer.
    ///
    /// # Panics
    /// If `data` exceeds the buffer, or the memory is read-only.
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        self.memory.write(offset, data);
    }

    /// Copies bytes out of the buffer.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub fn read_at(&self, offset: usize, data: &mut [u8]) {
        self.memory.read(offset, data);
    }

    /// Returns the byte at `offset`, for consumers that poll the last byte of a peer's Write. When it is visible, all
    /// data placed before it is visible.
    ///
    /// # Panics
    /// If `offset` exceeds the buffer.
    #[must_use]
    pub fn load_last(&self, offset: usize) -> u8 {
        self.memory.load(offset)
    }

    /// Returns the eight bytes at `offset`, for atomic operations concurrent with those of peers (RFC 7306). No
    /// operation of either is lost. `None`: the bytes exceed the buffer, are not aligned to eight in memory, or are
    /// read-only.
    #[must_use]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        self.memory.word(offset)
    }
}

/// Lent payload. Its CRC is computed over a copy, part by part.
impl Payload for Span {
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
        self.piece().chunks(|octets| crc.update(octets));
    }
}

/// Copied payload.
impl Source for Piece<'_> {
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
        Piece::append_to(self, target);
    }
}

/// Copied payload.
impl Source for SharedSlice<'_> {
    #[inline]
    fn octets(&self) -> usize {
        self.len()
    }

    #[inline]
    fn split_to(&mut self, octets: usize) -> Self {
        let front = self.slice(0, octets);
        *self = self.slice(octets, self.len() - octets);
        front
    }

    #[inline]
    fn append_to(self, target: &mut BytesMut) {
        SharedSlice::append_to(self, target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let buffer = RegisteredBuffer::allocate(5000).unwrap();
        assert_eq!(buffer.address() % PAGE_SIZE as u64, 0);
        assert_eq!(buffer.address(), buffer.memory().as_ptr().addr() as u64);
        let other = buffer.at_address(0);
        assert_eq!((other.address(), other.len()), (0, 5000));
        other.write_at(4998, b"ab");
        assert_eq!(buffer.load_last(4999), b'b');
        let part = buffer.slice(4000..4999).unwrap();
        assert_eq!((part.address(), part.len()), (buffer.address() + 4000, 999));
        part.write_at(998, b"c");
        assert_eq!(buffer.part(4998..5000).map(|part| part.len()), Some(2));
        assert_eq!(buffer.load_last(4998), b'c');
        for (from, to) in [(0, 5001), (5001, 5001), (2, 1), (5000, usize::MAX)] {
            assert!(buffer.slice(from..to).is_none() && buffer.part(from..to).is_none());
        }
        assert!(buffer.slice(7..7).is_none(), "an empty range cannot be registered");
        assert!(buffer.part(7..7).is_some_and(|part| part.is_empty()));
        assert!(buffer.at_address(u64::MAX).slice(1..2).is_none());
        assert!(RegisteredBuffer::allocate(0).is_none());
        assert!(RegisteredBuffer::allocate(usize::MAX).is_none());
    }

    // The CRC of lent payload is that of its octets, for any partition, in private or shared memory.
    #[test]
    fn lent_payload_has_crc_of_its_octets() {
        let memory = SharedSpan::allocate(50_000, 1).unwrap();
        let data: std::vec::Vec<u8> = (0..50_000_u32).map(|at| (at * 7 + at / 300) as u8).collect();
        memory.write(0, &data);
        for range in [0..1, 3..8195, 1..50_000] {
            let mut expected = Crc32c::new();
            expected.update(&data[range.clone()]);
            for span in [Span::from(memory.clone()), Span::from(data.clone())] {
                let mut crc = Crc32c::new();
                let mut span = span.slice(range.clone());
                Payload::split_to(&mut span, range.len() / 2).add_to_crc(&mut crc);
                span.add_to_crc(&mut crc);
                assert_eq!(crc.value(), expected.value());
            }
        }
    }
}
