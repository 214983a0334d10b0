//! Options of the TAP, addresses, output files and the control socket.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::Instant;

use flue_test_support::bench::{Bench, PORT, START};
use flue_test_support::capture::{self, Flags};
use flue_test_support::netns::Namespace;
use flue_test_support::ping::Pinger;
use flue_test_support::process::{Output, Process};
use flue_test_support::switch::Switch;
use offload_engine::link::{TapOptions, VnetMode, open_tap};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use serde_json::Value;

use crate::table::{ALL, rows};
use crate::tcp::carry;

rows! { ALL;
    "--tap", "--tap elsewhere" => tap;
    "--tap-fd", "--tap-fd 3" => tap_fd;
    "--addr", "--addr 10.0.0.9/16" => addr;
    "--gateway", "--addr 10.0.0.9/16 --gateway 10.0.0.1" => gateway;
    "--dad", "--dad off" => dad;
    "--mac", "--mac 02:00:00:00:07:77" => mac;
    "--mtu", "--mtu 1400" => mtu;
    "--bridge", "--bridge br0" => bridge;
    "--host-addr", "--host-addr 10.77.0.9/24" => host_addr;
    "--vnet", "--vnet off" => vnet;
    "--tx-page-recycling", "--tx-page-recycling on" => tx_page_recycling;
    "--napi", "--napi threaded" => napi;
    "--txqueuelen", "--txqueuelen 123" => txqueuelen;
    "--queues", "--queues 2" => queues;
    "--pcap", "--pcap capture.pcapng" => pcap;
    "--control", "--control none" => control;
    "--seed", "--seed 2" => seed;
    "--progress", "--progress manual" => progress;
}

/// Link of that name, as reported by `ip`.
fn link(namespace: &Namespace, name: &str) -> Value {
    let text = namespace.ip(&format!("-details -json address show dev {name}"));
    let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
    links[0].clone()
}

/// TAP of a node with these options, while the node runs.
fn tap_of_a_node(bench: &Bench, options: &str) -> Value {
    let _flue = bench.listen(options, Output::Bytes);
    link(bench.switch.namespace(), "tap2")
}

fn tap(bench: &Bench) {
    for (options, name) in [("", "flue0"), ("--tap elsewhere", "elsewhere")] {
        let host = Namespace::new();
        let mut flue =
            Process::start(&host, bench.command(&format!("nc -l 5000 {options}")), Output::Bytes);
        flue.expect_line("listening", START);
        assert_eq!(host.links(), [name]);
        flue.signal(rustix::process::Signal::TERM);
        flue.wait(START);
        assert!(host.links().is_empty(), "a TAP created by the node is removed");
    }
    let host = Namespace::new();
    host.ip("tuntap add mode tap name before");
    let mut flue = Process::start(&host, bench.command("nc -l 5000 --tap before"), Output::Bytes);
    flue.expect_line("listening", START);
    flue.signal(rustix::process::Signal::TERM);
    flue.wait(START);
    assert_eq!(host.links(), ["before"], "an existing TAP is kept");
}

// With or without a vnet header, an inherited TAP carries the node's frames, and no other TAP is created.
fn tap_fd(bench: &Bench) {
    let host = bench.switch.namespace();
    let plug = format!("--addr 10.0.0.2/24 --bridge {}", Switch::BRIDGE);
    for (name, vnet) in [("handed0", VnetMode::On), ("handed1", VnetMode::Off)] {
        let made = host.run(|| open_tap(&TapOptions::new(name, 1500, vnet)).expect("a TAP"));
        // The copy stays open over exec, also in a process that another test starts at the same time.
        let handed = rustix::io::dup(made.link.descriptor().unwrap()).unwrap();
        let line = format!("nc -l {PORT} {plug} --tap-fd {}", handed.as_raw_fd());
        let mut flue = bench.start(&line, Output::Bytes);
        flue.expect_line("listening", START);
        drop((made, handed));
        assert!(!host.links().iter().any(|name| name == "flue0"), "{:?}", host.links());
        let mut output = flue.take_output();
        let mut socket = bench.connect();
        carry(&mut socket, &mut output, 100_000);
        drop((socket, flue.take_input()));
        flue.expect_exit(0, START);
    }
    for (descriptor, why) in [(1, "is not an attached TAP"), (9999, "Bad file descriptor")] {
        let said = bench.run_once(&format!("nc -l {PORT} --tap-fd {descriptor}"));
        assert_eq!(said.status, Some(2), "{}", said.err);
        assert!(said.err.contains("--tap-fd") && said.err.contains(why), "{}", said.err);
    }
}

