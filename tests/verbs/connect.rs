//! C programs that connect their own queue pairs on the RoCE device, with the calls of NCCL, Gloo and Mooncake; many
//! queue pairs between several processes; and a ping-pong without a GID, which RoCE does not support.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};

use crate::group::{Group, ending};
use crate::programs::check;
use crate::results::{self, Programs};
use crate::test_bed::{Device, End, LIMIT, Transport, under_flue};
use crate::{NEEDS, machine};

/// TCP port of the exchange of addresses, on loopback.
const PORT: u16 = 7400;
/// Time limit for the full number of queue pairs.
const LONG_LIMIT: Duration = Duration::from_secs(900);
/// Queue pairs in every run of the tests: processes, queue pairs between each two, and rounds.
const FEW: [[u32; 3]; 2] = [[2, 40, 6], [4, 4, 6]];
/// Queue pairs of `tests/verbs/run`.
const MANY: [[u32; 3]; 2] = [[2, 1000, 20], [8, 64, 20]];

/// Compiled program of tests/verbs/connect.
struct Program {
    name: &'static str,
    path: PathBuf,
    _scratch: Scratch,
}

impl Program {
    /// Compiles the program; returns `None` if a prerequisite is missing, which is reported.
    fn compile(name: &'static str, libraries: &[&str]) -> Option<Self> {
        if lacks(NEEDS) || lacks(&[Need::Tool("cc")]) {
            return None;
        }
        let scratch = Scratch::new();
        let path = scratch.file(name);
        let source = format!("{}/tests/verbs/connect/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", "-o"]).arg(&path).arg(source);
        let compiled = cc.args(libraries).status().expect("cc runs");
        assert!(compiled.success(), "the program requires libibverbs-dev");
        Some(Self { name, path, _scratch: scratch })
    }

    /// Runs both ends, which exit with 0 and print `says`.
    fn pair(&self, transport: &Transport, order: usize, says: [&str; 2]) {
        let begun = Instant::now();
        let start = |end, role| {
            let line = format!("{} {role} {PORT}", self.path.display());
            transport.start(end, Device::Roce.options(), &line)
        };
        let mut server = start(End::Server, "listen");
        let listens = server.wait_for_listener(transport.host(), PORT, LIMIT);
        assert_eq!(listens, Ok(()), "{}", server.report());
        let mut client = start(End::Client, "connect");
        let ended = check(&mut client, &[says[1]]).and_then(|()| check(&mut server, &[says[0]]));
        client.kill();
        server.kill();
        assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
        let programs = Programs {
            order: results::CONNECT + order,
            name: self.name,
            package: "tests/verbs/connect",
            options: "",
            server: Some(&format!("{} listen {PORT}", self.name)),
            client: &format!("{} connect {PORT}", self.name),
        };
        results::note_on(Device::Roce, &programs, transport, says[1], begun.elapsed());
    }

    fn pairs(&self, order: usize, says: [&str; 2]) {
        self.pair(&Transport::sockets(), order, says);
        if !lacks(&[Need::Tun]) {
            self.pair(&Transport::nodes(), order, says);
        }
    }
}

// Symbols by dlvsym, receives without buffers, a FIFO in polled memory, Writes that end with a Write with immediate,
// and a queue pair that is connected to itself.
#[test]
fn calls_of_nccl() {
    if let Some(program) = Program::compile("nccl", &["-ldl", "-lpthread"]) {
        program.pairs(0, ["60 messages received and compared", "60 messages sent"]);
    }
}

// Receives in INIT, Send with immediate, Write with immediate, and a completion channel that does not block.
#[test]
fn calls_of_gloo() {
    if let Some(program) = Program::compile("gloo", &["-libverbs", "-lpthread"]) {
        let says = "100 messages sent, received and compared";
        program.pairs(1, [says; 2]);
    }
}

// Files of the device, queue pairs that are reset and connected again, also after an error, and connected to
// themselves.
#[test]
fn calls_of_mooncake() {
    if let Some(program) = Program::compile("mooncake", &["-libverbs"]) {
        let says = "7 connections of 2 queue pairs, data compared";
        program.pairs(2, [says; 2]);
    }
}

