//! Misbehaving receivers (RFC 5681 §5, RFC 2018 §8), and the cost of a large window.

use super::*;

// RFC 9293 §3.10.7.4, RFC 5961 §5: an acknowledgment of unsent data causes a challenge ACK, and no growth.
#[test]
fn ack_of_unsent_data_is_challenged() {
    let mut bench = flight(true);
    let before = bench.tcp.info(bench.now);
    bench.ack(10 * MSS + 1);
    sack(&mut bench, 0, &[block(5, 11)]);
    sack(&mut bench, 10, &[block(11, 12)]);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.challenge_acks, before.challenge_acks), (1, 0));
    assert_eq!(info.bytes_acked, 10 * 1460);
    assert_eq!(bench.tcp.recovery.in_flight(), 0);
    assert_eq!(info.fast_retransmits, 0);
}

// RFC 3465 §2.1: many small acknowledgments open the window no further than one for all.
#[test]
fn divided_acks_grow_window_once() {
    let mut divided = flight(false);
    for bytes in (10..=MSS).step_by(10) {
        divided.ack(bytes);
    }
    let mut whole = flight(false);
    whole.ack(MSS);
    let cwnd = |bench: &Bench| bench.tcp.info(bench.now).snd_cwnd;
    assert_eq!(cwnd(&divided), cwnd(&whole));
    assert_eq!(cwnd(&whole), 11 * 1460);
}

// RFC 9937 §4: duplicate ACKs beyond the flight allow no further transmissions.
#[test]
fn duplicate_ack_flood_sends_nothing_more() {
    for with_prr in [false, true] {
        let options = RecoveryOptions { prr: with_prr, ..RecoveryOptions::default() };
        let mut bench = flight_with(false, options);
        let mut sent = 0;
        for _ in 0..500 {
            bench.ack(0);
            sent += numbers(&mut bench).len();
        }
        assert!(sent <= 40, "{sent}");
        assert!(bench.tcp.recovery.in_flight() <= 10 * u64::from(MSS));
    }
}

/// Segments of the large window.
const SEGMENTS: u32 = 11_000;

/// Returns a connection with 16 MiB in flight, one segment per transmission.
fn large(options: RecoveryOptions) -> Bench {
    let mut state = state();
    let tcp = &mut state.tcp;
    tcp.constant.sack_enabled = true;
    tcp.constant.window_scaling_enabled = true;
    tcp.constant.snd_wind_scale = 14;
    tcp.delegated.snd_wnd = 64 << 20;
    tcp.delegated.cwnd = SEGMENTS * MSS;
    let mut bench = reno(state, options);
    bench.post((SEGMENTS * MSS) as usize);
    assert_eq!(bench.sent().len(), SEGMENTS as usize);
    bench
}

/// Acknowledges the large window segment by segment, with every hundredth segment lost; returns the records visited per
/// acknowledgment.
fn records_per_ack_of_lossy_window(options: RecoveryOptions) -> u64 {
    let mut bench = large(options);
    bench.now += RTT;
    let before = bench.tcp.recovery.steps();
    let mut acks = 0;
    for n in 1..SEGMENTS {
        if n % 100 == 0 {
            continue;
        }
        let run = n / 100 * 100 + 1;
        let last = [block(run, n + 1)];
        let window = 4_096;
        bench.input(Segment { sack: &last, window, ..ack() });
        bench.transmit(WIRE);
        acks += 1;
    }
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.timeouts, info.fast_retransmits), (0, 1));
    assert!(info.total_retrans >= 100, "{}", info.total_retrans);
    (bench.tcp.recovery.steps() - before) / acks
}

// A window of 16 MiB with 1 % loss: an acknowledgment visits a few records, not 11,000.
#[test]
fn ack_cost_is_bounded() {
    for rack in [true, false] {
        let options = RecoveryOptions { rack, ..RecoveryOptions::default() };
        let steps = records_per_ack_of_lossy_window(options);
        assert!(steps <= 20, "rack {rack}: {steps} records per acknowledgment");
    }
}

// The same after a timeout: the search for lost data continues at its last position.
#[test]
fn timeout_cost_is_bounded() {
    let options = RecoveryOptions { f_rto: false, ..RecoveryOptions::default() };
    let mut bench = large(options);
    while bench.tcp.info(bench.now).timeouts == 0 {
        bench.wait_for_timer();
        bench.transmit(WIRE);
    }
    let before = bench.tcp.recovery.steps();
    let mut sent = 1;
    while sent < 5_000 {
        bench.now += RTT;
        bench.ack(sent * MSS);
        sent += bench.transmit(WIRE).len() as u32;
    }
    let steps = (bench.tcp.recovery.steps() - before) / u64::from(sent);
    assert!(steps <= 10, "{steps} records per segment");
}

// RFC 2018 §8: alternating blocks over a large window: bounded work per acknowledgment, and no timeout.
#[test]
fn alternating_blocks_have_bounded_cost() {
    let mut bench = large(RecoveryOptions::default());
    bench.now += RTT;
    let before = bench.tcp.recovery.steps();
    let mut acks = 0_u64;
    for pass in 0..2 {
        for n in (0..SEGMENTS - 16).step_by(8) {
            let tiny = |n: u32| {
                let start = LOCAL + n * MSS + 500 * pass + 7;
                SackBlock { start, end: start + 3 }
            };
            let blocks = [tiny(n + 5), tiny(n + 3), tiny(n + 1), tiny(n)];
            bench.input(Segment { sack: &blocks, window: 4_096, ..ack() });
            acks += 1;
        }
    }
    let steps = (bench.tcp.recovery.steps() - before) / acks;
    assert!(steps <= 100, "{steps} records per acknowledgment");
    bench.transmit(WIRE);
}
