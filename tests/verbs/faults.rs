//! Failed system calls: each place of the verbs library that makes a system call gets each plausible error from it
//! once, at either end of a pair of programs, on kernel sockets and on nodes.
//!
//! Both programs end within [`LIMIT`], without a panic or a signal. A program that fails prints or logs the reason, and
//! a server that waits for another client serves it. The data that arrives is correct: rping and the ping-pong compare
//! it. A program that has exited leaves no TAP, no bridge and no control socket. The places are those of a run without
//! faults (`faults.c`). By default a part of the cases runs; all of them by `tests/verbs/run faults`.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};

use crate::NEEDS;
use crate::group::{Group, listens};
use crate::launch::compile;
use crate::results;
use crate::test_bed::{End, LIMIT, Transport};

const SOURCE: &str = include_str!("faults.c");

/// Time after which an end that may wait for another program does so.
const WAIT: Duration = Duration::from_secs(4);

/// Cases of a pair in an ordinary run.
const CASES_MAX: usize = 24;

/// Cases as above of a pair on nodes, whose TAPs are created for each case.
const CASES_ON_NODES_MAX: usize = 8;

/// Exit statuses of a shell for a program that a signal has ended. rping exits with 255.
const SIGNALS: std::ops::Range<i32> = 129..192;

/// Plausible errors of each system call. A call that is absent here does not fail: its arguments are valid, and it
/// needs no resources.
const ERRORS: &[(&str, &[&str])] = &[
    ("read", &["EIO", "EINTR", "ENOMEM"]),
    ("recvfrom", &["ECONNRESET", "EINTR", "ETIMEDOUT", "ENOMEM"]),
    ("recvmsg", &["ECONNRESET", "EINTR", "ENOMEM"]),
    ("recvmmsg", &["EINTR", "ENOMEM"]),
    ("write", &["ENOSPC", "EINTR", "EIO"]),
    ("writev", &["ENOSPC", "EINTR", "EIO"]),
    ("sendto", &["ENOBUFS", "EINTR", "EPIPE", "ECONNRESET", "ENOMEM"]),
    ("sendmsg", &["ECONNRESET", "EINTR", "EPIPE", "ENOBUFS", "ENOMEM"]),
    ("sendmmsg", &["ENOBUFS", "EINTR"]),
    ("epoll_create1", &["EMFILE", "ENFILE", "ENOMEM"]),
    ("epoll_ctl", &["ENOMEM", "ENOSPC"]),
    ("epoll_wait", &["EINTR"]),
    ("epoll_pwait", &["EINTR"]),
    ("epoll_pwait2", &["EINTR"]),
    ("poll", &["EINTR", "ENOMEM"]),
    ("ppoll", &["EINTR", "ENOMEM"]),
    ("select", &["EINTR", "ENOMEM"]),
    ("eventfd2", &["EMFILE", "ENOMEM"]),
    ("timerfd_create", &["EMFILE", "ENOMEM"]),
    ("memfd_create", &["EMFILE", "ENOMEM", "ENOSYS"]),
    ("mmap", &["ENOMEM", "EAGAIN"]),
    ("mprotect", &["ENOMEM"]),
    ("clone", &["EAGAIN"]),
    ("clone3", &["EAGAIN", "ENOMEM"]),
    ("open", &["EMFILE", "EACCES"]),
    ("openat", &["EMFILE", "ENFILE", "EACCES", "ENOENT", "EINTR"]),
    ("getdents64", &["ENOMEM"]),
    ("fcntl", &["EMFILE"]),
    ("dup", &["EMFILE"]),
    ("pipe2", &["EMFILE"]),
    ("socketpair", &["EMFILE", "ENOBUFS"]),
    ("stat", &["EACCES"]),
    ("statx", &["EACCES", "ENOMEM"]),
    ("mkdir", &["EACCES", "ENOSPC"]),
    ("unlink", &["EACCES"]),
    ("ftruncate", &["ENOSPC"]),
    ("socket", &["EMFILE", "ENFILE", "ENOBUFS", "EACCES", "EAFNOSUPPORT"]),
    ("bind", &["EADDRINUSE", "EACCES", "EADDRNOTAVAIL"]),
    ("listen", &["EADDRINUSE"]),
    ("accept4", &["EMFILE", "ENFILE", "ECONNABORTED", "ENOMEM", "EINTR", "EPERM"]),
    ("connect", &["ECONNREFUSED", "ETIMEDOUT", "EADDRNOTAVAIL", "ENETUNREACH", "EINTR"]),
    ("shutdown", &["ENOTCONN"]),
    ("getsockname", &["ENOBUFS"]),
    ("getpeername", &["ENOTCONN"]),
    ("setsockopt", &["ENOPROTOOPT", "ENOMEM"]),
    ("getsockopt", &["ENOBUFS"]),
    ("ioctl", &["EINTR", "ENOMEM"]),
    ("pread64", &["EINTR", "EIO"]),
    ("pwrite64", &["EINTR", "ENOSPC"]),
    ("readlink", &["EACCES", "ENOMEM"]),
    ("readlinkat", &["EACCES", "ENOMEM"]),
    ("pidfd_open", &["EMFILE", "ENOSYS"]),
    ("getrandom", &["ENOSYS"]),
    ("sched_getaffinity", &["EPERM"]),
    ("sched_setaffinity", &["EPERM"]),
];

