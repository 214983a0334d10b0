//! Framing: encoder against decoder, against a plain reference implementation, and with damaged streams.

use alloc::{vec, vec::Vec};

use bytes::Bytes;
use proptest::{collection::vec as vec_of, prelude::*, sample::Index};

use super::{crc::crc32c, *};

fn fpdu_of(encoder: &mut Encoder, ulpdu: &[u8]) -> Vec<u8> {
    let (header, payload) = ulpdu.split_at(ulpdu.len().min(18));
    let mut fpdu: Vec<Bytes> = Vec::new();
    encoder.encode(header, &[Bytes::copy_from_slice(payload)], &mut Slab::new(), &mut fpdu);
    fpdu.concat()
}

fn stream_of(ulpdus: &[Vec<u8>], crc: bool, markers: bool) -> Vec<u8> {
    let mut encoder = Encoder::new(crc, markers);
    let stream = ulpdus.iter().flat_map(|ulpdu| fpdu_of(&mut encoder, ulpdu)).collect::<Vec<_>>();
    assert_eq!((encoder.fpdus(), encoder.octets()), (ulpdus.len() as u64, stream.len() as u64));
    stream
}

/// Feeds a stream in pieces that end at `cuts`.
fn decode(
    decoder: &mut Decoder,
    stream: &[u8],
    cuts: &[Index],
) -> (Vec<Vec<u8>>, Option<MpaError>) {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    ends.push(stream.len());
    ends.sort_unstable();
    let mut start = 0;
    let mut ulpdus = Vec::new();
    let mut failed = None;
    for end in ends {
        let mut piece = &stream[start..end];
        start = end;
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(ulpdu)) => {
                    assert_eq!(failed, None, "a ULPDU after an error");
                    ulpdus.push(ulpdu.to_vec());
                }
                Ok(None) => {
                    assert!(piece.is_empty());
                    break;
                }
                Err(error) => {
                    assert!(piece.is_empty());
                    assert!(failed.is_none_or(|first| first == error));
                    failed = Some(error);
                    break;
                }
            }
        }
    }
    (ulpdus, failed)
}

/// Reference for markers: octet by octet, checking the position before each.
fn marked_by_reference(ulpdus: &[Vec<u8>]) -> Vec<u8> {
    let mut stream: Vec<u8> = Vec::new();
    for ulpdu in ulpdus {
        let mut body = (ulpdu.len() as u16).to_be_bytes().to_vec();
        body.extend(ulpdu);
        body.resize(body.len().next_multiple_of(4), 0);
        let covered_from = stream.len();
        if stream.len().is_multiple_of(512) {
            stream.extend([0; 4]);
        }
        let start = stream.len();
        let marker = |stream: &mut Vec<u8>| {
            if stream.len().is_multiple_of(512) {
                let pointer = ((stream.len() - start) as u16).to_be_bytes();
                stream.extend([0, 0, pointer[0], pointer[1]]);
            }
        };
        for octet in body {
            marker(&mut stream);
            stream.push(octet);
        }
        marker(&mut stream);
        stream.extend(crc32c(&stream[covered_from..]).to_le_bytes());
    }
    stream
}

fn ulpdus() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec_of(vec_of(any::<u8>(), 0..1600), 1..6)
}

