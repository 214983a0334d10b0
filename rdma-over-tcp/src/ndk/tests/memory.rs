//! Memory of several buffers: MDL chains, logical address mappings, page lists.

use std::{collections::BTreeSet, vec, vec::Vec};

use offload_engine::memory::SharedSpan;
use oorandom::Rand32;

use super::{
    bench::Bench,
    sides::{ALL_RIGHTS, Side, connected, pattern},
};
use crate::{
    error::WireError,
    ndk::{
        Adapter, AdapterConfig, Data, DisconnectReason, LogicalAddressMapping, MrFlags, NtStatus,
        OpFlags, PAGE_SIZE, RegisteredBuffer, Sge,
    },
};

const PAGE: u64 = PAGE_SIZE as u64;
const NONE: OpFlags = OpFlags::empty();

/// Returns buffers at arbitrary locations, with contiguous addresses from `address` on.
fn chain(address: u64, lengths: &[usize]) -> Vec<RegisteredBuffer> {
    let mut next = address;
    let of_length = |length: &usize| {
        let buffer = RegisteredBuffer::allocate(*length).unwrap().at_address(next);
        next += *length as u64;
        buffer
    };
    lengths.iter().map(of_length).collect()
}

fn fill(chain: &[RegisteredBuffer], data: &[u8]) {
    let mut rest = data;
    for buffer in chain {
        let (now, later) = rest.split_at(buffer.len().min(rest.len()));
        buffer.write_at(0, now);
        rest = later;
    }
    assert!(rest.is_empty());
}

fn content(chain: &[RegisteredBuffer]) -> Vec<u8> {
    let of = |buffer: &RegisteredBuffer| {
        let mut content = vec![0; buffer.len()];
        buffer.read_at(0, &mut content);
        content
    };
    chain.iter().flat_map(of).collect()
}

/// Returns an entry for each page of a mapping of `length` bytes (NDK-SGE-3).
fn entries(lam: &LogicalAddressMapping, length: usize, token: u32) -> Vec<Sge> {
    let (mut start, mut left) = (u64::from(lam.first_byte_offset()), length as u64);
    let entry = |page: u64| {
        let length = (PAGE - start).min(left);
        let sge = Sge { address: page + start, length: length as u32, token };
        (start, left) = (0, left - length);
        sge
    };
    let entries: Vec<Sge> = lam.pages().map(entry).collect();
    assert_eq!(left, 0);
    entries
}

fn build(adapter: &Adapter, chain: &[RegisteredBuffer]) -> LogicalAddressMapping {
    let length = chain.iter().map(RegisteredBuffer::len).sum();
    let lam = adapter.build_lam(chain, length).unwrap();
    let needed = LogicalAddressMapping::pages_needed(chain[0].address(), length);
    assert_eq!(Some(lam.page_count()), needed, "NDK-MEM-4");
    assert_eq!(u64::from(lam.first_byte_offset()), chain[0].address() % PAGE);
    lam
}

fn assert_success(side: &Side, contexts: &[u64]) {
    let expected: Vec<_> = contexts.iter().map(|context| (*context, NtStatus::SUCCESS)).collect();
    assert_eq!(side.outcomes(), expected);
}

// NDK-SGE-1, NDK-SGE-3, NDK-MEM-2, -4: every operation works on logical addresses, page by page. Small messages are
// copied, large ones are sent zero-copy.
#[test]
pub(super) fn logical_addresses() {
    for (seed, lengths) in [(1, [500, 3000]), (2, [9000, 20_001])] {
        let mut bench = Bench::new(seed);
        let (active, passive) = connected(&mut bench);
        let total: usize = lengths.iter().sum();
        let [near, far] = [0x7_0e10, 0x1234_0000].map(|address| chain(address, &lengths));
        fill(&near, &pattern(total, 5));
        let (lam, far_lam) = (build(&active.adapter, &near), build(&passive.adapter, &far));
        let from = entries(&lam, total, active.pd.privileged_token());
        let to = entries(&far_lam, total, passive.pd.privileged_token());
        let target = passive.sge(0, total);
        passive.qp.receive(1, &to).unwrap();
        active.qp.send(2, Data::Registered(&from), NONE).unwrap();
        let (address, token) = (target.address, target.token);
        active.qp.write(3, Data::Registered(&from), address, token, NONE).unwrap();
        bench.settle();
        assert_success(&active, &[2, 3]);
        assert_success(&passive, &[1]);
        assert!(content(&far) == pattern(total, 5));
        assert!(passive.content(0, total) == pattern(total, 5));
        passive.fill(0, total, 9);
        active.qp.read(4, &from, address, token, NONE).unwrap();
        bench.settle();
        assert_success(&active, &[4]);
        assert!(content(&near) == pattern(total, 9));
        for (side, lam) in [(&active, &lam), (&passive, &far_lam)] {
            assert_eq!(side.adapter.release_lam(lam, || {}), NtStatus::SUCCESS);
        }
    }
}

