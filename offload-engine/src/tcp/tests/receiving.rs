//! Receive side: acceptability, order, windows, acknowledgments.

use super::*;

const ACK: Flags = Flags::ACK;

fn sack_state() -> Box<ConnectionState> {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    state
}

fn blocks(transmit: &Transmit) -> Vec<(i32, i32)> {
    let shape = |b: &SackBlock| (b.start.distance(REMOTE), b.end.distance(REMOTE));
    transmit.sack[..transmit.sack_count].iter().map(shape).collect()
}

/// Returns acknowledgment numbers and windows of all segments sent now.
fn acks(bench: &mut Bench) -> Vec<(i32, u16)> {
    bench.transmit(WIRE).iter().map(|t| (t.ack.distance(REMOTE), t.window)).collect()
}

// RFC 9293 §3.10.7.4: data received while nothing is in flight updates the peer's window as any segment does.
#[test]
fn one_way_data_updates_window() {
    let mut bench = Bench::new(state());
    bench.input(Segment { window: 0, ..data(0, b"one") });
    bench.post(100);
    assert!(bench.sent().is_empty());
    bench.input(Segment { window: 1000, ..data(3, b"two") });
    assert_eq!(bench.tcp.info(bench.now).snd_wnd, 1000);
    assert_eq!(bench.sent(), [(0, 100, Flags::ACK | Flags::PSH)]);
}

// RFC 9293 §3.8.6.3, CH §10.2: an ACK for every second segment immediately, for a single one after the delay.
#[test]
fn every_second_segment_is_acknowledged_at_once() {
    let mut bench = Bench::new(state());
    assert_eq!(bench.input(data(0, b"one")), b"one");
    assert!(acks(&mut bench).is_empty());
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(40));
    assert_eq!(acks(&mut bench), [(3, 59_997)], "the edge moves by whole segments (§3.8.6.2.2)");
    bench.input(data(3, b"two"));
    bench.input(data(6, b"three"));
    assert_eq!(acks(&mut bench).len(), 1);
    assert!(bench.tcp.poll_timeout().is_none());
    // A coalesced segment counts as its number of segments.
    bench.input(Segment { gso_size: 10, ..data(11, &[0; 11]) });
    assert_eq!(acks(&mut bench).len(), 1);
    assert_eq!(bench.tcp.info(bench.now).segs_in, 5);
    assert_eq!(bench.tcp.info(bench.now).bytes_received, 22);
}

// 32 KiB are acknowledged immediately, with any ACK frequency.
#[test]
fn bytes_force_ack() {
    let config = Config { ack_frequency: 200, quick_acks: 0, ..Config::default() };
    let mut bench = Bench::with(state(), config);
    bench.input(data(0, &[0; 32_767]));
    assert!(acks(&mut bench).is_empty());
    bench.input(data(32_767, &[0; 1]));
    assert_eq!(acks(&mut bench), [(32_768, 60_000)]);
}

// RFC 9293 §3.8.6.3 (SHLD-19): an ACK for every second full-sized segment, of a measured size. The link may have
// coalesced them without notice, and a peer may send less than our MSS.
#[test]
fn full_segment_size_is_measured() {
    let config = Config { quick_acks: 0, ack_frequency: 2, ..Config::default() };
    let mut bench = Bench::with(state(), config);
    bench.input(data(0, &[0; 536]));
    assert!(acks(&mut bench).is_empty(), "a segment of the default size is not two segments");
    bench.input(data(536, &[0; 1448]));
    assert_eq!(acks(&mut bench).len(), 1);
    assert_eq!(bench.tcp.info(bench.now).rcv_mss, 1448);
    bench.input(data(1984, &[0; 2895]));
    assert_eq!(bench.tcp.info(bench.now).rcv_mss, 1460, "at most our MSS");
    assert!(acks(&mut bench).is_empty(), "one byte less than two segments");
    bench.input(data(4879, &[0; 25]));
    assert_eq!(acks(&mut bench).len(), 1);
    bench.input(data(4904, &[0; 2920]));
    assert_eq!(acks(&mut bench).len(), 1, "two segments in one");
    // A smaller size is taken if it occurs twice in a row without PSH.
    let mut at = 7824;
    for (len, flags, size) in [(1000, Flags::PSH, 1460), (1000, ACK, 1460), (1000, ACK, 1000)] {
        bench.input(Segment { flags: ACK | flags, ..data(at, &[0; 1460][..len]) });
        assert_eq!(bench.tcp.info(bench.now).rcv_mss, size);
        at += len as u32;
    }
}

