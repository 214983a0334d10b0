//! Effect of every option of `flue run` for the library: on the Request that a kernel socket receives, on whether
//! pings succeed, and on the files written.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::iter;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Duration;

use clap::CommandFactory as _;
use flue_test_support::capture;
use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use rdma_over_tcp::mpa::startup::{Frame, FrameKind, Revision, RtrSet};

use crate::group::{Group, listens};
use crate::test_bed::{End, Transport, under_flue};
use crate::{NEEDS, machine};

const LIMIT: Duration = Duration::from_secs(60);

/// Options with the test of each; options of the launcher are tested in `launch`, `--map` in `tap`, `--port-map` in
/// `addresses`.
const TESTED: [&str; 12] = [
    "library",
    "device",
    "log",
    "crc",
    "markers",
    "revision",
    "rtr",
    "rfc7306",
    "rnr_timeout",
    "map",
    "port_map",
    "rendezvous_ports",
];

#[test]
fn every_option_has_a_test() {
    let cli = flue::cli::Cli::command();
    let run = cli.find_subcommand("run").expect("a command of flue");
    // Node options are shared by all commands; tests/options tests their effects. Kernel sockets have --pcap and
    // --control only, which are tested here and in `tap`.
    let nodes = cli.find_subcommand("serve").expect("a command of flue");
    let of_nodes: BTreeSet<_> = nodes.get_arguments().map(|it| it.get_id().as_str()).collect();
    let options = run.get_arguments().filter(|it| it.get_long().is_some());
    let ids: Vec<_> = options.map(|it| it.get_id().as_str()).collect();
    let own: BTreeSet<_> = ids.iter().copied().filter(|id| !of_nodes.contains(id)).collect();
    let expected: BTreeSet<_> =
        TESTED.iter().copied().filter(|id| !of_nodes.contains(id)).collect();
    assert_eq!(own, expected);
    assert!(ids.len() > 40 && ids.contains(&"drop_ppm"), "{ids:?}");
}

fn is_lacking() -> bool {
    lacks(NEEDS) || lacks(&[Need::Tool("rping")])
}

/// Requests of a client with these options, which receive no Reply.
fn requests(host: &Namespace, options: &str, connections: usize) -> Vec<Frame> {
    requests_to(host, options, Ipv4Addr::LOCALHOST, connections)
}

/// As [`requests`], from 127.0.0.1 to this address.
fn requests_to(
    host: &Namespace,
    options: &str,
    server: Ipv4Addr,
    connections: usize,
) -> Vec<Frame> {
    let listener = host.run(|| TcpListener::bind((server, 0))).expect("a free port");
    let port = listener.local_addr().expect("a bound socket").port();
    let line = format!("rping -c -a {server} -I 127.0.0.1 -p {port} -C 1");
    let mut client = Group::start(host, under_flue(options, &line));
    let frames = (0..connections).map(|_| {
        let mut socket = listener.accept().expect("a client").0;
        let mut octets = Vec::new();
        loop {
            if let Some((frame, _)) = Frame::parse(FrameKind::Request, &octets).expect("MPA") {
                return frame;
            }
            let mut octet = [0];
            socket.read_exact(&mut octet).expect("the client sends its Request");
            octets.extend(octet);
        }
    });
    let frames = frames.collect();
    let ended = client.wait(LIMIT).map(|status| status.success());
    assert_eq!(ended, Ok(false), "{options}: {}", client.report());
    frames
}

/// Runs two pings with these options at each end; returns the output of both.
fn ping(host: &Namespace, server: &str, client: &str) -> String {
    let mut serving = Group::start(host, under_flue(server, "rping -s -a 127.0.0.1 -C 2 -V"));
    let listens = serving.wait_for_listener(host, 7174, LIMIT);
    assert_eq!(listens, Ok(()), "{}", serving.report());
    let mut pinging = Group::start(host, under_flue(client, "rping -c -a 127.0.0.1 -C 2 -V -v"));
    let ended = [pinging.wait(LIMIT), serving.wait(LIMIT)].map(|it| it.map(|status| status.code()));
    pinging.kill();
    serving.kill();
    let said = serving.report() + &pinging.report();
    assert_eq!(ended, [Ok(Some(0)), Ok(Some(0))], "{server}, {client}: {said}");
    said
}

