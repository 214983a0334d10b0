//! Memory regions: tokens, rights, and the check of every access.
//!
//! A token is an STag with a 24-bit index and an 8-bit key. The index is drawn at random from the whole space, so that
//! tokens are sparse and hard to guess (RFC 5040 §8.1.1). The key changes with each registration, so that stale tokens
//! are invalid (NDK-MEM-8). All 256 keys are used in an order specific to the region, then in a new order. One token
//! serves as local and as remote token; the rights of the region define the permitted accesses.
//!
//! The generator is seeded, so that runs can be repeated. A node with untrusted peers takes its seed from the system's
//! entropy. The generator is not cryptographic: guessing from known tokens is hard, not infeasible.
//!
//! A region is registered as a whole until it is deregistered, or by work requests (fast registration) until it is
//! invalidated. Only the latter can be invalidated by a request of the consumer or the peer (NDK-MEM-9): one peer must
//! not be able to invalidate a region that other streams use (RFC 5040 §8.1.1).
//!
//! When a registration ends its token is invalid, but earlier data may still use the memory: lists that TCP may
//! retransmit, frames that a device has not sent, a connection being uploaded to the host. All spans of a registration
//! have their own owner, which pins the region until the last span is dropped.
//!
//! The memory of a registration is one span or several ([`spans`](super::spans)): of one buffer, of a chain of buffers,
//! or of pages of logical address mappings ([`lam`](super::lam)).
//!
//! A memory window is another [`Owner`] of a token, with its own registration of a span of a region
//! ([`window`](super::window)).

use alloc::{collections::BTreeMap, sync::Arc};
use core::sync::atomic::AtomicU64;

use hashbrown::HashMap;
use offload_engine::memory::{Piece, Span};
use oorandom::Rand64;

use super::{
    buffer::{PAGE_SIZE, RegisteredBuffer},
    fast::{FastMemory, Prepared, PreparedPages},
    lam::Lam,
    registration::{Access, AccessError, Holder, Keys, Registration, User},
    spans::Spans,
    window::{Revocable, Window},
};
use crate::{
    error::WireError,
    rnic::{
        objects::{
            id::{LamId, PdId, RegionId, Table, WindowId, kind},
            lifetime::{Callback, Life, Return, ReturnGuard, Returns, Uses},
        },
        status::VerbError,
    },
};

/// Maximum number of tokens in use: keeps the 24-bit space sparse.
const TOKENS_MAX: usize = 1 << 20;

/// Limits of the fast registrations of a region.
#[derive(Clone, Copy, Debug)]
pub struct FastRegisterLimits {
    /// Maximum number of pages ([`PAGE_SIZE`]).
    pub pages: u32,
    /// True if remote rights may be granted.
    pub remote_access: bool,
}

/// Owner of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Region(RegionId),
    Window(WindowId),
    /// Queue pair whose Read Requests use the token as their sink. It permits no access.
    ReadSink,
    /// Protection domain and key: the token for logical addresses in its own requests.
    Privileged(PdId, u8),
}

impl Owner {
    pub(crate) const fn revocable(self) -> Option<Revocable> {
        match self {
            Self::Region(id) => Some(Revocable::Region(id)),
            Self::Window(id) => Some(Revocable::Window(id)),
            Self::ReadSink | Self::Privileged(..) => None,
        }
    }
}

/// State of one memory region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) life: Life,
    pub(crate) pd: PdId,
    pub(crate) is_fast_register: bool,
    pub(crate) limits: Option<FastRegisterLimits>,
    /// Token passed to the consumer, with its key.
    pub(crate) token: Option<u32>,
    pub(crate) keys: Keys,
    pub(crate) registration: Option<Registration>,
    /// Uses of the current registration, and of previous ones whose memory is in use.
    pub(crate) uses: Uses,
    /// Count of windows bound to the region.
    pub(crate) windows: u32,
}

impl Region {
    /// Creates a region without pins.
    pub(crate) fn new(pd: PdId, is_fast_register: bool) -> Self {
        Self {
            life: Life::default(),
            pd,
            is_fast_register,
            limits: None,
            token: None,
            keys: Keys::default(),
            registration: None,
            uses: Uses::default(),
            windows: 0,
        }
    }
}

/// Bytes of registered memory that passed the access check.
#[derive(Debug)]
pub(crate) struct Granted<'a> {
    memory: &'a Spans,
    offset: usize,
    length: usize,
}

