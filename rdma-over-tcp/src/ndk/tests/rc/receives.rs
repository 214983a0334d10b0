//! Messages without a receive.

use core::time::Duration;

use super::*;

const TIMER: Duration = Duration::from_millis(100);

// A message waits while the peer's retries permit, and later requests wait with it. Then it is executed, or its request
// fails. The receiver stays usable: its receives remain, and no error is reported.
#[test]
pub(super) fn retries_end_the_wait() {
    let mut bench = Bench::new(11);
    let (active, passive) = connected(&mut bench);
    passive.set_peer(Some(3), TIMER);
    active.send(1, 0, 1000);
    active.write(2, (0, 10), passive.remote(1000));
    bench.settle();
    bench.advance(TIMER * 2);
    assert_eq!((active.outcomes(), passive.outcomes()), (Vec::new(), Vec::new()));
    passive.receive(11, 0, 1000);
    bench.settle();
    assert_eq!(active.outcomes(), success([1, 2]));
    assert_eq!(passive.outcomes(), success([11]));
    active.send(3, 0, 10);
    active.write(4, (0, 10), passive.remote(1000));
    bench.settle();
    bench.advance(TIMER * 2);
    assert_eq!(active.outcomes(), []);
    bench.advance(TIMER * 2);
    let expected = [(3, WcStatus::RnrRetryExceeded), (4, WcStatus::Flushed)];
    assert_eq!(active.outcomes(), expected);
    assert_eq!(active.state(), QpState::Error);
    passive.receive(12, 0, 10);
    bench.settle();
    assert_eq!(passive.state(), QpState::Lost);
    assert_eq!((passive.outcomes(), passive.ends.take()), (Vec::new(), Vec::from([None])));
}

// Without retries a message without a receive fails at once; with unlimited retries it waits for longer than any timer.
#[test]
pub(super) fn no_retries_and_unlimited_retries() {
    let mut bench = Bench::new(12);
    let (active, passive) = connected(&mut bench);
    active.send(1, 0, 10);
    bench.settle();
    bench.advance(Duration::from_secs(100_000));
    assert_eq!(active.outcomes(), []);
    passive.receive(11, 0, 10);
    bench.settle();
    assert_eq!(active.outcomes(), success([1]));
    passive.set_peer(Some(0), TIMER);
    active.send(2, 0, 10);
    bench.settle();
    assert_eq!(active.outcomes(), [(2, WcStatus::RnrRetryExceeded)]);
    assert_eq!(passive.outcomes(), success([11]));
}

// Both ends have a message that waits, and depend on their own Reads: the responses are processed although they are
// behind the message, and so are the acknowledgments of earlier messages.
#[test]
pub(super) fn responses_overtake_waiting_messages() {
    let mut bench = Bench::new(13);
    let (active, passive) = connected(&mut bench);
    for (end, peer) in [(&active, &passive), (&passive, &active)] {
        peer.fill(0, 200_000, 7);
        end.write(1, (0, 100), peer.remote(1 << 20));
        end.read(2, (300_000, 200_000), peer.remote(0));
        end.send(3, 0, 1000);
    }
    bench.settle();
    for end in [&active, &passive] {
        assert_eq!(end.outcomes(), success([1, 2]));
        assert!(end.content(300_000, 200_000) == pattern(200_000, 7));
        end.receive(11, 600_000, 1000);
    }
    bench.settle();
    for end in [&active, &passive] {
        let mut outcomes = end.outcomes();
        outcomes.sort_unstable_by_key(|(context, _)| *context);
        assert_eq!(outcomes, success([3, 11]));
    }
}

// While a message waits, its sender starts no more requests.
#[test]
pub(super) fn sender_pauses() {
    let mut bench = Bench::new(14);
    let (active, passive) = connected(&mut bench);
    active.send(1, 0, 10);
    bench.settle();
    let sent = || active.adapter.with(|rnic, _| rnic.counters().fpdu_out);
    let before = sent();
    active.send(2, 0, 10);
    active.write(3, (0, 10), passive.remote(0));
    bench.settle();
    assert_eq!(sent(), before);
    passive.receive(11, 0, 10);
    bench.settle();
    assert_eq!(active.outcomes(), success([1]));
    assert_eq!(sent(), before + 2);
    passive.receive(12, 0, 10);
    bench.settle();
    assert_eq!(active.outcomes(), success([2, 3]));
}

// A process that was stopped until after the end of a wait first processes what has happened since.
#[test]
fn wait_outlasts_a_stopped_process() {
    let mut bench = Bench::new(15);
    let (active, passive) = connected(&mut bench);
    passive.set_peer(Some(1), TIMER);
    active.send(1, 0, 10);
    bench.settle();
    bench.jump(Duration::from_secs(100));
    assert_eq!(active.outcomes(), []);
    passive.receive(11, 0, 10);
    bench.settle();
    assert_eq!(active.outcomes(), success([1]));
}

// The kept data is bounded: with a transport that can be refused, the rest stays with the peer's TCP, and arrives after
// the message.
#[test]
pub(super) fn much_data_behind_a_message_is_delivered() {
    const WRITES: u64 = 100;
    let mut bench = Bench::new(16);
    let (active, passive) = connected(&mut bench);
    active.fill(0, 100_000, 5);
    active.send(1, 0, 10);
    (0..WRITES).for_each(|n| active.write(2 + n, (0, 100_000), passive.remote(1 << 20)));
    bench.settle();
    assert!(passive.content(1 << 20, 100_000).iter().all(|byte| *byte == 0));
    passive.receive(11, 0, 10);
    bench.settle();
    assert_eq!(active.poll().len() as u64, 1 + WRITES);
    assert!(passive.content(1 << 20, 100_000) == pattern(100_000, 5));
}

