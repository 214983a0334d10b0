//! Stopped and killed launchers and programs: the launcher follows its program in any order of signals, and the
//! program ends with its launcher.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use flue_test_support::needs::{Need, lacks};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::addresses::Program;
use crate::group::Group;
use crate::test_bed::{End, LIMIT, NodePair, Transport, under_flue};
use crate::{NEEDS, machine};

/// Time limit for the reset of a peer: kernels respond for a connection at most twice a second.
const RESET_LIMIT: Duration = Duration::from_secs(10);

fn is_lacking(tools: &[&'static str]) -> bool {
    lacks(NEEDS) || lacks(&[Need::Tun]) || tools.iter().any(|tool| lacks(&[Need::Tool(tool)]))
}

/// State letter of a process; `None` if it has ended.
fn state(process: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn send(process: u32, signal: Signal) {
    let id = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(id, signal).expect("a running process");
}

/// Waits until all of the processes are stopped, or all run.
fn settle(group: &Group, processes: &[u32], is_stopped: bool) {
    let is_so = || processes.iter().all(|process| (state(*process) == Some('T')) == is_stopped);
    let settled = group.wait_until("processes have settled", LIMIT, is_so);
    assert_eq!(settled, Ok(()), "{is_stopped}: {}", group.report());
}

/// Waits until the parent of the program has its own process group. Before that, the program's group may be orphaned,
/// and ignores SIGTSTP.
fn expect_monitor(group: &Group, program: u32) {
    let field = |process: u32, at: usize| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit(") ").next()?.split(' ').nth(at)?.parse().ok()
    };
    let [parent, process_group] = [1, 2];
    let leads = || {
        field(program, parent).is_some_and(|monitor| field(monitor, process_group) == Some(monitor))
    };
    let led = group.wait_until("monitor has a process group", LIMIT, leads);
    assert_eq!(led, Ok(()), "{}", group.report());
}

/// Process ids of the launcher and the program.
fn started(group: &Group, program: &str) -> [u32; 2] {
    let exists = || group.find_process(program).is_some();
    assert_eq!(group.wait_until("program runs", LIMIT, exists), Ok(()), "{}", group.report());
    [group.process("flue"), group.process(program)]
}

/// Stops the program in each way, continues launcher and program in each order, and ends the program through the
/// launcher. Each order uses its own group: a forwarded signal may arrive after the next one.
fn follows(start: impl Fn() -> Group) {
    const LAUNCHER: usize = 0;
    const PROGRAM: usize = 1;
    let stops: [&[(usize, Signal)]; 4] = [
        &[(PROGRAM, Signal::STOP)],
        &[(PROGRAM, Signal::TSTP)],
        &[(LAUNCHER, Signal::TSTP)],
        &[(PROGRAM, Signal::STOP), (LAUNCHER, Signal::STOP)],
    ];
    let continues: [&[usize]; 4] =
        [&[LAUNCHER], &[PROGRAM], &[LAUNCHER, PROGRAM], &[PROGRAM, LAUNCHER]];
    for stop in stops {
        for order in continues {
            let mut group = start();
            let both = started(&group, "sleep");
            expect_monitor(&group, both[PROGRAM]);
            for (process, signal) in stop {
                send(both[*process], *signal);
                settle(&group, &both, true);
            }
            order.iter().for_each(|process| send(both[*process], Signal::CONT));
            settle(&group, &both, false);
            send(both[LAUNCHER], Signal::TERM);
            let ended = group.wait(LIMIT).map(|status| status.code());
            assert_eq!(ended, Ok(Some(128 + 15)), "{stop:?} {order:?} {}", group.report());
        }
    }
    // A stopped program that is killed also ends the launcher.
    let mut group = start();
    let both = started(&group, "sleep");
    send(both[PROGRAM], Signal::STOP);
    settle(&group, &both, true);
    send(both[PROGRAM], Signal::KILL);
    let ended = group.wait(LIMIT).map(|status| status.code());
    assert_eq!(ended, Ok(Some(128 + 9)), "{}", group.report());
}

#[test]
fn launcher_of_a_node_follows_its_program_in_any_order_of_signals() {
    if !is_lacking(&[]) {
        let node_pair = NodePair::new();
        follows(|| node_pair.start(0, "", "sleep 1000"));
    }
}

#[test]
fn launcher_on_kernel_sockets_follows_its_program_in_any_order_of_signals() {
    if !lacks(NEEDS) {
        let host = machine();
        follows(|| Group::start(&host, under_flue("--verbose", "sleep 1000")));
    }
}

/// Shell that keeps running after `line` has ended: the end of a namespace's first process kills all processes in it.
pub(crate) fn in_a_shell(line: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\"; echo ended $?; exec sleep 1000", "sh"]);
    shell.arg(line.get_program()).args(line.get_args());
    shell
}

