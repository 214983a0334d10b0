//! Failures and warnings as a user reads them: what failed in the words of Unix, on which layer, with which peer, and
//! the remedy. A node that no peer can reach is announced, a connect has a time limit, and a signal has a status.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use flue_test_support::flue::{Scratch, as_ordinary_user, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use rustix::process::Signal;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip")];
const LIMIT: Duration = Duration::from_secs(60);
const ISOLATED: &str = "TAP flue0 has neither --bridge nor --host-addr";

/// Namespace with loopback, and a bridge without ports whose network has no other station.
fn machine() -> Namespace {
    let host = Namespace::new();
    host.ip("link set lo up");
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    host.ip("addr add 10.66.0.1/24 dev br0");
    host
}

fn start(host: &Namespace, line: &str) -> Process {
    Process::start(host, command(FLUE, line), Output::Lines)
}

/// Runs a command that fails with status 1. Returns its error and its hints.
fn failure(host: &Namespace, line: &str) -> String {
    let mut process = start(host, line);
    process.expect_exit(1, LIMIT);
    let said = process.all_lines(LIMIT);
    let at = said.find("\nflue ").or_else(|| said.starts_with("flue ").then_some(0));
    let error = said[at.unwrap_or_else(|| panic!("{line}: {said}"))..].trim().to_owned();
    for word in ["STATUS_", "0xc0", "NDK"] {
        assert!(!error.contains(word), "{line}: {word}: {error}");
    }
    error
}

#[test]
fn node_without_a_peer_is_announced_with_its_address() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    for (line, listening) in [
        ("nc -l 5000", "listening: 10.77.0.2:5000"),
        ("rping -s", "listening: 10.77.0.2:7174"),
        ("serve", "listening: 10.77.0.2:7174"),
        ("perf write-bw", "listening: write-bw at 10.77.0.2:18515"),
        ("perf tcp-bw", "listening: tcp-bw at 10.77.0.2:18515"),
    ] {
        let mut process = start(&host, line);
        process.expect_line(listening, LIMIT);
        process.signal(Signal::TERM);
        process.wait(LIMIT);
        let said = process.all_lines(LIMIT);
        assert!(said.contains(&format!("warning: {ISOLATED}")), "{line}: {said}");
        assert!(said.contains("hint: --host-addr IP/PREFIX"), "{line}: {said}");
        for option in ["--bridge br0", "--host-addr 10.77.0.1/24"] {
            let mut process = start(&host, &format!("{line} {option}"));
            process.expect_line(listening, LIMIT);
            process.signal(Signal::TERM);
            process.wait(LIMIT);
            let said = process.all_lines(LIMIT);
            assert!(!said.contains("warning"), "{line} {option}: {said}");
        }
    }
    let mut program = start(&host, "run --tap flue0 --addr 10.77.0.2/24 -- true");
    program.expect_exit(0, LIMIT);
    let said = program.all_lines(LIMIT);
    assert!(said.contains(&format!("flue run: warning: {ISOLATED}")), "{said}");
}

#[test]
fn unanswered_connect_names_its_layer_within_its_limit() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    let arp = "no ARP or ND reply from the next hop in 1 s";
    for (line, address) in [
        ("nc -w 1 10.77.0.9 5000", "10.77.0.9:5000"),
        ("rping -c -w 1 -a 10.77.0.9", "10.77.0.9:7174"),
        ("perf write-bw -w 1 10.77.0.9", "10.77.0.9:18515"),
        ("perf tcp-bw -w 1 10.77.0.9", "10.77.0.9:18515"),
    ] {
        let error = failure(&host, line);
        assert!(error.contains(&format!("connect to {address}: {arp}: {ISOLATED}")), "{error}");
        let error = failure(&host, &format!("{line} --bridge br0"));
        assert!(error.contains(&format!("connect to {address}: {arp}\n")), "{error}");
        assert!(!error.contains("--host-addr"), "{error}");
    }
    for (line, address) in [
        ("rping -c --transport kernel -w 1 -a 10.66.0.9", "10.66.0.9:7174"),
        ("perf write-bw --stack kernel -w 1 10.66.0.9", "10.66.0.9:18515"),
        ("perf tcp-bw --stack kernel -w 1 10.66.0.9", "10.66.0.9:18515"),
    ] {
        let error = failure(&host, line);
        assert!(error.contains(&format!("connect to {address}: ")), "{error}");
        assert!(error.contains(" 1 s"), "{error}");
    }
}

