//! Uploads requested by the client or the target, with concurrent events.

use alloc::{format, vec::Vec};

use offload_engine::{
    chimney::{
        client::{OffloadHandle, UploadReason},
        provider::{AdapterStatus, Forward, OffloadCapabilities},
        tree::InitiateNode,
    },
    engine::port::ToHost,
    memory::{SharedSpan, Span},
    nbl::NetBufferList,
    state::ConnectionState,
    status::NdisStatus,
    tcp::TcpPhase,
    time::Duration,
};

use super::{
    bench::{Bench, config},
    offloading::{connected, pattern, remote},
};
use crate::{
    host::{HANDSHAKE_MAX, HostConfig, RETRANSMISSION_MAX},
    offload_policy::{OffloadRules, UploadReasons},
    socket::{HostError, Notice, OffloadPolicy, Request},
};

const MOMENT: Duration = Duration::from_millis(50);

/// Shared memory with `data`, as writable by another owner.
fn shared(data: &[u8]) -> Span {
    let memory = SharedSpan::allocate(data.len().max(1), 1).expect("memory");
    memory.write(0, data);
    memory.slice(0..data.len()).into()
}

/// A connection offloaded at the second node, its handle at both nodes, and its state.
pub(super) fn offloaded() -> (Bench, [OffloadHandle; 2], ConnectionState) {
    let (mut bench, active) = connected(OffloadPolicy::Always, false, false);
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    bench.nodes[1].complete(initiate.handle, None);
    bench.run(MOMENT);
    bench.nodes[1].notices.clear();
    (bench, [active, initiate.handle], *initiate.state)
}

fn closed(bench: &Bench, node: usize) -> Option<Option<HostError>> {
    bench.nodes[node].notices.iter().find_map(|notice| match notice {
        Notice::Closed { error, .. } => Some(*error),
        _ => None,
    })
}

fn uploaded(bench: &Bench, handle: OffloadHandle) -> bool {
    bench.nodes[1].has(|n| matches!(n, Notice::Uploaded { handle: of, .. } if *of == handle))
}

/// Both sides send data and close normally.
fn transfer_and_close(bench: &mut Bench, [active, passive]: [OffloadHandle; 2]) {
    let before = [bench.nodes[0].data().len(), bench.nodes[1].data().len()];
    bench.nodes[0].send(active, pattern(40_000, 5));
    bench.nodes[1].send(passive, pattern(50_000, 6));
    bench.nodes[0].shutdown(active);
    bench.nodes[1].shutdown(passive);
    bench.run(Duration::from_secs(10));
    assert_eq!(bench.nodes[1].data()[before[1]..], pattern(40_000, 5));
    assert_eq!(bench.nodes[0].data()[before[0]..], pattern(50_000, 6));
    for node in 0..2 {
        assert_eq!(closed(bench, node), Some(None));
    }
    assert_eq!(bench.resets(0) + bench.resets(1), 0);
}

// CH-TRM-2, -7: an upload requested by the host's client, with segments that arrive meanwhile. Paths and neighbors are
// terminated when nothing depends on them.
#[test]
fn segments_during_an_upload_are_held() {
    let (mut bench, handles, state) = offloaded();
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.settle();
    assert_eq!(bench.nodes[1].terminating(), [handles[1]]);
    bench.nodes[0].send(handles[0], &b"on the way"[..]);
    bench.run(MOMENT);
    assert!(bench.nodes[1].forwards.is_empty(), "CH-FWD-3");
    // A second request has no effect.
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.run(MOMENT);
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.settle();
    assert!(uploaded(&bench, handles[1]));
    assert_eq!(bench.nodes[1].data(), b"on the way");
    assert!(bench.nodes[1].paths.is_empty() && bench.nodes[1].neighbors.is_empty());
    let stats = bench.nodes[1].host.stats();
    assert_eq!((stats.terminates, stats.uploads, stats.imports), (1, 1, 1));
    transfer_and_close(&mut bench, handles);
    // TIME-WAIT.
    bench.run(Duration::from_secs(30));
    assert_eq!(bench.nodes[1].host.owners.len(), 0);
}

