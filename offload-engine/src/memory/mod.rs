//! Memory for transmission and placement, private or shared.
//!
//! *Private* memory is [`Bytes`]: it does not change while it is referenced. *Shared* memory is registered memory: its
//! owner, RDMA Writes of a peer, and processes that have mapped it read and write it at any time. A Rust reference to
//! it would exclude such accesses, so none is ever created. A [`SharedSpan`] is a pointer, a length and the owner of
//! the memory. Only `memory/copy.rs` copies bytes from it and to it. Code that depends on their values (a checksum, a
//! CRC) reads a copy.
//!
//! | | owned | borrowed |
//! |---|---|---|
//! | shared | [`SharedSpan`] | [`SharedSlice`] |
//! | either | [`Span`] | [`Piece`] |
//!
//! A *word* is eight aligned bytes that threads and peers access by atomic operations ([`SharedSpan::word`]). Each
//! operation is one access for all of them. Copies are not atomic: a copy concurrent with an atomic operation may read
//! bytes from before and after it, as with any RDMA device.
//!
//! A span keeps its memory alive. The memory may be freed or unmapped after the last span is dropped, which drops the
//! owner passed to [`SharedSpan::from_raw`] or [`SharedSpan::under`]. An owner requests its memory back by
//! [`SharedSpan::withdraw`]. Layers that hold spans for a long time check for this and copy what they need.
#![allow(unsafe_code)]

mod copy;
#[cfg(feature = "std")]
pub mod mapped;
mod piece;

use alloc::{
    alloc::{alloc_zeroed, dealloc},
    boxed::Box,
    sync::Arc,
};
use core::{
    alloc::Layout,
    fmt,
    marker::PhantomData,
    mem::MaybeUninit,
    ops::Range,
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use bytes::{BufMut, Bytes};

pub use self::piece::{Piece, Span, to_vec};

/// Bytes copied at once for reading. They fit into the first-level cache.
pub const CHUNK_BYTES: usize = 8 * 1024;

/// Owner of the memory of spans, which it keeps alive.
struct Owner {
    is_writable: bool,
    is_withdrawn: AtomicBool,
    /// Dropped with the last span.
    _keeps: Box<dyn Send + Sync>,
}

/// Memory of the allocator.
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory owned by this value, which only frees it.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `start` was returned by `alloc_zeroed` with this layout, and no span is left.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Length accessors of a type with a field `len`.
macro_rules! length {
    () => {
        /// Length in bytes.
        #[inline]
        pub const fn len(&self) -> usize {
            self.len
        }

        /// True if the length is 0.
        #[inline]
        pub const fn is_empty(&self) -> bool {
            self.len == 0
        }
    };
}

/// Owned part of shared memory. Clones refer to the same bytes.
#[derive(Clone)]
pub struct SharedSpan {
    start: NonNull<u8>,
    len: usize,
    owner: Arc<Owner>,
}

// SAFETY: all threads access the bytes atomically, and the owner is `Send + Sync`.
unsafe impl Send for SharedSpan {}
// SAFETY: as above.
unsafe impl Sync for SharedSpan {}

impl fmt::Debug for SharedSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSpan({:p}+{})", self.start, self.len)
    }
}

/// Private memory as a read-only span.
impl From<Bytes> for SharedSpan {
    fn from(memory: Bytes) -> Self {
        let (start, len) = (NonNull::from(&*memory).cast(), memory.len());
        // SAFETY: the bytes do not move while a `Bytes` refers to them, and are not written.
        unsafe { Self::from_raw(start, len, false, memory) }
    }
}