// A sender in slow start depends on its first ACKs (Linux: quick ACKs). Later, and for small segments whose response
// will carry the ACK, the delay applies. PSH makes no difference (not required by RFC 9293 §3.8.6.3).
#[test]
fn first_full_segments_are_acknowledged_at_once() {
    let mut bench = Bench::with(state(), Config { quick_acks: 3, ..Config::default() });
    let push = Segment { flags: ACK | Flags::PSH, ..data(0, &[0; 100]) };
    bench.input(push);
    assert!(acks(&mut bench).is_empty());
    for n in 0..3 {
        bench.input(data(100 + 1460 * n, &[0; 1460]));
        assert_eq!(acks(&mut bench).len(), 1, "{n}");
    }
    bench.input(data(100 + 1460 * 3, &[0; 1460]));
    assert!(acks(&mut bench).is_empty());
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(40));
    assert_eq!(acks(&mut bench), [(100 + 4 * 1460, 60_000)]);
}

// A batch of input of any size causes one ACK.
#[test]
fn batch_causes_one_ack() {
    let mut bench = Bench::new(state());
    for n in 0..16 {
        bench.input(data(1460 * n, &[0; 1460]));
    }
    assert_eq!(acks(&mut bench), [(16 * 1460, 60_000)]);
}

// RFC 9293 §3.8.6.2.2 (MUST-39): for a sender that uses every byte offered, the window opens by whole segments only,
// however few bytes the consumer takes at a time.
#[test]
fn window_opens_by_whole_segments() {
    let mut bench = Bench::new(state());
    let (mut next, mut window, mut offers) = (0u32, 60_000u32, vec![]);
    for _ in 0..600 {
        let payload = vec![1; window as usize];
        bench.tcp.handle_segment(bench.now, &data(next, &payload));
        bench.tcp.settle(&payload, false);
        next += window;
        window = 0;
        bench.now += Duration::from_millis(100);
        bench.tcp.backlog_consumed(50);
        // The filled window is acknowledged; the peer probes it.
        bench.input_raw(data(next - 1, b""));
        for (ack, advertised) in acks(&mut bench) {
            window = (ack as u32 + u32::from(advertised)).saturating_sub(next);
            offers.extend((window > 0).then_some(window));
        }
    }
    assert!(offers.len() > 15, "{offers:?}");
    assert!(offers.iter().all(|offer| *offer >= 1460), "{offers:?}");
}

// Data segments carry the acknowledgment.
#[test]
fn data_carries_acknowledgment() {
    let mut bench = Bench::new(state());
    bench.input(data(0, b"ping"));
    bench.post(4);
    let sent = bench.transmit(WIRE);
    assert_eq!((sent.len(), sent[0].payload_len, sent[0].ack), (1, 4, REMOTE + 4));
    assert_ne!(bench.tcp.poll_timeout(), None, "only the retransmission timer runs");
    assert!(!bench.tcp.timers.is_running(Timer::DelayedAck));
}

// RFC 9293 §3.10.7.4, RFC 5681 §4.2: order is restored, and each out-of-order segment acknowledged immediately.
#[test]
fn out_of_order_data_is_reordered() {
    let mut bench = Bench::new(state());
    assert!(bench.input(data(6, b"ghi")).is_empty());
    assert!(bench.input(data(3, b"def")).is_empty());
    assert_eq!(acks(&mut bench), [(0, 60_000), (0, 60_000)], "one duplicate ACK per segment");
    assert_eq!(bench.input(data(0, b"abc")), b"abcdefghi");
    assert_eq!(acks(&mut bench), [(9, 59_991)]);
    assert_eq!(bench.tcp.info(bench.now).bytes_received, 9);
}

