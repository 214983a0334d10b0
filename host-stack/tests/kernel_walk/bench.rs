//! A namespace with a TAP, a node on the TAP, and what kernel and monitor have counted in the end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::legal::{Counts, Feed, Monitor, Rules};
use flue_test_support::netns::Namespace;
use flue_test_support::stream::{Digest, Stream};
use host_stack::host::HostConfig;
use host_stack::node::{Node, NodeConfig, Progress};
use host_stack::socket::OffloadPolicy;
use host_stack::stream::Streams;
use offload_engine::chimney::client::{ClientTag, OffloadHandle};
use offload_engine::chimney::state::MacAddress;
use offload_engine::engine::{EngineConfig, EngineStats};
use offload_engine::link::{Link, TapOptions, Tee, VnetMode, open_tap};
use offload_engine::time::Duration as EngineDuration;

use crate::talk::Talk;

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 7]);
const TAP: &str = "walk0";
const PORT: u16 = 5000;
/// How long a connection may take to be there, and how long nothing may move.
const STALL_MAX: EngineDuration = EngineDuration::from_secs(60);
/// How late the node may be in looking at what it was sent, for each connection: its threads share the machine.
const LAG: Duration = Duration::from_millis(50);
/// Bytes that all connections together may have under way to the node: smoltcp is slow, and of the frames that wait for
/// it the engine drops those beyond 4,096.
const UNDER_WAY_BYTES_MAX: usize = 4 << 20;
/// Receive buffers, bytes.
const BUFFER: std::ops::RangeInclusive<usize> = 8 << 10..=256 << 10;
/// Seeds of the node's streams; the kernel's begin with 0.
const NODE_SEED: u64 = 100_000;
/// How many segments of the node's may be sent twice: ten, and one in a hundred. A tail loss probe asks after 10 ms of
/// silence (RFC 8985 s7), and on a busy machine whoever is to answer waits that long for a processor.
const PROBES_MAX: u64 = 10;
const SEGMENTS_PER_PROBE: u64 = 100;

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) connections: usize,
    /// Hand-overs of each connection, down and up by turns.
    pub(crate) moves: u64,
    /// Each way, of each connection.
    pub(crate) bytes: u64,
    pub(crate) vnet: bool,
    pub(crate) mtu: usize,
    pub(crate) v6: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        Self { connections: 20, moves: 6, bytes: 256 << 10, vnet: false, mtu: 1500, v6: false }
    }
}

impl Scenario {
    fn address(&self, host: u8) -> IpAddr {
        if self.v6 {
            Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, host.into()).into()
        } else {
            Ipv4Addr::new(10, 99, 0, host).into()
        }
    }

    fn prefix(&self) -> u8 {
        if self.v6 { 64 } else { 24 }
    }
}

/// Counters of the kernel that tell of a peer's mistakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Kernel {
    retransmitted: u64,
    loss_probes: u64,
    fast_retransmits: u64,
    timeouts: u64,
    resets_sent: u64,
    resets_heard: u64,
    old_timestamps: u64,
    reneging: u64,
    bad_segments: u64,
    challenges: u64,
}

impl Kernel {
    fn of(namespace: &Namespace) -> Self {
        Self {
            retransmitted: namespace.counter("TcpRetransSegs"),
            loss_probes: namespace.counter("TcpExtTCPLossProbes"),
            fast_retransmits: namespace.counter("TcpExtTCPFastRetrans"),
            timeouts: namespace.counter("TcpExtTCPTimeouts"),
            resets_sent: namespace.counter("TcpOutRsts"),
            resets_heard: namespace.counter("TcpEstabResets"),
            old_timestamps: namespace.counter("TcpExtPAWSEstab"),
            reneging: namespace.counter("TcpExtTCPSACKReneging"),
            bad_segments: namespace.counter("TcpInErrs"),
            challenges: namespace.counter("TcpExtTCPChallengeACK"),
        }
    }
}

/// What came of it.
#[derive(Debug)]
#[expect(dead_code, reason = "read by people, through Debug")]
pub(crate) struct Outcome {
    pub(crate) offloads: u64,
    pub(crate) uploads: u64,
    pub(crate) took: Duration,
    pub(crate) kernel: Kernel,
    pub(crate) node: Counts,
    pub(crate) engine: EngineStats,
}

impl Outcome {
    /// No RST, nothing old, nothing taken back, no time-out, nothing that was taken for lost; and hardly anything sent
    /// twice: tail loss probes.
    pub(crate) fn expect_clean(&self) {
        let Kernel { retransmitted, loss_probes, .. } = self.kernel;
        let rest = Kernel { retransmitted: 0, loss_probes: 0, ..self.kernel };
        assert_eq!(rest, Kernel::default(), "{self:?}");
        assert!(retransmitted <= loss_probes, "{self:?}");
        let probes_max = PROBES_MAX + self.node.segments / SEGMENTS_PER_PROBE;
        assert!(self.node.retransmitted <= probes_max, "{self:?}");
        assert_eq!(self.node.resets, 0, "{self:?}");
    }
}

