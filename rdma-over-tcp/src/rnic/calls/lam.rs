//! Calls that build and release logical address mappings, and the lookup of logical addresses
//! ([`lam`](crate::rnic::memory::lam)).

use alloc::{boxed::Box, vec::Vec};

use crate::rnic::{
    Rnic,
    memory::{
        buffer::{PAGE_SIZE, RegisteredBuffer},
        fast::PreparedPages,
        lam::{Lam, LogicalMemory, PAGE},
        region::Regions,
        registration::{Access, Registration},
        spans::Spans,
    },
    objects::{
        id::{Key, LamId, PdId, RegionId},
        lifetime::{Life, Return, ReturnGuard},
    },
    status::VerbError,
};

/// Bits of a logical page number.
const PAGE_NUMBER_BITS: u32 = 51;
/// Maximum number of random positions tried for a mapping.
const DRAWS_MAX: usize = 64;

impl Regions {
    /// Maps `length` bytes of a chain of buffers.
    ///
    /// # Errors
    /// As [`Rnic::build_lam`].
    fn build_lam(
        &mut self,
        chain: &[RegisteredBuffer],
        length: usize,
    ) -> Result<LogicalMemory, VerbError> {
        let memory = Spans::chain(chain, length).ok_or(VerbError::InvalidArgument)?;
        let virtual_address = chain.first().map_or(0, RegisteredBuffer::address);
        let pages = LogicalMemory::pages_needed(virtual_address, length);
        let pages = pages.ok_or(VerbError::InvalidArgument)?;
        let first = self.draw_pages(pages.into()).ok_or(VerbError::NoResources)?;
        let address = first * PAGE + virtual_address % PAGE;
        let rights = if memory.is_writable() { Access::LOCAL_WRITE } else { Access::NONE };
        let lam = Lam { life: Life::default(), registration: None, regions: Vec::new() };
        let registration = Registration::new(memory, address, rights)?;
        let id = self.lams.insert(lam).map_err(|_| VerbError::NoResources)?;
        let unused = ReturnGuard::new(&self.returns, Return::Unpin(Key::Lam(id)));
        let memory = registration.memory.under(unused);
        let registration = Registration { memory, ..registration };
        if let Some(lam) = self.lams.get_mut(id) {
            lam.life.pin();
            lam.registration = Some(registration);
        }
        self.logical.insert(first, id);
        Ok(LogicalMemory { id, address, pages })
    }

    /// Draws the first of `count` consecutive page numbers. These pages and their neighbors belong to no mapping.
    fn draw_pages(&mut self, count: u64) -> Option<u64> {
        (0..DRAWS_MAX).find_map(|_| {
            let first = self.random.rand_u64() >> (u64::BITS - PAGE_NUMBER_BITS);
            let end = first + count;
            let last_before = self.logical.range(..=end).next_back();
            let is_free = last_before.is_none_or(|(start, id)| {
                let lam = self.lams.get(*id).and_then(|lam| lam.registration.as_ref());
                let bytes = lam.map_or(0, |lam| lam.base % PAGE + lam.memory.len() as u64);
                start + bytes.div_ceil(PAGE) < first
            });
            (is_free && first > 0 && end >> PAGE_NUMBER_BITS == 0).then_some(first)
        })
    }

    /// Returns the registration of that mapping ([`Regions::mapping`]).
    pub(crate) fn mapped(&self, address: u64) -> Option<&Registration> {
        self.lams.get(self.mapping(address)?)?.registration.as_ref()
    }

    /// Returns the mapping with the highest start at or below a logical address. The caller checks its bounds.
    fn mapping(&self, address: u64) -> Option<LamId> {
        self.logical.range(..=address / PAGE).next_back().map(|(_, id)| *id)
    }

