//! Test of the bench itself: kernel sockets across two hosts and a switch. If it passes, a failure of another
//! test is caused by flue.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use flue_test_support::flue::{self, Scratch};
use flue_test_support::kernel_peer::{End, KernelPeer, Outcome, Pace, Plan};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::stream::Stream;
use flue_test_support::switch::{Direction, Switch};

const BENCH: &[Need] = &[Need::Root, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];
const LEFT: &str = "10.0.0.1/24";
const RIGHT: &str = "10.0.0.2/24";

fn right(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

/// Runs both plans over a switch configured by `prepare`.
fn across(prepare: impl FnOnce(&Switch), server: Plan, client: Plan) -> (Outcome, Outcome, u64) {
    let switch = Switch::new(1500);
    let (client_host, server_host) = (switch.host(LEFT), switch.host(RIGHT));
    prepare(&switch);
    let server = KernelPeer::listen(&server_host, right(0), server);
    let client = KernelPeer::connect(&client_host, server.address(), client);
    let outcomes = (client.finish(), server.finish());
    (outcomes.0, outcomes.1, switch.lost_frames())
}

const MIB: u64 = 1 << 20;

#[test]
fn eight_mib_each_way_arrive_despite_five_percent_loss() {
    if lacks(BENCH) {
        return;
    }
    let (client, server, lost_frames) = across(
        |switch| switch.lose(500, Direction::Both),
        Plan::send(1, 8 * MIB),
        Plan::send(2, 8 * MIB),
    );
    server.assert_received(Stream::new(2).digest(8 * MIB));
    client.assert_received(Stream::new(1).digest(8 * MIB));
    assert_eq!(client.sent, server.received);
    assert_eq!(server.sent, client.received);
    assert!(lost_frames > 0, "the loss rule dropped nothing");
}

#[test]
fn loss_in_one_direction_affects_only_that_direction() {
    if lacks(BENCH) {
        return;
    }
    // All segments of the server are dropped: the handshake cannot complete.
    let switch = Switch::new(1500);
    let (client_host, server_host) = (switch.host(LEFT), switch.host(RIGHT));
    await_refusal(&client_host, right(9));
    let before = [&client_host, &server_host].map(segments_received);
    switch.lose(10_000, Direction::From("port1"));
    let server = KernelPeer::listen(&server_host, right(0), Plan::receive());
    let address = server.address();
    let refused = client_host.run(|| {
        std::net::TcpStream::connect_timeout(&address, Duration::from_secs(2)).unwrap_err()
    });
    assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut);
    assert!(switch.lost_frames() > 0);
    assert!(segments_received(&server_host) > before[1], "the data of the client arrives");
    assert_eq!(segments_received(&client_host), before[0]);
}

/// Waits until a connection from `host` to a closed port is refused. Ports of a switch forward shortly after
/// they are up, and a lost SYN is retransmitted after one second, or three.
fn await_refusal(host: &Namespace, closed: SocketAddr) {
    let deadline = Instant::now() + SOON;
    let connect = || std::net::TcpStream::connect_timeout(&closed, SOON).unwrap_err().kind();
    while host.run(connect) != std::io::ErrorKind::ConnectionRefused {
        assert!(Instant::now() < deadline, "no route to {closed} within {SOON:?}");
    }
}

/// TCP's InSegs of a host (RFC 4022).
fn segments_received(host: &Namespace) -> u64 {
    let snmp = host.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap();
    let mut tcp = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(name, _)| *name == "InSegs").unwrap().1.parse().unwrap()
}

#[test]
fn half_close_leaves_the_other_direction_open() {
    if lacks(BENCH) {
        return;
    }
    // The client half-closes; the server sends only afterwards.
    let server = Plan { end: End::AnswerPeer, ..Plan::send(5, MIB) };
    let (client, server, lost_frames) = across(|_| (), server, Plan::send(4, 1000));
    client.assert_received(Stream::new(5).digest(MIB));
    server.assert_received(Stream::new(4).digest(1000));
    assert_eq!(lost_frames, 0);
}

