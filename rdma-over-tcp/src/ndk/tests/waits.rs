//! Messages that wait for a receive (`AdapterConfig::receive_wait`).

use std::vec;

use offload_engine::time::Duration;

use super::{
    bench::Bench,
    sides::{LIMITS, Side, connect_at, connected, pattern},
};
use crate::{
    error::{EndReason, Loss, WireError},
    ndk::{AdapterConfig, Data, DisconnectReason, NtStatus, OpFlags, QpLimits},
};

const WAIT: Duration = Duration::from_secs(2);
const SHORTER: Duration = Duration::from_millis(1500);

fn bench() -> Bench {
    Bench::with(1, AdapterConfig { receive_wait: WAIT, ..AdapterConfig::default() })
}

fn write(side: &Side, context: u64, (offset, length): (usize, usize), to: (&Side, usize)) {
    let (target, at) = to;
    let data = [side.sge(offset, length)];
    let target = target.sge(at, length);
    let data = Data::Registered(&data);
    side.qp.write(context, data, target.address, target.token, OpFlags::empty()).unwrap();
}

/// Sends two messages of 1,000 octets each, for which no receives are posted.
fn send_two(bench: &mut Bench, active: &Side) {
    active.fill(0, 2000, 5);
    active.send(1, 0, 1000);
    active.send(2, 1000, 1000);
    bench.settle();
}

// Waiting messages are neither overtaken nor lost. Each is placed in the receive posted for it, with the data that
// follows it. The timeout restarts for each message.
#[test]
pub(super) fn messages_wait_in_order() {
    let mut bench = bench();
    let (active, passive) = connected(&mut bench);
    active.fill(0, 300_000, 3);
    active.send(1, 0, 100_000);
    active.send(2, 100_000, 10);
    write(&active, 3, (200_000, 5000), (&passive, 200_000));
    active.send(4, 300_000, 0);
    bench.settle();
    let sent = pattern(300_000, 3);
    for (context, offset, length) in [(11, 0, 100_000), (12, 100_000, 10), (14, 300_000, 0)] {
        assert!(passive.content(offset, length).iter().all(|byte| *byte == 0), "{context}");
        assert_eq!(passive.outcomes(), []);
        bench.advance(SHORTER);
        passive.receive(context, offset, length);
        bench.settle();
        assert_eq!(passive.outcomes(), [(context, NtStatus::SUCCESS)]);
        assert!(passive.content(offset, length) == sent[offset..offset + length]);
    }
    assert!(passive.content(200_000, 5000) == sent[200_000..205_000], "after the second");
    let success = [1, 2, 3, 4].map(|context| (context, NtStatus::SUCCESS));
    assert_eq!(active.outcomes(), success);
    // The other direction has continued, and so does this one.
    active.receive(5, 0, 10);
    passive.receive(15, 0, 10);
    passive.send(16, 0, 10);
    active.send(6, 0, 10);
    bench.advance(WAIT * 2);
    for (side, contexts) in [(&active, [5, 6]), (&passive, [15, 16])] {
        let mut outcomes = side.outcomes();
        outcomes.sort_by_key(|(context, _)| *context);
        assert_eq!(outcomes, contexts.map(|context| (context, NtStatus::SUCCESS)));
    }
    assert!(active.log.take().is_empty() && passive.log.take().is_empty(), "still connected");
}

// RFC 5041 §7.2: after the timeout the connection ends as it does without a wait.
#[test]
pub(super) fn receive_wait_times_out() {
    let mut bench = bench();
    let (active, passive) = connected(&mut bench);
    active.send(1, 0, 100);
    bench.advance(SHORTER);
    assert!(passive.log.take().is_empty());
    bench.advance(WAIT);
    let found = EndReason::Detected(WireError::UntaggedNoBuffer.number());
    let reason = DisconnectReason::new(Some(found));
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(reason.0))]);
    let terminated = DisconnectReason::terminated(WireError::UntaggedNoBuffer.number());
    assert_eq!(active.log.take(), [("disconnect event", NtStatus(terminated.0))]);
    assert_eq!(passive.qp.stats().terminates_out, 1);
}

