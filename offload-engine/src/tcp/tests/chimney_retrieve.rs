//! Reasons of upload requests (CH §8.2, §9.2, §9.3, §10).

use alloc::format;

use super::{
    chimney_receive::{ScriptedConsumer, non_push_request, push_request},
    endings::{ack_fin, event_name, in_phase},
    *,
};

type Reason = UploadReason;

fn with(upload: UploadThresholds) -> Bench {
    let config = Config { upload, ..Config::default() };
    let mut bench =
        Bench::with(state(), Config { congestion: CongestionAlgorithm::NewReno, ..config });
    bench.now += Duration::from_secs(10);
    bench
}

fn reasons(bench: &mut Bench) -> Vec<Reason> {
    let reason = |event| match event {
        Event::Retrieve(reason) => Some(reason),
        _ => None,
    };
    bench.events().into_iter().filter_map(reason).collect()
}

/// Drops half of the transmissions.
fn drop_half(bench: &mut Bench) {
    for _ in 0..10 {
        let start = bench.tcp.snd.una.seq().distance(LOCAL) as u32;
        bench.post(1_460);
        bench.sent();
        while bench.tcp.info(bench.now).retrans == 0 {
            bench.wait_for_timer();
            bench.sent();
        }
        bench.ack(start + 1_460);
    }
}

/// Delivers segments in swapped pairs.
fn reorder_half(bench: &mut Bench) {
    let start = bench.tcp.receiver.nxt().seq().distance(REMOTE) as u32;
    for n in (0..20).step_by(2) {
        bench.input(data(start + n * 10 + 10, &[1; 10]));
        bench.input(data(start + n * 10, &[1; 10]));
    }
}

fn post_small_requests(bench: &mut Bench, consumer: &mut ScriptedConsumer) {
    for n in 0..20 {
        bench.request(consumer, [push_request(n, 15), push_request(n, 0)]);
        let at = bench.tcp.receiver.nxt().seq().distance(REMOTE) as u32;
        bench.feed(consumer, data(at, &[b'x'; 15]));
    }
}

fn indicate_without_requests(bench: &mut Bench, consumer: &mut ScriptedConsumer) {
    for _ in 0..20 {
        let at = bench.tcp.receiver.nxt().seq().distance(REMOTE) as u32;
        bench.feed(consumer, data(at, &[b'x'; 100]));
    }
}

/// Exceeds every threshold, including that of low activity. Returns the reasons of upload requests.
fn exceed_all_thresholds(bench: &mut Bench) -> Vec<Reason> {
    let mut consumer = ScriptedConsumer::default();
    drop_half(bench);
    reorder_half(bench);
    bench.drain(&mut consumer);
    post_small_requests(bench, &mut consumer);
    indicate_without_requests(bench, &mut consumer);
    (0..20).for_each(|_| bench.tcp.note_fragment(bench.now));
    for _ in 0..2 {
        bench.now += Duration::from_secs(60);
        bench.tcp.handle_timeout(bench.now);
    }
    bench.sent();
    bench.drain(&mut consumer);
    consumer.reasons
}

const SHARE: Option<Share> = Some(Share { sample: 10, per_mille: 300 });

fn each() -> [(Reason, UploadThresholds); 6] {
    let none = UploadThresholds::default();
    let activity = Some(Activity { interval: Duration::from_secs(5), bytes: 1_000 });
    [
        (Reason::LowActivity, UploadThresholds { low_activity: activity, ..none }),
        (Reason::HighDropRate, UploadThresholds { high_drop_rate: SHARE, ..none }),
        (
            Reason::SmallIo,
            UploadThresholds { small_io: Some(SmallIo { bytes: 16, requests: 5 }), ..none },
        ),
        (
            Reason::NoBufferPreposting,
            UploadThresholds { no_buffer_preposting: Some(1_000), ..none },
        ),
        (Reason::HighFragmentation, UploadThresholds { high_fragmentation: SHARE, ..none }),
        (Reason::HighOutOfOrderPackets, UploadThresholds { high_out_of_order: SHARE, ..none }),
    ]
}

// CH §8.2, CH-EVT-1: each optional reason has its own threshold. Without one it is never raised, and the connection
// continues after it.
#[test]
fn optional_reasons_have_thresholds() {
    let mut disabled = with(UploadThresholds::default());
    assert!(exceed_all_thresholds(&mut disabled).is_empty());
    for (reason, thresholds) in each() {
        assert!(!reason.is_mandatory());
        let mut bench = with(thresholds);
        let seen = exceed_all_thresholds(&mut bench);
        assert!(
            !seen.is_empty() && seen.iter().all(|seen| *seen == reason),
            "{reason:?}: {seen:?}"
        );
        let at = bench.tcp.receiver.nxt().seq().distance(REMOTE) as u32;
        assert_eq!(bench.input(data(at, b"on")), b"on", "the connection continues");
        let posted = bench.tcp.snd.una.seq().distance(LOCAL) as u32;
        bench.post(5);
        assert_eq!(bench.sent(), [(posted, 5, Flags::ACK | Flags::PSH)]);
    }
}

