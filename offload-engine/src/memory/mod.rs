//! Memory that is sent from and placed into, private or shared.
//!
//! *Private* memory is [`Bytes`]: it does not change while it is referenced. *Shared* memory is registered memory: its
//! owner, a peer's RDMA Writes, and processes that have mapped it read and write it at any time. A Rust reference to it
//! would promise that they do not, so none is ever made. A [`SharedSpan`] is a pointer, a length and what keeps the
//! memory; bytes are copied out of it and into it by `memory/copy.rs` alone, and whatever
//! looks at their values (a checksum, a CRC) looks at a copy.
//!
//! | | owned | borrowed |
//! |---|---|---|
//! | shared | [`SharedSpan`] | [`SharedSlice`] |
//! | either | [`Span`] | [`Piece`] |
//!
//! A *word* is eight aligned bytes on which threads and peers work by atomic operations ([`SharedSpan::word`]). Each is
//! one access for all of them. Copies are not: one that meets an atomic may take bytes from before and from behind it,
//! as with any RDMA device.
//!
//! A span keeps its memory alive: it may be freed or unmapped when the last span is dropped, which drops the owner
//! that was given to [`SharedSpan::from_raw`] or [`SharedSpan::under`]. An owner requests its memory back by
//! [`SharedSpan::withdraw`]; layers that hold spans for long look for it and copy what they need.
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

/// Bytes that are copied at once in order to be looked at: the first-level cache holds them.
pub const CHUNK_BYTES: usize = 8 * 1024;

/// Keeps the memory of spans alive.
struct Owner {
    is_writable: bool,
    is_withdrawn: AtomicBool,
    /// Dropped with the last span.
    _keeps: Box<dyn Send + Sync>,
}

/// Memory of the allocator's.
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory that this value owns; it is only ever freed.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this very layout, and no span is left.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The length of what has a field `len`.
macro_rules! length {
    () => {
        /// Bytes.
        #[inline]
        pub const fn len(&self) -> usize {
            self.len
        }

        /// Returns whether it is empty.
        #[inline]
        pub const fn is_empty(&self) -> bool {
            self.len == 0
        }
    };
}

/// A part of shared memory, which it keeps. Clones are of the same bytes.
#[derive(Clone)]
pub struct SharedSpan {
    start: NonNull<u8>,
    len: usize,
    owner: Arc<Owner>,
}

// SAFETY: the bytes are accessed atomically only, from whatever thread, and the owner is `Send + Sync`.
unsafe impl Send for SharedSpan {}
// SAFETY: as above.
unsafe impl Sync for SharedSpan {}

impl fmt::Debug for SharedSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSpan({:p}+{})", self.start, self.len)
    }
}

/// Private memory, which may only be read.
impl From<Bytes> for SharedSpan {
    fn from(memory: Bytes) -> Self {
        let (start, len) = (NonNull::from(&*memory).cast(), memory.len());
        // SAFETY: the bytes stay where they are while there is a `Bytes` of them, and are not written.
        unsafe { Self::from_raw(start, len, false, memory) }
    }
}