fn has_queue_pair(found: &[Value]) -> bool {
    found.iter().any(|one| one["qp"].is_u64())
}

// The program is the launcher's child or grandchild. The peer's program is notified, and an idle kernel is reset.
#[test]
fn program_of_a_killed_launcher_ends_and_resets_its_peers() {
    if is_lacking(&["rping"]) {
        return;
    }
    for is_direct in [true, false] {
        let node_pair = NodePair::new();
        node_pair.host.ip("address add 10.9.0.254/24 dev br0");
        let mut server = under_flue(&NodePair::node(0), "");
        match is_direct {
            true => server.args(["rping", "-s", "-P", "-a", "10.9.0.1"]),
            false => server.args(["sh", "-c", "rping -s -P -a 10.9.0.1; true"]),
        };
        let server = node_pair.start_command(0, in_a_shell(&server));
        node_pair.listens(&server);
        let mut client = node_pair.start(1, "", "rping -c -a 10.9.0.1 -C 1000000000");
        node_pair.expect(1, "", &client, has_queue_pair);
        let address: SocketAddr = "10.9.0.1:7174".parse().expect("an address");
        let connect = || TcpStream::connect_timeout(&address, LIMIT);
        let mut idle = node_pair.host.run(connect).expect("a listening program");
        node_pair.expect(0, "", &server, |found| found.len() == 2);
        let [launcher, program] = started(&server, "rping");
        send(launcher, Signal::KILL);
        let is_over = || state(program).is_none();
        let ended = server.wait_until("program has ended", RESET_LIMIT, is_over);
        assert_eq!(ended, Ok(()), "{}", server.report());
        idle.set_read_timeout(Some(RESET_LIMIT)).expect("a limit");
        let error = idle.read(&mut [0]).expect_err("nothing was sent");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{is_direct}: {error}");
        client.wait(RESET_LIMIT).unwrap_or_else(|error| panic!("{error}: {}", client.report()));
        let is_removed = || !node_pair.host.links().iter().any(|link| link == "tap0");
        let removed = server.wait_until("TAP is removed", RESET_LIMIT, is_removed);
        assert_eq!(removed, Ok(()), "{}", server.report());
    }
}

// The kernel kills the program with its parent; the front resets its connections.
#[test]
fn program_of_a_killed_monitor_ends() {
    if is_lacking(&["rping"]) {
        return;
    }
    let node_pair = NodePair::new();
    let mut server = node_pair.start(0, "", "rping -s -P -a 10.9.0.1");
    node_pair.listens(&server);
    let mut client = node_pair.start(1, "", "rping -c -a 10.9.0.1 -C 1000000000");
    node_pair.expect(1, "", &client, has_queue_pair);
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.process("rping")));
    let stat = stat.expect("a running process");
    let parent = stat.rsplit(") ").next().and_then(|it| it.split(' ').nth(1)?.parse().ok());
    send(parent.expect("a parent"), Signal::KILL);
    let ended = server.wait(RESET_LIMIT).map(|status| status.code());
    assert_eq!(ended, Ok(Some(128 + 9)), "{}", server.report());
    client.wait(RESET_LIMIT).unwrap_or_else(|error| panic!("{error}: {}", client.report()));
}

/// Stops the server, its launcher or both while the client connects, pings or disconnects.
fn stopped_peer_continues(transport: &Transport) {
    const PINGS: &str = "rping -c -a 127.0.0.1 -C 5000 -V";
    let server = transport.start(End::Server, "--verbose", "rping -s -P -a 127.0.0.1");
    assert_eq!(transport.wait_for_listener(&server, 7174), Ok(()), "{}", server.report());
    let [launcher, program] = started(&server, "rping");
    for stopped in [&[program][..], &[launcher, program]] {
        // Stopped before the connection: the client waits for the reply.
        stopped.iter().for_each(|process| send(*process, Signal::STOP));
        settle(&server, &[program], true);
        let mut client = transport.start(End::Client, "", PINGS);
        let exists = || client.find_process("rping").is_some();
        assert_eq!(client.wait_until("client runs", LIMIT, exists), Ok(()), "{}", client.report());
        stopped.iter().for_each(|process| send(*process, Signal::CONT));
        settle(&server, &[launcher, program], false);
        // Stopped during the transfer.
        let is_busy = || client.said().contains("DISCONNECT") || connections(transport) > 0;
        assert_eq!(client.wait_until("pings", LIMIT, is_busy), Ok(()), "{}", client.report());
        stopped.iter().for_each(|process| send(*process, Signal::STOP));
        settle(&server, &[program], true);
        stopped.iter().for_each(|process| send(*process, Signal::CONT));
        let ended = client.wait(LIMIT).map(|status| status.code());
        client.kill();
        assert_eq!(ended, Ok(Some(0)), "{}\n{}", client.report(), server.report());
    }
}

