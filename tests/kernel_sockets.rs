//! Queue pairs on kernel TCP sockets: between processes, with nodes on TAPs, without privileges, and connection
//! teardown.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use flue_test_support::capture;
use flue_test_support::flue::{ORDINARY_USER_ID, Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::stream::{HashingSink, Stream};
use flue_test_support::wire::Wire;
use rdma_over_tcp::ndk::blocking::{Connection, Incoming};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, Cq, Data, MrFlags, NdkResultEx, NtStatus, OpFlags, Qp, QpLimits,
    ReadLimit, Sge, SocketsConfig, open_sockets,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tool("ip")];
const LIMIT: Duration = Duration::from_secs(60);

fn start(host: &Namespace, arguments: &str) -> Process {
    Process::start(host, command(FLUE, arguments), Output::Lines)
}

/// Namespace with loopback only.
fn machine() -> Namespace {
    let host = Namespace::new();
    host.ip("link set lo up");
    host
}

/// Runs rping between two commands, the second of which is the client.
fn ping(host: &Namespace, server: &str, client: &str) -> String {
    let mut server = start(host, server);
    server.expect_line("listening:", LIMIT);
    let mut client = start(host, client);
    client.expect_exit(0, LIMIT);
    server.expect_exit(0, LIMIT);
    client.all_lines(LIMIT)
}

#[test]
fn rping_toward_a_peer_without_ird_names_it() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    let mut server = start(&host, "rping -s --transport kernel -a 127.0.0.1 -p 7001");
    server.expect_line("listening:", LIMIT);
    host.run(|| {
        let adapter = open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap();
        let waiter = &mut adapter.clone();
        let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(8, |_| {}).unwrap());
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let (local, none) = (([127, 0, 0, 1], 7001).into(), ReadLimit { inbound: 0, outbound: 1 });
        let _connection = Connection::connect(waiter, &qp, local, none, &[]).unwrap();
        // Memory for the server to read: address, token, 64 bytes.
        let advert = [&[0; 8][..], &[0, 0, 1, 0], &[0, 0, 0, 64]].concat();
        qp.send(1, Data::Inline(&[&advert]), OpFlags::empty()).unwrap();
        server.expect_exit(1, LIMIT);
    });
    let said = server.all_lines(LIMIT);
    assert!(said.contains("RDMA Read: the peer's IRD is 0, expected at least 1"), "{said}");
}

// The server compares the data of a client only with -V.
#[test]
fn validating_server_detects_wrong_data() {
    if lacks(NEEDS) {
        return;
    }
    for (option, status) in [("-V", 1), ("", 0)] {
        let host = machine();
        let line = format!("rping -s --transport kernel -a 127.0.0.1 -p 7001 -S 32 -v {option}");
        let mut server = start(&host, &line);
        server.expect_line("listening:", LIMIT);
        host.run(|| {
            let adapter = open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap();
            let waiter = &mut adapter.clone();
            let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(8, |_| {}).unwrap());
            let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
            let (mr, buffer) = (pd.create_mr(false).unwrap(), adapter.allocate(48).unwrap());
            let rights = MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_READ;
            mr.register(&buffer, 0, 48, rights).unwrap();
            // The last letter is wrong.
            buffer.write_at(0, b"rdma-ping-0: ABCDEFGHIJKLMNOPQ!\0");
            let go_ahead =
                Sge { address: buffer.address() + 32, length: 16, token: mr.local_token() };
            qp.receive(2, &[go_ahead]).unwrap();
            let (local, limit) =
                (([127, 0, 0, 1], 7001).into(), ReadLimit { inbound: 1, outbound: 1 });
            let connection = Connection::connect(waiter, &qp, local, limit, &[]).unwrap();
            let (address, token) = (buffer.address().to_be_bytes(), mr.local_token().to_be_bytes());
            let advert = [&address[..], &token, &32u32.to_be_bytes()].concat();
            qp.send(1, Data::Inline(&[&advert]), OpFlags::empty()).unwrap();
            if status == 1 {
                server.expect_exit(1, LIMIT);
                let said = server.all_lines(LIMIT);
                let expected = "rping: ping 0: client's data: octet 30: 0x21, expected 0x52";
                assert!(said.contains(expected), "{said}");
            } else {
                server.expect_line("server ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQ!", LIMIT);
                drop(connection);
                server.signal(Signal::INT);
                server.wait(LIMIT);
            }
        });
    }
}