proptest! {
    // MPA-3-1, MPA-3-7, MPA-4.1-1, MPA-4.3-10, MPA-5.1-3, MPA-6-2, MPA-6-3, MPA-A.4-1: any segmentation.
    #[test]
    fn ulpdus_survive_any_segmentation(
        ulpdus in ulpdus(),
        crc in any::<bool>(),
        markers in any::<bool>(),
        cuts in vec_of(any::<Index>(), 0..12),
    ) {
        let stream = stream_of(&ulpdus, crc, markers);
        prop_assert_eq!(stream.len() % 4, 0);
        let mut decoder = Decoder::new(crc, markers);
        let (received, failed) = decode(&mut decoder, &stream, &cuts);
        prop_assert_eq!(failed, None);
        prop_assert!(decoder.is_between_fpdus());
        let counters = decoder.counters();
        prop_assert_eq!(counters.fpdus, ulpdus.len() as u64);
        prop_assert_eq!(counters.octets, stream.len() as u64);
        if markers {
            prop_assert_eq!(counters.markers, stream.len().div_ceil(512) as u64);
            prop_assert_eq!(counters.fpdus_in_place, 0);
        } else {
            prop_assert_eq!(counters.markers, 0);
            prop_assert!(counters.fpdus - counters.fpdus_in_place <= cuts.len() as u64);
        }
        prop_assert_eq!(received, ulpdus);
    }

    // MPA-4.1-4, MPA-5.2-1: FPDUs taken in parts have the octets of gathered ones, in any segmentation.
    #[test]
    fn parts_are_the_ulpdu(
        ulpdus in ulpdus(),
        cuts in vec_of(any::<Index>(), 0..12),
        takes in vec_of(any::<bool>(), 1..8),
    ) {
        let stream = stream_of(&ulpdus, false, false);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let mut decoder = Decoder::new(false, false);
        let (mut received, mut takes) = (Vec::<Vec<u8>>::new(), takes.iter().cycle());
        for cut in cuts.windows(2) {
            let mut input = &stream[cut[0]..cut[1]];
            while !input.is_empty() {
                if let Some(part) = decoder.take_open(&mut input) {
                    received.last_mut().unwrap().extend_from_slice(part);
                } else if let Some(start) = decoder.start(input)
                    && *takes.next().unwrap()
                {
                    prop_assert_eq!(start.ulpdu_octets, ulpdus[received.len()].len());
                    received.push(start.octets.to_vec());
                    decoder.open(&mut input);
                    prop_assert!(input.is_empty());
                } else if let Some(ulpdu) = decoder.next(&mut input).unwrap() {
                    received.push(ulpdu.to_vec());
                }
            }
        }
        prop_assert!(decoder.is_between_fpdus());
        prop_assert_eq!(decoder.counters().fpdus, ulpdus.len() as u64);
        prop_assert_eq!(decoder.counters().octets, stream.len() as u64);
        prop_assert_eq!(received, ulpdus);
    }

    // Copied or lent, in any pieces and after any other FPDU: the octets are the same.
    #[test]
    fn copied_and_lent_payload_encode_equally(
        header in vec_of(any::<u8>(), 14..20),
        pieces in vec_of((vec_of(any::<u8>(), 0..300), any::<bool>()), 0..5),
        before in 0..40usize,
        crc in any::<bool>(),
        markers in any::<bool>(),
    ) {
        let stream = |lends: &dyn Fn(bool) -> bool| {
            let (mut encoder, mut slab) = (Encoder::new(crc, markers), Slab::new());
            let mut list: Vec<Bytes> = Vec::new();
            let first = encoder.begin(&vec![7; before], 0, 0, &mut slab, &mut list).finish();
            let octets = |lent: bool| -> usize {
                let pieces = pieces.iter().filter(|(_, lend)| !lent || !lends(*lend));
                pieces.map(|(piece, _)| piece.len()).sum()
            };
            let (all, copied) = (octets(false), octets(true));
            let mut fpdu = encoder.begin(&header, all, copied, &mut slab, &mut list);
            for (piece, lend) in &pieces {
                match lends(*lend) {
                    true => fpdu.lend(Bytes::copy_from_slice(piece)),
                    false => fpdu.copy(piece),
                }
            }
            let second = fpdu.finish();
            slab.flush(&mut list);
            let stream = list.concat();
            assert_eq!(stream.len(), first + second);
            stream
        };
        let lent = stream(&|_| true);
        prop_assert_eq!(&stream(&|_| false), &lent);
        prop_assert_eq!(&stream(&|lend| lend), &lent);
        let payload = pieces.iter().flat_map(|(piece, _)| piece).copied();
        let ulpdus = [vec![7; before], header.iter().copied().chain(payload).collect()];
        let (received, failed) = decode(&mut Decoder::new(crc, markers), &lent, &[]);
        prop_assert_eq!((&received[..], failed), (&ulpdus[..], None));
    }

    // MPA-4.3-1..9, MPA-4.4-9..11: markers are where the reference has them.
    #[test]
    fn markers_match_the_reference(ulpdus in ulpdus()) {
        prop_assert_eq!(stream_of(&ulpdus, true, true), marked_by_reference(&ulpdus));
    }

    // A peer's octets never panic, and no ULPDU follows an error (MPA-8-5).
    #[test]
    fn arbitrary_octets_never_panic(
        // Many zeros, so that many lengths are short.
        octets in vec_of(prop_oneof![any::<u8>(), Just(0)], 0..4000),
        crc in any::<bool>(),
        markers in any::<bool>(),
        cuts in vec_of(any::<Index>(), 0..12),
    ) {
        let mut decoder = Decoder::new(crc, markers);
        decode(&mut decoder, &octets, &cuts);
        prop_assert!(decoder.stage_capacity() <= STAGE_OCTETS_MAX);
    }

    // MPA-4.4-12, MPA-6-1: an FPDU with a flipped bit is never delivered. (A flipped length may leave the FPDU
    // incomplete.)
    #[test]
    fn flipped_bit_is_never_delivered(
        ulpdus in ulpdus(),
        markers in any::<bool>(),
        at in any::<Index>(),
        bit in 0..8u8,
        cuts in vec_of(any::<Index>(), 0..4),
    ) {
        let mut stream = stream_of(&ulpdus, true, markers);
        let at = at.index(stream.len());
        stream[at] ^= 1u8 << bit;
        let (received, failed) = decode(&mut Decoder::new(true, markers), &stream, &cuts);
        prop_assert!(received.len() < ulpdus.len());
        prop_assert_eq!(&received[..], &ulpdus[..received.len()]);
        if let Some(error) = failed {
            prop_assert_eq!(error.wire(), WireError::MpaCrc);
        }
    }

    // MPA-4.1-2: the pad may have any content, covered by the CRC.
    #[test]
    fn pad_content_is_ignored(ulpdu in vec_of(any::<u8>(), 0..40), pad in any::<[u8; 3]>()) {
        let mut fpdu = (ulpdu.len() as u16).to_be_bytes().to_vec();
        fpdu.extend(&ulpdu);
        fpdu.extend(&pad[..pad_octets(ulpdu.len())]);
        fpdu.extend(crc32c(&fpdu).to_le_bytes());
        for step in [1, fpdu.len()] {
            let mut decoder = Decoder::new(true, false);
            let mut received = Vec::new();
            for mut piece in fpdu.chunks(step) {
                received.extend(decoder.next(&mut piece).unwrap().map(<[u8]>::to_vec));
            }
            prop_assert_eq!(received, vec![ulpdu.clone()]);
        }
    }
}

