//! Data transfer: every operation in every size, packing, ordering, limits.

use std::{boxed::Box, vec, vec::Vec};

use super::{
    bench::{Bench, EMSS},
    sides::{BUFFER, LIMITS, Side, connect, connected, connected_with, pattern},
};
use crate::{
    ndk::{
        AdapterConfig, COPY_ASIDE_MAX, CqNotify, CrcRequest, Data, FpduSize, NtStatus, OpFlags,
        OperationType, QpLimits, ReadLimit, Sge,
    },
    rnic::Urgency,
};

const MULPDU: usize = 1442;
const SIZES: [usize; 12] = [
    0,
    1,
    2,
    MULPDU - 19,
    MULPDU - 18,
    MULPDU - 17,
    MULPDU - 14,
    MULPDU - 13,
    16 * 1024,
    16 * 1024 + 1,
    64 * 1024,
    (1 << 20) + 3,
];

fn max() -> AdapterConfig {
    AdapterConfig { fpdu_size: FpduSize::Max, ..AdapterConfig::default() }
}

fn aligned() -> AdapterConfig {
    AdapterConfig { fpdu_size: FpduSize::Emss, ..AdapterConfig::default() }
}

fn marked() -> AdapterConfig {
    AdapterConfig { markers: true, ..AdapterConfig::default() }
}

fn bare() -> AdapterConfig {
    AdapterConfig { crc: CrcRequest::Off, ..AdapterConfig::default() }
}

/// Asserts that `offset..offset + length` holds the pattern and all other bytes are unchanged.
fn assert_placed(side: &Side, offset: usize, length: usize, seed: u8) {
    let content = side.content(0, BUFFER);
    assert!(content[offset..offset + length] == pattern(length, seed), "placed data");
    assert!(content[..offset].iter().all(|byte| *byte == 0), "before the target");
    assert!(content[offset + length..].iter().all(|byte| *byte == 0), "after the target");
}

// RDM-5.3-1, RDM-5.3-3, NDK-SGE-4, NDK-RES-1: sends of all sizes with all framings, byte for byte.
#[test]
pub(super) fn send_all_sizes() {
    for (seed, config) in [(1, AdapterConfig::default()), (2, max()), (3, marked()), (4, bare())] {
        for size in SIZES {
            let mut bench = Bench::with(seed, config.clone());
            let (active, passive) = connected(&mut bench);
            active.fill(77, size, 9);
            passive.receive(5, 1234, size);
            active.send(6, 77, size);
            bench.settle();
            assert_eq!(active.outcomes(), [(6, NtStatus::SUCCESS)], "{size}");
            let results = passive.poll();
            assert_eq!(results.len(), 1);
            assert_eq!(results[0].status, NtStatus::SUCCESS);
            assert_eq!(results[0].bytes_transferred as usize, size);
            assert_eq!(results[0].operation, OperationType::Receive);
            assert_eq!((results[0].qp_context, results[0].request_context), (101, 5));
            assert_placed(&passive, 1234, size, 9);
            assert_eq!(passive.qp.stats().receives, 1);
        }
    }
}

// RDM-5.1-1, RDM-5.1-3: writes of all sizes; never delivered to the peer's consumer.
#[test]
pub(super) fn write_all_sizes() {
    for (seed, config) in [(1, AdapterConfig::default()), (2, max()), (3, marked())] {
        for size in SIZES {
            let mut bench = Bench::with(seed, config.clone());
            let (active, passive) = connected(&mut bench);
            active.fill(0, size, 3);
            let target = passive.sge(4321, size);
            let sge = active.sge(0, size);
            let data = Data::Registered(&[sge]);
            active.qp.write(1, data, target.address, target.token, OpFlags::empty()).unwrap();
            bench.settle();
            assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS)], "{size}");
            assert_eq!(passive.outcomes(), []);
            assert_placed(&passive, 4321, size, 3);
        }
    }
}

// RDM-5.2-1, RDM-5.2.1-7, RDM-5.2.2-2: reads of all sizes into a private sink.
#[test]
pub(super) fn read_all_sizes() {
    for (seed, config) in [(1, AdapterConfig::default()), (2, max()), (3, marked())] {
        for size in SIZES {
            let mut bench = Bench::with(seed, config.clone());
            let (active, passive) = connected(&mut bench);
            passive.fill(99, size, 5);
            let source = passive.sge(99, size);
            let sink = active.sge(4096, size);
            active.qp.read(1, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
            bench.settle();
            assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS)], "{size}");
            assert_eq!(passive.outcomes(), []);
            assert_placed(&active, 4096, size, 5);
            assert_eq!(passive.qp.stats().read_responses, 1);
        }
    }
}

