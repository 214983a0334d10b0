use std::{collections::HashSet, format, vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::link::{
    MemoryLink, MemoryLinkOptions, memory_link_pair,
    testing::{
        NONE, Parsed, parse, partial_frame, pattern, receive_all, segment_offload, tcp_frame,
        transmit,
    },
};

fn pair(settings: Impairments, offloads: bool) -> (Impaired<MemoryLink>, MemoryLink) {
    let options = MemoryLinkOptions { mtu: 1500, offloads, queue_frames_max: 100_000 };
    let (a, b) = memory_link_pair(options);
    (Impaired::new(a, settings, NONE).unwrap(), b)
}

/// Sends `count` numbered frames one microsecond apart. Returns the numbers of those that arrive, or -1 for a frame
/// that does not parse.
fn fates(settings: Impairments, count: u32) -> (Vec<i64>, LinkStats) {
    let (mut a, mut b) = pair(settings, false);
    for seq in 0..count {
        let now = Instant::from_micros(u64::from(seq));
        let frame = tcp_frame(false, seq, &pattern(20));
        assert_eq!(transmit(&mut a, now, &frame, TxOffload::default()), TxOutcome::Sent);
    }
    let mut now = Instant::from_micros(u64::from(count));
    while let Some(at) = a.poll_at() {
        now = now.max(at);
        receive_all(&mut a, now);
    }
    let numbers = receive_all(&mut b, now)
        .iter()
        .map(|(data, ..)| parse(data).map_or(-1, |parsed| i64::from(parsed.seq)))
        .collect();
    (numbers, a.stats())
}

#[test]
fn same_seed_gives_same_outcome() {
    let settings = Impairments {
        drop_pct: 10.0,
        duplicate_pct: 10.0,
        reorder_pct: 10.0,
        corrupt_pct: 10.0,
        ..NONE
    };
    let first = fates(settings, 1000);
    assert_eq!(first, fates(settings, 1000));
    assert_ne!(first.0, fates(Impairments { seed: 2, ..settings }, 1000).0);
}

/// True if a count of 10 000 frames is within five standard deviations.
fn is_about(count: u64, pct: f64) -> bool {
    let (mean, deviation) = (100.0 * pct, (100.0 * pct * (1.0 - pct / 100.0)).sqrt());
    (count as f64 - mean).abs() <= 5.0 * deviation
}

#[test]
fn drop_share_matches_setting() {
    let (numbers, stats) = fates(Impairments { drop_pct: 3.0, ..NONE }, 10_000);
    assert!(is_about(stats.impaired_dropped, 3.0), "{stats:?}");
    assert_eq!(numbers.len() as u64 + stats.impaired_dropped, 10_000);
    assert!(numbers.is_sorted() && numbers[0] >= 0);
    let (numbers, stats) = fates(Impairments { drop_pct: 100.0, ..NONE }, 100);
    assert_eq!((numbers.len(), stats.impaired_dropped), (0, 100));
}

#[test]
fn duplicate_share_matches_setting() {
    let (numbers, stats) = fates(Impairments { duplicate_pct: 20.0, ..NONE }, 10_000);
    assert!(is_about(stats.impaired_duplicated, 20.0), "{stats:?}");
    assert_eq!(numbers.len() as u64, 10_000 + stats.impaired_duplicated);
    assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 10_000);
}

#[test]
fn corrupted_frames_differ_in_one_bit_and_are_detected() {
    let (numbers, stats) = fates(Impairments { corrupt_pct: 20.0, ..NONE }, 10_000);
    assert!(is_about(stats.impaired_corrupted, 20.0), "{stats:?}");
    let noticed = numbers.iter().filter(|&&number| number == -1).count() as u64;
    assert!(noticed <= stats.impaired_corrupted);
    assert!(noticed * 100 >= stats.impaired_corrupted * 90, "{noticed} of {stats:?}");
}

