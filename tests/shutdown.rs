//! Process shutdown: the peer receives a FIN if all data was sent, otherwise an RST, whether the process returns,
//! fails or receives SIGINT, SIGTERM or SIGHUP. The peer is kernel TCP or another node.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flue_test_support::flue::command;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::switch::Switch;
use rdma_over_tcp::mpa::startup::{Initiator, RtrKind, RtrSet, StartupConfig};
use rdma_over_tcp::mpa::{Encoder, Slab};
use rdma_over_tcp::rdmap::rtr_header;
use rustix::process::Signal;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];
/// Exit status of a process that SIGPIPE ends in a shell.
const BROKEN_PIPE_STATUS: i32 = 141;
const LIMIT: Duration = Duration::from_secs(120);
/// Limit below every retransmission limit: the peer must be notified, not time out.
const NOTIFICATION_LIMIT: Duration = Duration::from_secs(10);
const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Serializes the tests: a process between fork and exec briefly holds copies of all open pipes, which would keep a
/// pipe open that must have no reader.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kernel_at() -> SocketAddr {
    ([10, 0, 0, 1], 5000).into()
}

fn flue_at() -> SocketAddr {
    ([10, 0, 0, 2], 5000).into()
}

/// `flue nc` on its own TAP, connected to a kernel socket.
struct Conversation {
    flue: Process,
    socket: TcpStream,
    _host: Namespace,
}

impl Conversation {
    fn new(flue_listens: bool, options: &str) -> Self {
        let host = Namespace::new();
        let nc = |what: &str| {
            let node = "--tap tap0 --addr 10.0.0.2/24 --host-addr 10.0.0.1/24";
            let line = format!("nc {what} {node} {options}");
            Process::start(&host, command(FLUE, &line), Output::Bytes)
        };
        let (mut flue, socket) = if flue_listens {
            let mut flue = nc("-l 5000");
            flue.expect_line("listening", LIMIT);
            let connect = || TcpStream::connect_timeout(&flue_at(), LIMIT);
            (flue, host.run(connect).unwrap())
        } else {
            let any = SocketAddr::from(([0, 0, 0, 0], kernel_at().port()));
            let listener = host.run(|| TcpListener::bind(any)).unwrap();
            let flue = nc("10.0.0.1 5000");
            (flue, listener.accept().unwrap().0)
        };
        flue.expect_line("connected", LIMIT);
        socket.set_read_timeout(Some(NOTIFICATION_LIMIT)).unwrap();
        Self { flue, socket, _host: host }
    }

    /// Reads until the kernel reports the end of the connection.
    fn read_until_end(&mut self) -> io::Result<usize> {
        self.socket.read(&mut [0; 16])
    }
}

fn assert_reset(heard: io::Result<usize>) {
    let kind = heard.map_err(|error| error.kind());
    assert_eq!(kind, Err(io::ErrorKind::ConnectionReset));
}

#[test]
fn signal_resets_connection() {
    if lacks(NEEDS) {
        return;
    }
    let _turn = turn();
    let ways = ["", "--offload never", "--progress manual"];
    for (number, options) in ways.into_iter().enumerate() {
        for (signal, flue_listens) in SIGNALS.into_iter().zip([true, false, number % 2 == 0]) {
            let mut conversation = Conversation::new(flue_listens, options);
            // Held open: end of input would send a FIN.
            let _input = conversation.flue.take_input();
            conversation.flue.signal(signal);
            assert_reset(conversation.read_until_end());
            conversation.flue.expect_line("interrupted by", LIMIT);
            conversation.flue.expect_exit(128 + signal.as_raw(), LIMIT);
        }
    }
}

#[test]
fn failure_resets_connection() {
    if lacks(NEEDS) {
        return;
    }
    let _turn = turn();
    for options in ["", "--offload never"] {
        let mut conversation = Conversation::new(true, options);
        let _input = conversation.flue.take_input();
        // Standard output has no reader.
        drop(conversation.flue.take_output());
        conversation.socket.write_all(b"unheard").unwrap();
        assert_reset(conversation.read_until_end());
        conversation.flue.expect_exit(BROKEN_PIPE_STATUS, LIMIT);
    }
}

#[test]
fn orderly_end_sends_fin() {
    if lacks(NEEDS) {
        return;
    }
    let _turn = turn();
    for (flue_first, options) in
        [(true, ""), (false, ""), (true, "--offload never"), (false, "--offload never")]
    {
        let mut conversation = Conversation::new(true, options);
        let input = conversation.flue.take_input();
        if flue_first {
            drop(input);
            assert_eq!(conversation.read_until_end().unwrap(), 0);
            conversation.socket.shutdown(Shutdown::Write).unwrap();
        } else {
            conversation.socket.shutdown(Shutdown::Write).unwrap();
            drop(input);
            assert_eq!(conversation.read_until_end().unwrap(), 0);
        }
        conversation.flue.expect_exit(0, LIMIT);
        let error = conversation.socket.take_error().unwrap();
        assert!(error.is_none(), "all data was received: {error:?}");
    }
}

