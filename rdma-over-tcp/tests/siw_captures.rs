//! Connections between two Linux siw ends (6.1, x86-64), decoded from captures end to end.
//!
//! Every connection passes start-up, both decoders, and the sequence checks of both directions. The results are
//! compared with tshark's counts of the same files, and Terminates with the errors that the two programs reported.

mod capture;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use capture::{Conversation, conversations};
use rdma_over_tcp::{
    ddp::{Msn, QueueNumber, Segment, Stag, TaggedReceiver, UntaggedReceiver},
    error::WireError,
    mpa::{
        Decoder, DecoderCounters, Encoder, Slab,
        startup::{
            Frame, FrameKind, Initiator, Negotiated, PrivateData, ReadLimits, Responder,
            ResponderConfig, Revision, RtrKind, RtrSet, StartupConfig,
        },
    },
    rdmap::{self, Inbound, Opcode, PendingRead, Reading, ReceivedTerminate, TerminatePhase},
};

/// One direction after its start-up frame.
struct Direction {
    pieces: Vec<Vec<u8>>,
    counters: DecoderCounters,
    opcodes: BTreeMap<Opcode, usize>,
    reads: VecDeque<PendingRead>,
    ulpdus: Vec<Vec<u8>>,
    terminate: Option<ReceivedTerminate>,
}

impl Direction {
    /// Removes the start-up frame.
    fn new(mut pieces: Vec<Vec<u8>>, frame_octets: usize) -> Self {
        pieces[0].drain(..frame_octets);
        Self {
            pieces,
            counters: DecoderCounters::default(),
            opcodes: BTreeMap::new(),
            reads: VecDeque::new(),
            ulpdus: Vec::new(),
            terminate: None,
        }
    }

    /// Decodes all octets; `reads` are those of the other direction, in order.
    fn decode(&mut self, crc: bool, mut reads: VecDeque<PendingRead>) {
        let mut decoder = Decoder::new(crc, false);
        let mut sends = UntaggedReceiver::new(QueueNumber::SEND);
        let mut requests = UntaggedReceiver::new(QueueNumber::READ_REQUEST);
        let mut terminates = UntaggedReceiver::new(QueueNumber::TERMINATE);
        let mut tagged = TaggedReceiver::new();
        // The decoded ULPDUs are encoded again, which must give the same stream.
        let mut encoder = Encoder::new(crc, false);
        let mut slab = Slab::new();
        let mut again: Vec<u8> = Vec::new();
        for piece in &self.pieces {
            let mut input = &piece[..];
            while let Some(ulpdu) = decoder.next(&mut input).unwrap() {
                let (segment, payload) = Segment::parse(ulpdu).unwrap();
                self.ulpdus.push(ulpdu.to_vec());
                let payload = [Bytes::copy_from_slice(payload)];
                let mut fpdu: Vec<Bytes> = Vec::new();
                encoder.encode(&segment.emit(), &payload, &mut slab, &mut fpdu);
                again.extend(fpdu.iter().flatten());
                let opcode = Opcode::from_control(segment.ulp()).unwrap();
                *self.opcodes.entry(opcode).or_default() += 1;
                match rdmap::parse(ulpdu).unwrap() {
                    Inbound::Write { segment, payload } => {
                        tagged.accept(&segment, payload.len()).unwrap();
                    }
                    Inbound::ReadResponse { segment, payload } => {
                        tagged.accept(&segment, payload.len()).unwrap();
                        let read = reads.front_mut().expect("a response without a request");
                        let (_, complete) = read.accept(&segment, payload.len()).unwrap();
                        if complete {
                            reads.pop_front();
                        }
                    }
                    Inbound::ReadRequest { segment, request } => {
                        requests.accept(&segment, 28, Some(28)).unwrap();
                        self.reads.push_back(PendingRead::new(&request));
                    }
                    Inbound::Send { segment, kind: _, payload } => {
                        sends.accept(&segment, payload.len(), Some(1 << 20)).unwrap();
                    }
                    Inbound::Terminate { segment, payload } => {
                        terminates.accept(&segment, payload.len(), Some(52)).unwrap();
                        let phase = TerminatePhase::Operation;
                        self.terminate = ReceivedTerminate::parse(payload, phase);
                    }
                    other => panic!("RFC 7306 message from siw: {other:?}"),
                }
            }
        }
        assert!(decoder.is_between_fpdus());
        let mut sent = self.pieces.concat();
        clear_pads(&mut sent);
        assert!(again == sent, "re-encoded stream differs");
        self.counters = decoder.counters();
    }
}

