//! Offload to the target, and return after a refusal.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

use offload_engine::{
    chimney::{client::OffloadHandle, tree::UpdateNode},
    engine::port::ToHost,
    memory::to_vec,
    nbl::Mdl,
    state::ConnectionState,
    status::NdisStatus,
    tcp::TcpPhase,
    time::Duration,
};

use super::bench::{Bench, CLIENT, address, config};
use crate::{
    host::{HELD_FRAMES_MAX, HostConfig},
    offload_policy::OffloadRules,
    socket::{AUTO_OFFLOAD_BYTES, HostError, Notice, OffloadPolicy, Request},
};

pub(super) fn remote(v6: bool) -> SocketAddr {
    SocketAddr::new(address(2, v6), 5000)
}

/// Connects host 1 to host 2; `policy` is that of host 2.
pub(super) fn connected(policy: OffloadPolicy, at_once: bool, v6: bool) -> (Bench, OffloadHandle) {
    let mut bench = Bench::new([OffloadPolicy::Never, policy]);
    bench.nodes[1].listen(remote(v6), 4, at_once);
    let active = bench.nodes[0].connect(remote(v6), false);
    bench.run(Duration::from_millis(100));
    (bench, active)
}

pub(super) fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ salt).collect()
}

pub(super) fn state_data(state: &ConnectionState) -> Vec<u8> {
    to_vec(state.send_data.iter().flat_map(|list| list.pieces()))
}

#[test]
fn established_connections_are_initiated() {
    for v6 in [false, true] {
        let (mut bench, active) = connected(OffloadPolicy::Always, false, v6);
        let node = &mut bench.nodes[1];
        let (handle, offloading) = node.established();
        assert!(offloading);
        let initiate = node.initiates.pop_front().unwrap();
        assert_eq!((initiate.handle, initiate.client), (handle, CLIENT));
        let state = initiate.state;
        let (constant, delegated) = (state.tcp.constant, state.tcp.delegated);
        assert_eq!(delegated.state, TcpPhase::Established);
        assert_eq!(constant.local_port, 5000);
        assert_eq!(usize::from(constant.remote_mss), if v6 { 1440 } else { 1460 });
        assert_eq!(constant.local_mss, constant.remote_mss);
        assert!(constant.sack_enabled && constant.timestamp_enabled);
        assert!(constant.window_scaling_enabled);
        assert_eq!((constant.snd_wind_scale, constant.rcv_wind_scale), (7, 7));
        assert_eq!(delegated.snd_una, delegated.snd_max);
        assert!(delegated.retransmit.timeout_delta.is_none());
        assert_eq!(state.neighbor.cached.dl_destination_address.0, [2, 0, 0, 0, 0, 1]);
        assert_eq!(state.path.constant.source_address, address(2, v6));
        assert_eq!(state.path.cached.path_mtu, 1500);
        assert_eq!(state.tcp.cached.initial_rcv_wnd, 256 * 1024);
        assert_eq!(node.host.stats().initiates, 1);
        assert_eq!(bench.nodes[0].established(), (active, false));
    }
}

/// P1, CH-FWD-2, CH-FWD-3: frames of the connection are held until the initiate completes, then forwarded to the
/// target. They never reach a smoltcp that would reset the connection.
#[test]
fn p1_late_frames_are_forwarded() {
    let (mut bench, active) = connected(OffloadPolicy::Always, false, false);
    let (handle, _) = bench.nodes[1].established();
    bench.nodes[0].send(active, &b"early"[..]);
    bench.run(Duration::from_millis(50));
    assert!(bench.nodes[1].forwards.is_empty(), "CH-FWD-3");
    bench.nodes[1].complete(handle, None);
    bench.run(Duration::from_millis(50));
    assert_eq!(bench.nodes[1].forwards.len(), 1);
    assert!(bench.nodes[1].forwards[0].ends_with(b"early"));
    bench.run(Duration::from_secs(2));
    assert_eq!(bench.nodes[1].forwards.len(), 2, "its retransmission");
    assert_eq!(bench.nodes[1].host.stats().forwards, 2);
    assert_eq!(bench.resets(1), 0);
    // After the release the 4-tuple has no owner.
    bench.nodes[1].to_host.send(ToHost::Released { handle }).unwrap();
    bench.run(Duration::from_secs(10));
    assert_eq!(bench.nodes[1].host.owners.len(), 0);
    assert_eq!(bench.resets(1), 1);
    assert!(
        bench.nodes[0].has(|n| matches!(n, Notice::Closed { error: Some(HostError::Reset), .. }))
    );
}