fn addr(bench: &Bench) {
    let plug = format!("--tap tap2 --bridge {}", Switch::BRIDGE);
    let line = format!("nc -l {PORT} {plug} --addr 10.0.0.5/24 --addr 10.0.0.6/24");
    let mut flue = bench.start(&line, Output::Bytes);
    flue.expect_line("listening", START);
    for host in [5, 6] {
        Pinger::new(&bench.kernel, Ipv4Addr::new(10, 0, 0, host)).once();
    }
    drop(bench.connect_to(6));
    flue.expect_exit(0, START);

    // An address outside of the prefix is not on-link.
    bench.kernel.ip("address add 10.0.9.1/32 dev lo");
    let listener = listen_in(&bench.kernel);
    for (prefix, status) in [(24, 1), (16, 0)] {
        let addr = format!("--addr 10.0.0.2/{prefix}");
        connects(bench, &listener, &format!("{plug} {addr} 10.0.9.1"), status);
    }
}

fn listen_in(host: &Namespace) -> TcpListener {
    host.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))).expect("a port")
}

/// Runs `flue nc` with these words and the listener's port; checks the exit status, which shows whether it connected.
fn connects(bench: &Bench, listener: &TcpListener, words: &str, status: i32) {
    let port = listener.local_addr().unwrap().port();
    let mut flue = bench.start(&format!("nc {words} {port}"), Output::Bytes);
    if status == 0 {
        drop(listener.accept().unwrap());
    }
    drop(flue.take_input());
    flue.expect_exit(status, START);
}

fn gateway(bench: &Bench) {
    bench.kernel.ip("address add 10.9.9.9/32 dev lo");
    let listener = listen_in(&bench.kernel);
    let plug = Bench::attached(2);
    connects(bench, &listener, &format!("{plug} 10.9.9.9"), 1);
    connects(bench, &listener, &format!("{plug} --gateway 10.0.0.1 10.9.9.9"), 0);
}

// RFC 5227 §2.1.1, RFC 4862 §5.4: conflicts with a kernel and with another node, in either family.
fn dad(bench: &Bench) {
    bench.kernel.ip("address add fd00::1/64 dev eth0 nodad");
    let _other = bench.listen_at(3, "--addr fd00::3/64 --mac 02:00:00:00:00:33", Output::Bytes);
    let kernel = link(&bench.kernel, "eth0")["address"].as_str().expect("a MAC").to_owned();
    let node = |addresses: &str, words: &str| {
        format!("nc -l {PORT} --tap tap4 --bridge {} {addresses} {words}", Switch::BRIDGE)
    };
    for (addresses, used, station) in [
        ("--addr 10.0.0.1/24", "10.0.0.1", kernel.as_str()),
        ("--addr 10.0.0.4/24 --addr fd00::1/64", "fd00::1", &kernel),
        ("--addr 10.0.0.3/24", "10.0.0.3", "02:00:00:00:00:33"),
        ("--addr fd00::3/64", "fd00::3", "02:00:00:00:00:33"),
    ] {
        let refused = bench.switch.namespace().run(|| bench.command(&node(addresses, "")).output());
        let refused = refused.expect("flue starts");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let expected = format!("address {used}: in use by station {station}");
        assert_eq!(refused.status.code(), Some(3), "{said}");
        assert!(said.contains(&expected), "{expected}: {said}");
    }
    for (addresses, words) in
        [("--addr 10.0.0.1/24", "--dad off"), ("--addr 10.0.0.4/24 --addr fd00::4/64", "--dad on")]
    {
        let mut flue = bench.start(&node(addresses, words), Output::Bytes);
        flue.expect_line("listening", START);
    }
}

