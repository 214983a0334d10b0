//! Models of the threads of a core: every interleaving, up to a number of preemptions. `tests/loom` runs them.
//!
//! Threads, lock, condition, doorbell and queues are those of the runtime; only the core is a model. A lost wake-up is
//! a deadlock: every thread left waits for another.

use std::{boxed::Box, io, sync::Arc, vec, vec::Vec};

use loom::thread;

use super::{Monitor, Passive, Progress, Urgency};
use crate::{
    engine::{Callback, doorbell::Doorbell},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// A core reduced to the events that its threads must not miss.
#[derive(Default)]
struct Model {
    /// Messages of the host stack that were not taken: no lock orders them.
    inbox: Arc<AtomicUsize>,
    taken: usize,
    /// A timer is armed, and how many ran.
    timer: bool,
    expired: usize,
    /// A frame waits for the link, and how many left.
    stalled: bool,
    sent: usize,
    /// Effects of a call that are not settled yet.
    acted: bool,
    /// Work left by calls for the next thread, and its executions.
    waits: bool,
    done: usize,
    due: Vec<Callback>,
}

impl Passive for Model {
    fn poll(&mut self, _now: Instant) -> io::Result<bool> {
        let taken = self.inbox.swap(0, Ordering::Acquire);
        self.taken += taken;
        let (expired, sent) = (std::mem::take(&mut self.timer), std::mem::take(&mut self.stalled));
        self.expired += usize::from(expired);
        self.sent += usize::from(sent);
        let done = self.settle_waiting();
        Ok(taken > 0 || expired || sent || done)
    }

    fn settle(&mut self, _now: Instant) -> bool {
        let done = self.settle_waiting();
        std::mem::take(&mut self.acted) || done
    }

    fn poll_at(&self, _now: Instant) -> Option<Instant> {
        self.timer.then_some(Instant::from_nanos(0))
    }

    fn has_input(&self) -> bool {
        self.inbox.load(Ordering::Acquire) > 0 || self.waits
    }

    fn awaits_writable(&self) -> bool {
        self.stalled
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        callbacks.append(&mut self.due);
    }

    fn device_lost(&mut self) {}

    fn repeat_last_acks(&mut self, _now: Instant) {}
}

impl Model {
    fn settle_waiting(&mut self) -> bool {
        let waits = std::mem::take(&mut self.waits);
        self.done += usize::from(waits);
        waits
    }
}

type Node = Monitor<Model>;

fn node(progress: Progress) -> (Arc<Node>, Arc<AtomicUsize>) {
    let core = Model::default();
    let inbox = core.inbox.clone();
    let bell = Arc::new(Doorbell::new().unwrap());
    (Arc::new(Monitor::new(core, bell, None, Duration::ZERO, progress)), inbox)
}

fn engine(node: &Arc<Node>) -> thread::JoinHandle<()> {
    let node = node.clone();
    thread::spawn(move || node.engine_thread())
}

fn stop(node: &Node, engine: thread::JoinHandle<()>) {
    node.stop();
    node.doorbell().ring();
    engine.join().unwrap();
}

/// The host stack sends a message, as `SocketPort` and `HostPort` do.
fn send(node: &Node, inbox: &AtomicUsize) {
    inbox.fetch_add(1, Ordering::Release);
    node.doorbell().ring();
}

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn engine_thread_stops_on_request() {
    explore(3, || {
        let (node, _) = node(Progress::Automatic);
        let engine = engine(&node);
        stop(&node, engine);
    });
}

#[test]
fn message_reaches_waiting_thread() {
    explore(2, || {
        let (node, inbox) = node(Progress::Automatic);
        let engine = engine(&node);
        send(&node, &inbox);
        node.wait(None, |core, _| (core.taken == 1).then_some(())).unwrap();
        stop(&node, engine);
    });
}

// A call that arms a timer while the engine's thread is about to sleep: it must not sleep past it.
#[test]
fn timer_armed_by_call_bounds_sleep() {
    explore(3, || {
        let (node, _) = node(Progress::Automatic);
        let engine = engine(&node);
        node.with(|core, _| core.timer = true);
        node.wait(None, |core, _| (core.expired == 1).then_some(())).unwrap();
        stop(&node, engine);
    });
}

// A post that may wait is left to the engine's thread, or done by the poster if that thread sleeps: it is always done.
#[test]
fn deferred_work_bounds_sleep() {
    explore(3, || {
        let (node, _) = node(Progress::Automatic);
        let engine = engine(&node);
        node.with_lazily(|core| {
            core.waits = true;
            Urgency::Soon
        });
        node.wait(None, |core, _| (core.done == 1).then_some(())).unwrap();
        stop(&node, engine);
    });
}

// A call whose frame did not fit into the link: the engine's thread must wait for a writable link.
#[test]
fn full_link_bounds_sleep() {
    explore(3, || {
        let (node, _) = node(Progress::Automatic);
        let engine = engine(&node);
        node.with(|core, _| core.stalled = true);
        node.wait(None, |core, _| (core.sent == 1).then_some(())).unwrap();
        stop(&node, engine);
    });
}

// A wait ends if a callback has met its condition, for any caller and at any point of the wait.
#[test]
fn callback_ends_wait() {
    for progress in [Progress::Automatic, Progress::Manual] {
        explore(3, move || {
            let (node, _) = node(progress);
            let called = Arc::new(AtomicBool::new(false));
            let caller = thread::spawn({
                let (node, called) = (node.clone(), called.clone());
                move || {
                    node.with(|core, _| {
                        core.due.push(Box::new(move || called.store(true, Ordering::Relaxed)));
                    });
                }
            });
            node.wait_until(None, || called.load(Ordering::Relaxed).then_some(())).unwrap();
            caller.join().unwrap();
        });
    }
}

// Manual progress: another thread may take the frames from the link that this one waits for.
#[test]
fn message_taken_by_another_thread_ends_wait() {
    explore(3, || {
        let (node, inbox) = node(Progress::Manual);
        let taker = thread::spawn({
            let node = node.clone();
            move || {
                inbox.fetch_add(1, Ordering::Release);
                node.progress();
            }
        });
        node.wait(None, |core, _| (core.taken == 1).then_some(())).unwrap();
        taker.join().unwrap();
    });
}

// The effects of a call may also end the wait.
#[test]
fn effect_of_call_ends_wait() {
    explore(3, || {
        let (node, _) = node(Progress::Manual);
        let caller = thread::spawn({
            let node = node.clone();
            move || node.with(|core, _| core.waits = true)
        });
        node.wait(None, |core, _| (core.done == 1).then_some(())).unwrap();
        caller.join().unwrap();
    });
}

#[test]
fn external_wake_ends_wait() {
    for progress in [Progress::Automatic, Progress::Manual] {
        explore(3, move || {
            let (node, _) = node(progress);
            let signal = Arc::new(AtomicBool::new(false));
            let waker = thread::spawn({
                let (node, signal) = (node.clone(), signal.clone());
                move || {
                    signal.store(true, Ordering::Relaxed);
                    node.wake();
                }
            });
            node.wait_until(None, || signal.load(Ordering::Relaxed).then_some(())).unwrap();
            waker.join().unwrap();
        });
    }
}

/// Has `count` callbacks of `thread` become due, one call each; the first one posts another.
fn post(node: &Arc<Node>, log: &Arc<Log>, thread: usize, count: usize) {
    for serial in 0..count {
        let (again, log) = (node.clone(), log.clone());
        node.with(move |core, _| {
            core.due.push(Box::new(move || {
                log.enter();
                if serial == 0 {
                    let nested = log.clone();
                    again.with(|core, _| {
                        core.due.push(Box::new(move || {
                            nested.enter();
                            nested.end(thread, count);
                        }));
                    });
                }
                log.end(thread, serial);
            }));
        });
    }
}

/// Order of callbacks as seen by callbacks.
#[derive(Default)]
struct Log {
    running: AtomicBool,
    entries: Mutex<Vec<(usize, usize)>>,
}

impl Log {
    fn enter(&self) {
        let nested = self.running.swap(true, Ordering::Relaxed);
        assert!(!nested, "callbacks nest, or run on two threads");
    }

    fn end(&self, thread: usize, serial: usize) {
        self.entries.lock().push((thread, serial));
        self.running.store(false, Ordering::Relaxed);
    }

    /// The serials of one thread, in the order they were called.
    fn of(&self, thread: usize) -> Vec<usize> {
        let entries = self.entries.lock();
        entries.iter().filter(|(of, _)| *of == thread).map(|(_, serial)| *serial).collect()
    }
}

// CH-RCC-2, NDK-CQ-3: one at a time, never inside one another, in order, none lost, none twice, and none left
// after all threads have exited.
#[test]
fn callbacks_run_once_in_order_without_nesting() {
    explore(2, || {
        let (node, _) = node(Progress::Automatic);
        let log = Arc::new(Log::default());
        let other = thread::spawn({
            let (node, log) = (node.clone(), log.clone());
            move || post(&node, &log, 1, 1)
        });
        post(&node, &log, 0, 2);
        other.join().unwrap();
        // The callback that the first one posts is due before or after the caller's second call.
        let own = log.of(0);
        assert!(own == vec![0, 1, 2] || own == vec![0, 2, 1], "{own:?}");
        assert_eq!(log.of(1), vec![0, 1]);
    });
}

// Manual progress: one of those who wait sleeps on the link, and when it leaves another one does.
#[test]
fn two_waiters_with_manual_progress_are_both_served() {
    explore(2, || {
        let (node, inbox) = node(Progress::Manual);
        let other = thread::spawn({
            let node = node.clone();
            move || node.wait(None, |core, _| (core.taken >= 2).then_some(())).unwrap()
        });
        let talker = thread::spawn({
            let node = node.clone();
            move || {
                send(&node, &inbox);
                send(&node, &inbox);
            }
        });
        node.wait(None, |core, _| (core.taken >= 1).then_some(())).unwrap();
        talker.join().unwrap();
        other.join().unwrap();
    });
}

// Two conditions, neither of them true: the two threads wait, they do not keep each other awake.
#[test]
fn two_waiters_for_one_message_both_return() {
    explore(2, || {
        let (node, inbox) = node(Progress::Automatic);
        let engine = engine(&node);
        let other = thread::spawn({
            let node = node.clone();
            move || node.wait(None, |core, _| (core.taken == 1).then_some(())).unwrap()
        });
        send(&node, &inbox);
        node.wait(None, |core, _| (core.taken == 1).then_some(())).unwrap();
        other.join().unwrap();
        stop(&node, engine);
    });
}
