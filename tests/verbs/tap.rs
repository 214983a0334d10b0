//! Nodes of `flue run --tap`: address maps, killed processes, the launcher, and failures. `programs` runs the
//! programs of the table on nodes.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flue_test_support::capture;
use flue_test_support::flue::{Scratch, command};
use flue_test_support::needs::{Need, lacks};
use rustix::process::Signal;
use serde_json::Value;

use crate::group::Group;
use crate::test_bed::{LIMIT, NodePair, ends, under_flue};
use crate::{FLUE, NEEDS};

/// Time limit for the notification of a peer after a kill: kernels respond for a connection at most twice a second.
const NOTIFICATION_LIMIT: Duration = Duration::from_secs(10);

fn is_lacking(tools: &[&'static str]) -> bool {
    lacks(NEEDS) || lacks(&[Need::Tun]) || tools.iter().any(|tool| lacks(&[Need::Tool(tool)]))
}

// Frames are lost in both directions, and every byte is compared.
#[test]
fn rping_with_loss() {
    if is_lacking(&["rping"]) {
        return;
    }
    let (node_pair, scratch) = (NodePair::new(), Scratch::new());
    let file = scratch.file("END-%p.csv");
    let options = format!("--drop 5 --seed 1 --tcp-trace {}", file.display());
    let line = |end: &str| format!("rping {end} -a 10.9.0.1 -C 50 -V -S 20000");
    node_pair.pair(&options, &line("-s"), &line("-c"));
    let traces = fs::read_dir(scratch.file("")).expect("a directory");
    let rows: String = traces
        .map(|it| fs::read_to_string(it.expect("an entry").path()).expect("a trace"))
        .collect();
    let retransmitted = |row: &str| {
        let count = row.rsplit(',').nth(2).and_then(|cell| cell.parse::<u64>().ok());
        count.is_some_and(|count| count > 0)
    };
    assert!(rows.lines().any(retransmitted), "no retransmission: {rows}");
}

// A mapped address reaches the node; the program is shown the address that it used.
#[test]
fn rping_with_a_map() {
    if is_lacking(&["rping"]) {
        return;
    }
    let (node_pair, map) = (NodePair::new(), "--map 127.0.0.1=10.9.0.1");
    let line = |end: &str| format!("rping {end} -a 127.0.0.1 -C 2 -V -d");
    let said = node_pair.pair(map, &line("-s"), &line("-c"));
    assert!(!said.contains("10.9.0.1"), "{said}");
}

// A node cannot connect to itself, which is reported immediately; an address of the kernel is not reachable over the
// node.
#[test]
fn addresses_that_a_node_does_not_reach() {
    if is_lacking(&["rping"]) {
        return;
    }
    let node_pair = NodePair::new();
    for (line, why) in [
        ("rping -c -a 10.9.0.1 -C 1", "No route to host"),
        ("rping -c -a 127.0.0.1 -C 1", "No route to host"),
        ("rping -c -a 192.0.2.1 -C 1", "Network is unreachable"),
        ("rping -s -a 10.77.0.1 -C 1", "Cannot assign requested address"),
    ] {
        let mut program = node_pair.start(0, "", line);
        let status =
            program.wait(NOTIFICATION_LIMIT).unwrap_or_else(|wrong| panic!("{line}: {wrong}"));
        program.kill();
        assert!(!status.success() && program.said().contains(why), "{}", program.report());
    }
}

#[test]
fn rping_with_flues_own() {
    if is_lacking(&["rping"]) {
        return;
    }
    let node_pair = NodePair::new();
    let own = |at: usize, end: &str| {
        let options = NodePair::node(at);
        command(FLUE, &format!("rping {end} {options} -a 10.9.0.1 -C 10 -V"))
    };
    let server = node_pair.start_command(0, own(0, "-s"));
    node_pair.listens(&server);
    ends(server, node_pair.start(1, "", "rping -c -a 10.9.0.1 -C 10 -V"));
    let server = node_pair.start(0, "", "rping -s -a 10.9.0.1 -C 10 -V");
    node_pair.listens(&server);
    ends(server, node_pair.start_command(1, own(1, "-c")));
}

// The killed program cannot close its connections. The peer is reset, whether data is in flight or not, and the
// launcher ends by the same signal.
#[test]
fn killed_program_resets_its_peers() {
    if is_lacking(&["rping"]) {
        return;
    }
    let node_pair = NodePair::new();
    for (killed, count) in [(1, "1000000000"), (0, "1000000000")] {
        let line = |end: &str| format!("rping {end} -a 10.9.0.1 -C {count} -V");
        let server = node_pair.start(0, "", &line("-s"));
        node_pair.listens(&server);
        let client = node_pair.start(1, "", &line("-c"));
        let is_busy = |found: &[Value]| found.iter().any(|one| one["qp"].is_u64());
        node_pair.expect(1, "", &client, is_busy);
        let mut both = [server, client];
        both[killed].signal("rping", Signal::KILL);
        let begin = Instant::now();
        let status = both[killed].wait(NOTIFICATION_LIMIT);
        assert_eq!(
            status.map(|status| status.code()),
            Ok(Some(128 + 9)),
            "{}",
            both[killed].report()
        );
        both[1 - killed].wait(NOTIFICATION_LIMIT).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert!(begin.elapsed() < NOTIFICATION_LIMIT);
        both.iter_mut().for_each(Group::kill);
        assert!(both[1 - killed].said().contains("DISCONNECT"), "{}", both[1 - killed].report());
        let links = node_pair.host.links();
        assert!(!links.iter().any(|link| link.starts_with("tap")), "left: {links:?}");
    }
}

// An idle kernel that only waits is reset too.
#[test]
fn killed_program_resets_idle_kernel() {
    if is_lacking(&["rping"]) {
        return;
    }
    let node_pair = NodePair::new();
    node_pair.host.ip("address add 10.9.0.254/24 dev br0");
    node_pair.host.ip("address add fd09::fe/64 dev br0 nodad");
    let program = node_pair.start(0, "--addr fd09::1/64", "rping -s -a ::");
    node_pair.listens(&program);
    let sockets = ["10.9.0.1:7174", "[fd09::1]:7174"].map(|address| {
        let address: SocketAddr = address.parse().expect("an address");
        let connect = || TcpStream::connect_timeout(&address, LIMIT);
        node_pair.host.run(connect).unwrap_or_else(|error| panic!("{address}: {error}"))
    });
    node_pair.expect(0, "", &program, |found| found.len() == 2);
    program.signal("rping", Signal::KILL);
    for mut socket in sockets {
        socket.set_read_timeout(Some(NOTIFICATION_LIMIT)).expect("a limit");
        let error = socket.read(&mut [0]).expect_err("nothing was sent");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{socket:?}: {error}");
    }
}

// Signals reach the program, its status is the launcher's, and its output is unchanged.
#[test]
fn launcher_of_node_is_transparent() {
    if is_lacking(&[]) {
        return;
    }
    let node_pair = NodePair::new();
    let run = |script: &str| {
        let mut line = under_flue(&NodePair::node(0), "sh -c");
        line.arg(script).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = node_pair.host.spawn(&mut line).expect("flue starts");
        child.wait_with_output().expect("the end of the program")
    };
    let said = run("echo out; echo err >&2; exit 42");
    let texts = (said.stdout.as_slice(), said.stderr.as_slice());
    assert_eq!((said.status.code(), texts), (Some(42), (&b"out\n"[..], &b"err\n"[..])));
    for signal in [Signal::KILL, Signal::TERM, Signal::ABORT, Signal::SEGV] {
        let said = run(&format!("kill -{} $$", signal.as_raw()));
        assert_eq!(said.status.signal(), Some(signal.as_raw()), "{signal:?}");
    }
    // The signal is sent to the launcher; the program handles it.
    let said = run("trap 'echo caught; exit 7' TERM; kill -TERM $PPID; while :; do :; done");
    assert_eq!((said.status.code(), said.stdout.as_slice()), (Some(7), &b"caught\n"[..]));
    // A pipe held open by the launcher would not reach end of file.
    let said = run("ip link show tap0 >/dev/null && exec >&- && exit 3");
    assert_eq!(said.status.code(), Some(3));
}

// A TAP has one user at a time, and can be reused after that user's exit.
#[test]
fn one_process_has_the_node() {
    if is_lacking(&["rping"]) {
        return;
    }
    let (node_pair, scratch) = (NodePair::new(), Scratch::new());
    let log = scratch.file("log");
    let script = "rping -s -a 10.9.0.1 & first=$!; \
                  until flue ss -l | grep -q 7174; do :; done; \
                  rping -s -p 9999; echo second $?; kill $first; wait $first; \
                  exec rping -s -a 10.9.0.1 -C 1";
    let mut program =
        under_flue(&format!("{} --log {}", NodePair::node(0), log.display()), "sh -c");
    program.arg(script.replace("flue ss", &format!("{FLUE} ss")));
    let server = node_pair.start_command(0, program);
    let deadline = Instant::now() + LIMIT;
    // The two lines are written to different streams.
    let is_refused =
        |said: &str| said.contains("second") && said.contains("Device or resource busy");
    while !is_refused(&server.said()) {
        assert!(Instant::now() < deadline, "{}", server.report());
    }
    node_pair.listens(&server);
    // The exiting process may still hold the listener for a moment: a connect is repeated.
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("in use by another process"), "{said}");
}