#[test]
fn held_frames_are_bounded() {
    let (mut bench, _) = connected(OffloadPolicy::Always, false, false);
    let (handle, _) = bench.nodes[1].established();
    let frame = bench.nodes[0].sent.last().unwrap().clone();
    for _ in 0..HELD_FRAMES_MAX + 5 {
        bench.nodes[1].frame(frame.clone());
    }
    bench.settle();
    assert_eq!(bench.nodes[1].host.stats().forwards_dropped, 5);
    bench.nodes[1].complete(handle, None);
    bench.settle();
    assert_eq!(bench.nodes[1].forwards.len(), HELD_FRAMES_MAX);
}

/// The peer connects, sends and closes before the host's first poll: offloaded from CLOSE-WAIT.
#[test]
fn short_connections_are_offloaded_from_close_wait() {
    let mut bench = Bench::new([OffloadPolicy::Never, OffloadPolicy::Always]);
    bench.nodes[1].listen(remote(false), 4, false);
    let active = bench.nodes[0].connect(remote(false), false);
    bench.nodes[0].send(active, &b"all the data sent"[..]);
    bench.nodes[0].shutdown(active);
    // All segments of the first host after its SYN arrive at once.
    bench.run(Duration::from_millis(4));
    let held = core::mem::replace(&mut bench.passes, |_, _| false);
    let before = bench.nodes[0].sent.len();
    bench.run_until(|bench| {
        bench.nodes[0].sent.len() >= before + 2 || !bench.nodes[1].initiates.is_empty()
    });
    bench.passes = held;
    for frame in bench.nodes[0].sent.split_off(before) {
        bench.nodes[1].frame(frame);
    }
    bench.settle();
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    let delegated = initiate.state.tcp.delegated;
    assert_eq!(delegated.state, TcpPhase::CloseWait);
    assert_eq!(initiate.state.buffered_data.concat(), b"all the data sent");
    // RCV.NXT is after the FIN, and the FIN is acknowledged.
    let fin = bench.nodes[1].host.stats();
    assert_eq!((fin.initiates, fin.exports_refused), (1, 0));
    bench.nodes[1].complete(initiate.handle, Some(*initiate.state));
    bench.run(Duration::from_millis(100));
    assert_eq!(bench.nodes[1].data(), b"all the data sent");
    assert!(bench.nodes[1].has(|n| matches!(n, Notice::PeerClosed { .. })));
    bench.nodes[1].send(initiate.handle, &b"heard"[..]);
    bench.nodes[1].shutdown(initiate.handle);
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.nodes[0].data(), b"heard");
    for node in &bench.nodes {
        assert!(node.has(|n| matches!(n, Notice::Closed { error: None, .. })));
    }
}

