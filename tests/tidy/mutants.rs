//! The faults of `tests/mutants` still apply, and the tests that are to find them are there. Whether they find them,
//! `tests/mutants/run` says.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::Value;

use super::{is_test, root, test_functions};

/// Faults of each part of the code, at least.
const FAULTS_MIN: [(&str, usize); 5] =
    [("mpa", 10), ("ddp", 5), ("rdmap", 8), ("rnic", 15), ("ndk", 20)];

/// Where NDK's rules are, each with a verdict and the tests that prove it.
const NDK_RULES: &str = "docs/conformance/ndk.md";
/// Faults against the rules of each of its sections, at least.
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

/// What is wrong with a fault, if something is.
fn error(fault: &Value, functions: &[(String, String)], cases: &str) -> Option<String> {
    let [file, old, new, test] = ["file", "old", "new", "test"].map(|member| text(fault, member));
    let Ok(source) = fs::read_to_string(root().join(file)) else {
        return Some(format!("no file {file}"));
    };
    match source.matches(old).count() {
        1 => {}
        count => return Some(format!("what it replaces stands {count} times in {file}: {old}")),
    }
    let is_there = match test.strip_prefix("hostile::") {
        Some(case) => cases.lines().any(|line| line.split(' ').next() == Some(case)),
        None => is_test(test, functions, &[]),
    };
    if !is_there {
        return Some(format!("no test is called {test}"));
    }
    (old == new || text(fault, "why").is_empty())
        .then(|| "changes nothing, or has no reason".into())
}

/// The rows of NDK's rules, by rule: the section, and the row.
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

// A fault that breaks a rule of NDK is found by a test that the rule's row names, and each part of the rules has some.
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
            None => writeln!(findings, "\"{why}\": no rule is called {rule}").unwrap(),
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
