//! Logical address mappings (LAMs): memory at addresses assigned by the adapter, page by page.
//!
//! A logical address is to this adapter what a physical address is to a device: a page number and an offset in that
//! page. A scatter/gather entry with the *privileged* token of its protection domain uses logical addresses. A fast
//! registration takes a list of logical pages. Peers cannot use logical addresses.
//!
//! The table contains the mappings that are not released, each with its memory, which may start and end within a page.
//! Addresses outside of this memory are invalid, also those in the rest of a first or last page. Mappings have random
//! positions in a space of 2^51 pages, with unmapped pages between them, so a wrong address hits no other mapping by
//! chance. The pages of one mapping are consecutive, as behind an IOMMU; consumers must not depend on it (NDK-SGE-3).
//!
//! A mapping has the lifetime of any object, and is released by its close. Requests that start later find no memory at
//! its addresses. Fast registrations with its pages end, with the windows on them. Data in flight is copied as with
//! [`Rnic::deregister`](crate::rnic::Rnic::deregister). So the consumer may reuse the memory when the release is
//! complete, even with requests posted.

use alloc::vec::Vec;

use super::{buffer::PAGE_SIZE, registration::Registration};
use crate::rnic::objects::{
    id::{LamId, RegionId},
    lifetime::Life,
};

/// Size of a logical page in bytes.
pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

/// State of one logical address mapping.
#[derive(Debug)]
pub(crate) struct Lam {
    /// Pinned while the memory is in use.
    pub(crate) life: Life,
    /// Memory at the mapping's addresses, for local requests; `None` after its release.
    pub(crate) registration: Option<Registration>,
    /// Regions whose fast registration contains pages of the mapping.
    pub(crate) regions: Vec<RegionId>,
}

/// Result of building a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogicalMemory {
    /// Identifier of the mapping.
    pub id: LamId,
    /// Logical address of the first byte. Its page is the first one of the mapping; the others follow it.
    pub address: u64,
    /// Number of pages.
    pub pages: u32,
}

impl LogicalMemory {
    /// Returns the number of pages touched by `length` bytes from virtual address `address` on; `None`: zero, or more
    /// than a `u32` can count.
    #[must_use]
    pub const fn pages_needed(address: u64, length: usize) -> Option<u32> {
        let Some(end) = (address % PAGE).checked_add(length as u64) else { return None };
        let pages = end.div_ceil(PAGE);
        if length == 0 || pages > u32::MAX as u64 { None } else { Some(pages as u32) }
    }
}