#[test]
fn flue_ss_lists_the_queue_pairs_of_both_transports() {
    if is_lacking(&["rping"]) {
        return;
    }
    let node_pair = NodePair::new();
    for (options, address, offload) in
        [(true, "10.9.0.1", "Offloaded"), (false, "127.0.0.1", "Kernel")]
    {
        let line = |end: &str| format!("rping {end} -a {address} -C 1000000000");
        let start = |at: usize, end: &str| match options {
            true => node_pair.start(at, "", &line(end)),
            false => node_pair.start_command(at, under_flue("", &line(end))),
        };
        let mut server = start(0, "-s");
        node_pair.listens(&server);
        let mut client = start(1, "-c");
        let has_pair = |found: &[Value]| found.iter().any(|one| one["qp"].is_u64());
        for (at, end) in [(0, &server), (1, &client)] {
            let found = node_pair.expect(at, "", end, |found| {
                has_pair(found) && found.iter().all(|one| one["offload_state"] == offload)
            });
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0]["qp"].as_u64() > Some(0), "{found:?}");
        }
        let mut ss = command(FLUE, "ss -i");
        ss.env("XDG_RUNTIME_DIR", node_pair.runtime[1].file(""));
        let said = String::from_utf8(ss.output().expect("flue starts").stdout).expect("text");
        assert!(said.contains("qp:"), "{said}");
        // A normal exit removes the socket.
        client.signal("rping", Signal::KILL);
        client.wait(LIMIT).expect("a killed client");
        server.wait(LIMIT).expect("a server whose client was killed");
        let left = fs::read_dir(node_pair.runtime[0].file("flue")).expect("a directory").count();
        assert_eq!(left, 0, "sockets of the server");
    }
}

