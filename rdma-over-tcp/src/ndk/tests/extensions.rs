//! Atomics and immediate data (RFC 7306): effects, order, and all their errors.

use core::sync::atomic::{AtomicBool, Ordering};
use std::vec::Vec;

use super::{
    bench::Bench,
    errors::fpdu,
    sides::{BUFFER, LIMITS, Side, connect, connected, connected_with},
};
use crate::{
    ddp::{Msn, Stag, TaggedOffset},
    ndk::{
        AdapterConfig, AtomicOperation, CqNotify, Data, MrFlags, NtStatus, OpFlags, OperationType,
        ReadLimit, Sge,
    },
    rdmap::{
        AtomicRequest, AtomicResponse, SendKind, atomic_request_header, atomic_response_header,
        immediate_header, read_response_header, send_header,
    },
};

const ATOMIC: MrFlags = MrFlags::ALLOW_REMOTE_ATOMIC;

fn on() -> AdapterConfig {
    AdapterConfig { rfc7306: true, ..AdapterConfig::default() }
}

/// Connects two sides that use RFC 7306. Returns them with a token of the passive buffer for atomics.
fn extended(bench: &mut Bench) -> (Side, Side, u32) {
    let (active, passive) = connected(bench);
    let token = atomic_token(&passive);
    (active, passive, token)
}

fn atomic_token(side: &Side) -> u32 {
    let mr = side.pd.create_mr(false).unwrap();
    mr.register(&side.buffer, 0, BUFFER, ATOMIC).unwrap();
    mr.remote_token()
}

fn word(side: &Side, offset: usize) -> u64 {
    side.buffer.word(offset).unwrap().load(Ordering::Acquire)
}

fn set_word(side: &Side, offset: usize, value: u64) {
    side.buffer.word(offset).unwrap().store(value, Ordering::Release);
}

/// Posts an atomic on the word of `passive` at `offset`; its result is placed in the word of `active` at `sink`.
fn atomic(
    (active, passive): (&Side, &Side),
    token: u32,
    context: u64,
    (sink, offset): (usize, usize),
    operation: AtomicOperation,
) {
    let address = passive.buffer.address() + offset as u64;
    let sge = active.sge(sink, 8);
    active.qp.atomic(context, sge, address, token, operation, OpFlags::empty()).unwrap();
}

fn add(add: u64) -> AtomicOperation {
    AtomicOperation::FetchAdd { add, mask: 0 }
}

/// Reason of a connection end by the peer's Terminate.
const fn of_peer(code: u32) -> NtStatus {
    NtStatus(0x3_0000 | code)
}

// EXT-5-2, EXT-5.2.1-3, EXT-5.2.2-2: each operation, and its results on both sides, in native byte order.
#[test]
pub(super) fn operations() {
    let mut bench = Bench::with(1, on());
    let (active, passive, token) = extended(&mut bench);
    let target = passive.buffer.address() + 64;
    set_word(&passive, 64, 40);
    let none = OpFlags::empty();
    active.qp.fetch_add(1, active.sge(0, 8), target, token, 2, none).unwrap();
    active.qp.compare_swap(2, active.sge(8, 8), target, token, (42, 7), none).unwrap();
    active.qp.compare_swap(3, active.sge(16, 8), target, token, (42, 9), none).unwrap();
    atomic((&active, &passive), token, 4, (24, 64), AtomicOperation::swap(0xffff_ffff));
    let halves = AtomicOperation::FetchAdd { add: 1, mask: 0x8000_0000 };
    atomic((&active, &passive), token, 5, (32, 64), halves);
    bench.settle();
    let results = active.poll();
    let seen: Vec<_> =
        results.iter().map(|it| (it.request_context, it.status, it.operation)).collect();
    let success = NtStatus::SUCCESS;
    assert_eq!(
        seen,
        [
            (1, success, OperationType::FetchAdd),
            (2, success, OperationType::CompareSwap),
            (3, success, OperationType::CompareSwap),
            (4, success, OperationType::CompareSwap),
            (5, success, OperationType::FetchAdd),
        ]
    );
    assert!(results.iter().all(|result| result.bytes_transferred == 8));
    let outcomes = [0, 8, 16, 24, 32].map(|sink| word(&active, sink));
    assert_eq!(outcomes, [40, 42, 7, 7, 0xffff_ffff]);
    assert_eq!(word(&passive, 64), 0, "no carry beyond the lower half");
    assert_eq!((word(&passive, 56), word(&passive, 72)), (0, 0));
    assert_eq!(passive.outcomes(), [], "EXT-5.2.1-1: the peer's consumer is not notified");
    let (ours, theirs) = (active.qp.stats(), passive.qp.stats());
    assert_eq!((ours.atomics, theirs.atomic_responses, theirs.read_responses), (5, 5, 0));
}

