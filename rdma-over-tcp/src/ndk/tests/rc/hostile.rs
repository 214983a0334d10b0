//! Peers that violate the private protocol. Each violation ends the connection with a Terminate.

use super::*;
use crate::{
    ddp::{HeaderOctets, Msn, QueueNumber, Segment, UntaggedSegment},
    error::WireError,
    mpa::{Encoder, Slab},
    rdmap::{
        Acknowledgment, Opcode, SendKind, Syndrome, acknowledgment_header, immediate_header,
        send_header,
    },
};

/// FPDU of `header` and `payload`.
fn fpdu(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = header.to_vec();
    ulpdu.extend_from_slice(payload);
    let (mut encoder, mut slab, mut list) = (Encoder::new(true, false), Slab::new(), Vec::new());
    let fpdu = encoder.begin(&ulpdu, 0, 0, &mut slab, &mut list);
    fpdu.finish();
    slab.flush(&mut list);
    offload_engine::memory::to_vec(list.iter().map(offload_engine::memory::Span::piece))
}

fn acknowledgment(msn: u32, count: u32, syndrome: Syndrome) -> Vec<u8> {
    fpdu(&acknowledgment_header(Msn(msn), &Acknowledgment { count, syndrome }), &[])
}

fn raw(opcode: u8, queue: u32, last: bool) -> HeaderOctets {
    let (ulp, queue) = (0x40 | opcode, QueueNumber(queue));
    let segment = UntaggedSegment { last, ulp, ulp_word: 0, queue, msn: Msn(1), offset: 0 };
    Segment::Untagged(segment).emit()
}

/// Injects bytes from node 1 to a connected end of node 0 that has two Writes outstanding. Returns the end, and the
/// reason of the disconnect event.
fn inject(service: QpService, bytes: &[u8]) -> (End, Vec<Option<EndReason>>) {
    let mut bench = Bench::new(60);
    let mut active = End::of_service(&bench, 0, service);
    let mut passive = End::of_service(&bench, 1, service);
    let server = bench.server;
    connect_at(&mut bench, &mut active, &mut passive, server);
    // The peer's own acknowledgments do not interfere.
    bench.stopped = Some(1);
    active.write(1, (0, 10), passive.remote(0));
    active.write(2, (0, 10), passive.remote(0));
    bench.settle();
    bench.inject(1, bytes);
    bench.settle();
    let reasons = active.ends.take();
    (active, reasons)
}

fn detected(error: WireError) -> Vec<Option<EndReason>> {
    Vec::from([Some(EndReason::Detected(error.number()))])
}

// The first acknowledgment, of the empty Write that starts the stream, precedes the injected ones.

// Counts that are too high or decrease, conditions of messages that were not sent, and malformed acknowledgments.
#[test]
fn invalid_acknowledgments_end_the_connection() {
    let (unspecified, executed) = (WireError::OperationUnspecified, Syndrome::Executed);
    let one = acknowledgment(2, 2, executed);
    let both = |bytes: Vec<u8>| [one.clone(), bytes].concat();
    let all = acknowledgment(2, 3, executed);
    let after_all = |syndrome| [all.clone(), acknowledgment(3, 3, syndrome)].concat();
    let short = raw(14, 4, true);
    let cases = [
        ("too high", acknowledgment(2, 4, executed), unspecified),
        ("far too high", acknowledgment(2, u32::MAX, executed), unspecified),
        ("backwards", both(acknowledgment(3, 1, executed)), unspecified),
        ("not ready without a message", after_all(Syndrome::NotReady), unspecified),
        ("no retries without a message", after_all(Syndrome::Failed(13)), unspecified),
        ("success as a failure", acknowledgment(2, 2, Syndrome::Failed(0)), unspecified),
        ("unknown status", acknowledgment(2, 2, Syndrome::Failed(99)), unspecified),
        ("unknown syndrome", fpdu(&short, &[0, 0, 0, 1, 3, 0, 0, 0]), unspecified),
        ("too short", fpdu(&short, &[0; 7]), WireError::MpaMarker),
        ("too long", fpdu(&short, &[0; 9]), WireError::UntaggedTooLong),
        ("not the last segment", fpdu(&raw(14, 4, false), &[0; 8]), WireError::UntaggedTooLong),
        ("wrong queue", fpdu(&raw(14, 0, true), &[0; 8]), WireError::UntaggedQueue),
        ("repeated number", both(acknowledgment(2, 2, executed)), WireError::UntaggedMsn),
    ];
    for (name, bytes, error) in cases {
        let (active, reasons) = inject(QpService::Rc, &bytes);
        assert_eq!(reasons, detected(error), "{name}");
        assert_eq!(active.state(), QpState::Error, "{name}");
        let failed =
            active.outcomes().iter().filter(|(_, status)| *status == WcStatus::Flushed).count();
        assert!(failed > 0 || name.contains("without a message"), "{name}");
    }
}

// Valid acknowledgments complete the requests, in any number: they allocate nothing and cause no answer.
#[test]
fn floods_of_acknowledgments_are_harmless() {
    let executed = Syndrome::Executed;
    let flood: Vec<u8> =
        (0..2000).flat_map(|n| acknowledgment(2 + n, 2 + n / 1999, executed)).collect();
    let (active, reasons) = inject(QpService::Rc, &flood);
    assert_eq!((active.outcomes(), reasons), (Vec::from(success([1, 2])), Vec::new()));
    assert_eq!(active.state(), QpState::Connected);
}

// Private messages are unexpected on a queue pair of iWARP, regardless of other errors in them, as any unknown opcode
// is.
#[test]
fn private_messages_are_unexpected_on_iwarp() {
    let kind = SendKind::Immediate { data: [1; 4], solicited: true };
    let unexpected = WireError::OperationUnexpectedOpcode;
    for bytes in [
        acknowledgment(1, 1, Syndrome::Executed),
        fpdu(&send_header(true, kind, Msn(1), 0), b"data"),
        fpdu(&raw(14, 7, false), &[]),
        fpdu(&raw(15, 7, false), &[]),
        fpdu(&raw(13, 0, true), &[]),
    ] {
        let (active, reasons) = inject(QpService::Iwarp, &bytes);
        assert_eq!(reasons, detected(unexpected));
        assert_eq!(active.state(), QpState::Error);
    }
    assert!(Opcode::ALL.iter().all(|opcode| opcode.is_private() == (*opcode as u8 > 11)));
}

// The length in the immediate data is that of the Write before it.
#[test]
fn wrong_length_of_a_write_with_immediate_data() {
    let data = *b"imm!\0\0\0\x05";
    let (_, reasons) = inject(QpService::Rc, &fpdu(&immediate_header(false, Msn(1), data), &[]));
    assert_eq!(reasons, detected(WireError::OperationUnspecified));
}
