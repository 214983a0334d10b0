//! Limits of retransmission and probing: MaxRT and the count, with the window open and closed.

use super::*;

fn with_max_rt(max_rt: Option<u32>) -> Bench {
    let mut state = state();
    state.tcp.cached.max_rt = max_rt;
    reno(state, RecoveryOptions::default())
}

/// Runs until the connection times out; returns the time taken.
fn time_to_timeout(bench: &mut Bench) -> Duration {
    let since = bench.now;
    for _ in 0..100 {
        bench.wait_for_timer();
        bench.sent();
        let events = bench.events();
        if let [Event::Retrieve(reason)] = events[..] {
            assert_eq!(reason, UploadReason::TimeoutExpiration);
            return bench.now - since;
        }
    }
    panic!("the connection does not time out");
}

// RFC 9293 §3.8.3 (R2), RFC 5482 §3: MaxRT is exact to the millisecond, not to the next backoff.
#[test]
fn max_rt_limits_retransmission() {
    let mut bench = with_max_rt(Some(10_000));
    bench.post(1);
    bench.sent();
    // Counted from the first timeout, after 1 s.
    assert_eq!(time_to_timeout(&mut bench), Duration::from_secs(11));
    assert_eq!(bench.tcp.info(bench.now).timeouts, 3);
}

// CH §3.5: 0 is a count, 15 by default: 1 + 2 + ... + 32 s, then ten times 60 s.
#[test]
fn count_limits_retransmission() {
    let mut bench = with_max_rt(Some(0));
    bench.post(1);
    bench.sent();
    assert_eq!(time_to_timeout(&mut bench), Duration::from_secs(63 + 10 * 60));
    assert_eq!(bench.tcp.info(bench.now).timeouts, 15);
}

// RFC 5482 §3: progress restarts the time limit.
#[test]
fn progress_restarts_max_rt() {
    let mut bench = with_max_rt(Some(10_000));
    bench.post(2);
    bench.sent();
    for _ in 0..3 {
        bench.wait_for_timer();
        bench.sent();
    }
    bench.ack(1);
    bench.sent();
    assert!(time_to_timeout(&mut bench) >= Duration::from_secs(10));
}

// RFC 5482 §3, RFC 9293 §3.8.6.1: a closed window does not stop MaxRT, with or without probe responses.
#[test]
fn max_rt_limits_closed_window() {
    for answered in [false, true] {
        let mut bench = with_max_rt(Some(10_000));
        bench.input(Segment { window: 0, ..ack() });
        bench.post(100);
        bench.sent();
        bench.wait_for_timer();
        let since = bench.now;
        while bench.events().is_empty() {
            bench.sent();
            if answered {
                bench.input(Segment { window: 0, ..ack() });
                bench.sent();
            }
            bench.wait_for_timer();
        }
        let spent = bench.now - since;
        if answered {
            // The first probe of a round is delayed by the whole backoff.
            assert!(
                spent >= Duration::from_secs(10) && spent < Duration::from_secs(20),
                "{spent:?}"
            );
        } else {
            assert_eq!(spent, Duration::from_secs(10));
        }
    }
}

// RFC 9293 §3.8.6.1, CH §10.4: without MaxRT a peer that responds to probes may keep its window closed forever.
#[test]
fn responding_closed_window_never_times_out() {
    let mut bench = with_max_rt(Some(0));
    bench.input(Segment { window: 0, ..ack() });
    bench.post(100);
    bench.sent();
    for _ in 0..200 {
        bench.wait_for_timer();
        assert_eq!(bench.sent().len(), 1);
        bench.input(Segment { window: 0, ..ack() });
        bench.sent();
        assert!(bench.events().is_empty());
    }
    bench.input(ack());
    assert_eq!(bench.sent().len(), 1);
}

// RFC 6298 §5.3: each acknowledgment of new data restarts the timer. Similar to §5.7: its sample resets the backoff.
#[test]
fn new_ack_restarts_retransmission_timer() {
    let mut bench = flight(false);
    bench.wait_for_timer();
    bench.wait_for_timer();
    assert_eq!(bench.tcp.info(bench.now).rto, Duration::from_secs(4));
    bench.sent();
    bench.now += RTT;
    bench.ack(MSS);
    bench.sent();
    assert_eq!(bench.tcp.info(bench.now).rto, Duration::from_secs(4), "Karn: no sample");
    let deadline = bench.tcp.poll_timeout().expect("the timer is running");
    assert_eq!(deadline - bench.now, Duration::from_secs(4));
    bench.now += RTT;
    bench.ack(12 * MSS);
    assert_eq!(bench.tcp.info(bench.now).rto, Duration::from_millis(200) + RTT);
}
