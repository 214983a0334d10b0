//! Two nodes on virtual time: the standard test bench.
//!
//! A [`Pair`] polls two nodes, each a [`Core`] or (on several queues) [`Cores`], alternately until both are idle. Then
//! it advances the clock to the next time at which one of them must be polled. Nothing sleeps or depends on the
//! machine, so a run is a function of its seeds. A run without progress fails instead of hanging: [`ITERATIONS_MAX`]
//! limits the iterations at one time, the caller limits the virtual time.

mod streams;

use std::io;

use offload_engine::time::Instant;

pub use self::streams::{engine_with_long_time_wait, has_no_connection, impaired_wire, station};
use crate::node::{Core, Cores};

/// Maximum iterations of both nodes at one virtual time. More is a livelock.
pub const ITERATIONS_MAX: usize = 1_000_000;

/// Reason for a run's end before its condition held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Stall {
    /// No event is pending.
    #[error("simulation: no event pending and condition not reached at {0:?}")]
    Idle(Instant),
    /// The limit of virtual time is reached.
    #[error("simulation: condition not reached at the time limit {0:?}")]
    TimeLimit(Instant),
    /// The nodes keep each other busy without progress of time.
    #[error("simulation: livelock at {0:?}")]
    Livelock(Instant),
}

/// A node without clock or thread.
pub trait Simulated {
    /// Runs one iteration. Returns true if there was any work.
    ///
    /// # Errors
    /// The link is lost.
    fn poll(&mut self, now: Instant) -> io::Result<bool>;

    /// Time of the next [`Simulated::poll`] without new input.
    fn poll_at(&self, now: Instant) -> Option<Instant>;

    /// True if a queue has input.
    fn has_input(&self) -> bool;
}

macro_rules! simulated {
    ($($node:ty)*) => {$(
        impl Simulated for $node {
            fn poll(&mut self, now: Instant) -> io::Result<bool> {
                Self::poll(self, now)
            }

            fn poll_at(&self, now: Instant) -> Option<Instant> {
                Self::poll_at(self, now)
            }

            fn has_input(&self) -> bool {
                Self::has_input(self)
            }
        }
    )*};
}

simulated!(Core Cores);

/// Two nodes and their clock.
#[derive(Debug)]
pub struct Pair<A, B = A> {
    /// First node.
    pub a: A,
    /// Second node.
    pub b: B,
    /// Virtual time.
    pub now: Instant,
}

impl<A: Simulated, B: Simulated> Pair<A, B> {
    /// Creates a pair at time zero. The nodes' links should be connected to each other.
    pub const fn new(a: A, b: B) -> Self {
        Self { a, b, now: Instant::ZERO }
    }

    /// Runs until `done` has a result; it is called after each round of both nodes, and may act on them.
    ///
    /// # Errors
    /// The run stalls, or virtual time passes `limit`.
    ///
    /// # Panics
    /// An in-memory link fails, which is a bug.
    pub fn run<R>(
        &mut self,
        limit: Instant,
        mut done: impl FnMut(&mut Self) -> Option<R>,
    ) -> Result<R, Stall> {
        loop {
            let mut iterations = 0;
            // A link that forwards a delayed frame is not counted as work by its node, so the other node is polled once
            // more.
            let mut idle_rounds = 0;
            while idle_rounds < 2 {
                let busy = self.a.poll(self.now).expect("in-memory link")
                    | self.b.poll(self.now).expect("in-memory link");
                if let Some(result) = done(self) {
                    return Ok(result);
                }
                let idle = !busy && !self.a.has_input() && !self.b.has_input();
                idle_rounds = if idle { idle_rounds + 1 } else { 0 };
                iterations += 1;
                if iterations > ITERATIONS_MAX {
                    return Err(Stall::Livelock(self.now));
                }
            }
            let next = [self.a.poll_at(self.now), self.b.poll_at(self.now)];
            let Some(next) = next.into_iter().flatten().min() else {
                return Err(Stall::Idle(self.now));
            };
            if next > limit {
                return Err(Stall::TimeLimit(self.now));
            }
            // An overdue deadline is due now; it must not turn back the time.
            self.now = self.now.max(next);
        }
    }
}