// CH §8.2: each reason can be selected alone; a mandatory one needs no threshold.
#[test]
fn thresholds_are_selected_by_reason() {
    let none = UploadThresholds::default();
    let mut all = none;
    for (reason, thresholds) in each() {
        let chosen = none.with(reason);
        let is_set = |t: UploadThresholds| {
            [
                t.low_activity.is_some(),
                t.high_drop_rate.is_some(),
                t.small_io.is_some(),
                t.no_buffer_preposting.is_some(),
                t.high_fragmentation.is_some(),
                t.high_out_of_order.is_some(),
            ]
        };
        assert_eq!(is_set(chosen), is_set(thresholds), "{reason:?}");
        all = all.with(reason);
    }
    assert_eq!(all, UploadThresholds::ALL);
    assert_eq!(none.with(Reason::HardwareFailure), none);
}

// One less than a threshold raises no reason.
#[test]
fn thresholds_are_exact() {
    let mut consumer = ScriptedConsumer::default();
    let none = UploadThresholds::default();
    let mut bench =
        with(UploadThresholds { small_io: Some(SmallIo { bytes: 16, requests: 3 }), ..none });
    bench.request(
        &mut consumer,
        [
            push_request(1, 15),
            non_push_request(2, 15),
            push_request(3, 16),
            push_request(4, 15),
            push_request(5, 0),
            push_request(6, 1),
        ],
    );
    assert!(reasons(&mut bench).is_empty(), "fewer than three small requests in a row");
    bench.tcp.post_receive(bench.now, [push_request(7, 1)].into());
    assert_eq!(reasons(&mut bench), [Reason::SmallIo]);

    let mut bench = with(UploadThresholds { no_buffer_preposting: Some(100), ..none });
    bench.feed(&mut consumer, data(0, &[b'x'; 100]));
    bench.request(&mut consumer, [push_request(1, 0)]);
    bench.feed(&mut consumer, data(100, &[b'x'; 100]));
    bench.input_raw(data(0, b""));
    assert!(consumer.reasons.is_empty());
    bench.feed(&mut consumer, data(200, b"x"));
    assert_eq!(consumer.reasons, [Reason::NoBufferPreposting]);

    for (fragments, expected) in [(2, 0), (3, 1)] {
        let mut bench = with(UploadThresholds { high_fragmentation: SHARE, ..none });
        (0..fragments).for_each(|_| bench.tcp.note_fragment(bench.now));
        (fragments..10).for_each(|_| bench.ack(0));
        assert_eq!(reasons(&mut bench).len(), expected);
    }

    let activity = Some(Activity { interval: Duration::from_secs(5), bytes: 100 });
    for (bytes, expected) in [(99, 1), (100, 0)] {
        let mut bench = with(UploadThresholds { low_activity: activity, ..none });
        bench.input(data(0, &vec![1; bytes]));
        bench.sent();
        bench.tcp.handle_timeout(bench.now);
        assert_eq!(reasons(&mut bench).len(), expected, "{bytes} bytes");
        // The next sample is counted separately.
        bench.now += Duration::from_secs(5);
        bench.tcp.handle_timeout(bench.now);
        assert_eq!(reasons(&mut bench).len(), 1);
    }
}

// CH-EVT-2: none in FIN_WAIT_1, FIN_WAIT_2, CLOSE_WAIT, nor in later states.
#[test]
fn half_closed_connection_raises_no_optional_reason() {
    let optional = each().map(|(reason, _)| reason);
    for phase in endings::PHASES.into_iter().filter(|phase| *phase != TcpPhase::Established) {
        let mut bench = in_phase(phase).bench;
        for reason in optional {
            bench.tcp.request_upload(bench.now, reason);
        }
        assert!(reasons(&mut bench).is_empty(), "{phase:?}");
    }
}

// CH-EVT-1: optional reasons are raised at most once per second and per RTT.
#[test]
fn optional_reasons_are_rate_limited() {
    for (srtt, wait) in [(80, 1_000), (24_000, 3_000)] {
        let mut state = state();
        state.tcp.delegated.srtt = srtt;
        let mut bench = Bench::new(state);
        let request = |bench: &mut Bench, millis| {
            bench.now += Duration::from_millis(millis);
            bench.tcp.request_upload(bench.now, Reason::LowActivity);
            reasons(bench).len()
        };
        assert_eq!(request(&mut bench, 0), 1);
        assert_eq!(request(&mut bench, wait - 1), 0);
        assert_eq!(request(&mut bench, 1), 1);
    }
}

