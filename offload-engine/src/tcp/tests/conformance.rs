//! Clauses of `docs/conformance/tcp.md` without another specific test.

use etherparse::PacketBuilder;

use super::*;
use crate::frame::{HeaderTemplate, TcpOption, TcpOptions, classify};

const MSS: u32 = 1460;
const ACK: Flags = Flags::ACK;

/// Bytes of the Ethernet, IPv4 and TCP headers without options.
const HEADERS: usize = 14 + 20 + 20;

fn stamped_state() -> Box<ConnectionState> {
    let mut state = state();
    state.tcp.constant.timestamp_enabled = true;
    state.tcp.delegated.ts_time = 9_000;
    state
}

fn stamped(segment: Segment<'_>, value: u32, echo: u32) -> Segment<'_> {
    Segment { timestamps: Some(Timestamps { value, echo }), ..segment }
}

/// Returns a frame to the local host with one byte of payload and the TCP option bytes `options`.
fn frame(options: &[u8]) -> Vec<u8> {
    let mut frame = vec![];
    PacketBuilder::ethernet2([2; 6], [3; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1, 2, 3, 4)
        .options_raw(options)
        .expect("at most 40 bytes")
        .write(&mut frame, b"x")
        .expect("in memory");
    frame
}

// RFC 9293 §3.1 MUST-1, REC-1, RFC 7323 §2.3: a window with its top bit set is large, not negative, and is scaled in
// more than 16 bits.
#[test]
fn windows_are_unsigned() {
    let mut wide = state();
    wide.tcp.delegated.cwnd = 1 << 20;
    wide.tcp.delegated.snd_wnd = 0x8000;
    let mut bench = Bench::new(wide);
    bench.post(1 << 17);
    let sent: usize = bench.transmit(WIRE).iter().map(|t| t.payload_len).sum();
    assert_eq!(sent, 22 * MSS as usize, "full segments within 0x8000");
    bench.input(Segment { window: 0xffff, ..ack() });
    let more: usize = bench.transmit(WIRE).iter().map(|t| t.payload_len).sum();
    assert_eq!(sent + more, 44 * MSS as usize, "full segments within 0xffff");

    let mut scaled = state();
    scaled.tcp.constant.window_scaling_enabled = true;
    scaled.tcp.constant.snd_wind_scale = 14;
    let mut bench = Bench::new(scaled);
    bench.input(Segment { window: 0xffff, ..ack() });
    assert_eq!(bench.tcp.info(bench.now).snd_wnd, 0xffff << 14);
}

/// Returns a connection with a closed window and an unconsumed backlog.
fn closed_window() -> Bench {
    let mut bench = Bench::new(state());
    let payload = [7; WINDOW as usize];
    bench.tcp.handle_segment(bench.now, &data(0, &payload));
    bench.tcp.settle(&payload, false);
    assert_eq!(bench.transmit(WIRE).last().map(|t| t.window), Some(0));
    bench
}

// RFC 9293 §3.4 MUST-66: RST and URG are processed with a closed window.
#[test]
fn closed_window_accepts_reset_and_urgent() {
    let mut bench = closed_window();
    bench.input_raw(Segment { flags: Flags::RST, ..data(WINDOW, b"") });
    assert!(matches!(bench.events()[..], [Event::Reset, Event::Closed]));
    let mut bench = closed_window();
    bench.input_raw(Segment { flags: ACK | Flags::URG, ..data(WINDOW, b"") });
    assert!(matches!(bench.events()[..], [Event::Retrieve(UploadReason::ReceivedUrgentData)]));
}

// RFC 9293 §3.5.3 SHLD-2: a RST with data is valid.
#[test]
fn reset_with_data_is_accepted() {
    let mut bench = Bench::new(state());
    let taken = bench.input(Segment { flags: Flags::RST | ACK, ..data(0, b"go away") });
    assert!(taken.is_empty());
    assert!(matches!(bench.events()[..], [Event::Reset, Event::Closed]));
}

/// Returns a configuration without black-hole detection, so that segments keep their size after timeouts.
fn without_black_hole_detection() -> Config {
    let path = PathOptions { black_hole_detection: false, ..PathOptions::default() };
    Config { path, ..Config::default() }
}

// RFC 9293 §3.8.6 MUST-34, SHLD-15, SHLD-16, SHLD-17: the peer shrinks the window. Nothing new is sent, data within the
// window is retransmitted, and the connection stays open.
#[test]
fn shrunk_window_keeps_connection_open() {
    let mut bench = Bench::with(state(), without_black_hole_detection());
    bench.post(12 * MSS as usize);
    assert_eq!(bench.sent().len(), 10);
    let window = MSS as u16;
    bench.input(Segment { ack: LOCAL + MSS, window, ..ack() });
    assert!(bench.sent().is_empty(), "the usable window is negative");
    let mut sent = vec![];
    while sent.is_empty() {
        bench.wait_for_timer();
        sent = bench.sent();
    }
    // The congestion window grows again: only the peer's window limits retransmissions, and then new data.
    for una in 1..12 {
        let numbers: Vec<_> = sent.iter().map(|(offset, _, _)| offset / MSS).collect();
        assert_eq!(numbers, [una]);
        bench.input(Segment { ack: LOCAL + (una + 1) * MSS, window, ..ack() });
        sent = bench.sent();
        let events = bench.events();
        assert!(events.iter().all(|event| !matches!(event, Event::Retrieve(_))), "{events:?}");
    }
    assert_eq!(bench.tcp.send_outstanding(), 0);
}

// RFC 9293 §3.2 MUST-64, §3.1 MUST-5, MUST-6: options are parsed at any offset, and unknown ones skipped.
#[test]
fn options_need_no_alignment() {
    let stamps = [8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
    for ahead in [&[][..], &[1], &[1, 1, 1], &[253, 3, 9], &[2, 4, 5, 180, 1]] {
        let options = [ahead, &stamps].concat();
        let bytes = frame(&options);
        let found = classify(&bytes).expect("TCP");
        let mut sack = [SackBlock { start: SeqNum(0), end: SeqNum(0) }; 4];
        let segment = found.segment(0, &mut sack);
        assert_eq!(segment.timestamps, Some(Timestamps { value: 7, echo: 9 }), "{ahead:?}");
        assert_eq!(segment.payload, b"x");
    }
}

// RFC 9293 §3.1 MUST-68: an unknown kind is skipped by its length; EOL and NOP have none.
#[test]
fn unknown_options_are_skipped_by_length() {
    fn kinds(bytes: &[u8]) -> Vec<Option<TcpOption<'_>>> {
        TcpOptions::new(bytes).map(Result::ok).collect()
    }
    for kind in 2..=255 {
        let bytes = [kind, 3, 0xff, 4, 2, 0];
        let seen = kinds(&bytes);
        let last = seen.last().copied().flatten();
        assert_eq!((seen.len(), last), (2, Some(TcpOption::SackPermitted)), "kind {kind}");
    }
    assert_eq!(kinds(&[1, 1, 4, 2]), [Some(TcpOption::SackPermitted)]);
    assert!(kinds(&[0, 4, 2]).is_empty(), "bytes after EOL are padding");
}

// RFC 9293 §3.1: the receiver ignores the reserved bits.
#[test]
fn reserved_bits_are_ignored() {
    let mut bytes = frame(&[]);
    bytes[HEADERS - 8] |= 0x0f;
    let found = classify(&bytes).expect("TCP");
    let mut sack = [SackBlock { start: SeqNum(0), end: SeqNum(0) }; 4];
    let segment = found.segment(0, &mut sack);
    assert_eq!((segment.payload, segment.seq), (&b"x"[..], SeqNum(3)));
}

// RFC 9293 §3.1: the sender clears the reserved bits; MUST-69: no byte of the option space is undefined; §3.2 MUST-65:
// no MSS option except in a SYN.
#[test]
fn headers_are_well_formed() {
    for timestamp in [false, true] {
        let mut state = state();
        state.tcp.constant.timestamp_enabled = timestamp;
        state.tcp.constant.sack_enabled = true;
        let mut headers =
            HeaderTemplate::new(&state.neighbor, &state.path, &state.tcp, MacAddress([2; 6]));
        let mut bench = Bench::new(state);
        bench.post(3_000);
        bench.input(stamped(data(10, b"x"), 1, 1));
        let sent = bench.transmit(WIRE);
        assert!(sent.iter().any(|t| t.sack_count > 0) && sent.iter().any(|t| t.payload_len > 0));
        for transmit in sent {
            let mut out = [0xee; crate::frame::HEADER_BYTES_MAX];
            let segment = transmit.header();
            let len = headers.write(&mut out, &segment, 1);
            assert_eq!(out[HEADERS - 8] & 0x0f, 0, "reserved");
            assert_eq!(usize::from(out[HEADERS - 8] >> 4) * 4, len - (HEADERS - 20));
            let mut covered = 0;
            for option in TcpOptions::new(&out[HEADERS..len]) {
                covered += match option.expect("valid option length") {
                    TcpOption::Timestamps(_) => 12,
                    TcpOption::Sack(blocks) => 4 + 8 * blocks.iter().count(),
                    other => panic!("{other:?} is not allowed here"),
                };
            }
            assert_eq!(covered, len - HEADERS, "options and their NOPs fill the option space");
        }
    }
}

// RFC 9293 §3.10.7.4: data right of the window is cut off and not acknowledged.
#[test]
fn data_beyond_the_window_is_cut() {
    let mut bench = Bench::new(state());
    let taken = bench.input(data(0, &[5; WINDOW as usize + 100]));
    assert_eq!(taken.len(), WINDOW as usize);
    assert_eq!(bench.transmit(WIRE).last().map(|t| t.ack), Some(REMOTE + WINDOW));
}

// RFC 9293 §3.8.4 MUST-24, MUST-25, MUST-27, MUST-28, RFC 1122 §4.2.3.6: keep-alive is disabled by default, two hours
// are the default interval, and both are configurable.
#[test]
fn keep_alive_is_disabled_by_default() {
    let cached = TcpCached::default();
    assert!(!cached.keep_alive_enabled);
    assert!(cached.ka_timeout >= 2 * 60 * 60 * 1000);
    let mut bench = Bench::new(state());
    bench.input(ack());
    assert!(bench.tcp.poll_timeout().is_none());
    let on = TcpCached { keep_alive_enabled: true, ka_timeout: 30_000, ..bench.tcp.cached };
    bench.tcp.set_cached(bench.now, on);
    assert_eq!(bench.tcp.poll_timeout(), Some(bench.now + Duration::from_secs(30)));
    bench.tcp.set_cached(bench.now, TcpCached { keep_alive_enabled: false, ..on });
    assert!(bench.tcp.poll_timeout().is_none());
}

// RFC 9293 §3.8.4 MUST-26: while data is outstanding, or blocked by a closed window, its own timer probes the peer. No
// keep-alive probe is sent.
#[test]
fn outstanding_data_suppresses_keep_alive() {
    let mut short_keep_alive = state();
    let cached = &mut short_keep_alive.tcp.cached;
    (cached.keep_alive_enabled, cached.ka_timeout, cached.ka_interval) = (true, 300, 300);
    for window in [WINDOW as u16, 0] {
        let mut bench = Bench::new(state_with_tcp(&short_keep_alive));
        bench.input(Segment { window, ..ack() });
        bench.post(100);
        bench.sent();
        for _ in 0..12 {
            bench.wait_for_timer();
            let probes = bench.sent();
            assert!(probes.iter().all(|(offset, _, _)| *offset == 0), "{probes:?}");
        }
        assert!(bench.events().is_empty(), "keep-alive does not end the connection");
    }
}

// The same with an idle time of 0, which a consumer may set: the timer is never due again immediately, or a run loop
// that handles due timers would not return.
#[test]
fn zero_idle_time_is_one_second() {
    let mut short_keep_alive = state();
    let cached = &mut short_keep_alive.tcp.cached;
    (cached.keep_alive_enabled, cached.ka_timeout, cached.ka_interval) = (true, 0, 0);
    for len in [0, 100] {
        let mut bench = Bench::new(state_with_tcp(&short_keep_alive));
        bench.post(len);
        bench.sent();
        for _ in 0..4 {
            bench.wait_for_timer();
            bench.sent();
            assert!(bench.tcp.poll_timeout() > Some(bench.now), "{len} bytes outstanding");
        }
    }
}

fn state_with_tcp(model: &ConnectionState) -> Box<ConnectionState> {
    let mut copy = state();
    copy.tcp = model.tcp;
    copy
}

// RFC 6298 §5.1 to §5.3: the timer starts with data, restarts with each acknowledgment of new data, and stops when all
// is acknowledged.
#[test]
fn retransmission_timer_follows_rfc_6298() {
    let timer = |bench: &Bench| bench.tcp.timers.deadline(Timer::Retransmit);
    let mut bench = Bench::new(state());
    assert!(timer(&bench).is_none());
    bench.post(3 * MSS as usize);
    bench.sent();
    assert_eq!(timer(&bench), Some(bench.now + Duration::from_secs(1)), "5.1");
    bench.now += Duration::from_millis(100);
    bench.ack(MSS);
    // A first sample of 100 ms gives 100 + 4 * 50.
    assert_eq!(timer(&bench), Some(bench.now + Duration::from_millis(300)), "5.3");
    let running = timer(&bench);
    bench.now += Duration::from_millis(100);
    bench.ack(MSS);
    assert_eq!(timer(&bench), running, "a duplicate ACK does not restart the timer");
    bench.ack(3 * MSS);
    assert!(timer(&bench).is_none(), "5.2");
}

// RFC 5681 §3.1: a segment that times out twice reduces the threshold once; RFC 6298 §5.5: the timeout doubles each
// time.
#[test]
fn second_timeout_keeps_threshold() {
    let mut bench = Bench::with(state(), without_black_hole_detection());
    bench.post(10 * MSS as usize);
    bench.sent();
    let mut seen = vec![];
    for _ in 0..3 {
        bench.wait_for_timer();
        bench.sent();
        let info = bench.tcp.info(bench.now);
        assert_eq!(info.snd_cwnd, u64::from(MSS));
        seen.push((info.snd_ssthresh, info.rto.as_millis()));
    }
    assert!(seen[0].0.is_some_and(|it| it >= 2 * u64::from(MSS) && it < 10 * u64::from(MSS)));
    assert!(seen.iter().all(|(ssthresh, _)| *ssthresh == seen[0].0), "{seen:?}");
    assert_eq!(seen.iter().map(|(_, rto)| *rto).collect::<Vec<_>>(), [2_000, 4_000, 8_000]);
}

// RFC 5681 §4.2: at most one ACK per segment, for any order of arrival.
#[test]
fn segments_cause_at_most_one_ack() {
    for sack in [false, true] {
        let mut state = state();
        state.tcp.constant.sack_enabled = sack;
        let mut bench = Bench::new(state);
        let (mut random, mut acks) = (oorandom::Rand32::new(5), 0);
        for segments in 1..2_000 {
            let offset = random.rand_range(0..100) * 500;
            bench.input(data(offset, &[3; 500]));
            acks += bench.transmit(WIRE).len();
            assert!(acks <= segments, "{acks} for {segments}");
        }
        assert!(acks > 1_000, "out-of-order and duplicate data is acknowledged");
    }
}

// RFC 7323 §3.2: once negotiated, timestamps are in every segment, including the RST.
#[test]
fn every_segment_has_timestamps() {
    let mut bench = Bench::new(stamped_state());
    let mut seen = vec![];
    bench.post(2_000);
    seen.extend(bench.transmit(WIRE));
    bench.input(stamped(Segment { ack: LOCAL + 2_000, ..data(0, b"xx") }, 5, 9_000));
    bench.input(stamped(data(7, b"x"), 6, 9_000));
    seen.extend(bench.transmit(WIRE));
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(8, b""));
    seen.extend(bench.transmit(WIRE));
    bench.tcp.disconnect(bench.now, Disconnect::Abortive, list(9, b""));
    seen.extend(bench.transmit(WIRE));
    let of = |flag| seen.iter().filter(|t| t.flags.contains(flag)).count();
    assert_eq!((of(Flags::RST), of(Flags::FIN)), (1, 1));
    assert!(seen.iter().any(|t| t.payload_len == 0 && t.flags == ACK));
    for transmit in &seen {
        let stamps = transmit.timestamps.expect("timestamps in every segment");
        assert_eq!(stamps.value, 9_000);
    }
    assert_eq!(seen.last().and_then(|t| t.timestamps).map(|t| t.echo), Some(5));
}

// RFC 7323 §3.2: an option that was not negotiated is ignored, and not sent.
#[test]
fn unnegotiated_timestamps_are_ignored() {
    let mut bench = Bench::new(state());
    assert_eq!(bench.input(stamped(data(0, b"a"), 100, 1)), b"a");
    assert_eq!(bench.input(stamped(data(1, b"b"), 1, 1)), b"b", "no PAWS");
    bench.post(1);
    assert!(bench.transmit(WIRE).iter().all(|t| t.timestamps.is_none()));
}

// RFC 7323 §4.1: an echo is a sample only if SND.UNA advances.
#[test]
fn echo_without_progress_is_not_sampled() {
    let mut bench = Bench::new(stamped_state());
    bench.post(MSS as usize);
    bench.sent();
    bench.now += Duration::from_millis(30);
    bench.input(stamped(ack(), 1, 9_000));
    assert_eq!(bench.tcp.info(bench.now).rtt, None);
    bench.now += Duration::from_millis(10);
    bench.input(stamped(Segment { ack: LOCAL + MSS, ..ack() }, 1, 9_000));
    assert!(bench.tcp.info(bench.now).rtt.is_some());
}

// RFC 7323 §5.2: PAWS does not apply to a RST; §5.3 R1: a segment it rejects is acknowledged.
#[test]
fn paws_does_not_apply_to_resets() {
    let mut state = stamped_state();
    state.tcp.delegated.ts_recent = 1_000;
    let mut bench = Bench::new(state);
    assert!(bench.input(stamped(data(0, b"old"), 999, 9_000)).is_empty());
    let answers = bench.transmit(WIRE);
    assert_eq!((answers.len(), answers[0].ack), (1, REMOTE));
    bench.input(stamped(Segment { flags: Flags::RST, ..data(0, b"") }, 999, 0));
    assert!(matches!(bench.events()[..], [Event::Reset, Event::Closed]));
}

// RFC 9293 §3.8.6.3 MUST-40: an ACK is delayed by less than half a second.
#[test]
fn ack_delay_is_below_half_a_second() {
    let mut bench = Bench::new(state());
    // The quick ACKs of a new connection are used up.
    for n in 0..100 {
        bench.input(data(n, b"x"));
        bench.sent();
    }
    bench.run_all_timers();
    bench.input(data(100, b"x"));
    assert!(bench.sent().is_empty(), "delayed");
    assert!(bench.wait_for_timer() < Duration::from_millis(500));
    assert_eq!(bench.sent().len(), 1);
}

impl Bench {
    /// Handles timers until none runs.
    fn run_all_timers(&mut self) {
        while self.tcp.poll_timeout().is_some() {
            self.wait_for_timer();
            self.sent();
        }
    }
}

// RFC 9293 §3.6.1 MUST-13, §3.10.7.4: TIME-WAIT has a duration, acknowledges a repeated FIN, and expires.
#[test]
fn time_wait_acknowledges_fin_and_expires() {
    let mut bench = Bench::new(state());
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    bench.sent();
    let fin = Segment { flags: ACK | Flags::FIN, ack: LOCAL + 1, ..ack() };
    bench.input(fin);
    assert_eq!(bench.sent(), [(1, 0, ACK)]);
    for _ in 0..3 {
        bench.now += Config::default().time_wait - Duration::from_secs(1);
        bench.input(fin);
        assert_eq!(bench.sent(), [(1, 0, ACK)]);
        assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::TimeWait);
    }
    assert_eq!(bench.wait_for_timer(), Config::default().time_wait);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::Closed);
}