// CH §8.3: the host processes a forwarded segment that the target has not processed; one that the target has dropped is
// discarded.
#[test]
fn unprocessed_forwards_are_returned() {
    for (status, is_read) in
        [(NdisStatus::UPLOAD_IN_PROGRESS, true), (NdisStatus::REQUEST_ABORTED, false)]
    {
        let (mut bench, handles, state) = offloaded();
        bench.passes = |_, _| false;
        bench.nodes[0].send(handles[0], &b"forwarded"[..]);
        bench.run(MOMENT);
        let frame = bench.nodes[0].sent.last().unwrap().clone();
        bench.nodes[1].frame(frame.clone());
        bench.run(MOMENT);
        assert_eq!(bench.nodes[1].forwards.as_slice(), core::slice::from_ref(&frame));
        bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
        bench.settle();
        let connection = bench.nodes[1].terminating_context();
        let segment = Forward { connection, frame, status };
        bench.nodes[1].to_host.send(ToHost::ForwardComplete(segment)).unwrap();
        bench.settle();
        bench.nodes[1].terminated(|_| Some(copy(&state)));
        bench.run(MOMENT);
        assert_eq!(bench.nodes[1].data(), if is_read { &b"forwarded"[..] } else { b"" });
    }
}

/// Copy of a state, which cannot be cloned as a whole.
pub(super) fn copy(state: &ConnectionState) -> ConnectionState {
    ConnectionState {
        send_data: state.send_data.clone(),
        buffered_data: state.buffered_data.clone(),
        out_of_order: state.out_of_order.clone(),
        ..*state
    }
}

// CH-TRM-6: both sides have closed, with undelivered data. The client receives the rest, and no error.
#[test]
fn closed_connection_delivers_refused_data() {
    let (mut bench, handles, mut state) = offloaded();
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.settle();
    let delegated = &mut state.tcp.delegated;
    delegated.state = TcpPhase::TimeWait;
    delegated.rcv_nxt += b"final data".len() as u32 + 1;
    for ours in [&mut delegated.snd_una, &mut delegated.snd_nxt, &mut delegated.snd_max] {
        *ours += 1;
    }
    state.buffered_data.push(b"final data"[..].into());
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.run(MOMENT);
    assert_eq!(bench.nodes[1].data(), b"final data");
    assert!(bench.nodes[1].has(|n| matches!(n, Notice::PeerClosed { .. })));
    assert_eq!(closed(&bench, 1), Some(None));
    assert_eq!(bench.resets(1), 0);
}

// CH-TRM-5, -6, CH-SND-2: pending sends and undelivered data. The target's lists continue in the host and complete
// there; the data of a disconnect are sent without a completion.
#[test]
fn pending_sends_and_buffered_data_are_uploaded() {
    let (mut bench, handles, mut state) = offloaded();
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.settle();
    for (context, text) in [(7, &b"seven"[..]), (8, b""), (9, b"nine")] {
        state.send_data.push_back(NetBufferList::from_mdl(context, shared(text)));
    }
    let last = NetBufferList::from_mdl(ConnectionState::DISCONNECT_DATA, b"bye".as_slice());
    state.send_data.push_back(last);
    state.tcp.delegated.state = TcpPhase::FinWait1;
    // Data of the peer that the target has acknowledged.
    bench.passes = |_, _| false;
    bench.nodes[0].send(handles[0], &b"unread"[..]);
    bench.settle();
    bench.passes = |_, _| true;
    state.buffered_data.push(b"unread".as_slice().into());
    state.tcp.delegated.rcv_nxt += 6;
    state.tcp.delegated.rcv_wnd -= 6;
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.run(Duration::from_secs(3));
    assert_eq!(bench.nodes[1].data(), b"unread");
    assert_eq!(bench.nodes[0].data(), b"sevenninebye");
    let success = NdisStatus::SUCCESS;
    assert_eq!(bench.nodes[1].completed(), [(7, 5, success), (8, 0, success), (9, 4, success)]);
    assert!(bench.nodes[0].has(|n| matches!(n, Notice::PeerClosed { .. })));
    bench.nodes[0].shutdown(handles[0]);
    bench.run(Duration::from_secs(3));
    assert_eq!((closed(&bench, 0), closed(&bench, 1)), (Some(None), Some(None)));
    assert_eq!(bench.resets(0) + bench.resets(1), 0);
}