// EXT-6.3-1, NDK-RES-2: immediate data consumes a receive and is in its completion; nothing is placed. It arrives after
// the preceding Write.
#[test]
fn immediate_data() {
    let mut bench = Bench::with(2, on());
    let (active, passive) = connected(&mut bench);
    passive.qp.receive(1, &[]).unwrap();
    passive.receive(2, 100_000, 8);
    passive.receive(3, 200_000, 10);
    passive.fill(100_000, 8, 1);
    active.fill(0, 50_000, 7);
    let (target, sge) = (passive.sge(0, 50_000), active.sge(0, 50_000));
    let data = Data::Registered(&[sge]);
    active.qp.write(10, data, target.address, target.token, OpFlags::empty()).unwrap();
    active.qp.immediate(11, *b"\0\x01\x02\x03\x04\x05\x06\x07", OpFlags::empty()).unwrap();
    active.qp.immediate(12, [0xee; 8], OpFlags::SILENT_SUCCESS).unwrap();
    active.send(13, 0, 10);
    while passive.qp.stats().receives == 0 {
        assert!(bench.step());
    }
    assert_eq!(passive.content(0, 50_000), active.content(0, 50_000), "placed before");
    bench.settle();
    let success = NtStatus::SUCCESS;
    assert_eq!(active.outcomes(), [(10, success), (11, success), (13, success)]);
    let results = passive.poll();
    let seen: Vec<_> = results
        .iter()
        .map(|it| (it.request_context, it.operation, it.bytes_transferred, it.immediate))
        .collect();
    let immediate = OperationType::ReceiveImmediate;
    assert_eq!(
        seen,
        [
            (1, immediate, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
            (2, immediate, 0, [0xee; 8]),
            (3, OperationType::Receive, 10, [0; 8]),
        ]
    );
    assert_eq!(passive.content(100_000, 8), super::sides::pattern(8, 1), "not placed");
    assert_eq!((active.qp.stats().immediates, passive.qp.stats().receives), (2, 3));
}

// EXT-6.3-1, NDK-CQ-8: with Solicited Event it satisfies a SOLICITED arm.
#[test]
pub(super) fn solicited_immediate_data() {
    let mut bench = Bench::with(3, on());
    let (active, passive) = connected(&mut bench);
    for (flags, woken) in [
        (OpFlags::empty(), &[][..]),
        (OpFlags::SEND_AND_SOLICIT_EVENT, &[("cq", NtStatus::SUCCESS)]),
    ] {
        passive.qp.receive(1, &[]).unwrap();
        passive.arm(CqNotify::Solicited);
        active.qp.immediate(1, [1; 8], flags).unwrap();
        bench.settle();
        assert_eq!(passive.log.take(), woken, "{flags:?}");
    }
}

// EXT-5.2-1, EXT-5.4-1, RDM-6.1-2, NDK-FEN-1: atomics share message numbers, limit and response order with Reads; a
// fence waits for them.
#[test]
fn atomics_and_reads_share_a_queue() {
    for outbound in [1, 2, 16] {
        let mut bench = Bench::with(u64::from(outbound), on());
        let limits = ReadLimit { inbound: 16, outbound };
        let (active, passive) = connected_with(&mut bench, limits, LIMITS);
        let token = atomic_token(&passive);
        for n in 0..20 {
            let sink = n * 16;
            atomic((&active, &passive), token, 2 * n as u64, (sink, 0), add(1));
            let source = passive.sge(0, 8);
            let sge = active.sge(sink + 8, 8);
            let context = 2 * n as u64 + 1;
            active
                .qp
                .read(context, &[sge], source.address, source.token, OpFlags::empty())
                .unwrap();
        }
        active.qp.send(40, Data::Registered(&[]), OpFlags::READ_FENCE).unwrap();
        passive.receive(1, 0, 0);
        while passive.qp.stats().receives == 0 {
            assert_eq!(active.qp.stats().sends == 1, word(&active, 19 * 16 + 8) == 20, "fence");
            assert!(bench.step());
        }
        bench.settle();
        let contexts: Vec<_> = active.outcomes();
        assert_eq!(contexts, (0..41).map(|n| (n, NtStatus::SUCCESS)).collect::<Vec<_>>());
        for n in 0..20_usize {
            let seen = (word(&active, n * 16), word(&active, n * 16 + 8));
            assert_eq!(seen, (n as u64, n as u64 + 1), "in the order of the requests");
        }
        assert_eq!(passive.qp.stats().atomic_responses, 20);
    }
}

// EXT-5.2.2-1, RDM-6.1-3: requests over the agreed limit, including atomics.
#[test]
fn too_many_inbound_atomics() {
    let mut bench = Bench::with(4, on());
    let few = ReadLimit { inbound: 2, outbound: 2 };
    let (active, passive) = connected_with(&mut bench, LIMITS, few);
    let token = atomic_token(&passive);
    bench.window = 0; // no response can be sent
    bench.inject(0, &[request(1, &passive, token, 0), request(2, &passive, token, 0)].concat());
    bench.settle();
    assert!(passive.qp.is_connected());
    assert_eq!(word(&passive, 0), 0, "EXT-5.4-1: not before the response");
    bench.inject(0, &request(3, &passive, token, 0));
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x0207))]);
    assert_eq!(active.qp.stats().terminates_in, 1);
    assert_eq!(word(&passive, 0), 0);
}