impl SharedSpan {
    /// `len` zeroed bytes, aligned to `align`. `None` for 0 bytes, an alignment that is no power of two, and when
    /// memory is short.
    pub fn allocate(len: usize, align: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len, align).ok().filter(|_| len > 0)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let owner = Allocation { start, layout };
        // SAFETY: initialised, and without other users, until `owner` frees it.
        Some(unsafe { Self::from_raw(start, len, true, owner) })
    }

    /// Foreign memory: of any kind (heap, stack, mapped alone or with others), at any address.
    ///
    /// `owner` is dropped with the last span, on the thread that has it: then nothing of this program's reads or writes
    /// the memory any more. Without `is_writable`, as for pages that are mapped to be read, nothing ever writes it.
    ///
    /// # Safety
    /// Until `owner` is dropped
    /// - `len` bytes from `start` on are initialised, and can be read, and written if `is_writable`;
    /// - the program accesses them by spans, or else by atomic operations on single bytes, or on words that it only
    ///   accesses as such meanwhile ([`SharedSpan::word`]), and no reference exists but to these atomics.
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

    /// The same memory under an owner of its own, which is dropped with the last span of it: to learn that, and to
    /// withdraw these spans and no others.
    #[must_use]
    pub fn under(&self, owner: impl Send + Sync + 'static) -> Self {
        let Self { start, len, owner: keeps } = self.clone();
        let is_writable = keeps.is_writable;
        // SAFETY: the contract is that of `keeps`, which outlives this owner. `owner` is notified of the last span
        // before `keeps` does.
        unsafe { Self::from_raw(start, len, is_writable, (owner, keeps)) }
    }

    length!();

    /// Where the bytes are, for a device, and for system calls.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns whether the memory may be written.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.owner.is_writable
    }

    /// Requests the memory back: holders of long-lived spans check for it, and copy what they need.
    pub fn withdraw(&self) {
        self.owner.is_withdrawn.store(true, Ordering::Relaxed);
    }

    /// Returns whether the owner has requested the memory back.
    pub fn is_withdrawn(&self) -> bool {
        self.owner.is_withdrawn.load(Ordering::Relaxed)
    }

    /// The bytes in `range`, as a span of its own.
    ///
    /// # Panics
    /// When there are no such bytes.
    #[must_use]
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        let SharedSlice { start, len, .. } = self.view().slice(start, end - start);
        Self { start, len, owner: self.owner.clone() }
    }

    /// This span and the next as one, if they are of one owner and `next` begins where this one ends.
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let end = self.start.as_ptr().wrapping_add(self.len);
        let is_next = Arc::ptr_eq(&self.owner, &next.owner) && end == next.start.as_ptr();
        // Both are parts of the memory that the owner keeps.
        is_next.then(|| Self {
            start: self.start,
            len: self.len + next.len,
            owner: self.owner.clone(),
        })
    }

    /// All of it, without another reference to the owner.
    #[inline]
    pub const fn view(&self) -> SharedSlice<'_> {
        SharedSlice { start: self.start, len: self.len, span: PhantomData }
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Panics
    /// When there are not as many.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        self.view().slice(offset, target.len()).read(target);
    }

    /// The place of `count` bytes to be written.
    #[inline]
    fn writable(&self, offset: usize, count: usize) -> *mut u8 {
        assert!(self.owner.is_writable, "memory that may only be read");
        self.view().slice(offset, count).start.as_ptr()
    }

    /// Copies `data` in, from `offset` on.
    ///
    /// # Panics
    /// When it does not fit, or the memory may only be read.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) {
        let target = self.writable(offset, data.len());
        // SAFETY: `target` is valid for so many bytes, which may be written; `data` is a reference, and so lies
        // elsewhere.
        unsafe { copy::copy(data.as_ptr(), target, data.len()) }
    }

    /// As [`SharedSpan::write`], and the last byte is stored last: a reader that sees it by [`SharedSpan::load`] sees
    /// all of them.
    ///
    /// # Panics
    /// As [`SharedSpan::write`].
    #[inline]
    pub fn write_in_order(&self, offset: usize, data: &[u8]) {
        let Some((last, rest)) = data.split_last() else { return };
        let target = self.writable(offset, data.len());
        // SAFETY: as in `write`, and the last byte is within; `AtomicU8` has its layout.
        unsafe {
            copy::copy(rest.as_ptr(), target, rest.len());
            AtomicU8::from_ptr(target.add(rest.len())).store(*last, Ordering::Release);
        }
    }

    /// The word at `offset`, for atomic operations of this program and, by it, of peers: eight bytes as a number of the
    /// machine's. `None`: they are not all there, do not lie at a multiple of eight in memory, or may only be read.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(size_of::<AtomicU64>())?;
        if end > self.len || !self.owner.is_writable {
            return None;
        }
        // SAFETY: the bytes are within.
        let word = unsafe { self.start.add(offset) }.cast::<u64>();
        // SAFETY: aligned, initialised and writable as long as the span is borrowed. Copies that race with it are
        // made of atomic accesses of bytes, by instructions that the compiler does not see through.
        word.is_aligned().then(|| unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }

    /// The byte at `offset`. What was written before it ([`SharedSpan::write_in_order`]) is visible once it is.
    ///
    /// # Panics
    /// When `offset` is beyond the end.
    #[inline]
    pub fn load(&self, offset: usize) -> u8 {
        self.view().slice(offset, 1).load()
    }
}

