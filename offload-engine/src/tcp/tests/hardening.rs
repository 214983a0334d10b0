//! Behavior under attack: no effect on the connection, and bounded cost.

use oorandom::Rand64;

use super::*;

const ACK: Flags = Flags::ACK;

/// Window of 256 KiB, scaled by 7.
const LARGE: u32 = 1 << 18;

fn large() -> Box<ConnectionState> {
    let mut state = state();
    let constant = &mut state.tcp.constant;
    (constant.window_scaling_enabled, constant.rcv_wind_scale) = (true, 7);
    constant.sack_enabled = true;
    state.tcp.cached.initial_rcv_wnd = LARGE;
    state.tcp.delegated.rcv_wnd = LARGE;
    state
}

/// Byte of the peer's stream at `offset`.
fn byte(offset: u32) -> u8 {
    (offset % 251) as u8
}

fn stream(start: u32, len: u32) -> Vec<u8> {
    (start..start + len).map(byte).collect()
}

/// Processes a segment with a consumer that refuses all data.
fn refuse(bench: &mut Bench, segment: &Segment<'_>) {
    let received = bench.tcp.handle_segment(bench.now, segment);
    bench.tcp.settle(&segment.payload[received.in_order], received.push);
}

/// Returns a data segment with a PSH.
fn pushed(offset: u32, payload: &[u8]) -> Segment<'_> {
    Segment { flags: ACK | Flags::PSH, ..data(offset, payload) }
}

/// Consumes the backlog.
fn consume_backlog(bench: &mut Bench) -> Vec<u8> {
    let mut taken = vec![];
    while let Some((data, _)) = bench.tcp.backlog() {
        taken.extend_from_slice(data);
        let count = data.len();
        bench.tcp.backlog_consumed(count);
    }
    taken
}

// RFC 5961 §7, CH §9.2: at any rate, RSTs, SYNs, unacceptable acknowledgments and empty strays have limited responses:
// one, one per 3 s, and 16 per second in total.
#[test]
fn floods_have_limited_responses() {
    let kinds: [(&str, Segment<'_>, usize); 5] = [
        ("RST in the window", Segment { flags: Flags::RST, ..data(100, b"") }, 1),
        ("SYN in the window", Segment { flags: Flags::SYN, ..data(100, b"") }, 4),
        ("SYN outside", Segment { flags: Flags::SYN, ..data(1 << 30, b"") }, 160),
        ("wrong ACK", Segment { ack: LOCAL + 1, ..data(0, b"x") }, 160),
        ("empty stray", data(1 << 30, b""), 160),
    ];
    for (name, segment, expected) in kinds {
        let mut bench = Bench::new(state());
        let mut answers = 0;
        for _ in 0..10_000 {
            bench.input(segment);
            answers += bench.transmit(WIRE).len();
            bench.now += Duration::from_millis(1);
        }
        assert_eq!(answers, expected, "{name}");
        assert_eq!(bench.tcp.info(bench.now).bytes_received, 0);
        assert_eq!(bench.input(data(0, b"fine")), b"fine", "{name}");
    }
}

// RFC 5961 §3.2, §4.2, §5.2: an off-path attacker that tries every sequence number 10,000 bytes apart resets nothing
// and opens nothing. It inserts data only if the acknowledgment is acceptable too.
#[test]
fn blind_attacks_fail() {
    let mut bench = Bench::new(state());
    bench.post(100);
    bench.sent();
    for place in (500..u32::MAX - 10_000).step_by(10_000) {
        for flags in [Flags::RST, Flags::SYN] {
            bench.input_raw(Segment { flags, seq: SeqNum(place), ..ack() });
        }
        let spoof = Segment { seq: SeqNum(place), ack: SeqNum(LOCAL.0 ^ 0x4000_0000), ..ack() };
        assert!(bench.input(Segment { payload: b"evil", ..spoof }).is_empty());
        if place % 1_000_000 == 500 {
            bench.transmit(WIRE);
        }
    }
    assert!(bench.events().is_empty());
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::Established);
    assert_eq!(bench.input(Segment { payload: b"fine", ..ack() }), b"fine");
}

