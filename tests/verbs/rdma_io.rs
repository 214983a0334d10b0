//! Asynchronous streams of the Rust crate rdma-io: the program is in `tests/verbs/rdma-io`, and `tests/verbs/run`
//! builds it.

use std::path::PathBuf;
use std::time::Instant;

use flue_test_support::needs::{Need, lacks};

use crate::NEEDS;
use crate::programs::check;
use crate::results::{self, Programs};
use crate::test_bed::{End, Transport};

/// Environment variable with the path of the program; `tests/verbs/run` sets it.
const PROGRAM: &str = "FLUE_VERBS_RDMA_IO_ECHO";
const PORT: u16 = 7300;

/// Returns the program, or `None` if it is not built.
fn program() -> Option<PathBuf> {
    let program = std::env::var_os(PROGRAM).map(PathBuf::from);
    if program.is_none() {
        println!("skipped: program not built: run tests/verbs/run");
    }
    program
}

fn echoes(transport: &Transport, program: &str) {
    let begun = Instant::now();
    let mut server =
        transport.start(End::Server, "", &format!("{program} server 127.0.0.1:{PORT}"));
    let listens = transport.wait_for_listener(&server, PORT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let mut client =
        transport.start(End::Client, "", &format!("{program} client 127.0.0.1:{PORT}"));
    let compared = "8388608 bytes compared";
    let ended = check(&mut client, &[compared])
        .and_then(|()| check(&mut server, &["8388608 bytes echoed"]));
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    let programs = Programs {
        order: results::RDMA_IO,
        name: "rdma-io",
        package: "crate rdma-io 0.0.2",
        options: "",
        server: Some("rdma-io-echo server 127.0.0.1:7300"),
        client: "rdma-io-echo client 127.0.0.1:7300",
    };
    let seen = format!("{compared} in both directions");
    results::note(&programs, transport, &seen, begun.elapsed());
}

#[test]
fn rdma_io_stream_echoes() {
    if let Some(program) = program()
        && !lacks(NEEDS)
    {
        echoes(&Transport::sockets(), &program.to_string_lossy());
    }
}

#[test]
fn rdma_io_stream_on_nodes_echoes() {
    if let Some(program) = program()
        && !lacks(NEEDS)
        && !lacks(&[Need::Tun])
    {
        echoes(&Transport::nodes(), &program.to_string_lossy());
    }
}
