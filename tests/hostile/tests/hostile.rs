//! Hostile peer in Python (`peer/main.py`), on kernel TCP in a namespace, against a server of queue pairs: on a TAP,
//! and on kernel sockets in another namespace.
//!
//! The cases use the server's address and its Reply; only this file starts the server.

use std::{
    collections::BTreeSet,
    process::Command,
    time::{Duration, Instant},
};

use flue_test_support::{
    needs::{Need, lacks},
    netns::Namespace,
    process::{Output, Process},
    switch::Switch,
};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("ip"),
    Need::Tool("nft"),
    Need::Tool("unshare"),
    Need::Tool("python3"),
];
const START: Duration = Duration::from_secs(120);
/// Time limit of the suite, on a machine that is ten times as slow and has other load.
const LIMIT: Duration = Duration::from_secs(600);
/// Address of the server. The last octets of IPv4 addresses are those of fd00::/64 too.
const SERVER: &str = "10.0.0.2:7000";
const SERVER_IPV6: &str = "fd00::10.0.0.2/64";
const PEER_IPV6: &str = "fd00::10.0.0.1/64";
/// Minimum number of cases of the peer: it detects an incomplete list.
const CASES_MIN: usize = 280;

/// Starts the server as a separate process. `FLUE_HOSTILE_OPTIONS` adds options.
fn server(host: &Namespace, options: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hostile-server"));
    let more = std::env::var("FLUE_HOSTILE_OPTIONS").unwrap_or_default();
    command.args(options.split_whitespace()).args(["--port", "7000"]);
    command.args(more.split_whitespace());
    let mut server = Process::start(host, command, Output::Lines);
    server.expect_line("listening", START);
    server
}

fn peer(arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peer/main.py")).arg(SERVER);
    command.args(arguments);
    command
}

/// Returns the line of a failed case, with the command that runs only that case.
fn failure(line: &str) -> Option<String> {
    let case = line.strip_prefix("FAILED ")?.split(' ').next()?;
    Some(format!("{line}\n  FLUE_HOSTILE_CASE={case} cargo test -p flue-hostile --test hostile"))
}

// The list has the cases that docs/conformance cites. `python3 tests/hostile/peer/main.py --list` writes it.
#[test]
fn list_of_cases_is_current() {
    if lacks(&[Need::Tool("python3")]) {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peer/main.py");
    let listed = Command::new("python3").args(["-B", script, "--list"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let written = include_str!("../cases.txt");
    assert!(written.lines().count() >= CASES_MIN);
    assert!(
        listed == written,
        "python3 tests/hostile/peer/main.py --list > tests/hostile/cases.txt"
    );
    let names: BTreeSet<_> = written.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names.len(), written.lines().count(), "duplicate case name");
}

fn on_a_node(options: &str, cases: Cases) {
    if lacks(NEEDS) || lacks(&[Need::Tun]) {
        return;
    }
    let switch = Switch::new(1500);
    let bridge = Switch::BRIDGE;
    let plug = format!(
        "--tap tap2 --addr 10.0.0.2/24 --addr {SERVER_IPV6} --bridge {bridge} --seed 7 {options}"
    );
    let server = server(switch.namespace(), &plug);
    drive(server, &host(&switch, "10.0.0.1/24", PEER_IPV6), cases);
}

fn host(switch: &Switch, ipv4: &str, ipv6: &str) -> Namespace {
    let host = switch.host(ipv4);
    host.ip(&format!("addr add {ipv6} dev eth0 nodad"));
    host
}

#[test]
fn hostile_peer_affects_no_other_connection() {
    on_a_node("", Cases::All);
}

// Without offload all connections stay in the host stack.
#[test]
fn floods_affect_no_client_without_offload() {
    on_a_node("--offload never", Cases::Floods);
}

#[test]
fn hostile_peer_affects_no_other_connection_on_kernel_sockets() {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let server = server(&host(&switch, "10.0.0.2/24", SERVER_IPV6), "--kernel");
    drive(server, &host(&switch, "10.0.0.1/24", PEER_IPV6), Cases::All);
}

/// Cases of a run without FLUE_HOSTILE_CASE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cases {
    All,
    Floods,
}

/// Runs the cases, or the one of FLUE_HOSTILE_CASE, FLUE_HOSTILE_ROUNDS times, from `host`.
fn drive(mut server: Process, host: &Namespace, cases: Cases) {
    let pid = server.id().to_string();
    let mut arguments = vec!["--all", "--pid", &pid];
    let only = std::env::var("FLUE_HOSTILE_CASE").ok();
    let only = only.or_else(|| (cases == Cases::Floods).then(|| "flood-*".into()));
    let rounds = std::env::var("FLUE_HOSTILE_ROUNDS").unwrap_or_else(|_| "1".into());
    arguments.extend(["--rounds", &rounds]);
    arguments.extend(only.iter().flat_map(|case| ["--only", case]));
    let began = Instant::now();
    let mut process = Process::start(host, peer(&arguments), Output::Lines);
    let output = process.all_lines(LIMIT);
    let took = began.elapsed();
    let failed: Vec<String> = output.lines().filter_map(failure).collect();
    let server_log = server.log().join("\n");
    assert!(failed.is_empty(), "{}\nthe server: {server_log}", failed.join("\n"));
    let count = output.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(output.contains("done: ") && count > 0, "{output}");
    assert!(only.is_some() || count >= CASES_MIN, "only {count} cases: {output}");
    assert!(server.is_running());
    server.expect_exit(0, START);
    eprintln!(
        "{count} cases in {took:?}; {}",
        output.lines().find(|it| it.starts_with("memory")).unwrap_or_default()
    );
}
