//! Fast registrations: registrations by work requests, of a buffer or of logical pages.

use alloc::boxed::Box;

use super::{
    buffer::{PAGE_SIZE, RegisteredBuffer},
    registration::{Access, Registration},
};
use crate::rnic::status::VerbError;

/// The memory of a fast registration.
#[derive(Clone, Copy, Debug)]
pub enum FastMemory<'a> {
    /// A part of a buffer.
    Buffer {
        /// The buffer.
        buffer: &'a RegisteredBuffer,
        /// The first byte of the part.
        offset: usize,
    },
    /// Pages of logical address mappings ([`Rnic::build_lam`](crate::rnic::Rnic::build_lam)), in any order.
    Pages {
        /// Their logical addresses: multiples of [`PAGE_SIZE`].
        pages: &'a [u64],
        /// The first byte in the first page (FBO), below [`PAGE_SIZE`].
        first_byte: u32,
    },
}

impl FastMemory<'_> {
    /// The place of the first byte in its page, and pages that there may be.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: more pages than `pages_max`, one that is not aligned, or a first byte behind the
    /// first page (NDK-MEM-7).
    pub(crate) fn place(self, pages_max: u32) -> Result<(usize, u32), VerbError> {
        match self {
            Self::Buffer { offset, .. } => Ok((offset % PAGE_SIZE, pages_max)),
            Self::Pages { pages, first_byte } => {
                let count = u32::try_from(pages.len()).ok().filter(|count| *count <= pages_max);
                let is_aligned = pages.iter().all(|page| page % PAGE_SIZE as u64 == 0);
                match count {
                    Some(count) if is_aligned && (first_byte as usize) < PAGE_SIZE => {
                        Ok((first_byte as usize, count))
                    }
                    _ => Err(VerbError::InvalidArgument),
                }
            }
        }
    }
}

/// A fast registration whose turn has not come.
#[derive(Debug)]
pub(crate) enum Prepared {
    Memory(Registration),
    Pages(PreparedPages),
}

/// One of logical pages. It holds no memory: that is looked up again when its turn comes.
#[derive(Debug)]
pub(crate) struct PreparedPages {
    pub(crate) pages: Box<[u64]>,
    pub(crate) first_byte: usize,
    pub(crate) length: usize,
    pub(crate) token: u32,
    pub(crate) base: u64,
    pub(crate) rights: Access,
}

impl Prepared {
    pub(crate) const fn token(&self) -> u32 {
        match self {
            Self::Memory(registration) => registration.token,
            Self::Pages(prepared) => prepared.token,
        }
    }
}