/// Errors of calls on a TAP in addition to [`ERRORS`]: the interface was removed.
const TAP_ERRORS: &[(&str, &[&str])] = &[
    ("read", &["EBADFD"]),
    ("write", &["EBADFD"]),
    ("writev", &["EBADFD", "ENOMEM"]),
    ("ioctl", &["EBADFD"]),
];

/// Calls at one place after which the second half of a transfer is in progress; then a call in the middle fails, too.
const MANY_CALLS: u64 = 8;

/// Pair of programs.
#[derive(Debug)]
struct Pair {
    program: &'static str,
    server: &'static str,
    client: &'static str,
    port: u16,
    /// True if the program itself listens on the port by TCP, also on nodes.
    listens_by_tcp: bool,
    transport: fn() -> Transport,
    /// Prerequisites of the transport.
    needs: &'static [Need],
    cases_max: usize,
    /// True if a server whose client has failed serves the next one. That of perftest listens again, but keeps the
    /// completion queue, and takes flushed requests of the first connection for those of the next one.
    serves_next_client: bool,
    /// True if a program may wait forever for one that has failed: it posts receives, whose peer a RoCE device does not
    /// report (docs/guide/verbs-connect.md), and it does not read its own TCP connection.
    waits_for_peer: bool,
}

const RPING: Pair = Pair {
    program: "rping",
    server: "rping -s -a 127.0.0.1 -C 20 -V",
    client: "rping -c -a 127.0.0.1 -C 20 -V",
    port: 7174,
    listens_by_tcp: false,
    transport: Transport::sockets,
    needs: &[],
    cases_max: CASES_MAX,
    serves_next_client: true,
    waits_for_peer: false,
};

const PING_PONG: Pair = Pair {
    program: "ibv_rc_pingpong",
    server: "ibv_rc_pingpong -g 0 -c -n 100",
    client: "ibv_rc_pingpong -g 0 -c -n 100 127.0.0.1",
    port: 18515,
    listens_by_tcp: true,
    transport: Transport::sockets,
    needs: &[],
    cases_max: CASES_MAX,
    serves_next_client: true,
    waits_for_peer: true,
};

/// Messages of several frames, which are written from several pieces.
const RPING_ON_NODES: Pair = Pair {
    server: "rping -s -a 127.0.0.1 -C 20 -V -S 20000",
    client: "rping -c -a 127.0.0.1 -C 20 -V -S 20000",
    transport: Transport::nodes,
    needs: &[Need::Tun],
    cases_max: CASES_ON_NODES_MAX,
    ..RPING
};

const PING_PONG_ON_NODES: Pair = Pair {
    transport: Transport::nodes,
    needs: &[Need::Tun],
    cases_max: CASES_ON_NODES_MAX,
    ..PING_PONG
};

const WRITES: Pair = Pair {
    program: "ib_write_bw",
    server: "ib_write_bw -F -n 100",
    client: "ib_write_bw -F -n 100 127.0.0.1",
    port: 18515,
    listens_by_tcp: true,
    transport: Transport::sockets,
    needs: &[],
    cases_max: CASES_MAX,
    serves_next_client: false,
    waits_for_peer: false,
};

const SENDS: Pair = Pair {
    program: "ib_send_bw",
    server: "ib_send_bw -F -R -e -n 100",
    client: "ib_send_bw -F -R -e -n 100 127.0.0.1",
    port: 18515,
    listens_by_tcp: false,
    transport: Transport::sockets,
    needs: &[],
    cases_max: CASES_MAX,
    serves_next_client: false,
    waits_for_peer: false,
};

/// Error of one call.
#[derive(Clone, Debug)]
struct Fault {
    end: End,
    call: String,
    error: &'static str,
    /// Offset in the library, hexadecimal.
    place: String,
    /// Number of the call at that place, from 1.
    number: u64,
    is_of_tap: bool,
}