/// Ethernet address in the kernel's neighbor entry for the node.
fn neighbor(bench: &Bench) -> String {
    Pinger::new(&bench.kernel, Ipv4Addr::new(10, 0, 0, 2)).once();
    let table: Value =
        serde_json::from_str(&bench.kernel.ip("-json neighbor show 10.0.0.2")).unwrap();
    bench.kernel.ip("neighbor flush dev eth0");
    table[0]["lladdr"].as_str().expect("the node's neighbor entry").to_owned()
}

fn neighbor_of(bench: &Bench, options: &str) -> String {
    let _flue = bench.listen_at(2, options, Output::Bytes);
    neighbor(bench)
}

fn mac(bench: &Bench) {
    let derived = neighbor_of(bench, "");
    assert_ne!(derived, "02:00:00:00:07:77");
    assert_eq!(neighbor_of(bench, ""), derived, "derived from the same values");
    assert_eq!(neighbor_of(bench, "--mac 02:00:00:00:07:77"), "02:00:00:00:07:77");
}

fn mtu(bench: &Bench) {
    for (options, mtu) in [("", 1500), ("--mtu 1400", 1400)] {
        let _flue = bench.listen(options, Output::Bytes);
        assert_eq!(link(bench.switch.namespace(), "tap2")["mtu"], mtu);
        let mut socket = bench.connect();
        // The target counts the data that it received itself.
        bench.expect("", |one| one["offload_state"] == "Offloaded");
        socket.write_all(&[7; 5000]).unwrap();
        let one = bench.expect("", |one| one["info"]["bytes_received"] == 5000);
        // IPv4 and TCP headers take 40 bytes.
        assert_eq!(one["info"]["advmss_bytes"], mtu - 40, "{one}");
        assert_eq!(one["info"]["pmtu_bytes"], mtu, "{one}");
    }
}

fn bridge(bench: &Bench) {
    let of = |options: &str| {
        let mut flue = bench.start(&format!("nc -l {PORT} --tap tap2 {options}"), Output::Bytes);
        flue.expect_line("listening", START);
        link(bench.switch.namespace(), "tap2")["master"].clone()
    };
    assert_eq!(of(""), Value::Null);
    assert_eq!(of("--bridge br0"), "br0");
}

fn host_addr(bench: &Bench) {
    let host = Namespace::new();
    let start = |options: &str| {
        let line = format!("nc -l {PORT} --tap tap2 --addr 10.0.0.2/24 {options}");
        let mut flue = Process::start(&host, bench.command(&line), Output::Bytes);
        flue.expect_line("listening", START);
        flue
    };
    let without = start("");
    assert_eq!(link(&host, "tap2")["addr_info"], Value::Array(Vec::new()));
    drop(without);
    let mut flue = start("--host-addr 10.0.0.1/24");
    let address = &link(&host, "tap2")["addr_info"][0];
    assert_eq!((&address["local"], &address["prefixlen"]), (&"10.0.0.1".into(), &24.into()));
    drop(
        host.run(|| TcpStream::connect_timeout(&Bench::address(2), START))
            .expect("an accepted connection"),
    );
    drop(flue.take_input());
    flue.expect_exit(0, START);
}

/// Length of the longest data frame from the node in this capture.
fn longest_frame(capture: &Path) -> usize {
    let frames = capture::read(capture).expect("a valid capture");
    let from_node = capture::segments(&frames).into_iter().filter(|one| one.from.port() == PORT);
    from_node.map(|one| frames[one.frame - 1].data.len()).max().expect("a data frame from the node")
}