// A peer may write a Read's source at any time, also while the response is queued. Every CRC matches the bytes sent.
#[test]
fn read_responses_are_stable() {
    for (seed, config) in [(1, AdapterConfig::default()), (2, max()), (3, marked())] {
        for size in [COPY_ASIDE_MAX as usize + 1, 200_000] {
            let mut bench = Bench::with(seed, config.clone());
            let (active, passive) = connected(&mut bench);
            let source = passive.sge(99, size);
            let sink = active.sge(4096, size);
            let (memory, mut round) = (passive.buffer.clone(), 0_u8);
            bench.after_send = Some(Box::new(move || {
                round = round.wrapping_add(1);
                memory.write_at(99, &vec![round; size]);
            }));
            active.qp.read(1, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
            bench.settle();
            assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS)], "{size}");
            assert_eq!(active.log.take(), []);
        }
    }
}

// A receive counts until it completes, also while its message arrives. A completion queue of the receive queue's depth
// does not overrun.
#[test]
fn message_in_progress_counts_as_posted_receive() {
    let config = AdapterConfig { fpdu_size: FpduSize::Emss, ..AdapterConfig::default() };
    let mut bench = Bench::with(1, config);
    let limits = QpLimits { receive_queue_depth: 2, ..QpLimits::default() };
    let mut active = Side::new(&bench, 0);
    let mut passive = Side::with(&bench, 1, BUFFER, limits);
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    passive.receive(1, 0, 100_000);
    passive.receive(2, 200_000, 100);
    active.send(1, 0, 100_000);
    while passive.qp.stats().fpdu_in < 3 {
        assert!(bench.step(), "the message arrives");
    }
    assert_eq!(passive.outcomes(), []);
    let third = passive.qp.receive(3, &[passive.sge(200_000, 100)]);
    assert_eq!(third, Err(NtStatus::NO_MORE_ENTRIES));
    bench.settle();
    assert_eq!(passive.outcomes(), [(1, NtStatus::SUCCESS)]);
    passive.receive(3, 200_000, 100);
}

// The response data in flight does not exceed the capacity of the path; acknowledgments release the rest.
#[test]
fn read_responses_respect_path_capacity() {
    let size = 1_000_000;
    let mut bench = Bench::new(1);
    (bench.path_octets, bench.window, bench.hold_acks) = (100_000, 4 << 20, false);
    let (active, passive) = connected(&mut bench);
    passive.fill(0, size, 5);
    let (source, sink) = (passive.sge(0, size), active.sge(0, size));
    let before: usize = bench.posted[1].iter().flatten().sum();
    bench.hold_acks = true;
    active.qp.read(1, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
    bench.settle();
    let posted: usize = bench.posted[1].iter().flatten().sum();
    let in_flight = posted - before;
    assert!((100_000..100_000 + 44 * EMSS).contains(&in_flight), "{in_flight}");
    bench.release_acks();
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS)]);
    assert_placed(&active, 0, size, 5);
}