impl Fault {
    /// Argument of the program that injects it.
    fn argument(&self) -> String {
        format!("{}:{}:{}:{}", self.call, self.error, self.place, self.number)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.end, self.argument())
    }
}

/// Bench of one pair of programs.
struct Bench {
    pair: &'static Pair,
    transport: Transport,
    scratch: Scratch,
    injector: PathBuf,
    /// Interfaces before the first program.
    links: Vec<String>,
}

impl Bench {
    fn new(pair: &'static Pair) -> Option<Self> {
        let tools = [Need::Tool("cc"), Need::Tool(pair.program)];
        if lacks(NEEDS) || lacks(pair.needs) || lacks(&tools) {
            return None;
        }
        let scratch = Scratch::new();
        let injector = compile(&scratch, "faults", SOURCE, &["-O1", "-Wall", "-Werror"]);
        let transport = (pair.transport)();
        let links = transport.host().links();
        Some(Self { pair, transport, scratch, injector, links })
    }

    fn report_file(&self, end: End) -> PathBuf {
        self.scratch.file(&format!("{end:?}.report"))
    }

    fn log_file(&self, end: End) -> PathBuf {
        self.scratch.file(&format!("{end:?}.log"))
    }

    fn report(&self, end: End) -> String {
        fs::read_to_string(self.report_file(end)).unwrap_or_default()
    }

    /// Starts the program of that end, whose calls the injector counts or fails as its argument selects.
    fn start(&self, end: End, argument: Option<&str>) -> Group {
        let line = match end {
            End::Server => self.pair.server,
            End::Client => self.pair.client,
        };
        // Absent files of a run that did not start are not errors.
        let _ = fs::remove_file(self.report_file(end));
        let _ = fs::remove_file(self.log_file(end));
        let (injector, report) = (self.injector.display(), self.report_file(end));
        let line = match argument {
            Some(argument) => format!("{injector} {} {argument} {line}", report.display()),
            None => line.to_owned(),
        };
        self.transport.start(end, &format!("--log {}", self.log_file(end).display()), &line)
    }

    /// True if the server accepts a client.
    fn listens(&self) -> bool {
        match self.pair.listens_by_tcp {
            true => self.transport.host().run(|| listens(self.pair.port)),
            false => self.transport.has_listener(self.pair.port),
        }
    }

    fn wait_for_listener(&self, server: &Group, limit: Duration) -> Result<(), String> {
        server.wait_until(&format!("listens on port {}", self.pair.port), limit, || self.listens())
    }

    /// Counts the calls of each place, and returns the faults of all of them.
    fn faults(&self) -> Vec<Fault> {
        let calls: Vec<_> = ERRORS.iter().map(|(call, _)| *call).collect();
        let calls = calls.join(",");
        let mut server = self.start(End::Server, Some(&calls));
        let found = self.wait_for_listener(&server, LIMIT);
        assert_eq!(found, Ok(()), "{}", server.report());
        let mut client = self.start(End::Client, Some(&calls));
        let ended = [&mut client, &mut server].map(|it| it.wait(LIMIT).map(|it| it.code()));
        client.kill();
        server.kill();
        let all = [Ok(Some(0)), Ok(Some(0))];
        assert_eq!(ended, all, "{}\n{}", server.report(), client.report());
        let mut faults = Vec::new();
        for end in [End::Server, End::Client] {
            for line in self.report(end).lines() {
                let [call, place, count, file] = line.split(' ').collect::<Vec<_>>()[..] else {
                    panic!("report of the injector: {line}");
                };
                let (_, errors) = ERRORS.iter().find(|it| it.0 == call).expect("a call");
                let is_of_tap = file == "tap";
                let of_tap = TAP_ERRORS.iter().find(|it| is_of_tap && it.0 == call);
                let errors = || errors.iter().chain(of_tap.iter().flat_map(|it| it.1)).copied();
                let count: u64 = count.parse().expect("a number of calls");
                let numbers = match call {
                    // All threads are created at one place.
                    "clone" | "clone3" => (1..=count.min(MANY_CALLS)).collect(),
                    _ if count >= MANY_CALLS => vec![1, count / 2],
                    _ => vec![1],
                };
                for number in numbers {
                    let fault = |error| Fault {
                        end,
                        call: call.to_owned(),
                        error,
                        place: place.to_owned(),
                        number,
                        is_of_tap,
                    };
                    faults.extend(errors().map(fault));
                }
            }
        }
        faults
    }