// Capture of the node, complete after a normal exit of the program.
#[test]
fn capture_of_node_is_complete() {
    if is_lacking(&["rping"]) {
        return;
    }
    let (node_pair, scratch) = (NodePair::new(), Scratch::new());
    let file = scratch.file("END-%p.pcapng");
    let options = format!("--pcap {}", file.display());
    let line = |end: &str| format!("rping {end} -a 10.9.0.1 -C 5 -V");
    node_pair.pair(&options, &line("-s"), &line("-c"));
    let entries = fs::read_dir(scratch.file("")).expect("a directory");
    for entry in entries.map(|entry| entry.expect("an entry").path()) {
        let frames = capture::read(&entry).expect("a capture");
        let has_arp = frames.iter().any(|frame| frame.data.get(12..14) == Some(&[8, 6]));
        assert!(frames.len() > 30 && has_arp, "{}: {} frames", entry.display(), frames.len());
    }
}

/// Waits until the program's output contains the text.
fn wait_for_text(program: &Group, text: &str) {
    let said = program.wait_until(text, LIMIT, || program.said().contains(text));
    assert_eq!(said, Ok(()), "{}", program.report());
}

// rping, while it waits for a client and while it pings, reports the device removal and exits.
#[test]
fn rping_reports_removed_tap() {
    if is_lacking(&["rping"]) {
        return;
    }
    for is_busy in [false, true] {
        let node_pair = NodePair::new();
        let line = |end: &str| format!("rping {end} -a 10.9.0.1 -C 1000000000 -V");
        let mut server = node_pair.start(0, "", &line("-s"));
        node_pair.listens(&server);
        let client = is_busy.then(|| node_pair.start(1, "", &line("-c")));
        if let Some(client) = &client {
            node_pair.expect(1, "", client, |found| found.iter().any(|one| one["qp"].is_u64()));
        }
        node_pair.host.ip("link delete tap0");
        let ended = server.wait(LIMIT);
        server.kill();
        // The status shows whether it was waiting for a client: a disconnect is not a failure.
        let is_failure = ended.map(|status| !status.success());
        assert!(is_failure.is_ok_and(|failed| failed || is_busy), "{}", server.report());
        // It closes its channel as soon as the connection has ended.
        let hears = if is_busy { "DISCONNECT" } else { "cma detected device removal" };
        assert!(server.said().contains(hears), "{}", server.report());
    }
}