// MPA-4.1-4, MPA-4.4-7, MPA-7.1.1-6: with CRC off the field is present: zero from this side, any value from the peer.
#[test]
fn crc_field_is_not_checked_when_off() {
    let mut fpdu = fpdu_of(&mut Encoder::new(false, false), b"ulpdu");
    assert_eq!(fpdu[8..], [0; 4]);
    fpdu[9] = 77;
    assert_eq!(Decoder::new(false, false).next(&mut &fpdu[..]), Ok(Some(&b"ulpdu"[..])));
    let error = Decoder::new(true, false).next(&mut &fpdu[..]).unwrap_err();
    assert!(matches!(error, MpaError::Crc { received: 0x4d00, .. }));
}

// Linux siw sends the CRC of large messages in a separate segment, and ULPDUs larger than MULPDU_MAX.
#[test]
fn crc_alone_and_largest_ulpdu() {
    let ulpdu = vec![7; usize::from(u16::MAX)];
    let mut fpdu = u16::MAX.to_be_bytes().to_vec();
    fpdu.extend(&ulpdu);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    fpdu.extend(crc32c(&fpdu).to_le_bytes());
    assert_eq!(fpdu.len(), STAGE_OCTETS_MAX);

    let mut decoder = Decoder::new(true, false);
    for _ in 0..3 {
        let (mut body, mut crc_field) = fpdu.split_at(fpdu.len() - 4);
        assert_eq!(decoder.next(&mut body), Ok(None));
        assert!(!decoder.is_between_fpdus());
        assert_eq!(decoder.next(&mut crc_field), Ok(Some(&ulpdu[..])));
        assert!(decoder.is_between_fpdus());
    }
    assert_eq!(decoder.next(&mut &fpdu[..]), Ok(Some(&ulpdu[..])));
    let (staged, octets) = (3 * fpdu.len() as u64, 4 * fpdu.len() as u64);
    let expected =
        DecoderCounters { fpdus: 4, fpdus_in_place: 1, octets, markers: 0, octets_staged: staged };
    assert_eq!(decoder.counters(), expected);
    assert!(decoder.stage_capacity() <= STAGE_OCTETS_MAX);
}

// A complete FPDU in the input is returned in place.
#[test]
fn whole_fpdus_are_not_copied() {
    let stream = stream_of(&[vec![1; 100], vec![2; 200]], true, false);
    let mut decoder = Decoder::new(true, false);
    let mut input = &stream[..];
    assert_eq!(decoder.next(&mut input).unwrap().unwrap().as_ptr(), stream[2..].as_ptr());
    assert_eq!(decoder.next(&mut input).unwrap().unwrap().as_ptr(), stream[110..].as_ptr());
    assert_eq!(decoder.counters().octets_staged, 0);
}

// MPA-5.2-2, MPA-8-1 (code 3), MPA-4.2-2, MPA-4.2-3.
#[test]
fn markers_are_checked_against_the_lengths() {
    let with_marker = |reserved: u16, pointer: u16, crc_is_good: bool| {
        let mut stream = stream_of(&[vec![0; 600]], true, true);
        stream[512..514].copy_from_slice(&reserved.to_be_bytes());
        stream[514..516].copy_from_slice(&pointer.to_be_bytes());
        let body = stream.len() - 4;
        let crc = crc32c(&stream[..body]) ^ u32::from(!crc_is_good);
        stream[body..].copy_from_slice(&crc.to_le_bytes());
        Decoder::new(true, true).next(&mut &stream[..]).map(|ulpdu| ulpdu.map(<[u8]>::len))
    };
    assert_eq!(with_marker(0, 508, true), Ok(Some(600)));
    assert_eq!(with_marker(0xbeef, 511, true), Ok(Some(600)));
    let error = with_marker(0, 504, true).unwrap_err();
    assert_eq!(error, MpaError::Marker { received: 504, expected: 508 });
    assert_eq!(error.wire(), WireError::MpaMarker);
    assert_eq!(with_marker(0, 504, false).unwrap_err().wire(), WireError::MpaCrc);
    // Between FPDUs only 0 is valid.
    let mut stream = stream_of(&[vec![0; 14]], false, true);
    stream[3] = 4;
    let error = Decoder::new(false, true).next(&mut &stream[..]).unwrap_err();
    assert_eq!(error, MpaError::Marker { received: 4, expected: 0 });
}

