//! Two adapters over a bad network on virtual time: connect, hand over, every kind of RDMA in both
//! directions on several queue pairs, disconnect, close.
//!
//! Every byte has to be placed where it belongs and no other may change; every request completes once
//! and in its turn; nothing is left in the end. Everything is a function of the seed. A failure prints it
//! with the command that repeats it: `FLUE_SEED=17 cargo test -p rdma-over-tcp --test simulation seeds`.
//! `FLUE_SEEDS=20000` runs a longer campaign; `FLUE_PCAP=file` beside FLUE_SEED writes a capture.

mod bench;
mod faults;
mod plan;
mod scenario;
mod side;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
};

/// Seeds of a run in CI.
const SEEDS: u64 = 1_000;
/// Seeds that run at a time.
const THREADS: usize = 2;

fn for_each_seed(run: impl Fn(u64) + Sync) {
    let environment = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match environment("FLUE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..environment("FLUE_SEEDS").unwrap_or(SEEDS),
    };
    let next = AtomicU64::new(seeds.start);
    let failures = AtomicU64::new(0);
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failures.load(Ordering::Relaxed) > 0 {
                return;
            }
            if catch_unwind(AssertUnwindSafe(|| run(seed))).is_err() {
                failures.fetch_add(1, Ordering::Relaxed);
                eprintln!(
                    "repeat: FLUE_SEED={seed} cargo test -p rdma-over-tcp --test simulation seeds"
                );
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(worker);
        }
    });
    assert_eq!(failures.into_inner(), 0, "seeds failed; each has said how to repeat it");
}

// RFC 5040 5, 5041 5.3, 5044 5, NDK-CON, NDK-WR-6, NDK-SIL-1, NDK-FEN-1, NDK-DEF, NDK-CQ-2, NDK-RI-1,
// NDK-MEM-8, -9, NDK-FLG-3, NDK-DISC-1, -2, -5, NDK-LIFE-5, -9, CH-INI: whatever the network does.
#[test]
fn seeds() {
    for_each_seed(|seed| {
        scenario::run(seed);
    });
}

// The bench is what it says: the same seed, the same run.
#[test]
fn a_seed_is_a_run() {
    for seed in [3, 4] {
        assert_eq!(scenario::run(seed), scenario::run(seed));
    }
}
