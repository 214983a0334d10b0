//! Send side: segments, PSH, FIN, windows, completions.

use super::*;
use crate::memory::to_vec;

const MSS: usize = 1460;
const ACK: Flags = Flags::ACK;

fn ack_push() -> Flags {
    Flags::ACK | Flags::PSH
}

fn ack_fin() -> Flags {
    Flags::ACK | Flags::FIN
}

fn payload(bench: &Bench, transmit: &Transmit) -> Vec<u8> {
    to_vec(bench.tcp.payload(transmit))
}

// CH-SND-5, CH-SND-8: full segments, then a short one with PSH at the end of each list.
#[test]
fn segments_end_with_each_list_and_carry_push() {
    let mut bench = Bench::new(state());
    bench.post(MSS + 100);
    bench.post(50);
    assert_eq!(bench.sent(), [(0, MSS, ACK), (1460, 100, ack_push()), (1560, 50, ack_push())]);
    assert_eq!(bench.tcp.info(bench.now).push_out, 2);
    assert_eq!(bench.tcp.info(bench.now).segs_out, 3);
}

// CH-SND-5, the alternative: segments span lists, PSH before the queue is empty.
#[test]
fn queue_empty_policy_pushes_last_segment() {
    let config = Config { push: PushPolicy::QueueEmpty, ..Config::default() };
    let mut bench = Bench::with(state(), config);
    bench.post(MSS + 100);
    bench.post(MSS);
    assert_eq!(bench.sent(), [(0, MSS, ACK), (1460, MSS, ACK), (2920, 100, ack_push())]);
}

// CH-SND-5 applies to retransmissions too: the segment that ends at the boundary has the PSH.
#[test]
fn retransmission_repeats_psh() {
    let mut bench = Bench::new(state());
    bench.post(100);
    bench.post(100);
    assert_eq!(bench.sent(), [(0, 100, ack_push()), (100, 100, ack_push())]);
    bench.wait_for_timer();
    assert_eq!(bench.sent(), [(0, 100, ack_push()), (100, 100, ack_push())]);
    assert_eq!(bench.tcp.info(bench.now).total_retrans, 2);
    assert_eq!(bench.tcp.info(bench.now).bytes_retrans, 200);
}

// One GSO packet per list: PSH applies to its last segment, so it ends there.
#[test]
fn gso_packets_end_at_psh() {
    let mut state = state();
    state.tcp.delegated.cwnd = 1 << 20;
    state.tcp.delegated.snd_wnd = 65_535;
    let mut bench = Bench::new(state);
    bench.post(10 * MSS + 7);
    bench.post(3 * MSS);
    let sent = bench.transmit(GSO);
    let shape: Vec<_> = sent.iter().map(|t| (t.payload_len, t.mss, t.flags)).collect();
    assert_eq!(shape, [(10 * MSS + 7, MSS, ack_push()), (3 * MSS, MSS, ack_push())]);
    assert_eq!(bench.tcp.info(bench.now).segs_out, 14);
    let expected: Vec<u8> = (0..3 * MSS).map(|n| n as u8).collect();
    assert_eq!(payload(&bench, &sent[1]), expected);
    assert_eq!(payload(&bench, &sent[0])[..MSS], expected[..MSS]);
    assert_eq!((sent[0].nbl_context, sent[1].nbl_context), (Some(1), Some(2)));
}

// The limits of the link and the window are rounded down to a multiple of the MSS.
#[test]
fn gso_packets_are_multiples_of_mss() {
    let mut state = state();
    state.tcp.delegated.cwnd = 1 << 20;
    let mut bench = Bench::new(state);
    bench.post(60_000);
    let limits = TxLimits { gso_payload_max: 10_000, new_data: true };
    let lens: Vec<_> = bench.transmit(limits).iter().map(|t| t.payload_len).collect();
    assert_eq!(lens, [8760, 8760, 8760, 8760, 8760, 8760, 7440]);

    let mut slow = Bench::new(super::state());
    slow.post(60_000);
    assert_eq!(slow.transmit(GSO)[0].payload_len, 10 * MSS, "initial window (RFC 6928)");
}