// NDK-SGE-1: no peer can use the privileged token, neither with logical nor with virtual addresses.
#[test]
pub(super) fn peers_have_no_privileged_token() {
    for is_read in [false, true] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let memory = chain(0x1000, &[8192]);
        let lam = build(&passive.adapter, &memory);
        let (page, token) = (lam.pages().next().unwrap(), passive.pd.privileged_token());
        let own = [active.sge(0, 100)];
        let error = match is_read {
            true => {
                active.qp.read(1, &own, page, token, NONE).unwrap();
                WireError::ProtectionInvalidStag
            }
            false => {
                active.qp.write(1, Data::Registered(&own), page, token, NONE).unwrap();
                WireError::TaggedInvalidStag
            }
        };
        bench.settle();
        let reason = DisconnectReason::terminated(error.number()).0;
        assert_eq!(active.log.take(), [("disconnect event", NtStatus(reason))]);
        assert!(content(&memory).iter().all(|byte| *byte == 0));
    }
    // A peer cannot invalidate it either.
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    passive.receive(1, 0, 10);
    let token = passive.pd.privileged_token();
    active.qp.send_and_invalidate(1, Data::Inline(&[]), token, NONE).unwrap();
    bench.settle();
    let reason = DisconnectReason::terminated(WireError::OperationCannotInvalidate.number()).0;
    assert_eq!(active.log.take(), [("disconnect event", NtStatus(reason))]);
}

// Invalid logical addresses: none, of a released mapping, or after a mapping's bytes. The request fails, and no byte is
// read or written. A token of another domain fails as well.
#[test]
fn wild_logical_addresses() {
    type Change = fn(&Side, &LogicalAddressMapping, &mut Sge);
    let changes: [Change; 6] = [
        |_, _, sge| sge.address = 0,
        |_, _, sge| sge.address = u64::MAX - 5,
        |_, _, sge| sge.address -= 1,
        |_, _, sge| sge.length += 1,
        |side, lam, _| assert_eq!(side.adapter.release_lam(lam, || {}), NtStatus::SUCCESS),
        |side, _, sge| sge.token = side.adapter.create_pd().unwrap().privileged_token(),
    ];
    for change in changes {
        for is_read in [false, true] {
            let mut bench = Bench::new(1);
            let (active, passive) = connected(&mut bench);
            passive.fill(0, 8192, 1);
            let memory = chain(0x1010, &[5000]);
            let lam = build(&active.adapter, &memory);
            let address = lam.pages().next().unwrap() + 0x10;
            let token = active.pd.privileged_token();
            let mut sge = Sge { address, length: 5000, token };
            change(&active, &lam, &mut sge);
            let other = passive.sge(0, sge.length as usize);
            match is_read {
                true => active.qp.read(1, &[sge], other.address, other.token, NONE).unwrap(),
                false => active.qp.send(1, Data::Registered(&[sge]), NONE).unwrap(),
            }
            bench.settle();
            assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
            assert!(content(&memory).iter().all(|byte| *byte == 0));
        }
    }
}

// A mapping is an object of the adapter, which is in use until the mapping is released.
#[test]
fn adapter_with_a_mapping_is_not_idle() {
    let bench = Bench::new(1);
    let adapter = &bench.nodes[0].adapter;
    assert!(bench.nodes[0].is_idle());
    let lam = build(adapter, &chain(0, &[4096]));
    assert!(!bench.nodes[0].is_idle());
    assert_eq!(adapter.release_lam(&lam, || {}), NtStatus::SUCCESS);
    assert!(bench.nodes[0].is_idle());
}

