//! `flue perf`, each kind over TAPs on a bridge and against kernel sockets. Both ends exit with 0, the figures of the
//! document are consistent, and received data equals sent data. Throughput is not judged.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flue_test_support::flue::{Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::switch::Switch;
use flue_test_support::tshark::{self, Atomic, BufferModel, Fpdu, Pdu, PduKind, opcode};
use rustix::process::Signal;
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];
const START: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(300);

const SERVER: &str = "--tap taps --addr 10.0.0.1/24 --bridge br0";
const CLIENT: &str = "--tap tapc --addr 10.0.0.2/24 --bridge br0 10.0.0.1";
const KERNEL: &str = "10.0.0.3";

/// Switch with a kernel attached to it; nodes attach in its network namespace.
struct Bench {
    switch: Switch,
    kernel: Namespace,
}

/// Output and exit status of a client.
struct CommandOutput {
    status: i32,
    out: String,
    err: String,
}

impl CommandOutput {
    /// The one JSON document of the output, which contains nothing else.
    fn document(&self) -> Value {
        let Self { out, err, .. } = self;
        serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}\n{err}"))
    }

    fn error(&self) -> String {
        self.document()["error"]["message"].as_str().expect("an error in the document").to_owned()
    }
}

impl Bench {
    fn new() -> Self {
        let switch = Switch::new(1500);
        let kernel = switch.host(&format!("{KERNEL}/24"));
        Self { switch, kernel }
    }

    fn start(&self, host: &Namespace, line: &str) -> Process {
        let line = format!("perf {line}");
        let mut server = Process::start(host, command(FLUE, &line), Output::Lines);
        server.expect_line("listening", START);
        server
    }

    /// Starts a server on a node.
    fn node_server(&self, line: &str) -> Process {
        self.start(self.switch.namespace(), &format!("{line} {SERVER}"))
    }

    /// Starts a server on a kernel socket.
    fn kernel_server(&self, line: &str) -> Process {
        self.start(&self.kernel, &format!("{line} --stack kernel"))
    }

    fn client(&self, host: &Namespace, line: &str) -> CommandOutput {
        let command = command(FLUE, &format!("perf {line} --json"));
        let mut client = Process::start(host, command, Output::Bytes);
        let mut out = String::new();
        client.take_output().read_to_string(&mut out).expect("flue writes UTF-8");
        let status = client.wait(LIMIT).code().expect("an exit status");
        CommandOutput { status, out, err: client.all_lines(LIMIT) }
    }

    /// Runs a client on a node against a server on a node.
    fn node_client(&self, line: &str) -> CommandOutput {
        self.client(self.switch.namespace(), &format!("{line} {CLIENT}"))
    }

    /// Runs [`Bench::node_client`] against a server that does not report its listener.
    fn node_client_of_silent(&self, line: &str) -> CommandOutput {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = self.node_client(line);
            if !said.out.contains("refused") || Instant::now() > deadline {
                return said;
            }
        }
    }

    /// Runs server and client on nodes, checks that both succeed, and returns the results.
    fn run(&self, server: &str, client: &str) -> Vec<Value> {
        let mut server = self.node_server(&format!("{server} -1"));
        let said = self.node_client(client);
        verified_results(&mut server, &said)
    }
}

/// Checks that both exited with 0; returns the results, each verified.
fn verified_results(server: &mut Process, said: &CommandOutput) -> Vec<Value> {
    let document = said.document();
    assert_eq!(said.status, 0, "{}", said.out);
    server.expect_exit(0, LIMIT);
    assert_eq!(document["schema"], "flue.perf/1");
    assert_eq!(document["config"]["role"], "client");
    assert_eq!(document["error"], Value::Null);
    let results = document["result"]["measurements"].as_array().expect("a list").clone();
    assert!(!results.is_empty());
    for result in &results {
        check_result(&document, result);
    }
    results
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("expected a count: {value}"))
}