#[test]
fn rping_over_loopback() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    for (address, size) in [("127.0.0.1", 64), ("127.0.0.2", 65_535), ("::1", 1500)] {
        let server = format!("rping -s --transport kernel -a {address} -S {size}");
        let client = format!("rping -c --transport kernel -a {address} -S {size} -C 100 -V");
        let said = ping(&host, &server, &client);
        assert!(said.contains("100 pings"), "{said}");
    }
    // The server listens on all addresses.
    ping(&host, "rping -s --transport kernel", "rping -c --transport kernel -a 127.0.0.9 -C 1");
}

// The peer is a node on a TAP, with its host stack and offload target.
#[test]
fn rping_with_a_node() {
    if lacks(NEEDS) || lacks(&[Need::Tun]) {
        return;
    }
    let host = machine();
    let node = "--tap t0 --addr 10.66.0.2/24 --host-addr 10.66.0.1/24 -S 65000";
    let sockets = "--transport kernel -S 65000";
    let said = ping(
        &host,
        &format!("rping -s {node}"),
        &format!("rping -c {sockets} -a 10.66.0.2 -C 100 -V"),
    );
    assert!(said.contains("100 pings"), "{said}");
    ping(
        &host,
        &format!("rping -s {sockets} -a 0.0.0.0"),
        &format!("rping -c {node} -a 10.66.0.1 -C 100 -V"),
    );
}

#[test]
fn perf_of_each_kind() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    for (kind, options) in [
        ("write-bw", "-s 1M -n 200 -P 4"),
        ("read-bw", "-s 64K -n 500 -b"),
        ("send-bw", "-s 64 -n 20000"),
        ("write-lat", "-n 500"),
        ("send-lat", "-n 500 --wait spin"),
        ("read-lat", "-n 500"),
    ] {
        let mut server = start(&host, &format!("perf {kind} --stack kernel -1"));
        server.expect_line("listening:", LIMIT);
        let line = format!("perf {kind} --transport kernel 127.0.0.1 {options} -O 0");
        let mut client = start(&host, &line);
        client.expect_exit(0, LIMIT);
        server.expect_exit(0, LIMIT);
    }
}

#[test]
fn lab_runs_between_namespaces() {
    if lacks(NEEDS) {
        return;
    }
    let (host, scratch) = (Namespace::new(), Scratch::new());
    let capture = scratch.file("lab.pcapng");
    let line = format!("lab --transport kernel --pcap {} --file {FLUE}", capture.display());
    let mut lab = start(&host, &line);
    lab.expect_exit(0, LIMIT);
    let said = lab.all_lines(LIMIT);
    assert_eq!(said.matches(" equal").count(), 3, "{said}");
    assert!(host.links().is_empty(), "left: {:?}", host.links());
    let frames = capture::read(&capture).unwrap();
    assert!(frames.len() > 100, "{} frames", frames.len());
}

// An unprivileged user in a container without /dev/net/tun or user namespaces: the lab runs over loopback.
#[test]
fn lab_runs_without_privileges() {
    if lacks(NEEDS) || lacks(&[Need::InitialRoot, Need::Tool("setpriv"), Need::Tool("unshare")]) {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    let copy = scratch.file("program");
    std::fs::copy(FLUE, &copy).unwrap();
    let script = format!(
        "mount -t tmpfs none /dev/net && echo 0 > /proc/sys/user/max_user_namespaces && \
         exec setpriv --inh-caps=-all --bounding-set=-all -- \
         {} lab --transport kernel --control none",
        copy.display()
    );
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={ORDINARY_USER_ID}")).arg(format!("--regid={ORDINARY_USER_ID}"));
    command.args(["--clear-groups", "--inh-caps=-all", "--"]);
    // The script limits user namespaces inside a separate user namespace.
    command.args(["unshare", "--map-root-user", "--mount", "--", "sh", "-c", &script]);
    command.current_dir(Path::new("/"));
    let mut lab = Process::start(&host, command, Output::Lines);
    lab.expect_exit(0, LIMIT);
    let said = lab.all_lines(LIMIT);
    assert!(said.contains("loopback: ") && said.contains("max_user_namespaces"), "{said}");
    assert_eq!(said.matches(" equal").count(), 3, "{said}");
}

// The surviving peer detects the end of the connection, for every kind of process exit.
#[test]
fn end_is_reported_to_peer() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    for (signal, code) in
        [(Signal::KILL, None), (Signal::INT, Some(130)), (Signal::TERM, Some(143))]
    {
        let mut server = start(&host, "rping -s --transport kernel -a 127.0.0.1");
        server.expect_line("listening:", LIMIT);
        let mut client = start(&host, "rping -c --transport kernel -a 127.0.0.1");
        server.expect_line("connected:", LIMIT);
        client.expect_line("connected:", LIMIT);
        client.signal(signal);
        match code {
            Some(code) => client.expect_exit(code, LIMIT),
            None => drop(client.wait(LIMIT)),
        }
        server.expect_exit(1, LIMIT);
        let said = server.all_lines(LIMIT);
        assert!(said.contains("connection closed within a ping"), "{signal:?}: {said}");
    }
}