// NDK-FLG-3: a read into logical addresses has no token to invalidate.
#[test]
fn read_does_not_invalidate_privileged_token() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let memory = chain(0, &[4096]);
    let lam = build(&active.adapter, &memory);
    let sinks = entries(&lam, 4096, active.pd.privileged_token());
    let source = passive.sge(0, 4096);
    let flags = OpFlags::RDMA_READ_LOCAL_INVALIDATE;
    active.qp.read(1, &sinks, source.address, source.token, flags).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
}

// NDK-MEM-1, -3: an MDL chain is one region. Writes, reads, sends and receives may cross its buffer boundaries
// anywhere.
#[test]
pub(super) fn chains_are_one_region() {
    for (seed, lengths) in [(1, vec![1, 2, 3]), (2, vec![5000, 1, 40_000]), (3, vec![100_000; 3])] {
        let total: usize = lengths.iter().sum();
        let mut bench = Bench::new(seed);
        let (active, passive) = connected(&mut bench);
        let address = 0xffff_8000_0000_0123;
        let memory = chain(address, &lengths);
        let mr = passive.pd.create_mr(false).unwrap();
        let long = mr.register_chain(&memory, total + 1, ALL_RIGHTS);
        assert_eq!(long, Err(NtStatus::INVALID_PARAMETER), "NDK-MEM-1");
        assert_eq!((mr.local_token(), mr.remote_token()), (0, 0), "a failure leaves no token");
        mr.register_chain(&memory, total - 1, ALL_RIGHTS).unwrap();
        let token = mr.remote_token();
        active.fill(0, total, 7);
        let own = [active.sge(0, total - 1)];
        active.qp.write(1, Data::Registered(&own), address, token, NONE).unwrap();
        bench.settle();
        assert_success(&active, &[1]);
        let written = content(&memory);
        assert!(written[..total - 1] == pattern(total, 7)[..total - 1] && written[total - 1] == 0);
        let sink = [active.sge(1 << 20, total - 3)];
        active.qp.read(2, &sink, address + 1, token, NONE).unwrap();
        active.receive(3, 2 << 20, total);
        let all = Sge { address, length: total as u32 - 1, token };
        passive.qp.send(4, Data::Registered(&[all]), NONE).unwrap();
        passive.qp.receive(5, &[all]).unwrap();
        bench.settle();
        assert!(active.content(1 << 20, total - 3) == pattern(total, 7)[1..total - 2]);
        assert!(active.content(2 << 20, total - 1) == pattern(total, 7)[..total - 1]);
        active.fill(0, total, 8);
        active.send(6, 0, total - 1);
        bench.settle();
        assert!(content(&memory)[..total - 1] == pattern(total, 8)[..total - 1]);
        for (side, contexts) in [(&active, [2, 3, 6]), (&passive, [4, 5, 5])] {
            let outcomes = side.outcomes();
            assert!(outcomes.iter().all(|(_, status)| *status == NtStatus::SUCCESS));
            let done: BTreeSet<u64> = outcomes.iter().map(|(context, _)| *context).collect();
            assert_eq!(done, BTreeSet::from(contexts));
        }
        // The byte after the length is in the chain, but not in the region.
        let own = [active.sge(0, total)];
        active.qp.write(7, Data::Registered(&own), address, token, NONE).unwrap();
        bench.settle();
        let reason = DisconnectReason::terminated(WireError::TaggedBounds.number()).0;
        assert_eq!(active.log.take(), [("disconnect event", NtStatus(reason))]);
        assert_eq!(content(&memory)[total - 1], 0);
    }
}

