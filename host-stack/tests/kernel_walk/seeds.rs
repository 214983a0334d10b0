//! The seeds of a campaign.

use std::any::Any;
use std::fmt::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Variables that the command to repeat a seed takes over.
const VARIABLES: [&str; 4] = ["FLUE_LOSS", "FLUE_CONNECTIONS", "FLUE_MOVES", "FLUE_KIB"];
const COMMAND: &str = "cargo test --profile campaign -p host-stack --test kernel_walk -- \
                       --ignored --nocapture campaign";

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// `FLUE_SEED=17` is that seed alone, `FLUE_SEEDS=5..9` are 5 to 8, `FLUE_SEEDS=20` are 0 to 19; the default is seed 0.
pub(crate) fn from_env() -> Range<u64> {
    match (number("FLUE_SEED"), std::env::var("FLUE_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Ok(text)) => {
            range(&text).unwrap_or_else(|| panic!("FLUE_SEEDS={text} is no range of seeds"))
        }
        (None, Err(_)) => 0..1,
    }
}

/// Half-open and not empty: a run without seeds would prove nothing.
fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..").unwrap_or(("0", text));
    let range = first.parse().ok()?..end.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

/// Runs all seeds, also after a failure.
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
                .expect("a string grows");
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
fn seeds_are_a_number_or_a_half_open_range() {
    assert_eq!(range("20"), Some(0..20));
    assert_eq!(range("5..9"), Some(5..9));
    for wrong in ["", "0", "9..5", "5..5", "a..b", "3..", "-1..4"] {
        assert_eq!(range(wrong), None, "{wrong}");
    }
}

#[test]
fn a_failing_seed_does_not_end_the_campaign() {
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
