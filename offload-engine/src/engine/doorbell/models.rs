//! Models of all interleavings of a sleeper and its ringers, run by `tests/loom`.
//!
//! A lost wake-up appears as a deadlock: the sleeper waits for a signal that is never sent.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::sync::{Mutex, atomic::AtomicUsize};

/// Queue with the weakest ordering of a channel: messages become visible only through the doorbell's ordering.
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

/// Receive loop that sleeps when the queue is empty.
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
fn message_during_sleep_entry_is_received() {
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

// Two threads ring one sleeper: one clears the announcement, and the other relies on its signal.
#[test]
fn messages_of_two_ringers_are_received() {
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

// Doorbells of `port` and of the sockets: requests in one direction, responses in the other, and each side sleeps when
// its queue is empty. Messages arrive in order, none lost, none duplicated.
#[test]
fn two_sleeping_sides_exchange_all_messages() {
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

// A sleep ended by the link or a timer leaves no state that makes the next sleep miss a message.
#[test]
fn timed_out_sleep_loses_no_message() {
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
