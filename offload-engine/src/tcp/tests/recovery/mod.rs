//! Fast retransmit, SACK recovery, probes and timeouts, by the segments sent.

mod count;
mod hostile;
mod limits;
mod linux;
mod probe;
mod properties;
mod reordering;
mod spurious;
mod switches;

use super::*;

const MSS: u32 = 1460;
const RTT: Duration = Duration::from_millis(10);

/// Returns a connection whose window halves and whose segments keep their size, for simple numbers.
fn reno(state: Box<ConnectionState>, recovery: RecoveryOptions) -> Bench {
    let congestion = CongestionAlgorithm::NewReno;
    let path = PathOptions { black_hole_detection: false, ..PathOptions::default() };
    Bench::with(state, Config { congestion, recovery, path, ..Config::default() })
}

/// Returns a connection with ten segments of one list in flight.
fn flight(sack: bool) -> Bench {
    flight_with(sack, RecoveryOptions::default())
}

/// Returns the same with `recovery`.
fn flight_with(sack: bool, recovery: RecoveryOptions) -> Bench {
    let mut state = state();
    state.tcp.constant.sack_enabled = sack;
    let mut bench = reno(state, recovery);
    bench.post(40 * MSS as usize);
    assert_eq!(bench.sent().len(), 10);
    bench.now += Duration::from_millis(10);
    bench
}

/// Numbers of the segments sent now.
fn numbers(bench: &mut Bench) -> Vec<u32> {
    bench
        .sent()
        .iter()
        .map(|(offset, len, _)| {
            assert_eq!(*len, MSS as usize);
            offset / MSS
        })
        .collect()
}

fn block(from: u32, to: u32) -> SackBlock {
    SackBlock { start: LOCAL + from * MSS, end: LOCAL + to * MSS }
}

fn sack(bench: &mut Bench, to: u32, blocks: &[SackBlock]) {
    bench.input(Segment { ack: LOCAL + to * MSS, sack: blocks, ..ack() });
}

// RFC 3042: the first two duplicate ACKs send new data; RFC 5681 §3.2: the third retransmits the hole.
#[test]
fn third_duplicate_ack_retransmits_hole() {
    let options = RecoveryOptions { prr: false, ..RecoveryOptions::default() };
    let mut bench = flight_with(false, options);
    bench.ack(0);
    assert_eq!(numbers(&mut bench), [10]);
    bench.ack(0);
    assert_eq!(numbers(&mut bench), [11]);
    bench.ack(0);
    assert_eq!(numbers(&mut bench), [0]);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.fast_retransmits, info.total_retrans, info.timeouts), (1, 1, 0));
    assert_eq!((info.snd_ssthresh, info.snd_cwnd), (Some(5 * 1460), 5 * 1460));
    // Inflation: nothing until half of the flight was delivered, then one segment per duplicate.
    for _ in 0..4 {
        bench.ack(0);
        assert!(numbers(&mut bench).is_empty());
    }
    bench.ack(0);
    bench.ack(0);
    assert_eq!(numbers(&mut bench), [12, 13]);
}

// RFC 6582 §3.2 step 3: a partial ACK retransmits the next hole immediately; a full one ends the episode.
#[test]
fn partial_ack_retransmits_next_hole() {
    let mut bench = flight(false);
    for _ in 0..3 {
        bench.ack(0);
    }
    numbers(&mut bench);
    bench.ack(4 * MSS);
    assert_eq!(numbers(&mut bench)[0], 4);
    bench.ack(10 * MSS);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.fast_retransmits, info.total_retrans), (1, 2), "the window is reduced once");
    assert!(numbers(&mut bench).iter().all(|n| *n >= 10));
}

// RFC 5681 §2: a window update, data, or an ACK with nothing outstanding is not a duplicate ACK.
#[test]
fn window_updates_and_data_are_no_duplicate_acks() {
    let mut bench = flight(false);
    for n in 0..5 {
        bench.input(Segment { window: 60_001 + n, ..ack() });
        bench.input(data(u32::from(n), b"x"));
    }
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 0);
}

