//! Spurious and genuine recovery.

use super::*;

/// Returns a connection with ten segments in flight and the first retransmitted by a timeout.
fn timed_out(with_sack: bool) -> Bench {
    let mut bench = flight(with_sack);
    while bench.tcp.info(bench.now).timeouts == 0 {
        bench.wait_for_timer();
        numbers(&mut bench);
    }
    bench
}

fn undone(bench: &Bench) -> (u64, u64, u64, u64) {
    let info = bench.tcp.info(bench.now);
    (info.undo_by_timestamp, info.undo_by_dsack, info.undo_by_f_rto, info.spurious_timeouts)
}

// RFC 5682 §2.1: two acknowledgments that advance, with new data between them.
#[test]
fn f_rto_undoes_timeout_without_sack() {
    let mut bench = timed_out(false);
    bench.ack(MSS);
    assert_eq!(numbers(&mut bench), [10, 11], "step 2b");
    assert_eq!(undone(&bench), (0, 0, 0, 0));
    bench.ack(2 * MSS);
    assert_eq!(undone(&bench), (0, 0, 1, 1));
    // The window is restored and grows; nothing is retransmitted.
    assert_eq!(bench.tcp.info(bench.now).snd_cwnd, 11 * 1460);
    assert_eq!(numbers(&mut bench), [12], "eleven are in flight");
    bench.ack(3 * MSS);
    assert_eq!(numbers(&mut bench)[0], 13);
    assert_eq!(bench.tcp.info(bench.now).total_retrans, 1);
}

// RFC 5682 §2.1 step 3a: a duplicate ACK after new data shows a real loss: slow start continues.
#[test]
fn f_rto_detects_real_loss() {
    let mut bench = timed_out(false);
    bench.ack(MSS);
    assert_eq!(numbers(&mut bench), [10, 11]);
    bench.ack(MSS);
    assert_eq!(numbers(&mut bench)[0], 1);
    assert_eq!(undone(&bench), (0, 0, 0, 0));
    assert_eq!(bench.tcp.info(bench.now).snd_ssthresh, Some(5 * 1460));
}

// RFC 5682 §2.1 step 2a: everything is acknowledged at once: the retransmission has filled a hole.
#[test]
fn filled_hole_is_no_spurious_timeout() {
    for with_sack in [false, true] {
        let mut bench = timed_out(with_sack);
        if with_sack {
            sack(&mut bench, 0, &[block(1, 9)]);
            // Data never retransmitted has arrived since the timeout: not all was lost.
            assert_eq!(undone(&bench), (0, 0, 1, 1));
            continue;
        }
        bench.ack(10 * MSS);
        assert_eq!(undone(&bench), (0, 0, 0, 0));
    }
    // The same, with SACK blocks received before the timeout.
    let mut bench = flight(true);
    sack(&mut bench, 0, &[block(9, 10)]);
    numbers(&mut bench);
    bench.tcp.recovery.on_timeout(bench.now, None, None);
    assert_eq!(numbers(&mut bench)[0], 0);
    bench.ack(MSS);
    assert_eq!(undone(&bench), (0, 0, 0, 0));
}

// RFC 5682 §2.1: without new data to send F-RTO is not used.
#[test]
fn f_rto_needs_new_data() {
    let mut bench = reno(state(), RecoveryOptions::default());
    bench.post(4 * MSS as usize);
    bench.sent();
    bench.wait_for_timer();
    assert_eq!(numbers(&mut bench), [0]);
    bench.now += RTT;
    bench.ack(MSS);
    assert_eq!(numbers(&mut bench), [1, 2], "slow start");
    bench.ack(2 * MSS);
    assert_eq!(undone(&bench), (0, 0, 0, 0));
}

// RFC 5682 §2.1 step 1: a second timeout restarts F-RTO; undo restores the window before the first.
#[test]
fn second_timeout_restarts_f_rto() {
    let mut bench = timed_out(false);
    bench.wait_for_timer();
    assert_eq!(numbers(&mut bench), [0]);
    bench.ack(MSS);
    assert_eq!(numbers(&mut bench), [10, 11]);
    bench.ack(2 * MSS);
    assert_eq!(undone(&bench), (0, 0, 1, 1));
    assert_eq!(bench.tcp.info(bench.now).snd_ssthresh, None);
    assert_eq!(bench.tcp.info(bench.now).timeouts, 2);
}

/// Returns a flight with SACK and timestamps, and the timestamp of its segments.
fn stamped() -> (Bench, u32) {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    state.tcp.constant.timestamp_enabled = true;
    state.tcp.delegated.ts_time = u32::MAX - 1_002;
    let mut bench = reno(state, RecoveryOptions::default());
    bench.post(40 * 1448);
    let sent = bench.transmit(WIRE);
    (bench, sent[0].timestamps.expect("timestamps are on").value)
}

fn stamped_ack(bench: &mut Bench, segments: u32, echo: u32) {
    let timestamps = Some(Timestamps { value: 1, echo });
    bench.input(Segment { timestamps, ack: LOCAL + segments * 1448, ..ack() });
}

