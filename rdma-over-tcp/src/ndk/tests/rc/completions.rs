//! Completion after execution, immediate data, and requests posted before the connection.

use super::*;
use crate::{rdmap::AtomicOperation, rnic::Urgency};

const SEND: Operation = Operation::Send { invalidate: None };

// A request is not complete while the peer has not executed it, although TCP has acknowledged its data. Messages larger
// than those that are copied are no exception.
#[test]
fn completion_follows_execution() {
    let mut bench = Bench::new(3);
    let (active, passive) = connected(&mut bench);
    bench.window = 4 << 20;
    active.fill(0, 400_000, 9);
    // TCP has acknowledged all, and the peer does not read.
    bench.stopped = Some(1);
    active.write(1, (0, 64), passive.remote(0));
    active.write(2, (0, 400_000), passive.remote(1 << 20));
    bench.settle();
    assert_eq!(active.outcomes(), []);
    bench.stopped = None;
    bench.settle();
    assert_eq!(active.outcomes(), success([1, 2]));
    assert!(passive.content(1 << 20, 400_000) == pattern(400_000, 9));
    // A message that waits for its receive is not executed.
    active.send(3, 0, 100);
    active.write(4, (0, 10), passive.remote(0));
    bench.settle();
    assert_eq!(active.outcomes(), []);
    passive.receive(13, 0, 100);
    bench.settle();
    assert_eq!(passive.outcomes(), success([13]));
    assert_eq!(active.outcomes(), success([3, 4]));
}

// Requests wait for their acknowledgment in the send queue, and count for its depth.
#[test]
pub(super) fn unacknowledged_requests_count_as_posted() {
    let mut bench = Bench::new(4);
    let (active, passive) = connected(&mut bench);
    let room = || active.adapter.with(|rnic, _| rnic.send_queue_room(active.qp));
    let most = room();
    active.send(0, 0, 10);
    bench.settle();
    assert_eq!(room(), most - 1);
    (1..most as u64).for_each(|context| active.send(context, 0, 10));
    let full = active.try_post(999, SEND, &[active.sge(0, 1)], WrFlags::NONE);
    assert_eq!(full, Err(VerbError::QueueFull));
    (0..most as u64 / 2).for_each(|context| passive.receive(context, 0, 10));
    bench.settle();
    assert_eq!(room(), most / 2);
    assert_eq!(active.poll().len(), most / 2);
}

// A request with a completion after many without one is sent by its post, before the few that follow it.
#[test]
fn request_that_is_waited_for_is_sent_by_its_post() {
    let mut bench = Bench::new(5);
    let (active, passive) = connected(&mut bench);
    bench.window = 1 << 20;
    bench.hold_acks = true;
    let access = bench.nodes[0].access().clone();
    let post = |length, flags| {
        let write = Operation::Write { to: passive.remote(0) };
        active.try_post(1, write, &[active.sge(0, length)], flags).unwrap();
        access.urgency.lock().unwrap().take().unwrap()
    };
    // The connection becomes busy.
    for _ in 0..2 {
        post(3000, WrFlags::NONE);
        bench.settle();
    }
    for (silent, urgency) in [(31, Urgency::Soon), (32, Urgency::Now)] {
        (0..silent).for_each(|_| assert_eq!(post(64, WrFlags::SILENT), Urgency::Soon));
        assert_eq!(post(64, WrFlags::NONE), urgency, "after {silent}");
        bench.settle();
    }
    // Each request has a completion: the program polls for all of them.
    (0..64).for_each(|_| assert_eq!(post(64, WrFlags::NONE), Urgency::Soon));
}

// One acknowledgment per receive pass, not per message.
#[test]
fn acknowledgments_are_shared() {
    let mut bench = Bench::new(5);
    let (active, passive) = connected(&mut bench);
    let before = passive.adapter.with(|rnic, _| rnic.counters().fpdu_out);
    for context in 0..200 {
        let more = if context < 199 { WrFlags::DEFER } else { WrFlags::NONE };
        let to = passive.remote(0);
        active.try_post(context, Operation::Write { to }, &[active.sge(0, 8)], more).unwrap();
    }
    bench.is_whole = true;
    bench.settle();
    assert_eq!(active.poll().len(), 200);
    let acknowledgments = passive.adapter.with(|rnic, _| rnic.counters().fpdu_out) - before;
    assert!(acknowledgments <= 2, "{acknowledgments}");
}