/// Checks the invariants of every result, whatever the measurement.
fn check_result(document: &Value, result: &Value) {
    let (size, iterations) = (number(&result["size_bytes"]), number(&result["iterations"]));
    assert!(iterations > 0, "{result}");
    assert_eq!(number(&result["bytes"]), size * iterations, "{result}");
    let seconds = result["seconds"].as_f64().unwrap();
    let close = |told: &Value, exact: f64| {
        let told = told.as_f64().unwrap();
        assert!((told - exact).abs() <= exact.abs() * 1e-6, "{told}, not {exact}: {result}");
    };
    close(&result["messages_per_second"], iterations as f64 / seconds);
    let is_bandwidth = document["config"]["kind"].as_str().unwrap().ends_with("bw");
    if is_bandwidth {
        close(&result["bandwidth_bps"], (size * iterations * 8) as f64 / seconds);
        assert_eq!(result["latency_ns"], Value::Null);
    } else {
        assert_eq!(result["bandwidth_bps"], Value::Null);
        let latency = &result["latency_ns"];
        let ordered = ["min", "p50", "p90", "p99", "p999", "max"].map(|key| number(&latency[key]));
        assert!(ordered.is_sorted() && ordered[0] > 0, "{latency}");
        let mean = latency["mean"].as_f64().unwrap();
        assert!(ordered[0] as f64 <= mean && mean <= ordered[5] as f64, "{latency}");
        assert_eq!(number(&latency["samples"]), iterations, "{latency}");
        let buckets = latency["histogram"].as_array().unwrap();
        let counted: u64 = buckets.iter().map(|bucket| number(&bucket[1])).sum();
        assert_eq!(counted, iterations, "{latency}");
    }
    let cpu = &result["cpu"];
    let used = ["local_user_seconds", "local_system_seconds"].map(|key| cpu[key].as_f64().unwrap());
    assert!(used.iter().all(|seconds| *seconds >= 0.0) && used[0] + used[1] > 0.0, "{cpu}");
    let used = ["remote_user_seconds", "remote_system_seconds"].map(|key| cpu[key].as_f64());
    assert!(used.iter().all(Option::is_some), "{cpu}");
    assert_eq!(cpu["seconds_per_gbyte"].is_number(), is_bandwidth, "{cpu}");
}

#[test]
fn queue_pairs_many_at_once() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    for kind in ["write-bw", "read-bw", "send-bw"] {
        for (server, client) in [
            ("--progress manual", "--progress manual -O 0.05"),
            ("", "-O 0"),
            ("--progress manual --wait block", "--progress manual --wait block -O 0"),
        ] {
            let server = format!("{kind} {server}");
            let results = bench.run(&server, &format!("{kind} -n 700 -s 3000 {client}"));
            assert_eq!(results[0]["iterations"], 700);
            assert_eq!(results[0]["verified"], true, "{kind} {client}");
        }
    }
}

// EXT-5-1, EXT-5.2.1-3, EXT-6.3-1: sums and counts are compared at both ends, with one queue and with several.
#[test]
fn atomics_and_immediate_data() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    for (kind, more) in [
        ("write-imm-bw", "-n 700 -s 3000"),
        ("write-imm-bw", "-n 900 -s 100 -P 5 -b -t 16 --post-list 3"),
        ("atomic-bw", "-n 3000"),
        ("atomic-bw", "-n 3000 -P 4 -t 200"),
        ("atomic-bw", "-n 500 -P 3 -b"),
        ("atomic-lat", "-n 300"),
    ] {
        for node in ["--progress manual", "", "--queues 2"] {
            let client = format!("{kind} {more} {node} -O 0.02");
            let results = bench.run(&format!("{kind} {node}"), &client);
            assert_eq!(results[0]["verified"], true, "{client}");
        }
    }
}

