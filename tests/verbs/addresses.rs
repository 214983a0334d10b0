//! Addresses of a program: both families on one port, link-local addresses with a scope, IPv4-mapped addresses, and
//! mapped ports; on kernel sockets and on nodes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};

use crate::stops::in_a_shell;
use crate::test_bed::{End, LIMIT, Transport, under_flue};
use crate::{NEEDS, machine};

/// Test program, compiled into its own directory.
pub(crate) struct Program {
    path: PathBuf,
    _scratch: Scratch,
}

impl Program {
    /// Compiles the program; returns `None` if a prerequisite is missing, which is reported.
    pub(crate) fn compile() -> Option<Self> {
        if lacks(NEEDS) || lacks(&[Need::Tool("cc")]) {
            return None;
        }
        let scratch = Scratch::new();
        let path = scratch.file("addresses");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs/addresses.c");
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Werror", "-D_GNU_SOURCE", "-o"]).arg(&path).arg(source);
        let compiled = cc.args(["-libverbs", "-lrdmacm"]).status().expect("cc runs");
        assert!(compiled.success(), "the program requires libibverbs-dev and librdmacm-dev");
        Some(Self { path, _scratch: scratch })
    }

    pub(crate) fn line(&self, words: &str) -> String {
        format!("{} {words}", self.path.display())
    }

    /// Runs the program at that end, checks that it exits with `status`, and returns its output.
    fn run(&self, transport: &Transport, options: &str, words: &str, status: i32) -> String {
        let mut ran = transport.start(End::Server, options, &self.line(words));
        let ended = ran.wait(LIMIT).map(|ended| ended.code());
        ran.kill();
        assert_eq!(ended, Ok(Some(status)), "{}", ran.report());
        ran.said()
    }

    /// Runs a server and its client, each with its options, address and port; both exit with 0. Returns their
    /// outputs.
    fn pair(
        &self,
        transport: &Transport,
        server: (&str, &str),
        client: (&str, &str),
    ) -> [String; 2] {
        let line = |verb: &str, at: &str| self.line(&format!("{verb} {at}"));
        let mut serving = transport.start(End::Server, server.0, &line("serve", server.1));
        let found = serving.wait_until("listening", LIMIT, || serving.said().contains("listening"));
        assert_eq!(found, Ok(()), "{}", serving.report());
        let mut client = transport.start(End::Client, client.0, &line("connect", client.1));
        let ended = [client.wait(LIMIT), serving.wait(LIMIT)].map(|it| it.map(|it| it.code()));
        client.kill();
        serving.kill();
        let both = [Ok(Some(0)), Ok(Some(0))];
        assert_eq!(ended, both, "{}\n{}", serving.report(), client.report());
        [serving.said(), client.said()]
    }
}

fn has(said: &str, expected: &str) {
    assert!(said.contains(expected), "expected {expected:?}: {said}");
}

/// Address pairs on one port, with the expected result of each.
const WILDCARDS: [(&str, &str); 6] = [
    ("0.0.0.0,only ::,only", "0.0.0.0 ok\n:: ok\n"),
    ("::,only 0.0.0.0", ":: ok\n0.0.0.0 ok\n"),
    ("r0.0.0.0 r::,only", "0.0.0.0 ok\n:: ok\n"),
    ("r::,only r0.0.0.0 ::1,only", ":: ok\n0.0.0.0 ok\n::1 EADDRINUSE\n"),
    ("0.0.0.0 ::", "0.0.0.0 ok\n:: EADDRINUSE\n"),
    (":: 0.0.0.0,only", ":: ok\n0.0.0.0 EADDRINUSE\n"),
];

#[test]
fn both_families_listen_at_one_port_if_ipv6_is_restricted() {
    let Some(program) = Program::compile() else { return };
    for transport in [Transport::sockets(), Transport::nodes()] {
        for (addresses, expected) in WILDCARDS {
            let said = program.run(&transport, "", &format!("listen 7333 {addresses}"), 0);
            assert_eq!(said, expected, "{addresses}");
        }
    }
}

