//! Congestion control of whole connections: use of the window, idle periods, options.

use super::*;

const MSS: u32 = 1460;
const RTT: Duration = Duration::from_millis(10);

/// Returns a connection in congestion avoidance with a window of `segments`, and an RTT of 10 ms.
fn bench(segments: u32, config: Config) -> Bench {
    let mut state = state();
    let delegated = &mut state.tcp.delegated;
    delegated.cwnd = segments * MSS;
    delegated.ss_thresh = 5 * MSS;
    delegated.srtt = 8 * RTT.as_millis() as u16;
    Bench::with(state, config)
}

fn reno() -> Config {
    Config { congestion: CongestionAlgorithm::NewReno, ..Config::default() }
}

fn with_options(change: impl FnOnce(&mut CongestionOptions)) -> Config {
    let mut config = reno();
    change(&mut config.congestion_options);
    config
}

fn cwnd(bench: &Bench) -> u64 {
    bench.tcp.info(bench.now).snd_cwnd
}

fn bytes_sent(bench: &mut Bench, limits: TxLimits) -> usize {
    bench.transmit(limits).iter().map(|transmit| transmit.payload_len).sum()
}

// RFC 9438 §5.8, RFC 5681 §3.1: a window larger than the flight does not grow.
#[test]
fn slow_producer_does_not_grow_window() {
    let mut bench = bench(10, reno());
    for round in 1..=50 {
        bench.post(9 * MSS as usize - 1);
        assert_eq!(bytes_sent(&mut bench, WIRE), 9 * MSS as usize - 1);
        bench.now += RTT;
        bench.ack(round * (9 * MSS - 1));
    }
    assert_eq!(cwnd(&bench), u64::from(10 * MSS));
    // A flight that leaves no room for another segment uses the window.
    for _ in 0..2 {
        bench.post(9 * MSS as usize + 1);
        bytes_sent(&mut bench, WIRE);
        bench.now += RTT;
        let all = bench.tcp.snd.max.seq().distance(LOCAL);
        bench.ack(all.cast_unsigned());
    }
    assert_eq!(cwnd(&bench), u64::from(11 * MSS));
}

// A smaller window of the peer has the same effect.
#[test]
fn small_peer_window_does_not_grow_window() {
    let mut bench = bench(20, reno());
    bench.post(400 * MSS as usize);
    let (mut acked, window) = (0, 15 * MSS);
    for _ in 0..20 {
        let segment = Segment { ack: LOCAL + acked, window: window as u16, ..ack() };
        bench.input(segment);
        bytes_sent(&mut bench, WIRE);
        bench.now += RTT;
        acked += 15 * MSS;
    }
    assert_eq!(cwnd(&bench), u64::from(20 * MSS));
}

// A GSO packet that cannot fill a window of 10.9 segments uses it: less than one segment is left. Every ACK of the
// flight counts, although the window has grown since its transmission.
#[test]
fn gso_packets_use_window() {
    let mut state = state();
    state.tcp.delegated.cwnd = 10 * MSS + 1_300;
    state.tcp.delegated.ss_thresh = MSS;
    state.tcp.constant.window_scaling_enabled = true;
    let mut bench = Bench::new(state);
    bench.post(40 * MSS as usize);
    assert_eq!(bytes_sent(&mut bench, GSO), 10 * MSS as usize);
    bench.now += RTT;
    for n in 1..=10 {
        bench.ack(n * MSS);
    }
    assert_eq!(cwnd(&bench), u64::from(10 * MSS + 1_300), "less than a window is acknowledged");
    bytes_sent(&mut bench, GSO);
    bench.ack(11 * MSS);
    assert_eq!(cwnd(&bench), u64::from(11 * MSS + 1_300));
}

