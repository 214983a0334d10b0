//! States after ESTABLISHED: effect of each input in each state, and the ends of connections.

use alloc::{
    format,
    string::{String, ToString},
};

use super::*;

const ACK: Flags = Flags::ACK;

pub(super) fn ack_fin() -> Flags {
    ACK | Flags::FIN
}

/// Connection in a phase, reached by segments, after 10 bytes in each direction.
pub(super) struct ConnectionInPhase {
    pub(super) bench: Bench,
    /// Offsets of SND.UNA, SND.MAX and RCV.NXT from the first sequence numbers.
    una: u32,
    max: u32,
    nxt: u32,
}

pub(super) const PHASES: [TcpPhase; 7] = [
    TcpPhase::Established,
    TcpPhase::FinWait1,
    TcpPhase::FinWait2,
    TcpPhase::CloseWait,
    TcpPhase::Closing,
    TcpPhase::LastAck,
    TcpPhase::TimeWait,
];

pub(super) fn in_phase(phase: TcpPhase) -> ConnectionInPhase {
    let mut bench = Bench::new(state());
    bench.post(10);
    bench.sent();
    bench.ack(10);
    bench.input(data(0, &[0; 10]));
    bench.wait_for_timer();
    bench.sent();
    let close = |bench: &mut Bench| {
        bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
        bench.sent();
    };
    let fin = |bench: &mut Bench, ack: u32| {
        bench.input(Segment { flags: ack_fin(), ack: LOCAL + ack, ..data(10, b"") });
    };
    let (una, max, nxt) = match phase {
        TcpPhase::Established | TcpPhase::Closed => (10, 10, 10),
        TcpPhase::FinWait1 => {
            close(&mut bench);
            (10, 11, 10)
        }
        TcpPhase::FinWait2 => {
            close(&mut bench);
            bench.input(Segment { ack: LOCAL + 11, ..data(10, b"") });
            (11, 11, 10)
        }
        TcpPhase::CloseWait => {
            fin(&mut bench, 10);
            (10, 10, 11)
        }
        TcpPhase::Closing => {
            close(&mut bench);
            fin(&mut bench, 10);
            (10, 11, 11)
        }
        TcpPhase::LastAck => {
            fin(&mut bench, 10);
            close(&mut bench);
            (10, 11, 11)
        }
        TcpPhase::TimeWait => {
            close(&mut bench);
            bench.input(Segment { ack: LOCAL + 11, ..data(10, b"") });
            fin(&mut bench, 11);
            (11, 11, 11)
        }
    };
    bench.sent();
    bench.events();
    assert_eq!(bench.tcp.info(bench.now).phase, phase);
    ConnectionInPhase { bench, una, max, nxt }
}

/// Processes one input; returns its effects: state, segments sent immediately, bytes, events.
fn outcome(phase: TcpPhase, input: &str) -> String {
    let ConnectionInPhase { mut bench, una, max, nxt } = in_phase(phase);
    let plain = Segment { ack: LOCAL + una, ..data(nxt, b"") };
    let rst = |offset: u32| Segment { flags: Flags::RST, ..data(offset, b"") };
    let segment = match input {
        "new data" => Segment { payload: b"fresh", ..plain },
        "old data" => Segment { payload: b"stale", ack: LOCAL + una, ..data(5, b"") },
        "data beyond the window" => Segment { payload: b"far", seq: REMOTE + 70_000, ..plain },
        "old ACK" => Segment { ack: LOCAL + 3, ..plain },
        "ACK of everything" => Segment { ack: LOCAL + max, ..plain },
        "ACK beyond SND.MAX" => Segment { ack: LOCAL + max + 1, ..plain },
        "window update" => Segment { window: 5_000, ..plain },
        "FIN" => Segment { flags: ack_fin(), ack: LOCAL + una, ..data(10, b"") },
        "FIN with data out of order" => {
            Segment { flags: ack_fin(), payload: b"end", seq: REMOTE + nxt + 4, ..plain }
        }
        "FIN with all acknowledged" => {
            Segment { flags: ack_fin(), ack: LOCAL + max, ..data(10, b"") }
        }
        "data without ACK" => Segment { flags: Flags::PSH, payload: b"fresh", ..plain },
        "urgent data" => Segment { flags: ACK | Flags::URG, payload: b"!", ..plain },
        "urgent data outside" => {
            Segment { flags: ACK | Flags::URG, payload: b"!", seq: REMOTE + 70_000, ..plain }
        }
        "RST at RCV.NXT" => rst(nxt),
        "RST at the right edge" => rst(bench.tcp.receiver.edge().seq().distance(REMOTE) as u32),
        "RST in the window" => rst(nxt + 5),
        "RST outside" => rst(nxt + 70_000),
        "SYN" => Segment { flags: Flags::SYN, seq: REMOTE + 7_000, ..ack() },
        "SYN and ACK" => Segment { flags: ACK | Flags::SYN, seq: REMOTE + 7_000, ..plain },
        other => panic!("{other}"),
    };
    let taken = bench.input(segment).len();
    let sent = bench.sent();
    let mut effects: Vec<String> = vec![];
    let now = bench.tcp.info(bench.now).phase;
    effects.extend((now != phase).then(|| format!("{now:?}")));
    assert!(sent.iter().all(|(seq, len, flags)| (*seq, *len, *flags) == (max, 0, ACK)), "{sent:?}");
    effects.extend(sent.iter().map(|_| "ACK".to_string()));
    let later = bench.tcp.timers.is_running(Timer::DelayedAck);
    effects.extend(later.then(|| "ACK later".to_string()));
    effects.extend((taken > 0).then(|| format!("{taken} bytes")));
    let window = bench.tcp.info(bench.now).snd_wnd;
    effects.extend((window != u64::from(WINDOW)).then(|| format!("window {window}")));
    effects.extend(bench.events().iter().map(|event| event_name(event).to_string()));
    effects.join(", ")
}

