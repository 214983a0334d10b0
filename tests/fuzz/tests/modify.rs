//! Changes of queue pairs: scripts from seeds.

use std::panic;

use flue_fuzz::modify::{Summary, TRANSITIONS, run, script};
use flue_test_support::seeds::from_environment;

/// Scripts in a run without `FLUE_SEED` and `FLUE_SEEDS`.
const SEEDS: u64 = 6000;

#[test]
fn changes_of_queue_pairs_follow_the_table() {
    let range = from_environment().map_or(0..SEEDS, |(range, _)| range);
    let is_full = range == (0..SEEDS);
    let mut sum = Summary::default();
    for seed in range {
        let found = panic::catch_unwind(|| run(&script(seed))).unwrap_or_else(|panic| {
            println!("repeat: FLUE_SEED={seed} cargo test -p flue-fuzz --test modify");
            panic::resume_unwind(panic)
        });
        sum.add(found);
    }
    if is_full {
        assert_eq!(sum.accepted.len(), TRANSITIONS, "{sum:?}");
        assert!(sum.accepted.values().all(|count| *count > 10), "{sum:?}");
        let refused = [sum.out_of_range, sum.invalid, sum.unsupported];
        assert!(refused.iter().all(|count| *count > 1000), "{sum:?}");
    }
}
