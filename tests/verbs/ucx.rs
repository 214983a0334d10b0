//! UCX on the RoCE device, by transports `rc_verbs` and `ud_verbs`: `ucx_info`, and `ucx_perftest` of the protocol
//! layer and of the transport layer. Captures of both ends contain the transferred bytes, so that another transport
//! cannot pass. On kernel sockets they contain no datagrams, by which UCX exchanges addresses.

use std::fs;
use std::time::Instant;

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};

use crate::NEEDS;
use crate::programs::check;
use crate::releases;
use crate::results::{self, Programs};
use crate::test_bed::{Device, End, LIMIT, Transport};

/// TCP port of `ucx_perftest`.
const PORT: u16 = 13337;

/// Transports: UCX exchanges addresses by datagrams.
pub(crate) const TRANSPORTS: &str = "rc_v,ud_v,self";
/// Other selections, for one operation each: `rc_v` includes datagrams for addresses, and the last one has no
/// connections.
const OTHER_TRANSPORTS: [&str; 2] = ["rc_v,tcp,self", "ud_v,self"];

/// Release whose package of UCX (1.13) does not contain MPI.
const WITHOUT_MPI: &str = "bookworm";

/// Place of [`OTHER_TRANSPORTS`] in the table, after `io_demo` and the default transports.
const OTHERS: usize = 17;

/// Server and client of `io_demo`, which validate the data. Newer packages do not contain it.
const IO_DEMO: &str =
    "env UCX_TLS=rc_verbs,tcp,self UCX_SOCKADDR_TLS_PRIORITY=tcp io_demo -p 13338 -q -d 4096:65536";
const IO_DEMO_CLIENT: &str = "-o read,write -i 200 10.77.0.1";
/// Payload octets of its client, at least.
const IO_DEMO_OCTETS: u64 = 200 * 4096;

/// Options of `ucx_perftest` for both ends, and the number of payload octets.
type Operation = (&'static str, u64);

/// Operations of the transport layer in every run of the tests.
const IN_CI: &[Operation] = &[
    ("-d flue0:1 -x rc_verbs -t am_lat -s 8 -n 500 -w 10", 4000),
    ("-d flue0:1 -x rc_verbs -t put_bw -D zcopy -s 65536 -n 500 -w 10", 500 << 16),
];

/// Operations of the protocol layer in every run of the tests.
const PROTOCOLS_IN_CI: &[Operation] = &[("-t tag_bw -s 65536 -n 500 -w 10", 500 << 16)];

/// Operations of the transport layer of `tests/verbs/run`.
const TRANSPORT: &[Operation] = &[
    ("-d flue0:1 -x rc_verbs -t put_lat -s 8 -n 1000 -w 10", 8000),
    ("-d flue0:1 -x rc_verbs -t am_bw -D zcopy -s 4096 -n 500 -w 10", 500 << 12),
    ("-d flue0:1 -x rc_verbs -t get -D zcopy -s 65536 -n 500 -w 10", 500 << 16),
    ("-d flue0:1 -x rc_verbs -t fadd -s 8 -n 500 -w 10", 4000),
    ("-d flue0:1 -x rc_verbs -t cswap -s 8 -n 500 -w 10", 4000),
];

/// Operations of the protocol layer of `tests/verbs/run`.
const PROTOCOLS: &[Operation] = &[
    ("-t tag_lat -s 8 -n 1000 -w 10", 8000),
    ("-t ucp_put_lat -s 8 -n 1000 -w 10", 8000),
    ("-t ucp_put_bw -s 65536 -n 500 -w 10", 500 << 16),
    ("-t ucp_get -s 65536 -n 500 -w 10", 500 << 16),
    ("-t ucp_fadd -s 8 -n 500 -w 10", 4000),
    ("-t ucp_cswap -s 8 -n 500 -w 10", 4000),
    ("-t stream_bw -s 4096 -n 500 -w 10", 500 << 12),
];

/// True if a prerequisite is missing, which is reported.
fn lacks_ucx() -> bool {
    lacks(NEEDS) || lacks(&[Need::Tool("ucx_perftest")])
}

/// Option of `ucx_perftest`. With MPI it otherwise starts in MPI.
fn mode() -> &'static str {
    if releases::codename() == WITHOUT_MPI { "" } else { "-P 0 " }
}

