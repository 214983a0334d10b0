//! Ends of connections.

use core::time::Duration;

use super::*;

// A queue pair that is destroyed, reset or broken directly after its last completion has acknowledged it. The peer is
// lost: its receives stay posted, its completed requests have succeeded, and it reports no error.
#[test]
pub(super) fn last_acknowledgment_arrives() {
    for end in 0..3 {
        for seed in 0..4 {
            let mut bench = Bench::new(40 + seed);
            let (active, mut passive) = connected(&mut bench);
            passive.receive(11, 0, 100_000);
            active.receive(12, 0, 10);
            active.send(1, 0, 100_000);
            let completions = bench.step_until(|| Some(passive.poll()).filter(|it| !it.is_empty()));
            assert_eq!(completions.len(), 1);
            // Data that is not read does not turn the FIN into a reset.
            active.write(2, (0, 100_000), passive.remote(0));
            active.write(3, (0, 100_000), passive.remote(0));
            match end {
                0 => passive.destroy(),
                1 => passive.adapter.with(|rnic, _| rnic.reset_qp(passive.qp)).unwrap(),
                _ => passive.adapter.with(|rnic, _| rnic.break_qp(passive.qp)),
            }
            bench.settle();
            assert_eq!(active.outcomes(), success([1]), "{end}");
            assert_eq!(active.state(), QpState::Lost);
            assert_eq!(active.events.take(), [QpEvent::RequestsWaiting]);
            assert_eq!(active.ends.take(), [None]);
            assert_eq!(active.adapter.with(|rnic, _| rnic.outstanding_sends(active.qp)), 2);
            assert_eq!(bench.connections(), 0);
        }
    }
}

// Responses that are due are sent before the FIN, while the memory permits them.
#[test]
fn responses_precede_the_fin() {
    let mut bench = Bench::new(45);
    let (active, mut passive) = connected(&mut bench);
    passive.fill(0, 1 << 20, 6);
    bench.hold_acks = true;
    active.read(1, (0, 1 << 20), passive.remote(0));
    active.read(2, (1 << 20, 100), passive.remote(0));
    bench.settle();
    passive.destroy();
    bench.release_acks();
    assert_eq!(active.outcomes(), success([1, 2]));
    assert!(active.content(0, 1 << 20) == pattern(1 << 20, 6));
    assert_eq!(bench.connections(), 0);
}

// A lost queue pair queues requests, and reports the first one. It fails when the consumer gives up.
#[test]
pub(super) fn lost_queue_pairs_queue_requests() {
    let mut bench = Bench::new(46);
    let (active, mut passive) = connected(&mut bench);
    active.receive(11, 0, 10);
    passive.destroy();
    bench.settle();
    assert_eq!((active.state(), active.ends.take()), (QpState::Lost, Vec::from([None])));
    assert_eq!((active.outcomes(), active.events.take()), (Vec::new(), Vec::new()));
    active.send(1, 0, 10);
    active.write(2, (0, 10), Remote::new(0, 0));
    active.receive(12, 0, 10);
    bench.settle();
    assert_eq!(
        (active.outcomes(), active.events.take()),
        (Vec::new(), Vec::from([QpEvent::RequestsWaiting]))
    );
    let connected_again = active.adapter.with(|rnic, _| {
        let connector = rnic.create_connector().unwrap();
        let (qp, done) = (active.qp, Box::new(|_| {}));
        rnic.connect(connector, qp, (None, bench.server), LIMITS, &[], done)
    });
    assert_eq!(connected_again, Err(ConnectError::QpUnusable));
    active.adapter.with(|rnic, _| rnic.fail_sends(active.qp, WcStatus::RetryExceeded)).unwrap();
    let flushed = |context| (context, WcStatus::Flushed);
    let expected = [(1, WcStatus::RetryExceeded), flushed(2), flushed(11), flushed(12)];
    assert_eq!(active.outcomes(), expected);
    assert_eq!(active.state(), QpState::Error);
    active.send(3, 0, 10);
    assert_eq!(active.outcomes(), [flushed(3)]);
}

