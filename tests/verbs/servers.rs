//! Persistent servers, and peers that are not from Debian.

use std::fs;
use std::time::{Duration, Instant};

use flue_test_support::flue::command;
use flue_test_support::needs::{Need, lacks};

use crate::group::Group;
use crate::programs::check;
use crate::results::{self, Programs};
use crate::test_bed::{End, LIMIT, Transport, under_flue};
use crate::{FLUE, NEEDS, machine};

fn is_lacking(tool: &'static str) -> bool {
    lacks(NEEDS) || lacks(&[Need::Tool(tool)])
}

// rdma-core's rping and flue's, each as the server of the other.
#[test]
fn rping_with_flues_own() {
    if is_lacking("rping") {
        return;
    }
    let host = machine();
    let flue = |line: &str| command(FLUE, line);
    let ends = [
        (
            under_flue("", "rping -s -a 127.0.0.1 -C 10 -V"),
            flue("rping -c --transport kernel -a 127.0.0.1 -C 10 -V"),
        ),
        (
            flue("rping -s --transport kernel -a 127.0.0.1"),
            under_flue("", "rping -c -a 127.0.0.1 -C 10 -V -v"),
        ),
    ];
    for (server, client) in ends {
        let mut server = Group::start(&host, server);
        let listens = server.wait_for_listener(&host, 7174, LIMIT);
        assert_eq!(listens, Ok(()), "{}", server.report());
        let mut client = Group::start(&host, client);
        let ended = check(&mut client, &[]).and_then(|()| check(&mut server, &[]));
        client.kill();
        server.kill();
        assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    }
}

/// Resources of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Footprint {
    pub(crate) threads: usize,
    pub(crate) descriptors: usize,
    pub(crate) resident_kib: u64,
}

impl Footprint {
    pub(crate) fn of(process: u32) -> Self {
        let count = |of: &str| {
            fs::read_dir(format!("/proc/{process}/{of}")).map_or(0, |entries| entries.count())
        };
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let resident_kib = resident.expect("resident memory of a running process");
        Self { threads: count("task"), descriptors: count("fd"), resident_kib }
    }
}

/// Sequential clients of the persistent server; [`MANY_CLIENTS`] where the run may take longer.
const CLIENTS: usize = 60;
const MANY_CLIENTS: usize = 1000;
/// Clients after which the server allocates nothing for further ones.
const FIRST_CLIENTS: usize = 20;
/// Growth by the allocator, independent of the number of clients: up to 160 KiB on the RoCE device with 1000
/// clients, and 8 KiB with 2000 more.
const GROWTH_KIB_MAX: u64 = 192;
/// Message of a client that has destroyed its event channel before its thread reads the next event: a race of rping,
/// on any device, about once in 2,000 clients on a busy machine. It has transferred and compared all data before.
pub(crate) const LATE_READER: &str = "'rdma_get_cm_event: Bad file descriptor'";
/// Time limit for all clients, on any machine.
const CLIENTS_LIMIT: Duration = Duration::from_secs(1200);

/// Runs clients one at a time; on a node each uses it in turn. All exit with 0.
fn run_clients(transport: &Transport, count: usize) {
    let script = format!(
        "for i in $(seq {count}); do \
             said=$(rping -c -a 127.0.0.1 -C 5 -V 2>&1) && continue; \
             case $said in *{LATE_READER}*) ;; *) echo client $i: $said; exit 1;; esac; \
         done"
    );
    let mut clients = under_flue(&transport.options(End::Client), "sh -c");
    clients.arg(script);
    let mut clients = transport.start_command(End::Client, clients);
    let ended = clients.wait(CLIENTS_LIMIT).map(|status| status.code());
    clients.kill();
    assert_eq!(ended, Ok(Some(0)), "{}", clients.report());
}

/// Checks that no client leaks a descriptor, a thread or memory in the server.
fn check_leaks(transport: &Transport) {
    const SERVER: &str = "rping -s -P -a 127.0.0.1 -V";
    let clients = if results::are_enabled() { MANY_CLIENTS } else { CLIENTS };
    let mut server = transport.start(End::Server, "", SERVER);
    let listens = transport.wait_for_listener(&server, 7174);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let process = server.process("rping");
    let threads = Footprint::of(process).threads;
    // The server's threads and descriptors for a client end after it.
    let settled = |descriptors_max: usize| {
        let mut now = Footprint::of(process);
        let alone = server.wait_until("its threads have ended", LIMIT, || {
            now = Footprint::of(process);
            now.threads == threads && now.descriptors <= descriptors_max
        });
        assert_eq!(
            alone,
            Ok(()),
            "{threads} threads at first, at most {descriptors_max} descriptors: {now:?}"
        );
        now
    };
    let begun = Instant::now();
    run_clients(transport, FIRST_CLIENTS);
    let first = settled(usize::MAX);
    run_clients(transport, clients - FIRST_CLIENTS);
    let last = settled(first.descriptors);
    server.kill();
    assert!(last.resident_kib <= first.resident_kib + GROWTH_KIB_MAX, "{first:?}, {last:?}");
    let programs = Programs {
        order: results::SERVERS,
        name: "clients",
        package: "rdmacm-utils",
        options: "",
        server: Some(SERVER),
        client: "rping -c -a 127.0.0.1 -C 5 -V",
    };
    let seen = format!(
        "{clients} sequential clients: {} descriptors; VmRSS after {FIRST_CLIENTS} and {clients} clients \
         {} and {} KiB",
        last.descriptors, first.resident_kib, last.resident_kib
    );
    results::note(&programs, transport, &seen, begun.elapsed());
}

#[test]
fn rping_persistent_server_does_not_grow() {
    if !is_lacking("rping") {
        check_leaks(&Transport::sockets());
    }
}

#[test]
fn rping_persistent_server_on_a_node_does_not_grow() {
    if is_lacking("rping") || lacks(&[Need::Tun]) {
        return;
    }
    if results::are_enabled() {
        check_leaks(&Transport::nodes());
    } else {
        println!("skipped: long test, run by tests/verbs/run");
    }
}
