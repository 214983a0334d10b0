//! Queue pairs of unreliable datagram service on two nodes.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use etherparse::PacketBuilder;
use host_stack::{
    host::HostConfig,
    node::Core,
    simulation::{Pair, impaired_wire},
    socket::DATAGRAMS_SENT_MAX,
};
use offload_engine::{
    engine::EngineConfig,
    link::{Impairments, Link, MemoryLinkOptions, TxFrame, TxOffload, memory_link_pair},
    state::MacAddress,
    time::{Duration, Instant},
};
use rdma_over_tcp::{
    datagram::{DatagramHeader, ROUTE_HEADER_OCTETS},
    ndk::{Adapter, AdapterConfig, AdapterCore, RegisteredBuffer, simulation::AdapterClient},
    rnic::{
        Access, Arrival, Completion, CompletionQueue, CompletionRetention, Data, DatagramPath,
        Destination, ErrorStatePosts, QpConfig, QpId, QpLimits, QpService, Sge, WcOpcode, WcStatus,
        WrFlags,
    },
};

/// Limit of the virtual time.
const LIMIT: Instant = Instant::from_millis(60_000);
const KEY: u32 = 0x1111_1111;
/// Octets of the largest payload: the MTU of the link, less the headers.
const PAYLOAD_MAX: usize = 1500 - 80;
/// Octets of a receive.
const SLOT: usize = ROUTE_HEADER_OCTETS + PAYLOAD_MAX;
/// Receives, and requests, of a queue pair.
const DEPTH: usize = 1024;

/// Addresses of a node: of both families, and link-local.
fn addresses(node: usize) -> [IpAddr; 3] {
    let number = node as u8 + 1;
    [
        [10, 0, 0, number].into(),
        format!("fd00::{number}").parse().unwrap(),
        format!("fe80::{number}").parse().unwrap(),
    ]
}

fn core(node: usize, link: Box<dyn Link>) -> Core {
    let mac = MacAddress([2, 0, 0, 0, 0, node as u8 + 1]);
    let [v4, v6, local] = addresses(node);
    let addresses = vec![(v4, 24), (v6, 64), (local, 64)];
    let host = HostConfig { addresses, seed: node as u64, ..HostConfig::new(mac, v4) };
    Core::new(link, EngineConfig::new(mac), host, |port| {
        AdapterClient::new(AdapterCore::new(AdapterConfig::default(), port, Box::new(|| {})))
    })
    .unwrap()
}

/// Queue pair that sends and receives, and its memory.
struct End {
    adapter: Adapter,
    number: u32,
    qp: QpId,
    queue: Arc<CompletionQueue>,
    /// Receives, then the payload of a request.
    buffer: RegisteredBuffer,
    token: u32,
}

impl End {
    /// Creates a queue pair with this port in its number.
    fn new(core: &Core, port: u16) -> Self {
        let adapter = core.clients.first::<AdapterClient>().adapter();
        let buffer = adapter.allocate((DEPTH + 1) * SLOT).unwrap();
        let number = 0x02_0000 + u32::from(port);
        adapter.open_datagrams(port).unwrap();
        let (qp, queue, token) = adapter.with(|rnic, _| {
            let pd = rnic.create_pd().unwrap();
            let (cq, queue) = rnic.create_cq(2 * DEPTH as u32, Arc::new(|_| {})).unwrap();
            let depth = DEPTH as u32;
            let limits = QpLimits {
                initiator_queue_depth: depth,
                receive_queue_depth: depth,
                ..QpLimits::default()
            };
            let config = QpConfig {
                receive_cq: cq,
                send_cq: cq,
                context: port.into(),
                limits,
                srq: None,
                error_state_posts: ErrorStatePosts::Flush,
                service: QpService::Ud,
            };
            let qp = rnic.create_qp(pd, config).unwrap();
            let region = rnic.create_region(pd, false).unwrap();
            rnic.register(region, &buffer, 0, (DEPTH + 1) * SLOT, Access::LOCAL_WRITE).unwrap();
            rnic.set_qp_numbers(qp, number, None);
            rnic.set_datagram_key(qp, KEY).unwrap();
            rnic.start_datagrams(qp, PAYLOAD_MAX as u32).unwrap();
            rnic.allow_sends(qp).unwrap();
            (qp, queue, rnic.token(region).unwrap())
        });
        Self { adapter, number, qp, queue, buffer, token }
    }