fn transfer(transport: &Transport, transports: &str, order: usize, (operation, octets): Operation) {
    let (scratch, begun) = (Scratch::new(), Instant::now());
    let line = format!("env UCX_TLS={transports} ucx_perftest {}{operation}", mode());
    let capture = |end: End| scratch.file(&format!("{end:?}"));
    let start = |end, line: &str| {
        let options = format!("{} --pcap {}", Device::Roce.options(), capture(end).display());
        transport.start(end, &options, line)
    };
    let mut server = start(End::Server, &line);
    let listens = server.wait_for_listener(transport.host(), PORT, LIMIT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let client_line = format!("{line} 127.0.0.1");
    let mut client = start(End::Client, &client_line);
    let ended = check(&mut client, &["Final:"]).and_then(|()| check(&mut server, &[]));
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    let is_captured = transports.contains("rc") || matches!(transport, Transport::Nodes(_));
    for end in [End::Server, End::Client].into_iter().filter(|_| is_captured) {
        let captured = fs::metadata(capture(end)).map_or(0, |file| file.len());
        assert!(
            captured > octets,
            "{operation}: {captured} of {octets} octets captured at {end:?}"
        );
    }
    let said = client.said();
    let last = said.lines().find(|line| line.starts_with("Final:")).unwrap_or_default();
    let cells: Vec<_> = last.split_whitespace().collect();
    let seen =
        format!("{} us, {} MB/s", cells.get(3).unwrap_or(&"-"), cells.get(5).unwrap_or(&"-"));
    let programs = Programs {
        order: results::UCX + 1 + order,
        name: "ucx_perftest",
        package: "ucx-utils",
        options: "",
        server: Some(&line),
        client: &client_line,
    };
    results::note_on(Device::Roce, &programs, transport, &seen, begun.elapsed());
}

#[test]
fn ucx_info_lists_transport() {
    if lacks_ucx() {
        return;
    }
    let (transport, begun) = (Transport::sockets(), Instant::now());
    let mut ran = transport.start(End::Server, Device::Roce.options(), "ucx_info -d");
    let ended = check(&mut ran, &["rc_verbs", "flue0:1"]);
    ran.kill();
    assert_eq!(ended, Ok(()), "{}", ran.report());
    let programs = Programs {
        order: results::UCX,
        name: "ucx_info",
        package: "ucx-utils",
        options: "",
        server: None,
        client: "ucx_info -d",
    };
    let seen = "Transport: rc_verbs, Device: flue0:1";
    results::note_on(Device::Roce, &programs, &transport, seen, begun.elapsed());
}

// Requests by Send, data by Read and Write of the peers.
#[test]
fn protocols_between_endpoints_connected_by_socket_address() {
    if lacks_ucx() || lacks(&[Need::Tool("io_demo")]) {
        return;
    }
    let (transport, scratch, begun) = (Transport::sockets(), Scratch::new(), Instant::now());
    let capture = scratch.file("capture");
    let mut server = transport.start(End::Server, Device::Roce.options(), IO_DEMO);
    let listens = server.wait_for_listener(transport.host(), 13338, LIMIT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let options = format!("{} --pcap {}", Device::Roce.options(), capture.display());
    let line = format!("{IO_DEMO} {IO_DEMO_CLIENT}");
    let mut client = transport.start(End::Client, &options, &line);
    let ended = check(&mut client, &["Client exit with status 'OK'"]);
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    let captured = fs::metadata(capture).map_or(0, |file| file.len());
    assert!(captured > IO_DEMO_OCTETS, "{captured} octets captured");
    let programs = Programs {
        order: results::UCX + 16,
        name: "io_demo",
        package: "ucx-utils",
        options: "",
        server: Some(IO_DEMO),
        client: &line,
    };
    let seen = "200 reads and writes of 4 to 64 KiB, data validated";
    results::note_on(Device::Roce, &programs, &transport, seen, begun.elapsed());
}

// Without UCX_TLS, UCX skips an iWARP device and uses TCP. On a RoCE device it uses both of its transports.
#[test]
fn default_transports() {
    if lacks_ucx() {
        return;
    }
    if !results::are_enabled() {
        println!("skipped: long test, run by tests/verbs/run");
        return;
    }
    let line = format!("ucx_perftest {}-t tag_lat -s 8 -n 100 -w 10", mode());
    let client_line = format!("{line} 127.0.0.1");
    let has_tun = !lacks(&[Need::Tun]);
    let transports = [Transport::sockets as fn() -> Transport, Transport::nodes];
    let devices = [
        (Device::Iwarp, "by TCP, without the device"),
        (Device::Roce, "by the transports of its choice"),
    ];
    let all =
        devices.into_iter().flat_map(|device| transports.map(|transport| (device, transport)));
    for ((device, seen), transport) in all {
        let (transport, begun) = (transport(), Instant::now());
        if matches!(transport, Transport::Nodes(_)) && !has_tun {
            continue;
        }
        let mut server = transport.start(End::Server, device.options(), &line);
        let listens = server.wait_for_listener(transport.host(), PORT, LIMIT);
        assert_eq!(listens, Ok(()), "{}", server.report());
        let mut client = transport.start(End::Client, device.options(), &client_line);
        let ended =
            [&mut client, &mut server].map(|end| end.wait(LIMIT).map(|status| status.code()));
        client.kill();
        server.kill();
        let report = || format!("{}\n{}", server.report(), client.report());
        assert_eq!(ended, [Ok(Some(0)), Ok(Some(0))], "{}", report());
        assert!(client.report().contains("Final:"), "{}", report());
        let programs = Programs {
            order: results::UCX + 17,
            name: "ucx_perftest_default",
            package: "ucx-utils",
            options: "",
            server: Some(&line),
            client: &client_line,
        };
        results::note_on(device, &programs, &transport, seen, begun.elapsed());
    }
}

fn transfer_all(transport: fn() -> Transport) {
    let is_long = results::are_enabled();
    let sets = [(IN_CI, true), (TRANSPORT, is_long), (PROTOCOLS_IN_CI, true), (PROTOCOLS, is_long)];
    let all =
        sets.iter().flat_map(|(operations, runs)| operations.iter().map(move |it| (*it, *runs)));
    for (order, (operation, _)) in all.enumerate().filter(|(_, (_, runs))| *runs) {
        transfer(&transport(), TRANSPORTS, order, operation);
    }
    for (order, transports) in OTHER_TRANSPORTS.into_iter().enumerate().filter(|_| is_long) {
        transfer(&transport(), transports, OTHERS + order, PROTOCOLS_IN_CI[0]);
    }
}

#[test]
fn ucx_perftest_on_sockets() {
    if !lacks_ucx() {
        transfer_all(Transport::sockets);
    }
}

#[test]
fn ucx_perftest_on_nodes() {
    if !lacks_ucx() && !lacks(&[Need::Tun]) {
        transfer_all(Transport::nodes);
    }
}