/// Returns the FPDU of a FetchAdd of 1.
fn request(msn: u32, side: &Side, token: u32, offset: u64) -> Vec<u8> {
    let offset = TaggedOffset(side.buffer.address() + offset);
    let request = AtomicRequest { operation: add(1), identifier: 5, stag: Stag(token), offset };
    fpdu(&atomic_request_header(Msn(msn), &request), &[])
}

// EXT-5.1-1, EXT-8.1-1, EXT-8.2-1, RDM-7.2-3: invalid atomics, each with its code; the memory is unchanged.
#[test]
pub(super) fn violations() {
    type Change = fn(&Side, &mut u64, &mut u32);
    let cases: [(u32, Change); 9] = [
        (0x0100, |_, _, token| *token ^= 1),
        (0x0101, |_, address, _| *address += BUFFER as u64),
        (0x0101, |_, address, _| *address += BUFFER as u64 - 7),
        (0x0104, |_, address, _| *address = u64::MAX - 5),
        (0x0102, |side, _, token| *token = side.mr.remote_token()),
        (0x0103, |side, _, token| {
            let pd = side.adapter.create_pd().unwrap();
            let mr = pd.create_mr(false).unwrap();
            mr.register(&side.buffer, 0, BUFFER, ATOMIC).unwrap();
            *token = mr.remote_token();
        }),
        (0x0207, |_, address, _| *address += 4),
        (0x0207, |_, address, _| *address += 1),
        // Aligned by its offset, but not in memory.
        (0x0207, |side, address, token| {
            let mr = side.pd.create_mr(false).unwrap();
            let buffer = side.buffer.at_address(4);
            mr.register(&buffer, 4, 80, ATOMIC).unwrap();
            (*address, *token) = (16, mr.remote_token());
        }),
    ];
    for (code, change) in cases {
        let mut bench = Bench::with(u64::from(code), on());
        let (active, passive, token) = extended(&mut bench);
        let (mut address, mut wrong) = (passive.buffer.address(), token);
        change(&passive, &mut address, &mut wrong);
        let sge = active.sge(0, 8);
        active.qp.fetch_add(2, sge, address, wrong, 1, OpFlags::empty()).unwrap();
        atomic((&active, &passive), token, 3, (8, 0), add(1));
        bench.settle();
        assert_eq!(active.log.take(), [("disconnect event", of_peer(code))], "{code:#x}");
        assert_eq!(passive.log.take(), [("disconnect event", NtStatus(code))]);
        let status = match code {
            0x0207 => NtStatus::INTERNAL_ERROR,
            _ => NtStatus::ACCESS_VIOLATION,
        };
        assert_eq!(active.outcomes(), [(2, status), (3, NtStatus::CANCELLED)], "{code:#x}");
        assert_eq!((passive.qp.stats().atomic_responses, bench.connections()), (0, 0));
        assert!(passive.content(0, BUFFER).iter().all(|byte| *byte == 0));
    }
}