#[test]
fn ss_lists_connections_and_moves_none() {
    if lacks(NEEDS) {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    let control = scratch.file("control.sock");
    let line = format!("rping -s --transport kernel -a 127.0.0.1 --control {}", control.display());
    let mut server = start(&host, &line);
    server.expect_line("listening:", LIMIT);
    let ask = |command: &str, words: &str| {
        let line = format!("{command} --node {} {words}", control.display());
        let mut asked = start(&host, &line);
        asked.wait(LIMIT);
        asked.all_lines(LIMIT)
    };
    let listed = ask("ss", "-a");
    assert!(listed.contains("LISTEN") && listed.contains("127.0.0.1:7174"), "{listed}");
    let mut client = start(&host, "rping -c --transport kernel -a 127.0.0.1");
    client.expect_line("connected:", LIMIT);
    server.expect_line("connected:", LIMIT);
    let listed = ask("ss", "offload kernel");
    assert!(listed.contains("ESTAB") && listed.contains("Kernel"), "{listed}");
    let refused = ask("upload", "all");
    assert!(refused.contains("migration not supported"), "{refused}");
    client.signal(Signal::INT);
    client.wait(LIMIT);
    server.wait(LIMIT);
}

#[test]
fn options_of_nodes_are_refused() {
    if lacks(NEEDS) {
        return;
    }
    let host = machine();
    for line in [
        "rping -s --transport kernel --tap x0",
        "rping -s --transport kernel --drop 1",
        "rping -s --transport kernel --queues 2",
        "perf write-bw --stack kernel --addr 10.0.0.1/24",
        "lab --transport kernel --vnet off",
    ] {
        let mut refused = start(&host, line);
        refused.expect_exit(2, LIMIT);
        let said = refused.all_lines(LIMIT);
        assert!(said.contains("node options"), "{line}: {said}");
    }
}

// Unreachable peer: the kernel aborts the connection, and flue reports the timeout.
#[test]
fn unreachable_peer_times_out() {
    if lacks(NEEDS) {
        return;
    }
    let (near, far) = (Namespace::new(), Namespace::new());
    near.ip(&format!("link add v0 type veth peer name v0 netns {}", far.path().display()));
    for (host, address) in [(&near, "10.66.0.1/24"), (&far, "10.66.0.2/24")] {
        host.ip(&format!("addr add {address} dev v0"));
        host.ip("link set v0 up");
        host.sysctl("net/ipv4/tcp_retries2", "3");
    }
    let mut server = start(&far, "perf write-bw --stack kernel");
    server.expect_line("listening", LIMIT);
    let mut client = start(&near, "perf write-bw --stack kernel 10.66.0.2 -D 300 --interval 1");
    // The client has begun to write.
    client.expect_line("1.0", LIMIT);
    far.ip("link set v0 down");
    client.expect_exit(1, LIMIT);
    let said = client.all_lines(LIMIT);
    assert!(said.contains("flue perf: ") && said.contains("TCP"), "{said}");
}

/// Connections of [`lossy_wire`], the number that carry data, and the bytes per direction of each.
const CONNECTIONS: usize = 1000;
const LANES: usize = 50;
const LANE_BYTES: usize = 2 << 20;
const WORD_BYTES: u32 = 4;

/// One endpoint: all queue pairs share one completion queue and one buffer, whose first half is the send area.
struct End {
    adapter: Adapter,
    cq: Cq,
    pairs: Vec<(Qp, Connection)>,
    buffer: rdma_over_tcp::ndk::RegisteredBuffer,
    token: u32,
}

impl End {
    /// Establishes all connections: as the client of `server`, or as a server that reports its address on
    /// `listening`.
    fn connect(seed: u64, server: Option<SocketAddr>, listening: &Sender<SocketAddr>) -> Self {
        let adapter = open_sockets(SocketsConfig::default(), AdapterConfig::default()).unwrap();
        let waiter = &mut adapter.clone();
        let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(4096, |_| {}).unwrap());
        let length = 2 * LANES * LANE_BYTES + WORD_BYTES as usize;
        let buffer = adapter.allocate(length).unwrap();
        let mr = pd.create_mr(false).unwrap();
        let rights = MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_WRITE;
        mr.register(&buffer, 0, length, rights).unwrap();
        let mut content = vec![0; LANES * LANE_BYTES];
        Stream::new(seed).fill(&mut content);
        buffer.write_at(0, &content);
        let reads = ReadLimit { inbound: 1, outbound: 1 };
        let qp = || pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let mut pairs = Vec::new();
        match server {
            Some(server) => {
                for _ in 0..CONNECTIONS {
                    let qp = qp();
                    let made = Connection::connect(waiter, &qp, server, reads, &[]);
                    pairs.push((qp, made.unwrap()));
                }
            }
            None => {
                let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7000));
                let mut incoming = Incoming::listen(waiter, local, 64).unwrap();
                listening.send(local).unwrap();
                for _ in 0..CONNECTIONS {
                    let (qp, connector) = (qp(), incoming.next(waiter).unwrap());
                    let made = Connection::accept(waiter, connector, &qp, reads, &[]);
                    pairs.push((qp, made.unwrap()));
                }
            }
        }
        Self { adapter, cq, pairs, token: mr.local_token(), buffer }
    }

    /// Writes the first half of the buffer to the second half of the peer's, one part per lane, followed by a word.
    /// Waits until all requests complete and the peer's words have arrived.
    fn exchange(&self, (address, token): (u64, u32)) {
        let lanes = || self.pairs[..LANES].iter().map(|(qp, _)| qp).enumerate();
        for (number, qp) in lanes() {
            let at = (number * LANE_BYTES) as u64;
            let length = LANE_BYTES as u32;
            let source = [Sge { address: self.buffer.address() + at, length, token: self.token }];
            let target = address + (LANES * LANE_BYTES) as u64 + at;
            qp.write(0, Data::Registered(&source), target, token, OpFlags::empty()).unwrap();
            qp.send(1, Data::Inline(&[b"done"]), OpFlags::empty()).unwrap();
        }
        let mut results = [NdkResultEx::default(); 64];
        let mut left = 3 * LANES;
        while left > 0 {
            let take = || Some(self.cq.poll_ex(&mut results)).filter(|taken| *taken > 0);
            let taken = self.adapter.wait_until(Some(LIMIT), take).unwrap();
            assert!(results[..taken].iter().all(|it| it.status == NtStatus::SUCCESS));
            left -= taken;
        }
    }

    fn assert_received(&self, seed: u64) {
        let mut received = vec![0; LANES * LANE_BYTES];
        self.buffer.read_at(LANES * LANE_BYTES, &mut received);
        let mut sum = HashingSink::default();
        sum.update(&received);
        assert_eq!(sum.finish(), Stream::new(seed).digest((LANES * LANE_BYTES) as u64));
    }
}

