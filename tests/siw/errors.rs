//! Wrong operations: the Terminate on the wire, and what both ends say of it, one connection each.

use std::fmt::Write as _;

use flue_test_support::tshark::{self, PduKind};

use crate::bench::{Bench, Setup};
use crate::guest::Siw;
use crate::operations::{CommandOutput, PORT, peers};
use crate::{KERNEL, Row, TAP};

pub(crate) fn rows(siw: Siw, rows: &mut Vec<Row>) {
    // What the two variants differ in is over by then.
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

/// What a responder does about a wrong operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Ends the connection; the first octets of the Terminate: layer and type, code, M D R. siw has layer and type
    /// exchanged, and M D R as the lowest bits.
    Terminate([u8; 3]),
    /// Lets it pass.
    Allows,
    /// Cannot do what the case needs: siw takes no local invalidation from programs.
    Lacks,
}

use Answer::{Allows, Lacks, Terminate};

/// Completions of a request, and events of a queue pair, by their numbers in verbs.h.
const SUCCESS: i32 = 0;
const FLUSHED: i32 = 5;
const REMOTE_ACCESS: i32 = 10;
const QP_FATAL: i32 = 1;
const REQUEST_ERROR: i32 = 2;
const ACCESS_ERROR: i32 = 3;

struct Case {
    name: &'static str,
    /// siw's answer to flue, and how the request completes there; a Write and a Send are complete before.
    siw: Answer,
    completes: i32,
    /// flue's answer to siw, and the event of flue's queue pair.
    flue: Answer,
    event: i32,
}

const fn case(name: &'static str, siw: Answer, completes: i32, flue: Answer, event: i32) -> Case {
    Case { name, siw, completes, flue, event }
}

/// siw does not check the right to read, invalidates what there is not, calls a receive that is too short one that is
/// not there, and finds an end of an address space out when it copies.
#[rustfmt::skip]
const CASES: &[Case] = &[
    case("write-stag", Terminate([0x11, 0, 3]), SUCCESS, Terminate([0x11, 0, 0xc0]), ACCESS_ERROR),
    case("write-bounds", Terminate([0x11, 1, 3]), SUCCESS, Terminate([0x11, 1, 0xc0]), ACCESS_ERROR),
    case("write-wrap", Terminate([0x01, 0, 3]), SUCCESS, Terminate([0x11, 3, 0xc0]), ACCESS_ERROR),
    case("write-rights", Terminate([0x11, 0, 3]), SUCCESS, Terminate([0x11, 0, 0xc0]), ACCESS_ERROR),
    case("write-domain", Terminate([0x11, 2, 3]), SUCCESS, Terminate([0x11, 2, 0xc0]), ACCESS_ERROR),
    case("write-invalidated", Lacks, SUCCESS, Terminate([0x11, 0, 0xc0]), ACCESS_ERROR),
    case("read-stag", Terminate([0x10, 0, 7]), REMOTE_ACCESS, Terminate([0x01, 0, 0xe0]), ACCESS_ERROR),
    case("read-bounds", Terminate([0x10, 1, 7]), REMOTE_ACCESS, Terminate([0x01, 1, 0xe0]), ACCESS_ERROR),
    case("read-rights", Allows, SUCCESS, Terminate([0x01, 2, 0xe0]), ACCESS_ERROR),
    case("read-domain", Terminate([0x10, 3, 7]), REMOTE_ACCESS, Terminate([0x01, 3, 0xe0]), ACCESS_ERROR),
    case("read-invalidated", Lacks, SUCCESS, Terminate([0x01, 0, 0xe0]), ACCESS_ERROR),
    case("send-long", Terminate([0x21, 2, 3]), SUCCESS, Terminate([0x12, 5, 0xc0]), REQUEST_ERROR),
    case("send-no-receive", Terminate([0x21, 2, 3]), SUCCESS, Terminate([0x12, 2, 0xc0]), REQUEST_ERROR),
    case("invalidate-stag", Allows, SUCCESS, Terminate([0x02, 9, 0xc0]), REQUEST_ERROR),
];

/// siw resets a connection now and then behind a Terminate that it has acknowledged, and logs nothing. A case whose
/// Terminate was right on the wire is tried again then.
const TRIES_MAX: u32 = 4;

fn errors(bench: &mut Bench, setup: &Setup, is_client: bool) -> String {
    let mut findings = String::new();
    let mut unlogged = 0;
    for case in CASES {
        // A Send without a receive ends the connection at once, as between adapters.
        let options = "--rnr-timeout 0 --pcap CAPTURE";
        let name = case.name;
        let mut tries = 0;
        let (said, heard) = loop {
            let before = bench.guest.terminates().len();
            let said = peers(bench, setup, is_client, options, &format!("error PEER {name}"), 1);
            let heard = bench.guest.terminates().split_off(before);
            tries += 1;
            let is_unlogged = !is_client
                && heard.is_empty()
                && matches!(case.flue, Terminate(octets) if terminates(&said) == [octets]);
            if !is_unlogged || tries == TRIES_MAX {
                break (said, heard);
            }
            unlogged += 1;
        };
        let mut check = |what: &str, is_so: bool| {
            if !is_so {
                let (client, server) = (&said.client, &said.server);
                writeln!(findings, "{name}: {what}\n{client}\n{server}").expect("a String");
            }
        };
        let answer = if is_client { case.siw } else { case.flue };
        let found = terminates(&said);
        let expected = if let Terminate(octets) = answer { vec![octets] } else { vec![] };
        check(&format!("Terminates {found:02x?}, expected {expected:02x?}"), found == expected);
        if is_client {
            // A word of its own, for 1 is the beginning of 10.
            let completed = format!("client {name}: completed={}\n", case.completes);
            let ended = format!("client {name}: received={FLUSHED} event={QP_FATAL}\n");
            let text = format!("{}\n", said.client);
            check("how the request completed", answer == Lacks || text.contains(&completed));
            check("flue's end", matches!(answer, Allows | Lacks) || text.contains(&ended));
            check("the connection lives", (answer == Allows) == text.contains(": lives\n"));
            check("no case", (answer == Lacks) == text.contains(": cannot be tried\n"));
        } else {
            let event = format!("event={}\n", case.event);
            check("flue's event", format!("{}\n", said.server).contains(&event));
            let Terminate([kind, code, _]) = answer else { continue };
            // As siw reads it.
            let report = format!("layer {}, type {}, code {code}", kind & 0xf, kind >> 4);
            check(&format!("siw has heard {heard:?}, not {report}"), heard == [report]);
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
    let mut summary =
        format!("{} cases, each with its Terminate and what both ends say", CASES.len());
    if unlogged > 0 {
        write!(summary, "; tried again, because siw had not logged it: {unlogged}")
            .expect("a String");
    }
    summary
}

/// Terminates of the server, in a capture whose CRCs are good.
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
