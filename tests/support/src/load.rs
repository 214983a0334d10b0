//! Counts that a machine's other work can spoil.
//!
//! TCP takes a peer that waits for a processor for a lost segment: it probes after 10 ms of silence (RFC 8985 §7) and
//! sends again after 200 ms (RFC 6298); and frames that find a queue full which nobody empties are lost. That is right,
//! and no fault of what is tested. So a test that says how little was sent twice says it of the best of a few runs:
//! what sends too much by itself does it each time. Bytes, states and errors are judged in each run, not here.

use std::fmt::Debug;

/// Runs that a test has at most.
const TRIES: usize = 4;

/// Repeats `run` until `is_quiet` of what has come of it, and returns that.
///
/// # Panics
///
/// When no run was, with what came of all of them.
pub fn quiet<T: Debug>(mut run: impl FnMut() -> T, is_quiet: impl Fn(&T) -> bool) -> T {
    let mut spoilt = Vec::new();
    while spoilt.len() < TRIES {
        let outcome = run();
        if is_quiet(&outcome) {
            return outcome;
        }
        eprintln!("a run that was not quiet: {outcome:?}");
        spoilt.push(outcome);
    }
    panic!("none of {TRIES} runs was quiet: {spoilt:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_quiet_run_counts_and_there_are_not_many() {
        let mut runs = 0;
        let mut run = || {
            runs += 1;
            runs
        };
        assert_eq!(quiet(&mut run, |run| *run == TRIES), TRIES);
        let never = std::panic::catch_unwind(|| quiet(|| 7, |_| false)).unwrap_err();
        assert!(never.downcast_ref::<String>().unwrap().contains("none of 4 runs"));
    }
}
