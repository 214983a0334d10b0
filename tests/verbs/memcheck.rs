//! Programs under valgrind, which checks the address of each access to memory by the libraries and their threads.

use std::process::Command;
use std::time::Duration;

use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};

use crate::test_bed::{End, Transport};
use crate::{FLUE, NEEDS, library, machine};

/// Time limit of a program, whose instructions take 30 times as long.
const LIMIT: Duration = Duration::from_secs(300);

/// Command of valgrind, with child processes and with the programs by which they replace themselves. An error changes
/// the exit status. perftest sends bytes that it has not initialized, so values are not checked.
const VALGRIND: &str =
    "valgrind -q --error-exitcode=99 --trace-children=yes --undef-value-errors=no --vgdb=no";

/// Runs both ends under valgrind. `port` is that of a program that exchanges the addresses of its queue pairs over
/// kernel TCP, or of a listener of librdmacm.
fn pair(transport: &Transport, line: &str, port: u16, client: &str) {
    let start = |end, line: &str| transport.start(end, "", &format!("{VALGRIND} {line}"));
    let mut server = start(End::Server, line);
    // On nodes the listener of librdmacm is not one of the kernel.
    let listens = match ["rping", "rstream"].iter().any(|name| line.starts_with(name)) {
        true => transport.wait_for_listener(&server, port),
        false => server.wait_for_listener(transport.host(), port, LIMIT),
    };
    assert_eq!(listens, Ok(()), "{}", server.report());
    let mut client = start(End::Client, client);
    let ended = [&mut client, &mut server].map(|end| end.wait(LIMIT).map(|status| status.code()));
    client.kill();
    server.kill();
    assert_eq!(ended, [Ok(Some(0)), Ok(Some(0))], "{}\n{}", server.report(), client.report());
}

fn on_each_transport(tool: &'static str, server: &str, port: u16, client: &str) {
    if lacks(NEEDS) || lacks(&[Need::Tool(tool), Need::Tool("valgrind")]) {
        return;
    }
    pair(&Transport::sockets(), server, port, client);
    if !lacks(&[Need::Tun]) {
        pair(&Transport::nodes(), server, port, client);
    }
}

#[test]
fn programs_of_librdmacm_access_valid_memory() {
    let line = |end| format!("rping {end} -a 127.0.0.1 -C 10 -V -S 20000");
    on_each_transport("rping", &line("-s"), 7174, &line("-c"));
    let line = "rstream -S 65536 -I 1 -C 20 -T v";
    on_each_transport("rstream", line, 7471, &format!("{line} -s 127.0.0.1"));
}

// Large Writes: their pages are recycled on a node. Shared receive queues, completion channels and address handles.
#[test]
fn connected_queue_pairs_access_valid_memory() {
    for (program, options) in [
        ("ib_write_bw", "-n 200 -s 100000"),
        ("ibv_srq_pingpong", "-g 0 -c -n 100 -e"),
        ("ibv_ud_pingpong", "-g 0 -c -n 100"),
    ] {
        let line = format!("{program} {options}");
        on_each_transport(program, &line, 18515, &format!("{line} 127.0.0.1"));
    }
}

/// Runs `flue` under valgrind until its end.
fn flue_succeeds(host: &Namespace, line: &str) {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(VALGRIND.split_whitespace().skip(1)).arg(FLUE).args(line.split_whitespace());
    let mut flue = Process::start(host, valgrind, Output::Lines);
    flue.expect_exit(0, LIMIT);
}

// The launcher on kernel sockets, which replaces itself by the program. On nodes it calls pidfd_open(2), which valgrind
// 3.19 does not support.
#[test]
fn launcher_accesses_valid_memory() {
    if !lacks(NEEDS) && !lacks(&[Need::Tool("valgrind")]) {
        let library = library();
        flue_succeeds(&machine(), &format!("run --library {} -- true", library.display()));
    }
}

#[test]
fn wire_between_namespaces_accesses_valid_memory() {
    if lacks(NEEDS) || lacks(&[Need::Tun, Need::Tool("valgrind")]) {
        return;
    }
    let (left, right) = (Namespace::new(), Namespace::new());
    let [a, b] = [&left, &right].map(|host| host.path().display().to_string());
    flue_succeeds(&left, &format!("wire w0 w1 --netns-a {a} --netns-b {b} -D 1 --delay 1ms"));
}
