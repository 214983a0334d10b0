use std::{boxed::Box, vec, vec::Vec};

use offload_engine::memory::SharedSpan;
use proptest::prelude::*;

use super::*;
use crate::rnic::{
    memory::{
        fast::FastMemory,
        region::{FastRegisterLimits, Region},
        registration::{AccessError, User},
    },
    objects::{id::QpId, lifetime::Returns},
};

const USER: User = User { pd: PdId::new(0, 0), qp: QpId::new(0, 0) };
const OTHER: User = User { pd: PdId::new(1, 0), qp: QpId::new(1, 0) };
const WRITE: Access = Access::LOCAL_WRITE;

fn regions(seed: u128) -> Regions {
    Regions::new([8; 3], seed, Returns::new(Box::new(|| {})))
}

/// Buffers with consecutive addresses from `address` on and consecutive content.
fn chain(address: u64, lengths: &[usize]) -> Vec<RegisteredBuffer> {
    let mut at = 0;
    let of_length = |length: &usize| {
        let buffer = RegisteredBuffer::allocate(*length).unwrap().at_address(address + at as u64);
        let data: Vec<u8> = (at..at + length).map(byte).collect();
        buffer.write_at(0, &data);
        at += length;
        buffer
    };
    lengths.iter().map(of_length).collect()
}

fn byte(at: usize) -> u8 {
    (at * 3 + at / 251) as u8
}

fn content(chain: &[RegisteredBuffer]) -> Vec<u8> {
    let of = |buffer: &RegisteredBuffer| {
        let mut content = vec![0; buffer.len()];
        buffer.read_at(0, &mut content);
        content
    };
    chain.iter().flat_map(of).collect()
}

/// Bytes that an access reads, or the reason of its refusal.
fn read(
    regions: &Regions,
    user: User,
    token: u32,
    address: u64,
    length: usize,
) -> Result<Vec<u8>, AccessError> {
    let granted = regions.access(user, token, address, length as u32, Access::NONE)?;
    let mut bytes = vec![];
    granted.each_piece(|piece| piece.append_to(&mut bytes));
    Ok(bytes)
}

fn fast_region(regions: &mut Regions, pages: u32) -> RegionId {
    let id = regions.table.insert(Region::new(USER.pd, true)).unwrap();
    regions.initialize(id, FastRegisterLimits { pages, remote_access: true }).unwrap();
    id
}

fn build(regions: &mut Regions, chain: &[RegisteredBuffer], length: usize) -> LogicalMemory {
    regions.build_lam(chain, length).unwrap()
}

/// Logical pages of a mapping.
fn pages(memory: LogicalMemory) -> Vec<u64> {
    let first = memory.address - memory.address % PAGE;
    (0..u64::from(memory.pages)).map(|page| first + page * PAGE).collect()
}

