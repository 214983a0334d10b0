//! Reordered segments (RFC 8985 §6.2 steps 2 to 4).

use super::*;

/// Returns a flight whose segment 5 arrived after 6: reordering is known, and everything before segment 10 has arrived.
fn reordered() -> Bench {
    let mut bench = flight(true);
    bench.ack(5 * MSS);
    numbers(&mut bench);
    sack(&mut bench, 5, &[block(6, 7)]);
    bench.ack(10 * MSS);
    assert_eq!(bench.tcp.info(bench.now).reord_seen, 1);
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 0);
    numbers(&mut bench);
    bench
}

// Step 4: without reordering three sacked segments are enough; with it a quarter of an RTT has to pass.
#[test]
fn reordering_opens_reordering_window() {
    for seen in [false, true] {
        let mut bench = if seen { reordered() } else { flight(true) };
        bench.now += RTT;
        let first = if seen { 10 } else { 0 };
        sack(&mut bench, first, &[block(first + 1, first + 7)]);
        let started = bench.tcp.info(bench.now).fast_retransmits;
        assert_eq!(started, u64::from(!seen));
        if seen {
            assert_eq!(bench.wait_for_timer(), RTT / 4);
            assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 1);
        }
        assert_eq!(numbers(&mut bench)[0], first);
    }
}

// Step 3: blocks are sent newest first: blocks missed by a lost acknowledgment are not reordering.
#[test]
fn lost_acknowledgment_is_no_reordering() {
    let mut bench = flight(true);
    sack(&mut bench, 0, &[block(1, 2)]);
    sack(&mut bench, 0, &[block(7, 9), block(4, 6), block(1, 2)]);
    assert_eq!(bench.tcp.info(bench.now).reord_seen, 0);
    sack(&mut bench, 0, &[block(4, 9), block(1, 2)]);
    assert_eq!(bench.tcp.info(bench.now).reord_seen, 1);
}

// Step 2: an acknowledgment faster than any RTT is for the original, so it does not mark data sent with the
// retransmission lost.
#[test]
fn fast_acknowledgment_is_for_original() {
    for (after, marks_lost) in [(RTT / 2, false), (RTT, true)] {
        let mut bench = flight(true);
        bench.ack(MSS);
        let new = numbers(&mut bench);
        bench.now += RTT;
        sack(&mut bench, 1, &[block(2, 3), block(4, 8)]);
        assert_eq!(numbers(&mut bench)[0], 1);
        bench.now += after;
        // Segment 1 is acknowledged, by its original or by its retransmission.
        sack(&mut bench, 2, &[block(2, 3), block(4, 8)]);
        let sent = numbers(&mut bench);
        let lost = sent.iter().filter(|n| new.contains(n)).count();
        assert_eq!(lost > 0, marks_lost, "{sent:?}");
    }
}

// Step 4: each RTT with a DSACK widens the window by a quarter RTT, up to SRTT. 16 recoveries without one reset it.
#[test]
fn dsacks_widen_reordering_window() {
    let mut bench = reordered();
    let mut una = 10;
    let mut windows = vec![];
    for round in 0..30 {
        // A hole taken for a loss, but reordered: reported as duplicate in the first rounds.
        bench.post(8 * MSS as usize);
        bench.sent();
        let end = bench.tcp.snd.nxt.seq().distance(LOCAL).cast_unsigned() / MSS;
        bench.now += RTT;
        sack(&mut bench, una, &[block(una + 1, end)]);
        let started = bench.now;
        let before = bench.tcp.info(bench.now).fast_retransmits;
        while bench.tcp.info(bench.now).fast_retransmits == before {
            bench.wait_for_timer();
        }
        windows.push(bench.now - started);
        bench.sent();
        bench.now = started + RTT;
        let top = bench.tcp.snd.nxt.seq().distance(LOCAL).cast_unsigned() / MSS;
        bench.ack(top * MSS);
        if round < 6 {
            sack(&mut bench, top, &[block(una, una + 1)]);
        }
        una = top;
        bench.sent();
    }
    let quarters: Vec<_> = windows.iter().map(|w| w.as_micros() / (RTT / 4).as_micros()).collect();
    assert_eq!(quarters[..4], [1, 2, 3, 4], "{windows:?}");
    assert!(quarters[4..8].iter().all(|q| *q == 4), "SRTT: {windows:?}");
    assert_eq!(*quarters.last().expect("30"), 1, "{windows:?}");
    assert_eq!(quarters.iter().filter(|q| **q > 1).count(), 5 + 16, "{windows:?}");
}
