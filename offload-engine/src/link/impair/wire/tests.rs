//! Wires between memory links, in virtual time.

use std::{vec, vec::Vec};

use super::*;
use crate::{
    link::{
        MemoryLink, MemoryLinkOptions, QueueLimit, memory_link_pair,
        testing::{
            NONE, parse, partial_frame, pattern, receive_all, segment_offload, tcp_frame, transmit,
        },
    },
    time::Duration,
};

const CLEAN: Impairments = Impairments { queue: QueueLimit::Bytes(1_000_000), seed: 5, ..NONE };

/// Wire with a station at each end.
struct Bench {
    left: MemoryLink,
    wire: Wire<MemoryLink>,
    right: MemoryLink,
}

impl Bench {
    fn new(to_right: Impairments, to_left: Impairments) -> Self {
        Self::with_offloads(to_right, to_left, [true, true])
    }

    fn with_offloads(to_right: Impairments, to_left: Impairments, offloads: [bool; 2]) -> Self {
        let [(left, a), (right, b)] = offloads.map(|offloads| {
            memory_link_pair(MemoryLinkOptions { mtu: 1500, offloads, queue_frames_max: 1000 })
        });
        Self { left, wire: Wire::new(a, b, to_right, to_left).unwrap(), right }
    }

    /// Runs the wire at `now` until no frame moves.
    fn settle(&mut self, now: Instant) {
        while self.wire.take(|| now).unwrap() + self.wire.send(now) > 0 {}
    }

    /// Sends `count` numbered frames to the right, and runs until all have arrived or are lost.
    fn numbers(&mut self, count: u32) -> Vec<u32> {
        let mut arrived = Vec::new();
        let mut now = Instant::ZERO;
        for seq in 0..count {
            now = Instant::from_micros(u64::from(seq));
            let frame = tcp_frame(false, seq, &pattern(20));
            transmit(&mut self.left, now, &frame, TxOffload::default());
            self.settle(now);
            arrived.extend(receive_all(&mut self.right, now));
        }
        while let Some(at) = self.wire.poll_at() {
            now = now.max(at);
            self.settle(now);
            arrived.extend(receive_all(&mut self.right, now));
        }
        arrived.iter().filter_map(|frame| parse(&frame.0)).map(|parsed| parsed.seq).collect()
    }
}

fn gso_packet(ipv6: bool) -> (Vec<u8>, TxOffload) {
    let (frame, place) = partial_frame(ipv6, 0, &pattern(60_000));
    let offload = segment_offload(&frame, place, 1400);
    (frame, offload)
}

/// 43 segments, each with headers of 66 (86) bytes.
const PIECES: u64 = 43;

#[test]
fn clean_wire_passes_gso_packets_unsegmented() {
    for ipv6 in [false, true] {
        let mut bench = Bench::new(CLEAN, CLEAN);
        let (frame, offload) = gso_packet(ipv6);
        transmit(&mut bench.left, Instant::ZERO, &frame, offload);
        transmit(&mut bench.right, Instant::ZERO, &frame, offload);
        bench.settle(Instant::ZERO);
        let whole = vec![(frame, RxChecksum::Valid, 1400)];
        assert_eq!(receive_all(&mut bench.right, Instant::ZERO), whole);
        assert_eq!(receive_all(&mut bench.left, Instant::ZERO), whole);
        let bytes = 60_000 + PIECES * if ipv6 { 86 } else { 66 };
        for end in [WireEnd::A, WireEnd::B] {
            let expected = LaneStats {
                frames_in: PIECES,
                bytes_in: bytes,
                frames_out: PIECES,
                bytes_out: bytes,
                ..LaneStats::default()
            };
            assert_eq!(bench.wire.stats(end), expected);
        }
        assert_eq!(bench.wire.lateness().count(), 0, "no frame was held");
    }
}

/// A complete checksum of a GSO packet is replaced. No kernel produces one, but the interface allows it.
#[test]
fn forwarded_frame_has_pseudo_header_sum() {
    let mut bench = Bench::new(CLEAN, CLEAN);
    let (partial, place) = partial_frame(false, 9, &pattern(30));
    let mut data = tcp_frame(false, 9, &pattern(30));
    let mut relayed = RelayedFrame { data: &mut data, checksum: RxChecksum::Valid, gso_size: 0 };
    let (offload, size) = relayed.prepare_offload().unwrap();
    assert_eq!(offload, TxOffload { checksum: Some(place), segment: None });
    assert_eq!((size, &data), (WireSize { frames: 1, bytes: 96 }, &partial));
    transmit(&mut bench.left, Instant::ZERO, &partial, offload);
    bench.settle(Instant::ZERO);
    let arrived = receive_all(&mut bench.right, Instant::ZERO);
    assert_eq!(arrived, vec![(partial, RxChecksum::Valid, 0)]);
}

