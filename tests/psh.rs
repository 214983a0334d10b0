//! Placement of PSH on the wire (CH-SND-5): decoded by etherparse and by Wireshark, which must agree.
//!
//! Chains of 1, 2 and 1,000 net buffer lists, from 1 byte to 1 MiB each, are posted in one call. With
//! [`PushPolicy::EachList`] exactly the last segment of each list has PSH, and no segment holds bytes of two lists.
//! With [`PushPolicy::QueueEmpty`] only the last segment before the send queue becomes empty has PSH. Each list is
//! completed once, in order, in full (CH-SND-2, CH-SNC-1).

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use flue_test_support::capture;
use flue_test_support::flue::Scratch;
use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::stream::Stream;
use flue_test_support::tshark;
use host_stack::host::HostConfig;
use host_stack::node::{Node, NodeConfig};
use host_stack::stream::{OffloadState, Streams};
use offload_engine::chimney::client::OffloadHandle;
use offload_engine::engine::EngineConfig;
use offload_engine::link::{CaptureLink, OpenTap, TapOptions, VnetMode, open_tap};
use offload_engine::nbl::{NblChain, NetBuffer, NetBufferList};
use offload_engine::state::MacAddress;
use offload_engine::status::NdisStatus;
use offload_engine::tcp::{Info, PushPolicy};

const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare"), Need::Tool("tshark")];
const LIMIT: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;
const SEED: u64 = 5;

/// List lengths around an MSS of 1448 bytes, around the 64 KiB of a GSO packet, and between.
const SIZES: [usize; 10] = [1, 7, 536, 1447, 1448, 1449, 2896, 4097, 20_000, 65_537];

/// Lengths of the lists of each chain, in bytes: 13 MiB in all.
fn chains() -> Vec<Vec<usize>> {
    let mut thousand: Vec<usize> = SIZES.iter().copied().cycle().take(1000).collect();
    thousand[499] = MIB;
    vec![vec![1], vec![MIB], vec![1, MIB], vec![1448, 1449], thousand]
}

/// Net buffer list of two net buffers, the first with two MDLs where the data is long enough.
fn list(data: &Bytes) -> NetBufferList {
    let (first, second) = (data.len() / 3, data.len() / 2);
    let mut front = NetBuffer::from(data.slice(..first));
    front.push_mdl(data.slice(first..second));
    let mut list = NetBufferList::new(0);
    list.net_buffers = vec![front, NetBuffer::from(data.slice(second..))];
    list
}

/// Connection to a kernel sink in its own namespace, captured.
struct Bench {
    node: Node<Streams>,
    handle: OffloadHandle,
    local: SocketAddr,
    peer: KernelPeer,
    _host: Namespace,
}

impl Bench {
    fn new(vnet: VnetMode, push: PushPolicy, capture: &Path) -> Self {
        let host = Namespace::new();
        let options = TapOptions::new("tap0", 1500, vnet);
        let OpenTap { link, name, vnet_header, .. } = host.run(|| open_tap(&options)).unwrap();
        assert_eq!(vnet_header, vnet == VnetMode::On);
        host.ip(&format!("addr add 10.0.0.1/24 dev {name}"));
        host.ip(&format!("link set {name} up"));
        let link = CaptureLink::new(link, File::create(capture).unwrap(), &name, 0).unwrap();
        let mac = MacAddress([2, 0, 0, 0, 0, 2]);
        let mut engine = EngineConfig::new(mac);
        engine.tcp.push = push;
        let config = HostConfig { seed: SEED, ..HostConfig::new(mac, [10, 0, 0, 2].into()) };
        let config = NodeConfig { engine, spin: Duration::ZERO, ..NodeConfig::new(config) };
        let node = Node::start(Box::new(link), config, Streams::new);
        let node = node.unwrap();
        let peer = KernelPeer::listen(&host, SocketAddr::from(([10, 0, 0, 1], 0)), Plan::receive());
        let remote = peer.address();
        let handle = node.with(|streams, _, _| streams.connect(None, remote, LIMIT));
        let local = node.wait(Some(LIMIT), |streams, _, _| {
            let status = streams.status(handle).expect("the stream exists");
            assert_eq!(status.error, None);
            status.local.filter(|_| status.state == OffloadState::Offloaded)
        });
        Self { node, handle, local: local.expect("the connection is offloaded"), peer, _host: host }
    }

