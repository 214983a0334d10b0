//! Memory regions: tokens, rights, and the check that every access passes.
//!
//! A token is an STag: a 24-bit index drawn at random from the whole space, so that tokens are sparse
//! and hard to guess (RFC 5040 §8.1.1), and an 8-bit key that changes with each registration, so that a
//! stale token does not fit (NDK-MEM-8): all 256 keys in an order of the region's own, then in another.
//! One token serves as local and as remote token; which accesses it allows is a matter of the region's
//! rights.
//!
//! The generator is seeded, for runs that can be repeated: a node that faces strangers takes its seed from
//! the system's entropy. It is no cipher; guessing from tokens seen is hard, not infeasible.
//!
//! A region is registered as a whole, until it is deregistered, or by work requests (fast registration), until it is
//! invalidated. Only the latter can be invalidated by the consumer's or the peer's request (NDK-MEM-9): a region that
//! other streams use too must not fall to one peer (RFC 5040 §8.1.1).
//!
//! When a registration has ended its token opens nothing, but its memory may still be in use by what was sent before:
//! lists that TCP may have to retransmit, frames that a device has not sent, a connection on its way to the host. All
//! spans of a registration have an owner of their own, which pins the region until the last one is dropped.
//!
//! A memory window would be a further [`Owner`] of a token, with a registration of its own over a span of a region.

use alloc::sync::Arc;
use core::{ops::BitOr, sync::atomic::AtomicU64};

use hashbrown::HashMap;
use offload_engine::memory::{Piece, SharedSpan, Span};
use oorandom::Rand64;

use super::{
    id::{PdId, RegionId, kind},
    lifetime::{Callback, Life, Return, ReturnGuard, Returns, Uses},
    memory::{PAGE_SIZE, RegisteredBuffer},
    status::VerbError,
    table::Table,
};
use crate::error::WireError;

/// Tokens in use at once, at most: keeps the 24-bit space sparse.
const TOKENS_MAX: usize = 1 << 20;

/// Rights to registered memory. Sending from it needs none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Access(u8);

impl Access {
    /// Sends and Writes only.
    pub const NONE: Self = Self(0);
    /// May be the target of receives and Reads.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(2);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(4);
    /// Peers may use atomics (RFC 7306).
    pub const REMOTE_ATOMIC: Self = Self(8);

    /// Returns whether these include all rights of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn writes(self) -> bool {
        self.0 & (Self::LOCAL_WRITE.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) != 0
    }

    const fn is_remote(self) -> bool {
        self.0 & (Self::REMOTE_READ.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) != 0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

/// A span that is registered.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) token: u32,
    memory: SharedSpan,
    /// The address that the first byte of the span has for local and remote users.
    base: u64,
    rights: Access,
}

/// Limits of fast registrations of a region.
#[derive(Clone, Copy, Debug)]
pub struct FastRegisterLimits {
    /// Pages ([`PAGE_SIZE`]), at most.
    pub pages: u32,
    /// Remote rights may be granted.
    pub remote_access: bool,
}

/// The order of a region's keys.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Keys {
    secret: u64,
    used: u8,
}

impl Keys {
    /// A permutation of all keys: four rounds of a Feistel network over halves of four bits.
    fn key(self) -> u8 {
        let halves = (self.used >> 4, self.used & 0xf);
        let (left, right) = (0..4).fold(halves, |(left, right), round| {
            let secret = (self.secret >> (16 * round)) as u16;
            let mixed = u16::from(right).wrapping_add(secret).wrapping_mul(secret | 1) >> 7;
            (right, left ^ (mixed as u8 & 0xf))
        });
        left << 4 | right
    }

    /// The next key, not `last`.
    fn next(&mut self, last: Option<u8>, random: &mut Rand64) -> u8 {
        loop {
            if self.used == 0 {
                self.secret = random.rand_u64();
            }
            let key = self.key();
            self.used = self.used.wrapping_add(1);
            if Some(key) != last {
                return key;
            }
        }
    }
}

