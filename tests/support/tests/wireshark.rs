//! Captures of Linux's Soft-iWARP, read by this bench and by Wireshark. Both must report the known content
//! (`tests/data/README.md`).

use std::path::PathBuf;

use flue_test_support::capture::{self, Direction, Flags};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::tshark::{
    self, BufferModel, Conversation, Crc, Fpdu, Pdu, PduKind, Startup, opcode,
};

const TSHARK: &[Need] = &[Need::Tool("tshark")];

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data").join(name)
}

fn startup(pdu: &Pdu) -> (&Startup, &'static str) {
    match &pdu.kind {
        PduKind::Request(startup) => (startup, "request"),
        PduKind::Reply(startup) => (startup, "reply"),
        PduKind::Fpdu(_) => panic!("an FPDU where a startup frame was expected: {pdu:?}"),
    }
}

fn fpdu(pdu: &Pdu) -> &Fpdu {
    match &pdu.kind {
        PduKind::Fpdu(fpdu) => fpdu,
        PduKind::Request(_) | PduKind::Reply(_) => panic!("no FPDU: {pdu:?}"),
    }
}

const ALL: &[&str] = &[
    "siw-crc.pcap",
    "siw-errors.pcap",
    "siw-mpa1.pcap",
    "siw-p2p-read.pcap",
    "siw-p2p-write.pcap",
    "siw-rping.pcap",
];

#[test]
fn etherparse_and_wireshark_parse_the_same_segments() {
    if lacks(TSHARK) {
        return;
    }
    for name in ALL {
        let frames = capture::read(&data(name)).unwrap();
        let ours = capture::segments(&frames);
        assert!(ours.len() > 10, "{name} has only {} segments", ours.len());
        assert_eq!(ours, tshark::segments(&data(name)), "{name}");
    }
}

#[test]
fn startup_and_first_round_of_rping_with_crc_field_by_field() {
    if lacks(TSHARK) {
        return;
    }
    let pdus = tshark::pdus(&data("siw-crc.pcap"));
    tshark::assert_crcs_good(&pdus);
    let (server_port, client_port) = (7174, pdus[0].source_port);
    for (pdu, expected, port) in
        [(&pdus[0], "request", client_port), (&pdus[1], "reply", server_port)]
    {
        let (startup, kind) = startup(pdu);
        assert_eq!((kind, pdu.source_port), (expected, port));
        // RFC 6581 §9.1: IRD and ORD are one each.
        let private_data = vec![0, 1, 0, 1];
        let expected = Startup {
            markers: false,
            crc: true,
            reject: false,
            enhanced: true,
            revision: 2,
            private_data,
        };
        assert_eq!(*startup, expected);
    }
    let round: Vec<(u8, u16)> =
        pdus[2..8].iter().map(|pdu| (fpdu(pdu).opcode, fpdu(pdu).ulpdu_length)).collect();
    assert_eq!(
        round,
        [
            (opcode::SEND, 34),
            (opcode::READ_REQUEST, 46),
            (opcode::READ_RESPONSE, 78),
            (opcode::SEND, 34),
            (opcode::SEND, 34),
            (opcode::WRITE, 78),
        ]
    );
    let first = fpdu(&pdus[2]);
    assert!(first.last);
    assert_eq!(first.buffer, BufferModel::Untagged { queue: 0, msn: 1, offset: 0 });
    let request = fpdu(&pdus[3]).read_request.expect("a Read Request has a body");
    assert_eq!(fpdu(&pdus[3]).buffer, BufferModel::Untagged { queue: 1, msn: 1, offset: 0 });
    assert_eq!(request.size, 64);
    // RFC 5040 §5.2: the Read Response is placed as requested by the Read Request.
    let BufferModel::Tagged { stag, offset } = fpdu(&pdus[4]).buffer else {
        panic!("{:?}", pdus[4])
    };
    assert_eq!((stag, offset), (request.sink_stag, request.sink_offset));
    let from_client = tshark::fpdus(&pdus, 0, client_port);
    let from_server = tshark::fpdus(&pdus, 0, server_port);
    assert!(pdus.iter().any(|pdu| pdu.connection == 1), "no second connection");
    let of_the_first = pdus.iter().filter(|pdu| pdu.connection == 0).count();
    assert_eq!(from_client.len() + from_server.len() + 2, of_the_first);
}

#[test]
fn connection_without_crc_is_detected() {
    if lacks(TSHARK) {
        return;
    }
    let pdus = tshark::pdus(&data("siw-rping.pcap"));
    assert!(!startup(&pdus[0]).0.crc && !startup(&pdus[1]).0.crc);
    assert!(pdus[2..].iter().all(|pdu| fpdu(pdu).crc == Crc::Unused));
    let judge = || tshark::assert_crcs_good(&pdus);
    assert!(std::panic::catch_unwind(judge).is_err(), "unused CRCs are not reported as good");
}