#[test]
fn connect_is_announced_on_a_terminal() {
    if lacks(NEEDS) || lacks(&[Need::Tool("python3")]) {
        return;
    }
    let host = machine();
    for line in
        ["nc -w 1 10.77.0.9 5000", "rping -c -w 1 -a 10.77.0.9", "perf tcp-bw -w 1 10.77.0.9"]
    {
        let mut terminal = Command::new("python3");
        terminal.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/top.py"));
        terminal.args(["wait=connecting to 10.77.0.9:", "exit=1", "--", FLUE]);
        terminal.args(line.split_whitespace());
        Process::start(&host, terminal, Output::Lines).expect_exit(0, LIMIT);
        assert!(!failure(&host, line).contains("connecting"));
    }
}

#[test]
fn doctor_has_a_verdict_for_the_commands_of_an_ordinary_user() {
    if lacks(NEEDS) || lacks(&[Need::InitialRoot, Need::Tool("setpriv"), Need::Tool("unshare")]) {
        return;
    }
    let (host, scratches) = (machine(), [Scratch::new(), Scratch::new()]);
    let run = |line: &str, scratch: &Scratch| {
        let command = as_ordinary_user(scratch, Path::new(FLUE), line);
        Process::start(&host, command, Output::Lines)
    };
    let mut doctor = run("doctor", &scratches[0]);
    doctor.wait(LIMIT);
    let said = doctor.all_lines(LIMIT);
    assert!(said.contains("unusable flue nc, rping, perf, serve, wire, run --tap"), "{said}");
    assert!(said.contains("usable   flue rping, serve, lab --transport kernel"), "{said}");
    run("nc -l 5000", &scratches[1]).expect_exit(3, LIMIT);
}

#[test]
fn occupied_tap_has_remedies() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    let mut first = start(&host, "rping -s --bridge br0");
    first.expect_line("listening", LIMIT);
    for line in ["rping -c -a 10.77.0.2", "nc -l 5000", "perf write-bw", "serve"] {
        let error = failure(&host, line);
        assert!(error.contains("interface \"flue0\" is busy"), "{error}");
        assert!(error.contains("--tap flue1 --addr 10.77.0.3/24"), "{error}");
        assert!(error.contains("--transport kernel"), "{error}");
    }
}

#[test]
fn refused_and_wrong_addresses_are_in_unix_words() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    let mut server = start(&host, "rping -s --transport kernel");
    server.expect_line("listening", LIMIT);
    let node = "--host-addr 10.77.0.1/24";
    for (line, texts) in [
        ("rping -s --transport kernel", ["listen on 0.0.0.0:7174: address already in use", "-p"]),
        ("serve --transport kernel", ["listen on 0.0.0.0:7174: address already in use", "-p"]),
        ("rping -s -a 10.99.0.1", ["listen on 10.99.0.1:7174: address not available", "10.77.0.2"]),
        ("nc -l 10.99.0.1 80", ["listen on 10.99.0.1:80: address not available", "10.77.0.2"]),
        ("rping -s --transport kernel -a 10.99.0.1", ["address not available", "ip -br addr"]),
        (
            "rping -c -a 127.0.0.1 -p 99 --transport kernel",
            ["connect to 127.0.0.1:99: ", "refused"],
        ),
        ("perf tcp-bw --stack kernel 127.0.0.1", ["connect to 127.0.0.1:18515: ", "hint: start"]),
        (&format!("nc 10.77.0.1 77 {node}"), ["connect to 10.77.0.1:77: ", "refused"]),
        (&format!("rping -c -a 10.77.0.1 -p 77 {node}"), ["connect to 10.77.0.1:77: ", "refused"]),
        (
            &format!("perf write-bw 10.77.0.1 {node}"),
            ["connect to 10.77.0.1:18515: ", "hint: start"],
        ),
        ("rping -s --bridge br9", ["bridge br9: not found: create it", "drop the option"]),
    ] {
        let error = failure(&host, line);
        assert!(texts.iter().all(|text| error.contains(text)), "{line}: {texts:?}: {error}");
        assert!(!error.contains("ended: 0 pings"), "{error}");
    }
    let mut bare = start(&host, "rping");
    bare.expect_exit(2, LIMIT);
    let said = bare.all_lines(LIMIT);
    assert!(said.contains("<--server|--client>"), "{said}");
    // The status is for those who look for it.
    let mut verbose = start(&host, "rping -s --transport kernel --verbose");
    verbose.expect_line("STATUS_SHARING_VIOLATION", LIMIT);
    verbose.expect_exit(1, LIMIT);
}