impl SharedSpan {
    /// Allocates `len` zeroed bytes, aligned to `align`. `None` for 0 bytes, for an alignment that is not a power of
    /// two, and if memory is exhausted.
    pub fn allocate(len: usize, align: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len, align).ok().filter(|_| len > 0)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let owner = Allocation { start, layout };
        // SAFETY: initialized, and without other users, until `owner` frees it.
        Some(unsafe { Self::from_raw(start, len, true, owner) })
    }

    /// Creates a span of foreign memory of any kind (heap, stack, private or shared mapping), at any address.
    ///
    /// `owner` is dropped with the last span, on the thread that drops it. After that this program does not access the
    /// memory. Without `is_writable`, as for read-only mappings, the memory is never written.
    ///
    /// # Safety
    /// Until `owner` is dropped
    /// - `len` bytes from `start` on are initialized, and can be read, and written if `is_writable`;
    /// - the program accesses them by spans, by atomic operations on single bytes, or by atomic operations on words
    ///   that it only accesses as such meanwhile ([`SharedSpan::word`]); no reference exists except to these atomics.
    ///
    /// Code outside of the Rust program (another language, another process, the kernel, a device) may access them in
    /// any way.
    pub unsafe fn from_raw(
        start: NonNull<u8>,
        len: usize,
        is_writable: bool,
        owner: impl Send + Sync + 'static,
    ) -> Self {
        let is_withdrawn = AtomicBool::new(false);
        let owner = Owner { is_writable, is_withdrawn, _keeps: Box::new(owner) };
        Self { start, len, owner: Arc::new(owner) }
    }

    /// Returns the same memory with an additional owner, which is dropped with the last span derived from the result.
    /// It detects that drop, and permits withdrawing these spans and no others.
    #[must_use]
    pub fn under(&self, owner: impl Send + Sync + 'static) -> Self {
        let Self { start, len, owner: keeps } = self.clone();
        let is_writable = keeps.is_writable;
        // SAFETY: the contract is that of `keeps`, which outlives this owner. `owner` is dropped before `keeps`.
        unsafe { Self::from_raw(start, len, is_writable, (owner, keeps)) }
    }

    length!();

    /// Address of the bytes, for a device and for system calls.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// True if the memory may be written.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.owner.is_writable
    }

    /// Requests the memory back. Holders of long-lived spans check for it, and copy what they need.
    pub fn withdraw(&self) {
        self.owner.is_withdrawn.store(true, Ordering::Relaxed);
    }

    /// True if the owner has requested the memory back.
    pub fn is_withdrawn(&self) -> bool {
        self.owner.is_withdrawn.load(Ordering::Relaxed)
    }

    /// Returns the bytes in `range` as a span.
    ///
    /// # Panics
    /// The range is out of bounds.
    #[must_use]
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        let SharedSlice { start, len, .. } = self.view().slice(start, end - start);
        Self { start, len, owner: self.owner.clone() }
    }

    /// Returns this span and the next as one, if they have one owner and `next` starts at the end of this one.
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let end = self.start.as_ptr().wrapping_add(self.len);
        let is_next = Arc::ptr_eq(&self.owner, &next.owner) && end == next.start.as_ptr();
        // Both are parts of the memory of the same owner.
        is_next.then(|| Self {
            start: self.start,
            len: self.len + next.len,
            owner: self.owner.clone(),
        })
    }

    /// Returns a view of the span, without another reference to the owner.
    #[inline]
    pub const fn view(&self) -> SharedSlice<'_> {
        SharedSlice { start: self.start, len: self.len, span: PhantomData }
    }

    /// Copies bytes from the span, from `offset` on.
    ///
    /// # Panics
    /// The range is out of bounds.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        self.view().slice(offset, target.len()).read(target);
    }

    /// Returns the address of `count` bytes to be written.
    #[inline]
    fn writable(&self, offset: usize, count: usize) -> *mut u8 {
        assert!(self.owner.is_writable, "read-only memory");
        self.view().slice(offset, count).start.as_ptr()
    }

    /// Copies `data` to the span, from `offset` on.
    ///
    /// # Panics
    /// The range is out of bounds, or the memory is read-only.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) {
        let target = self.writable(offset, data.len());
        // SAFETY: `target` is valid for as many bytes, which may be written. `data` is a reference, so it does not
        // overlap.
        unsafe { copy::copy(data.as_ptr(), target, data.len()) }
    }

    /// Variant of [`SharedSpan::write`] that stores the last byte last: a reader that loads it by [`SharedSpan::load`]
    /// reads all bytes before it.
    ///
    /// # Panics
    /// As for [`SharedSpan::write`].
    #[inline]
    pub fn write_in_order(&self, offset: usize, data: &[u8]) {
        let Some((last, rest)) = data.split_last() else { return };
        let target = self.writable(offset, data.len());
        // SAFETY: as in `write`, and the last byte is within bounds; `AtomicU8` has its layout.
        unsafe {
            copy::copy(rest.as_ptr(), target, rest.len());
            AtomicU8::from_ptr(target.add(rest.len())).store(*last, Ordering::Release);
        }
    }

    /// Returns the word at `offset`, for atomic operations of this program and of peers: eight bytes in native byte
    /// order. `None` if they are out of bounds, not aligned to eight bytes in memory, or read-only.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(size_of::<AtomicU64>())?;
        if end > self.len || !self.owner.is_writable {
            return None;
        }
        // SAFETY: the bytes are within bounds.
        let word = unsafe { self.start.add(offset) }.cast::<u64>();
        // SAFETY: aligned, initialized and writable as long as the span is borrowed. Copies that race with it consist
        // of atomic byte accesses, in instructions that are opaque to the compiler.
        word.is_aligned().then(|| unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }

    /// Loads the byte at `offset`. Bytes written before it ([`SharedSpan::write_in_order`]) are visible after the load.
    ///
    /// # Panics
    /// `offset` is out of bounds.
    #[inline]
    pub fn load(&self, offset: usize) -> u8 {
        self.view().slice(offset, 1).load()
    }
}

