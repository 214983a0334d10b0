//! `flue top` on a terminal, and `flue metrics`, with a running node and a connection. Live listings of `flue ss`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use flue_test_support::bench::{Bench, START};
use flue_test_support::capture;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::process::Output;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("python3")];

/// Runs `flue top` on a terminal, with the steps of tests/top.py.
fn on_terminal(bench: &Bench, line: &str, steps: &[String]) {
    let mut command = Command::new("python3");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/top.py")).args(steps);
    command.arg("--").arg(FLUE).args(line.split_whitespace());
    command.env("XDG_RUNTIME_DIR", bench.runtime.file("")).current_dir(bench.runtime.file(""));
    let output = command.output().expect("python3 starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line} {steps:?}: {errors}");
}

// The screen has the connection, follows its upload and the end of the node, and the terminal is restored.
#[test]
fn top_shows_a_connection_and_restores_the_terminal() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let mut flue = bench.listen("", Output::Bytes);
    let socket = bench.connect();
    let peer = socket.local_addr().unwrap();
    bench.expect("", |one| one["offload_state"] == "Offloaded");
    let steps = [
        format!("wait={peer}"),
        "wait=1 connection ".into(),
        "wait=Offloaded".into(),
        "send=c".into(),
        format!("wait=flue-tap2-{}.pcapng", flue.id()),
        "wait= frames".into(),
        "send=c".into(),
        "gone=capture flue-".into(),
        "send=u".into(),
        "wait=Offloaded to InHost in".into(),
        "wait=the host stack has the connection".into(),
        "send=/dport = :1\r".into(),
        "wait=0 connections".into(),
        "send=/\r".into(),
        "wait=1 connection ".into(),
        "send=?".into(),
        "wait=offload or upload the selected connection".into(),
        "send=?q".into(),
        "exit=0".into(),
    ];
    on_terminal(&bench, "top --interval 0.1", &steps);
    let file = bench.runtime.file(&format!("flue-tap2-{}.pcapng", flue.id()));
    capture::read(&file).expect("a capture");
    let end = ["wait=tap2", "signal=15", "exit=0"].map(str::to_owned);
    on_terminal(&bench, "top --interval 0.1 --node tap2", &end);
    on_terminal(&bench, "top --interval 0.1", &["wait=tap2", "hangup=0"].map(str::to_owned));
    drop(socket);
    drop(flue.take_input());
    flue.expect_exit(0, START);
    let none = ["wait=no running node", "send=q", "exit=0"].map(str::to_owned);
    on_terminal(&bench, "top", &none);
    let said = bench.run_once("top");
    assert_eq!(said.status, Some(2), "{}", said.err);
    assert!(said.err.contains("not a terminal") && said.err.contains("flue ss --interval 1"));
}

// One document per interval, on a line; the second one has the throughput. SIGINT is the normal end.
#[test]
fn repeated_listing_is_one_document_per_line() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let _flue = bench.listen("", Output::Bytes);
    let _socket = bench.connect();
    bench.expect("", |one| one["offload_state"] == "Offloaded");
    let mut listing = bench.start("ss --json --interval 0.1", Output::Lines);
    for number in 0..2 {
        let line = listing.expect_line("flue.ss/1", START);
        let document: Value = serde_json::from_str(&line).expect(&line);
        assert_eq!(document["ok"], true, "{line}");
        let one = &document["result"]["nodes"][0]["connections"][0];
        assert_eq!(one["offload_state"], "Offloaded", "{line}");
        assert_eq!(one["rates"]["send_bps"].is_number(), number > 0, "{line}");
    }
    listing.signal(Signal::INT);
    listing.expect_exit(0, START);
    let mut table = bench.start("ss --interval 0.1", Output::Lines);
    table.expect_line("Send-Rate  Recv-Rate", START);
    table.expect_line("0bps", START);
    table.signal(Signal::INT);
    table.expect_exit(0, START);
}

/// Returns the reply of the server at `address`.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(START)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

// A scrape has the counters of the connection. A client that sends nothing delays it by its time limit at most.
#[test]
fn metrics_have_the_counters_of_a_connection() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let _flue = bench.listen("", Output::Bytes);
    let mut socket = bench.connect();
    bench.expect("", |one| one["offload_state"] == "Offloaded");
    socket.write_all(&[7; 10_000]).unwrap();
    bench.expect("", |one| one["info"]["bytes_received"] == 10_000);
    let mut command = bench.command("metrics --listen 127.0.0.1:0");
    let mut exporter = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(exporter.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening: http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap();
    // Disconnects without a request.
    drop(TcpStream::connect(address).unwrap());
    let text = get(address, "/metrics");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default().to_owned()
    };
    assert_eq!(value("flue_up"), "1.0", "{text}");
    assert_eq!(value("flue_tcp_received_bytes_total"), "10000", "{text}");
    assert_eq!(value("flue_node_offloaded_connections"), "1.0", "{text}");
    assert!(get(address, "/other").starts_with("HTTP/1.1 404 "));
    kill_process(Pid::from_child(&exporter), Signal::TERM).unwrap();
    assert_eq!(exporter.wait().unwrap().code(), Some(0));
}
