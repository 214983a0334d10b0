//! Loss detection by counting sacked data: RFC 6675, with RACK disabled.

use super::*;

const COUNT: RecoveryOptions = RecoveryOptions {
    rack: false,
    tail_loss_probe: false,
    prr: false,
    limited_transmit: true,
    early_retransmit: true,
    f_rto: true,
    undo: true,
    dsack: true,
};

/// Returns a connection with ten segments in flight and nothing unsent.
fn all_sent() -> Bench {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    let mut bench = reno(state, COUNT);
    bench.post(10 * MSS as usize);
    assert_eq!(bench.sent().len(), 10);
    bench.now += RTT;
    bench
}

// §4, IsLost: more than two segments sacked above, or three separate ranges, however small.
#[test]
fn three_sacked_segments_or_ranges_indicate_loss() {
    let mut bench = flight_with(true, COUNT);
    sack(&mut bench, 0, &[block(1, 3)]);
    assert_eq!(numbers(&mut bench), [10, 11], "two segments are not more than two");
    let start = LOCAL + 3 * MSS;
    sack(&mut bench, 0, &[SackBlock { start, end: start + 1 }]);
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 1);
    assert_eq!(numbers(&mut bench), [0]);

    let mut bench = flight_with(true, COUNT);
    let blocks = [2, 4, 6].map(|n| SackBlock { start: LOCAL + n * MSS, end: LOCAL + n * MSS + 9 });
    sack(&mut bench, 0, &blocks[..2]);
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 0);
    sack(&mut bench, 0, &blocks);
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 1);
    assert!(numbers(&mut bench).contains(&0));
}

// §5 step 4: the third duplicate ACK starts recovery even if too few bytes are sacked.
#[test]
fn third_duplicate_ack_starts_recovery() {
    let mut bench = flight_with(true, COUNT);
    for n in 1..=3 {
        let start = LOCAL + 2 * MSS;
        sack(&mut bench, 0, &[SackBlock { start, end: start + 9 * n }]);
    }
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 1);
    let (offset, len, _) = bench.sent()[0];
    assert_eq!((offset, len), (0, MSS as usize));
}

// §4, NextSeg: rule 1 lost data, rule 3 unsacked data, rule 4 the last segment, once; rule 2 has nothing to send.
#[test]
fn next_segment_follows_rfc_6675() {
    let mut bench = all_sent();
    // 0 and 2 are below three sacked segments, 4 and 6 are not.
    sack(&mut bench, 0, &[block(5, 6), block(3, 4), block(1, 2)]);
    let mut sent = numbers(&mut bench);
    sack(&mut bench, 0, &[block(7, 8), block(5, 6), block(3, 4)]);
    sent.extend(numbers(&mut bench));
    // Their acknowledgments open the window for the rest.
    for to in [1, 2] {
        bench.now += RTT;
        sack(&mut bench, 2 * to, &[block(7, 8), block(5, 6)]);
        sent.extend(numbers(&mut bench));
    }
    bench.now += RTT;
    sack(&mut bench, 6, &[block(7, 8)]);
    sent.extend(numbers(&mut bench));
    assert_eq!(sent, [0, 2, 4, 6, 9]);
    // Rule 4 applies once.
    sack(&mut bench, 8, &[]);
    assert!(numbers(&mut bench).is_empty());
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 1);
}

// §5.1: after a timeout SACK only excludes data from retransmission, and no retransmitted data is marked lost again.
#[test]
fn timeout_retransmits_unsacked_data_once() {
    let mut bench = all_sent();
    sack(&mut bench, 0, &[block(8, 9)]);
    while bench.tcp.info(bench.now).timeouts == 0 {
        bench.wait_for_timer();
    }
    let mut sent = numbers(&mut bench);
    let mut to = 0;
    while to < 8 {
        bench.now += RTT;
        to += 1;
        sack(&mut bench, to, &[block(8, 9)]);
        sent.extend(numbers(&mut bench));
    }
    bench.ack(10 * MSS);
    assert_eq!(sent, [0, 1, 2, 3, 4, 5, 6, 7, 9]);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.timeouts, info.fast_retransmits, info.total_retrans), (1, 0, 9));
}

// RFC 5827 §3.2: three segments outstanding, all but one sacked.
#[test]
fn small_flight_needs_fewer_duplicates() {
    let mut bench = all_sent();
    bench.ack(7 * MSS);
    sack(&mut bench, 7, &[block(8, 9)]);
    assert!(numbers(&mut bench).is_empty());
    sack(&mut bench, 7, &[block(8, 10)]);
    assert_eq!(numbers(&mut bench), [7]);
}
