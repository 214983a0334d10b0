//! Consistency of the conformance documents: docs/conformance/iwarp.md has each rule of `data/rules.txt` once, and
//! names existing tests. docs/conformance/ndk.md has those of `data/ndk-rules.txt`; `tests/tidy.rs` checks the names of
//! its tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

const DOCUMENT: &str = "../docs/conformance/iwarp.md";
const RULES: &str = "tests/data/rules.txt";
/// Cases of the hostile peer: the name and the rules of each. `tests/hostile` compares the list with the cases.
const CASES: &str = "../tests/hostile/cases.txt";
const FILES: [(&str, &str); 40] = [
    ("mpa", "src/mpa/tests.rs"),
    ("startup", "src/mpa/startup/tests.rs"),
    ("startup", "src/ndk/tests/startup.rs"),
    ("crc", "src/mpa/crc.rs"),
    ("ddp", "src/ddp/tests.rs"),
    ("rdmap", "src/rdmap/tests.rs"),
    ("error", "src/error.rs"),
    ("region", "src/rnic/memory/region/tests.rs"),
    ("window", "src/rnic/calls/window/tests.rs"),
    ("cq", "src/rnic/queues/cq/tests.rs"),
    ("send_queue", "src/rnic/queues/send_queue.rs"),
    ("sizes", "src/rnic/stream/sizes.rs"),
    ("invalidation", "src/ndk/tests/invalidation.rs"),
    ("operations", "src/ndk/tests/operations.rs"),
    ("connections", "src/ndk/tests/connections.rs"),
    ("errors", "src/ndk/tests/errors.rs"),
    ("lifetimes", "src/ndk/tests/lifetimes.rs"),
    ("srq", "src/ndk/tests/srq.rs"),
    ("truncation", "src/ndk/tests/truncation.rs"),
    ("windows", "src/ndk/tests/windows.rs"),
    ("vectors", "tests/vectors.rs"),
    ("siw_captures", "tests/siw_captures.rs"),
    ("bad_peers", "tests/simulation/bad_peers.rs"),
    ("accept_race", "tests/simulation/accept_race.rs"),
    ("reads", "tests/simulation/reads.rs"),
    ("memory", "../offload-engine/src/memory/tests.rs"),
    ("extensions", "src/ndk/tests/extensions.rs"),
    ("faults", "tests/simulation/faults.rs"),
    ("simulation", "tests/simulation/main.rs"),
    ("handover", "../host-stack/tests/handover.rs"),
    ("live_moves", "../tests/migration.rs"),
    ("rc", "src/ndk/tests/rc/completions.rs"),
    ("rc", "src/ndk/tests/rc/ends.rs"),
    ("rc", "src/ndk/tests/rc/errors.rs"),
    ("rc", "src/ndk/tests/rc/hostile.rs"),
    ("rc", "src/ndk/tests/rc/receives.rs"),
    ("rc", "src/ndk/tests/rc/unreliable.rs"),
    ("datagram", "src/datagram.rs"),
    ("datagrams", "src/rnic/datagrams/tests.rs"),
    ("node_datagrams", "tests/simulation/node_datagrams.rs"),
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns the cases of the hostile peer with their rules.
fn cases(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let of = |line| {
        let mut words = str::split_whitespace(line);
        Some((words.next()?, words.collect()))
    };
    text.lines().filter_map(of).collect()
}

/// Returns the names of tests in a cell: `file::name` in backticks; other names of Rust are ignored.
fn tests(cell: &str) -> Vec<(&str, &str)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    let is_type = |file: &str| file.starts_with(char::is_uppercase);
    quoted.filter_map(|name| name.split_once("::")).filter(|(file, _)| !is_type(file)).collect()
}

/// Returns the errors of a row, one per line.
fn errors(cells: [&str; 5], cases: &BTreeMap<&str, Vec<&str>>) -> String {
    let [id, level, text, verdict, place] = cells;
    let mut errors = String::new();
    let mut add = |error: String| writeln!(errors, "{id}: {error}").unwrap();
    if !["must", "should", "may"].contains(&level) || text.is_empty() {
        add("no level or no text".into());
    }
    let tests = tests(place);
    match verdict {
        "met" if tests.is_empty() => add("verdict `met` without a test".into()),
        "met" | "deviates" | "not ours" | "absent" if place.len() > 5 => {}
        _ => add(format!("unknown verdict, or no reason for `{verdict}`")),
    }
    for (file, name) in tests {
        let found = match file {
            "hostile" => cases.get(name).is_some_and(|rules| rules.contains(&id)),
            _ => FILES
                .iter()
                .any(|(known, path)| *known == file && read(path).contains(&format!("fn {name}("))),
        };
        if !found {
            add(format!("test {file}::{name} not found, or not for this rule"));
        }
    }
    errors
}

