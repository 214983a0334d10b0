//! Random hand-over walks: two nodes over a bad network on virtual time. At every event a seed decides whether a
//! connection changes stacks, while data flows both ways.
//!
//! A run passes if every byte arrives in order, every list comes back once and in order, nothing is left in any
//! table, and no peer could tell: a monitor on each side's wire finds only what one legal stack may send
//! ([`flue_test_support::legal`]).
//!
//! | module | decides |
//! |---|---|
//! | [`plan`] | what a seed chooses: weather, options, windows, how a client behaves |
//! | [`client`] | indications accepted, refused and accepted in part; posted buffers |
//! | [`middlebox`] | options that get lost on the way |
//! | [`run`] | connections, moves, and what must hold in the end |
//!
//! Everything is a function of the seed. A failure prints it with the command that repeats it:
//! `FLUE_SEED=17 cargo test -p host-stack --test walk`. `FLUE_SEEDS=5000` runs the campaign; `FLUE_PCAP=file`
//! beside FLUE_SEED writes what each node's monitor sees to `file.0` and `file.1`.

mod client;
mod middlebox;
mod plan;
mod run;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::run::walk;

/// Seeds of a run in CI.
const SEEDS: u64 = 150;

fn environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

// CH-INI, CH-TRM, CH-FWD-2, CH-SND-2, CH-RCV-8: no byte is lost, doubled or moved by any number of hand-overs, and
// nobody can tell.
#[test]
fn streams_survive_random_walks() {
    let seeds = match environment("FLUE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..environment("FLUE_SEEDS").unwrap_or(SEEDS),
    };
    let (mut moves, mut failed, mut first) = ([0, 0], Vec::new(), None);
    let total = seeds.end - seeds.start;
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| walk(seed))) {
            Ok(summary) => {
                for tally in summary.tallies {
                    moves = [moves[0] + tally.offloads, moves[1] + tally.uploads];
                }
            }
            Err(panic) => {
                eprintln!("repeat: FLUE_SEED={seed} cargo test -p host-stack --test walk");
                failed.push(seed);
                first.get_or_insert(panic);
            }
        }
    }
    println!("{total} seeds, {} offloads, {} uploads; failed: {failed:?}", moves[0], moves[1]);
    if let Some(panic) = first {
        resume_unwind(panic);
    }
    if total > 1 {
        assert!(moves.iter().all(|moves| *moves > 2 * total), "hardly any moves: {moves:?}");
    }
}

// The bench is what it says: the same seed, the same run.
#[test]
fn a_seed_is_a_run() {
    assert_eq!(walk(3), walk(3));
}