    /// Returns the memory of `length` bytes in these pages, starting at byte `first_byte` of the first page, and the
    /// mappings that it belongs to.
    ///
    /// # Errors
    /// [`VerbError::NotMapped`]: one of the bytes is in no mapping.
    pub(crate) fn gather(
        &self,
        pages: &[u64],
        first_byte: usize,
        length: usize,
    ) -> Result<(Spans, Box<[LamId]>), VerbError> {
        let (mut spans, mut lams) = (Vec::new(), Vec::new());
        let (mut start, mut left) = (first_byte, length);
        for page in pages {
            let count = (PAGE_SIZE - start).min(left);
            if count == 0 {
                break;
            }
            let address = page + start as u64; // Within the page.
            let lam = self.mapping(address).ok_or(VerbError::NotMapped)?;
            let mapped = self.mapped(address).ok_or(VerbError::NotMapped)?;
            let offset = mapped.locate(address, count as u64, Access::NONE);
            let offset = offset.map_err(|_| VerbError::NotMapped)?;
            mapped.memory.each_span(offset, count, |span| spans.push(span));
            if !lams.contains(&lam) {
                lams.push(lam);
            }
            (start, left) = (0, left - count);
        }
        let memory = Spans::new(spans).ok_or(VerbError::InvalidArgument)?;
        Ok((memory, lams.into()))
    }

    /// Executes a fast registration of logical pages.
    ///
    /// # Errors
    /// [`VerbError::NotMapped`]: a mapping was released after the post.
    pub(crate) fn register_pages(
        &mut self,
        id: RegionId,
        prepared: &PreparedPages,
    ) -> Result<Registration, VerbError> {
        let PreparedPages { pages, first_byte, length, token, base, rights } = prepared;
        let (memory, lams) = self.gather(pages, *first_byte, *length)?;
        let registration = Registration::new(memory, *base, *rights)?;
        for lam in &lams {
            if let Some(lam) = self.lams.get_mut(*lam) {
                lam.regions.push(id);
            }
        }
        Ok(self.pin(id, Registration { token: *token, lams, ..registration }))
    }

    /// Removes a region from a mapping: its registration no longer contains pages of it.
    pub(crate) fn remove_from_lam(&mut self, id: LamId, region: RegionId) {
        if let Some(lam) = self.lams.get_mut(id) {
            lam.regions.retain(|other| *other != region);
        }
    }

    /// Invalidates the addresses of a mapping, and the registrations made with them.
    pub(crate) fn release_lam(&mut self, id: LamId) {
        let Some(lam) = self.lams.get_mut(id) else { return };
        let Some(registration) = lam.registration.take() else { return };
        self.logical.remove(&(registration.base / PAGE));
        registration.memory.withdraw();
        for region in core::mem::take(&mut lam.regions) {
            self.unbind_of_region(region);
            self.revoke(region);
        }
    }
}

impl Rnic {
    /// Maps `length` bytes of a chain of buffers, from its start, to logical addresses. The buffers must have
    /// consecutive addresses. The first byte has the same offset in its logical page as in the page of its virtual
    /// address.
    ///
    /// The mapping is released by [`Rnic::close`].
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: no bytes, a chain that is too short or whose addresses are not consecutive, or
    /// more pages than a `u32` can count; [`VerbError::InvalidHandle`]: the adapter is being closed;
    /// [`VerbError::NoResources`]; [`VerbError::DeviceLost`].
    pub fn build_lam(
        &mut self,
        chain: &[RegisteredBuffer],
        length: usize,
    ) -> Result<LogicalMemory, VerbError> {
        self.check_parent(Key::Rnic)?;
        let lam = self.objects.regions.build_lam(chain, length)?;
        self.objects.pin(Key::Rnic);
        Ok(lam)
    }

    /// Token for logical addresses in the requests of a domain's queue pairs, for reading and writing. It is invalid
    /// for peers. `None`: the domain does not exist.
    #[must_use]
    pub fn privileged_token(&self, pd: PdId) -> Option<u32> {
        Some(self.objects.pds.get(pd)?.privileged_token)
    }

    /// Releases a mapping when it is closed (NDK-LIFE-3).
    pub(crate) fn release_lam(&mut self, id: LamId) {
        self.objects.regions.release_lam(id);
        self.take_returns();
        if self.objects.is_pinned(Key::Lam(id)) {
            self.recall_memory();
        }
    }
}

#[cfg(test)]
mod tests;
