//! Invalid operations: the Terminate on the wire, and the error reports of both ends, one connection each.

use std::fmt::Write as _;

use flue_test_support::tshark::{self, PduKind};

use crate::bench::{Bench, Setup};
use crate::guest::Siw;
use crate::operations::{CommandOutput, PORT, peers};
use crate::{KERNEL, Row, TAP};

pub(crate) fn rows(siw: Siw, rows: &mut Vec<Row>) {
    // The difference between the two variants does not apply after the connection setup.
    if siw == Siw::Stock {
        return;
    }
    for setup in [TAP, KERNEL] {
        for is_client in [true, false] {
            let role = if is_client { "client" } else { "server" };
            rows.push(Row {
                siw,
                setup,
                what: format!("errors, {role}"),
                run: Box::new(move |bench| errors(bench, &setup, is_client)),
            });
        }
    }
}

/// Reaction of a responder to an invalid operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Terminates the connection. The value is the first octets of the Terminate: layer and type, code, M D R. siw
    /// swaps layer and type, and has M D R in the lowest bits.
    Terminate([u8; 3]),
    /// Permits the operation.
    Allows,
    /// Does not support the case: siw does not support local invalidation by programs.
    Unsupported,
}

use Answer::{Allows, Terminate, Unsupported};

/// Completions of a request, and events of a queue pair, by their numbers in verbs.h.
const SUCCESS: i32 = 0;
const FLUSHED: i32 = 5;
const REMOTE_ACCESS: i32 = 10;
const QP_FATAL: i32 = 1;
const REQUEST_ERROR: i32 = 2;
const ACCESS_ERROR: i32 = 3;

struct Case {
    name: &'static str,
    /// siw's reaction to flue, and the completion status of the request at flue; a Write and a Send complete earlier.
    siw: Answer,
    completes: i32,
    /// flue's reaction to siw, and the event of flue's queue pair.
    flue: Answer,
    event: i32,
}

const fn case(name: &'static str, siw: Answer, completes: i32, flue: Answer, event: i32) -> Case {
    Case { name, siw, completes, flue, event }
}

/// siw does not check the remote read right, and accepts the invalidation of an unknown STag. It reports a receive
/// that is too short as a missing one, and detects the end of an address space only when it copies.
#[rustfmt::skip]
const CASES: &[Case] = &[
    case("write-stag", Terminate([0x11, 0, 3]), SUCCESS, Terminate([0x11, 0, 0xc0]), ACCESS_ERROR),
    case("write-bounds", Terminate([0x11, 1, 3]), SUCCESS, Terminate([0x11, 1, 0xc0]), ACCESS_ERROR),
    case("write-wrap", Terminate([0x01, 0, 3]), SUCCESS, Terminate([0x11, 3, 0xc0]), ACCESS_ERROR),
    case("write-rights", Terminate([0x11, 0, 3]), SUCCESS, Terminate([0x11, 0, 0xc0]), ACCESS_ERROR),
    case("write-domain", Terminate([0x11, 2, 3]), SUCCESS, Terminate([0x11, 2, 0xc0]), ACCESS_ERROR),
    case("write-invalidated", Unsupported, SUCCESS, Terminate([0x11, 0, 0xc0]), ACCESS_ERROR),
    case("read-stag", Terminate([0x10, 0, 7]), REMOTE_ACCESS, Terminate([0x01, 0, 0xe0]), ACCESS_ERROR),
    case("read-bounds", Terminate([0x10, 1, 7]), REMOTE_ACCESS, Terminate([0x01, 1, 0xe0]), ACCESS_ERROR),
    case("read-rights", Allows, SUCCESS, Terminate([0x01, 2, 0xe0]), ACCESS_ERROR),
    case("read-domain", Terminate([0x10, 3, 7]), REMOTE_ACCESS, Terminate([0x01, 3, 0xe0]), ACCESS_ERROR),
    case("read-invalidated", Unsupported, SUCCESS, Terminate([0x01, 0, 0xe0]), ACCESS_ERROR),
    case("send-long", Terminate([0x21, 2, 3]), SUCCESS, Terminate([0x12, 5, 0xc0]), REQUEST_ERROR),
    case("send-no-receive", Terminate([0x21, 2, 3]), SUCCESS, Terminate([0x12, 2, 0xc0]), REQUEST_ERROR),
    case("invalidate-stag", Allows, SUCCESS, Terminate([0x02, 9, 0xc0]), REQUEST_ERROR),
];