// RDM-8.1.1-1: no data is sent after the rights are revoked, not even the rest of a response that has begun.
#[test]
fn no_data_is_sent_after_deregistration() {
    let size = 500_000;
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    passive.fill(0, size, 5);
    let source = passive.sge(0, size);
    let sink = active.sge(0, size);
    active.qp.read(1, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
    while bench.posted[1].len() < 3 {
        assert!(bench.step(), "the response begins");
    }
    let lists = bench.posted[1].len();
    assert_eq!(passive.mr.deregister(|| {}), NtStatus::SUCCESS);
    bench.settle();
    // The one list after it is the Terminate.
    assert_eq!(bench.posted[1].len(), lists + 1);
    assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
    assert_eq!(passive.qp.stats().terminates_out, 1);
}

// NDK-ASY-1, NDK-LIFE-4: before a deregistration completes, the part of a Write in flight is copied. The part not yet
// sent terminates the stream. The same holds for a close after a deregistration that pends.
#[test]
fn deregistration_waits_for_data_in_flight() {
    let size = 500_000;
    for closes in [false, true] {
        let mut bench = Bench::new(1);
        bench.window = 100_000;
        let (active, passive) = connected(&mut bench);
        active.fill(0, size, 5);
        bench.hold_acks = true;
        let target = passive.sge(0, size);
        let source = [active.sge(0, size)];
        let (to, token) = (target.address, target.token);
        active.qp.write(1, Data::Registered(&source), to, token, OpFlags::empty()).unwrap();
        bench.settle();
        let note = |name| active.log.note(name);
        if !closes {
            let (noted, mr) = (note("deregistered"), &active.mr);
            assert_eq!(mr.deregister(move || noted(NtStatus::SUCCESS)), NtStatus::PENDING);
            assert_eq!(mr.deregister(|| {}), NtStatus::INVALID_PARAMETER, "it is pending");
            let again = mr.register(&active.buffer, 0, 1, crate::ndk::MrFlags::empty());
            assert_eq!(again, Err(NtStatus::INVALID_PARAMETER));
        }
        let noted = note("closed");
        assert_eq!(active.mr.close(move || noted(NtStatus::SUCCESS)), NtStatus::PENDING);
        assert_eq!(active.log.take(), []);
        bench.hold_acks = false;
        bench.settle();
        let ended: Vec<_> = active.log.take().into_iter().map(|(name, _)| name).collect();
        let ended: Vec<_> = ended.into_iter().filter(|name| name.ends_with("ed")).collect();
        assert_eq!(ended, if closes { vec!["closed"] } else { vec!["deregistered", "closed"] });
        assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
        assert_eq!(active.qp.stats().terminates_out, 1);
        let placed = passive.content(0, size);
        let whole = active.content(0, size);
        let end = placed.iter().zip(&whole).take_while(|(one, other)| one == other).count();
        assert!(end >= 90_000 && placed[end..].iter().all(|byte| *byte == 0), "{end}");
    }
}

/// Returns uneven, discontiguous entries, and their total length.
fn scattered(side: &Side, lengths: &[usize]) -> (Vec<Sge>, usize) {
    let mut offset = 64;
    let sges = lengths
        .iter()
        .map(|length| {
            let sge = side.sge(offset, *length);
            offset += length + 33;
            sge
        })
        .collect();
    (sges, lengths.iter().sum())
}

fn gathered(side: &Side, lengths: &[usize]) -> Vec<u8> {
    let mut offset = 64;
    lengths
        .iter()
        .flat_map(|length| {
            let part = side.content(offset, *length);
            offset += length + 33;
            part
        })
        .collect()
}

// Several entries on both sides, including empty ones, for every operation.
#[test]
pub(super) fn multiple_entries() {
    for lengths in [vec![1, 0, 2, 3000, 5], vec![20_000, 1, 40_000], vec![7, 7, 7, 7, 7, 7, 7, 7]] {
        let total: usize = lengths.iter().sum();
        let mut bench = Bench::new(total as u64);
        let (active, passive) = connected(&mut bench);
        active.fill(0, 200_000, 1);
        let (from, _) = scattered(&active, &lengths);
        let reversed: Vec<usize> = lengths.iter().rev().copied().collect();
        let (to, _) = scattered(&passive, &reversed);
        passive.qp.receive(1, &to).unwrap();
        active.qp.send(2, Data::Registered(&from), OpFlags::empty()).unwrap();
        bench.settle();
        assert_eq!(active.outcomes(), [(2, NtStatus::SUCCESS)]);
        assert_eq!(passive.outcomes(), [(1, NtStatus::SUCCESS)]);
        assert!(gathered(&active, &lengths) == gathered(&passive, &reversed));
        let target = passive.sge(1 << 20, total);
        let data = Data::Registered(&from);
        active.qp.write(3, data, target.address, target.token, OpFlags::empty()).unwrap();
        passive
            .qp
            .read(4, &[passive.sge(2 << 20, 9)], from[0].address, from[0].token, OpFlags::empty())
            .unwrap();
        bench.settle();
        assert!(passive.content(1 << 20, total) == gathered(&active, &lengths));
        assert_eq!(active.outcomes(), [(3, NtStatus::SUCCESS)]);
        assert_eq!(passive.outcomes(), [(4, NtStatus::SUCCESS)]);
        let (sink, _) = scattered(&active, &reversed);
        active.qp.read(5, &sink, target.address, target.token, OpFlags::empty()).unwrap();
        bench.settle();
        assert_eq!(active.outcomes(), [(5, NtStatus::SUCCESS)]);
        assert!(gathered(&active, &reversed) == passive.content(1 << 20, total));
    }
}

// NDK-INL-1: the post captures the data; more than the limit is rejected; the number of parts is unlimited.
#[test]
pub(super) fn inline_data() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    passive.receive(1, 0, 300);
    let mut text = *b"inline";
    let parts: Vec<&[u8]> = text.chunks(1).collect();
    let flags = OpFlags::INLINE;
    active.qp.send(2, Data::Inline(&parts), flags).unwrap();
    text.fill(0);
    let data = [7; 257];
    assert_eq!(
        active.qp.send(3, Data::Inline(&[&data]), OpFlags::empty()),
        Err(NtStatus::INVALID_PARAMETER)
    );
    let registered = Data::Registered(&[]);
    assert_eq!(active.qp.send(3, registered, OpFlags::INLINE), Err(NtStatus::INVALID_PARAMETER));
    let target = passive.sge(1000, 4);
    active
        .qp
        .write(4, Data::Inline(&[b"data"]), target.address, target.token, OpFlags::empty())
        .unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(2, NtStatus::SUCCESS), (4, NtStatus::SUCCESS)]);
    assert_eq!(passive.content(0, 6), b"inline");
    assert_eq!(passive.content(1000, 4), b"data", "NDK-FLG-4");
}