// The transport type, and GIDs that are addresses, show a program the kind of the device.
#[test]
fn device() {
    if is_lacking() || lacks(&[Need::Tool("ibv_devinfo")]) {
        return;
    }
    let host = machine();
    for (options, is_roce) in [("", true), ("--device iwarp", false), ("--device roce", true)] {
        let mut program = Group::start(&host, under_flue(options, "ibv_devinfo -v"));
        let status = program.wait(LIMIT).expect("the end of the program");
        let said = program.said();
        let shown = ["iWARP (1)", "InfiniBand (0)", "RoCE v2"].map(|text| said.contains(text));
        let expected = [!is_roce, is_roce, is_roce];
        assert!(status.success() && shown == expected, "{options}: {}", program.report());
    }
}

#[test]
fn mpa_crc() {
    if is_lacking() {
        return;
    }
    let host = machine();
    let (loopback, other) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 77, 0, 1));
    for (options, server, is_on) in [
        ("", loopback, false),
        ("", other, true),
        ("--mpa-crc auto", loopback, false),
        ("--mpa-crc on", loopback, true),
        ("--mpa-crc off", other, false),
    ] {
        assert_eq!(requests_to(&host, options, server, 1)[0].crc, is_on, "{options}");
    }
    for options in ["", "--mpa-crc on", "--mpa-crc off"] {
        ping(&host, options, "--mpa-crc off");
        ping(&host, "--mpa-crc off", options);
    }
}

#[test]
fn mpa_markers() {
    if is_lacking() {
        return;
    }
    let host = machine();
    for (options, is_on) in [("", false), ("--mpa-markers on", true), ("--mpa-markers off", false)]
    {
        assert_eq!(requests(&host, options, 1)[0].markers, is_on, "{options}");
        ping(&host, options, "--mpa-markers on");
    }
}

#[test]
fn mpa_revision() {
    use Revision::{One, Two};
    if is_lacking() {
        return;
    }
    let host = machine();
    for (options, revisions) in [
        ("", &[Two][..]),
        ("--mpa-revision 2", &[Two]),
        ("--mpa-revision 1", &[One]),
        // The first Request is not answered.
        ("--mpa-revision auto", &[Two, One]),
    ] {
        let frames = requests(&host, options, revisions.len());
        assert!(frames.iter().map(|frame| &frame.revision).eq(revisions), "{options}");
        ping(&host, "", options);
    }
}

#[test]
fn rtr() {
    if is_lacking() {
        return;
    }
    let host = machine();
    for (options, write, read) in
        [("", true, true), ("--rtr write", true, false), ("--rtr read", false, true)]
    {
        let enhanced = requests(&host, options, 1)[0].enhanced.expect("revision 2");
        let offered = RtrSet { send: false, write, read };
        assert_eq!((enhanced.peer_to_peer, enhanced.rtr), (true, offered), "{options}");
        ping(&host, "", options);
    }
}

// The device limits show a program that atomics are supported.
#[test]
fn rfc7306() {
    if is_lacking() || lacks(&[Need::Tool("ibv_devinfo")]) {
        return;
    }
    let host = machine();
    for (options, capability) in
        [("", "ATOMIC_NONE"), ("--rfc7306 off", "ATOMIC_NONE"), ("--rfc7306 on", "ATOMIC_HCA")]
    {
        let options = format!("--device iwarp {options}");
        let mut program = Group::start(&host, under_flue(&options, "ibv_devinfo -v"));
        program.wait(LIMIT).expect("the end of the program");
        assert!(program.said().contains(capability), "{options}: {}", program.report());
    }
}

