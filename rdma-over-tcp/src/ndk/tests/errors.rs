//! Every error: the Terminate sent, and the statuses on both sides.

use std::vec::Vec;

use bytes::Bytes;

use super::{
    bench::Bench,
    sides::{BUFFER, LIMITS, RESET, Side, connected, connected_with},
};
use crate::{
    ddp::{Msn, Stag, TaggedOffset},
    mpa::{Encoder, Slab},
    ndk::{AdapterConfig, Data, DisconnectReason, MrFlags, NtStatus, OpFlags, ReadLimit, Sge},
    rdmap::{ReadRequest, SendKind, read_request_header, read_response_header, send_header},
};

/// Asserts the outcome on both sides of an error of `active` that `passive` detects.
fn assert_terminated(bench: &mut Bench, active: &Side, passive: &Side, code: u32) {
    bench.settle();
    assert_eq!(
        active.log.take(),
        [("disconnect event", NtStatus(0x3_0000 | code))],
        "the peer's Terminate"
    );
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(code))], "detected here");
    assert_eq!(passive.qp.stats().terminates_out, 1);
    assert_eq!(active.qp.stats().terminates_in, 1);
    assert!(!active.qp.is_connected() && !passive.qp.is_connected());
    assert_eq!(bench.connections(), 0, "closed by FINs");
    for side in [active, passive] {
        assert_eq!(side.adapter.counters().connection_error, 1);
    }
}

/// Asserts that the memory of `side` is unchanged.
fn assert_untouched(side: &Side) {
    assert!(side.content(0, BUFFER).iter().all(|byte| *byte == 0));
}

// NDK-ERR-1, -2, RDM-8.1.1-1, -2, RDM-7.1-3: invalid writes. The write is large, so that the Terminate arrives while it
// is in flight; the responder's receive is CANCELLED.
#[test]
fn remote_write_violations() {
    type Change = fn(&Side, &mut Sge);
    let cases: [(u32, Change); 6] = [
        (0x1100, |_, target| target.token ^= 1),
        (0x1100, |_, target| target.token ^= 0x4000_0000),
        (0x1101, |_, target| target.address += BUFFER as u64),
        (0x1101, |_, target| target.address -= 1),
        (0x1103, |_, target| target.address = u64::MAX - 5),
        (0x1100, |side, target| {
            let mr = side.pd.create_mr(false).unwrap();
            mr.register(&side.buffer, 0, BUFFER, MrFlags::ALLOW_REMOTE_READ).unwrap();
            target.token = mr.remote_token();
        }),
    ];
    // When the Terminate arrives, the request after the failed one has not begun, or is sent and not acknowledged.
    let paths = |case| [(64 * 1024, false), (1 << 20, true)].map(|path| (case, path));
    for ((code, change), path) in cases.into_iter().flat_map(paths) {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        (bench.window, bench.hold_acks) = path;
        passive.receive(1, 0, 10);
        active.fill(0, 300_000, 1);
        let mut target = passive.sge(0, 300_000);
        change(&passive, &mut target);
        let sge = active.sge(0, 300_000);
        let data = Data::Registered(&[sge]);
        active.qp.write(2, data, target.address, target.token, OpFlags::empty()).unwrap();
        active.qp.send(3, Data::Registered(&[]), OpFlags::SILENT_SUCCESS).unwrap();
        assert_terminated(&mut bench, &active, &passive, code);
        let results = active.poll();
        let outcomes: Vec<_> =
            results.iter().map(|result| (result.request_context, result.status)).collect();
        assert_eq!(outcomes, [(2, NtStatus::ACCESS_VIOLATION), (3, NtStatus::CANCELLED)]);
        assert_eq!(results[0].provider_error_code, code, "NDK-RES-3");
        assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);
        assert_untouched(&passive);
    }
}

// RDM-8.1.1-1: a region of another protection domain.
#[test]
fn foreign_protection_domain() {
    for is_read in [false, true] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let pd = passive.adapter.create_pd().unwrap();
        let mr = pd.create_mr(false).unwrap();
        mr.register(&passive.buffer, 0, BUFFER, super::sides::ALL_RIGHTS).unwrap();
        let (address, token) = (passive.buffer.address(), mr.remote_token());
        let sge = active.sge(0, 300_000);
        let code = if is_read {
            active.qp.read(2, &[sge], address, token, OpFlags::empty()).unwrap();
            0x0103
        } else {
            active.qp.write(2, Data::Registered(&[sge]), address, token, OpFlags::empty()).unwrap();
            0x1102
        };
        assert_terminated(&mut bench, &active, &passive, code);
        assert_eq!(active.outcomes(), [(2, NtStatus::ACCESS_VIOLATION)]);
        assert_untouched(&passive);
    }
}

