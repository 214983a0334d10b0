//! Receive window between two ends: growth, and no silly window.

use super::{pair::pair, *};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

// RFC 9293 §3.8.6: the window grows with the bandwidth-delay product, with and without timestamps, up to the limit;
// with autotuning disabled it does not. 24 MiB over 40 ms are 96 windows of 256 KiB, or a few growing ones.
#[test]
fn window_grows_with_bandwidth_delay_product() {
    let delay = Duration::from_millis(20);
    for timestamps in [true, false] {
        let mut grows = pair(delay, timestamps, |_, _| {});
        let time = grows.transfer(24 * MIB);
        assert_eq!(grows.rcv_space(), 4 * MIB);
        assert!(time < Duration::from_millis(500), "{time:?}");
        assert_eq!(grows.sender.info(grows.now).total_retrans, 0);
        assert_eq!(grows.sender.info(grows.now).snd_wnd, 4 * MIB as u64);
        let rtt = grows.receiver.info(grows.now).rcv_rtt.expect("measured");
        assert!((40..=44).contains(&rtt.as_millis()), "{rtt:?}");

        let mut off = pair(delay, timestamps, |_, config| config.rcv_wnd_max = 0);
        let time = off.transfer(24 * MIB);
        assert_eq!(off.rcv_space(), 256 * KIB);
        assert!(time > Duration::from_millis(95 * 40), "{time:?}");
    }
}

// RFC 7323 §2.2: the scale bounds the advertised window, regardless of the limit.
#[test]
fn scale_bounds_window() {
    let mut pair = pair(Duration::from_millis(20), true, |tcp, _| {
        (tcp.constant.snd_wind_scale, tcp.constant.rcv_wind_scale) = (3, 3);
    });
    pair.transfer(24 * MIB);
    assert_eq!(pair.rcv_space(), 65_535 << 3);
}

// CH-UPD-5: an InitialRcvWnd set by the host is applied and stops the growth, as SO_RCVBUF does in Linux.
#[test]
fn host_limit_stops_window_growth() {
    let mut pair = pair(Duration::from_millis(20), true, |_, _| {});
    pair.transfer(2 * MIB);
    let grown = pair.rcv_space();
    assert!(grown > 512 * KIB, "{grown}");
    let cached = TcpCached { initial_rcv_wnd: 512 * KIB as u32, ..pair.receiver.cached };
    pair.receiver.set_cached(pair.now, cached);
    pair.transfer(24 * MIB);
    assert_eq!(pair.rcv_space(), 512 * KIB);
    assert_eq!(pair.sender.info(pair.now).snd_wnd, 512 * KIB as u64);
}

// A consumer that takes whole windows, but rarely, needs no larger one.
#[test]
fn slow_consumer_keeps_window() {
    let mut pair = pair(Duration::from_millis(1), true, |_, _| {});
    pair.auto_consume = false;
    pair.post(8 * MIB);
    for second in 1..30 {
        pair.run_until(Instant::from_millis(1000 * second));
        while let Some(count) = pair.receiver.backlog().map(|(data, _)| data.len()) {
            pair.receiver.backlog_consumed(count);
            pair.received += count;
        }
    }
    assert!(pair.received > 6 * MIB, "{}", pair.received);
    assert_eq!(pair.rcv_space(), 256 * KIB);
}

// RFC 9293 §3.8.6.2, RFC 813: a consumer that takes 100 bytes at a time causes no small segments.
#[test]
fn small_reads_cause_no_small_segments() {
    for nagle in [false, true] {
        let mut pair = pair(Duration::from_micros(50), false, |tcp, config| {
            tcp.cached.initial_rcv_wnd = 20_000;
            tcp.cached.nagling_enabled = nagle;
            config.rcv_wnd_max = 0;
        });
        pair.auto_consume = false;
        pair.post(60 * 1460);
        let mut taken = 0;
        while taken < 60 * 1460 {
            pair.run_until(pair.now + Duration::from_micros(200));
            if let Some((data, _)) = pair.receiver.backlog() {
                let count = data.len().min(100);
                taken += count;
                pair.receiver.backlog_consumed(count);
            }
        }
        // After the peer's initial window of 60,000 bytes, larger than the limit of 20,000, is used up.
        assert_eq!(pair.sizes, vec![1460; 60]);
        let acks = pair.receiver.info(pair.now).segs_out;
        assert!(acks < 60, "{acks}");
    }
}

// RFC 9293 §3.8.6: a retransmission of the peer that acknowledges more also updates the window. The window of a later
// segment, advertised for less, must not be shifted with SND.UNA.
#[test]
fn window_applies_to_its_acknowledgment() {
    let mut bench = Bench::new(state());
    bench.post(3_000);
    bench.sent();
    bench.input(Segment { ack: LOCAL + 1_000, window: 2_000, ..data(1_000, &[7; 10]) });
    bench.input(Segment { ack: LOCAL + 2_000, window: 1_000, ..data(0, &[7; 1_000]) });
    bench.post(3_000);
    assert_eq!(bench.tcp.info(bench.now).snd_wnd, 1_000);
    assert_eq!(
        bench.sent().iter().map(|(offset, len, _)| *offset as usize + len).max(),
        Some(3_000)
    );
    // A later segment with an older acknowledgment.
    bench.input(Segment { ack: LOCAL + 1_500, window: 30_000, ..data(1_010, &[7; 10]) });
    assert_eq!(bench.tcp.info(bench.now).snd_wnd, 1_000);
}
