//! Arms, failures, batches, moderation.

use core::sync::atomic::AtomicU32;
use std::vec::Vec;

use super::*;

fn entry(status: WcStatus) -> Completion {
    Completion { status, ..SUCCESS }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    Nothing,
    Old,
    NewUnsolicited,
    NewSolicited,
    NewError,
}

fn queue(content: Content) -> Arc<CompletionQueue> {
    let queue = CompletionQueue::new(8);
    match content {
        Content::Nothing => {}
        Content::Old => {
            queue.arm(Arm::Next);
            queue.push(entry(WcStatus::Flushed), true).unwrap();
            assert_eq!(queue.take_due(), Some(Ok(())));
            queue.callback_returned();
        }
        Content::NewUnsolicited => queue.push(entry(WcStatus::Success), false).unwrap(),
        Content::NewSolicited => queue.push(entry(WcStatus::Success), true).unwrap(),
        Content::NewError => queue.push(entry(WcStatus::Flushed), false).unwrap(),
    }
    queue
}

// NDK-CQ-4 to -10: the nine cells of the truth table for each content of the queue.
#[test]
fn arm_truth_table() {
    use Arm::{Failure, Next, Solicited};
    let arms = [Next, Failure, Solicited];
    for first in arms {
        for second in arms {
            let expected = match (first, second) {
                (Next, _) | (_, Next) => Next,
                (Failure, Failure) => Failure,
                _ => Solicited,
            };
            for content in [
                Content::Nothing,
                Content::Old,
                Content::NewUnsolicited,
                Content::NewSolicited,
                Content::NewError,
            ] {
                let queue = queue(content);
                // Sets both arms before any of them can be satisfied, as if the queue were filled later.
                queue.state().arm = Some(first);
                queue.arm(second);
                let satisfied = match expected {
                    Next => !matches!(content, Content::Nothing | Content::Old),
                    Solicited => {
                        matches!(content, Content::NewSolicited | Content::NewError)
                    }
                    Failure => false,
                };
                assert_eq!(
                    queue.take_due().is_some(),
                    satisfied,
                    "{first:?} then {second:?} with {content:?}"
                );
                assert_eq!(queue.state().arm, (!satisfied).then_some(expected));
            }
        }
    }
}

// NDK-CQ-2: one callback per arm, none without an arm.
#[test]
fn one_callback_per_arm() {
    let queue = CompletionQueue::new(8);
    queue.push(entry(WcStatus::Success), false).unwrap();
    assert_eq!(queue.take_due(), None, "not armed");
    queue.arm(Arm::Next);
    assert_eq!(queue.take_due(), Some(Ok(())));
    queue.callback_returned();
    queue.push(entry(WcStatus::Success), true).unwrap();
    assert_eq!(queue.take_due(), None, "not armed again");
}

// NDK-CQ-3: a due callback waits until the running one has returned.
#[test]
fn callbacks_are_serialized() {
    let queue = CompletionQueue::new(8);
    queue.arm(Arm::Next);
    queue.push(entry(WcStatus::Success), false).unwrap();
    assert!(queue.take_due().is_some());
    queue.arm(Arm::Next);
    queue.push(entry(WcStatus::Success), false).unwrap();
    assert_eq!(queue.take_due(), None, "the first callback is running");
    queue.callback_returned();
    assert!(queue.take_due().is_some());
}

// NDK-CQ-11: a completion between the last short poll and the arm satisfies the arm; a polled one does not.
#[test]
fn polled_entries_do_not_satisfy_an_arm() {
    let queue = CompletionQueue::new(8);
    let mut results = [entry(WcStatus::Flushed); 4];
    queue.push(entry(WcStatus::Success), true).unwrap();
    assert_eq!(queue.poll(&mut results), 1);
    queue.arm(Arm::Next);
    assert_eq!(queue.take_due(), None);
    queue.push(entry(WcStatus::Success), false).unwrap();
    assert!(queue.take_due().is_some());
}

// NDK-CQ-13, -15, -18: entry number depth + 1 fails the queue, once. Polls return 0 from then on.
#[test]
fn overrun() {
    let queue = CompletionQueue::new(2);
    queue.arm(Arm::Failure);
    queue.push(entry(WcStatus::Success), false).unwrap();
    queue.push(entry(WcStatus::Flushed), false).unwrap();
    assert_eq!(queue.take_due(), None, "an error completion is not a CQ error");
    assert_eq!(queue.push(entry(WcStatus::Success), false), Err(()));
    assert_eq!(queue.take_due(), Some(Err(CqFailure::Overrun)));
    queue.callback_returned();
    assert_eq!(queue.push(entry(WcStatus::Success), false), Ok(()), "discarded");
    assert_eq!(queue.poll(&mut [entry(WcStatus::Flushed); 4]), 0);
    assert_eq!(queue.take_due(), None);
    queue.arm(Arm::Solicited);
    assert_eq!(queue.take_due(), Some(Err(CqFailure::Overrun)), "at the next arm");
}