// CH-ST-1, CH-EVT-3: a connection uploaded in TIME-WAIT stays there.
#[test]
fn time_wait_is_uploaded() {
    let (mut bench, handles, mut state) = offloaded();
    bench.nodes[0].shutdown(handles[0]);
    bench.run(MOMENT);
    let reason = UploadReason::UploadRequested;
    bench.nodes[1].to_host.send(ToHost::Retrieve { handle: handles[1], reason }).unwrap();
    bench.settle();
    let delegated = &mut state.tcp.delegated;
    delegated.state = TcpPhase::TimeWait;
    delegated.rcv_nxt += 1;
    delegated.snd_una += 1;
    delegated.snd_nxt += 1;
    delegated.snd_max += 1;
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.settle();
    assert_eq!(closed(&bench, 1), Some(None));
    bench.run(Duration::from_secs(30));
    assert_eq!(bench.nodes[1].host.owners.len(), 0);
}

// CH-EVT-1: mandatory reasons are always followed, optional ones by configuration; an uploaded connection rests.
#[test]
fn retrieves_follow_policy() {
    let rules = OffloadRules {
        upload_on: UploadReasons::default().with(UploadReason::SmallIo),
        ..OffloadRules::default()
    };
    for (reason, followed) in [
        (UploadReason::SmallIo, true),
        (UploadReason::LowActivity, false),
        (UploadReason::HighDropRate, false),
        (UploadReason::NoBufferPreposting, false),
        (UploadReason::HighFragmentation, false),
        (UploadReason::HighOutOfOrderPackets, false),
        (UploadReason::ReceivedUrgentData, true),
        (UploadReason::InvalidState, true),
        (UploadReason::UploadRequested, true),
    ] {
        let with_rules = HostConfig { rules: rules.clone(), ..config(2, OffloadPolicy::Always) };
        let mut bench = Bench::with([config(1, OffloadPolicy::Never), with_rules]);
        bench.nodes[1].listen(remote(false), 4, false);
        let active = bench.nodes[0].connect(remote(false), false);
        bench.run(MOMENT);
        let initiate = bench.nodes[1].initiates.pop_front().unwrap();
        let handle = initiate.handle;
        bench.nodes[1].complete(handle, None);
        bench.nodes[1].to_host.send(ToHost::Retrieve { handle, reason }).unwrap();
        bench.run(MOMENT);
        assert_eq!(!bench.nodes[1].terminating().is_empty(), followed, "{reason:?}");
        let stats = bench.nodes[1].host.stats();
        assert_eq!((stats.retrieves, stats.retrieves_ignored), (1, u64::from(!followed)));
        if !followed {
            continue;
        }
        bench.nodes[1].terminated(|_| Some(copy(&initiate.state)));
        bench.run(rules.holddown - MOMENT);
        assert!(bench.nodes[1].initiates.is_empty(), "it stays in the host");
        bench.run(MOMENT * 2);
        let again = bench.nodes[1].initiates.pop_front().expect("it is offloaded again");
        bench.nodes[1].complete(again.handle, Some(*again.state));
        bench.run(MOMENT);
        transfer_and_close(&mut bench, [active, handle]);
    }
}

// RFC 9293 §3.8.3: unanswered retransmissions reach their limit, although each offload restarts the count. So a
// connection with an unresponsive peer is not offloaded again by policy.
#[test]
fn silent_peer_keeps_connection_in_host() {
    let mut bench =
        Bench::with([config(1, OffloadPolicy::Never), config(2, OffloadPolicy::Always)]);
    bench.nodes[1].listen(remote(false), 4, false);
    bench.nodes[0].connect(remote(false), false);
    bench.run(MOMENT);
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    let (handle, reason) = (initiate.handle, UploadReason::InvalidState);
    bench.nodes[1].complete(handle, None);
    bench.nodes[1].to_host.send(ToHost::Retrieve { handle, reason }).unwrap();
    bench.run(MOMENT);
    bench.passes = |_, _| false;
    let mut state = initiate.state;
    state.send_data.push_back(NetBufferList::from_mdl(7, b"hello".as_slice()));
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.run(RETRANSMISSION_MAX + Duration::from_secs(50));
    assert!(bench.nodes[1].initiates.is_empty(), "offloaded again");
    assert_eq!(closed(&bench, 1), Some(Some(HostError::RetransmissionLimit)));
    assert_eq!(bench.nodes[1].completed(), [(7, 0, NdisStatus::REQUEST_ABORTED)]);
}