// NDK-MEM-7, -8: page lists in random order with random FBO and length. Writes, reads, sends and receives of random
// parts match an array, and adjacent pages are unchanged.
#[test]
pub(super) fn page_lists() {
    for seed in 0..25 {
        let mut random = Rand32::new(seed);
        let mut bench = Bench::new(seed);
        let (active, passive) = connected(&mut bench);
        let pages = 1 + random.rand_range(0..12) as usize;
        let memory = chain(0, &[PAGE_SIZE; 16]);
        let lam = build(&passive.adapter, &memory);
        let mut list: Vec<u64> = lam.pages().collect();
        for at in (1..list.len()).rev() {
            list.swap(at, random.rand_range(0..at as u32 + 1) as usize);
        }
        list.truncate(pages);
        let first = random.rand_range(0..4096);
        let room = pages * PAGE_SIZE - first as usize;
        let length = 1 + random.rand_range(0..room as u32) as usize;
        let base = (u64::from(random.rand_u32()) << 20) + u64::from(first);
        let mr = passive.pd.create_mr(true).unwrap();
        mr.initialize_fast_register(pages as u32, true).unwrap();
        let rights = OpFlags::ALLOW_REMOTE_WRITE | OpFlags::ALLOW_REMOTE_READ;
        let register =
            || passive.qp.fast_register_pages(1, &mr, &list, first, length, base, rights);
        let token = register().unwrap();
        bench.settle();
        assert_success(&passive, &[1]);
        let mut model = vec![0; length];
        for round in 0..12_u8 {
            let start = random.rand_range(0..length as u32) as usize;
            let count = 1 + random.rand_range(0..(length - start) as u32) as usize;
            let address = base + start as u64;
            let own = [active.sge(0, count)];
            let part = Sge { address, length: count as u32, token };
            active.fill(0, count, round);
            match round % 4 {
                0 => active.qp.write(2, Data::Registered(&own), address, token, NONE).unwrap(),
                1 => {
                    passive.qp.receive(3, &[part]).unwrap();
                    active.qp.send(2, Data::Registered(&own), NONE).unwrap();
                }
                2 => active.qp.read(2, &own, address, token, NONE).unwrap(),
                _ => {
                    active.qp.receive(2, &own).unwrap();
                    passive.qp.send(3, Data::Registered(&[part]), NONE).unwrap();
                }
            }
            bench.settle();
            assert_success(&active, &[2]);
            assert_success(&passive, if round % 2 == 1 { &[3] } else { &[] });
            match round % 4 {
                0 | 1 => model[start..start + count].copy_from_slice(&pattern(count, round)),
                _ => assert!(active.content(0, count) == model[start..start + count], "{seed}"),
            }
        }
        let named: BTreeSet<u64> = list.iter().copied().collect();
        let all = content(&memory);
        let first_page = lam.pages().next().unwrap();
        for page in lam.pages().filter(|page| !named.contains(page)) {
            let at = (page - first_page) as usize;
            assert!(all[at..at + PAGE_SIZE].iter().all(|byte| *byte == 0), "adjacent pages");
        }
        let gathered: Vec<u8> = list
            .iter()
            .flat_map(|page| all[(page - first_page) as usize..][..PAGE_SIZE].to_vec())
            .collect();
        let (first, end) = (first as usize, first as usize + length);
        assert!(gathered[first..end] == model, "seed {seed}");
        assert!(gathered[..first].iter().chain(&gathered[end..]).all(|byte| *byte == 0));
        passive.qp.invalidate(4, &mr, NONE).unwrap();
        assert_ne!(register().unwrap(), token, "NDK-MEM-8");
    }
}

