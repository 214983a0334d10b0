//! ECN: marks, their echo, and the window reduction.

use super::*;

fn ecn_state() -> Box<ConnectionState> {
    let mut state = state();
    state.tcp.constant.ecn_enabled = true;
    state
}

/// Returns a connection with ten full segments in flight and thirty unsent.
fn flight() -> Bench {
    let mut state = ecn_state();
    state.tcp.constant.sack_enabled = true;
    let mut bench = Bench::new(state);
    bench.post(40 * 1460);
    let sent = bench.transmit(WIRE);
    assert_eq!(sent.len(), 10);
    assert!(sent.iter().all(|t| t.ecn == Ecn::Capable0 && !t.flags.contains(Flags::CWR)));
    bench.now += Duration::from_millis(10);
    bench
}

fn echo(bench: &mut Bench, count: u32) {
    bench.input(Segment { ack: LOCAL + count, flags: Flags::ACK | Flags::ECE, ..ack() });
}

fn marked(offset: u32, payload: &[u8]) -> Segment<'_> {
    Segment { ecn: Ecn::Congestion, ..data(offset, payload) }
}

/// Returns for each segment sent now if it carries CWR.
fn cwr(bench: &mut Bench) -> Vec<bool> {
    bench.transmit(WIRE).iter().map(|t| t.flags.contains(Flags::CWR)).collect()
}

// RFC 3168 §6.1.3: every acknowledgment from a mark until CWR carries ECE.
#[test]
fn marks_are_echoed_until_cwr() {
    let mut bench = Bench::new(ecn_state());
    bench.input(marked(0, b"a"));
    let echoed = Flags::ACK | Flags::ECE;
    assert_eq!(bench.sent(), [(0, 0, echoed)], "at once, not delayed");
    for offset in [1, 3] {
        bench.input(data(offset, b"bb"));
        bench.input(data(offset, b"bb"));
        assert_eq!(bench.sent(), [(0, 0, echoed)]);
    }
    // Data segments carry it too.
    bench.post(10);
    assert_eq!(bench.sent(), [(0, 10, echoed | Flags::PSH)]);
    bench.input(Segment { flags: Flags::ACK | Flags::CWR, ..data(5, b"c") });
    bench.input(data(6, b"d"));
    assert_eq!(bench.sent(), [(10, 0, Flags::ACK)]);
    // A mark on the segment with CWR is a new one.
    bench.input(Segment { flags: Flags::ACK | Flags::CWR, ..marked(7, b"e") });
    assert_eq!(bench.sent(), [(10, 0, echoed)]);
    assert_eq!(bench.tcp.info(bench.now).ce_received, 2);
}

// RFC 3168 §6.1.4, §6.1.5: marks on pure ACKs and on data outside the window are ignored.
#[test]
fn marks_without_new_data_are_ignored() {
    let mut bench = Bench::new(ecn_state());
    bench.input(Segment { ecn: Ecn::Congestion, ..ack() });
    bench.input(marked(70_000, b"far"));
    bench.input(data(0, b"ab"));
    bench.sent();
    bench.input(marked(0, b"a"));
    assert_eq!(bench.sent(), [(0, 0, Flags::ACK)], "a duplicate");
    assert_eq!(bench.tcp.info(bench.now).ce_received, 0);

    let mut without = Bench::new(state());
    without.input(marked(0, b"a"));
    without.input(data(1, b"a"));
    assert_eq!(without.sent(), [(0, 0, Flags::ACK)], "ECN not negotiated");
    without.post(2 * 1460);
    assert!(without.transmit(WIRE).iter().all(|t| t.ecn == Ecn::NotCapable));
}

// Each segment of a coalesced frame counts.
#[test]
fn coalesced_marks_are_counted_per_segment() {
    let mut bench = Bench::new(ecn_state());
    bench.input(Segment { gso_size: 10, ..marked(0, &[0; 35]) });
    assert_eq!(bench.tcp.info(bench.now).ce_received, 4);
}