fn stamped(state: &mut ConnectionState) {
    state.tcp.constant.timestamp_enabled = true;
    state.tcp.delegated.ts_time = 5_000_000;
    state.tcp.delegated.ts_recent = 10;
}

// RFC 7323 §5.2, §5.3: a segment with an old timestamp is dropped with data, FIN and acknowledgment, also across the
// wrap of the timestamp clock, and is acknowledged. A RST is exempt.
#[test]
fn old_timestamps_are_rejected() {
    let old = |value| Some(Timestamps { value, echo: 0 });
    let fresh = || {
        let mut state = state();
        stamped(&mut state);
        let mut bench = Bench::new(state);
        bench.post(10);
        bench.sent();
        bench
    };
    for value in [9, u32::MAX, 10 + (1 << 31)] {
        let mut bench = fresh();
        let segment = Segment { timestamps: old(value), ack: LOCAL + 10, ..data(0, b"old") };
        assert!(bench.input(Segment { flags: ACK | Flags::FIN, ..segment }).is_empty(), "{value}");
        assert_eq!(bench.tcp.send_outstanding(), 10);
        assert_eq!(bench.sent(), [(10, 0, ACK)], "R1");
        assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::Established);
        bench.input(Segment { timestamps: old(value), flags: Flags::RST, ..ack() });
        assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::Closed);
    }
    for value in [10, 11, 9 + (1 << 31)] {
        let newer = Segment { timestamps: old(value), ..data(0, b"new") };
        assert_eq!(fresh().input(newer), b"new", "{value}");
    }
    // §5.5: a TS.Recent of 24 days is invalid; one a second younger is valid.
    for (days_less, taken) in [(1, 0), (0, 3)] {
        let mut bench = fresh();
        bench.now += Duration::from_secs(24 * 86_400 - days_less);
        let segment = Segment { timestamps: old(9), ..data(0, b"old") };
        assert_eq!(bench.input(segment).len(), taken);
    }
}

// RFC 7323 §3.2: a segment without negotiated timestamps is accepted, as in Linux, or dropped silently, as recommended.
// It never ends the connection, and a RST needs none.
#[test]
fn missing_timestamps_follow_configuration() {
    for required in [false, true] {
        let mut state = state();
        stamped(&mut state);
        let config = Config { timestamps_required: required, ..Config::default() };
        let mut bench = Bench::with(state, config);
        assert_eq!(bench.input(data(0, b"bare")).is_empty(), required);
        assert_eq!(bench.tcp.timers.is_running(Timer::DelayedAck), !required);
        let at = if required { 0 } else { 4 };
        let timestamps = Some(Timestamps { value: 11, echo: 0 });
        assert_eq!(bench.input(Segment { timestamps, ..data(at, b"good") }), b"good");
        bench.input(Segment { flags: Flags::RST, ..data(at + 4, b"") });
        assert!(matches!(bench.events()[..], [Event::Reset, Event::Closed]));
    }
}

// RFC 9293 §3.8.6: data in the advertised window is kept: a whole window after one missing byte.
#[test]
fn whole_window_is_kept_after_one_missing_byte() {
    let mut bench = Bench::new(large());
    let mut starts: Vec<u32> = (1..LARGE).step_by(1460).collect();
    // Within each part, the even segments are sent first.
    for part in starts.chunks_mut(60) {
        part.sort_by_key(|start| start / 1460 % 2);
    }
    for start in starts {
        let len = 1460.min(LARGE - start);
        bench.input(data(start, &stream(start, len)));
    }
    let sent = bench.transmit(WIRE);
    let last = sent.last().expect("an ACK was sent");
    let block = last.sack[0];
    assert_eq!((last.sack_count, block.start, block.end), (1, REMOTE + 1, REMOTE + LARGE));
    assert!(bench.input(data(0, &stream(0, 1))) == stream(0, LARGE));
}

