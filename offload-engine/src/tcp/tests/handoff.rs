//! Import and export of connections.

use super::*;

fn error_of(state: Box<ConnectionState>) -> ImportError {
    let before = state.tcp;
    let taken = Connection::from_state(Instant::ZERO, state, PATH_PAYLOAD, Config::default());
    let (error, back) = taken.expect_err("inconsistent state");
    assert_eq!(back.tcp, before, "the state is returned unchanged");
    error
}

// P3, P8, RFC 7323 §2.3, CH-ST-1.
#[test]
fn inconsistent_state_is_refused() {
    type Change = fn(&mut ConnectionState);
    let cases: [(Change, ImportError); 9] = [
        (|s| s.tcp.delegated.state = TcpPhase::Closed, ImportError::Phase),
        (|s| s.tcp.constant.rcv_wind_scale = 15, ImportError::WindowScale),
        (|s| s.tcp.delegated.snd_max = LOCAL + 1, ImportError::SendSequence),
        (|s| s.tcp.delegated.snd_nxt = LOCAL + 1, ImportError::SendSequence),
        (|s| s.tcp.delegated.snd_nxt = SeqNum(LOCAL.0 - 1), ImportError::SendSequence),
        (
            |s| {
                s.tcp.delegated.state = TcpPhase::FinWait2;
                s.send_data.push_back(list(1, b"x"));
            },
            ImportError::SendSequence,
        ),
        (|s| s.out_of_order.push((REMOTE, Bytes::from_static(b"x"))), ImportError::ReceiveData),
        (
            |s| s.out_of_order.push((REMOTE + WINDOW, Bytes::from_static(b"x"))),
            ImportError::ReceiveData,
        ),
        (|s| s.tcp.delegated.rcv_wnd = u32::MAX, ImportError::ReceiveData),
    ];
    for (index, (change, expected)) in cases.into_iter().enumerate() {
        let mut state = state();
        change(&mut state);
        assert_eq!(error_of(state), expected, "case {index}");
    }
}

// CH-SNB-1 to -4: data in flight, data to retransmit first, unsent data, then posted data.
#[test]
fn imported_send_data_is_sent_by_zone() {
    let mut state = state();
    state.send_data.push_back(list(101, &[1; 300]));
    state.send_data.push_back(list(102, &[2; 500]));
    state.tcp.delegated.snd_nxt = LOCAL + 100;
    state.tcp.delegated.snd_max = LOCAL + 300;
    let mut bench = Bench::new(state);
    bench.post(50);
    let sent = bench.transmit(WIRE);
    let shape: Vec<_> = sent
        .iter()
        .map(|t| (t.seq.distance(LOCAL), t.payload_len, t.retransmission, t.nbl_context))
        .collect();
    assert_eq!(
        shape,
        [(100, 200, true, Some(101)), (300, 500, false, Some(102)), (800, 50, false, Some(1))]
    );
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(1));
    assert_eq!(bench.sent()[0].0, 0, "data in flight at the import is retransmitted by timeout");
    bench.ack(850);
    let done: Vec<_> = completions(&bench.events()).iter().map(|c| (c.0, c.2)).collect();
    assert_eq!(done, [(101, 300), (102, 500), (1, 50)]);
}

// CH-DEL-3, RFC 2018 §8: buffered bytes are delivered first, selectively acknowledged bytes are kept.
#[test]
fn received_data_is_imported() {
    let mut state = state();
    state.tcp.constant.sack_enabled = true;
    state.buffered_data = vec![Bytes::from_static(b"old"), Bytes::from_static(b"er")];
    state.out_of_order = vec![(REMOTE + 3, Bytes::from_static(b"def"))];
    let mut bench = Bench::new(state);
    assert_eq!(bench.tcp.backlog(), Some((&Bytes::from_static(b"old"), false)));
    let taken = bench.input(data(0, b"abc"));
    assert_eq!(taken, b"olderabcdef");
    assert_eq!(bench.transmit(WIRE)[0].ack, REMOTE + 6);
}

