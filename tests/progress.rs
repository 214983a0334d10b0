//! Progress of long commands: a bar on a terminal, otherwise lines without escape sequences, at most one every 5 s.

use std::fs;
use std::process::Command;
use std::time::Duration;

use flue_test_support::flue::{Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("python3")];
const LIMIT: Duration = Duration::from_secs(120);
/// Transfers 3 MB at 4 Mbit/s: more than 5 s, and less than 10 s.
const LAB: &str = "--transport tap --rate 4Mbit --seed 1";
const FILE_BYTES: usize = 1_000_000;

/// Runs the command on a terminal, with the steps of tests/top.py.
fn on_terminal(steps: &[&str], command: &[&str]) {
    let mut python = Command::new("python3");
    python.arg(format!("{ROOT}/tests/top.py")).args(steps).arg("--").args(command);
    Process::start(&Namespace::new(), python, Output::Lines).expect_exit(0, LIMIT);
}

fn lab(scratch: &Scratch) -> String {
    let (file, capture) = (scratch.file("file"), scratch.file("lab.pcapng"));
    fs::write(&file, vec![7; FILE_BYTES]).unwrap();
    format!("lab {LAB} --file {} --pcap {}", file.display(), capture.display())
}

#[test]
fn lab_on_a_terminal_has_a_bar() {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let line = lab(&scratch);
    let words: Vec<&str> = [FLUE].into_iter().chain(line.split(' ')).collect();
    on_terminal(&["wait=% =", "wait=RDMA Read, ", "gone= left", "exit=0"], &words);
}

#[test]
fn lab_without_a_terminal_has_lines() {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let mut lab = Process::start(&Namespace::new(), command(FLUE, &lab(&scratch)), Output::Lines);
    let text = lab.all_lines(LIMIT);
    lab.expect_exit(0, LIMIT);
    let lines = text.lines().filter(|line| line.contains(" %  "));
    assert!((1..=2).contains(&lines.count()), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn bench_on_a_terminal_has_a_bar() {
    if lacks(NEEDS) {
        return;
    }
    let options = "bench --quick --rounds 1 --seconds 0.1 --only latency-block";
    let words: Vec<&str> = [FLUE].into_iter().chain(options.split(' ')).collect();
    on_terminal(&["wait=1/2  round 1  latency-block", "gone= left", "exit=0"], &words);
}

// The script shows the lines of a suite by this function.
#[test]
fn campaign_has_a_bar_on_a_terminal_and_lines_otherwise() {
    if lacks(&[Need::Root, Need::Tool("python3")]) {
        return;
    }
    let script = fs::read_to_string(format!("{ROOT}/tests/campaign/run")).unwrap();
    let (_, rest) = script.split_once("\nshow() {\n").expect("a function show");
    let (body, _) = rest.split_once("\n}\n").expect("its end");
    let seeds = "printf 'walk: 50 of 200 seeds, 0 failed\\n'";
    let shown = |after: &str| format!("show() {{\n{body}\n}}\n{{ {seeds}; {after}; }} | show");
    let bar = "wait= 25 % ======                   walk: 50 of 200 seeds, 0 failed";
    on_terminal(
        &[bar, "send=x", "gone= 25 %", "exit=0"],
        &["bash", "-c", &shown("read -rn1 _ </dev/tty")],
    );
    let plain = Command::new("bash").args(["-c", &shown("echo end")]).output().unwrap();
    let text = String::from_utf8(plain.stdout).unwrap();
    assert_eq!(text, "walk: 50 of 200 seeds, 0 failed\nend\n");
}