// Small queued requests share lists; every segment begins with an FPDU (MPA-5.1).
#[test]
fn small_requests_are_packed() {
    let mut bench = Bench::with(1, aligned());
    let (active, passive) = connected(&mut bench);
    for n in 0..100 {
        passive.receive(n, n as usize * 64, 64);
        active.fill(n as usize * 64, 64, n as u8);
        let sge = active.sge(n as usize * 64, 64);
        let flags = if n < 99 { OpFlags::DEFER } else { OpFlags::empty() };
        active.qp.send(n, Data::Registered(&[sge]), flags).unwrap();
    }
    bench.posted[0].clear();
    bench.settle();
    // An FPDU of a 64-byte message has 88 octets. 16 of them fit a segment of 1448, and a truncated one needs 128.
    let stats = active.qp.stats();
    assert_eq!(stats.sends, 100);
    assert!(bench.posted[0].len() <= 8, "{:?}", bench.posted[0]);
    for list in &bench.posted[0] {
        assert!(list.iter().sum::<usize>() <= EMSS, "one segment per list: {list:?}");
    }
    assert_eq!(passive.outcomes().len(), 100);
    assert!(passive.content(0, 6400) == active.content(0, 6400));
}

// Emss: full segments share a GSO packet, because each of them is exactly one FPDU.
#[test]
fn aligned_fpdus_fill_gso_packets() {
    let mut bench = Bench::with(1, aligned());
    bench.window = 1 << 20;
    let (active, passive) = connected(&mut bench);
    passive.receive(0, 0, 500_000);
    bench.posted[0].clear();
    active.send(0, 0, 500_000);
    bench.settle();
    let lists = &bench.posted[0];
    assert!(lists.len() < 12, "{} lists", lists.len());
    for (index, list) in lists.iter().enumerate() {
        let is_last_list = index + 1 == lists.len();
        for (at, fpdu) in list.iter().enumerate() {
            let is_last = is_last_list && at + 1 == list.len();
            assert!(*fpdu == EMSS || is_last, "list {index} FPDU {at} of {fpdu}");
        }
    }
    assert_eq!(passive.outcomes(), [(0, NtStatus::SUCCESS)]);
}

// Max: one FPDU per GSO packet.
#[test]
fn large_fpdus() {
    let mut bench = Bench::with(1, max());
    bench.window = 1 << 20;
    let (active, passive) = connected(&mut bench);
    passive.receive(0, 0, 1 << 20);
    bench.posted[0].clear();
    active.send(0, 0, 1 << 20);
    bench.settle();
    let largest = bench.posted[0].iter().flatten().max().copied();
    assert_eq!(largest, Some(44 * EMSS), "fills the GSO packet");
    assert!(bench.posted[0].len() <= 17);
    assert_eq!(passive.outcomes(), [(0, NtStatus::SUCCESS)]);
}

