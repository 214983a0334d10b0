//! `flue judge` against flue on kernel sockets: as a responder with rping, and as an initiator. `tests/hostile` runs
//! all cases, also against nodes.

use std::process::Command;
use std::time::Duration;

use flue_test_support::flue::command;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tool("ip"), Need::Tool("unshare")];
const LIMIT: Duration = Duration::from_secs(120);

/// Namespace with loopback only.
fn machine() -> Namespace {
    let host = Namespace::new();
    host.ip("link set lo up");
    host
}

/// Runs the judge to its end and returns its document.
fn judge(host: &Namespace, arguments: &str, status: i32) -> Value {
    let line = format!("judge --json --seed 1 {arguments}");
    let mut judge = Process::start(host, command(FLUE, &line), Output::Lines);
    let text = judge.all_lines(LIMIT);
    judge.expect_exit(status, LIMIT);
    serde_json::from_str(&text).expect("a document")
}

/// Returns the rules with this verdict, with the reasons.
fn rules(document: &Value, verdict: &str) -> Vec<String> {
    let rules = document["result"]["rules"].as_array().expect("rules").iter();
    let rules = rules.filter(|rule| rule["verdict"] == verdict);
    rules.map(|rule| format!("{}: {}", rule["id"], rule["reason"])).collect()
}

/// Asserts that no rule is violated, no case has another difference than those listed, and that at least `count` rules
/// are met.
fn assert_met(document: &Value, count: usize) {
    assert_eq!(rules(document, "violated"), [""; 0]);
    let met = rules(document, "met").len();
    assert!(met >= count, "{met} rules are met: expected {count}: {document:#}");
}

/// Command that repeats another one. All its processes end with it.
fn in_a_loop(line: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"]);
    command.arg(format!("while :; do {line}; done"));
    command
}

/// Path of the verbs library, which cargo builds in the same directory as this test.
fn library() -> String {
    let test = std::env::current_exe().expect("the path of this test");
    test.with_file_name("libflue_verbs.so").display().to_string()
}

#[test]
fn flue_with_rping_violates_no_rule() {
    if lacks(NEEDS) || lacks(&[Need::Tool("rping")]) {
        return;
    }
    let host = machine();
    let line =
        format!("{FLUE} run --library {} -- stdbuf -oL rping -d -s -P -a 127.0.0.1", library());
    let mut server = Process::start(&host, in_a_loop(&line), Output::Lines);
    server.expect_line("rdma_listen", LIMIT);
    // Cases that wait for time limits of flue take too long.
    let listed = judge(&host, "--list", 0);
    let names = listed["result"]["cases"].as_array().expect("cases").iter();
    let names = names.filter_map(|case| case["name"].as_str());
    let names = names.filter(|name| !name.contains("-silence-"));
    let only: String = names.map(|name| format!("--only {name} ")).collect();
    let document = judge(&host, &format!("127.0.0.1 --consumer rping {only}"), 0);
    assert_met(&document, 90);
    // Memory of the peer is not observable with rping.
    let unobservable = rules(&document, "not_observable").join("\n");
    assert!(unobservable.contains("RDM-5.2.2-3\": \"requires --consumer flue"), "{unobservable}");
    assert!(unobservable.contains("MPE-5-1\": \"requires an initiator"), "{unobservable}");
}

#[test]
fn flue_as_initiator_violates_no_rule() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    // Each rping connects for one case. It fails, as the judge sends no messages.
    let line = format!("{FLUE} rping -c -q -w 2 -C 1 -a 127.0.0.1 -p 7001 --transport kernel");
    let _clients = Process::start(&host, in_a_loop(&line), Output::Lines);
    let document = judge(&host, "--listen 127.0.0.1:7001", 0);
    assert_met(&document, 15);
    let not_run = rules(&document, "not_run");
    assert_eq!(not_run, [""; 0]);
}

#[test]
fn captures_and_lists_are_complete() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    let document = judge(&host, "--list", 0);
    let cases = document["result"]["cases"].as_array().expect("cases").len();
    assert!(cases > 270, "{cases} cases");
    let refused = judge(&host, "127.0.0.1:1 --only startup-http", 1);
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("127.0.0.1:1: connect to the peer"), "{message}");
    let unknown = judge(&host, "127.0.0.1:1 --only RDM-none", 2);
    let message = unknown["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("--only RDM-none: no such rule or case"), "{message}");
}
