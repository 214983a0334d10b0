//! Pitfalls of the handoff, and states in which a connection can or cannot be exported.

use super::*;

/// Advances by `rounds` milliseconds without new data.
fn idle(bench: &mut Bench, rounds: u32) {
    for _ in 0..rounds {
        bench.step();
    }
}

// P2: with a congestion window the replay would send two kilobytes instead of all data. P4: 59 901 bytes in flight do
// not fit the peer's window rounded down to its scale.
#[test]
fn p2_p4_data_in_flight_are_replayed() {
    let mut bench = Bench::new(20, false, true, 0);
    let unlimited = smoltcp::socket::tcp::CongestionControl::None;
    bench.ends[0].socket().set_congestion_control(unlimited);
    bench.ends[0].socket().set_nagle_enabled(false);
    bench.loss_percent = 100;
    bench.ends[0].write(0, 59_901);
    idle(&mut bench, 2);
    let state = bench.export_and_import(0);
    let delegated = state.tcp.delegated;
    let in_flight = delegated.snd_max.distance(delegated.snd_una);
    assert_eq!(in_flight, 59_901);
    let mut odd = state;
    odd.tcp.delegated.snd_wnd = 59_901;
    let imported = import(to_smoltcp(bench.now), &odd, SEND_BUFFER, clock::tsval).unwrap();
    let oracle = Oracle::of(&imported.socket);
    assert_eq!(oracle.sequence("remote_last_seq"), delegated.snd_max);
    assert_eq!(oracle.field("remote_win_len"), 59_900, "the maximum expressible on the wire");
    bench.drain();
    bench.close();
}

// P3: a window probe is on the wire and in SND.MAX, but not in smoltcp's SND.NXT. The peer may acknowledge it at any
// time.
#[test]
fn p3_window_probe_counts() {
    let mut bench = Bench::new(21, false, true, 0);
    for _ in 0..40 {
        bench.ends[0].write(0, 10_000);
        idle(&mut bench, 20);
    }
    // The peer reads nothing: its window is closed.
    idle(&mut bench, 3_000);
    let flow = &bench.ends[0].flow;
    assert_eq!(flow.send_window.snd_wnd, 0);
    assert_eq!(flow.snd_max, flow.snd_una + 1);
    let state = bench.export_and_import(0);
    let delegated = state.tcp.delegated;
    assert_eq!((delegated.snd_nxt, delegated.snd_max), (delegated.snd_una, delegated.snd_una + 1));
    assert!(delegated.retransmit.timeout_delta.is_some(), "the persist timer");
    // The other end is full: P5, more undelivered data than one unscaled window.
    let state = bench.export_and_import(1);
    assert_eq!(state.tcp.delegated.rcv_wnd, 0);
    assert!(state.buffered_data.iter().map(bytes::Bytes::len).sum::<usize>() > 65_535);
    bench.drain();
    bench.close();
}

// P3: the window is closed, and the byte of a probe is in flight. An imported socket continues to probe until the
// window opens, also if that byte was the last, and its FIN is to follow.
#[test]
fn p3_a_closed_window_is_probed_after_the_import() {
    for (length, phase) in [(5_000, TcpPhase::Established), (1, TcpPhase::FinWait1)] {
        let mut bench = Bench::new(29, false, true, 0);
        let mut state = bench.ends[0].export(bench.now).unwrap();
        state.send_data = [NetBufferList::from_mdl(1, vec![7; length])].into();
        let delegated = &mut state.tcp.delegated;
        (delegated.state, delegated.snd_wnd) = (phase, 0);
        delegated.snd_max += 1;
        delegated.retransmit.timeout_delta = Some(700);
        let tuple = tuple_of(&state);
        let imported = import(to_smoltcp(bench.now), &state, SEND_BUFFER, clock::tsval).unwrap();
        let mut stage = Stage::new(to_smoltcp(bench.now), tuple, 0);
        let socket = stage.add_socket(imported.socket);
        let mut probes = 0;
        for second in 0..30 {
            let said = stage.poll(to_smoltcp(bench.now + Duration::from_secs(second)));
            let una = state.tcp.delegated.snd_una;
            probes += said.iter().filter(|said| said.seq == una && said.payload.len() == 1).count();
            assert!(said.iter().all(|said| said.payload.len() <= 1), "{said:?}");
        }
        assert!((4..=7).contains(&probes), "{length} bytes: {probes} probes in 30 seconds");
        assert_eq!(stage.socket(socket).send_queue(), length);
    }
}

