//! Calls of verbs and connection management: scripts with a purpose, and scripts from seeds.
//!
//! There is one test, since it counts the descriptors and threads of the process. A script that violates a rule
//! ends the test; the running script is reported first, even if the process crashes.

use std::{
    fs, panic,
    path::PathBuf,
    time::{Duration, Instant},
};

use flue_fuzz::verbs::{Call, Summary, read, run, seeds, watch_crashes, write};
use flue_test_support::seeds::from_environment;

/// Maximum scripts from seeds in a run without `FLUE_SEED` and `FLUE_SEEDS`.
const SEEDS: u64 = 700;
/// No script starts after this time.
const TIME: Duration = Duration::from_secs(3);

fn tried(name: &str, script: &[Call], repeat: &str) -> Summary {
    watch_crashes(format!("{name} violates a rule; repeat: {repeat}"));
    panic::catch_unwind(|| run(script)).unwrap_or_else(|panic| {
        println!("{name} violates a rule; repeat: {repeat}");
        script.iter().enumerate().for_each(|(at, call)| println!("    {at}: {call:?}"));
        panic::resume_unwind(panic)
    })
}

/// Minimum results of the scripts: the right outcome by the right path.
const EXPECTED: &[(&str, Summary)] = &[
    ("send", Summary { messages: 10, checked: 10, ..ZERO }),
    ("write-read", Summary { messages: 1, checked: 13, ..ZERO }),
    ("immediate-atomic", Summary { messages: 4, checked: 4, successes: 10, ..ZERO }),
    ("flush", Summary { flushed: 44, ..ZERO }),
    ("shared-receives", Summary { messages: 8, checked: 8, busy: 1, ..ZERO }),
    ("windows", Summary { binds: 2, busy: 1, ..ZERO }),
    ("completion-queue-overrun", Summary { overruns: 1, ..ZERO }),
    ("overrun-without-an-arm", Summary { overruns: 1, ..ZERO }),
    ("overrun-during-a-connect", Summary { overruns: 1, failed_connects: 1, ..ZERO }),
    ("notifications", Summary { messages: 4, checked: 4, ..ZERO }),
    ("reject", Summary { rejected: 1, requests: 1, ..ZERO }),
    ("accept-by-hand", Summary { established: 2, messages: 1, ..ZERO }),
    ("no-listener", Summary { rejected: 1, ..ZERO }),
    ("destroy-under-traffic", Summary { established: 4, ..ZERO }),
    ("disconnect", Summary { flushed: 4, ..ZERO }),
    ("built-requests", Summary { messages: 3, checked: 5, ..ZERO }),
    ("busy", Summary { messages: 4, busy: 2, ..ZERO }),
];
const ZERO: Summary = Summary::ZERO;

fn directed_scripts() -> Summary {
    let mut sum = Summary::default();
    for (name, script) in seeds::named() {
        assert_eq!(read(&write(&script)), script, "{name} is unchanged by encoding and parsing");
        let repeat = "cargo test -p flue-fuzz --test verbs";
        let summary = tried(name, &script, repeat);
        for (_, expected) in EXPECTED.iter().filter(|(of, _)| *of == name) {
            assert!(summary.has(expected), "{name}: {summary:?}, not {expected:?}");
        }
        sum += summary;
    }
    sum
}

/// Runs the inputs that once failed.
fn found() -> usize {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("found/verbs");
    let Ok(files) = fs::read_dir(directory) else { return 0 };
    let files = files.map(|file| file.expect("readable").path());
    let replayed = files.map(|path| {
        let script = read(&fs::read(&path).expect("readable"));
        let repeat = format!("cargo run -p flue-fuzz -- verbs {}", path.display());
        tried("a found input", &script, &repeat);
    });
    replayed.count()
}

#[test]
fn calls_in_any_order_keep_the_contract() {
    let chosen = from_environment();
    let start = Instant::now();
    let mut sum = Summary::default();
    if chosen.is_none() {
        sum += directed_scripts();
        found();
    }
    let (range, has_limit) = chosen.map_or((0..SEEDS, true), |(range, _)| (range, false));
    let mut scripts = 0;
    for seed in range {
        if has_limit && start.elapsed() > TIME {
            break;
        }
        let repeat = format!("FLUE_SEED={seed} cargo test -p flue-fuzz --test verbs");
        sum += tried(&format!("seed {seed}"), &seeds::random(seed), &repeat);
        scripts += 1;
    }
    println!("{scripts} scripts from seeds, {:.1?}: {sum:#?}", start.elapsed());
}
