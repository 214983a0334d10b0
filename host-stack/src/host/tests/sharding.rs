//! One host stack with two engines: assignment of connections, objects and messages.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use offload_engine::{
    chimney::{
        client::OffloadHandle,
        provider::AdapterStatus,
        tree::{InitiateNode, TargetContext, UpdateNode, UpdateTree},
    },
    engine::{
        Clients,
        doorbell::Doorbell,
        port::{FromHost, HostPort, ToHost},
    },
    link::LinkCapabilities,
    state::MacAddress,
    status::NdisStatus,
    time::{Duration, Instant},
};

use super::bench::{address, config};
use crate::{
    host::{ConfigError, Host},
    socket::{
        ConsumerId, HostError, ListenerId, Notice, OffloadPolicy, Request, RequestPort, SocketPort,
    },
    wire,
};

/// Ethernet address of the peer.
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PORT: u16 = 5000;

/// Engine and client of one shard, both simulated by the test.
struct Shard {
    port: SocketPort,
    to_host: Sender<ToHost>,
    from_host: Receiver<FromHost>,
}

struct TwoShards {
    host: Host,
    shards: Vec<Shard>,
    now: Instant,
    contexts: u32,
}

impl TwoShards {
    fn new(policy: OffloadPolicy) -> Self {
        let host_doorbell = Arc::new(Doorbell::new().unwrap());
        let (mut shards, mut ports) = (Vec::new(), Vec::new());
        for (down, clients) in RequestPort::pairs(&host_doorbell, 2) {
            let port = down.register(Clients::FIRST, "client", ConsumerId::FIRST);
            let (to_engine, from_host) = crossbeam_channel::unbounded();
            let (to_host, from_engine) = crossbeam_channel::unbounded();
            let engine = HostPort {
                to_engine,
                from_engine,
                engine_doorbell: Arc::new(Doorbell::new().unwrap()),
                host_doorbell: host_doorbell.clone(),
                capabilities: LinkCapabilities {
                    mtu: 1500,
                    tx_checksum: false,
                    tso4_max: 0,
                    tso6_max: 0,
                },
            };
            shards.push(Shard { port, to_host, from_host });
            ports.push((engine, clients));
        }
        let host = Host::of_shards(config(2, policy), ports).unwrap();
        let mut pair = Self { host, shards, now: Instant::from_millis(1), contexts: 0 };
        pair.announce(0, PEER);
        pair
    }

    fn poll(&mut self) {
        self.now += Duration::from_millis(1);
        while self.host.poll(self.now) {}
    }

    fn arrives(&mut self, shard: usize, data: Vec<u8>) {
        let frame = ToHost::Frame { data, checksum_valid: false };
        self.shards[shard].to_host.send(frame).unwrap();
        self.poll();
    }

    /// ARP request of the peer, which announces its own address.
    fn announce(&mut self, shard: usize, mac: [u8; 6]) {
        let mut frame = vec![0xff; 6];
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        self.arrives(shard, frame);
    }

    /// Delivers a segment of the peer.
    fn segment(&mut self, shard: usize, source_port: u16, seq: u32, ack: Option<u32>) {
        let builder = PacketBuilder::ethernet2(PEER, OURS)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(source_port, PORT, seq, 4096);
        let flags = if ack.is_some() { "A" } else { "S" };
        self.arrives(shard, wire::forged(builder, flags, ack.unwrap_or(0), &[]));
    }

    fn request(&mut self, shard: usize, request: Request) {
        self.shards[shard].port.request(request);
        self.poll();
    }

    /// Listens, and returns the result.
    fn listen(&mut self, shard: usize, local: SocketAddr) -> (ListenerId, Result<(), HostError>) {
        let listener = ListenerId(self.shards[shard].port.allocate());
        let (local, backlog) = (local.into(), 4);
        let request = Request::Listen { listener, local, endpoint: None, backlog, at_once: false };
        self.request(shard, request);
        let answer = match self.shards[shard].port.notice() {
            Some(Notice::Listening { listener: of, .. }) if of == listener => Ok(()),
            Some(Notice::ListenFailed { listener: of, error }) if of == listener => Err(error),
            other => panic!("{other:?}"),
        };
        (listener, answer)
    }

    /// Messages sent by the host to a shard's engine since the last call.
    fn messages(&self, shard: usize) -> Vec<FromHost> {
        self.shards[shard].from_host.try_iter().collect()
    }

    /// Performs a handshake whose SYN arrives on the queue of `shard`. Returns the shard on whose queue it is answered.
    fn handshake(&mut self, shard: usize, source_port: u16) -> usize {
        self.segment(shard, source_port, 7, None);
        let answers = [0, 1].map(|shard| self.messages(shard));
        let syn_ack = |message: &FromHost| {
            let FromHost::Frame(frame) = message else { return None };
            let Some(TransportSlice::Tcp(tcp)) =
                SlicedPacket::from_ethernet(frame).unwrap().transport
            else {
                return None;
            };
            assert!(tcp.syn() && tcp.ack() && tcp.destination_port() == source_port);
            Some(tcp.sequence_number())
        };
        let answers = answers.map(|messages| messages.iter().find_map(syn_ack));
        let queue = answers.iter().position(Option::is_some).expect("a SYN-ACK was sent");
        assert!(answers[1 - queue].is_none(), "one SYN-ACK");
        self.segment(queue, source_port, 8, Some(answers[queue].unwrap() + 1));
        queue
    }

