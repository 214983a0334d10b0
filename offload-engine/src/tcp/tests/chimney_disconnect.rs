//! Disconnects and events: one test per line of CH §8.1 and §8.2 not covered by `sending` and `endings`.

use super::{
    endings::{ack_fin, event_name},
    *,
};
use crate::memory::to_vec;

const ACK: Flags = Flags::ACK;
const RST: Flags = Flags(Flags::RST.0 | Flags::ACK.0);

/// Texts of the pending events, with contexts, statuses and bytes.
fn event_texts(bench: &mut Bench) -> Vec<alloc::string::String> {
    let list =
        |l: &NetBufferList| alloc::format!("{} {:?} {}", l.context, l.status, l.bytes_transferred);
    let mut event_texts = vec![];
    for event in bench.events() {
        match event {
            Event::SendComplete(chain) => {
                event_texts.extend(chain.iter().map(|l| alloc::format!("send {}", list(l))));
            }
            Event::DisconnectComplete(l) => {
                event_texts.push(alloc::format!("disconnect {}", list(&l)))
            }
            Event::Retrieve(reason) => event_texts.push(alloc::format!("{reason:?}")),
            event => event_texts.push(event_name(&event).into()),
        }
    }
    event_texts
}

fn graceful(bench: &mut Bench, context: u64, data: &[u8]) {
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(context, data));
}

fn abortive(bench: &mut Bench, context: u64) {
    bench.tcp.disconnect(bench.now, Disconnect::Abortive, list(context, b""));
}

// CH §8.1, CH-DIS-4, -5: earlier sends complete first, in order. The disconnect completes after them, with its own
// bytes, once the FIN is acknowledged.
#[test]
fn pending_sends_complete_before_graceful_disconnect() {
    let mut bench = Bench::new(state());
    bench.post(3_000);
    bench.post(0);
    graceful(&mut bench, 9, b"final data");
    let sent = bench.sent();
    assert_eq!(
        sent.last(),
        Some(&(3_000, 10, ack_fin() | Flags::PSH)),
        "the FIN is sent without waiting for an ACK"
    );
    bench.ack(3_000);
    assert_eq!(event_texts(&mut bench), ["send 1 SUCCESS 3000", "send 2 SUCCESS 0"]);
    bench.ack(3_010);
    assert_eq!(event_texts(&mut bench), [""; 0], "the FIN is not acknowledged yet");
    bench.ack(3_011);
    assert_eq!(event_texts(&mut bench), ["disconnect 9 SUCCESS 10"]);
}

// CH §8.1, CH-DIS-5, CH-SNC-2: a reset completes the sends, then the disconnect with its acknowledged bytes.
#[test]
fn reset_aborts_graceful_disconnect() {
    for (acked, send, last) in [
        (0, "send 1 REQUEST_ABORTED 0", "disconnect 9 REQUEST_ABORTED 0"),
        (2, "send 1 REQUEST_ABORTED 2", "disconnect 9 REQUEST_ABORTED 0"),
        (8, "send 1 SUCCESS 5", "disconnect 9 REQUEST_ABORTED 3"),
        (10, "send 1 SUCCESS 5", "disconnect 9 REQUEST_ABORTED 5"),
    ] {
        let mut bench = Bench::new(state());
        bench.post(5);
        graceful(&mut bench, 9, b"words");
        bench.sent();
        bench.ack(acked);
        bench.input_raw(Segment { flags: Flags::RST, ..ack() });
        assert_eq!(
            event_texts(&mut bench),
            [send, last, "Reset", "Closed"],
            "{acked} acknowledged"
        );
        assert!(bench.sent().is_empty(), "CH-DIS-2");
    }
}