pub(super) fn event_name(event: &Event) -> &'static str {
    match event {
        Event::SendBacklogChange(_) => "SendBacklogChange",
        Event::ReceiveComplete(_) => "ReceiveComplete",
        Event::SendComplete(_) => "SendComplete",
        Event::DisconnectComplete(list) if list.status == NdisStatus::SUCCESS => "Disconnected",
        Event::DisconnectComplete(_) => "DisconnectAborted",
        Event::PeerClosed => "PeerClosed",
        Event::Reset => "Reset",
        Event::Retrieve(_) => "Retrieve",
        Event::Closed => "Closed",
    }
}

/// Input, states, and effects; the effects name a state if it changes.
const TABLE: [(&str, &[TcpPhase], &str); 29] = {
    use TcpPhase::{CloseWait, Closing, Established, FinWait1, FinWait2, LastAck, TimeWait};
    const PEER_OPEN: &[TcpPhase] = &[Established, FinWait1, FinWait2];
    const PEER_CLOSED: &[TcpPhase] = &[CloseWait, Closing, LastAck, TimeWait];
    [
        // RFC 9293 §3.10.7.4, seventh: data is accepted until the peer's FIN only.
        ("new data", PEER_OPEN, "ACK later, 5 bytes"),
        ("new data", PEER_CLOSED, "ACK"),
        // First: an unacceptable segment is acknowledged.
        ("old data", &PHASES, "ACK"),
        ("data beyond the window", &PHASES, "ACK"),
        // Fifth: old acknowledgments and their windows are ignored.
        ("old ACK", &PHASES, ""),
        ("ACK of everything", &[Established, FinWait2, CloseWait, TimeWait], ""),
        ("ACK of everything", &[FinWait1], "FinWait2, Disconnected"),
        ("ACK of everything", &[Closing], "TimeWait, Disconnected"),
        ("ACK of everything", &[LastAck], "Closed, Disconnected, Closed"),
        // RFC 5961 §5.2.
        ("ACK beyond SND.MAX", &PHASES, "ACK"),
        ("window update", &PHASES, "window 5000"),
        // RFC 9293 §3.10.7.4, eighth. In the last four states the same FIN is repeated and acknowledged again.
        ("FIN", &[Established], "CloseWait, ACK, PeerClosed"),
        ("FIN", &[FinWait1], "Closing, ACK, PeerClosed"),
        ("FIN", &[FinWait2], "TimeWait, ACK, PeerClosed"),
        ("FIN", PEER_CLOSED, "ACK"),
        ("FIN with all acknowledged", &[FinWait1], "TimeWait, ACK, Disconnected, PeerClosed"),
        // The FIN is processed after the data before it; a second one never.
        ("FIN with data out of order", &PHASES, "ACK"),
        // Second, and RFC 5961 §3.2. In CLOSING and LAST-ACK the RFC requires no signal. Here the disconnect must still
        // complete, and not with SUCCESS, since its FIN is not acknowledged (CH §8.1, CH-EVT-7; Linux returns
        // ECONNRESET too). In TIME-WAIT the connection has closed normally.
        ("RST at RCV.NXT", &[Established, CloseWait, FinWait2], "Closed, Reset, Closed"),
        ("RST at RCV.NXT", &[FinWait1], "Closed, DisconnectAborted, Reset, Closed"),
        ("RST at RCV.NXT", &[Closing, LastAck], "Closed, DisconnectAborted, Reset, Closed"),
        ("RST at RCV.NXT", &[TimeWait], "Closed, Closed"),
        ("RST in the window", &PHASES, "ACK"),
        ("RST at the right edge", &PHASES, ""),
        ("RST outside", &PHASES, ""),
        // RFC 5961 §4.2, with and without ACK, and in TIME-WAIT. The peer's RST then ends TIME-WAIT (direct reuse is
        // optional in RFC 9293 §3.6.1), and its next SYN belongs to the host.
        ("SYN", &PHASES, "ACK"),
        ("SYN and ACK", &PHASES, "ACK"),
        // Fifth: a segment without ACK is dropped.
        ("data without ACK", &PHASES, ""),
        // CH §9.3: only for an acceptable segment.
        ("urgent data", &PHASES, "Retrieve"),
        ("urgent data outside", &PHASES, "ACK"),
    ]
};

