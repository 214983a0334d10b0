//! Logical address mappings (LAMs): memory under addresses of the adapter's own, page by page.
//!
//! What a physical address is to a device a logical address is to this adapter: the number of a page in a table, and a
//! place in that page. A scatter/gather entry whose token is its protection domain's *privileged* token names logical
//! addresses, and a fast registration takes a list of logical pages. Peers cannot name them at all.
//!
//! The table has the mappings that are not released, and each of them the memory that it was built of, which need not
//! begin or end at a page's border. An address outside reaches nothing: neither the rest of a first or last page, nor
//! another mapping's memory by chance, for mappings lie at random places of 2^51 pages, with pages between that are
//! none's. The pages of one mapping follow each other, as behind an IOMMU; consumers must not count on it (NDK-SGE-3).
//!
//! A mapping lives like any object. Its release is a close: requests whose turn comes later find nothing at its
//! addresses, fast registrations that have its pages end, with the windows on them, and what is in flight is copied as
//! with [`Rnic::deregister`](crate::rnic::Rnic::deregister). So its memory is the consumer's again when the release is
//! complete, whatever the consumer has left posted.

use alloc::vec::Vec;

use super::{buffer::PAGE_SIZE, registration::Registration};
use crate::rnic::objects::{
    id::{LamId, RegionId},
    lifetime::Life,
};

/// A logical page, in bytes.
pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

/// A logical address mapping.
#[derive(Debug)]
pub(crate) struct Lam {
    /// The memory's use pins it.
    pub(crate) life: Life,
    /// What its addresses open to requests of this side; until it is released.
    pub(crate) registration: Option<Registration>,
    /// Regions whose fast registration has pages of it.
    pub(crate) regions: Vec<RegionId>,
}

/// A mapping that was built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogicalMemory {
    /// Its name.
    pub id: LamId,
    /// The logical address of the first byte. Its page is the first of the mapping; the others follow it.
    pub address: u64,
    /// Pages.
    pub pages: u32,
}

impl LogicalMemory {
    /// Pages that `length` bytes from virtual address `address` on touch; `None`: none, or more than a `u32` counts.
    #[must_use]
    pub const fn pages_needed(address: u64, length: usize) -> Option<u32> {
        let Some(end) = (address % PAGE).checked_add(length as u64) else { return None };
        let pages = end.div_ceil(PAGE);
        if length == 0 || pages > u32::MAX as u64 { None } else { Some(pages as u32) }
    }
}
