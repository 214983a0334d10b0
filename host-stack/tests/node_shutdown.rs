//! Orderly shutdown of a node: its last handle resets each open connection in either stack, and closed connections end
//! in order. The peer, another node, does not time out.
#![cfg(not(loom))]

#[path = "threads/link.rs"]
#[allow(dead_code, reason = "used by another test program")]
mod link;

use std::{net::SocketAddr, time};

use bytes::Bytes;
use host_stack::{
    host::HostConfig,
    node::{Node, NodeConfig, Progress, SHUTDOWN_DRAIN_MAX},
    socket::{HostError, OffloadPolicy},
    stream::{OffloadState, StreamStatus, Streams},
};
use offload_engine::{
    chimney::client::OffloadHandle,
    link::{Link, MemoryLinkOptions},
    state::MacAddress,
    time::Duration,
};

/// Time limit of a failing test, so it may be long.
const LIMIT: Duration = Duration::from_secs(30);
const PORT: u16 = 9;

fn at(number: u8, port: u16) -> SocketAddr {
    ([10, 4, 0, number], port).into()
}

fn config(number: u8, policy: OffloadPolicy, progress: Progress) -> NodeConfig {
    let mac = MacAddress([2, 0, 0, 0, 4, number]);
    let host = HostConfig { policy, ..HostConfig::new(mac, at(number, 0).ip()) };
    NodeConfig { progress, ..NodeConfig::new(host) }
}

/// Node that will be shut down, and its peer, which accepts its connections.
struct Bench {
    /// One handle per queue.
    near: Vec<Node<Streams>>,
    far: Node<Streams>,
    ends: Vec<[OffloadHandle; 2]>,
}

fn status(node: &Node<Streams>, handle: OffloadHandle) -> StreamStatus {
    node.with(|streams, _, _| streams.status(handle)).unwrap()
}

impl Bench {
    /// Creates a bench with one connection per queue.
    fn new(policy: OffloadPolicy, progress: Progress, queues: usize) -> Self {
        let (one, others) = link::queue_links(MemoryLinkOptions::default(), queues);
        let links = others.into_iter().map(|queue| Box::new(queue) as Box<dyn Link>).collect();
        let near = Node::start_queues(links, config(1, policy, progress), Streams::new).unwrap();
        let of_far = config(2, OffloadPolicy::Always, Progress::Automatic);
        let far = Node::start(Box::new(one), of_far, Streams::new).unwrap();
        let listener = far.with(|streams, _, _| streams.listen(at(2, PORT), 8));
        far.wait(Some(LIMIT), |streams, _, _| streams.listening(listener)).unwrap().unwrap();
        let mut bench = Self { near, far, ends: Vec::new() };
        for node in bench.near.clone() {
            let own = node.with(|streams, _, _| streams.connect(None, at(2, PORT), LIMIT));
            let state = match policy {
                OffloadPolicy::Never => OffloadState::InHost,
                _ => OffloadState::Offloaded,
            };
            bench.until(&node, own, |status| status.connected && status.state == state);
            let other = bench.run(|| bench.far.with(|streams, _, _| streams.accept(listener)));
            let other = other.expect("a connection");
            bench.ends.push([own, other]);
        }
        bench
    }

    /// Runs queues that no thread runs until there is a result. `None`: time limit.
    fn run<R>(&self, mut f: impl FnMut() -> Option<R>) -> Option<R> {
        let begun = time::Instant::now();
        while begun.elapsed() < LIMIT {
            let result = f();
            if result.is_some() {
                return result;
            }
            if !self.near.iter().fold(false, |busy, node| node.progress_once() | busy) {
                std::thread::yield_now();
            }
        }
        None
    }

    fn until(
        &self,
        node: &Node<Streams>,
        handle: OffloadHandle,
        is: impl Fn(&StreamStatus) -> bool,
    ) {
        let reached = self.run(|| is(&status(node, handle)).then_some(()));
        assert!(reached.is_some(), "{:?}", status(node, handle));
    }

    fn each(&self) -> impl Iterator<Item = (&Node<Streams>, [OffloadHandle; 2])> {
        self.near.iter().zip(self.ends.iter().copied())
    }

