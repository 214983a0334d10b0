//! Two consumers that make random calls in random order: with handles that are valid, closed or of the other adapter,
//! with random flags, lengths, addresses and tokens, with completions, callbacks and time between them.
//!
//! No call panics or returns a status unknown to NDKPI. Each accepted request completes at most once. Each call that
//! pends calls back once and no other does. Bytes that were never registered are neither written nor read, and no
//! object is left after all are closed.

mod calls;
mod pool;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use flue_test_support::check;
use offload_engine::time::{Duration, Instant};
use oorandom::Rand64;
use rdma_over_tcp::ndk::{Deferral, NtStatus, PAGE_SIZE, RegisteredBuffer};

use self::pool::Pool;
use crate::{
    bench::Bench,
    plan::{Plan, draw, once_in},
};

/// Calls of a seed, by both consumers.
const CALLS: u32 = 1_000;
/// Virtual time after which no call is made.
const CALLS_END: Instant = Instant::from_millis(600_000);
/// Memory of a consumer. Its last quarter is in the same buffer, and is never registered.
const BYTES: usize = 64 * PAGE_SIZE;
const REGISTERED: usize = 48 * PAGE_SIZE;
/// Content of the last quarter, per side: above all bytes that consumers write.
const SECRET: [u8; 2] = [0xa5, 0xb6];

/// Counts of one seed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Sum {
    /// Calls, by name and status.
    pub(crate) statuses: BTreeMap<(&'static str, Option<&'static str>), u64>,
    /// Completions of requests, by status.
    pub(crate) completions: BTreeMap<Option<&'static str>, u64>,
    /// Calls that pended.
    pub(crate) pended: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, other: Self) {
        for (key, count) in other.statuses {
            *self.statuses.entry(key).or_default() += count;
        }
        for (key, count) in other.completions {
            *self.completions.entry(key).or_default() += count;
        }
        self.pended += other.pended;
    }

    pub(crate) fn calls(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Number of calls with a status: a run must reach a minimum.
    pub(crate) fn count(&self, call: &str, status: NtStatus) -> u64 {
        let is = |(name, with): &(&str, Option<&str>)| *name == call && *with == status.name();
        self.statuses.iter().filter(|(key, _)| is(key)).map(|(_, count)| count).sum()
    }
}

/// Pending call with its count of callbacks.
struct Callback {
    call: &'static str,
    pended: bool,
    calls: Arc<AtomicU32>,
}

/// One run: both consumers and their state.
pub(crate) struct World {
    rng: Rand64,
    /// One of this many arguments is wild, or fewer.
    wild_argument_rarity: usize,
    bench: Bench,
    addresses: [IpAddr; 2],
    pools: [Pool; 2],
    memory: [RegisteredBuffer; 2],
    /// Requests accepted but not complete, per adapter.
    outstanding: [BTreeMap<u64, &'static str>; 2],
    next_context: u64,
    callbacks: Vec<Callback>,
    sum: Sum,
}

/// Runs a seed.
pub(crate) fn run(seed: u64) -> Sum {
    let mut world = World::new(seed);
    for _ in 0..CALLS {
        // The rest of the time is for pending ends: lost FINs, closes that time out.
        if world.bench.pair.now > CALLS_END {
            break;
        }
        let node = draw(&mut world.rng, 2);
        world.call(node);
        if once_in(&mut world.rng, 4) {
            let rounds = 1 + draw(&mut world.rng, 6);
            world.pass(rounds);
        }
    }
    world.close();
    world.check_memory();
    world.sum
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rand64::new(seed.into());
        let mut plan = Plan::new(&mut rng);
        for adapter in &mut plan.adapters {
            // Small tables are full occasionally.
            adapter.capabilities.max_mr_count = 24;
            adapter.capabilities.max_connector_count = 24;
            adapter.rfc7306 = once_in(&mut rng, 2);
            let seed = rng.rand_u64();
            let delay_max = Duration::from_millis(20);
            adapter.deferral = once_in(&mut rng, 2).then_some(Deferral { seed, delay_max });
        }
        let bench = Bench::new(&plan, [rng.rand_u64(), rng.rand_u64()]);
        let memory = [0, 1].map(|node| {
            let memory = bench.adapters[node].allocate(BYTES).unwrap();
            memory.write_at(REGISTERED, &vec![SECRET[node]; BYTES - REGISTERED]);
            memory
        });
        let pools = [0, 1].map(|_| Pool::default());
        let wild_argument_rarity = [2, 20, 200][draw(&mut rng, 3)];
        let mut world = Self {
            rng,
            wild_argument_rarity,
            bench,
            addresses: plan.addresses,
            pools,
            memory,
            outstanding: Default::default(),
            next_context: 0,
            callbacks: Vec::new(),
            sum: Sum::default(),
        };
        world.begin(&plan);
        world
    }