// P9: the advertised right edge is kept, regardless of the local limit.
#[test]
fn advertised_right_edge_is_imported() {
    for limit in [1_000, 60_000, 65_535] {
        let mut state = state();
        state.tcp.cached.initial_rcv_wnd = limit;
        state.tcp.delegated.rcv_wnd = 30_000;
        let mut bench = Bench::new(state);
        bench.post(1);
        let window = u32::from(bench.transmit(WIRE)[0].window);
        assert_eq!(window, limit.max(30_000));
        assert_eq!(bench.input(data(29_999, b"x")).len(), 0);
        assert_eq!(
            bench.input(data(0, &[0; 29_999])).len(),
            30_000,
            "data in the advertised window is accepted"
        );
    }
}

// P8: the phase implies the FIN in flight; it may also follow unsent data.
#[test]
fn fin_in_flight_is_imported() {
    for (sent, phase, after) in [
        (4, TcpPhase::FinWait1, TcpPhase::FinWait2),
        (4, TcpPhase::Closing, TcpPhase::TimeWait),
        (4, TcpPhase::LastAck, TcpPhase::Closed),
        (0, TcpPhase::FinWait1, TcpPhase::FinWait2),
    ] {
        let mut state = state();
        state.send_data.push_back(list(7, b"bye"));
        let delegated = &mut state.tcp.delegated;
        delegated.state = phase;
        (delegated.snd_nxt, delegated.snd_max) = (LOCAL + sent, LOCAL + sent);
        let mut bench = Bench::new(state);
        let whole = (0, 3, Flags::ACK | Flags::PSH | Flags::FIN);
        if sent > 0 {
            assert!(bench.sent().is_empty());
            bench.wait_for_timer();
        }
        assert_eq!(bench.sent(), [whole]);
        bench.ack(3);
        bench.wait_for_timer();
        assert_eq!(bench.sent(), [(3, 0, Flags::ACK | Flags::FIN)]);
        bench.ack(4);
        assert_eq!(bench.tcp.info(bench.now).phase, after);
        assert_eq!(completions(&bench.events()), [(7, NdisStatus::SUCCESS, 3)]);
    }
}

// CH-ST-1: the remaining phases.
#[test]
fn half_closed_connections_are_imported() {
    let mut closing = state();
    closing.tcp.delegated.state = TcpPhase::CloseWait;
    closing.buffered_data = vec![Bytes::from_static(b"end")];
    let mut bench = Bench::new(closing);
    assert!(bench.events().is_empty(), "CH-EVT-6: PeerClosed follows the data");
    bench.tcp.backlog_consumed(3);
    assert!(matches!(bench.events()[..], [Event::PeerClosed]));
    bench.post(3);
    assert_eq!(bench.sent(), [(0, 3, Flags::ACK | Flags::PSH)]);

    let mut state = state();
    state.tcp.delegated.state = TcpPhase::FinWait2;
    state.tcp.delegated.retransmit.timeout_delta = Some(5_000);
    let mut bench = Bench::new(state);
    assert_eq!(bench.tcp.poll_timeout(), Some(bench.now + Duration::from_secs(5)), "CH §10.7");
    assert_eq!(bench.tcp.send_outstanding(), 0);
    bench.input(Segment { flags: Flags::ACK | Flags::FIN, ..ack() });
    assert_eq!(bench.sent(), [(0, 0, Flags::ACK)]);
    assert_eq!(bench.tcp.info(bench.now).phase, TcpPhase::TimeWait);
}

// CH §10.1, §10.4: the persist timer is imported with its round.
#[test]
fn closed_window_is_imported() {
    let mut state = state();
    state.send_data.push_back(list(1, b"wait"));
    let delegated = &mut state.tcp.delegated;
    (delegated.snd_wnd, delegated.snd_wnd_probe_count) = (0, 2);
    delegated.retransmit.timeout_delta = Some(300);
    let mut bench = Bench::new(state);
    assert_eq!(bench.wait_for_timer(), Duration::from_millis(300));
    assert_eq!(bench.sent(), [(0, 1, Flags::ACK)]);
    bench.input(Segment { window: 0, ..ack() });
    assert!(bench.sent().is_empty());
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(8), "RTO << 3");
}