// RFC 9293 §3.10.7.4: overlaps are trimmed, and the first bytes are kept, in order or not.
#[test]
fn overlapping_segments_are_trimmed() {
    let mut bench = Bench::new(state());
    bench.input(data(4, b"efgh"));
    bench.input(data(10, b"klm"));
    bench.input(data(3, b"d####ij###"));
    assert_eq!(bench.input(data(0, b"abcYYYYYYYYYYno")), b"abcdefghijklmno");
    assert_eq!(bench.input(data(2, b"ZZZZZZZZZZZZZpq")), b"pq");
    assert!(bench.input(data(0, b"abc")).is_empty());
}

// RFC 2018 §4: the newest block first; three blocks with timestamps, four without.
#[test]
fn newest_sack_block_is_first() {
    let mut bench = Bench::new(sack_state());
    for start in [10, 30, 50, 70, 90] {
        bench.input(data(start, &[1; 10]));
    }
    let sent = bench.transmit(WIRE);
    assert_eq!(sent.len(), 1, "one ACK with SACK blocks instead of duplicates");
    assert_eq!(blocks(&sent[0]), [(90, 100), (70, 80), (50, 60), (30, 40)]);
    let mut state = sack_state();
    state.tcp.constant.timestamp_enabled = true;
    let mut stamped = Bench::new(state);
    for start in [10, 30, 50, 70] {
        stamped.input(data(start, &[1; 10]));
    }
    assert_eq!(stamped.transmit(WIRE)[0].sack_count, 3);
}

// RFC 2883 §4: a duplicate is reported first, once.
#[test]
fn duplicate_data_is_reported_once() {
    let mut bench = Bench::new(sack_state());
    bench.input(data(0, &[1; 20]));
    bench.input(data(30, &[1; 10]));
    bench.transmit(WIRE);
    bench.input(data(5, &[1; 10]));
    assert_eq!(blocks(&bench.transmit(WIRE)[0]), [(5, 15), (30, 40)]);
    bench.input(data(32, &[1; 4]));
    assert_eq!(blocks(&bench.transmit(WIRE)[0]), [(32, 36), (30, 40)]);
    bench.input(data(50, &[1; 1]));
    assert_eq!(blocks(&bench.transmit(WIRE)[0]), [(50, 51), (30, 40)]);
}

// SACK blocks are sent in a separate ACK first, so that a data segment stays full-sized.
#[test]
fn sack_blocks_are_sent_without_data() {
    let mut bench = Bench::new(sack_state());
    bench.input(data(10, &[1; 10]));
    bench.post(1460);
    let sent = bench.transmit(WIRE);
    let shape: Vec<_> = sent.iter().map(|t| (t.payload_len, t.sack_count)).collect();
    assert_eq!(shape, [(0, 1), (1460, 0)]);
}

// CH-IND-6, P9: refused data shrinks the window but never moves its right edge left; consuming it opens the window.
#[test]
fn refused_data_shrinks_window() {
    let mut bench = Bench::new(state());
    let payload = [7; 30_000];
    for (offset, window) in [(0, 30_000), (30_000, 0)] {
        let received = bench.tcp.handle_segment(bench.now, &data(offset, &payload));
        assert_eq!(received.in_order, 0..30_000);
        bench.tcp.settle(&payload, false);
        assert_eq!(acks(&mut bench), [(offset as i32 + 30_000, window)]);
    }
    bench.tcp.block_receive();
    assert!(bench.tcp.receive_blocked());
    // P7: Linux probes with an empty segment left of the window, other stacks with one byte in it.
    bench.tcp.handle_segment(bench.now, &data(59_999, b""));
    assert_eq!(acks(&mut bench), [(60_000, 0)]);
    let received = bench.tcp.handle_segment(bench.now, &data(60_000, b"p"));
    assert!(received.in_order.is_empty());
    assert_eq!(acks(&mut bench), [(60_000, 0)]);
    // Less than two segments: no window update yet.
    bench.tcp.resume_receive();
    bench.tcp.backlog_consumed(2_919);
    assert!(acks(&mut bench).is_empty());
    bench.tcp.backlog_consumed(1);
    assert_eq!(acks(&mut bench), [(60_000, 2_920)]);
    while let Some(count) = bench.tcp.backlog().map(|(data, _)| data.len()) {
        bench.tcp.backlog_consumed(count);
    }
    assert_eq!(acks(&mut bench), [(60_000, 60_000)]);
}

