//! Documents: the command-line reference is generated from the commands, and command blocks of the front page and the
//! guide run. JSON documents are valid. Documents build and call flue in one way. Scripts of workflows are valid.

mod blocks;
mod cli;
mod json;
mod workflows;

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

/// Markdown files of a directory, with their paths from the root.
fn pages(directory: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(root().join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{directory}/{}", entry.file_name().display());
        match entry.file_type().unwrap().is_dir() {
            true => pages(&path, found),
            false if path.ends_with(".md") => found.push(path),
            false => {}
        }
    }
}

/// Returns the lines of a page that build or call flue in another way than the front page: `cargo build --release` and
/// the command on the PATH, or `cargo install --locked --path .`.
fn other_ways(page: &str) -> Vec<&str> {
    const PATH: &str = "export PATH=\"$PWD/target/release:$PATH\"";
    let is_other = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |first: &str| {
            let is_first = |pair: &[&str]| pair[0].ends_with("cargo") && pair[1] == first;
            words.windows(2).position(is_first).map(|at| &words[at + 2..])
        };
        let other_build = after("build").is_some_and(|rest| !rest.contains(&"--release"));
        let other_install = after("install")
            .is_some_and(|rest| rest.get(..3) != Some(&["--locked", "--path", "."][..]));
        let runs = after("run").is_some_and(|rest| !rest.contains(&"--example"));
        let has_path = ["target/release/flue", "target/debug", "./flue "];
        let has_path = has_path.iter().any(|path| line.replace(PATH, "").contains(path));
        other_build || other_install || runs || has_path
    };
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if (is_code || line.starts_with("    ")) && is_other(line) {
            lines.push(line);
        }
    }
    lines
}

#[test]
fn documents_build_and_call_flue_in_one_way() {
    for (line, is_other) in [
        ("cargo build --release && export PATH=\"$PWD/target/release:$PATH\"", false),
        ("cargo build", true),
        ("cargo run --release -- lab", true),
        ("cargo run --example hello", false),
        ("cargo install --locked --path .  # to ~/.cargo/bin", false),
        ("cargo install --path .", true),
        ("./target/release/flue bench", true),
        ("flue bench", false),
    ] {
        let page = format!("```sh\n{line}\n```\n{line}\n");
        assert_eq!(other_ways(&page).len(), usize::from(is_other), "{line}");
    }
    // Generated pages have no such lines; contributors build debug profiles, and measurements are records.
    const EXEMPT: [&str; 3] = ["docs/contributing/", "docs/measurements/", "docs/reference/cli/"];
    let mut files = vec!["README.md".to_owned(), "examples/README.md".to_owned()];
    pages("docs", &mut files);
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| !EXEMPT.iter().any(|it| file.starts_with(it))) {
        let page = fs::read_to_string(root().join(file)).unwrap();
        findings.extend(other_ways(&page).into_iter().map(|line| format!("{file}: {line}")));
    }
    assert!(findings.is_empty(), "{findings:#?}");
}