    fn sge(&self, slot: usize, length: usize) -> Sge {
        let address = self.buffer.address() + (slot * SLOT) as u64;
        Sge { address, length: length as u32, token: self.token }
    }

    /// Posts the receives of these slots.
    fn receive(&self, slots: std::ops::Range<usize>) {
        for slot in slots {
            let sge = self.sge(slot, SLOT);
            self.adapter.post(|rnic| rnic.post_receive(self.qp, slot as u64, &[sge])).unwrap();
        }
    }

    /// Posts a datagram from the address `from` to a queue pair at the address `to`.
    fn send(&self, context: u64, (from, to): (IpAddr, IpAddr), peer: u32, payload: &[u8]) {
        self.buffer.write_at(DEPTH * SLOT, payload);
        let sge = self.sge(DEPTH, payload.len());
        let path = DatagramPath { local: from, remote: SocketAddr::new(to, 0) };
        let to = (Destination { path, qp: peer, key: KEY }, Some(*b"data"));
        let post = |adapter: &Adapter| {
            adapter.post(|rnic| {
                let data = Data::Registered(&[sge]);
                rnic.post_datagram(self.qp, context, to, data, WrFlags::NONE)
            })
        };
        post(&self.adapter).unwrap();
    }

    fn poll(&self) -> Vec<Completion> {
        let mut found = [None::<Completion>; 64];
        let mut all = Vec::new();
        while let count @ 1.. = self.queue.poll(&mut found) {
            all.extend(found[..count].iter().flatten().copied());
        }
        all
    }

    /// Octets of a received datagram, with the route header.
    fn content(&self, completion: &Completion) -> Vec<u8> {
        let mut content = vec![0; completion.bytes as usize];
        self.buffer.read_at(completion.context as usize * SLOT, &mut content);
        content
    }

    fn dropped(&self) -> u64 {
        self.adapter.counters().datagrams_dropped
    }

    /// Destroys the queue pair, and closes its port.
    fn close(&self) {
        self.adapter.with(|rnic, _| {
            let _ = rnic.close_qp(self.qp, CompletionRetention::Discard, Box::new(|| {}));
            rnic.close_datagrams(self.number as u16);
        });
    }
}

/// Two nodes on a link.
fn nodes(impairments: Impairments) -> Pair<Core> {
    let [left, right] = impaired_wire(MemoryLinkOptions::default(), [impairments; 2]).unwrap();
    Pair::new(core(0, Box::new(left)), core(1, Box::new(right)))
}

/// Runs for this time.
fn run(pair: &mut Pair<Core>, time: Duration) {
    let end = pair.now + time;
    let _ = pair.run(end, |_| None::<()>);
    pair.now = end;
}

/// Runs until `count` receives have completed, and returns them.
fn received(pair: &mut Pair<Core>, end: &End, count: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    let run = pair.run(LIMIT, |_| {
        all.extend(end.poll().into_iter().filter(|it| it.opcode == WcOpcode::Receive));
        (all.len() >= count).then_some(())
    });
    run.unwrap_or_else(|stall| panic!("{stall}: {} of {count} datagrams", all.len()));
    all
}

#[test]
fn datagrams_arrive_at_the_addresses_of_another_node() {
    let mut pair = nodes(Impairments::default());
    let (sender, receiver) = (End::new(&pair.a, 5001), End::new(&pair.b, 5002));
    run(&mut pair, Duration::from_millis(1));
    receiver.receive(0..3);
    let payload: Vec<u8> = (0..PAYLOAD_MAX).map(|at| (at * 7) as u8).collect();
    for (slot, (from, to)) in addresses(0).into_iter().zip(addresses(1)).enumerate() {
        sender.send(slot as u64, (from, to), receiver.number, &payload);
        let completions = received(&mut pair, &receiver, 1);
        let [completion] = completions[..] else { panic!("{completions:?}") };
        let is_ipv4 = from.is_ipv4();
        let (source, immediate) = (sender.number, Some(*b"data"));
        assert_eq!(completion.arrival, Arrival::Datagram { source, immediate, is_ipv4 });
        let content = receiver.content(&completion);
        assert!(content[ROUTE_HEADER_OCTETS..] == payload, "{from}");
        let ends = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
            (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
            _ => unreachable!("one family"),
        };
        assert_eq!(content[ROUTE_HEADER_OCTETS - ends.len()..ROUTE_HEADER_OCTETS], ends);
    }
    let sent: Vec<_> = sender.poll().iter().map(|it| (it.context, it.status)).collect();
    assert_eq!(sent, [0, 1, 2].map(|context| (context, WcStatus::Success)));
}

