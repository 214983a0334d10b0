//! The faults of `tests/mutants` still apply, and the tests that are to find them are there. Whether they find them,
//! `tests/mutants/run` says.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::Value;

use super::{is_test, root, test_functions};

/// Faults of each part of the code, at least.
const FAULTS_MIN: [(&str, usize); 4] = [("mpa", 10), ("ddp", 5), ("rdmap", 8), ("rnic", 15)];

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