// RFC 9293 §3.8.6.2.2: a window update is sent if it at least doubles the remaining window. A sender with much window
// left gets it with the ACK of its next data.
#[test]
fn window_update_needs_doubled_window() {
    for (waits, taken, update) in
        [(20_000, 20_000, None), (40_000, 19_999, None), (40_000, 20_000, Some(40_000))]
    {
        let mut bench = Bench::new(state());
        let payload = vec![1; waits];
        bench.tcp.handle_segment(bench.now, &data(0, &payload));
        bench.tcp.settle(&payload, false);
        assert_eq!(acks(&mut bench), [(waits as i32, 60_000 - waits as u16)]);
        bench.tcp.backlog_consumed(taken);
        let expected: Vec<_> = update.map(|window| (waits as i32, window)).into_iter().collect();
        assert_eq!(acks(&mut bench), expected);
        bench.tcp.handle_segment(bench.now, &data(waits as u32, &[1; 2920]));
        bench.tcp.settle(&[1; 2920], false);
        let window = 60_000 - (waits - taken + 2920) as u16;
        assert_eq!(acks(&mut bench), [(waits as i32 + 2920, window)]);
    }
}

// CH-DEL-4: refused data keeps its PSH.
#[test]
fn backlog_keeps_psh() {
    let mut bench = Bench::new(state());
    let push = |offset, payload| Segment { flags: ACK | Flags::PSH, ..data(offset, payload) };
    let received = bench.tcp.handle_segment(bench.now, &push(0, b"abc"));
    assert_eq!(received, Received { in_order: 0..3, push: true });
    bench.tcp.settle(b"c", received.push);
    bench.tcp.handle_segment(bench.now, &data(3, b"de"));
    bench.tcp.settle(b"de", false);
    bench.tcp.handle_segment(bench.now, &push(5, b"f"));
    bench.tcp.settle(b"f", true);
    let mut seen = vec![];
    while let Some((data, push)) = bench.tcp.backlog() {
        seen.push((data.to_vec(), push));
        let count = data.len();
        bench.tcp.backlog_consumed(count);
    }
    assert_eq!(seen, [(b"c".to_vec(), true), (b"def".to_vec(), true)]);
}

// P9, RFC 7323 §2.4: rounding by the scale moves the edge neither left nor ever further right.
#[test]
fn scaled_window_keeps_right_edge() {
    let mut state = state();
    let constant = &mut state.tcp.constant;
    (constant.window_scaling_enabled, constant.rcv_wind_scale) = (true, 7);
    let mut bench = Bench::with(state, Config { ack_frequency: 1, ..Config::default() });
    let mut edge = 0;
    for offset in 0.. {
        let received = bench.tcp.handle_segment(bench.now, &data(offset, b"x"));
        if received.in_order.is_empty() {
            break;
        }
        bench.tcp.settle(b"x", false);
        for (ack, window) in acks(&mut bench) {
            let advertised = ack + (i32::from(window) << 7);
            assert!(advertised >= edge - 127, "advertised edge moves left by more than rounding");
            edge = edge.max(advertised);
        }
    }
    assert!((60_000..60_128 + 128).contains(&edge), "{edge}");
}

// CH-EVT-6: the FIN is processed after everything before it has arrived and is consumed, exactly once.
#[test]
fn peer_closed_follows_consumed_data() {
    let mut bench = Bench::new(state());
    bench.input(Segment { flags: ACK | Flags::FIN, ..data(3, b"def") });
    assert!(bench.events().is_empty());
    assert_eq!(acks(&mut bench), [(0, 60_000)]);
    bench.tcp.handle_segment(bench.now, &data(0, b"abc"));
    bench.tcp.settle(b"abc", false);
    assert_eq!(acks(&mut bench), [(7, 59_993)]);
    assert!(bench.events().is_empty());
    bench.tcp.backlog_consumed(3);
    assert!(bench.events().is_empty());
    bench.tcp.backlog_consumed(3);
    assert!(matches!(bench.events()[..], [Event::PeerClosed]));
    // No data is accepted after a FIN.
    assert!(bench.input(data(7, b"more")).is_empty());
    assert!(bench.input(Segment { flags: ACK | Flags::FIN, ..data(3, b"def") }).is_empty());
    assert_eq!(acks(&mut bench).len(), 1);
    assert!(bench.events().is_empty());
    assert_eq!(bench.tcp.info(bench.now).bytes_received, 6);
}