/// The owner of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Region(RegionId),
    /// A queue pair, whose Read Requests name it as their sink. It opens nothing.
    ReadSink,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) life: Life,
    pub(crate) pd: PdId,
    pub(crate) is_fast_register: bool,
    pub(crate) limits: Option<FastRegisterLimits>,
    /// The token that the consumer has, with its key.
    pub(crate) token: Option<u32>,
    pub(crate) keys: Keys,
    pub(crate) registration: Option<Registration>,
    /// The current registration, and former ones whose memory is in use.
    pub(crate) uses: Uses,
}

impl Region {
    /// A region that nothing depends on.
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
        }
    }
}

/// Why an access is refused, in the order in which it is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessError {
    /// No such token, or a stale key, or not registered.
    Invalid,
    /// Another protection domain's.
    NotAssociated,
    /// The right was not granted.
    Rights,
    /// Address plus length wraps.
    Wrap,
    /// Outside the registered span.
    Bounds,
}

impl AccessError {
    /// For a tagged segment (RFC 5041 §7.2). DDP has no code for a missing right; the invalid STag is
    /// what other implementations send.
    pub(crate) const fn tagged(self) -> WireError {
        match self {
            Self::Invalid | Self::Rights => WireError::TaggedInvalidStag,
            Self::NotAssociated => WireError::TaggedNotAssociated,
            Self::Wrap => WireError::TaggedWrap,
            Self::Bounds => WireError::TaggedBounds,
        }
    }

    /// For the buffer of a Read or Atomic Request (RFC 5040 §7.2, RFC 7306 §8.2).
    pub(crate) const fn request(self) -> WireError {
        match self {
            Self::Invalid => WireError::ProtectionInvalidStag,
            Self::Rights => WireError::ProtectionAccess,
            Self::NotAssociated => WireError::ProtectionNotAssociated,
            Self::Wrap => WireError::ProtectionWrap,
            Self::Bounds => WireError::ProtectionBounds,
        }
    }
}

impl Registration {
    /// `length` bytes of `buffer` from `offset` on, known as `base` on.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: the span leaves the buffer, is empty, or wraps; [`VerbError::ReadOnly`].
    fn new(
        token: u32,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        base: u64,
        rights: Access,
    ) -> Result<Self, VerbError> {
        let end = offset.checked_add(length).filter(|end| length > 0 && *end <= buffer.len());
        let (Some(end), Some(_)) = (end, base.checked_add(length as u64)) else {
            return Err(VerbError::InvalidArgument);
        };
        if rights.writes() && !buffer.memory().is_writable() {
            return Err(VerbError::ReadOnly);
        }
        let memory = buffer.memory().slice(offset..end);
        Ok(Self { token, memory, base, rights })
    }

    /// The place of `address` in the span, if `length` bytes from it on may be used so.
    fn locate(&self, address: u64, length: u64, right: Access) -> Result<usize, AccessError> {
        if !self.rights.contains(right) {
            return Err(AccessError::Rights);
        }
        let end = address.checked_add(length).ok_or(AccessError::Wrap)?;
        if address < self.base || end > self.base + self.memory.len() as u64 {
            return Err(AccessError::Bounds);
        }
        Ok((address - self.base) as usize)
    }
}

/// Bytes of a registered buffer that passed the check.
#[derive(Debug)]
pub(crate) struct Granted<'a> {
    memory: &'a SharedSpan,
    offset: usize,
    length: usize,
}

impl<'a> Granted<'a> {
    /// To be copied at once.
    #[inline]
    pub(crate) fn piece(&self) -> Piece<'a> {
        Piece::Shared(self.memory.view().slice(self.offset, self.length))
    }

    /// To be sent, without a copy.
    pub(crate) fn span(&self) -> Span {
        self.memory.slice(self.offset..self.offset + self.length).into()
    }

    /// All of them as a word of memory, if they are one.
    pub(crate) fn word(&self) -> Option<&'a AtomicU64> {
        debug_assert_eq!(self.length, 8);
        self.memory.word(self.offset)
    }

    /// Places received data; as long as what was asked for, or shorter. The last byte is stored last
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
    /// By the 24-bit index of the token.
    owners: HashMap<u32, Owner>,
    random: Rand64,
    returns: Arc<Returns>,
}

impl Regions {
    pub(crate) fn new(regions_max: u32, seed: u128, returns: Arc<Returns>) -> Self {
        let (table, random) = (Table::new(regions_max), Rand64::new(seed));
        Self { table, owners: HashMap::new(), random, returns }
    }