    /// Runs both nodes for some rounds, with the virtual time that they take.
    fn pass(&mut self, rounds: usize) {
        self.pass_until(rounds, || false);
    }

    /// Runs both nodes for some rounds, or until an event.
    fn pass_until(&mut self, rounds: usize, mut has_happened: impl FnMut() -> bool) {
        let mut left = rounds;
        // No event is due, or the time limit is reached: the next call is made anyway.
        let _ = self.bench.run(|| {
            left -= 1;
            left == 0 || has_happened()
        });
    }

    /// Records the status of a call.
    fn record_status(&mut self, call: &'static str, status: NtStatus) {
        let is_known = status.name().is_some();
        check!(Other, is_known, "{call}: {status:?} is not a status of NDKPI");
        // The device exists, and a queue fails only by an overrun.
        let is_due = ![NtStatus::DEVICE_REMOVED, NtStatus::INTERNAL_ERROR].contains(&status);
        check!(Other, is_due, "{call}: {status:?}");
        *self.sum.statuses.entry((call, status.name())).or_default() += 1;
    }

    /// Creates the counter for the completion of a call.
    fn expect(&mut self) -> Arc<AtomicU32> {
        Arc::default()
    }

    /// Records a call with a completion (NDK-ASY-1).
    fn record_call(&mut self, call: &'static str, status: NtStatus, calls: Arc<AtomicU32>) {
        let pended = status == NtStatus::PENDING;
        self.sum.pended += u64::from(pended);
        self.callbacks.push(Callback { call, pended, calls });
        self.record_status(call, status);
    }

    /// Records a post: a refused one never completes (NDK-WR-4).
    fn record_post(&mut self, node: usize, call: &'static str, context: u64, status: NtStatus) {
        check!(Other, status != NtStatus::PENDING, "{call} pends");
        if status == NtStatus::SUCCESS {
            self.outstanding[node].insert(context, call);
        }
        self.record_status(call, status);
    }

    fn record_completion(&mut self, node: usize, context: u64, status: NtStatus) {
        let request = self.outstanding[node].remove(&context);
        check!(WrongCompletion, request.is_some(), "request {context} of {node}: {status:?}");
        check!(WrongCompletion, status.name().is_some(), "{request:?}: {status:?}");
        *self.sum.completions.entry(status.name()).or_default() += 1;
    }

    /// Closes all objects, in any order, and runs until nothing is left (NDK-LIFE-5, -9).
    fn close(&mut self) {
        self.close_all();
        let due: Vec<_> = self.callbacks.iter().filter(|callback| callback.pended).collect();
        let is_over = || due.iter().all(|callback| callback.calls.load(Ordering::Relaxed) > 0);
        if let Err(stall) = self.bench.run(is_over) {
            let late = due.iter().filter(|callback| callback.calls.load(Ordering::Relaxed) == 0);
            let calls: Vec<_> = late.map(|callback| callback.call).collect();
            check!(Stuck, false, "no callbacks of {calls:?}: {stall}");
        }
        let empty = crate::bench::Stage::run_until_empty(&mut self.bench);
        check!(Stuck, empty.is_ok(), "{empty:?}");
        for Callback { call, pended, calls } in &self.callbacks {
            let calls = calls.load(Ordering::Relaxed);
            check!(WrongCompletion, calls == u32::from(*pended), "{call}: {calls} calls");
        }
    }

    /// Checks that the quarters that were never registered are unchanged and were not copied elsewhere.
    fn check_memory(&self) {
        for node in [0, 1] {
            let mut bytes = vec![0; BYTES];
            self.memory[node].read_at(0, &mut bytes);
            let (registered, never) = bytes.split_at(REGISTERED);
            let changed = never.iter().position(|byte| *byte != SECRET[node]);
            check!(WrongData, changed.is_none(), "never registered, but written: {changed:?}");
            let leaked = registered.iter().position(|byte| *byte >= 0x80);
            check!(WrongData, leaked.is_none(), "never registered, but read: {leaked:?}");
        }
    }
}