// The format is the same on a node and on kernel sockets, which the kernel connects.
#[test]
fn node_and_kernel_sockets_exchange_datagrams() {
    if lacks(NEEDS) || lacks(&[Need::Tun, Need::Tool("ibv_ud_pingpong")]) {
        return;
    }
    let (host, line) = (machine(), "ibv_ud_pingpong -g 0 -s 1024 -c");
    let start = |node: &str, line: &str| {
        let options = format!("{} {node}", Device::Roce.options());
        Group::start(&host, under_flue(&options, line))
    };
    let node = "--tap tap0 --addr 10.9.0.2/24 --host-addr 10.9.0.1/24";
    let mut server = start(node, line);
    let listens = server.wait_for_listener(&host, 18515, LIMIT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    // GID 0 is the address of the interface with the default route.
    host.ip("route add default via 10.9.0.2");
    let mut client = start("", &format!("{line} 127.0.0.1"));
    let ended = check(&mut client, &["1000 iters"]).and_then(|()| check(&mut server, &[]));
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    assert!(client.said().contains("GID ::ffff:10.9.0.2"), "{}", client.report());
}

#[test]
fn descriptors_and_memory_are_flat_over_rounds_of_queue_pairs() {
    let Some(program) = Program::compile("stress", &["-libverbs"]) else { return };
    let (counts, limit) = match results::are_enabled() {
        true => (MANY, LONG_LIMIT),
        false => (FEW, LIMIT),
    };
    for (order, [processes, queue_pairs, rounds]) in counts.into_iter().enumerate() {
        let (transport, begun) = (Transport::sockets(), Instant::now());
        let words = format!("{processes} {queue_pairs} {rounds}");
        let line = format!("{} {words}", program.path.display());
        let mut ran = transport.start(End::Server, Device::Roce.options(), &line);
        let ended = ran.wait(limit).map(ending);
        ran.kill();
        assert_eq!(ended.as_deref(), Ok("exit status 0"), "{}", ran.report());
        let programs = Programs {
            order: results::CONNECT + 3 + order,
            name: "stress",
            package: "tests/verbs/connect",
            options: "",
            server: None,
            client: &format!("stress {words}"),
        };
        let said = ran.said();
        results::note_on(Device::Roce, &programs, &transport, said.trim_end(), begun.elapsed());
    }
}

// The numbers are those that the programs exchange, at both ends.
#[test]
fn ss_lists_queue_pairs_under_their_numbers() {
    if lacks(NEEDS) || lacks(&[Need::Tool("cc")]) {
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.file("rendezvous");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/verbs/c/tests/rendezvous.c");
    let compiled = Command::new("cc").arg("-o").arg(&program).args([source, "-libverbs"]).status();
    assert!(compiled.expect("cc runs").success(), "the program requires libibverbs-dev");
    let line = format!("{} numbers", program.display());
    let mut program = under_flue(Device::Roce.options(), &line);
    // Programs of other tests have the same process id, in their PID namespaces. They would have the same control
    // socket.
    program.env("FLUE", env!("CARGO_BIN_EXE_flue")).env("XDG_RUNTIME_DIR", scratch.file(""));
    let mut ran = Group::start(&machine(), program);
    let ended = ran.wait(LIMIT).map(|status| status.success());
    assert_eq!(ended, Ok(true), "{}", ran.report());
}

// Without an index of the GID table, the ping-pong passes an address without a GID. RoCE devices reject that when the
// queue pair is modified to RTR.
#[test]
fn pingpong_without_gid_is_rejected() {
    const LINE: &str = "ibv_rc_pingpong";
    if lacks(NEEDS) || lacks(&[Need::Tool(LINE)]) {
        return;
    }
    let (transport, begun) = (Transport::sockets(), Instant::now());
    let options = Device::Roce.options();
    let mut server = transport.start(End::Server, options, LINE);
    let listens = server.wait_for_listener(transport.host(), 18515, LIMIT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let client_line = format!("{LINE} 127.0.0.1");
    let mut client = transport.start(End::Client, options, &client_line);
    for end in [&mut server, &mut client] {
        let ended = end.wait(LIMIT).map(|status| status.code());
        end.kill();
        assert_eq!(ended, Ok(Some(1)), "{}", end.report());
    }
    let refused = "Failed to modify QP to RTR";
    // The server exits before it answers, so the client exits for that reason.
    assert!(server.said().contains(refused), "{}", server.report());
    let programs = Programs {
        order: results::REFUSALS + 3,
        name: "pingpong_without_gid",
        package: "ibverbs-utils",
        options: "",
        server: Some(LINE),
        client: &client_line,
    };
    let seen = format!("both exit with 1, the server after: {refused}");
    results::note_on(Device::Roce, &programs, &transport, &seen, begun.elapsed());
}
