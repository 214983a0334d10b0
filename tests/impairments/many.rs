//! Many concurrent connections between a flue node and a kernel: every byte of each, in both directions.
//!
//! The kernel connects. The order in which the node accepts the connections is not known, so the digests of sent and
//! received data are compared as sets, in both directions.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::netns::Namespace;
use flue_test_support::stream::{Digest, HashingSink, Stream};
use flue_test_support::switch::Switch;
use flue_test_support::wire::Wire;
use host_stack::node::Node;
use host_stack::stream::Streams;
use offload_engine::chimney::client::OffloadHandle;
use offload_engine::engine::Connections;
use offload_engine::time::Instant as EngineInstant;

use crate::FLUE;
use crate::hosts::{LIMIT, flue_node};

const PORT: u16 = 5000;
const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum bytes of a connection that are posted and not acknowledged.
const POSTED_BYTES_MAX: usize = 512 * 1024;
/// Maximum time without progress on any connection.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Loss in bursts of five, and reordering, in both directions.
const IMPAIRMENTS: &str = "--drop 0.1 --burst 5 --reorder 1 --delay 500us --seed 11";

/// Connection of the node.
struct NodeConnection {
    handle: OffloadHandle,
    stream: Stream,
    to_send: u64,
    /// Next data to post, prepared while the node was not locked.
    next: Option<Bytes>,
    arrived: VecDeque<Bytes>,
    received: HashingSink,
    ended: bool,
}

impl NodeConnection {
    fn new(handle: OffloadHandle, seed: u64, bytes: u64) -> Self {
        let (next, arrived) = (None, VecDeque::new());
        let (stream, received) = (Stream::new(seed), HashingSink::default());
        let mut talk =
            Self { handle, stream, to_send: bytes, next, arrived, received, ended: false };
        talk.work();
        talk
    }

    /// Digests the received data and prepares the next data, without locking the node.
    fn work(&mut self) {
        while let Some(data) = self.arrived.pop_front() {
            self.received.update(&data);
        }
        if self.next.is_none() && self.to_send > 0 {
            let mut chunk = vec![0; CHUNK_BYTES.min(self.to_send as usize)];
            self.stream.fill(&mut chunk);
            self.to_send -= chunk.len() as u64;
            self.next = Some(chunk.into());
        }
    }

    /// Posts and completes as much as possible; returns true if it made progress.
    fn step(&mut self, streams: &mut Streams, io: &mut Connections, now: EngineInstant) -> bool {
        if self.ended {
            return false;
        }
        let status = streams.status(self.handle).expect("the status of an open stream");
        assert!(status.error.is_none(), "{:?}", status.error);
        let mut moved = false;
        if status.unacknowledged < POSTED_BYTES_MAX
            && let Some(chunk) = self.next.take()
        {
            streams.send(now, io, self.handle, chunk);
            moved = true;
            if self.to_send == 0 {
                streams.shutdown(now, io, self.handle);
            }
        }
        while let Some(data) = streams.receive(now, io, self.handle) {
            self.arrived.push_back(data);
            moved = true;
        }
        let is_over = self.to_send == 0 && self.next.is_none() && status.shut_down;
        if is_over && status.peer_closed && status.unread == 0 {
            self.ended = true;
            moved = true;
        }
        moved
    }
}

/// Runs `connections` connections that transfer `bytes` per direction.
pub(crate) fn run(connections: usize, bytes: u64) {
    let (left, right) = (Switch::new(1500), Namespace::new());
    let options = format!("--bridge-a {} --addr-b 10.0.0.2/24 {IMPAIRMENTS}", Switch::BRIDGE);
    let wire = Wire::start(Path::new(FLUE), left.namespace(), &right, &options);
    let node = flue_node(&left, 1);
    let address = SocketAddr::from(([10, 0, 0, 1], PORT));
    let listener = node.with(|streams, _, _| streams.listen(address, connections));
    let listening = node.wait(Some(LIMIT), |streams, _, _| streams.listening(listener));
    listening.expect("a running node").expect("the port is free");
    let start = Instant::now();
    let plan = |seed: usize| Plan::send(seed as u64, bytes);
    let peers: Vec<KernelPeer> =
        (0..connections).map(|seed| KernelPeer::connect(&right, address, plan(seed))).collect();
    let mut node_connections: Vec<NodeConnection> = Vec::new();
    while node_connections.len() < connections {
        let accepted = node.wait(Some(STALL_MAX), |streams, _, _| streams.accept(listener));
        let seed = (1000 + node_connections.len()) as u64;
        node_connections.push(NodeConnection::new(
            accepted.expect("all are accepted"),
            seed,
            bytes,
        ));
    }
    converse(&node, &mut node_connections);
    let mut kernel = (Vec::new(), Vec::new());
    for outcome in peers.into_iter().map(KernelPeer::finish) {
        assert!(outcome.send_error.is_none() && outcome.receive_error.is_none(), "{outcome:?}");
        kernel.0.push(outcome.sent);
        kernel.1.push(outcome.received);
    }
    let took = start.elapsed();
    let received = node_connections.iter().map(|talk| talk.received.clone().finish()).collect();
    let sent = (0..connections).map(|n| Stream::new((1000 + n) as u64).digest(bytes)).collect();
    assert_eq!(sorted(received), sorted(kernel.0), "data received by flue differs from data sent");
    assert_eq!(
        sorted(kernel.1),
        sorted(sent),
        "data received by the kernel differs from data sent"
    );
    drop(node);
    let wire = wire.finish();
    for name in ["lost", "reordered"] {
        assert!(wire.to_left(name) > 0 && wire.to_right(name) > 0, "{name}: {wire:?}");
    }
    let mbit = (connections as u64 * bytes * 2 * 8) as f64 / took.as_secs_f64() / 1e6;
    println!(
        "{connections} connections of {bytes} bytes each way in {took:.1?}, {mbit:.0} Mbit/s in all; \
         lost {} and {}, reordered {} and {}",
        wire.to_right("lost"),
        wire.to_left("lost"),
        wire.to_right("reordered"),
        wire.to_left("reordered"),
    );
}

/// Runs until every connection has sent its data, has it acknowledged, and has received the peer's FIN.
fn converse(node: &Node<Streams>, node_connections: &mut [NodeConnection]) {
    while node_connections.iter().any(|talk| !talk.ended) {
        let moved = node.wait(Some(STALL_MAX), |streams, io, now| {
            let mut moved = false;
            for talk in node_connections.iter_mut() {
                moved |= talk.step(streams, io, now);
            }
            moved.then_some(())
        });
        let open = node_connections.iter().filter(|talk| !talk.ended).count();
        moved.unwrap_or_else(|error| {
            panic!("{error} within {STALL_MAX:?}; {open} connections incomplete")
        });
        node_connections.iter_mut().for_each(NodeConnection::work);
    }
}

fn sorted(mut digests: Vec<Digest>) -> Vec<Digest> {
    digests.sort_unstable_by_key(|digest| digest.sha256);
    digests
}
