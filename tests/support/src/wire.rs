//! Hosts at the two ends of a `flue wire`: seeded impairments, with their own counters.
//!
//! Unlike the loss of a [`Switch`](crate::switch::Switch), the wire's loss is counted by cause, optionally
//! occurs in bursts, and is combined with a rate and a queue. The frames affected still differ from run to run,
//! because the timing of the two kernels does.

use std::io::Read as _;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::ChildStdout;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::flue::command;
use crate::netns::Namespace;
use crate::process::{Output, Process};

/// Time limit for the start and the exit of a wire.
const LIMIT: Duration = Duration::from_secs(120);
/// Lifetime of a wire whose test was killed, seconds.
const ALIVE_SECONDS: u32 = 1800;
/// Retransmission interval of an echo.
const ECHO_WAIT: Duration = Duration::from_secs(2);

/// A running `flue wire`.
#[derive(Debug)]
pub struct Wire {
    process: Process,
    output: ChildStdout,
}

impl Wire {
    /// Names of the TAPs.
    pub const TAPS: [&'static str; 2] = ["wire0", "wire1"];
    /// Options that assign addresses to the kernels at both ends.
    pub const ADDRESSES: &'static str = "--addr-a 10.0.0.1/24 --addr-a fd00::1/64 \
                                         --addr-b 10.0.0.2/24 --addr-b fd00::2/64";

    /// Connects `left` (end A) and `right` (end B) with `program`, and waits until frames pass.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(program: &Path, left: &Namespace, right: &Namespace, options: &str) -> Self {
        let [a, b] = Self::TAPS;
        let (left_path, right_path) = (left.path(), right.path());
        let line = format!(
            "wire {a} {b} --json -v -D {ALIVE_SECONDS} --netns-a {} --netns-b {} {options}",
            left_path.display(),
            right_path.display()
        );
        let mut process = Process::start(left, command(program, &line), Output::Bytes);
        let output = process.take_output();
        process.expect_line("joined", LIMIT);
        Self { process, output }
    }

    /// Creates two kernels, 10.0.0.1 (fd00::1) on the left and 10.0.0.2 (fd00::2) on the right, and the wire.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn between_kernels(program: &Path, options: &str) -> (Namespace, Self, Namespace) {
        let (left, right) = (Namespace::new(), Namespace::new());
        let options = format!("{} {options}", Self::ADDRESSES);
        let wire = Self::start(program, &left, &right, &options);
        (left, wire, right)
    }

    /// Terminates it by a signal, as its users do, and returns the `result` of its document.
    ///
    /// # Panics
    ///
    /// If it does not exit with 0.
    pub fn finish(self) -> Counters {
        let Self { mut process, mut output } = self;
        process.signal(Signal::TERM);
        let mut text = String::new();
        output.read_to_string(&mut text).expect("a pipe can be read");
        process.expect_exit(0, LIMIT);
        let mut document: Value = serde_json::from_str(&text).expect("the wire prints a document");
        Counters(document["result"].take())
    }
}

/// Counters of a wire.
#[derive(Debug)]
pub struct Counters(Value);

impl Counters {
    /// Counter of the frames that arrived on the left: `lost`, `queue_full`, `frames_out`, …
    ///
    /// # Panics
    ///
    /// If there is no counter of this name.
    pub fn to_right(&self, name: &str) -> u64 {
        self.count("a_to_b", name)
    }

    /// Counter of the frames that arrived on the right.
    ///
    /// # Panics
    ///
    /// If there is no counter of this name.
    pub fn to_left(&self, name: &str) -> u64 {
        self.count("b_to_a", name)
    }

    fn count(&self, direction: &str, name: &str) -> u64 {
        let count = self.0[direction][name].as_u64();
        count.unwrap_or_else(|| panic!("no {direction}.{name} in {}", self.0))
    }

    /// Lateness of held frames: median and 99th percentile.
    pub fn late(&self) -> [Option<Duration>; 2] {
        ["p50_ns", "p99_ns"].map(|name| self.0["late"][name].as_u64().map(Duration::from_nanos))
    }
}

/// Round-trip times of `count` datagrams from `from` to `to`, each sent when the previous one has returned.
/// A lost datagram is retransmitted, with another number: the answer to the first one does not count.
///
/// # Panics
///
/// If no datagram returns within the limit.
pub fn echo_times(from: &Namespace, to: &Namespace, address: &str, count: usize) -> Vec<Duration> {
    let server =
        to.run(|| UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))).expect("a free port");
    let port = server.local_addr().expect("a bound socket has an address").port();
    server.set_read_timeout(Some(LIMIT)).expect("a time limit is possible");
    let thread = std::thread::spawn(move || {
        let mut datagram = [0; 64];
        // Until the empty datagram, which ends the echo, or the timeout.
        while let Ok((length, peer)) = server.recv_from(&mut datagram) {
            if length == 0 || server.send_to(&datagram[..length], peer).is_err() {
                return;
            }
        }
    });
    let socket =
        from.run(|| UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))).expect("a free port");
    socket.connect((address, port)).expect("there is a route");
    socket.set_read_timeout(Some(ECHO_WAIT)).expect("a time limit is possible");
    let mut number = 0;
    let times = (0..count).map(|_| echo(&socket, &mut number)).collect();
    socket.send(&[]).expect("the socket is connected");
    thread.join().expect("the echo does not panic");
    times
}

/// Returns the round-trip time of the first datagram that is answered in time. `number` is that of the last datagram.
fn echo(socket: &UdpSocket, number: &mut u32) -> Duration {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        *number += 1;
        let sent = Instant::now();
        socket.send(&number.to_be_bytes()).expect("the socket is connected");
        let mut answer = [0; 64];
        while let Ok(length) = socket.recv(&mut answer) {
            if answer[..length] == number.to_be_bytes() {
                return sent.elapsed();
            }
        }
    }
    panic!("no echo in {LIMIT:?}");
}
