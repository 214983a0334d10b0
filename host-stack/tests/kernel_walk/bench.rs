//! Namespace with a TAP, a node on the TAP, and the final counters of kernel and monitor.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flue_test_support::kernel_peer::{End, KernelPeer, Outcome as PeerOutcome, Plan};
use flue_test_support::netns::Namespace;
use flue_test_support::stream::{Digest, Stream};
use flue_test_support::tcp_validator::{Feed, Monitor, Rules};
use host_stack::node::{Node, NodeConfig};
use host_stack::socket::{ListenerId, OffloadPolicy};
use host_stack::stream::Streams;
use host_stack::{host::HostConfig, socket::SocketState};
use offload_engine::chimney::client::OffloadHandle;
use offload_engine::engine::{EngineConfig, EngineStats};
use offload_engine::link::CaptureLink;
use offload_engine::state::MacAddress;
use offload_engine::time::Duration as EngineDuration;

use crate::exchange::Exchange;
use crate::links::{cross, share};
use crate::network::{Network, TAP};
use crate::outcome::{Kernel, Outcome};

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 7]);
const PORT: u16 = 5000;
/// Time limit of a connect, and of a stall: longer than TIME-WAIT.
const STALL_MAX: EngineDuration = EngineDuration::from_secs(120);
/// Interval between two listings of the remaining connections.
const POLL_INTERVAL: EngineDuration = EngineDuration::from_millis(20);
/// Maximum delay of the node's processing of received frames, per connection: its threads share the machine.
const LAG: Duration = Duration::from_millis(50);
/// Maximum bytes in flight to the node on all connections: smoltcp is slow, and the engine drops frames for it beyond
/// 4,096.
const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;
/// Range of receive buffers, in bytes.
const BUFFER: std::ops::RangeInclusive<usize> = 8 << 10..=256 << 10;
/// Number of stream seeds per seed: one of the kernel and one of the node for each connection.
const STREAMS_PER_SEED: u64 = 1_000_000;
const NODE_SEED: u64 = 100_000;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) connections: usize,
    /// Offloads and uploads of each connection, alternating.
    pub(crate) moves: u64,
    /// Bytes per connection in each direction.
    pub(crate) bytes: u64,
    pub(crate) vnet: bool,
    pub(crate) mtu: usize,
    pub(crate) v6: bool,
    /// Queues of the TAP, with an engine each.
    pub(crate) queues: usize,
    /// True if each engine transmits on the queue of the next, so that the kernel delivers to the wrong one.
    pub(crate) crossed: bool,
    /// Loss of TCP segments in each direction, in percent.
    pub(crate) loss: u32,
    /// Seed of the bytes, of the node's initial sequence numbers, and of the byte counts at which each connection
    /// migrates.
    pub(crate) seed: u64,
    /// True to wait for the end of TIME-WAIT too, 10 s.
    pub(crate) time_wait: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            connections: 20,
            moves: 6,
            bytes: 256 << 10,
            vnet: false,
            mtu: 1500,
            v6: false,
            queues: 1,
            crossed: false,
            loss: 0,
            seed: 0,
            time_wait: false,
        }
    }
}

impl Scenario {
    pub(crate) fn address(&self, host: u8) -> IpAddr {
        if self.v6 {
            Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, host.into()).into()
        } else {
            Ipv4Addr::new(10, 99, 0, host).into()
        }
    }

    pub(crate) fn prefix(&self) -> u8 {
        if self.v6 { 64 } else { 24 }
    }

    /// Stream seed of the kernel on the connection `index`.
    fn kernel_stream(&self, index: usize) -> u64 {
        self.seed * STREAMS_PER_SEED + index as u64
    }

    /// Stream seed of the node.
    fn node_stream(&self, index: usize) -> u64 {
        self.kernel_stream(index) + NODE_SEED
    }
}

/// Runs a scenario: all bytes must arrive, all segments of the node must be legal, and no connection may remain.
pub(crate) fn run(scenario: &Scenario) -> Outcome {
    let network = Network::new(scenario);
    let monitor = Arc::new(Mutex::new(Monitor::new(rules(scenario))));
    let nodes = start(scenario, &network, &monitor);
    let start = Instant::now();
    let (peers, mut exchanges) = connect(scenario, &network.kernel, &nodes);
    // Each queue lists the connections of all.
    for node in &nodes {
        let rows = node.list(STALL_MAX).expect("the host stack answers");
        let open = rows.iter().filter(|row| row.remote.is_some()).count();
        assert_eq!(open, scenario.connections);
    }
    thread::scope(|scope| {
        for (node, exchanges) in nodes.iter().zip(&mut exchanges) {
            scope.spawn(|| transfer_all(node, exchanges));
        }
    });
    let outcomes = peers.into_iter().map(KernelPeer::finish).collect();
    let took = start.elapsed();
    for (node, exchanges) in nodes.iter().zip(&exchanges) {
        expect_empty(node, exchanges, scenario.time_wait);
    }
    check_bytes(scenario, outcomes, exchanges);
    let engines = nodes.iter().map(|node| node.with_engine(|engine, _| engine.stats()));
    let engines = engines.collect::<Vec<_>>();
    check_engines(scenario, &engines);
    let (kernel, lost) = (Kernel::of(&network.kernel), network.lost());
    // The capture is flushed with the link.
    drop(nodes);
    let node = monitor.lock().expect("monitor without a panic").expect_legal("the node");
    let offloads = engines.iter().map(|stats| stats.initiates).sum();
    let uploads = engines.iter().map(|stats| stats.terminates).sum();
    Outcome { offloads, uploads, took, kernel, lost, node, engines }
}

