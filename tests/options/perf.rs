//! Options specific to `flue perf`: a server on node 3, a client on node 2.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use flue_test_support::bench::{Bench, START};
use flue_test_support::capture::{self, Flags, Segment};
use flue_test_support::process::{Output, Process};
use rustix::process::Signal;
use serde_json::Value;

use crate::table::rows;

rows! { &["perf"];
    "KIND" => kind;
    "HOST" => host;
    "--size" => size;
    "--all" => all;
    "--iterations" => iterations;
    "--duration" => duration;
    "--connections" => connections;
    "--depth" => depth;
    "--post-list" => post_list;
    "--bidirectional" => bidirectional;
    "--reverse" => reverse;
    "--omit" => omit;
    "--port" => port;
    "--one-off" => one_off;
    "--stack" => stack;
    "--wait" => wait;
    "--interval" => interval;
    "--json-stream" => json_stream;
    "--backlog" => backlog;
    "--max-pending-mpa" => max_pending_mpa;
    "--timeout" => timeout;
}

fn timeout(bench: &Bench) {
    for kind in ["write-bw", "tcp-bw"] {
        crate::nc::assert_limit(bench, &format!("perf {kind} 10.0.0.99"));
    }
}

/// Longer than the reset of a displaced connection takes, shorter than the time limit of a Request.
const DISPLACED: Duration = Duration::from_secs(3);

/// True if the first of two idle kernel connections is reset in favor of the second one.
fn is_displaced(bench: &Bench, options: &str) -> bool {
    let _server = serve(bench, &format!("write-bw {options}"));
    let at = SocketAddr::from(([10, 0, 0, 3], 18515));
    let [mut first, _second] = [(); 2].map(|()| {
        let connect = || TcpStream::connect_timeout(&at, START);
        bench.kernel.run(connect).expect("the server listens")
    });
    first.set_read_timeout(Some(DISPLACED)).expect("a limit");
    let error = first.read(&mut [0]).expect_err("a read without data");
    error.kind() == ErrorKind::ConnectionReset
}

fn backlog(bench: &Bench) {
    assert!(!is_displaced(bench, ""), "the default permits 128 pending connections per peer");
    assert!((0..4).any(|_| is_displaced(bench, "--backlog 1")), "one pending connection per peer");
}

fn max_pending_mpa(bench: &Bench) {
    assert!(!is_displaced(bench, ""), "the default permits 1,024 pending connections");
    assert!(
        (0..4).any(|_| is_displaced(bench, "--max-pending-mpa 1")),
        "one pending connection in total"
    );
}

/// Starts a server on node 3.
fn serve(bench: &Bench, options: &str) -> Process {
    let mut server = bench.start(&format!("perf {options} {}", Bench::attached(3)), Output::Lines);
    server.expect_line("listening", START);
    server
}

/// Standard output and exit status of a client on node 2.
fn client(bench: &Bench, options: &str) -> (String, Option<i32>) {
    let line = format!("perf {options} {} 10.0.0.3", Bench::attached(2));
    let mut client = bench.start(&line, Output::Bytes);
    let mut out = String::new();
    client.take_output().read_to_string(&mut out).expect("flue writes UTF-8");
    (out, client.wait(START).code())
}

