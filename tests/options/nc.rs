//! Options specific to `flue nc`.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use flue_test_support::bench::{Bench, START};
use flue_test_support::process::Output;

use crate::table::rows;
use crate::tcp::carry;

rows! { &["nc"];
    "--listen" => listen;
    "HOST PORT" => place;
    "-p" => port;
    "--source" => source;
    "--timeout" => timeout;
    "--prepost" => prepost;
}

// Without `--listen`, the same words are the address to connect to.
fn listen(bench: &Bench) {
    let mut flue = bench.listen("", Output::Bytes);
    let mut output = flue.take_output();
    let mut socket = bench.connect();
    carry(&mut socket, &mut output, 5);
    // The listener accepts one connection.
    let second = bench.kernel.run(|| TcpStream::connect_timeout(&Bench::address(2), START));
    assert_eq!(second.map_err(|error| error.kind()).unwrap_err(), ErrorKind::ConnectionRefused);
    drop(socket);
    drop(flue.take_input());
    flue.expect_exit(0, START);
    let mut connects = bench.start(&format!("nc 10.0.0.1 9 {}", Bench::attached(2)), Output::Lines);
    connects.expect_exit(1, START);
}

/// Listener of the kernel, and its port.
fn kernel_listener(bench: &Bench) -> (TcpListener, u16) {
    let listener = bench.kernel.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

const TWO_ADDRESSES: &str = "--tap tap2 --addr 10.0.0.2/24 --addr 10.0.0.6/24 --bridge br0";

fn place(bench: &Bench) {
    // HOST PORT: remote address.
    let (listener, port) = kernel_listener(bench);
    let mut flue =
        bench.start(&format!("nc 10.0.0.1 {port} {}", Bench::attached(2)), Output::Bytes);
    flue.take_input().write_all(b"hello").unwrap();
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    flue.expect_exit(0, START);
    // PORT, or HOST PORT: local address of the listener.
    for (words, at) in
        [("5000", "10.0.0.2:5000, 10.0.0.6:5000"), ("10.0.0.6 5000", "10.0.0.6:5000")]
    {
        let mut flue = bench.start(&format!("nc -l {words} {TWO_ADDRESSES}"), Output::Bytes);
        let line = flue.expect_line("listening", START);
        assert!(line.ends_with(at), "{line}");
        let to = |host| {
            let there = SocketAddr::from(([10, 0, 0, host], 5000));
            bench.kernel.run(|| TcpStream::connect_timeout(&there, START))
        };
        if words.starts_with("10") {
            let error = to(2).expect_err("a listener on the other address");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            drop(to(6).unwrap());
        } else {
            drop(to(2).unwrap());
        }
        drop(flue.take_input());
        flue.expect_exit(0, START);
    }
}

fn port(bench: &Bench) {
    let mut flue = bench.start(&format!("nc -l -p 5678 {}", Bench::attached(2)), Output::Bytes);
    let line = flue.expect_line("listening", START);
    assert!(line.ends_with("10.0.0.2:5678"), "{line}");
    let there = SocketAddr::from(([10, 0, 0, 2], 5678));
    drop(bench.kernel.run(|| TcpStream::connect_timeout(&there, START)).unwrap());
    drop(flue.take_input());
    flue.expect_exit(0, START);
}

fn source(bench: &Bench) {
    let (listener, port) = kernel_listener(bench);
    for (options, host) in [("", 2), ("--source 10.0.0.6", 6)] {
        let line = format!("nc 10.0.0.1 {port} {options} {TWO_ADDRESSES}");
        let mut flue = bench.start(&line, Output::Bytes);
        let (socket, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), IpAddr::from([10, 0, 0, host]), "{options}");
        drop(socket);
        flue.expect_exit(0, START);
    }
}

fn timeout(bench: &Bench) {
    assert_limit(bench, "nc 10.0.0.99 9");
}

/// Checks the time limit of the connect of a command to an unused address. The run with the long limit, started first,
/// still retries when the other one has failed.
pub(crate) fn assert_limit(bench: &Bench, command: &str) {
    let start = |host: u8, seconds: u32| {
        let line = format!("{command} --timeout {seconds} {}", Bench::attached(host));
        let mut flue = bench.start(&line, Output::Bytes);
        flue.expect_line("# seed", START);
        flue
    };
    let mut patient = start(2, 600);
    let began = Instant::now();
    let mut hasty = start(3, 1);
    hasty.expect_exit(1, START);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(patient.is_running(), "{:?}", patient.log());
}

// The target may upload a connection that receives without a posted request: without preposted requests it is
// uploaded, with them it is not.
fn prepost(bench: &Bench) {
    for (options, uploads) in [("", 1), ("--prepost 65536", 0)] {
        let options = format!("--upload-on no-buffer-preposting {options}");
        let mut flue = bench.listen(&options, Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        bench.expect("", |one| one["offloads"] == 1);
        carry(&mut socket, &mut output, 4 << 20);
        let one = bench.expect("", |one| uploads == 0 || one["uploads"] == 1);
        assert_eq!(one["uploads"], uploads, "{options}: {one}");
    }
}