// CH §3.4 to §3.6, CH §10.9, CH-SNB-2, CH-TRM-5: an export followed by an import loses no state.
#[test]
fn exported_state_is_importable() {
    let mut state = state();
    state.tcp.constant.timestamp_enabled = true;
    state.tcp.constant.sack_enabled = true;
    state.tcp.delegated.ts_time = u32::MAX - 5;
    state.tcp.delegated.snd_wl1 = SeqNum(REMOTE.0 - 1);
    let first = state.tcp;
    let mut bench = Bench::new(state);
    let mut expected = first;
    expected.delegated.cwnd = 10 * 1448;
    assert_eq!(bench.tcp.tcp_state(bench.now), expected, "query directly after the import");

    bench.post(100);
    bench.post(3_000);
    bench.sent();
    let stamps = Some(Timestamps { value: 9, echo: u32::MAX - 5 });
    bench.now += Duration::from_millis(10);
    let received = bench.tcp.handle_segment(
        bench.now,
        &Segment { ack: LOCAL + 40, timestamps: stamps, ..data(0, b"abc") },
    );
    bench.tcp.settle(&b"abc"[received.in_order.start + 1..], false);
    bench.input_raw(Segment { ack: LOCAL + 40, timestamps: stamps, ..data(10, b"far") });
    bench.tcp.disconnect(bench.now, Disconnect::Graceful, list(9, b"bye"));
    bench.sent();
    let (state, disconnect) = bench.tcp.into_state(bench.now);
    assert_eq!(disconnect.map(|list| (list.context, list.status)), Some((9, NdisStatus::PENDING)));
    let delegated = &state.tcp.delegated;
    assert_eq!(delegated.state, TcpPhase::FinWait1);
    assert_eq!((delegated.snd_una, delegated.snd_max), (LOCAL + 40, LOCAL + 3_104));
    assert_eq!((delegated.rcv_nxt, delegated.rcv_wnd), (REMOTE + 3, 59_997));
    assert_eq!((delegated.ts_time, delegated.ts_recent), (4, 9));
    assert_eq!(delegated.srtt, 80);
    let data: Vec<usize> = state.send_data.iter().map(NetBufferList::data_length).collect();
    assert_eq!(data, [60, 3_000, 3]);
    assert_eq!(state.buffered_data, [Bytes::from_static(b"bc")]);
    assert_eq!(state.out_of_order, [(REMOTE + 10, Bytes::from_static(b"far"))]);

    let exported = state.tcp;
    let tcp = Connection::from_state(bench.now, state, PATH_PAYLOAD, Config::default()).unwrap();
    assert_eq!(tcp.tcp_state(bench.now), exported, "import does not change the state");
    let mut again = Bench { tcp, now: bench.now, next_context: 50 };
    again.input_raw(Segment {
        ack: LOCAL + 3_104,
        timestamps: Some(Timestamps { value: 10, echo: 4 }),
        ..super::data(3, b"")
    });
    // Bytes count from the first post, across owners.
    let done: Vec<_> = completions(&again.events()).iter().map(|c| (c.0, c.2)).collect();
    assert_eq!(done, [(1, 100), (2, 3_000), (9, 3)]);
    assert_eq!(again.tcp.info(again.now).phase, TcpPhase::FinWait2);
}

// CH-UPD-5, -6, UPDATE_RCV_WND.
#[test]
fn cached_updates_take_effect() {
    let mut bench = Bench::new(state());
    let cached = TcpCached { initial_rcv_wnd: 65_000, ..TcpCached::default() };
    bench.tcp.set_cached(bench.now, TcpCached { keep_alive_enabled: true, ..cached });
    assert_eq!(bench.transmit(WIRE)[0].window, 65_000);
    assert_eq!(bench.wait_for_timer(), Duration::from_secs(7_200));
    bench.tcp.set_cached(bench.now, cached);
    assert_eq!(bench.tcp.poll_timeout(), None);
    bench.tcp.update_path_mtu(1_000);
    bench.sent();
    bench.post(2_500);
    assert_eq!(bench.sent().iter().map(|s| s.1).collect::<Vec<_>>(), [1_000, 1_000, 500]);
}