// RDM-7.2-3, RDM-7.1-4: invalid reads, each with its code.
#[test]
pub(super) fn remote_read_violations() {
    type Change = fn(&Side, &mut Sge);
    let cases: [(u32, Change); 4] = [
        (0x0100, |_, source| source.token ^= 1),
        (0x0101, |_, source| source.address += BUFFER as u64 - 99),
        (0x0104, |_, source| source.address = u64::MAX - 5),
        (0x0102, |side, source| {
            let mr = side.pd.create_mr(false).unwrap();
            mr.register(&side.buffer, 0, BUFFER, MrFlags::ALLOW_REMOTE_WRITE).unwrap();
            source.token = mr.remote_token();
        }),
    ];
    for (code, change) in cases {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let mut source = passive.sge(0, 100);
        let sink = active.sge(0, 100);
        active.qp.read(1, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
        change(&passive, &mut source);
        active.qp.read(2, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
        active.qp.read(3, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
        assert_terminated(&mut bench, &active, &passive, code);
        let outcomes = active.outcomes();
        // The Terminate may overtake the first response, and abandons unsent data.
        assert!(matches!(outcomes[0], (1, NtStatus::SUCCESS | NtStatus::CANCELLED)));
        assert_eq!(outcomes[1..], [(2, NtStatus::ACCESS_VIOLATION), (3, NtStatus::CANCELLED)]);
    }
}

// RDM-5.2.1-6: an empty read or write is valid at any address.
#[test]
pub(super) fn empty_accesses_are_not_checked() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    active.qp.read(1, &[], 0xdead_0000, 0x1234_5678, OpFlags::empty()).unwrap();
    active.qp.write(2, Data::Registered(&[]), u64::MAX, 0x1234_5678, OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS), (2, NtStatus::SUCCESS)]);
    assert!(passive.qp.is_connected());
}

// NDK-ERR-3, -5, RDM-5.3-2: a receive that is too short.
#[test]
pub(super) fn receive_too_short() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    passive.receive(1, 0, 1023);
    passive.receive(2, 0, 1023);
    active.fill(0, 1024, 7);
    active.send(3, 0, 1024);
    assert_terminated(&mut bench, &active, &passive, 0x1205);
    assert_eq!(active.outcomes(), [(3, NtStatus::SUCCESS)], "iWARP senders see SUCCESS");
    let outcomes = [(1, NtStatus::BUFFER_OVERFLOW), (2, NtStatus::CANCELLED)];
    assert_eq!(passive.outcomes(), outcomes);
    assert_untouched(&passive);
}

// NDK-ERR-4: no receive is posted; an incomplete send fails with IO_TIMEOUT.
#[test]
pub(super) fn no_receive_posted() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    active.send(1, 0, 300_000);
    assert_terminated(&mut bench, &active, &passive, 0x1202);
    assert_eq!(active.outcomes(), [(1, NtStatus::IO_TIMEOUT)]);
    assert_eq!(passive.outcomes(), []);
}

// NDK-RI-2, RDM-5.3-5: tokens that cannot be invalidated.
#[test]
pub(super) fn invalidation_refused() {
    for (is_known, code) in [(false, 0x0209), (true, 0x0109)] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        passive.receive(1, 0, 10);
        let token = if is_known { passive.mr.remote_token() } else { 0x0012_3456 };
        let data = Data::Registered(&[]);
        active.qp.send_and_invalidate(2, data, token, OpFlags::empty()).unwrap();
        assert_terminated(&mut bench, &active, &passive, code);
        assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);
    }
}

