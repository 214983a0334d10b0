//! Documents: the command-line reference is generated from the commands, and command blocks of the front page and the
//! guide run. JSON documents are valid.

mod blocks;
mod cli;
mod json;

use std::{fs, path::Path};

/// Root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Decimal numbers of a line.
fn numbers(line: &str) -> Vec<&str> {
    let words = line.split(|it: char| !it.is_ascii_digit() && it != '.');
    let words = words.map(|word| word.trim_matches('.'));
    words.filter(|word| word.contains('.') && word.parse::<f64>().is_ok()).collect()
}

#[test]
fn performance_of_the_front_page_is_that_of_the_recorded_run() {
    assert_eq!(numbers("| a 64 B | 5.88 M/s (1.5). |"), ["5.88", "1.5"]);
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let (page, run) = (read("README.md"), read("docs/measurements/bench.txt"));
    let (_, section) = page.split_once("\n## Performance\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| RDMA") || line.starts_with("| CPU"))
        .collect();
    assert_eq!(rows.len(), 5);
    let recorded = numbers(&run);
    for row in rows {
        assert!(numbers(row).len() >= 3, "{row}");
        for number in numbers(row) {
            assert!(recorded.contains(&number), "{number} is not in the recorded run: {row}");
        }
    }
    let (_, command) = section.split_once("Command:\n`").unwrap();
    let (command, rest) = command.split_once('`').unwrap();
    let commit = rest.split_once("commit ").unwrap().1.split('.').next().unwrap();
    assert!(
        run.contains(command) && run.contains(&format!("commit {commit}")),
        "{command}, {commit}"
    );
}