// EXT-5.4-1, RDM-8.1.1-4: a right is revoked while an atomic is queued.
#[test]
fn revoked_before_its_turn() {
    let mut bench = Bench::with(5, on());
    let (active, passive) = connected(&mut bench);
    let mr = passive.pd.create_mr(false).unwrap();
    mr.register(&passive.buffer, 0, BUFFER, ATOMIC).unwrap();
    let window = core::mem::replace(&mut bench.window, 0);
    bench.inject(0, &request(1, &passive, mr.remote_token(), 0));
    bench.settle();
    assert_eq!(mr.deregister(|| {}), NtStatus::SUCCESS);
    bench.window = window;
    passive.qp.send(1, Data::Registered(&[]), OpFlags::empty()).unwrap();
    active.receive(1, 0, 1);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x0100))]);
    assert_eq!((active.qp.stats().terminates_in, word(&passive, 0)), (1, 0));
}

// EXT-5.4-1: an atomic without the right terminates the connection on arrival, even if its response could not be sent
// yet.
#[test]
fn missing_right_is_detected_on_arrival() {
    let mut bench = Bench::with(5, on());
    let (_active, passive) = connected(&mut bench);
    bench.window = 0;
    bench.inject(0, &request(1, &passive, passive.mr.remote_token(), 0));
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x0102))]);
}

// EXT-8.1-1: the Terminate contains the length and the DDP header of the Atomic Request, which identify it, and no
// RDMAP header. This holds for errors found on arrival and during processing.
#[test]
fn terminate_identifies_request() {
    for is_revoked in [false, true] {
        let mut bench = Bench::with(6, on());
        let (active, passive, token) = extended(&mut bench);
        let mr = passive.pd.create_mr(false).unwrap();
        mr.register(&passive.buffer, 0, BUFFER, ATOMIC).unwrap();
        let wrong = if is_revoked { mr.remote_token() } else { passive.mr.remote_token() };
        let tokens = if is_revoked { [wrong, wrong, wrong] } else { [token, wrong, token] };
        // The peer cannot respond before the right is revoked, but has received all three.
        bench.is_cut = true;
        for (context, token) in (0..).zip(tokens) {
            atomic((&active, &passive), token, context, (0, 0), add(1));
        }
        bench.settle();
        let window = core::mem::replace(&mut bench.window, if is_revoked { 0 } else { 64 * 1024 });
        bench.is_cut = false;
        bench.settle();
        if is_revoked {
            assert_eq!(mr.deregister(|| {}), NtStatus::SUCCESS);
            bench.window = window;
            active.receive(9, 0, 1);
            passive.qp.send(1, Data::Registered(&[]), OpFlags::empty()).unwrap();
            bench.settle();
        }
        let (first, code) = if is_revoked { (0, 0x0100) } else { (1, 0x0102) };
        let results = active.poll();
        let culprit = results.iter().find(|it| it.status == NtStatus::ACCESS_VIOLATION).unwrap();
        assert_eq!((culprit.request_context, culprit.provider_error_code), (first, code));
        // 18 + 4 + 2 + 18 octets, length and CRC.
        assert_eq!(bench.posted[1].last().unwrap(), &[48]);
    }
}

