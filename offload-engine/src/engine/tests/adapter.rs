//! Adapter operations: pause and resume (CH §5.7), statistics (CH §11), reachability (CH §9.7), capture comments.

use super::{terminate::*, trees::*, *};
use crate::chimney::{
    client::UploadReason,
    provider::{AdapterStatus, OffloadCapabilities},
    statistics::{IpOffloadStats, IpVersion, TcpOffloadStats},
    tree::{Block, UpdateNode},
};
use crate::tcp::Share;

const SUCCESS: NdisStatus = NdisStatus::SUCCESS;

// CH §5.7, CH §16 #28: offloaded connections continue during a pause. Outstanding initiates are processed after it, in
// order, within the new limits (CH-CFG-1).
#[test]
fn pause_delays_initiates() {
    let mut bench = Bench::new(10);
    bench.offload(&[80]);
    bench.engine.pause();
    assert!(bench.engine.is_paused());
    bench.port.initiate(neighbor(vec![path(vec![tcp(81)])]));
    bench.port.initiate(neighbor(vec![path(vec![tcp(82)])]));
    bench.arrives(from_peer(80, 5000, 1000, b"going on"));
    bench.poll();
    assert_eq!(bench.client().received, b"going on");
    assert!(matches!(bench.host_messages()[..], [ToHost::Status(AdapterStatus::Pause)]));
    assert!(!bench.engine.has_input(), "no work until resume");

    let limits = OffloadCapabilities { connections_max: 2, ..OffloadCapabilities::default() };
    bench.engine.resume(limits);
    assert!(bench.engine.has_input());
    bench.poll();
    let messages = bench.host_messages();
    let [ToHost::Status(status), ToHost::InitiateComplete(first), ToHost::InitiateComplete(second)] =
        &messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!(
        (*status, status.code()),
        (AdapterStatus::Resume(limits), NdisStatus::OFFLOAD_RESUME)
    );
    assert_eq!(statuses(first), [SUCCESS; 3]);
    assert_eq!(statuses(second), [SUCCESS, PARTIAL, NdisStatus::OFFLOAD_TCP_ENTRIES]);
}

// CH §10.9: the timestamp clock advances while a connection is delayed by a pause.
#[test]
fn timestamps_advance_during_pause() {
    let mut bench = Bench::new(10);
    let InitiateNode::New { state: Some(before), .. } = tcp(80).payload else { unreachable!() };
    bench.engine.pause();
    bench.port.initiate(neighbor(vec![path(vec![tcp(80)])]));
    bench.poll();
    bench.now += Duration::from_secs(7);
    bench.engine.resume(OffloadCapabilities::default());
    bench.poll();
    let after = bench.engine.snapshot(bench.now, OffloadHandle(80)).unwrap().tcp.delegated;
    let before = before.tcp.delegated;
    assert_eq!(after.ts_time.wrapping_sub(before.ts_time), 7_000);
    assert_eq!(after.ts_recent_age - before.ts_recent_age, 7_000);
}

// CH §5.7: during an upload-all terminates are processed and initiates are not.
#[test]
fn upload_all_pauses_and_permits_terminates() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80]);
    bench.engine.upload_all();
    bench.port.initiate(neighbor(vec![path(vec![tcp(81)])]));
    let (tree, messages) = bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(statuses(&tree), [SUCCESS; 3]);
    assert!(matches!(messages[..], [ToHost::Status(AdapterStatus::UploadAll)]), "{messages:?}");
    assert!(bench.engine.connections().is_empty());
}

// Trees beyond the limit complete with RESOURCES.
#[test]
fn delayed_trees_are_bounded() {
    let mut bench = Bench::new(10);
    bench.engine.pause();
    for _ in 0..super::super::DELAYED_TREES_MAX {
        bench.port.initiate(Vec::new());
    }
    bench.port.initiate(neighbor(vec![path(vec![tcp(80)])]));
    while bench.poll() {}
    let messages = bench.host_messages();
    let [ToHost::Status(_), ToHost::InitiateComplete(tree)] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!(statuses(tree), [NdisStatus::RESOURCES; 3]);
    assert!(context(&tree[0]).is_none());
    bench.engine.resume(OffloadCapabilities::default());
    bench.poll();
    assert_eq!(bench.host_messages().len(), 1 + super::super::DELAYED_TREES_MAX);
}