/// Verifies that each side has received the other's data. The digests are compared as sets, because the opener of an
/// accepted connection is unknown; no two streams are equal.
fn check_bytes(scenario: &Scenario, outcomes: Vec<PeerOutcome>, exchanges: Vec<Vec<Exchange>>) {
    let (mut kernel_sent, mut kernel_heard) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        assert!(outcome.send_error.is_none() && outcome.receive_error.is_none(), "{outcome:?}");
        kernel_sent.push(outcome.sent);
        kernel_heard.push(outcome.received);
    }
    let node_heard =
        exchanges.into_iter().flatten().map(|exchange| exchange.received.finish()).collect();
    let node_sent = (0..scenario.connections)
        .map(|index| Stream::new(scenario.node_stream(index)).digest(scenario.bytes))
        .collect();
    assert_eq!(
        sorted(node_heard),
        sorted(kernel_sent),
        "the node received other data than were sent"
    );
    assert_eq!(
        sorted(kernel_heard),
        sorted(node_sent),
        "the kernel received other data than were sent"
    );
}

/// Verifies that all migrations were made, and that no frame between shards was lost.
fn check_engines(scenario: &Scenario, engines: &[EngineStats]) {
    // Each queue has its share of the connections.
    let share = (scenario.connections / scenario.queues) as u64;
    for stats in engines {
        assert_eq!(stats.initiates, scenario.moves.div_ceil(2) * share, "{engines:?}");
        assert_eq!(stats.terminates, scenario.moves / 2 * share, "{engines:?}");
        assert_eq!(stats.rx_passed_on_dropped, 0, "{engines:?}");
    }
    let sum = |count: fn(&EngineStats) -> u64| engines.iter().map(count).sum::<u64>();
    assert_eq!(sum(|stats| stats.rx_passed_on), sum(|stats| stats.rx_passed_in), "{engines:?}");
}

/// Waits until neither engine nor host stack has any of the connections, and removes their streams. With `time_wait`
/// that includes connections in TIME-WAIT.
fn expect_empty(node: &Node<Streams>, exchanges: &[Exchange], time_wait: bool) {
    let closed = node.wait(Some(STALL_MAX), |streams, _, _| {
        let is_closed =
            |exchange: &Exchange| streams.status(exchange.handle).is_some_and(|it| it.closed);
        exchanges.iter().all(is_closed).then_some(())
    });
    closed.expect("all connections are closed");
    node.with(|streams, io, now| {
        exchanges.iter().for_each(|exchange| streams.forget(now, io, exchange.handle));
    });
    let deadline = Instant::now() + Duration::from_nanos(STALL_MAX.as_nanos() as u64);
    loop {
        let mut left = node.list(STALL_MAX).expect("the host stack answers");
        left.retain(|row| {
            row.remote.is_some() && (time_wait || row.state != Some(SocketState::TimeWait))
        });
        if left.is_empty() && node.with_engine(|engine, _| engine.connections().is_empty()) {
            return;
        }
        assert!(Instant::now() < deadline, "these are left: {left:?}");
        // The end of TIME-WAIT causes no event.
        let _: Result<(), _> = node.wait(Some(POLL_INTERVAL), |_, _, _| None);
    }
}

fn rules(scenario: &Scenario) -> Rules {
    Rules {
        mac: MAC.0,
        mtu: scenario.mtu,
        gso_packets: scenario.vnet,
        // Maximum for the scale of the largest buffer.
        window_max: u64::from(u16::MAX) << 3,
        lag: LAG * (scenario.connections + 10) as u32,
        resets: false,
        in_order: true,
        echoes_latest_timestamp: true,
    }
}

/// Starts a node on the TAP, with a handle for each queue.
fn start(
    scenario: &Scenario,
    network: &Network,
    monitor: &Arc<Mutex<Monitor>>,
) -> Vec<Node<Streams>> {
    let links = network.open_tap(scenario);
    let links = if scenario.crossed { cross(links) } else { links };
    let watched = |link| {
        let tee = CaptureLink::new(link, Feed::new(monitor.clone()), TAP, 0);
        tee.expect("a feed consumes all")
    };
    // The monitor must process the frames of all queues in order.
    let see = |tee: &mut CaptureLink<_, _>| tee.flush_file().expect("a feed consumes all");
    let links = share(links.into_iter().map(watched).collect(), |own| own, see);
    let buffer = IN_FLIGHT_BYTES_MAX / scenario.connections;
    let buffer = buffer.clamp(*BUFFER.start(), *BUFFER.end());
    let host = HostConfig {
        receive_buffer: buffer,
        receive_window_max: buffer,
        send_buffer: buffer,
        mtu: scenario.mtu,
        // The test requests the offloads.
        policy: OffloadPolicy::Never,
        seed: scenario.seed,
        ..HostConfig::new(MAC, scenario.address(2))
    };
    let mut engine = EngineConfig::new(MAC);
    engine.tcp.rcv_wnd_max = buffer as u32;
    let spin = EngineDuration::from_micros(50);
    let config = NodeConfig { engine, spin, ..NodeConfig::new(host) };
    Node::start_queues(links, config, Streams::new).expect("node can be started")
}

