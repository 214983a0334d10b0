//! Each row of the table as a test.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use flue_test_support::flue::{ORDINARY_USER_ID, Scratch, command};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;

use crate::group::{Group, ending};
use crate::table::{ROWS, Row, Seen};
use crate::{FLUE, NEEDS, library, machine};

/// For a program's end: in the table none takes longer than a few seconds on two CPUs of their own.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory for the results of the table's rows, a file each; tests/verbs/run makes docs/verbs.md from them.
const RESULTS: &str = "FLUE_VERBS_RESULTS";

/// The program under flue.
pub(crate) fn under_flue(options: &str, line: &str) -> Command {
    let mut command = Command::new(FLUE);
    command
        .arg("run")
        .args(options.split_whitespace())
        .arg("--library")
        .arg(library())
        .arg("--")
        .args(line.split_whitespace());
    command
}

/// Waits for an end that must be 0 and say all that.
fn check(end: &mut Group, says: &[&str]) -> Result<(), String> {
    let status = end.wait(LIMIT)?;
    if status.code() != Some(0) {
        return Err(ending(status));
    }
    let said = end.said();
    match says.iter().find(|text| !said.contains(**text)) {
        Some(text) => Err(format!("does not say {text:?}")),
        None => Ok(()),
    }
}

/// Runs both ends.
///
/// # Errors
/// What is wrong, with all that both have said.
fn run_pair(
    host: &Namespace,
    row: &Row,
    under: impl Fn(&str, &str) -> Command,
) -> Result<String, String> {
    let Some((line, port)) = row.server else {
        let mut only = Group::start(host, under(row.options, row.client));
        return match check(&mut only, row.client_says) {
            Ok(()) => Ok(only.said()),
            Err(wrong) => {
                only.kill();
                Err(format!("{wrong}\n{}", only.report()))
            }
        };
    };
    let mut server = Group::start(host, under(row.options, line));
    let mut client = None;
    let mut run = || {
        server.wait_for_listener(host, port, LIMIT).map_err(|wrong| format!("server {wrong}"))?;
        let client = client.insert(Group::start(host, under(row.options, row.client)));
        check(client, row.client_says).map_err(|wrong| format!("client: {wrong}"))?;
        let said = client.said();
        if row.server_ends {
            check(&mut server, row.server_says).map_err(|wrong| format!("server: {wrong}"))?;
        }
        Ok(said)
    };
    let result = run();
    result.map_err(|wrong: String| {
        server.kill();
        let client = client.map(|mut client| {
            client.kill();
            client.report()
        });
        format!("{wrong}\n{}\n{}", server.report(), client.unwrap_or_default())
    })
}

/// What the table shows.
fn result(row: &Row, said: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    match row.result {
        Seen::Text => {
            row.client_says.first().map_or_else(|| "exit status 0".into(), |text| words(text))
        }
        Seen::Lines(text) => said
            .lines()
            .filter(|line| line.contains(text))
            .map(words)
            .collect::<Vec<_>>()
            .join("; "),
        Seen::Cell(heading, at, unit) => {
            let line = said.lines().skip_while(|line| !line.contains(heading)).nth(1);
            let cell = line.and_then(|line| line.split_whitespace().nth(at));
            format!("{} {unit}", cell.unwrap_or("-"))
        }
    }
}

/// The row of this name, and whether the machine can run it.
fn row(name: &str) -> Option<&'static Row> {
    let row = ROWS.iter().find(|row| row.name == name).expect("a row of the table");
    let tool = |line: &'static str| line.split(' ').next().expect("a program");
    let server = row.server.map_or(row.client, |(line, _)| line);
    let lacking = lacks(NEEDS) || lacks(&[Need::Tool(tool(row.client)), Need::Tool(tool(server))]);
    (!lacking).then_some(row)
}

fn run_row(name: &str) {
    let Some(row) = row(name) else { return };
    if row.is_long && std::env::var_os(RESULTS).is_none() {
        println!("skipped: it is long, and for tests/verbs/run");
        return;
    }
    let said = match run_pair(&machine(), row, under_flue) {
        Ok(said) => said,
        Err(wrong) => panic!("{name} (Debian package {}): {wrong}", row.package),
    };
    if let Some(directory) = std::env::var_os(RESULTS) {
        let server = row.server.map_or_else(|| "-".into(), |(line, _)| format!("`{line}`"));
        let options =
            if row.options.is_empty() { "-".into() } else { format!("`{}`", row.options) };
        let Row { package, client, .. } = row;
        let line =
            format!("| {package} | {options} | {server} | `{client}` | {} |\n", result(row, &said));
        let at = ROWS.iter().position(|it| it.name == name).expect("a row of the table");
        fs::write(std::path::Path::new(&directory).join(format!("{at:02}-{name}")), line)
            .expect("a directory");
    }
}

macro_rules! rows {
    ($($name:ident)*) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { run_row(stringify!($name)) })*
    };
}

