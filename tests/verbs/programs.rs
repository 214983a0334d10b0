//! Tests of the table's rows, on either device, on kernel sockets and on nodes.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use flue_test_support::flue::{ORDINARY_USER_ID, Scratch};
use flue_test_support::needs::{Need, lacks};

use crate::differences;
use crate::group::{Group, ending};
use crate::results::{self, Programs};
use crate::table::{InCi, ROWS, Row, Seen};
use crate::test_bed::{Device, End, LIMIT, Transport, under_flue};
use crate::{FLUE, NEEDS, library};

/// Time limit for a program with all message sizes or many steps, and for complete runs on any machine.
const LONG_LIMIT: Duration = Duration::from_secs(180);

/// Waits until the program has exited, with status 0 and all these texts in its output.
pub(crate) fn check(end: &mut Group, says: &[&str]) -> Result<(), String> {
    check_in(end, LIMIT, says)
}

fn check_in(end: &mut Group, limit: Duration, says: &[&str]) -> Result<(), String> {
    let status = end.wait(limit)?;
    if status.code() != Some(0) {
        return Err(ending(status));
    }
    let said = end.said();
    match says.iter().find(|text| !said.contains(**text)) {
        Some(text) => Err(format!("no output {text:?}")),
        None => Ok(()),
    }
}

