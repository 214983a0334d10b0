//! Abrupt failures: the surviving side reports the failure within its limit and cleans up.
//!
//! Limits: with `--max-retransmissions 3` an offloaded connection is aborted 3 s after the last acknowledgment
//! (timeouts of 0.2, 0.4, 0.8 and 1.6 s). With a closed window it is aborted after 1.6 s (0.2, and probes after 0.2,
//! 0.4 and 0.8 s). [`TIMEOUT_LIMIT`] includes a margin for a loaded machine.

use std::io;
use std::net::TcpStream;
use std::process::ChildStdin;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flue_test_support::bench::{Bench, START};
use flue_test_support::flue::command;
use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::stream::Stream;
use flue_test_support::switch::Direction;
use rustix::process::Signal;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];
const TIMEOUT_LIMIT: Duration = Duration::from_secs(120);
/// Minimum duration of three retransmissions, minus the time since the last acknowledgment.
const RETRANSMISSIONS_TIME_MIN: Duration = Duration::from_millis(1400);
/// Bytes received before the failure is injected.
const MIDDLE: u64 = 10 << 20;
const NO_ANSWER: &str = "TCP: no response from the peer (retransmission limit)";

/// Retransmission limit of the connections.
const RETRANSMISSION_OPTION: &str = "--max-retransmissions 3";

/// Feeds an endless stream; the error is the reason it ended.
fn feed(mut input: ChildStdin) -> JoinHandle<io::Result<u64>> {
    thread::spawn(move || io::copy(&mut Stream::new(1), &mut input))
}

fn read_to_the_middle(from: impl io::Read) {
    let read = io::copy(&mut from.take(MIDDLE), &mut io::sink());
    assert_eq!(read.expect("data before the failure"), MIDDLE);
}

fn no_tap_is_left(host: &Namespace) {
    let links = host.links();
    assert!(!links.iter().any(|link| link.starts_with("tap")), "left: {links:?}");
}

#[test]
fn kernel_survives_flue() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    bench.kernel.sysctl("net/ipv4/tcp_retries2", "3");
    let mut flue = bench.listen_at(2, RETRANSMISSION_OPTION, Output::Bytes);
    let peer = KernelPeer::connect(&bench.kernel, Bench::address(2), Plan::send(1, u64::MAX));
    // Held open: flue exits when the reader of its pipe is closed.
    let mut output = flue.take_output();
    read_to_the_middle(&mut output);
    flue.signal(Signal::KILL);
    flue.wait(START);
    no_tap_is_left(bench.switch.namespace());
    let outcome = peer.finish();
    assert!(outcome.send_error.is_some(), "the kernel's send succeeded");
    assert!(outcome.sent.bytes >= MIDDLE);
}

/// flue sending an endless stream to a receiving kernel.
struct Sending {
    bench: Bench,
    flue: Process,
    feeder: JoinHandle<io::Result<u64>>,
    _socket: TcpStream,
}

impl Sending {
    fn start() -> Self {
        let bench = Bench::new(FLUE);
        let mut flue = bench.listen_at(2, RETRANSMISSION_OPTION, Output::Bytes);
        let feeder = feed(flue.take_input());
        let socket = bench.connect();
        socket.set_read_timeout(Some(START)).unwrap();
        read_to_the_middle(&socket);
        Self { bench, flue, feeder, _socket: socket }
    }
}

/// Checks that flue, whose peer no longer responds, reports the failure after all retransmissions, and exits.
fn assert_times_out(flue: &mut Process, begin: Instant) {
    flue.expect_line(NO_ANSWER, TIMEOUT_LIMIT);
    let took = begin.elapsed();
    assert!(took >= RETRANSMISSIONS_TIME_MIN, "flue timed out after {took:?}");
    flue.expect_exit(1, START);
}

/// Runs `vanish`, which removes the peer, while flue sends.
fn flue_survives_the_kernel(vanish: impl FnOnce(&Bench)) {
    if lacks(NEEDS) {
        return;
    }
    let Sending { bench, mut flue, feeder, _socket } = Sending::start();
    let begin = Instant::now();
    vanish(&bench);
    assert_times_out(&mut flue, begin);
    assert!(feeder.join().unwrap().is_err(), "an endless stream ended");
    no_tap_is_left(bench.switch.namespace());
}

#[test]
fn flue_survives_kernel_link_down() {
    flue_survives_the_kernel(|bench| drop(bench.kernel.ip("link set eth0 down")));
}

#[test]
fn flue_survives_total_loss() {
    flue_survives_the_kernel(|bench| bench.switch.lose(10_000, Direction::Both));
}

#[test]
fn one_adapter_survives_the_other() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let mut server = bench.listen_at(2, RETRANSMISSION_OPTION, Output::Bytes);
    let line = format!("nc 10.0.0.2 5000 {} {RETRANSMISSION_OPTION}", Bench::attached(3));
    let mut client = bench.start(&line, Output::Bytes);
    let feeder = feed(client.take_input());
    // Held open: the server exits when the reader of its pipe is closed.
    let mut output = server.take_output();
    read_to_the_middle(&mut output);
    let begin = Instant::now();
    server.signal(Signal::KILL);
    server.wait(START);
    assert_times_out(&mut client, begin);
    assert!(feeder.join().unwrap().is_err(), "an endless stream ended");
    no_tap_is_left(bench.switch.namespace());
}

#[test]
fn kernel_reset_is_reported_with_status_1() {
    if lacks(NEEDS) {
        return;
    }
    let host = Namespace::new();
    let line = "nc -l 5000 --tap tap0 --addr 10.0.0.2/24 --host-addr 10.0.0.1/24";
    let mut flue = Process::start(&host, command(FLUE, line), Output::Lines);
    // Held open: end of input would close the connection normally.
    let _input = flue.take_input();
    flue.expect_line("listening", START);
    let socket = host.run(|| TcpStream::connect_timeout(&Bench::address(2), START)).unwrap();
    // A connection reset before flue accepts it is dropped, and flue keeps listening.
    flue.expect_line("connected", START);
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
    flue.expect_line("TCP: connection reset by peer", START);
    flue.expect_exit(1, START);
    no_tap_is_left(&host);
}

#[test]
fn signal_is_reported_by_the_exit_status() {
    if lacks(NEEDS) {
        return;
    }
    let Sending { bench, mut flue, feeder, _socket } = Sending::start();
    flue.signal(Signal::TERM);
    flue.expect_line("interrupted by SIGTERM", START);
    flue.expect_exit(128 + 15, START);
    assert!(feeder.join().unwrap().is_err(), "an endless stream ended");
    no_tap_is_left(bench.switch.namespace());
}