/// Ethernet pads short frames. The TCP checksum excludes bytes after the packet.
#[test]
fn padding_is_not_summed() {
    let (mut data, _) = partial_frame(false, 9, b"");
    let end = data.len();
    data.extend_from_slice(&[0xa5; 7]);
    let mut relayed = RelayedFrame { data: &mut data, checksum: RxChecksum::Valid, gso_size: 0 };
    assert_eq!(relayed.prepare_offload().unwrap().0, TxOffload::default());
    assert!(parse(&data[..end]).is_some(), "the checksum is complete");
}

#[test]
fn delay_keeps_gso_packets_and_loss_segments_them() {
    let late = Impairments { delay: Duration::from_millis(7), ..CLEAN };
    let lossy = Impairments { drop_pct: 1e-6, ..CLEAN };
    let mut bench = Bench::new(late, lossy);
    let (frame, offload) = gso_packet(false);
    transmit(&mut bench.left, Instant::ZERO, &frame, offload);
    transmit(&mut bench.right, Instant::ZERO, &frame, offload);
    bench.settle(Instant::ZERO);
    let pieces = receive_all(&mut bench.left, Instant::ZERO);
    assert_eq!(pieces.len() as u64, PIECES);
    assert!(pieces.iter().all(|piece| (piece.1, piece.2) == (RxChecksum::Valid, 0)));
    assert_eq!(bench.wire.poll_at(), Some(Instant::from_millis(7)));
    bench.settle(Instant::from_nanos(6_999_999));
    assert!(receive_all(&mut bench.right, Instant::ZERO).is_empty());
    assert_eq!(bench.wire.stats(WireEnd::A).in_flight(), PIECES);
    bench.settle(Instant::from_millis(7));
    let whole = vec![(frame, RxChecksum::Valid, 1400)];
    assert_eq!(receive_all(&mut bench.right, Instant::ZERO), whole);
    assert_eq!(bench.wire.stats(WireEnd::A).in_flight(), 0);
    assert_eq!(bench.wire.lateness().quantile(1.0), Some(Duration::ZERO));
}

/// A frame that arrives after the clock was read would be delayed by less than the configured delay.
#[test]
fn frames_are_timestamped_after_reception() {
    let late = Impairments { delay: Duration::from_millis(7), ..CLEAN };
    let mut bench = Bench::new(late, CLEAN);
    transmit(&mut bench.left, Instant::ZERO, &tcp_frame(false, 0, b"x"), TxOffload::default());
    let mut readings = [0, 3, 3, 3].map(Instant::from_millis).into_iter();
    bench.wire.take(|| readings.next().unwrap()).unwrap();
    assert_eq!(bench.wire.poll_at(), Some(Instant::from_millis(10)));
}

/// Frames of the wire's size leave their checksums to a device that supports it. Once completed there, they equal those
/// that are complete here. If bits are flipped all checksums are complete.
#[test]
fn checksums_are_left_to_device_without_corruption() {
    let run = |settings| {
        let mut bench = Bench::new(settings, CLEAN);
        let (frame, offload) = gso_packet(false);
        transmit(&mut bench.left, Instant::ZERO, &frame, offload);
        let (small, place) = partial_frame(true, 60_000, &pattern(10));
        let offload = TxOffload { checksum: Some(place), segment: None };
        transmit(&mut bench.left, Instant::ZERO, &small, offload);
        bench.settle(Instant::ZERO);
        receive_all(&mut bench.right, Instant::ZERO)
    };
    let left = run(Impairments { drop_pct: 1e-9, ..CLEAN });
    let complete = run(Impairments { drop_pct: 1e-9, corrupt_pct: 1e-9, ..CLEAN });
    assert_eq!((left.len() as u64, complete.len() as u64), (PIECES + 1, PIECES + 1));
    for ((mut partial, checksum, _), (whole, ..)) in left.into_iter().zip(complete) {
        assert!(parse(&partial).is_none() && parse(&whole).is_some());
        assert_eq!(checksum, RxChecksum::Valid);
        fill_tcp_checksum(&mut partial);
        assert_eq!(partial, whole);
    }
}

/// A plain TAP at the other end receives complete frames of the wire's size.
#[test]
fn link_without_offloads_receives_complete_frames() {
    let mut bench = Bench::with_offloads(CLEAN, CLEAN, [true, false]);
    let (frame, offload) = gso_packet(true);
    transmit(&mut bench.left, Instant::ZERO, &frame, offload);
    let (small, place) = partial_frame(false, 60_000, &pattern(10));
    let offload = TxOffload { checksum: Some(place), segment: None };
    transmit(&mut bench.left, Instant::ZERO, &small, offload);
    bench.settle(Instant::ZERO);
    let pieces = receive_all(&mut bench.right, Instant::ZERO);
    let seqs: Vec<u32> = pieces.iter().map(|piece| parse(&piece.0).unwrap().seq).collect();
    assert_eq!(seqs.len() as u64, PIECES + 1);
    assert!(seqs.is_sorted() && seqs[43] == 60_000);
}

