//! Connections that stay in the host.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

use offload_engine::{chimney::client::OffloadHandle, status::NdisStatus, time::Duration};

use super::bench::{Bench, address};
use crate::{
    host::RETRANSMISSION_MAX,
    socket::{HostError, Notice, OffloadPolicy, RECEIVE_CREDIT_BYTES, Request, SEND_CREDIT_BYTES},
};

/// A connection between the two hosts, with its two handles.
fn connected() -> (Bench, OffloadHandle, OffloadHandle) {
    let mut bench = Bench::new([OffloadPolicy::Never; 2]);
    let remote = SocketAddr::new(address(2, false), 5000);
    bench.nodes[1].listen(remote, 4, false);
    let active = bench.nodes[0].connect(remote, false);
    bench.run(Duration::from_millis(100));
    let (passive, _) = bench.nodes[1].established();
    (bench, active, passive)
}

fn closed(bench: &Bench, node: usize, expected: Option<HostError>) -> bool {
    bench.nodes[node].has(|n| matches!(n, Notice::Closed { error, .. } if *error == expected))
}

#[test]
fn data_flows_and_both_sides_close() {
    let (mut bench, active, passive) = connected();
    let data =
        (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>();
    bench.nodes[0].send(active, data.clone());
    bench.nodes[0].shutdown(active);
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.nodes[1].data(), data);
    assert_eq!(bench.nodes[0].completed(), [(1, data.len(), NdisStatus::SUCCESS)]);
    assert!(matches!(bench.nodes[1].notices.last(), Some(Notice::PeerClosed { .. })));
    assert!(!closed(&bench, 1, None));
    bench.nodes[1].send(passive, &b"answer"[..]);
    bench.nodes[1].shutdown(passive);
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.nodes[0].data(), b"answer");
    assert!(closed(&bench, 0, None) && closed(&bench, 1, None));
    // TIME-WAIT ends by itself.
    bench.run(Duration::from_secs(20));
    for node in &bench.nodes {
        assert_eq!(node.host.connections.len(), 0);
        assert_eq!(node.host.owners.len(), 0);
    }
}

/// Data of the peer are held in the host, and its window closes, until the client consumes data.
#[test]
fn receive_credit_holds_data_back() {
    let (mut bench, active, passive) = connected();
    bench.nodes[0].send(active, vec![1; SEND_CREDIT_BYTES]);
    bench.run(Duration::from_secs(3));
    for _ in 0..4 {
        bench.nodes[0].send(active, vec![2; SEND_CREDIT_BYTES / 4]);
    }
    bench.run(Duration::from_secs(3));
    assert_eq!(bench.nodes[1].data().len(), RECEIVE_CREDIT_BYTES);
    bench.nodes[0].send(active, vec![3; 1000]);
    bench.run(Duration::from_secs(3));
    assert_eq!(bench.nodes[1].data().len(), RECEIVE_CREDIT_BYTES);
    bench.nodes[1].port.request(Request::Consumed { handle: passive, count: 300_000 });
    bench.run(Duration::from_secs(70));
    assert_eq!(bench.nodes[1].data().len(), 2 * RECEIVE_CREDIT_BYTES);
    bench.nodes[1].port.request(Request::Consumed { handle: passive, count: 300_000 });
    bench.run(Duration::from_secs(70));
    assert_eq!(bench.nodes[1].data().len(), 2 * RECEIVE_CREDIT_BYTES + 1000);
}

// RFC 9293 §3.8.6.1: an opening window is used immediately, also by the side that closes last. Its FIN follows data
// that the closed window has held back for longer than the probe interval.
#[test]
fn window_opens_before_last_fin() {
    let (mut bench, active, passive) = connected();
    bench.nodes[0].shutdown(active);
    bench.run(Duration::from_millis(100));
    for _ in 0..10 {
        bench.nodes[1].send(passive, vec![1; SEND_CREDIT_BYTES / 4]);
        bench.run(Duration::from_secs(1));
    }
    bench.nodes[1].shutdown(passive);
    bench.run(Duration::from_secs(28));
    let received = bench.nodes[0].data().len();
    assert_eq!(received, RECEIVE_CREDIT_BYTES);
    for _ in 0..3 {
        bench.nodes[0].port.request(Request::Consumed { handle: active, count: 300_000 });
        bench.run(Duration::from_millis(100));
    }
    assert_eq!(bench.nodes[0].data().len(), 10 * SEND_CREDIT_BYTES / 4);
    assert!(closed(&bench, 0, None) && closed(&bench, 1, None));
}