// EXT-5.2.1-2, EXT-5.2.2-2, EXT-6.3-2: messages that violate the protocol, each with its code.
#[test]
fn wrong_messages() {
    type Make = fn(&Side, u32) -> Vec<u8>;
    let response = |msn, identifier| {
        let response = AtomicResponse { identifier, original: 0 };
        fpdu(&atomic_response_header(Msn(msn), &response), &[])
    };
    let short = |opcode: u8, queue: u8, octets: usize| {
        let mut header = [&[0x41, 0x40 | opcode][..], &[0; 16], &[0; 60][..octets]].concat();
        (header[9], header[13]) = (queue, 1);
        fpdu(&header, &[])
    };
    let cases: [(u32, Make, &[u8]); 10] = [
        (0x1203, |side, token| request(2, side, token, 0), &[]),
        (0x1203, |_, _| fpdu(&immediate_header(false, Msn(2), [0; 8]), &[]), &[]),
        (0x0206, |_, _| Vec::new(), &response(1, 0)),
        (0x2003, |_, _| Vec::new(), &short(8, 0, 7)),
        (0x1205, |_, _| Vec::new(), &short(9, 0, 9)),
        (0x2003, |_, _| Vec::new(), &short(10, 1, 51)),
        (0x1205, |_, _| Vec::new(), &short(10, 1, 53)),
        (0x1201, |_, _| Vec::new(), &short(10, 0, 52)),
        (0x1201, |_, _| Vec::new(), &short(8, 1, 8)),
        // AOpCode 1 is reserved.
        (
            0x0206,
            |side, token| {
                let mut octets = request(1, side, token, 0);
                octets[2 + 18 + 3] = 1;
                let end = octets.len() - 4;
                let crc = crate::mpa::crc::crc32c(&octets[..end]).to_le_bytes();
                octets[end..].copy_from_slice(&crc);
                octets
            },
            &[],
        ),
    ];
    for (at, (code, make, fixed)) in cases.into_iter().enumerate() {
        let mut bench = Bench::with(at as u64, on());
        let (active, passive, token) = extended(&mut bench);
        passive.receive(1, 0, 10);
        bench.inject(0, &[&make(&passive, token)[..], fixed].concat());
        bench.settle();
        assert_eq!(passive.log.take(), [("disconnect event", NtStatus(code))], "{at}");
        assert_eq!(active.qp.stats().terminates_in, 1);
        assert_eq!((passive.outcomes(), word(&passive, 0)), ([(1, NtStatus::CANCELLED)].into(), 0));
    }
}

// EXT-5.2.2-2: responses that match no request: another identifier, number or type, or none outstanding.
#[test]
fn wrong_responses() {
    let response = |msn, identifier| {
        let response = AtomicResponse { identifier, original: 9 };
        fpdu(&atomic_response_header(Msn(msn), &response), &[])
    };
    let read =
        fpdu(&read_response_header(true, Stag(5), TaggedOffset(0)), &[1, 2, 3, 4, 5, 6, 7, 8]);
    for (code, answer, is_read) in [
        (0x0207, response(1, 2), false),
        (0x1203, response(2, 1), false),
        (0x0206, read, false),
        (0x0206, response(1, 1), true),
    ] {
        let mut bench = Bench::with(u64::from(code), on());
        let (active, passive, token) = extended(&mut bench);
        let address = passive.buffer.address();
        // This response arrives before that of the peer's adapter.
        bench.is_cut = true;
        let (sge, none) = (active.sge(0, 8), OpFlags::empty());
        match is_read {
            true => active.qp.read(1, &[sge], address, passive.mr.remote_token(), none).unwrap(),
            false => active.qp.fetch_add(1, sge, address, token, 1, none).unwrap(),
        }
        active.qp.send(2, Data::Registered(&[]), OpFlags::READ_FENCE).unwrap();
        bench.settle();
        bench.inject(1, &answer);
        bench.is_cut = false;
        bench.settle();
        assert_eq!(active.log.take(), [("disconnect event", NtStatus(code))], "{code:#x}");
        let outcomes = [(1, NtStatus::CANCELLED), (2, NtStatus::CANCELLED)];
        assert_eq!(active.outcomes(), outcomes);
        assert_eq!(word(&active, 0), 0, "nothing was placed");
    }
}