// CH §11, CH §16 #27.
#[test]
fn statistics_count_offloaded_traffic() {
    let mut bench = Bench::new(10);
    bench.offload(&[80, 81]);
    bench.io(80).send([NetBufferList::from_mdl(1, Bytes::from(vec![1; 2_000]))].into());
    bench.poll();
    bench.now += Duration::from_secs(3);
    bench.poll();
    let again = bench.sent()[2..].len() as u64;
    assert!(again > 0, "a timeout");
    let mut broken = from_peer(80, 5000, 1000, b"data");
    *broken.last_mut().unwrap() ^= 1;
    bench.arrives(broken);
    bench.arrives(from_peer(99, 5000, 1000, b"the host's"));
    bench.arrives(from_peer(80, 5000, 3000, b"data"));
    bench.poll();
    let sent = bench.sent().len() as u64;
    let stats = bench.engine.tcp_stats(IpVersion::V4);
    let expected = TcpOffloadStats {
        in_segments: 2,
        out_segments: 2 + sent,
        currently_established: 2,
        reset_established: 0,
        retransmitted_segments: again as u32,
        in_errors: 1,
        out_resets: 0,
    };
    assert_eq!(stats, expected);
    let ip = bench.engine.ip_stats(IpVersion::V4);
    assert_eq!((ip.in_receives, ip.in_octets, ip.in_delivers), (2, 2 * 44, 2));
    assert_eq!(ip.out_requests, 2 + again + sent);
    assert!(ip.out_octets >= 2_000 + 40 * ip.out_requests, "{ip:?}");
    assert_eq!(bench.engine.tcp_stats(IpVersion::V6), TcpOffloadStats::default());

    // A RST from the peer, and one sent.
    let mut reset = from_peer(80, 5004, 3000, b"");
    reset[47] = 0x04;
    bench.wire.lock().unwrap().receive.push_back((reset, RxChecksum::Valid));
    bench.io(81).disconnect(Disconnect::Abortive, NetBufferList::new(7));
    bench.poll();
    let stats = bench.engine.tcp_stats(IpVersion::V4);
    let counts = (stats.currently_established, stats.reset_established, stats.out_resets);
    assert_eq!(counts, (0, 2, 1));

    // A set resets one group of counters to 0 and leaves the other.
    bench.engine.reset_tcp_stats(IpVersion::V4);
    assert_eq!(bench.engine.tcp_stats(IpVersion::V4), TcpOffloadStats::default());
    assert_ne!(bench.engine.ip_stats(IpVersion::V4), IpOffloadStats::default());
    bench.engine.reset_ip_stats(IpVersion::V4);
    assert_eq!(bench.engine.ip_stats(IpVersion::V4), IpOffloadStats::default());
}

// CH §11: frames without the neighbor's tag count as IP discards and are not delivered to TCP.
#[test]
fn discards_are_counted() {
    let mut bench = Bench::new(10);
    bench.initiate_state(1, state_in_vlan(80, 5));
    bench.poll();
    bench.arrives(from_peer(80, 5000, 1000, b"untagged"));
    bench.poll();
    let ip = bench.engine.ip_stats(IpVersion::V4);
    assert_eq!((ip.in_receives, ip.in_discards, ip.in_delivers), (1, 1, 0));
    assert_eq!(bench.engine.tcp_stats(IpVersion::V4).in_segments, 0);
}

fn reachability_queries(bench: &Bench) -> Vec<(u64, u32, u32)> {
    bench
        .host_messages()
        .iter()
        .filter_map(|message| match message {
            ToHost::NeighborReachabilityQuery {
                neighbor,
                host_reachability_delta,
                nic_reachability_delta,
            } => Some((neighbor.0, *host_reachability_delta, *nic_reachability_delta)),
            _ => None,
        })
        .collect()
}

fn send_one(bench: &mut Bench) {
    bench.io(80).send([list(1, b"x")].into());
    bench.poll();
}