#[test]
fn same_seed_and_frames_give_same_outcome() {
    let bad = Impairments {
        drop_pct: 5.0,
        burst_mean: 3.0,
        duplicate_pct: 5.0,
        reorder_pct: 5.0,
        corrupt_pct: 5.0,
        delay: Duration::from_micros(50),
        jitter: Duration::from_micros(20),
        rate_bps: Some(1_000_000_000),
        ..CLEAN
    };
    let run = |settings| {
        let mut bench = Bench::new(settings, CLEAN);
        let numbers = bench.numbers(2000);
        (numbers, bench.wire.stats(WireEnd::A))
    };
    let first = run(bad);
    assert_eq!(first, run(bad));
    assert_ne!(first.0, run(Impairments { seed: 6, ..bad }).0);
    let LaneStats { lost, duplicated, reordered, corrupted, .. } = first.1;
    assert!(lost.min(duplicated).min(reordered).min(corrupted) > 30, "{:?}", first.1);
    assert_eq!(first.1.in_flight(), 0, "no frame is in flight");
}

/// Each direction has its own random numbers.
#[test]
fn directions_have_independent_random_numbers() {
    let lossy = Impairments { drop_pct: 50.0, ..CLEAN };
    let mut bench = Bench::new(lossy, lossy);
    let frame = tcp_frame(false, 0, b"x");
    let mut fates = [Vec::new(), Vec::new()];
    for _ in 0..64 {
        transmit(&mut bench.left, Instant::ZERO, &frame, TxOffload::default());
        transmit(&mut bench.right, Instant::ZERO, &frame, TxOffload::default());
        bench.settle(Instant::ZERO);
        fates[0].push(receive_all(&mut bench.left, Instant::ZERO).len());
        fates[1].push(receive_all(&mut bench.right, Instant::ZERO).len());
    }
    assert_ne!(fates[0], fates[1]);
}

#[test]
fn full_queue_drops_tail_and_is_counted_separately() {
    // 86-byte frames at 688 kbit/s take 1 ms each.
    let queue = QueueLimit::Bytes(86 * 4);
    let slow = Impairments { rate_bps: Some(688_000), queue, ..CLEAN };
    let mut bench = Bench::new(slow, CLEAN);
    for seq in 0..10 {
        let frame = tcp_frame(false, seq, &pattern(20));
        transmit(&mut bench.left, Instant::ZERO, &frame, TxOffload::default());
    }
    bench.settle(Instant::ZERO);
    let LaneStats { queue_full, lost, .. } = bench.wire.stats(WireEnd::A);
    assert_eq!((queue_full, lost), (6, 0));
    for millis in 1..=4 {
        assert_eq!(bench.wire.poll_at(), Some(Instant::from_millis(millis)));
        bench.settle(Instant::from_millis(millis));
        let arrived = receive_all(&mut bench.right, Instant::ZERO);
        assert_eq!(u64::from(parse(&arrived[0].0).unwrap().seq), millis - 1);
    }
    assert_eq!(bench.wire.poll_at(), None);
}

/// A full link receives its frames later, in order, whether they bypassed the lane or were held.
#[test]
fn full_link_receives_delayed_frames_in_order() {
    let [(mut left, a), (mut right, b)] = [1000, 1].map(|queue_frames_max| {
        memory_link_pair(MemoryLinkOptions { mtu: 1500, offloads: false, queue_frames_max })
    });
    let mut wire = Wire::new(a, b, CLEAN, CLEAN).unwrap();
    for seq in 0..3 {
        transmit(&mut left, Instant::ZERO, &tcp_frame(false, seq, b"x"), TxOffload::default());
    }
    let mut now = Instant::ZERO;
    wire.take(|| now).unwrap();
    let (mut seqs, mut retries) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        wire.send(now);
        retries.push(wire.poll_at());
        seqs.extend(receive_all(&mut right, now).iter().map(|frame| parse(&frame.0).unwrap().seq));
        // At once: this link reports that it has room.
        now = wire.poll_at().unwrap_or(now);
    }
    assert_eq!((seqs, now), (vec![0, 1, 2], Instant::ZERO));
    let retry = Some(Instant::ZERO + FULL_RETRY);
    assert_eq!(retries, [retry, retry, None]);
    assert_eq!(wire.stats(WireEnd::A).frames_out, 3);
}