// CH §8.2, CH-EVT-1: every mandatory reason stops the connection: no segment in or out, no timer. It is raised once.
#[test]
fn mandatory_reason_stops_connection() {
    for reason in [
        Reason::HardwareFailure,
        Reason::InvalidState,
        Reason::ReceivedUrgentData,
        Reason::TimeoutExpiration,
        Reason::UploadRequested,
    ] {
        assert!(reason.is_mandatory());
        let mut bench = Bench::new(state());
        bench.post(10);
        bench.sent();
        bench.tcp.request_upload(bench.now, reason);
        bench.tcp.request_upload(bench.now, Reason::UploadRequested);
        bench.tcp.request_upload(bench.now, Reason::SmallIo);
        assert_eq!(reasons(&mut bench), [reason]);
        assert!(bench.tcp.is_stopped() && bench.tcp.poll_timeout().is_none());
        bench.post(10);
        assert!(bench.input(Segment { ack: LOCAL + 10, ..data(0, b"abc") }).is_empty());
        assert!(bench.sent().is_empty() && bench.events().is_empty());
        let (state, _) = bench.tcp.into_state(bench.now);
        let delegated = &state.tcp.delegated;
        assert_eq!((delegated.rcv_nxt, delegated.snd_una), (REMOTE, LOCAL));
        assert_eq!(state.send_data.len(), 2);
    }
}

// CH §9.3: urgent data counts if sequence and acknowledgment are acceptable. Data received before is acknowledged by
// the exported state; the urgent data and later data are not.
#[test]
fn urgent_data_stops_connection() {
    let urgent =
        |offset, payload| Segment { flags: Flags::ACK | Flags::URG, ..data(offset, payload) };
    let mut bench = Bench::new(state());
    bench.tcp.receiver.advertise();
    bench.input(data(0, b"abc"));
    bench.input(urgent(70_000, b"!"));
    bench.input(Segment { ack: LOCAL + 1, ..urgent(3, b"!") });
    bench.input(Segment { ack: LOCAL - 70_000, ..urgent(3, b"!") });
    assert!(reasons(&mut bench).is_empty(), "unacceptable segments are discarded");
    bench.sent();
    assert!(bench.input(urgent(3, b"!")).is_empty());
    assert_eq!(reasons(&mut bench), [Reason::ReceivedUrgentData]);
    assert!(bench.input(data(3, b"!d")).is_empty());
    assert!(bench.sent().is_empty());
    let (state, _) = bench.tcp.into_state(bench.now);
    assert_eq!(state.tcp.delegated.rcv_nxt, REMOTE + 3);
}

/// Returns the response of a connection with 100 bytes received to a segment of CH §9.2: ACKs, state and events.
fn response_to(segment: Segment<'_>, syn_uploads: bool) -> alloc::string::String {
    let mut bench = Bench::with(state(), Config { syn_uploads, ..Config::default() });
    bench.input(data(0, &[1; 100]));
    bench.wait_for_timer();
    bench.sent();
    bench.input(segment);
    let sent = bench.sent();
    assert!(sent.iter().all(|s| *s == (0, 0, Flags::ACK)), "{sent:?}");
    let armed = bench.tcp.timers.is_running(Timer::KeepAlive);
    let events: Vec<_> = bench.events().iter().map(event_name).collect();
    let phase = bench.tcp.info(bench.now).phase;
    format!("{} ACK, armed {armed}, {phase:?} {events:?}", sent.len())
}

// CH §9.2, RFC 5961 §3.2, §4.2: the whole matrix. The response to the exact SYN is configurable.
#[test]
fn blind_syns_and_resets_match_matrix() {
    let (nothing, challenge) =
        ("0 ACK, armed false, Established []", "1 ACK, armed true, Established []");
    let reset = r#"0 ACK, armed false, Closed ["Reset", "Closed"]"#;
    let upload = r#"0 ACK, armed false, Closed ["Retrieve"]"#;
    let answer = "1 ACK, armed false, Established []";
    for (flags, offset, syn_uploads, expected) in [
        (Flags::RST, 99, true, nothing),
        (Flags::RST, 100, true, reset),
        (Flags::RST, 101, true, challenge),
        (Flags::RST, 100 + WINDOW - 101, true, challenge),
        (Flags::RST, 100 + WINDOW, true, nothing),
        (Flags::SYN, 99, true, answer),
        (Flags::SYN, 100, true, upload),
        (Flags::SYN, 100, false, challenge),
        (Flags::SYN, 101, true, challenge),
        (Flags::SYN, 100 + WINDOW, true, answer),
    ] {
        let seen = response_to(Segment { flags, ..data(offset, b"") }, syn_uploads);
        assert_eq!(seen, expected, "{flags:?} at {offset}");
    }
}

