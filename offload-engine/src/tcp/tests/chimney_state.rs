//! State in its three classes: every member is imported, exported, and used by the engine (CH §3.4 to §3.6, §10.1).

use std::println;

use oorandom::Rand64;

use super::*;
use crate::{
    memory::to_vec,
    state::{
        TcpUpdate, TimerState,
        variables::{busy, differing, tcp_changes, tcp_variables},
    },
    tcp::path_mtu::effective_mss,
};

/// Returns a connection with 1,000 bytes in flight, every option negotiated and every member different from its
/// default.
fn non_default_state() -> Box<ConnectionState> {
    let mut state = state();
    state.send_data.push_back(list(1, &[7; 1_000]));
    state.tcp = busy(state.tcp);
    state
}

// CH §3.4 to §3.6, CH §16 #6: each member, changed alone, is returned by query and upload, and no other member changes.
#[test]
fn every_member_is_imported_and_exported() {
    let base = tcp_variables(&non_default_state().tcp);
    let mut changed: Vec<&str> = vec![];
    for (index, (names, change)) in tcp_changes().into_iter().enumerate() {
        let mut state = non_default_state();
        change(&mut state.tcp);
        let given = state.tcp;
        let differ = differing(&base, &tcp_variables(&given));
        assert!(differ.iter().all(|name| names.contains(name)), "{index}: {differ:?}");
        changed.extend(differ);
        let bench = Bench::new(state);
        let queried = bench.tcp.tcp_state(bench.now);
        assert_eq!(tcp_variables(&queried), tcp_variables(&given), "{names:?}, query");
        let (state, _) = bench.tcp.into_state(bench.now);
        assert_eq!(tcp_variables(&state.tcp), tcp_variables(&given), "{names:?}, upload");
    }
    let missing: Vec<_> = base.iter().filter(|(name, ..)| !changed.contains(name)).collect();
    assert!(missing.is_empty(), "members without a change: {missing:?}");
}

// CH §3.6, §10.1: -1 is a stopped timer, 0 a timer that is due now; the slot represents one of several timers.
#[test]
fn exported_timers_follow_conventions() {
    let retransmit =
        |bench: &Bench| bench.tcp.tcp_state(bench.now).delegated.retransmit.timeout_delta;
    let keep_alive =
        |bench: &Bench| bench.tcp.tcp_state(bench.now).delegated.keep_alive.timeout_delta;
    let mut bench = Bench::new(state());
    assert_eq!((retransmit(&bench), keep_alive(&bench)), (None, None));
    bench.post(10);
    assert_eq!(retransmit(&bench), None, "nothing is outstanding yet");
    bench.sent();
    assert_eq!(retransmit(&bench), Some(1_000));
    bench.now += Duration::from_micros(999_001);
    assert_eq!(retransmit(&bench), Some(1), "rounded up: 0 means due");
    bench.now += Duration::from_secs(3);
    assert_eq!(retransmit(&bench), Some(0), "overdue");
    let (mut state, _) = bench.tcp.into_state(bench.now);
    state.tcp.delegated.keep_alive.timeout_delta = Some(0);
    let mut bench = Bench::new(state);
    assert_eq!(bench.tcp.poll_timeout(), Some(bench.now));
    bench.tcp.handle_timeout(bench.now);
    assert_eq!(bench.sent(), [(0, 10, Flags::ACK | Flags::PSH)], "retransmitted at once");
}

// CH §10.1, §10.3: count, backoff and TotalRT of a retransmission are continued, and so is the limit.
#[test]
fn retransmission_state_is_carried() {
    for (max_rt, left) in [(Some(0), 3), (Some(20_000), 2)] {
        let mut first = state();
        first.tcp.cached.max_rt = max_rt;
        let config = Config { retransmissions_max: 5, ..Config::default() };
        let mut bench = Bench::with(first, config);
        bench.post(10);
        bench.sent();
        bench.wait_for_timer();
        bench.sent();
        bench.wait_for_timer();
        bench.sent();
        bench.now += Duration::from_millis(500);
        let (state, _) = bench.tcp.into_state(bench.now);
        let delegated = &state.tcp.delegated;
        let due = Some(3_500);
        assert_eq!(delegated.retransmit, TimerState { count: 2, timeout_delta: due });
        assert_eq!(delegated.total_rt, 2_500, "since the first timeout");
        let tcp = Connection::from_state(bench.now, state, PATH_PAYLOAD, config).unwrap();
        let mut bench = Bench { tcp, ..Bench::new(self::state()) };
        bench.now = bench.tcp.now;
        let mut waits = vec![];
        while bench.events().is_empty() {
            waits.push(bench.wait_for_timer().as_millis());
            bench.sent();
        }
        // 5 retransmissions in total; or 20 s in total, of which 2.5 s are used.
        let expected: &[u128] = if max_rt == Some(0) {
            &[3_500, 8_000, 16_000, 32_000]
        } else {
            &[3_500, 8_000, 6_000]
        };
        assert_eq!((waits.len(), &waits[..]), (left + 1, expected), "{max_rt:?}");
    }
}