// ibv_asyncwatch only waits for such events.
#[test]
fn ibv_asyncwatch_reports_removed_tap() {
    if is_lacking(&["ibv_asyncwatch"]) {
        return;
    }
    let node_pair = NodePair::new();
    let mut watch = node_pair.start(0, "", "stdbuf -oL ibv_asyncwatch");
    node_pair.expect(0, "", &watch, |_| true);
    node_pair.host.ip("link delete tap0");
    let ended = watch.wait(LIMIT);
    watch.kill();
    assert!(ended.is_ok(), "{}", watch.report());
    assert!(watch.said().contains("IBV_EVENT_DEVICE_FATAL"), "{}", watch.report());
}

// All waiters are notified, whatever they wait for, and every object can be destroyed, including memory of a pending
// Send that the peer does not acknowledge.
#[test]
fn removed_tap_ends_device() {
    if is_lacking(&["rping", "cc"]) {
        return;
    }
    let (node_pair, scratch) = (NodePair::new(), Scratch::new());
    let program = scratch.file("device");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/verbs/c/tests/device.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source);
    compiler.args(["-libverbs", "-lrdmacm", "-lpthread"]);
    assert!(compiler.status().expect("cc starts").success());
    let peer = node_pair.start(0, "", "rping -s -a 10.9.0.1");
    node_pair.listens(&peer);
    let line = format!("{} link 10.9.0.2 10.9.0.1", program.display());
    let mut device = node_pair.start(1, "", &line);
    wait_for_text(&device, "ready");
    node_pair.host.ip("link set tap0 nomaster");
    device.signal("device", Signal::USR1);
    wait_for_text(&device, "sent");
    node_pair.host.ip("link delete tap1");
    let ended = device.wait(LIMIT).map(|status| status.code());
    device.kill();
    assert_eq!(ended, Ok(Some(0)), "{}", device.report());
    assert_eq!(device.said(), "ready\nsent\n0 failures\n", "output of the launcher");
}
