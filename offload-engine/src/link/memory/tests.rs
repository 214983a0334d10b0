use std::boxed::Box;

use super::*;
use crate::link::{
    TxChecksum,
    testing::{partial_frame, pattern, receive_all, segment_offload, tcp_frame, transmit},
};

const NOW: Instant = Instant::ZERO;

#[test]
fn super_segments_and_partial_checksums_arrive_as_on_a_vnet_tap() {
    let (mut a, mut b) = memory_link_pair(MemoryLinkOptions::default());
    let (super_segment, place) = partial_frame(false, 1, &pattern(60_000));
    let (small, small_place) = partial_frame(true, 1, &pattern(100));
    let whole = tcp_frame(true, 1, &pattern(1000));
    let checksum = TxOffload { checksum: Some(small_place), segment: None };
    let sent = [
        (&super_segment, segment_offload(&super_segment, place, 1448)),
        (&small, checksum),
        (&small, segment_offload(&small, small_place, 100)), // needs no cutting
        (&whole, TxOffload::default()),
    ];
    for (frame, offload) in sent {
        assert_eq!(transmit(&mut a, NOW, frame, offload), TxOutcome::Sent);
    }
    let received = receive_all(&mut b, NOW);
    assert_eq!(
        received,
        [
            (super_segment.clone(), RxChecksum::Valid, 1448),
            (small.clone(), RxChecksum::Valid, 0),
            (small.clone(), RxChecksum::Valid, 0),
            (whole.clone(), RxChecksum::Unverified, 0),
        ]
    );
    assert!(receive_all(&mut a, NOW).is_empty());

    let bytes = (super_segment.len() + 2 * small.len() + whole.len()) as u64;
    let (sender, receiver) = (a.stats(), b.stats());
    assert_eq!((sender.tx_frames, sender.tx_bytes, sender.tx_gso_frames), (4, bytes, 2));
    assert_eq!((receiver.rx_frames, receiver.rx_bytes, receiver.rx_gso_frames), (4, bytes, 1));
}

#[test]
fn a_full_queue_refuses_and_loses_nothing() {
    let options = MemoryLinkOptions { queue_frames_max: 2, ..MemoryLinkOptions::default() };
    let (mut a, b) = memory_link_pair(options);
    let mut b: Box<dyn Link> = Box::new(b);
    let frame = tcp_frame(false, 1, &pattern(10));
    let outcomes = [(); 3].map(|()| transmit(&mut a, NOW, &frame, TxOffload::default()));
    assert_eq!(outcomes, [TxOutcome::Sent, TxOutcome::Sent, TxOutcome::Full]);
    assert_eq!(receive_all(&mut b, NOW).len(), 2);
    assert_eq!(transmit(&mut a, NOW, &frame, TxOffload::default()), TxOutcome::Sent);
    assert_eq!((a.stats().tx_full, a.stats().tx_frames), (1, 3));
    drop(b);
    assert_eq!(transmit(&mut a, NOW, &frame, TxOffload::default()), TxOutcome::Dropped);
    assert_eq!(a.stats().tx_errors, 1);
}

#[test]
fn without_offloads_only_what_a_plain_tap_takes() {
    let options = MemoryLinkOptions { offloads: false, ..MemoryLinkOptions::default() };
    let (mut a, mut b) = memory_link_pair(options);
    let LinkCapabilities { mtu, tx_checksum, tso4_max, tso6_max } = a.capabilities();
    assert_eq!((mtu, tx_checksum, tso4_max, tso6_max), (1500, false, 0, 0));
    let largest = tcp_frame(false, 1, &pattern(1500 - 20 - 32));
    assert_eq!(transmit(&mut a, NOW, &largest, TxOffload::default()), TxOutcome::Sent);
    assert_eq!(receive_all(&mut b, NOW), [(largest, RxChecksum::Unverified, 0)]);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a frame of 1515 bytes")]
fn a_frame_beyond_the_mtu_is_a_bug_of_the_caller() {
    let (mut a, _b) = memory_link_pair(MemoryLinkOptions::default());
    let frame = tcp_frame(false, 1, &pattern(1500 - 20 - 32 + 1));
    transmit(&mut a, NOW, &frame, TxOffload::default());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "contradicts the frame")]
fn a_wrong_pseudo_header_sum_is_a_bug_of_the_caller() {
    let (mut a, _b) = memory_link_pair(MemoryLinkOptions::default());
    let complete = tcp_frame(false, 1, &pattern(100));
    let (_, place) = partial_frame(false, 1, &pattern(100));
    let offload = TxOffload { checksum: Some(place), segment: None };
    transmit(&mut a, NOW, &complete, offload);
}

#[test]
fn offloads_that_contradict_the_frame() {
    let (frame, place) = partial_frame(true, 1, &pattern(3000));
    let good = segment_offload(&frame, place, 1000);
    assert!(is_consistent(&frame, good));
    let segment = good.segment.unwrap();
    let bad_segments = [
        TxSegment { size: 0, ..segment },
        TxSegment { header_len: segment.header_len - 12, ..segment },
        TxSegment { ipv6: false, ..segment },
    ];
    for segment in bad_segments {
        assert!(
            !is_consistent(&frame, TxOffload { segment: Some(segment), ..good }),
            "{segment:?}"
        );
    }
    let bad_places = [
        TxChecksum { start: place.start - 20, ..place },
        TxChecksum { offset: 6, ..place },
        TxChecksum { start: u16::MAX, offset: u16::MAX },
    ];
    for place in bad_places {
        assert!(!is_consistent(&frame, TxOffload { checksum: Some(place), ..good }), "{place:?}");
    }
    assert!(!is_consistent(&frame[..frame.len() - 1], good));
}