// CH §10.4, §10.1: with a time limit, the time of a closed window before an upload counts after it.
#[test]
fn closed_window_time_is_carried() {
    let mut first = state();
    first.tcp.cached.max_rt = Some(10_000);
    let mut bench = Bench::new(first);
    bench.input(Segment { window: 0, ..ack() });
    bench.post(10);
    bench.sent();
    bench.wait_for_timer();
    bench.sent();
    bench.now += Duration::from_millis(700);
    bench.input(Segment { window: 0, ..ack() });
    bench.sent();
    bench.now += Duration::from_millis(300);
    let (state, _) = bench.tcp.into_state(bench.now);
    assert_eq!(state.tcp.delegated.total_rt, 1_000);
    assert_eq!(state.tcp.delegated.snd_wnd_probe_count, 1);
    let tcp = Connection::from_state(bench.now, state, PATH_PAYLOAD, Config::default()).unwrap();
    let begin = bench.now;
    let mut bench = Bench { tcp, now: begin, next_context: 9 };
    while bench.events().is_empty() {
        bench.wait_for_timer();
        bench.sent();
    }
    assert_eq!(bench.now - begin, Duration::from_secs(9));
}

// CH §3.6: two duplicate ACKs before the upload and one after it trigger fast retransmit.
#[test]
fn duplicate_ack_count_is_carried() {
    let mut bench = Bench::new(state());
    (0..5).for_each(|_| bench.post(1_460));
    bench.sent();
    bench.ack(1_460);
    bench.sent();
    bench.ack(1_460);
    bench.ack(1_460);
    bench.sent();
    bench.events();
    let (state, _) = bench.tcp.into_state(bench.now);
    assert_eq!(state.tcp.delegated.dup_ack_count, 2);
    let mut bench = Bench::new(state);
    assert!(bench.sent().is_empty());
    bench.ack(1_460);
    assert_eq!(bench.sent()[0].0, 1_460);
    assert_eq!(bench.tcp.info(bench.now).fast_retransmits, 1);
}

// CH-TRM-3, CH §10.1: delayed ACK and push timer are not exported: the ACK is sent, and received bytes are returned.
#[test]
fn delayed_ack_and_push_timers_are_not_exported() {
    let mut bench = Bench::with(state(), Config { quick_acks: 0, ..Config::default() });
    bench.input(data(0, b"abc"));
    assert!(bench.sent().is_empty(), "delayed");
    bench.tcp.prepare_upload(bench.now);
    assert_eq!(bench.sent(), [(0, 0, Flags::ACK)]);
    let (state, _) = bench.tcp.into_state(bench.now);
    let bench = Bench::new(state);
    assert_eq!(bench.tcp.poll_timeout(), None);
}

// CH §3.5, CH-UPD-6: effect of each update flag, and no effect without it.
#[test]
fn update_flags_have_separate_effects() {
    let mut with_keep_alive = state();
    with_keep_alive.tcp.cached.keep_alive_enabled = true;
    with_keep_alive.tcp.delegated.keep_alive = TimerState { count: 3, timeout_delta: Some(1_000) };
    let cached = with_keep_alive.tcp.cached;
    let none = TcpUpdate {
        cached,
        keep_alive_restart: false,
        max_rt_restart: false,
        update_rcv_wnd: false,
    };
    for restart in [false, true] {
        let mut first = state();
        first.tcp = with_keep_alive.tcp;
        let mut bench = Bench::new(first);
        let cached = TcpCached { ka_timeout: 9_000, ka_probe_count: 20, ..cached };
        bench
            .tcp
            .update_cached(bench.now, &TcpUpdate { cached, keep_alive_restart: restart, ..none });
        let (count, left) = if restart { (0, 9_000) } else { (3, 1_000) };
        let timer = bench.tcp.tcp_state(bench.now).delegated.keep_alive;
        assert_eq!(timer, TimerState { count, timeout_delta: Some(left) });

        let mut bench = Bench::new(non_default_state());
        assert_eq!(bench.tcp.tcp_state(bench.now).delegated.total_rt, 900);
        bench.tcp.update_cached(bench.now, &TcpUpdate { max_rt_restart: restart, ..none });
        let spent = bench.tcp.tcp_state(bench.now).delegated.total_rt;
        assert_eq!(spent, if restart { 0 } else { 900 });

        let mut bench = Bench::new(state());
        let cached = TcpCached { initial_rcv_wnd: 65_000, ..TcpCached::default() };
        bench.tcp.update_cached(bench.now, &TcpUpdate { cached, update_rcv_wnd: restart, ..none });
        let windows: Vec<_> = bench.transmit(WIRE).iter().map(|t| t.window).collect();
        assert_eq!(
            windows,
            if restart { &[65_000][..] } else { &[] },
            "window update is sent at once only with the flag"
        );
    }
}

struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "seed {0}; repeat: FLUE_SEED={0} cargo test -p offload-engine random_connection",
                self.0
            );
        }
    }
}

/// EMSS of `state` for its next owner.
fn mss(state: &ConnectionState) -> u32 {
    effective_mss(&state.tcp.constant, PATH_PAYLOAD) as u32
}

/// Bytes of the send data and the buffered data, in order.
fn bytes(state: &ConnectionState) -> (Vec<u8>, Vec<u8>) {
    let sent = to_vec(state.send_data.iter().flat_map(NetBufferList::pieces));
    (sent, state.buffered_data.concat())
}

/// Runs a connection with random events, exported and imported at random times.
fn run_connection(seed: u64) {
    let _report = SeedReport(seed);
    let mut random = Rand64::new(seed.into());
    let mut below = |limit: u64| random.rand_range(0..limit) as u32;
    let mut first = if below(2) == 0 { non_default_state() } else { state() };
    first.tcp.cached.keep_alive_enabled = below(2) == 0;
    first.tcp.cached.max_rt = [Some(0), None, Some(100_000)][below(3) as usize];
    let stamped = first.tcp.constant.timestamp_enabled;
    let mut bench = Bench::new(first);
    let mut value = 6;
    for step in 0..60 {
        match below(9) {
            0 | 1 => bench.post(below(4_000) as usize),
            2 | 3 => {
                let una = bench.tcp.snd.una.seq();
                let sent = bench.tcp.snd.max.seq().distance(una) as u32;
                let at = bench.tcp.receiver.nxt().seq();
                value += 1;
                let stamp = Timestamps { value, echo: bench.tcp.clock.value(bench.now) };
                let beyond = [0, 0, 30][below(3) as usize];
                let segment = Segment {
                    seq: at + beyond,
                    ack: una + below(u64::from(sent) + 1),
                    window: [0, 500, 60_000][below(3) as usize],
                    timestamps: stamped.then_some(stamp),
                    payload: &[9; 20][..below(20) as usize],
                    flags: if step > 40 && below(6) == 0 { endings::ack_fin() } else { Flags::ACK },
                    ..ack()
                };
                let received = bench.tcp.handle_segment(bench.now, &segment);
                bench.tcp.settle(&segment.payload[received.in_order], received.push);
            }
            4 if step > 30 && below(4) == 0 => {
                bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b"bye"));
            }
            4..=6 => bench.now += Duration::from_micros(below(300_000).into()),
            7 => {
                while let Some((data, _)) = bench.tcp.backlog() {
                    let count = data.len();
                    bench.tcp.backlog_consumed(count);
                }
            }
            _ => {
                if let Some(due) = bench.tcp.poll_timeout() {
                    bench.now = bench.now.max(due);
                }
            }
        }
        bench.tcp.handle_timeout(bench.now);
        bench.sent();
        bench.events();
        if bench.tcp.is_closed() || bench.tcp.is_stopped() {
            return;
        }
        if below(4) == 0 {
            let queried = bench.tcp.tcp_state(bench.now);
            let (state, _) = bench.tcp.into_state(bench.now);
            let mut expected = queried;
            expected.delegated.state = state.tcp.delegated.state;
            assert_eq!(state.tcp, expected, "step {step}: upload differs from the query");
            let (mut given, data) = (state.tcp, bytes(&state));
            // After a loss cwnd may be below one segment; an import raises it (RFC 5681 §3.1).
            given.delegated.cwnd = given.delegated.cwnd.max(mss(&state));
            let tcp = Connection::from_state(bench.now, state, PATH_PAYLOAD, bench_config());
            bench.tcp = tcp.expect("exported state is importable");
            let again = bench.tcp.tcp_state(bench.now);
            assert_eq!(tcp_variables(&again), tcp_variables(&given), "step {step}");
            // A second export compares the data too.
            let (state, _) = bench.tcp.into_state(bench.now);
            assert_eq!(bytes(&state), data, "step {step}");
            bench.tcp =
                Connection::from_state(bench.now, state, PATH_PAYLOAD, bench_config()).unwrap();
        }
    }
}

fn bench_config() -> Config {
    Config { congestion: CongestionAlgorithm::NewReno, ..Config::default() }
}

// CH §16 #6: a connection exported, imported and exported again has the same state: idle, with data in flight, with a
// closed window, half closed, with keep-alive enabled.
#[test]
fn random_connection_state_round_trips() {
    if let Ok(seed) = std::env::var("FLUE_SEED") {
        run_connection(seed.parse().expect("FLUE_SEED is a number"));
        return;
    }
    (0..2_000).for_each(run_connection);
}