// RFC 3168 §6.1.2: ECE reduces the window as a loss, once per flight; the first new data carries CWR.
#[test]
fn ece_reduces_window_once_per_flight() {
    let mut bench = flight();
    let before = bench.tcp.info(bench.now).snd_cwnd;
    echo(&mut bench, 1460);
    let reduced = bench.tcp.info(bench.now);
    assert!(reduced.snd_cwnd < before);
    assert_eq!(reduced.snd_ssthresh, Some(reduced.snd_cwnd));
    assert_eq!((reduced.ecn_reductions, reduced.delivered_ce), (1, 1));
    assert!(cwr(&mut bench).is_empty(), "the flight exceeds the reduced window");
    for acked in 2..=6 {
        echo(&mut bench, acked * 1460);
    }
    let sent = cwr(&mut bench);
    assert!(sent[0] && sent[1..].iter().all(|cwr| !cwr), "{sent:?}");
    for acked in 7..=10 {
        // The last of them was sent before the peer received CWR.
        echo(&mut bench, acked * 1460);
    }
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.ecn_reductions, info.fast_retransmits, info.total_retrans), (1, 0, 0));
    assert_eq!(info.delivered_ce, 10);
    cwr(&mut bench);
    // ECE beyond that flight is a new mark.
    echo(&mut bench, 11 * 1460);
    assert_eq!(bench.tcp.info(bench.now).ecn_reductions, 2);
}

// ECE is ignored if ECN was not negotiated, or nothing is in flight.
#[test]
fn ece_without_negotiation_or_flight_is_ignored() {
    let mut without = Bench::new(state());
    without.post(20 * 1460);
    without.sent();
    echo(&mut without, 1460);
    assert_eq!(without.tcp.info(without.now).ecn_reductions, 0);
    let mut idle = Bench::new(ecn_state());
    echo(&mut idle, 0);
    assert_eq!(idle.tcp.info(idle.now).ecn_reductions, 0);
}

// RFC 3168 §6.1.5: retransmissions are not ECT. §6.1.2: after a loss new data also carries CWR, once.
#[test]
fn retransmissions_are_not_ect() {
    let mut bench = flight();
    for hole in [2, 3, 4] {
        let sack = [SackBlock { start: LOCAL + 1460, end: LOCAL + hole * 1460 }];
        bench.input(Segment { sack: &sack, ..ack() });
    }
    let sent = bench.transmit(WIRE);
    let again = sent.iter().find(|t| t.retransmission).expect("the hole is retransmitted");
    assert_eq!((again.ecn, again.flags.contains(Flags::CWR)), (Ecn::NotCapable, false));
    // ECE in the same episode causes no further reduction.
    let sack = [SackBlock { start: LOCAL + 1460, end: LOCAL + 10 * 1460 }];
    bench.input(Segment { sack: &sack, flags: Flags::ACK | Flags::ECE, ..ack() });
    let mut new_data: Vec<_> = sent.into_iter().chain(bench.transmit(WIRE)).collect();
    assert_eq!(bench.tcp.info(bench.now).ecn_reductions, 0);
    bench.ack(10 * 1460);
    new_data.extend(bench.transmit(WIRE));
    new_data.retain(|t| !t.retransmission);
    assert_eq!(new_data.iter().filter(|t| t.flags.contains(Flags::CWR)).count(), 1);
    assert!(new_data.iter().all(|t| t.ecn == Ecn::Capable0));
}

// RFC 3168 §6.1.4, §6.1.6: window probes, keep-alive probes and a FIN without data are not ECT.
#[test]
fn control_segments_are_not_ect() {
    let mut bench = Bench::new(ecn_state());
    bench.input(Segment { window: 0, ..ack() });
    bench.post(10);
    assert!(bench.transmit(WIRE).is_empty());
    bench.wait_for_timer();
    let probe = bench.transmit(WIRE);
    assert_eq!((probe.len(), probe[0].payload_len, probe[0].ecn), (1, 1, Ecn::NotCapable));

    let mut state = ecn_state();
    state.tcp.cached.keep_alive_enabled = true;
    let mut bench = Bench::new(state);
    bench.wait_for_timer();
    assert_eq!(bench.transmit(WIRE)[0].ecn, Ecn::NotCapable);
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, NetBufferList::new(1));
    let fin = bench.transmit(WIRE);
    assert!(fin[0].flags.contains(Flags::FIN));
    assert_eq!((fin[0].payload_len, fin[0].ecn), (0, Ecn::NotCapable));
}

// A pending echo is part of the exported state.
#[test]
fn pending_echo_is_exported() {
    let mut bench = Bench::new(ecn_state());
    bench.input(marked(0, b"a"));
    bench.sent();
    assert!(bench.tcp.tcp_state(bench.now).delegated.ecn_echo);
    let (state, _) = bench.tcp.into_state(bench.now);
    let mut again = Bench::new(state);
    again.post(1);
    assert!(again.sent()[0].2.contains(Flags::ECE));
}