#[test]
fn queue_pairs_of_one_node_exchange_datagrams() {
    let mut pair = nodes(Impairments::default());
    let (one, other) = (End::new(&pair.a, 5001), End::new(&pair.a, 5002));
    run(&mut pair, Duration::from_millis(1));
    let frames = pair.a.engine.link_stats().tx_frames;
    one.receive(0..2);
    other.receive(0..1);
    let [v4, v6, _] = addresses(0);
    let cases: [(_, _, _, &[u8]); 3] = [
        (&one, &other, v4, b"to the other"),
        (&one, &one, v6, b"to itself"),
        (&other, &one, v4, b"answer"),
    ];
    for (from, to, address, text) in cases {
        from.send(1, (address, address), to.number, text);
        let completions = received(&mut pair, to, 1);
        assert_eq!(to.content(&completions[0])[ROUTE_HEADER_OCTETS..], *text);
    }
    assert_eq!(pair.a.engine.link_stats().tx_frames, frames, "no frame is sent");
}

// A network loses, repeats, reorders and damages frames: what arrives is intact.
#[test]
fn received_datagrams_are_intact_on_a_bad_network() {
    for seed in 0..4 {
        let mut pair = nodes(Impairments {
            delay: Duration::from_micros(100),
            drop_pct: 10.0,
            duplicate_pct: 5.0,
            reorder_pct: 10.0,
            corrupt_pct: 5.0,
            seed,
            ..Impairments::default()
        });
        let (sender, receiver) = (End::new(&pair.a, 5001), End::new(&pair.b, 5002));
        run(&mut pair, Duration::from_millis(1));
        receiver.receive(0..DEPTH);
        let [v4, ..] = addresses(0);
        let [to, ..] = addresses(1);
        for index in 0..200_usize {
            sender.send(index as u64, (v4, to), receiver.number, &[index as u8; 400][..2 * index]);
            run(&mut pair, Duration::from_micros(200));
        }
        run(&mut pair, Duration::from_secs(5));
        let outcomes: Vec<_> = sender.poll().iter().map(|it| (it.context, it.status)).collect();
        assert_eq!(outcomes, (0..200).map(|it| (it, WcStatus::Success)).collect::<Vec<_>>());
        let all = receiver.poll();
        assert!(all.len() > 100, "seed {seed}: {} of 200 arrive", all.len());
        for completion in all {
            let content = receiver.content(&completion);
            let payload = &content[ROUTE_HEADER_OCTETS..];
            let index = payload.len() / 2;
            assert!(payload.iter().all(|octet| *octet == index as u8), "seed {seed}: {index}");
        }
    }
}

// Requests wait for the host stack, which holds a limited number of datagrams.
#[test]
fn queue_pair_waits_for_the_host_stack() {
    let mut pair = nodes(Impairments::default());
    let (sender, receiver) = (End::new(&pair.a, 5001), End::new(&pair.b, 5002));
    run(&mut pair, Duration::from_millis(1));
    receiver.receive(0..DEPTH);
    let [from, ..] = addresses(0);
    let [to, ..] = addresses(1);
    // The neighbor is known afterwards.
    sender.send(0, (from, to), receiver.number, b"first");
    received(&mut pair, &receiver, 1);
    sender.poll();
    let count = DEPTH - 1;
    assert!(count > 2 * DATAGRAMS_SENT_MAX);
    for index in 0..count {
        sender.send(index as u64, (from, to), receiver.number, b"datagram");
    }
    received(&mut pair, &receiver, count);
    let outcomes: Vec<_> = sender.poll().iter().map(|it| (it.context, it.status)).collect();
    let expected: Vec<_> = (0..count as u64).map(|it| (it, WcStatus::Success)).collect();
    assert!(outcomes == expected, "{} of {count}", outcomes.len());
}

