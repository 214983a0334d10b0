//! Known answers: frames and FPDUs, octet by octet. The CRC values were verified with tshark. RFC 5044's figures 5 and
//! 6 are among them, and F11 was also captured from Linux siw.

mod fpdus;

use bytes::Bytes;
use rdma_over_tcp::{
    ddp::{HeaderOctets, Msn, QueueNumber, Stag, TaggedOffset, UntaggedSegment},
    error::WireError,
    mpa::{Decoder, Encoder, Slab, crc::crc32c, startup::RtrKind},
    rdmap::{
        self, AtomicOperation, AtomicRequest, AtomicResponse, Extension, Inbound, ReadRequest,
        Reading, ReceivedTerminate, SendKind, Terminate, TerminatePhase,
    },
};
use sha2::{Digest, Sha256};

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|octet| u8::from_str_radix(octet, 16).unwrap()).collect()
}

fn encode(encoder: &mut Encoder, header: &[u8], payload: &[u8]) -> Vec<u8> {
    // In slices of odd length, as in scatter lists.
    let slices: Vec<Bytes> = payload.chunks(7).map(Bytes::copy_from_slice).collect();
    let mut fpdu: Vec<Bytes> = Vec::new();
    encoder.encode(header, &slices, &mut Slab::new(), &mut fpdu);
    fpdu.concat()
}

/// Checks that header and payload encode to the FPDU, and that it decodes to them.
fn check(expected: &str, header: &HeaderOctets, payload: &[u8]) -> Vec<u8> {
    let expected = hex(expected);
    assert_eq!(encode(&mut Encoder::new(true, false), header, payload), expected);
    let mut decoder = Decoder::new(true, false);
    let mut input = &expected[..];
    let ulpdu = decoder.next(&mut input).unwrap().unwrap().to_vec();
    assert!(input.is_empty());
    assert_eq!(ulpdu, [&header[..], payload].concat());
    assert_eq!(decoder.counters().fpdus_in_place, 1);
    ulpdu
}

fn check_send(expected: &str, kind: SendKind, msn: u32, payload: &[u8]) {
    let ulpdu = check(expected, &rdmap::send_header(true, kind, Msn(msn), 0), payload);
    let Inbound::Send { segment, kind: received, payload: data } = rdmap::parse(&ulpdu).unwrap()
    else {
        panic!("no Send")
    };
    assert_eq!((received, data), (kind, payload));
    assert_eq!((segment.queue, segment.msn, segment.offset), (QueueNumber::SEND, Msn(msn), 0));
    assert!(segment.last);
}

// F1..F5; RDM-4.1-1, RDM-4.1-2, RDM-5.3-1, DDP-4.3-1, MPA-4.1-2, MPA-4.1-3.
#[test]
fn sends() {
    let advertisement = hex("00 00 7f 00 12 34 50 00 00 ab cd 00 00 00 00 40");
    check_send(fpdus::F1, SendKind::Plain, 1, &advertisement);
    check_send(fpdus::F2, SendKind::Plain, 1, b"hello");
    check_send(fpdus::F3, SendKind::Plain, 1, b"");
    check_send(fpdus::F4, SendKind::Invalidate(Stag(0x00ab_cd00)), 2, b"bye!");
    check_send(fpdus::F5, SendKind::Solicited, 3, b"se");
}

// F6, F7; RDM-5.1-1, DDP-4.2-1.
#[test]
fn writes() {
    let header = rdmap::write_header(true, Stag(0x1122_3344), TaggedOffset(0x1000));
    let ulpdu = check(fpdus::F6, &header, b"data");
    let Inbound::Write { segment, payload } = rdmap::parse(&ulpdu).unwrap() else { panic!() };
    assert_eq!((segment.stag, segment.offset), (Stag(0x1122_3344), TaggedOffset(0x1000)));
    assert_eq!(payload, b"data");
    check(fpdus::F7, &rdmap::rtr_header(RtrKind::Write), b"");
}

