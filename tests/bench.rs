//! `flue bench` on this machine: a short run of two rows, its documents, and the cleanup afterwards. Results are not
//! judged.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use flue_test_support::flue::{Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use rustix::process::Signal;
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("unshare")];
const LIMIT: Duration = Duration::from_secs(300);

/// Starts `flue bench` with these options in a namespace of the test; it creates its own namespaces there.
fn bench(options: &str) -> Process {
    Process::start(&Namespace::new(), command(FLUE, &format!("bench {options}")), Output::Lines)
}

/// Network namespaces that contain a process.
fn namespaces() -> BTreeSet<String> {
    let processes = fs::read_dir("/proc").expect("a mounted /proc");
    let link = |entry: fs::DirEntry| fs::read_link(entry.path().join("ns/net")).ok();
    let links = processes.filter_map(|entry| link(entry.ok()?));
    links.map(|link| link.display().to_string()).collect()
}

/// Waits until none of these namespaces contains a process: killed processes exit asynchronously.
fn assert_gone(names: &BTreeSet<String>) {
    let deadline = Instant::now() + LIMIT;
    while !names.is_disjoint(&namespaces()) {
        assert!(Instant::now() < deadline, "left: {names:?}");
        std::thread::yield_now();
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}: not a number"))
}

/// Checks the invariants of every summary.
fn check_summary(summary: &Value) {
    let [min, median, max] = ["min", "median", "max"].map(|key| number(&summary[key]));
    assert!(min <= median && median <= max, "{summary}");
    assert!(number(&summary["samples"]) >= 1.0, "{summary}");
}

/// Checks the invariants of every row of a table; returns the number of rows with a ratio.
fn check_lines(contest: &Value) -> usize {
    let mut ratios = 0;
    for line in contest["lines"].as_array().expect("lines") {
        for summary in [&line["flue"], &line["other"]] {
            if !summary.is_null() {
                check_summary(summary);
            }
        }
        if let Some(ratio) = line["ratio"].as_f64() {
            ratios += 1;
            let quotient = number(&line["flue"]["median"]) / number(&line["other"]["median"]);
            assert!((ratio / quotient - 1.0).abs() < 1e-9, "{line}");
        }
    }
    ratios
}

#[test]
fn two_rows_and_their_documents() {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let (json, html) = (scratch.file("bench.json"), scratch.file("bench.html"));
    let options = format!(
        "--quick --rounds 1 --seconds 0.1 --only latency-block,stream-to-kernel --json {} --html {}",
        json.display(),
        html.display()
    );
    let mut run = bench(&options);
    let said = run.all_lines(LIMIT);
    run.expect_exit(0, LIMIT);
    assert!(said.contains("latency-block") && said.contains("stream-to-kernel"), "{said}");
    assert!(!said.contains('\u{1b}'), "escape sequences without a terminal");

    let document: Value =
        serde_json::from_slice(&fs::read(&json).unwrap()).expect("a JSON document");
    assert_eq!(document["schema"], "flue.bench/1");
    assert_eq!(document["config"]["rounds"], 1);
    assert!(document["result"]["machine"]["kernel"].as_str().unwrap().starts_with("Linux"));
    let contests = document["result"]["contests"].as_array().unwrap();
    assert_eq!(contests.len(), 2);
    for contest in contests {
        let flue = &contest["contestants"][0];
        assert_eq!(flue["system"], "flue");
        assert_eq!(flue["samples"].as_array().unwrap().len(), 1, "{flue}");
        assert!(flue["samples"][0]["error"].is_null(), "{flue}");
        let metric = contest["metric"].as_str().unwrap();
        check_summary(&flue["summaries"][metric]);
        assert!(check_lines(contest) >= 1, "{contest}");
    }

    let page = fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    for element in ["svg", "g", "table", "tr", "td", "div", "details", "main", "text"] {
        let opened = page.matches(&format!("<{element}>")).count()
            + page.matches(&format!("<{element} ")).count();
        assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "<{element}>");
    }
    for word in ["http:", "https:", "src=", "<script", "url("] {
        assert!(!page.contains(word), "{word}");
    }

    let names = document["result"]["namespaces"].as_array().unwrap().iter();
    let names: BTreeSet<String> = names.map(|name| name.as_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), 3);
    assert_gone(&names);
}