// RFC 5961 §3.2, CH §9.2: a RST at exactly RCV.NXT resets; in the window it causes one challenge ACK; outside it is
// ignored.
#[test]
fn only_exact_reset_is_accepted() {
    let rst = |offset: u32| Segment { flags: Flags::RST, ..data(offset, b"") };
    let mut bench = Bench::new(state());
    bench.post(10);
    bench.sent();
    for offset in [u32::MAX, 60_000, 1 << 30] {
        bench.input(rst(offset));
        assert!(acks(&mut bench).is_empty());
    }
    bench.input(rst(1));
    bench.input(rst(2));
    assert_eq!(
        acks(&mut bench),
        [(0, 60_000)],
        "one challenge until an acceptable segment arrives"
    );
    bench.input(data(0, b"x"));
    bench.sent();
    bench.input(rst(2));
    assert_eq!(acks(&mut bench).len(), 1);
    assert_eq!(bench.tcp.info(bench.now).challenge_acks, 2);
    assert!(bench.events().is_empty());
    bench.input(rst(1));
    let events = bench.events();
    assert!(
        matches!(events[..], [Event::SendComplete(_), Event::Reset, Event::Closed]),
        "{events:?}"
    );
    assert_eq!(completions(&events), [(1, NdisStatus::REQUEST_ABORTED, 0)]);
    assert!(bench.tcp.poll_timeout().is_none());
}

// CH-EVT-7: no PeerClosed after a reset, and undelivered data is dropped.
#[test]
fn reset_drops_backlog() {
    let mut bench = Bench::new(state());
    bench.tcp.handle_segment(bench.now, &data(0, b"abc"));
    bench.tcp.settle(b"abc", false);
    bench.input_raw(Segment { flags: Flags::RST, ..data(3, b"") });
    assert!(bench.tcp.backlog().is_none());
    assert!(matches!(bench.events()[..], [Event::Reset, Event::Closed]));
}

// RFC 9293 §3.10.7.4, second: in TIME-WAIT a RST ends the connection without an error.
#[test]
fn reset_in_time_wait_closes_without_error() {
    let mut bench = Bench::new(state());
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    bench.sent();
    bench.ack(1);
    assert!(matches!(bench.events()[..], [Event::DisconnectComplete(_)]));
    let fin = Flags::ACK | Flags::FIN;
    bench.tcp.handle_segment(bench.now, &Segment { flags: fin, ack: LOCAL + 1, ..data(0, b"abc") });
    bench.tcp.settle(b"abc", false);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::TimeWait);
    bench.input_raw(Segment { flags: Flags::RST, ..data(4, b"") });
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::Closed);
    assert_eq!(bench.tcp.backlog().map(|(data, _)| &data[..]), Some(&b"abc"[..]));
    bench.tcp.backlog_consumed(3);
    assert!(matches!(bench.events()[..], [Event::PeerClosed, Event::Closed]));
    assert!(bench.tcp.poll_timeout().is_none());
}

// RFC 5961 §4.2, CH §9.2: a SYN causes a challenge ACK, in the window once per 3 s, and starts keep-alive.
#[test]
fn syn_causes_challenge_ack() {
    let mut bench = Bench::new(state());
    let syn = |offset: u32| Segment { flags: Flags::SYN, ..data(offset, b"") };
    bench.input(syn(0));
    assert_eq!(acks(&mut bench), [(0, 60_000)]);
    bench.input(syn(5));
    assert!(acks(&mut bench).is_empty());
    bench.input(syn(1 << 30));
    assert_eq!(acks(&mut bench).len(), 1, "outside the window");
    bench.now += Duration::from_secs(3);
    bench.input(syn(5));
    assert_eq!(acks(&mut bench).len(), 1);
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(297), "keep-alive after 5 minutes");
    assert_eq!(bench.sent(), [(u32::MAX, 0, ACK)]);
    bench.input(ack());
    assert!(bench.tcp.poll_timeout().is_none(), "an acceptable segment stops keep-alive");
    assert_eq!(bench.tcp.info(bench.now).challenge_acks, 3);
}

