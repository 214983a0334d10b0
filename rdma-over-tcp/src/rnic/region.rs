//! Memory regions: tokens, rights, and the check that every access passes.
//!
//! A token is an STag: a 24-bit index drawn at random from the whole space, so that tokens are sparse
//! and hard to guess (RFC 5040 8.1.1), and an 8-bit key that changes with each registration, so that a
//! stale token does not fit (NDK-MEM-8): all 256 keys in an order of the region's own, then in another.
//! One token serves as local and as remote token; which accesses it allows is a matter of the region's
//! rights.
//!
//! The generator is seeded, for runs that can be repeated: a node that faces strangers takes its seed from
//! the system's entropy. It is no cipher; guessing from tokens seen is hard, not infeasible.
//!
//! A region is registered as a whole, until it is deregistered, or by work requests (fast registration), until it is
//! invalidated. Only the latter can be invalidated by the consumer's or the peer's request (NDK-MEM-9): a region that
//! other streams use too must not fall to one peer (RFC 5040 8.1.1).
//!
//! A memory window would be a further [`Owner`] of a token, with a registration of its own over a span of a region.

use core::ops::BitOr;

use hashbrown::HashMap;
use offload_engine::memory::{Piece, SharedSpan, Span};
use oorandom::Rand64;

use super::{
    id::{PdId, RegionId, kind},
    lifetime::Life,
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

    /// Whether all rights of `other` are among these.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn is_remote(self) -> bool {
        self.0 & (Self::REMOTE_READ.0 | Self::REMOTE_WRITE.0) != 0
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
pub(crate) struct FastRegisterLimits {
    pub(crate) pages: u32,
    pub(crate) remote_access: bool,
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
    /// The token told to the consumer, with its key.
    pub(crate) token: Option<u32>,
    pub(crate) keys: Keys,
    pub(crate) registration: Option<Registration>,
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
    /// For a tagged segment (RFC 5041 7.2). DDP has no code for a missing right; the invalid STag is
    /// what other implementations send.
    pub(crate) const fn tagged(self) -> WireError {
        match self {
            Self::Invalid | Self::Rights => WireError::TaggedInvalidStag,
            Self::NotAssociated => WireError::TaggedNotAssociated,
            Self::Wrap => WireError::TaggedWrap,
            Self::Bounds => WireError::TaggedBounds,
        }
    }

    /// For the source of a Read Request (RFC 5040 7.2).
    pub(crate) const fn read_request(self) -> WireError {
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
    /// `length` bytes of `buffer` from `offset` on, known as `base` on. `None` when the span leaves the
    /// buffer, is empty, or wraps.
    pub(crate) fn new(
        token: u32,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        base: u64,
        rights: Access,
    ) -> Option<Self> {
        let end = offset.checked_add(length)?;
        base.checked_add(length as u64)?;
        if length == 0 || end > buffer.len() {
            return None;
        }
        let memory = buffer.memory().slice(offset..end);
        Some(Self { token, memory, base, rights })
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
    pub(crate) fn piece(&self) -> Piece<'a> {
        Piece::Shared(self.memory.view().slice(self.offset, self.length))
    }

    /// To be sent, without a copy.
    pub(crate) fn span(&self) -> Span {
        self.memory.slice(self.offset..self.offset + self.length).into()
    }

    /// Places received data; as long as what was asked for, or shorter. The last byte is stored last
    /// (IN_ORDER_DMA_SUPPORTED).
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
}

impl Regions {
    pub(crate) fn new(regions_max: u32, seed: u128) -> Self {
        Self { table: Table::new(regions_max), owners: HashMap::new(), random: Rand64::new(seed) }
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

    /// The one check of every access to memory (RFC 5042 6.2): token, protection domain, right, wrap, bounds.
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
    /// What is found there passes the same check, and a place whose region is gone, or has another token by now, does
    /// not have it; so a hint may be as old as it likes.
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

    /// Invalidates a token at a peer's demand (NDK-RI-1, RFC 5040 5.3): it must be of the stream's
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

    /// Takes all rights back. Returns whether there were any.
    pub(crate) fn revoke(&mut self, id: RegionId) -> bool {
        self.table.get_mut(id).is_some_and(|mr| mr.registration.take().is_some())
    }

    /// Registers a span. Its base is the buffer's own address (NDK-MEM-3).
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: a span outside the buffer or empty, a region for fast registration
    /// (NDK-MEM-1, -5, -18), or one that is registered; [`VerbError::NoResources`]: no token is left.
    pub(crate) fn register(
        &mut self,
        id: RegionId,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        rights: Access,
    ) -> Result<(), VerbError> {
        let mr = self.table.get(id).ok_or(VerbError::InvalidHandle)?;
        if mr.is_fast_register || mr.registration.is_some() {
            return Err(VerbError::InvalidArgument);
        }
        let token = self.next_token(id)?;
        let base = buffer.address().wrapping_add(offset as u64);
        let registration = Registration::new(token, buffer, offset, length, base, rights);
        let mr = self.table.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        mr.token = Some(token);
        mr.registration = Some(registration.ok_or(VerbError::InvalidArgument)?);
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
    /// on a region initialized without.
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
        let registration = Registration::new(token, buffer, offset, length, base, rights)
            .ok_or(VerbError::InvalidArgument)?;
        let mr = self.table.get_mut(id).ok_or(VerbError::InvalidHandle)?;
        mr.token = Some(token);
        Ok(registration)
    }

    /// Carries out a fast registration. Fails when the region is still registered.
    pub(crate) fn fast_register(&mut self, id: RegionId, registration: Registration) -> bool {
        let Some(mr) = self.table.get_mut(id) else { return false };
        if mr.registration.is_some() {
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
mod tests {
    use super::*;

    struct Bench {
        regions: Regions,
        pd: PdId,
        other_pd: PdId,
        buffer: RegisteredBuffer,
    }

    fn bench() -> Bench {
        let mut pds = Table::new(2);
        let [pd, other_pd] = [(); 2].map(|()| pds.insert(()).unwrap());
        let buffer = RegisteredBuffer::allocate(3 * PAGE_SIZE).unwrap();
        Bench { regions: Regions::new(8, 7), pd, other_pd, buffer }
    }

    impl Bench {
        fn region(&mut self, is_fast_register: bool) -> RegionId {
            let mr = Region {
                life: Life::default(),
                pd: self.pd,
                is_fast_register,
                limits: None,
                token: None,
                keys: Keys::default(),
                registration: None,
            };
            self.regions.table.insert(mr).unwrap()
        }

        fn token(&self, id: RegionId) -> u32 {
            self.regions.table.get(id).unwrap().token.unwrap()
        }
    }

    // RFC 5042 6.2: where an access is looked for first changes nothing about what it is checked for.
    #[test]
    fn a_hint_grants_nothing() {
        let mut bench = bench();
        let (near, far) = (bench.region(false), bench.region(false));
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        bench.regions.register(near, &bench.buffer, 0, 100, write).unwrap();
        bench.regions.register(far, &bench.buffer, 200, 100, write).unwrap();
        let base = bench.buffer.address();
        let mut hint = None;
        let mut access = |bench: &Bench, pd, token, address| {
            let right = Access::REMOTE_WRITE;
            let again = bench.regions.access_again(&mut hint, pd, token, address, 1, right);
            let fresh = bench.regions.access(pd, token, address, 1, right);
            assert_eq!(
                again.as_ref().map(|granted| granted.offset),
                fresh.as_ref().map(|granted| granted.offset)
            );
            again.err()
        };
        let (pd, stale, other) = (bench.pd, bench.token(near), bench.token(far));
        assert_eq!(access(&bench, pd, stale, base + 99), None);
        assert_eq!(access(&bench, pd, stale, base + 100), Some(AccessError::Bounds));
        assert_eq!(access(&bench, bench.other_pd, stale, base), Some(AccessError::NotAssociated));
        assert_eq!(access(&bench, pd, other, base + 200), None, "the hint is the other's");
        assert_eq!(access(&bench, pd, stale, base), None);
        bench.regions.revoke(near);
        assert_eq!(access(&bench, pd, stale, base), Some(AccessError::Invalid));
        bench.regions.register(near, &bench.buffer, 0, 100, write).unwrap();
        assert_eq!(access(&bench, pd, stale, base), Some(AccessError::Invalid), "another key");
        assert_eq!(access(&bench, pd, bench.token(near), base), None);
        bench.regions.remove(near);
        let successor = bench.region(false);
        bench.regions.register(successor, &bench.buffer, 0, 100, write).unwrap();
        assert_eq!(
            access(&bench, pd, stale, base),
            Some(AccessError::Invalid),
            "its place is taken"
        );
        assert_eq!(access(&bench, pd, bench.token(successor), base), None);
    }

    // RDM-7.2-3, RDM-8.1.1-1, -2, NDK-MEM-3, -15, -17: each cause with its error.
    #[test]
    fn access_checks() {
        let mut bench = bench();
        let id = bench.region(false);
        let all = Access::REMOTE_READ | Access::LOCAL_WRITE;
        bench.regions.register(id, &bench.buffer, 16, 100, all).unwrap();
        let token = bench.token(id);
        let base = bench.buffer.address() + 16;
        let (pd, other) = (bench.pd, bench.other_pd);
        let read = Access::REMOTE_READ;
        let cases = [
            (pd, token, base, 100, read, None),
            (pd, token, base + 99, 1, read, None),
            (pd, token, base + 100, 0, read, None),
            (pd, token ^ 1, base, 1, read, Some(AccessError::Invalid)),
            (pd, token ^ 0x100, base, 1, read, Some(AccessError::Invalid)),
            (pd, 0, base, 1, read, Some(AccessError::Invalid)),
            (other, token, base, 1, read, Some(AccessError::NotAssociated)),
            (pd, token, base, 1, Access::REMOTE_WRITE, Some(AccessError::Rights)),
            (pd, token, u64::MAX, 2, read, Some(AccessError::Wrap)),
            (pd, token, base, 101, read, Some(AccessError::Bounds)),
            (pd, token, base - 1, 1, read, Some(AccessError::Bounds)),
            (pd, token, base + 100, 1, read, Some(AccessError::Bounds)),
        ];
        for (pd, token, address, length, right, error) in cases {
            let result = bench.regions.access(pd, token, address, length, right);
            assert_eq!(result.err(), error, "{token:#x} {address:#x}+{length} {right:?}");
        }
    }

    // NDK-MEM-8, -18, RDM-8.1.1-4, -6: keys change, stale tokens fail, tokens are sparse.
    #[test]
    fn tokens() {
        let mut bench = bench();
        let id = bench.region(false);
        let rights = Access::REMOTE_WRITE;
        bench.regions.register(id, &bench.buffer, 0, 10, rights).unwrap();
        let first = bench.token(id);
        assert_eq!(
            bench.regions.register(id, &bench.buffer, 0, 10, rights),
            Err(VerbError::InvalidArgument),
            "registered already"
        );
        assert!(bench.regions.revoke(id));
        assert!(!bench.regions.revoke(id));
        for (offset, length) in [(0, 0), (0, usize::MAX), (3 * PAGE_SIZE, 1)] {
            let result = bench.regions.register(id, &bench.buffer, offset, length, rights);
            assert_eq!(result, Err(VerbError::InvalidArgument));
        }
        bench.regions.register(id, &bench.buffer, 0, 10, rights).unwrap();
        assert_ne!(first, bench.token(id));
        assert_eq!(first >> 8, bench.token(id) >> 8);
        assert_eq!(bench.regions.lookup(first).err(), Some(AccessError::Invalid));
        let mut sorted: std::vec::Vec<u32> =
            (0..64).map(|_| bench.regions.draw(Owner::ReadSink).unwrap()).collect();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] > 0x100), "sparse");
        assert!(sorted[63] - sorted[0] > 1 << 31, "over the whole space");
    }

    // RFC 5042 s6.2.1: whoever has seen a region's tokens does not know the next, and no stale one fits.
    #[test]
    fn keys_are_no_sequence() {
        let mut random = Rand64::new(5);
        for _ in 0..50 {
            let mut keys = Keys::default();
            let mut last = None;
            let mut next = || {
                last = Some(keys.next(last, &mut random));
                last.unwrap()
            };
            let round: std::vec::Vec<u8> = (0..256).map(|_| next()).collect();
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().enumerate().all(|(n, key)| usize::from(*key) == n), "all keys");
            assert_ne!(next(), round[255]);
            let steps = |step: u8| {
                round.windows(2).filter(|pair| pair[1].wrapping_sub(pair[0]) == step).count()
            };
            let most = (0..=255).map(steps).max().unwrap();
            assert!(most < 64, "{most} steps of 255 are equal");
        }
    }

    // NDK-MEM-5, -6, -7: every row of the table.
    #[test]
    fn fast_register_checks() {
        let mut bench = bench();
        let id = bench.region(true);
        let buffer = bench.buffer.clone();
        let write = Access::LOCAL_WRITE;
        let page = PAGE_SIZE as u64;
        let mut prepare = |offset, length, base, flags| {
            bench.regions.prepare_fast_register(id, &buffer, offset, length, base, flags).err()
        };
        let invalid = Some(VerbError::InvalidArgument);
        assert_eq!(prepare(0, 1, 0, write), invalid, "not initialized");
        let none = FastRegisterLimits { pages: 0, remote_access: false };
        assert_eq!(bench.regions.initialize(id, none).err(), invalid, "no page");
        let limits = FastRegisterLimits { pages: 2, remote_access: false };
        bench.regions.initialize(id, limits).unwrap();
        let mut prepare = |offset, length, base, flags| {
            bench.regions.prepare_fast_register(id, &buffer, offset, length, base, flags).err()
        };
        assert_eq!(prepare(0, 2 * PAGE_SIZE, 0, write), None, "base 0 with FBO 0");
        assert_eq!(prepare(0, 2 * PAGE_SIZE + 1, 0, write), invalid, "length");
        assert_eq!(prepare(5, 2 * PAGE_SIZE - 4, 5, write), invalid, "length with FBO");
        assert_eq!(prepare(5, 2 * PAGE_SIZE - 5, 5 + 7 * page, write), None);
        assert_eq!(prepare(5, 1, 6, write), invalid, "base VA");
        assert_eq!(prepare(5, 1, 0, write), invalid, "base 0 with FBO 5");
        assert_eq!(prepare(0, 1, 0, Access::REMOTE_READ), Some(VerbError::NoRemoteAccess));
        assert_eq!(prepare(0, 1, 0, write), None, "NDK-MEM-14");
        assert!(bench.regions.register(id, &buffer, 0, 1, Access::NONE).is_err());
    }

    // NDK-RI-1, -2, NDK-MEM-9, RDM-5.3-5, RDM-8.1.1-5
    #[test]
    fn remote_invalidation() {
        let mut bench = bench();
        let buffer = bench.buffer.clone();
        let whole = bench.region(false);
        bench.regions.register(whole, &buffer, 0, 1, Access::REMOTE_READ).unwrap();
        let fast = bench.region(true);
        let limits = FastRegisterLimits { pages: 1, remote_access: true };
        bench.regions.initialize(fast, limits).unwrap();
        let registration = bench
            .regions
            .prepare_fast_register(fast, &buffer, 0, 9, 0, Access::REMOTE_READ)
            .unwrap();
        let token = bench.token(fast);
        assert_eq!(registration.token, token, "NDK-MEM-8: known at once");
        let unknown = Err(WireError::OperationCannotInvalidate);
        assert_eq!(bench.regions.invalidate_remotely(bench.pd, token), unknown, "not yet done");
        assert!(bench.regions.fast_register(fast, registration.clone()));
        assert!(!bench.regions.fast_register(fast, registration), "registered already");
        let refused = Err(WireError::ProtectionCannotInvalidate);
        let shared = bench.token(whole);
        assert_eq!(bench.regions.invalidate_remotely(bench.pd, shared), refused);
        assert_eq!(bench.regions.invalidate_remotely(bench.other_pd, token), refused);
        assert_eq!(bench.regions.invalidate_remotely(bench.pd, token), Ok(()));
        assert_eq!(bench.regions.invalidate_remotely(bench.pd, token), unknown);
    }
}