// EXT-4.1-1, EXT-5-3, EXT-5.2.2-1: Wireshark decodes atomics as sent. It does not support Immediate Data; for that it
// shows opcode, queue and CRC.
#[test]
fn wireshark_on_atomics_and_immediate_data() {
    if lacks(NEEDS) || lacks(&[Need::Tool("tshark")]) {
        return;
    }
    let (bench, scratch) = (Bench::new(), Scratch::new());
    let captured = |line: &str| {
        let file = scratch.file("perf.pcapng");
        bench.run(line, &format!("{line} -n 5 -O 0 --pcap {}", file.display()));
        tshark::assert_clean(&file, &[]);
        let pdus = tshark::pdus(&file);
        tshark::assert_crcs_good(&pdus);
        pdus
    };
    let fpdus = |pdus: &[Pdu], wanted: u8| -> Vec<Fpdu> {
        let fpdu = |pdu: &Pdu| match &pdu.kind {
            PduKind::Fpdu(fpdu) => Some(fpdu.clone()),
            _ => None,
        };
        pdus.iter().filter_map(fpdu).filter(|fpdu| fpdu.opcode == wanted).collect()
    };
    let pdus = captured("atomic-lat");
    let requests = fpdus(&pdus, opcode::ATOMIC_REQUEST);
    let responses = fpdus(&pdus, opcode::ATOMIC_RESPONSE);
    assert_eq!((requests.len(), responses.len()), (5, 5));
    for (msn, (request, response)) in (1..).zip(requests.iter().zip(&responses)) {
        let queue = |queue| BufferModel::Untagged { queue, msn, offset: 0 };
        assert_eq!((request.buffer, response.buffer), (queue(1), queue(3)));
        let Some(Atomic::FetchAdd { identifier, operands: [1, 0], .. }) = request.atomic else {
            panic!("{request:?}")
        };
        let original = u64::from(msn) - 1;
        assert_eq!(response.atomic, Some(Atomic::Response { identifier, original }));
        assert_eq!((request.ulpdu_length, response.ulpdu_length), (70, 30));
    }
    let pdus = captured("write-imm-bw");
    let immediates = fpdus(&pdus, opcode::IMMEDIATE);
    let places: Vec<_> = immediates.iter().map(|fpdu| (fpdu.buffer, fpdu.ulpdu_length)).collect();
    let expected = (1..=5).map(|msn| (BufferModel::Untagged { queue: 0, msn, offset: 0 }, 26));
    assert_eq!(places, expected.collect::<Vec<_>>());
}

#[test]
fn queue_pairs_one_at_a_time() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    for kind in ["write-lat", "read-lat", "send-lat"] {
        for (server, client) in
            [("--progress manual", "--progress manual -O 0.05"), ("", "-O 0 -s 5000")]
        {
            let results =
                bench.run(&format!("{kind} {server}"), &format!("{kind} -n 300 {client}"));
            assert_eq!(results[0]["iterations"], 300);
        }
    }
}

#[test]
fn several_connections_both_ways() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    for kind in ["write-bw", "read-bw", "send-bw"] {
        let client = format!("{kind} -P 5 -b -t 16 --post-list 3 -n 900 -s 100 --progress manual");
        let results = bench.run(&format!("{kind} --progress manual"), &client);
        assert_eq!(results[0]["iterations"], 1800, "iterations of both directions");
        assert_eq!(results[0]["verified"], true);
    }
    let results = bench.run("tcp-bw", "tcp-bw -P 3 -b -n 300 -s 2000");
    assert_eq!(results[0]["iterations"], 600);
}

#[test]
fn all_sizes_each_on_new_connections() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    for kind in ["write-bw", "tcp-bw"] {
        let client = format!("{kind} -a -n 3 -O 0 --progress manual");
        let results = bench.run(&format!("{kind} --progress manual"), &client);
        let sizes: Vec<u64> = results.iter().map(|one| number(&one["size_bytes"])).collect();
        let expected: Vec<u64> = (1..=23).map(|power| 1 << power).collect();
        assert_eq!(sizes, expected);
    }
}

#[test]
fn duration_is_kept_and_reported_in_intervals() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let client = "write-bw -D 1 -O 0 --interval 0.1 -s 4K --progress manual";
    let results = bench.run("write-bw --progress manual", client);
    assert!(results[0]["seconds"].as_f64().unwrap() >= 1.0);
    let intervals = results[0]["intervals"].as_array().unwrap();
    let lengths: Vec<f64> = intervals.iter().map(|one| one["seconds"].as_f64().unwrap()).collect();
    assert!(!lengths.is_empty() && lengths.iter().all(|seconds| *seconds >= 0.1), "{lengths:?}");
    assert!(lengths.iter().sum::<f64>() <= results[0]["seconds"].as_f64().unwrap(), "{lengths:?}");
}

