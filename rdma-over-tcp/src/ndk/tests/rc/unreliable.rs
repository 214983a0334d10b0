//! Queue pairs of unreliable connected service (`QpService::Uc`).

use super::*;

/// Two connected ends of the service.
fn unreliable(bench: &mut Bench) -> (End, End) {
    let mut active = End::of_service(bench, 0, QpService::Uc);
    let mut passive = End::of_service(bench, 1, QpService::Uc);
    let server = bench.server;
    connect_at(bench, &mut active, &mut passive, server);
    (active, passive)
}

fn send_immediate(end: &End, context: u64, range: (usize, usize)) {
    end.post(context, Operation::SendImmediate { data: *b"data" }, range);
}

// Messages of any size arrive, and requests complete without an acknowledgment of the peer.
#[test]
pub(super) fn messages_are_executed() {
    let mut bench = Bench::new(300);
    let (active, passive) = unreliable(&mut bench);
    active.fill(0, 200_000, 3);
    passive.receive(11, 0, 200_000);
    passive.receive(12, 0, 0);
    passive.receive(13, 0, 100);
    active.send(1, 0, 200_000);
    active.write(2, (0, 100_000), passive.remote(1 << 20));
    let to = passive.remote(1 << 20);
    active.post(3, Operation::WriteImmediate { to, data: *b"data----" }, (0, 10));
    send_immediate(&active, 4, (0, 5));
    bench.settle();
    assert_eq!(active.outcomes(), success([1, 2, 3, 4]));
    let received = passive.poll();
    let seen: Vec<_> = received.iter().map(|it| (it.context, it.status, it.bytes)).collect();
    let ok = WcStatus::Success;
    assert_eq!(seen, [(11, ok, 200_000), (12, ok, 10), (13, ok, 5)]);
    assert_eq!(received[2].arrival, Arrival::SendImmediate(*b"data"));
    assert!(passive.content(0, 200_000)[5..] == pattern(200_000, 3)[5..]);
    assert!(passive.content(1 << 20, 100_000) == pattern(100_000, 3));
}

// Without a receive, longer than it, or without the right: the message is dropped, and the next one is executed.
#[test]
pub(super) fn messages_that_cannot_be_executed_are_dropped() {
    let mut bench = Bench::new(301);
    let (active, passive) = unreliable(&mut bench);
    active.fill(0, 200_000, 4);
    active.send(1, 0, 200_000);
    send_immediate(&active, 2, (0, 5));
    bench.settle();
    assert_eq!((active.outcomes(), passive.outcomes()), (success([1, 2]).into(), Vec::new()));
    passive.receive(11, 0, 150_000);
    // Dropped after the start of its placement; the receive is that of the next message.
    active.send(3, 0, 200_000);
    active.send(4, 0, 150_000);
    bench.settle();
    assert_eq!(active.outcomes(), success([3, 4]));
    let received = passive.poll();
    let seen: Vec<_> = received.iter().map(|it| (it.context, it.status, it.bytes)).collect();
    assert_eq!(seen, [(11, WcStatus::Success, 150_000)]);
    let beyond = Remote::new(passive.buffer.address() + BUFFER as u64 - 50_000, passive.token);
    let unknown = Remote::new(passive.buffer.address(), passive.token ^ 0x100);
    passive.receive(12, 0, 0);
    for (context, to) in [(5, beyond), (6, unknown)] {
        active.post(context, Operation::WriteImmediate { to, data: [0; 8] }, (0, 100_000));
    }
    active.write(7, (0, 100_000), passive.remote(0));
    active.post(8, Operation::WriteImmediate { to: passive.remote(0), data: [0; 8] }, (0, 7));
    bench.settle();
    assert_eq!(active.outcomes(), success([5, 6, 7, 8]));
    assert_eq!(passive.outcomes(), success([12]));
    assert!(passive.content(0, 100_000) == pattern(100_000, 4));
    // Its first segment is out of bounds, and the others are not.
    active.fill(0, 200_000, 5);
    let before = Remote::new(passive.buffer.address() - 1, passive.token);
    active.write(10, (0, 200_000), before);
    bench.settle();
    assert_eq!(active.outcomes(), success([10]));
    assert!(passive.content(0, 100_000) == pattern(100_000, 4));
    passive.adapter.with(|rnic, _| rnic.set_qp_access(passive.qp, Access::NONE)).unwrap();
    active.fill(0, 100, 9);
    active.write(9, (0, 100), passive.remote(1 << 20));
    bench.settle();
    assert_eq!(active.outcomes(), success([9]));
    assert_eq!(passive.content(1 << 20, 100), [0; 100]);
    assert_eq!((active.state(), passive.state()), (QpState::Connected, QpState::Connected));
}

// Requests to a peer that has left complete, and receives stay posted.
#[test]
pub(super) fn requests_of_a_lost_queue_pair_complete() {
    let mut bench = Bench::new(302);
    let (active, mut passive) = unreliable(&mut bench);
    active.receive(11, 0, 10);
    passive.destroy();
    bench.settle();
    assert_eq!((active.state(), active.outcomes()), (QpState::Lost, Vec::new()));
    active.send(1, 0, 10);
    active.write(2, (0, 10), Remote::new(0, 0));
    assert_eq!(active.outcomes(), success([1, 2]));
    assert_eq!(active.events.take(), []);
    active.adapter.with(|rnic, _| rnic.reset_qp(active.qp)).unwrap();
    assert_eq!((active.state(), active.outcomes()), (QpState::Idle, Vec::new()));
}
