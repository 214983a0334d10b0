//! `flue ss`, `flue offload` and `flue upload` on running nodes. The listing is correct, connections migrate while
//! data flows, and clients of the control socket do not affect the data path.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flue_test_support::bench::{Bench, START};
use flue_test_support::capture;
use flue_test_support::flue::exchange;
use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::needs::{Need, find_tool, lacks};
use flue_test_support::process::Output;
use flue_test_support::stream::Stream;
use rustix::process::Signal;
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];
const LIMIT: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;
const FLUE_SEED: u64 = 1;
const KERNEL_SEED: u64 = 2;

// Lists a listener and a connection, as table and as document, with every counter of the offload target. The list is
// empty after the node exits.
#[test]
fn ss_lists_listeners_and_connections() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let mut flue = bench.listen("", Output::Bytes);
    let listeners = bench.run_once("ss -tln");
    let rows: Vec<_> =
        listeners.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    let head: Vec<_> =
        "State Recv-Q Send-Q Local Address:Port Peer Address:Port Offload".split(' ').collect();
    assert_eq!(rows, [head, vec!["LISTEN", "0", "1", "0.0.0.0:5000", "*:*", "InHost"]]);

    let mut socket = bench.connect();
    let peer = socket.local_addr().unwrap();
    // The target counts the data that it received itself.
    bench.expect("", |one| one["offload_state"] == "Offloaded");
    socket.write_all(&[7; 10_000]).unwrap();
    let one = bench.expect("--state", |one| one["info"]["bytes_received"] == 10_000);
    assert_eq!(one["offload_state"], "Offloaded");
    assert_eq!(
        (&one["state"], &one["offloads"], &one["uploads"]),
        (&Value::from("ESTAB"), &Value::from(1), &Value::from(0))
    );
    assert_eq!(one["local"], "10.0.0.2:5000");
    assert_eq!(one["remote"], peer.to_string());
    assert_eq!(one["info"]["snd_mss_bytes"], 1448);
    let tree = &one["state_tree"];
    assert_eq!(tree["path"]["const"]["DestinationAddress"], "10.0.0.1");
    assert_eq!(tree["path"]["cached"]["PathMtu"], 1500);
    assert_eq!(tree["tcp"]["const"]["RemotePort"], peer.port());
    assert_eq!(tree["tcp"]["delegated"]["State"], "Established");
    let edges = ["SndUna", "SndNxt", "SndMax"].map(|member| &tree["tcp"]["delegated"][member]);
    assert!(edges[0].is_u64() && edges.iter().all(|edge| *edge == edges[0]), "{tree}");

    let text = bench.run_once(&format!("ss -tinp state established dport = :{}", peer.port())).out;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let process = format!("node:((\"tap2\",pid={}))", flue.id());
    for word in ["ESTAB", "10.0.0.2:5000", &peer.to_string(), "Offloaded", &process] {
        assert!(lines[1].split_whitespace().any(|other| other == word), "{word}: {text}");
    }
    for word in ["cubic", "wscale:", "mss:1448", "pmtu:1500", "bytes_received:10000", "offloads:1"]
    {
        let found = lines[2].split_whitespace().any(|other| other.starts_with(word));
        assert!(found, "{word}: {text}");
    }
    let text = bench.run_once("ss -emo").out;
    let below = text.lines().nth(2).expect(&text);
    let process = format!("pid:{}", flue.id());
    for word in ["uid:0", "program:flue", &process, "node:tap2", "handle:", "skmem:(r0,rb"] {
        assert!(below.split_whitespace().any(|other| other.starts_with(word)), "{word}: {text}");
    }
    assert_eq!(one["timers"], Value::Array(Vec::new()), "no data in flight: {one}");
    assert!(one["memory"]["receive_max_bytes"].as_u64() > Some(0), "{one}");
    let text = bench.run_once("ss -s").out;
    assert!(text.contains("TCP:   1 (ESTAB 1)"), "{text}");
    assert_eq!(bench.run_once("ss dport = :1").out.lines().count(), 1, "only the heading");
    assert!(bench.connections("--node tap2 offload inhost").is_empty());
    let unknown = bench.run_once("ss --node tap9");
    assert_eq!(unknown.status, Some(1));
    assert!(unknown.err.contains("tap9"), "{}", unknown.err);
    let unclear = bench.run_once("ss dport 22");
    assert_eq!(unclear.status, Some(2), "{}", unclear.err);

    drop(socket);
    drop(flue.take_input());
    flue.expect_exit(0, START);
    assert!(bench.sockets().is_empty(), "the node did not remove its socket");
    let without_node = bench.run_once("ss");
    assert_eq!((without_node.status, without_node.out.lines().count()), (Some(0), 1));
    assert!(
        without_node.err.contains("no running node") && without_node.err.contains("flue"),
        "{}",
        without_node.err
    );
}

