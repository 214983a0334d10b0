//! Operations of a verbs test program (`guest/verbs_peer.c`) that runs at both ends: on siw and on flue. Either end
//! connects and requests every operation; the other one responds.

use crate::bench::{Bench, End, Setup};
use crate::guest::{ADDRESS, Siw};
use crate::{HOST_STACK, KERNEL, LIMIT, Row, TAP};

/// `PORT` of `verbs_peer.c`.
pub(crate) const PORT: u16 = 7180;
const BYTES_MAX: u32 = 16 << 20;
/// Kinds of operations that the program performs.
const KINDS: usize = 8;

/// Setups, each of which varies one parameter. Loss in the host stack is excluded: smoltcp does not keep segment
/// boundaries when it retransmits, and siw does not accept a CRC that spans segments.
fn setups(siw: Siw) -> Vec<Setup> {
    let mut setups = vec![TAP, KERNEL];
    if siw == Siw::Patched {
        setups.extend([
            HOST_STACK,
            Setup { name: "TAP, CRC off", options: "--mpa-crc off", ..TAP },
            Setup { name: "TAP, plain frames", options: "--vnet off", ..TAP },
            Setup { name: "TAP, MTU 9000", mtu: 9000, ..TAP },
            Setup { name: "TAP, plain frames, MTU 9000", options: "--vnet off", mtu: 9000, ..TAP },
            Setup { name: "TAP, 1 % loss", is_lossy: true, ..TAP },
            Setup { name: "kernel sockets, CRC off", options: "--mpa-crc off", ..KERNEL },
            Setup { name: "kernel sockets, MTU 9000", mtu: 9000, ..KERNEL },
            Setup { name: "kernel sockets, 1 % loss", is_lossy: true, ..KERNEL },
        ]);
    }
    setups
}

pub(crate) fn rows(siw: Siw, rows: &mut Vec<Row>) {
    for setup in setups(siw) {
        for is_client in [true, false] {
            let role = if is_client { "client" } else { "server" };
            rows.push(Row {
                siw,
                setup,
                what: format!("operations, {role}"),
                run: Box::new(move |bench| operations(bench, &setup, is_client)),
            });
        }
    }
}

/// Output of both ends, and of flue's end.
pub(crate) struct CommandOutput {
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) end: End,
}

/// Runs the program at both ends, flue's with these options, as client or server of that many connections. PEER in
/// the client's arguments is replaced with the server's address.
pub(crate) fn peers(
    bench: &mut Bench,
    setup: &Setup,
    is_client: bool,
    options: &str,
    client: &str,
    connections: u32,
) -> CommandOutput {
    let end = bench.set_up(setup);
    let program = bench.peer_program();
    let options = options.replace("CAPTURE", &end.capture.display().to_string());
    if is_client {
        let server = bench.guest.start(&format!("verbs_peer serve {ADDRESS} {connections}"));
        bench.guest.expect_line(server, "listening", LIMIT);
        let client = client.replace("PEER", ADDRESS);
        let mut client = bench.flue_run(&end, &options, &format!("{program} {client}"));
        client.expect_exit(0, LIMIT);
        let server = bench.guest.expect_exit(server, 0, LIMIT);
        return CommandOutput { client: client.all_lines(LIMIT), server, end };
    }
    let line = format!("{program} serve {} {connections}", end.address);
    let mut server = bench.flue_run(&end, &options, &line);
    server.expect_line("listening", LIMIT);
    let client = client.replace("PEER", &end.address);
    let client = bench.guest.start(&format!("verbs_peer {client}"));
    let client = bench.guest.expect_exit(client, 0, LIMIT);
    server.expect_exit(0, LIMIT);
    CommandOutput { client, server: server.all_lines(LIMIT), end }
}

fn operations(bench: &mut Bench, setup: &Setup, is_client: bool) -> String {
    let before = bench.lost_frames();
    let said =
        peers(bench, setup, is_client, "", &format!("operations PEER {BYTES_MAX}"), 1).client;
    let kinds: Vec<&str> = said.lines().filter(|line| line.ends_with(" sizes")).collect();
    assert_eq!(kinds.len(), KINDS, "{said}");
    let count = |line: &&str| line.split(' ').rev().nth(1).and_then(|it| it.parse::<u32>().ok());
    let sum: u32 = kinds.iter().filter_map(count).sum();
    let lost = bench.lost_frames() - before;
    assert_eq!(lost > 0, setup.is_lossy, "{lost} frames lost");
    let losses = if setup.is_lossy { format!(", {lost} frames lost") } else { String::new() };
    format!("{sum} operations of {KINDS} kinds, 0 B to 16 MiB, contents verified{losses}")
}