// For any congestion window, the flight is bounded by link rate times minimum RTT, or by the minimum for every path.
// Before an RTT sample only the windows apply.
#[test]
fn flight_is_bounded_by_link_rate_and_rtt() {
    let flight = |rtt: Duration, config: Config| {
        let mut state = state();
        let TcpState { constant, delegated, .. } = &mut state.tcp;
        (constant.window_scaling_enabled, constant.snd_wind_scale) = (true, 8);
        (delegated.cwnd, delegated.snd_wnd, delegated.max_snd_wnd) = (4 << 20, 8 << 20, 8 << 20);
        let mut bench = Bench::with(state, config);
        bench.post(MSS);
        assert_eq!(bench.transmit(GSO).len(), 1);
        assert_eq!(bench.tcp.info(bench.now).snd_cwnd, 4 << 20);
        bench.now += rtt;
        bench.ack(MSS as u32);
        bench.post(3 << 20);
        let sent: usize = bench.transmit(GSO).iter().map(|t| t.payload_len).sum();
        let Info { snd_cwnd, .. } = bench.tcp.info(bench.now);
        (sent, usize::try_from(snd_cwnd).unwrap())
    };
    let whole = |bytes: usize| bytes - bytes % MSS;
    let default = Config::default();
    assert_eq!(flight(Duration::from_micros(20), default), (whole(1 << 20), 1 << 20));
    assert_eq!(flight(Duration::from_micros(200), default), (whole(2_000_000), 2_000_000));
    assert_eq!(flight(Duration::from_millis(10), default).0, 3 << 20, "100 MB");
    let slow = Config { in_flight_min: 100_000, link_rate: 1_000_000_000, ..default };
    assert_eq!(flight(Duration::from_micros(20), slow).1, 100_000);
    assert_eq!(flight(Duration::from_micros(200), slow).1, 200_000);
    let unbounded = Config { link_rate: u64::MAX, ..default };
    assert_eq!(flight(Duration::from_micros(20), unbounded).0, 3 << 20);
}

// A connection that may not send new data retransmits, and sends neither data nor FIN until it may.
#[test]
fn without_permission_only_sent_data_is_retransmitted() {
    let held = TxLimits { new_data: false, ..WIRE };
    let mut bench = Bench::new(state());
    bench.post(2 * MSS);
    assert!(bench.transmit(held).is_empty());
    assert_eq!((bench.tcp.unsent(), bench.tcp.in_flight()), (2 * MSS as u64, 0));
    assert_eq!(bench.transmit(WIRE).len(), 2);
    bench.post(100);
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    assert!(bench.transmit(held).is_empty());
    assert_eq!((bench.tcp.unsent(), bench.tcp.in_flight()), (101, 2 * MSS as u64));
    while bench.tcp.info(bench.now).timeouts == 0 {
        bench.wait_for_timer();
        let sent = bench.transmit(held);
        assert!(sent.iter().all(|transmit| transmit.retransmission), "{sent:?}");
    }
    // The peer may be unreachable.
    assert_eq!(bench.tcp.in_flight(), 0);
    bench.ack(2 * MSS as u32);
    assert!(bench.transmit(held).is_empty());
    let sent = bench.transmit(WIRE);
    assert_eq!(sent.iter().map(|transmit| transmit.payload_len).sum::<usize>(), 100);
    assert!(sent.last().unwrap().flags.contains(Flags::FIN));
    assert_eq!((bench.tcp.unsent(), bench.tcp.in_flight()), (0, 101));
}

// RFC 9293 §3.7.1, RFC 6691: options of every segment reduce the MSS.
#[test]
fn effective_mss_excludes_options() {
    for (remote, path, timestamps, expected) in [
        (1460, 1460, false, 1460),
        (1460, 1460, true, 1448),
        (536, 1460, true, 524),
        (9000, 1460, true, 1448),
        (48, 1460, true, 36),
        (13, 1460, true, 36),
        (0, 1460, false, 48),
        (1460, 13, false, 48),
    ] {
        let mut state = state();
        state.tcp.constant.remote_mss = remote;
        state.tcp.constant.timestamp_enabled = timestamps;
        let tcp = Connection::from_state(Instant::ZERO, state, path, Config::default()).unwrap();
        assert_eq!(tcp.effective_mss(), expected);
    }
}

