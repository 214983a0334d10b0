//! A namespace with a TAP, a node on the TAP, and what kernel and monitor have counted in the end.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::legal::{Counts, Feed, Monitor, Rules};
use flue_test_support::netns::Namespace;
use flue_test_support::stream::{Digest, Stream};
use host_stack::host::HostConfig;
use host_stack::node::{Node, NodeConfig, Progress};
use host_stack::socket::{ListenerId, OffloadPolicy};
use host_stack::stream::Streams;
use offload_engine::chimney::client::{ClientTag, OffloadHandle};
use offload_engine::chimney::state::MacAddress;
use offload_engine::engine::{EngineConfig, EngineStats};
use offload_engine::link::{
    Link, LinkCapabilities, LinkStats, RxBatch, TapOptions, Tee, TxFrame, TxOutcome, VnetMode,
    open_tap_queues,
};
use offload_engine::time::{Duration as EngineDuration, Instant as EngineInstant};

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
    /// Of the TAP, an engine for each.
    pub(crate) queues: usize,
    /// Each engine writes on the queue of the next, so the kernel delivers to the wrong one.
    pub(crate) crossed: bool,
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
        }
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
#[expect(dead_code, reason = "most is read by people, through Debug")]
pub(crate) struct Outcome {
    pub(crate) offloads: u64,
    pub(crate) uploads: u64,
    pub(crate) took: Duration,
    pub(crate) kernel: Kernel,
    pub(crate) node: Counts,
    /// Of each queue.
    pub(crate) engines: Vec<EngineStats>,
}

impl Outcome {
    /// No RST, nothing old, nothing taken back, no time-out, nothing that was taken for lost; and hardly anything sent
    /// twice: tail loss probes.
    pub(crate) fn is_clean(&self) -> bool {
        let Kernel { retransmitted, loss_probes, .. } = self.kernel;
        let rest = Kernel { retransmitted: 0, loss_probes: 0, ..self.kernel };
        let probes_max = PROBES_MAX + self.node.segments / SEGMENTS_PER_PROBE;
        rest == Kernel::default()
            && retransmitted <= loss_probes
            && self.node.retransmitted <= probes_max
            && self.node.resets == 0
    }

    /// The same, but at a hand-over segments may have overtaken each other on their ways through the node, and the
    /// peer may have taken them for lost.
    pub(crate) fn lost_nothing(&self) -> bool {
        let Kernel { fast_retransmits, retransmitted, loss_probes, .. } = self.kernel;
        let rest = Kernel { fast_retransmits: 0, retransmitted: 0, loss_probes: 0, ..self.kernel };
        rest == Kernel::default()
            && fast_retransmits <= self.offloads + self.uploads
            && retransmitted <= fast_retransmits + loss_probes
            && self.node.resets == 0
    }
}