/// Runs a scenario; all bytes arrive, and all segments of the node's are legal.
pub(crate) fn run(scenario: &Scenario) -> Outcome {
    let kernel = Namespace::new();
    let monitor = Arc::new(Mutex::new(Monitor::new(rules(scenario))));
    let node = start(scenario, &kernel, monitor.clone());
    let start = Instant::now();
    let (peers, mut talks) = connect(scenario, &kernel, &node);
    converse(&node, &mut talks);
    let (mut kernel_sent, mut kernel_heard) = (Vec::new(), Vec::new());
    for outcome in peers.into_iter().map(KernelPeer::finish) {
        assert!(outcome.send_error.is_none() && outcome.receive_error.is_none(), "{outcome:?}");
        kernel_sent.push(outcome.sent);
        kernel_heard.push(outcome.received);
    }
    let took = start.elapsed();
    let node_heard = talks.into_iter().map(|talk| talk.received.finish()).collect();
    let node_sent = (0..scenario.connections as u64)
        .map(|index| Stream::new(NODE_SEED + index).digest(scenario.bytes))
        .collect();
    assert_eq!(sorted(node_heard), sorted(kernel_sent), "what the node heard is not what was sent");
    assert_eq!(
        sorted(kernel_heard),
        sorted(node_sent),
        "what the kernel heard is not what was sent"
    );
    let stats = node.with_engine(|engine, _| engine.stats());
    let half = scenario.moves.div_ceil(2) * scenario.connections as u64;
    assert_eq!(stats.initiates, half, "{stats:?}");
    assert_eq!(stats.terminates, scenario.moves / 2 * scenario.connections as u64, "{stats:?}");
    let counters = Kernel::of(&kernel);
    // The capture is written out with the link.
    drop(node);
    let counts = monitor.lock().expect("it judges without a panic").expect_legal("the node");
    let (offloads, uploads) = (stats.initiates, stats.terminates);
    Outcome { offloads, uploads, took, kernel: counters, node: counts, engine: stats }
}

fn rules(scenario: &Scenario) -> Rules {
    Rules {
        mac: MAC.0,
        mtu: scenario.mtu,
        super_segments: scenario.vnet,
        // What the scale of the largest buffer can say.
        window_max: u64::from(u16::MAX) << 3,
        lag: LAG * (scenario.connections + 10) as u32,
        resets: false,
        like_smoltcp: true,
    }
}

fn start(scenario: &Scenario, kernel: &Namespace, monitor: Arc<Mutex<Monitor>>) -> Node<Streams> {
    let vnet = if scenario.vnet { VnetMode::On } else { VnetMode::Off };
    let options = TapOptions { name: TAP.into(), mtu: scenario.mtu, vnet };
    let tap = kernel.run(|| open_tap(&options)).expect("a TAP can be had");
    let (address, prefix) = (scenario.address(1), scenario.prefix());
    kernel.ip(&format!("addr add {address}/{prefix} dev {TAP}"));
    kernel.ip(&format!("link set {TAP} mtu {} up", scenario.mtu));
    kernel.ip(&format!("link set {TAP} txqueuelen 10000"));
    let link: Box<dyn Link> =
        Box::new(Tee::new(tap.link, Feed::new(monitor), TAP, 0).expect("a feed takes all"));
    let buffer = UNDER_WAY_BYTES_MAX / scenario.connections;
    let buffer = buffer.clamp(*BUFFER.start(), *BUFFER.end());
    let host = HostConfig {
        mac: MAC,
        receive_buffer: buffer,
        receive_window_max: buffer,
        send_buffer: buffer,
        addresses: vec![(scenario.address(2), prefix)],
        mtu: scenario.mtu,
        // The test decides.
        policy: OffloadPolicy::Never,
        seed: 7,
        ..HostConfig::default()
    };
    let mut engine = EngineConfig::new(MAC);
    engine.tcp.rcv_wnd_max = buffer as u32;
    let config = NodeConfig {
        engine,
        host,
        progress: Progress::Automatic,
        spin: EngineDuration::from_micros(50),
    };
    Node::start(link, config, |port| Streams::new(port, ClientTag(1)))
        .expect("a node can be started")
}

/// Half of the connections are opened by the kernel, half by the node.
fn connect(
    scenario: &Scenario,
    kernel: &Namespace,
    node: &Node<Streams>,
) -> (Vec<KernelPeer>, Vec<Talk>) {
    let address = SocketAddr::new(scenario.address(2), PORT);
    let listener = node.with(|streams, _, _| streams.listen(address, scenario.connections));
    let listening = node.wait(Some(STALL_MAX), |streams, _, _| streams.listening(listener));
    listening.expect("the node answers").expect("the port is free");
    let (mut peers, mut talks) = (Vec::new(), Vec::new());
    for index in 0..scenario.connections {
        let plan = Plan::send(index as u64, scenario.bytes);
        let handle = if index % 2 == 0 {
            peers.push(KernelPeer::connect(kernel, address, plan));
            let accepted = node.wait(Some(STALL_MAX), |streams, _, _| streams.accept(listener));
            accepted.expect("the kernel connects")
        } else {
            let any = SocketAddr::new(scenario.address(1), 0);
            peers.push(KernelPeer::listen(kernel, any, plan));
            dial(node, peers.last().expect("it was pushed").address())
        };
        let seed = NODE_SEED + index as u64;
        talks.push(Talk::new(handle, seed, scenario.bytes, scenario.moves));
    }
    (peers, talks)
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

/// Until all have sent, moved, and heard the peer's end.
fn converse(node: &Node<Streams>, talks: &mut [Talk]) {
    while talks.iter().any(|talk| !talk.is_over) {
        talks.iter_mut().for_each(Talk::work);
        let moved = node.wait(Some(STALL_MAX), |streams, io, now| {
            let mut moved = false;
            for talk in talks.iter_mut() {
                moved |= talk.step(streams, io, now);
            }
            moved.then_some(())
        });
        let open = talks.iter().filter(|talk| !talk.is_over).count();
        moved.unwrap_or_else(|error| panic!("{error}; {open} connections are not at their end"));
    }
}

fn sorted(mut digests: Vec<Digest>) -> Vec<Digest> {
    digests.sort_unstable_by_key(|digest| digest.sha256);
    digests
}