#[test]
fn tcp_of_the_node_and_of_the_kernel() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let bridge = bench.switch.namespace();
    let node = "--tap tapc --addr 10.0.0.2/24 --bridge br0";
    for (kind, bound) in
        [("tcp-bw", "-n 500 -s 4000"), ("tcp-rr", "-n 200"), ("connect-rate", "-n 20")]
    {
        bench.run(&format!("{kind} --progress manual"), &format!("{kind} {bound} -O 0"));
        let client = format!("{kind} {bound} --progress manual -O 0.02 --stack smoltcp");
        bench.run(&format!("{kind} --stack smoltcp"), &client);

        let mut server = bench.kernel_server(&format!("{kind} -1"));
        let client = format!("{kind} {bound} {node} {KERNEL} --progress manual -O 0.02");
        verified_results(&mut server, &bench.client(bridge, &client));

        for wait in ["spin", "block"] {
            let mut server = bench.node_server(&format!("{kind} -1 --wait {wait}"));
            let client = format!("{kind} {bound} --stack kernel --wait {wait} -O 0.02 10.0.0.1");
            verified_results(&mut server, &bench.client(&bench.kernel, &client));
        }

        bench.kernel.ip("link set lo up");
        let mut server = bench.kernel_server(&format!("{kind} -1"));
        let client = format!("{kind} {bound} --stack kernel 127.0.0.1 -O 0");
        let said = bench.client(&bench.kernel, &client);
        verified_results(&mut server, &said);
        let document = said.document();
        assert_eq!(
            (&document["config"]["stack"], &document["config"]["transport"]),
            (&"kernel".into(), &"tcp".into())
        );
        assert_eq!(document["config"]["vnet_header"], Value::Null);
    }
    let results = bench.run("tcp-bw", "tcp-bw -R -n 100 -s 3000");
    assert_eq!(results[0]["iterations"], 100, "requests sent by the server");
}

// The clock stops when the receiver has confirmed all data. A run lasts a fiftieth of a second. A receiver that
// sleeps after the last bytes, or misses the end of the run, would add a fifth of a second. One of many runs is quick
// enough even if other processes use the CPU.
#[test]
fn last_bytes_are_confirmed_without_sleep() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    bench.kernel.ip("link set lo up");
    let bridge = bench.switch.namespace();
    let node = "--tap tapc --addr 10.0.0.2/24 --bridge br0";
    const SLEPT: f64 = 0.19;
    let work = "tcp-bw -s 64K -O 0 -D 0.02";
    let to_kernel = || {
        let mut server = bench.kernel_server("tcp-bw -1");
        verified_results(&mut server, &bench.client(bridge, &format!("{work} {node} {KERNEL}")))
    };
    let from_kernel = || {
        let mut server = bench.node_server("tcp-bw -1 --wait block");
        let client = format!("{work} --stack kernel 10.0.0.1");
        verified_results(&mut server, &bench.client(&bench.kernel, &client))
    };
    let within_kernel = |connections: u32| {
        let mut server = bench.kernel_server("tcp-bw -1");
        let client = format!("{work} --connections {connections} --stack kernel 127.0.0.1");
        verified_results(&mut server, &bench.client(&bench.kernel, &client))
    };
    for (name, run) in [
        ("to the kernel", &to_kernel as &dyn Fn() -> Vec<Value>),
        ("from the kernel", &from_kernel),
        ("within the kernel", &|| within_kernel(1)),
        ("within the kernel, two connections", &|| within_kernel(2)),
    ] {
        let mut seconds = Vec::new();
        let deadline = Instant::now() + LIMIT;
        while seconds.last().is_none_or(|last| *last >= SLEPT) {
            assert!(seconds.len() < 10 || Instant::now() < deadline, "{name}: {seconds:?}");
            seconds.push(run()[0]["seconds"].as_f64().unwrap());
        }
    }
}

/// Both ends have their connections on two queues of a TAP, and each queue carries data.
#[test]
fn connections_are_spread_over_queues() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    for kind in ["write-bw", "read-bw", "send-bw", "tcp-bw"] {
        for how in ["", "--wait spin", "--progress manual"] {
            let server = format!("{kind} --queues 2 {how} -1 --json {SERVER}");
            let server = command(FLUE, &format!("perf {server}"));
            let mut server = Process::start(bench.switch.namespace(), server, Output::Bytes);
            let line = format!("{kind} --queues 2 -P 4 -n 800 -s 20000 -O 0.02 -b {how}");
            let said = bench.node_client_of_silent(&line);
            assert_eq!(said.status, 0, "{}", said.out);
            let mut out = String::new();
            server.take_output().read_to_string(&mut out).expect("flue writes UTF-8");
            let results = verified_results(&mut server, &said);
            assert_eq!(results[0]["iterations"], 1600, "{kind} {how}");
            let verified = if kind == "tcp-bw" { Value::Null } else { true.into() };
            assert_eq!(results[0]["verified"], verified, "{kind} {how}");
            let of_server: Value = serde_json::from_str(&out).expect("a document");
            for document in [said.document(), of_server] {
                assert_eq!(document["config"]["queues"], 2, "{kind} {how}");
                let segments = document["result"]["queue_segments"].as_array().expect("a list");
                // Each connection carries 8 MB of the 32 MB; acknowledgments alone are fewer bytes.
                assert!(
                    segments.len() == 2 && segments.iter().all(|of| number(of) > 50),
                    "{document}"
                );
            }
        }
    }
}