/// Where copies lie that are looked at: at the start of a cache line, for they are moved by lines.
#[repr(align(64))]
struct Scratch([MaybeUninit<u8>; CHUNK_BYTES]);

/// Shared memory with another owner.
#[derive(Clone, Copy)]
pub struct SharedSlice<'a> {
    start: NonNull<u8>,
    len: usize,
    span: PhantomData<&'a SharedSpan>,
}

// SAFETY: as of `SharedSpan`.
unsafe impl Send for SharedSlice<'_> {}
// SAFETY: as of `SharedSpan`.
unsafe impl Sync for SharedSlice<'_> {}

impl fmt::Debug for SharedSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSlice({:p}+{})", self.start, self.len)
    }
}

impl SharedSlice<'_> {
    /// Memory that the caller keeps, to be read as long as the slice lives.
    ///
    /// # Safety
    /// During the lifetime `len` bytes from `start` on are initialised and can be read. They may be written meanwhile
    /// in the ways that [`SharedSpan::from_raw`] allows.
    pub const unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, span: PhantomData }
    }

    length!();

    /// Where the bytes are.
    #[inline]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// `len` bytes from `offset` on.
    ///
    /// # Panics
    /// When there are not as many.
    #[must_use]
    #[inline]
    pub fn slice(self, offset: usize, len: usize) -> Self {
        let fits = self.len.checked_sub(offset).is_some_and(|rest| len <= rest);
        assert!(fits, "{len} bytes from {offset} on of {}", self.len);
        // SAFETY: within the memory, or right behind it.
        Self { start: unsafe { self.start.add(offset) }, len, span: self.span }
    }

    /// Copies the bytes into a slice of as many.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn read(self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len, "bytes to be read");
        // SAFETY: both are valid for so many bytes; a `&mut` cannot lie in memory of a span (`SharedSpan::from_raw`).
        unsafe { copy::copy(self.start.as_ptr(), target.as_mut_ptr(), self.len) }
    }

    /// Appends the bytes to `target`.
    ///
    /// # Panics
    /// When `target` has not so much room.
    #[inline]
    pub fn append_to(mut self, target: &mut impl BufMut) {
        if self.len == 0 {
            return;
        }
        loop {
            let room = target.chunk_mut();
            let count = room.len().min(self.len);
            assert!(count > 0, "no room for {} bytes", self.len);
            // SAFETY: `room` has so many bytes, which `copy` initialises; it is a reference, so it lies elsewhere.
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

    /// Shows copies of the bytes, at most [`CHUNK_BYTES`] at a time, in order.
    pub fn chunks(mut self, mut take: impl FnMut(&[u8])) {
        let mut scratch = Scratch([const { MaybeUninit::uninit() }; CHUNK_BYTES]);
        while self.len > 0 {
            let count = self.len.min(CHUNK_BYTES);
            let target = scratch.0.as_mut_ptr().cast::<u8>();
            // SAFETY: `count` bytes of `scratch` are initialised, and then lent until the next turn.
            take(unsafe {
                copy::copy(self.start.as_ptr(), target, count);
                core::slice::from_raw_parts(target, count)
            });
            self = self.slice(count, self.len - count);
        }
    }

    /// The one byte there is.
    pub(super) fn load(self) -> u8 {
        debug_assert_eq!(self.len, 1);
        // SAFETY: valid for one byte; `AtomicU8` has its layout.
        unsafe { AtomicU8::from_ptr(self.start.as_ptr()) }.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
