use std::boxed::Box;

use offload_engine::memory::SharedSpan;

use super::*;
use crate::rnic::objects::id::QpId;

impl Regions {
    /// Registers a part of a buffer.
    pub(in crate::rnic) fn register_part(
        &mut self,
        id: RegionId,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        rights: Access,
    ) -> Result<(), VerbError> {
        let end = offset.checked_add(length).ok_or(VerbError::InvalidArgument)?;
        let part = buffer.slice(offset..end).ok_or(VerbError::InvalidArgument)?;
        self.register(id, &[part], length, rights)
    }
}

/// Queue pair with its own domain.
fn user(index: u32) -> User {
    User { pd: PdId::new(index, 0), qp: QpId::new(index, 0) }
}

struct Bench {
    regions: Regions,
    pd: User,
    other_pd: User,
    buffer: RegisteredBuffer,
}

/// Part of a buffer for a fast registration.
const fn of(buffer: &RegisteredBuffer, offset: usize) -> FastMemory<'_> {
    FastMemory::Buffer { buffer, offset }
}

fn bench() -> Bench {
    let [pd, other_pd] = [0, 1].map(user);
    let buffer = RegisteredBuffer::allocate(3 * PAGE_SIZE).unwrap();
    let regions = Regions::new([8; 3], 7, Returns::new(Box::new(|| {})));
    Bench { regions, pd, other_pd, buffer }
}

impl Bench {
    fn region(&mut self, is_fast_register: bool) -> RegionId {
        let mr = Region::new(self.pd.pd, is_fast_register);
        self.regions.table.insert(mr).unwrap()
    }

    fn token(&self, id: RegionId) -> u32 {
        self.regions.table.get(id).unwrap().token.unwrap()
    }
}

// RFC 5042 §6.2: an access with a hint passes the same checks as one without.
#[test]
fn stale_hint_grants_no_access() {
    let mut bench = bench();
    let (near, far) = (bench.region(false), bench.region(false));
    let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    bench.regions.register_part(near, &bench.buffer, 0, 100, write).unwrap();
    bench.regions.register_part(far, &bench.buffer, 200, 100, write).unwrap();
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
    assert_eq!(access(&bench, pd, other, base + 200), None, "the hint is of the other region");
    assert_eq!(access(&bench, pd, stale, base), None);
    bench.regions.revoke(near);
    assert_eq!(access(&bench, pd, stale, base), Some(AccessError::Invalid));
    bench.regions.register_part(near, &bench.buffer, 0, 100, write).unwrap();
    assert_eq!(access(&bench, pd, stale, base), Some(AccessError::Invalid), "another key");
    assert_eq!(access(&bench, pd, bench.token(near), base), None);
    bench.regions.remove(near);
    let successor = bench.region(false);
    bench.regions.register_part(successor, &bench.buffer, 0, 100, write).unwrap();
    assert_eq!(
        access(&bench, pd, stale, base),
        Some(AccessError::Invalid),
        "its table entry was reused"
    );
    assert_eq!(access(&bench, pd, bench.token(successor), base), None);
}

// RDM-7.2-3, RDM-8.1.1-1, -2, NDK-MEM-3, -15, -17: each failed check with its error.
#[test]
fn access_checks() {
    let mut bench = bench();
    let id = bench.region(false);
    let all = Access::REMOTE_READ | Access::LOCAL_WRITE;
    bench.regions.register_part(id, &bench.buffer, 16, 100, all).unwrap();
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

// NDK-MEM-8, -18, RDM-8.1.1-4, -6: keys change, stale tokens are refused, tokens are sparse.
#[test]
fn tokens() {
    let mut bench = bench();
    let id = bench.region(false);
    let rights = Access::REMOTE_WRITE;
    let read_only = RegisteredBuffer::from(SharedSpan::from(bytes::Bytes::from_static(b"text")));
    for (buffer, length) in [(&bench.buffer, 3 * PAGE_SIZE + 1), (&read_only, 4)] {
        assert!(bench.regions.register(id, core::slice::from_ref(buffer), length, rights).is_err());
        assert_eq!(bench.regions.table.get(id).unwrap().token, None, "no token after a failure");
    }
    bench.regions.register_part(id, &bench.buffer, 0, 10, rights).unwrap();
    let first = bench.token(id);
    assert_eq!(
        bench.regions.register_part(id, &bench.buffer, 0, 10, rights),
        Err(VerbError::InvalidArgument),
        "registered already"
    );
    assert!(bench.regions.revoke(id));
    assert!(!bench.regions.revoke(id));
    for (offset, length) in [(0, 0), (0, usize::MAX), (3 * PAGE_SIZE, 1)] {
        let result = bench.regions.register_part(id, &bench.buffer, offset, length, rights);
        assert_eq!(result, Err(VerbError::InvalidArgument));
    }
    // The address of the first byte, or that of the last byte, would wrap.
    for offset in [10, 0] {
        let moved = bench.buffer.at_address(u64::MAX - 5);
        let result = bench.regions.register_part(id, &moved, offset, 10, rights);
        assert_eq!(result, Err(VerbError::InvalidArgument), "{offset}");
    }
    bench.regions.register_part(id, &bench.buffer, 0, 10, rights).unwrap();
    assert_ne!(first, bench.token(id));
    assert_eq!(first >> 8, bench.token(id) >> 8);
    assert_eq!(bench.regions.lookup(first).err(), Some(AccessError::Invalid));
    let mut sorted: std::vec::Vec<u32> =
        (0..64).map(|_| bench.regions.draw(Owner::ReadSink).unwrap()).collect();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] > 0x100), "sparse");
    assert!(sorted[63] - sorted[0] > 1 << 31, "over the whole space");
}