// NDK-MEM-17: the result's memory must allow local write.
#[test]
fn results_need_local_write() {
    for is_revoked in [false, true] {
        let mut bench = Bench::with(6, on());
        let (active, passive, token) = extended(&mut bench);
        let mr = active.pd.create_mr(false).unwrap();
        let rights =
            if is_revoked { MrFlags::from_bits_retain(0x7) } else { MrFlags::ALLOW_REMOTE_READ };
        mr.register(&active.buffer, 0, 64, rights).unwrap();
        let sge = Sge { token: mr.local_token(), ..active.sge(0, 8) };
        let address = passive.buffer.address();
        bench.is_cut = is_revoked;
        active.qp.fetch_add(1, sge, address, token, 1, OpFlags::empty()).unwrap();
        bench.settle();
        if is_revoked {
            assert_eq!(mr.deregister(|| {}), NtStatus::SUCCESS);
            bench.is_cut = false;
        }
        bench.settle();
        assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
        assert_eq!(active.qp.stats().terminates_out, 1);
        assert_eq!(word(&passive, 0), u64::from(is_revoked));
    }
}

// Rejected posts have no effect: without RFC 7306, without Reads, with a result of another length.
#[test]
pub(super) fn refused_posts() {
    let mut bench = Bench::new(7);
    let (active, passive) = connected(&mut bench);
    let (sge, address) = (active.sge(0, 8), passive.buffer.address());
    let fetch_add = |side: &Side, sge| side.qp.fetch_add(1, sge, address, 1, 1, OpFlags::empty());
    assert_eq!(fetch_add(&active, sge), Err(NtStatus::NOT_SUPPORTED));
    let immediate = active.qp.immediate(1, [0; 8], OpFlags::empty());
    assert_eq!(immediate, Err(NtStatus::NOT_SUPPORTED));
    assert_eq!(active.qp.allow_extensions(true), Err(NtStatus::INVALID_PARAMETER), "connected");

    let mut bench = Bench::with(8, on());
    let none = ReadLimit { inbound: 0, outbound: 0 };
    let (active, _passive) = connected_with(&mut bench, none, LIMITS);
    let sge = active.sge(0, 8);
    assert_eq!(fetch_add(&active, sge), Err(NtStatus::INVALID_DEVICE_REQUEST));

    let (active, _passive) = connected(&mut Bench::with(9, on()));
    for length in [0, 7, 9, 16] {
        let sge = active.sge(0, length);
        assert_eq!(fetch_add(&active, sge), Err(NtStatus::INVALID_PARAMETER));
    }
    let sge = active.sge(0, 8);
    let illegal = OpFlags::SEND_AND_SOLICIT_EVENT;
    let refused = active.qp.fetch_add(1, sge, address, 1, 1, illegal);
    assert_eq!(refused, Err(NtStatus::INVALID_PARAMETER));
    assert_eq!(active.qp.immediate(1, [0; 8], OpFlags::INLINE), Err(NtStatus::INVALID_PARAMETER));
    assert!(active.qp.is_connected());
    assert_eq!(active.outcomes(), []);
}

// A queue pair without RFC 7306 treats each of its messages as an unexpected opcode, regardless of other errors.
#[test]
fn unexpected_extensions() {
    let response = AtomicResponse { identifier: 1, original: 0 };
    for kind in 0..6 {
        let mut bench = Bench::new(kind);
        let (active, passive, token) = extended(&mut bench);
        passive.receive(1, 0, 10);
        let message = match kind {
            0 => request(1, &passive, token, 0),
            1 => fpdu(&atomic_response_header(Msn(1), &response), &[]),
            2 => fpdu(&immediate_header(false, Msn(1), [0; 8]), &[]),
            3 => fpdu(&immediate_header(true, Msn(9), [0; 8]), &[]),
            4 => fpdu(&immediate_header(true, Msn(1), [0; 8])[..20], &[]),
            _ => request(7, &passive, token ^ 1, 3),
        };
        bench.inject(0, &message);
        bench.settle();
        assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x0206))], "{kind}");
        assert_eq!(active.log.take(), [("disconnect event", of_peer(0x0206))]);
        assert_eq!((passive.outcomes(), word(&passive, 0)), ([(1, NtStatus::CANCELLED)].into(), 0));
    }
}