// Immediate data is delivered as it is. A Write with immediate data reports the length of the Write and leaves the
// receive's memory unchanged; a Send with immediate data places its payload.
#[test]
pub(super) fn immediate_data() {
    let mut bench = Bench::new(6);
    let (active, passive) = connected(&mut bench);
    active.fill(0, 100_000, 1);
    let operations = [
        (1, Operation::SendImmediate { data: *b"imm1" }, 100_000, WrFlags::SOLICITED),
        (2, Operation::SendImmediate { data: *b"imm2" }, 0, WrFlags::NONE),
        (
            3,
            Operation::WriteImmediate { to: passive.remote(1 << 20), data: *b"imm3\0\0\0\0" },
            70_000,
            WrFlags::SOLICITED,
        ),
        (
            4,
            Operation::WriteImmediate { to: Remote::new(0, 0), data: *b"imm4\xff\xff\xff\xff" },
            0,
            WrFlags::NONE,
        ),
    ];
    passive.receive(11, 0, 100_000);
    for context in 12..15 {
        passive.adapter.post(|rnic| rnic.post_receive(passive.qp, context, &[])).unwrap();
    }
    for (context, operation, length, flags) in operations {
        active.try_post(context, operation, &[active.sge(0, length)], flags).unwrap();
    }
    bench.settle();
    let completions = passive.poll();
    let found: Vec<_> = completions
        .iter()
        .map(|it| (it.context, it.status, it.opcode, it.bytes, it.solicited))
        .collect();
    let (success, receive) = (WcStatus::Success, WcOpcode::Receive);
    let expected = [
        (11, success, receive, 100_000, true),
        (12, success, receive, 0, false),
        (13, success, receive, 70_000, true),
        (14, success, receive, 0, false),
    ];
    assert_eq!(found, expected);
    let arrivals: Vec<_> = completions.iter().map(|it| it.arrival).collect();
    let length = 70_000_u32.to_be_bytes();
    let written = |imm: &[u8; 4], length: [u8; 4]| {
        Arrival::Immediate([&imm[..], &length[..]].concat().try_into().unwrap())
    };
    let expected = [
        Arrival::SendImmediate(*b"imm1"),
        Arrival::SendImmediate(*b"imm2"),
        written(b"imm3", length),
        written(b"imm4", [0; 4]),
    ];
    assert_eq!(arrivals, expected);
    assert!(passive.content(0, 100_000) == pattern(100_000, 1));
    assert!(passive.content(1 << 20, 70_000) == pattern(70_000, 1));
    let of_sender: Vec<_> = active.poll().iter().map(|it| (it.context, it.opcode)).collect();
    let (send, immediate) = (WcOpcode::Send, WcOpcode::Immediate);
    assert_eq!(of_sender, [(1, send), (2, send), (3, immediate), (4, immediate)]);
    // Immediate data alone is not an operation of this service, and a Send with immediate data of no other one.
    let alone = Operation::Immediate { data: [0; 8] };
    assert_eq!(active.try_post(5, alone, &[], WrFlags::NONE), Err(VerbError::InvalidArgument));
    let other = End::of_service(&bench, 0, QpService::Iwarp);
    let send = Operation::SendImmediate { data: [0; 4] };
    assert_eq!(other.try_post(5, send, &[], WrFlags::NONE), Err(VerbError::NotConnected));
}

// Atomics and Reads complete in order with the requests before them.
#[test]
pub(super) fn reads_and_atomics_complete_in_order() {
    let mut bench = Bench::new(7);
    let (active, passive) = connected(&mut bench);
    passive.fill(0, 50_000, 4);
    let target = passive.remote(1 << 20);
    let add = AtomicOperation::FetchAdd { add: 5, mask: 0 };
    active.write(1, (0, 30_000), passive.remote(100_000));
    active.read(2, (200_000, 50_000), passive.remote(0));
    active.write(3, (0, 100), passive.remote(100_000));
    active.post(4, Operation::Atomic { target, operation: add }, (300_000, 8));
    active.write(5, (0, 0), Remote::new(0, 0));
    bench.settle();
    assert_eq!(active.outcomes(), success([1, 2, 3, 4, 5]));
    assert!(active.content(200_000, 50_000) == pattern(50_000, 4));
    assert_eq!(passive.content(1 << 20, 8), 5_u64.to_ne_bytes());
}