/// Runs a node with these options that sends that many bytes.
fn send(bench: &Bench, options: &str, bytes: usize) {
    let mut flue = bench.listen(options, Output::Bytes);
    let mut socket = bench.connect();
    // The target sends the data.
    bench.expect("", |one| one["offload_state"] == "Offloaded");
    let mut input = flue.take_input();
    let writer = thread::spawn(move || input.write_all(&vec![7; bytes]));
    let mut received = Vec::new();
    socket.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), bytes);
    writer.join().unwrap().unwrap();
    drop(socket);
    flue.expect_exit(0, START);
}

fn vnet(bench: &Bench) {
    const FRAME: usize = 1514;
    let capture = bench.runtime.file("vnet.pcapng");
    for (value, header, large) in [
        ("off", false, false),
        ("checksum", true, false),
        ("on", true, true),
        // The kernel supports it together with the other features.
        ("auto", true, true),
    ] {
        let tap = tap_of_a_node(bench, &format!("--vnet {value}"));
        assert_eq!(tap["linkinfo"]["info_data"]["vnet_hdr"], header, "{value}: {tap}");
        send(bench, &format!("--vnet {value} --pcap {}", capture.display()), 1 << 20);
        let longest = longest_frame(&capture);
        assert_eq!(longest > FRAME, large, "{value}: {longest}");
    }
}

fn tx_page_recycling(bench: &Bench) {
    let sockets = || {
        let text =
            bench.switch.namespace().run(|| fs::read_to_string("/proc/thread-self/net/packet"));
        text.expect("the kernel lists packet sockets").lines().count() - 1
    };
    for (value, count) in [("off", 0), ("on", 1)] {
        let _flue = bench.listen(&format!("--tx-page-recycling {value}"), Output::Bytes);
        assert_eq!(sockets(), count, "{value}");
    }
}

/// Content of a file in a link's sysfs directory, in a namespace.
fn sysfs(namespace: &Namespace, link: &str, file: &str) -> String {
    // sysfs shows the namespace in which it was mounted.
    namespace.run(|| {
        let context = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        rustix::mount::fsconfig_create(&context).unwrap();
        let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let root = rustix::mount::fsmount(&context, flags, attributes).unwrap();
        let path = format!("class/net/{link}/{file}");
        let opened = rustix::fs::openat(root, path, OFlags::RDONLY, Mode::empty()).unwrap();
        let mut text = String::new();
        fs::File::from(opened).read_to_string(&mut text).unwrap();
        text.trim().to_owned()
    })
}

fn napi(bench: &Bench) {
    for (value, threaded) in [("off", "0"), ("threaded", "1")] {
        let flue = bench.listen(&format!("--napi {value}"), Output::Bytes);
        assert_eq!(sysfs(bench.switch.namespace(), "tap2", "threaded"), threaded, "{value}");
        // The node's frames reach the kernel.
        drop(bench.connect());
        drop(flue);
    }
}

fn txqueuelen(bench: &Bench) {
    for (options, frames) in [("", 10_000), ("--txqueuelen 123", 123)] {
        assert_eq!(tap_of_a_node(bench, options)["txqlen"], frames);
    }
}

/// Number of threads of the process whose name starts with `name`.
fn threads(process: &Process, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.id())).expect("a running process");
    let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")));
    // A thread that has just exited has no name.
    names.filter_map(Result::ok).filter(|found| found.starts_with(name)).count()
}

const ENGINE: &str = "flue-engine";

fn queues(bench: &Bench) {
    for (count, several) in [(1, false), (2, true)] {
        let capture = bench.runtime.file(&format!("queues{count}.pcapng"));
        let options = format!("--queues {count} --pcap {}", capture.display());
        let flue = bench.listen(&options, Output::Bytes);
        // A thread sets its name when it starts.
        let deadline = Instant::now() + START;
        while threads(&flue, ENGINE) < count {
            assert!(
                Instant::now() < deadline,
                "{count} queues, {} engines",
                threads(&flue, ENGINE)
            );
        }
        assert_eq!(threads(&flue, ENGINE), count);
        let tap = link(bench.switch.namespace(), "tap2");
        assert_eq!(tap["linkinfo"]["info_data"]["multi_queue"], several, "{tap}");
        let second = capture.with_extension("1.pcapng");
        assert!(capture.exists() && second.exists() == several);
        drop(bench.connect());
    }
}

