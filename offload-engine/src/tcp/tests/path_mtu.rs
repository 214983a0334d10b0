//! ICMP errors, black holes, and the resulting MSS.

use proptest::prelude::*;

use super::*;

/// Returns a connection with ten full segments of 1460 bytes in flight and thirty unsent.
fn flight(config: Config) -> Bench {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    let mut bench = Bench::with(state, config);
    bench.post(40 * 1460);
    assert_eq!(bench.sent().len(), 10);
    bench.now += Duration::from_millis(10);
    bench
}

/// Processes "fragmentation needed" for the packet of 1500 bytes, `offset` bytes from the first.
fn too_big(bench: &mut Bench, offset: u32, next_hop_mtu: u32) -> bool {
    too_big_of(bench, offset, next_hop_mtu, 1500)
}

fn too_big_of(bench: &mut Bench, offset: u32, next_hop_mtu: u32, packet_len: u32) -> bool {
    let kind = PathErrorKind::TooBig { next_hop_mtu, packet_len };
    bench.tcp.handle_path_error(bench.now, &PathError { seq: LOCAL + offset, kind })
}

fn info(bench: &Bench) -> Info {
    bench.tcp.info(bench.now)
}

// RFC 1191 §6.4, RFC 8201 §5.4: the path MTU becomes the next hop's. Dropped segments are retransmitted at once in
// segments that fit, and the congestion window is unchanged.
#[test]
fn too_big_retransmits_smaller_segments_at_once() {
    let mut bench = flight(Config::default());
    let before = info(&bench);
    assert!(too_big(&mut bench, 0, 1280));
    let sent = bench.sent();
    assert_eq!(sent[0], (0, 1240, Flags::ACK));
    assert!(sent.iter().all(|(_, len, _)| *len <= 1240), "{sent:?}");
    assert_eq!(sent.iter().map(|(_, len, _)| len).sum::<usize>() / 1240, 14_600 / 1240);
    let after = info(&bench);
    assert_eq!((after.snd_mss, after.pmtu, after.path_mtu_reductions), (1240, 1280, 1));
    assert_eq!((after.snd_cwnd, after.snd_ssthresh), (before.snd_cwnd, before.snd_ssthresh));
    // No loss and no timeout, also after the acknowledgments.
    bench.now += Duration::from_millis(10);
    bench.ack(14_600);
    assert_eq!(bench.sent()[0], (14_600, 1240, Flags::ACK));
    let end = info(&bench);
    assert_eq!((end.timeouts, end.fast_retransmits, end.black_holes), (0, 0, 0));
    assert!(end.snd_cwnd >= before.snd_cwnd);
}

// Further messages about the same flight have no effect (RFC 1191 §6.3: only a decrease counts).
#[test]
fn messages_of_one_flight_cause_one_reduction() {
    let mut bench = flight(Config::default());
    for segment in 0..10 {
        assert!(too_big(&mut bench, segment * 1460, 1280));
        assert!(too_big(&mut bench, segment * 1460, 1400), "an increase is ignored");
        // A router without next-hop MTU quotes the length of a packet sent before the reduction.
        assert!(too_big(&mut bench, segment * 1460, 0));
    }
    let info = info(&bench);
    assert_eq!((info.pmtu, info.path_mtu_reductions), (1280, 1));
}

// RFC 1191 §5, §7.1: without a next-hop MTU, the next plateau below the packet's length.
#[test]
fn missing_next_hop_mtu_uses_plateaus() {
    for (packet_len, expected) in [(1500, 1492), (1492, 1006), (1006, 576), (577, 576), (576, 1500)]
    {
        let mut bench = flight(Config::default());
        too_big_of(&mut bench, 0, 0, packet_len);
        assert_eq!(info(&bench).pmtu, expected, "after a packet of {packet_len}");
    }
}

// RFC 5927 §7.2, RFC 8201 §4: MTUs below the minimum are ignored.
#[test]
fn mtu_below_minimum_is_ignored() {
    for (mtu, expected) in
        [(552, 552), (551, 1500), (68, 1500), (1, 1500), (1500, 1500), (9000, 1500)]
    {
        let mut bench = flight(Config::default());
        assert!(too_big(&mut bench, 0, mtu));
        assert_eq!(info(&bench).pmtu, expected, "after a report of {mtu}");
        assert_eq!(bench.sent().is_empty(), expected == 1500);
    }
    let mut state = state();
    state.path.constant.source_address = core::net::Ipv6Addr::LOCALHOST.into();
    let mut bench = Bench::new(state);
    bench.post(5_000);
    bench.sent();
    assert_eq!(info(&bench).pmtu, 1460 + 60);
    too_big(&mut bench, 0, 1279);
    assert_eq!(info(&bench).pmtu, 1520);
    too_big(&mut bench, 0, 1280);
    assert_eq!((info(&bench).pmtu, info(&bench).snd_mss), (1280, 1220));
}