// RFC 9293 §3.10.7.4, RFC 5961 §5.2: an acknowledgment of data never sent, or sent long ago.
#[test]
fn unacceptable_acknowledgments_are_rejected() {
    let mut bench = Bench::new(state());
    bench.post(100);
    bench.sent();
    let carrying = |ack| Segment { ack, ..data(0, b"x") };
    assert!(bench.input(carrying(LOCAL + 101)).is_empty());
    assert_eq!(acks(&mut bench).len(), 1);
    assert!(bench.input(carrying(SeqNum(LOCAL.0.wrapping_sub(60_001)))).is_empty());
    assert_eq!(acks(&mut bench).len(), 1);
    assert_eq!(bench.input(carrying(SeqNum(LOCAL.0.wrapping_sub(60_000)))), b"x");
    assert!(bench.input(Segment { flags: Flags(0), ..data(1, b"y") }).is_empty(), "no ACK flag");
    assert_eq!(bench.tcp.info(bench.now).bytes_received, 1);
    assert_eq!(bench.tcp.send_outstanding(), 100);
}

// Two unsynchronized ends must not acknowledge each other forever.
#[test]
fn responses_to_strays_are_limited() {
    let mut bench = Bench::new(state());
    let mut answers = 0;
    for _ in 0..1000 {
        bench.input(data(1 << 30, b""));
        answers += acks(&mut bench).len();
    }
    assert_eq!(answers, 16);
    bench.now += Duration::from_secs(1);
    bench.input(data(u32::MAX, b""));
    assert_eq!(acks(&mut bench).len(), 1);
}

// RFC 7323 §4.3, §5.3: the echo is the newest timestamp in order; older ones are rejected.
#[test]
fn newest_timestamp_is_echoed() {
    let mut state = state();
    state.tcp.constant.timestamp_enabled = true;
    state.tcp.delegated.ts_time = 5_000_000;
    state.tcp.delegated.ts_recent = 100;
    let mut bench = Bench::new(state);
    let stamped = |offset, payload, value| Segment {
        timestamps: Some(Timestamps { value, echo: 5_000_000 }),
        ..data(offset, payload)
    };
    bench.now += Duration::from_millis(7);
    assert_eq!(bench.input(stamped(0, b"a", 110)), b"a");
    assert!(bench.input(stamped(1, b"b", 109)).is_empty(), "PAWS");
    // CH §10.9: our clock, shifted by the offset of the previous owner's.
    let echo = |bench: &mut Bench| bench.transmit(WIRE)[0].timestamps;
    assert_eq!(echo(&mut bench), Some(Timestamps { value: 5_000_007, echo: 110 }));
    // Out of order: not the segment that the ACK responds to.
    bench.input(stamped(2, b"c", 120));
    assert_eq!(echo(&mut bench).map(|t| t.echo), Some(110));
    assert_eq!(bench.input(stamped(1, b"b", 115)), b"bc");
    assert_eq!(echo(&mut bench).map(|t| t.echo), Some(115));
    // RFC 7323 §5.5: TS.Recent is invalid after 24 days.
    bench.now += Duration::from_secs(25 * 24 * 60 * 60);
    assert_eq!(bench.input(stamped(3, b"d", 1)), b"d");
}