// A watched failure is notified once without an arm, also after a satisfied arm.
#[test]
fn watched_failure_is_notified_without_arm() {
    for is_armed in [false, true] {
        let queue = CompletionQueue::new(1);
        queue.watch_failure();
        if is_armed {
            queue.arm(Arm::Next);
        }
        queue.push(entry(WcStatus::Success), false).unwrap();
        assert_eq!(queue.take_due(), is_armed.then_some(Ok(())));
        queue.callback_returned();
        assert_eq!(queue.push(entry(WcStatus::Success), false), Err(()));
        assert_eq!(queue.take_due(), Some(Err(CqFailure::Overrun)));
        queue.callback_returned();
        assert_eq!(queue.push(entry(WcStatus::Success), false), Ok(()), "discarded");
        assert_eq!(queue.take_due(), None);
    }
}

// A batch is polled in order and satisfies an arm once. The queue fails at the entry that overruns it.
#[test]
fn batch_is_polled_in_order() {
    let queue = CompletionQueue::new(4);
    let batch = |contexts: core::ops::Range<u64>| {
        contexts.map(|context| Completion { context, ..entry(WcStatus::Success) })
    };
    assert_eq!(queue.push_all(batch(0..2)), PushOutcome::default());
    queue.arm(Arm::Next);
    assert!(queue.take_due().is_some());
    queue.arm(Arm::Next);
    assert_eq!(queue.push_all(batch(2..4)), PushOutcome { due: true, ..PushOutcome::default() });
    assert_eq!(queue.take_due(), None, "the first callback is running");
    queue.callback_returned();
    assert!(queue.take_due().is_some());
    queue.callback_returned();
    // The notification covered the third entry: the fourth is new (NDK-CQ-4).
    queue.arm(Arm::Next);
    assert!(queue.take_due().is_some());
    queue.callback_returned();
    let mut results = [entry(WcStatus::Flushed); 3];
    assert_eq!(queue.poll(&mut results), 3);
    assert_eq!(results.map(|result| result.context), [0, 1, 2]);
    assert_eq!(
        queue.push_all(batch(4..9)),
        PushOutcome { overrun: true, ..PushOutcome::default() }
    );
    assert_eq!(queue.poll(&mut results), 0);
    assert_eq!(queue.push_all(batch(9..10)), PushOutcome::default(), "discarded");
}

// After the removal of a queue pair's completions, the remaining ones are as new and as solicited as before.
#[test]
fn completions_of_a_queue_pair_are_removed() {
    let [gone, stays] = [QpId::new(1, 0), QpId::new(2, 0)];
    for arm in [Arm::Next, Arm::Solicited] {
        for (old, new, is_due) in [
            (&[stays][..], &[gone][..], false),
            (&[gone], &[stays], true),
            (&[stays, gone, stays], &[gone, stays, gone], true),
            (&[gone, gone], &[], false),
            (&[], &[stays, gone], true),
        ] {
            let queue = CompletionQueue::new(8);
            let push = |qp| queue.push(Completion { qp, ..entry(WcStatus::Success) }, true);
            old.iter().for_each(|qp| push(*qp).unwrap());
            if !old.is_empty() {
                queue.arm(Arm::Next);
                assert!(queue.take_due().is_some());
                queue.callback_returned();
            }
            new.iter().for_each(|qp| push(*qp).unwrap());
            queue.remove(gone);
            queue.arm(arm);
            assert_eq!(queue.take_due().is_some(), is_due, "{old:?} {new:?} {arm:?}");
            let count = old.iter().chain(new).filter(|qp| **qp == stays).count();
            let mut results = [entry(WcStatus::Flushed); 8];
            assert_eq!(queue.poll(&mut results), count);
            assert!(results[..count].iter().all(|result| result.qp == stays));
        }
    }
}

/// Position of a thread in the list that both threads traverse.
#[derive(Default)]
struct Position(AtomicUsize);

impl Position {
    /// Polls of the other thread's position before giving up: that thread may not be scheduled.
    const POLLS_MAX: usize = 100;
    /// Positions passed alone before the next wait.
    const UNSYNCHRONIZED_MAX: usize = 16;

    /// Publishes position `own`, and waits a bounded time for the other thread to reach it.
    fn meet(&self, own: usize, other: &Self, alone: &mut usize) {
        self.0.store(own + 1, Ordering::Release);
        if *alone > 0 {
            *alone -= 1;
            return;
        }
        for _ in 0..Self::POLLS_MAX {
            if other.0.load(Ordering::Acquire) > own {
                return;
            }
            core::hint::spin_loop();
        }
        *alone = Self::UNSYNCHRONIZED_MAX;
    }
}

