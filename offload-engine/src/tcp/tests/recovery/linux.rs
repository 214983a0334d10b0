//! Expectations of Linux' own test scripts, if independent of CUBIC and of the size of Linux' buffers (packetdrill,
//! gtests/net/tcp).

use super::*;

// fast_recovery/prr-ss-ack-below-snd_una: the SACK blocks of a reordered ACK are still processed.
#[test]
fn reordered_ack_blocks_are_processed() {
    let mut bench = flight(true);
    sack(&mut bench, 0, &[block(1, 2)]);
    sack(&mut bench, 0, &[block(1, 3)]);
    assert_eq!(numbers(&mut bench), [10, 11]);
    sack(&mut bench, 0, &[block(8, 9), block(1, 3)]);
    assert_eq!(numbers(&mut bench)[0], 0);
    bench.now += RTT + RTT / 5;
    sack(&mut bench, 4, &[block(8, 9)]);
    numbers(&mut bench);
    let una = bench.tcp.snd.una;
    sack(&mut bench, 3, &[block(9, 12)]);
    let sent = numbers(&mut bench);
    assert!(!sent.is_empty(), "delivered segments are replaced");
    assert!(sent.iter().all(|n| !(8..12).contains(n)), "{sent:?}");
    assert_eq!(bench.tcp.snd.una, una);
    // Below SND.UNA now, but no DSACK at the time of its transmission.
    sack(&mut bench, 2, &[block(3, 4)]);
    assert_eq!(bench.tcp.info(bench.now).dsack_dups, 0);
    // A valid DSACK.
    sack(&mut bench, 2, &[block(0, 1)]);
    assert_eq!(bench.tcp.info(bench.now).dsack_dups, 1);
}

// sack/sack-shift-sacked-2-6-8-3-9-nofack: three sacked segments mark everything below the highest lost immediately. A
// fourth one in between is reordering.
#[test]
fn three_scattered_sacks_mark_lower_data_lost() {
    let mut bench = flight(true);
    for blocks in [&[block(2, 3)][..], &[block(6, 7), block(2, 3)]] {
        sack(&mut bench, 0, blocks);
        assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 0);
    }
    numbers(&mut bench);
    let lost_of = |bench: &mut Bench| {
        let tcp = &bench.tcp;
        let outstanding = tcp.snd.nxt.since(tcp.snd.una);
        outstanding - tcp.recovery.in_flight()
    };
    sack(&mut bench, 0, &[block(8, 9), block(6, 7), block(2, 3)]);
    // Three sacked and six lost.
    assert_eq!(lost_of(&mut bench), 9 * u64::from(MSS));
    assert_eq!(bench.tcp.info(bench.now).reord_seen, 0);
    sack(&mut bench, 0, &[block(2, 4), block(8, 9), block(6, 7)]);
    assert_eq!(lost_of(&mut bench), 9 * u64::from(MSS));
    assert_eq!(bench.tcp.info(bench.now).reord_seen, 1);
}

// fast_retransmit/fr-4pkt, fr-4pkt-sack: four segments are enough for three duplicate ACKs.
#[test]
fn four_segments_are_enough_for_fast_retransmit() {
    for with_sack in [false, true] {
        let mut state = state();
        state.tcp.constant.sack_enabled = with_sack;
        let mut bench = reno(state, RecoveryOptions::default());
        bench.post(4 * MSS as usize);
        bench.sent();
        bench.now += RTT;
        for to in 2..=4 {
            assert!(numbers(&mut bench).is_empty());
            let blocks = [block(1, to)];
            sack(&mut bench, 0, if with_sack { &blocks } else { &[] });
        }
        assert_eq!(numbers(&mut bench), [0]);
        bench.now += RTT;
        bench.ack(4 * MSS);
        let info = bench.tcp.info(bench.now);
        assert_eq!((info.fast_retransmits, info.total_retrans, info.timeouts), (1, 1, 0));
    }
}

// fast_recovery/prr-ss-30pkt-lost1_4: after recovery a flight of the slow start threshold may be sent at once.
#[test]
fn window_after_recovery_is_threshold() {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    let mut bench = reno(state, RecoveryOptions::default());
    bench.post(10 * MSS as usize);
    bench.sent();
    bench.now += RTT;
    let mut sent = vec![];
    for to in 5..=10 {
        sack(&mut bench, 0, &[block(4, to)]);
        sent.extend(numbers(&mut bench));
    }
    assert_eq!(sent, [0, 1, 2, 3]);
    bench.now += RTT;
    for to in 1..=3 {
        sack(&mut bench, to, &[block(4, 10)]);
        assert!(numbers(&mut bench).is_empty());
    }
    bench.ack(10 * MSS);
    bench.post(10 * MSS as usize);
    assert_eq!(numbers(&mut bench), [10, 11, 12, 13, 14]);
    assert_eq!(bench.tcp.info(bench.now).snd_cwnd, 5 * 1460);
}

// user_timeout/user_timeout: an unacknowledged FIN times out by MaxRT too.
#[test]
fn unacknowledged_fin_times_out() {
    let mut state = state();
    state.tcp.cached.max_rt = Some(3_000);
    (state.tcp.delegated.srtt, state.tcp.delegated.rtt_var) = (100 * 8, 4);
    let mut bench = reno(state, RecoveryOptions::default());
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    let since = bench.now;
    let mut sent = 0;
    while bench.events().is_empty() {
        sent += bench.sent().len();
        bench.wait_for_timer();
    }
    assert_eq!(bench.now - since, Duration::from_millis(300 + 3_000));
    assert_eq!(sent, 1 + 3);
}
