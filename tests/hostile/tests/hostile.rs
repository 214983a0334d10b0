//! Hostile peers, on kernel TCP in a namespace, against a server of queue pairs: on a TAP, with and without offload,
//! and on kernel sockets in another namespace. `hostile-peer` runs the cases of `flue judge`; `peer/main.py` floods.
//!
//! Peers use the server's address and its Reply; only this file starts the server.

use std::{
    collections::BTreeSet,
    process::Command,
    sync::{Mutex, PoisonError},
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
/// Minimum number of cases: it detects an incomplete list.
const CASES_MIN: usize = 280;
/// Growth of the server's memory, KiB: receive windows grow to 4 MiB each, and the C library does not return freed
/// memory.
const MEMORY_KIB: u64 = 24 * 1024;
/// The same if all connections stay in the host stack, whose sockets have buffers of a fixed size: those of the floods.
const MEMORY_HOST_STACK_KIB: u64 = 96 * 1024;

/// Held by the test that runs its cases.
static ALONE: Mutex<()> = Mutex::new(());

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

/// Command that runs the cases of the judge.
fn judge(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hostile-peer"));
    command.args(arguments);
    command
}

/// Command that floods.
fn floods(arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peer/main.py"));
    command.args(arguments);
    command
}

/// Returns the line of a failed case, with the command that runs only that case.
fn failure(line: &str) -> Option<String> {
    let case = line.strip_prefix("FAILED ")?.split(' ').next()?;
    Some(format!("{line}\n  FLUE_HOSTILE_CASE={case} cargo test -p flue-hostile --test hostile"))
}

// The list has the cases that docs/conformance cites. `FLUE_BLESS=1 cargo test -p flue-hostile --test hostile list`
// writes it.
#[test]
fn list_of_cases_is_current() {
    if lacks(&[Need::Tool("python3")]) {
        return;
    }
    let listed = [judge(&["--list"]), floods(&["--list"])].map(|mut command| {
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let listed = listed.concat();
    if std::env::var_os("FLUE_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/cases.txt"), &listed).unwrap();
    }
    let written =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/cases.txt")).unwrap();
    assert!(written.lines().count() >= CASES_MIN);
    assert!(listed == written, "FLUE_BLESS=1 cargo test -p flue-hostile --test hostile list");
    let names: BTreeSet<_> = written.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names.len(), written.lines().count(), "duplicate case name");
}

// The table of `flue judge` is part of its package; the page has verdicts and tests of flue for the same rules.
#[test]
fn rules_of_the_judge_are_those_of_the_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/conformance/iwarp.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let rows = rows.map(|row| row.split(" | ").take(3).collect::<Vec<_>>().join(" "));
    let is_rule = |row: &String| {
        ["MPA-", "MPE-", "DDP-", "RDM-", "EXT-", "SEC-"].iter().any(|it| row.starts_with(it))
    };
    let expected: Vec<String> = rows.filter(is_rule).collect();
    let found: Vec<String> = flue_judge::rules()
        .iter()
        .map(|it| format!("{} {} {}", it.id, it.level, it.subject))
        .collect();
    assert_eq!(found, expected, "judge/rules.txt: id, level and subject of each row");
}

fn on_a_node(options: &str, memory_kib: u64) {
    if lacks(NEEDS) || lacks(&[Need::Tun]) {
        return;
    }
    let switch = Switch::new(1500);
    let bridge = Switch::BRIDGE;
    let plug = format!(
        "--tap tap2 --addr 10.0.0.2/24 --addr {SERVER_IPV6} --bridge {bridge} --seed 7 {options}"
    );
    let server = server(switch.namespace(), &plug);
    drive(server, &host(&switch, "10.0.0.1/24", PEER_IPV6), memory_kib);
}

fn host(switch: &Switch, ipv4: &str, ipv6: &str) -> Namespace {
    let host = switch.host(ipv4);
    host.ip(&format!("addr add {ipv6} dev eth0 nodad"));
    host
}

#[test]
fn hostile_peer_affects_no_other_connection() {
    on_a_node("", MEMORY_KIB);
}

// Without offload all connections stay in the host stack.
#[test]
fn hostile_peer_affects_no_other_connection_without_offload() {
    on_a_node("--offload never", MEMORY_HOST_STACK_KIB);
}

#[test]
fn hostile_peer_affects_no_other_connection_on_kernel_sockets() {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let server = server(&host(&switch, "10.0.0.2/24", SERVER_IPV6), "--kernel");
    drive(server, &host(&switch, "10.0.0.1/24", PEER_IPV6), MEMORY_KIB);
}

/// Resident memory in KiB and open descriptors of a process.
fn resources(pid: &str) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let memory = memory.split_whitespace().next().unwrap().parse().unwrap();
    (memory, std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

/// Runs a peer, and returns its lines. A failed case fails the test.
fn run(server: &mut Process, host: &Namespace, peer: Command) -> String {
    let output = Process::start(host, peer, Output::Lines).all_lines(LIMIT);
    let failed: Vec<String> = output.lines().filter_map(failure).collect();
    let server_log = server.log().join("\n");
    assert!(failed.is_empty(), "{output}\n{}\nthe server: {server_log}", failed.join("\n"));
    assert!(output.contains("done"), "{output}\nthe server: {server_log}");
    output
}

fn count(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("ok ")).count()
}

/// Runs all cases, or the one of FLUE_HOSTILE_CASE, FLUE_HOSTILE_ROUNDS times, from `host`. `memory_kib`: permitted
/// growth.
fn drive(mut server: Process, host: &Namespace, memory_kib: u64) {
    // A flood needs all CPUs: if another test runs, frames are dropped, and clients repeat their SYNs.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = server.id().to_string();
    let rounds = std::env::var("FLUE_HOSTILE_ROUNDS").unwrap_or_else(|_| "1".into());
    let began = Instant::now();
    if let Ok(case) = std::env::var("FLUE_HOSTILE_CASE") {
        let only = ["--rounds", &rounds, "--only", &case];
        let output = match case.starts_with("flood-") {
            true => run(
                &mut server,
                host,
                floods(&[&[SERVER, "--all", "--pid", &pid], &only[..]].concat()),
            ),
            false => run(&mut server, host, judge(&[&[SERVER], &only[..]].concat())),
        };
        assert!(count(&output) > 0, "{output}");
        return server.expect_exit(0, START);
    }
    // More connections than the server keeps reports of.
    run(&mut server, host, judge(&[SERVER, "--only", "tagged-*"]));
    let before = resources(&pid);
    let judged = count(&run(&mut server, host, judge(&[SERVER, "--rounds", &rounds])));
    let flooded = floods(&[SERVER, "--all", "--pid", &pid, "--rounds", &rounds]);
    let cases = judged + count(&run(&mut server, host, flooded));
    assert!(cases >= CASES_MIN, "only {cases} cases");
    let after = resources(&pid);
    let is_bounded = after.0 <= before.0 + memory_kib && after.1 <= before.1;
    assert!(is_bounded, "KiB of memory and descriptors: {before:?}, then {after:?}");
    assert!(server.is_running());
    server.expect_exit(0, START);
    eprintln!(
        "{cases} cases in {:?}; memory and descriptors {before:?}, {after:?}",
        began.elapsed()
    );
}
