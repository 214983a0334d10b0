//! Messages on the required segments and queues, reads and their responses, Terminates in both forms.

use alloc::{string::ToString, vec, vec::Vec};

use proptest::{collection::vec as vec_of, prelude::*};

use super::*;
use crate::{ddp::TAGGED_OCTETS, error::ErrorNumber};

fn untagged(opcode: u8, queue: u32, payload: &[u8]) -> Vec<u8> {
    let segment = UntaggedSegment {
        last: true,
        ulp: VERSION | opcode,
        ulp_word: 0,
        queue: QueueNumber(queue),
        msn: Msn::FIRST,
        offset: 0,
    };
    [&Segment::Untagged(segment).emit()[..], payload].concat()
}

fn tagged(opcode: u8) -> Vec<u8> {
    let ulp = VERSION | opcode;
    let stag = Stag(1);
    Segment::Tagged(TaggedSegment { last: true, ulp, stag, offset: TaggedOffset(0) })
        .emit()
        .to_vec()
}

fn refusal(ulpdu: &[u8]) -> WireError {
    parse(ulpdu).unwrap_err().wire()
}

/// Returns the message of RFC 7306 in a ULPDU, and its header.
fn extension(ulpdu: &[u8]) -> Result<(UntaggedSegment, Extension), RdmapError> {
    let Inbound::Extension { segment, opcode, payload } = parse(ulpdu)? else { panic!("none") };
    Ok((segment, Extension::parse(opcode, &segment, payload)?))
}

// RDM-4.1-3, RDM-7.2-1, EXT-4.1-1, EXT-5-3, EXT-5.2.1-1: each opcode on each kind of segment and each queue.
#[test]
fn opcodes_segments_and_queues() {
    for opcode in 0..16u8 {
        let is_tagged = matches!(opcode, 0 | 2);
        let is_known = !matches!(opcode, 12 | 13);
        match parse(&tagged(opcode)) {
            Ok(_) => assert!(is_tagged, "{opcode}"),
            Err(error) => {
                assert!(!is_tagged, "{opcode}");
                assert_eq!(error.wire(), WireError::OperationUnexpectedOpcode);
            }
        }
        for queue in 0..6 {
            let expected = match opcode {
                1 => queue == 1,
                3..=6 | 8 | 9 | 15 => queue == 0,
                7 => queue == 2,
                10 => queue == 1,
                11 => queue == 3,
                14 => queue == 4,
                _ => false,
            };
            let octets = match opcode {
                8 | 9 => IMMEDIATE_OCTETS,
                10 => ATOMIC_REQUEST_OCTETS,
                11 => ATOMIC_RESPONSE_OCTETS,
                _ => READ_REQUEST_OCTETS,
            };
            match parse(&untagged(opcode, queue, &[0; 64][..octets])) {
                Ok(_) => assert!(expected, "{opcode} {queue}"),
                Err(error) if is_known && !is_tagged => {
                    assert!(!expected, "{opcode} {queue}");
                    assert_eq!(error.wire(), WireError::UntaggedQueue);
                }
                Err(error) => assert_eq!(error.wire(), WireError::OperationUnexpectedOpcode),
            }
        }
    }
}

