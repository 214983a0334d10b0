//! Standard output, captures and traces that cannot be written: closed, full, or without a reader. The command
//! reports the error and fails. If the reader closed its pipe, it exits silently with the status of SIGPIPE.

use std::fs::File;
use std::io::{Read as _, pipe};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use flue_test_support::flue::{Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output as Lines, Process};
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const LIMIT: Duration = Duration::from_secs(60);
const FULL: &str = "No space left on device (os error 28)";
const BROKEN_PIPE_STATUS: i32 = 141;

/// Namespace with loopback only.
fn machine() -> Namespace {
    let host = Namespace::new();
    host.ip("link set lo up");
    host
}

/// Runs a flue command to its end with this standard output.
fn run(line: &str, stdout: impl Into<Stdio>) -> (Option<i32>, String) {
    let mut command = command(FLUE, line);
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Pipe without a reader.
fn unread() -> Stdio {
    let (_, writer) = pipe().unwrap();
    writer.into()
}

/// Commands that end on their own and print output on any machine.
const LINES: [&str; 5] = [
    "--help",
    "--version",
    "nc --help",
    "ss --no-such-option --json",
    "ss --node /dev/null --json",
];

#[test]
fn full_standard_output_is_reported() {
    for line in LINES {
        let (status, err) = run(line, full());
        assert!(status.is_some_and(|status| status != 0), "{line}: {status:?}");
        let has_own_failure = line.starts_with("ss ");
        assert_eq!(
            err.contains(&format!("standard output: {FULL}")),
            !has_own_failure,
            "{line}: {err}"
        );
    }
}

#[test]
fn closed_reader_ends_command_silently() {
    for line in ["--help", "--version", "nc --help", "ss"] {
        assert_eq!(run(line, unread()).0, Some(BROKEN_PIPE_STATUS), "{line}");
    }
    let (_, err) = run("--help", unread());
    assert_eq!(err, "");
}

#[test]
fn closed_standard_output_is_reported() {
    let shell = |line: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("FLUE", FLUE).output().unwrap()
    };
    let Output { status, stderr, .. } = shell("exec \"$FLUE\" --help >&-");
    let err = String::from_utf8(stderr).unwrap();
    assert_eq!(
        (status.code(), err.as_str()),
        (Some(1), "flue help: standard output: Bad file descriptor (os error 9)\n",)
    );
    // /dev/null is not a closed standard output, in any open mode.
    for line in ["exec \"$FLUE\" --help >/dev/null", "exec \"$FLUE\" --help 1<>/dev/null"] {
        assert_eq!(shell(line).status.code(), Some(0), "{line}");
    }
}

// With and without events: the listening server detects it too.
#[test]
fn server_without_output_ends() {
    if lacks(&[Need::Root, Need::Tool("ip")]) {
        return;
    }
    let host = machine();
    for options in ["--json", "-q"] {
        let line = format!("serve --transport kernel -a 127.0.0.1 {options}");
        for (redirection, problem) in [
            (">&-", "Bad file descriptor (os error 9)"),
            (">/dev/full", FULL),
            ("| head -n 1 >/dev/null", "roken pipe"),
        ] {
            let mut shell = Command::new("bash");
            shell.args(["-c", &format!("{FLUE} {line} {redirection}; exit ${{PIPESTATUS[0]}}")]);
            let mut server = Process::start(&host, shell, Lines::Lines);
            server.expect_exit(1, LIMIT);
            let said = server.all_lines(LIMIT);
            let text =
                said.contains("flue serve: log: standard output: ") && said.contains(problem);
            assert!(text, "{redirection}: {said}");
        }
    }
}

/// Waits for the failure of a command, and returns the document that it wrote.
fn document(mut command: Process) -> Value {
    let mut out = String::new();
    command.take_output().read_to_string(&mut out).unwrap();
    command.expect_exit(1, LIMIT);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

#[test]
fn capture_on_full_disk_fails_command_only() {
    if lacks(&[Need::Root, Need::Tool("ip"), Need::Tun]) {
        return;
    }
    let host = machine();
    host.ip("link add br0 type bridge");
    host.ip("link set br0 up");
    let runtime = Scratch::new();
    let start_as = |line: &str, output| {
        let mut command = command(FLUE, line);
        command.env("XDG_RUNTIME_DIR", runtime.file(""));
        Process::start(&host, command, output)
    };
    let start = |line: &str| start_as(line, Lines::Lines);
    let kernel = ["--transport kernel", "--transport kernel"];
    let nodes = [
        "--tap tap0 --addr 10.9.0.1/24 --bridge br0",
        "--tap tap1 --addr 10.9.0.2/24 --bridge br0",
    ];
    for (places, address, option) in [
        (kernel, "127.0.0.1", "--pcap"),
        (nodes, "10.9.0.1", "--pcap"),
        (nodes, "10.9.0.1", "--tcp-trace"),
    ] {
        let [near, far] = places;
        let expected = format!("{option} /dev/full: {FULL}");
        let mut server = start(&format!("rping -s -a {address} {near} {option} /dev/full"));
        server.expect_line("listening:", LIMIT);
        let line = format!("rping -c -a {address} -C 20 -V {far} {option} /dev/full --json");
        // Both endpoints finish the transfer and report what was not written.
        let document = document(start_as(&line, Lines::Bytes));
        server.expect_exit(1, LIMIT);
        let said = server.all_lines(LIMIT);
        assert!(said.contains("ended: 20 pings"), "{said}");
        assert!(said.contains(&format!("flue rping: {expected}")), "{said}");
        assert_eq!((&document["result"]["pings"], &document["ok"]), (&20.into(), &false.into()));
        assert_eq!(document["error"]["message"], expected.as_str());
    }
    let mut server = start("perf send-lat --transport kernel -1");
    server.expect_line("listening", LIMIT);
    let expected = format!("--pcap /dev/full: {FULL}");
    let line = "perf send-lat 127.0.0.1 --transport kernel -n 50 --pcap /dev/full --json";
    let document = document(start_as(line, Lines::Bytes));
    server.expect_exit(0, LIMIT);
    assert_eq!(
        (&document["result"]["measurements"][0]["iterations"], &document["ok"]),
        (&50.into(), &false.into())
    );
    assert_eq!(document["error"]["message"], expected.as_str());
    let mut lab = start("lab --transport kernel -q --pcap /dev/full");
    lab.expect_exit(1, LIMIT);
    let said = lab.all_lines(LIMIT);
    assert!(said.contains(&format!("--pcap /dev/full: {FULL}")), "{said}");
}