/// A measurement of one connection uses one queue, whichever the server selects; the queue counts of both ends may
/// differ.
#[test]
fn any_number_of_queues_meets_any_other() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    for (server, client) in [(3, 1), (1, 2), (2, 3)] {
        for (kind, more) in [
            ("write-lat", "-n 50"),
            ("send-lat", "-n 50"),
            ("read-lat", "-n 50"),
            ("tcp-rr", "-n 50"),
            ("connect-rate", "-n 10"),
            ("send-bw", "-P 5 -n 300 -s 100"),
            ("write-bw", "-P 7 -n 300 -s 100 -b"),
        ] {
            let server = format!("{kind} --queues {server}");
            bench.run(&server, &format!("{kind} {more} --queues {client} -O 0"));
        }
    }
}

#[test]
fn incompatible_queue_options_are_reported() {
    for (line, words) in [
        ("write-bw --queues 17", "1..=16"),
        ("write-bw --queues 0", "1..=16"),
        (
            "tcp-bw --stack kernel --queues 2 10.0.0.1",
            "--queues 2: not supported with --stack kernel",
        ),
        ("write-bw --queues 2 --progress manual --wait block 10.0.0.1", "--wait block"),
        ("write-bw --queues 2 --progress manual --rate 1gbit 10.0.0.1", "--rate"),
    ] {
        let output = command(FLUE, &format!("perf {line}")).output().expect("flue starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains(words), "{line}: {text}");
    }
}

#[test]
fn connections_of_connect_rate_are_offloaded() {
    if lacks(NEEDS) {
        return;
    }
    let results = Bench::new().run("connect-rate", "connect-rate -n 30 -O 0");
    let (offloaded, failures) = (&results[0]["offloaded_connections"], &results[0]["failures"]);
    assert_eq!((offloaded, failures), (&30.into(), &0.into()));
}

#[test]
fn document_describes_measurement() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let mut server = bench.node_server("send-bw -1 --progress manual --vnet off");
    let said = bench.node_client("send-bw -n 100 -t 7 --progress manual --vnet off");
    verified_results(&mut server, &said);
    let document = said.document();
    for (key, value) in [
        ("kind", Value::from("send-bw")),
        ("stack", "flue".into()),
        ("transport", "rdma".into()),
        ("progress", "manual".into()),
        ("connections", 1.into()),
        ("queues", 1.into()),
        ("depth", 7.into()),
        ("bidirectional", false.into()),
        ("vnet_header", false.into()),
        ("mtu_bytes", 1500.into()),
    ] {
        assert_eq!(document["config"][key], value, "{key}");
    }
    let ends =
        [("crc", Value::from(true)), ("local", "10.0.0.2".into()), ("remote", "10.0.0.1".into())];
    for (key, value) in ends {
        assert_eq!(document["result"][key], value, "{key}");
    }
}

#[test]
fn json_stream_has_one_object_per_line() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let mut server = bench.node_server("write-bw -1");
    let line = format!("perf write-bw -D 1 --interval 0.1 --json-stream {CLIENT}");
    let mut client = Process::start(bench.switch.namespace(), command(FLUE, &line), Output::Bytes);
    let mut out = String::new();
    client.take_output().read_to_string(&mut out).unwrap();
    client.expect_exit(0, LIMIT);
    server.expect_exit(0, LIMIT);
    let objects: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect();
    let events: Vec<_> = objects.iter().map(|one| one["event"].as_str().unwrap_or("-")).collect();
    let (last, before) = events.split_last().unwrap();
    assert_eq!(*last, "-", "the document is written last");
    assert_eq!(before.last(), Some(&"result"));
    assert!(before.len() > 1 && before[..before.len() - 1].iter().all(|it| *it == "interval"));
}