// RFC 2018 §4, RFC 2883 §4: without SACK permitted no blocks are sent, and received ones are ignored.
#[test]
fn sack_needs_negotiation() {
    let mut bench = Bench::new(state());
    bench.input(data(10, b"x"));
    bench.input(data(10, b"x"));
    assert!(bench.transmit(WIRE).iter().all(|t| t.sack_count == 0));
    bench.post(4 * MSS as usize);
    bench.sent();
    let blocks = [SackBlock { start: LOCAL + MSS, end: LOCAL + 4 * MSS }];
    bench.input(Segment { sack: &blocks, seq: REMOTE, ..ack() });
    assert!(bench.sent().is_empty(), "one duplicate ACK is not enough");
}

// RFC 9293 §3.6.1: a half-closed connection continues to send.
#[test]
fn half_closed_connection_continues_to_send() {
    let mut bench = Bench::new(state());
    bench.input(Segment { flags: ACK | Flags::FIN, ..ack() });
    bench.sent();
    bench.post(3 * MSS as usize);
    assert_eq!(bench.sent().len(), 3);
    bench.input(Segment { seq: REMOTE + 1, ack: LOCAL + 3 * MSS, ..ack() });
    assert_eq!(completions(&bench.events()), [(1, NdisStatus::SUCCESS, 3 * MSS as usize)]);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::CloseWait);
}

