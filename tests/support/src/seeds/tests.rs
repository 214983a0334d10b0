use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    Campaign, Class, FAILURES_MAX, OpenSeed, Suite, fail,
    open::parse,
    range::{chosen, of_commit},
    watch::by_file,
};
use crate::check;

const SUITE: Suite = Suite {
    name: "sample",
    command: "cargo test --test sample",
    seeds: 10,
    classes: &[("seeds/tests.rs", Class::WrongCompletion)],
};

/// Product that is wrong for some seeds.
fn product(seed: u64) -> u64 {
    check!(LostConnection, seed % 100 != 3, "seed {seed}\nand more of it");
    check!(Stuck, seed % 100 != 42, "nothing is due");
    assert_ne!(seed % 100, 77, "an assertion without a class");
    seed
}

/// Campaign without output during the run.
fn quiet(open: &str) -> Campaign {
    let mut campaign = Campaign::new(SUITE, parse(open).unwrap());
    campaign.print = |_| ();
    campaign
}

fn run(range: std::ops::Range<u64>, open: &str) -> (Campaign, u64) {
    let mut campaign = quiet(open);
    let mut sum = 0;
    campaign.slice(range, "", &product, |seed| sum += seed);
    campaign.open_seeds_left(&product);
    (campaign, sum)
}

#[test]
fn variables_name_one_seed_or_a_range() {
    assert_eq!(chosen(None, None), Ok(None));
    assert_eq!(chosen(Some("17"), None), Ok(Some((17..18, true))));
    assert_eq!(chosen(Some("17"), Some("5..9")), Ok(Some((17..18, true))));
    assert_eq!(chosen(None, Some("5000")), Ok(Some((0..5000, false))));
    assert_eq!(chosen(None, Some("1000..1_000_000")), Ok(Some((1000..1_000_000, false))));
    for wrong in ["", "-1", "abc", "0", "..", "5..", "..5", "5..5", "7..5", "1..2..3", "0..=5"] {
        let error = chosen(None, Some(wrong)).unwrap_err();
        assert!(error.contains(&format!("FLUE_SEEDS={wrong} ")), "{error}");
    }
    for wrong in ["", "1..2", "seed", "18446744073709551615"] {
        assert!(chosen(Some(wrong), None).unwrap_err().contains("FLUE_SEED="));
    }
}

#[test]
fn commit_seeds_are_derived_from_its_hash() {
    assert_eq!(of_commit("00000000", 150), 1_000_000..1_000_150);
    assert_eq!(of_commit("0000ff00", 150), 1_065_280..1_065_430);
    assert_eq!(of_commit("ffffffff", 1).start, 1_000_000 + u64::from(u32::MAX));
}

// The remaining seeds run after a failure; the sum is that of the seeds that pass.
#[test]
fn run_continues_after_a_failure() {
    let runs = AtomicU64::new(0);
    let mut campaign = quiet("");
    let mut sum = 0;
    let counted = |seed| {
        runs.fetch_add(1, Ordering::Relaxed);
        product(seed)
    };
    campaign.slice(0..300, "", &counted, |seed| sum += seed);
    assert_eq!(runs.into_inner(), 300);
    let failed = [3, 42, 77, 103, 142, 177, 203, 242, 277];
    assert_eq!(sum, (0..300).sum::<u64>() - failed.iter().sum::<u64>());
    let mut seeds: Vec<_> = campaign.failures.iter().map(|failure| failure.seed).collect();
    seeds.sort_unstable();
    assert_eq!(seeds, failed);
    let verdict = campaign.verdict().unwrap_err();
    assert_eq!(
        verdict,
        "sample: 9 of 300 seeds failed: 3 lost connection, 3 wrong completion, 3 stuck"
    );
}

