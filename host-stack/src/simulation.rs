//! Two nodes on virtual time: the standard test bench.
//!
//! A [`Pair`] polls two nodes, each a [`Core`] or (on several queues) [`Cores`], by turns until
//! neither has anything to do, then moves the clock to the next time at which one of them has to be
//! polled. Nothing sleeps and nothing depends on the machine, so a run is a function of its
//! seeds. A run that makes no progress fails instead of hanging: [`ITERATIONS_MAX`] bounds the
//! work at one moment, the caller's limit the virtual time.

mod streams;

use std::io;

use offload_engine::time::Instant;

pub use self::streams::{has_no_connection, impaired_wire, patient_engine, station};
use crate::node::{Core, Cores};

/// Iterations of both nodes at one moment of virtual time. More is a livelock.
pub const ITERATIONS_MAX: usize = 1_000_000;

/// Why a run ended before its condition held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Stall {
    /// No event is pending.
    #[error("simulation: nothing is due and the condition does not hold at {0:?}")]
    Idle(Instant),
    /// The limit of virtual time is reached.
    #[error("simulation: the condition does not hold at the time limit {0:?}")]
    TimeLimit(Instant),
    /// The nodes keep each other busy without time moving.
    #[error("simulation: livelock at {0:?}")]
    Livelock(Instant),
}

/// A node without clock or thread.
pub trait Simulated {
    /// One iteration. Returns whether there was anything to do.
    ///
    /// # Errors
    /// The link is gone.
    fn poll(&mut self, now: Instant) -> io::Result<bool>;

    /// When [`Simulated::poll`] has to be called again though nothing has happened.
    fn poll_at(&self, now: Instant) -> Option<Instant>;

    /// Whether something waits in a queue.
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
    /// One node.
    pub a: A,
    /// The other.
    pub b: B,
    /// Virtual time.
    pub now: Instant,
}

impl<A: Simulated, B: Simulated> Pair<A, B> {
    /// Two nodes at time zero. Their links should be a pair.
    pub const fn new(a: A, b: B) -> Self {
        Self { a, b, now: Instant::ZERO }
    }

    /// Runs until `done` has a result; it is called after each round of both nodes, and may act on them.
    ///
    /// # Errors
    /// The run stalls, or virtual time passes `limit`.
    ///
    /// # Panics
    /// When an in-memory link fails: a bug of ours.
    pub fn run<R>(
        &mut self,
        limit: Instant,
        mut done: impl FnMut(&mut Self) -> Option<R>,
    ) -> Result<R, Stall> {
        loop {
            let mut iterations = 0;
            // A link that moves a delayed frame on is not counted as work by the node that owns it, so
            // the other node has to look once more.
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
            // Something due in the past is due now; it must not turn time back.
            self.now = self.now.max(next);
        }
    }
}