// A killed node leaves its socket file. It is not listed, and the next node removes it.
#[test]
fn stale_socket_is_not_listed() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let mut killed = bench.listen("", Output::Bytes);
    killed.signal(Signal::KILL);
    killed.wait(START);
    let left = bench.sockets();
    assert_eq!(left.len(), 1, "the socket of a killed node: {left:?}");
    let said = bench.run_once("ss -a");
    assert_eq!((said.status, said.out.lines().count()), (Some(0), 1), "{}", said.out);
    let named = bench.run_once(&format!("ss --node {}", left[0].display()));
    assert_eq!(named.status, Some(1), "a stale socket that is given by name is an error");
    assert!(named.err.contains("no listener"), "{}", named.err);
    let next = bench.listen("", Output::Bytes);
    assert_eq!(bench.sockets().len(), 1);
    assert!(!left[0].exists(), "the stale socket was not removed");
    drop(next);
}

// Control clients that send nothing, garbage, or continuous requests: the stream is exact and not delayed.
#[test]
fn hostile_client_does_not_delay_data() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let mut flue = bench.listen("", Output::Bytes);
    let socket = bench.sockets().remove(0);
    let silent: Vec<_> = (0..8).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    assert!(!silent.is_empty());
    let bytes = 32 * MIB;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
                // The write fails if the node closes the connection first.
                let _ =
                    stream.write_all(b"{\"flue_control\":1,\"request\":\"list\",\"state\":true}\n");
                let _ = stream.write_all(&[0xff; 5000]);
            }
        });
        let began = Instant::now();
        let peer =
            KernelPeer::connect(&bench.kernel, Bench::address(2), Plan::send(KERNEL_SEED, bytes));
        let (received, error) = exchange(&mut flue, FLUE_SEED, bytes, LIMIT);
        done.store(true, Ordering::Relaxed);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(received, Stream::new(KERNEL_SEED).digest(bytes));
        peer.finish().assert_received(Stream::new(FLUE_SEED).digest(bytes));
        assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
    });
    drop(silent);
}

/// Offloads and uploads the connection until it has ended; returns the number of offloads and uploads that succeeded.
fn migrate_until_end(bench: &Bench, peer: &str) -> [u32; 2] {
    let mut moved = [0; 2];
    for step in 0.. {
        let way = step % 2;
        let what = ["offload", "upload"][way];
        let said = bench.run_once(&format!("{what} {peer} --wait 20 --json"));
        let document = said.json();
        let connections = document["result"]["connections"].as_array();
        match connections.map(Vec::as_slice) {
            Some([one]) if one["ok"] == true => {
                assert_eq!(said.status, Some(0));
                assert_eq!(one["to"], ["Offloaded", "InHost"][way], "{one}");
                moved[way] += u32::from(one["from"] != one["to"]);
            }
            // The connection has ended, or is closing: after a FIN no connection is offloaded.
            _ => {
                assert_eq!(said.status, Some(1));
                return moved;
            }
        }
    }
    moved
}

// `flue offload` and `flue upload` on a connection that carries data both ways: it migrates, each byte arrives, and
// the host's policy does not upload it. If the commands get little CPU time, the transfer grows until some have run.
#[test]
fn connections_move_while_data_flows() {
    if lacks(NEEDS) {
        return;
    }
    let mut bytes = 96 * MIB;
    while !moves_while_data_flows(bytes).iter().all(|moved| *moved >= 3) {
        assert!(bytes < 384 * MIB, "too few migrations");
        bytes *= 2;
    }
}