// Write rights are refused for read-only memory, with every kind of registration.
#[test]
fn read_only_memory_takes_no_write_rights() {
    let mut bench = bench();
    let memory = SharedSpan::from(bytes::Bytes::from_static(&[7; 4]));
    let buffer = RegisteredBuffer::from(memory).at_address(0x1000);
    let (whole, fast) = (bench.region(false), bench.region(true));
    let limits = FastRegisterLimits { pages: 1, remote_access: true };
    bench.regions.initialize(fast, limits).unwrap();
    for (rights, outcome) in [
        (Access::LOCAL_WRITE, Err(VerbError::ReadOnly)),
        (Access::REMOTE_WRITE | Access::REMOTE_READ, Err(VerbError::ReadOnly)),
        (Access::REMOTE_READ, Ok(())),
    ] {
        let fast = bench.regions.prepare_fast_register(fast, of(&buffer, 0), 4, 0x1000, rights);
        assert_eq!(fast.map(drop), outcome);
        assert_eq!(bench.regions.register_part(whole, &buffer, 0, 4, rights), outcome);
    }
    let (pd, token) = (bench.pd, bench.token(whole));
    let read = |address| bench.regions.access(pd, token, address, 2, Access::REMOTE_READ);
    let mut bytes = std::vec![];
    read(0x1002).unwrap().each_piece(|piece| bytes.extend(piece.byte(1)));
    assert_eq!(bytes, [7], "the region keeps its own address");
    assert_eq!(read(0x1003).err(), Some(AccessError::Bounds));
    assert_eq!(read(0xfff).err(), Some(AccessError::Bounds));
}

// The memory of a registration is in use until the last span is dropped, which completes the deregistration.
#[test]
fn uses_end_with_the_last_span() {
    let mut bench = bench();
    let id = bench.region(false);
    let rights = Access::LOCAL_WRITE;
    bench.regions.register_part(id, &bench.buffer, 0, 10, rights).unwrap();
    let (pd, token, address) = (bench.pd, bench.token(id), bench.buffer.address());
    let mut spans = std::vec![];
    let granted = bench.regions.access(pd, token, address, 4, Access::NONE).unwrap();
    granted.each_span(|span| spans.push(span));
    let span = spans.pop().unwrap();
    let returned = |bench: &Bench| bench.regions.returns.take();
    assert!(!span.is_withdrawn());
    assert!(bench.regions.revoke(id));
    assert!(span.is_withdrawn() && bench.regions.is_used(id));
    bench.regions.table.get_mut(id).unwrap().uses.begin_deregistration(Box::new(|| {}));
    let again = bench.regions.register_part(id, &bench.buffer, 0, 10, rights);
    assert_eq!(again, Err(VerbError::InvalidArgument), "deregistration pending");
    assert_eq!(returned(&bench), []);
    drop(span);
    assert_eq!(returned(&bench), [Return::Unused(id)]);
    assert!(bench.regions.unused(id).is_some() && !bench.regions.is_used(id));
    assert_eq!(bench.regions.register_part(id, &bench.buffer, 0, 10, rights), Ok(()));
}