// A closed port receives nothing, and can be opened again, also at once.
#[test]
fn port_closes_with_its_last_queue_pair() {
    let mut pair = nodes(Impairments::default());
    let sender = End::new(&pair.a, 5001);
    let [from, ..] = addresses(0);
    let [to, ..] = addresses(1);
    for pause in [Duration::from_millis(1), Duration::ZERO] {
        let first = End::new(&pair.b, 5002);
        run(&mut pair, Duration::from_millis(1));
        first.receive(0..1);
        sender.send(1, (from, to), first.number, b"open");
        received(&mut pair, &first, 1);
        first.close();
        if pause > Duration::ZERO {
            run(&mut pair, pause);
            let before = first.dropped();
            sender.send(2, (from, to), first.number, b"closed");
            run(&mut pair, Duration::from_millis(10));
            assert_eq!(first.dropped(), before, "the port is closed");
        }
        let second = End::new(&pair.b, 5002);
        run(&mut pair, Duration::from_millis(1));
        second.receive(0..1);
        sender.send(3, (from, to), second.number, b"open again");
        received(&mut pair, &second, 1);
        second.close();
        run(&mut pair, Duration::from_millis(1));
    }
}

/// Node 1, and the far end of its link.
struct Hostile {
    node: Core,
    link: Box<dyn Link>,
    receiver: End,
    now: Instant,
}

impl Hostile {
    fn new() -> Self {
        let (near, far) = memory_link_pair(MemoryLinkOptions::default());
        let node = core(1, Box::new(near));
        let receiver = End::new(&node, 5002);
        let mut hostile = Self { node, link: Box::new(far), receiver, now: Instant::ZERO };
        hostile.run();
        hostile
    }

    fn run(&mut self) {
        while self.node.poll(self.now).unwrap() || self.node.has_input() {}
    }

    /// Sends a datagram from a port of the station 10.0.0.1. Returns true if the queue pair has received it, and counts
    /// it as dropped otherwise.
    fn send(&mut self, port: u16, datagram: &[u8]) -> bool {
        let before = self.receiver.dropped();
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(port, 5002);
        let mut frame = Vec::new();
        builder.write(&mut frame, datagram).unwrap();
        let frame = TxFrame {
            offload: TxOffload::default(),
            head: &frame,
            payload: &[],
            lender: None,
            comment: None,
        };
        self.link.transmit(self.now, &frame);
        self.link.flush(self.now);
        self.run();
        let is_received = !self.receiver.poll().is_empty();
        assert_eq!(self.receiver.dropped() - before, u64::from(!is_received));
        is_received
    }
}

// FUD-1, FUD-2: at a node, too. The receive remains for the next datagram.
#[test]
fn hostile_datagrams_are_dropped_by_a_node() {
    let mut hostile = Hostile::new();
    let number = hostile.receiver.number;
    let header = DatagramHeader {
        destination: number,
        source: 0x01_0000 + 5001,
        key: KEY,
        immediate: None,
        solicited: false,
    };
    let good = [&header.encode()[..], b"payload"].concat();
    let with = |header: DatagramHeader| [&header.encode()[..], b"payload"].concat();
    hostile.receiver.receive(0..1);
    for length in 0..header.encode().len() {
        assert!(!hostile.send(5001, &good[..length]), "{length} octets");
    }
    let cases = [
        ("source port", 5003, good.clone()),
        ("source port 0", 0, with(DatagramHeader { source: 0x01_0000, ..header })),
        (
            "unknown number",
            5001,
            with(DatagramHeader { destination: number ^ 0x01_0000, ..header }),
        ),
        (
            "number of another port",
            5001,
            with(DatagramHeader { destination: number + 1, ..header }),
        ),
        ("key", 5001, with(DatagramHeader { key: KEY ^ 1, ..header })),
        ("no magic", 5001, vec![0; 200]),
        ("longer than the receive", 5001, [&good[..], &[0; PAYLOAD_MAX]].concat()),
    ];
    for (what, port, datagram) in cases {
        assert!(!hostile.send(port, &datagram), "{what}");
    }
    assert!(hostile.send(5001, &good));
    // Without a receive.
    assert!(!hostile.send(5001, &good));
}