// NDK-MEM-7, NDK-WR-4, NDK-DEF-3: an invalid fast registration is rejected inline, each with its status, and starts the
// deferred requests.
#[test]
pub(super) fn refused_page_lists() {
    let config = AdapterConfig::default();
    let mut limits = config.limits;
    limits.registration_bytes_max = 3 * PAGE + 1;
    let mut bench = Bench::with(1, AdapterConfig { limits, ..config });
    let mut active = Side::with(&bench, 0, PAGE_SIZE, Default::default());
    let mut passive = Side::with(&bench, 1, PAGE_SIZE, Default::default());
    let read_limits = super::sides::LIMITS;
    super::sides::connect(&mut bench, &mut active, &mut passive, read_limits, read_limits);
    let lam = build(&active.adapter, &chain(0x10, &[4 * PAGE_SIZE]));
    let pages: Vec<u64> = lam.pages().collect();
    let mr = active.pd.create_mr(true).unwrap();
    let too_many = limits.fast_register_pages_max + 1;
    let refused = mr.initialize_fast_register(too_many, false);
    assert_eq!(refused, Err(NtStatus::IMPLEMENTATION_LIMIT));
    assert_eq!(mr.initialize_fast_register(0, false), Err(NtStatus::INVALID_PARAMETER));
    mr.initialize_fast_register(4, false).unwrap();
    assert_eq!(mr.deregister(|| {}), NtStatus::INVALID_PARAMETER, "NDK-MEM-5");
    let register = |pages: &[u64], first, length, base, flags| {
        active.qp.fast_register_pages(1, &mr, pages, first, length, base, flags).err()
    };
    let write = OpFlags::ALLOW_LOCAL_WRITE;
    let (invalid, violation) = (NtStatus::INVALID_PARAMETER, NtStatus::ACCESS_VIOLATION);
    for (status, refusal) in [
        (invalid, register(&pages, 0x10, 1, 0x10, write)),
        (invalid, register(&pages[..4], 0x10, 3 * PAGE_SIZE + 2, 0x10, write)),
        (invalid, register(&pages[..2], 0x10, 1, 0, write)),
        (invalid, register(&pages[..2], 4096, 1, 4096, write)),
        (invalid, register(&pages[..2], 0x10, 0, 0x10, write)),
        (invalid, register(&pages[..1], 0x10, PAGE_SIZE, 0x10, write)),
        (invalid, register(&[pages[0] + 1], 0x10, 1, 0x10, write)),
        (invalid, register(&pages[..1], 0x10, 1, 0x10, OpFlags::from_bits_retain(0x20))),
        (invalid, register(&pages[..1], 0x10, 1, 0x10, OpFlags::INLINE)),
        (violation, register(&pages[..1], 0xf, 2, 0xf, write)),
        (violation, register(&[7 * PAGE], 0x10, 1, 0x10, write)),
        (violation, register(&pages[..1], 0x10, 1, 0x10, OpFlags::ALLOW_REMOTE_READ)),
    ] {
        assert_eq!(refusal, Some(status));
    }
    let text = RegisteredBuffer::from(SharedSpan::from(bytes::Bytes::from_static(b"read only")));
    let text = build(&active.adapter, &[text.at_address(0)]);
    let page: Vec<u64> = text.pages().collect();
    assert_eq!(register(&page, 0, 9, 0, write), Some(violation));
    assert_eq!(register(&page, 0, 9, 0, NONE), None, "to be read");
    bench.settle();
    assert_success(&active, &[1]);
    active.qp.invalidate(2, &mr, OpFlags::DEFER).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), []);
    assert_eq!(register(&pages[..1], 0xf, 2, 0xf, write), Some(violation));
    bench.settle();
    assert_success(&active, &[2]);
    assert_eq!(register(&pages[..4], 0x10, 3 * PAGE_SIZE + 1, 0x10, write), None);
    // A region registered as a whole cannot be used by work requests, and a region for work requests cannot be
    // registered as a whole.
    let whole = active.qp.fast_register_pages(3, &active.mr, &pages, 0x10, 1, 0x10, write);
    assert_eq!(whole, Err(invalid));
    assert_eq!(active.qp.invalidate(3, &active.mr, NONE), Err(invalid), "NDK-MEM-9");
    let whole = mr.register(&active.buffer, 0, 1, MrFlags::empty());
    assert_eq!(whole, Err(invalid));
}

// A mapping cannot be used with another adapter. Its adapter closes when its mappings are released.
#[test]
fn mappings_keep_adapter_open() {
    let bench = Bench::new(1);
    let [one, other] = bench.nodes.each_ref().map(|node| node.adapter.clone());
    let memory = chain(5, &[10]);
    for (chain, length) in [(&memory[..], 11), (&memory[..], 0), (&[], 1)] {
        assert_eq!(one.build_lam(chain, length).err(), Some(NtStatus::INVALID_PARAMETER));
    }
    let lam = build(&one, &memory);
    assert_eq!(other.release_lam(&lam, || {}), NtStatus::INVALID_PARAMETER);
    assert_eq!(one.close(|| {}), NtStatus::PENDING);
    assert_eq!(one.build_lam(&memory, 10).err(), Some(NtStatus::INVALID_PARAMETER));
    assert_eq!(one.release_lam(&lam, || {}), NtStatus::SUCCESS);
    assert_eq!(one.release_lam(&lam, || {}), NtStatus::SUCCESS, "already released");
}