    /// Runs both programs with the fault. Returns true if the call failed: threads may make fewer calls than before.
    fn run(&self, fault: &Fault) -> Result<bool, String> {
        let argument = fault.argument();
        let at = |end| (end == fault.end).then_some(argument.as_str());
        let mut server = self.start(End::Server, at(End::Server));
        let mut client = None;
        // A server that cannot start has no client. A node without a control socket lists no listener.
        let is_on_nodes = matches!(self.transport, Transport::Nodes(_));
        let limit = if is_on_nodes { WAIT } else { LIMIT };
        let found = self.wait_for_listener(&server, limit);
        let result = if found.is_ok() || is_on_nodes && server.is_running() {
            self.ends(fault, &mut server, client.insert(self.start(End::Client, at(End::Client))))
        } else {
            ended(&mut server, LIMIT).map(|_| ())
        };
        let has_exited =
            [Some(&server), client.as_ref()].map(|it| it.is_none_or(|it| !it.is_running()));
        server.kill();
        let mut output = server.report();
        if let Some(client) = &mut client {
            client.kill();
            output += &client.report();
        }
        for end in [End::Server, End::Client] {
            let log = fs::read_to_string(self.log_file(end)).unwrap_or_default();
            output += &format!("--- log of {end:?}\n{log}");
        }
        let remains = self.remains(fault, has_exited);
        let log = fs::read_to_string(self.log_file(fault.end)).unwrap_or_default();
        let mut errors = log.lines().filter(|line| line.contains(" ERROR ")).peekable();
        let names_the_link = |line: &str| line.contains("TAP") || line.contains("link failed");
        let result = match result {
            _ if output.contains("panicked") => Err("panic".into()),
            _ if output.contains("device failed") && !output.contains("link failed") => {
                Err("device failed without a reason".into())
            }
            Ok(()) if fault.is_of_tap && errors.peek().is_some() && !errors.any(names_the_link) => {
                Err("no error in the log names the TAP".into())
            }
            Ok(()) if !remains.is_empty() => Err(format!("left: {}", remains.join(", "))),
            result => result,
        };
        result.map_err(|wrong: String| format!("{fault}: {wrong}\n{output}"))?;
        Ok(self.report(fault.end).contains("failed"))
    }

    /// Interfaces and control sockets of nodes that remain after both programs have ended. A program that was killed
    /// leaves its control socket, and so does one that cannot remove it.
    fn remains(&self, fault: &Fault, has_exited: [bool; 2]) -> Vec<String> {
        let Transport::Nodes(node_pair) = &self.transport else { return Vec::new() };
        let links = || {
            let mut links = self.transport.host().links();
            links.retain(|link| !self.links.contains(link));
            links
        };
        // The processes of a killed program end after their output does.
        let deadline = Instant::now() + WAIT;
        let mut remains = links();
        while !remains.is_empty() && Instant::now() < deadline {
            remains = links();
        }
        for (end, has_exited) in [End::Server, End::Client].into_iter().zip(has_exited) {
            let directory = node_pair.runtime[end as usize].file("flue");
            let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
            let sockets: Vec<_> = entries.map(|entry| entry.path()).collect();
            if has_exited && !(end == fault.end && fault.call == "unlink") {
                remains.extend(sockets.iter().map(|path| format!("{end:?} {}", path.display())));
            }
            for socket in sockets {
                fs::remove_file(socket).expect("a file of this test");
            }
        }
        remains
    }

    /// Waits for both ends. One of them may wait for the other, as the pair permits, if that has failed.
    fn ends(&self, fault: &Fault, server: &mut Group, client: &mut Group) -> Result<(), String> {
        let mut server_status = None;
        // Until one has ended; otherwise the waits below fail.
        let _ = client.wait_until("server has ended", LIMIT, || {
            server_status = server.wait(Duration::ZERO).ok();
            server_status.is_some()
        });
        let limit = if self.pair.waits_for_peer { WAIT } else { LIMIT };
        let client_failed = match client.wait(limit) {
            Ok(status) => Some(has_failed(status, client)?),
            Err(_) => None,
        };
        if client_failed == Some(true) && server_status.is_none() {
            server_status = server.wait(WAIT).ok();
            if server_status.is_none() && self.listens() {
                return self.serves_next_client(server);
            }
        }
        let server_failed = match server_status.map_or_else(|| server.wait(limit), Ok) {
            Ok(status) => Some(has_failed(status, server)?),
            Err(_) => None,
        };
        let waiting = match (server_failed, client_failed) {
            (Some(_), Some(_)) => return Ok(()),
            (None, Some(true)) => End::Server,
            (Some(true), None) => End::Client,
            _ => return Err(format!("failed: server {server_failed:?}, client {client_failed:?}")),
        };
        let log = fs::read_to_string(self.log_file(waiting)).unwrap_or_default();
        match self.pair.waits_for_peer {
            true if waiting == fault.end && log.is_empty() => Err("waits without a reason".into()),
            true => Ok(()),
            false => Err(format!("{waiting:?} still running after {limit:?}")),
        }
    }