fn progress(bench: &Bench) {
    for (value, count) in [("auto", 1), ("manual", 0)] {
        let mut flue = bench.listen(&format!("--progress {value}"), Output::Bytes);
        let socket = bench.connect();
        assert_eq!(threads(&flue, ENGINE), count, "{value}");
        drop(socket);
        drop(flue.take_input());
        flue.expect_exit(0, START);
    }
}

fn pcap(bench: &Bench) {
    let capture = bench.runtime.file("node.pcapng");
    send(bench, "", 1000);
    assert!(!capture.exists());
    send(bench, &format!("--pcap {}", capture.display()), 1000);
    let frames = capture::read(&capture).expect("a valid capture");
    let segments = capture::segments(&frames);
    let has = |from_node: bool, flags| {
        segments.iter().any(|one| (one.from.port() == PORT) == from_node && one.flags.has(flags))
    };
    assert!(has(false, Flags::SYN) && has(true, Flags::SYN | Flags::ACK), "{segments:?}");
    let sent: u32 =
        segments.iter().filter(|one| one.from.port() == PORT).map(|one| one.payload_bytes).sum();
    assert!(sent >= 1000, "{segments:?}");
    let comments: Vec<_> = frames.iter().flat_map(|frame| &frame.comments).collect();
    assert!(comments.iter().any(|comment| comment.contains("NBL")), "{comments:?}");
}

fn control(bench: &Bench) {
    let flue = bench.listen("", Output::Bytes);
    let sockets = bench.sockets();
    assert_eq!(sockets, [bench.runtime.file(&format!("flue/tap2-{}.sock", flue.id()))]);
    drop(flue);
    fs::remove_file(&sockets[0]).expect("the socket of a killed node");

    let path = bench.runtime.file("elsewhere.sock");
    let flue = bench.listen(&format!("--control {}", path.display()), Output::Bytes);
    assert!(bench.sockets().is_empty() && path.exists());
    assert_eq!(bench.run_once(&format!("ss --node {}", path.display())).status, Some(0));
    drop(flue);

    let flue = bench.listen("--control none", Output::Bytes);
    assert!(bench.sockets().is_empty());
    assert_eq!(threads(&flue, "flue-control"), 0);
}

/// Initial sequence number of a connection from a node with this seed, read from its capture.
fn initial_number(bench: &Bench, listener: &TcpListener, seed: u32) -> u32 {
    let capture = bench.runtime.file("seed.pcapng");
    let plug = format!("{} --mac 02:00:00:00:07:77", Bench::attached(2));
    let words = format!("{plug} --seed {seed} --pcap {} 10.0.0.1", capture.display());
    connects(bench, listener, &words, 0);
    let segments = capture::segments(&capture::read(&capture).expect("a valid capture"));
    let opening =
        segments.iter().find(|one| one.flags.has(Flags::SYN)).expect("a SYN in the capture");
    assert_eq!(opening.from.ip(), IpAddr::from([10, 0, 0, 2]));
    opening.seq
}

fn seed(bench: &Bench) {
    let macs: Vec<_> =
        ["1", "1", "2"].map(|seed| neighbor_of(bench, &format!("--seed {seed}"))).into();
    assert!(macs[0] == macs[1] && macs[1] != macs[2], "{macs:?}");
    let listener = listen_in(&bench.kernel);
    let numbers = [1, 1, 2].map(|seed| initial_number(bench, &listener, seed));
    assert!(numbers[0] == numbers[1] && numbers[1] != numbers[2], "{numbers:?}");
}
