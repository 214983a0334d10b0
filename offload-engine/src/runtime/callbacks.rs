//! Callbacks of consumers: collected under the core's lock, called with no lock held.
//!
//! There are two queues, each in the order in which its callbacks became due. The first has callbacks that any thread
//! may call, also one that has only made a call. The second has callbacks for threads that run the loop, or for the
//! progress thread alone if the core has one: a consumer that makes calls under a lock which its callback takes does
//! not deadlock. After the loss of the device no thread runs the loop, and callers serve the second queue too.
//!
//! One thread at a time delivers a queue: callbacks neither nest nor overtake each other. Lock order: core, then queue;
//! a queue's lock is held for a push or a pop.

use std::{
    boxed::Box,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    vec::Vec,
};

use super::Passive;
use crate::{
    engine::{Callback, doorbell::Doorbell},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// Callbacks of one core.
#[derive(Default)]
pub(super) struct Callbacks {
    /// For any thread.
    pub(super) of_calls: Queue,
    /// For threads that run the loop.
    pub(super) of_loop: Queue,
    progress_thread: Option<ProgressThread>,
}

/// Thread that delivers the queue of the loop without always running the loop.
struct ProgressThread {
    wake: Box<dyn Fn() + Send + Sync>,
    /// True if the queue has callbacks for it.
    is_due: AtomicBool,
}

/// Queues that the thread which has collected callbacks is to deliver.
#[derive(Clone, Copy, Default)]
pub(super) struct Due {
    pub(super) of_calls: bool,
    pub(super) of_loop: bool,
}

impl Due {
    pub(super) const fn or(self, other: Self) -> Self {
        Self { of_calls: self.of_calls || other.of_calls, of_loop: self.of_loop || other.of_loop }
    }
}

impl Callbacks {
    /// Leaves the queue of the loop to another thread, which `wake` wakes.
    pub(super) fn with_progress_thread(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let progress_thread = Some(ProgressThread { wake, is_due: AtomicBool::new(false) });
        Self { progress_thread, ..Self::default() }
    }

    /// Collects the callbacks of `core` that became due, in an iteration of the loop or in a call. The lock of the core
    /// is held, which keeps the order.
    pub(super) fn collect<K: Passive>(
        &self,
        core: &mut K,
        in_loop: bool,
        is_lost: bool,
        doorbell: &Doorbell,
    ) -> Due {
        let of_calls = self.of_calls.collect(|due| core.take_callbacks_of_calls(due));
        if !in_loop && !is_lost && self.progress_thread.is_none() {
            return Due { of_calls, of_loop: false };
        }
        let of_loop = self.of_loop.collect(|due| core.take_callbacks(due));
        match &self.progress_thread {
            Some(ProgressThread { wake, is_due }) if of_loop && !is_lost => {
                is_due.store(true, Ordering::Release);
                wake();
                doorbell.ring();
                Due { of_calls, of_loop: false }
            }
            _ => Due { of_calls, of_loop },
        }
    }

    /// Returns true if the queue of the loop has callbacks for the progress thread.
    pub(super) fn is_due_for_progress_thread(&self) -> bool {
        self.progress_thread.as_ref().is_some_and(|it| it.is_due.load(Ordering::Acquire))
    }

    /// As [`Callbacks::is_due_for_progress_thread`]; the callbacks count as delivered. Takes no lock.
    pub(super) fn take_due_of_progress_thread(&self) -> bool {
        self.progress_thread.as_ref().is_some_and(|it| it.is_due.swap(false, Ordering::Acquire))
    }
}

/// Callbacks that are due.
#[derive(Default)]
pub(super) struct Queue(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    queue: VecDeque<Callback>,
    /// True while a thread delivers them.
    delivering: bool,
}

impl Queue {
    /// Adds the callbacks that became due. Returns true if there was any: then the caller delivers.
    fn collect(&self, take: impl FnOnce(&mut Vec<Callback>)) -> bool {
        let mut due = Vec::new();
        take(&mut due);
        let any = !due.is_empty();
        if any {
            self.0.lock().queue.extend(due);
        }
        any
    }

    /// Returns true if callbacks have to be delivered and no thread does.
    pub(super) fn is_due(&self) -> bool {
        let pending = self.0.lock();
        !pending.delivering && !pending.queue.is_empty()
    }

    /// Calls the due callbacks, with no lock held, including those that become due meanwhile. Returns false if there
    /// was nothing, or another thread delivers.
    pub(super) fn deliver(&self) -> bool {
        let mut next = self.begin();
        if next.is_none() {
            return false;
        }
        while let Some(callback) = next {
            // A panic must not hold up the callbacks after it.
            if catch_unwind(AssertUnwindSafe(callback)).is_err() {
                tracing::error!("callback of a consumer panicked");
            }
            next = self.next();
        }
        true
    }

    /// Begins a delivery with the first callback.
    fn begin(&self) -> Option<Callback> {
        let mut pending = self.0.lock();
        if pending.delivering {
            return None;
        }
        let first = pending.queue.pop_front();
        pending.delivering = first.is_some();
        first
    }

    /// Returns the next callback of a delivery; `None` ends it.
    fn next(&self) -> Option<Callback> {
        let mut pending = self.0.lock();
        let next = pending.queue.pop_front();
        pending.delivering = next.is_some();
        next
    }
}
