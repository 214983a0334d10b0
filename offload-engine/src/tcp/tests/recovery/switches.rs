//! Effect of each recovery option: one script with the option enabled and disabled.

use super::*;

const ALL: RecoveryOptions = RecoveryOptions {
    rack: true,
    tail_loss_probe: true,
    prr: true,
    limited_transmit: true,
    early_retransmit: true,
    f_rto: true,
    undo: true,
    dsack: true,
};

/// Runs `script` with all options, and without those that `off` disables.
fn compare<T>(
    off: impl FnOnce(&mut RecoveryOptions),
    script: impl Fn(RecoveryOptions) -> T,
) -> [T; 2] {
    let mut without = ALL;
    off(&mut without);
    [script(ALL), script(without)]
}

#[test]
fn all_options_are_enabled_by_default() {
    assert_eq!(Config::default().recovery, ALL);
}

// RFC 8985 §1: a lost retransmission is detected by data sent after it; with RFC 6675 only by a timeout.
#[test]
fn rack_detects_lost_retransmission() {
    let [on, off] = compare(
        |options| options.rack = false,
        |options| {
            let mut bench = flight_with(true, options);
            sack(&mut bench, 0, &[block(1, 6)]);
            assert_eq!(numbers(&mut bench)[0], 0);
            for to in 7..=10 {
                bench.now += RTT / 5;
                sack(&mut bench, 0, &[block(1, to)]);
                numbers(&mut bench);
            }
            bench.now += RTT;
            sack(&mut bench, 0, &[block(1, 12)]);
            (numbers(&mut bench).contains(&0), bench.tcp.info(bench.now).timeouts)
        },
    );
    assert_eq!((on, off), ((true, 0), (false, 0)));
}

// RFC 8985 §7: the tail is probed after two RTTs, otherwise retransmitted after the RTO.
#[test]
fn tail_loss_probe_avoids_timeout() {
    let [on, off] = compare(
        |options| options.tail_loss_probe = false,
        |options| {
            let mut state = state();
            state.tcp.constant.sack_enabled = true;
            let mut bench = reno(state, options);
            bench.post(4 * MSS as usize);
            bench.sent();
            bench.now += RTT;
            bench.ack(MSS);
            (bench.wait_for_timer(), numbers(&mut bench), bench.tcp.info(bench.now).timeouts)
        },
    );
    assert_eq!(on, (2 * RTT, vec![3], 0));
    assert_eq!(off, (Duration::from_millis(200) + RTT, vec![1], 1));
}

// RFC 9937 §3: the flight shrinks evenly, one segment sent per two delivered; RFC 6675 pauses for half of the flight.
// Both end at the slow start threshold.
#[test]
fn prr_reduces_flight_evenly() {
    let [on, off] = compare(
        |options| options.prr = false,
        |options| {
            let mut bench = flight_with(true, options);
            for to in 2..=3 {
                sack(&mut bench, 0, &[block(1, to)]);
                assert_eq!(numbers(&mut bench).len(), 1, "limited transmit");
            }
            let script = (4..=12).map(|to| {
                sack(&mut bench, 0, &[block(1, to)]);
                numbers(&mut bench).len()
            });
            let counts: Vec<_> = script.collect();
            assert_eq!(bench.tcp.recovery.in_flight(), 5 * u64::from(MSS));
            assert_eq!(bench.tcp.info(bench.now).snd_ssthresh, Some(5 * 1460));
            counts
        },
    );
    assert_eq!(on, [1, 0, 0, 1, 0, 0, 1, 1, 1]);
    assert_eq!(off, [1, 0, 0, 0, 0, 1, 1, 1, 1]);
}

// RFC 3042: new data on the first two duplicate ACKs, with SACK and without.
#[test]
fn limited_transmit_sends_new_data() {
    for with_sack in [false, true] {
        let [on, off] = compare(
            |options| options.limited_transmit = false,
            |options| {
                let mut bench = flight_with(with_sack, options);
                let mut script = |to| {
                    let blocks = [block(1, to)];
                    sack(&mut bench, 0, if with_sack { &blocks } else { &[] });
                    numbers(&mut bench)
                };
                [script(2), script(3), script(4)[..1].to_vec()]
            },
        );
        assert_eq!(on, [vec![10], vec![11], vec![0]]);
        assert_eq!(off, [vec![], vec![], vec![0]]);
    }
}