// RFC 9293 §3.8.3 SHLD-11, RFC 1122 §4.2.3.5: R2 is at least 100 s, also on the shortest path.
#[test]
fn r2_is_at_least_100_seconds() {
    let mut bench = Bench::new(state());
    bench.post(MSS as usize);
    bench.sent();
    bench.now += Duration::from_micros(100);
    bench.ack(MSS);
    bench.post(MSS as usize);
    bench.sent();
    let start = bench.now;
    while !bench.events().iter().any(|event| matches!(event, Event::Retrieve(_))) {
        bench.wait_for_timer();
        bench.sent();
    }
    let lasted = bench.now - start;
    assert!(lasted >= Duration::from_secs(100), "{lasted:?}");
}

// RFC 7323 §2.4: rounding by the scale may advertise less than before, by less than a unit. Data in any advertised
// window is accepted.
#[test]
fn advertised_window_is_honored() {
    let mut coarse = state();
    let constant = &mut coarse.tcp.constant;
    (constant.window_scaling_enabled, constant.rcv_wind_scale) = (true, 14);
    coarse.tcp.cached.initial_rcv_wnd = 12 << 14;
    coarse.tcp.delegated.rcv_wnd = 12 << 14;
    let config = Config { ack_frequency: 1, rcv_wnd_max: 0, ..Config::default() };
    let mut bench = Bench::with(coarse, config);
    let mut edges = vec![];
    // The consumer takes only one byte.
    let mut arrive = |bench: &mut Bench, from: u32, to: u32, taken: usize| {
        let payload = vec![7; (to - from) as usize];
        let received = bench.tcp.handle_segment(bench.now, &data(from, &payload));
        assert_eq!(received.in_order, 0..payload.len(), "the whole segment is accepted");
        bench.tcp.settle(&payload[taken..], false);
        let edge =
            |t: Transmit| t.ack.distance(REMOTE).cast_unsigned() + (u32::from(t.window) << 14);
        edges.extend(bench.transmit(WIRE).into_iter().map(edge));
        edges.iter().copied().max().unwrap_or(0)
    };
    arrive(&mut bench, 0, 7_373, 1);
    let advertised = arrive(&mut bench, 7_373, 17_106, 0);
    arrive(&mut bench, 17_106, advertised, 0);
    assert!(edges[1] < edges[0] && edges[0] - edges[1] < 1 << 14, "{edges:?}");
}