/// Buffer for copies that are read. Aligned to a cache line, because copies move whole lines.
#[repr(align(64))]
struct Scratch([MaybeUninit<u8>; CHUNK_BYTES]);

/// Borrowed part of shared memory.
#[derive(Clone, Copy)]
pub struct SharedSlice<'a> {
    start: NonNull<u8>,
    len: usize,
    span: PhantomData<&'a SharedSpan>,
}

// SAFETY: as for `SharedSpan`.
unsafe impl Send for SharedSlice<'_> {}
// SAFETY: as for `SharedSpan`.
unsafe impl Sync for SharedSlice<'_> {}

impl fmt::Debug for SharedSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSlice({:p}+{})", self.start, self.len)
    }
}

impl SharedSlice<'_> {
    /// Creates a slice of memory that the caller keeps alive, for reading during its lifetime.
    ///
    /// # Safety
    /// During the lifetime `len` bytes from `start` on are initialized and can be read. They may be written meanwhile
    /// in the ways that [`SharedSpan::from_raw`] allows.
    pub const unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, span: PhantomData }
    }

    length!();

    /// Address of the bytes.
    #[inline]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns `len` bytes from `offset` on.
    ///
    /// # Panics
    /// The range is out of bounds.
    #[must_use]
    #[inline]
    pub fn slice(self, offset: usize, len: usize) -> Self {
        let fits = self.len.checked_sub(offset).is_some_and(|rest| len <= rest);
        assert!(fits, "{len} bytes from {offset} on of {}", self.len);
        // SAFETY: within the memory, or one past its end.
        Self { start: unsafe { self.start.add(offset) }, len, span: self.span }
    }

    /// Copies the bytes into a slice of the same length.
    ///
    /// # Panics
    /// The lengths differ.
    #[inline]
    pub fn read(self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len, "length of the target");
        // SAFETY: both are valid for as many bytes; a `&mut` cannot overlap the memory of a span
        // (`SharedSpan::from_raw`).
        unsafe { copy::copy(self.start.as_ptr(), target.as_mut_ptr(), self.len) }
    }

    /// Appends the bytes to `target`.
    ///
    /// # Panics
    /// `target` has too little room.
    #[inline]
    pub fn append_to(mut self, target: &mut impl BufMut) {
        if self.len == 0 {
            return;
        }
        loop {
            let room = target.chunk_mut();
            let count = room.len().min(self.len);
            assert!(count > 0, "no room for {} bytes", self.len);
            // SAFETY: `room` has as many bytes, which `copy` initializes; it is a reference, so it does not overlap.
            unsafe {
                copy::copy(self.start.as_ptr(), room.as_mut_ptr(), count);
                target.advance_mut(count);
            }
            if count == self.len {
                return;
            }
            self = self.slice(count, self.len - count);
        }
    }

    /// Passes copies of the bytes to `take`, at most [`CHUNK_BYTES`] at a time, in order.
    pub fn chunks(mut self, mut take: impl FnMut(&[u8])) {
        let mut scratch = Scratch([const { MaybeUninit::uninit() }; CHUNK_BYTES]);
        while self.len > 0 {
            let count = self.len.min(CHUNK_BYTES);
            let target = scratch.0.as_mut_ptr().cast::<u8>();
            // SAFETY: `count` bytes of `scratch` are initialized, and borrowed until the next iteration.
            take(unsafe {
                copy::copy(self.start.as_ptr(), target, count);
                core::slice::from_raw_parts(target, count)
            });
            self = self.slice(count, self.len - count);
        }
    }

    /// Loads the only byte.
    pub(super) fn load(self) -> u8 {
        debug_assert_eq!(self.len, 1);
        // SAFETY: valid for one byte; `AtomicU8` has its layout.
        unsafe { AtomicU8::from_ptr(self.start.as_ptr()) }.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