// RFC 6675 §5: lost bytes first, then new ones, limited by `pipe`.
#[test]
fn sack_recovery_sends_lost_bytes_first() {
    let mut bench = flight(true);
    sack(&mut bench, 0, &[block(2, 3)]);
    assert_eq!(numbers(&mut bench), [10], "limited transmit");
    // Three segments above the first hole: 0 and 1 are lost, as is 3 (sent before 4 to 6).
    sack(&mut bench, 0, &[block(4, 7), block(2, 3)]);
    assert_eq!(numbers(&mut bench)[0], 0);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.fast_retransmits, info.snd_cwnd), (1, 5 * 1460));
    sack(&mut bench, 0, &[block(4, 11), block(2, 3)]);
    assert_eq!(
        numbers(&mut bench),
        [1, 3, 11, 12],
        "segment 0 was retransmitted after 10 was sent"
    );
    assert_eq!(bench.tcp.info(bench.now).total_retrans, 3);
    sack(&mut bench, 11, &[]);
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 1);
    assert!(numbers(&mut bench).iter().all(|n| *n > 12));
}

// RFC 8985 §6.2: a retransmission is lost when data sent after it has arrived.
#[test]
fn lost_retransmission_is_detected() {
    let mut bench = flight(true);
    sack(&mut bench, 0, &[block(1, 6)]);
    let first = numbers(&mut bench);
    assert_eq!(first[0], 0);
    bench.now += Duration::from_millis(10);
    sack(&mut bench, 0, &[block(1, 10)]);
    let new = numbers(&mut bench);
    assert!(!new.is_empty() && new.iter().all(|n| *n >= 10));
    bench.now += Duration::from_millis(10);
    sack(&mut bench, 0, &[block(1, new[0] + 1)]);
    assert_eq!(numbers(&mut bench)[0], 0, "retransmitted again without a timeout");
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.timeouts, info.fast_retransmits), (0, 1));
}

// RFC 8985 §6.2: one later segment is enough if the reordering window also passes (early retransmit).
#[test]
fn reordering_timer_starts_recovery() {
    let mut bench = flight(true);
    bench.ack(5 * MSS);
    bench.tcp.post_send(bench.now, NblChain::new());
    numbers(&mut bench);
    bench.now += Duration::from_millis(10);
    sack(&mut bench, 5, &[block(6, 7)]);
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 0);
    let waited = bench.wait_for_timer();
    assert!(waited <= Duration::from_millis(20), "{waited:?}");
    assert_eq!(numbers(&mut bench)[0], 5);
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 1);
}

// RFC 8985 §7: a lost tail is probed after two RTTs, long before the RTO.
#[test]
fn lost_tail_is_probed() {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    let mut bench = reno(state, RecoveryOptions::default());
    bench.post(4 * MSS as usize);
    bench.sent();
    bench.now += Duration::from_millis(10);
    bench.ack(MSS);
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(20));
    assert_eq!(numbers(&mut bench), [3]);
    bench.now += Duration::from_millis(10);
    sack(&mut bench, 1, &[block(3, 4)]);
    if bench.tcp.info(bench.now).fast_retransmits == 0 {
        bench.wait_for_timer();
    }
    assert_eq!(numbers(&mut bench), [1]);
    bench.ack(2 * MSS);
    assert_eq!(numbers(&mut bench), [2]);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.timeouts, info.fast_retransmits, info.total_retrans), (0, 1, 3));
}

// RFC 8985 §7.2: the ACK of a single segment may be delayed by 40 ms, here and in Linux, and by a late timer.
#[test]
fn single_segment_is_probed_after_delayed_ack() {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    let mut bench = reno(state, RecoveryOptions::default());
    bench.post(MSS as usize);
    bench.sent();
    bench.now += Duration::from_micros(200);
    bench.ack(MSS);
    bench.post(88);
    bench.sent();
    let delayed = Config::default().delayed_ack;
    assert!(
        bench.wait_for_timer() > delayed * 2,
        "the RTO or the probe is later than a delayed ACK"
    );
}