// Many small messages are one slice and one GSO packet; a large one is three slices.
#[test]
fn gso_packet_has_few_slices() {
    let mut bench = Bench::new(1);
    bench.window = 1 << 20;
    let limits = QpLimits { initiator_queue_depth: 1024, ..QpLimits::default() };
    let mut active = Side::with(&bench, 0, BUFFER, limits);
    let mut passive = Side::new(&bench, 1);
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    let target = passive.sge(0, BUFFER);
    active.fill(0, 64_000, 7);
    bench.posted[0].clear();
    bench.slices[0].clear();
    for n in 0..1000 {
        let data = Data::Registered(&[active.sge(n * 64, 64)]);
        let flags = if n < 999 { OpFlags::DEFER } else { OpFlags::empty() };
        let address = target.address + n as u64 * 64;
        active.qp.write(n as u64, data, address, target.token, flags).unwrap();
    }
    bench.settle();
    // An FPDU with 64 octets has 84; 44 segments of 1448 take 758 of them.
    assert_eq!(bench.posted[0].len(), 2, "{:?}", bench.posted[0]);
    assert!(bench.slices[0].iter().all(|slices| *slices <= 2), "{:?}", bench.slices[0]);
    assert_eq!(active.outcomes().len(), 1000);
    assert!(passive.content(0, 64_000) == pattern(64_000, 7));

    bench.posted[0].clear();
    bench.slices[0].clear();
    let data = [active.sge(0, 60_000)];
    active
        .qp
        .write(0, Data::Registered(&data), target.address, target.token, OpFlags::empty())
        .unwrap();
    bench.settle();
    assert_eq!((&bench.posted[0][..], &bench.slices[0][..]), (&[vec![60_020]][..], &[3][..]));
}

// 64 KiB exceed the size of an FPDU and of a GSO packet: the rest shares a list with the next message.
#[test]
fn rest_of_message_shares_list_with_next() {
    let mut bench = Bench::new(1);
    bench.window = 1 << 20;
    let (active, passive) = connected(&mut bench);
    let (source, target) = (active.sge(0, 65_536), passive.sge(0, 65_536));
    bench.posted[0].clear();
    for n in 0..8 {
        let flags = if n < 7 { OpFlags::DEFER } else { OpFlags::empty() };
        let data = [source];
        active.qp.write(n, Data::Registered(&data), target.address, target.token, flags).unwrap();
    }
    bench.settle();
    let lists = &bench.posted[0];
    assert_eq!(lists.len(), (8 * 65_600_usize).div_ceil(44 * EMSS), "{lists:?}");
    let fpdus: usize = lists.iter().map(Vec::len).sum();
    assert!(fpdus <= 17, "{lists:?}");
    // All but the last are full, except for octets that would split a trailer.
    let full = |list: &&Vec<usize>| 44 * EMSS - list.iter().sum::<usize>() < 8;
    assert_eq!(lists.iter().filter(full).count(), lists.len() - 1, "{lists:?}");
    assert_eq!(active.outcomes().len(), 8);
}