// Memory and time: a flood of one-byte segments with PSH, in order to a consumer that takes nothing, and out of order
// after a gap. The heap stays below `receive_memory_max`, no acknowledged byte is dropped, and the connection works.
#[test]
fn tiny_segment_flood_has_bounded_cost() {
    let config = Config::default();
    let attack = |random: &mut Rand64| {
        let mut bench = Bench::with(large(), config);
        let half = LARGE / 2;
        for offset in 0..half {
            refuse(&mut bench, &pushed(offset, &[byte(offset)]));
        }
        // The byte at `half` is missing. Ranges grow backward, forward, and by overlaps.
        for _ in 0..half {
            let start = half + 1 + random.rand_range(0..u64::from(half) - 8) as u32;
            refuse(&mut bench, &pushed(start, &stream(start, 2)));
        }
        // As many gaps as allowed; each pass fills the reachable ones.
        for offset in (half + 1..LARGE).rev().chain(half + 1..LARGE) {
            refuse(&mut bench, &pushed(offset, &[byte(offset)]));
        }
        bench.transmit(WIRE);
        bench
    };
    let mut bench = attack(&mut Rand64::new(1));
    let heap = bench.tcp.receiver.heap();
    assert!(heap > LARGE as usize, "all data is kept: {heap}");
    assert!(heap <= config.receive_memory_max(LARGE as usize), "{heap}");

    let mut bench = attack(&mut Rand64::new(1));
    refuse(&mut bench, &data(LARGE / 2, &[byte(LARGE / 2)]));
    assert!(consume_backlog(&mut bench) == stream(0, LARGE));
    bench.transmit(WIRE);
    assert_eq!(bench.input(data(LARGE, &stream(LARGE, 9))), stream(LARGE, 9));
}

// A flood of gaps from the peer: every second byte of the window. Gaps are bounded, refused data is not acknowledged
// (RFC 2018 §8), and the stream is still completed.
#[test]
fn gaps_are_bounded() {
    let config = Config::default();
    let mut bench = Bench::with(large(), config);
    let gaps = config.reassembly_gaps_max as u32;
    for n in 0..10_000 {
        bench.input(data(1 + 2 * n, &[byte(1 + 2 * n)]));
    }
    let sent = bench.transmit(WIRE);
    let newest = sent.last().expect("an ACK was sent").sack[0].end;
    assert_eq!(newest, REMOTE + 2 * gaps, "end of the last range kept");
    for n in 0..gaps - 1 {
        assert_eq!(bench.input(data(2 * n, &[byte(2 * n)])), stream(2 * n, 2));
    }
    let rest = 2 * (gaps - 1);
    assert_eq!(bench.input(data(rest, &stream(rest, 1000))), stream(rest, 1000));
    assert!(bench.tcp.receiver.heap() < 512 * 1024);
}

// Receive side of CVE-2019-11477, and RFC 5681 §4.2: pending duplicate ACKs for a peer without SACK are bounded.
#[test]
fn duplicate_acks_are_bounded() {
    let mut bench = Bench::new(state());
    for n in 0..10_000 {
        bench.input(data(1 + n, &[1]));
    }
    assert_eq!(bench.transmit(WIRE).len(), 64);
}

// Size of an idle connection without queues: tables are allocated when needed.
#[test]
fn idle_connection_size_is_bounded() {
    let mut bench = Bench::new(state());
    bench.input(data(0, &[1; 1460]));
    bench.sent();
    assert_eq!(bench.tcp.receiver.heap(), 0);
    let size = size_of::<Connection>();
    assert!(size <= 3072, "{size} bytes");
    std::println!("a connection has {size} bytes, its receive side {}", size_of::<Receiver>());
}
