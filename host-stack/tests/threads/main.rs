//! Many threads on two nodes, one per end of each connection. Each sends, receives, queries, updates and closes its
//! connection at random. Other threads list all connections and request offloads and uploads, and callbacks post.
//!
//! The threads are real, so a seed determines the actions of each thread but not their interleaving. Also intended for
//! a race detector: `tests/race`. Repeat a failure with `FLUE_SEED=2 cargo test -p host-stack --test threads`;
//! `FLUE_SEEDS=100` runs a longer campaign.
#![cfg(not(loom))]

mod link;
mod watched;
mod worker;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread,
};

use flue_test_support::seeds::from_environment;
use host_stack::{
    host::HostConfig,
    node::{Node, NodeConfig, Progress},
    socket::{ListenerId, OffloadPolicy},
    stream::OffloadState,
};
use offload_engine::{
    chimney::client::OffloadHandle,
    engine::EngineConfig,
    link::{Impaired, Impairments, Link, MemoryLinkOptions, memory_link_pair},
    state::MacAddress,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use oorandom::Rand64;

use self::{
    link::bell_links,
    watched::{Ledger, VerifiedStreams},
    worker::{End, Role, Worker},
};

/// Number of seeds of a run in CI.
const SEEDS: u64 = 4;
/// Number of connections, with one thread at each end.
const CONNECTIONS: u64 = 8;
/// Time limit of a worker's step, even under a race detector.
const LIMIT: Duration = Duration::from_secs(60);
/// Interval between two rounds of migrations.
const MOVE_INTERVAL: Duration = Duration::from_millis(2);
const PORT: u16 = 7;

type TestNode = Node<VerifiedStreams>;

/// Parameters selected by a seed.
#[derive(Debug)]
struct Plan {
    policies: [OffloadPolicy; 2],
    progress: [Progress; 2],
    loss: bool,
    /// True if a descriptor wakes the nodes; otherwise the link's waker does.
    descriptors: bool,
    spin: Duration,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut rng = Rand64::new(seed.into());
        let mut policy = || match rng.rand_range(0..4) {
            0 => OffloadPolicy::Never,
            1 => OffloadPolicy::Auto,
            _ => OffloadPolicy::Always,
        };
        let policies = [policy(), policy()];
        Self {
            policies,
            // Every other seed has a node whose loop runs inside the workers' waits.
            progress: [
                Progress::Automatic,
                [Progress::Automatic, Progress::Manual][(seed % 2) as usize],
            ],
            loss: seed % 4 >= 2,
            descriptors: matches!(seed % 4, 1 | 2),
            spin: Duration::from_micros(rng.rand_range(0..2) * 50),
        }
    }

    fn links(&self) -> (Box<dyn Link>, Box<dyn Link>) {
        let options = MemoryLinkOptions::default();
        if self.descriptors {
            let (one, other) = bell_links(options);
            return (Box::new(one), Box::new(other));
        }
        let (one, other) = memory_link_pair(options);
        (Box::new(one), Box::new(other))
    }

    fn node(&self, index: usize, link: Box<dyn Link>) -> (TestNode, Arc<Ledger>) {
        let mac = MacAddress([2, 0, 0, 0, 0, 1 + index as u8]);
        let mut engine = EngineConfig::new(mac);
        // A finished end does not wait for its peer, so TIME-WAIT must cover retransmissions of lost FINs.
        engine.tcp.time_wait = LIMIT;
        let policy = self.policies[index];
        let host = HostConfig { policy, ..HostConfig::new(mac, address(index).ip()) };
        let (progress, spin) = (self.progress[index], self.spin);
        let config = NodeConfig { engine, host, progress, spin };
        let ledger = Arc::new(Ledger::default());
        let watched = |port| VerifiedStreams::new(port, ledger.clone());
        let node = Node::start(link, config, watched).unwrap();
        ledger.attach(Some(node.clone()));
        (node, ledger)
    }
}

fn address(index: usize) -> SocketAddr {
    (Ipv4Addr::new(10, 1, 0, 1 + index as u8), PORT).into()
}

fn for_each_seed(run: impl Fn(u64)) {
    let seeds = from_environment().map_or(0..SEEDS, |(seeds, _)| seeds);
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("repeat: FLUE_SEED={seed} cargo test -p host-stack --test threads");
            resume_unwind(panic);
        }
    }
}

fn listen(node: &TestNode) -> ListenerId {
    let listener = node.with(|client, _, _| client.streams.listen(address(1), 64));
    let state = node.wait(Some(LIMIT), |client, _, _| client.streams.listening(listener));
    state.unwrap().unwrap();
    listener
}

