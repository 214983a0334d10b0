//! Sequential runs of the seeds of a campaign: each has the network and the CPUs to itself.

use std::any::Any;
use std::fmt::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Variables included in the command to repeat a seed.
const VARIABLES: [&str; 4] = ["FLUE_LOSS", "FLUE_CONNECTIONS", "FLUE_MOVES", "FLUE_KIB"];
const COMMAND: &str = "cargo test --profile campaign -p host-stack --test kernel_walk -- \
                       --ignored --nocapture campaign";

/// Reads a number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs all seeds, even after a failure.
///
/// # Panics
///
/// At the end, with a list of the failed seeds and the commands to repeat them.
pub(crate) fn for_each(seeds: Range<u64>, mut run: impl FnMut(u64)) {
    let mut failed = String::new();
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            let message = message(&*panic).lines().next().unwrap_or_default();
            let message = message.chars().take(300).collect::<String>();
            writeln!(failed, "seed {seed}: {message}\n  repeat: {}", command(seed))
                .expect("write to a String");
        }
    }
    assert!(failed.is_empty(), "these seeds failed:\n{failed}");
}

fn command(seed: u64) -> String {
    let set = |name| Some(format!("{name}={} ", std::env::var(name).ok()?));
    let others = VARIABLES.into_iter().filter_map(set).collect::<String>();
    format!("FLUE_SEED={seed} {others}{COMMAND}")
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

#[test]
fn failing_seed_does_not_end_campaign() {
    let mut seen = Vec::new();
    let run = |seed| {
        seen.push(seed);
        assert_ne!(seed, 3, "three");
    };
    let panic = catch_unwind(AssertUnwindSafe(|| for_each(2..5, run))).unwrap_err();
    assert_eq!(seen, [2, 3, 4]);
    let message = message(&*panic);
    assert!(message.contains("repeat: FLUE_SEED=3 "), "{message}");
    assert!(!message.contains("FLUE_SEED=2 ") && !message.contains("FLUE_SEED=4 "), "{message}");
}
