//! Memory that can be registered: page-aligned, zeroed, shared between its consumer and the adapter.
//!
//! The adapter reads and writes it as a device would, while the consumer holds it too. So nobody ever
//! has a `&mut [u8]` into it: all copies go through raw pointers. What the adapter sends it slices
//! with [`Bytes`], without copying.
//!
//! The rule between consumer and adapter is that of every RDMA device: while a work request, or a
//! right granted to a peer, covers some bytes, their content is whatever the last writer left.
//! Rust has no type for memory that a device and a program share by the byte, and [`Bytes`] lends plain
//! `&[u8]`; the references that it lends live for one checksum or one gathered write, on the thread that
//! also places received data, so no placement happens under them. A consumer that breaks the rule races
//! with them as it would race with a device. Memory that is registered with several adapters has several devices.
//!
//! [`RegisteredBuffer::load_last`] is the one synchronising access: it pairs with the adapter's store
//! of the last byte of each placement (IN_ORDER_DMA_SUPPORTED).
#![allow(unsafe_code)]

use alloc::{
    alloc::{alloc_zeroed, dealloc},
    sync::Arc,
};
use core::{
    alloc::Layout,
    fmt,
    ptr::NonNull,
    sync::atomic::{AtomicU8, Ordering},
};

use bytes::Bytes;

/// Bytes of a page: the alignment of registered memory and the unit of fast registration.
pub const PAGE_SIZE: usize = 4096;

#[derive(Debug)]
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the allocation is plain memory owned by this value; no thread affinity.
unsafe impl Send for Allocation {}
// SAFETY: shared access only copies bytes through raw pointers and atomics (module rule).
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this very layout, and nobody else is left.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A buffer that can be registered. Clones share the memory.
#[derive(Clone)]
pub struct RegisteredBuffer(Arc<Allocation>);

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredBuffer({:#x}+{})", self.address(), self.len())
    }
}

/// The owner inside of `Bytes`: the memory stays as long as a slice of it does.
struct Owner(Arc<Allocation>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes live at `start` as long as `self`. The bytes may change under
        // the reference (a peer writes what is being sent): then what is sent is one or the other
        // value, per byte, as with a device. Nothing but byte copies and checksums reads through it.
        unsafe { core::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len) }
    }
}

impl RegisteredBuffer {
    /// `len` zeroed bytes at a page boundary; `None` for 0 and when memory is short.
    #[must_use]
    pub fn allocate(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len, PAGE_SIZE).ok()?;
        if len == 0 {
            return None;
        }
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self(Arc::new(Allocation { start, layout, len })))
    }

    /// Bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// The virtual address: what scatter/gather entries and peers name (NDK-MEM-3).
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.start.as_ptr().expose_provenance() as u64
    }

    /// The address of the byte `offset` in.
    fn at(&self, offset: usize, count: usize) -> *mut u8 {
        let end = offset.checked_add(count);
        assert!(end.is_some_and(|end| end <= self.0.len), "{offset}+{count} in {}", self.0.len);
        // SAFETY: within the allocation, checked above.
        unsafe { self.0.start.as_ptr().add(offset) }
    }

    /// Copies `data` in.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        let target = self.at(offset, data.len());
        // SAFETY: `target` is valid for `data.len()` bytes; `data` is a reference and so cannot lie
        // in this allocation, to which no `&[u8]` is ever handed out but behind `Bytes` (module rule).
        unsafe { target.copy_from_nonoverlapping(data.as_ptr(), data.len()) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When the buffer does not have as many.
    pub fn read_at(&self, offset: usize, data: &mut [u8]) {
        let source = self.at(offset, data.len());
        // SAFETY: as in `write_at`, the other way.
        unsafe { data.as_mut_ptr().copy_from_nonoverlapping(source, data.len()) }
    }

    /// The byte at `offset`, for consumers that wait for the last byte of a peer's write: what was
    /// placed before it is visible once it is.
    ///
    /// # Panics
    /// When `offset` is beyond the end.
    #[must_use]
    pub fn load_last(&self, offset: usize) -> u8 {
        let byte = self.at(offset, 1);
        // SAFETY: valid for one byte; `AtomicU8` has its layout.
        unsafe { AtomicU8::from_ptr(byte) }.load(Ordering::Acquire)
    }

    /// Places received bytes: the last one is stored last (IN_ORDER_DMA_SUPPORTED).
    pub(crate) fn place(&self, offset: usize, data: &[u8]) {
        let Some((last, rest)) = data.split_last() else { return };
        self.write_at(offset, rest);
        let byte = self.at(offset + rest.len(), 1);
        // SAFETY: valid for one byte; `AtomicU8` has its layout.
        unsafe { AtomicU8::from_ptr(byte) }.store(*last, Ordering::Release);
    }

    /// The whole buffer, to be sliced for sending.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::from_owner(Owner(self.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    #[test]
    fn aligned_zeroed_and_shared() {
        let buffer = RegisteredBuffer::allocate(5000).unwrap();
        assert_eq!(buffer.address() % PAGE_SIZE as u64, 0);
        let mut out = vec![1; 5000];
        buffer.read_at(0, &mut out);
        assert!(out.iter().all(|byte| *byte == 0));
        buffer.clone().write_at(4998, b"ab");
        assert_eq!(buffer.load_last(4999), b'b');
        assert!(RegisteredBuffer::allocate(0).is_none());
        assert!(RegisteredBuffer::allocate(usize::MAX).is_none());
    }

    #[test]
    fn placement_and_slices() {
        let buffer = RegisteredBuffer::allocate(8).unwrap();
        let slice = buffer.bytes().slice(2..5);
        buffer.place(2, b"xyz");
        buffer.place(7, b"");
        assert_eq!(&slice[..], b"xyz");
        drop(buffer);
        assert_eq!(&slice[..], b"xyz", "a slice keeps the memory");
    }

    #[test]
    #[should_panic(expected = "in 8")]
    fn bounds() {
        RegisteredBuffer::allocate(8).unwrap().write_at(7, b"xy");
    }
}