/// CH-INI-4: a refused connection continues in the host without loss of data.
#[test]
fn refused_connections_continue_in_the_host() {
    for v6 in [false, true] {
        let (mut bench, active) = connected(OffloadPolicy::Auto, false, v6);
        let (passive, offloading) = bench.nodes[1].established();
        assert!(!offloading);
        let (down, up) = (pattern(150_000, 1), pattern(180_000, 2));
        bench.nodes[0].send(active, down.clone());
        bench.nodes[1].send(passive, up.clone());
        bench.run_until(|bench| !bench.nodes[1].initiates.is_empty());
        // It exceeds the threshold while data is in flight in both directions.
        let initiate = bench.nodes[1].initiates.pop_front().unwrap();
        let sent = state_data(&initiate.state);
        let carried = (bench.nodes[1].data().len() as u64).max(180_000 - sent.len() as u64);
        assert!(carried >= AUTO_OFFLOAD_BYTES && !sent.is_empty());
        assert!(
            bench.nodes[1]
                .has(|n| matches!(n, Notice::Offloading { unanswered: 1, shutdown: false, .. }))
        );
        assert_eq!(sent, up[up.len() - sent.len()..]);
        // CH-SNB-2: the same list, from its first unacknowledged byte on.
        let list = &initiate.state.send_data[0];
        assert_eq!((list.context, list.bytes_transferred), (1, up.len() - sent.len()));
        let [Mdl::Private(mdl)] = list.net_buffers[0].mdls() else { panic!("one, as it was") };
        assert_eq!(*mdl, up);
        // Too late, so it is returned.
        bench.nodes[1].send(passive, &b"late"[..]);
        bench.nodes[1].shutdown(passive);
        bench.run(Duration::from_millis(20));
        assert!(
            bench.nodes[1].has(|n| matches!(n, Notice::Returned { chain, shutdown: false, .. }
            if chain[0].data_length() == 4))
        );
        assert!(bench.nodes[1].has(|n| matches!(n, Notice::Returned { shutdown: true, .. })));
        bench.nodes[1].notices.retain(|n| !matches!(n, Notice::Established { .. }));
        bench.nodes[1].complete(passive, Some(*initiate.state));
        bench.run(Duration::from_millis(1));
        assert_eq!(bench.nodes[1].established(), (passive, false));
        bench.nodes[1].send(passive, &b"late"[..]);
        bench.nodes[1].shutdown(passive);
        bench.nodes[0].shutdown(active);
        bench.run(Duration::from_secs(20));
        assert_eq!(bench.nodes[1].data(), down);
        assert_eq!(bench.nodes[0].data(), [&up[..], b"late"].concat());
        let stats = bench.nodes[1].host.stats();
        assert_eq!((stats.imports, stats.initiates_refused, stats.handoffs_lost), (1, 1, 0));
        assert_eq!(bench.resets(0) + bench.resets(1), 0);
        for node in &bench.nodes {
            assert!(node.has(|n| matches!(n, Notice::Closed { error: None, .. })));
        }
    }
}

/// With `Auto` a client may request the offload of its connections at once. Other policies decide alone, and a refused
/// connection continues in the host.
#[test]
fn at_once_applies_to_auto_only() {
    for (policy, at_once, expected) in [
        (OffloadPolicy::Auto, true, true),
        (OffloadPolicy::Auto, false, false),
        (OffloadPolicy::Never, true, false),
        (OffloadPolicy::Always, false, true),
    ] {
        let (mut bench, active) = connected(policy, at_once, false);
        let (passive, offloading) = bench.nodes[1].established();
        assert_eq!(offloading, expected, "{policy:?}");
        if let Some(initiate) = bench.nodes[1].initiates.pop_front() {
            bench.nodes[1].notices.clear();
            bench.nodes[1].complete(passive, Some(*initiate.state));
            bench.run(Duration::from_millis(50));
            assert_eq!(bench.nodes[1].established(), (passive, false));
        }
        bench.nodes[0].send(active, &b"said"[..]);
        bench.run(Duration::from_millis(50));
        assert_eq!(bench.nodes[1].data(), b"said", "{policy:?}");
    }
}

/// The policy's ports also apply to a client that requests offload immediately.
#[test]
fn at_once_applies_to_the_policys_ports() {
    for (port, expected) in [(5000, true), (5001, false)] {
        let rules = OffloadRules { ports: Some([port].into()), ..OffloadRules::default() };
        let auto = HostConfig { rules, ..config(2, OffloadPolicy::Auto) };
        let mut bench = Bench::with([config(1, OffloadPolicy::Never), auto]);
        bench.nodes[1].listen(remote(false), 4, true);
        bench.nodes[0].connect(remote(false), false);
        bench.run(Duration::from_millis(100));
        assert_eq!(bench.nodes[1].established().1, expected, "{port}");
    }
}

/// Sends posted before the client is notified of the offload are offloaded too.
#[test]
fn early_sends_are_offloaded() {
    let mut bench = Bench::new([OffloadPolicy::Always, OffloadPolicy::Never]);
    bench.nodes[1].listen(remote(false), 4, false);
    let active = bench.nodes[0].connect(remote(false), false);
    bench.nodes[0].send(active, &b"early"[..]);
    bench.nodes[0].shutdown(active);
    bench.run(Duration::from_millis(100));
    let mut notices = bench.nodes[0].notices.iter();
    assert!(matches!(notices.next(), Some(Notice::Established { offloading: true, .. })));
    let offloading = Notice::Offloading { handle: active, unanswered: 1, shutdown: true };
    assert_eq!(alloc::format!("{:?}", notices.next()), alloc::format!("{:?}", Some(offloading)));
    let state = &bench.nodes[0].initiates[0].state;
    assert_eq!(state_data(state), b"early");
    assert_eq!(state.tcp.delegated.state, TcpPhase::FinWait1, "its FIN follows the data");
}