// CH §8.2: a connection that the target has timed out ends, and its lists complete unsent.
#[test]
fn timed_out_connection_ends() {
    let (mut bench, handles, mut state) = offloaded();
    let reason = UploadReason::TimeoutExpiration;
    bench.nodes[1].to_host.send(ToHost::Retrieve { handle: handles[1], reason }).unwrap();
    bench.settle();
    let mut list = NetBufferList::from_mdl(3, b"some of it".as_slice());
    list.complete(NdisStatus::PENDING, 4);
    state.send_data.push_back(list);
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.settle();
    assert_eq!(closed(&bench, 1), Some(Some(HostError::RetransmissionLimit)));
    assert_eq!(bench.nodes[1].completed(), [(3, 4, NdisStatus::REQUEST_ABORTED)]);
    assert_eq!(bench.resets(1), 1);
    assert!(bench.nodes[1].host.owners.is_empty() && bench.nodes[1].paths.is_empty());
}

// `Uploaded` has the number of lists, their bytes and the MSS. `ShutDown` follows the acknowledgment of our FIN, even
// while the peer still sends.
#[test]
fn upload_notice_counts_lists_and_bytes() {
    let (mut bench, handles, mut state) = offloaded();
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.settle();
    // 5 of 12 bytes are acknowledged; the data of a disconnect have no owner.
    for (context, bytes) in
        [(3, &b"abcdefgh"[..]), (4, b"ijkl"), (ConnectionState::DISCONNECT_DATA, b"m")]
    {
        state.send_data.push_back(NetBufferList::from_mdl(context, bytes));
    }
    state.send_data[0].complete(NdisStatus::PENDING, 5);
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.run(MOMENT);
    let uploaded = Notice::Uploaded { handle: handles[1], lists: 2, bytes: 12, mss: 1448 };
    let notices: Vec<_> =
        bench.nodes[1].notices.iter().map(|notice| format!("{notice:?}")).collect();
    assert!(notices.contains(&format!("{uploaded:?}")), "{notices:?}");
    let shut_down = |bench: &Bench| {
        bench.nodes[1].notices.iter().filter(|n| matches!(n, Notice::ShutDown { .. })).count()
    };
    bench.nodes[1].shutdown(handles[1]);
    bench.run(Duration::from_secs(1));
    assert_eq!((shut_down(&bench), closed(&bench, 1)), (1, None));
    bench.nodes[0].shutdown(handles[0]);
    bench.run(Duration::from_secs(1));
    assert_eq!((shut_down(&bench), closed(&bench, 1)), (1, Some(None)));
}

// CH-TRM-9: FAILURE means that the state is lost.
#[test]
fn lost_state_ends_connection() {
    let (mut bench, handles, _) = offloaded();
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.settle();
    bench.nodes[1].terminated(|_| None);
    bench.settle();
    assert_eq!(closed(&bench, 1), Some(Some(HostError::StateLost)));
    assert_eq!(bench.nodes[1].host.stats().handoffs_lost, 1);
    assert!(bench.nodes[1].host.owners.is_empty());
}

// The connection ends in the target during a terminate.
#[test]
fn released_during_a_terminate() {
    let (mut bench, handles, _) = offloaded();
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.settle();
    bench.nodes[1].to_host.send(ToHost::Released { handle: handles[1] }).unwrap();
    bench.nodes[1].terminated(|_| None);
    bench.run(MOMENT);
    assert_eq!(bench.nodes[1].host.stats().handoffs_lost, 0);
    assert!(closed(&bench, 1).is_none() && bench.nodes[1].paths.is_empty());
}