/// Document of a client with these options, for a server of that kind with `of_server`; both exit with 0.
fn document(bench: &Bench, kind: &str, options: &str, of_server: &str) -> Value {
    let mut server = serve(bench, &format!("{kind} -1 {of_server}"));
    let (out, status) = client(bench, &format!("{kind} {options} --json"));
    assert_eq!(status, Some(0), "{out}");
    server.expect_exit(0, START);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn result(bench: &Bench, kind: &str, options: &str) -> Value {
    document(bench, kind, options, "")["result"]["measurements"][0].clone()
}

fn seconds(result: &Value) -> f64 {
    result["seconds"].as_f64().unwrap_or_else(|| panic!("{result}"))
}

fn kind(bench: &Bench) {
    // Fields that identify the kind: RDMA has CRCs, bandwidth has no latency.
    let kinds = [
        ("write-bw", true, None, 64 << 10),
        ("read-bw", true, None, 64 << 10),
        ("send-bw", true, None, 64 << 10),
        ("write-imm-bw", true, None, 64 << 10),
        ("atomic-bw", true, None, 8),
        ("write-lat", true, Some("half round trip"), 8),
        ("read-lat", true, Some("whole operation"), 8),
        ("send-lat", true, Some("half round trip"), 8),
        ("atomic-lat", true, Some("whole operation"), 8),
        ("tcp-bw", false, None, 64 << 10),
        ("tcp-rr", false, Some("half round trip"), 8),
        ("connect-rate", false, Some("whole operation"), 1),
    ];
    for (kind, rdma, latency, size) in kinds {
        let document = document(bench, kind, "-n 10 -O 0", "");
        let result = &document["result"]["measurements"][0];
        assert_eq!(document["result"]["crc"].is_boolean(), rdma, "{kind}: {document}");
        assert_eq!(document["result"]["latency"], Value::from(latency), "{kind}");
        assert_eq!(result["latency_ns"].is_object(), latency.is_some(), "{kind}: {result}");
        assert_eq!(
            (&result["iterations"], &result["size_bytes"]),
            (&10.into(), &size.into()),
            "{kind}"
        );
    }
}

fn host(bench: &Bench) {
    // Without the option the process is a server, whose listener `serve` awaits; with it, a client of that server.
    let document = document(bench, "tcp-bw", "-n 10 -O 0", "");
    assert_eq!(
        (&document["config"]["role"], &document["result"]["remote"]),
        (&"client".into(), &"10.0.0.3".into())
    );
    let (out, status) = client(bench, "tcp-bw -n 10 --json");
    assert_eq!(status, Some(1), "no server: {out}");
}

fn size(bench: &Bench) {
    for (options, bytes) in [("", 64 << 10), ("-s 100", 100), ("--size 3K", 3 << 10)] {
        let result = result(bench, "write-bw", &format!("-n 10 -O 0 {options}"));
        assert_eq!(
            (&result["size_bytes"], &result["bytes"]),
            (&bytes.into(), &(10 * bytes).into())
        );
    }
    let capture = segments(bench, "tcp-bw", "-n 7 -O 0 --size 1000000");
    assert!(payload(&capture, 2) >= 7_000_000, "{}", payload(&capture, 2));
}

fn all(bench: &Bench) {
    let document = document(bench, "tcp-bw", "--all -n 2 -O 0", "");
    let results = document["result"]["measurements"].as_array().unwrap();
    let sizes: Vec<_> = results.iter().map(|one| one["size_bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, (1..=23).map(|power| 1 << power).collect::<Vec<u64>>());
}

fn iterations(bench: &Bench) {
    for count in [5, 300] {
        let result = result(bench, "send-lat", &format!("--iterations {count} -O 0"));
        assert_eq!(
            (&result["iterations"], &result["latency_ns"]["samples"]),
            (&count.into(), &count.into())
        );
    }
}

fn duration(bench: &Bench) {
    let longer = seconds(&result(bench, "tcp-rr", "--duration 1.1 -O 0"));
    assert!(longer >= 1.1, "{longer}");
    let shorter = result(bench, "tcp-rr", "-D 0.02 -O 0 -s 100");
    assert!(seconds(&shorter) >= 0.02, "{shorter}");
    // A scheduling delay on a busy machine does not lengthen it to half a second.
    assert!(seconds(&shorter) < longer, "{shorter}");
}

/// Segments in the capture of the client on node 2.
fn segments(bench: &Bench, kind: &str, options: &str) -> Vec<Segment> {
    let file = bench.runtime.file("perf.pcapng");
    document(bench, kind, &format!("{options} --pcap {}", file.display()), "");
    capture::segments(&capture::read(&file).expect("a valid capture"))
}

fn of_node(segment: &Segment, host: u8) -> bool {
    segment.from.ip() == IpAddr::from([10, 0, 0, host])
}

/// Payload bytes from a node.
fn payload(segments: &[Segment], host: u8) -> u32 {
    segments.iter().filter(|one| of_node(one, host)).map(|one| one.payload_bytes).sum()
}

fn connections(bench: &Bench) {
    for kind in ["write-bw", "tcp-bw"] {
        let opened = [1, 4].map(|count| {
            let segments = segments(bench, kind, &format!("-n 20 -O 0 --connections {count}"));
            let opens = |one: &&Segment| of_node(one, 2) && one.flags.has(Flags::SYN);
            let ports = segments.iter().filter(opens).map(|one| one.from.port());
            ports.collect::<std::collections::BTreeSet<_>>().len()
        });
        assert_eq!(opened[1], opened[0] + 3, "{kind}");
    }
}

// With one outstanding message each takes a round trip; with several they are sent together.
fn depth(bench: &Bench) {
    let document = document(bench, "read-bw", "-n 40 -s 100 -O 0 --depth 1", "--delay 5ms");
    let took = seconds(&document["result"]["measurements"][0]);
    assert!(took >= 0.4, "{took}");
}

fn post_list(bench: &Bench) {
    let frames = [64, 1].map(|count| {
        let options = format!("-n 640 -s 100 -t 64 -O 0 --progress manual --post-list {count}");
        let segments = segments(bench, "write-bw", &options);
        segments.iter().filter(|one| of_node(one, 2) && one.payload_bytes > 0).count()
    });
    // Later messages queue behind those in flight, and are sent together.
    assert!(2 * frames[1] > 3 * frames[0], "{frames:?}");
}

fn bidirectional(bench: &Bench) {
    for kind in ["write-bw", "tcp-bw"] {
        let one_way = segments(bench, kind, "-n 20 -s 10000 -O 0");
        let both = segments(bench, kind, "-n 20 -s 10000 -O 0 --bidirectional");
        assert!(payload(&one_way, 2) >= 200_000 && payload(&one_way, 3) < 100_000, "{kind}");
        assert!(payload(&both, 2) >= 200_000 && payload(&both, 3) >= 200_000, "{kind}");
    }
    let result = result(bench, "tcp-bw", "-n 20 -O 0 --bidirectional");
    assert_eq!(result["iterations"], 40);
}

fn reverse(bench: &Bench) {
    let segments = segments(bench, "tcp-bw", "-n 20 -s 10000 -O 0 --reverse");
    let bytes = [2, 3].map(|host| payload(&segments, host));
    assert!(bytes[0] < 100_000 && bytes[1] >= 200_000, "{bytes:?}");
}

fn omit(bench: &Bench) {
    for (options, warm) in [("-O 0", false), ("", true), ("--omit 0.05", true)] {
        let result = result(bench, "tcp-rr", &format!("-n 10 {options}"));
        let count = result["warm_up_iterations"].as_u64().unwrap();
        assert_eq!((count > 0, &result["iterations"]), (warm, &10.into()), "{options}: {result}");
    }
}

fn port(bench: &Bench) {
    let mut server = serve(bench, "tcp-bw -1 --port 18600");
    assert_eq!(client(bench, "tcp-bw -n 10 -O 0").1, Some(1), "not the default port");
    assert_eq!(client(bench, "tcp-bw -n 10 -O 0 -p 18600").1, Some(0));
    server.expect_exit(0, START);
}

fn one_off(bench: &Bench) {
    let mut server = serve(bench, "tcp-bw");
    for _ in 0..2 {
        assert_eq!(client(bench, "tcp-bw -n 10 -O 0").1, Some(0));
    }
    server.signal(Signal::TERM);
    server.wait(START);
    let mut server = serve(bench, "tcp-bw --one-off");
    assert_eq!(client(bench, "tcp-bw -n 10 -O 0").1, Some(0));
    server.expect_exit(0, START);
}

fn stack(bench: &Bench) {
    for (stack, offloaded) in [("flue", 10), ("smoltcp", 0)] {
        let options = format!("-n 10 -O 0 --stack {stack}");
        let result = result(bench, "connect-rate", &options);
        assert_eq!(result["offloaded_connections"], offloaded, "{stack}");
    }
    let line = "perf tcp-bw -1 --stack kernel";
    let mut server = Process::start(&bench.kernel, bench.command(line), Output::Lines);
    server.expect_line("listening", START);
    assert_eq!(bench.kernel.links(), ["eth0"], "kernel sockets require no TAP");
    let line = format!("perf tcp-bw -n 10 -O 0 {} 10.0.0.1", Bench::attached(2));
    bench.start(&line, Output::Lines).expect_exit(0, START);
    server.expect_exit(0, START);
    // Queue pairs on kernel sockets.
    let line = "perf write-bw -1 --transport kernel";
    let mut server = Process::start(&bench.kernel, bench.command(line), Output::Lines);
    server.expect_line("listening", START);
    let line = format!("perf write-bw -n 10 -O 0 {} 10.0.0.1", Bench::attached(2));
    bench.start(&line, Output::Lines).expect_exit(0, START);
    server.expect_exit(0, START);
}

/// Number of times that the threads of a process have slept.
fn sleeps(process: &Process) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.id())).expect("a running process");
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    tasks.filter_map(|task| of(task.unwrap())).sum()
}