// CH §9.2: a challenge starts keep-alive in 5 minutes; a later deadline is moved forward, an earlier one kept. The
// imported count is continued. Without a response, the connection is uploaded in state CLOSED. An acceptable segment
// restores the previous timer.
#[test]
fn challenge_ack_starts_keep_alive() {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    for (idle, expected, after) in [
        (None, minutes(5), None),
        (Some(minutes(60)), minutes(5), Some(minutes(60))),
        (Some(minutes(2)), minutes(2), Some(minutes(2))),
    ] {
        let mut state = state();
        state.tcp.cached.keep_alive_enabled = idle.is_some();
        state.tcp.cached.ka_timeout = idle.map_or(0, |idle| idle.as_millis() as u32);
        (state.tcp.cached.ka_probe_count, state.tcp.cached.ka_interval) = (0, 0);
        state.tcp.delegated.keep_alive.count = 7;
        for answered in [true, false] {
            let mut bench = Bench::new(state_with_tcp(&state));
            bench.input(Segment { flags: Flags::SYN, ..data(5, b"") });
            assert_eq!(bench.sent().len(), 1);
            assert_eq!(bench.tcp.poll_timeout(), Some(bench.now + expected));
            if answered {
                bench.input(ack());
                assert_eq!(bench.tcp.poll_timeout(), after.map(|after| bench.now + after));
                continue;
            }
            for _ in 7..10 {
                bench.wait_for_timer();
                assert_eq!(bench.sent(), [(u32::MAX, 0, Flags::ACK)]);
            }
            let state = bench.tcp.tcp_state(bench.now).delegated.keep_alive;
            assert_eq!((state.count, state.timeout_delta), (10, Some(1_000)));
            assert_eq!(bench.wait_for_timer(), Duration::from_secs(1));
            assert_eq!(reasons(&mut bench), [Reason::TimeoutExpiration]);
            let closed = bench.tcp.info(bench.now).phase == TcpPhase::Closed;
            assert_eq!(closed, idle.is_none(), "closed only if the challenge started keep-alive");
        }
    }
}

fn state_with_tcp(model: &ConnectionState) -> Box<ConnectionState> {
    let mut state = state();
    state.tcp = model.tcp;
    state
}

// CH §10.7: at the end of FIN_WAIT_2 the connection is uploaded in state CLOSED, with its requests.
#[test]
fn fin_wait_2_expiry_uploads_closed_state() {
    let mut bench = in_phase(TcpPhase::FinWait2).bench;
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(120));
    assert_eq!(reasons(&mut bench), [Reason::TimeoutExpiration]);
    let mut consumer = ScriptedConsumer::default();
    assert!(bench.request(&mut consumer, [push_request(1, 5)]).is_empty());
    bench.tcp.prepare_upload(bench.now);
    let events = bench.events();
    let [Event::ReceiveComplete(chain)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(chain[0].status, NdisStatus::UPLOAD_IN_PROGRESS);
    let (state, _) = bench.tcp.into_state(bench.now);
    assert_eq!(state.tcp.delegated.state, TcpPhase::Closed);
}

// CH-EVT-3: an upload in TIME_WAIT is configurable. Until the host uploads it, a repeated FIN is acknowledged, and its
// timer runs.
#[test]
fn time_wait_upload_is_requested_once() {
    for time_wait_uploads in [false, true] {
        let mut bench = Bench::with(state(), Config { time_wait_uploads, ..Config::default() });
        bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
        bench.sent();
        bench.ack(1);
        let fin = Segment { flags: ack_fin(), ack: LOCAL + 1, ..data(0, b"") };
        bench.input(fin);
        let asked = if time_wait_uploads { &[Reason::UploadRequested][..] } else { &[] };
        assert_eq!(reasons(&mut bench), asked);
        assert_eq!(bench.sent(), [(1, 0, Flags::ACK)]);
        bench.input(fin);
        assert_eq!(bench.sent(), [(1, 0, Flags::ACK)]);
        assert!(reasons(&mut bench).is_empty(), "requested once");
        assert_eq!(bench.tcp.tcp_state(bench.now).delegated.state, TcpPhase::TimeWait);
        assert_eq!(bench.wait_for_timer(), Config::default().time_wait);
        assert!(matches!(bench.events()[..], [Event::Closed]));
    }
}

// RFC 9293 §3.8.4, CH-UPD-6: keep-alive enabled in TIME-WAIT sends no probe.
#[test]
fn time_wait_sends_no_keep_alive() {
    let mut bench = in_phase(TcpPhase::TimeWait).bench;
    let cached = TcpCached { keep_alive_enabled: true, ka_timeout: 1_000, ..TcpCached::default() };
    bench.tcp.set_cached(bench.now, cached);
    assert_eq!(bench.wait_for_timer(), Config::default().time_wait);
    assert!(bench.sent().is_empty());
    assert!(matches!(bench.events()[..], [Event::Closed]));
}