#[test]
fn mismatched_test_is_reported_on_both_sides() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    for (served, asked) in [("write-bw", "write-lat"), ("tcp-bw", "tcp-rr")] {
        let mut server = bench.node_server(served);
        let said = bench.node_client(&format!("{asked} -n 10"));
        assert_eq!(said.status, 1, "{}", said.out);
        let error = said.error();
        assert!(error.contains(served) && error.contains(asked), "{error}");
        let told = server.expect_line(&format!("expected {served}"), START);
        assert!(told.contains(asked), "{told}");
        assert_eq!(bench.node_client(&format!("{served} -n 10")).status, 0);
        server.signal(Signal::TERM);
        server.expect_exit(0, START);
    }
}

#[test]
fn invalid_clients_are_rejected_and_next_client_is_served() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let at = SocketAddr::from(([10, 0, 0, 1], 18515));
    let connect = || bench.kernel.run(|| TcpStream::connect_timeout(&at, START)).unwrap();
    // Some clients send garbage, some nothing, some half a message; one uses the other transport.
    let garbage: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\n\r\n0123456789", b"", b"flueperf", &[0xff; 4096]];
    for (served, other) in [("tcp-bw", "write-bw"), ("write-bw", "tcp-bw")] {
        let mut server = bench.node_server(&format!("{served} -1"));
        for octets in garbage {
            let mut stranger = connect();
            stranger.write_all(octets).unwrap();
            stranger.set_read_timeout(Some(START)).unwrap();
            // The server may already have closed or reset the connection; both are acceptable.
            let _ = stranger.shutdown(std::net::Shutdown::Write);
            let _ = stranger.read_to_end(&mut Vec::new());
        }
        let said = bench.node_client(&format!("{other} -n 10"));
        assert_eq!(said.status, 1, "{}", said.out);
        assert!(!said.error().is_empty());
        verified_results(&mut server, &bench.node_client(&format!("{served} -n 10")));
    }
}

#[test]
fn client_crash_does_not_end_server() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let kill = |host: &Namespace, line: &str| {
        let mut client =
            Process::start(host, command(FLUE, &format!("perf {line}")), Output::Lines);
        // Interval line: data is being transferred.
        client.expect_line("64.0 KiB", START);
        client.signal(Signal::KILL);
        client.wait(START);
    };
    // The kernel closes the connection on behalf of a killed program.
    let mut server = bench.node_server("tcp-bw");
    kill(&bench.kernel, "tcp-bw --stack kernel --interval 0.1 -D 600 10.0.0.1");
    server.expect_line("client: TCP: ", START);
    assert_eq!(bench.node_client("tcp-bw -n 10").status, 0);
    server.signal(Signal::TERM);
    server.expect_exit(0, START);
    // On a node, the connection's stack is part of the killed process, so nothing is sent to the peer.
    let mut server = bench.node_server("write-bw");
    kill(bench.switch.namespace(), &format!("write-bw --interval 0.1 -D 600 {CLIENT}"));
    server.expect_line("peer: no data for", LIMIT);
    assert_eq!(bench.node_client("write-bw -n 10").status, 0);
    server.signal(Signal::TERM);
    server.expect_exit(0, START);
}

#[test]
fn unreachable_peer_yields_document() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let line = format!("tcp-bw --stack kernel {KERNEL}");
    let said = bench.client(&bench.kernel, &line);
    assert_eq!(said.status, 1);
    assert!(said.error().contains("connect to 10.0.0.3:18515"), "{}", said.out);
    let usage = bench.client(&bench.kernel, "tcp-rr -b 10.0.0.1");
    assert_eq!(usage.status, 2);
    assert!(usage.error().contains("-b"), "{}", usage.out);
}

// Each connection on kernel sockets has a descriptor. Shells have a soft limit of 1,024.
#[test]
fn soft_limit_of_descriptors_is_raised() {
    if lacks(&[Need::Root, Need::Tool("unshare")]) {
        return;
    }
    let host = Namespace::new();
    let start = |line: &str, output| {
        let mut shell = command("sh", "-c");
        shell.arg(format!("ulimit -Sn 64 && exec {FLUE} perf write-bw --stack kernel {line}"));
        Process::start(&host, shell, output)
    };
    let mut server = start("-1", Output::Lines);
    server.expect_line("listening", START);
    let mut client = start("-P 100 -n 100 -O 0 --json 127.0.0.1", Output::Bytes);
    let mut out = String::new();
    client.take_output().read_to_string(&mut out).expect("flue writes UTF-8");
    let status = client.wait(LIMIT).code().expect("an exit status");
    let said = CommandOutput { status, out, err: client.all_lines(LIMIT) };
    verified_results(&mut server, &said);
}