#[test]
fn link_local_address_is_used_and_shown_with_its_scope() {
    let Some(program) = Program::compile() else { return };
    let sockets = Transport::sockets();
    sockets.host().ip("address add fe80::a/64 dev eth0 nodad");
    let at = "fe80::a%eth0 7820";
    let [served, connected] = program.pair(&sockets, ("", at), ("", at));
    has(&served, "listening fe80::a%eth0 port 7820");
    has(&served, "accepted local fe80::a%eth0 port 7820");
    has(&served, "accepted peer fe80::a%eth0 port");
    has(&connected, "connected peer fe80::a%eth0 port 7820");
    for verb in ["serve", "connect"] {
        let said = program.run(&sockets, "", &format!("{verb} fe80::a 7820"), 1);
        has(&said, "EINVAL");
    }

    // A node has one link: any scope, or none, selects it.
    let nodes = Transport::nodes();
    let [server, client] = ["--addr fe80::a/64", "--addr fe80::b/64"];
    for (listening, peer) in [("fe80::a%eth1", "fe80::a"), ("::", "fe80::a%eth0")] {
        let (listening, peer) = (format!("{listening} 7820"), format!("{peer} 7820"));
        let [served, connected] = program.pair(&nodes, (server, &listening), (client, &peer));
        has(&served, "accepted local fe80::a%tap0 port 7820");
        has(&served, "accepted peer fe80::b%tap0 port");
        has(&connected, "connected local fe80::b%tap1 port");
        has(&connected, "connected peer fe80::a%tap1 port 7820");
    }
}

#[test]
fn mapped_address_means_ipv4_and_is_shown_as_given() {
    let Some(program) = Program::compile() else { return };
    let places = [
        (Transport::sockets(), "10.77.0.1", ["", ""]),
        (Transport::nodes(), "10.9.2.1", ["--addr 10.9.2.1/24", "--addr 10.9.2.2/24"]),
        // A kernel address that is mapped to a node's may be IPv4-mapped, too.
        (Transport::nodes(), "127.0.0.1", ["", ""]),
    ];
    for (transport, server, [own, peers]) in places {
        let [v4, mapped] = [format!("{server} 7820"), format!("::ffff:{server} 7820")];
        let [served, connected] = program.pair(&transport, (own, &v4), (peers, &mapped));
        has(&served, &format!("accepted local {server} port 7820"));
        has(&connected, &format!("connected peer ::ffff:{server} port 7820"));
        has(&connected, "connected local ::ffff:10.");
        let [served, connected] = program.pair(&transport, (own, &mapped), (peers, &v4));
        has(&served, &format!("accepted local ::ffff:{server} port 7820"));
        has(&served, "accepted peer ::ffff:10.");
        has(&connected, &format!("connected peer {server} port 7820"));
        let said = program.run(&transport, own, &format!("listen 7333 ::ffff:{server},only"), 0);
        has(&said, "EINVAL");
    }
}

#[test]
fn mapped_port_is_the_rdma_port_and_shown_as_the_programs() {
    let Some(program) = Program::compile() else { return };
    let places = [(Transport::sockets(), "10.77.0.1"), (Transport::nodes(), "127.0.0.1")];
    for (transport, server) in places {
        let map = &format!("--port-map {server}:3260=3261 --port-map 1=2");
        let at = |port: u16| format!("{server} {port}");
        for (options, port) in [("--port-map 3260=3261", 3260), ("", 3261)] {
            let [served, connected] =
                program.pair(&transport, (map, &at(3260)), (options, &at(port)));
            has(&served, &format!("accepted local {server} port 3260"));
            has(&connected, &format!("connected peer {server} port {port}"));
        }
    }
}

// The inherited descriptors of the node are not among those closed; the launcher exits with the child's parent.
#[test]
fn daemon_that_closes_low_descriptors_while_it_listens_serves_a_client() {
    let Some(program) = Program::compile() else { return };
    for transport in [Transport::sockets(), Transport::nodes()] {
        let line = program.line("daemon 127.0.0.1 7820");
        let server = under_flue(&transport.options(End::Server), &line);
        let mut server = transport.start_command(End::Server, in_a_shell(&server));
        let has_said = |what: &str| server.wait_until(what, LIMIT, || server.said().contains(what));
        let listening = has_said("listening 127.0.0.1").and_then(|()| has_said("ended 0"));
        assert_eq!(listening, Ok(()), "{}", server.report());
        let mut client = transport.start(End::Client, "", &program.line("connect 127.0.0.1 7820"));
        let ended = client.wait(LIMIT).map(|status| status.code());
        assert_eq!(ended, Ok(Some(0)), "{}\n{}", server.report(), client.report());
        assert_eq!(has_said("accepted peer"), Ok(()), "{}", server.report());
        server.kill();
    }
}

#[test]
fn program_with_one_port_for_tcp_and_rdma_needs_a_mapped_port() {
    let Some(program) = Program::compile() else { return };
    let (transport, scratch) = (Transport::Sockets(machine()), Scratch::new());
    let log = scratch.file("log");
    let options = format!("--log {}", log.display());
    let said = program.run(&transport, &options, "both 3260", 0);
    assert_eq!(said, "TCP ok, RDMA EADDRINUSE\n");
    let logged = fs::read_to_string(&log).expect("a log");
    has(&logged, "this program has a TCP listener on port 3260");
    has(&logged, "--port-map 3260=PORT");
    let said = program.run(&transport, "--port-map 3260=3261", "both 3260", 0);
    assert_eq!(said, "TCP ok, RDMA ok\n");
}