// P3: data in flight when the window closed are acknowledged after the import. smoltcp then considers them sent,
// although it has not sent them; the next export has nothing in flight.
#[test]
fn p3_ack_after_a_closed_window_is_processed() {
    let mut bench = Bench::new(31, false, true, 0);
    bench.loss_percent = 100;
    bench.ends[0].write(0, 5_000);
    idle(&mut bench, 2);
    let mut state = bench.ends[0].export(bench.now).unwrap();
    let in_flight = state.tcp.delegated.snd_max;
    assert!(in_flight.is_after(state.tcp.delegated.snd_una));
    state.tcp.delegated.snd_wnd = 0;
    bench.ends[0].import(bench.now, &state);
    let SocketEnd { tuple, flow, .. } = &bench.ends[0];
    let said = Acknowledgment {
        seq: flow.acknowledged,
        ack: in_flight,
        window: 0,
        timestamps: Some(Timestamps { value: flow.ts_recent, echo: 0 }),
        ece: false,
        fin: false,
    };
    let macs = (flow.peer_mac, MacAddress([2, 0, 0, 0, 0, 1]));
    let way = FrameAddresses { macs, from: tuple.remote(), to: tuple.local() };
    let frame = wire::ack_frame(way, 64, &said).expect("one family");
    bench.ends[0].receive(bench.now, frame.to_vec());
    let state = bench.export_and_import(0).tcp.delegated;
    assert_eq!((state.snd_una, state.snd_nxt, state.snd_max), (in_flight, in_flight, in_flight));
}

// P6: the export is answered immediately after a real challenge ACK.
#[test]
fn p6_challenge_limit_does_not_block_the_export() {
    let mut bench = Bench::new(22, false, true, 0);
    for _ in 0..3 {
        for index in 0..2 {
            let state = bench.ends[index].export(bench.now).unwrap();
            bench.ends[index].import(bench.now, &state);
            // The export's challenge would be the second within a second.
            bench.export_and_import(index);
        }
    }
    bench.close();
}

// P8: a FIN in flight counts in SND.MAX and is not a byte of data. P9: the advertised edge is kept.
#[test]
fn p8_fins_are_replayed() {
    for (phase, expected) in [
        (TcpPhase::FinWait1, State::FinWait1),
        (TcpPhase::FinWait2, State::FinWait2),
        (TcpPhase::CloseWait, State::CloseWait),
        (TcpPhase::LastAck, State::LastAck),
        (TcpPhase::Closing, State::Closing),
        (TcpPhase::TimeWait, State::TimeWait),
    ] {
        let mut bench = Bench::new(23, false, true, 0);
        let mut state = bench.ends[0].export(bench.now).unwrap();
        let delegated = &mut state.tcp.delegated;
        delegated.state = phase;
        match phase {
            TcpPhase::FinWait2 | TcpPhase::TimeWait => {
                delegated.rcv_nxt += u32::from(phase == TcpPhase::TimeWait);
                delegated.snd_una += 1;
                delegated.snd_nxt += 1;
                delegated.snd_max += 1;
            }
            TcpPhase::CloseWait => delegated.rcv_nxt += 1,
            TcpPhase::LastAck | TcpPhase::Closing => {
                delegated.rcv_nxt += 1;
                delegated.snd_max += 1;
            }
            _ => delegated.snd_max += 1,
        }
        let imported = import(to_smoltcp(bench.now), &state, SEND_BUFFER, clock::tsval).unwrap();
        assert_eq!(imported.socket.state(), expected);
        assert_eq!(imported.closing, phase != TcpPhase::CloseWait);
        let oracle = Oracle::of(&imported.socket);
        assert_eq!(oracle.sequence("local_seq_no"), state.tcp.delegated.snd_una);
        assert_eq!(oracle.sequence("remote_last_seq"), state.tcp.delegated.snd_max);
        assert_eq!(oracle.sequence("remote_seq_no"), state.tcp.delegated.rcv_nxt);
        let window = (oracle.field("remote_last_win") as u32) << oracle.field("remote_win_shift");
        assert!(window >= state.tcp.delegated.rcv_wnd - 1, "P9");
    }
}