// Extensions can be enabled per queue pair before it is connected. A message that the peer does not support is answered
// by a Terminate, and its request fails.
#[test]
pub(super) fn one_side_allows_extensions() {
    let mut bench = Bench::new(9);
    let mut active = Side::new(&bench, 0);
    let mut passive = Side::new(&bench, 1);
    active.qp.allow_extensions(true).unwrap();
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    let token = atomic_token(&passive);
    atomic((&active, &passive), token, 1, (0, 0), add(1));
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::REMOTE_RESOURCES)]);
    assert_eq!(active.log.take(), [("disconnect event", of_peer(0x0206))]);
}

// NDK-FL-1: queued atomics are flushed together with those already sent.
#[test]
fn flushed_atomics() {
    let mut bench = Bench::with(10, on());
    let limits = ReadLimit { inbound: 16, outbound: 2 };
    let (active, passive) = connected_with(&mut bench, limits, LIMITS);
    let token = atomic_token(&passive);
    bench.is_cut = true;
    for context in 0..5 {
        atomic((&active, &passive), token, context, (0, 0), add(1));
    }
    active.qp.immediate(5, [0; 8], OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(active.qp.stats().atomics, 2);
    active.qp.flush();
    let outcomes: Vec<_> = (0..6).map(|context| (context, NtStatus::CANCELLED)).collect();
    assert_eq!(active.outcomes(), outcomes);
}

// EXT-6.3-1, DDP-4.3-1: immediate data is a separate message: never within a Send.
#[test]
fn immediate_data_within_a_send() {
    let mut bench = Bench::with(11, on());
    let (_active, passive) = connected(&mut bench);
    passive.receive(1, 0, 1000);
    let first = fpdu(&send_header(false, SendKind::Plain, Msn(1), 0), b"begin");
    let mut immediate = immediate_header(false, Msn(1), [0; 8]).to_vec();
    immediate[17] = 5;
    bench.inject(0, &[first, fpdu(&immediate, b"")].concat());
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x0206))]);
    assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);
}

// EXT-6.3-1: without a receive, as with a Send.
#[test]
pub(super) fn immediate_data_without_a_receive() {
    let mut bench = Bench::with(12, on());
    let (active, passive) = connected(&mut bench);
    active.qp.immediate(1, [0; 8], OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS)], "iWARP senders see SUCCESS");
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x1202))]);
}

/// Number of peer atomics executed concurrently with local ones.
const ATOMICS: u64 = 200_000;

/// Guard that sets a flag when it is dropped.
struct FlagGuard<'a>(&'a AtomicBool);

impl Drop for FlagGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// EXT-5-1: atomics of a peer and of the process on one word: no update is lost.
#[test]
pub(super) fn atomics_concurrent_with_local_ones() {
    let mut bench = Bench::with(13, on());
    let (active, passive, token) = extended(&mut bench);
    let memory = passive.buffer.clone();
    let is_over = AtomicBool::new(false);
    let local = std::thread::scope(|scope| {
        let adder = scope.spawn(|| {
            let word = memory.word(0).unwrap();
            let mut count = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                word.fetch_add(1 << 32, Ordering::Relaxed);
                count += 1;
            }
            count
        });
        // Also set on a failure.
        let guard = FlagGuard(&is_over);
        // Enough operations that both sides access the word concurrently, even on a busy machine.
        for context in 0..ATOMICS {
            let operation = match context % 2 {
                0 => add(1),
                _ => AtomicOperation::FetchAdd { add: 1, mask: 0x8000_0000 },
            };
            atomic((&active, &passive), token, context, (0, 0), operation);
            if context % 16 == 15 {
                bench.settle();
                assert_eq!(active.outcomes().len(), 16);
            }
        }
        drop(guard);
        adder.join().unwrap()
    });
    assert!(local > 0);
    assert_eq!(word(&passive, 0), local << 32 | ATOMICS);
}