// RFC 6298 §5.4, RFC 6675 §5.1: retransmission from SND.UNA, one segment first; sacked data is excluded.
#[test]
fn timeout_retransmits_unsacked_data() {
    let mut bench = flight(true);
    sack(&mut bench, 0, &[block(8, 10)]);
    numbers(&mut bench);
    while bench.tcp.info(bench.now).timeouts == 0 {
        bench.wait_for_timer();
        if bench.tcp.info(bench.now).timeouts == 0 {
            numbers(&mut bench);
        }
    }
    assert_eq!(numbers(&mut bench), [0]);
    assert_eq!(bench.tcp.info(bench.now).snd_cwnd, 1460);
    bench.now += Duration::from_millis(10);
    sack(&mut bench, 1, &[block(8, 10)]);
    assert_eq!(numbers(&mut bench), [1, 2]);
    bench.now += Duration::from_millis(10);
    sack(&mut bench, 3, &[block(8, 10)]);
    assert_eq!(numbers(&mut bench), [3, 4, 5]);
    bench.now += Duration::from_millis(10);
    sack(&mut bench, 6, &[block(8, 10)]);
    assert_eq!(numbers(&mut bench)[..2], [6, 7]);
}

// RFC 2018 §8: a sacked segment at SND.UNA at a timeout means that the peer has reneged.
#[test]
fn reneged_data_is_retransmitted() {
    let mut bench = flight(true);
    sack(&mut bench, 0, &[block(1, 10)]);
    numbers(&mut bench);
    bench.ack(MSS);
    numbers(&mut bench);
    while bench.tcp.info(bench.now).timeouts == 0 {
        bench.wait_for_timer();
    }
    assert_eq!(numbers(&mut bench), [1]);
    bench.ack(2 * MSS);
    assert_eq!(numbers(&mut bench)[..2], [2, 3]);
}

// RFC 6298 §3 (Karn): an ACK that covers a retransmission gives no sample, except by timestamps.
#[test]
fn retransmissions_give_no_rtt_sample() {
    let mut bench = flight(false);
    bench.ack(MSS);
    assert_eq!(bench.tcp.info(bench.now).rtt, Some(Duration::from_millis(10)));
    let mut again = flight(false);
    again.wait_for_timer();
    again.sent();
    again.now += Duration::from_millis(50);
    again.ack(3 * MSS);
    assert_eq!(again.tcp.info(again.now).rtt, None);

    let mut state = state();
    state.tcp.constant.timestamp_enabled = true;
    state.tcp.delegated.ts_time = 77_000;
    let mut stamped = reno(state, RecoveryOptions::default());
    stamped.post(10);
    stamped.sent();
    stamped.wait_for_timer();
    let value = stamped.transmit(WIRE)[0].timestamps.expect("timestamps are on").value;
    assert_eq!(value, 78_000);
    stamped.now += Duration::from_millis(50);
    let timestamps = Some(Timestamps { value: 1, echo: value });
    stamped.input(Segment { ack: LOCAL + 10, timestamps, ..ack() });
    assert_eq!(stamped.tcp.info(stamped.now).rtt, Some(Duration::from_millis(50)));
}

// RFC 8985 §5.1: a GSO packet is one transmission; only its missing segments are retransmitted.
#[test]
fn lost_part_of_gso_packet_is_retransmitted() {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    let mut bench = reno(state, RecoveryOptions::default());
    bench.post(20 * MSS as usize);
    let first = bench.transmit(GSO);
    assert_eq!(first.iter().map(|sent| sent.payload_len).collect::<Vec<_>>(), [10 * 1460]);
    bench.now += RTT;
    sack(&mut bench, 3, &[block(5, 10)]);
    let again = bench.transmit(GSO);
    let shape: Vec<_> = again.iter().map(|t| (t.seq, t.payload_len, t.retransmission)).collect();
    assert_eq!(shape[0], (LOCAL + 3 * MSS, 2 * 1460, true));
    assert!(shape[1..].iter().all(|(_, _, resent)| !resent));
    bench.now += RTT;
    sack(&mut bench, 4, &[block(5, 10)]);
    assert_eq!(bench.tcp.info(bench.now).total_retrans, 2);
    bench.ack(10 * MSS);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.timeouts, info.fast_retransmits, info.reord_seen), (0, 1, 0));
}