// NDK-LIFE-4: data in flight is copied before a release completes, and requests not yet begun fail. A region of the
// mapping's pages, and a window on it, grant no access from the call on.
#[test]
fn release_waits_for_data_in_flight() {
    let size = 500_000;
    let mut bench = Bench::new(1);
    bench.window = 100_000;
    let (active, passive) = connected(&mut bench);
    let freed = std::sync::Arc::new(());
    let span = SharedSpan::allocate(size, PAGE_SIZE).unwrap().under(freed.clone());
    let owned = RegisteredBuffer::from(span).at_address(0);
    owned.write_at(0, &pattern(size, 5));
    let lam = active.adapter.build_lam(&[owned], size).unwrap();
    let (page, token) = (lam.pages().next().unwrap(), active.pd.privileged_token());
    bench.hold_acks = true;
    let target = passive.sge(0, size);
    let all = [Sge { address: page, length: size as u32, token }];
    active.qp.write(1, Data::Registered(&all), target.address, target.token, NONE).unwrap();
    bench.settle();
    let noted = active.log.note("released");
    let status = active.adapter.release_lam(&lam, move || noted(NtStatus::SUCCESS));
    assert_eq!(status, NtStatus::PENDING);
    assert_eq!(active.log.take(), []);
    bench.hold_acks = false;
    bench.settle();
    assert!(active.log.take().contains(&("released", NtStatus::SUCCESS)));
    assert_eq!(std::sync::Arc::strong_count(&freed), 1, "the memory belongs to the consumer");
    assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
    let placed = passive.content(0, size);
    let whole = pattern(size, 5);
    let end = placed.iter().zip(&whole).take_while(|(one, other)| one == other).count();
    assert!(end >= 90_000 && placed[end..].iter().all(|byte| *byte == 0), "{end}");
}

// The release of a mapping invalidates a region of its pages, a window on it, and a registration not yet processed.
#[test]
fn release_ends_registrations() {
    for is_window in [false, true] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let memory = chain(0, &[PAGE_SIZE, PAGE_SIZE]);
        let lam = build(&passive.adapter, &memory);
        let pages: Vec<u64> = lam.pages().collect();
        let mr = passive.pd.create_mr(true).unwrap();
        mr.initialize_fast_register(2, true).unwrap();
        let rights = OpFlags::ALLOW_REMOTE_WRITE;
        let mut token = passive.qp.fast_register_pages(1, &mr, &pages, 0, 8192, 0, rights).unwrap();
        if is_window {
            let mw = passive.pd.create_mw().unwrap();
            token = passive.qp.bind(2, &mr, &mw, 4000, 200, rights).unwrap();
        }
        bench.settle();
        let own = [active.sge(0, 200)];
        active.fill(0, 200, 3);
        active.qp.write(1, Data::Registered(&own), 4000, token, NONE).unwrap();
        bench.settle();
        assert_success(&active, &[1]);
        assert!(content(&memory)[4000..4200] == pattern(200, 3));
        assert_eq!(passive.adapter.release_lam(&lam, || {}), NtStatus::SUCCESS);
        active.fill(0, 200, 4);
        active.qp.write(2, Data::Registered(&own), 4000, token, NONE).unwrap();
        bench.settle();
        let reason = DisconnectReason::terminated(WireError::TaggedInvalidStag.number()).0;
        assert_eq!(active.log.take(), [("disconnect event", NtStatus(reason))]);
        assert!(content(&memory)[4000..4200] == pattern(200, 3), "nothing more was placed");
    }
    let mut bench = Bench::new(1);
    let (active, _passive) = connected(&mut bench);
    let lam = build(&active.adapter, &chain(0, &[PAGE_SIZE]));
    let pages: Vec<u64> = lam.pages().collect();
    let mr = active.pd.create_mr(true).unwrap();
    mr.initialize_fast_register(1, false).unwrap();
    active.qp.fast_register_pages(1, &mr, &pages, 0, 9, 0, OpFlags::DEFER).unwrap();
    assert_eq!(active.adapter.release_lam(&lam, || {}), NtStatus::SUCCESS, "no references");
    active.qp.send(2, Data::Inline(&[]), NONE).unwrap();
    bench.settle();
    let outcomes = [(1, NtStatus::INVALID_DEVICE_REQUEST), (2, NtStatus::CANCELLED)];
    assert_eq!(active.outcomes(), outcomes);
}