// A peer cannot force one segment per byte by its MSS (CVE-2019-11479).
#[test]
fn smallest_mss_is_bounded() {
    let mut state = state();
    state.tcp.constant.remote_mss = 1;
    let mut bench = Bench::new(state);
    bench.post(12 * 48);
    assert_eq!(bench.sent().len(), 10);
    bench.ack(480);
    let rest = [(480, 48, ACK), (528, 48, ack_push())];
    assert_eq!(bench.sent(), rest);
    bench.ack(576);
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 576)]);
}

// CH-SNC-1, -5: lists complete in order, when SND.UNA reaches their end; CH-SND-9: empty lists too.
#[test]
fn lists_complete_when_acknowledged() {
    let mut bench = Bench::new(state());
    bench.post(0);
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 0)]);
    bench.post(100);
    bench.post(0);
    bench.post(200);
    assert_eq!(bench.sent().len(), 2, "an empty list causes no segment");
    bench.ack(99);
    assert!(bench.events().is_empty());
    bench.ack(250);
    assert_eq!(
        completions(&bench.events()),
        [(2, NdisStatus::SUCCESS, 100), (3, NdisStatus::SUCCESS, 0)]
    );
    assert_eq!(bench.tcp.send_outstanding(), 50);
    bench.ack(300);
    assert_eq!(completions(&bench.events()), [(4, NdisStatus::SUCCESS, 200)]);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.bytes_sent, info.bytes_acked, info.bytes_retrans), (300, 300, 0));
}

// CH §8.1, CH-DIS-4, -5: data, then a FIN on the last segment, without waiting for an ACK.
#[test]
fn graceful_disconnect_sends_fin_after_data() {
    let mut bench = Bench::new(state());
    bench.post(100);
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b"bye"));
    assert_eq!(bench.sent(), [(0, 100, ack_push()), (100, 3, ack_push() | ack_fin())]);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::FinWait1);
    bench.ack(103);
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 100)]);
    bench.ack(104);
    let events = bench.events();
    let [Event::DisconnectComplete(list)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((list.context, list.status, list.bytes_transferred), (9, NdisStatus::SUCCESS, 3));
    assert_eq!(list.data_length(), 0);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::FinWait2);
    assert_eq!(bench.tcp.info(bench.now).bytes_acked, 103);
    // The receive half stays open.
    assert_eq!(bench.input(data(0, b"late")), b"late");
    bench.input(Segment { flags: ack_fin(), ack: LOCAL + 104, ..data(4, b"") });
    assert!(matches!(bench.events()[..], [Event::PeerClosed]));
    assert_eq!(bench.sent(), [(104, 0, ACK)]);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::TimeWait);
    assert_eq!(bench.wait_for_timer(), Config::default().time_wait);
    assert!(matches!(bench.events()[..], [Event::Closed]));
    assert!(bench.events().is_empty());
}

// RFC 9293 §3.6: passive close, and simultaneous close.
#[test]
fn passive_and_simultaneous_close_complete() {
    let mut bench = Bench::new(state());
    bench.input(Segment { flags: ack_fin(), ..ack() });
    assert!(matches!(bench.events()[..], [Event::PeerClosed]));
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::CloseWait);
    bench.post(10);
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    assert_eq!(bench.sent(), [(0, 10, ack_push() | ack_fin())]);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::LastAck);
    bench.input(Segment { seq: REMOTE + 1, ack: LOCAL + 11, ..ack() });
    let events = bench.events();
    assert!(
        matches!(events[..], [Event::SendComplete(_), Event::DisconnectComplete(_), Event::Closed]),
        "{events:?}"
    );

    let mut both = Bench::new(state());
    both.tcp.disconnect(both.now, Disconnect::Graceful, list(9, b""));
    assert_eq!(both.sent(), [(0, 0, ack_fin())]);
    both.input(Segment { flags: ack_fin(), ..ack() });
    assert_eq!(both.tcp.info(both.now).phase, TcpPhase::Closing);
    both.input(Segment { seq: REMOTE + 1, ack: LOCAL + 1, ..ack() });
    assert_eq!(both.tcp.info(both.now).phase, TcpPhase::TimeWait);
    // RFC 9293 §3.10.7.4, eighth: a repeated FIN is acknowledged and restarts the 2 MSL.
    both.sent();
    both.now += Duration::from_secs(50);
    both.input(Segment { flags: ack_fin(), ack: LOCAL + 1, ..ack() });
    assert_eq!(both.sent(), [(1, 0, ACK)]);
    assert_eq!(both.wait_for_timer(), Duration::from_secs(60));
}