rows! {
    ibv_devices
    ibv_devinfo
    rping
    rping_of_64_kib
    rping_over_ipv6
    rping_of_all_addresses
    rping_with_queue_pairs_of_its_own
    rping_persistent_server
    rdma_server_and_client
    rdma_xserver_and_xclient
    ucmatose
    ucmatose_with_migration
    cmtime
    rstream
    rstream_bandwidth
    rstream_that_waits_for_all
    rstream_that_polls
    riostream
    ib_write_bw
    ib_read_bw
    ib_send_bw
    ib_write_lat
    ib_read_lat
    ib_send_lat
    ib_send_lat_by_events
    ib_write_bw_both_ways
    ib_write_bw_of_all_sizes
    ib_read_bw_of_all_sizes
    ib_send_bw_of_all_sizes
    ib_write_lat_of_all_sizes
    ib_read_lat_of_all_sizes
    ib_send_lat_of_all_sizes
    ib_send_bw_both_ways
    ib_read_bw_both_ways
    ib_read_bw_by_events
    ib_send_bw_by_events
    ib_send_bw_with_srq
    ib_atomic_fetch_add_bw
    ib_atomic_compare_swap_lat
    qperf
    qperf_with_immediate_data_and_atomics
    fio_write
    fio_read
    fio_send
    fio_in_threads
    fi_info
    fi_pingpong
    fi_pingpong_of_datagrams
}

#[test]
fn every_row_is_a_test() {
    let rows: Vec<_> = ROWS.iter().map(|row| row.name).collect();
    assert_eq!(rows, TESTED);
}

// rdma-core's rping and flue's, each as the server of the other.
#[test]
fn rping_with_flues_own() {
    let Some(_) = row("rping") else { return };
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

/// What a process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Footprint {
    threads: usize,
    descriptors: usize,
    resident_kib: u64,
}

impl Footprint {
    fn of(process: u32) -> Self {
        let count = |of: &str| {
            fs::read_dir(format!("/proc/{process}/{of}")).map_or(0, |entries| entries.count())
        };
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let resident_kib = resident.expect("a process that runs has memory");
        Self { threads: count("task"), descriptors: count("fd"), resident_kib }
    }
}

/// Clients of the server that stays, one after the other; as many where it may take longer.
const CLIENTS: usize = 60;
const MANY_CLIENTS: usize = 1000;
/// Clients until the server has all that it needs for the next one.
const FIRST_CLIENTS: usize = 20;
/// The allocator's, whatever the number of clients.
const GROWTH_KIB_MAX: u64 = 128;