proptest! {
    // NDK-MEM-4, -7, NDK-SGE-1: pages of random mappings in random order form a region with the bytes of an array.
    // Accesses to bytes that were not mapped are refused, for all offsets and lengths.
    #[test]
    fn pages_are_one_region(
        lengths in prop::collection::vec(prop::collection::vec(1_usize..9000, 1..4), 1..4),
        starts in prop::collection::vec(0_u64..1 << 40, 4),
        chosen in prop::collection::vec(any::<prop::sample::Index>(), 1..9),
        first_byte in 0_u32..4200,
        length in 0_usize..33_000,
        cuts in prop::collection::vec((-20_i64..33_000, 0_usize..20_000), 8),
        seed in any::<u64>(),
    ) {
        let mut regions = regions(seed.into());
        let privileged = regions.draw_privileged(USER.pd).unwrap();
        // Expected content of each logical page, byte by byte.
        let mut mapped: Vec<(u64, Vec<Option<u8>>)> = vec![];
        for (lengths, start) in lengths.iter().zip(&starts) {
            let chain = chain(*start, lengths);
            let total: usize = lengths.iter().sum();
            let memory = build(&mut regions, &chain, total);
            prop_assert_eq!(memory.address % PAGE, start % PAGE, "NDK-MEM-4");
            let offset = (start % PAGE) as usize;
            let mut bytes = vec![None; offset];
            bytes.extend(content(&chain).into_iter().map(Some));
            bytes.resize(memory.pages as usize * PAGE_SIZE, None);
            prop_assert!(bytes.len() - offset - total < PAGE_SIZE, "excess page");
            prop_assert_eq!(read(&regions, USER, privileged, memory.address, total), Ok(content(&chain)));
            let pages = pages(memory);
            mapped.extend(pages.into_iter().zip(bytes.chunks(PAGE_SIZE).map(<[_]>::to_vec)));
        }
        let chosen: Vec<_> = chosen.iter().map(|index| index.get(&mapped)).collect();
        let list: Vec<u64> = chosen.iter().map(|(page, _)| *page).collect();
        let model: Vec<Option<u8>> = chosen.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let region = fast_region(&mut regions, 8);
        let memory = FastMemory::Pages { pages: &list, first_byte };
        let base = 7 * PAGE + u64::from(first_byte);
        let prepared = regions.prepare_fast_register(region, memory, length, base, Access::REMOTE_READ | WRITE);
        let first = first_byte as usize;
        let is_fit = first < PAGE_SIZE && length > 0 && first + length <= model.len();
        if !is_fit {
            prop_assert_eq!(prepared.err(), Some(VerbError::InvalidArgument));
            return Ok(());
        }
        let model = &model[first..first + length];
        let Some(model) = model.iter().copied().collect::<Option<Vec<u8>>>() else {
            prop_assert_eq!(prepared.err(), Some(VerbError::NotMapped));
            return Ok(());
        };
        let prepared = prepared.unwrap();
        prop_assert!(regions.fast_register(region, &prepared));
        let token = prepared.token();
        for (offset, count) in cuts {
            let address = base.wrapping_add_signed(offset);
            let range = usize::try_from(offset).ok().map(|start| start..start + count);
            let expected = range.and_then(|range| model.get(range)).ok_or(AccessError::Bounds);
            let found = read(&regions, USER, token, address, count);
            prop_assert_eq!(found.as_deref(), expected.as_ref().map(|bytes| *bytes), "{}+{}", offset, count);
        }
    }
}

// NDK-SGE-1: the privileged token permits reads and writes of logical addresses in requests of its domain. It is
// refused for peers, and with another key.
#[test]
fn privileged_token_is_local() {
    let mut regions = regions(5);
    let token = regions.draw_privileged(USER.pd).unwrap();
    let chain = chain(0x5_0123, &[5000, 3000]);
    let LogicalMemory { address, .. } = build(&mut regions, &chain, 7000);
    let check = |user, token, address, length, right| {
        regions.access(user, token, address, length, right).map(drop)
    };
    for right in [Access::NONE, WRITE] {
        assert_eq!(check(USER, token, address, 7000, right), Ok(()));
        assert_eq!(check(USER, token, address + 6999, 1, right), Ok(()));
        for (at, length) in [(address + 7000, 1), (address, 7001), (address + 1, u32::MAX)] {
            assert_eq!(check(USER, token, at, length, right), Err(AccessError::Bounds));
        }
        // The address is before the first byte, within the page of the mapping.
        assert_eq!(check(USER, token, address - 1, 1, right), Err(AccessError::Bounds));
        for wild in [0, 0x5_0123, address - PAGE, address ^ 1 << 50] {
            assert!(check(USER, token, wild, 1, right).is_err());
        }
        assert_eq!(check(USER, token ^ 1, address, 1, right), Err(AccessError::Invalid), "key");
        assert_eq!(check(OTHER, token, address, 1, right), Err(AccessError::NotAssociated));
    }
    for right in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert_eq!(check(USER, token, address, 8, right), Err(AccessError::Invalid), "a peer");
    }
    let text = RegisteredBuffer::from(SharedSpan::from(bytes::Bytes::from_static(b"text")));
    let LogicalMemory { address, .. } = build(&mut regions, &[text], 4);
    assert_eq!(read(&regions, USER, token, address, 4).as_deref(), Ok(&b"text"[..]));
    let refused = regions.access(USER, token, address, 4, WRITE).map(drop);
    assert_eq!(refused, Err(AccessError::Rights), "read-only memory");
}