/// Established connections to the port of rping.
fn connections(transport: &Transport) -> usize {
    match transport {
        Transport::Nodes(node_pair) => node_pair.connections(1, "").map_or(0, |found| found.len()),
        Transport::Sockets(host) => host.run(|| {
            let text = fs::read_to_string("/proc/thread-self/net/tcp").unwrap_or_default();
            text.lines().filter(|line| line.contains(":1C06 01 ")).count()
        }),
    }
}

/// Stops the server, or its launcher as well, until the client has disconnected and exited.
fn stopped_peer_sees_the_end(transport: &Transport) {
    let Some(program) = Program::compile() else { return };
    let line = |verb: &str| program.line(&format!("{verb} 127.0.0.1 7820"));
    for is_whole in [false, true] {
        let mut server = transport.start(End::Server, "--verbose", &line("serve"));
        let has_said = |group: &Group, what: &str| {
            let said = group.wait_until(what, LIMIT, || group.said().contains(what));
            assert_eq!(said, Ok(()), "{}", group.report());
        };
        has_said(&server, "listening");
        let mut client = transport.start(End::Client, "--verbose", &line("hold"));
        has_said(&client, "connected peer");
        has_said(&server, "accepted peer");
        let [launcher, serving] = started(&server, "addresses");
        let all = [serving, launcher];
        let stopped = if is_whole { &all[..] } else { &all[..1] };
        stopped.iter().for_each(|process| send(*process, Signal::STOP));
        settle(&server, stopped, true);
        send(client.process("addresses"), Signal::USR1);
        let mut ended = vec![client.wait(LIMIT).map(|status| status.code())];
        stopped.iter().for_each(|process| send(*process, Signal::CONT));
        ended.push(server.wait(LIMIT).map(|status| status.code()));
        let expected = [Ok(Some(0)), Ok(Some(0))];
        assert_eq!(ended, expected, "{}\n{}", server.report(), client.report());
    }
}

#[test]
fn stopped_peer_sees_the_end_on_kernel_sockets() {
    if !lacks(NEEDS) {
        stopped_peer_sees_the_end(&Transport::sockets());
    }
}

#[test]
fn stopped_peer_sees_the_end_on_nodes() {
    if !is_lacking(&["cc"]) {
        stopped_peer_sees_the_end(&Transport::nodes());
    }
}

#[test]
fn stopped_peer_continues_on_kernel_sockets() {
    if !lacks(NEEDS) && !lacks(&[Need::Tool("rping")]) {
        stopped_peer_continues(&Transport::sockets());
    }
}

#[test]
fn stopped_peer_continues_on_nodes() {
    if !is_lacking(&["rping"]) {
        stopped_peer_continues(&Transport::nodes());
    }
}

// The signals of a terminal reach the whole foreground process group: launcher and program. A shell with job control
// stops, continues and interrupts the job.
#[test]
fn terminal_stops_continues_and_interrupts_a_program() {
    if lacks(NEEDS) || ["rping", "python3"].iter().any(|tool| lacks(&[Need::Tool(tool)])) {
        return;
    }
    let host = machine();
    let server = Group::start(&host, under_flue("", "rping -s -P -a 127.0.0.1"));
    let listening = server.wait_for_listener(&host, 7174, LIMIT);
    assert_eq!(listening, Ok(()), "{}", server.report());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs/terminal.py");
    // The launcher becomes the program. Or it is the front, which a monitor in another process group stops by SIGSTOP.
    for (options, names, signal) in
        [("", "rping", Signal::TSTP), ("--verbose", "flue,rping", Signal::STOP)]
    {
        let program = under_flue(options, "rping -c -v -a 127.0.0.1 -C 1000000000");
        let mut terminal = Command::new("python3");
        terminal.args(["-B", script, names, &signal.as_raw().to_string()]);
        terminal.arg(program.get_program()).args(program.get_args());
        let mut terminal = Group::start(&host, terminal);
        let ended = terminal.wait(LIMIT).map(|status| status.code());
        assert_eq!(ended, Ok(Some(0)), "{}\n{}", terminal.report(), server.report());
    }
}
