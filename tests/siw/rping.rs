//! rping: flue's own and Debian's on flue's verbs, each against Debian's on siw, in both roles.

use crate::bench::{Bench, Setup};
use crate::guest::{ADDRESS, Siw};
use crate::{HOST_STACK, KERNEL, LIMIT, Row, TAP};

const PORT: u16 = 7174;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Flue,
    Debian,
}

pub(crate) fn rows(siw: Siw, rows: &mut Vec<Row>) {
    for setup in [TAP, HOST_STACK, KERNEL] {
        for (program, name) in [(Program::Flue, "flue rping"), (Program::Debian, "rping on flue")] {
            for is_client in [true, false] {
                let role = if is_client { "client" } else { "server" };
                rows.push(Row {
                    siw,
                    setup,
                    what: format!("{name}, {role}"),
                    run: Box::new(move |bench| pings(bench, &setup, program, is_client)),
                });
            }
        }
    }
}

fn pings(bench: &mut Bench, setup: &Setup, program: Program, is_client: bool) -> String {
    const COUNT: u32 = 20;
    for size in [64, 1500, 65_535] {
        if is_client {
            client(bench, setup, program, &format!("-S {size} -C {COUNT} -V"));
        } else {
            server(bench, setup, program, &format!("-S {size} -C {COUNT} -V"));
        }
    }
    format!("{COUNT} pings of 64, 1,500 and 65,535 bytes each")
}

fn client(bench: &mut Bench, setup: &Setup, program: Program, options: &str) {
    let end = bench.set_up(setup);
    let server = bench.guest.start(&format!("rping -s -a {ADDRESS} {options}"));
    bench.wait_for_guest(PORT);
    let line = format!("-c -a {ADDRESS} {options}");
    let mut client = match program {
        Program::Flue => bench.flue_rping(&end, &line),
        Program::Debian => bench.flue_run(&end, "", &format!("rping {line}")),
    };
    client.expect_exit(0, LIMIT);
    bench.guest.expect_exit(server, 0, LIMIT);
}

fn server(bench: &mut Bench, setup: &Setup, program: Program, options: &str) {
    let end = bench.set_up(setup);
    let mut server = match program {
        Program::Flue => {
            let mut server = bench.flue_rping(&end, &format!("-s {options}"));
            server.expect_line("listening:", LIMIT);
            server
        }
        // Line buffering: with a pipe the first output would otherwise arrive at the end.
        Program::Debian => {
            let line = format!("stdbuf -oL rping -d -s -a {} {options}", end.address);
            let mut server = bench.flue_run(&end, "", &line);
            server.expect_line("rdma_listen", LIMIT);
            server
        }
    };
    let client = bench.guest.start(&format!("rping -c -a {} {options}", end.address));
    bench.guest.expect_exit(client, 0, LIMIT);
    server.expect_exit(0, LIMIT);
}