// P10: a state that would underflow in smoltcp is refused without a panic.
#[test]
fn p10_impossible_states_are_refused() {
    let mut bench = Bench::new(24, false, true, 0);
    let good = bench.ends[0].export(bench.now).unwrap();
    let try_with = |change: fn(&mut ConnectionState)| {
        let mut state = ConnectionState {
            send_data: good.send_data.clone(),
            buffered_data: good.buffered_data.clone(),
            out_of_order: good.out_of_order.clone(),
            ..good
        };
        change(&mut state);
        import(to_smoltcp(Instant::ZERO), &state, SEND_BUFFER, clock::tsval).err()
    };
    assert_eq!(try_with(|_| {}), None);
    let una = |state: &mut ConnectionState| state.tcp.delegated.snd_una += 1;
    assert_eq!(try_with(una), Some(ImportError::SendSequence));
    let no_data = |state: &mut ConnectionState| state.tcp.delegated.snd_max += 1;
    assert_eq!(try_with(no_data), Some(ImportError::SendSequence));
    let window = |state: &mut ConnectionState| state.tcp.delegated.rcv_wnd = 1 << 30;
    assert_eq!(try_with(window), Some(ImportError::ReceiveData));
    let over = |state: &mut ConnectionState| state.tcp.delegated.state = TcpPhase::Closed;
    assert_eq!(try_with(over), Some(ImportError::Phase));
    let scale = |state: &mut ConnectionState| state.tcp.constant.rcv_wind_scale = 40;
    assert_eq!(try_with(scale), Some(ImportError::ReceiveData));
}

// P14: a burst limit would clamp the window field without its scale.
#[test]
fn p14_no_burst_limit() {
    use smoltcp::phy::Device as _;
    assert_eq!(QueueDevice::new(Medium::Ethernet, 1500).capabilities().max_burst_size, None);
}

// A disagreement between socket and wire refuses the export and leaves the socket unchanged.
#[test]
fn disagreement_leaves_the_connection_unharmed() {
    let mut bench = Bench::new(25, false, true, 0);
    bench.ends[0].write(0, 30_000);
    bench.ends[1].write(1, 30_000);
    idle(&mut bench, 1);
    for change in [
        |flow: &mut Flow| flow.snd_una = flow.snd_una - 1,
        |flow: &mut Flow| flow.snd_max += 100_000,
        |flow: &mut Flow| flow.acknowledged += 1,
    ] {
        let flow = bench.ends[0].flow;
        change(&mut bench.ends[0].flow);
        let refused = bench.ends[0].export(bench.now).err();
        assert!(matches!(refused, Some(ExportError::Disagreement(_))), "{refused:?}");
        bench.ends[0].flow = flow;
    }
    bench.drain();
    bench.close();
}

// CH-ST-1: TIME-WAIT is not exported.
#[test]
fn time_wait_is_not_exported() {
    let mut bench = Bench::new(26, false, true, 0);
    bench.close();
    assert!(matches!(
        bench.ends[0].export(bench.now).err(),
        Some(ExportError::Phase(State::TimeWait))
    ));
}

// CH-ST-1: a connection can be exported in every state from ESTABLISHED to LAST-ACK, with data before its FIN, and with
// that FIN sent or unsent. It still closes normally.
#[test]
fn half_closed_connections_move() {
    for v6 in [false, true] {
        let mut bench = Bench::new(28, v6, true, 0);
        let mut seen = Vec::new();
        bench.ends[0].write(0, 60_000);
        bench.ends[1].write(1, 50_000);
        idle(&mut bench, 5);
        bench.ends[0].socket().close();
        let shuttle = |bench: &mut Bench, index: usize, seen: &mut Vec<TcpPhase>| {
            let Ok(state) = bench.try_export_and_import(index) else { return };
            let phase = state.tcp.delegated.state;
            if seen.last() != Some(&phase) {
                seen.push(phase);
            }
        };
        for _ in 0..250 {
            bench.ends[1].read(0, 2_000);
            bench.ends[0].read(1, 500);
            shuttle(&mut bench, 0, &mut seen);
            idle(&mut bench, 7);
        }
        assert_eq!(seen, [TcpPhase::FinWait1, TcpPhase::FinWait2]);
        bench.drain();
        let mut seen = Vec::new();
        bench.ends[1].write(1, 4_000);
        bench.ends[1].socket().close();
        bench.exchange();
        shuttle(&mut bench, 1, &mut seen);
        assert_eq!(seen, [TcpPhase::LastAck]);
        for _ in 0..3_000 {
            bench.step();
            bench.ends[0].read(1, 2_000);
        }
        assert_eq!(bench.ends[1].socket().state(), State::Closed);
        assert_eq!(bench.ends[0].socket().state(), State::TimeWait);
        assert_eq!(bench.ends[0].stream_in, bench.ends[1].stream_out);
        assert!(bench.ends.iter().all(|end| !end.flow.reset_sent && !end.flow.reset_received));
    }
}