/// Runs a scenario; all bytes arrive, and all segments of the node's are legal.
pub(crate) fn run(scenario: &Scenario) -> Outcome {
    let kernel = Namespace::new();
    let monitor = Arc::new(Mutex::new(Monitor::new(rules(scenario))));
    let nodes = start(scenario, &kernel, &monitor);
    let start = Instant::now();
    let (peers, mut talks) = connect(scenario, &kernel, &nodes);
    // Who asks one queue hears of all.
    for node in &nodes {
        let rows = node.list(STALL_MAX).expect("the host stack answers");
        let open = rows.iter().filter(|row| row.remote.is_some()).count();
        assert_eq!(open, scenario.connections);
    }
    thread::scope(|scope| {
        for (node, talks) in nodes.iter().zip(&mut talks) {
            scope.spawn(|| converse(node, talks));
        }
    });
    let (mut kernel_sent, mut kernel_heard) = (Vec::new(), Vec::new());
    for outcome in peers.into_iter().map(KernelPeer::finish) {
        assert!(outcome.send_error.is_none() && outcome.receive_error.is_none(), "{outcome:?}");
        kernel_sent.push(outcome.sent);
        kernel_heard.push(outcome.received);
    }
    let took = start.elapsed();
    let node_heard = talks.into_iter().flatten().map(|talk| talk.received.finish()).collect();
    let node_sent = (0..scenario.connections as u64)
        .map(|index| Stream::new(NODE_SEED + index).digest(scenario.bytes))
        .collect();
    assert_eq!(sorted(node_heard), sorted(kernel_sent), "what the node heard is not what was sent");
    assert_eq!(
        sorted(kernel_heard),
        sorted(node_sent),
        "what the kernel heard is not what was sent"
    );
    let engines = nodes.iter().map(|node| node.with_engine(|engine, _| engine.stats()));
    let engines = engines.collect::<Vec<_>>();
    // Each queue has its share of the connections.
    let share = (scenario.connections / scenario.queues) as u64;
    for stats in &engines {
        assert_eq!(stats.initiates, scenario.moves.div_ceil(2) * share, "{engines:?}");
        assert_eq!(stats.terminates, scenario.moves / 2 * share, "{engines:?}");
        assert_eq!(stats.rx_passed_on_dropped, 0, "{engines:?}");
    }
    let sum = |count: fn(&EngineStats) -> u64| engines.iter().map(count).sum::<u64>();
    assert_eq!(sum(|stats| stats.rx_passed_on), sum(|stats| stats.rx_passed_in), "{engines:?}");
    let counters = Kernel::of(&kernel);
    // The capture is written out with the link.
    drop(nodes);
    let counts = monitor.lock().expect("it judges without a panic").expect_legal("the node");
    let (offloads, uploads) = (sum(|stats| stats.initiates), sum(|stats| stats.terminates));
    Outcome { offloads, uploads, took, kernel: counters, node: counts, engines }
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

/// Starts a node on the TAP, with a handle for each queue.
fn start(
    scenario: &Scenario,
    kernel: &Namespace,
    monitor: &Arc<Mutex<Monitor>>,
) -> Vec<Node<Streams>> {
    let vnet = if scenario.vnet { VnetMode::On } else { VnetMode::Off };
    let options = TapOptions::new(TAP, scenario.mtu, vnet);
    let taps = kernel.run(|| open_tap_queues(&options, scenario.queues)).expect("a TAP can be had");
    let (address, prefix) = (scenario.address(1), scenario.prefix());
    kernel.ip(&format!("addr add {address}/{prefix} dev {TAP}"));
    kernel.ip(&format!("link set {TAP} mtu {} up", scenario.mtu));
    kernel.ip(&format!("link set {TAP} txqueuelen 10000"));
    let links = taps.into_iter().map(|tap| tap.link).collect();
    let links = if scenario.crossed { cross(links) } else { links };
    let watched = |link| {
        let tee = Tee::new(link, Feed::new(monitor.clone()), TAP, 0);
        tee.expect("a feed takes all")
    };
    // The monitor is to see what passes in its order, by whatever queue.
    let see = |tee: &mut Tee<_, _>| tee.flush().expect("a feed takes all");
    let links = share(links.into_iter().map(watched).collect(), |own| own, see);
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
    Node::start_queues(links, config, |port| Streams::new(port, ClientTag(1)))
        .expect("a node can be started")
}

/// Half of the connections are opened by the kernel, half by the node, by the queue that has fewest. What the node has
/// is given by queue.
fn connect(
    scenario: &Scenario,
    kernel: &Namespace,
    nodes: &[Node<Streams>],
) -> (Vec<KernelPeer>, Vec<Vec<Talk>>) {
    let address = SocketAddr::new(scenario.address(2), PORT);
    let listen = |node: &Node<Streams>| {
        let listener = node.with(|streams, _, _| streams.listen(address, scenario.connections));
        let listening = node.wait(Some(STALL_MAX), |streams, _, _| streams.listening(listener));
        listening.expect("the node answers").expect("the port is free");
        listener
    };
    let listeners = nodes.iter().map(listen).collect::<Vec<_>>();
    let (mut peers, mut talks) = (Vec::new(), Vec::new());
    talks.resize_with(nodes.len(), Vec::new);
    for index in 0..scenario.connections {
        let plan = Plan::send(index as u64, scenario.bytes);
        let (queue, handle) = if index % 2 == 0 {
            peers.push(KernelPeer::connect(kernel, address, plan));
            accept(nodes, &listeners)
        } else {
            let least = talks.iter().enumerate().min_by_key(|(_, talks)| talks.len());
            let (queue, _) = least.expect("there are queues");
            let any = SocketAddr::new(scenario.address(1), 0);
            peers.push(KernelPeer::listen(kernel, any, plan));
            (queue, dial(&nodes[queue], peers.last().expect("it was pushed").address()))
        };
        let seed = NODE_SEED + index as u64;
        talks[queue].push(Talk::new(handle, seed, scenario.bytes, scenario.moves));
    }
    (peers, talks)
}

/// The next connection, and the queue whose listener has got it.
fn accept(nodes: &[Node<Streams>], listeners: &[ListenerId]) -> (usize, OffloadHandle) {
    let deadline = Instant::now() + Duration::from_nanos(STALL_MAX.as_nanos() as u64);
    loop {
        for (queue, (node, listener)) in nodes.iter().zip(listeners).enumerate() {
            // One that is alone waits for as long as it takes.
            let limit = if nodes.len() == 1 { STALL_MAX } else { EngineDuration::from_millis(1) };
            let accepted = node.wait(Some(limit), |streams, _, _| streams.accept(*listener));
            if let Ok(handle) = accepted {
                return (queue, handle);
            }
        }
        assert!(Instant::now() < deadline, "the kernel connects");
    }
}

/// Links that receive by their own queue, and transmit by the next one's.
fn cross(links: Vec<Box<dyn Link>>) -> Vec<Box<dyn Link>> {
    let count = links.len();
    share(links, |own| (own + 1) % count, |_| {})
}

/// Links of which one at a time does something, and `then` that. They transmit by the queue that `transmit` says.
fn share<L: Link + 'static>(
    links: Vec<L>,
    transmit: impl Fn(usize) -> usize,
    then: fn(&mut L),
) -> Vec<Box<dyn Link>> {
    let own = |link: &L| {
        let descriptor = link.descriptor().map(|descriptor| descriptor.try_clone_to_owned());
        descriptor.expect("a TAP has one").expect("descriptors are left")
    };
    let descriptors = links.iter().map(own).collect::<Vec<_>>();
    let all = Arc::new(Mutex::new(links));
    let shared = |(own, descriptor)| {
        let (all, transmit) = (all.clone(), transmit(own));
        Box::new(Shared { all, own, transmit, then, descriptor }) as Box<dyn Link>
    };
    descriptors.into_iter().enumerate().map(shared).collect()
}

struct Shared<L> {
    all: Arc<Mutex<Vec<L>>>,
    own: usize,
    transmit: usize,
    then: fn(&mut L),
    descriptor: OwnedFd,
}

impl<L: Link> Shared<L> {
    fn with<T>(&self, queue: usize, work: impl FnOnce(&mut L) -> T) -> T {
        let link = &mut self.all.lock().expect("nobody panics with it")[queue];
        let result = work(link);
        (self.then)(link);
        result
    }
}

impl<L: Link> Link for Shared<L> {
    fn capabilities(&self) -> LinkCapabilities {
        self.with(self.own, |link| link.capabilities())
    }

    fn receive(&mut self, now: EngineInstant, batch: &mut RxBatch) -> io::Result<usize> {
        self.with(self.own, |link| link.receive(now, batch))
    }

    fn transmit(&mut self, now: EngineInstant, frame: &TxFrame<'_>) -> TxOutcome {
        self.with(self.transmit, |link| link.transmit(now, frame))
    }

    fn wants_comments(&self) -> bool {
        self.with(self.transmit, |link| link.wants_comments())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }

    fn poll_at(&self) -> Option<EngineInstant> {
        None
    }

    fn stats(&self) -> LinkStats {
        self.with(self.own, |link| link.stats())
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