// A lost FIN is retransmitted, alone or with its data.
#[test]
fn lost_fin_is_retransmitted() {
    let mut bench = Bench::new(state());
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b"bye"));
    let last = [(0, 3, ack_push() | ack_fin())];
    assert_eq!(bench.sent(), last);
    bench.wait_for_timer();
    assert_eq!(bench.sent(), last);
    bench.ack(3);
    bench.wait_for_timer();
    assert_eq!(bench.sent(), [(3, 0, ack_fin())]);
    bench.ack(4);
    assert!(matches!(bench.events()[..], [Event::DisconnectComplete(_)]));
}

// CH §8.1: outstanding sends complete REQUEST_ABORTED with their acknowledged bytes, a RST is sent, then the disconnect
// completes.
#[test]
fn abortive_disconnect_sends_reset() {
    let mut bench = Bench::new(state());
    bench.post(100);
    bench.post(100);
    bench.sent();
    bench.ack(40);
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(8, b"x"));
    bench.tcp.disconnect(bench.now, Disconnect::Abortive, list(9, b""));
    let events = bench.events();
    let aborted = NdisStatus::REQUEST_ABORTED;
    assert_eq!(completions(&events), [(1, aborted, 40), (2, aborted, 0)]);
    let [Event::SendComplete(chain), Event::DisconnectComplete(graceful)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(chain[0].data_length(), 60);
    assert_eq!((graceful.context, graceful.status), (8, aborted), "CH-DIS-6");
    assert_eq!(bench.sent(), [(200, 0, Flags::RST | ACK)]);
    let events = bench.events();
    let [Event::DisconnectComplete(list), Event::Closed] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((list.context, list.status), (9, NdisStatus::SUCCESS));
    // Nothing more is processed or sent; requests complete immediately.
    bench.post(5);
    assert_eq!(completions(&bench.events()), [(3, aborted, 0)]);
    assert!(bench.input(data(0, b"late")).is_empty());
    assert!(bench.sent().is_empty() && bench.tcp.poll_timeout().is_none());
}

// CH-DIS-6: requests after a graceful disconnect.
#[test]
fn requests_after_a_graceful_disconnect_are_refused() {
    let mut bench = Bench::new(state());
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(8, b"x"));
    bench.post(5);
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b"y"));
    let events = bench.events();
    assert_eq!(completions(&events), [(1, NdisStatus::REQUEST_ABORTED, 0)]);
    let [_, Event::DisconnectComplete(refused)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((refused.context, refused.status), (9, NdisStatus::REQUEST_ABORTED));
    assert_eq!(bench.sent(), [(0, 1, ack_push() | ack_fin())]);
    assert_eq!(bench.tcp.send_room(), 0);
}

// RFC 9293 §3.7.4: with Nagle's algorithm a short segment waits for the acknowledgment.
#[test]
fn nagle_holds_short_segments() {
    let mut state = state();
    state.tcp.cached.nagling_enabled = true;
    let mut bench = Bench::new(state);
    bench.post(10);
    assert_eq!(bench.sent(), [(0, 10, ack_push())], "nothing is outstanding");
    bench.post(20);
    assert!(bench.sent().is_empty());
    bench.ack(10);
    assert_eq!(bench.sent(), [(10, 20, ack_push())]);
    bench.post(MSS + 5);
    assert_eq!(bench.sent(), [(30, MSS, ACK)]);
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    // A segment with the FIN is not held back.
    assert_eq!(bench.sent(), [(30 + 1460, 5, ack_push() | ack_fin())]);
}