// Payload is not copied, and empty slices are omitted.
#[test]
fn payload_is_sent_without_copy() {
    let memory = Bytes::from(vec![9; 1000]);
    let slices = [memory.slice(..10), Bytes::new(), memory.slice(500..)];
    let mut slab = Slab::new();
    let mut fpdu: Vec<Bytes> = Vec::new();
    let mut encoder = Encoder::new(true, false);
    encoder.encode(b"header", &slices, &mut slab, &mut fpdu);
    let [head, first, second, tail] = &fpdu[..] else { panic!("{fpdu:?}") };
    assert_eq!(head[..], *b"\x02\x04header");
    assert_eq!(first.as_ptr(), slices[0].as_ptr());
    assert_eq!(second.as_ptr(), slices[2].as_ptr());
    assert_eq!(tail.len(), 2 + 4);
    assert_eq!(fpdu.concat().len(), 8 + 510 + 6);

    fpdu.clear();
    encoder.encode(b"header", &[], &mut slab, &mut fpdu);
    assert_eq!(fpdu.len(), 1);
    assert_eq!(slab.blocks_allocated(), 1);

    // With markers the payload is sliced, still not copied.
    fpdu.clear();
    let payload = core::slice::from_ref(&memory);
    Encoder::new(true, true).encode(b"header", payload, &mut slab, &mut fpdu);
    let [head, first, marker, second, ..] = &fpdu[..] else { panic!("{fpdu:?}") };
    assert_eq!(head[..], *b"\0\0\0\0\x03\xeeheader");
    assert_eq!(first.as_ptr(), memory.as_ptr());
    assert_eq!(marker[..], 508u32.to_be_bytes());
    assert_eq!(second.as_ptr(), memory[first.len()..].as_ptr());
}

// MPA-3-5.
#[test]
#[should_panic(expected = "ULPDU of 64769 octets")]
fn larger_ulpdu_panics() {
    fpdu_of(&mut Encoder::new(true, false), &vec![0; 64_769]);
}

#[test]
#[should_panic(expected = "payload length differs from the announced length")]
fn short_payload_panics() {
    let (mut slab, mut list) = (Slab::new(), Vec::<Bytes>::new());
    let mut encoder = Encoder::new(true, false);
    let mut fpdu = encoder.begin(b"header", 3, 3, &mut slab, &mut list);
    fpdu.copy(b"ab");
    fpdu.finish();
}

// Largest ULPDU with markers: no pointer exceeds its 16 bits.
#[test]
fn largest_ulpdu_with_markers() {
    let ulpdus = [vec![3; 64_768], vec![4; 1]];
    let stream = stream_of(&ulpdus, true, true);
    assert_eq!(stream, marked_by_reference(&ulpdus));
    let (received, failed) = decode(&mut Decoder::new(true, true), &stream, &[]);
    assert_eq!((&received[..], failed), (&ulpdus[..], None));
}

// MPA-3-4, MPA-4.5-1, MPA-4.5-2, MPA-4.5-5.
#[test]
fn mulpdu_by_the_formula() {
    for (emss, plain, marked) in [
        (0, 128, 128),
        (100, 128, 128),
        (536, 530, 522),
        (1220, 1214, 1202),
        (1440, 1434, 1422),
        (1447, 1438, 1426),
        (1448, 1442, 1430),
        (1452, 1446, 1434),
        (1460, 1454, 1442),
        (8948, 8942, 8870),
        (8960, 8954, 8882),
        (65_483, 64_768, 64_768),
        (u32::MAX / 8, 64_768, 64_768),
    ] {
        assert_eq!((mulpdu(emss, false), mulpdu(emss, true)), (plain, marked), "EMSS {emss}");
    }
    // The formula guarantees that the FPDU fits the segment at any position of the grid.
    for emss in (140..3000u32).chain(64_000..64_100) {
        let ulpdu = vec![0; usize::from(mulpdu(emss, false))];
        assert!(fpdu_of(&mut Encoder::new(false, false), &ulpdu).len() <= emss as usize);
    }
}