// RFC 9293 §3.9.1.3: data received before the peer's FIN are delivered however long that takes, although smoltcp
// discards them at the end of TIME-WAIT.
#[test]
fn unread_data_survive_time_wait() {
    let (mut bench, active, passive) = connected();
    bench.nodes[0].shutdown(active);
    bench.run(Duration::from_millis(100));
    for _ in 0..6 {
        bench.nodes[1].send(passive, vec![1; SEND_CREDIT_BYTES / 4]);
        bench.run(Duration::from_secs(1));
    }
    bench.nodes[1].shutdown(passive);
    bench.run(Duration::from_secs(15));
    assert_eq!(bench.nodes[0].data().len(), 6 * SEND_CREDIT_BYTES / 4);
    assert!(closed(&bench, 0, None) && closed(&bench, 1, None));
}

#[test]
fn client_beyond_its_credit_is_aborted() {
    // A single list may have any size.
    let (mut bench, active, _) = connected();
    bench.nodes[0].send(active, vec![1; SEND_CREDIT_BYTES + 1]);
    bench.settle();
    assert!(!closed(&bench, 0, Some(HostError::Aborted)));
    bench.nodes[0].send(active, vec![1; 1]);
    bench.run(Duration::from_millis(100));
    assert!(closed(&bench, 0, Some(HostError::Aborted)));
    // CH-SNC-2: at most one list is partly sent; all are completed.
    let completed = bench.nodes[0].completed();
    assert_eq!(completed.iter().map(|list| list.0).collect::<Vec<_>>(), [1, 2]);
    assert!(
        completed.iter().all(|list| list.2 == NdisStatus::REQUEST_ABORTED) && completed[1].1 == 0
    );
    assert!(closed(&bench, 1, Some(HostError::Reset)));
}

#[test]
fn abort_resets() {
    let (mut bench, active, _) = connected();
    bench.nodes[0].port.request(Request::Abort { handle: active });
    bench.run(Duration::from_millis(100));
    assert!(closed(&bench, 0, Some(HostError::Aborted)));
    assert!(closed(&bench, 1, Some(HostError::Reset)));
    assert_eq!(bench.resets(0), 1);
    assert!(bench.nodes.iter().all(|node| node.host.connections.is_empty()));
}

// An RST of smoltcp after the peer's RST is not a timeout.
#[test]
fn data_after_a_reset_are_ignored() {
    let (mut bench, active, _) = connected();
    bench.passes = |_, _| false;
    bench.nodes[0].send(active, &b"overtaken"[..]);
    bench.settle();
    let data = bench.nodes[0].sent.last().unwrap().clone();
    bench.nodes[0].port.request(Request::Abort { handle: active });
    bench.settle();
    let reset = bench.nodes[0].sent.last().unwrap().clone();
    bench.nodes[1].frame(reset);
    bench.nodes[1].frame(data);
    bench.settle();
    assert_eq!([0, 1].map(|node| bench.resets(node)), [1, 1], "in reply to the data");
    assert!(closed(&bench, 1, Some(HostError::Reset)));
}

#[test]
fn abort_ends_an_attempt() {
    let mut bench = Bench::new([OffloadPolicy::Never; 2]);
    let handle = bench.nodes[0].connect(SocketAddr::new(address(9, false), 1), false);
    bench.settle();
    bench.nodes[0].port.request(Request::Abort { handle });
    bench.settle();
    assert!(
        bench.nodes[0]
            .has(|n| matches!(n, Notice::ConnectFailed { error: HostError::Aborted, .. }))
    );
    assert_eq!(bench.nodes[0].host.connections.len(), 0);
}

#[test]
fn unanswered_retransmissions_end() {
    let (mut bench, active, _) = connected();
    bench.passes = |_, _| false;
    bench.nodes[0].send(active, &b"hello?"[..]);
    bench.run(RETRANSMISSION_MAX - Duration::from_secs(1));
    assert!(!closed(&bench, 0, Some(HostError::RetransmissionLimit)));
    bench.run(Duration::from_secs(2));
    assert!(closed(&bench, 0, Some(HostError::RetransmissionLimit)));
}

/// smoltcp's timeout would also end an idle connection.
#[test]
fn idle_connections_live() {
    let (mut bench, active, _) = connected();
    bench.nodes[0].send(active, &b"one"[..]);
    bench.run(Duration::from_secs(3 * 3600));
    bench.nodes[0].send(active, &b"two"[..]);
    bench.run(Duration::from_secs(3));
    assert_eq!(bench.nodes[1].data(), b"onetwo");
}
