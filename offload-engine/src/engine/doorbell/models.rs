//! Every interleaving of a sleeper and its ringers. `tests/loom` runs them.
//!
//! A lost wake-up shows as a deadlock: the sleeper waits for a bell that nobody will strike.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::sync::{Mutex, atomic::AtomicUsize};

/// A queue as little ordered as a channel may be: what is sent is seen only when the doorbell says so.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Counter {
    fn send(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }

    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The sleeper's loop: takes, and sleeps when there is nothing to take.
fn take_all(bell: &Doorbell, queue: &Counter, count: usize) {
    let mut taken = 0;
    while taken < count {
        match queue.take() {
            0 => bell.sleep(|| queue.is_empty().then(Sleep::default)),
            some => taken += some,
        }
    }
}

#[test]
fn no_message_is_slept_over() {
    loom::model(|| {
        let shared = Arc::new((Doorbell::new().unwrap(), Counter::default()));
        let ringer = thread::spawn({
            let shared = shared.clone();
            move || {
                for _ in 0..2 {
                    shared.1.send();
                    shared.0.ring();
                }
            }
        });
        take_all(&shared.0, &shared.1, 2);
        ringer.join().unwrap();
    });
}

// Two threads ring for one sleeper: the one whose ring finds the announcement taken relies on the other's.
#[test]
fn no_message_of_two_ringers_is_slept_over() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((Doorbell::new().unwrap(), Counter::default()));
        let ring = |shared: Arc<(Doorbell, Counter)>| {
            move || {
                shared.1.send();
                shared.0.ring();
            }
        };
        let ringers = [thread::spawn(ring(shared.clone())), thread::spawn(ring(shared.clone()))];
        take_all(&shared.0, &shared.1, 2);
        for ringer in ringers {
            ringer.join().unwrap();
        }
    });
}

// The pair of `port` and of the sockets: requests down with one bell, answers up with another, each side
// asleep when it has nothing. In order, none lost, none twice.
#[test]
fn two_sides_that_wake_each_other_exchange_everything() {
    #[derive(Debug)]
    struct Side {
        bell: Doorbell,
        queue: Mutex<std::collections::VecDeque<u32>>,
    }
    impl Side {
        fn new() -> Self {
            Self { bell: Doorbell::new().unwrap(), queue: Mutex::default() }
        }
        fn send(&self, message: u32) {
            self.queue.lock().push_back(message);
            self.bell.ring();
        }
        fn receive(&self) -> u32 {
            loop {
                if let Some(message) = self.queue.lock().pop_front() {
                    return message;
                }
                self.bell.sleep(|| self.queue.lock().is_empty().then(Sleep::default));
            }
        }
    }
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let sides = Arc::new((Side::new(), Side::new()));
        let target = thread::spawn({
            let sides = sides.clone();
            move || {
                for expected in 1..=2 {
                    let request = sides.0.receive();
                    assert_eq!(request, expected);
                    sides.1.send(request * 10);
                }
            }
        });
        sides.0.send(1);
        sides.0.send(2);
        assert_eq!(sides.1.receive(), 10);
        assert_eq!(sides.1.receive(), 20);
        target.join().unwrap();
    });
}

// A sleep that something else ended (the link, a timer) leaves nothing behind that makes the next one miss
// a message.
#[test]
fn a_sleep_that_timed_out_loses_nothing() {
    loom::model(|| {
        let shared = Arc::new((Doorbell::new().unwrap(), Counter::default()));
        let ringer = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.1.send();
                shared.0.ring();
            }
        });
        let (bell, queue) = &*shared;
        bell.sleep(|| Some(Sleep { timeout: Some(Duration::ZERO), ..Sleep::default() }));
        take_all(bell, queue, 1);
        ringer.join().unwrap();
    });
}