// NDK-MEM-17, NDK-WR-5: invalid local entries fail the request, and the connection ends.
#[test]
pub(super) fn local_protection() {
    type Post = fn(&Side, &Side, Sge);
    let posts: [Post; 3] = [
        |side, _, sge| side.qp.send(1, Data::Registered(&[sge]), OpFlags::empty()).unwrap(),
        |side, other, sge| {
            let target = other.sge(0, 10);
            let data = Data::Registered(&[sge]);
            side.qp.write(1, data, target.address, target.token, OpFlags::empty()).unwrap();
        },
        |side, other, sge| {
            let source = other.sge(0, 10);
            side.qp.read(1, &[sge], source.address, source.token, OpFlags::empty()).unwrap();
        },
    ];
    for post in posts {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let mut sge = active.sge(0, 10);
        sge.token ^= 0x100;
        post(&active, &passive, sge);
        active.qp.send(2, Data::Registered(&[]), OpFlags::empty()).unwrap();
        bench.settle();
        let outcomes = [(1, NtStatus::ACCESS_VIOLATION), (2, NtStatus::CANCELLED)];
        assert_eq!(active.outcomes(), outcomes);
        assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x3_0000))]);
        // NDK-DISC-7: differs from the value of an orderly close.
        let own = NtStatus(DisconnectReason::LOCAL.0);
        assert_eq!(active.log.take(), [("disconnect event", own)]);
        assert_eq!((active.qp.stats().terminates_out, passive.qp.stats().terminates_in), (1, 1));
    }
}

// NDK-MEM-17: a read's sink, or a receive, without local write.
#[test]
pub(super) fn sink_without_local_write() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let mr = passive.pd.create_mr(false).unwrap();
    mr.register(&passive.buffer, 0, 100, MrFlags::ALLOW_REMOTE_READ).unwrap();
    let sge = Sge { token: mr.local_token(), ..passive.sge(0, 100) };
    passive.qp.receive(1, &[sge]).unwrap();
    active.send(2, 0, 100);
    assert_terminated(&mut bench, &active, &passive, 0x1000);
    assert_eq!(passive.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
    assert_untouched(&passive);
    // A read fails before its request is sent.
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let mr = active.pd.create_mr(false).unwrap();
    mr.register(&active.buffer, 0, 100, MrFlags::ALLOW_REMOTE_READ).unwrap();
    let sink = Sge { token: mr.local_token(), ..active.sge(0, 100) };
    let source = passive.sge(0, 100);
    active.qp.read(1, &[sink], source.address, source.token, OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
    assert_eq!(passive.qp.stats().read_responses, 0);
    assert!(!passive.qp.is_connected());
}

// MPA-8-5, -6: corruption is detected before any data is placed; the Terminate contains 2/0/02.
#[test]
fn damaged_fpdu() {
    for at in [2, 20, 300, 1443, 1446] {
        let mut bench = Bench::new(at);
        let (active, passive) = connected(&mut bench);
        passive.receive(1, 0, 5000);
        active.fill(0, 5000, 1);
        // Request, RTR, then the send.
        let start = 20 + 4 + 5 + 20;
        bench.corrupt_at = Some(start + at);
        active.send(2, 0, 5000);
        assert_terminated(&mut bench, &active, &passive, 0x2002);
        assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)]);
        assert_untouched(&passive);
    }
}

pub(super) fn fpdu(header: &[u8], payload: &'static [u8]) -> Vec<u8> {
    let payload = [Bytes::from_static(payload)];
    let mut fpdu: Vec<Bytes> = Vec::new();
    Encoder::new(true, false).encode(header, &payload, &mut Slab::new(), &mut fpdu);
    fpdu.concat()
}

fn read_request(msn: u32, side: &Side, octets: u32) -> Vec<u8> {
    let source = side.sge(0, 1);
    let request = ReadRequest {
        sink_stag: Stag(0x0707_0707),
        sink_offset: TaggedOffset(0),
        octets,
        source_stag: Stag(source.token),
        source_offset: TaggedOffset(source.address),
    };
    fpdu(&read_request_header(Msn(msn), &request), &[])
}

// RDM-6.1-3, RDM-7.2-1, DDP-7.1-1: a peer that violates the protocol.
#[test]
fn protocol_violations() {
    type Make = fn(&Side) -> Vec<u8>;
    let cases: [(u32, Make); 7] = [
        // A message number, and an offset, out of order.
        (0x1203, |_| fpdu(&send_header(true, SendKind::Plain, Msn(7), 0), b"x")),
        (0x1204, |_| fpdu(&send_header(true, SendKind::Plain, Msn(1), 4), b"x")),
        // A response without a request.
        (0x0206, |_| fpdu(&read_response_header(true, Stag(5), TaggedOffset(0)), b"x")),
        // Opcode 15, and RDMAP version 2.
        (0x0206, |_| fpdu(&[&[0x41, 0x4f][..], &[0; 16]].concat(), b"")),
        (0x0205, |_| fpdu(&[&[0x41, 0x83][..], &[0; 16]].concat(), b"")),
        // DDP version 2.
        (0x1206, |_| fpdu(&[&[0x42, 0x43][..], &[0; 16]].concat(), b"")),
        // An FPDU too short for any header.
        (0x2003, |_| fpdu(&[0x41, 0x43], b"")),
    ];
    for (code, make) in cases {
        let mut bench = Bench::new(u64::from(code));
        let (active, passive) = connected(&mut bench);
        passive.receive(1, 0, 10);
        let bytes = make(&passive);
        bench.inject(0, &bytes);
        assert_terminated(&mut bench, &active, &passive, code);
        assert_eq!(passive.outcomes(), [(1, NtStatus::CANCELLED)], "{code:#x}");
    }
}