// Each client leaves nothing behind: no descriptor, no thread, no memory.
#[test]
fn rping_persistent_server_does_not_grow() {
    let Some(_) = row("rping_persistent_server") else { return };
    let clients = if std::env::var_os(RESULTS).is_some() { MANY_CLIENTS } else { CLIENTS };
    let host = machine();
    let mut server = Group::start(&host, under_flue("", "rping -s -P -a 127.0.0.1 -V"));
    let listens = server.wait_for_listener(&host, 7174, LIMIT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let process = server.process("rping");
    let threads = Footprint::of(process).threads;
    // Its threads for a client end behind it.
    let settled = || {
        let mut now = Footprint::of(process);
        let alone = server.wait_until("its threads have ended", LIMIT, || {
            now = Footprint::of(process);
            now.threads == threads
        });
        assert_eq!(alone, Ok(()), "{threads} threads at first: {now:?}");
        now
    };
    let begun = Instant::now();
    let mut first = None;
    for count in 1..=clients {
        let mut client = Group::start(&host, under_flue("", "rping -c -a 127.0.0.1 -C 5 -V"));
        let ended = check(&mut client, &[]);
        assert_eq!(ended, Ok(()), "client {count}: {}", client.report());
        if count == FIRST_CLIENTS {
            first = Some(settled());
        }
    }
    let (first, last) = (first.expect("there were more"), settled());
    println!("{clients} clients in {:?}: {first:?}, {last:?}", begun.elapsed());
    server.kill();
    assert_eq!(first.descriptors, last.descriptors);
    assert!(last.resident_kib <= first.resident_kib + GROWTH_KIB_MAX, "{first:?}, {last:?}");
}

/// Bytes of a file that is copied: more than all buffers on the way.
const FILE_BYTES: usize = 5_000_000;

/// A file in which every part is different.
fn make_file(scratch: &Scratch) -> Vec<u8> {
    let mut state = 1_u32;
    let octets: Vec<_> = (0..FILE_BYTES)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    fs::write(scratch.file("from"), &octets).expect("a file can be written");
    octets
}

// rcopy says when it has closed the copy.
#[test]
fn rcopy() {
    let needed = [Need::Tool("rcopy")];
    if lacks(NEEDS) || lacks(&needed) {
        return;
    }
    let (host, scratch) = (machine(), Scratch::new());
    let octets = make_file(&scratch);
    let mut server = Group::start(&host, under_flue("", "rcopy"));
    let listens = server.wait_for_listener(&host, 7427, LIMIT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let mut client = under_flue("", "rcopy");
    client.arg(scratch.file("from"));
    client.arg(format!("127.0.0.1:{}", scratch.file("to").display()));
    let mut client = Group::start(&host, client);
    let ended = check(&mut client, &[&format!("{FILE_BYTES} bytes")]);
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    assert!(fs::read(scratch.file("to")).is_ok_and(|copy| copy == octets), "not the same");
}

/// rdma-core's library that turns a program's sockets into rsockets; its package needs librdmacm's.
fn preload() -> std::path::PathBuf {
    let libraries = fs::read_dir("/usr/lib").expect("a directory").flatten();
    let mut places = libraries.map(|it| it.path().join("rsocket/librspreload.so"));
    places.find(|place| place.is_file()).expect("librdmacm1 has librspreload.so")
}

/// A shell's line with librspreload, captured.
fn preloaded(scratch: &Scratch, capture: &str, line: &str) -> Command {
    let mut command = Command::new(FLUE);
    command.arg("run").arg("--library").arg(library());
    command.arg("--pcap").arg(scratch.file(capture));
    command.args(["--", "env", &format!("LD_PRELOAD={}", preload().display()), "sh", "-c"]);
    command.arg(format!("exec {line}"));
    command
}

/// Runs both ends with librspreload, which falls back to the kernel's sockets in silence: the captures must have as
/// many bytes as were sent.
fn preloaded_pair(scratch: &Scratch, port: u16, server: &str, client: &str) {
    let host = machine();
    let mut server = Group::start(&host, preloaded(scratch, "server.pcap", server));
    let listens = server.wait_for_listener(&host, port, LIMIT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let mut client = Group::start(&host, preloaded(scratch, "client.pcap", client));
    let ended = check(&mut client, &[]).and_then(|()| check(&mut server, &[]));
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    for capture in ["server.pcap", "client.pcap"] {
        let captured = fs::metadata(scratch.file(capture)).map_or(0, |file| file.len());
        assert!(captured >= FILE_BYTES as u64, "{capture}: {captured} bytes went through flue");
    }
}

// A program of TCP sockets.
#[test]
fn netcat_by_librspreload() {
    let needed = [Need::Tool("busybox"), Need::Tool("rstream")];
    if lacks(NEEDS) || lacks(&needed) {
        return;
    }
    let scratch = Scratch::new();
    let octets = make_file(&scratch);
    let (from, to) = (scratch.file("from"), scratch.file("to"));
    // At the end of its input the server would close its direction, and the client leaves when it sees that. A FIFO
    // that is open for writing too has no end.
    let endless = scratch.file("endless");
    let made = Command::new("mkfifo").arg(&endless).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    let server = format!("busybox nc -l -p 5400 0<> {} > {}", endless.display(), to.display());
    let client = format!("busybox nc 127.0.0.1 5400 < {}", from.display());
    preloaded_pair(&scratch, 5400, &server, &client);
    assert!(fs::read(to).is_ok_and(|copy| copy == octets), "not the same");
}

// Its options, select(2), and several connections. With files iperf3 3.12 itself loses what a partial write leaves.
#[test]
fn iperf3_by_librspreload() {
    let needed = [Need::Tool("iperf3"), Need::Tool("rstream")];
    if lacks(NEEDS) || lacks(&needed) {
        return;
    }
    let client = format!("iperf3 -c 127.0.0.1 -p 5301 -P 2 -n {FILE_BYTES}");
    preloaded_pair(&Scratch::new(), 5301, "iperf3 -s -1 -p 5301", &client);
}

// In a container: no root, no /dev/net/tun, no user namespaces, no capability.
#[test]
fn rping_of_nobody() {
    let Some(row) = row("rping") else { return };
    if lacks(&[Need::InitialRoot, Need::Tool("setpriv")]) {
        return;
    }
    let scratch = Scratch::new();
    let copies = [(FLUE.into(), "flue"), (library(), "libflue_verbs.so")];
    for (from, name) in copies {
        fs::copy(from, scratch.file(name)).expect("the programs can be copied");
    }
    let nobody = |options: &str, line: &str| {
        let script = "mount -t tmpfs none /dev/net && shift 0 && exec setpriv \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", script, "sh"]);
        command
            .arg(format!("--reuid={ORDINARY_USER_ID}"))
            .arg(format!("--regid={ORDINARY_USER_ID}"));
        command.args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--"]);
        command.arg(scratch.file("flue")).arg("run").args(options.split_whitespace());
        command.arg("--").args(line.split_whitespace());
        command.env("TMPDIR", scratch.file("")).env_remove("XDG_RUNTIME_DIR");
        command
    };
    if let Err(wrong) = run_pair(&machine(), row, nobody) {
        panic!("{wrong}");
    }
}