#[test]
fn failures_are_listed_with_class_place_and_command() {
    let (campaign, _) = run(0..100, "");
    let text = campaign.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "sample: no open seeds");
    assert!(
        lines[1]
            .starts_with("sample seed 3: lost connection, at tests/support/src/seeds/tests.rs:")
    );
    assert!(lines[1].ends_with(": seed 3"), "{text}");
    assert_eq!(lines[2], "    repeat: FLUE_SEED=3 cargo test --test sample");
    assert!(lines[3].starts_with("sample seed 42: stuck, at "));
    assert!(lines[5].starts_with("sample seed 77: wrong completion, at "), "by its file: {text}");
    let row = "| sample | 0..100 | 100 | 1 lost connection, 1 wrong completion, 1 stuck | ";
    assert!(lines[7].starts_with(row), "{text}");
    assert_eq!(lines.len(), 8);
}

#[test]
fn memory_is_bounded() {
    let mut campaign = quiet("");
    let count = FAILURES_MAX as u64 + 500;
    campaign.slice(0..count, "", &|_| fail(Class::WrongData, &"x".repeat(100_000)), |(): ()| ());
    assert_eq!(campaign.failed.values().sum::<u64>(), count);
    assert_eq!(campaign.failures.len(), FAILURES_MAX);
    assert!(campaign.failures.iter().all(|failure| failure.text.len() <= 8 * 1024));
}

#[test]
fn failing_open_seed_passes_and_is_listed() {
    let open = "# known\nsample | 3 | lost connection | the host's RTO\nsample | 142 | stuck | b\n";
    let (campaign, _) = run(0..10, open);
    assert_eq!(campaign.verdict(), Ok(()));
    let text = campaign.text();
    assert!(text.starts_with("sample: 2 open seeds\n"), "{text}");
    assert!(text.contains("sample open seed 3: lost connection (the host's RTO)\n"), "{text}");
    // An open seed beyond the range runs too.
    assert!(text.contains("sample open seed 142: stuck (b)\n"), "{text}");
    assert!(text.contains("| sample | 0..10 | 10 | 1 open | "), "{text}");
    assert!(text.contains("| sample | 142..143, open | 1 | 1 open | "), "{text}");
}

#[test]
fn passing_open_seed_fails_the_run() {
    for open in ["sample | 5 | stuck | fixed", "sample | 1005 | stuck | fixed"] {
        let verdict = run(0..10, open).0.verdict().unwrap_err();
        assert!(verdict.contains("passes: remove it from"), "{verdict}");
    }
}

#[test]
fn open_seed_of_another_class_fails_the_run() {
    let (campaign, _) = run(0..10, "sample | 3 | stuck | another class");
    assert_eq!(campaign.verdict().unwrap_err(), "sample: 1 of 10 seeds failed: 1 lost connection");
    assert_eq!(campaign.seeds, 10, "it does not run twice");
}

#[test]
fn open_seed_list_is_parsed_or_rejected() {
    let one = parse("\n# text\n walk | 7 | illegal on the wire | a note | with a bar\n").unwrap();
    let expected = OpenSeed {
        suite: "walk".into(),
        seed: 7,
        class: Class::IllegalOnTheWire,
        note: "a note | with a bar".into(),
    };
    assert_eq!(one, [expected]);
    for wrong in ["walk | 7 | stuck", "walk | x | stuck | n", "walk | 7 | stuk | n", "walk 7"] {
        assert!(parse(wrong).unwrap_err().ends_with(wrong));
    }
}

#[test]
fn repository_list_is_parsed() {
    let text = std::fs::read_to_string(super::workspace().join("tests/campaign/open-seeds.txt"));
    for one in parse(&text.unwrap()).unwrap() {
        assert!(["walk", "handover", "rdma", "adversary"].contains(&&*one.suite), "{one:?}");
    }
}

#[test]
fn panic_outside_of_tests_has_class_panic() {
    let classes = &[("model/wire.rs", Class::IllegalOnTheWire)];
    for (file, class) in [
        ("host-stack/src/host/up.rs", Class::Panic),
        ("/root/.cargo/registry/src/index/smoltcp-0.14.0/tests/socket.rs", Class::Panic),
        ("host-stack/tests/walk/run.rs", Class::Other),
        ("tests/fuzz/src/model/wire.rs", Class::IllegalOnTheWire),
        ("tests/fuzz/src/model/mod.rs", Class::Other),
    ] {
        assert_eq!(by_file(file, classes), class, "{file}");
    }
}
