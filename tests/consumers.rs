//! Byte streams and NDK on one node, one address and a real TAP: against another such node and against kernel TCP at
//! the same time. Every byte is checked.

#[path = "../rdma-over-tcp/tests/consumers/ends.rs"]
#[allow(dead_code, reason = "another program has tests of more")]
mod ends;

use std::thread;

use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::needs::{Need, lacks};
use flue_test_support::stream::{HashingSink, Stream};
use flue_test_support::switch::Switch;
use host_stack::node::Node;
use host_stack::stream::Streams;
use offload_engine::chimney::client::OffloadHandle;
use offload_engine::link::{TapOptions, VnetMode, open_tap};

use self::ends::{Calls, End, Host, LIMIT, MESSAGE_MAX, at};

const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];
const MIB: u64 = 1 << 20;
/// Bytes per direction of each byte stream.
const BYTES: u64 = 8 * MIB;
/// Messages per direction of each queue pair.
const MESSAGES: u64 = 500;
const STREAM_PORT: u16 = 5000;
const NDK_PORT: u16 = 5001;
/// Bytes posted to a stream at once, and the limit of its unacknowledged bytes.
const CHUNK: usize = 64 * 1024;
const WINDOW: usize = 1 << 20;

/// Node on a TAP attached to the switch.
fn host(switch: &Switch, index: usize, vnet: VnetMode) -> Host {
    let name = format!("tap{index}");
    let options = TapOptions::new(&name, 1500, vnet);
    let opened = switch.attach(&name, || open_tap(&options)).unwrap();
    ends::start(index, Box::new(opened.link))
}

/// Sends and receives until both directions are complete, and verifies that the received stream is exact.
fn stream_both_ways(node: &Node<Streams>, handle: OffloadHandle, seeds: [u64; 2]) {
    let (mut source, mut sent, mut chunk) = (Stream::new(seeds[0]), 0, vec![0; CHUNK]);
    let mut summer = HashingSink::default();
    let through = node.wait(Some(LIMIT), |streams, connections, now| {
        while sent < BYTES
            && streams.status(handle).is_some_and(|status| status.unacknowledged < WINDOW)
        {
            source.fill(&mut chunk);
            sent += CHUNK as u64;
            streams.send(now, connections, handle, chunk.clone().into());
        }
        while let Some(data) = streams.receive(now, connections, handle) {
            summer.update(&data);
        }
        let status = streams.status(handle)?;
        assert_eq!(status.error, None);
        (summer.bytes() >= BYTES && sent == BYTES && status.unacknowledged == 0).then_some(())
    });
    through.unwrap_or_else(|error| panic!("{sent} sent, {} received: {error}", summer.bytes()));
    assert_eq!(summer.finish(), Stream::new(seeds[1]).digest(BYTES));
}

/// Sends messages of all lengths both ways; each end can compute the expected data of the other.
fn messages_both_ways(end: &End, seeds: [u64; 2]) {
    let [mut ours, mut theirs] = seeds.map(Stream::new);
    for message in 0..MESSAGES {
        let length = 1 + message as usize * 7919 % MESSAGE_MAX;
        let (mut data, mut expected) = (vec![0; length], vec![0; length]);
        ours.fill(&mut data);
        theirs.fill(&mut expected);
        end.send(&data);
        assert!(end.received() == expected, "message {message} of {length} bytes");
    }
}

fn consumers_share_an_address(vnet: VnetMode) {
    if lacks(NEEDS) {
        return;
    }
    let switch = Switch::new(1500);
    let kernel = switch.host("10.3.0.9/24");
    let hosts = [0, 1].map(|index| host(&switch, index, vnet));
    // One listener of each kind at either end.
    let listeners = hosts.each_ref().map(|host| {
        let index = usize::from(!std::ptr::eq(host, &hosts[0]));
        let (listener, _) = host.streams.listen(at(index, STREAM_PORT)).unwrap();
        (listener, host.ndk_listen(at(index, NDK_PORT)).unwrap())
    });
    let [near, far] = &hosts;
    let [(_, (_near, near_incoming)), (listener, (_far, far_incoming))] = &listeners;
    let one = near.streams.connect(None, at(1, STREAM_PORT)).unwrap();
    let other = far.streams.accept(*listener);
    let there = near.ndk_pair(far, far_incoming, at(1, NDK_PORT));
    let back = far.ndk_pair(near, near_incoming, at(0, NDK_PORT));
    let plan = Plan::send(5, BYTES);
    let peer = KernelPeer::connect(&kernel, at(1, STREAM_PORT), plan);
    let of_kernel = far.streams.accept(*listener);
    thread::scope(|scope| {
        scope.spawn(|| stream_both_ways(&near.streams, one, [1, 2]));
        scope.spawn(|| stream_both_ways(&far.streams, other, [2, 1]));
        scope.spawn(|| stream_both_ways(&far.streams, of_kernel, [6, 5]));
        for (pair, seed) in [(&there, 10), (&back, 20)] {
            scope.spawn(move || messages_both_ways(&pair[0], [seed, seed + 1]));
            scope.spawn(move || messages_both_ways(&pair[1], [seed + 1, seed]));
        }
    });
    far.streams.with(|streams, connections, now| streams.shutdown(now, connections, of_kernel));
    peer.finish().assert_received(Stream::new(6).digest(BYTES));
    let engines = hosts.each_ref().map(|host| host.ndk.with_engine(|engine, _| engine.stats()));
    let [ours, theirs] = engines.map(|stats| (stats.initiates, stats.initiate_failures));
    assert_eq!((ours, theirs), ((3, 0), (4, 0)), "every connection was offloaded");
}

#[test]
fn consumers_share_an_address_with_gso_packets() {
    consumers_share_an_address(VnetMode::On);
}

#[test]
fn consumers_share_an_address_on_plain_frames() {
    consumers_share_an_address(VnetMode::Off);
}