// The client aborts meanwhile: RST as soon as the upload completes.
#[test]
fn abort_during_a_terminate() {
    let (mut bench, handles, state) = offloaded();
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.nodes[1].port.request(Request::Abort { handle: handles[1] });
    bench.settle();
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.run(MOMENT);
    assert_eq!(closed(&bench, 1), Some(Some(HostError::Aborted)));
    assert_eq!(closed(&bench, 0), Some(Some(HostError::Reset)));
}

// CH §5.7: while the target pauses nothing is offloaded; UPLOAD_ALL uploads all connections in one tree; after RESUME
// the policy offloads them again.
#[test]
fn pause_upload_all_resume() {
    let (mut bench, handles, state) = offloaded();
    let indicate = |bench: &mut Bench, status| {
        bench.nodes[1].to_host.send(ToHost::Status(status)).unwrap();
        bench.run(MOMENT);
    };
    indicate(&mut bench, AdapterStatus::Pause);
    let second = bench.nodes[0].connect(remote(false), false);
    bench.run(MOMENT);
    let (other, offloading) = bench.nodes[1].established();
    assert!(!offloading && bench.nodes[1].initiates.is_empty());
    assert!(bench.nodes[1].terminating().is_empty(), "offloaded connections continue");
    indicate(&mut bench, AdapterStatus::UploadAll);
    assert_eq!(bench.nodes[1].terminating(), [handles[1]]);
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.run(MOMENT);
    assert!(uploaded(&bench, handles[1]));
    assert!(bench.nodes[1].paths.is_empty() && bench.nodes[1].neighbors.is_empty());
    bench.run(Duration::from_secs(60));
    assert!(bench.nodes[1].initiates.is_empty());
    indicate(&mut bench, AdapterStatus::Resume(OffloadCapabilities::default()));
    let down = bench.nodes[1].initiates.iter().map(|initiate| initiate.handle).collect::<Vec<_>>();
    assert_eq!(down, [handles[1], other], "both at once");
    assert_eq!(bench.nodes[1].shapes.last().unwrap(), "N{NTT}", "CH-ARC-5");
    for initiate in core::mem::take(&mut bench.nodes[1].initiates) {
        bench.nodes[1].complete(initiate.handle, Some(*initiate.state));
    }
    bench.run(MOMENT);
    transfer_and_close(&mut bench, [handles[0], handles[1]]);
    bench.nodes[0].port.request(Request::Abort { handle: second });
}

// CH-INI-1, CH-TREE-1: one tree for the connections due in one poll. A connection that depends on an object with an
// outstanding initiate is deferred; existing objects are linked.
#[test]
fn trees_share_neighbors_and_paths() {
    let mut bench = Bench::new([OffloadPolicy::Never, OffloadPolicy::Always]);
    for v6 in [false, true] {
        bench.nodes[1].listen(remote(v6), 8, false);
    }
    for v6 in [false, false, true] {
        bench.nodes[0].connect(remote(v6), false);
    }
    bench.run(MOMENT);
    let shapes = bench.nodes[1].shapes.join(" ");
    assert_eq!(shapes.matches('T').count() + bench.nodes[1].host.connections.len(), 3);
    let first = bench.nodes[1].initiates.pop_front().unwrap();
    // Meanwhile another connection is established, which depends on the outstanding objects.
    bench.nodes[0].connect(remote(false), false);
    bench.run(MOMENT);
    assert_eq!(bench.nodes[1].shapes.join(" "), shapes, "it is deferred");
    for handle in core::iter::once(first.handle)
        .chain(core::mem::take(&mut bench.nodes[1].initiates).into_iter().map(|i| i.handle))
    {
        bench.nodes[1].complete(handle, None);
    }
    bench.run(MOMENT);
    assert!(
        bench.nodes[1].shapes.last().unwrap().starts_with("L{LT"),
        "{:?}",
        bench.nodes[1].shapes
    );
    assert_eq!((bench.nodes[1].neighbors.len(), bench.nodes[1].paths.len()), (2, 2));
}

