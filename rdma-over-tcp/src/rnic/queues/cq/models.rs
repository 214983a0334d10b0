//! Loom models of a queue's consumer and the engine: every interleaving. Run by `tests/loom`.

use alloc::vec::Vec;

use loom::thread;
use offload_engine::sync::Condvar;

use super::*;

/// Queue, the core's lock around the delivery of notifications, and a consumer that waits for them.
struct Bench {
    queue: Arc<CompletionQueue>,
    core: Mutex<()>,
    notified: Mutex<u32>,
    changed: Condvar,
    calling: Mutex<bool>,
}

impl Bench {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: CompletionQueue::new(8),
            core: Mutex::new(()),
            notified: Mutex::new(0),
            changed: Condvar::new(),
            calling: Mutex::new(false),
        })
    }

    /// As `Objects::notify` under the core's lock, the callback without the lock, and `notification_returned`.
    fn enter(&self, work: impl FnOnce()) {
        let core = self.core.lock();
        work();
        let mut due = self.queue.take_due();
        drop(core);
        while due.take().is_some() {
            assert!(!std::mem::replace(&mut *self.calling.lock(), true), "NDK-CQ-3");
            *self.notified.lock() += 1;
            self.changed.notify_all();
            *self.calling.lock() = false;
            let _core = self.core.lock();
            self.queue.callback_returned();
            due = self.queue.take_due();
        }
    }

    fn push(&self) {
        self.enter(|| {
            self.queue.push(SUCCESS, false).unwrap();
        });
    }

    /// Polls until the queue is empty, arms, and waits for the notification (NDK-CQ-11).
    fn consume(&self, count: usize) {
        let (mut taken, mut arms) = (0, 0);
        loop {
            match self.queue.poll(&mut [SUCCESS; 1]) {
                0 if taken == count => break,
                0 => {
                    self.queue.arm(Arm::Next);
                    arms += 1;
                    self.enter(|| {});
                    let mut notified = self.notified.lock();
                    while *notified < arms {
                        notified = self.changed.wait(notified, None);
                    }
                }
                some => taken += some,
            }
        }
        assert!(*self.notified.lock() <= arms, "NDK-CQ-2: one notification per arm");
    }
}

/// Runs a consumer, and `threads` threads that push two completions in total.
fn explore(threads: usize, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let bench = Bench::new();
        let pushes = 2 / threads;
        let push = |bench: Arc<Bench>| move || (0..pushes).for_each(|_| bench.push());
        let engines: Vec<_> = (0..threads).map(|_| thread::spawn(push(bench.clone()))).collect();
        bench.consume(2);
        for engine in engines {
            engine.join().unwrap();
        }
    });
}

// NDK-CQ-2, -4, -11: a completion between an empty poll and the arm satisfies the arm in every interleaving.
#[test]
fn completion_before_arm_is_notified() {
    explore(1, 3);
}

// NDK-CQ-3: the engine thread and a consumer's thread may both complete requests and call back.
#[test]
fn notifications_of_two_threads_are_serialized() {
    explore(2, 2);
}