// The peer of a queue pair is notified too, long before its own timeout.
#[test]
fn signalled_queue_pair_notifies_peer() {
    if lacks(NEEDS) {
        return;
    }
    let _turn = turn();
    for signal in [Signal::INT, Signal::TERM] {
        let switch = Switch::new(1500);
        let rping = |what: &str, host: u8| {
            let node =
                format!("--tap tap{host} --addr 10.0.0.{host}/24 --bridge {}", Switch::BRIDGE);
            let line = format!("rping {what} {node}");
            Process::start(switch.namespace(), command(FLUE, &line), Output::Lines)
        };
        let mut server = rping("-s -a 10.0.0.2", 2);
        server.expect_line("listening", LIMIT);
        let mut client = rping("-c -a 10.0.0.2 -C 1000000", 1);
        client.expect_line("connected", LIMIT);
        server.expect_line("connected", LIMIT);
        let begun = Instant::now();
        server.signal(signal);
        server.expect_exit(128 + signal.as_raw(), LIMIT);
        client.expect_exit(1, LIMIT);
        assert!(begun.elapsed() < NOTIFICATION_LIMIT, "{:?}", begun.elapsed());
    }
}

/// Kernel socket connected as the peer of a queue pair of `flue rping -s`.
fn queue_pair(options: &str) -> (Process, TcpStream, Namespace) {
    let host = Namespace::new();
    let node = "--tap tap0 --addr 10.0.0.2/24 --host-addr 10.0.0.1/24";
    let line = format!("rping -s -p 5000 {node} {options}");
    let mut flue = Process::start(&host, command(FLUE, &line), Output::Lines);
    flue.expect_line("listening", LIMIT);
    let mut socket = host.run(|| TcpStream::connect_timeout(&flue_at(), LIMIT)).unwrap();
    socket.set_read_timeout(Some(NOTIFICATION_LIMIT)).unwrap();
    let rtr = RtrSet::only(RtrKind::Write);
    let initiator = Initiator::new(StartupConfig { rtr, ..StartupConfig::default() });
    socket.write_all(&initiator.request()).unwrap();
    let mut reply = Vec::new();
    while initiator.receive(&reply).unwrap().is_none() {
        let mut octet = [0];
        socket.read_exact(&mut octet).unwrap();
        reply.extend_from_slice(&octet);
    }
    let (none, mut fpdu): ([Bytes; 0], Vec<Bytes>) = ([], Vec::new());
    let header = rtr_header(RtrKind::Write);
    Encoder::new(true, false).encode(&header, &none, &mut Slab::new(), &mut fpdu);
    socket.write_all(&fpdu.concat()).unwrap();
    flue.expect_line("connected", LIMIT);
    (flue, socket, host)
}

// Idle queue pair: the kernel receives the FIN or RST of each kind of process exit.
#[test]
fn end_of_queue_pair_is_reported_to_kernel() {
    if lacks(NEEDS) {
        return;
    }
    let _turn = turn();
    for options in ["", "--offload never", "--progress manual"] {
        for signal in SIGNALS {
            let (mut flue, mut socket, _host) = queue_pair(options);
            flue.signal(signal);
            assert_reset(socket.read(&mut [0; 16]));
            flue.expect_line("interrupted by", LIMIT);
            flue.expect_exit(128 + signal.as_raw(), LIMIT);
        }
        // Normal exit: the client closes between two pings.
        let (mut flue, mut socket, _host) = queue_pair(options);
        socket.shutdown(Shutdown::Write).unwrap();
        assert_eq!(socket.read(&mut [0; 16]).unwrap(), 0);
        flue.expect_exit(0, LIMIT);
        // Failure: an FPDU without data whose CRC is incorrect. The queue pair sends a Terminate, then a FIN.
        let (mut flue, mut socket, _host) = queue_pair(options);
        socket.write_all(&[0; 8]).unwrap();
        let mut terminate = Vec::new();
        socket.read_to_end(&mut terminate).unwrap();
        assert!(!terminate.is_empty(), "{options}: a Terminate");
        flue.expect_line("error detected by this side: MPA: CRC of an FPDU", LIMIT);
        flue.expect_exit(1, LIMIT);
    }
}

// `flue perf`: when either end is signaled, the other one is notified and exits.
#[test]
fn signalled_measurement_notifies_peer() {
    if lacks(NEEDS) {
        return;
    }
    let _turn = turn();
    for signal in SIGNALS {
        for server_ends in [true, false] {
            let switch = Switch::new(1500);
            let perf = |line: &str| {
                let line = format!("perf write-bw {line} --bridge {}", Switch::BRIDGE);
                Process::start(switch.namespace(), command(FLUE, &line), Output::Lines)
            };
            let mut server = perf("-1 --tap taps --addr 10.0.0.1/24");
            server.expect_line("listening", LIMIT);
            let mut client = perf("-D 100 --tap tapc --addr 10.0.0.2/24 10.0.0.1");
            server.expect_line("client: 10.0.0.2", LIMIT);
            let begun = Instant::now();
            let (ends, told) =
                if server_ends { (&mut server, &mut client) } else { (&mut client, &mut server) };
            ends.signal(signal);
            ends.expect_exit(128 + signal.as_raw(), LIMIT);
            told.expect_exit(1, LIMIT);
            assert!(begun.elapsed() < NOTIFICATION_LIMIT, "{:?}", begun.elapsed());
        }
    }
}