    /// Shuts down the node, and returns the final status of the peer's ends.
    fn ended(mut self) -> Vec<StreamStatus> {
        let begun = time::Instant::now();
        self.near.clear();
        assert!(begun.elapsed() < SHUTDOWN_DRAIN_MAX, "shutdown waited without pending frames");
        let ends = self.ends.iter().map(|[_, other]| {
            self.until(&self.far, *other, |end| end.closed || end.peer_closed && end.shut_down);
            status(&self.far, *other)
        });
        ends.collect()
    }
}

fn send(node: &Node<Streams>, handle: OffloadHandle, bytes: usize) {
    node.with(|streams, connections, now| {
        streams.send(now, connections, handle, Bytes::from(vec![7; bytes]))
    });
}

fn shutdown(node: &Node<Streams>, handle: OffloadHandle) {
    node.with(|streams, connections, now| streams.shutdown(now, connections, handle));
}

const POLICIES: [OffloadPolicy; 2] = [OffloadPolicy::Always, OffloadPolicy::Never];
const WAYS: [(Progress, usize); 6] = [
    (Progress::Automatic, 1),
    (Progress::Manual, 1),
    (Progress::Automatic, 2),
    (Progress::Manual, 2),
    (Progress::Shared, 1),
    (Progress::Shared, 2),
];

fn for_each_way(test: impl Fn(Bench)) {
    for policy in POLICIES {
        for (progress, queues) in WAYS {
            test(Bench::new(policy, progress, queues));
        }
    }
}

#[test]
fn open_connection_is_reset() {
    for_each_way(|bench| {
        let ends = bench.ended();
        assert!(ends.iter().all(|end| end.error == Some(HostError::Reset)), "{ends:?}");
    });
}

// During a transfer in both directions, with more queued than a window.
#[test]
fn busy_connection_is_reset() {
    for_each_way(|bench| {
        for (node, [own, other]) in bench.each() {
            send(node, own, 4 << 20);
            send(&bench.far, other, 4 << 20);
        }
        let ends = bench.ended();
        assert!(ends.iter().all(|end| end.error == Some(HostError::Reset)), "{ends:?}");
    });
}

// A half-closed connection counts as open.
#[test]
fn half_closed_connection_is_reset() {
    for_each_way(|bench| {
        for (node, [own, other]) in bench.each() {
            shutdown(node, own);
            bench.until(&bench.far, other, |status| status.peer_closed);
        }
        let ends = bench.ended();
        assert!(ends.iter().all(|end| end.error == Some(HostError::Reset)), "{ends:?}");
    });
}

// The peer has closed and waits for our FIN: the FIN is requested, and the node is shut down immediately.
#[test]
fn requested_fin_is_sent() {
    for_each_way(|bench| {
        for (node, [own, other]) in bench.each() {
            shutdown(&bench.far, other);
            bench.until(node, own, |status| status.peer_closed);
            shutdown(node, own);
        }
        let in_host =
            bench.each().any(|(node, [own, _])| status(node, own).state == OffloadState::InHost);
        let ends = bench.ended();
        // A shutdown may still be queued for the host stack when the client unregisters: the host then sends FIN or
        // RST.
        let in_order = ends.iter().all(|end| end.error.is_none() && end.shut_down);
        assert!(in_order || in_host, "{ends:?}");
    });
}

// Both sides have closed and processed the other's FIN: no reset is reported.
#[test]
fn orderly_close_survives_shutdown() {
    for_each_way(|bench| {
        for (node, [own, other]) in bench.each() {
            shutdown(node, own);
            bench.until(&bench.far, other, |status| status.peer_closed);
            shutdown(&bench.far, other);
            bench.until(node, own, |status| status.peer_closed);
        }
        let ends = bench.ended();
        assert!(ends.iter().all(|end| end.error.is_none() && end.shut_down), "{ends:?}");
    });
}

// An unresponsive peer does not block a node's shutdown.
#[test]
fn unresponsive_peer_does_not_block_shutdown() {
    let mut bench = Bench::new(OffloadPolicy::Never, Progress::Automatic, 1);
    let [[own, other]] = bench.ends[..] else { panic!("one connection") };
    shutdown(&bench.far, other);
    bench.until(&bench.near[0], own, |status| status.peer_closed);
    let (one, far) = (bench.near.remove(0), bench.far.clone());
    // Our FIN is not acknowledged: the peer's lock is held for that long.
    let stuck = far.with_engine(|_, _| {
        shutdown(&one, own);
        let begun = time::Instant::now();
        drop(one);
        begun.elapsed()
    });
    assert!(stuck < LIMIT / 10, "{stuck:?}");
}