/// Clears the pads: siw leaves stale octets in those of small messages when CRCs are off.
fn clear_pads(stream: &mut [u8]) {
    let mut rest = stream;
    while let [high, low, ..] = *rest {
        let end = 2 + usize::from(u16::from_be_bytes([high, low]));
        let body = end.next_multiple_of(4);
        rest[end..body].fill(0);
        rest = &mut rest[body + 4..];
    }
}

struct Decoded {
    request: Frame,
    reply: Frame,
    negotiated: Negotiated,
    client: Direction,
    server: Direction,
}

/// Returns siw's Request as this side's configuration.
fn same_config(request: &Frame) -> StartupConfig {
    let depth = |of: fn(&_) -> _| request.enhanced.as_ref().map_or(0, of);
    StartupConfig {
        revision: request.revision,
        crc: request.crc,
        markers: request.markers,
        limits: ReadLimits {
            ird: depth(|enhanced| enhanced.ird.reads().unwrap()),
            ord: depth(|enhanced| enhanced.ord.reads().unwrap()),
        },
        rtr: request.enhanced.map_or(RtrSet::NONE, |enhanced| enhanced.rtr),
        private_data: PrivateData::new(request.private_data.as_bytes().clone()).unwrap(),
    }
}

fn decode(Conversation { client, server }: Conversation) -> Decoded {
    let (request, request_octets) = Frame::parse(FrameKind::Request, &client[0]).unwrap().unwrap();
    assert_eq!(request_octets, client[0].len(), "octets after the Request");
    // With the same configuration this crate's initiator sends the same octets, and accepts siw's Reply.
    let initiator = Initiator::new(same_config(&request));
    assert_eq!(initiator.request(), client[0]);
    let (reply, reply_octets) = Frame::parse(FrameKind::Reply, &server[0]).unwrap().unwrap();
    let (agreed, taken) = initiator.receive(&server[0]).unwrap().unwrap();
    assert_eq!(taken, reply_octets);
    // This crate's responder replies to the same Request with the same octets.
    let config = ResponderConfig { crc: false, ..ResponderConfig::default() };
    let offer = Responder::new(config).receive(&client[0]).unwrap().unwrap();
    let limits = reply.enhanced.map_or_else(ReadLimits::default, |enhanced| ReadLimits {
        ird: enhanced.ird.reads().unwrap(),
        ord: enhanced.ord.reads().unwrap(),
    });
    let private_data = PrivateData::new(reply.private_data.as_bytes().clone()).unwrap();
    assert_eq!(offer.accept(limits, private_data).0, server[0][..reply_octets]);

    let crc = agreed.negotiated.framing.crc;
    let mut client = Direction::new(client, request_octets);
    let mut server = Direction::new(server, reply_octets);
    // The responses of a direction need the other's requests, which a first pass collects.
    let reads_of = |direction: &Direction| {
        let mut decoder = Decoder::new(crc, false);
        let mut reads = VecDeque::new();
        for piece in &direction.pieces {
            let mut input = &piece[..];
            while let Some(ulpdu) = decoder.next(&mut input).unwrap() {
                if let Ok(Inbound::ReadRequest { request, .. }) = rdmap::parse(ulpdu) {
                    reads.push_back(PendingRead::new(&request));
                }
            }
        }
        reads
    };
    let (of_client, of_server) = (reads_of(&client), reads_of(&server));
    client.decode(crc, of_server);
    server.decode(crc, of_client);
    Decoded { request, reply, negotiated: agreed.negotiated, client, server }
}