// A post is sent before it returns while little data is in flight. Otherwise posts are batched, up to a limit.
#[test]
fn posts_are_batched_while_connection_is_busy() {
    let mut bench = Bench::new(1);
    bench.window = 1 << 20;
    let (active, passive) = connected(&mut bench);
    bench.hold_acks = true;
    let target = passive.sge(0, BUFFER);
    let access = bench.nodes[0].access().clone();
    let post = |length, flags| {
        let data = [active.sge(0, length)];
        active.qp.write(0, Data::Registered(&data), target.address, target.token, flags).unwrap();
        access.urgency.lock().unwrap().take().unwrap()
    };
    assert_eq!(post(64, OpFlags::DEFER), Urgency::None);
    assert_eq!(post(64, OpFlags::empty()), Urgency::Now);
    bench.settle();
    assert_eq!(post(2 * EMSS, OpFlags::empty()), Urgency::Now, "two small messages are in flight");
    bench.settle();
    assert_eq!(post(64, OpFlags::empty()), Urgency::Soon);
    assert_eq!(post(64, OpFlags::DEFER), Urgency::None);
    assert_eq!(post(500_000, OpFlags::empty()), Urgency::Soon);
    assert_eq!(
        post(25_000, OpFlags::empty()),
        Urgency::Now,
        "two lists of a kernel socket are queued"
    );
    bench.settle();
    assert_eq!(post(64, OpFlags::empty()), Urgency::Soon);
    bench.settle();
    // A failed post sends the deferred requests (NDK-DEF-3).
    assert_eq!(post(64, OpFlags::DEFER), Urgency::None);
    let bad = OpFlags::RDMA_READ_LOCAL_INVALIDATE;
    let data = [active.sge(0, 64)];
    assert!(active.qp.send(0, Data::Registered(&data), bad).is_err());
    assert_eq!(access.urgency.lock().unwrap().take(), Some(Urgency::Soon));
    bench.settle();
    // The window is full: no queued data can be sent before an acknowledgment.
    assert_eq!(post(2 << 20, OpFlags::empty()), Urgency::Now);
    bench.settle();
    assert_eq!(post(600_000, OpFlags::empty()), Urgency::Soon);
    bench.hold_acks = false;
    bench.release_acks();
    bench.settle();
    assert_eq!(post(64, OpFlags::empty()), Urgency::Now, "nothing is in flight");
    bench.settle();
    assert_eq!(active.outcomes().len(), 12);
    // A receive has no effect to flush.
    passive.receive(0, 0, 64);
    assert_eq!(*bench.nodes[1].access().urgency.lock().unwrap(), Some(Urgency::None));
}

// NDK-DEF-1, -2: deferred requests keep their posting order and are sent with the next request.
#[test]
pub(super) fn deferred_requests_keep_their_order() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    for n in 0..6 {
        passive.receive(n, n as usize * 100, 100);
        active.fill(n as usize * 100, 100, n as u8);
        let flags = if n % 3 < 2 { OpFlags::DEFER } else { OpFlags::empty() };
        let data = [active.sge(n as usize * 100, 100)];
        active.qp.send(n, Data::Registered(&data), flags).unwrap();
        bench.settle();
        let sent = if n % 3 < 2 { 0 } else { 3 };
        assert_eq!(active.outcomes().len(), sent, "after {n}");
    }
    let contexts: Vec<u64> = passive.outcomes().into_iter().map(|(context, _)| context).collect();
    assert_eq!(contexts, [0, 1, 2, 3, 4, 5]);
    for n in 0..6 {
        assert!(passive.content(n * 100, 100) == pattern(100, n as u8));
    }
}

// Decision 7: small messages complete when TCP has them, large ones when they are acknowledged.
#[test]
fn completion_does_not_wait_for_a_delayed_acknowledgment() {
    let mut bench = Bench::new(1);
    bench.window = 1 << 20;
    let (active, passive) = connected(&mut bench);
    bench.hold_acks = true;
    passive.receive(0, 0, 16 * 1024);
    passive.receive(1, 100_000, 100_000);
    active.fill(0, 16 * 1024, 1);
    active.send(0, 0, 16 * 1024);
    active.send(1, 0, 100_000);
    bench.settle();
    assert_eq!(active.outcomes(), [(0, NtStatus::SUCCESS)]);
    // The buffer may be reused immediately: data in flight was copied.
    assert_eq!(active.qp.stats().copied_aside_bytes, 16 * 1024);
    bench.release_acks();
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS)]);
}

// NDK-WR-6, NDK-SIL-1: posting order; silent requests that succeed have no completion.
#[test]
pub(super) fn order_and_silence() {
    let mut bench = Bench::new(5);
    let (active, passive) = connected(&mut bench);
    let target = passive.sge(0, 50_000);
    let sge = active.sge(0, 50_000);
    for n in 0..40 {
        let silent = if n % 3 == 0 { OpFlags::empty() } else { OpFlags::SILENT_SUCCESS };
        let data = Data::Registered(&[sge]);
        match n % 2 {
            0 => active.qp.write(n, data, target.address, target.token, silent).unwrap(),
            _ => active.qp.read(n, &[sge], target.address, target.token, silent).unwrap(),
        }
    }
    bench.settle();
    let expected: Vec<_> = (0..40).filter(|n| n % 3 == 0).map(|n| (n, NtStatus::SUCCESS)).collect();
    assert_eq!(active.outcomes(), expected);
}

