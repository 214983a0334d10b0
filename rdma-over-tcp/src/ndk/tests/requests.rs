//! Work requests: flags, entries, limits, silent success; and memory scenarios of the NetworkDirect SDK.

use std::{vec, vec::Vec};

use super::{
    bench::Bench,
    sides::{BUFFER, LIMITS, Side, connect, connected, pattern},
    taps,
};
use crate::{
    error::WireError,
    ndk::{
        AdapterConfig, Data, DisconnectReason, MrFlags, NtStatus, OpFlags, OperationType, QpLimits,
        Sge,
    },
};

const NONE: OpFlags = OpFlags::empty();
/// Size of a Write that is still in flight when a Terminate arrives, bytes.
const LARGE: usize = 300_000;

/// Asserts that the connection ended by an error that `passive` detected.
fn assert_ended(bench: &mut Bench, active: &Side, error: WireError) {
    bench.settle();
    let reason = DisconnectReason::terminated(error.number()).0;
    assert_eq!(active.log.take(), [("disconnect event", NtStatus(reason))]);
}

// NDK-SGE-2, NDK-INL-1: inline entries may refer to any memory, in any number, with any token. The consumer may reuse
// the memory when the post returns. Only their bytes are limited.
#[test]
pub(super) fn inline_entries() {
    let mut bench = Bench::new(1);
    let limits =
        QpLimits { max_initiator_request_sge: 1, inline_data_size: 100, ..QpLimits::default() };
    let mut active = Side::with(&bench, 0, 4096, limits);
    let mut passive = Side::new(&bench, 1);
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    active.fill(0, 4096, 1);
    // Memory without a registration.
    let own = active.adapter.allocate(64).unwrap();
    own.write_at(0, &[9; 64]);
    let mut parts: Vec<_> =
        (0..36).map(|at| active.buffer.part(at * 7..at * 7 + 1).unwrap()).collect();
    parts.extend([own.part(0..64).unwrap(), own.part(3..3).unwrap()]);
    passive.receive(1, 0, 100);
    active.qp.send(1, Data::InlineSges(&parts), OpFlags::INLINE).unwrap();
    let target = passive.sge(1000, 100);
    let (address, token) = (target.address, target.token);
    active.qp.write(2, Data::InlineSges(&parts), address, token, NONE).unwrap();
    active.buffer.write_at(0, &[0; 4096]);
    own.write_at(0, &[0; 64]);
    parts.push(own.part(0..1).unwrap());
    let refused = Err(NtStatus::INVALID_PARAMETER);
    assert_eq!(active.qp.send(3, Data::InlineSges(&parts), OpFlags::INLINE), refused);
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS), (2, NtStatus::SUCCESS)]);
    assert_eq!(passive.outcomes(), [(1, NtStatus::SUCCESS)]);
    let sent: Vec<u8> = pattern(4096, 1).into_iter().step_by(7).take(36).collect();
    let expected = [&sent[..], &[9; 64]].concat();
    assert!(passive.content(0, 100) == expected && passive.content(1000, 100) == expected);
}

/// Posts a request of each type with these flags.
fn post(
    (active, passive): (&Side, &Side),
    operation: OperationType,
    flags: OpFlags,
) -> Result<(), NtStatus> {
    let fast = active.pd.create_mr(true).unwrap();
    fast.initialize_fast_register(1, true).unwrap();
    let window = active.pd.create_mw().unwrap();
    let sge = active.sge(0, 100);
    let other = passive.sge(0, 100);
    let registered = Data::Registered(&[sge]);
    let inline = Data::Inline(&[b"inline"]);
    let data = if flags.contains(OpFlags::INLINE) { inline } else { registered };
    let fast_register = |flags| active.qp.fast_register(0, &fast, &active.buffer, 0, 100, 0, flags);
    match operation {
        OperationType::Send => {
            passive.receive(0, 4096, 100);
            active.qp.send(1, data, flags)
        }
        OperationType::Write => active.qp.write(1, data, other.address, other.token, flags),
        OperationType::Read => {
            // The token of its first sink may be invalidated.
            let token = fast_register(OpFlags::ALLOW_LOCAL_WRITE)?;
            let sink = Sge { address: 0, length: 100, token };
            active.qp.read(1, &[sink], other.address, other.token, flags)
        }
        OperationType::Bind => {
            active.qp.bind(1, &active.mr, &window, sge.address, 100, flags).map(drop)
        }
        OperationType::FastRegister => {
            active.qp.fast_register(1, &fast, &active.buffer, 0, 100, 0, flags).map(drop)
        }
        _ => {
            fast_register(NONE)?;
            active.qp.invalidate(1, &fast, flags)
        }
    }
}

