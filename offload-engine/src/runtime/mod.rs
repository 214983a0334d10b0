//! Thread runtime of a passive core: its lock, its clock, the threads that run its loop, and when they sleep.
//!
//! A core implements [`Passive`]: `poll` is one iteration, time is its argument. [`Monitor`] owns it. With
//! [`Progress::Automatic`] a thread runs the loop, with [`Progress::Manual`] the callers do while they wait or poll.
//! [`Progress::Shared`] adds a background thread to manual progress, which runs the loop when no caller does
//! ([`Presence`]).
//!
//! The runtime has no protocol: a node with its host stack and an adapter on kernel sockets are both cores of it.
//! `models` tries every interleaving of its threads on a core of a few lines.

mod callbacks;
mod cpu;
mod idle;
#[cfg(all(test, loom))]
mod models;
mod monitor;
mod progress;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{io, string::String, vec::Vec};

pub use self::{monitor::Monitor, progress::Presence};
use crate::{engine::Callback, time::Instant};

/// Last acknowledgments that a core repeats when it ends ([`Passive::repeat_last_acks`]).
pub const LAST_ACK_REPEATS: usize = 2;

crate::option_enum! {
    /// Thread that runs the loop of engine and host stack.
    pub enum Progress {
        /// Threads of the node
        #[default]
        #[cfg_attr(feature = "serde", serde(rename = "auto"))]
        #[cfg_attr(feature = "clap", value(name = "auto"))]
        Automatic,
        /// The calling thread, while it waits or polls for completions
        // In `Monitor::wait` and `Monitor::progress`.
        Manual,
        /// The calling thread, while it waits or polls for completions; otherwise a thread of the node
        // As `Manual`, with `Monitor::progress_thread`.
        Shared,
    }
}

/// Time by which the effects of a call must be flushed ([`Monitor::with_lazily`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// There are none.
    None,
    /// In the next iteration of the loop; before the call returns if no thread is awake.
    Soon,
    /// Before the call returns.
    Now,
}

/// Error of a wait that ended without a result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The time limit has expired.
    #[error("node: time limit exceeded")]
    TimedOut,
    /// The link is lost.
    #[error("link: {0}")]
    Link(String),
    /// A thread of the node has panicked, for example in an upcall of its client.
    #[error("node: thread panicked")]
    Panicked,
}

/// Core without clock, thread or sleep.
pub trait Passive {
    /// Runs one iteration. Returns true if there was anything to do.
    ///
    /// # Errors
    /// The link is lost.
    fn poll(&mut self, now: Instant) -> io::Result<bool>;

    /// Flushes the effects of a call: takes notices, sends segments. Returns true if there was anything to do.
    fn settle(&mut self, now: Instant) -> bool;

    /// Returns the time at which [`Passive::poll`] is due though nothing has happened.
    fn poll_at(&self, now: Instant) -> Option<Instant>;

    /// Returns true if a queue has input.
    fn has_input(&self) -> bool;

    /// Returns true if output waits for the link to become writable.
    fn awaits_writable(&self) -> bool;

    /// Returns the number of messages, or of parts of them, received so far; 0: unknown.
    fn received(&self) -> u64 {
        0
    }

    /// Moves out the callbacks of consumers that became due.
    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>);

    /// Moves out those callbacks that a thread may call which has only made a call. Default: all of them.
    fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        self.take_callbacks(callbacks);
    }

    /// Returns true if callbacks are due that only threads may call which run the loop.
    fn has_callbacks_of_loop(&self) -> bool {
        false
    }

    /// Handles the loss of the device.
    fn device_lost(&mut self);

    /// Acknowledges once more the data and FINs of peers whose connections are in TIME-WAIT: the core ends before that
    /// is over.
    fn repeat_last_acks(&mut self, now: Instant);
}
