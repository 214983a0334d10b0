//! Programs under valgrind, which checks each access to memory of the launcher, of the libraries and of their threads.

use std::process::Command;
use std::time::Duration;

use flue_test_support::flue::command;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;

use crate::group::Group;
use crate::test_bed::{End, Transport, under_flue};
use crate::{FLUE, NEEDS};

/// Time limit of a program, whose instructions take 30 times as long.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the command under valgrind, with its child processes and with the programs by which they replace themselves.
/// An error changes the exit status.
fn under_valgrind(program: &Command) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--error-exitcode=99", "--trace-children=yes"]);
    valgrind.arg(program.get_program()).args(program.get_args());
    valgrind
}

/// Runs both ends under valgrind, with the launcher. `port` is that of a program that exchanges the addresses of its
/// queue pairs over kernel TCP, or of a listener of librdmacm.
fn pair(transport: &Transport, line: &str, port: u16, client: &str) {
    let start = |end: End, line: &str| {
        let program = under_flue(&transport.options(end), line);
        transport.start_command(end, under_valgrind(&program))
    };
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

#[test]
fn wire_between_namespaces_accesses_valid_memory() {
    if lacks(NEEDS) || lacks(&[Need::Tun, Need::Tool("valgrind")]) {
        return;
    }
    let (left, right) = (Namespace::new(), Namespace::new());
    let [a, b] = [&left, &right].map(|host| host.path().display().to_string());
    let line = format!("wire w0 w1 --netns-a {a} --netns-b {b} -D 1 --delay 1ms");
    let mut wire = Group::start(&left, under_valgrind(&command(FLUE, &line)));
    let ended = wire.wait(LIMIT).map(|status| status.code());
    wire.kill();
    assert_eq!(ended, Ok(Some(0)), "{}", wire.report());
}