// RFC 3522 §3.2 step 5: the echo identifies the acknowledged transmission, across the wrap of the clock.
#[test]
fn older_echo_undoes_timeout() {
    for spurious in [true, false] {
        let (mut bench, original) = stamped();
        let mut again = None;
        while bench.tcp.info(bench.now).timeouts == 0 {
            bench.wait_for_timer();
            again = bench.transmit(WIRE).first().and_then(|sent| sent.timestamps).or(again);
        }
        let again = again.expect("a retransmission").value;
        assert!(again.wrapping_sub(original) >= 1_000);
        bench.now += RTT;
        stamped_ack(&mut bench, 1, if spurious { original } else { again });
        assert_eq!(undone(&bench), (u64::from(spurious), 0, 0, u64::from(spurious)));
        let restored = bench.tcp.info(bench.now).snd_ssthresh.is_none();
        assert_eq!(restored, spurious);
    }
}

// RFC 3522 §3.2: only the first acknowledgment of a retransmission counts.
#[test]
fn only_first_echo_is_evaluated() {
    let (mut bench, original) = stamped();
    bench.now += RTT;
    let blocks = [SackBlock { start: LOCAL + 1448, end: LOCAL + 5 * 1448 }];
    let timestamps = Some(Timestamps { value: 1, echo: original });
    bench.input(Segment { timestamps, sack: &blocks, ..ack() });
    let again = bench.transmit(WIRE)[0].timestamps.expect("timestamps are on").value;
    bench.now += RTT;
    stamped_ack(&mut bench, 5, again);
    stamped_ack(&mut bench, 10, original);
    assert_eq!(undone(&bench), (0, 0, 0, 0));
}

// RFC 2883, RFC 3708: with one of two retransmissions needed, nothing is undone.
#[test]
fn partial_dsack_does_not_undo() {
    for (reports, undo) in [(1, 0), (2, 1)] {
        let mut bench = flight(true);
        sack(&mut bench, 0, &[block(2, 6)]);
        sack(&mut bench, 0, &[block(2, 7)]);
        let mut resent = numbers(&mut bench);
        for to in 8..=10 {
            sack(&mut bench, 0, &[block(2, to)]);
            resent.extend(numbers(&mut bench));
        }
        resent.retain(|n| *n < 2);
        assert_eq!(resent, [0, 1]);
        bench.ack(10 * MSS);
        for n in 0..reports {
            sack(&mut bench, 10, &[block(n, n + 1)]);
        }
        assert_eq!(undone(&bench), (0, undo, 0, 0));
        assert_eq!(bench.tcp.info(bench.now).dsack_dups, u64::from(reports));
    }
}

// RFC 2883 §4: duplicates created by the network are ignored.
#[test]
fn network_duplicates_are_ignored() {
    let mut bench = flight(true);
    for n in 1..=5 {
        sack(&mut bench, 5, &[block(n - 1, n)]);
    }
    sack(&mut bench, 5, &[block(6, 10)]);
    assert_eq!(numbers(&mut bench)[0], 5, "the reordering window is unchanged");
    assert_eq!(undone(&bench), (0, 0, 0, 0));
    assert_eq!(bench.tcp.info(bench.now).dsack_dups, 5);
}

// RFC 4015 §3: an undone episode leaves nothing marked lost, and a real loss after it is repaired.
#[test]
fn real_loss_after_undo_is_repaired() {
    let (mut bench, original) = stamped();
    bench.now += RTT;
    let timestamps = Some(Timestamps { value: 1, echo: original });
    // Segments 0, 2 and 3 are presumed lost; 0 was late.
    let blocks = [
        SackBlock { start: LOCAL + 4 * 1448, end: LOCAL + 6 * 1448 },
        SackBlock { start: LOCAL + 1448, end: LOCAL + 2 * 1448 },
    ];
    bench.input(Segment { timestamps, sack: &blocks, ..ack() });
    let resent: Vec<_> = bench.transmit(WIRE).iter().map(|sent| sent.seq).collect();
    assert_eq!(resent, [LOCAL]);
    bench.now += RTT / 10;
    bench.input(Segment { timestamps, ack: LOCAL + 2 * 1448, sack: &blocks[..1], ..ack() });
    assert_eq!(undone(&bench), (1, 0, 0, 0));
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.fast_retransmits, info.snd_ssthresh), (1, None));
    // Segments 2 and 3 get a reordering window, then a separate recovery.
    while bench.tcp.info(bench.now).fast_retransmits < 2 {
        assert!(bench.wait_for_timer() < RTT);
    }
    let resent: Vec<_> = bench.transmit(WIRE).iter().map(|sent| sent.seq).collect();
    assert_eq!(resent[0], LOCAL + 2 * 1448);
    assert_eq!(bench.tcp.info(bench.now).timeouts, 0);
}

// RFC 6582 §3.2 step 2: duplicate ACKs caused by retransmissions of a timeout start no recovery.
#[test]
fn duplicate_acks_after_timeout_start_no_recovery() {
    let options = RecoveryOptions { f_rto: false, ..RecoveryOptions::default() };
    let mut bench = flight_with(false, options);
    while bench.tcp.info(bench.now).timeouts == 0 {
        bench.wait_for_timer();
    }
    assert_eq!(numbers(&mut bench), [0]);
    bench.now += RTT;
    for to in [1, 3, 6] {
        bench.ack(to * MSS);
        numbers(&mut bench);
    }
    bench.ack(10 * MSS);
    assert!(numbers(&mut bench).iter().all(|n| *n >= 10));
    for _ in 0..3 {
        bench.ack(10 * MSS);
    }
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 0);
    bench.ack(11 * MSS);
    for _ in 0..3 {
        bench.ack(11 * MSS);
    }
    assert_eq!(
        bench.tcp.info(bench.now).fast_retransmits,
        1,
        "duplicate ACKs of new data start recovery"
    );
}