// F8..F11; RDM-4.4-1, RDM-4.4-2, RDM-5.2.1-7; F3 is the third RTR message.
#[test]
fn reads() {
    let request = ReadRequest {
        sink_stag: Stag(0x0102_0304),
        sink_offset: TaggedOffset(0x2000),
        octets: 64,
        source_stag: Stag(0x00ab_cd00),
        source_offset: TaggedOffset(0x7f00_1234_5000),
    };
    let ulpdu = check(fpdus::F8, &rdmap::read_request_header(Msn::FIRST, &request), b"");
    let Inbound::ReadRequest { segment, request: received } = rdmap::parse(&ulpdu).unwrap() else {
        panic!("no Read Request")
    };
    assert_eq!(received, request);
    assert_eq!(segment.queue, QueueNumber::READ_REQUEST);
    check(fpdus::F9, &rdmap::rtr_header(RtrKind::Read), b"");
    check(fpdus::F3, &rdmap::rtr_header(RtrKind::Send), b"");

    let header = rdmap::read_response_header(true, request.sink_stag, request.sink_offset);
    let ulpdu = check(fpdus::F10, &header, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(matches!(rdmap::parse(&ulpdu), Ok(Inbound::ReadResponse { .. })));
    let header = rdmap::read_response_header(true, Stag(1), TaggedOffset(0));
    check(fpdus::F11, &header, b"");
}

fn check_terminate(expected: &str, terminate: &Terminate) {
    let ulpdu = check(expected, &rdmap::terminate_header(terminate), b"");
    let Inbound::Terminate { segment, payload } = rdmap::parse(&ulpdu).unwrap() else {
        panic!("no Terminate")
    };
    assert_eq!((segment.msn, segment.offset, segment.last), (Msn::FIRST, 0, true));
    for phase in [TerminatePhase::Startup, TerminatePhase::Operation] {
        let received = ReceivedTerminate::parse(payload, phase).unwrap();
        assert_eq!(received.rfc, *terminate);
        if phase == TerminatePhase::Startup || terminate.number.code < 5 {
            assert_eq!(received.meant(), terminate);
        }
    }
}

// F12..F16; RDM-4.8-1..4, RDM-5.4-1, RDM-7.1-2..4, MPE-8-1.
#[test]
fn terminates() {
    check_terminate(fpdus::F12, &Terminate::new(WireError::MpaCrc));
    check_terminate(fpdus::F16, &Terminate::new(WireError::MpaNoMatchingRtr));

    let mut send = rdmap::send_header(true, SendKind::Plain, Msn(9), 0).to_vec();
    send.resize(34, 0);
    check_terminate(fpdus::F13, &Terminate::for_ulpdu(WireError::UntaggedMsn, &send));

    let mut write = rdmap::write_header(true, Stag(0xdead_beef), TaggedOffset(0x1000)).to_vec();
    write.resize(34, 0);
    check_terminate(fpdus::F14, &Terminate::for_ulpdu(WireError::TaggedInvalidStag, &write));

    let request = ReadRequest {
        sink_stag: Stag(0x00ab_cd42),
        sink_offset: TaggedOffset(0x1_0000),
        octets: 0x40,
        source_stag: Stag(0xdead_be01),
        source_offset: TaggedOffset(0x1000),
    };
    let read = rdmap::read_request_header(Msn::FIRST, &request);
    check_terminate(fpdus::F15, &Terminate::for_ulpdu(WireError::ProtectionBounds, &read));
}

// F17: Terminate 2/0/02 as sent by Linux siw on x86.
#[test]
fn terminate_with_layer_and_type_exchanged() {
    let fpdu = hex(fpdus::F17);
    let mut decoder = Decoder::new(true, false);
    let ulpdu = decoder.next(&mut &fpdu[..]).unwrap().unwrap();
    let Inbound::Terminate { payload, .. } = rdmap::parse(ulpdu).unwrap() else { panic!() };
    for phase in [TerminatePhase::Startup, TerminatePhase::Operation] {
        let received = ReceivedTerminate::parse(payload, phase).unwrap();
        assert_eq!(received.reading, Reading::Swapped);
        assert_eq!(received.meant().number.known(), Some(WireError::MpaCrc));
        assert_eq!(received.rfc.number.known(), None);
    }
}

/// Returns the message of RFC 7306 in a ULPDU, and its header.
fn extension(ulpdu: &[u8]) -> (UntaggedSegment, Extension) {
    let Inbound::Extension { segment, opcode, payload } = rdmap::parse(ulpdu).unwrap() else {
        panic!("no message of RFC 7306")
    };
    (segment, Extension::parse(opcode, &segment, payload).unwrap())
}

// F18, F19; EXT-4.1-1, EXT-5-2, EXT-5-3, EXT-5.2-1, EXT-5.2.1-1, EXT-5.2.2-1.
#[test]
fn atomics() {
    let request = AtomicRequest {
        operation: AtomicOperation::FetchAdd { add: 5, mask: 0 },
        identifier: 7,
        stag: Stag(0x00ab_cd00),
        offset: TaggedOffset(0x2000),
    };
    let ulpdu = check(fpdus::F18, &rdmap::atomic_request_header(Msn(2), &request), b"");
    let (segment, received) = extension(&ulpdu);
    assert_eq!(received, Extension::AtomicRequest(request));
    assert_eq!((segment.queue, segment.msn), (QueueNumber::READ_REQUEST, Msn(2)));

    let response = AtomicResponse { identifier: 7, original: 99 };
    let ulpdu = check(fpdus::F19, &rdmap::atomic_response_header(Msn::FIRST, &response), b"");
    let (segment, received) = extension(&ulpdu);
    assert_eq!(received, Extension::AtomicResponse(response));
    assert_eq!(segment.queue, QueueNumber::ATOMIC_RESPONSE);
}

// F20; EXT-4.1-1, EXT-6.3-1.
#[test]
fn immediate_data() {
    let data = 0x1122_3344_5566_7788_u64.to_be_bytes();
    let ulpdu = check(fpdus::F20, &rdmap::immediate_header(false, Msn(4), data), b"");
    let (segment, received) = extension(&ulpdu);
    assert_eq!(received, Extension::Immediate { solicited: false, data });
    assert_eq!((segment.queue, segment.msn), (QueueNumber::SEND, Msn(4)));
}

// Two Sends of 16 zero octets as captured from Linux siw.
#[test]
fn sends_of_siw() {
    let mut encoder = Encoder::new(true, false);
    for (msn, crc) in [(1, [0x84, 0x60, 0x9a, 0x12]), (2, [0xb3, 0xe6, 0x84, 0x05])] {
        let header = rdmap::send_header(true, SendKind::Plain, Msn(msn), 0);
        let fpdu = encode(&mut encoder, &header, &[0; 16]);
        assert_eq!(fpdu[fpdu.len() - 4..], crc);
    }
    assert_eq!((encoder.fpdus(), encoder.octets()), (2, 80));
}

// M1, M2, M3 (RFC 5044 figures 5 and 6); MPA-4.2-1..3, MPA-4.3-1..9, MPA-4.4-9..11.
#[test]
fn markers_of_the_figures() {
    let send = |msn| rdmap::send_header(true, SendKind::Plain, Msn(msn), 0);
    let m1 = hex("00 00 00 00 00 2a 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 \
         00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 52 23 99 83");
    assert_eq!(encode(&mut Encoder::new(true, true), &send(1), &[0; 24]), m1);

    // A first FPDU that ends at 0x1ec puts the second one there: 492 = marker 4 + 2 + 18 + 464 + 4.
    let m2 = hex("00 2a 41 43 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 14 \
         00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 84 92 58 98");
    let mut encoder = Encoder::new(true, true);
    assert_eq!(encode(&mut encoder, &send(1), &[0; 464]).len(), 0x1ec);
    assert_eq!(encode(&mut encoder, &send(2), &[0; 24]), m2);

    // Payloads of 481..=484 octets end the first FPDU at 512.
    let m3 =
        hex("00 00 00 00 00 12 41 43 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 7c 71 e5 b4");
    for octets in 481..=484 {
        let mut encoder = Encoder::new(true, true);
        assert_eq!(encode(&mut encoder, &send(1), &vec![0; octets]).len(), 512);
        assert_eq!(encode(&mut encoder, &send(2), &[]), m3);
    }
    // Payloads of 485..=488 octets put the marker between pad and CRC.
    for octets in 485..=488 {
        let fpdu = encode(&mut Encoder::new(true, true), &send(1), &vec![1; octets]);
        assert_eq!(fpdu.len(), 520);
        assert_eq!(fpdu[512..516], [0, 0, 0x01, 0xfc]);
        assert_eq!(fpdu[516..], crc32c(&fpdu[..516]).to_le_bytes());
        let mut decoder = Decoder::new(true, true);
        assert_eq!(decoder.next(&mut &fpdu[..]).unwrap().unwrap().len(), 18 + octets);
        assert_eq!(decoder.counters().markers, 2);
    }
}

// The stream of four messages with markers; MPA-4.3-2, MPA-4.3-6..8, MPA-4.3-10.
#[test]
fn marker_stream() {
    let mut encoder = Encoder::new(true, true);
    let mut stream = Vec::new();
    let mut ulpdus = Vec::new();
    for (i, (octets, length, crc, digest)) in [
        (24, 52, [0x1d, 0x08, 0x1a, 0x86], "ca ff f7 90 fc 4c 94 a4"),
        (440, 468, [0x44, 0x62, 0x51, 0x8e], "c5 5c cc 6f 28 2f 15 d4"),
        (3, 28, [0x15, 0x91, 0xb5, 0x26], "7f 45 2e da 7d 2c c0 87"),
        (600, 628, [0x02, 0xc2, 0xe1, 0x44], "8a 90 ce 3c e5 1d 90 14"),
    ]
    .into_iter()
    .enumerate()
    {
        let payload: Vec<u8> = (0..octets).map(|j| ((7 * j + i) & 255) as u8).collect();
        let header = rdmap::send_header(true, SendKind::Plain, Msn(i as u32 + 1), 0);
        let fpdu = encode(&mut encoder, &header, &payload);
        assert_eq!(fpdu.len(), length);
        assert_eq!(fpdu[length - 4..], crc);
        assert_eq!(Sha256::digest(&fpdu)[..8], hex(digest));
        stream.extend(fpdu);
        ulpdus.push([&header[..], &payload].concat());
    }
    assert_eq!(stream.len(), 1176);
    assert_eq!(crc32c(&stream), 0x6d77_d960);

    for step in [1, 3, 4, 511, 512, 1176] {
        let mut decoder = Decoder::new(true, true);
        let mut received = Vec::new();
        for mut piece in stream.chunks(step) {
            while let Some(ulpdu) = decoder.next(&mut piece).unwrap() {
                received.push(ulpdu.to_vec());
            }
        }
        assert_eq!(received, ulpdus);
        assert!(decoder.is_between_fpdus());
        assert_eq!((decoder.counters().fpdus, decoder.counters().markers), (4, 3));
    }
}