// NDK-CQ-2, -11: an arm on one thread concurrent with a completion on another gives one notification. Both threads
// traverse a row of queues in step, and wait for each other at its end. A thread that is not scheduled is not waited
// for at each queue.
#[test]
fn arms_race_with_completions() {
    const QUEUES: usize = 1000;
    const ROUNDS: u32 = 2000;
    let row: Vec<_> = (0..QUEUES).map(|_| (CompletionQueue::new(2), AtomicU32::new(0))).collect();
    let end = std::sync::Barrier::new(2);
    let places = [Position::default(), Position::default()];
    let pass = |own: usize, act: &dyn Fn(&CompletionQueue)| {
        let mut alone = 0;
        for (number, (queue, notified)) in row.iter().enumerate() {
            places[own].meet(number, &places[1 - own], &mut alone);
            act(queue);
            if let Some(outcome) = queue.take_due() {
                assert_eq!(outcome, Ok(()));
                notified.fetch_add(1, Ordering::Relaxed);
                queue.callback_returned();
            }
        }
        end.wait();
    };
    let push = |queue: &CompletionQueue| queue.push(entry(WcStatus::Success), false).unwrap();
    let arm = |queue: &CompletionQueue| {
        queue.arm(Arm::Next);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                pass(1, &push);
                end.wait();
            }
        });
        for round in 0..ROUNDS {
            pass(0, &arm);
            for (queue, notified) in &row {
                assert_eq!(notified.load(Ordering::Relaxed), round + 1);
                assert_eq!(queue.poll(&mut [entry(WcStatus::Flushed); 2]), 1);
            }
            places.iter().for_each(|place| place.0.store(0, Ordering::Relaxed));
            end.wait();
        }
    });
}

// NDK-MOD-2, -3, -5: a satisfied arm is notified when the count is reached or its interval has expired. The completions
// can be polled meanwhile. Two arms merge while the notification is held.
#[test]
fn moderated_notifications_are_held() {
    let interval = Duration::from_micros(50);
    let moderated = |interval, count| {
        let queue = CompletionQueue::new(16);
        assert!(!queue.moderate(Some(CqModeration { interval, count })));
        queue.arm(Arm::Next);
        queue
    };
    let push = |queue: &CompletionQueue| queue.push(entry(WcStatus::Success), false).unwrap();
    let queue = moderated(Some(interval), Some(3));
    push(&queue);
    assert_eq!(queue.begin_hold(), Some((1, interval)));
    assert_eq!(queue.begin_hold(), None, "once");
    assert_eq!(queue.poll(&mut [entry(WcStatus::Flushed)]), 1, "the entry can be polled");
    push(&queue);
    assert_eq!(queue.arm(Arm::Next), PushOutcome::default(), "already held");
    assert_eq!(queue.take_due(), None);
    push(&queue);
    assert_eq!(queue.take_due(), Some(Ok(())), "the third");
    queue.callback_returned();
    queue.end_hold(1);
    assert_eq!(queue.take_due(), None, "an old hold does not end the next one");

    // Completions before the arm are counted. The interval ends a hold whose count is not reached.
    push(&queue);
    assert!(queue.arm(Arm::Next).is_hold_new);
    let (hold, _) = queue.begin_hold().unwrap();
    push(&queue);
    assert_eq!(queue.take_due(), None);
    queue.end_hold(hold);
    assert_eq!(queue.take_due(), Some(Ok(())));
    queue.callback_returned();

    let queue = moderated(None, Some(2));
    push(&queue);
    assert_eq!(queue.begin_hold(), None, "there is no interval");
    assert_eq!(queue.take_due(), None);
    push(&queue);
    assert_eq!(queue.take_due(), Some(Ok(())));
    let queue = moderated(Some(interval), None);
    (0..10).for_each(|_| push(&queue));
    assert_eq!(queue.take_due(), None);
    // Failures are notified immediately, and so are arms without moderation.
    assert!(queue.push_all((0..7).map(|_| entry(WcStatus::Success))).overrun);
    assert_eq!(queue.take_due(), Some(Err(CqFailure::Overrun)));
    let queue = moderated(Some(interval), None);
    push(&queue);
    queue.moderate(None);
    assert_eq!(queue.take_due(), Some(Ok(())));
}

// NDK-CQ-14: after the loss of the device each arm reports it, and flushed completions can be polled.
#[test]
fn lost_device_is_reported_to_each_arm() {
    let queue = CompletionQueue::new(2);
    queue.arm(Arm::Failure);
    queue.lose_device();
    queue.push(entry(WcStatus::Flushed), false).unwrap();
    assert_eq!(queue.take_due(), Some(Err(CqFailure::DeviceLost)));
    queue.callback_returned();
    assert_eq!(queue.poll(&mut [entry(WcStatus::Success); 4]), 1);
    queue.arm(Arm::Solicited);
    assert_eq!(queue.take_due(), Some(Err(CqFailure::DeviceLost)));
    assert_eq!(queue.resize(8), Err(VerbError::CqFailed));
}

// NDK-RSZ-2
#[test]
fn resize() {
    let queue = CompletionQueue::new(2);
    queue.push(entry(WcStatus::Success), false).unwrap();
    queue.push(entry(WcStatus::Success), false).unwrap();
    assert_eq!(queue.resize(1), Err(VerbError::CompletionsPresent));
    assert_eq!(queue.resize(2), Ok(()));
    assert_eq!(queue.resize(3), Ok(()));
    assert_eq!(queue.push(entry(WcStatus::Success), false), Ok(()));
    assert_eq!(queue.push(entry(WcStatus::Success), false), Err(()));
}