/// Runs a connection that carries `bytes` per direction; returns its numbers of offloads and uploads.
fn moves_while_data_flows(bytes: u64) -> [u32; 2] {
    let bench = Bench::new(FLUE);
    let capture = bench.runtime.file("moves.pcapng");
    let mut flue =
        bench.listen(&format!("--offload never --pcap {}", capture.display()), Output::Bytes);
    let peer =
        KernelPeer::connect(&bench.kernel, Bench::address(2), Plan::send(KERNEL_SEED, bytes));
    let line = flue.expect_line("connected: ", START);
    let remote = line.rsplit(' ').next().unwrap().to_owned();
    let moved = thread::scope(|scope| {
        let mover = scope.spawn(|| migrate_until_end(&bench, &remote));
        let (received, error) = exchange(&mut flue, FLUE_SEED, bytes, LIMIT);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(received, Stream::new(KERNEL_SEED).digest(bytes));
        mover.join().expect("the migrating thread does not panic")
    });
    flue.expect_exit(0, START);
    peer.finish().assert_received(Stream::new(FLUE_SEED).digest(bytes));
    let [down, up] = moved;
    eprintln!("offloaded {down} times and uploaded {up} times in {bytes} bytes in each direction");
    check_capture(&capture, down, up);
    moved
}

/// Maximum frames passed to Wireshark, unless the first migration is later in the capture.
const TSHARK_FRAMES: usize = 20_000;

/// Checks that each migration is marked on the first frame after it, and that Wireshark can read the file.
fn check_capture(capture: &std::path::Path, down: u32, up: u32) {
    let frames = capture::read(capture).expect("a valid capture");
    let comments: Vec<&String> = frames.iter().flat_map(|frame| &frame.comments).collect();
    let count = |text: &str| comments.iter().filter(|comment| comment.starts_with(text)).count();
    // A migration without a frame before the next one is not marked.
    let (initiates, terminates) = (count("initiate complete"), count("terminate"));
    assert!(2 * initiates >= down as usize, "{initiates} marks of {down} initiates");
    assert!(2 * terminates >= up as usize, "{terminates} marks of {up} terminates");
    if find_tool("tshark").is_none() {
        return;
    }
    // Wireshark takes minutes for the whole capture on a busy machine, mostly for the TCP payload.
    let is_marked = |frame: &&capture::Frame| {
        frame.comments.iter().any(|it| it.starts_with("initiate complete"))
    };
    let marked = frames.iter().position(|frame| is_marked(&frame)).unwrap_or_default();
    let first = &frames[..frames.len().min(TSHARK_FRAMES.max(marked + 1))];
    let expected = first.iter().filter(is_marked).count();
    let mut tshark = Command::new("tshark");
    tshark.arg("-n").arg("-r").arg(capture).arg("-c").arg(first.len().to_string());
    tshark.args(["-o", "tcp.desegment_tcp_streams:FALSE"]);
    tshark.args(["-o", "tcp.analyze_sequence_numbers:FALSE"]);
    tshark.args(["-Y", "frame.comment contains \"initiate complete\"", "-T", "fields"]);
    let output = tshark.args(["-e", "frame.number"]).output().expect("tshark starts");
    let seen = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(seen, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

// Refused migrations are reported with their reason, and the connection is unchanged.
#[test]
fn refused_migration_reports_reason() {
    if lacks(NEEDS) {
        return;
    }
    let bench = Bench::new(FLUE);
    let mut flue = bench.listen("--offload never --capacity tcp=0", Output::Bytes);
    let mut socket = bench.connect();
    socket.write_all(b"hello").unwrap();
    bench.expect("", |one| one["offload_state"] == "InHost" && one["state"] == "ESTAB");
    let said = bench.run_once("offload all --json");
    assert_eq!(said.status, Some(1), "{}", said.out);
    let one = &said.json()["result"]["connections"][0];
    assert_eq!(one["refused"]["ndis_status"], 0xC023_1004_u32, "{one}");
    assert_eq!(one["refused"]["ndis_status_name"], "NDIS_STATUS_OFFLOAD_TCP_ENTRIES");
    let said = bench.run_once("offload all");
    assert!(said.err.contains("NDIS_STATUS_OFFLOAD_TCP_ENTRIES (0xc0231004)"), "{}", said.err);
    let one = bench.expect("", |one| one["offload_state"] == "InHost" && one["state"] == "ESTAB");
    assert_eq!((&one["offloads"], &one["refusals"]), (&Value::from(0), &Value::from(2)));
    assert_eq!(
        bench.run_once("upload all").status,
        Some(0),
        "the connection is in the host already"
    );
    assert_eq!(bench.run_once("upload 10.0.0.9:1").status, Some(1));
    drop(socket);
    drop(flue.take_input());
    flue.expect_exit(0, START);
}