#[test]
fn corrupted_frames_without_ip_are_lost() {
    let mut lane = Lane::new(Impairments { corrupt_pct: 100.0, ..NONE }, 0);
    let mut arp = [0_u8; 42];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    lane.admit(Instant::ZERO, &arp, TxOffload::default(), None);
    assert!(lane.due(Instant::ZERO).is_none());
    let mut ip = arp;
    ip[12..14].copy_from_slice(&[0x08, 0x00]);
    lane.admit(Instant::ZERO, &ip, TxOffload::default(), None);
    let held = lane.due(Instant::ZERO).unwrap();
    let flipped: u32 = held.data.iter().zip(&ip).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!((flipped, &held.data[..14]), (1, &ip[..14]));
}

/// Returns the number of later frames that arrived before each frame that was passed.
fn distances(numbers: &[i64]) -> Vec<usize> {
    let passed = |at: usize| numbers[..at].iter().filter(|&&number| number > numbers[at]).count();
    (0..numbers.len()).map(passed).filter(|&distance| distance > 0).collect()
}

#[test]
fn reordered_frames_arrive_after_one_to_five_later_ones() {
    let (numbers, stats) = fates(Impairments { reorder_pct: 2.0, ..NONE }, 10_000);
    assert!(is_about(stats.impaired_reordered, 2.0), "{stats:?}");
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..10_000).collect::<Vec<_>>(), "no loss");
    let distances = distances(&numbers);
    for distance in 1..=REORDER_DISTANCE_MAX as usize {
        let count = distances.iter().filter(|&&d| d == distance).count();
        assert!((20..=60).contains(&count), "{count} of about 40 at {distance}");
    }
    // Two reordered frames that are close together may pass each other too.
    let further = distances.iter().filter(|&&d| d > REORDER_DISTANCE_MAX as usize).count();
    assert!(further < 10, "{further}");
}

#[test]
fn reordered_frames_are_bounded() {
    let (mut a, mut b) = pair(Impairments { reorder_pct: 100.0, ..NONE }, false);
    for seq in 0..65 {
        transmit(&mut a, Instant::ZERO, &tcp_frame(false, seq, b"x"), TxOffload::default());
    }
    assert_eq!(a.stats().impaired_reordered, 64);
    let arrived = receive_all(&mut b, Instant::ZERO);
    assert_eq!(parse(&arrived[0].0).unwrap().seq, 64, "the first beyond the limit keeps its order");
}

#[test]
fn last_reordered_frame_arrives_after_hold_time() {
    let (mut a, mut b) = pair(Impairments { reorder_pct: 100.0, ..NONE }, false);
    let frame = tcp_frame(false, 1, b"last");
    transmit(&mut a, Instant::ZERO, &frame, TxOffload::default());
    let due = Instant::ZERO + REORDER_HOLD_MAX;
    assert_eq!(a.poll_at(), Some(due));
    receive_all(&mut a, Instant::from_micros(4999));
    assert!(receive_all(&mut b, due).is_empty());
    receive_all(&mut a, due);
    assert_eq!(receive_all(&mut b, due).len(), 1);
    assert_eq!(a.poll_at(), None);
}

#[test]
fn arrival_follows_delay_and_rate() {
    // 86-byte frames at 688 kbit/s take 1 ms each, and are delayed by 10 ms.
    let settings =
        Impairments { delay: Duration::from_millis(10), rate_bps: Some(688_000), ..NONE };
    let (mut a, mut b) = pair(settings, false);
    for seq in 0..3 {
        transmit(&mut a, Instant::ZERO, &tcp_frame(false, seq, &pattern(20)), TxOffload::default());
    }
    for (seq, due_ms) in [(0, 11), (1, 12), (2, 13)] {
        let due = Instant::from_millis(due_ms);
        assert_eq!(a.poll_at(), Some(due));
        receive_all(&mut a, Instant::from_nanos(due.as_nanos() - 1));
        assert!(receive_all(&mut b, due).is_empty());
        receive_all(&mut a, due);
        let arrived = receive_all(&mut b, due);
        assert_eq!(arrived.iter().map(|f| parse(&f.0).unwrap().seq).collect::<Vec<_>>(), [seq]);
    }
}