// CH §9.7, CH §16 #25: the host is queried before a segment is sent if neither host nor target has confirmed the
// neighbor for NceStaleTicks. The host's response and progress of TCP each suppress the query for the same time.
#[test]
fn stale_neighbor_is_queried() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80]);
    let stale = EngineConfig::new(OURS).nce_stale;
    bench.now += stale;
    send_one(&mut bench);
    assert_eq!(reachability_queries(&bench), [], "not yet");
    bench.now += Duration::from_millis(1);
    send_one(&mut bench);
    let ticks = stale.as_millis() as u32;
    assert_eq!(reachability_queries(&bench), [(1, ticks + 1, ticks + 1)]);
    send_one(&mut bench);
    assert_eq!(reachability_queries(&bench), [], "once");

    // The response.
    let mut cached = parts(1).0.cached;
    cached.host_reachability_delta = 100;
    let node = UpdateNode::Cached { context: n, cached };
    let answer = vec![Block::new(OffloadHandle(0), node)];
    assert_eq!(bench.update(answer), [SUCCESS]);
    let neighbor = bench.query_all(n, p, tcps[0]).0;
    assert_eq!(neighbor.cached.host_reachability_delta, 100);
    assert_eq!(neighbor.delegated.nic_reachability_delta, ticks + 1);
    bench.now += stale - Duration::from_millis(100);
    send_one(&mut bench);
    assert_eq!(reachability_queries(&bench), [], "the host has confirmed it");
    bench.now += Duration::from_millis(1);
    send_one(&mut bench);
    assert_eq!(reachability_queries(&bench).len(), 1);

    // Progress: sent data is acknowledged.
    let una = bench.query_all(n, p, tcps[0]).4.delegated.snd_una.0;
    bench.arrives(from_peer(80, 5000, una + 1, b""));
    bench.poll();
    assert_eq!(bench.query_all(n, p, tcps[0]).0.delegated.nic_reachability_delta, 0);
    bench.now += stale;
    send_one(&mut bench);
    assert_eq!(reachability_queries(&bench), []);
}

// CH §9.7: received data confirms reachability only as a response to a sent segment.
#[test]
fn responding_data_confirms_neighbor() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80]);
    bench.now += Duration::from_secs(1);
    bench.arrives(from_peer(80, 5000, 1000, b"unasked"));
    bench.poll();
    assert_eq!(bench.query_all(n, p, tcps[0]).0.delegated.nic_reachability_delta, 1_000);
    bench.now += Duration::from_secs(1);
    bench.poll();
    assert!(!bench.sent().is_empty(), "the ACK");
    bench.arrives(from_peer(80, 5007, 1000, b"answer"));
    bench.poll();
    assert_eq!(bench.query_all(n, p, tcps[0]).0.delegated.nic_reachability_delta, 0);
}

// The first frame after an offload or upload has a comment.
#[test]
fn hand_overs_are_commented_in_captures() {
    let mut bench = Bench::new(10);
    let (_, _, tcps) = bench.offload(&[80]);
    send_one(&mut bench);
    send_one(&mut bench);
    bench.upload(tcps[0]);
    let mut hosts = Vec::new();
    PacketBuilder::ethernet2(OURS.0, PEERS.0)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(80, 9000, 1000, 60_000)
        .write(&mut hosts, b"")
        .unwrap();
    for _ in 0..2 {
        bench.port.to_engine.send(FromHost::Frame(hosts.clone())).unwrap();
    }
    bench.poll();
    let comments = &bench.wire.lock().unwrap().comments;
    assert_eq!(comments[..], ["initiate complete; NBL 0x1", "NBL 0x1", "terminate"]);
}

// CH §9.1: fragments are passed to the host. The connection counts the first fragment of each segment.
#[test]
fn fragments_are_passed_to_host() {
    let mut config = EngineConfig::new(OURS);
    config.tcp.upload.high_fragmentation = Some(Share { sample: 1, per_mille: 1 });
    let mut bench = Bench::with(config);
    bench.offload(&[80]);
    let mut first = from_peer(80, 5000, 1000, b"fragment");
    first[20] |= 0x20;
    let mut second = first.clone();
    second[21] = 1;
    for frame in [first, second] {
        bench.arrives(frame);
    }
    bench.poll();
    assert_eq!(bench.engine.stats().rx_fragments, 1);
    assert_eq!(bench.engine.stats().rx_to_host, 2);
    let messages = bench.host_messages();
    assert_eq!(Bench::retrieved(&messages), [(80, UploadReason::HighFragmentation)]);
}