// RFC 5827 §3.1: with three segments and nothing more to send, at most two duplicate ACKs can arrive.
#[test]
fn early_retransmit_needs_fewer_duplicates() {
    let [on, off] = compare(
        |options| options.early_retransmit = false,
        |options| {
            let mut bench = reno(state(), options);
            bench.post(4 * MSS as usize);
            bench.sent();
            bench.now += RTT;
            bench.ack(MSS);
            bench.ack(MSS);
            assert!(numbers(&mut bench).is_empty());
            bench.ack(MSS);
            numbers(&mut bench)
        },
    );
    assert_eq!((on, off), (vec![1], vec![]));
}

// RFC 5682 §1: after a spurious timeout the flight is not retransmitted.
#[test]
fn f_rto_avoids_unnecessary_retransmissions() {
    let [on, off] = compare(
        |options| options.f_rto = false,
        |options| {
            let mut bench = flight_with(false, options);
            while bench.tcp.info(bench.now).timeouts == 0 {
                bench.wait_for_timer();
            }
            assert_eq!(numbers(&mut bench), [0]);
            // The originals were delayed by more than the timeout.
            for to in 1..=10 {
                bench.ack(to * MSS);
                numbers(&mut bench);
            }
            let info = bench.tcp.info(bench.now);
            assert_eq!(info.timeouts, 1);
            (info.total_retrans, info.spurious_timeouts, info.snd_ssthresh)
        },
    );
    assert_eq!(on, (1, 1, None));
    assert_eq!((off.1, off.2), (0, Some(5 * 1460)));
    assert!(off.0 > 3, "{off:?}");
}

/// Returns a connection with a segment delayed by reordering: it was retransmitted, then the original acknowledged.
fn reordered(options: RecoveryOptions, timestamps: bool) -> Bench {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    state.tcp.constant.timestamp_enabled = timestamps;
    state.tcp.delegated.ts_time = 77_000;
    let mut bench = reno(state, options);
    bench.post(40 * bench.tcp.effective_mss());
    let sent = bench.transmit(WIRE);
    let echo = sent[0].timestamps.map(|stamp| Timestamps { value: 1, echo: stamp.value });
    let mss = sent[0].payload_len as u32;
    bench.now += RTT;
    let blocks = [SackBlock { start: LOCAL + mss, end: LOCAL + 5 * mss }];
    bench.input(Segment { timestamps: echo, sack: &blocks, ..ack() });
    let again = bench.transmit(WIRE);
    assert_eq!((again[0].seq, again[0].retransmission), (LOCAL, true));
    bench.now += RTT / 5;
    bench.input(Segment { timestamps: echo, ack: LOCAL + 5 * mss, ..ack() });
    bench
}

// RFC 4015 §3.2: an unnecessary fast retransmit does not reduce the window.
#[test]
fn undo_restores_window_by_timestamp() {
    let [on, off] = compare(
        |options| options.undo = false,
        |options| {
            let bench = reordered(options, true);
            let info = bench.tcp.info(bench.now);
            assert_eq!((info.fast_retransmits, info.total_retrans), (1, 1));
            (info.undo_by_timestamp, info.snd_ssthresh, info.snd_cwnd >= 10 * 1448)
        },
    );
    assert_eq!(on, (1, None, true));
    assert_eq!(off, (0, Some(5 * 1448), false));
}

// RFC 2883 §4, RFC 3708: a DSACK has the same effect, an RTT later.
#[test]
fn dsack_restores_window() {
    let [on, off] = compare(
        |options| options.dsack = false,
        |options| {
            let mut bench = reordered(options, false);
            bench.transmit(WIRE);
            bench.ack(10 * MSS);
            assert_eq!(bench.tcp.info(bench.now).snd_ssthresh, Some(5 * 1460));
            sack(&mut bench, 10, &[block(0, 1)]);
            let info = bench.tcp.info(bench.now);
            (info.dsack_dups, info.undo_by_dsack, info.snd_ssthresh)
        },
    );
    assert_eq!(on, (1, 1, None));
    assert_eq!(off, (0, 0, Some(5 * 1460)));
}