#[test]
fn queue_of_rate_limited_wire_is_bounded() {
    let (mut a, _b) = pair(Impairments { rate_bps: Some(1_000), ..NONE }, false);
    let frame = tcp_frame(false, 1, &pattern(1448));
    for _ in 0..1200 {
        assert_eq!(transmit(&mut a, Instant::ZERO, &frame, TxOffload::default()), TxOutcome::Sent);
    }
    assert_eq!(frame.len(), 1514);
    assert_eq!(a.stats().impaired_dropped, 200);
}

/// A limit in frames includes the one being sent, whatever their size.
#[test]
fn queue_limit_counts_frames() {
    // 86-byte frames at 688 kbit/s take 1 ms each.
    let queue = QueueLimit::Frames(10);
    let (mut a, mut b) = pair(Impairments { rate_bps: Some(688_000), queue, ..NONE }, false);
    let frame = tcp_frame(false, 1, &pattern(20));
    for _ in 0..15 {
        transmit(&mut a, Instant::ZERO, &frame, TxOffload::default());
    }
    assert_eq!(a.stats().impaired_dropped, 5);
    // Three frames have left after 3 ms.
    for _ in 0..5 {
        transmit(&mut a, Instant::from_millis(3), &frame, TxOffload::default());
    }
    assert_eq!(a.stats().impaired_dropped, 7);
    let end = Instant::from_millis(13);
    assert_eq!(receive_all(&mut b, end).len(), 3);
    receive_all(&mut a, end);
    assert_eq!((receive_all(&mut b, end).len(), a.poll_at()), (10, None));
}

/// Returns delays in microseconds of frames `spacing_us` apart, with a delay of 10 ms and the given jitter.
fn travel_times(jitter: Duration, spacing_us: u64) -> Vec<u64> {
    let settings = Impairments { delay: Duration::from_millis(10), jitter, ..NONE };
    let mut lane = Lane::new(settings, 0);
    let mut frame = tcp_frame(false, 0, b"x");
    let mut times = Vec::new();
    for number in 0_u64..10_000 {
        frame[0..4].copy_from_slice(&(number as u32).to_be_bytes());
        let now = Instant::from_micros(number * spacing_us);
        lane.admit(now, &frame, TxOffload::default(), None);
    }
    while let Some(at) = lane.next_at() {
        let held = lane.due(at).unwrap();
        let number = u64::from(u32::from_be_bytes(held.data[..4].try_into().unwrap()));
        assert_eq!(number, times.len() as u64, "jitter keeps order");
        times.push(at.as_micros() - number * spacing_us);
        lane.release();
    }
    assert_eq!(times.len(), 10_000);
    times
}

/// Frames far apart do not affect each other: delays are uniform within the limits, and their mean is the delay. The
/// deviation of a mean of 10 000 is 23 us. Frames close together keep their order.
#[test]
fn jitter_is_uniform_and_keeps_order() {
    let times = travel_times(Duration::from_millis(4), 8_001);
    assert!(times.iter().all(|time| (6_000..=14_000).contains(time)));
    let mean = times.iter().sum::<u64>() / 10_000;
    assert!((9_880..=10_120).contains(&mean), "{mean}");
    for quarter in 0..4 {
        let range: std::ops::Range<u64> = 6_000 + quarter * 2_000..8_000 + quarter * 2_000;
        let count = times.iter().filter(|&&time| range.contains(&time)).count();
        assert!((2_283..=2_717).contains(&count), "{count} in {range:?}");
    }
    let pushed = travel_times(Duration::from_millis(4), 100);
    assert!(pushed.iter().all(|time| (6_000..=14_000).contains(time)));
    assert!(pushed.iter().sum::<u64>() / 10_000 > 12_000, "late frames delay later ones");
    assert!(travel_times(Duration::ZERO, 100).iter().all(|&time| time == 10_000));
}