// NDK-FLG-5, NDK-SIL-1, NDK-DEF-2: every flag alone, and all legal ones together, at every request, on a connection.
// Legal requests are executed, silently if requested. The rest are rejected and leave no completion.
#[test]
pub(super) fn every_flag_at_every_request() {
    use OperationType::{Bind, FastRegister, Invalidate, Read, Send, Write};
    let mut bench = Bench::new(1);
    let limits = QpLimits { max_initiator_request_sge: 8, ..QpLimits::default() };
    let mut active = Side::with(&bench, 0, BUFFER, limits);
    let mut passive = Side::new(&bench, 1);
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    for operation in [Send, Write, Read, Bind, FastRegister, Invalidate] {
        let legal = OpFlags::legal(operation).difference(OpFlags::ALLOW_REMOTE_ATOMIC);
        let singles = (0..16).map(|bit| OpFlags::from_bits_retain(1 << bit));
        let without_silence = legal.difference(OpFlags::SILENT_SUCCESS);
        for flags in singles.chain([
            NONE,
            legal,
            without_silence,
            OpFlags::from_bits_retain(0x30),
            OpFlags::from_bits_retain(0x20),
        ]) {
            let is_legal = legal.contains(flags) && flags.bits() & 0x30 != 0x20;
            let posted = post((&active, &passive), operation, flags);
            let expected = if is_legal { Ok(()) } else { Err(NtStatus::INVALID_PARAMETER) };
            assert_eq!(posted, expected, "{operation:?} {flags:?}");
            // This post sends the deferred requests.
            active.qp.send(2, Data::Registered(&[]), NONE).unwrap();
            passive.receive(3, 8192, 100);
            bench.settle();
            let statuses = active.outcomes();
            let own = statuses.iter().filter(|(context, _)| *context == 1).count();
            let is_silent = flags.contains(OpFlags::SILENT_SUCCESS);
            assert_eq!(own, usize::from(is_legal && !is_silent), "{operation:?} {flags:?}");
            assert!(statuses.iter().all(|(_, status)| *status == NtStatus::SUCCESS));
            assert!(passive.outcomes().iter().all(|(_, status)| *status == NtStatus::SUCCESS));
        }
    }
}