// Private messages: the acknowledgment, and the Send with immediate data.
#[test]
fn private_messages_survive() {
    for syndrome in [Syndrome::Executed, Syndrome::NotReady, Syndrome::Failed(10)] {
        let acknowledgment = Acknowledgment { count: 0x0102_0304, syndrome };
        let header = acknowledgment_header(Msn(5), &acknowledgment);
        let Ok(Inbound::Private { segment, opcode, payload }) = parse(&header) else { panic!() };
        assert_eq!((opcode, segment.msn, segment.last), (Opcode::Acknowledgment, Msn(5), true));
        assert_eq!(Acknowledgment::parse(payload, segment.last), Ok(acknowledgment));
        assert_eq!(
            Acknowledgment::parse(payload, false).unwrap_err().wire(),
            WireError::UntaggedTooLong
        );
    }
    let failed = Acknowledgment { count: 7, syndrome: Syndrome::Failed(13) };
    assert_eq!(failed.emit(), [0, 0, 0, 7, 2, 13, 0, 0]);
    let reserved = Acknowledgment::parse(&[0, 0, 0, 7, 2, 13, 0xff, 0xff], true);
    assert_eq!(reserved, Ok(failed), "reserved octets are ignored");
    let unknown = Acknowledgment::parse(&[0, 0, 0, 7, 3, 0, 0, 0], true).unwrap_err();
    assert_eq!(
        (unknown, unknown.wire()),
        (RdmapError::Syndrome(3), WireError::OperationUnspecified)
    );
    for solicited in [false, true] {
        let kind = SendKind::Immediate { data: *b"imm!", solicited };
        let header = send_header(true, kind, Msn(9), 4);
        assert_eq!(header[2..6], *b"imm!");
        let Ok(Inbound::Private { segment, opcode, .. }) = parse(&header) else { panic!() };
        assert_eq!((opcode, immediate_kind(&segment)), (Opcode::SendImmediate, kind));
        assert_eq!((kind.is_solicited(), kind.invalidate()), (solicited, None));
    }
}

// RDM-4.1-4: RV must be 1, reserved bits may have any value.
#[test]
fn versions_and_reserved_bits() {
    for bits in 0..16u8 {
        let mut ulpdu = untagged(3, 0, b"");
        ulpdu[1] = bits << 4 | 3;
        match bits >> 2 {
            1 => assert!(parse(&ulpdu).is_ok()),
            version => {
                assert_eq!(parse(&ulpdu), Err(RdmapError::Version(version)));
                assert_eq!(refusal(&ulpdu), WireError::OperationVersion);
            }
        }
    }
}

// RDM-4.1-2: only the Invalidate opcodes use the STag.
#[test]
fn kinds_of_send() {
    let stag = Stag(0x1234_5678);
    for (opcode, kind) in [
        (3, SendKind::Plain),
        (4, SendKind::Invalidate(stag)),
        (5, SendKind::Solicited),
        (6, SendKind::SolicitedInvalidate(stag)),
    ] {
        let mut ulpdu = untagged(opcode, 0, b"data");
        ulpdu[2..6].copy_from_slice(&stag.0.to_be_bytes());
        let Ok(Inbound::Send { kind: received, payload: b"data", .. }) = parse(&ulpdu) else {
            panic!("{opcode}")
        };
        assert_eq!(received, kind);
        assert_eq!(kind.is_solicited(), opcode >= 5);
        let header = send_header(true, kind, Msn::FIRST, 0);
        assert_eq!(header[2..6] != [0; 4], kind.invalidate().is_some());
    }
}

// Negative vectors: ULPDU_Length 12 with opcode 3, Read Requests that are longer, shorter or segmented.
#[test]
fn lengths() {
    assert_eq!(refusal(&untagged(3, 0, b"")[..12]), WireError::MpaMarker);
    assert_eq!(refusal(&tagged(0)[..13]), WireError::MpaMarker);
    assert_eq!(refusal(&untagged(1, 1, &[0; 27])), WireError::MpaMarker);
    assert_eq!(refusal(&untagged(1, 1, &[0; 36])), WireError::UntaggedTooLong);
    let mut first_of_two = untagged(1, 1, &[0; 28]);
    first_of_two[0] &= !0x40;
    assert!(matches!(parse(&first_of_two), Err(RdmapError::Length { octets: 28, .. })));
}

// EXT-5.2.1-1, EXT-5.2.2-1, EXT-6.3-2: messages of RFC 7306 have one segment and one length.
#[test]
fn lengths_of_extensions() {
    for (opcode, queue, octets) in [
        (8, 0, IMMEDIATE_OCTETS),
        (9, 0, IMMEDIATE_OCTETS),
        (10, 1, ATOMIC_REQUEST_OCTETS),
        (11, 3, ATOMIC_RESPONSE_OCTETS),
    ] {
        let message = |octets| untagged(opcode, queue, &[0; 64][..octets]);
        let refused = |octets| extension(&message(octets)).unwrap_err().wire();
        assert!(extension(&message(octets)).is_ok());
        assert_eq!(refused(octets - 1), WireError::MpaMarker, "{opcode}");
        assert_eq!(refused(octets + 1), WireError::UntaggedTooLong, "{opcode}");
        let mut first_of_two = message(octets);
        first_of_two[0] &= !0x40;
        let length = RdmapError::Length { octets, expected: octets };
        assert_eq!(extension(&first_of_two), Err(length));
    }
}