    /// Posts lists of these lengths in one call and waits until all are completed.
    fn post(&self, stream: &mut Stream, lengths: &[usize]) {
        let mut chain = NblChain::new();
        for length in lengths {
            let mut data = vec![0; *length];
            stream.fill(&mut data);
            chain.push_back(list(&data.into()));
        }
        let Self { node, handle, .. } = self;
        node.with(|streams, connections, now| streams.post(now, connections, *handle, chain));
        let mut completed = Vec::new();
        let all = node.wait(Some(LIMIT), |streams, _, _| {
            completed.extend(streams.completed(*handle));
            (completed.len() >= lengths.len()).then_some(())
        });
        all.unwrap_or_else(|error| panic!("{} of {}: {error}", completed.len(), lengths.len()));
        let in_order = completed.windows(2).all(|two| two[0].context + 1 == two[1].context);
        assert!(in_order, "completed out of order, or twice");
        let results = completed.iter().map(|list| (list.status, list.bytes_transferred));
        assert!(results.eq(lengths.iter().map(|length| (NdisStatus::SUCCESS, *length))));
    }

    /// Closes the connection and the node; returns the counters from before the close.
    fn close(self, sent: Stream, bytes: u64) -> (SocketAddr, SocketAddr, Info) {
        let Self { node, handle, local, peer, _host } = self;
        let info = node.with(|streams, connections, now| {
            let info = connections.list(now).find(|(other, ..)| *other == handle);
            streams.shutdown(now, connections, handle);
            info.expect("the connection is still offloaded").2
        });
        node.wait(Some(LIMIT), |streams, _, _| {
            streams.status(handle).is_none_or(|status| status.shut_down).then_some(())
        })
        .expect("the peer acknowledges the FIN");
        let remote = peer.address();
        peer.finish().assert_received(sent.digest(bytes));
        (local, remote, info)
    }
}

fn pushes_follow_policy(vnet: VnetMode, push: PushPolicy) {
    if lacks(NEEDS) {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.file("psh.pcapng");
    let bench = Bench::new(vnet, push, &file);
    let (mut stream, mut at) = (Stream::new(SEED), 0);
    let mut list_ends = BTreeSet::new();
    let mut chain_ends = Vec::new();
    for lengths in chains() {
        bench.post(&mut stream, &lengths);
        for length in &lengths {
            at += *length as u64;
            list_ends.insert(at);
        }
        chain_ends.push(at);
    }
    let (local, remote, info) = bench.close(Stream::new(SEED), at);

    let segments = capture::segments(&capture::read(&file).unwrap());
    assert_eq!(segments, tshark::segments(&file), "etherparse and Wireshark disagree");
    let sent = capture::Direction::find(&segments, local, remote).expect("the SYN is captured");
    assert_eq!(sent.bytes(), at);
    match push {
        PushPolicy::EachList => {
            assert!(sent.pushes().iter().eq(&list_ends), "PSH does not match the list ends");
            for (start, bytes, _) in &sent.segments {
                let inside = start + 1..start + u64::from(*bytes);
                let within = list_ends.range(inside).next();
                assert_eq!(within, None, "segment at {start} contains bytes of two lists");
            }
        }
        PushPolicy::QueueEmpty => assert_eq!(sent.pushes(), chain_ends),
    }
    let pushes = sent.segments.iter().filter(|(.., push)| *push).count();
    assert_eq!(info.push_out, pushes as u64);
    assert_eq!((info.bytes_sent, info.bytes_acked), (at, at));
    // A kernel that is not scheduled may delay an acknowledgment beyond the retransmission timeout.
    assert!(info.fast_retransmits + info.timeouts <= 1 + info.segs_out / 10_000, "{info:?}");
    assert!(info.segs_out >= at / 1448, "{info:?}");
}

#[test]
fn push_ends_each_list_in_plain_frames() {
    pushes_follow_policy(VnetMode::Off, PushPolicy::EachList);
}

#[test]
fn push_ends_each_list_in_gso_packets() {
    pushes_follow_policy(VnetMode::On, PushPolicy::EachList);
}

#[test]
fn push_ends_queue_in_plain_frames() {
    pushes_follow_policy(VnetMode::Off, PushPolicy::QueueEmpty);
}

#[test]
fn push_ends_queue_in_gso_packets() {
    pushes_follow_policy(VnetMode::On, PushPolicy::QueueEmpty);
}
