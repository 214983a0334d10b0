//! Applicability of the faults in `tests/mutants`, and existence of the tests that must detect them.
//! `tests/mutants/run` checks that they do.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::Value;

use super::{is_test, root, test_functions};

/// Minimum number of faults in each part of the code.
const FAULTS_MIN: [(&str, usize); 5] =
    [("mpa", 10), ("ddp", 5), ("rdmap", 8), ("rnic", 15), ("ndk", 20)];

/// Document of the NDK rules, each with a verdict and the tests that prove it.
const NDK_RULES: &str = "docs/conformance/ndk.md";
/// Minimum number of faults against the rules of each section.
const NDK_FAULTS_MIN: [(&str, usize); 8] = [
    ("Objects and lifetimes", 10),
    ("Threads and management", 5),
    ("Connections", 10),
    ("Work requests", 10),
    ("Completion queues", 10),
    ("Memory", 10),
    ("Errors", 5),
    ("Shared receive queues", 5),
];

fn text<'a>(fault: &'a Value, member: &str) -> &'a str {
    fault[member].as_str().unwrap_or_default()
}

/// Error in a fault, if any.
fn error(fault: &Value, functions: &[(String, String)], cases: &str) -> Option<String> {
    let [file, old, new, test] = ["file", "old", "new", "test"].map(|member| text(fault, member));
    let Ok(source) = fs::read_to_string(root().join(file)) else {
        return Some(format!("no file {file}"));
    };
    match source.matches(old).count() {
        1 => {}
        count => return Some(format!("the replaced text occurs {count} times in {file}: {old}")),
    }
    let is_there = match test.strip_prefix("hostile::") {
        Some(case) => cases.lines().any(|line| line.split(' ').next() == Some(case)),
        None => is_test(test, functions, &[]),
    };
    if !is_there {
        return Some(format!("test not found: {test}"));
    }
    (old == new || text(fault, "why").is_empty())
        .then(|| "changes nothing, or has no reason".into())
}

/// Rows of the NDK rules by rule: the section and the row.
fn ndk_rows(document: &str) -> BTreeMap<&str, (&str, &str)> {
    let (mut rows, mut section) = (BTreeMap::new(), "");
    for line in document.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        let cells = line.strip_prefix("| ").and_then(|cells| cells.split_once(" |"));
        if let Some((rule, row)) = cells.filter(|(rule, _)| rule.starts_with("NDK-")) {
            rows.insert(rule, (section, row));
        }
    }
    rows
}

// A fault that breaks an NDK rule is detected by a test that the rule's row cites, and each section of the rules has
// faults.
#[test]
fn faults_against_the_rules_of_ndk() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let faults: Vec<Value> = serde_json::from_str(&read("tests/mutants/mutants.json")).unwrap();
    let document = read(NDK_RULES);
    let rows = ndk_rows(&document);
    let (mut findings, mut counts) = (String::new(), BTreeMap::<&str, usize>::new());
    for fault in faults.iter().filter(|fault| fault.get("rule").is_some()) {
        let [rule, test, why] = ["rule", "test", "why"].map(|member| text(fault, member));
        match rows.get(rule) {
            Some((section, row)) if row.contains(&format!("`{test}`")) => {
                *counts.entry(section).or_default() += 1;
            }
            Some(_) => writeln!(findings, "\"{why}\": {rule} does not name {test}").unwrap(),
            None => writeln!(findings, "\"{why}\": rule not found: {rule}").unwrap(),
        }
    }
    for (section, least) in NDK_FAULTS_MIN {
        let count = counts.get(section).copied().unwrap_or_default();
        if count < least {
            writeln!(findings, "{section} has {count} faults, not {least}").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn mutants_apply() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let faults: Vec<Value> = serde_json::from_str(&read("tests/mutants/mutants.json")).unwrap();
    let (functions, cases) = (test_functions(), read("tests/hostile/cases.txt"));
    let mut findings = String::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in &faults {
        let part = text(fault, "file").split('/').nth(2).unwrap_or_default();
        *counts.entry(part).or_default() += 1;
        if let Some(error) = error(fault, &functions, &cases) {
            writeln!(findings, "\"{}\": {error}", text(fault, "why")).unwrap();
        }
    }
    for (part, least) in FAULTS_MIN {
        let count = counts.get(part).copied().unwrap_or_default();
        if count < least {
            writeln!(findings, "{part} has {count} faults, not {least}").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}