// NDK-FLG-1, NDK-MEM-11: the peer access that each composite grants, at regions, fast registrations and windows.
#[test]
pub(super) fn composite_flags_grant_documented_access() {
    let (read, write) = (0x8, 0x30);
    let cases: [(u32, u32, bool, bool); 5] = [
        (0x0, 0x0, false, false),
        (0x1, 0x10, false, false),
        (0x2, read, true, false),
        (0x5, write, false, true),
        (0x7, read | write, true, true),
    ];
    for (mr_flags, op_flags, may_read, may_write) in cases {
        for kind in 0..3 {
            for (is_read, is_allowed) in [(true, may_read), (false, may_write)] {
                let mut bench = Bench::new(1);
                let (active, passive) = connected(&mut bench);
                let address = passive.buffer.address();
                let flags = OpFlags::from_bits_retain(op_flags);
                let mr = passive.pd.create_mr(kind == 1).unwrap();
                let token = match kind {
                    0 => {
                        mr.register(
                            &passive.buffer,
                            0,
                            BUFFER,
                            MrFlags::from_bits_retain(mr_flags),
                        )
                        .unwrap();
                        mr.remote_token()
                    }
                    1 => {
                        mr.initialize_fast_register(256, true).unwrap();
                        let buffer = &passive.buffer;
                        passive.qp.fast_register(1, &mr, buffer, 0, LARGE, address, flags).unwrap()
                    }
                    _ => {
                        let mw = passive.pd.create_mw().unwrap();
                        passive.qp.bind(1, &passive.mr, &mw, address, LARGE as u64, flags).unwrap()
                    }
                };
                bench.settle();
                passive.poll();
                let own = [active.sge(0, LARGE)];
                match is_read {
                    true => active.qp.read(1, &own, address, token, NONE).unwrap(),
                    false => {
                        let data = Data::Registered(&own);
                        active.qp.write(1, data, address, token, NONE).unwrap();
                    }
                }
                bench.settle();
                let status = match is_allowed {
                    true => NtStatus::SUCCESS,
                    false => NtStatus::ACCESS_VIOLATION,
                };
                assert_eq!(active.outcomes(), [(1, status)], "{op_flags:#x} {kind} {is_read}");
            }
        }
    }
}

// NDK-SGE-4 and the adapter's limits. Entries of reads have their own limit, which overrides that of initiator
// requests. Entries of receives and bytes of any request have theirs. A request at the limit is executed.
#[test]
fn limits_of_entries() {
    let config = AdapterConfig::default();
    let mut limits = config.limits;
    (limits.send_sges_max, limits.read_sges_max, limits.receive_sges_max) = (4, 2, 3);
    limits.transfer_bytes_max = 5000;
    let mut bench = Bench::with(1, AdapterConfig { limits, ..config });
    let most = QpLimits {
        max_initiator_request_sge: 4,
        max_receive_request_sge: 3,
        ..QpLimits::default()
    };
    let mut active = Side::with(&bench, 0, 65_536, most);
    let mut passive = Side::with(&bench, 1, 65_536, most);
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    let own: Vec<Sge> = (0..5).map(|at| active.sge(at * 100, 10)).collect();
    let far: Vec<Sge> = (0..5).map(|at| passive.sge(at * 100, 10)).collect();
    let target = far[0];
    let read = |sges: &[Sge]| active.qp.read(1, sges, target.address, target.token, NONE);
    let overrun = Err(NtStatus::DATA_OVERRUN);
    assert_eq!(read(&own[..3]), overrun);
    assert_eq!(active.qp.send(1, Data::Registered(&own), NONE), overrun);
    let (address, token) = (target.address, target.token);
    assert_eq!(active.qp.write(1, Data::Registered(&own), address, token, NONE), overrun);
    assert_eq!(passive.qp.receive(1, &far[..4]), overrun);
    let overflow = Err(NtStatus::BUFFER_OVERFLOW);
    let (half, more) = (active.sge(0, 2500), active.sge(0, 2501));
    assert_eq!(read(&[half, more]), overflow);
    assert_eq!(active.qp.send(1, Data::Registered(&[half, more]), NONE), overflow);
    let [long, longer] = [2500, 2501].map(|length| passive.sge(10_000, length));
    assert_eq!(passive.qp.receive(1, &[long, longer]), overflow);
    passive.qp.receive(2, &[long, long]).unwrap();
    passive.qp.receive(3, &far[..3]).unwrap();
    assert_eq!(read(&[half, half]), Ok(()));
    active.qp.send(2, Data::Registered(&[half, half]), NONE).unwrap();
    active.qp.send(3, Data::Registered(&[own[0], own[1], own[2], active.sge(0, 0)]), NONE).unwrap();
    bench.settle();
    let succeeded = |contexts: &[u64]| -> Vec<_> {
        contexts.iter().map(|context| (*context, NtStatus::SUCCESS)).collect()
    };
    assert_eq!(active.outcomes(), succeeded(&[1, 2, 3]));
    assert_eq!(passive.outcomes(), succeeded(&[2, 3]));
}