fn decode_file(name: &str) -> Vec<Decoded> {
    conversations(name).into_iter().map(decode).collect()
}

/// Counts FPDUs by opcode, over all connections and both directions.
fn totals(decoded: &[Decoded]) -> Vec<(u8, usize)> {
    let mut totals = BTreeMap::new();
    for direction in decoded.iter().flat_map(|decoded| [&decoded.client, &decoded.server]) {
        let mut fpdus = 0;
        for (&opcode, count) in &direction.opcodes {
            *totals.entry(opcode as u8).or_default() += count;
            fpdus += count;
        }
        assert_eq!(direction.counters.fpdus, fpdus as u64);
    }
    totals.into_iter().collect()
}

// The opcodes that tshark reports for the same files.
#[test]
fn opcodes_as_tshark_counts_them() {
    for (name, connections, expected) in [
        ("siw-rping.pcap", 1, &[(0, 5), (1, 5), (2, 5), (3, 20)][..]),
        ("siw-crc.pcap", 3, &[(0, 6), (1, 2), (2, 2), (3, 8), (7, 1)]),
        ("siw-errors.pcap", 21, &[(0, 9), (1, 7), (2, 6), (3, 23), (4, 2), (7, 9)]),
        ("siw-mpa1.pcap", 3, &[(0, 1), (1, 1), (2, 1), (3, 1)]),
        ("siw-p2p-read.pcap", 1, &[(0, 1), (1, 2), (2, 2), (3, 4)]),
        ("siw-p2p-write.pcap", 1, &[(0, 2), (1, 1), (2, 1), (3, 4)]),
        ("siw-read-bw.pcap", 2, &[(1, 5), (2, 30), (3, 32)]),
        ("siw-send-bw.pcap", 2, &[(0, 2), (3, 37)]),
    ] {
        let decoded = decode_file(name);
        assert_eq!(decoded.len(), connections, "{name}");
        assert_eq!(totals(&decoded), expected, "{name}");
    }
}

/// Connections of siw-errors.pcap in order: the client's error, and the server's Terminate. siw does not check the read
/// right (read-access), invalidates without a check (send-inv-bad), and reports a receive that is too short as a
/// missing one (send-long).
const ERRORS: [(&str, Option<WireError>); 21] = [
    ("send", None),
    ("write", None),
    ("read", None),
    ("write-0", None),
    ("read-0", None),
    ("send-0", None),
    ("write-big", None),
    ("read-big", None),
    ("send-inv", None),
    ("write-stag", Some(WireError::TaggedInvalidStag)),
    ("read-stag", Some(WireError::ProtectionInvalidStag)),
    ("write-bounds", Some(WireError::TaggedBounds)),
    ("read-bounds", Some(WireError::ProtectionBounds)),
    ("write-access", Some(WireError::TaggedInvalidStag)),
    ("read-access", None),
    ("write-pd", Some(WireError::TaggedNotAssociated)),
    ("read-pd", Some(WireError::ProtectionNotAssociated)),
    ("send-nobuf", Some(WireError::UntaggedNoBuffer)),
    ("send-long", Some(WireError::UntaggedNoBuffer)),
    ("send-inv-bad", None),
    ("close", None),
];

