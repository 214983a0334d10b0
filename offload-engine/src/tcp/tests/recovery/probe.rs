//! Tail loss probes: time of transmission and evaluation of the response (RFC 8985 §7).

use super::*;

/// Returns a connection with `segments` in flight, the first acknowledged, nothing unsent, and the probe sent.
fn probed(with_sack: bool, segments: u32) -> Bench {
    let mut state = state();
    state.tcp.constant.sack_enabled = with_sack;
    let mut bench = reno(state, RecoveryOptions::default());
    bench.post((segments * MSS) as usize);
    bench.sent();
    bench.now += RTT;
    bench.ack(MSS);
    assert_eq!(bench.wait_for_timer(), 2 * RTT);
    assert_eq!(numbers(&mut bench), [segments - 1]);
    bench.now += RTT;
    bench
}

fn reductions(bench: &Bench) -> u64 {
    bench.tcp.info(bench.now).fast_retransmits
}

// §7.4.2: original and probe have arrived: no loss.
#[test]
fn arrived_original_and_probe_indicate_no_loss() {
    let mut bench = probed(true, 4);
    bench.ack(4 * MSS);
    sack(&mut bench, 4, &[block(3, 4)]);
    bench.post(MSS as usize);
    bench.sent();
    bench.ack(5 * MSS);
    assert_eq!(reductions(&bench), 0);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.snd_ssthresh, info.dsack_dups, info.undo_by_dsack), (None, 1, 0));
}

// §7.4.2: the same, with a peer without DSACK.
#[test]
fn duplicate_ack_without_dsack_indicates_no_loss() {
    let mut bench = probed(true, 4);
    bench.ack(4 * MSS);
    bench.ack(4 * MSS);
    bench.post(MSS as usize);
    bench.sent();
    bench.ack(5 * MSS);
    assert_eq!(reductions(&bench), 0);
}

// §7.4.2: only the probe has arrived: the loss needs no repair but reduces the window.
#[test]
fn loss_repaired_by_probe_reduces_window() {
    let mut bench = probed(true, 4);
    bench.ack(4 * MSS);
    assert_eq!(reductions(&bench), 0, "the original may still arrive");
    bench.post(MSS as usize);
    bench.sent();
    bench.ack(5 * MSS);
    assert_eq!(reductions(&bench), 1);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.timeouts, info.snd_ssthresh), (0, Some(2 * 1460)));
}

// §7.3: new data if there is any; its acknowledgment indicates no loss.
#[test]
fn new_data_is_used_as_probe() {
    let mut bench = flight(true);
    bench.ack(MSS);
    numbers(&mut bench);
    bench.wait_for_timer();
    let probe = numbers(&mut bench);
    assert_eq!(probe.len(), 1);
    assert!(probe[0] > 9, "{probe:?}");
    bench.ack((probe[0] + 1) * MSS);
    let more = numbers(&mut bench);
    bench.ack((more[0] + 1) * MSS);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.fast_retransmits, info.total_retrans, info.timeouts), (0, 0, 0));
}

// §7.2: one probe per pause, then the retransmission timer, which the probe restarts (§7.3).
#[test]
fn unanswered_probe_is_followed_by_timeout() {
    let mut bench = probed(true, 4);
    let waited = bench.wait_for_timer();
    assert_eq!(waited, Duration::from_millis(200));
    assert_eq!(bench.tcp.info(bench.now).timeouts, 1);
    assert_eq!(numbers(&mut bench), [1]);
}

// §7.2: the probe is due with the retransmission timer at the latest, and replaces it.
#[test]
fn early_timeout_is_replaced_by_probe() {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    // SRTT 250 ms without variance: two SRTTs are longer than the RTO.
    (state.tcp.delegated.srtt, state.tcp.delegated.rtt_var) = (250 * 8, 1);
    let mut bench = reno(state, RecoveryOptions::default());
    bench.post(2 * MSS as usize);
    bench.sent();
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(450));
    assert_eq!(bench.tcp.info(bench.now).timeouts, 0);
    assert_eq!(numbers(&mut bench), [1]);
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(450));
    assert_eq!(bench.tcp.info(bench.now).timeouts, 1);
}

// Extension of RFC 8985: without SACK the one duplicate ACK caused by a probe repairs the tail.
#[test]
fn probe_without_sack_repairs_tail() {
    let mut bench = probed(false, 4);
    bench.ack(MSS);
    assert_eq!(numbers(&mut bench), [1], "fast retransmit");
    bench.now += RTT;
    bench.ack(2 * MSS);
    assert_eq!(numbers(&mut bench), [2]);
    bench.ack(4 * MSS);
    let info = bench.tcp.info(bench.now);
    assert_eq!((info.timeouts, info.fast_retransmits, info.total_retrans), (0, 1, 3));
}

// The same without a loss: the response to the probe starts no recovery.
#[test]
fn unnecessary_probe_without_sack_has_no_effect() {
    let mut bench = probed(false, 4);
    bench.ack(4 * MSS);
    bench.post(2 * MSS as usize);
    bench.sent();
    bench.ack(4 * MSS);
    assert!(numbers(&mut bench).is_empty());
    bench.ack(6 * MSS);
    assert_eq!(reductions(&bench), 0);
}
