//! Files through rsockets, and TCP socket programs through librspreload, on kernel sockets and on nodes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};

use crate::NEEDS;
use crate::programs::check;
use crate::results::{self, Programs};
use crate::test_bed::{End, Transport, under_flue};

/// Bytes of a copied file: more than all buffers of the path.
const FILE_BYTES: usize = 5_000_000;

fn is_lacking(tools: &[&'static str]) -> bool {
    lacks(NEEDS) || tools.iter().any(|tool| lacks(&[Need::Tool(tool)]))
}

/// Creates a file in which every part is different.
fn make_file(scratch: &Scratch) -> Vec<u8> {
    let mut state = 1_u32;
    let octets: Vec<_> = (0..FILE_BYTES)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    fs::write(scratch.file("from"), &octets).expect("a writable file");
    octets
}

// rcopy reports when it has closed the copy.
fn copy_file(transport: &Transport) {
    let (scratch, begun) = (Scratch::new(), Instant::now());
    let octets = make_file(&scratch);
    let mut server = transport.start(End::Server, "", "rcopy");
    let listens = transport.wait_for_listener(&server, 7427);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let mut client = under_flue(&transport.options(End::Client), "rcopy");
    client.arg(scratch.file("from"));
    client.arg(format!("127.0.0.1:{}", scratch.file("to").display()));
    let mut client = transport.start_command(End::Client, client);
    let said = format!("{FILE_BYTES} bytes");
    let ended = check(&mut client, &[&said]);
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    assert!(fs::read(scratch.file("to")).is_ok_and(|copy| copy == octets), "the copy differs");
    let programs = Programs {
        order: results::STREAMS,
        name: "rcopy",
        package: "rdmacm-utils",
        options: "",
        server: Some("rcopy"),
        client: "rcopy FROM 127.0.0.1:TO",
    };
    results::note(&programs, transport, &format!("{said}, compared"), begun.elapsed());
}

#[test]
fn rcopy() {
    if !is_lacking(&["rcopy"]) {
        copy_file(&Transport::sockets());
    }
}

#[test]
fn rcopy_on_nodes() {
    if !is_lacking(&["rcopy"]) && !lacks(&[Need::Tun]) {
        copy_file(&Transport::nodes());
    }
}

/// rdma-core's library that replaces a program's sockets with rsockets; its package depends on librdmacm's.
fn preload() -> PathBuf {
    let libraries = fs::read_dir("/usr/lib").expect("a directory").flatten();
    let mut places = libraries.map(|it| it.path().join("rsocket/librspreload.so"));
    places.find(|transport| transport.is_file()).expect("librdmacm1 has librspreload.so")
}

/// Pair of TCP socket programs.
struct Pair<'a> {
    order: usize,
    name: &'a str,
    package: &'a str,
    port: u16,
    /// Program and shell redirection of each end.
    server: (&'a str, String),
    client: (&'a str, String),
}

/// Shell command line with librspreload, captured.
fn preloaded(
    transport: &Transport,
    end: End,
    scratch: &Scratch,
    (line, files): &(&str, String),
) -> Command {
    let capture = scratch.file(&format!("{end:?}-%p.pcapng"));
    let options = format!("{} --pcap {}", transport.options(end), capture.display());
    let mut command = under_flue(&options, "env");
    command.arg(format!("LD_PRELOAD={}", preload().display())).args(["sh", "-c"]);
    command.arg(format!("exec {line} {files}"));
    command
}

/// Runs both ends with librspreload, which silently falls back to kernel sockets: the captures must contain as many
/// bytes as were sent.
fn run_preloaded(transport: &Transport, scratch: &Scratch, pair: &Pair<'_>) {
    let begun = Instant::now();
    let start = |end, line| transport.start_command(end, preloaded(transport, end, scratch, line));
    let mut server = start(End::Server, &pair.server);
    let listens = transport.wait_for_listener(&server, pair.port);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let mut client = start(End::Client, &pair.client);
    let ended = check(&mut client, &[]).and_then(|()| check(&mut server, &[]));
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    let took = begun.elapsed();
    for end in ["Server", "Client"] {
        let files = fs::read_dir(scratch.file("")).expect("a directory").flatten();
        let captured: u64 = files
            .filter(|file| file.file_name().to_string_lossy().starts_with(end))
            .map(|file| file.metadata().map_or(0, |file| file.len()))
            .sum();
        assert!(captured >= FILE_BYTES as u64, "{end}: {captured} bytes sent through flue");
    }
    let client = format!("LD_PRELOAD=librspreload.so {}", pair.client.0);
    let server = format!("LD_PRELOAD=librspreload.so {}", pair.server.0);
    let programs = Programs {
        order: results::STREAMS + pair.order,
        name: pair.name,
        package: pair.package,
        options: "",
        server: Some(&server),
        client: &client,
    };
    let seen = format!("{FILE_BYTES} bytes, present in the captures");
    results::note(&programs, transport, &seen, took);
}

fn run_netcat(transport: &Transport) {
    let scratch = Scratch::new();
    let octets = make_file(&scratch);
    let (from, to) = (scratch.file("from"), scratch.file("to"));
    // At the end of its input the server would close its direction, which makes the client exit. A FIFO that is also
    // open for writing has no end of file.
    let endless = scratch.file("endless");
    let made = Command::new("mkfifo").arg(&endless).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    let pair = Pair {
        order: 1,
        name: "netcat",
        package: "busybox",
        port: 5400,
        server: ("busybox nc -l -p 5400", format!("0<> {} > {}", endless.display(), to.display())),
        client: ("busybox nc 127.0.0.1 5400", format!("< {}", from.display())),
    };
    run_preloaded(transport, &scratch, &pair);
    assert!(fs::read(to).is_ok_and(|copy| copy == octets), "the copy differs");
}

#[test]
fn netcat_by_librspreload() {
    if !is_lacking(&["busybox", "rstream"]) {
        run_netcat(&Transport::sockets());
    }
}

#[test]
fn netcat_by_librspreload_on_nodes() {
    if !is_lacking(&["busybox", "rstream"]) && !lacks(&[Need::Tun]) {
        run_netcat(&Transport::nodes());
    }
}

// iperf3's options, select(2), and several connections. In file mode iperf3 3.12 itself drops the rest of a partial
// write.
fn run_iperf3(transport: &Transport) {
    let client = format!("iperf3 -c 127.0.0.1 -p 5301 -P 2 -n {FILE_BYTES}");
    let pair = Pair {
        order: 2,
        name: "iperf3",
        package: "iperf3",
        port: 5301,
        server: ("iperf3 -s -1 -p 5301", String::new()),
        client: (&client, String::new()),
    };
    run_preloaded(transport, &Scratch::new(), &pair);
}

#[test]
fn iperf3_by_librspreload() {
    if !is_lacking(&["iperf3", "rstream"]) {
        run_iperf3(&Transport::sockets());
    }
}

#[test]
fn iperf3_by_librspreload_on_nodes() {
    if !is_lacking(&["iperf3", "rstream"]) && !lacks(&[Need::Tun]) {
        run_iperf3(&Transport::nodes());
    }
}