// A process that was stopped for longer than the timeout processes the receives that it posts before it fails the
// message.
#[test]
fn receive_wait_outlasts_a_stopped_process() {
    let mut bench = bench();
    let (active, passive) = connected(&mut bench);
    active.send(1, 0, 100);
    bench.settle();
    bench.jump(WAIT * 10);
    assert!(passive.log.take().is_empty());
    passive.receive(11, 0, 100);
    bench.settle();
    assert_eq!(passive.outcomes(), [(11, NtStatus::SUCCESS)]);
    assert!(passive.log.take().is_empty());
    // The next wait is not longer than usual.
    active.send(2, 0, 100);
    bench.advance(SHORTER);
    assert!(passive.log.take().is_empty());
    bench.advance(WAIT);
    assert_eq!(passive.log.take().len(), 1);
}

// Data that the peer sent before its FIN is delivered before the disconnect event.
#[test]
pub(super) fn data_before_fin_is_delivered() {
    let mut bench = bench();
    let (active, passive) = connected(&mut bench);
    send_two(&mut bench, &active);
    let log = active.log.clone();
    let connector = active.connector.as_ref().unwrap();
    assert_eq!(connector.disconnect(log.note("disconnect")), NtStatus::PENDING);
    bench.settle();
    assert!(passive.log.take().is_empty());
    passive.receive(11, 0, 1000);
    bench.settle();
    assert!(passive.log.take().is_empty(), "the second waits");
    passive.receive(12, 1000, 1000);
    bench.settle();
    assert_eq!(passive.outcomes(), [(11, NtStatus::SUCCESS), (12, NtStatus::SUCCESS)]);
    assert!(passive.content(0, 2000) == pattern(2000, 5));
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus::SUCCESS)]);
}

// Timeout far above TCP's own timers.
const LONG: Duration = Duration::from_secs(100);

fn bench_with_long_timeouts() -> Bench {
    let config = AdapterConfig {
        receive_wait: LONG * 5,
        end_wait: LONG,
        disconnect_timeout: LONG * 5,
        ..AdapterConfig::default()
    };
    Bench::with(1, config)
}

// A consumer that waits for the disconnect event before it posts receives gets the event, and then the messages.
#[test]
pub(super) fn disconnect_event_overtakes_waiting_messages() {
    let mut bench = bench_with_long_timeouts();
    let (active, passive) = connected(&mut bench);
    send_two(&mut bench, &active);
    bench.advance(LONG);
    assert!(passive.log.take().is_empty(), "the peer has not closed");
    let connector = active.connector.as_ref().unwrap();
    assert_eq!(connector.disconnect(active.log.note("disconnect")), NtStatus::PENDING);
    bench.settle();
    assert!(passive.log.take().is_empty(), "it may still post receives");
    bench.advance(LONG);
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus::SUCCESS)]);
    assert!(passive.qp.is_connected());
    passive.receive(11, 0, 1000);
    passive.receive(12, 1000, 1000);
    bench.settle();
    assert_eq!(passive.outcomes(), [(11, NtStatus::SUCCESS), (12, NtStatus::SUCCESS)]);
    assert!(passive.content(0, 2000) == pattern(2000, 5));
    assert!(passive.log.take().is_empty(), "once");
}

// A peer that stops acknowledging does not block a disconnect with outstanding requests.
#[test]
fn disconnect_without_acknowledgments_times_out() {
    let mut bench = bench_with_long_timeouts();
    let (active, _passive) = connected(&mut bench);
    bench.is_cut = true;
    active.send(1, 0, 100_000);
    let connector = active.connector.as_ref().unwrap();
    assert_eq!(connector.disconnect(active.log.note("disconnect")), NtStatus::PENDING);
    bench.settle();
    assert!(active.log.take().is_empty());
    bench.advance(LONG);
    assert_eq!(active.log.take(), [("disconnect", NtStatus::IO_TIMEOUT)]);
    assert_eq!(active.outcomes(), [(1, NtStatus::CANCELLED)]);
}

// A peer that has received all data, but has not yet closed its side, has the full timeout to close it.
#[test]
fn peer_with_all_data_may_close_late() {
    let mut bench = bench_with_long_timeouts();
    let (active, passive) = connected(&mut bench);
    passive.receive(11, 0, 100_000);
    bench.is_cut = true;
    active.send(1, 0, 100_000);
    let connector = active.connector.as_ref().unwrap();
    assert_eq!(connector.disconnect(active.log.note("disconnect")), NtStatus::PENDING);
    bench.settle();
    bench.is_cut = false;
    bench.settle();
    assert_eq!(active.log.take(), [("disconnect", NtStatus::SUCCESS)]);
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus::SUCCESS)]);
    (0..3).for_each(|_| bench.advance(LONG));
    let connector = passive.connector.as_ref().unwrap();
    assert_eq!(connector.disconnect(passive.log.note("disconnect")), NtStatus::PENDING);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect", NtStatus::SUCCESS)]);
    assert_eq!(bench.connections(), 0);
}