// RDM-4.8-1..4, RDM-5.4-1: all are sent by the server, with layer and type swapped, and return the header of the faulty
// segment with the length of its payload.
#[test]
fn terminates_report_the_errors() {
    let decoded = decode_file("siw-errors.pcap");
    for ((name, expected), decoded) in ERRORS.into_iter().zip(&decoded) {
        assert!(decoded.client.terminate.is_none(), "{name}");
        let Some(received) = decoded.server.terminate else {
            assert_eq!(expected, None, "{name}");
            continue;
        };
        assert_eq!(received.reading, Reading::Swapped, "{name}");
        let terminate = received.meant();
        assert_eq!(terminate.number.known(), expected, "{name}");
        let sent = Segment::parse(decoded.client.ulpdus.last().unwrap()).unwrap().0;
        let returned = terminate.segment().unwrap();
        match (sent, returned) {
            (Segment::Tagged(_), _) => {
                assert_eq!(returned, sent, "{name}");
                assert_eq!(terminate.segment_octets, Some(48), "{name}");
            }
            (Segment::Untagged(sent), Segment::Untagged(returned)) => {
                assert_eq!((returned.queue, returned.ulp), (sent.queue, sent.ulp), "{name}");
            }
            (Segment::Untagged(_), Segment::Tagged(_)) => panic!("{name}"),
        }
        let is_read = name.starts_with("read");
        let mut requests =
            decoded.client.ulpdus.iter().filter_map(|ulpdu| match rdmap::parse(ulpdu) {
                Ok(Inbound::ReadRequest { request, .. }) => Some(request),
                _ => None,
            });
        assert_eq!(terminate.read_request, requests.next_back().filter(|_| is_read), "{name}");
    }
    let seen = decoded.iter().filter(|decoded| decoded.server.terminate.is_some()).count();
    assert_eq!(seen, 9);
}

// MPE-5-1, MPE-9.2-7, MPE-9.2-3: the RTR message is the first. As a Write it equals this crate's, octet for octet. As a
// Read siw sets the sink's STag to 0, and the response has that STag.
#[test]
fn rtr_messages() {
    let decode_one = |name, kind| {
        let [decoded] = decode_file(name).try_into().ok().unwrap();
        assert_eq!(decoded.negotiated.rtr, Some(kind));
        assert_eq!(decoded.reply.enhanced.unwrap().rtr, RtrSet::only(kind));
        decoded
    };
    let decoded: Decoded = decode_one("siw-p2p-write.pcap", RtrKind::Write);
    assert_eq!(decoded.client.ulpdus[0], rdmap::rtr_header(RtrKind::Write)[..]);

    let decoded = decode_one("siw-p2p-read.pcap", RtrKind::Read);
    let Ok(Inbound::ReadRequest { segment, request }) = rdmap::parse(&decoded.client.ulpdus[0])
    else {
        panic!("no Read Request")
    };
    assert_eq!((segment.msn, request.octets), (Msn::FIRST, 0));
    assert_eq!((request.sink_stag, request.source_stag), (Stag(0), Stag(1)));
    let answer = rdmap::read_response_header(true, request.sink_stag, request.sink_offset);
    assert_eq!(decoded.server.ulpdus[0], answer[..]);
}

// MPE-6-2, MPE-10-1, MPA-4.4-6: revision 1 without enhanced data, and CRC on as both sides request.
#[test]
fn other_starts() {
    for decoded in decode_file("siw-mpa1.pcap") {
        assert_eq!(
            (decoded.request.revision, decoded.reply.revision),
            (Revision::One, Revision::One)
        );
        assert!(!decoded.negotiated.enhanced);
        assert_eq!(decoded.reply.private_data.as_bytes().len(), 28);
    }
    for decoded in decode_file("siw-crc.pcap") {
        assert!(decoded.negotiated.framing.crc);
    }
}

// MPA-5.1-3, MPA-A.4-1: in siw's zero-copy path each CRC has a separate segment; other FPDUs are decoded in place.
#[test]
fn crc_in_a_segment_of_its_own() {
    let decoded = decode_file("siw-send-bw.pcap");
    let DecoderCounters { fpdus, fpdus_in_place, octets_staged, octets: _, markers: _ } =
        decoded[1].client.counters;
    assert_eq!((fpdus, fpdus_in_place), (15, 3));
    let fpdus = decoded[1].client.ulpdus.iter().map(|ulpdu| ulpdu.len().next_multiple_of(4) + 4);
    let split = decoded[1].client.pieces.iter().filter(|piece| piece.len() == 4).count();
    assert_eq!(split, 12);
    assert!(octets_staged <= fpdus.map(|octets| octets as u64 + 4).sum());
}