/// The share of losses matches, in runs. Tests of [`super::loss`] verify the distributions.
#[test]
fn bursts_drop_consecutive_frames() {
    let (numbers, stats) = fates(Impairments { drop_pct: 5.0, burst_mean: 10.0, ..NONE }, 20_000);
    assert!((500..=1500).contains(&stats.impaired_dropped), "{stats:?}");
    let gaps = numbers.windows(2).filter(|pair| pair[1] - pair[0] > 1).count() as u64;
    assert!((6..=16).contains(&(stats.impaired_dropped / gaps)), "{gaps} gaps, {stats:?}");
}

#[test]
fn gso_packets_are_segmented_before_impairment() {
    for ipv6 in [false, true] {
        let (mut a, mut b) = pair(Impairments { drop_pct: 20.0, ..NONE }, true);
        let payload = pattern(60_000);
        let (frame, place) = partial_frame(ipv6, 0, &payload);
        let offload = segment_offload(&frame, place, 1400);
        assert_eq!(transmit(&mut a, Instant::ZERO, &frame, offload), TxOutcome::Sent);
        let pieces = receive_all(&mut b, Instant::ZERO);
        let dropped = a.stats().impaired_dropped as usize;
        assert!(dropped > 0);
        assert_eq!(pieces.len() + dropped, 43);
        for (data, checksum, gso_size) in pieces {
            assert_eq!((checksum, gso_size), (RxChecksum::Unverified, 0));
            let Parsed { seq, payload: part, .. } = parse(&data).unwrap();
            let at = seq as usize;
            assert_eq!(part, payload[at..(at + 1400).min(60_000)]);
        }
    }
}

#[test]
fn receive_lane_impairs_gso_packets_and_partial_checksums() {
    let (a, b) = memory_link_pair(MemoryLinkOptions::default());
    let mut a = a;
    let mut b = Impaired::new(b, NONE, Impairments { duplicate_pct: 100.0, ..NONE }).unwrap();
    let (large, place) = partial_frame(false, 0, &pattern(5000));
    transmit(&mut a, Instant::ZERO, &large, segment_offload(&large, place, 1000));
    let (small, place) = partial_frame(true, 5000, &pattern(10));
    let offload = TxOffload { checksum: Some(place), segment: None };
    transmit(&mut a, Instant::ZERO, &small, offload);
    let received = receive_all(&mut b, Instant::ZERO);
    let seqs: Vec<_> = received.iter().map(|f| parse(&f.0).expect("complete").seq).collect();
    assert_eq!(seqs, [0, 0, 1000, 1000, 2000, 2000, 3000, 3000, 4000, 4000, 5000, 5000]);
    assert!(received.iter().all(|f| f.1 == RxChecksum::Unverified && f.2 == 0));
    assert_eq!(b.stats().impaired_duplicated, 6);
    assert_eq!(b.stats().rx_frames, 2);
}

#[test]
fn full_inner_link_delays_frames() {
    let options = MemoryLinkOptions { queue_frames_max: 1, ..MemoryLinkOptions::default() };
    let (a, mut b) = memory_link_pair(options);
    let mut a = Impaired::new(a, Impairments { duplicate_pct: 100.0, ..NONE }, NONE).unwrap();
    let frame = tcp_frame(false, 1, b"x");
    assert_eq!(transmit(&mut a, Instant::ZERO, &frame, TxOffload::default()), TxOutcome::Sent);
    assert_eq!(a.poll_at(), Some(Instant::ZERO + FULL_RETRY));
    assert_eq!(transmit(&mut a, Instant::ZERO, &frame, TxOffload::default()), TxOutcome::Full);
    assert_eq!(receive_all(&mut b, Instant::ZERO).len(), 1);
    receive_all(&mut a, Instant::from_micros(100));
    assert_eq!(receive_all(&mut b, Instant::ZERO).len(), 1);
    assert_eq!(a.poll_at(), None);
}