// EXT-5-2, EXT-5.2.1-2: two operations are assigned; the bits before the opcode are ignored.
#[test]
fn atomic_opcodes() {
    for bits in 0..=255_u8 {
        let mut payload = [0; ATOMIC_REQUEST_OCTETS];
        payload[..4].copy_from_slice(&[9, 9, 9, bits]);
        let message = untagged(10, 1, &payload);
        match (bits & 0xf, extension(&message)) {
            (0, Ok((_, Extension::AtomicRequest(request)))) => {
                assert_eq!(request.operation, AtomicOperation::FetchAdd { add: 0, mask: 0 });
            }
            (2, Ok((_, Extension::AtomicRequest(request)))) => {
                assert!(matches!(request.operation, AtomicOperation::CompareSwap { .. }));
            }
            (code, Err(error)) if code != 0 && code != 2 => {
                assert_eq!(error, RdmapError::AtomicOpcode(code));
                assert_eq!(error.wire(), WireError::OperationUnexpectedOpcode);
            }
            other => panic!("{bits}: {other:?}"),
        }
    }
}

/// FetchAdd bit by bit, as specified in RFC 7306 §5.1.1.
fn add_by_bits(original: u64, add: u64, mask: u64) -> u64 {
    let (mut value, mut carry) = (0, 0);
    for bit in 0..64 {
        let sum = carry + (original >> bit & 1) + (add >> bit & 1);
        value |= (sum & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
    }
    value
}

#[test]
fn atomic_arithmetic() {
    let add = |original, add, mask| AtomicOperation::FetchAdd { add, mask }.apply(original);
    assert_eq!(add(u64::MAX, 1, 0), 0);
    assert_eq!(add(0xffff_ffff, 1, 0x8000_0000), 0, "two fields of 32 bits");
    assert_eq!(add(0xff_00ff, 0x01_0001, 0x80_8080), 0, "bytes");
    assert_eq!(AtomicOperation::swap(9).apply(77), 9);
    let swap = |compare, compare_mask| AtomicOperation::CompareSwap {
        compare,
        compare_mask,
        swap: 0x1234,
        swap_mask: 0xff00,
    };
    assert_eq!(swap(0x55, 0xff).apply(0xaa55), 0x1255);
    assert_eq!(swap(0x56, 0xff).apply(0xaa55), 0xaa55);
    assert_eq!(swap(0xaa55, u64::MAX).apply(0xaa55), 0x1255);
}

fn atomic_operation() -> impl Strategy<Value = AtomicOperation> {
    let operands = any::<[u64; 4]>();
    (any::<bool>(), operands).prop_map(|(is_add, [a, b, c, d])| match is_add {
        true => AtomicOperation::FetchAdd { add: a, mask: b },
        false => {
            AtomicOperation::CompareSwap { compare: a, compare_mask: b, swap: c, swap_mask: d }
        }
    })
}

fn read_request() -> impl Strategy<Value = ReadRequest> {
    any::<(u32, u64, u32, u32, u64)>().prop_map(|(sink, to, octets, source, from)| ReadRequest {
        sink_stag: Stag(sink),
        sink_offset: TaggedOffset(to),
        octets,
        source_stag: Stag(source),
        source_offset: TaggedOffset(from),
    })
}

proptest! {
    // RDM-4.4-1.
    #[test]
    fn read_requests_survive(request in read_request(), msn in any::<u32>()) {
        let ulpdu = read_request_header(Msn(msn), &request);
        match parse(&ulpdu) {
            Ok(Inbound::ReadRequest { segment, request: received }) => {
                prop_assert_eq!(received, request);
                prop_assert_eq!(segment.msn, Msn(msn));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    // EXT-5.2.1-1.
    #[test]
    fn atomic_requests_survive(
        operation in atomic_operation(),
        (identifier, stag, offset, msn) in any::<(u32, u32, u64, u32)>(),
    ) {
        let (stag, offset) = (Stag(stag), TaggedOffset(offset));
        let request = AtomicRequest { operation, identifier, stag, offset };
        let mut ulpdu = atomic_request_header(Msn(msn), &request).to_vec();
        ulpdu[2..6].copy_from_slice(&[1, 2, 3, 4]); // EXT-4.1-1
        match extension(&ulpdu) {
            Ok((segment, Extension::AtomicRequest(received))) => {
                prop_assert_eq!(received, request);
                prop_assert_eq!((segment.msn, segment.queue), (Msn(msn), QueueNumber(1)));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    // EXT-5.2.2-1, EXT-6.3-1.
    #[test]
    fn responses_and_immediate_data_survive(
        (identifier, original, msn, solicited) in any::<(u32, u64, u32, bool)>(),
    ) {
        let response = AtomicResponse { identifier, original };
        match extension(&atomic_response_header(Msn(msn), &response)) {
            Ok((segment, Extension::AtomicResponse(received))) => {
                prop_assert_eq!(received, response);
                prop_assert_eq!((segment.msn, segment.queue), (Msn(msn), QueueNumber(3)));
            }
            other => prop_assert!(false, "{:?}", other),
        }
        let octets = original.to_be_bytes();
        match extension(&immediate_header(solicited, Msn(msn), octets)) {
            Ok((segment, Extension::Immediate { solicited: received, data })) => {
                prop_assert_eq!((received, data), (solicited, octets));
                prop_assert_eq!((segment.msn, segment.queue), (Msn(msn), QueueNumber(0)));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn additions_in_fields(original in any::<u64>(), add in any::<u64>(), masks in any::<[u64; 2]>()) {
        for mask in [masks[0], masks[0] & masks[1], 0, u64::MAX] {
            let sum = AtomicOperation::FetchAdd { add, mask }.apply(original);
            prop_assert_eq!(sum, add_by_bits(original, add, mask), "{:#x}", mask);
        }
    }

    // EXT-5.1.2-1: the original value, or the value with the bits swapped.
    #[test]
    fn swaps_in_fields(original in any::<u64>(), operands in any::<[u64; 4]>()) {
        let [compare, compare_mask, swap, swap_mask] = operands;
        for (compare, mask) in [(original, u64::MAX), (original, compare_mask), (compare, compare_mask), (compare, 0)] {
            let operation = AtomicOperation::CompareSwap { compare, compare_mask: mask, swap, swap_mask };
            let equal = (0..64).all(|bit| mask >> bit & 1 == 0 || original >> bit & 1 == compare >> bit & 1);
            let bit = |bit: u64| match equal && swap_mask >> bit & 1 == 1 {
                true => swap >> bit & 1,
                false => original >> bit & 1,
            };
            let expected = (0..64).fold(0, |value, at| value | bit(at) << at);
            prop_assert_eq!(operation.apply(original), expected);
        }
    }

    #[test]
    fn arbitrary_octets_never_panic(
        mut octets in vec_of(any::<u8>(), 0..120),
        opcode in 0..16u8,
        shape in any::<Option<bool>>(),
    ) {
        // Few random octets are valid DDP: some get a valid header.
        if let (Some(is_tagged), [control, ulp, ..]) = (shape, &mut octets[..]) {
            *control = if is_tagged { 0xc1 } else { 0x41 };
            *ulp = VERSION | opcode;
        }
        match parse(&octets) {
            Ok(Inbound::Terminate { payload, .. }) => {
                let _ = ReceivedTerminate::parse(payload, TerminatePhase::Operation);
            }
            Ok(Inbound::Extension { segment, opcode, payload }) => {
                let read = Extension::parse(opcode, &segment, payload);
                prop_assert!(read.is_ok() || read.is_err_and(|error| error.wire().number().layer <= 2));
            }
            Ok(_) => {}
            Err(error) => prop_assert!(error.wire().number().layer <= 2),
        }
        for error in WireError::ALL {
            let header = terminate_header(&Terminate::for_ulpdu(*error, &octets));
            prop_assert!(parse(&header).is_ok());
        }
        for phase in [TerminatePhase::Startup, TerminatePhase::Operation] {
            prop_assert_eq!(ReceivedTerminate::parse(&octets, phase).is_some(), octets.len() >= 4);
        }
    }

    // DDP-5.2-1, DDP-5.2-4, MPA-3-3, MPA-4.5-4: all octets once, in order, L exactly once, segments of maximum size.
    #[test]
    fn messages_are_segmented_completely(
        octets in 0..500_000u32,
        mulpdus in vec_of(128..=64_768u16, 1..9),
    ) {
        let mut segmenter = Segmenter::new(octets);
        let mut expected = 0;
        let mut mulpdus = mulpdus.iter().cycle();
        while !segmenter.is_finished() {
            let &mulpdu = mulpdus.next().unwrap();
            let cut = segmenter.next(mulpdu, TAGGED_OCTETS).unwrap();
            prop_assert_eq!(cut.offset, expected);
            expected += cut.octets;
            prop_assert_eq!(cut.last, expected == octets);
            let room = u32::from(mulpdu) - TAGGED_OCTETS as u32;
            prop_assert!(cut.octets == room || cut.last && cut.octets < room);
        }
        prop_assert_eq!((expected, segmenter.remaining()), (octets, 0));
        prop_assert_eq!(segmenter.next(1442, TAGGED_OCTETS), None);
    }
}

// DDP-5.2-6, RDM-5.1-3: a message of zero octets is one segment.
#[test]
fn empty_message() {
    let mut segmenter = Segmenter::new(0);
    assert_eq!(segmenter.next(128, 18), Some(Cut { offset: 0, octets: 0, last: true }));
    assert_eq!(segmenter.next(128, 18), None);
}

// The rest of a TCP segment may have room for exactly the header of an empty message, such as a Read Request, whose
// fields are its header.
#[test]
fn empty_message_needs_header_room_only() {
    for header_octets in [TAGGED_OCTETS, 46] {
        let cut = Segmenter::new(0).next(header_octets as u16, header_octets);
        assert_eq!(cut, Some(Cut { offset: 0, octets: 0, last: true }));
    }
}

#[test]
#[should_panic(expected = "for a header of 18")]
fn missing_payload_room_panics() {
    Segmenter::new(1).next(18, 18);
}

fn request(octets: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: Stag(7),
        sink_offset: TaggedOffset(1000),
        octets,
        source_stag: Stag(9),
        source_offset: TaggedOffset(u64::MAX - 10),
    }
}

fn response(offset: u64, last: bool) -> TaggedSegment {
    let ulp = Opcode::ReadResponse.control();
    TaggedSegment { last, ulp, stag: Stag(7), offset: TaggedOffset(offset) }
}

// RDM-5.2.2-5: the response is compared with the request.
#[test]
fn pending_read() {
    let mut read = PendingRead::new(&request(300));
    let refused = |read: PendingRead, segment: TaggedSegment, octets| {
        read.clone().accept(&segment, octets).unwrap_err().wire()
    };
    let other = TaggedSegment { stag: Stag(8), ..response(1000, false) };
    assert_eq!(refused(read, other, 100), WireError::TaggedInvalidStag);
    assert_eq!(refused(read, response(999, false), 100), WireError::TaggedBounds);
    assert_eq!(refused(read, response(1000, true), 299), WireError::TaggedBounds);
    assert_eq!(refused(read, response(1000, true), 0), WireError::TaggedBounds);
    assert_eq!(refused(read, response(1000, true), 301), WireError::TaggedBounds);
    assert_eq!(refused(read, response(1000, false), 301), WireError::TaggedBounds);
    assert_eq!(read.accept(&response(1000, false), 100), Ok((0, false)));
    assert_eq!(refused(read, response(1000, true), 200), WireError::TaggedBounds);
    assert_eq!(read.accept(&response(1100, false), 200), Ok((100, false)));
    assert_eq!(read.accept(&response(1300, true), 0), Ok((300, true)));
}

// DDP-5.2-7, RDM-5.2.1-7: STag and offset of an empty response are not checked, its length is.
#[test]
fn empty_read() {
    let mut read = PendingRead::new(&request(0));
    let elsewhere = TaggedSegment { stag: Stag(0), ..response(0, true) };
    assert!(read.accept(&response(1000, true), 1).is_err());
    assert_eq!(read.accept(&elsewhere, 0), Ok((0, true)));
}

// RFC 5040 §4.8: a read that failed midway is returned with its unanswered rest.
#[test]
fn advanced_request() {
    let left = request(300).advanced(200);
    assert_eq!(left.sink_offset, TaggedOffset(1200));
    assert_eq!((left.octets, left.source_offset), (100, TaggedOffset(189)));
    assert_eq!((left.sink_stag, left.source_stag), (Stag(7), Stag(9)));
    assert_eq!(request(300).advanced(301).octets, 0);
}

// RDM-7.1-2..4: headers returned for each error.
#[test]
fn headers_in_a_terminate() {
    let read = read_request_header(Msn::FIRST, &request(300));
    let send = untagged(3, 0, &[0; 20]);
    for &error in WireError::ALL {
        let ErrorNumber { layer, etype, .. } = error.number();
        let has_header = layer < 2 && etype != 0;
        let terminate = Terminate::for_ulpdu(error, &send);
        assert_eq!(terminate.header.is_some(), has_header, "{error}");
        assert_eq!(terminate.segment_octets, has_header.then_some(38));
        assert_eq!(terminate.read_request, None);
        let terminate = Terminate::for_ulpdu(error, &read);
        let is_protection = (layer, etype) == (0, 1);
        assert_eq!(terminate.read_request, is_protection.then(|| request(300)), "{error}");
        let octets = 22 + if has_header { 20 } else { 0 } + if is_protection { 28 } else { 0 };
        assert_eq!(terminate_header(&terminate).len(), octets);
    }
    // A segment of another version of DDP is returned, a truncated one is not.
    let terminate = Terminate::for_ulpdu(WireError::UntaggedVersion, &[0x42; 30]);
    assert_eq!((terminate.segment_octets, terminate.segment()), (Some(30), None));
    assert_eq!(terminate_header(&terminate)[24..], [0x42; 18]);
    let terminate = Terminate::for_ulpdu(WireError::UntaggedVersion, &[0x42; 17]);
    assert_eq!(terminate, Terminate::new(WireError::UntaggedVersion));
}

// RDM-7.1-3, RDM-7.1-4: the headers are returned as received, reserved bits included. Those bits do not change the type
// of the message.
#[test]
fn returned_headers_are_the_peers_octets() {
    let mut read = read_request_header(Msn::FIRST, &request(300)).to_vec();
    read[0] |= 0x3c;
    read[1] |= 0x30;
    read[2..6].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    assert!(matches!(parse(&read), Ok(Inbound::ReadRequest { .. })));
    let octets = terminate_header(&Terminate::for_ulpdu(WireError::ProtectionBounds, &read));
    assert_eq!(octets[18..24], [0x01, 0x01, 0xe0, 0, 0, 46]);
    assert_eq!(octets[24..], read);
    let mut write = [&tagged(0)[..], &[9; 5]].concat();
    write[0] |= 0x14;
    let octets = terminate_header(&Terminate::for_ulpdu(WireError::TaggedBounds, &write));
    assert_eq!(octets[18..24], [0x11, 0x01, 0xc0, 0, 0, 19]);
    assert_eq!(octets[24..], write[..14]);
}

// RDM-4.8-1, RDM-4.8-2, and the two forms: octets, error at start-up, error in operation.
#[test]
fn both_forms_of_a_terminate() {
    let same = |number| (number, number);
    for (octets, (startup, operation)) in [
        ([0x01, 0x01, 0xe0], same((0, 1, 1))),
        ([0x10, 0x01, 0x07], same((0, 1, 1))),
        ([0x02, 0x09, 0xc0], same((0, 2, 9))),
        ([0x20, 0x09, 0x03], same((0, 2, 9))),
        ([0x10, 0x00, 0xc0], same((1, 0, 0))),
        ([0x01, 0x00, 0x03], same((1, 0, 0))),
        ([0x11, 0x00, 0xc0], same((1, 1, 0))),
        ([0x11, 0x00, 0x03], same((1, 1, 0))),
        ([0x12, 0x03, 0xc0], same((1, 2, 3))),
        ([0x21, 0x03, 0x03], same((1, 2, 3))),
        ([0x21, 0x03, 0x00], same((1, 2, 3))),
        ([0x21, 0x77, 0x00], same((1, 2, 0x77))),
        ([0x12, 0x03, 0x00], same((1, 2, 3))),
        ([0x20, 0x02, 0x00], same((2, 0, 2))),
        ([0x02, 0x02, 0x00], same((2, 0, 2))),
        ([0x02, 0x03, 0x00], same((2, 0, 3))),
        ([0x02, 0x09, 0x00], same((0, 2, 9))),
        ([0x02, 0xff, 0x00], same((0, 2, 0xff))),
        ([0x00, 0x55, 0x00], same((0, 0, 0x55))),
        ([0x01, 0x03, 0x00], same((0, 1, 3))),
        ([0x33, 0x00, 0x00], same((3, 3, 0))),
        ([0x45, 0x00, 0x00], same((4, 5, 0))),
        // Only the phase distinguishes the forms.
        ([0x20, 0x05, 0x00], ((2, 0, 5), (0, 2, 5))),
        ([0x20, 0x06, 0x00], ((2, 0, 6), (0, 2, 6))),
        ([0x02, 0x05, 0x00], ((2, 0, 5), (0, 2, 5))),
        ([0x02, 0x07, 0x00], ((2, 0, 7), (0, 2, 7))),
    ] {
        for (phase, (layer, etype, code)) in
            [(TerminatePhase::Startup, startup), (TerminatePhase::Operation, operation)]
        {
            let [first, second, third] = octets;
            let received = ReceivedTerminate::parse(&[first, second, third, 0xff], phase).unwrap();
            let expected = ErrorNumber { layer, etype, code };
            assert_eq!(received.meant().number, expected, "{octets:02x?} {phase:?}");
            assert_eq!(received.rfc.number.swapped(), received.swapped.number);
        }
    }
}

// Text for the log.
#[test]
fn terminate_display() {
    let words = |octets: [u8; 4]| {
        ReceivedTerminate::parse(&octets, TerminatePhase::Operation).unwrap().to_string()
    };
    assert_eq!(words([0x20, 0x02, 0, 0]), "CRC of an FPDU does not match (2/0/02)");
    assert_eq!(words([0x02, 0x02, 0, 0]), "CRC of an FPDU does not match (2/0/02), sent as 0/2/02");
    assert_eq!(words([0x33, 0x04, 0, 0]), "unknown error (3/3/04)");
}

// RDM-4.8-3, RDM-4.8-4: headers as far as they are present; a Terminate truncated after its control word.
#[test]
fn truncated_terminates_are_parsed() {
    let read = read_request_header(Msn::FIRST, &request(300));
    let whole = Terminate::for_ulpdu(WireError::ProtectionBounds, &read);
    let octets = terminate_header(&whole);
    for end in 18..=octets.len() {
        let Ok(Inbound::Terminate { payload, .. }) = parse(&octets[..end]) else { panic!() };
        let received = ReceivedTerminate::parse(payload, TerminatePhase::Operation);
        let Some(received) = received.map(|received| *received.meant()) else {
            assert!(end < 22);
            continue;
        };
        assert_eq!(received.number, whole.number);
        assert_eq!(received.segment_octets.is_some(), end >= 24);
        assert_eq!(received.header.is_some(), end >= 42);
        assert_eq!(received.read_request.is_some(), end == 70);
    }
    // Linux siw sets R for a Send with Invalidate, which has no Read Request header.
    let mut payload = vec![0x10, 0x09, 0x07, 0, 0, 48];
    payload.extend(send_header(true, SendKind::Invalidate(Stag(3)), Msn(1), 0).iter());
    let received = ReceivedTerminate::parse(&payload, TerminatePhase::Operation).unwrap();
    assert_eq!(received.meant().number.known(), Some(WireError::ProtectionCannotInvalidate));
    assert!(received.meant().segment().is_some());
    assert_eq!(received.meant().read_request, None);
}