// NDK-SIL-1: a series of silent requests of which one fails. The failure completes, and so does each later request,
// which is flushed.
#[test]
pub(super) fn silent_requests_with_a_failure() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let bad = Sge { token: 5, ..active.sge(0, 10) };
    for n in 0..6 {
        passive.receive(n, n as usize * 10, 10);
        let sge = if n == 3 { bad } else { active.sge(0, 10) };
        let flags = OpFlags::SILENT_SUCCESS;
        active.qp.send(n, Data::Registered(&[sge]), flags).unwrap();
        bench.settle();
        if n < 3 {
            assert_eq!(active.outcomes(), []);
        } else {
            break;
        }
    }
    assert_eq!(active.outcomes(), [(3, NtStatus::ACCESS_VIOLATION)]);
    let mut bench = Bench::new(1);
    let (active, _passive) = connected(&mut bench);
    for n in 0..6 {
        let sge = if n == 3 { bad } else { active.sge(0, 0) };
        let deferred = if n < 5 { OpFlags::DEFER } else { NONE };
        let flags = OpFlags::SILENT_SUCCESS | deferred;
        let to = (active.buffer.address(), 0);
        active.qp.write(n, Data::Registered(&[sge]), to.0, to.1, flags).unwrap();
    }
    bench.settle();
    let flushed = NtStatus::CANCELLED;
    let outcomes = [(3, NtStatus::ACCESS_VIOLATION), (4, flushed), (5, flushed)];
    assert_eq!(active.outcomes(), outcomes);
}

/// Binds a window of `side` to `length` bytes of its buffer.
fn window(side: &Side, length: usize, rights: OpFlags) -> Sge {
    let mw = side.pd.create_mw().unwrap();
    let address = side.buffer.address();
    let token = side.qp.bind(50, &side.mr, &mw, address, length as u64, rights).unwrap();
    Sge { address, length: length as u32, token }
}

// NdInvalidRead, NdInvalidWrite, NdOverRead, NdOverWrite, NdWriteViolation (NDK-ERR-2, NDK-MEM-13). The initiator's
// request fails with ACCESS_VIOLATION unless it has already completed. The connection ends, the responder's receive is
// CANCELLED, and no byte is placed outside the window.
#[test]
pub(super) fn window_violations_are_rejected() {
    let both = OpFlags::ALLOW_REMOTE_READ | OpFlags::ALLOW_REMOTE_WRITE;
    let cases = [
        ("NdInvalidRead", both, true, LARGE, true),
        ("NdInvalidWrite", both, false, LARGE, true),
        ("NdOverRead", both, true, LARGE + 1, false),
        ("NdOverWrite", both, false, LARGE + 1, false),
        ("NdWriteViolation", OpFlags::ALLOW_REMOTE_READ, false, LARGE, false),
    ];
    for (case, rights, is_read, length, invalidates) in cases {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let target = window(&passive, LARGE, rights);
        // The peer may use the window once the bind has completed.
        bench.settle();
        passive.receive(1, 1 << 20, 100);
        if invalidates {
            passive.receive(2, 1 << 20, 100);
            let data = Data::Inline(&[]);
            active.qp.send_and_invalidate(0, data, target.token, NONE).unwrap();
        }
        bench.settle();
        active.poll();
        passive.poll();
        active.fill(0, length, 1);
        let own = [active.sge(0, length)];
        let (address, token) = (target.address, target.token);
        match is_read {
            true => active.qp.read(3, &own, address, token, NONE).unwrap(),
            false => {
                active.qp.write(3, Data::Registered(&own), address, token, NONE).unwrap();
            }
        }
        bench.settle();
        // Only the last byte of that Write is invalid. Its tail was copied aside, and it completes when TCP has it. On
        // TAPs TCP's window is smaller, and the Terminate arrives while it is in flight.
        let status = match case {
            "NdOverWrite" if taps::chosen().is_none() => NtStatus::SUCCESS,
            _ => NtStatus::ACCESS_VIOLATION,
        };
        assert_eq!(active.outcomes(), [(3, status)], "{case}");
        assert!(!active.qp.is_connected() && !passive.qp.is_connected());
        let victim = passive.outcomes();
        assert_eq!(victim.last().map(|(_, status)| *status), Some(NtStatus::CANCELLED), "{case}");
        let placed = passive.content(0, BUFFER);
        if case == "NdOverWrite" {
            // Segments before the one that crosses the end are within the window.
            assert!(placed[LARGE..].iter().all(|byte| *byte == 0), "after the window");
        } else {
            assert!(placed.iter().all(|byte| *byte == 0), "{case}");
        }
    }
}

