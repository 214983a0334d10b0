//! Node whose threads, one for each queue and one for the host stack, run in an order selected by the seed.

use std::{
    io,
    ops::{Deref, DerefMut},
};

use host_stack::{node::Cores, simulation::Simulated};
use offload_engine::time::Instant;
use oorandom::Rand64;

/// Mean number of turns per missed one: a thread waits for its CPU.
const MISSED: u64 = 4;

/// Node with simulated threads.
pub(crate) struct ScheduledThreads {
    cores: Cores,
    /// Generator of the order; `None`: fixed order.
    rng: Option<Rand64>,
    /// Queues, followed by the host stack.
    turns: Vec<usize>,
}

impl ScheduledThreads {
    pub(crate) fn new(cores: Cores, is_free: bool, seed: u64) -> Self {
        let rng = is_free.then(|| Rand64::new(u128::from(seed) ^ 0x7423 << 64));
        let turns = (0..=cores.shards.len()).collect();
        Self { cores, rng, turns }
    }
}

impl Deref for ScheduledThreads {
    type Target = Cores;

    fn deref(&self) -> &Cores {
        &self.cores
    }
}

impl DerefMut for ScheduledThreads {
    fn deref_mut(&mut self) -> &mut Cores {
        &mut self.cores
    }
}

impl Simulated for ScheduledThreads {
    fn poll(&mut self, now: Instant) -> io::Result<bool> {
        let Self { cores, rng: Some(rng), turns } = self else { return self.cores.poll(now) };
        let mut busy = false;
        for left in (1..=turns.len()).rev() {
            turns.swap(left - 1, rng.rand_range(0..left as u64) as usize);
            let turn = turns[left - 1];
            busy |= match cores.shards.get_mut(turn) {
                // The thread runs later, at the same time.
                _ if rng.rand_range(0..MISSED) == 0 => true,
                Some(shard) => shard.poll(now)?,
                None => cores.host.poll(now),
            };
        }
        Ok(busy)
    }

    fn poll_at(&self, now: Instant) -> Option<Instant> {
        self.cores.poll_at(now)
    }

    fn has_input(&self) -> bool {
        self.cores.has_input()
    }
}