/// The row polls, so a second `--wait` replaces the first. An option that flue refuses fails the run, with the reason.
#[test]
fn flue_is_compared_with_itself_under_other_options() {
    if lacks(NEEDS) {
        return;
    }
    let against = |options: &str| {
        let mut bench =
            command(FLUE, "bench --quiet --rounds 1 --seconds 0.02 --only latency-write");
        bench.args(["--against", options]);
        Process::start(&Namespace::new(), bench, Output::Lines)
    };
    let mut blocking = against("--wait block --sandbox off");
    blocking.expect_line("  with --wait block --sandbox off", LIMIT);
    blocking.expect_exit(0, LIMIT);
    let mut refused = against("--no-option");
    refused.expect_exit(1, LIMIT);
    let log = refused.log().join("\n");
    let reason = "flue bench: measurement of flue: latency-write: server: flue: exit status 2: \
                  error: unexpected argument '--no-option' found";
    assert!(log.contains(reason), "{log}");
}

#[test]
fn signal_ends_bench_keeps_results_and_removes_namespaces() {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let json = scratch.file("bench.json");
    // More rounds than can finish before the signal.
    let options = format!("--rounds 99 --seconds 2 --only latency-block --json {}", json.display());
    let mut run = bench(&options);
    run.expect_line("samples: ", LIMIT);
    run.signal(Signal::INT);
    run.expect_line("interrupted by SIGINT", LIMIT);
    run.expect_exit(130, LIMIT);
    let document: Value =
        serde_json::from_slice(&fs::read(&json).unwrap()).expect("a JSON document");
    assert_eq!(document["result"]["interrupted_by"], 2);
    let names = document["result"]["namespaces"].as_array().unwrap().iter();
    assert_gone(&names.map(|name| name.as_str().unwrap().to_owned()).collect());
}

#[test]
fn kill_leaves_nothing() {
    if lacks(NEEDS) {
        return;
    }
    let mut run = bench("--rounds 99 --seconds 5 --only latency-block");
    run.expect_line("samples: ", LIMIT);
    let children = children_of(run.id());
    run.signal(Signal::KILL);
    run.wait(LIMIT);
    let deadline = Instant::now() + LIMIT;
    while children.iter().any(|child| is_running(child)) {
        assert!(Instant::now() < deadline, "left: {children:?}");
        std::thread::yield_now();
    }
}

/// True if the process exists and is not a zombie.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

/// Children of the process, once it has some: then it has begun to measure.
fn children_of(pid: u32) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_to_string(path).expect("a running process");
        if !children.trim().is_empty() {
            return children.split_whitespace().map(str::to_owned).collect();
        }
        assert!(Instant::now() < deadline, "no child process started");
        std::thread::yield_now();
    }
}

#[test]
fn usage_errors_have_status_2() {
    let status = |line: &str| {
        let output = Command::new(FLUE).arg("bench").args(line.split(' ')).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    for (line, word) in [
        ("--only no-such-row", "no-such-row"),
        ("--seconds 0", "0.02"),
        ("--rounds 0", "1..=99"),
        ("--mtu 100", "1280..=65521"),
        ("--against ", "expected options"),
    ] {
        let (code, text) = status(line);
        assert_eq!(code, Some(2), "{line}: {text}");
        assert!(text.contains(word), "{line}: {text}");
    }
}

#[test]
fn list_names_selectable_groups() {
    let output = Command::new(FLUE).args(["bench", "--list"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["write-1m", "latency-write", "size-read/65536", "connections/1000", "queues/2"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}");
    }
}
