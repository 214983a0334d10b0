//! Memory for transmission, private or shared.

use alloc::vec::Vec;
use core::ops::Range;
#[cfg(feature = "std")]
use std::io::IoSlice;

use bytes::{BufMut, Bytes};

use super::{SharedSlice, SharedSpan};

/// Owned memory for transmission.
#[derive(Clone, Debug)]
pub enum Span {
    /// Memory that does not change.
    Private(Bytes),
    /// Memory that may change at any time.
    Shared(SharedSpan),
}

/// Borrowed memory for transmission.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Memory that does not change.
    Private(&'a [u8]),
    /// Memory that may change at any time.
    Shared(SharedSlice<'a>),
}

impl Default for Span {
    fn default() -> Self {
        Self::Private(Bytes::new())
    }
}

impl From<Bytes> for Span {
    #[inline]
    fn from(memory: Bytes) -> Self {
        Self::Private(memory)
    }
}

impl From<Vec<u8>> for Span {
    fn from(memory: Vec<u8>) -> Self {
        Self::Private(memory.into())
    }
}

impl From<&'static [u8]> for Span {
    fn from(memory: &'static [u8]) -> Self {
        Self::Private(Bytes::from_static(memory))
    }
}

impl From<SharedSpan> for Span {
    #[inline]
    fn from(memory: SharedSpan) -> Self {
        Self::Shared(memory)
    }
}

impl Span {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.piece().len()
    }

    /// True if the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.piece().is_empty()
    }

    /// Address of the bytes.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.piece().as_ptr()
    }

    /// Returns a view of the span, without another reference to the memory.
    #[inline]
    pub fn piece(&self) -> Piece<'_> {
        match self {
            Self::Private(memory) => Piece::Private(memory),
            Self::Shared(memory) => Piece::Shared(memory.view()),
        }
    }

    /// Returns the bytes in `range`, without a copy.
    ///
    /// # Panics
    /// The range is out of bounds.
    #[must_use]
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Private(memory) => Self::Private(memory.slice(range)),
            Self::Shared(memory) => Self::Shared(memory.slice(range)),
        }
    }

    /// Removes the first `count` bytes and returns them.
    ///
    /// # Panics
    /// The span has fewer bytes.
    #[must_use]
    #[inline]
    pub fn split_to(&mut self, count: usize) -> Self {
        match self {
            Self::Private(memory) => Self::Private(memory.split_to(count)),
            Self::Shared(memory) => {
                let front = memory.slice(0..count);
                *memory = memory.slice(count..memory.len());
                Self::Shared(front)
            }
        }
    }

    /// Returns a copy if the memory is shared.
    pub fn copied(&self) -> Option<Bytes> {
        match self {
            Self::Private(_) => None,
            Self::Shared(memory) => {
                let mut copy = Vec::with_capacity(memory.len());
                memory.view().append_to(&mut copy);
                Some(copy.into())
            }
        }
    }

    /// True if the memory is shared and its owner has withdrawn it ([`SharedSpan::withdraw`]).
    pub fn is_withdrawn(&self) -> bool {
        matches!(self, Self::Shared(memory) if memory.is_withdrawn())
    }
}

impl<'a> From<&'a [u8]> for Piece<'a> {
    #[inline]
    fn from(memory: &'a [u8]) -> Self {
        Self::Private(memory)
    }
}

impl<'a> Piece<'a> {
    /// Empty piece.
    pub const EMPTY: Self = Self::Private(&[]);

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Private(memory) => memory.len(),
            Self::Shared(memory) => memory.len(),
        }
    }

    /// True if the length is 0.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the bytes, for a device and for system calls.
    #[inline]
    pub const fn as_ptr(&self) -> *const u8 {
        match self {
            Self::Private(memory) => memory.as_ptr(),
            Self::Shared(memory) => memory.as_ptr(),
        }
    }

    /// Splits the piece after the first `count` bytes.
    ///
    /// # Panics
    /// The piece has fewer bytes.
    #[must_use]
    #[inline]
    pub fn split_at(self, count: usize) -> (Self, Self) {
        match self {
            Self::Private(memory) => {
                let (front, back) = memory.split_at(count);
                (Self::Private(front), Self::Private(back))
            }
            Self::Shared(memory) => {
                let back = memory.slice(count, memory.len() - count);
                (Self::Shared(memory.slice(0, count)), Self::Shared(back))
            }
        }
    }

    /// Returns `len` bytes from `offset` on.
    ///
    /// # Panics
    /// The range is out of bounds.
    #[must_use]
    #[inline]
    pub fn part(self, offset: usize, len: usize) -> Self {
        match self {
            Self::Private(memory) => Self::Private(&memory[offset..][..len]),
            Self::Shared(memory) => Self::Shared(memory.slice(offset, len)),
        }
    }

    /// Returns at most `count` bytes from the start.
    #[must_use]
    #[inline]
    pub fn truncated(self, count: usize) -> Self {
        self.part(0, self.len().min(count))
    }

    /// Returns the byte at `offset`, if it is within bounds.
    pub fn byte(self, offset: usize) -> Option<u8> {
        match self {
            Self::Private(memory) => memory.get(offset).copied(),
            Self::Shared(memory) => (offset < memory.len()).then(|| memory.slice(offset, 1).load()),
        }
    }

    /// Copies the bytes into a slice of the same length.
    ///
    /// # Panics
    /// The lengths differ.
    #[inline]
    pub fn read(self, target: &mut [u8]) {
        match self {
            Self::Private(memory) => target.copy_from_slice(memory),
            Self::Shared(memory) => memory.read(target),
        }
    }

    /// Appends the bytes to `target`.
    ///
    /// # Panics
    /// `target` has too little room.
    #[inline]
    pub fn append_to(self, target: &mut impl BufMut) {
        match self {
            Self::Private(memory) => target.put_slice(memory),
            Self::Shared(memory) => memory.append_to(target),
        }
    }

    /// Passes the bytes to `take`, in order: private ones in place, shared ones as copies ([`SharedSlice::chunks`]).
    #[inline]
    pub fn chunks(self, mut take: impl FnMut(&[u8])) {
        match self {
            Self::Private(memory) => take(memory),
            Self::Shared(memory) => memory.chunks(take),
        }
    }

    /// Returns an entry of a gathered write for the kernel. It must not be read: for shared memory it would yield a
    /// reference.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn io_slice(self) -> IoSlice<'a> {
        let entry = libc::iovec { iov_base: self.as_ptr().cast_mut().cast(), iov_len: self.len() };
        // SAFETY: `IoSlice` is guaranteed to be ABI compatible with `iovec`. The bytes do not move during `'a`.
        unsafe { core::mem::transmute::<libc::iovec, IoSlice<'a>>(entry) }
    }
}

/// Returns a copy of all the bytes, in order.
pub fn to_vec<'a>(pieces: impl IntoIterator<Item = Piece<'a>>) -> Vec<u8> {
    let mut all = Vec::new();
    pieces.into_iter().for_each(|piece| piece.append_to(&mut all));
    all
}