// NdMRDeregister: busy while a window is bound, then allowed. NdMRInvalidBuffer (NDK-MEM-18): registering zero bytes is
// INVALID_PARAMETER.
#[test]
pub(super) fn deregistration_and_empty_buffers() {
    let mut bench = Bench::new(1);
    let (_active, passive) = connected(&mut bench);
    let mw = passive.pd.create_mw().unwrap();
    let (address, read) = (passive.buffer.address(), OpFlags::ALLOW_REMOTE_READ);
    passive.qp.bind(1, &passive.mr, &mw, address, 100, read).unwrap();
    bench.settle();
    assert_eq!(passive.mr.deregister(|| {}), NtStatus::DEVICE_BUSY);
    passive.qp.invalidate(2, &mw, NONE).unwrap();
    bench.settle();
    assert_eq!(passive.outcomes(), [(1, NtStatus::SUCCESS), (2, NtStatus::SUCCESS)]);
    assert_eq!(passive.mr.deregister(|| {}), NtStatus::SUCCESS);
    assert_eq!(passive.mr.deregister(|| {}), NtStatus::INVALID_PARAMETER);
    let invalid = NtStatus::INVALID_PARAMETER;
    let mr = passive.pd.create_mr(false).unwrap();
    assert_eq!(mr.register(&passive.buffer, 0, 0, MrFlags::empty()), Err(invalid));
    assert_eq!(mr.register(&passive.buffer, BUFFER, 1, MrFlags::empty()), Err(invalid));
    assert_eq!(mr.register(&passive.buffer, 1, usize::MAX, MrFlags::empty()), Err(invalid));
    assert_eq!(mr.register_chain(&[], 1, MrFlags::empty()), Err(invalid));
    assert_eq!(passive.adapter.allocate(0).map(drop), Err(invalid));
    assert_eq!(mr.local_token(), 0);
}