    /// Checks that a server that waits for another client serves it, as the pair requires.
    fn serves_next_client(&self, server: &mut Group) -> Result<(), String> {
        if !self.pair.serves_next_client {
            return Ok(());
        }
        let mut second = self.start(End::Client, None);
        let succeeded = ended(&mut second, LIMIT);
        match succeeded.and_then(|failed| Ok(failed || ended(server, LIMIT)?)) {
            Ok(false) => Ok(()),
            wrong => Err(format!("second client: {wrong:?}\n{}", second.report())),
        }
    }
}

/// Waits for the end of a program. Returns true if it has failed, with a reason in its output.
fn ended(program: &mut Group, limit: Duration) -> Result<bool, String> {
    let status = program.wait(limit)?;
    has_failed(status, program)
}

/// Returns true if a program with that exit status has failed, with a reason in its output.
fn has_failed(status: ExitStatus, program: &Group) -> Result<bool, String> {
    match status.code() {
        Some(0) => Ok(false),
        Some(code) if SIGNALS.contains(&code) => Err(format!("signal {}", code - 128)),
        Some(code) if program.said().trim().is_empty() => {
            Err(format!("exit status {code} without a message"))
        }
        Some(_) => Ok(true),
        None => Err("no exit status".into()),
    }
}

/// Returns at most `count` faults, evenly distributed. Half of them are reads and writes of a TAP, if there are any.
fn sample(faults: &[Fault], count: usize) -> Vec<&Fault> {
    let moves_frame = |fault: &&Fault| fault.is_of_tap && fault.call != "ioctl";
    let (tap, other): (Vec<_>, Vec<_>) = faults.iter().partition(moves_frame);
    let of_tap = tap.len().min(count / 2);
    let evenly = |faults: Vec<_>, count: usize| {
        let step = faults.len().div_ceil(count.max(1)).max(1);
        faults.into_iter().step_by(step)
    };
    evenly(tap, of_tap).chain(evenly(other, count - of_tap)).collect()
}

/// Runs the cases of a pair; all that fail are reported together.
fn fails_with_a_reason_or_recovers(pair: &'static Pair) {
    let Some(bench) = Bench::new(pair) else { return };
    let faults = bench.faults();
    let count = if results::are_enabled() { usize::MAX } else { pair.cases_max };
    let (mut wrong, mut injected) = (Vec::new(), 0);
    let cases = sample(&faults, count);
    let total = cases.len();
    for fault in cases {
        match bench.run(fault) {
            Ok(has_failed) => injected += usize::from(has_failed),
            Err(report) => {
                println!("{report}");
                wrong.push(fault.to_string());
            }
        }
    }
    println!("{}: {injected} of {total} faults injected", pair.program);
    assert!(wrong.is_empty(), "{} cases: {}", wrong.len(), wrong.join(", "));
    // A few calls depend on the order of threads.
    assert!(2 * injected > total, "{injected} of {total} faults injected");
}

#[test]
fn rping_with_a_failed_call_ends_with_a_reason_or_recovers() {
    fails_with_a_reason_or_recovers(&RPING);
}

#[test]
fn pingpong_with_a_failed_call_ends_with_a_reason_or_recovers() {
    fails_with_a_reason_or_recovers(&PING_PONG);
}

#[test]
fn rping_on_nodes_with_a_failed_call_ends_with_a_reason_or_recovers() {
    fails_with_a_reason_or_recovers(&RPING_ON_NODES);
}

#[test]
fn pingpong_on_nodes_with_a_failed_call_ends_with_a_reason_or_recovers() {
    fails_with_a_reason_or_recovers(&PING_PONG_ON_NODES);
}

#[test]
fn ib_write_bw_with_a_failed_call_ends_with_a_reason_or_recovers() {
    if results::are_enabled() {
        fails_with_a_reason_or_recovers(&WRITES);
    } else {
        println!("skipped: long test, run by tests/verbs/run");
    }
}

#[test]
fn ib_send_bw_with_a_failed_call_ends_with_a_reason_or_recovers() {
    if results::are_enabled() {
        fails_with_a_reason_or_recovers(&SENDS);
    } else {
        println!("skipped: long test, run by tests/verbs/run");
    }
}