// NDK-MEM-7: every row of the table, for page lists.
#[test]
fn checks_of_page_lists() {
    let mut regions = regions(5);
    let lam = build(&mut regions, &chain(0x5_0010, &[3 * PAGE_SIZE]), 3 * PAGE_SIZE);
    let list = pages(lam);
    assert_eq!((lam.pages, list.len()), (4, 4));
    let region = regions.table.insert(Region::new(USER.pd, true)).unwrap();
    let mut prepare = |pages: &[u64], first_byte, length, base, rights| {
        let memory = FastMemory::Pages { pages, first_byte };
        regions.prepare_fast_register(region, memory, length, base, rights).err()
    };
    let (invalid, unmapped) = (Some(VerbError::InvalidArgument), Some(VerbError::NotMapped));
    assert_eq!(prepare(&list[..3], 16, 1, 16, WRITE), invalid, "not initialized");
    let limits = FastRegisterLimits { pages: 3, remote_access: false };
    regions.initialize(region, limits).unwrap();
    let mut prepare = |pages: &[u64], first_byte, length, base, rights| {
        let memory = FastMemory::Pages { pages, first_byte };
        regions.prepare_fast_register(region, memory, length, base, rights).err()
    };
    let three = &list[..3];
    let room = 3 * PAGE_SIZE - 16;
    assert_eq!(prepare(three, 16, room, 16, WRITE), None);
    assert_eq!(prepare(three, 16, room + 1, 16, WRITE), invalid, "longer than the pages");
    assert_eq!(prepare(three, 16, usize::MAX, 16, WRITE), invalid);
    assert_eq!(prepare(&list, 16, 1, 16, WRITE), invalid, "one page too many");
    assert_eq!(prepare(&[], 0, 1, 0, WRITE), invalid, "no page");
    assert_eq!(prepare(three, 16, 0, 16, WRITE), invalid, "no byte");
    assert_eq!(prepare(&[list[0] + 1], 16, 1, 16, WRITE), invalid, "alignment");
    assert_eq!(
        prepare(&[list[1], list[0] + 8], 0, 1, 0, WRITE),
        invalid,
        "alignment of every page"
    );
    assert_eq!(prepare(three, 4096, 1, 4096, WRITE), invalid, "FBO of a page");
    assert_eq!(prepare(three, u32::MAX, 1, u64::from(u32::MAX), WRITE), invalid);
    assert_eq!(prepare(three, 16, 1, 0, WRITE), invalid, "base 0 with FBO 16");
    assert_eq!(prepare(&list[1..3], 0, 1, 0, WRITE), None, "base 0 with FBO 0");
    assert_eq!(prepare(three, 16, 5, 16 + 9 * PAGE, WRITE), None);
    assert_eq!(prepare(three, 16, 32, u64::MAX - PAGE + 17, WRITE), None);
    assert_eq!(prepare(three, 16, room, u64::MAX - PAGE + 17, WRITE), invalid, "it wraps");
    assert_eq!(prepare(three, 15, 9, 15, WRITE), unmapped, "before the memory");
    assert_eq!(prepare(&list[3..], 0, 16, 0, WRITE), None, "the last bytes");
    assert_eq!(prepare(&list[3..], 0, 17, 0, WRITE), unmapped, "after the memory");
    assert_eq!(prepare(&[0x5_0000], 16, 1, 16, WRITE), unmapped, "a virtual address");
    let refused = prepare(three, 16, 1, 16, Access::REMOTE_READ);
    assert_eq!(refused, Some(VerbError::NoRemoteAccess));
}