impl<'a> Granted<'a> {
    /// Calls `take` with each piece, to be copied immediately.
    #[inline]
    pub(crate) fn each_piece(&self, mut take: impl FnMut(Piece<'a>)) {
        self.memory.each_slice(self.offset, self.length, |slice| take(Piece::Shared(slice)));
    }

    /// Calls `take` with each span, to be sent without a copy.
    #[inline]
    pub(crate) fn each_span(&self, mut take: impl FnMut(Span)) {
        self.memory.each_span(self.offset, self.length, |span| take(span.into()));
    }

    /// Returns all bytes as one aligned word, if they form one.
    pub(crate) fn word(&self) -> Option<&'a AtomicU64> {
        debug_assert_eq!(self.length, 8);
        self.memory.word(self.offset)
    }

    /// Places received data, which may be shorter than the checked range. The last byte is stored last
    /// (IN_ORDER_DMA_SUPPORTED).
    #[inline]
    pub(crate) fn place(&self, data: &[u8]) {
        debug_assert!(data.len() <= self.length);
        self.memory.write_in_order(self.offset, data);
    }
}

/// Regions, and the owners of tokens.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) table: Table<kind::Region, Region>,
    pub(crate) windows: Table<kind::Window, Window>,
    pub(crate) lams: Table<kind::Lam, Lam>,
    /// Mappings that are not released, by their first logical page.
    pub(crate) logical: BTreeMap<u64, LamId>,
    /// Owners by the 24-bit index of the token.
    owners: HashMap<u32, Owner>,
    pub(crate) random: Rand64,
    pub(crate) returns: Arc<Returns>,
}

impl Regions {
    pub(crate) fn new(
        [regions_max, windows_max, lams_max]: [u32; 3],
        seed: u128,
        returns: Arc<Returns>,
    ) -> Self {
        Self {
            table: Table::new(regions_max),
            windows: Table::new(windows_max),
            lams: Table::new(lams_max),
            logical: BTreeMap::new(),
            owners: HashMap::new(),
            random: Rand64::new(seed),
            returns,
        }
    }

    /// Draws an unused index for `owner`, and a key.
    ///
    /// # Errors
    /// [`VerbError::NoResources`].
    pub(crate) fn draw(&mut self, owner: Owner) -> Result<u32, VerbError> {
        if self.owners.len() >= TOKENS_MAX {
            return Err(VerbError::NoResources);
        }
        loop {
            let token = (self.random.rand_u64() >> 32) as u32;
            // Index 0 remains unused: adapters treat STag 0 as special, and STag 1 is used by an RTR.
            if token >> 8 != 0 && !self.owners.contains_key(&(token >> 8)) {
                self.owners.insert(token >> 8, owner);
                return Ok(token);
            }
        }
    }

    /// Returns the region's next token: its index, or an unused one, with the next key.
    fn next_token(&mut self, id: RegionId) -> Result<u32, VerbError> {
        let token = self.table.get(id).ok_or(VerbError::InvalidHandle)?.token;
        let index = match token {
            Some(token) => token,
            None => self.draw(Owner::Region(id))?,
        };
        let Self { table, random, .. } = self;
        let mr = table.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        let key = mr.keys.next(token.map(|token| token as u8), random);
        Ok(index & !0xff | u32::from(key))
    }

    /// Draws a domain's token for logical addresses.
    ///
    /// # Errors
    /// [`VerbError::NoResources`].
    pub(crate) fn draw_privileged(&mut self, pd: PdId) -> Result<u32, VerbError> {
        let token = self.draw(Owner::Privileged(pd, 0))?;
        self.owners.insert(token >> 8, Owner::Privileged(pd, token as u8));
        Ok(token)
    }

    /// Releases the index of a token.
    pub(crate) fn release_token(&mut self, token: u32) {
        self.owners.remove(&(token >> 8));
    }

    /// Returns the owner of a token, regardless of its key.
    pub(crate) fn owner(&self, token: u32) -> Option<Owner> {
        self.owners.get(&(token >> 8)).copied()
    }

    /// Returns the registration of a token, if the token is that of its owner's current registration.
    #[inline(always)]
    fn current_registration(&self, owner: Owner, token: u32) -> Option<(Holder, &Registration)> {
        let (holder, registration) = match owner {
            Owner::Region(id) => {
                let mr = self.table.get(id)?;
                (Holder::Pd(mr.pd), mr.registration.as_ref()?)
            }
            Owner::Window(id) => self.windows.get(id)?.current_registration()?,
            Owner::ReadSink | Owner::Privileged(..) => return None,
        };
        (registration.token == token).then_some((holder, registration))
    }