    /// Draws an unused index for `owner` and a key.
    ///
    /// # Errors
    /// [`VerbError::NoResources`].
    pub(crate) fn draw(&mut self, owner: Owner) -> Result<u32, VerbError> {
        if self.owners.len() >= TOKENS_MAX {
            return Err(VerbError::NoResources);
        }
        loop {
            let token = (self.random.rand_u64() >> 32) as u32;
            // Index 0 stays free: adapters treat STag 0 as special, and STag 1 is what an RTR names.
            if token >> 8 != 0 && !self.owners.contains_key(&(token >> 8)) {
                self.owners.insert(token >> 8, owner);
                return Ok(token);
            }
        }
    }

    /// The region's next token: its index, or an unused one, with the next key.
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

    /// Gives a token's index back.
    pub(crate) fn give_back(&mut self, token: u32) {
        self.owners.remove(&(token >> 8));
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

    /// The one check of every access to memory (RFC 5042 §6.2): token, protection domain, right, wrap, bounds.
    pub(crate) fn access(
        &self,
        pd: PdId,
        token: u32,
        address: u64,
        length: u32,
        right: Access,
    ) -> Result<Granted<'_>, AccessError> {
        let (_, mr, registration) = self.lookup(token)?;
        Self::grant(mr, registration, pd, address, length, right)
    }