// CH-DIS-6: abortive after graceful, also if its FIN was sent or acknowledged.
#[test]
fn abortive_disconnect_aborts_graceful() {
    for (sent, acked, first) in [
        (false, false, Some("disconnect 8 REQUEST_ABORTED 0")),
        (true, false, Some("disconnect 8 REQUEST_ABORTED 0")),
        (true, true, None),
    ] {
        let mut bench = Bench::new(state());
        graceful(&mut bench, 8, b"x");
        if sent {
            assert_eq!(bench.sent().len(), 1);
        }
        if acked {
            bench.ack(2);
            assert_eq!(event_texts(&mut bench), ["disconnect 8 SUCCESS 1"]);
        }
        abortive(&mut bench, 9);
        assert_eq!(event_texts(&mut bench), first.into_iter().collect::<Vec<_>>());
        assert_eq!(bench.sent().iter().map(|s| s.2).collect::<Vec<_>>(), [RST], "a single RST");
        assert_eq!(event_texts(&mut bench), ["disconnect 9 SUCCESS 0", "Closed"]);
    }
}

// CH §8.1: abortive with pending data in both directions: the sends complete, the RST is sent, the disconnect
// completes. Nothing more is acknowledged or indicated. Further requests complete (CH-DIS-1).
#[test]
fn abortive_disconnect_aborts_pending_data() {
    let mut bench = Bench::new(state());
    bench.post(100);
    bench.post(50);
    bench.sent();
    bench.tcp.handle_segment(bench.now, &data(0, b"unread"));
    bench.tcp.settle(b"unread", false);
    abortive(&mut bench, 9);
    assert_eq!(event_texts(&mut bench), ["send 1 REQUEST_ABORTED 0", "send 2 REQUEST_ABORTED 0"]);
    assert!(bench.tcp.backlog().is_none());
    let before_the_rst = bench.input(data(6, b"more"));
    assert!(before_the_rst.is_empty());
    assert_eq!(bench.sent(), [(150, 0, RST)]);
    assert_eq!(event_texts(&mut bench), ["disconnect 9 SUCCESS 0", "Closed"]);
    assert!(bench.input(data(6, b"more")).is_empty() && bench.sent().is_empty());
    abortive(&mut bench, 10);
    graceful(&mut bench, 11, b"");
    let refused = ["disconnect 10 REQUEST_ABORTED 0", "disconnect 11 REQUEST_ABORTED 0"];
    assert_eq!(event_texts(&mut bench), refused);
    assert!(bench.sent().is_empty(), "no second RST");
}

// CH §8.2, CH-EVT-6: the peer closes first, with unconsumed data. The send half works and its disconnect completes;
// PeerClosed waits for the data; Closed follows both.
#[test]
fn peer_fin_with_pending_data_defers_peer_closed() {
    let mut bench = Bench::new(state());
    let fin = Segment { flags: ack_fin(), ..data(0, b"unread") };
    bench.tcp.handle_segment(bench.now, &fin);
    bench.tcp.settle(b"unread", false);
    bench.post(10);
    graceful(&mut bench, 9, b"");
    assert_eq!(bench.sent(), [(0, 10, ack_fin() | Flags::PSH)]);
    bench.input_raw(Segment { ack: LOCAL + 11, ..data(7, b"") });
    assert_eq!(event_texts(&mut bench), ["send 1 SUCCESS 10", "disconnect 9 SUCCESS 0"]);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::Closed);
    bench.tcp.backlog_consumed(6);
    assert_eq!(event_texts(&mut bench), ["PeerClosed", "Closed"], "each event once, in this order");
    bench.tcp.backlog_consumed(6);
    assert_eq!(event_texts(&mut bench), [""; 0]);
}

// CH §8.1, §8.2: both sides close simultaneously with data in both directions: neither FIN waits for the other.
#[test]
fn simultaneous_close_with_data_reaches_time_wait() {
    let mut bench = Bench::new(state());
    bench.post(10);
    graceful(&mut bench, 9, b"");
    bench.sent();
    assert_eq!(bench.input(Segment { flags: ack_fin(), ..data(0, b"theirs") }), b"theirs");
    assert_eq!(event_texts(&mut bench), ["PeerClosed"]);
    bench.input(Segment { ack: LOCAL + 11, ..data(7, b"") });
    assert_eq!(event_texts(&mut bench), ["send 1 SUCCESS 10", "disconnect 9 SUCCESS 0"]);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::TimeWait);
}