/// Out-of-band exchange between the two endpoints.
struct SideChannel {
    outgoing: Sender<(u64, u32)>,
    incoming: Receiver<(u64, u32)>,
}

/// Runs one endpoint from connection setup to the digest.
fn one_end(
    seeds: [u64; 2],
    server: Option<SocketAddr>,
    up: &Sender<SocketAddr>,
    side_channel: &SideChannel,
) {
    let end = End::connect(seeds[0], server, up);
    for (qp, _) in &end.pairs[..LANES] {
        // The word is stored after the send and receive areas.
        let address = end.buffer.address() + (2 * LANES * LANE_BYTES) as u64;
        qp.receive(2, &[Sge { address, length: WORD_BYTES, token: end.token }]).unwrap();
    }
    side_channel.outgoing.send((end.buffer.address(), end.token)).unwrap();
    let peer = side_channel.incoming.recv_timeout(LIMIT).unwrap();
    end.exchange(peer);
    end.assert_received(seeds[1]);
    // Neither endpoint disconnects before the other has received everything.
    side_channel.outgoing.send((0, 0)).unwrap();
    side_channel.incoming.recv_timeout(LIMIT).unwrap();
}

// 1,000 connections, 100 MiB per direction on fifty of them, at 1% frame loss.
#[test]
fn lossy_wire() {
    if lacks(NEEDS) || lacks(&[Need::Tun]) {
        return;
    }
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).unwrap();
    let (left, wire, right) = Wire::between_kernels(Path::new(FLUE), "--drop 1 --seed 1");
    let (up, listening) = channel();
    let (to_right, from_left) = channel();
    let (to_left, from_right) = channel();
    let side_channel = SideChannel { outgoing: to_left, incoming: from_left };
    let server_up = up.clone();
    let server = right.spawn_thread(move || one_end([2, 1], None, &server_up, &side_channel));
    let local = listening.recv_timeout(LIMIT).unwrap();
    let address = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), local.port()));
    let side_channel = SideChannel { outgoing: to_right, incoming: from_right };
    let client = left.spawn_thread(move || one_end([1, 2], Some(address), &up, &side_channel));
    client.join().unwrap();
    server.join().unwrap();
    let wire = wire.finish();
    assert!(wire.to_right("lost") > 100 && wire.to_left("lost") > 100, "{wire:?}");
}