// CH-TREE-6, CH-INI-4: resources exhausted at each level. The connection continues in the host in any case, and is
// offered again later if that may succeed.
#[test]
fn exhausted_resources_keep_connections_in_the_host() {
    for (status, again) in [
        (NdisStatus::OFFLOAD_TCP_ENTRIES, true),
        (NdisStatus::OFFLOAD_PATH_ENTRIES, true),
        (NdisStatus::OFFLOAD_NEIGHBOR_ENTRIES, true),
        (NdisStatus::OFFLOAD_IP_ADDRESS_ENTRIES, true),
        (NdisStatus::OFFLOAD_HW_ADDRESS_ENTRIES, true),
        (NdisStatus::OFFLOAD_VLAN_ENTRIES, true),
        (NdisStatus::OFFLOAD_TCP_XMIT_BUFFER, true),
        (NdisStatus::OFFLOAD_TCP_RCV_BUFFER, true),
        (NdisStatus::RESOURCES, true),
        (NdisStatus::FAILURE, true),
        (NdisStatus::OFFLOAD_CONNECTION_REJECTED, true),
        (NdisStatus::OFFLOAD_TCP_RCV_WINDOW, false),
        (NdisStatus::OFFLOAD_VLAN_MISMATCH, false),
        (NdisStatus::OFFLOAD_PATH_MTU, false),
    ] {
        let (mut bench, active) = connected(OffloadPolicy::Always, false, false);
        let initiate = bench.nodes[1].initiates.pop_front().unwrap();
        bench.nodes[1].refuse_at(initiate.handle, *initiate.state, status);
        bench.run(MOMENT);
        bench.nodes[0].send(active, &b"still there"[..]);
        bench.run(MOMENT);
        assert_eq!(bench.nodes[1].data(), b"still there", "{status}");
        assert_eq!(bench.nodes[1].host.stats().initiates_refused, 1);
        assert!(bench.nodes[1].paths.is_empty() && bench.nodes[1].neighbors.is_empty());
        assert!(bench.nodes[1].host.shards.iter().next().unwrap().objects.paths.is_empty());
        bench.run(OffloadRules::default().holddown * 2);
        assert_eq!(!bench.nodes[1].initiates.is_empty(), again, "{status}");
    }
}

// CH-FWD-2, -3: data, FIN and RST of the peer during the offload. They are forwarded to the target if it accepts, and
// processed by smoltcp if it refuses.
#[test]
fn peer_segments_during_an_initiate_are_held() {
    for accepted in [true, false] {
        for end in ["data", "FIN", "RST"] {
            let (mut bench, active) = connected(OffloadPolicy::Always, false, false);
            let initiate = bench.nodes[1].initiates.pop_front().unwrap();
            let handle = initiate.handle;
            bench.nodes[0].send(active, &b"meanwhile"[..]);
            match end {
                "FIN" => bench.nodes[0].shutdown(active),
                "RST" => bench.nodes[0].port.request(Request::Abort { handle: active }),
                _ => {}
            }
            bench.run(MOMENT);
            bench.nodes[1].complete(handle, (!accepted).then_some(*initiate.state));
            bench.run(MOMENT);
            if accepted {
                assert!(!bench.nodes[1].forwards.is_empty(), "{end}");
                assert!(bench.nodes[1].data().is_empty());
                continue;
            }
            assert!(bench.nodes[1].forwards.is_empty());
            match end {
                "RST" => assert_eq!(closed(&bench, 1), Some(Some(HostError::Reset))),
                _ => assert_eq!(bench.nodes[1].data(), b"meanwhile", "{end}"),
            }
            let fin = bench.nodes[1].has(|n| matches!(n, Notice::PeerClosed { .. }));
            assert_eq!(fin, end == "FIN");
        }
    }
}

// Moves requested by the client, regardless of the policy, any number of times.
#[test]
fn client_migrates_its_connection() {
    let (mut bench, active) = connected(OffloadPolicy::Never, false, false);
    let (passive, _) = bench.nodes[1].established();
    for _ in 0..3 {
        bench.nodes[1].port.request(Request::Offload { handle: passive });
        bench.run(MOMENT);
        let initiate = bench.nodes[1].initiates.pop_front().expect("it is offloaded");
        bench.nodes[1].complete(passive, None);
        bench.nodes[1].port.request(Request::Upload { handle: passive });
        bench.run(MOMENT);
        bench.nodes[1].terminated(|_| Some(copy(&initiate.state)));
        bench.run(Duration::from_secs(60));
        assert!(bench.nodes[1].initiates.is_empty(), "it stays until the next request");
    }
    let history = &bench.nodes[1].host.connections[&passive].history;
    assert_eq!((history.offloads, history.uploads), (3, 3));
    transfer_and_close(&mut bench, [active, passive]);
}