#[test]
fn abort_during_an_initiate_waits_for_its_outcome() {
    let (mut bench, _) = connected(OffloadPolicy::Always, false, false);
    let (handle, _) = bench.nodes[1].established();
    bench.nodes[1].port.request(Request::Abort { handle });
    bench.settle();
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    bench.nodes[1].complete(handle, Some(*initiate.state));
    bench.run(Duration::from_millis(50));
    assert!(
        bench.nodes[1].has(|n| matches!(n, Notice::Closed { error: Some(HostError::Aborted), .. }))
    );
    assert!(
        bench.nodes[0].has(|n| matches!(n, Notice::Closed { error: Some(HostError::Reset), .. }))
    );
}

/// CH-INI-7: no delayed acknowledgment remains when a connection is offloaded.
#[test]
fn delayed_ack_is_sent_before_the_offload() {
    let (mut bench, active) = connected(OffloadPolicy::Auto, false, false);
    bench.nodes[0].send(active, vec![9; 100_000]);
    bench.run_until(|bench| !bench.nodes[1].initiates.is_empty());
    let state = &bench.nodes[1].initiates[0].state;
    let last = bench.nodes[1].sent.iter().rev().find_map(|frame| match crate::wire::parse(frame) {
        crate::wire::Frame::Tcp(segment) => Some((segment.ack, segment.window)),
        _ => None,
    });
    let (ack, window) = last.unwrap();
    assert_eq!(ack, state.tcp.delegated.rcv_nxt);
    assert_eq!(state.tcp.delegated.rcv_wnd, u32::from(window) << state.tcp.constant.rcv_wind_scale);
    assert_eq!(bench.nodes[1].host.stats().exports_refused, 0);
}

// CH-UPD-5, RFC 8201 §5.3: a path MTU reported by the target is sent to all connections on the path, and is the initial
// value of the next path object.
#[test]
fn reported_path_mtu_updates_the_path() {
    let (mut bench, _) = connected(OffloadPolicy::Always, false, false);
    let first = bench.nodes[1].initiates.pop_front().unwrap();
    assert_eq!(first.state.path.cached.path_mtu, 1500);
    bench.nodes[1].complete(first.handle, None);
    let narrow = |handle, path_mtu| ToHost::PathMtu { handle, path_mtu };
    bench.nodes[1].to_host.send(narrow(OffloadHandle(9_999), 1280)).unwrap();
    bench.run(Duration::from_millis(1));
    assert!(bench.nodes[1].updates.is_empty(), "of an unknown connection");
    let sent_mtu = |bench: &Bench| match &bench.nodes[1].updates[0][0].dependents[0].payload {
        UpdateNode::Cached { cached, .. } => cached.path_mtu,
        other => panic!("{other:?}"),
    };
    bench.nodes[1].to_host.send(narrow(first.handle, 1400)).unwrap();
    bench.run(Duration::from_millis(1));
    assert_eq!(sent_mtu(&bench), 1400);
    // CH-UPD-3: the next update is deferred until this one completes.
    bench.nodes[1].to_host.send(narrow(first.handle, 1280)).unwrap();
    bench.run(Duration::from_millis(1));
    assert_eq!(bench.nodes[1].updates.len(), 1);
    bench.nodes[1].updated(NdisStatus::SUCCESS);
    bench.run(Duration::from_millis(1));
    assert_eq!(sent_mtu(&bench), 1280);
    bench.nodes[1].updated(NdisStatus::SUCCESS);
    bench.nodes[1].to_host.send(ToHost::Released { handle: first.handle }).unwrap();
    bench.run(Duration::from_millis(1));
    assert!(bench.nodes[1].paths.is_empty(), "CH-TRM-2");
    bench.nodes[0].connect(remote(false), false);
    bench.run(Duration::from_millis(100));
    let second = bench.nodes[1].initiates.pop_front().unwrap();
    assert_eq!(second.state.path.cached.path_mtu, 1280);
    assert_eq!(bench.nodes[1].shapes, ["N{NT}", "N{NT}"]);
}