    fn lookup(&self, token: u32) -> Result<(RegionId, &Region, &Registration), AccessError> {
        let Some(&Owner::Region(id)) = self.owners.get(&(token >> 8)) else {
            return Err(AccessError::Invalid);
        };
        let mr = self.table.get(id).ok_or(AccessError::Invalid)?;
        let registration = mr.registration.as_ref().ok_or(AccessError::Invalid)?;
        if registration.token != token {
            return Err(AccessError::Invalid);
        }
        Ok((id, mr, registration))
    }

    /// Access check of all memory accesses (RFC 5042 §6.2): token, protection domain or queue pair, right, wrap,
    /// bounds.
    pub(crate) fn access(
        &self,
        user: User,
        token: u32,
        address: u64,
        length: u32,
        right: Access,
    ) -> Result<Granted<'_>, AccessError> {
        self.access_again(&mut None, user, token, address, length, right)
    }

    /// As [`Regions::access`], with a cached owner for users that repeat the same region or window. `hint` is looked up
    /// first. A hit passes the same check, and a stale hint is a miss: its owner was removed, or has another token. So
    /// a hint of any age is safe.
    #[inline(always)]
    pub(crate) fn access_again(
        &self,
        hint: &mut Option<Owner>,
        user: User,
        token: u32,
        address: u64,
        length: u32,
        right: Access,
    ) -> Result<Granted<'_>, AccessError> {
        let (holder, registration) =
            match hint.and_then(|owner| self.current_registration(owner, token)) {
                Some(found) => found,
                None => {
                    let (owner, holder, registration) = self.find(token, address, right)?;
                    *hint = Some(owner);
                    (holder, registration)
                }
            };
        holder.check(user, right)?;
        let offset = registration.locate(address, u64::from(length), right)?;
        Ok(Granted { memory: &registration.memory, offset, length: length as usize })
    }

    /// Returns true if the rights of the token end only when the region is deregistered. A deregistration waits for
    /// data that a transport has not sent; an invalidation does not.
    pub(crate) fn is_registered_by_call(&self, owner: Owner) -> bool {
        match owner {
            Owner::Region(id) => self.table.get(id).is_some_and(|mr| !mr.is_fast_register),
            Owner::Window(_) | Owner::ReadSink | Owner::Privileged(..) => false,
        }
    }

    /// Finds the region or window of a token.
    fn find(
        &self,
        token: u32,
        address: u64,
        right: Access,
    ) -> Result<(Owner, Holder, &Registration), AccessError> {
        let owner = self.owner(token).ok_or(AccessError::Invalid)?;
        let (holder, registration) = match owner {
            Owner::Privileged(pd, key) => {
                let is_ours = key == token as u8 && !right.is_remote();
                let mapped = self.mapped(address).filter(|_| is_ours);
                (Holder::Pd(pd), mapped.ok_or(AccessError::Invalid)?)
            }
            _ => self.current_registration(owner, token).ok_or(AccessError::Invalid)?,
        };
        Ok((owner, holder, registration))
    }

    /// Invalidates a token on the request of a peer (NDK-RI-1, RFC 5040 §5.3). It must belong to a fast-registered
    /// region of the stream's protection domain without windows, or to a window bound to the stream's queue pair.
    pub(crate) fn invalidate_remotely(&mut self, user: User, token: u32) -> Result<(), WireError> {
        let owner = self.owner(token).ok_or(WireError::OperationCannotInvalidate)?;
        let (holder, _) =
            self.current_registration(owner, token).ok_or(WireError::OperationCannotInvalidate)?;
        let is_done = match owner {
            Owner::Region(id) => holder == Holder::Pd(user.pd) && self.invalidate_region(id),
            Owner::Window(id) => holder == Holder::Peer(user.qp) && self.unbind(id),
            Owner::ReadSink | Owner::Privileged(..) => false,
        };
        if is_done { Ok(()) } else { Err(WireError::ProtectionCannotInvalidate) }
    }

    /// Invalidates the token of a Read's first sink (NDK-FLG-3, NDK-MEM-9), even if no byte of it was checked. Returns
    /// true if there was a registration to invalidate.
    pub(crate) fn invalidate_locally(&mut self, pd: PdId, token: u32) -> bool {
        match self.lookup(token) {
            Ok((id, mr, _)) if mr.pd == pd => self.invalidate_region(id),
            _ => false,
        }
    }

    /// Executes an invalidation by a work request of `user`. Returns true if the target was valid and `user` may
    /// invalidate it.
    pub(crate) fn invalidate(&mut self, user: User, target: Revocable) -> bool {
        let owner = match target {
            Revocable::Region(id) => Some(Owner::Region(id)),
            Revocable::Window(id) => Some(Owner::Window(id)),
            Revocable::Token(token) => {
                self.owner(token).filter(|owner| self.current_registration(*owner, token).is_some())
            }
        };
        match owner {
            Some(Owner::Region(id)) => {
                self.table.get(id).is_some_and(|mr| mr.pd == user.pd) && self.invalidate_region(id)
            }
            Some(Owner::Window(id)) => {
                let opened = self.windows.get(id).and_then(Window::current_registration);
                opened.is_some_and(|(holder, _)| holder == Holder::Peer(user.qp)) && self.unbind(id)
            }
            Some(Owner::ReadSink | Owner::Privileged(..)) | None => false,
        }
    }

    /// Invalidates a fast-registered region without bound windows.
    fn invalidate_region(&mut self, id: RegionId) -> bool {
        let may = self.table.get(id).is_some_and(|mr| mr.is_fast_register && mr.windows == 0);
        may && self.revoke(id)
    }

    /// Ends the registration, and withdraws its memory from all users. Returns true if there was a registration.
    pub(crate) fn revoke(&mut self, id: RegionId) -> bool {
        let registration = self.table.get_mut(id).and_then(|mr| mr.registration.take());
        let Some(Registration { memory, lams, .. }) = registration else { return false };
        memory.withdraw();
        for lam in lams {
            self.remove_from_lam(lam, id);
        }
        true
    }

    /// Pins the region until the memory of the registration is no longer in use.
    pub(crate) fn pin(&mut self, id: RegionId, registration: Registration) -> Registration {
        if let Some(mr) = self.table.get_mut(id) {
            mr.uses.begin();
            mr.life.pin();
        }
        let unused = ReturnGuard::new(&self.returns, Return::Unused(id));
        Registration { memory: registration.memory.under(unused), ..registration }
    }

    /// Ends one use of a registration's memory. Returns the completion of a deregistration that waited for it.
    pub(crate) fn unused(&mut self, id: RegionId) -> Option<Callback> {
        self.table.get_mut(id)?.uses.end()
    }

    /// Returns true if memory of the region is in use.
    pub(crate) fn is_used(&self, id: RegionId) -> bool {
        self.table.get(id).is_some_and(|mr| mr.uses.is_in_use())
    }

    /// Registers `length` bytes of a chain of buffers, at the buffers' addresses (NDK-MEM-3). A failure does not change
    /// the region's token.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: an invalid chain of memory (NDK-MEM-1, -18), a region for fast registration
    /// (NDK-MEM-5), or a region that is registered or whose deregistration is not complete; [`VerbError::ReadOnly`]: a
    /// write right for read-only memory; [`VerbError::NoResources`]: no token is left.
    pub(crate) fn register(
        &mut self,
        id: RegionId,
        chain: &[RegisteredBuffer],
        length: usize,
        rights: Access,
    ) -> Result<(), VerbError> {
        let mr = self.table.get(id).ok_or(VerbError::InvalidHandle)?;
        if mr.is_fast_register || mr.registration.is_some() || mr.uses.is_deregistering() {
            return Err(VerbError::InvalidArgument);
        }
        let memory = Spans::chain(chain, length).ok_or(VerbError::InvalidArgument)?;
        let base = chain.first().ok_or(VerbError::InvalidArgument)?.address();
        let registration = Registration::new(memory, base, rights)?;
        let token = self.next_token(id)?;
        let registration = self.pin(id, Registration { token, ..registration });
        let mr = self.table.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        mr.token = Some(token);
        mr.registration = Some(registration);
        Ok(())
    }

    /// Exchanges the tokens of two regions ([`Rnic::exchange_tokens`](crate::rnic::Rnic)).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn exchange_tokens(&mut self, ids: [RegionId; 2]) -> Result<(), VerbError> {
        let [one, other] = ids.map(|id| self.table.get(id));
        let (one, other) =
            (one.ok_or(VerbError::InvalidHandle)?, other.ok_or(VerbError::InvalidHandle)?);
        let is_exchangeable = |mr: &Region| mr.registration.is_some() && !mr.is_fast_register;
        if ids[0] == ids[1] || !is_exchangeable(one) || !is_exchangeable(other) {
            return Err(VerbError::InvalidArgument);
        }
        let exchanged = [(ids[0], (other.token, other.keys)), (ids[1], (one.token, one.keys))];
        for (id, (token, keys)) in exchanged {
            let (Some(mr), Some(token)) = (self.table.get_mut(id), token) else { continue };
            (mr.token, mr.keys) = (Some(token), keys);
            if let Some(registration) = &mut mr.registration {
                registration.token = token;
            }
            self.owners.insert(token >> 8, Owner::Region(id));
        }
        Ok(())
    }

    /// Prepares a region for fast registrations of up to `limits`.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: not a region for fast registration, or a limit of zero pages;
    /// [`VerbError::NoResources`]: no token is left.
    pub(crate) fn initialize(
        &mut self,
        id: RegionId,
        limits: FastRegisterLimits,
    ) -> Result<(), VerbError> {
        let mr = self.table.get(id).ok_or(VerbError::InvalidHandle)?;
        if !mr.is_fast_register || limits.pages == 0 {
            return Err(VerbError::InvalidArgument);
        }
        let token = match mr.token {
            Some(token) => token,
            None => self.next_token(id)?,
        };
        let mr = self.table.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        mr.token = Some(token);
        mr.limits = Some(limits);
        Ok(())
    }

    /// Checks a fast-register request (NDK-MEM-7) and assigns the region's next token immediately (NDK-MEM-8). Returns
    /// the registration to execute when the request starts.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: unsuitable memory, base address or region; [`VerbError::NoRemoteAccess`]: remote
    /// rights for a region initialized without; [`VerbError::ReadOnly`]: a write right for read-only memory;
    /// [`VerbError::NotMapped`]: logical addresses outside of mappings.
    pub(crate) fn prepare_fast_register(
        &mut self,
        id: RegionId,
        memory: FastMemory<'_>,
        length: usize,
        base: u64,
        rights: Access,
    ) -> Result<Prepared, VerbError> {
        let mr = self.table.get(id).ok_or(VerbError::InvalidHandle)?;
        let Some(limits) = mr.limits else { return Err(VerbError::InvalidArgument) };
        if rights.is_remote() && !limits.remote_access {
            return Err(VerbError::NoRemoteAccess);
        }
        let (first_byte, pages) = memory.place(limits.pages)?;
        let room = (pages as usize).checked_mul(PAGE_SIZE);
        let room = room.and_then(|room| room.checked_sub(first_byte));
        if length == 0
            || room.is_none_or(|room| length > room)
            || base % PAGE_SIZE as u64 != first_byte as u64
        {
            return Err(VerbError::InvalidArgument);
        }
        let (memory, pages) = match memory {
            FastMemory::Buffer { buffer, offset } => {
                let end = offset.checked_add(length).ok_or(VerbError::InvalidArgument)?;
                let part = buffer.slice(offset..end).ok_or(VerbError::InvalidArgument)?;
                (part.memory().clone().into(), None)
            }
            FastMemory::Pages { pages, .. } => {
                (self.gather(pages, first_byte, length)?.0, Some(pages))
            }
        };
        let registration = Registration::new(memory, base, rights)?;
        let token = self.next_token(id)?;
        let mr = self.table.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        mr.token = Some(token);
        Ok(match pages {
            None => Prepared::Memory(self.pin(id, Registration { token, ..registration })),
            Some(pages) => {
                let pages = pages.into();
                Prepared::Pages(PreparedPages { pages, first_byte, length, token, base, rights })
            }
        })
    }

    /// Executes a fast registration. Fails if the region is still registered, if a mapping of its pages was released,
    /// or if the region is being closed: otherwise its close would wait forever.
    pub(crate) fn fast_register(&mut self, id: RegionId, prepared: &Prepared) -> bool {
        let is_free = |mr: &Region| mr.registration.is_none() && !mr.life.is_closing();
        if !self.table.get(id).is_some_and(is_free) {
            return false;
        }
        let registration = match prepared {
            Prepared::Memory(registration) => registration.clone(),
            Prepared::Pages(prepared) => match self.register_pages(id, prepared) {
                Ok(registration) => registration,
                Err(_) => return false,
            },
        };
        if let Some(mr) = self.table.get_mut(id) {
            mr.registration = Some(registration);
        }
        true
    }

    /// Removes a region from the table, and releases its token.
    pub(crate) fn remove(&mut self, id: RegionId) -> Option<Region> {
        let mr = self.table.remove(id)?;
        if let Some(token) = mr.token {
            self.release_token(token);
        }
        Some(mr)
    }
}

#[cfg(test)]
mod tests;