#[test]
fn signal_is_success_of_a_server_and_a_status_of_other_commands() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    let mut server = start(&host, "perf write-bw --stack kernel -p 6000");
    server.expect_line("listening", LIMIT);
    for (line, ready, stopped) in [
        ("serve --transport kernel", "listening", true),
        ("perf write-bw --stack kernel", "listening", true),
        ("perf tcp-bw --stack kernel", "listening", true),
        ("metrics", "listening", true),
        ("wire w0 w1", "joined", true),
        ("ss --interval 1", "State", true),
        ("perf tcp-bw --stack kernel -1", "listening", false),
        ("serve --transport kernel -1", "listening", false),
        ("rping -s --transport kernel", "listening", false),
        ("nc -l 5000 --bridge br0", "listening", false),
        ("perf write-bw --stack kernel -p 6000 -D 60 --interval 0.1 127.0.0.1", "msg/s", false),
        ("lab -v --drop 20", "A  connecting to", false),
    ] {
        for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            let mut process = start(&host, line);
            process.expect_line(ready, LIMIT);
            process.signal(signal);
            process.expect_exit(if stopped { 0 } else { status }, LIMIT);
            let said = process.all_lines(LIMIT);
            assert_eq!(said.contains("interrupted by SIG"), !stopped, "{line}: {said}");
            assert!(!said.contains("hint: start"), "{line}: {said}");
        }
    }
}

#[test]
fn printed_control_socket_exists() {
    if lacks(NEEDS) {
        return;
    }
    let (host, runtime) = (machine(), Scratch::new());
    for line in ["rping -s --bridge br0", "rping -s --transport kernel"] {
        let mut command = command(FLUE, line);
        command.env("XDG_RUNTIME_DIR", runtime.file(""));
        let mut server = Process::start(&host, command, Output::Lines);
        let printed = server.expect_line("# control socket: ", LIMIT);
        server.expect_line("listening", LIMIT);
        let path = printed.trim_start_matches("# control socket: ");
        assert!(Path::new(path).exists(), "{printed}");
    }
}

#[test]
fn lab_writes_a_capture_on_request_and_reports_a_full_disk() {
    if lacks(NEEDS) {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    let lab = |options: &str| {
        let mut command = command(FLUE, &format!("lab --file /proc/self/exe {options}"));
        command.current_dir(scratch.file(""));
        Process::start(&host, command, Output::Lines)
    };
    lab("").expect_exit(0, LIMIT);
    assert_eq!(std::fs::read_dir(scratch.file("")).unwrap().count(), 0, "files of the lab");
    for transport in ["tap", "kernel"] {
        let mut full = lab(&format!("--pcap /dev/full --transport {transport}"));
        full.expect_exit(1, LIMIT);
        let said = full.all_lines(LIMIT);
        let error = "flue lab: node A: --pcap /dev/full: No space left on device";
        assert!(said.contains(error), "{said}");
        assert!(!said.contains("capture of node A") && !said.contains("process exited"), "{said}");
    }
}
