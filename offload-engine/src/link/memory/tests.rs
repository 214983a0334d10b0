use std::{
    boxed::Box,
    sync::atomic::{AtomicUsize, Ordering},
    task::Wake,
};

use super::*;
use crate::link::{
    CaptureLink, Impaired, Impairments, TxChecksum,
    testing::{partial_frame, pattern, receive_all, segment_offload, tcp_frame, transmit},
};

const NOW: Instant = Instant::ZERO;

#[test]
fn gso_packets_and_partial_checksums_arrive_as_on_vnet_tap() {
    let (mut a, mut b) = memory_link_pair(MemoryLinkOptions::default());
    let (gso_packet, place) = partial_frame(false, 1, &pattern(60_000));
    let (small, small_place) = partial_frame(true, 1, &pattern(100));
    let whole = tcp_frame(true, 1, &pattern(1000));
    let checksum = TxOffload { checksum: Some(small_place), segment: None };
    let sent = [
        (&gso_packet, segment_offload(&gso_packet, place, 1448)),
        (&small, checksum),
        (&small, segment_offload(&small, small_place, 100)), // fits into one segment
        (&whole, TxOffload::default()),
    ];
    for (frame, offload) in sent {
        assert_eq!(transmit(&mut a, NOW, frame, offload), TxOutcome::Sent);
    }
    let received = receive_all(&mut b, NOW);
    assert_eq!(
        received,
        [
            (gso_packet.clone(), RxChecksum::Valid, 1448),
            (small.clone(), RxChecksum::Valid, 0),
            (small.clone(), RxChecksum::Valid, 0),
            (whole.clone(), RxChecksum::Unverified, 0),
        ]
    );
    assert!(receive_all(&mut a, NOW).is_empty());

    let bytes = (gso_packet.len() + 2 * small.len() + whole.len()) as u64;
    let (sender, receiver) = (a.stats(), b.stats());
    assert_eq!((sender.tx_frames, sender.tx_bytes, sender.tx_gso_frames), (4, bytes, 2));
    assert_eq!((receiver.rx_frames, receiver.rx_bytes, receiver.rx_gso_frames), (4, bytes, 1));
}