// CH-DIS-1, CH-TRM-3, CH §8.1: an upload returns a graceful disconnect, posted before or during it. In the exported
// state a FIN follows the data.
#[test]
fn graceful_disconnect_is_returned_by_upload() {
    for (before, sent) in [(true, true), (true, false), (false, false)] {
        let mut bench = Bench::new(state());
        bench.post(5);
        let request = |bench: &mut Bench| graceful(bench, 9, b"bye");
        if before {
            request(&mut bench);
        }
        if sent {
            bench.sent();
        }
        bench.tcp.prepare_upload(bench.now);
        if !before {
            request(&mut bench);
        }
        assert_eq!(event_texts(&mut bench), ["disconnect 9 UPLOAD_IN_PROGRESS 0"]);
        assert!(bench.sent().is_empty(), "an upload sends neither data nor FIN");
        let (state, rest) = bench.tcp.into_state(bench.now);
        assert!(rest.is_none(), "the disconnect is returned once");
        assert_eq!(state.tcp.delegated.state, TcpPhase::FinWait1);
        let data = to_vec(state.send_data.iter().flat_map(|list| list.pieces()));
        assert_eq!(data, b"\x00\x01\x02\x03\x04bye");
    }
}

// CH §8.2, CH-EVT-7: Reset is raised once, immediately and alone: no PeerClosed follows, and pending data is dropped.
#[test]
fn reset_is_last_event() {
    let mut bench = Bench::new(state());
    bench.tcp.handle_segment(bench.now, &Segment { flags: ack_fin(), ..data(0, b"unread") });
    bench.tcp.settle(b"unread", false);
    bench.sent();
    bench.input_raw(Segment { flags: Flags::RST, ..data(7, b"") });
    bench.input_raw(Segment { flags: Flags::RST, ..data(7, b"") });
    bench.tcp.backlog_consumed(6);
    assert_eq!(event_texts(&mut bench), ["Reset", "Closed"]);
}

// CH-EVT-1, CH-DIS-1: after a mandatory reason a graceful disconnect waits for the upload; an abortive one works.
#[test]
fn stopped_connection_accepts_only_abortive_disconnect() {
    let mut bench = Bench::new(state());
    bench.tcp.request_upload(bench.now, UploadReason::UploadRequested);
    assert_eq!(event_texts(&mut bench), ["UploadRequested"]);
    graceful(&mut bench, 8, b"x");
    assert!(bench.sent().is_empty() && event_texts(&mut bench).is_empty());
    abortive(&mut bench, 9);
    assert_eq!(event_texts(&mut bench), ["disconnect 8 REQUEST_ABORTED 0"]);
    assert_eq!(bench.sent(), [(0, 0, RST)]);
    assert_eq!(event_texts(&mut bench), ["disconnect 9 SUCCESS 0", "Closed"]);
}

// CH-DIS-2: for any input in any state, no RST is sent without an abortive disconnect.
#[test]
fn reset_needs_abortive_disconnect() {
    let mut random = oorandom::Rand64::new(7);
    let mut answers = 0;
    for round in 0..3_000_u64 {
        let mut bench = Bench::new(state());
        for step in 0..30 {
            let mut below = |limit: u64| random.rand_range(0..limit) as u32;
            if below(6) == 0 {
                bench.post(below(3_000) as usize);
            }
            if below(20) == 0 {
                graceful(&mut bench, 9, b"bye");
            }
            let flags = Flags(below(64) as u8 | if below(3) > 0 { ACK.0 } else { 0 });
            let acked_max = [4, 4_000][below(2) as usize];
            let acked = below(acked_max);
            let segment = Segment {
                seq: REMOTE + below(40).wrapping_sub(4),
                ack: LOCAL + acked,
                flags: if below(8) > 0 {
                    Flags(flags.0 & !(Flags::RST.0 | Flags::URG.0))
                } else {
                    flags
                },
                window: below(60_000) as u16,
                ..data(0, &[b'x'; 30][..below(30) as usize])
            };
            bench.input(segment);
            let sent = bench.sent();
            answers += sent.len();
            assert!(
                sent.iter().all(|s| !s.2.contains(Flags::RST)),
                "round {round}, step {step}: {segment:?} caused {sent:?}"
            );
            if below(4) == 0 && bench.tcp.poll_timeout().is_some() {
                bench.wait_for_timer();
            }
        }
    }
    assert!(answers > 10_000, "{answers}");
}
