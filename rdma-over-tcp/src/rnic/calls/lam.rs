//! Calls that build and release logical address mappings, and the look-up of logical addresses
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

/// Bits of the number of a logical page.
const PAGE_NUMBER_BITS: u32 = 51;
/// Places that are tried for a mapping.
const DRAWS_MAX: usize = 64;

impl Regions {
    /// Maps `length` bytes of a chain of buffers.
    ///
    /// # Errors
    /// Those of [`Rnic::build_lam`].
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

    /// The number of the first of so many pages that no mapping has, nor the pages around them.
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

    /// What a logical address opens.
    pub(crate) fn mapped(&self, address: u64) -> Option<&Registration> {
        self.lams.get(self.mapping(address)?)?.registration.as_ref()
    }

    /// The mapping that a logical address is of, if it is of any.
    fn mapping(&self, address: u64) -> Option<LamId> {
        self.logical.range(..=address / PAGE).next_back().map(|(_, id)| *id)
    }

    /// The memory of `length` bytes from `first_byte` of the first of these pages on, which have as many, and the
    /// mappings that it is of.
    ///
    /// # Errors
    /// [`VerbError::NotMapped`]: one of the bytes is of no mapping.
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

    /// What a fast registration of logical pages registers, now that its turn has come.
    ///
    /// # Errors
    /// [`VerbError::NotMapped`]: a mapping has been released since.
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

    /// A region's registration has no pages of the mapping any more.
    pub(crate) fn forget_in_lam(&mut self, id: LamId, region: RegionId) {
        if let Some(lam) = self.lams.get_mut(id) {
            lam.regions.retain(|other| *other != region);
        }
    }

    /// Ends what a mapping's addresses open, and what was registered by them.
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
    /// Maps `length` bytes of a chain of buffers, from its beginning on, to logical addresses. The buffers' addresses
    /// follow each other. The bytes lie in the mapping's first page where they lie in the page of their address.
    ///
    /// The mapping is released by [`Rnic::close`].
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: no bytes, a chain that is shorter or whose addresses do not follow each other so
    /// far, or more pages than a `u32` can count; [`VerbError::InvalidHandle`]: the adapter is being closed;
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

    /// The token with which requests of a domain's queue pairs name logical addresses, to read and to write. No peer
    /// can use it. `None`: the domain is gone.
    #[must_use]
    pub fn privileged_token(&self, pd: PdId) -> Option<u32> {
        Some(self.objects.pds.get(pd)?.privileged_token)
    }

    /// NDK-LIFE-3: what releases a mapping.
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