// NdQpMax, NdLargeQPDepth: a queue pair at every advertised limit is created and used; exceeding any limit by one is
// rejected.
#[test]
pub(super) fn queue_pairs_at_the_limits() {
    let mut bench = Bench::new(1);
    let info = bench.nodes[0].adapter.info();
    let most = QpLimits {
        receive_queue_depth: info.max_receive_queue_depth,
        initiator_queue_depth: info.max_initiator_queue_depth,
        max_receive_request_sge: info.max_receive_request_sge,
        max_initiator_request_sge: info.max_initiator_request_sge,
        inline_data_size: info.max_inline_data_size,
    };
    let mut active = Side::with(&bench, 0, BUFFER, most);
    let mut passive = Side::with(&bench, 1, BUFFER, most);
    for at in 0..5 {
        let more = |value: u32, place| value + u32::from(at == place);
        let limits = QpLimits {
            receive_queue_depth: more(most.receive_queue_depth, 0),
            initiator_queue_depth: more(most.initiator_queue_depth, 1),
            max_receive_request_sge: more(most.max_receive_request_sge, 2),
            max_initiator_request_sge: more(most.max_initiator_request_sge, 3),
            inline_data_size: more(most.inline_data_size, 4),
        };
        let refused = active.pd.create_qp(&active.cq, &active.cq, 0, limits).map(drop);
        assert_eq!(refused, Err(NtStatus::INVALID_PARAMETER), "{at}");
    }
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    let count = info.max_receive_request_sge as usize;
    let sges = |side: &Side| -> Vec<Sge> { (0..count).map(|n| side.sge(n * 512, 100)).collect() };
    for n in 0..u64::from(most.receive_queue_depth) {
        passive.qp.receive(n, &sges(&passive)).unwrap();
    }
    assert_eq!(passive.qp.receive(0, &[]), Err(NtStatus::NO_MORE_ENTRIES));
    active.fill(0, BUFFER, 4);
    active.qp.send(1, Data::Registered(&sges(&active)), NONE).unwrap();
    let inline = vec![7; info.max_inline_data_size as usize];
    active.qp.send(2, Data::Inline(&[&inline]), NONE).unwrap();
    bench.settle();
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS), (2, NtStatus::SUCCESS)]);
    assert_eq!(passive.outcomes(), [(0, NtStatus::SUCCESS), (1, NtStatus::SUCCESS)]);
}

// ndmw: a large window is read at both ends, written in blocks, and then filled from the start by small Writes.
#[test]
fn large_window_is_used() {
    post_within_window(64 << 20);
}

// The same, with a size that suits frames.
#[test]
pub(super) fn window_of_four_mebibytes() {
    post_within_window(4 << 20);
}

fn post_within_window(length: usize) {
    let (half, block) = (length / 2, length / 4);
    let mut bench = Bench::new(1);
    let mut active = Side::with(&bench, 0, length, QpLimits::default());
    let mut passive = Side::with(&bench, 1, length, QpLimits::default());
    connect(&mut bench, &mut active, &mut passive, LIMITS, LIMITS);
    let both = OpFlags::ALLOW_REMOTE_READ | OpFlags::ALLOW_REMOTE_WRITE;
    let target = window(&passive, length, both);
    passive.fill(0, length, 3);
    bench.settle();
    let (address, token) = (target.address, target.token);
    let [first, rest] = [active.sge(0, 1024), active.sge(1024, half - 1024)];
    active.qp.read(1, &[first], address, token, NONE).unwrap();
    active.qp.read(1, &[rest], address + 1024, token, NONE).unwrap();
    bench.settle();
    assert!(active.content(0, half) == passive.content(0, half));
    active.fill(0, length, 7);
    for n in 0..4 {
        let (data, to) = ([active.sge(n * block, block)], address + (n * block) as u64);
        active.qp.write(1, Data::Registered(&data), to, token, NONE).unwrap();
    }
    bench.settle();
    assert!(passive.content(0, length) == pattern(length, 7));
    let small = 256 * 1024;
    active.fill(0, small, 9);
    for n in 0..small / 4 {
        let (data, to) = ([active.sge(n * 4, 4)], address + n as u64 * 4);
        let flags = OpFlags::SILENT_SUCCESS;
        while active.qp.write(2, Data::Registered(&data), to, token, flags).is_err() {
            bench.settle();
        }
    }
    bench.settle();
    let content = passive.content(0, length);
    assert!(content[..small] == pattern(small, 9));
    assert!(content[small..] == pattern(length, 7)[small..], "other bytes are unchanged");
    assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS); 6]);
}

// Observed tokens do not predict the next one: an access with a neighboring value terminates the connection.
#[test]
fn adjacent_token_is_rejected() {
    for step in [1, 0x100_u32.wrapping_neg(), u32::MAX] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let target = passive.sge(0, 10);
        let own = [active.sge(0, 10)];
        let token = target.token.wrapping_add(step);
        active.qp.read(1, &own, target.address, token, NONE).unwrap();
        assert_ended(&mut bench, &active, WireError::ProtectionInvalidStag);
    }
}