// Requests outstanding at a disconnect are sent as long as the peer makes progress. A peer without receives does not
// get the full timeout. For transports that refuse data.
pub(super) fn disconnect_does_not_wait_for_receives() {
    const REQUESTS: u64 = 40;
    const OCTETS: usize = 300_000;
    let mut bench = bench_with_long_timeouts();
    let (active, passive) = connected(&mut bench);
    (0..REQUESTS).for_each(|context| active.send(context, 0, OCTETS));
    bench.settle();
    let connector = active.connector.as_ref().unwrap();
    assert_eq!(connector.disconnect(active.log.note("disconnect")), NtStatus::PENDING);
    bench.settle();
    passive.receive(100, 0, OCTETS);
    passive.receive(101, 0, OCTETS);
    bench.settle();
    assert_eq!(passive.outcomes(), [(100, NtStatus::SUCCESS), (101, NtStatus::SUCCESS)]);
    bench.advance(LONG);
    assert!(active.log.take().is_empty(), "the peer has received two");
    let ended = (0..3).map(|_| {
        // The kernel may write more meanwhile, because it adjusts its buffer limits.
        bench.advance(LONG);
        active.log.take()
    });
    assert_eq!(ended.flatten().next(), Some(("disconnect", NtStatus::IO_TIMEOUT)));
    let outcomes = active.outcomes();
    assert_eq!(outcomes.len() as u64, REQUESTS);
    assert_eq!(outcomes.last(), Some(&(REQUESTS - 1, NtStatus::CANCELLED)));
    bench.settle();
    let reset = DisconnectReason::new(Some(EndReason::Lost(Loss::Reset)));
    assert_eq!(passive.log.take(), [("disconnect event", NtStatus(reset.0))]);
    assert_eq!(bench.connections(), 0);
}

// A consumer that disconnects receives no more data.
#[test]
pub(super) fn disconnect_ends_receive_wait() {
    let mut bench = bench();
    let (active, passive) = connected(&mut bench);
    active.send(1, 0, 100);
    bench.settle();
    let connector = passive.connector.as_ref().unwrap();
    let status = connector.disconnect(passive.log.note("disconnect"));
    assert_eq!(status, NtStatus::PENDING);
    bench.settle();
    assert_eq!(passive.log.take(), [("disconnect", NtStatus::SUCCESS)]);
    assert!(!active.qp.is_connected());
    assert_eq!(bench.connections(), 0);
}

// Queue pairs that share a queue are served in the order in which they began to wait; a closed one is skipped.
#[test]
pub(super) fn shared_queue_serves_longest_waiter_first() {
    let mut bench = bench();
    let first = Side::new(&bench, 1);
    let srq = first.pd.create_srq(8, 2, 0, first.log.note("limit")).unwrap();
    let mut sides = vec![first];
    let mut peers = vec![];
    for index in 0..3 {
        if index > 0 {
            sides.push(Side::new(&bench, 1));
        }
        let Side { pd, cq, .. } = &sides[0];
        let limits = QpLimits { receive_queue_depth: 0, ..QpLimits::default() };
        sides[index].qp = pd.create_qp_with_srq(cq, cq, &srq, index as u64, limits).unwrap();
        let mut peer = Side::new(&bench, 0);
        let server = std::format!("10.0.0.2:{}", 7100 + index).parse().unwrap();
        connect_at(&mut bench, &mut peer, &mut sides[index], [LIMITS; 2], server);
        peers.push(peer);
    }
    for at in [2, 1, 0] {
        peers[at].send(at as u64, 0, 10);
        bench.settle();
    }
    let received = |bench: &mut Bench, context| {
        let sge = sides[0].sge(0, 100);
        srq.receive(context, &[sge]).unwrap();
        bench.settle();
        let results = sides[0].poll();
        results.iter().map(|it| (it.qp_context, it.request_context, it.status)).collect()
    };
    let success = NtStatus::SUCCESS;
    let taken: vec::Vec<_> = received(&mut bench, 20);
    assert_eq!(taken, [(2, 20, success)]);
    let connector = peers[1].connector.as_ref().unwrap();
    assert_eq!(connector.close(|| {}), NtStatus::SUCCESS, "a reset");
    bench.settle();
    let taken: vec::Vec<_> = received(&mut bench, 21);
    assert_eq!(taken, [(0, 21, success)]);
}