// Minshall's condition: the short end of a large write does not wait for the delayed ACK of its full-sized segments.
// RFC 9293 §3.7.4 and §3.8.6.3 together would cost the peer's delay for each write. A second short segment waits for
// the ACK of the first.
#[test]
fn short_end_of_large_write_is_not_held() {
    let mut state = state();
    state.tcp.cached.nagling_enabled = true;
    let mut bench = Bench::new(state);
    bench.post(MSS + 5);
    assert_eq!(bench.sent(), [(0, MSS, ACK), (1460, 5, ack_push())]);
    bench.post(10);
    assert!(bench.sent().is_empty());
    bench.ack(1460);
    assert!(bench.sent().is_empty(), "the short segment is still outstanding");
    bench.ack(1465);
    assert_eq!(bench.sent(), [(1465, 10, ack_push())]);
}

// RFC 9293 §3.8.6.2.1 (MUST-38): a slowly opening window is used when a full segment fits, or half of the peer's
// largest window so far.
#[test]
fn slowly_opening_window_is_used_late() {
    for (largest, used) in [(60_000, 1460), (1_000, 500)] {
        let mut state = state();
        (state.tcp.delegated.snd_wnd, state.tcp.delegated.max_snd_wnd) = (0, largest);
        let mut bench = Bench::new(state);
        bench.post(10 * MSS);
        for window in (20..used).step_by(20) {
            bench.input(Segment { window, ..ack() });
            assert!(bench.sent().is_empty(), "{window} of {largest}");
        }
        bench.input(Segment { window: used, ..ack() });
        assert_eq!(bench.sent(), [(0, usize::from(used), ACK)]);
    }
}

// RFC 9293 §3.8.6 (MUST-34, SHLD-15, SHLD-16, MUST-35): the window shrinks below the outstanding data. Nothing new is
// sent, data within it is retransmitted, a zero window is probed, and all data arrives.
#[test]
fn shrunk_window_is_respected() {
    let mut bench = Bench::new(state());
    bench.post(20 * MSS);
    assert_eq!(bench.sent().len(), 10);
    bench.input(Segment { ack: LOCAL + 1460, window: 2 * 1460, ..ack() });
    assert!(bench.sent().is_empty());
    let mut again = vec![];
    while bench.tcp.info(bench.now).timeouts == 0 {
        bench.wait_for_timer();
        again = bench.sent();
    }
    assert_eq!(again, [(1460, MSS, ACK)]);
    bench.input(Segment { ack: LOCAL + 2920, window: 0, ..ack() });
    for _ in 0..40 {
        assert!(bench.sent().is_empty());
        bench.wait_for_timer();
        assert_eq!(bench.sent(), [(2920, 1, ACK)]);
        bench.input(Segment { ack: LOCAL + 2920, window: 0, ..ack() });
    }
    let mut expected = 2920;
    while expected < 20 * 1460 {
        bench.input(Segment { ack: LOCAL + expected, ..ack() });
        let sent = bench.sent();
        if sent.is_empty() {
            bench.wait_for_timer();
        }
        for (at, len, _) in sent {
            expected += if at == expected { len as u32 } else { 0 };
        }
    }
    bench.input(Segment { ack: LOCAL + expected, ..ack() });
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 20 * MSS)]);
}

// RFC 9293 §3.8.6.2.1, CH §10.8: no small segment for a small window, until the override timer expires.
#[test]
fn small_window_is_used_after_override() {
    let mut bench = Bench::new(state());
    bench.input(Segment { window: 700, ..ack() });
    bench.post(3_000);
    assert!(bench.sent().is_empty());
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(200));
    assert_eq!(bench.sent(), [(0, 700, ACK)]);
    // A list that fits is sent immediately.
    let mut fits = Bench::new(state());
    fits.input(Segment { window: 700, ..ack() });
    fits.post(600);
    assert_eq!(fits.sent(), [(0, 600, ack_push())]);
}