// The server responds to one request per millisecond: a blocking server sleeps before most of them, a spinning one
// before none.
fn wait(bench: &Bench) {
    for (stack, more) in [("--stack kernel", "--stack kernel"), ("--progress manual", "")] {
        let [spin, block] = ["spin", "block"].map(|how| {
            let options = format!("tcp-rr {stack} --wait {how}");
            let (namespace, plug, to) = if more.is_empty() {
                (bench.switch.namespace(), Bench::attached(3), 3)
            } else {
                (&bench.kernel, String::new(), 1)
            };
            let line = format!("perf {options} {plug}");
            let mut server = Process::start(namespace, bench.command(&line), Output::Lines);
            server.expect_line("listening", START);
            let slow = format!("{} --delay 500us", Bench::attached(2));
            let line = format!("perf tcp-rr -n 300 -O 0 {slow} 10.0.0.{to}");
            let before = sleeps(&server);
            bench.start(&line, Output::Lines).expect_exit(0, START);
            sleeps(&server) - before
        });
        assert!(block > 200 && spin < block / 4, "{stack}: {block}, {spin} where it spins");
    }
}

fn interval(bench: &Bench) {
    for (options, some) in [("", false), ("--interval 0.1", true)] {
        let result = result(bench, "tcp-bw", &format!("-D 0.5 -O 0 {options}"));
        let intervals = result["intervals"].as_array().unwrap();
        assert_eq!(!intervals.is_empty(), some, "{intervals:?}");
        assert!(intervals.iter().all(|one| seconds(one) >= 0.1), "{intervals:?}");
    }
}

fn json_stream(bench: &Bench) {
    let mut server = serve(bench, "tcp-bw -1");
    let (out, status) = client(bench, "tcp-bw -D 0.5 -O 0 --interval 0.1 --json-stream");
    assert_eq!(status, Some(0), "{out}");
    server.expect_exit(0, START);
    let parse = |line| -> Value { serde_json::from_str(line).expect("one object per line") };
    let objects: Vec<_> = out.lines().map(parse).collect();
    let (last, before) = objects.split_last().unwrap();
    let (of_size, intervals) = before.split_last().unwrap();
    assert!(last["event"].is_null() && last["result"]["measurements"].is_array(), "{last}");
    assert_eq!(of_size["event"], "result");
    assert!(!intervals.is_empty() && intervals.iter().all(|one| one["event"] == "interval"));
}