/// Lists all connections until stopped. Returns the number of listings with connections.
fn list_until(node: &TestNode, over: &AtomicBool) -> u64 {
    let mut found = 0;
    while !over.load(Ordering::Acquire) {
        let seen = node.with_engine(|engine, now| {
            let connections = engine.connections();
            let listed = connections.list(now).count();
            assert_eq!(listed, connections.len(), "a connection is listed once");
            listed
        });
        assert!(seen <= CONNECTIONS as usize);
        found += u64::from(seen > 0);
        node.wake();
        thread::yield_now();
    }
    found
}

/// Requests offloads and uploads until stopped. Returns the number of uploads.
fn move_until(node: &TestNode, over: &AtomicBool, seed: u64) -> u64 {
    let mut rng = Rand64::new(u128::from(seed) << 8);
    let mut uploads = HashMap::new();
    while !over.load(Ordering::Acquire) {
        // The interval lets connections make progress. The time limit is not a failure.
        let _ = node.wait(Some(MOVE_INTERVAL), |_, _, _| None::<()>);
        // With manual progress the request is answered while another thread waits.
        let Ok(rows) = node.list(MOVE_INTERVAL) else { continue };
        for row in rows.iter().filter(|_| rng.rand_range(0..4) == 0) {
            node.with(|client, _, _| match row.offload {
                OffloadState::InHost => client.streams.offload(row.handle),
                OffloadState::Offloaded => client.streams.upload(row.handle),
                _ => {}
            });
            uploads.insert(row.handle, u64::from(row.moves.uploads));
        }
    }
    uploads.values().sum()
}

// CH-SND-4, CH-RCV-3 (calls of one connection are serialized, those of different ones are concurrent), CH-RCC-2
// (completions neither nest nor run concurrently), CH-SND-1, -2 (each list completes once, in order).
#[test]
fn thread_per_connection() {
    for_each_seed(|seed| {
        let plan = Plan::new(seed);
        let (one, other) = plan.links();
        let one: Box<dyn Link> = if plan.loss {
            let impairments =
                Impairments { drop_pct: 1.0, reorder_pct: 1.0, seed, ..Default::default() };
            Box::new(Impaired::new(one, impairments, impairments).unwrap())
        } else {
            one
        };
        let (near, near_ledger) = plan.node(0, one);
        let (far, far_ledger) = plan.node(1, other);
        let listener = listen(&far);

        let mut threads = Vec::new();
        let seed = (seed, !plan.loss);
        for index in 0..CONNECTIONS {
            let (near, far) = (near.clone(), far.clone());
            threads.push(thread::spawn(move || {
                let handle =
                    near.with(|client, _, _| client.streams.connect(None, address(1), LIMIT));
                Worker::new(near, handle, Role::Connects, seed, index).run()
            }));
            threads.push(thread::spawn(move || {
                let handle: OffloadHandle = far
                    .wait(Some(LIMIT), |client, _, _| client.streams.accept(listener))
                    .expect("a connection to accept");
                Worker::new(far, handle, Role::Accepts, seed, index).run()
            }));
        }
        let over = Arc::new(AtomicBool::new(false));
        let listers = [&near, &far].map(|node| {
            let (node, over) = (node.clone(), over.clone());
            thread::spawn(move || list_until(&node, &over))
        });
        let movers = [&near, &far].map(|node| {
            let (node, over) = (node.clone(), over.clone());
            thread::spawn(move || move_until(&node, &over, seed.0))
        });
        let ends: Vec<End> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        over.store(true, Ordering::Release);
        let found: Vec<u64> = listers.into_iter().map(|lister| lister.join().unwrap()).collect();
        let moves: u64 = movers.into_iter().map(|mover| mover.join().unwrap()).sum();
        verify_counters(&plan, &ends, &found, moves);
        for (node, ledger) in [(&near, &near_ledger), (&far, &far_ledger)] {
            ledger.settle(node, LIMIT);
            ledger.attach(None);
        }
    });
}

/// Verifies the counters of a run.
fn verify_counters(plan: &Plan, ends: &[End], found: &[u64], moves: u64) {
    for end in ends.iter().filter(|end| !end.reset) {
        let status = end.status.unwrap();
        let peer = ends.iter().find(|peer| peer.port == end.port && peer.role != end.role);
        assert!(status.error.is_none(), "{end:?}, {peer:?}");
    }
    let sum = |count: fn(&End) -> u64| ends.iter().map(count).sum::<u64>();
    let (calls, lists) = (sum(|end| end.queries), sum(|end| end.lists));
    assert!(lists >= 2 * CONNECTIONS, "{lists} lists sent");
    assert_eq!(
        sum(|end| end.received),
        sum(|end| end.expected),
        "every byte is received exactly once"
    );
    let offloads = plan.policies.contains(&OffloadPolicy::Always);
    assert!(!offloads || calls > 0, "no query met an offloaded connection");
    assert!(!offloads || found.iter().any(|found| *found > 0), "no listing met a connection");
    let updates = sum(|end| end.updates);
    eprintln!(
        "{plan:?}: {lists} lists, {calls} queries, {updates} updates, {moves} moves, listings {found:?}"
    );
}