// RFC 9293 §3.10.7.4: only newer segments update the window, and its right edge limits transmission.
#[test]
fn only_newer_segments_update_window() {
    let mut bench = Bench::new(state());
    bench.input(Segment { window: 2 * 1460, ..ack() });
    bench.post(6 * MSS);
    assert_eq!(bench.sent().len(), 2);
    // An older segment: same sequence number, older acknowledgment.
    bench.input(Segment { window: 2 * 1460, ack: LOCAL + 1460, ..ack() });
    assert_eq!(bench.sent().len(), 1);
    bench.input(Segment { window: 60_000, ..ack() });
    assert!(bench.sent().is_empty(), "SND.WL2 is newer");
    assert_eq!(bench.tcp.info(bench.now).snd_wnd, 2920);
}

// CH §10.4: rounds of probes; responses keep the connection open forever.
#[test]
fn closed_window_is_probed_in_rounds() {
    let mut bench = Bench::new(state());
    bench.input(Segment { window: 0, ..ack() });
    bench.post(100);
    assert!(bench.sent().is_empty());
    let second = Duration::from_secs(1);
    for round in 0..20 {
        let base = (second * (1 << round.min(16))).min(Config::default().rto_max);
        assert_eq!(bench.wait_for_timer(), base, "round {round}");
        assert_eq!(bench.sent(), [(0, 1, ACK)]);
        let limit = |n: u32| (second * (1 << n)).min(Config::default().rto_max);
        assert_eq!(bench.wait_for_timer(), limit(0));
        assert_eq!(bench.sent(), [(0, 1, ACK)]);
        assert_eq!(bench.wait_for_timer(), limit(1));
        assert_eq!(bench.sent(), [(0, 1, ACK)]);
        bench.input(Segment { window: 0, ..ack() });
        assert!(bench.sent().is_empty());
    }
    // The peer may have kept the probe's byte (P3).
    bench.input(Segment { ack: LOCAL + 1, ..ack() });
    assert_eq!(bench.sent(), [(1, 99, ack_push())]);
    bench.ack(100);
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 100)]);
    assert!(bench.tcp.poll_timeout().is_none());
}

// CH §10.4: too many unanswered probes in one round.
#[test]
fn unanswered_window_probes_end_the_connection() {
    let mut bench = Bench::new(state());
    bench.input(Segment { window: 0, ..ack() });
    bench.post(100);
    bench.sent();
    for _ in 0..Config::default().retransmissions_max {
        bench.wait_for_timer();
        assert_eq!(bench.sent().len(), 1);
    }
    bench.wait_for_timer();
    assert!(matches!(bench.events()[..], [Event::Retrieve(UploadReason::TimeoutExpiration)]));
}

// Only a FIN is unsent and the window is closed: the probe is empty, left of the window (P7).
#[test]
fn closed_window_is_probed_for_fin() {
    let mut bench = Bench::new(state());
    bench.input(Segment { window: 0, ..ack() });
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    assert!(bench.sent().is_empty());
    bench.wait_for_timer();
    assert_eq!(bench.sent(), [(u32::MAX, 0, ACK)]);
    bench.input(Segment { window: 10, ..ack() });
    assert_eq!(bench.sent(), [(0, 0, ack_fin())]);
}

// RFC 6298 §5.1 to §5.6: backoff, limit, and the operations supported after it.
#[test]
fn retransmission_backs_off_until_limit() {
    let config = Config { retransmissions_max: 3, ..Config::default() };
    let mut bench = Bench::with(state(), config);
    bench.post(100);
    assert_eq!(bench.sent().len(), 1);
    for seconds in [1, 2, 4] {
        assert_eq!(bench.wait_for_timer(), Duration::from_secs(seconds));
        assert_eq!(bench.sent(), [(0, 100, ack_push())]);
    }
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(8));
    assert!(matches!(bench.events()[..], [Event::Retrieve(UploadReason::TimeoutExpiration)]));
    assert_eq!(bench.tcp.info(bench.now).timeouts, 3);
    // CH-EVT-1: the connection has stopped; an abortive disconnect still works.
    assert!(bench.sent().is_empty() && bench.tcp.poll_timeout().is_none());
    bench.tcp.disconnect(bench.now, Disconnect::Abortive, list(9, b""));
    assert_eq!(bench.sent(), [(100, 0, Flags::RST | ACK)]);
    let events = bench.events();
    assert!(
        matches!(events[..], [Event::SendComplete(_), Event::DisconnectComplete(_), Event::Closed]),
        "{events:?}"
    );
}

