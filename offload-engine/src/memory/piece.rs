//! Memory to be sent: private or shared.

use alloc::vec::Vec;
use core::ops::Range;
#[cfg(feature = "std")]
use std::io::IoSlice;

use bytes::{BufMut, Bytes};

use super::{SharedSlice, SharedSpan};

/// Memory to be sent, which this keeps.
#[derive(Clone, Debug)]
pub enum Span {
    /// Does not change.
    Private(Bytes),
    /// May change at any time.
    Shared(SharedSpan),
}

/// Memory to be sent, kept by another owner.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Does not change.
    Private(&'a [u8]),
    /// May change at any time.
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
    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.piece().len()
    }

    /// Returns whether it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.piece().is_empty()
    }

    /// Where the bytes are.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.piece().as_ptr()
    }

    /// All of it, without another reference to the memory.
    #[inline]
    pub fn piece(&self) -> Piece<'_> {
        match self {
            Self::Private(memory) => Piece::Private(memory),
            Self::Shared(memory) => Piece::Shared(memory.view()),
        }
    }

    /// The bytes in `range`, where they lie.
    ///
    /// # Panics
    /// When there are no such bytes.
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
    /// When there are not as many.
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

    /// A copy, if the memory is shared.
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

    /// Returns whether the memory is shared and its owner has withdrawn it ([`SharedSpan::withdraw`]).
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
    /// No bytes.
    pub const EMPTY: Self = Self::Private(&[]);

    /// Bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Private(memory) => memory.len(),
            Self::Shared(memory) => memory.len(),
        }
    }

    /// Returns whether it is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the bytes are, for a device, and for system calls.
    #[inline]
    pub const fn as_ptr(&self) -> *const u8 {
        match self {
            Self::Private(memory) => memory.as_ptr(),
            Self::Shared(memory) => memory.as_ptr(),
        }
    }

    /// The first `count` bytes and the others.
    ///
    /// # Panics
    /// When there are not as many.
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

    /// `len` bytes from `offset` on.
    ///
    /// # Panics
    /// When there are not as many.
    #[must_use]
    #[inline]
    pub fn part(self, offset: usize, len: usize) -> Self {
        match self {
            Self::Private(memory) => Self::Private(&memory[offset..][..len]),
            Self::Shared(memory) => Self::Shared(memory.slice(offset, len)),
        }
    }

    /// At most `count` bytes from the front.
    #[must_use]
    #[inline]
    pub fn truncated(self, count: usize) -> Self {
        self.part(0, self.len().min(count))
    }

    /// The byte at `offset`, if it is there.
    pub fn byte(self, offset: usize) -> Option<u8> {
        match self {
            Self::Private(memory) => memory.get(offset).copied(),
            Self::Shared(memory) => (offset < memory.len()).then(|| memory.slice(offset, 1).load()),
        }
    }

    /// Copies the bytes into a slice of as many.
    ///
    /// # Panics
    /// When the lengths differ.
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
    /// When `target` has not so much room.
    #[inline]
    pub fn append_to(self, target: &mut impl BufMut) {
        match self {
            Self::Private(memory) => target.put_slice(memory),
            Self::Shared(memory) => memory.append_to(target),
        }
    }

    /// Shows the bytes, in order: private ones where they lie, of shared ones copies ([`SharedSlice::chunks`]).
    #[inline]
    pub fn chunks(self, mut take: impl FnMut(&[u8])) {
        match self {
            Self::Private(memory) => take(memory),
            Self::Shared(memory) => memory.chunks(take),
        }
    }

    /// An entry of a gathered write, to be given to the kernel. It must not be read: of shared memory it would give a
    /// reference.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn io_slice(self) -> IoSlice<'a> {
        let entry = libc::iovec { iov_base: self.as_ptr().cast_mut().cast(), iov_len: self.len() };
        // SAFETY: `IoSlice` is guaranteed to be ABI compatible with `iovec`. The bytes stay where they are for `'a`.
        unsafe { core::mem::transmute::<libc::iovec, IoSlice<'a>>(entry) }
    }
}

/// A copy of all the bytes, in order.
pub fn to_vec<'a>(pieces: impl IntoIterator<Item = Piece<'a>>) -> Vec<u8> {
    let mut all = Vec::new();
    pieces.into_iter().for_each(|piece| piece.append_to(&mut all));
    all
}