// RFC 9293 §3.10.7.4, RFC 5961: every input in every state.
#[test]
fn every_input_matches_table_in_every_state() {
    let mut wrong = vec![];
    for (input, phases, expected) in TABLE {
        for phase in phases {
            let seen = outcome(*phase, input);
            if seen != expected {
                wrong.push(format!("{input} in {phase:?}: {seen}; expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

// RFC 9293 §3.6, case 3: both sides close simultaneously, and their FINs cross.
#[test]
fn simultaneous_close_reaches_time_wait() {
    let mut bench = in_phase(TcpPhase::Closing).bench;
    bench.input(Segment { ack: LOCAL + 11, ..data(11, b"") });
    assert!(matches!(bench.events()[..], [Event::DisconnectComplete(_)]));
    assert_eq!(bench.wait_for_timer(), Config::default().time_wait);
    assert!(matches!(bench.events()[..], [Event::Closed]));
}

// RFC 9293 §3.6, half-close: data is received after our FIN, and sent after the peer's FIN.
#[test]
fn halves_close_independently() {
    let mut ours = in_phase(TcpPhase::FinWait2).bench;
    for n in 0..50 {
        assert_eq!(ours.input(data(10 + 1460 * n, &[1; 1460])).len(), 1460);
        ours.sent();
    }
    assert_eq!(ours.tcp.info(ours.now).phase, TcpPhase::FinWait2);
    ours.post(1);
    assert_eq!(completions(&ours.events()), [(2, NdisStatus::REQUEST_ABORTED, 0)]);

    let mut theirs = in_phase(TcpPhase::CloseWait).bench;
    theirs.post(3000);
    assert_eq!(theirs.sent().iter().map(|(_, len, _)| len).sum::<usize>(), 3000);
    theirs.input(Segment { ack: LOCAL + 3010, ..data(11, b"") });
    assert_eq!(completions(&theirs.events()), [(2, NdisStatus::SUCCESS, 3000)]);
    assert_eq!(theirs.tcp.info(theirs.now).phase, TcpPhase::CloseWait);
}

// RFC 9293 §3.10.7.4, eighth: a FIN received before its data is processed after the data.
#[test]
fn early_fin_waits_for_its_data() {
    for (phase, after) in [
        (TcpPhase::Established, TcpPhase::CloseWait),
        (TcpPhase::FinWait1, TcpPhase::Closing),
        (TcpPhase::FinWait2, TcpPhase::TimeWait),
    ] {
        let ConnectionInPhase { mut bench, una, .. } = in_phase(phase);
        let at = |offset, payload| Segment { ack: LOCAL + una, ..data(offset, payload) };
        bench.input(Segment { flags: ack_fin(), ..at(15, b"end") });
        assert_eq!(bench.tcp.info(bench.now).phase, phase);
        assert_eq!(bench.input(at(10, b"start")), b"startend");
        assert_eq!(bench.tcp.info(bench.now).phase, after);
        assert!(matches!(bench.events()[..], [Event::PeerClosed]));
        // The FIN occupies one sequence number, once.
        let acks: Vec<_> = bench.transmit(WIRE).iter().map(|t| t.ack.distance(REMOTE)).collect();
        assert_eq!(acks, [19]);
        bench.input(Segment { flags: ack_fin(), ..at(15, b"end") });
        let acks: Vec<_> = bench.transmit(WIRE).iter().map(|t| t.ack.distance(REMOTE)).collect();
        assert_eq!(acks, [19], "repeated FIN is acknowledged again");
    }
}

// RFC 9293 §3.10.7.4, eighth: nothing follows a FIN, and a second FIN position is ignored.
#[test]
fn first_fin_position_is_kept() {
    let mut bench = in_phase(TcpPhase::Established).bench;
    bench.input(Segment { flags: ack_fin(), ..data(15, b"end") });
    bench.input(Segment { flags: ack_fin(), ..data(16, b"") });
    bench.input(data(15, b"end and more"));
    assert_eq!(bench.input(data(10, b"start and more")), b"startend");
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::CloseWait);
    assert_eq!(bench.tcp.info(bench.now).bytes_received, 18);
}

// RFC 9293 §3.6.1, RFC 5961 §4.2: a SYN of the same 4-tuple gets a challenge ACK. The peer's RST ends TIME-WAIT, so
// that its next SYN finds no connection.
#[test]
fn new_syn_ends_time_wait() {
    let ConnectionInPhase { mut bench, nxt, .. } = in_phase(TcpPhase::TimeWait);
    bench.input(Segment { flags: Flags::SYN, seq: REMOTE + (1 << 30), ..ack() });
    let challenge = bench.transmit(WIRE);
    let [challenge] = &challenge[..] else { panic!("{challenge:?}") };
    assert_eq!(challenge.ack, REMOTE + nxt);
    bench.input(Segment { flags: Flags::RST, seq: challenge.ack, ..ack() });
    assert!(matches!(bench.events()[..], [Event::Closed]));
}

// RFC 9293 §3.8.4: TIME-WAIT sends no keep-alive and has one timer.
#[test]
fn time_wait_has_one_timer() {
    let ConnectionInPhase { mut bench, una, nxt, .. } = in_phase(TcpPhase::TimeWait);
    let cached = TcpCached { keep_alive_enabled: true, ka_timeout: 1_000, ..bench.tcp.cached };
    bench.tcp.cached = cached;
    bench.input(Segment { ack: LOCAL + una, ..data(nxt, b"") });
    bench.input(Segment { flags: Flags::SYN, ..data(nxt, b"") });
    bench.sent();
    assert!(!bench.tcp.timers.is_running(Timer::KeepAlive));
    assert_eq!(bench.wait_for_timer(), Config::default().time_wait);
    assert!(matches!(bench.events()[..], [Event::Closed]));
}

// CH §8.1: an abort in any state sends one RST at SND.MAX and ends the connection.
#[test]
fn abort_sends_one_reset_in_every_state() {
    for phase in PHASES {
        let ConnectionInPhase { mut bench, max, .. } = in_phase(phase);
        let rest = if max == 11 && phase != TcpPhase::TimeWait && phase != TcpPhase::FinWait2 {
            1
        } else {
            0
        };
        bench.tcp.disconnect(bench.now, Disconnect::Abortive, list(7, b""));
        assert_eq!(bench.sent(), [(max, 0, Flags::RST | ACK)], "{phase:?}");
        let events = bench.events();
        let names: Vec<_> = events.iter().map(event_name).collect();
        let expected = ["DisconnectAborted", "Disconnected", "Closed"];
        assert_eq!(names, expected[1 - rest..], "{phase:?}");
        assert!(bench.tcp.poll_timeout().is_none());
        assert!(bench.input(data(10, b"late")).is_empty() && bench.sent().is_empty());
    }
}

// CH-TRM-6: both sides have closed the connection, but refused data is undelivered. An upload then exports the data in
// state TIME-WAIT, not CLOSED, as the connection has not failed.
#[test]
fn closed_connection_uploads_refused_data() {
    let mut bench = Bench::new(state());
    let last = Segment { flags: ack_fin(), ..data(0, b"final data") };
    bench.tcp.handle_segment(bench.now, &last);
    bench.tcp.settle(b"final data", true);
    bench.tcp.block_receive();
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b""));
    assert_eq!(bench.sent(), [(0, 0, ack_fin())]);
    bench.input_raw(Segment { ack: LOCAL + 1, ..data(11, b"") });
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::Closed);
    let events = bench.events();
    assert!(matches!(events[..], [Event::DisconnectComplete(_)]), "{events:?}");
    bench.tcp.prepare_upload(bench.now);
    assert!(bench.events().is_empty());
    let (state, _) = bench.tcp.into_state(bench.now);
    assert_eq!(state.tcp.delegated.state, TcpPhase::TimeWait);
    assert_eq!(state.buffered_data.concat(), b"final data");
    assert_eq!(state.tcp.delegated.snd_una, LOCAL + 1);
}
