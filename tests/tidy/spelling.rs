//! Spelling of documents, comments, strings and messages: US English, by codespell (Debian package `codespell`).
//! `spelling.txt` lists the accepted words with their reasons.

use std::{fmt::Write as _, fs, process::Command};

use flue_test_support::needs::{Need, lacks};

use super::{has_word, is_under, paths, root};

/// Accepted words.
const ACCEPTED: &str = "tests/tidy/spelling.txt";
/// Lists of misspelled words, and data whose text is not of this project.
const EXCLUDED: &[&str] =
    &[ACCEPTED, "tests/tidy/words.txt", "tests/tidy/spelling.rs", "tests/fuzz/found/"];
/// Extensions of generated and binary files.
const EXCLUDED_EXTENSIONS: &[&str] = &["lock", "pcap", "pcapng", "snap", "svg"];

/// Finding of codespell.
#[derive(Debug, PartialEq, Eq)]
struct Finding<'a> {
    /// `file:line`.
    place: &'a str,
    word: &'a str,
    /// Suggested spellings.
    instead: &'a str,
}

/// Findings from codespell's output, `file:line: word ==> suggestion`.
fn findings(output: &str) -> Vec<Finding<'_>> {
    let finding = |line| {
        let (found, instead) = str::split_once(line, " ==> ")?;
        let (place, word) = found.rsplit_once(": ")?;
        Some(Finding { place, word, instead })
    };
    output.lines().filter_map(finding).collect()
}

/// Output of codespell for `files`.
fn codespell<'a>(files: impl IntoIterator<Item = &'a str>) -> String {
    let output = Command::new("codespell")
        .args(["--check-hidden", "--quiet-level", "2"])
        .args(["--builtin", "clear,rare,en-GB_to_en-US"])
        .args(files)
        .current_dir(root())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Words of [`ACCEPTED`] with their reasons.
fn accepted(list: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(": ").expect(line))
}

#[test]
fn spelling_is_us_english() {
    if lacks(&[Need::Tool("codespell")]) {
        return;
    }
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/spelling.txt");
    fs::write(file, "teh colour\n").unwrap();
    let example = codespell([file]);
    let example: Vec<_> = findings(&example).into_iter().map(|it| (it.word, it.instead)).collect();
    assert_eq!(example, [("teh", "the"), ("colour", "color")], "codespell of another kind");

    let list = fs::read_to_string(root().join(ACCEPTED)).unwrap();
    let accepted: Vec<_> = accepted(&list).map(|(word, _)| word).collect();
    let is_checked = |file: &String| {
        let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
        !is_under(file, EXCLUDED) && !EXCLUDED_EXTENSIONS.contains(&extension)
    };
    let files: Vec<String> = paths().into_iter().filter(is_checked).collect();
    let output = codespell(files.iter().map(String::as_str).chain([".ci/run"]));
    let mut report = String::new();
    for Finding { place, word, instead } in findings(&output) {
        if !accepted.contains(&word) {
            writeln!(report, "{place}: {word}: write {instead}, or add it to {ACCEPTED}").unwrap();
        }
    }
    assert!(report.is_empty(), "\n{report}");
    assert!(files.len() > 1_000, "{} files", files.len());
}

#[test]
fn accepted_words_have_reasons_and_uses() {
    let list = fs::read_to_string(root().join(ACCEPTED)).unwrap();
    let texts: Vec<String> = paths()
        .into_iter()
        .filter(|file| !is_under(file, EXCLUDED))
        .filter_map(|file| fs::read_to_string(root().join(file)).ok())
        .collect();
    let mut report = String::new();
    for (word, reason) in accepted(&list) {
        if reason.is_empty() {
            writeln!(report, "{ACCEPTED}: {word}: no reason").unwrap();
        }
        if !texts.iter().any(|text| has_word(text, word)) {
            writeln!(report, "{ACCEPTED}: {word}: no file has this word").unwrap();
        }
    }
    assert!(report.is_empty(), "\n{report}");
}