#[test]
fn pcap() {
    if is_lacking() {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    // Each end has its own PID namespace, so both may have the same process id.
    let [server, client] = ["server", "client"]
        .map(|end| format!("--pcap {}", scratch.file(&format!("{end}-%p.pcapng")).display()));
    ping(&host, &server, &client);
    let entries = fs::read_dir(scratch.file("")).expect("a directory");
    let entries: Vec<_> = entries.map(|it| it.expect("an entry")).collect();
    let names = entries.iter().map(|it| it.file_name().into_string().expect("a name"));
    let ends: BTreeSet<_> = names
        .map(|name| {
            let parts = name.strip_suffix(".pcapng").and_then(|it| it.split_once('-'));
            let (end, number) = parts.unwrap_or_else(|| panic!("{name}"));
            assert!(number.parse::<u32>().is_ok(), "{name}");
            end.to_owned()
        })
        .collect();
    assert!(ends.iter().eq(["client", "server"]), "{ends:?}");
    for entry in entries {
        let name = entry.path();
        let frames = capture::read(&entry.path()).expect("a capture");
        assert!(frames.len() > 10, "{}: {} frames", name.display(), frames.len());
        let octets = fs::read(entry.path()).expect("a readable file");
        let key = b"MPA ID Req Frame";
        assert!(
            octets.windows(key.len()).any(|it| it == key),
            "{}: no MPA Request",
            name.display()
        );
    }
}

// Messages of the library are written to the file only.
#[test]
fn log() {
    if is_lacking() {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    let file = scratch.file("log");
    let options = format!("--log {}", file.display());
    let mut program = under_flue(&options, "ibv_devinfo");
    program.env("FLUE_VERBS_RTR", "seldom");
    let mut program = Group::start(&host, program);
    let status = program.wait(LIMIT).expect("the end of the program");
    assert!(status.success() && !program.said().contains("seldom"), "{}", program.report());
    let said = fs::read_to_string(&file).expect("the log");
    assert!(said.contains("FLUE_VERBS_RTR=seldom"), "{said}");
}

// Both programs exchange addresses over TCP; on nodes over the kernel's loopback.
#[test]
fn queue_pair_that_is_connected_by_address_is_explained_in_the_log() {
    const PROGRAMS: [&str; 3] =
        ["ib_write_bw -p 7500", "ibv_rc_pingpong -p 7501 -g 0", "ibv_srq_pingpong -p 7502 -g 0"];
    let tools = ["ib_write_bw", "ibv_rc_pingpong", "ibv_srq_pingpong"].map(Need::Tool);
    if lacks(NEEDS) || lacks(&tools) {
        return;
    }
    let nodes = (!lacks(&[Need::Tun])).then(Transport::nodes);
    for transport in iter::once(Transport::sockets()).chain(nodes) {
        for (number, line) in PROGRAMS.iter().enumerate() {
            let scratch = Scratch::new();
            let file = scratch.file("log");
            let options = format!("--device iwarp --log {}", file.display());
            let mut server = transport.start(End::Server, &options, line);
            let listens = || transport.host().run(|| listens(7500 + number as u16));
            assert_eq!(server.wait_until("listens", LIMIT, listens), Ok(()), "{}", server.report());
            let line = format!("{line} 127.0.0.1");
            let mut client = transport.start(End::Client, "--device iwarp", &line);
            let status = server.wait(LIMIT).unwrap_or_else(|error| {
                panic!("{error}: {}\n{}", server.report(), client.report());
            });
            assert!(!status.success(), "{}", server.report());
            // Some clients wait for more data from the server.
            client.kill();
            let log = fs::read_to_string(&file).expect("the log");
            let lines: Vec<_> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
            let [line] = lines[..] else { panic!("expected one line: {log}\n{}", server.report()) };
            let has = |text: &str| line.contains(text);
            assert!(has("ibv_modify_qp to RTR: ") && has("librdmacm") && has("-R"), "{line}");
            assert!(has("--device roce"), "{line}");
        }
    }
}

// Log or capture on a full disk: the program is unaffected, and the log reports the end of the capture once.
#[test]
fn full_disk_does_not_affect_program() {
    if is_lacking() {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    let file = scratch.file("log");
    let lines = [
        String::new(),
        "--log /dev/full".into(),
        format!("--log {} --pcap /dev/full", file.display()),
    ]
    .map(|options| {
        let mut program = under_flue(&options, "ibv_devinfo");
        program.env("FLUE_VERBS_RTR", "seldom");
        let mut program = Group::start(&host, program);
        let status = program.wait(LIMIT).expect("the end of the program");
        assert!(status.success(), "{options}: {}", program.report());
        let said = program.said();
        assert!(said.contains("hca_id"), "{options}: {said}");
        said.lines().count()
    });
    assert!(lines.iter().all(|count| *count == lines[0]), "output and error: {lines:?} lines");
    let log = fs::read_to_string(&file).expect("the log");
    assert_eq!(log.matches("output stopped: write error").count(), 1, "{log}");
}

// A message without a posted receive ends the connection, or waits for a receive.
#[test]
fn receive_wait() {
    if is_lacking() || lacks(&[Need::Tool("cc")]) {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    let program = scratch.file("errors");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/verbs/c/tests/errors.c");
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .args([source, "-libverbs", "-lrdmacm", "-lpthread"])
        .status()
        .expect("cc runs");
    assert!(compiled.success(), "the program requires libibverbs-dev and librdmacm-dev");
    let line = format!("{} late-receive", program.display());
    for (options, outcome) in [
        ("", "delivered"),
        ("--rnr-timeout 0", "refused"),
        ("--rnr-timeout 0.01", "refused"),
        ("--rnr-timeout 60", "delivered"),
    ] {
        let mut ran = Group::start(&host, under_flue(options, &line));
        let status = ran.wait(LIMIT).expect("the end of the program");
        assert!(status.success() && ran.said().contains(outcome), "{options}: {}", ran.report());
    }
}