#[test]
fn every_rule_has_a_verdict_and_existing_tests() {
    let (document, rules, cases_text) = (read(DOCUMENT), read(RULES), read(CASES));
    let rules: BTreeSet<&str> = rules.lines().collect();
    let cases = cases(&cases_text);
    assert_eq!((rules.len(), cases.len() > 250), (303, true));
    let mut findings = String::new();
    let mut judged: Vec<&str> = Vec::new();
    let mut verdicts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in document.lines().filter_map(|row| row.strip_prefix("| ")?.strip_suffix(" |")) {
        let cells: Vec<_> = row.split(" | ").map(str::trim).collect();
        let &[id, _, _, verdict, _] = &cells[..] else { continue };
        if !id.contains('-') || id.starts_with('-') {
            continue;
        }
        judged.push(id);
        *verdicts.entry(verdict).or_default() += 1;
        findings += &errors(cells.try_into().unwrap(), &cases);
    }
    for rule in &rules {
        let rows = judged.iter().filter(|id| *id == rule).count();
        if rows != 1 {
            writeln!(findings, "{rule} has {rows} rows").unwrap();
        }
    }
    for id in judged.iter().filter(|id| !rules.contains(*id)) {
        writeln!(findings, "{id} is not a rule of {RULES}").unwrap();
    }
    for rule in cases.values().flatten().filter(|rule| !rules.contains(*rule)) {
        writeln!(findings, "a case has the unknown rule {rule}").unwrap();
    }
    for (verdict, count) in &verdicts {
        if !document.contains(&format!("| {count} |")) {
            writeln!(findings, "the first table has no count of {count} for {verdict}").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn row_errors_are_detected() {
    let cases = cases("tagged-wrap DDP-7.1-2\n");
    let judge = |verdict, place| errors(["DDP-7.1-2", "must", "x", verdict, place], &cases);
    assert_eq!(judge("met", "`hostile::tagged-wrap`, `ddp::versions`"), "");
    assert_eq!(judge("absent", "for a reason, see `Region::new`"), "");
    for (verdict, place) in [
        ("met", "a dream"),
        ("met", "`hostile::tagged-wraps`"),
        ("met", "`ddp::no_such_test`"),
        ("met", "`mpa::versions`"),
        ("absent", ""),
        ("done", "`ddp::versions`"),
    ] {
        assert_ne!(judge(verdict, place), "", "{verdict}: {place}");
    }
    let other = errors(["DDP-7.1-1", "must", "x", "met", "`hostile::tagged-wrap`"], &cases);
    assert_ne!(other, "", "the case is about another rule");
}

const NDK_DOCUMENT: &str = "../docs/conformance/ndk.md";
const NDK_RULES: &str = "tests/data/ndk-rules.txt";

/// Returns the error of a row of NDK's document.
fn ndk_error(cells: &[&str]) -> Option<&'static str> {
    let &[_, requirement, verdict, _, test] = cells else { return Some("has not five cells") };
    let names_test = test.split('`').skip(1).step_by(2).any(|name| name.contains("::"));
    match verdict {
        _ if requirement.is_empty() => Some("has no requirement"),
        "met" | "decided" if !names_test => Some("is met or decided without a test"),
        "met" | "decided" => None,
        "consumer's" | "n/a" if test.len() > 10 => None,
        "consumer's" | "n/a" => Some("has no reason"),
        _ => Some("has no verdict"),
    }
}

#[test]
fn every_ndk_rule_has_a_verdict() {
    let (document, rules) = (read(NDK_DOCUMENT), read(NDK_RULES));
    let rules: BTreeSet<&str> = rules.lines().collect();
    assert_eq!(rules.len(), 156);
    let mut findings = String::new();
    let mut judged = Vec::new();
    let rows = document.lines().filter_map(|row| row.strip_prefix("| ")?.strip_suffix(" |"));
    for cells in rows.map(|row| row.split(" | ").map(str::trim).collect::<Vec<_>>()) {
        let id = cells[0];
        if !id.starts_with("NDK-") {
            continue;
        }
        judged.push(id);
        if let Some(error) = ndk_error(&cells) {
            writeln!(findings, "{id} {error}").unwrap();
        }
        if !rules.contains(id) {
            writeln!(findings, "{id} is not a rule of {NDK_RULES}").unwrap();
        }
    }
    for rule in rules {
        let rows = judged.iter().filter(|id| **id == rule).count();
        if rows != 1 {
            writeln!(findings, "{rule} has {rows} rows").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn ndk_row_errors_are_detected() {
    let judge = |verdict, test| ndk_error(&["NDK-CQ-1", "x", verdict, "`cq`", test]);
    assert_eq!(judge("met", "`cq::overrun`"), None);
    assert_eq!(judge("consumer's", "a violation has no effect"), None);
    for (verdict, test) in
        [("met", "a dream"), ("decided", "so"), ("n/a", "—"), ("done", "`cq::overrun`")]
    {
        assert!(judge(verdict, test).is_some(), "{verdict}: {test}");
    }
    assert!(ndk_error(&["NDK-CQ-1", "x", "met", "`cq::overrun`"]).is_some());
}
