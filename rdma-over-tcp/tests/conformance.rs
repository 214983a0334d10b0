//! docs/conformance/iwarp.md says which test proves which rule. It may not name tests that are not there.

use std::{collections::BTreeMap, fs, path::Path};

const FILES: [(&str, &str); 11] = [
    ("mpa", "src/mpa/tests.rs"),
    ("startup", "src/mpa/startup/tests.rs"),
    ("crc", "src/mpa/crc.rs"),
    ("ddp", "src/ddp/tests.rs"),
    ("rdmap", "src/rdmap/tests.rs"),
    ("error", "src/error.rs"),
    ("vectors", "tests/vectors.rs"),
    ("siw_captures", "tests/siw_captures.rs"),
    ("truncation", "src/ndk/tests/truncation.rs"),
    ("bad_peers", "tests/simulation/bad_peers.rs"),
    ("reads", "tests/simulation/reads.rs"),
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn every_test_named_exists() {
    let sources: BTreeMap<_, _> = FILES.iter().map(|(name, path)| (*name, read(path))).collect();
    let document = read("../docs/conformance/iwarp.md");
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for row in document.lines() {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _level, _what, state, place] = cells[..] else { continue };
        if !id.contains('-') || id.starts_with('-') {
            continue;
        }
        *states.entry(state).or_default() += 1;
        if state != "met" {
            assert!(!place.is_empty(), "{id} says neither where nor why");
            continue;
        }
        for test in place.split(", ") {
            let (file, name) = test.trim_matches('`').split_once("::").unwrap();
            let source = &sources[file];
            assert!(source.contains(&format!("fn {name}(")), "{id}: no test {test}");
        }
    }
    assert_eq!(states.values().sum::<usize>(), 246, "{states:?}");
}