// RFC 5927 §4.1: SND.UNA <= SEG.SEQ < SND.MAX, otherwise the message is forged or late.
#[test]
fn errors_outside_flight_are_ignored() {
    let mut bench = flight(Config::default());
    bench.ack(1460);
    let outside = [0, 1459, u32::MAX, 1 << 31, 14_600, 1 << 30];
    for offset in outside {
        assert!(!too_big(&mut bench, offset, 1280), "{offset}");
    }
    assert_eq!((info(&bench).pmtu, info(&bench).path_errors_ignored), (1500, 6));
    assert!(too_big(&mut bench, 1460, 1280));
    assert_eq!(info(&bench).pmtu, 1280);

    let mut idle = Bench::new(state());
    assert!(!too_big(&mut idle, 0, 1280));
}

// RFC 5927 §7: an attacker that has guessed the sequence number can reduce the path MTU only a few times per flight.
#[test]
fn reductions_of_a_flight_are_bounded() {
    let mut bench = flight(Config::default());
    for step in 1..100 {
        too_big(&mut bench, 0, 1500 - step);
    }
    let reductions = u64::from(REDUCTIONS_PER_FLIGHT_MAX);
    assert_eq!(info(&bench).path_mtu_reductions, reductions);
    let sent = bench.sent();
    assert_eq!(
        sent.iter().map(|(_, len, _)| len).sum::<usize>(),
        14_600,
        "the flight is retransmitted once"
    );
    // The next flight has its own count.
    bench.ack(14_600);
    bench.sent();
    too_big(&mut bench, 14_600, 1000);
    assert_eq!((info(&bench).pmtu, info(&bench).path_mtu_reductions), (1000, reductions + 1));
}

// A segment that fits is not retransmitted: it may have arrived.
#[test]
fn fitting_segments_are_not_retransmitted() {
    let mut bench = Bench::new(state());
    bench.post(500);
    bench.post(1460);
    bench.post(700);
    assert_eq!(bench.sent().len(), 3);
    too_big(&mut bench, 500, 1000);
    let again: Vec<_> = bench.sent().iter().map(|(offset, len, _)| (*offset, *len)).collect();
    assert_eq!(again, [(500, 960), (1460, 500)]);
}

// A GSO packet is resegmented as a whole into segments that fit.
#[test]
fn gso_packets_are_resegmented() {
    let mut bench = Bench::new(state());
    bench.post(10 * 1460);
    assert_eq!(bench.transmit(GSO).len(), 1);
    too_big(&mut bench, 0, 1280);
    let sent = bench.transmit(GSO);
    assert_eq!(sent.iter().map(|t| t.payload_len).sum::<usize>(), 14_600);
    assert!(sent.iter().all(|t| t.mss == 1240 && t.retransmission), "{sent:?}");
    assert!(sent.len() <= 3, "retransmitted as GSO packets: {sent:?}");
}

// RFC 1191 §6.3: the original size is tried again after ten minutes; an update by the host applies immediately.
#[test]
fn original_size_is_tried_again() {
    let mut bench = flight(Config::default());
    too_big(&mut bench, 0, 1280);
    bench.sent();
    bench.ack(14_600);
    bench.sent();
    bench.now += RAISE_AFTER - Duration::from_millis(21);
    bench.ack(20_000);
    bench.sent();
    assert_eq!(info(&bench).pmtu, 1280);
    bench.now += Duration::from_millis(21);
    bench.ack(25_000);
    bench.sent();
    assert_eq!((info(&bench).pmtu, info(&bench).snd_mss), (1500, 1460));
    // CH-UPD-5.
    bench.tcp.update_path_mtu(1000);
    assert_eq!((info(&bench).pmtu, info(&bench).snd_mss), (1040, 1000));
}