/// A case is repeated when siw did not do its part. As responder it closes the connection without a Terminate while
/// its previous Send is in progress (`siw_send_terminate`), which lasts until after the peer has received that Send.
/// As initiator it occasionally resets a connection after a Terminate that it has acknowledged, without a log message.
const RUNS_MAX: u32 = 4;

fn errors(bench: &mut Bench, setup: &Setup, is_client: bool) -> String {
    let mut findings = String::new();
    let mut repeated = 0;
    for case in CASES {
        // A Send without a posted receive ends the connection immediately, as between adapters.
        let options = "--rnr-timeout 0 --pcap CAPTURE";
        let name = case.name;
        let mut tries = 0;
        let (said, heard) = loop {
            let before = bench.guest.terminates().len();
            let said = peers(bench, setup, is_client, options, &format!("error PEER {name}"), 1);
            let heard = bench.guest.terminates().split_off(before);
            tries += 1;
            let found = terminates(&said);
            let siw_failed = if is_client {
                matches!(case.siw, Terminate(_)) && found.is_empty()
            } else {
                heard.is_empty() && matches!(case.flue, Terminate(octets) if found == [octets])
            };
            if !siw_failed || tries == RUNS_MAX {
                break (said, heard);
            }
            repeated += 1;
        };
        let mut check = |what: &str, is_so: bool| {
            if !is_so {
                let (client, server) = (&said.client, &said.server);
                writeln!(findings, "{name}: {what}\n{client}\n{server}")
                    .expect("write to a String");
            }
        };
        let answer = if is_client { case.siw } else { case.flue };
        let found = terminates(&said);
        let expected = if let Terminate(octets) = answer { vec![octets] } else { vec![] };
        check(&format!("Terminates {found:02x?}, expected {expected:02x?}"), found == expected);
        if is_client {
            // Complete field, since 1 is a prefix of 10.
            let completed = format!("client {name}: completed={}\n", case.completes);
            let ended = format!("client {name}: received={FLUSHED} event={QP_FATAL}\n");
            let text = format!("{}\n", said.client);
            check("status of the request", answer == Unsupported || text.contains(&completed));
            check(
                "flue's completion and event",
                matches!(answer, Allows | Unsupported) || text.contains(&ended),
            );
            check(
                "the connection is still usable",
                (answer == Allows) == text.contains(": usable\n"),
            );
            check(
                "the case is not supported",
                (answer == Unsupported) == text.contains(": not supported\n"),
            );
        } else {
            let event = format!("event={}\n", case.event);
            check("flue's event", format!("{}\n", said.server).contains(&event));
            let Terminate([kind, code, _]) = answer else { continue };
            // Fields in siw's order.
            let report = format!("layer {}, type {}, code {code}", kind & 0xf, kind >> 4);
            check(&format!("siw received {heard:?}, expected {report}"), heard == [report]);
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    let mut summary = format!(
        "{} cases, each with the expected Terminate and results on both sides",
        CASES.len()
    );
    if repeated > 0 {
        write!(summary, "; repeated because siw did not send or log a Terminate: {repeated}")
            .expect("write to a String");
    }
    summary
}

/// Terminates sent by the server, in a capture with valid CRCs.
fn terminates(said: &CommandOutput) -> Vec<[u8; 3]> {
    let pdus = tshark::pdus(&said.end.capture);
    tshark::assert_crcs_good(&pdus);
    let of_server = pdus.iter().filter(|pdu| pdu.source_port == PORT);
    let terminate = |kind: &PduKind| match kind {
        PduKind::Fpdu(fpdu) => fpdu.terminate,
        PduKind::Request(_) | PduKind::Reply(_) => None,
    };
    of_server.filter_map(|pdu| terminate(&pdu.kind)).collect()
}