/// Opens half of the connections from the kernel and half from the node, on the queue with the fewest. Returns the
/// node's connections by queue.
fn connect(
    scenario: &Scenario,
    kernel: &Namespace,
    nodes: &[Node<Streams>],
) -> (Vec<KernelPeer>, Vec<Vec<Exchange>>) {
    let address = SocketAddr::new(scenario.address(2), PORT);
    let listen = |node: &Node<Streams>| {
        let listener = node.with(|streams, _, _| streams.listen(address, scenario.connections));
        let listening = node.wait(Some(STALL_MAX), |streams, _, _| streams.listening(listener));
        listening.expect("the node answers").expect("the port is free");
        listener
    };
    let listeners = nodes.iter().map(listen).collect::<Vec<_>>();
    let (mut peers, mut exchanges) = (Vec::new(), Vec::new());
    exchanges.resize_with(nodes.len(), Vec::new);
    for index in 0..scenario.connections {
        // Either side closes first, independent of the opener.
        let end = if index % 4 < 2 { End::HalfClose } else { End::AfterPeer };
        let plan = Plan { end, ..Plan::send(scenario.kernel_stream(index), scenario.bytes) };
        let (queue, handle) = if index % 2 == 0 {
            let peer = KernelPeer::connect(kernel, address, plan);
            let Some(accepted) = accept(nodes, &listeners) else {
                panic!("the node accepts nothing: {:?}", peer.finish());
            };
            peers.push(peer);
            accepted
        } else {
            let least = exchanges.iter().enumerate().min_by_key(|(_, exchanges)| exchanges.len());
            let (queue, _) = least.expect("there are queues");
            let any = SocketAddr::new(scenario.address(1), 0);
            peers.push(KernelPeer::listen(kernel, any, plan));
            (queue, dial(&nodes[queue], peers.last().expect("it was pushed").address()))
        };
        let seed = scenario.node_stream(index);
        exchanges[queue].push(Exchange::new(handle, seed, scenario.bytes, scenario.moves));
    }
    (peers, exchanges)
}

/// Returns the next accepted connection and the queue of its listener; `None` after [`STALL_MAX`].
fn accept(nodes: &[Node<Streams>], listeners: &[ListenerId]) -> Option<(usize, OffloadHandle)> {
    let deadline = Instant::now() + Duration::from_nanos(STALL_MAX.as_nanos() as u64);
    loop {
        for (queue, (node, listener)) in nodes.iter().zip(listeners).enumerate() {
            // A single queue blocks until a connection is accepted.
            let limit = if nodes.len() == 1 { STALL_MAX } else { EngineDuration::from_millis(1) };
            let accepted = node.wait(Some(limit), |streams, _, _| streams.accept(*listener));
            if let Ok(handle) = accepted {
                return Some((queue, handle));
            }
        }
        if Instant::now() >= deadline {
            return None;
        }
    }
}

fn dial(node: &Node<Streams>, address: SocketAddr) -> OffloadHandle {
    let handle = node.with(|streams, _, _| streams.connect(None, address, STALL_MAX));
    let status = node.wait(Some(STALL_MAX), |streams, _, _| {
        streams.status(handle).filter(|status| status.connected || status.closed)
    });
    let status = status.expect("the kernel answers");
    assert!(status.connected, "{:?}", status.error);
    handle
}

/// Runs until all connections have sent their data, migrated, and received the peer's FIN.
fn transfer_all(node: &Node<Streams>, exchanges: &mut [Exchange]) {
    while exchanges.iter().any(|exchange| !exchange.is_over) {
        exchanges.iter_mut().for_each(Exchange::work);
        let moved = node.wait(Some(STALL_MAX), |streams, io, now| {
            let mut moved = false;
            for exchange in exchanges.iter_mut() {
                moved |= exchange.step(streams, io, now);
            }
            moved.then_some(())
        });
        moved.unwrap_or_else(|error| {
            let open = exchanges.iter().filter(|exchange| !exchange.is_over);
            let open = node.with(|streams, _, _| {
                open.map(|exchange| exchange.describe(streams)).collect::<String>()
            });
            panic!("{error}; these connections have not ended:\n{open}")
        });
    }
}

fn sorted(mut digests: Vec<Digest>) -> Vec<Digest> {
    digests.sort_unstable_by_key(|digest| digest.sha256);
    digests
}