// Option `icmp_too_big`.
#[test]
fn disabled_too_big_is_ignored() {
    let path = PathOptions { icmp_too_big: false, ..PathOptions::default() };
    let mut bench = flight(Config { path, ..Config::default() });
    too_big(&mut bench, 0, 1280);
    assert_eq!((info(&bench).pmtu, info(&bench).path_mtu_reductions), (1500, 0));
}

// RFC 9293 §3.9.2.2 MUST-56, SHLD-25; RFC 5461 §4.1: all other errors are soft, also the hard ones. The last one is
// kept as the reason until data is acknowledged.
#[test]
fn other_errors_are_soft() {
    let mut bench = flight(Config { retransmissions_max: 3, ..Config::default() });
    let soft = |bench: &mut Bench, offset, error| {
        let error = PathError { seq: LOCAL + offset, kind: PathErrorKind::Soft(error) };
        bench.tcp.handle_path_error(bench.now, &error)
    };
    assert!(soft(&mut bench, 0, SoftError::PortUnreachable));
    assert_eq!(info(&bench).soft_error, Some(SoftError::PortUnreachable));
    bench.ack(1460);
    assert_eq!(info(&bench).soft_error, None, "cleared by an acknowledgment");
    assert!(soft(&mut bench, 1460, SoftError::HostUnreachable));
    assert!(!soft(&mut bench, 0, SoftError::TimeExceeded));
    assert_eq!((info(&bench).phase, info(&bench).soft_errors), (TcpPhase::Established, 2));
    assert_eq!((info(&bench).pmtu, info(&bench).timeouts), (1500, 0));
    while !matches!(bench.events()[..], [Event::Retrieve(UploadReason::TimeoutExpiration)]) {
        bench.sent();
        bench.wait_for_timer();
    }
    assert_eq!(info(&bench).soft_error, Some(SoftError::HostUnreachable));
}

/// Runs `count` timeouts without a response; returns the size of the first segment after each.
fn sizes_after_timeouts(bench: &mut Bench, count: u64) -> Vec<usize> {
    let mut sizes = vec![];
    let from = info(bench).timeouts;
    while info(bench).timeouts < from + count {
        let before = info(bench).timeouts;
        bench.wait_for_timer();
        let sent = bench.sent();
        if info(bench).timeouts > before {
            assert_eq!(sent.len(), 1, "one segment per timeout");
            sizes.push(sent[0].1);
        }
    }
    sizes
}

// RFC 2923 §2.1, RFC 4821 §7.7: no response to large segments.
#[test]
fn black_hole_reduces_segment_size() {
    let mut bench = flight(Config::default());
    let sizes = sizes_after_timeouts(&mut bench, 9);
    assert_eq!(sizes, [1460, 1460, 1024, 1024, 1024, 536, 536, 536, 536]);
    assert_eq!((info(&bench).black_holes, info(&bench).path_mtu_reductions), (2, 2));
    assert_eq!(info(&bench).pmtu, 576);

    // An acknowledged size is kept: the count restarts, with the higher threshold.
    let mut bench = flight(Config::default());
    sizes_after_timeouts(&mut bench, 3);
    bench.now += Duration::from_millis(10);
    bench.ack(1024);
    assert!(bench.sent().iter().all(|(_, len, _)| *len == 1024));
    assert_eq!(sizes_after_timeouts(&mut bench, 5), [1024, 1024, 1024, 1024, 536]);
}

// Three timeouts on a path that has carried full-sized segments are loss.
#[test]
fn proven_path_needs_more_timeouts() {
    let mut bench = flight(Config::default());
    bench.ack(1460);
    let sizes = sizes_after_timeouts(&mut bench, 8);
    assert_eq!(sizes, [1460, 1460, 1460, 1460, 1024, 1024, 1024, 536]);
    // Smaller segments do not prove the path MTU.
    let mut bench = Bench::new(state());
    (0..3).for_each(|_| bench.post(1000));
    bench.post(5_000);
    bench.sent();
    bench.ack(3_000);
    assert_eq!(sizes_after_timeouts(&mut bench, 3), [1460, 1460, 1024]);
}