// RFC 5042 §6.2.1: known tokens of a region do not reveal the next one, and stale tokens are refused.
#[test]
fn keys_are_not_sequential() {
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
        bench.regions.prepare_fast_register(id, of(&buffer, offset), length, base, flags).err()
    };
    let invalid = Some(VerbError::InvalidArgument);
    assert_eq!(prepare(0, 1, 0, write), invalid, "not initialized");
    let none = FastRegisterLimits { pages: 0, remote_access: false };
    assert_eq!(bench.regions.initialize(id, none).err(), invalid, "no page");
    let limits = FastRegisterLimits { pages: 2, remote_access: false };
    bench.regions.initialize(id, limits).unwrap();
    let mut prepare = |offset, length, base, flags| {
        bench.regions.prepare_fast_register(id, of(&buffer, offset), length, base, flags).err()
    };
    assert_eq!(prepare(0, 2 * PAGE_SIZE, 0, write), None, "base 0 with FBO 0");
    assert_eq!(prepare(0, 2 * PAGE_SIZE + 1, 0, write), invalid, "length");
    assert_eq!(prepare(5, 2 * PAGE_SIZE - 4, 5, write), invalid, "length with FBO");
    assert_eq!(prepare(5, 2 * PAGE_SIZE - 5, 5 + 7 * page, write), None);
    assert_eq!(prepare(5, 1, 6, write), invalid, "base VA");
    assert_eq!(prepare(5, 1, 0, write), invalid, "base 0 with FBO 5");
    assert_eq!(prepare(0, 1, 0, Access::REMOTE_READ), Some(VerbError::NoRemoteAccess));
    assert_eq!(prepare(0, 1, 0, write), None, "NDK-MEM-14");
    assert!(bench.regions.register_part(id, &buffer, 0, 1, Access::NONE).is_err());
}

// NDK-RI-1, -2, NDK-MEM-9, RDM-5.3-5, RDM-8.1.1-5
#[test]
fn remote_invalidation() {
    let mut bench = bench();
    let buffer = bench.buffer.clone();
    let whole = bench.region(false);
    bench.regions.register_part(whole, &buffer, 0, 1, Access::REMOTE_READ).unwrap();
    let fast = bench.region(true);
    let limits = FastRegisterLimits { pages: 1, remote_access: true };
    bench.regions.initialize(fast, limits).unwrap();
    let registration = bench
        .regions
        .prepare_fast_register(fast, of(&buffer, 0), 9, 0, Access::REMOTE_READ)
        .unwrap();
    let token = bench.token(fast);
    assert_eq!(registration.token(), token, "NDK-MEM-8: assigned at once");
    let unknown = Err(WireError::OperationCannotInvalidate);
    assert_eq!(bench.regions.invalidate_remotely(bench.pd, token), unknown, "not executed yet");
    assert!(bench.regions.fast_register(fast, &registration));
    assert!(!bench.regions.fast_register(fast, &registration), "registered already");
    let refused = Err(WireError::ProtectionCannotInvalidate);
    let shared = bench.token(whole);
    assert_eq!(bench.regions.invalidate_remotely(bench.pd, shared), refused);
    assert_eq!(bench.regions.invalidate_remotely(bench.other_pd, token), refused);
    assert_eq!(bench.regions.invalidate_remotely(bench.pd, token), Ok(()));
    assert_eq!(bench.regions.invalidate_remotely(bench.pd, token), unknown);
}

// The token of a region leads to the memory, the rights and the domain of the other one. A hint does not keep the old
// ones.
#[test]
fn exchanged_tokens_lead_to_the_other_memory() {
    let mut bench = bench();
    let (old, fast) = (bench.region(false), bench.region(true));
    let new = bench.regions.table.insert(Region::new(bench.other_pd.pd, false)).unwrap();
    let (write, read) = (Access::LOCAL_WRITE | Access::REMOTE_WRITE, Access::REMOTE_READ);
    bench.regions.register_part(old, &bench.buffer, 0, 100, write).unwrap();
    for ids in [[old, new], [new, old], [old, old], [old, fast]] {
        assert_eq!(bench.regions.exchange_tokens(ids), Err(VerbError::InvalidArgument));
    }
    bench.regions.register_part(new, &bench.buffer, 200, 100, read).unwrap();
    let (token, other) = (bench.token(old), bench.token(new));
    let (base, mut hint) = (bench.buffer.address(), None);
    let mut access = |bench: &Bench, user, token, at, right| {
        bench.regions.access_again(&mut hint, user, token, base + at, 1, right).err()
    };
    assert_eq!(access(&bench, bench.pd, token, 0, Access::REMOTE_WRITE), None);
    assert_eq!(bench.regions.exchange_tokens([old, new]), Ok(()));
    assert_eq!((bench.token(old), bench.token(new)), (other, token));
    assert_eq!(access(&bench, bench.pd, token, 0, read), Some(AccessError::NotAssociated));
    assert_eq!(access(&bench, bench.other_pd, token, 0, read), Some(AccessError::Bounds));
    let right = Access::REMOTE_WRITE;
    assert_eq!(access(&bench, bench.other_pd, token, 200, right), Some(AccessError::Rights));
    assert_eq!(access(&bench, bench.other_pd, token, 200, read), None);
    assert_eq!(access(&bench, bench.pd, other, 0, Access::REMOTE_WRITE), None);
    // The deregistration of the old memory ends the token that it has now.
    assert!(bench.regions.revoke(old));
    bench.regions.remove(old);
    assert_eq!(access(&bench, bench.other_pd, token, 200, read), None);
    assert_eq!(access(&bench, bench.pd, other, 0, write), Some(AccessError::Invalid));
}
