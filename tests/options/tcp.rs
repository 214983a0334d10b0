//! TCP options of offloaded connections.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use flue_test_support::bench::{Bench, PORT, START};
use flue_test_support::capture;
use flue_test_support::process::Output;
use flue_test_support::switch::Direction;
use serde_json::Value;

use crate::table::{ALL, rows};

rows! { ALL;
    "--offload", "--offload never" => offload;
    "--psh", "--psh empty" => psh;
    "--congestion-control", "--congestion-control none" => congestion_control;
    "--pacing", "--pacing" => pacing;
    "--ecn", "--ecn" => ecn;
    "--max-retransmissions", "--max-retransmissions 3" => max_retransmissions;
    "--receive-window", "--receive-window 65536" => receive_window;
    "--tcp-trace", "--tcp-trace trace.csv" => tcp_trace;
}

/// Sends `bytes` from the kernel and checks that the node outputs them.
pub(crate) fn carry(socket: &mut TcpStream, output: &mut impl Read, bytes: usize) {
    thread::scope(|scope| {
        scope.spawn(|| socket.write_all(&vec![7; bytes]).unwrap());
        let mut received = vec![0; bytes];
        output.read_exact(&mut received).unwrap();
    });
}

fn offload(bench: &Bench) {
    let of = |value: &str, bytes: usize, state: &str| {
        let mut flue = bench.listen(&format!("--offload {value}"), Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        carry(&mut socket, &mut output, bytes);
        let one = bench.expect("", |one| one["offload_state"] == state);
        assert_eq!(one["state"], "ESTAB", "{one}");
    };
    of("always", 1, "Offloaded");
    of("never", 1 << 20, "InHost");
    of("auto", 1, "InHost");
    of("auto", 64 << 10, "Offloaded");
}

// Lists are queued ahead of a slow wire, so that the send queue is rarely empty between them.
fn psh(bench: &Bench) {
    let [list, empty] = ["list", "empty"].map(|value| {
        let mut flue = bench.listen(&format!("--psh {value} --rate 20Mbit"), Output::Bytes);
        let mut socket = bench.connect();
        bench.expect("", |one| one["offload_state"] == "Offloaded");
        let mut input = flue.take_input();
        let writer = thread::spawn(move || {
            input.write_all(&vec![7; 1 << 20]).unwrap();
            input
        });
        let mut received = vec![0; 1 << 20];
        socket.read_exact(&mut received).unwrap();
        let _input = writer.join().unwrap();
        let one = bench.expect("", |one| one["info"]["bytes_acked"] == 1 << 20);
        one["info"]["segs_psh_out"].as_u64().unwrap()
    });
    // The node reads its input in lists of at most 64 KiB.
    assert!(list >= 16 && empty >= 1 && empty < list, "{list} with PSH, {empty} with --psh empty");
}

fn congestion_control(bench: &Bench) {
    let windows = ["cubic", "newreno", "none"].map(|name| {
        let _flue = bench.listen(&format!("--congestion-control {name}"), Output::Bytes);
        let _socket = bench.connect();
        let one = bench.expect("", |one| one["offload_state"] == "Offloaded");
        let said = bench.run_once("ss -ti").out;
        assert!(said.split_whitespace().any(|word| word == name), "{name}: {said}");
        one["info"]["snd_cwnd_bytes"].as_u64().unwrap()
    });
    // RFC 6928: initial window of ten segments.
    assert!(windows[0] <= 14_600 && windows[1] == windows[0], "{windows:?}");
    assert!(windows[2] >= 1 << 30, "{windows:?}");
    let losses = ["cubic", "newreno"].map(|name| after_loss(bench, name));
    // RFC 9438 §4.6: reduction to seven tenths; RFC 5681 §3.1: to one half.
    assert!(losses[0] > 0.6 && losses[1] < 0.6, "{losses:?}");
}

/// Slow-start threshold after the first loss, relative to the bytes in flight before it. The congestion window may be
/// larger than those.
fn after_loss(bench: &Bench, name: &str) -> f64 {
    let trace = bench.runtime.file("loss.csv");
    let options = format!(
        "--congestion-control {name} --tcp-trace {} --rate 50Mbit --queue 30p --vnet off",
        trace.display()
    );
    let mut flue = bench.listen(&options, Output::Bytes);
    let mut socket = bench.connect();
    bench.expect("", |one| one["offload_state"] == "Offloaded");
    let mut input = flue.take_input();
    let writer = thread::spawn(move || input.write_all(&vec![7; 2 << 20]));
    let mut received = Vec::new();
    socket.read_to_end(&mut received).unwrap();
    writer.join().unwrap().unwrap();
    drop(socket);
    flue.expect_exit(0, START);
    let rows = trace_rows(&trace);
    let after = rows.iter().position(|row| row[3] > 0.0 && row[3] < 1e9);
    let after = after.unwrap_or_else(|| panic!("no loss in {} rows", rows.len()));
    let in_flight = rows[..=after].iter().map(|row| row[7]).fold(0.0, f64::max);
    rows[after][3] / in_flight
}

/// Rows of a trace as numbers; other values are -1.
fn trace_rows(path: &std::path::Path) -> Vec<Vec<f64>> {
    let text = fs::read_to_string(path).expect("a readable trace");
    let (head, rows) = text.split_once('\n').expect("a head");
    assert!(head.starts_with("time_us,connection,cwnd,ssthresh,"), "{head}");
    let number = |cell: &str| cell.parse().unwrap_or(-1.0);
    rows.lines().map(|row| row.split(',').map(number).collect()).collect()
}

fn tcp_trace(bench: &Bench) {
    let trace = bench.runtime.file("trace.csv");
    for options in [String::new(), format!("--tcp-trace {}", trace.display())] {
        let mut flue = bench.listen(&options, Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        bench.expect("", |one| one["offload_state"] == "Offloaded");
        carry(&mut socket, &mut output, 100_000);
        flue.take_input().write_all(&[7; 100_000]).unwrap();
        socket.read_exact(&mut [0; 100_000]).unwrap();
        drop(socket);
        flue.expect_exit(0, START);
        assert_eq!(trace.exists(), !options.is_empty());
    }
    let rows = trace_rows(&trace);
    assert!(rows.len() > 1 && rows.iter().all(|row| row.len() == 15 && row[2] > 0.0), "{rows:?}");
}

fn pacing(bench: &Bench) {
    let rate = |options: &str| {
        let mut flue = bench.listen(options, Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        bench.expect("", |one| one["offload_state"] == "Offloaded");
        let mut input = flue.take_input();
        input.write_all(&[7; 10_000]).unwrap();
        socket.read_exact(&mut [0; 10_000]).unwrap();
        carry(&mut socket, &mut output, 1);
        let one = bench.expect("", |one| one["info"]["bytes_acked"] == 10_000);
        one["info"]["pacing_rate_bps"].as_u64()
    };
    assert_eq!(rate(""), None);
    assert!(rate("--pacing").is_some_and(|rate| rate > 0));
}

fn ecn(bench: &Bench) {
    bench.kernel.sysctl("net/ipv4/tcp_ecn", "1");
    for (options, agreed) in [("", false), ("--ecn", true)] {
        let mut flue = bench.listen(options, Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        bench.expect("", |one| one["offload_state"] == "Offloaded");
        carry(&mut socket, &mut output, 1);
        flue.take_input().write_all(&[7; 1000]).unwrap();
        socket.read_exact(&mut [0; 1000]).unwrap();
        let one =
            bench.expect("", |one| one["info"]["bytes_acked"] == 1000 || one["info"].is_null());
        assert_eq!(one["info"]["ecn"], agreed, "{one}");
        let capable = ecn_capable(bench);
        assert_eq!(capable > 0, agreed, "{capable} ECN-capable packets");
    }
    // ECN is also offered: this kernel accepts it without offering it.
    bench.kernel.sysctl("net/ipv4/tcp_ecn", "2");
    let listener = bench.kernel.run(|| std::net::TcpListener::bind(("0.0.0.0", 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    for (options, agreed) in [("", false), ("--ecn", true)] {
        let line = format!("nc {} {options} 10.0.0.1 {port}", Bench::attached(2));
        let _flue = bench.start(&line, Output::Bytes);
        let _socket = listener.accept().unwrap();
        let one = bench.expect("", |one| one["offload_state"] == "Offloaded");
        assert_eq!(one["info"]["ecn"], agreed, "{one}");
    }
}

/// Number of ECN-capable packets that the kernel has received.
fn ecn_capable(bench: &Bench) -> u64 {
    bench.kernel.counter("IpExtInECT0Pkts")
}

/// Number of transmissions of the first data segment in the node's capture, with all frames dropped until the node
/// gives up.
fn transmissions(bench: &Bench, host: u8, options: &str) -> usize {
    let capture = bench.runtime.file(&format!("tries{host}.pcapng"));
    let options = format!("{options} --pcap {}", capture.display());
    let mut flue = bench.listen_at(host, &options, Output::Bytes);
    let _socket = bench.connect_to(host);
    bench.expect(&format!("--node tap{host}"), |one| one["offload_state"] == "Offloaded");
    bench.switch.lose(10_000, Direction::Both);
    let _input = {
        let mut input = flue.take_input();
        input.write_all(&[7; 100]).unwrap();
        input
    };
    flue.expect_exit(1, START);
    let segments = capture::segments(&capture::read(&capture).expect("a valid capture"));
    let from_node =
        |one: &&capture::Segment| one.from == SocketAddr::from(([10, 0, 0, host], PORT));
    segments.iter().filter(from_node).filter(|one| one.payload_bytes == 100).count()
}

fn max_retransmissions(bench: &Bench) {
    let few = transmissions(bench, 2, "--max-retransmissions 1");
    let more = transmissions(&Bench::new(crate::FLUE), 3, "--max-retransmissions 3");
    assert_eq!(more, few + 2, "{few} with one");
    assert!(few >= 2, "{few} transmissions, expected at least one retransmission");
}

fn receive_window(bench: &Bench) {
    // With a round trip of 10 ms, higher throughput requires a larger window.
    let window = |options: &str| {
        let mut flue = bench.listen(&format!("--delay 5ms {options}"), Output::Bytes);
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        let began = bench.expect("", |one| one["offload_state"] == "Offloaded");
        carry(&mut socket, &mut output, 8 << 20);
        let one = bench.expect("", |one| one["info"]["bytes_received"] == 8 << 20);
        let bytes = |one: &Value| one["info"]["rcv_wnd_bytes"].as_u64().unwrap();
        [bytes(&began), bytes(&one)]
    };
    let [first, grown] = window("");
    assert!(first <= 256 << 10 && grown > 256 << 10, "{first}, {grown}");
    let few = window("--receive-window 65536");
    assert!(few.iter().all(|bytes| *bytes <= 65_536 && *bytes > 60_000), "{few:?}");
    let fixed = window("--receive-window 262144");
    assert!(fixed[1] <= 262_144 && fixed[1] > 200_000, "{fixed:?}");
}
