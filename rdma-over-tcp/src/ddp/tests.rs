//! Encoding and parsing of headers; segments in and out of sequence.

use proptest::{collection::vec as vec_of, prelude::*};

use super::*;

fn segment() -> impl Strategy<Value = Segment> {
    let tagged = any::<(bool, u8, u32, u64)>().prop_map(|(last, ulp, stag, offset)| {
        Segment::Tagged(TaggedSegment { last, ulp, stag: Stag(stag), offset: TaggedOffset(offset) })
    });
    let untagged = any::<(bool, u8, u32, u32, u32, u32)>().prop_map(
        |(last, ulp, ulp_word, queue, msn, offset)| {
            let (queue, msn) = (QueueNumber(queue), Msn(msn));
            Segment::Untagged(UntaggedSegment { last, ulp, ulp_word, queue, msn, offset })
        },
    );
    prop_oneof![tagged, untagged]
}

proptest! {
    // DDP-4.2-1, DDP-4.3-1, DDP-4.4-1, DDP-4.1-5: reserved bits are sent as zero and ignored on receipt.
    #[test]
    fn headers_survive(
        segment in segment(),
        payload in vec_of(any::<u8>(), 0..50),
        reserved in 0..16u8,
    ) {
        let header = segment.emit();
        prop_assert_eq!(header[0] & 0x3c, 0);
        let mut ulpdu = [&header[..], &payload].concat();
        ulpdu[0] |= reserved << 2;
        prop_assert_eq!(Segment::parse(&ulpdu), Ok((segment, &payload[..])));
        prop_assert_eq!((segment.last(), segment.ulp()), (header[0] & 0x40 != 0, header[1]));
        for end in 0..header.len() {
            prop_assert_eq!(Segment::parse(&ulpdu[..end]), Err(DdpError::Short { octets: end }));
        }
    }

    #[test]
    fn arbitrary_octets_never_panic(octets in vec_of(any::<u8>(), 0..100)) {
        if let Ok((segment, payload)) = Segment::parse(&octets) {
            prop_assert!(octets.ends_with(payload));
            let length = payload.len();
            let _ = match segment {
                Segment::Tagged(tagged) => TaggedReceiver::new().accept(&tagged, length).map(drop),
                Segment::Untagged(untagged) => {
                    let mut receiver = UntaggedReceiver::new(untagged.queue);
                    receiver.accept(&untagged, length, Some(9)).map(drop)
                }
            };
        }
    }

    // DDP-5.4-1, DDP-5.4-2: messages segmented anywhere are reported with their lengths, in order.
    #[test]
    fn untagged_messages_are_accepted_in_sequence(messages in vec_of(vec_of(0..900usize, 1..5), 1..6)) {
        let mut receiver = UntaggedReceiver::new(QueueNumber::SEND);
        for (number, pieces) in (1..).zip(&messages) {
            let mut offset = 0;
            for (at, &octets) in pieces.iter().enumerate() {
                let last = at + 1 == pieces.len();
                prop_assert_eq!(receiver.is_in_message(), at > 0);
                let segment = send(number, offset, last);
                let place = receiver.accept(&segment, octets, Some(4000)).unwrap();
                prop_assert_eq!(place.offset, offset);
                offset += octets as u32;
                prop_assert_eq!(place.message_octets, last.then_some(offset));
            }
            prop_assert_eq!(receiver.msn(), Msn(number).next());
        }
    }
}

fn send(msn: u32, offset: u32, last: bool) -> UntaggedSegment {
    let (queue, msn) = (QueueNumber::SEND, Msn(msn));
    UntaggedSegment { last, ulp: 0x43, ulp_word: 0, queue, msn, offset }
}

// DDP-4.1-6: 1/1/04 and 1/2/06.
#[test]
fn versions() {
    for version in [0, 2, 3] {
        let error = Segment::parse(&[0xc0 | version; 40]).unwrap_err();
        assert_eq!(error, DdpError::Version { tagged: true, version });
        assert_eq!(error.wire(), WireError::TaggedVersion);
        let error = Segment::parse(&[0x40 | version]).unwrap_err();
        assert_eq!(error.wire(), WireError::UntaggedVersion);
    }
}

// DDP-7.1-1, DDP-7.2-1, DDP-5.3-4: QN 5, MSN 9, MO 8, and the buffer; a rejected segment changes no state.
#[test]
fn untagged_segments_out_of_sequence_are_rejected() {
    let mut receiver = UntaggedReceiver::new(QueueNumber::SEND);
    let mut refuse = |segment: UntaggedSegment, octets, capacity| {
        receiver.accept(&segment, octets, capacity).unwrap_err().wire()
    };
    let queue = QueueNumber(5);
    let first = send(1, 0, true);
    assert_eq!(refuse(UntaggedSegment { queue, ..first }, 4, Some(9)), WireError::UntaggedQueue);
    assert_eq!(refuse(send(9, 0, true), 4, Some(9)), WireError::UntaggedMsn);
    assert_eq!(refuse(send(0, 0, true), 4, Some(9)), WireError::UntaggedMsn);
    assert_eq!(refuse(send(1, 8, true), 4, Some(9)), WireError::UntaggedOffset);
    assert_eq!(refuse(first, 4, None), WireError::UntaggedNoBuffer);
    assert_eq!(refuse(first, 0, None), WireError::UntaggedNoBuffer);
    assert_eq!(refuse(first, 10, Some(9)), WireError::UntaggedTooLong);
    assert!(receiver.accept(&first, 9, Some(9)).is_ok());
}