// CH §3.5: MaxRT overrides the count; -1 means no limit.
#[test]
fn max_rt_overrides_retransmission_count() {
    for (max_rt, timeouts) in [(Some(10_000), 3), (None, 40)] {
        let mut state = state();
        state.tcp.cached.max_rt = max_rt;
        let mut bench = Bench::with(state, Config { retransmissions_max: 2, ..Config::default() });
        bench.post(1);
        bench.sent();
        for _ in 0..40 {
            if bench.tcp.poll_timeout().is_some() {
                bench.wait_for_timer();
                bench.sent();
            }
        }
        assert_eq!(bench.tcp.info(bench.now).timeouts, timeouts);
    }
}

// RFC 9293 §3.8.4, CH §10.5.
#[test]
fn unanswered_keep_alives_end_connection() {
    let mut state = state();
    let cached = &mut state.tcp.cached;
    (cached.keep_alive_enabled, cached.ka_timeout) = (true, 10_000);
    (cached.ka_interval, cached.ka_probe_count) = (500, 2);
    let mut bench = Bench::new(state);
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(10));
    assert_eq!(bench.sent(), [(u32::MAX, 0, ACK)]);
    bench.input(ack());
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(10));
    bench.sent();
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(500));
    assert_eq!(bench.sent().len(), 1);
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(500));
    assert!(matches!(bench.events()[..], [Event::Retrieve(UploadReason::TimeoutExpiration)]));
}

// RFC 9293 §3.8.4 (MUST-26): no keep-alive while data is outstanding; its retransmissions probe the peer.
#[test]
fn outstanding_data_delays_keep_alive() {
    let mut state = state();
    let cached = &mut state.tcp.cached;
    (cached.keep_alive_enabled, cached.ka_timeout, cached.ka_probe_count) = (true, 500, 1);
    let mut bench = Bench::with(state, Config { retransmissions_max: 5, ..Config::default() });
    bench.post(10);
    bench.sent();
    let end = bench.now + Duration::from_secs(30);
    while bench.now < end {
        bench.wait_for_timer();
        assert!(bench.sent().iter().all(|segment| *segment == (0, 10, ack_push())));
    }
    assert!(bench.events().is_empty());
    bench.ack(10);
    bench.wait_for_timer();
    assert_eq!(bench.sent(), [(9, 0, ACK)]);
}

// CH §10.7.
#[test]
fn fin_wait_2_has_time_limit() {
    let mut bench = Bench::new(state());
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    bench.sent();
    bench.ack(1);
    bench.now += Duration::from_secs(100);
    bench.ack(1);
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(120));
    let events = bench.events();
    assert!(
        matches!(
            events[..],
            [Event::DisconnectComplete(_), Event::Retrieve(UploadReason::TimeoutExpiration)]
        ),
        "{events:?}"
    );
}

// CH-ST-2: send room for a producer; never 0 forever.
#[test]
fn send_room_follows_windows() {
    let mut bench = Bench::new(state());
    assert_eq!(bench.tcp.send_room(), 10 * MSS + SEND_BACKLOG);
    bench.post(10 * MSS + SEND_BACKLOG);
    assert_eq!(bench.tcp.send_room(), 0);
    bench.sent();
    assert_eq!(bench.tcp.send_room(), 0);
    bench.ack(2 * 1460);
    assert!(bench.tcp.send_room() > 0);
    bench.input(Segment { window: 0, ack: LOCAL + 14_600, ..ack() });
    bench.post(0);
    let mut idle = Bench::new(state());
    idle.input(Segment { window: 0, ..ack() });
    assert_eq!(idle.tcp.send_room(), SEND_BACKLOG);
}