// RFC 5682: spurious timeouts do not reduce the path MTU.
#[test]
fn late_acknowledgment_undoes_black_hole_reduction() {
    let mut bench = flight(Config::default());
    sizes_after_timeouts(&mut bench, 3);
    assert_eq!(info(&bench).pmtu, 1064);
    bench.now += Duration::from_millis(1);
    bench.ack(1460);
    assert_eq!((info(&bench).pmtu, info(&bench).snd_mss), (1500, 1460));
    // Two reductions are undone too.
    let mut bench = flight(Config::default());
    sizes_after_timeouts(&mut bench, 6);
    assert_eq!(info(&bench).pmtu, 576);
    bench.ack(1460);
    assert_eq!(info(&bench).pmtu, 1500);
    // An acknowledgment of the small segment only does not undo it.
    let mut bench = flight(Config::default());
    sizes_after_timeouts(&mut bench, 3);
    bench.ack(1024);
    bench.ack(2048 + 10_000);
    assert_eq!(info(&bench).pmtu, 1064);
}

// RFC 8200 §5: IPv6 paths carry at least 1280 bytes.
#[test]
fn ipv6_black_hole_reduces_to_1280() {
    let mut state = state();
    state.path.constant.source_address = core::net::Ipv6Addr::LOCALHOST.into();
    let mut bench = Bench::new(state);
    bench.post(5_000);
    bench.sent();
    assert_eq!(sizes_after_timeouts(&mut bench, 5), [1460, 1460, 1220, 1220, 1220]);
    assert_eq!((info(&bench).pmtu, info(&bench).black_holes), (1280, 1));
}

// Lost small segments do not reduce the path MTU; nor does anything with the option disabled.
#[test]
fn small_segments_are_no_black_hole() {
    let mut small = Bench::new(state());
    small.post(536);
    small.sent();
    assert_eq!(sizes_after_timeouts(&mut small, 4), [536; 4]);
    assert_eq!(info(&small).path_mtu_reductions, 0);
    // A message larger than the fallback size, although not full-sized, does.
    let mut message = Bench::new(state());
    message.post(537);
    message.sent();
    assert_eq!(sizes_after_timeouts(&mut message, 4), [537, 537, 536, 536]);
    assert_eq!((info(&message).pmtu, info(&message).black_holes), (576, 1));

    let path = PathOptions { black_hole_detection: false, ..PathOptions::default() };
    let mut off = flight(Config { path, ..Config::default() });
    assert_eq!(sizes_after_timeouts(&mut off, 4), [1460; 4]);

    // A peer with a small MSS: no smaller size is left to try.
    let mut state = state();
    state.tcp.constant.remote_mss = 536;
    let mut tiny = Bench::new(state);
    tiny.post(5_000);
    tiny.sent();
    assert_eq!(sizes_after_timeouts(&mut tiny, 4), [536; 4]);
    assert_eq!(info(&tiny).path_mtu_reductions, 0);
}

proptest! {
    // For any ICMP messages at any time: nothing panics, the MSS stays between the minimum and the configured value,
    // and all bytes arrive.
    #[test]
    fn any_icmp_message_keeps_stream_intact(
        sack in any::<bool>(),
        steps in prop::collection::vec((0_u32..60_000, 0_u32..2_000, 0_u32..3_000, 0_u32..6), 1..40),
    ) {
        let mut state = state();
        state.tcp.constant.sack_enabled = sack;
        let mut bench = Bench::new(state);
        bench.post(50_000);
        let (mut acked, mut sent_to) = (0, 0);
        for (offset, mtu, packet_len, action) in steps {
            for transmit in bench.transmit(GSO) {
                prop_assert!(transmit.mss <= 1460 && transmit.mss >= 512);
                let end = transmit.seq.distance(LOCAL) as u32 + transmit.payload_len as u32;
                sent_to = sent_to.max(end);
            }
            match action {
                0..=2 => { too_big_of(&mut bench, offset, mtu, packet_len); }
                3 => {
                    acked = (acked + offset).min(sent_to);
                    bench.ack(acked);
                }
                4 if bench.tcp.poll_timeout().is_some() => { bench.wait_for_timer(); }
                _ => bench.ack(acked),
            }
        }
        for _ in 0..200 {
            for transmit in bench.transmit(WIRE) {
                let end = transmit.seq.distance(LOCAL) as u32 + transmit.payload_len as u32;
                prop_assert!(end <= 50_000);
                sent_to = sent_to.max(end);
            }
            bench.now += Duration::from_millis(1);
            bench.ack(sent_to);
        }
        prop_assert_eq!(sent_to, 50_000);
        prop_assert_eq!(bench.tcp.send_outstanding(), 0);
    }
}