#[test]
fn conversations_of_siw_are_orderly() {
    if lacks(TSHARK) {
        return;
    }
    let mut judged = 0;
    for name in ["siw-rping.pcap", "siw-crc.pcap", "siw-p2p-read.pcap", "siw-p2p-write.pcap"] {
        let pdus = tshark::pdus(&data(name));
        let connections = pdus.iter().map(|pdu| pdu.connection).max().unwrap() + 1;
        for connection in 0..connections {
            let talk = Conversation::of(&pdus, connection);
            talk.assert_orderly();
            assert!(!talk.initiator.is_empty(), "{name}");
            judged += 1;
        }
    }
    assert!(judged >= 5);
    let talk = Conversation::of(&tshark::pdus(&data("siw-errors.pcap")), 7);
    // read-big: 4096 octets in three responses.
    assert_eq!(Conversation::opcodes(&talk.initiator), [opcode::READ_REQUEST]);
    assert_eq!(Conversation::opcodes(&talk.responder), [opcode::READ_RESPONSE; 3]);
    talk.assert_orderly();
}

#[test]
fn revision_one_is_distinguished_from_two() {
    if lacks(TSHARK) {
        return;
    }
    let pdus = tshark::pdus(&data("siw-mpa1.pcap"));
    let (request, _) = startup(&pdus[0]);
    assert_eq!((request.revision, request.enhanced), (1, false));
    assert_eq!(request.private_data, Vec::<u8>::new());
}

#[test]
fn ready_to_receive_is_the_initiators_first_fpdu() {
    if lacks(TSHARK) {
        return;
    }
    // RFC 6581 §9.1: a zero-length Read or Write.
    for (name, first, bytes) in
        [("siw-p2p-read.pcap", opcode::READ_REQUEST, 46), ("siw-p2p-write.pcap", opcode::WRITE, 14)]
    {
        let pdus = tshark::pdus(&data(name));
        let rtr = fpdu(&pdus[2]);
        assert_eq!((rtr.opcode, rtr.ulpdu_length), (first, bytes), "{name}");
        assert_eq!(pdus[2].source_port, pdus[0].source_port, "{name}");
    }
}

/// One connection of `siw-errors.pcap` per row: name of the attempt, and the resulting Terminate. Siw swaps
/// layer and error type on little-endian machines, and keeps M, D and R in the lowest bits. The values are
/// those on the wire.
const ERRORS: [(&str, Option<[u8; 3]>); 21] = [
    ("send", None),
    ("write", None),
    ("read", None),
    ("write-0", None),
    ("read-0", None),
    ("send-0", None),
    ("write-big", None),
    ("read-big", None),
    ("send-inv", None),
    ("write-stag", Some([0x11, 0x00, 0x03])),
    ("read-stag", Some([0x10, 0x00, 0x07])),
    ("write-bounds", Some([0x11, 0x01, 0x03])),
    ("read-bounds", Some([0x10, 0x01, 0x07])),
    ("write-access", Some([0x11, 0x00, 0x03])),
    ("read-access", None),
    ("write-pd", Some([0x11, 0x02, 0x03])),
    ("read-pd", Some([0x10, 0x03, 0x07])),
    ("send-nobuf", Some([0x21, 0x02, 0x03])),
    ("send-long", Some([0x21, 0x02, 0x03])),
    ("send-inv-bad", None),
    ("close", None),
];

#[test]
fn invalid_operations_cause_their_terminate() {
    if lacks(TSHARK) {
        return;
    }
    let pdus = tshark::pdus(&data("siw-errors.pcap"));
    for (connection, (attempt, expected)) in (0..).zip(ERRORS) {
        let terminates: Vec<[u8; 3]> = tshark::fpdus(&pdus, connection, 7471)
            .iter()
            .filter(|fpdu| fpdu.opcode == opcode::TERMINATE)
            .map(|fpdu| fpdu.terminate.expect("a Terminate has a body"))
            .collect();
        assert_eq!(terminates, Vec::from_iter(expected), "{attempt}");
    }
    let invalidating = pdus.iter().filter(|pdu| match &pdu.kind {
        PduKind::Fpdu(fpdu) => fpdu.invalidate_stag.is_some(),
        PduKind::Request(_) | PduKind::Reply(_) => false,
    });
    let connections: Vec<u32> = invalidating.map(|pdu| pdu.connection).collect();
    assert_eq!(connections, [8, 19], "send-inv and send-inv-bad contain an STag");
}

#[test]
fn capture_with_reset_is_not_clean() {
    if lacks(TSHARK) {
        return;
    }
    tshark::assert_clean(&data("siw-rping.pcap"), &[]);
    let capture = data("siw-errors.pcap");
    let judged = std::panic::catch_unwind(|| tshark::assert_clean(&capture, &[]));
    let message = *judged.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("Connection reset (RST)"), "{message}");
    tshark::assert_clean(&capture, &["Connection reset (RST)"]);
}

#[test]
fn pushes_of_siw_are_at_the_ends_of_its_fpdus() {
    let frames = capture::read(&data("siw-crc.pcap")).unwrap();
    let segments = capture::segments(&frames);
    let syn = segments.iter().find(|one| one.flags == Flags::SYN).unwrap();
    let client = Direction::find(&segments, syn.from, syn.to).unwrap();
    // Request of 24 octets, Send (40), Read Response (84): each in a segment with PSH.
    assert_eq!(client.pushes()[..3], [24, 64, 148]);
    assert_eq!(client.pushes().len(), client.segments.len());
    assert_eq!(client.pushes().last(), Some(&client.bytes()));
    let server = Direction::find(&segments, syn.to, syn.from).unwrap();
    // Reply of 24 octets, Read Request (52).
    assert_eq!(server.pushes()[..2], [24, 76]);
}