// NDK-CD-1, RDM-6.1-2: reads beyond ORD are queued and all succeed; later sends are queued after them.
#[test]
pub(super) fn reads_beyond_the_limit_wait() {
    for limit in [1, 3] {
        let mut bench = Bench::new(u64::from(limit));
        let few = ReadLimit { inbound: limit, outbound: 99 };
        let (active, passive) = connected_with(&mut bench, LIMITS, few);
        passive.receive(100, 0, 10);
        for n in 0..20_u8 {
            passive.fill(1000 + usize::from(n) * 5000, 5000, n);
            let source = passive.sge(1000 + usize::from(n) * 5000, 5000);
            let sink = active.sge(usize::from(n) * 5000, 5000);
            let flags = OpFlags::empty();
            active.qp.read(n.into(), &[sink], source.address, source.token, flags).unwrap();
        }
        active.send(100, 0, 10);
        bench.settle();
        let expected: Vec<_> = (0..20).chain([100]).map(|n| (n, NtStatus::SUCCESS)).collect();
        assert_eq!(active.outcomes(), expected);
        assert!(active.content(0, 100_000) == passive.content(1000, 100_000));
        assert_eq!(passive.qp.stats().read_responses, 20);
    }
}

// NDK-CD-1 with 0: a read that could never start is rejected.
#[test]
pub(super) fn no_reads_allowed() {
    let mut bench = Bench::new(1);
    let none = ReadLimit { inbound: 0, outbound: 0 };
    let (active, passive) = connected_with(&mut bench, LIMITS, none);
    let source = passive.sge(0, 1);
    let result =
        active.qp.read(1, &[active.sge(0, 1)], source.address, source.token, OpFlags::empty());
    assert_eq!(result, Err(NtStatus::INVALID_DEVICE_REQUEST));
    assert_eq!(
        passive.qp.read(1, &[source], source.address, source.token, OpFlags::empty()),
        Err(NtStatus::INVALID_DEVICE_REQUEST)
    );
}

// NDK-FEN-1: a fenced send of a read's sink carries the data read.
#[test]
pub(super) fn read_fence() {
    let mut bench = Bench::new(3);
    let (active, passive) = connected(&mut bench);
    passive.fill(0, 30_000, 8);
    passive.receive(9, 100_000, 30_000);
    let source = passive.sge(0, 30_000);
    let sge = active.sge(0, 30_000);
    active.qp.read(1, &[sge], source.address, source.token, OpFlags::empty()).unwrap();
    active.qp.send(2, Data::Registered(&[sge]), OpFlags::READ_FENCE).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS), (2, NtStatus::SUCCESS)]);
    assert_eq!(passive.outcomes(), [(9, NtStatus::SUCCESS)]);
    assert!(passive.content(100_000, 30_000) == pattern(30_000, 8));
}

// NDK-CQ-8, NDK-CQ-7: solicited sends satisfy a SOLICITED arm; unsolicited ones do not.
#[test]
pub(super) fn solicited_events() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    passive.arm(CqNotify::Solicited);
    for n in 0..2 {
        passive.receive(n, 0, 10);
    }
    active.send(0, 0, 1);
    bench.settle();
    assert_eq!(passive.log.take(), []);
    let sge = active.sge(0, 1);
    let flags = OpFlags::SEND_AND_SOLICIT_EVENT;
    active.qp.send(1, Data::Registered(&[sge]), flags).unwrap();
    bench.settle();
    assert_eq!(passive.log.take(), [("cq", NtStatus::SUCCESS)]);
    assert_eq!(passive.outcomes().len(), 2);
}