// DDP-4.3-1: RsvdULP is constant within a message. DDP-4.3-2: MSNs wrap to 0.
#[test]
fn interleaved_untagged_messages_are_rejected() {
    let mut receiver = UntaggedReceiver::new(QueueNumber::SEND);
    receiver.accept(&send(1, 0, false), 4, Some(100)).unwrap();
    for other in [
        UntaggedSegment { ulp: 0x45, ..send(1, 4, true) },
        UntaggedSegment { ulp_word: 7, ..send(1, 4, true) },
    ] {
        assert_eq!(receiver.accept(&other, 4, Some(100)), Err(DdpError::Interleaved));
    }
    assert_eq!(DdpError::Interleaved.wire(), WireError::OperationUnexpectedOpcode);
    assert_eq!(
        receiver.accept(&send(1, 0, true), 4, Some(100)),
        Err(DdpError::InvalidOffset { received: 0, expected: 4 })
    );
    assert_eq!(
        receiver.accept(&send(1, 4, true), 4, Some(100)),
        Ok(UntaggedPlacement { offset: 4, message_octets: Some(8) })
    );
    assert_eq!(Msn(u32::MAX).next(), Msn(0));
}

// A message offset near 2^32 does not overflow.
#[test]
fn untagged_offsets_do_not_overflow() {
    let mut receiver = UntaggedReceiver::new(QueueNumber::SEND);
    let octets = u32::MAX as usize;
    receiver.accept(&send(1, 0, false), octets, Some(u32::MAX)).unwrap();
    let error = receiver.accept(&send(1, u32::MAX, true), 1, Some(u32::MAX)).unwrap_err();
    assert_eq!(error, DdpError::TooLong { octets: 1 << 32, capacity: u32::MAX });
}

fn write(stag: u32, offset: u64, last: bool) -> TaggedSegment {
    TaggedSegment { last, ulp: 0x40, stag: Stag(stag), offset: TaggedOffset(offset) }
}

// DDP-4.2-1, DDP-5.2-5, DDP-7.1-2: descending offsets, gaps, another STag, interleaved messages, wrap.
#[test]
fn tagged_segments_are_checked() {
    let mut receiver = TaggedReceiver::new();
    assert_eq!(
        receiver.accept(&write(1, 1000, false), 100),
        Ok(TaggedPlacement { message_offset: 0, message_octets: None })
    );
    assert!(receiver.is_in_message());
    let refused =
        |segment: TaggedSegment| receiver.clone().accept(&segment, 10).unwrap_err().wire();
    for offset in [900, 1000, 1099, 1101] {
        assert_eq!(refused(write(1, offset, true)), WireError::TaggedBounds);
    }
    assert_eq!(refused(write(2, 1100, true)), WireError::TaggedInvalidStag);
    let response = TaggedSegment { ulp: 0x42, ..write(1, 1100, true) };
    assert_eq!(refused(response), WireError::OperationUnexpectedOpcode);
    assert_eq!(
        receiver.accept(&write(1, 1100, true), 10),
        Ok(TaggedPlacement { message_offset: 100, message_octets: Some(110) })
    );
    assert!(!receiver.is_in_message());

    let error = receiver.accept(&write(1, u64::MAX - 5, true), 10).unwrap_err();
    assert_eq!(error.wire(), WireError::TaggedWrap);
    // DDP-5.2-2: a message of 2^32 octets is too long.
    receiver.accept(&write(1, 0, false), u32::MAX as usize).unwrap();
    let error = receiver.accept(&write(1, u64::from(u32::MAX), true), 1).unwrap_err();
    assert_eq!(error, DdpError::Bounds(TaggedOffset(u64::from(u32::MAX))));
}

// DDP-5.2-7: a zero-length tagged message is not checked.
#[test]
fn zero_length_tagged_message() {
    let mut receiver = TaggedReceiver::new();
    assert_eq!(
        receiver.accept(&write(0, u64::MAX, true), 0),
        Ok(TaggedPlacement { message_offset: 0, message_octets: Some(0) })
    );
    assert!(!receiver.is_in_message());
}

// Every error has a code of its layer and type.
#[test]
fn errors_have_codes() {
    let stag = Stag(1);
    let offset = TaggedOffset(1);
    for (error, number) in [
        (DdpError::Short { octets: 1 }, (2, 0, 3)),
        (DdpError::InvalidStag(stag), (1, 1, 0)),
        (DdpError::Bounds(offset), (1, 1, 1)),
        (DdpError::NotAssociated(stag), (1, 1, 2)),
        (DdpError::Wrap(offset), (1, 1, 3)),
        (DdpError::InvalidQueue(QueueNumber(9)), (1, 2, 1)),
        (DdpError::NoBuffer(Msn(1)), (1, 2, 2)),
        (DdpError::TooLong { octets: 2, capacity: 1 }, (1, 2, 5)),
    ] {
        let known = error.wire().number();
        assert_eq!((known.layer, known.etype, known.code), number, "{error}");
    }
}