// RDM-6.1-3, RDM-5.2.2-2: one Read over the agreed limit, which need not be a power of two.
#[test]
fn too_many_inbound_reads() {
    for allowed in [1, 3, 4, 5] {
        let mut bench = Bench::new(1);
        let few = ReadLimit { inbound: allowed, outbound: 1 };
        let (active, passive) = connected_with(&mut bench, LIMITS, few);
        bench.window = 0; // no response can be sent
        let requests: Vec<u8> =
            (1..=allowed).flat_map(|msn| read_request(msn, &passive, 1)).collect();
        bench.inject(0, &requests);
        bench.settle();
        assert!(passive.qp.is_connected(), "{allowed} are served");
        bench.inject(0, &read_request(allowed + 1, &passive, 1));
        bench.settle();
        assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x0207))]);
        assert_eq!(active.qp.stats().terminates_in, 1);
    }
}

// RDM-8.1.1-4: a right revoked while a read is served terminates the stream; the memory stays protected.
#[test]
fn revoked_before_the_response() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let window = bench.window;
    bench.window = 0;
    bench.inject(0, &read_request(1, &passive, 10));
    bench.settle();
    assert_eq!(passive.mr.deregister(|| {}), NtStatus::SUCCESS);
    bench.window = window;
    passive.qp.send(1, Data::Registered(&[]), OpFlags::empty()).unwrap();
    active.receive(1, 0, 1);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(0x0100))]);
    assert_eq!(active.qp.stats().terminates_in, 1);
}

// A Terminate that is not followed by the peer's FIN: the connection is reset after the time limit.
#[test]
fn terminate_time_limit() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let mut sge = active.sge(0, 10);
    sge.token ^= 0x100;
    bench.is_cut = true;
    active.qp.send(1, Data::Registered(&[sge]), OpFlags::empty()).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::ACCESS_VIOLATION)]);
    assert_eq!(bench.connections(), 1);
    bench.advance(AdapterConfig::default().terminate_timeout);
    assert_eq!(bench.connections(), 0);
    assert_eq!(passive.log.take(), [("disconnect event", RESET)]);
}

// A peer's input never panics: ULPDUs of random bytes in valid FPDUs, and random bytes instead of FPDUs.
#[test]
fn noise() {
    for seed in 0..300 {
        let config = AdapterConfig { rfc7306: seed % 2 == 0, ..AdapterConfig::default() };
        let mut bench = Bench::with(seed, config);
        let (_active, passive) = connected(&mut bench);
        let mut random = oorandom::Rand32::new(seed);
        passive.receive(1, 0, 1000);
        passive.fill(0, 1000, 1);
        for _ in 0..20 {
            let mut header: Vec<u8> =
                (0..random.rand_range(1..80)).map(|_| random.rand_u32() as u8).collect();
            // Mostly with valid versions and small numbers, to pass the first checks.
            if random.rand_range(0..10) > 0 {
                header[0] = header[0] & 0xc0 | 1;
                header.iter_mut().skip(1).take(1).for_each(|octet| *octet = *octet & 0x0f | 0x40);
                header.iter_mut().skip(2).filter(|octet| **octet > 30).for_each(|octet| *octet = 0);
            }
            let bytes = if seed % 3 == 0 { header } else { fpdu(&header, b"") };
            bench.inject(0, &bytes);
        }
        bench.settle();
        // Either no error has occurred yet, or exactly one side has reported it.
        let stats = passive.qp.stats();
        let terminates = stats.terminates_out + stats.terminates_in;
        assert_eq!(terminates, u64::from(!passive.qp.is_connected()), "seed {seed}");
        assert_eq!(bench.connections(), usize::from(passive.qp.is_connected()));
    }
}