    /// [`Regions::access`] by a user that mostly names the region it named before: `hint` says where to look first.
    /// A region found there passes the same check, and one that is gone, or has another token by now, is not found; so
    /// a hint may be of any age.
    pub(crate) fn access_again(
        &self,
        hint: &mut Option<RegionId>,
        pd: PdId,
        token: u32,
        address: u64,
        length: u32,
        right: Access,
    ) -> Result<Granted<'_>, AccessError> {
        let hinted = hint.and_then(|id| self.table.get(id)).and_then(|mr| {
            let registration = mr.registration.as_ref();
            Some((mr, registration.filter(|registration| registration.token == token)?))
        });
        let (mr, registration) = match hinted {
            Some(found) => found,
            None => {
                let (id, mr, registration) = self.lookup(token)?;
                *hint = Some(id);
                (mr, registration)
            }
        };
        Self::grant(mr, registration, pd, address, length, right)
    }

    fn grant<'a>(
        mr: &Region,
        registration: &'a Registration,
        pd: PdId,
        address: u64,
        length: u32,
        right: Access,
    ) -> Result<Granted<'a>, AccessError> {
        if mr.pd != pd {
            return Err(AccessError::NotAssociated);
        }
        let offset = registration.locate(address, u64::from(length), right)?;
        Ok(Granted { memory: &registration.memory, offset, length: length as usize })
    }

    /// Invalidates a token at a peer's demand (NDK-RI-1, RFC 5040 §5.3): it must be of the stream's
    /// protection domain and of a region that work requests registered.
    pub(crate) fn invalidate_remotely(&mut self, pd: PdId, token: u32) -> Result<(), WireError> {
        let (id, mr, _) = self.lookup(token).map_err(|_| WireError::OperationCannotInvalidate)?;
        if mr.pd != pd || !mr.is_fast_register {
            return Err(WireError::ProtectionCannotInvalidate);
        }
        self.revoke(id);
        Ok(())
    }

    /// Invalidates the token of a read's first sink (NDK-FLG-3, NDK-MEM-9), of which no byte may have been checked. The
    /// result says whether there was a right to take back.
    pub(crate) fn invalidate_locally(&mut self, pd: PdId, token: u32) -> bool {
        match self.lookup(token) {
            Ok((id, mr, _)) if mr.pd == pd && mr.is_fast_register => self.revoke(id),
            _ => false,
        }
    }

    /// Takes all rights back, and wants the memory back from whoever uses it still. Returns whether there were any.
    pub(crate) fn revoke(&mut self, id: RegionId) -> bool {
        let registration = self.table.get_mut(id).and_then(|mr| mr.registration.take());
        registration.inspect(|registration| registration.memory.withdraw()).is_some()
    }

    /// Has the region pinned until the registration's memory is not in use any more.
    fn pin(&mut self, id: RegionId, registration: Registration) -> Registration {
        if let Some(mr) = self.table.get_mut(id) {
            mr.uses.begin();
            mr.life.pin();
        }
        let unused = ReturnGuard::new(&self.returns, Return::Unused(id));
        Registration { memory: registration.memory.under(unused), ..registration }
    }

    /// A registration's memory is not in use any more. Returns the end of a deregistration that has waited for it.
    pub(crate) fn unused(&mut self, id: RegionId) -> Option<Callback> {
        self.table.get_mut(id)?.uses.end()
    }

    /// Returns whether memory of the region is in use.
    pub(crate) fn is_used(&self, id: RegionId) -> bool {
        self.table.get(id).is_some_and(|mr| mr.uses.are_any())
    }

    /// Registers a span. Its base is the buffer's address (NDK-MEM-3).
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: a span outside the buffer or empty, a region for fast registration
    /// (NDK-MEM-1, -5, -18), or one that is registered, or whose deregistration is not complete;
    /// [`VerbError::ReadOnly`]: a right to write memory that may only be read; [`VerbError::NoResources`]: no token is
    /// left.
    pub(crate) fn register(
        &mut self,
        id: RegionId,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        rights: Access,
    ) -> Result<(), VerbError> {
        let mr = self.table.get(id).ok_or(VerbError::InvalidHandle)?;
        if mr.is_fast_register || mr.registration.is_some() || mr.uses.is_awaited() {
            return Err(VerbError::InvalidArgument);
        }
        let base = buffer.address().checked_add(offset as u64);
        let base = base.ok_or(VerbError::InvalidArgument)?;
        let token = self.next_token(id)?;
        let registration = Registration::new(token, buffer, offset, length, base, rights);
        let registration = registration.map(|registration| self.pin(id, registration));
        let mr = self.table.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        mr.token = Some(token);
        mr.registration = Some(registration?);
        Ok(())
    }

    /// Prepares a region for fast registrations of up to `limits`.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`] for a region that is not for fast registration, or of no page,
    /// [`VerbError::NoResources`] when no token is left.
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

    /// Checks a fast-register request (NDK-MEM-7), gives the region its next token at once (NDK-MEM-8)
    /// and returns what is to be registered when the request's turn comes.
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: span, base address or region unfit; [`VerbError::NoRemoteAccess`]: remote rights
    /// on a region initialized without; [`VerbError::ReadOnly`]: a right to write memory that may only be read.
    pub(crate) fn prepare_fast_register(
        &mut self,
        id: RegionId,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        base: u64,
        rights: Access,
    ) -> Result<Registration, VerbError> {
        let mr = self.table.get(id).ok_or(VerbError::InvalidHandle)?;
        let Some(limits) = mr.limits else { return Err(VerbError::InvalidArgument) };
        if rights.is_remote() && !limits.remote_access {
            return Err(VerbError::NoRemoteAccess);
        }
        let first_byte_offset = offset % PAGE_SIZE;
        let room = (limits.pages as usize).checked_mul(PAGE_SIZE);
        let room = room.and_then(|room| room.checked_sub(first_byte_offset));
        if room.is_none_or(|room| length > room)
            || base % PAGE_SIZE as u64 != first_byte_offset as u64
        {
            return Err(VerbError::InvalidArgument);
        }
        let token = self.next_token(id)?;
        let registration = Registration::new(token, buffer, offset, length, base, rights)?;
        let registration = self.pin(id, registration);
        let mr = self.table.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        mr.token = Some(token);
        Ok(registration)
    }

    /// Carries out a fast registration. Fails when the region is still registered, or is being closed: its close would
    /// wait for ever.
    pub(crate) fn fast_register(&mut self, id: RegionId, registration: Registration) -> bool {
        let Some(mr) = self.table.get_mut(id) else { return false };
        if mr.registration.is_some() || mr.life.is_closing() {
            return false;
        }
        mr.registration = Some(registration);
        true
    }

    /// Takes a region out of the table, with its token.
    pub(crate) fn remove(&mut self, id: RegionId) -> Option<Region> {
        let mr = self.table.remove(id)?;
        if let Some(token) = mr.token {
            self.give_back(token);
        }
        Some(mr)
    }
}

#[cfg(test)]
mod tests;
