//! The campaign: scripts from seeds, each judged by the model.

use std::{env, panic};

use flue_fuzz::{Summary, random, run, script, shrink::shrink};

/// Seeds of a plain run of the tests.
const SEEDS: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn try_seed(seed: u64) -> Summary {
    let (setup, ops) = random::script(seed);
    panic::catch_unwind(|| run(&setup, &ops)).unwrap_or_else(|_| {
        let ops = shrink(&setup, ops);
        println!("seed {seed} needs {} operations: {setup:#?}", ops.len());
        ops.iter().for_each(|op| println!("    {op:?}"));
        println!("repeat: FLUE_SEED={seed} cargo test -p flue-fuzz --test adversary");
        run(&setup, &ops);
        panic!("seed {seed} fails only sometimes");
    })
}

// RFC 9293 s3.10.7.4, s3.8.6, RFC 5961, RFC 7323 s5, RFC 2018 s8, CH-SND-1, CH-SND-2, CH-EVT-6.
#[test]
fn an_adversary_gets_nowhere() {
    if let Some(seed) = number("FLUE_SEED") {
        println!("{:#?}", try_seed(seed));
        return;
    }
    let seeds = number("FLUE_SEEDS").unwrap_or(SEEDS);
    let mut sum = Summary::default();
    for seed in 0..seeds {
        sum.add(&try_seed(seed));
    }
    println!("{seeds} seeds: {sum:#?}");
    // The right verdicts by the right paths: every seed ends, and every corner is visited.
    assert_eq!(sum.resets + sum.uploads + sum.aborts + sum.closed, seeds);
    assert!(sum.closed * 10 > seeds * 6, "most runs end in peace");
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

// A script survives being written and read.
#[test]
fn scripts_have_a_byte_form() {
    for seed in 0..50 {
        let (setup, ops) = random::script(seed);
        assert_eq!(script::read(&script::write(&setup, &ops)), Some((setup, ops)));
    }
}