#[test]
fn malformed_gso_packet_is_dropped() {
    let (mut a, mut b) = pair(Impairments { delay: Duration::from_nanos(1), ..NONE }, true);
    let (mut frame, place) = partial_frame(false, 0, &pattern(5000));
    let offload = segment_offload(&frame, place, 1000);
    frame[23] = 17; // not TCP
    transmit(&mut a, Instant::ZERO, &frame, offload);
    receive_all(&mut a, Instant::from_millis(1));
    assert!(receive_all(&mut b, Instant::from_millis(1)).is_empty());
    assert_eq!((a.stats().impaired_dropped, a.poll_at()), (1, None));
}

#[test]
fn frames_pass_unchanged_without_impairments() {
    let (mut a, mut b) = pair(NONE, true);
    let (frame, place) = partial_frame(true, 0, &pattern(5000));
    transmit(&mut a, Instant::ZERO, &frame, segment_offload(&frame, place, 1000));
    assert_eq!(receive_all(&mut b, Instant::ZERO), vec![(frame, RxChecksum::Valid, 1000)]);
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = Impairments {
        drop_pct: 100.0,
        burst_mean: 10_000.0,
        duplicate_pct: 0.0,
        delay: Duration::from_secs(60),
        jitter: Duration::from_secs(60),
        rate_bps: Some(1),
        queue: QueueLimit::Frames(1),
        ..NONE
    };
    assert_eq!(good.validate(), Ok(()));
    let errors = [
        (Impairments { drop_pct: 100.1, ..good }, "drop of 100.1 %: expected 0 to 100"),
        (Impairments { duplicate_pct: -1.0, ..good }, "duplicate of -1 %: expected 0 to 100"),
        (Impairments { reorder_pct: f64::NAN, ..good }, "reorder of NaN %: expected 0 to 100"),
        (Impairments { corrupt_pct: f64::INFINITY, ..good }, "corrupt of inf %: expected 0 to 100"),
        (
            Impairments { delay: Duration::from_secs(61), ..good },
            "delay of 61s: expected at most 60s",
        ),
        (Impairments { rate_bps: Some(0), ..good }, "rate of 0 bit/s: expected at least 1"),
        (Impairments { queue: QueueLimit::Bytes(0), ..good }, "queue of 0: expected at least 1"),
        (Impairments { queue: QueueLimit::Frames(0), ..good }, "queue of 0: expected at least 1"),
        (Impairments { burst_mean: 0.5, ..good }, "burst of 0.5 frames: expected 1 to 10000"),
        (
            Impairments { drop_pct: 80.0, burst_mean: 3.0, ..good },
            "drop of 80 % in bursts of 3 frames: expected at most 75.0 %",
        ),
        (
            Impairments { jitter: Duration::from_secs(61), ..good },
            "jitter of 61s: expected at most the delay of 60s",
        ),
    ];
    for (settings, message) in errors {
        assert_eq!(format!("{}", settings.validate().unwrap_err()), message);
        let (a, _b) = memory_link_pair(MemoryLinkOptions::default());
        assert!(Impaired::new(a, NONE, settings).is_err());
        assert!(!settings.is_none());
    }
}

proptest! {
    /// For any combination of settings all frames are accounted for and no other frame appears.
    #[test]
    fn every_frame_is_accounted_for(
        drop_pct in 0.0..100.0, duplicate_pct in 0.0..100.0, reorder_pct in 0.0..100.0,
        delay_us in 0u64..100, seed: u64,
    ) {
        let delay = Duration::from_micros(delay_us);
        let settings =
            Impairments { drop_pct, duplicate_pct, reorder_pct, delay, seed, ..NONE };
        let (numbers, stats) = fates(settings, 200);
        let expected = 200 + stats.impaired_duplicated - stats.impaired_dropped;
        prop_assert_eq!(numbers.len() as u64, expected);
        prop_assert!(numbers.iter().all(|number| (0..200).contains(number)));
    }
}