// RFC 5681 §3.1: in slow start half of the window is used enough, as it doubles within a round.
#[test]
fn half_used_window_grows_in_slow_start() {
    for (segments, grows) in [(6, true), (5, false)] {
        let mut bench = Bench::new(state());
        bench.post(segments * MSS as usize);
        bytes_sent(&mut bench, WIRE);
        bench.now += RTT;
        bench.ack(MSS);
        assert_eq!(cwnd(&bench) > u64::from(10 * MSS), grows, "{segments} segments");
    }
}

// RFC 5681 §4.1: after an RTO without transmission, the initial window again; configurable.
#[test]
fn idle_connection_restarts_from_initial_window() {
    for (config, expected) in [
        (reno(), 10),
        (Config::default(), 10),
        (with_options(|options| options.idle_restart = false), 30),
    ] {
        let mut bench = bench(30, config);
        bench.now += Duration::from_millis(221);
        bench.post(39 * MSS as usize);
        assert_eq!(bytes_sent(&mut bench, WIRE), expected * MSS as usize, "{config:?}");
    }
    let mut active = bench(30, reno());
    active.now += Duration::from_millis(199);
    active.post(39 * MSS as usize);
    assert_eq!(bytes_sent(&mut active, WIRE), 30 * MSS as usize);
}

// RFC 2861 §3: a window underused by a steady producer decays toward its use; configurable. The threshold stays at
// three quarters of it, so that slow start restores twice the use.
#[test]
fn underused_window_decays_to_its_use() {
    for (config, expected) in
        [(reno(), 12..31), (with_options(|options| options.cwnd_validation = false), 40..41)]
    {
        let mut bench = bench(40, config);
        for round in 1..=100 {
            bench.post(12 * MSS as usize);
            bytes_sent(&mut bench, WIRE);
            bench.now += RTT * 2;
            bench.ack(round * 12 * MSS);
        }
        let segments = cwnd(&bench) / u64::from(MSS);
        assert!(expected.contains(&segments), "{segments} segments, {config:?}");
    }
}

/// Returns the window in segments after slow start, or after 8 rounds, on a path with a queue beyond 40 segments in
/// flight.
fn slow_start(config: Config) -> u64 {
    let mut state = state();
    state.tcp.constant.window_scaling_enabled = true;
    state.tcp.constant.snd_wind_scale = 8;
    let mut bench = Bench::with(state, config);
    bench.input(Segment { window: 40_000, ..ack() });
    bench.post(4_000_000);
    let mut acked = 0;
    for _ in 0..8 {
        let flight = bench.transmit(WIRE).len() as u32;
        let queue = flight.saturating_sub(40);
        bench.now += RTT * 2 + Duration::from_micros(500) * queue;
        for _ in 0..flight {
            acked += MSS;
            bench.input(Segment { ack: LOCAL + acked, window: 40_000, ..ack() });
        }
        if bench.tcp.info(bench.now).snd_ssthresh.is_some() {
            break;
        }
    }
    cwnd(&bench) / u64::from(MSS)
}

// RFC 9406: the controller receives rounds and RTTs, so that slow start ends when the queue grows; configurable.
#[test]
fn slow_start_ends_when_queue_grows() {
    for algorithm in [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno] {
        let on = Config { congestion: algorithm, ..Config::default() };
        let mut off = on;
        off.congestion_options.hystart = false;
        let stopped = slow_start(on);
        assert!((40..400).contains(&stopped), "{algorithm:?}: {stopped}");
        assert_eq!(slow_start(off), 2_560, "{algorithm:?}");
    }
}

// CUBIC (RFC 9438) is the default, and continues the imported state.
#[test]
fn default_controller_is_cubic() {
    let mut bench = bench(100, Config::default());
    bench.post(99 * MSS as usize);
    bench.sent();
    bench.now += RTT;
    for _ in 0..3 {
        bench.ack(0);
    }
    let info = bench.tcp.info(bench.now);
    // The peer's window, not the congestion window, limits the flight.
    let flight = u64::from(WINDOW) / u64::from(MSS) * u64::from(MSS);
    assert_eq!((info.fast_retransmits, info.snd_ssthresh), (1, Some(flight * 7 / 10)));
}