// CH §9.3: urgent data stops the connection and is not acknowledged.
#[test]
fn urgent_data_requests_upload() {
    let mut bench = Bench::new(state());
    let urgent = Segment { flags: ACK | Flags::URG, ..data(0, b"!") };
    assert!(bench.input(urgent).is_empty());
    assert!(matches!(bench.events()[..], [Event::Retrieve(UploadReason::ReceivedUrgentData)]));
    assert!(bench.input(data(0, b"!")).is_empty());
    assert!(acks(&mut bench).is_empty() && bench.tcp.poll_timeout().is_none());
    assert_eq!(bench.tcp.tcp_state(bench.now).delegated.rcv_nxt, REMOTE);
}

// Reassembly is bounded; data not kept is not acknowledged.
#[test]
fn reassembly_gaps_are_limited() {
    let config = Config { reassembly_gaps_max: 2, ..Config::default() };
    let mut bench = Bench::with(sack_state(), config);
    for start in [10, 30, 50] {
        bench.input(data(start, &[1; 10]));
    }
    assert_eq!(blocks(&bench.transmit(WIRE)[0]), [(30, 40), (10, 20)]);
    assert_eq!(bench.input(data(0, &[1; 60])).len(), 60);
}

mod hostile {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // For any segments of a peer: no panic, and the invariants of the sequence space hold.
        #[test]
        fn any_segment_keeps_invariants(
            segments in prop::collection::vec(
                (-70_000i32..70_000, -300i32..300, any::<u8>(), any::<u16>(), 0usize..300,
                 prop::option::of((any::<u32>(), any::<u32>())),
                 prop::collection::vec((-400i32..400, -100i32..400), 0..4), 0usize..100, any::<bool>()),
                1..60,
            ),
            sack: bool, stamps: bool, close: bool,
        ) {
            let mut state = state();
            state.tcp.constant.sack_enabled = sack;
            state.tcp.constant.timestamp_enabled = stamps;
            let mut bench = Bench::new(state);
            bench.post(200);
            if close {
                bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b"bye"));
            }
            for (seq, ack, flags, window, len, stamp, blocks, gso, wait) in segments {
                let move_by = |base: SeqNum, by: i32| SeqNum(base.0.wrapping_add_signed(by));
                let blocks: Vec<_> = blocks
                    .iter()
                    .map(|(s, l)| SackBlock { start: move_by(LOCAL, *s), end: move_by(LOCAL, s + l) })
                    .collect();
                let payload = vec![1; len];
                // Mostly plain segments: RSTs in every second one would end each case early.
                let flags = if flags < 200 { Flags::ACK } else { Flags(flags) };
                let segment = Segment {
                    seq: move_by(REMOTE, seq),
                    ack: move_by(LOCAL, ack),
                    flags,
                    window,
                    timestamps: stamp.map(|(value, echo)| Timestamps { value, echo }),
                    sack: &blocks,
                    payload: &payload,
                    gso_size: gso,
                    ecn: Ecn::from_bits(flags.0),
                };
                let edge = bench.tcp.receiver.edge();
                let received = bench.tcp.handle_segment(bench.now, &segment);
                bench.tcp.settle(&payload[received.in_order], received.push);
                for transmit in bench.transmit(GSO) {
                    let gathered: usize = bench.tcp.payload(&transmit).map(|piece| piece.len()).sum();
                    prop_assert_eq!(gathered, transmit.payload_len);
                }
                if wait && bench.tcp.poll_timeout().is_some() {
                    bench.wait_for_timer();
                }
                let SendVariables { una, nxt, max, .. } = bench.tcp.snd;
                prop_assert!(una <= nxt && nxt <= max);
                // A reset empties the queue, including sent data.
                prop_assert!(max <= bench.tcp.send_end() || bench.tcp.is_ended());
                prop_assert!(bench.tcp.receiver.edge() >= edge, "P9");
                prop_assert!(bench.tcp.receiver.nxt() <= bench.tcp.receiver.edge() + 1);
                bench.tcp.tcp_state(bench.now);
            }
            // Every list completes exactly once, at the latest by the abort.
            bench.tcp.disconnect(bench.now, Disconnect::Abortive, list(10, b""));
            bench.transmit(WIRE);
            let events = bench.events();
            prop_assert_eq!(completions(&events).len(), 1);
            prop_assert!(matches!(events.last(), Some(Event::Closed)) || bench.tcp.closed_event == ClosedEvent::Raised);
        }
    }
}