// A Write with immediate data that fails is one completion.
#[test]
pub(super) fn failed_write_with_immediate_data_completes_once() {
    let bench = Bench::new(47);
    let active = End::new(&bench, 0);
    active.adapter.with(|rnic, _| rnic.allow_sends(active.qp)).unwrap();
    for context in [1, 2] {
        let to = Remote::new(0, 0);
        active.post(context, Operation::WriteImmediate { to, data: [0; 8] }, (0, 10));
    }
    active.adapter.with(|rnic, _| rnic.fail_sends(active.qp, WcStatus::RetryExceeded)).unwrap();
    assert_eq!(active.outcomes(), [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
}

// A reset, a timeout and a FIN within a message are as silent as a FIN.
#[test]
fn resets_and_timeouts_are_silent() {
    for end in 0..3 {
        let mut bench = Bench::new(48);
        let (active, passive) = connected(&mut bench);
        active.receive(11, 0, 10);
        passive.receive(12, 0, 1000);
        active.send(1, 0, 1000);
        active.send(2, 0, 1000);
        bench.is_cut = true;
        bench.settle();
        match end {
            0 => bench.fail_connection(0, ConnectError::TimedOut),
            1 => bench.fail_connection(1, ConnectError::TimedOut),
            _ => {
                bench.is_cut = false;
                bench.truncate(0, 500);
            }
        }
        bench.settle();
        assert_eq!(active.state(), QpState::Lost, "{end}");
        assert_eq!(active.outcomes(), [], "{end}");
        assert_eq!(active.events.take(), [QpEvent::RequestsWaiting]);
        assert_eq!(active.ends.take().len(), 1);
        assert_eq!(passive.state(), QpState::Lost, "{end}");
        assert_eq!(passive.outcomes(), []);
        // The receive in progress and the others are flushed with the queue pair.
        active.adapter.with(|rnic, _| rnic.break_qp(active.qp));
        passive.adapter.with(|rnic, _| rnic.break_qp(passive.qp));
        assert_eq!(active.outcomes(), [1, 2, 11].map(|context| (context, WcStatus::Flushed)));
        assert_eq!(passive.outcomes(), [(12, WcStatus::Flushed)]);
    }
}

// An attempt that ends before the first message leaves both queue pairs as if it was never made, and the next attempt
// succeeds.
#[test]
pub(super) fn failed_attempts_leave_the_queue_pair_idle() {
    let mut bench = Bench::new(49);
    let (mut active, mut passive) = (End::new(&bench, 0), End::new(&bench, 1));
    let server = bench.server;
    for end in [&active, &passive] {
        end.receive(11, 0, 10);
        end.adapter.with(|rnic, _| rnic.allow_sends(end.qp)).unwrap();
        end.send(1, 0, 10);
    }
    let (listener, requests) = listen(&mut bench, server);
    let connected = dial(&mut active, server);
    bench.settle();
    let accepted = accept(&mut passive, requests.take()[0]);
    bench.settle();
    assert_eq!(connected.take(), [Ok(())]);
    // The dialing end gives up after the Reply.
    let connector = active.connector.take().unwrap();
    let _ = active.close(Key::Connector(connector));
    bench.settle();
    assert_eq!(accepted.take(), [Err(ConnectError::Aborted)]);
    assert_eq!((active.state(), passive.state()), (QpState::Idle, QpState::Idle));
    passive.close_connector();
    let _ = passive.close(Key::Listener(listener));
    bench.settle();
    connect_at(&mut bench, &mut active, &mut passive, server);
    for end in [&active, &passive] {
        let mut outcomes = end.outcomes();
        outcomes.sort_unstable_by_key(|(context, _)| *context);
        assert_eq!(outcomes, success([1, 11]));
    }
}

// A queue pair that was reset is connected again, with new numbers of messages.
#[test]
pub(super) fn reset_queue_pairs_are_connected_again() {
    let mut bench = Bench::new(50);
    let (mut active, mut passive) = (End::new(&bench, 0), End::new(&bench, 1));
    let server = bench.server;
    for round in 0..3 {
        connect_at(&mut bench, &mut active, &mut passive, server);
        for context in 0..=round {
            passive.receive(10 + context, 0, 10);
            active.send(context, 0, 10);
        }
        bench.settle();
        assert_eq!(active.poll().len() as u64, 1 + round);
        for end in [&mut active, &mut passive] {
            end.adapter.with(|rnic, _| rnic.reset_qp(end.qp)).unwrap();
            end.close_connector();
        }
        bench.settle();
        assert_eq!((active.outcomes(), passive.outcomes()), (Vec::new(), Vec::new()));
        assert_eq!((active.state(), passive.state()), (QpState::Idle, QpState::Idle));
        assert_eq!(
            active.try_post(9, Operation::Send { invalidate: None }, &[], WrFlags::NONE),
            Err(VerbError::NotConnected)
        );
    }
}

// A disconnect ends the connection after the requests are executed.
#[test]
pub(super) fn disconnect_follows_the_execution() {
    let mut bench = Bench::new(51);
    let (active, passive) = connected(&mut bench);
    active.write(1, (0, 100_000), passive.remote(0));
    active.send(2, 0, 10);
    let done = Record::new();
    let connector = active.connector.unwrap();
    active.adapter.with(|rnic, now| rnic.disconnect(now, connector, done.callback())).unwrap();
    bench.settle();
    assert_eq!((active.outcomes(), done.take()), (Vec::from(success([1])), Vec::new()));
    passive.receive(11, 0, 10);
    bench.settle();
    assert_eq!((active.outcomes(), done.take()), (Vec::from(success([2])), Vec::from([Ok(())])));
    assert_eq!(passive.state(), QpState::Lost);
}

// A peer that never closes is reset, after a bounded time.
#[test]
fn end_is_bounded() {
    let mut bench = Bench::new(52);
    let (mut active, _passive) = connected(&mut bench);
    bench.stopped = Some(1);
    active.write(1, (0, 100_000), Remote::new(0, 0));
    active.destroy();
    bench.settle();
    assert_eq!(bench.connections(), 1);
    bench.advance(Duration::from_secs(61));
    assert_eq!(bench.connections(), 0);
}