#[test]
fn reset_is_reported_as_reset() {
    if lacks(BENCH) {
        return;
    }
    let client = Plan { end: End::Reset, ..Plan::send(6, 1000) };
    let (client, server, _) = across(|_| (), Plan::receive(), client);
    assert_eq!(client.sent.bytes, 1000);
    let error = server.receive_error.expect("the server is reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn released_reader_receives_all_data() {
    if lacks(BENCH) {
        return;
    }
    let (release, held) = mpsc::channel();
    let server =
        Plan { pace: Pace::Held(held), receive_buffer_bytes: Some(16 * 1024), ..Plan::receive() };
    let switch = Switch::new(9000);
    let (client_host, server_host) = (switch.host(LEFT), switch.host(RIGHT));
    let server = KernelPeer::listen(&server_host, right(0), server);
    let client = KernelPeer::connect(&client_host, server.address(), Plan::send(7, 4 * MIB));
    // 4 MiB exceed both buffers: the client is blocked by a zero window until here.
    release.send(()).unwrap();
    server.finish().assert_received(Stream::new(7).digest(4 * MIB));
    client.finish().assert_received(Stream::new(0).digest(0));
}

#[test]
fn slow_reader_receives_all_data() {
    if lacks(BENCH) {
        return;
    }
    let pace = Pace::Slow { bytes: 16 * 1024, pause: Duration::from_millis(1) };
    let server = Plan { pace, ..Plan::receive() };
    let (client, server, _) = across(|_| (), server, Plan::send(8, MIB));
    server.assert_received(client.sent);
}

#[test]
fn namespace_has_defaults_and_removes_its_links() {
    if lacks(BENCH) {
        return;
    }
    let ns = Namespace::new();
    let cc = ns.run(|| std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control"));
    assert_eq!(cc.unwrap(), "reno\n");
    assert!(ns.links().is_empty());
    let other = Namespace::new();
    ns.ip(&format!("link add here type veth peer name there netns {}", other.path().display()));
    assert_eq!((ns.links(), other.links()), (vec!["here".into()], vec!["there".into()]));
    drop(other);
    // The peer of a removed veth is removed too. The kernel does this later, for all namespaces removed by
    // then.
    let deadline = Instant::now() + SOON;
    while !ns.links().is_empty() {
        assert!(Instant::now() < deadline, "the veth outlived its namespace: {:?}", ns.links());
    }
}

#[test]
fn panic_inside_a_namespace_is_propagated() {
    if lacks(BENCH) {
        return;
    }
    let ns = Namespace::new();
    let panic = std::panic::catch_unwind(|| ns.run(|| panic!("inside"))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"inside"));
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

const SOON: Duration = Duration::from_secs(120);

#[test]
fn process_reports_lines_and_exit_status() {
    if lacks(BENCH) {
        return;
    }
    let ns = Namespace::new();
    let script = "echo first; echo second >&2; read -r line; echo got $line; exit 1";
    let mut process = Process::start(&ns, shell(script), Output::Lines);
    assert_eq!(process.expect_line("sec", SOON), "second");
    let mut input = process.take_input();
    std::io::Write::write_all(&mut input, b"it\n").unwrap();
    assert_eq!(process.expect_line("got", SOON), "got it");
    process.expect_exit(1, SOON);
    assert!(process.log().iter().any(|line| line == "first"));
}

#[test]
fn missed_deadline_prints_the_log_and_kills_the_process() {
    if lacks(BENCH) {
        return;
    }
    let ns = Namespace::new();
    let mut process = Process::start(&ns, shell("echo hello; exec sleep 1000"), Output::Lines);
    let id = process.id();
    process.expect_line("hello", SOON);
    let wait = std::panic::AssertUnwindSafe(|| {
        process.expect_line("never", Duration::from_millis(50));
    });
    let panic = std::panic::catch_unwind(wait).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("no `never`") && message.contains("hello"), "{message}");
    drop(process);
    assert!(
        !std::path::Path::new(&format!("/proc/{id}")).exists(),
        "the process outlived its owner"
    );
}

#[test]
fn process_can_be_used_as_a_pipe() {
    if lacks(BENCH) {
        return;
    }
    let mut cat = Process::start(&Namespace::new(), shell("exec cat"), Output::Bytes);
    let (digest, error) = flue::exchange(&mut cat, 9, MIB, SOON);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(digest, Stream::new(9).digest(MIB));
    cat.expect_exit(0, SOON);
    // A process that does not read its whole input: the pipe error is reported.
    let script = "head -c 10; exit 1";
    let mut head = Process::start(&Namespace::new(), shell(script), Output::Bytes);
    let (digest, error) = flue::exchange(&mut head, 9, MIB, SOON);
    assert_eq!(error.map(|error| error.kind()), Some(std::io::ErrorKind::BrokenPipe));
    assert_eq!(digest, Stream::new(9).digest(10));
    head.expect_exit(1, SOON);
}

#[test]
fn ordinary_user_opens_tun_without_other_rights() {
    if lacks(BENCH) || lacks(&[Need::InitialRoot, Need::Tun, Need::Tool("setpriv")]) {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("script");
    std::fs::write(
        &script,
        "#!/bin/sh\nid -u\n: <>/dev/net/tun && echo opens\n\
         ip link add dummy0 type dummy || echo no link\necho x > $1 && echo writes\n",
    )
    .unwrap();
    let out = scratch.file("out");
    let before = std::fs::metadata("/dev/net/tun").unwrap().permissions();
    let command = flue::as_ordinary_user(&scratch, &script, out.to_str().unwrap());
    let mut process = Process::start(&Namespace::new(), command, Output::Lines);
    process.expect_exit(0, SOON);
    for line in ["65534", "opens", "no link", "writes"] {
        process.expect_line(line, SOON);
    }
    assert_eq!(std::fs::metadata("/dev/net/tun").unwrap().permissions(), before);
}