// Counters of both directions, the kernel's timers and memory, and a capture that starts and stops while pings run.
#[test]
fn running_pair_is_listed_and_captured() {
    if lacks(NEEDS) {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    let flue = |line: &str| {
        let mut command = command(FLUE, line);
        command.env("XDG_RUNTIME_DIR", scratch.file("")).current_dir(scratch.file(""));
        command
    };
    let run = |line: &str| {
        let output = host.run(|| flue(line).output().unwrap());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let mut server =
        Process::start(&host, flue("rping -s --transport kernel -S 4096"), Output::Lines);
    server.expect_line("listening:", LIMIT);
    let line = "rping -c --transport kernel -a 127.0.0.1 -S 4096";
    let mut client = Process::start(&host, flue(line), Output::Lines);
    let deadline = Instant::now() + LIMIT;
    let listed = |pid: u32, is_so: &dyn Fn(&Value) -> bool| loop {
        let (status, text) = run(&format!("ss --json -emo --node {pid}"));
        let node = serde_json::from_str::<Value>(&text).unwrap()["result"]["nodes"][0].take();
        if status == Some(0) && is_so(&node) {
            return node;
        }
        assert!(Instant::now() < deadline, "{text}");
    };
    // The server reads and writes; the client sends its advertisements.
    let number =
        |node: &Value, key: &str| node["connections"][0]["rdma"][key].as_u64().unwrap_or(0);
    let of_server =
        listed(server.id(), &|it| number(it, "writes") > 9 && number(it, "receives_posted") > 0);
    let of_client = listed(client.id(), &|it| number(it, "writes_placed") > 9);
    for (node, messages, bytes) in [
        (&of_server, "writes", "write_bytes"),
        (&of_client, "writes_placed", "write_bytes_placed"),
        (&of_client, "read_responses", "read_response_bytes"),
    ] {
        let size = number(node, bytes).checked_div(number(node, messages)).unwrap_or(0);
        assert!((2048..=4096).contains(&size), "{messages}: {node}");
    }
    assert!(number(&of_server, "read_bytes") >= 9 * 4096, "{of_server}");
    assert!(number(&of_client, "send_bytes") >= 16 * 9, "{of_client}");
    let connection = &of_client["connections"][0];
    assert!(connection["inode"].as_u64() > Some(0), "{connection}");
    assert!(connection["memory"]["receive_max_bytes"].as_u64() > Some(0), "{connection}");
    assert!(connection["timers"].is_array(), "{connection}");
    let (status, text) = run("ss -s");
    assert_eq!(status, Some(0));
    assert!(text.starts_with("Nodes: 2\n") && text.contains("LISTEN 1"), "{text}");
    let (_, text) = run(&format!("ss -eimo --node {}", client.id()));
    for word in ["program:flue", "uid:", "ino:", "skmem:(r", "writes_placed:", "send_bytes:"] {
        assert!(text.contains(word), "{word}: {text}");
    }

    let node = client.id();
    let file = scratch.file(&format!("flue-kernel-{node}.pcapng"));
    let (status, text) = run(&format!("capture start --node {node}"));
    assert_eq!((status, text), (Some(0), format!("capture {}: started\n", file.display())));
    let (status, _) = run(&format!("capture start --node {node}"));
    assert_eq!(status, Some(1), "a second capture of the node");
    listed(node, &|it| it["capture"]["frames"].as_u64() > Some(100));
    let (status, text) = run("capture stop --json");
    assert_eq!(status, Some(0), "{text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    let frames = document["result"]["captures"][0]["frames"].as_u64().unwrap();
    let recorded = capture::segments(&capture::read(&file).unwrap());
    assert_eq!(recorded.len() as u64, frames, "{text}");
    // Data of a connection that was established before, in both directions.
    for from in [true, false] {
        let data = recorded.iter().filter(|it| (it.to.port() == 7174) == from);
        let bytes: u32 = data.map(|it| it.payload_bytes).sum();
        assert!(bytes > 10_000, "{bytes} bytes, to the server: {from}");
    }
    assert_eq!(run("capture stop").0, Some(1), "none is running");
    listed(node, &|it| it["capture"].is_null());

    client.signal(Signal::INT);
    client.wait(LIMIT);
    server.wait(LIMIT);
}