// The release of a mapping invalidates its addresses and the registrations of its pages, and no others. Its memory is
// free when the last span is dropped.
#[test]
fn release() {
    let mut regions = regions(5);
    let token = regions.draw_privileged(USER.pd).unwrap();
    let [ends, stays] = [0x10_0000, 0x20_0000].map(|at| {
        let chain = chain(at, &[2 * PAGE_SIZE]);
        build(&mut regions, &chain, 2 * PAGE_SIZE)
    });
    let register = |regions: &mut Regions, list: &[u64]| {
        let region = fast_region(regions, 2);
        let memory = FastMemory::Pages { pages: list, first_byte: 0 };
        let prepared =
            regions.prepare_fast_register(region, memory, PAGE_SIZE * list.len(), 0, WRITE);
        (region, prepared.unwrap())
    };
    let mixed = register(&mut regions, &[stays.address, ends.address]);
    let other = register(&mut regions, &[stays.address]);
    let late = register(&mut regions, &[ends.address + PAGE]);
    let invalidated = register(&mut regions, &[ends.address]);
    for (region, prepared) in [&mixed, &other, &invalidated] {
        assert!(regions.fast_register(*region, prepared));
    }
    assert!(regions.revoke(invalidated.0));
    let users =
        |regions: &Regions, lam: LogicalMemory| regions.lams.get(lam.id).unwrap().regions.clone();
    assert_eq!(users(&regions, ends), [mixed.0], "the invalidated region is removed");
    let mut spans = vec![];
    let granted = regions.access(USER, token, ends.address, 8, Access::NONE).unwrap();
    granted.each_span(|span| spans.push(span));
    regions.release_lam(ends.id);
    assert!(spans[0].is_withdrawn());
    let length = PAGE_SIZE;
    assert!(read(&regions, USER, token, ends.address, length).is_err());
    assert_eq!(read(&regions, USER, mixed.1.token(), 0, length), Err(AccessError::Invalid));
    assert!(!regions.fast_register(late.0, &late.1), "the mapping was released before it started");
    assert!(read(&regions, USER, token, stays.address, length).is_ok());
    assert!(read(&regions, USER, other.1.token(), 0, length).is_ok());
    assert_eq!(users(&regions, stays), [other.0]);
    let unused = Return::Unpin(Key::Lam(ends.id));
    assert!(!regions.returns.take().contains(&unused));
    spans.clear();
    assert!(regions.returns.take().contains(&unused));
    assert!(regions.table.get(mixed.0).unwrap().registration.is_none());
    assert!(regions.fast_register(mixed.0, &other.1), "the region can be used again");
}

// Mappings have unpredictable addresses, with unmapped pages between them.
#[test]
fn mappings_are_separated() {
    let mut regions = regions(5);
    let buffer = RegisteredBuffer::allocate(PAGE_SIZE).unwrap();
    let mut all: Vec<u64> = (0..8)
        .map(|_| build(&mut regions, core::slice::from_ref(&buffer), PAGE_SIZE).address)
        .collect();
    let full = regions.build_lam(&[buffer], PAGE_SIZE).map(drop);
    assert_eq!(full, Err(VerbError::NoResources));
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] > 1 << 32), "{all:x?}");
    assert!(all[7] - all[0] > 1 << 60, "{all:x?}");
}

#[test]
fn page_counts() {
    for (address, length, pages) in [
        (0, 0, None),
        (5, 1, Some(1)),
        (0, 4096, Some(1)),
        (1, 4096, Some(2)),
        (4095, 1, Some(1)),
        (4095, 2, Some(2)),
        (u64::MAX, 4097, Some(2)),
        (0, u32::MAX as usize * PAGE_SIZE, Some(u32::MAX)),
        (1, u32::MAX as usize * PAGE_SIZE, None),
        (0, usize::MAX, None),
        (4095, usize::MAX, None),
    ] {
        assert_eq!(LogicalMemory::pages_needed(address, length), pages, "{address:#x}+{length:#x}");
    }
}
