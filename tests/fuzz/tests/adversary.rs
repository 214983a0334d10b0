//! Campaign: scripts from seeds, each checked by the model.

use std::panic;

use flue_fuzz::{Summary, random, run, script, shrink::shrink};
use flue_test_support::seeds::{Class, Suite, is_single};

const SUITE: Suite = Suite {
    name: "adversary",
    command: "cargo test -p flue-fuzz --test adversary nowhere",
    seeds: 1_000,
    classes: &[
        ("fuzz/src/model/wire.rs", Class::IllegalOnTheWire),
        ("fuzz/src/model/requests.rs", Class::WrongCompletion),
        ("fuzz/src/model/finale.rs", Class::Stuck),
    ],
};

/// Runs a single seed, and reduces its script if it fails.
fn try_seed(seed: u64) -> Summary {
    let (setup, ops) = random::script(seed);
    if !is_single() {
        return run(&setup, &ops);
    }
    panic::catch_unwind(|| run(&setup, &ops)).unwrap_or_else(|_| {
        let ops = shrink(&setup, ops);
        println!("seed {seed} needs {} operations: {setup:#?}", ops.len());
        ops.iter().for_each(|op| println!("    {op:?}"));
        run(&setup, &ops);
        panic!("seed {seed} fails only sometimes");
    })
}

// RFC 9293 §3.10.7.4, §3.8.6, RFC 5961, RFC 7323 §5, RFC 2018 §8, CH-SND-1, CH-SND-2, CH-EVT-6.
#[test]
fn adversary_cannot_break_the_connection() {
    let (seeds, sum) = SUITE.run(try_seed, |(seeds, sum): &mut (u64, Summary), summary| {
        *seeds += 1;
        sum.add(&summary);
    });
    println!("{seeds} seeds: {sum:#?}");
    // Averages over some hundred scripts.
    if seeds < SUITE.seeds {
        return;
    }
    // Every seed ends, and each corner case occurs often enough.
    assert_eq!(sum.resets + sum.uploads + sum.aborts + sum.closed, seeds);
    assert!(sum.closed * 10 > seeds * 6, "most runs close normally");
    for (corner, least) in [
        (sum.segments, 50 * seeds),
        (sum.dropped, 5 * seeds),
        (sum.delivered, 5_000 * seeds),
        (sum.resent, 1_000 * seeds),
        (sum.timeouts, seeds / 2),
        (sum.window_probes, seeds / 50),
        (sum.sack_blocks, seeds),
        (sum.challenges, seeds / 2),
        (sum.resets, seeds / 100),
        (sum.uploads, seeds / 500),
        (sum.aborts, seeds / 500),
    ] {
        assert!(corner >= least, "{corner} of {least}: {sum:#?}");
    }
}

// A script is unchanged by encoding and parsing.
#[test]
fn script_is_unchanged_by_encoding_and_parsing() {
    for seed in 0..50 {
        let (setup, ops) = random::script(seed);
        assert_eq!(script::read(&script::write(&setup, &ops)), Some((setup, ops)));
    }
}