    /// Accepts everything offloaded to a shard's engine.
    fn take_over(&mut self, shard: usize) -> usize {
        let messages = self.messages(shard);
        let mut name = || {
            self.contexts += 1;
            Some(TargetContext::new(self.contexts, 0))
        };
        let mut trees = 0;
        for message in messages {
            let FromHost::Initiate(mut tree) = message else { continue };
            trees += 1;
            for neighbor in &mut tree {
                neighbor.status = take(&mut neighbor.payload, &mut name);
                for path in &mut neighbor.dependents {
                    path.status = take(&mut path.payload, &mut name);
                    for tcp in &mut path.dependents {
                        tcp.status = take(&mut tcp.payload, &mut name);
                    }
                }
            }
            self.shards[shard].to_host.send(ToHost::InitiateComplete(tree)).unwrap();
        }
        self.poll();
        trees
    }

    fn updates(&self, shard: usize) -> Vec<UpdateTree> {
        let update = |message| match message {
            FromHost::Update(tree) => Some(tree),
            _ => None,
        };
        self.messages(shard).into_iter().filter_map(update).collect()
    }

    /// Connections reported to the client of a shard, and whether they are being offloaded.
    fn established(&self, shard: usize) -> Vec<(OffloadHandle, bool)> {
        let notices = std::iter::from_fn(|| self.shards[shard].port.notice());
        let established = |notice| match notice {
            Notice::Established { handle, offloading, .. } => Some((handle, offloading)),
            _ => None,
        };
        notices.filter_map(established).collect()
    }
}

fn take<S>(
    node: &mut InitiateNode<S>,
    name: &mut impl FnMut() -> Option<TargetContext>,
) -> NdisStatus {
    if let InitiateNode::New { state, context } = node {
        *state = None;
        *context = name();
    }
    NdisStatus::SUCCESS
}

fn listening() -> SocketAddr {
    SocketAddr::new(address(2, false), PORT)
}

/// Two shards that listen, each with an offloaded connection.
fn both_offloaded() -> TwoShards {
    let mut pair = TwoShards::new(OffloadPolicy::Always);
    for shard in [0, 1] {
        assert_eq!(pair.listen(shard, listening()).1, Ok(()));
    }
    for shard in [0, 1] {
        assert_eq!(pair.handshake(shard, 100 + shard as u16), shard);
        assert_eq!(pair.take_over(shard), 1, "a tree for the shard's connection");
        let messages = pair.established(shard);
        assert!(matches!(messages[..], [(_, true)]), "{messages:?}");
    }
    for shard in [0, 1] {
        pair.messages(shard);
    }
    pair
}

#[test]
fn one_address_for_listeners_of_different_shards() {
    let mut pair = TwoShards::new(OffloadPolicy::Never);
    let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
    let in_use = Err(HostError::AddressInUse);
    let (first, listens) = pair.listen(0, listening());
    assert_eq!(listens, Ok(()));
    assert_eq!(pair.listen(0, listening()).1, in_use, "of the same shard");
    assert_eq!(pair.listen(1, any).1, in_use, "another address that overlaps");
    let (second, listens) = pair.listen(1, listening());
    assert_eq!(listens, Ok(()));
    assert_eq!(pair.handshake(1, 100), 1);
    assert_eq!(pair.established(1).len(), 1);
    // The remaining listener accepts alone, whatever queue a SYN arrives on.
    pair.request(1, Request::Unlisten { listener: second });
    assert_eq!(pair.handshake(1, 101), 0);
    assert_eq!(pair.established(0).len(), 1);
    pair.request(0, Request::Unlisten { listener: first });
    pair.segment(0, 102, 7, None);
    assert_eq!(pair.host.stats().listen_overflows, 0);
    assert_eq!(pair.host.connections.len(), 2, "no listener is left");
}

// A few connections are spread evenly, whatever queue their SYNs arrive on.
#[test]
fn accepted_connections_are_spread() {
    let mut pair = TwoShards::new(OffloadPolicy::Never);
    for shard in [0, 1] {
        assert_eq!(pair.listen(shard, listening()).1, Ok(()));
    }
    let queues = (0..6).map(|number| pair.handshake(0, 100 + number)).collect::<Vec<_>>();
    assert_eq!(queues, [0, 1, 0, 1, 0, 1]);
    let loads = || pair.host.shards.iter().map(|shard| shard.connections).collect::<Vec<_>>();
    assert_eq!(loads(), [3, 3]);
    assert_eq!([0, 1].map(|shard| pair.established(shard).len()), [3, 3]);
}