/// Runs both ends, which `under` starts with options and a command line.
///
/// # Errors
///
/// Description of the failure, with the output of both.
fn run_pair(
    transport: &Transport,
    device: Device,
    row: &Row,
    under: impl Fn(&str, &str) -> Command,
) -> Result<String, String> {
    let is_long = row.in_ci(device) == Some(InCi::No) || results::are_enabled();
    let limit = if is_long { LONG_LIMIT } else { LIMIT };
    let difference = differences::of(device, row.name);
    let more = difference.map_or("", |difference| difference.options);
    let start = |end, line| {
        let of_transport = transport.options(end);
        let options = format!("{} {of_transport} {} {more}", device.options(), row.options);
        transport.start_command(end, under(&options, line))
    };
    let Some((line, port)) = row.server else {
        let mut only = start(End::Server, row.client);
        return match check_in(&mut only, limit, row.client_texts) {
            Ok(()) => Ok(only.said()),
            Err(wrong) => {
                only.kill();
                Err(format!("{wrong}\n{}", only.report()))
            }
        };
    };
    let mut server = start(End::Server, line);
    let mut client = None;
    let mut run = || {
        // The node of a program that connects its own queue pairs listens before the program does.
        if !row.listens_by_tcp {
            transport
                .wait_for_listener(&server, port)
                .map_err(|wrong| format!("server {wrong}"))?;
        }
        if row.listens_by_tcp || difference.is_some_and(|difference| difference.listens_by_tcp) {
            let listens = server.wait_for_listener(transport.host(), port, limit);
            listens.map_err(|wrong| format!("server {wrong}"))?;
        }
        let client = client.insert(start(End::Client, row.client));
        check_in(client, limit, row.client_texts).map_err(|wrong| format!("client: {wrong}"))?;
        let said = client.said();
        let may_wait =
            |text: &str| server.wait_until(text, limit, || server.said().contains(text)) == Ok(());
        if row.server_ends && !row.server_waits_after.is_some_and(may_wait) {
            check(&mut server, row.server_texts).map_err(|wrong| format!("server: {wrong}"))?;
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

/// Result shown in the table.
fn result(row: &Row, said: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    match row.result {
        Seen::Text => {
            row.client_texts.first().map_or_else(|| "exit status 0".into(), |text| words(text))
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

/// Row of this name, if the machine can run it.
fn row(name: &str) -> Option<&'static Row> {
    let row = ROWS.iter().find(|row| row.name == name).expect("a row of the table");
    let tool = |line: &'static str| line.split(' ').next().expect("a program");
    let server = row.server.map_or(row.client, |(line, _)| line);
    let lacking = lacks(NEEDS) || lacks(&[Need::Tool(tool(row.client)), Need::Tool(tool(server))]);
    (!lacking).then_some(row)
}

/// Message of perftest, which compares the cycle counter with the clock for each report, if other load disturbs that.
const UNSTEADY_CLOCK: &str = "Correlation coefficient";

fn run_row(
    name: &str,
    device: Device,
    transport: impl Fn() -> Transport,
    is_in_ci: impl Fn(InCi) -> bool,
) {
    let Some(row) = row(name) else { return };
    if !row.in_ci(device).is_some_and(is_in_ci) && !results::are_enabled() {
        println!("skipped: long test, run by tests/verbs/run");
        return;
    }
    let (transport, begun) = (transport(), Instant::now());
    let difference = differences::of(device, name);
    let run = || run_pair(&transport, device, row, under_flue);
    let said = run().or_else(|wrong| match wrong.contains(UNSTEADY_CLOCK) {
        true => run(),
        false => Err(wrong),
    });
    let seen = match (said, difference) {
        (Ok(said), None) => result(row, &said),
        (Err(wrong), Some(difference)) if difference.explains(&wrong) => {
            format!("fails: {}", difference.reason)
        }
        (Ok(_), Some(difference)) => panic!("{name} passes, expected {difference:?}"),
        (Err(wrong), _) => panic!("{name} (Debian package {}): {wrong}", row.package),
    };
    let options = format!("{} {}", row.options, difference.map_or("", |it| it.options));
    let programs = Programs {
        order: ROWS.iter().position(|it| it.name == name).expect("a row of the table"),
        name,
        package: row.package,
        options: options.trim(),
        server: row.server.map(|(line, _)| line),
        client: row.client,
    };
    results::note_on(device, &programs, &transport, &seen, begun.elapsed());
}

/// Tests of rows, on one device and one transport.
macro_rules! tests {
    ($device:ident on sockets: $($name:ident)*) => {
        $(#[test] fn $name() {
            let is_in_ci = |when| when != InCi::No;
            run_row(stringify!($name), Device::$device, Transport::sockets, is_in_ci);
        })*
    };
    ($device:ident on nodes: $($name:ident)*) => {
        $(#[test] fn $name() {
            if !lacks(&[Need::Tun]) {
                let is_in_ci = |when| when == InCi::Both;
                run_row(stringify!($name), Device::$device, Transport::nodes, is_in_ci);
            }
        })*
    };
}

macro_rules! rows {
    (iwarp [$($iwarp:ident)*] either [$($either:ident)*] roce [$($roce:ident)*]) => {
        const TESTED: [&[&str]; 3] =
            [&[$(stringify!($iwarp)),*], &[$(stringify!($either)),*], &[$(stringify!($roce)),*]];
        mod sockets {
            use super::*;
            tests!(Iwarp on sockets: $($iwarp)* $($either)*);
        }
        mod nodes {
            use super::*;
            tests!(Iwarp on nodes: $($iwarp)* $($either)*);
        }
        mod roce_sockets {
            use super::*;
            tests!(Roce on sockets: $($either)* $($roce)*);
        }
        mod roce_nodes {
            use super::*;
            tests!(Roce on nodes: $($either)* $($roce)*);
        }
    };
}

rows! {
    iwarp [
    ibv_devinfo
    fi_info
    ] either [
    ibv_devices
    rping
    rping_of_1500_bytes
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
    cmtime_of_1000
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
    fio_write_in_threads
    fio_read_in_threads
    fio_send_in_threads
    fi_pingpong
    fi_pingpong_of_datagrams
    ] roce [
    ibv_devinfo_roce
    fi_info_roce
    ibv_rc_pingpong
    ibv_rc_pingpong_by_events
    ibv_rc_pingpong_many
    ibv_rc_pingpong_large
    ibv_rc_pingpong_compared
    ibv_srq_pingpong
    ibv_srq_pingpong_by_events
    ibv_ud_pingpong
    ibv_ud_pingpong_by_events
    ibv_uc_pingpong
    ibv_uc_pingpong_by_events
    ib_write_bw_connected
    ib_read_bw_connected
    ib_send_bw_connected
    ib_write_lat_connected
    ib_read_lat_connected
    ib_send_lat_connected
    ib_send_bw_of_datagrams
    ib_send_lat_of_datagrams
    ib_write_bw_unreliable
    ib_write_lat_unreliable
    ib_atomic_bw_connected
    ib_atomic_lat_connected
    ib_write_bw_connected_of_all_sizes
    ib_read_bw_connected_of_all_sizes
    ib_send_bw_connected_of_all_sizes
    ib_write_lat_connected_of_all_sizes
    ib_read_lat_connected_of_all_sizes
    ib_send_lat_connected_of_all_sizes
    ib_write_bw_connected_both_ways
    ib_send_bw_connected_both_ways
    ib_read_bw_connected_both_ways
    ib_write_bw_of_gid_index
    ib_send_bw_connected_by_events
    ib_send_bw_connected_with_srq
    ib_write_bw_with_immediate_data
    ib_write_lat_with_immediate_data
    ]
}

#[test]
fn every_row_is_a_test() {
    let names = |is_of: fn(&Row) -> bool| {
        ROWS.iter().filter(|row| is_of(row)).map(|row| row.name).collect::<Vec<_>>()
    };
    let rows = [
        names(|row| row.roce.is_none()),
        names(|row| row.iwarp.is_some() && row.roce.is_some()),
        names(|row| row.iwarp.is_none()),
    ];
    assert_eq!(rows.each_ref().map(Vec::as_slice), TESTED);
    assert!(ROWS.iter().all(|row| row.iwarp.is_some() || row.roce.is_some()));
}

// Container without root, /dev/net/tun, user namespaces or capabilities.
#[test]
fn programs_run_without_privileges() {
    if lacks(&[Need::InitialRoot, Need::Tool("setpriv")]) {
        return;
    }
    let scratch = Scratch::new();
    let paths = "libflue_verbs_paths.so";
    let copies = [
        (FLUE.into(), "flue"),
        (library(), "libflue_verbs.so"),
        (library().with_file_name(paths), paths),
    ];
    for (from, name) in copies {
        fs::copy(from, scratch.file(name)).expect("a copied program");
    }
    let unprivileged = |options: &str, line: &str| {
        let script = "mount -t tmpfs none /dev/net && cd / && exec setpriv \"$@\"";
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
    let rows = [
        (Device::Iwarp, "rping"),
        (Device::Roce, "rping"),
        (Device::Roce, "ib_write_bw"),
        (Device::Roce, "fio_write"),
        (Device::Roce, "ibv_rc_pingpong"),
        (Device::Roce, "ib_write_bw_connected"),
    ];
    for (order, (device, name)) in rows.into_iter().enumerate() {
        let Some(row) = row(name) else { continue };
        let (transport, begun) = (Transport::sockets(), Instant::now());
        let said = run_pair(&transport, device, row, unprivileged)
            .unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        let programs = Programs {
            order: results::UNPRIVILEGED + order,
            name,
            package: row.package,
            options: "as uid 65534, without capabilities and /dev/net/tun",
            server: row.server.map(|(line, _)| line),
            client: row.client,
        };
        results::note_on(device, &programs, &transport, &result(row, &said), begun.elapsed());
    }
}

// Atomics require RFC 7306 at both ends: if the program's device or its peer does not support it, the program fails
// and exits.
#[test]
fn atomics_toward_a_peer_without_them() {
    const LINE: &str = "ib_atomic_bw -R -n 100";
    if lacks(NEEDS) || lacks(&[Need::Tool("ib_atomic_bw")]) {
        return;
    }
    for (order, on_server, on_client) in
        [(0, "", ""), (1, "", "--rfc7306 on"), (2, "--rfc7306 on", "")]
    {
        let (transport, begun) = (Transport::sockets(), Instant::now());
        let mut server = transport.start(End::Server, on_server, LINE);
        let listens = transport.wait_for_listener(&server, 18515);
        assert_eq!(listens, Ok(()), "{}", server.report());
        let mut client = transport.start(End::Client, on_client, &format!("{LINE} 127.0.0.1"));
        let ended = [&mut client, &mut server].map(|end| end.wait(LIMIT));
        client.kill();
        server.kill();
        let ended = ended.map(|it| it.map(|status| status.success()));
        let report = || format!("{}\n{}", server.report(), client.report());
        assert_eq!(ended[0], Ok(false), "{}", report());
        assert!(ended[1].is_ok(), "{}", report());
        let options = format!("server {on_server:?}, client {on_client:?}");
        let programs = Programs {
            order: results::REFUSALS + order,
            name: "atomics",
            package: "perftest",
            options: &options,
            server: Some(LINE),
            client: "ib_atomic_bw -R -n 100 127.0.0.1",
        };
        results::note(
            &programs,
            &transport,
            "both exit, the client with a status other than 0",
            begun.elapsed(),
        );
    }
}