// As `responses_overtake_waiting_messages`, with more data in flight before the responses than is kept otherwise.
#[test]
pub(super) fn responses_overtake_much_data() {
    const WRITES: u64 = 20;
    let mut bench = Bench::new(18);
    let (active, passive) = connected(&mut bench);
    bench.window = 4 << 20;
    bench.is_cut = true;
    for (end, peer) in [(&active, &passive), (&passive, &active)] {
        peer.fill(0, 1000, 7);
        end.read(1, (300_000, 1000), peer.remote(0));
        end.send(2, 0, 1000);
        (0..WRITES).for_each(|n| end.write(3 + n, (0, 100_000), peer.remote(1 << 20)));
    }
    bench.settle();
    bench.is_cut = false;
    bench.settle();
    for end in [&active, &passive] {
        assert_eq!(end.outcomes(), success([1]));
        assert!(end.content(300_000, 1000) == pattern(1000, 7));
    }
    active.receive(90, 600_000, 1000);
    passive.receive(90, 600_000, 1000);
    bench.settle();
    for end in [&active, &passive] {
        let mut outcomes = end.outcomes();
        outcomes.sort_unstable_by_key(|(context, _)| *context);
        let expected: Vec<_> = (2..3 + WRITES).chain([90]).collect();
        assert_eq!(
            outcomes,
            expected.into_iter().map(|n| (n, WcStatus::Success)).collect::<Vec<_>>()
        );
    }
}

// The request that is partly sent when its sender is informed of the wait is suspended, so that a response passes. It
// continues when the receive is posted.
#[test]
pub(super) fn partly_sent_request_is_suspended() {
    const LARGE: usize = 1 << 20;
    let mut bench = Bench::new(19);
    let (active, passive) = connected(&mut bench);
    bench.window = 64 * 1024;
    active.fill(0, LARGE, 5);
    let sent = || active.adapter.with(|rnic, _| rnic.counters().fpdu_out_octets);
    let before = sent();
    active.send(1, 0, 10);
    active.write(2, (0, LARGE), passive.remote(LARGE));
    bench.settle();
    let suspended = sent();
    assert!(suspended - before < LARGE as u64 / 2, "most of the Write is not sent");
    passive.read(5, (0, 1000), active.remote(0));
    bench.settle();
    assert_eq!(passive.outcomes(), success([5]));
    assert!(passive.content(0, 1000) == pattern(LARGE, 5)[..1000]);
    assert!((1000..10_000).contains(&(sent() - suspended)), "the response alone");
    assert_eq!(active.outcomes(), []);
    passive.receive(11, 0, 10);
    bench.settle();
    assert_eq!(
        (active.outcomes(), passive.outcomes()),
        (success([1, 2]).into(), success([11]).into())
    );
    assert!(passive.content(LARGE, LARGE) == pattern(LARGE, 5));
}

// The message that waits may itself be partly sent. It continues although the number of executed messages is the same.
#[test]
pub(super) fn partly_sent_message_waits() {
    const LARGE: usize = 1 << 20;
    let mut bench = Bench::new(20);
    let (active, passive) = connected(&mut bench);
    bench.window = 64 * 1024;
    active.fill(0, LARGE, 5);
    for context in [1, 2] {
        active.send(context, 0, LARGE);
        bench.settle();
        assert_eq!(active.outcomes(), []);
        passive.receive(10 + context, LARGE, LARGE);
        bench.settle();
        assert_eq!(active.outcomes(), success([context]));
        assert_eq!(passive.outcomes(), success([10 + context]));
        assert!(passive.content(LARGE, LARGE) == pattern(LARGE, 5));
    }
}

// Changed parameters apply to the message that waits, from the start of its wait.
#[test]
fn changed_time_applies_to_a_waiting_message() {
    let mut bench = Bench::new(21);
    let (active, passive) = connected(&mut bench);
    passive.set_peer(Some(1), TIMER * 100);
    active.send(1, 0, 10);
    bench.settle();
    bench.advance(TIMER);
    passive.set_peer(Some(2), TIMER);
    bench.advance(TIMER / 2);
    assert_eq!(active.outcomes(), []);
    bench.advance(TIMER);
    assert_eq!(active.outcomes(), [(1, WcStatus::RnrRetryExceeded)]);
}

// Data that has arrived before the peer's FIN completes its receives, unless this end has outstanding requests.
#[test]
pub(super) fn waiting_messages_of_a_closed_peer() {
    for has_request in [false, true] {
        let mut bench = Bench::new(17);
        let (mut active, passive) = connected(&mut bench);
        active.send(1, 0, 10);
        bench.settle();
        active.destroy();
        bench.settle();
        assert_eq!(passive.state(), QpState::Connected);
        if has_request {
            passive.send(5, 0, 10);
            bench.settle();
            assert_eq!(passive.state(), QpState::Lost);
        }
        passive.receive(11, 0, 10);
        bench.settle();
        assert_eq!(passive.state(), QpState::Lost);
        let expected = if has_request { Vec::new() } else { Vec::from(success([11])) };
        assert_eq!(passive.outcomes(), expected);
    }
}