// RFC 9293 §3.6, figure 13: both sides close simultaneously, and both are exported in CLOSING.
#[test]
fn simultaneous_close_moves() {
    let mut bench = Bench::new(29, false, true, 0);
    bench.ends.iter_mut().for_each(|end| end.socket().close());
    bench.exchange();
    // Each has received the other's FIN, and no acknowledgment of its own.
    bench.now += Duration::from_millis(4);
    for (_, to, frame) in core::mem::take(&mut bench.wire) {
        let now = bench.now;
        bench.ends[to].receive(now, frame);
    }
    assert!(bench.ends.iter_mut().all(|end| end.socket().state() == State::Closing));
    for index in 0..2 {
        let state = bench.export_and_import(index);
        assert_eq!(state.tcp.delegated.state, TcpPhase::Closing);
        assert_eq!(bench.ends[index].socket().state(), State::Closing);
    }
    idle(&mut bench, 3_000);
    assert!(bench.ends.iter_mut().all(|end| end.socket().state() == State::TimeWait));
    assert!(bench.ends.iter().all(|end| !end.flow.reset_sent && !end.flow.reset_received));
}

// P9, RFC 7323 §2.4: a window of megabytes opened by the target is not withdrawn; a closed one needs no buffer of
// megabytes.
#[test]
fn p9_the_buffer_covers_the_advertised_edge() {
    let mut bench = Bench::new(30, false, true, 0);
    let mut state = bench.ends[0].export(bench.now).unwrap();
    state.tcp.constant.rcv_wind_scale = 7;
    for window in [0, 1, 65_535, 100_000, 1 << 20, 4 << 20] {
        state.tcp.delegated.rcv_wnd = window;
        let Imported { mut socket, scale_raise, .. } =
            import(to_smoltcp(bench.now), &state, SEND_BUFFER, clock::tsval).unwrap();
        let capacity = socket.recv_capacity();
        assert!(
            capacity >= window as usize && capacity <= RECEIVE_BUFFER.max(window as usize + 128)
        );
        assert_eq!(scale_of_buffer(capacity) + scale_raise, 7);
        assert_eq!(socket.recv_queue(), 0);
        socket.abort();
    }
    state.tcp.delegated.rcv_wnd = 65_535 << 7 | 0x7f;
    assert!(import(to_smoltcp(bench.now), &state, SEND_BUFFER, clock::tsval).is_ok());
}

// CLOSE-WAIT: data before the FIN, RCV.NXT after it, and our own data afterwards.
#[test]
fn close_wait_moves() {
    for v6 in [false, true] {
        let mut bench = Bench::new(27, v6, true, 0);
        bench.ends[0].write(0, 40_000);
        bench.ends[1].write(1, 20_000);
        idle(&mut bench, 2_000);
        bench.ends[0].socket().close();
        idle(&mut bench, 100);
        assert_eq!(bench.ends[1].socket().state(), State::CloseWait);
        for _ in 0..3 {
            let state = bench.export_and_import(1);
            assert_eq!(state.tcp.delegated.state, TcpPhase::CloseWait);
            assert_eq!(bench.ends[1].socket().state(), State::CloseWait);
            let first = bench.ends[1].first_received;
            let received = state.tcp.delegated.rcv_nxt.distance(first) as u32;
            let buffered = state.buffered_data.iter().map(bytes::Bytes::len).sum::<usize>();
            assert_eq!(received, buffered as u32 + 1, "the FIN");
            bench.ends[1].write(1, 5_000);
            bench.ends[1].read(0, 10_000);
            idle(&mut bench, 30);
        }
        bench.drain();
        bench.ends[1].socket().close();
        idle(&mut bench, 3_000);
        assert_eq!(bench.ends[1].socket().state(), State::Closed);
        assert!(bench.ends.iter().all(|end| !end.flow.reset_sent && !end.flow.reset_received));
    }
}