// NDK-DEF-1, -2, -3, -4: a deferred chain starts with its last request, or when a post fails.
#[test]
pub(super) fn deferred_requests() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    for n in 0..3 {
        passive.receive(n, 0, 10);
    }
    let sge = active.sge(0, 10);
    let data = Data::Registered(&[sge]);
    active.qp.send(0, data, OpFlags::DEFER).unwrap();
    active.qp.send(1, data, OpFlags::DEFER).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), []);
    let bad = OpFlags::RDMA_READ_LOCAL_INVALIDATE;
    assert_eq!(active.qp.send(2, data, bad), Err(NtStatus::INVALID_PARAMETER));
    bench.settle();
    assert_eq!(active.outcomes(), [(0, NtStatus::SUCCESS), (1, NtStatus::SUCCESS)]);
    // A request rejected for its entries also starts the chain, though it has the flag itself.
    active.qp.send(3, data, OpFlags::DEFER).unwrap();
    let entries = [sge; 200];
    let many = active.qp.send(4, Data::Registered(&entries), OpFlags::DEFER);
    assert_eq!(many, Err(NtStatus::DATA_OVERRUN));
    bench.settle();
    assert_eq!(active.outcomes(), [(3, NtStatus::SUCCESS)]);
}

// Both directions concurrently with a small window, with reads each way: no data is lost or mixed up.
#[test]
fn soak() {
    for seed in 0..6 {
        let config = if seed % 2 == 0 { max() } else { AdapterConfig::default() };
        let mut bench = Bench::with(seed, config);
        bench.window = 5000;
        let (active, passive) = connected(&mut bench);
        let half = BUFFER / 2;
        for n in 0..50_usize {
            for side in [&active, &passive] {
                side.receive(n as u64, half + n * 10_000, 10_000);
            }
            for (side, other) in [(&active, &passive), (&passive, &active)] {
                side.fill(n * 20_000, 20_000, n as u8);
                side.send(1000 + n as u64, n * 20_000, 100 + n * 190);
                let source = other.sge(n * 20_000, 3000);
                let sink = side.sge(half + 600_000 + n * 3000, 3000);
                let flags = OpFlags::empty();
                side.qp
                    .read(2000 + n as u64, &[sink], source.address, source.token, flags)
                    .unwrap();
            }
        }
        bench.settle();
        for side in [&active, &passive] {
            let outcomes = side.outcomes();
            assert_eq!(outcomes.len(), 150, "seed {seed}");
            assert!(outcomes.iter().all(|(_, status)| *status == NtStatus::SUCCESS));
            for n in 0..50_usize {
                let length = 100 + n * 190;
                assert!(side.content(half + n * 10_000, length) == pattern(length, n as u8));
                let read = side.content(half + 600_000 + n * 3000, 3000);
                assert!(read == pattern(3000, n as u8), "read {n}");
            }
        }
        let (sent, received) = (active.adapter.counters(), passive.adapter.counters());
        assert_eq!(sent.fpdu_out, received.fpdu_in);
        assert_eq!(sent.fpdu_out_octets, received.fpdu_in_octets);
    }
}

// Queue limits (NDK-WR-4): a rejected post has no completion.
#[test]
pub(super) fn post_limits() {
    let mut bench = Bench::new(1);
    let limits = QpLimits {
        receive_queue_depth: 2,
        initiator_queue_depth: 2,
        max_initiator_request_sge: 1,
        max_receive_request_sge: 1,
        inline_data_size: 0,
    };
    let mut active = Side::with(&bench, 0, 65_536, limits);
    let mut passive = Side::with(&bench, 1, 65_536, limits);
    assert_eq!(
        active.qp.send(0, Data::Registered(&[]), OpFlags::empty()),
        Err(NtStatus::CONNECTION_INVALID),
        "NDK-CON-11"
    );
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    let sge = active.sge(0, 1);
    for n in 0..2 {
        passive.receive(n, 0, 1);
        active.qp.send(n, Data::Registered(&[sge]), OpFlags::DEFER).unwrap();
    }
    assert_eq!(passive.qp.receive(2, &[]), Err(NtStatus::NO_MORE_ENTRIES));
    let data = Data::Registered(&[sge]);
    assert_eq!(active.qp.send(2, data, OpFlags::empty()), Err(NtStatus::NO_MORE_ENTRIES));
    bench.settle();
    assert_eq!(active.outcomes().len(), 2);
    assert_eq!(
        active.qp.send(3, Data::Registered(&[sge, sge]), OpFlags::empty()),
        Err(NtStatus::DATA_OVERRUN)
    );
    let huge = Sge { length: u32::MAX, ..sge };
    assert_eq!(
        active.qp.send(4, Data::Registered(&[huge]), OpFlags::empty()),
        Err(NtStatus::BUFFER_OVERFLOW)
    );
    bench.settle();
    assert_eq!(active.outcomes(), []);
}