// CH-INI-1: a connection whose path has an outstanding initiate is deferred. It stays in the host, and its client is
// notified, if that takes longer than a handshake may.
#[test]
fn deferred_offload_ends_at_the_handshake_limit() {
    let (mut bench, _) = connected(OffloadPolicy::Always, false, false);
    assert_eq!(bench.nodes[1].initiates.len(), 1, "the path's initiate stays outstanding");
    let second = bench.nodes[0].connect(remote(false), false);
    bench.nodes[0].send(second, &b"hello"[..]);
    bench.run(HANDSHAKE_MAX - MOMENT);
    assert!(bench.nodes[1].data().is_empty());
    bench.run(MOMENT * 3);
    assert_eq!(bench.nodes[1].data(), b"hello");
    assert_eq!(bench.nodes[1].host.stats().attempt_fails, 0);
}

// RFC 9293 §3.6, CH-ST-1: half closed, and offloaded on the client's request.
#[test]
fn half_closed_connections_are_offloaded_on_request() {
    let (mut bench, active) = connected(OffloadPolicy::Never, false, false);
    let (passive, _) = bench.nodes[1].established();
    bench.nodes[1].send(passive, &b"final data"[..]);
    bench.nodes[1].shutdown(passive);
    bench.run(MOMENT);
    bench.nodes[1].port.request(Request::Offload { handle: passive });
    bench.run(MOMENT);
    let initiate = bench.nodes[1].initiates.pop_front().expect("it is offloaded");
    assert_eq!(initiate.state.tcp.delegated.state, TcpPhase::FinWait2);
    assert!(
        bench.nodes[1]
            .has(|n| matches!(n, Notice::Offloading { unanswered: 0, shutdown: true, .. }))
    );
    bench.nodes[1].complete(passive, None);
    bench.nodes[1].port.request(Request::Upload { handle: passive });
    bench.run(MOMENT);
    bench.nodes[1].terminated(|_| Some(copy(&initiate.state)));
    bench.nodes[0].send(active, &b"further bytes"[..]);
    bench.nodes[0].shutdown(active);
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.nodes[1].data(), b"further bytes");
    assert_eq!((closed(&bench, 0), closed(&bench, 1)), (Some(None), Some(None)));
}

// An upload requested before the initiate completes is deferred (CH-INI-1).
#[test]
fn upload_request_is_deferred_until_the_initiate_completes() {
    let (mut bench, active) = connected(OffloadPolicy::Always, false, false);
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    let handle = initiate.handle;
    bench.nodes[1].port.request(Request::Upload { handle });
    bench.run(MOMENT);
    assert!(bench.nodes[1].terminating().is_empty());
    bench.nodes[1].complete(handle, None);
    bench.run(MOMENT);
    assert_eq!(bench.nodes[1].terminating(), [handle]);
    bench.nodes[1].terminated(|_| Some(copy(&initiate.state)));
    bench.run(MOMENT);
    transfer_and_close(&mut bench, [active, handle]);
}

// CH-TREE-3: a node with SUCCESS and without a context is a bug of the target, and affects only that connection.
#[test]
fn answer_without_a_context_loses_the_connection() {
    let (mut bench, _) = connected(OffloadPolicy::Always, false, false);
    let handle = bench.nodes[1].initiates.pop_front().unwrap().handle;
    let nothing = InitiateNode::New { state: None, context: None };
    bench.nodes[1].answer(handle, NdisStatus::SUCCESS, nothing);
    bench.run(MOMENT);
    assert_eq!(closed(&bench, 1), Some(Some(HostError::StateLost)));
    assert!(bench.nodes[1].paths.is_empty() && bench.nodes[1].host.owners.is_empty());
}
