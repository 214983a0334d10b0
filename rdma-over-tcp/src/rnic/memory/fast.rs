//! Fast registrations: registrations by work requests, of a buffer or of logical pages.

use alloc::boxed::Box;

use super::{
    buffer::{PAGE_SIZE, RegisteredBuffer},
    registration::{Access, Registration},
};
use crate::rnic::status::VerbError;

/// Memory of a fast registration.
#[derive(Clone, Copy, Debug)]
pub enum FastMemory<'a> {
    /// Part of a buffer.
    Buffer {
        /// Buffer that contains the part.
        buffer: &'a RegisteredBuffer,
        /// Offset of the part's first byte.
        offset: usize,
    },
    /// Pages of logical address mappings ([`Rnic::build_lam`](crate::rnic::Rnic::build_lam)), in any order.
    Pages {
        /// Logical addresses of the pages: multiples of [`PAGE_SIZE`].
        pages: &'a [u64],
        /// Offset of the first byte in the first page (FBO), below [`PAGE_SIZE`].
        first_byte: u32,
    },
}

impl FastMemory<'_> {
    /// Returns the offset of the first byte in its page, and the maximum number of pages.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: more pages than `pages_max`, a page that is not aligned, or a first byte beyond
    /// the first page (NDK-MEM-7).
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

/// Fast registration that was posted and has not started.
#[derive(Debug)]
pub(crate) enum Prepared {
    Memory(Registration),
    Pages(PreparedPages),
}

/// Fast registration of logical pages. It holds no memory: the pages are looked up again when it starts.
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
