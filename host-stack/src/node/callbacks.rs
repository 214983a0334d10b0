//! The queue of callbacks that wait for a thread.

use std::{collections::VecDeque, vec::Vec};

use offload_engine::{engine::Callback, sync::Mutex};

/// Callbacks that are due, and whether a thread delivers them.
#[derive(Default)]
pub(super) struct Callbacks(Mutex<Due>);

#[derive(Default)]
struct Due {
    queue: VecDeque<Callback>,
    delivering: bool,
}

impl Callbacks {
    /// Adds what has become due, and returns whether there was any: then the caller is to deliver. The core's
    /// lock is held, which keeps the order.
    pub(super) fn collect(&self, take: impl FnOnce(&mut Vec<Callback>)) -> bool {
        let mut due = Vec::new();
        take(&mut due);
        let any = !due.is_empty();
        if any {
            self.0.lock().queue.extend(due);
        }
        any
    }

    /// Whether callbacks have to be delivered.
    pub(super) fn is_due(&self) -> bool {
        let due = self.0.lock();
        !due.delivering && !due.queue.is_empty()
    }

    /// Begins a delivery, unless there is nothing or one is under way, and takes the first callback.
    pub(super) fn begin(&self) -> Option<Callback> {
        let mut due = self.0.lock();
        if due.delivering {
            return None;
        }
        let first = due.queue.pop_front();
        due.delivering = first.is_some();
        first
    }

    /// The next callback of a delivery; `None` ends it.
    pub(super) fn next(&self) -> Option<Callback> {
        let mut due = self.0.lock();
        let next = due.queue.pop_front();
        due.delivering = next.is_some();
        next
    }
}
