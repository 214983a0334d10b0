//! Listing of listeners and connections, for monitoring.

use alloc::vec::Vec;
use core::net::SocketAddr;

use offload_engine::{
    chimney::client::{OffloadHandle, UploadReason},
    engine::port::ToHost,
    status::NdisStatus,
    time::Duration,
};

use super::bench::{Bench, address};
use crate::{
    socket::{ConnectionRow, MigrationCounts, OffloadPolicy, Refusal, Request, SocketState},
    stream::OffloadState,
};

const PORT: u16 = 5000;

fn listening() -> SocketAddr {
    SocketAddr::new(address(2, false), PORT)
}

fn rows(bench: &mut Bench, node: usize) -> Vec<ConnectionRow> {
    let listed = |bench: &mut Bench, only| {
        let (reply, rows) = crossbeam_channel::bounded(1);
        bench.nodes[node].port.request(Request::List { only, reply });
        bench.run(Duration::from_millis(1));
        rows.try_recv().expect("the host answers in its next poll")
    };
    let rows = listed(bench, None);
    // Each row can be listed alone.
    for row in &rows {
        assert_eq!(listed(bench, Some(row.handle)), [*row]);
    }
    assert_eq!(listed(bench, Some(OffloadHandle(u64::MAX))), []);
    rows
}

/// Connects host 1 to host 2; `policy` is that of host 2.
fn connected(policy: OffloadPolicy) -> (Bench, OffloadHandle) {
    let mut bench = Bench::new([OffloadPolicy::Never, policy]);
    bench.nodes[1].listen(listening(), 4, false);
    let active = bench.nodes[0].connect(listening(), false);
    bench.run(Duration::from_millis(100));
    (bench, active)
}

#[test]
fn listeners_and_connections_have_a_row_each() {
    let (mut bench, active) = connected(OffloadPolicy::Never);
    let (passive, _) = bench.nodes[1].established();
    bench.nodes[0].send(active, &b"seven b"[..]);
    bench.run(Duration::from_millis(50));
    let rows_of_2 = rows(&mut bench, 1);
    let [listener, connection] = rows_of_2.as_slice() else { panic!("{rows_of_2:?}") };
    assert_eq!((listener.state, listener.remote), (Some(SocketState::Listen), None));
    assert_eq!((listener.local, listener.recv_q, listener.send_q), (listening(), Some(0), Some(4)));
    assert_eq!((connection.handle, connection.local), (passive, listening()));
    assert_eq!(connection.state, Some(SocketState::Established));
    assert_eq!(connection.offload, OffloadState::InHost);
    assert_eq!((connection.recv_q, connection.send_q), (Some(7), Some(0)), "unread");
    assert_eq!(connection.moves, MigrationCounts::default());
    let rows_of_1 = rows(&mut bench, 0);
    assert_eq!(rows_of_1.len(), 1);
    assert_eq!((rows_of_1[0].handle, rows_of_1[0].remote), (active, Some(listening())));
}

// The host does not block on the requester: a reply that does not fit is dropped.
#[test]
fn reply_without_room_is_dropped() {
    let (mut bench, _) = connected(OffloadPolicy::Never);
    let (reply, answers) = crossbeam_channel::bounded(0);
    bench.nodes[1].port.request(Request::List { only: None, reply });
    assert_eq!(rows(&mut bench, 1).len(), 2);
    assert!(answers.try_recv().is_err());
}

// Values of the Offload State column through all transitions of a connection.
#[test]
fn row_follows_offload_and_upload() {
    let (mut bench, _) = connected(OffloadPolicy::Always);
    let (handle, _) = bench.nodes[1].established();
    let state = bench.nodes[1].initiates.pop_front().unwrap().state;
    let row = |bench: &mut Bench| {
        let rows = rows(bench, 1);
        *rows.iter().find(|row| row.handle == handle).expect("it has a row")
    };
    let offloading = row(&mut bench);
    assert_eq!((offloading.offload, offloading.state), (OffloadState::Offloading, None));
    assert_eq!((offloading.recv_q, offloading.send_q), (None, None));
    bench.nodes[1].complete(handle, None);
    bench.run(Duration::from_millis(1));
    let offloaded = row(&mut bench);
    assert_eq!((offloaded.offload, offloaded.moves.offloads), (OffloadState::Offloaded, 1));
    let reason = UploadReason::HardwareFailure;
    bench.nodes[1].to_host.send(ToHost::Retrieve { handle, reason }).unwrap();
    bench.run(Duration::from_millis(1));
    assert_eq!(row(&mut bench).offload, OffloadState::Uploading);
    let mut state = Some(*state);
    bench.nodes[1].terminated(|_| state.take());
    bench.run(Duration::from_millis(1));
    let uploaded = row(&mut bench);
    assert_eq!(
        (uploaded.offload, uploaded.state),
        (OffloadState::InHost, Some(SocketState::Established))
    );
    let moves = MigrationCounts {
        offloads: 1,
        uploads: 1,
        last_upload_reason: Some(reason),
        ..MigrationCounts::default()
    };
    assert_eq!(uploaded.moves, moves);
}

#[test]
fn refusal_is_counted_with_its_status() {
    let (mut bench, _) = connected(OffloadPolicy::Always);
    let (handle, _) = bench.nodes[1].established();
    let state = bench.nodes[1].initiates.pop_front().unwrap().state;
    let status = NdisStatus::OFFLOAD_TCP_ENTRIES;
    bench.nodes[1].refuse(handle, *state, status);
    bench.run(Duration::from_millis(1));
    let rows = rows(&mut bench, 1);
    let moves = rows.iter().find(|row| row.handle == handle).expect("it lives on").moves;
    assert_eq!((moves.offloads, moves.refusals), (0, 1));
    assert_eq!(moves.last_refusal, Some(Refusal::Target(status)));
}