// Requests posted before the connection are refused until they are allowed, queued in order from then on, and sent once
// the queue pair is connected, at both ends. The first of them is reported.
#[test]
pub(super) fn early_requests_are_queued() {
    let mut bench = Bench::new(8);
    let (mut active, mut passive) = (End::new(&bench, 0), End::new(&bench, 1));
    for (end, peer) in [(&active, &passive), (&passive, &active)] {
        let early = end.try_post(0, SEND, &[end.sge(0, 1)], WrFlags::NONE);
        assert_eq!(early, Err(VerbError::NotConnected));
        end.adapter.with(|rnic, _| rnic.allow_sends(end.qp)).unwrap();
        assert_eq!(end.events.take(), []);
        end.fill(0, 1000, 3);
        let to = peer.remote(5000);
        let write = Operation::WriteImmediate { to, data: *b"early\0\0\0" };
        end.post(1, write, (0, 1000));
        end.read(2, (10_000, 1000), peer.remote(0));
        end.send(3, 0, 10);
        peer.receive(21, 20_000, 10);
        peer.receive(22, 20_000, 10);
    }
    bench.settle();
    for end in [&active, &passive] {
        assert_eq!(end.events.take(), [QpEvent::RequestsWaiting], "once");
        assert_eq!(end.adapter.with(|rnic, _| rnic.outstanding_sends(end.qp)), 3);
    }
    let server = bench.server;
    // A refused attempt changes nothing.
    let refused = dial(&mut active, server);
    bench.settle();
    assert_eq!(refused.take(), [Err(ConnectError::Refused)]);
    active.close_connector();
    connect_at(&mut bench, &mut active, &mut passive, server);
    for end in [&active, &passive] {
        let mut outcomes = end.outcomes();
        outcomes.sort_unstable_by_key(|(context, _)| *context);
        assert_eq!(outcomes, success([1, 2, 3, 21, 22]));
        assert!(end.content(5000, 1000) == pattern(1000, 3));
        assert!(end.content(10_000, 1000) == pattern(1000, 3));
    }
}

// A queue pair connected to itself: requests arrive at the twin, and take receives of the queue pair.
#[test]
pub(super) fn twin_receives_for_the_queue_pair() {
    let mut bench = Bench::new(9);
    // The active end is another queue pair. The twin does not depend on it.
    let (mut active, mut passive) = (End::new(&bench, 0), End::new(&bench, 1));
    let original = passive.qp;
    let twin = passive.adapter.with(|rnic, _| rnic.create_twin(original)).unwrap();
    let again = passive.adapter.with(|rnic, _| rnic.create_twin(twin));
    assert_eq!(again, Err(VerbError::InvalidArgument));
    passive.qp = twin;
    let server = bench.server;
    connect_at(&mut bench, &mut active, &mut passive, server);
    passive.qp = original;
    active.send(1, 0, 10);
    active.send(2, 0, 10);
    bench.settle();
    assert_eq!(active.outcomes(), [], "no receive");
    passive.receive(11, 0, 10);
    bench.settle();
    passive.receive(12, 0, 10);
    bench.settle();
    assert_eq!(active.outcomes(), success([1, 2]));
    let completions = passive.poll();
    let found: Vec<_> = completions.iter().map(|it| (it.context, it.qp, it.qp_context)).collect();
    assert_eq!(found, [(11, original, 71), (12, original, 71)]);
    // The end of the twin leaves the receives of the queue pair.
    passive.receive(13, 0, 10);
    passive.adapter.with(|rnic, _| rnic.break_qp(twin));
    bench.settle();
    assert_eq!(passive.outcomes(), []);
    assert_eq!(passive.close(Key::Qp(original)), Close::Pending, "the twin exists");
    let connector = passive.connector.take().unwrap();
    let _ = passive.close(Key::Connector(connector));
    bench.settle();
    assert_eq!(passive.close(Key::Qp(twin)), Close::Done);
    bench.settle();
    assert_eq!(passive.outcomes(), [(13, WcStatus::Flushed)]);
    assert_eq!(passive.adapter.with(|rnic, _| rnic.qp_state(original)), None);
    let _ = (passive.pd, passive.cq, passive.region);
}