#[test]
fn full_queue_refuses_frames_without_loss() {
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
fn pair_without_offloads_behaves_like_plain_tap() {
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
fn frame_beyond_mtu_panics_in_debug_build() {
    let (mut a, _b) = memory_link_pair(MemoryLinkOptions::default());
    let frame = tcp_frame(false, 1, &pattern(1500 - 20 - 32 + 1));
    transmit(&mut a, NOW, &frame, TxOffload::default());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "contradicts the frame")]
fn wrong_pseudo_header_sum_panics_in_debug_build() {
    let (mut a, _b) = memory_link_pair(MemoryLinkOptions::default());
    let complete = tcp_frame(false, 1, &pattern(100));
    let (_, place) = partial_frame(false, 1, &pattern(100));
    let offload = TxOffload { checksum: Some(place), segment: None };
    transmit(&mut a, NOW, &complete, offload);
}

#[test]
fn contradictory_offloads_are_detected() {
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

/// Receives a frame from `link`. Returns its address and, for a large frame, its buffer.
fn receive_one(link: &mut MemoryLink, batch: &mut RxBatch) -> (usize, Option<Bytes>) {
    assert_eq!(link.receive(NOW, batch).unwrap(), 1);
    let frame = batch.frames().next().expect("a frame");
    let received = (frame.data.as_ptr() as usize, frame.buffer.cloned());
    batch.clear();
    received
}

// The buffer of a frame is lent. Buffers that are not kept are released with the batch and reused.
#[test]
fn lent_buffers_are_reused() {
    let (mut a, mut b) = memory_link_pair(MemoryLinkOptions::default());
    let mut batch = RxBatch::new(1);
    let (large, place) = partial_frame(false, 1, &pattern(60_000));
    let offload = segment_offload(&large, place, 1448);
    let mut places = std::collections::BTreeSet::new();
    let mut kept = Vec::new();
    for _ in 0..100 {
        assert_eq!(transmit(&mut a, NOW, &large, offload), TxOutcome::Sent);
        places.insert(receive_one(&mut b, &mut batch).0);
    }
    assert!(places.len() <= 2, "{places:?}");

    // Buffers are kept up to the limit, and later frames are copied.
    for round in 0..2 * LENT_BUFFERS_MAX {
        assert_eq!(transmit(&mut a, NOW, &large, offload), TxOutcome::Sent);
        let (place, buffer) = receive_one(&mut b, &mut batch);
        assert_eq!(buffer.is_some(), round < LENT_BUFFERS_MAX, "{round}");
        kept.extend(buffer.inspect(|buffer| assert_eq!(buffer.as_ptr() as usize, place)));
    }
    assert!(kept.iter().all(|buffer| buffer == &large[..]), "a kept buffer was written");
    kept.truncate(1);
    // All but one are released. One check may find the kept one.
    let mut lent = 0;
    for _ in 0..2 * LENT_BUFFERS_MAX {
        assert_eq!(transmit(&mut a, NOW, &large, offload), TxOutcome::Sent);
        lent += usize::from(receive_one(&mut b, &mut batch).1.is_some());
    }
    assert!(lent >= 2 * LENT_BUFFERS_MAX - 1, "{lent}");
    assert_eq!(kept[0], large[..]);
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// The other end is woken once per batch, through any wrapper of the link, and reports queued frames.
#[test]
fn flush_wakes_other_end() {
    let wrap: [fn(MemoryLink) -> Box<dyn Link>; 3] = [
        |link| Box::new(link),
        |link| Box::new(CaptureLink::new(link, io::sink(), "a", 0).unwrap()),
        |link| {
            let none = Impairments::default();
            Box::new(Impaired::new(link, none, none).unwrap())
        },
    ];
    for wrap in wrap {
        let (a, b) = memory_link_pair(MemoryLinkOptions::default());
        let (mut a, mut b) = (wrap(a), wrap(b));
        let wakes = Arc::<Wakes>::default();
        b.set_waker(wakes.clone().into());
        let frame = tcp_frame(false, 1, &pattern(10));
        assert_eq!(b.poll_at(), None);
        for _ in 0..3 {
            transmit(&mut a, NOW, &frame, TxOffload::default());
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        a.flush(NOW);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(b.poll_at(), Some(Instant::ZERO));
        assert_eq!(receive_all(&mut b, NOW).len(), 3);
        assert_eq!(b.poll_at(), None);
        // Without an engine at the other end there is no waker.
        b.flush(NOW);
    }
}

// Frames delayed by an impairment form a separate batch.
#[test]
fn delayed_frames_wake_other_end() {
    let (a, mut b) = memory_link_pair(MemoryLinkOptions::default());
    let delay = crate::time::Duration::from_millis(1);
    let delayed = Impairments { delay, ..Impairments::default() };
    let mut a = Impaired::new(a, delayed, Impairments::default()).unwrap();
    let wakes = Arc::<Wakes>::default();
    b.set_waker(wakes.clone().into());
    transmit(&mut a, NOW, &tcp_frame(false, 1, &pattern(10)), TxOffload::default());
    a.flush(NOW);
    assert!(receive_all(&mut b, NOW).is_empty());
    let before = wakes.0.swap(0, Ordering::Relaxed);
    assert!(before <= 1);
    receive_all(&mut a, NOW + delay);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert_eq!(receive_all(&mut b, NOW + delay).len(), 1);
}

// An end whose transmit found the queue full is woken when there is room, and reports this until its next transmit.
#[test]
fn room_in_full_queue_wakes_sender() {
    let options = MemoryLinkOptions { queue_frames_max: 2, ..MemoryLinkOptions::default() };
    let (mut a, mut b) = memory_link_pair(options);
    let wakes = Arc::<Wakes>::default();
    a.set_waker(wakes.clone().into());
    let frame = tcp_frame(false, 1, &pattern(10));
    for outcome in [TxOutcome::Sent, TxOutcome::Sent, TxOutcome::Full] {
        assert_eq!(transmit(&mut a, NOW, &frame, TxOffload::default()), outcome);
    }
    assert_eq!((a.poll_at(), wakes.0.load(Ordering::Relaxed)), (None, 0));
    let mut batch = RxBatch::new(1);
    receive_one(&mut b, &mut batch);
    receive_one(&mut b, &mut batch);
    assert_eq!((a.poll_at(), wakes.0.load(Ordering::Relaxed)), (Some(Instant::ZERO), 1));
    assert_eq!(transmit(&mut a, NOW, &frame, TxOffload::default()), TxOutcome::Sent);
    assert_eq!(a.poll_at(), None);
}