/// A shard that is not listening, or whose backlog is full, receives none.
#[test]
fn full_backlog_moves_syns_to_other_shards() {
    let mut pair = TwoShards::new(OffloadPolicy::Never);
    for shard in [0, 1] {
        assert_eq!(pair.listen(shard, listening()).1, Ok(()));
    }
    // Each may have four half-open connections.
    for number in 0..9 {
        pair.segment(0, 100 + number, 7, None);
    }
    let loads = pair.host.shards.iter().map(|shard| shard.connections).collect::<Vec<_>>();
    assert_eq!(loads, [4, 4]);
    assert_eq!(pair.host.stats().listen_overflows, 1);
}

// With many connections each stays on the queue of its SYN, unless a shard has an eighth less.
#[test]
fn many_connections_stay_on_their_queue() {
    let mut pair = TwoShards::new(OffloadPolicy::Never);
    let ids = pair.host.shards.ids().collect::<Vec<_>>();
    let mut placed = |loads: [usize; 2], arrived: usize| {
        for (shard, load) in ids.iter().zip(loads) {
            pair.host.shards[*shard].connections = load;
        }
        let place = pair.host.shards.place(ids[arrived], ids.iter().copied());
        ids.iter().position(|id| Some(*id) == place)
    };
    assert_eq!(placed([0, 0], 1), Some(1));
    assert_eq!(placed([0, 1], 1), Some(0));
    assert_eq!(placed([7, 8], 1), Some(0));
    assert_eq!(placed([8, 9], 1), Some(1));
    assert_eq!(placed([800, 900], 1), Some(1));
    assert_eq!(placed([800, 901], 1), Some(0));
    let none = pair.host.shards.place(ids[0], std::iter::empty());
    assert_eq!(none, None);
    assert_eq!(pair.host.shards.place(ids[0], ids[1..].iter().copied()), Some(ids[1]));
}

// CH-UPD: each target has its own objects, and each that has the object is updated.
#[test]
fn moved_neighbor_updates_every_target() {
    let mut pair = both_offloaded();
    let moved = [2, 0, 0, 0, 0, 9];
    // The announcement may arrive on any queue.
    pair.announce(1, moved);
    let handles = [0, 1].map(|shard| {
        let updates = pair.updates(shard);
        assert_eq!(updates.len(), 1, "shard {shard}");
        let UpdateNode::Cached { cached, .. } = &updates[0][0].payload else {
            panic!("{updates:?}")
        };
        assert_eq!(cached.dl_destination_address, MacAddress(moved));
        updates[0][0].handle
    });
    assert_ne!(handles[0], handles[1], "an object of each");
}

// CH-UPD-5
#[test]
fn narrow_path_updates_every_target() {
    let mut pair = both_offloaded();
    let handle = *pair.host.offloaded.keys().next().unwrap();
    let message = ToHost::PathMtu { handle, path_mtu: 1300 };
    pair.shards[0].to_host.send(message).unwrap();
    pair.poll();
    for shard in [0, 1] {
        let updates = pair.updates(shard);
        let path = &updates[0][0].dependents[0];
        let UpdateNode::Cached { cached, .. } = &path.payload else { panic!("{updates:?}") };
        assert_eq!(cached.path_mtu, 1300);
    }
}

// CH §5.7: a pause, and an upload request, apply to that target alone.
#[test]
fn pause_affects_one_shard() {
    let mut pair = both_offloaded();
    pair.shards[0].to_host.send(ToHost::Status(AdapterStatus::UploadAll)).unwrap();
    pair.poll();
    let terminates = [0, 1].map(|shard| {
        let messages = pair.messages(shard);
        messages.iter().filter(|message| matches!(message, FromHost::Terminate(_))).count()
    });
    assert_eq!(terminates, [1, 0]);
    assert_eq!(pair.handshake(0, 200), 0);
    assert_eq!(pair.handshake(1, 201), 1);
    let stays = pair.established(0);
    assert!(matches!(stays[..], [(_, false)]), "{stays:?}");
    let goes = pair.established(1);
    assert!(matches!(goes[..], [(_, true)]), "{goes:?}");
}

/// Offload and end of a connection involve only the host and that engine; the load counts are released.
#[test]
fn connections_end_on_their_shard() {
    let mut pair = both_offloaded();
    let handles = pair.host.offloaded.keys().copied().collect::<Vec<_>>();
    for (shard, handle) in handles.into_iter().enumerate() {
        pair.shards[shard].to_host.send(ToHost::Released { handle }).unwrap();
        pair.poll();
        let messages = [0, 1].map(|shard| {
            let messages = pair.messages(shard);
            messages.iter().filter(|message| matches!(message, FromHost::Terminate(_))).count()
        });
        // Its path and its neighbor are removed with it.
        let mut expected = [0, 0];
        expected[shard] = 2;
        assert_eq!(messages, expected);
    }
    assert!(pair.host.is_idle());
    assert!(pair.host.shards.iter().all(|shard| shard.connections == 0));
}

#[test]
fn shards_share_one_id_allocator() {
    let pair = TwoShards::new(OffloadPolicy::Never);
    let [one, other] = &pair.shards[..] else { panic!("two were made") };
    let names = [one.port.allocate(), other.port.allocate(), one.port.allocate()];
    assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
    let none = Host::of_shards(config(2, OffloadPolicy::Never), Vec::new());
    assert_eq!(none.err(), Some(ConfigError::Shards));
}
