//! Tests of the engine with a test link and a test client. This file covers the run loop; each other subject has its
//! own file.

mod adapter;
mod clients;
mod cross_queue;
mod limits;
mod links;
mod receives;
mod round_trip;
mod state_operations;
mod terminate;
mod transmits;
mod trees;
mod turns;

use std::{
    boxed::Box,
    collections::VecDeque,
    format, io,
    os::fd::BorrowedFd,
    string::String,
    sync::{Arc, Mutex},
    vec,
    vec::Vec,
};

use bytes::Bytes;
use etherparse::{
    Icmpv4Type, Ipv4HeaderSlice, PacketBuilder, PacketBuilderStep, SlicedPacket, TcpHeader,
    TransportSlice,
};

use super::{
    Clients, Engine, EngineConfig, HELD_BYTES_MAX, HELD_FRAMES_MAX, NodeClient, STALLED_FRAMES_MAX,
    port::{FromHost, HostPort, TO_HOST_FRAMES_MAX, ToHost},
};
use crate::{
    chimney::{
        client::{
            ClientTag, ConnectionEvent, ConnectionIo, Disconnect, OffloadClient, OffloadHandle,
        },
        provider::Forward,
        tree::{Block, InitiateNode, TcpObject},
    },
    frame::classify,
    link::{Link, LinkCapabilities, LinkStats, RxBatch, RxChecksum, TxFrame, TxOutcome},
    nbl::{NblChain, NetBuffer, NetBufferList, ReceiveBufferList, ReceiveChain},
    state::{
        ConnectionState, MacAddress, NeighborCached, NeighborConst, NeighborDelegated,
        NeighborState, PathCached, PathConst, PathState, TcpCached, TcpConst, TcpState,
    },
    status::NdisStatus,
    tcp::{Flags, SeqNum, TcpPhase},
    time::{Duration, Instant},
};

const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEERS: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

#[derive(Default)]
struct Wire {
    receive: VecDeque<(Vec<u8>, RxChecksum)>,
    sent: Vec<Vec<u8>>,
    comments: Vec<String>,
    full: bool,
}

/// Link whose received and sent frames the test controls.
struct TestLink(Arc<Mutex<Wire>>);

impl Link for TestLink {
    fn capabilities(&self) -> LinkCapabilities {
        LinkCapabilities { mtu: 1500, tx_checksum: false, tso4_max: 0, tso6_max: 0 }
    }

    fn receive(&mut self, _now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let mut wire = self.0.lock().unwrap();
        let mut count = 0;
        while !batch.is_full() {
            let Some((frame, checksum)) = wire.receive.pop_front() else { break };
            assert!(batch.push(&frame, checksum, 0));
            count += 1;
        }
        Ok(count)
    }

    fn transmit(&mut self, _now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let mut wire = self.0.lock().unwrap();
        if wire.full {
            return TxOutcome::Full;
        }
        let mut all = Vec::new();
        frame.gather_into(&mut all);
        wire.sent.push(all);
        wire.comments.extend(frame.comment.map(String::from));
        TxOutcome::Sent
    }

    fn uses_comments(&self) -> bool {
        true
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}

#[derive(Default)]
struct Client {
    offloaded: Vec<OffloadHandle>,
    received: Vec<u8>,
    /// Bytes consumed per indication.
    takes: usize,
    /// True if the client resumes receiving when it is offered send room.
    resumes: bool,
    indications: usize,
    /// Address of the data of each indication.
    places: Vec<usize>,
    /// References kept to the data.
    kept: Vec<Bytes>,
    completed: Vec<NetBufferList>,
    /// Bytes that the connection had sent at each send completion.
    sent_before_completion: Vec<u64>,
    receives: Vec<ReceiveBufferList>,
    events: Vec<ConnectionEvent>,
    disconnected: Vec<NetBufferList>,
    uploaded: Vec<OffloadHandle>,
}

impl OffloadClient for Client {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        io.resume_receive();
        self.offloaded.push(io.handle);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        self.indications += 1;
        self.places.push(data.as_ptr() as usize);
        let taken = self.takes.min(data.len());
        self.kept.extend(io.keep(&data[..taken]));
        assert!(io.keep(b"elsewhere").is_none());
        self.received.extend_from_slice(&data[..taken]);
        taken
    }

    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, chain: ReceiveChain) {
        self.receives.extend(chain);
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        self.sent_before_completion.push(io.connection.info(io.now).bytes_sent);
        self.completed.extend(chain);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        if core::mem::take(&mut self.resumes) {
            io.resume_receive();
        }
    }

    fn disconnect_complete(&mut self, _io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        self.disconnected.push(nbl);
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        self.uploaded.push(handle);
    }

    fn event(&mut self, _io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        self.events.push(event);
    }
}

impl NodeClient for Client {}

/// Creates a table with one client that consumes all data.
fn one_client() -> Clients {
    let mut clients = Clients::new();
    clients.insert(|_| Client { takes: usize::MAX, ..Client::default() }).unwrap();
    clients
}

struct Bench {
    engine: Engine,
    port: HostPort,
    wire: Arc<Mutex<Wire>>,
    clients: Clients,
    now: Instant,
}

impl Bench {
    fn new(connections_max: usize) -> Self {
        let mut config = EngineConfig::new(OURS);
        config.capabilities.connections_max = connections_max;
        Self::with(config)
    }

    fn with(config: EngineConfig) -> Self {
        let wire = Arc::new(Mutex::new(Wire::default()));
        Self::on(Box::new(TestLink(wire.clone())), wire, config)
    }

    fn on(link: Box<dyn Link>, wire: Arc<Mutex<Wire>>, config: EngineConfig) -> Self {
        let (engine, port) = Engine::new(link, config).unwrap();
        Self { engine, port, wire, clients: one_client(), now: Instant::from_millis(1) }
    }

    /// Returns the client whose tag is [`Clients::FIRST`].
    fn client(&mut self) -> &mut Client {
        self.clients.first_mut()
    }

    fn poll(&mut self) -> bool {
        self.engine.poll(self.now, &mut self.clients).unwrap()
    }

    fn initiate(&mut self, handle: u64, local_port: u16) {
        self.initiate_state(handle, state(local_port));
    }

    fn initiate_state(&mut self, handle: u64, state: ConnectionState) {
        self.initiate_of(Clients::FIRST, handle, state);
    }

    fn initiate_of(&mut self, client: ClientTag, handle: u64, state: ConnectionState) {
        let (neighbor, path, object) = TcpObject::split(client, state);
        let handle = OffloadHandle(handle);
        let tcp = Block::new(handle, InitiateNode::new(Box::new(object)));
        let path = Block::new(handle, InitiateNode::new(path)).with(vec![tcp]);
        let tree = vec![Block::new(handle, InitiateNode::new(neighbor)).with(vec![path])];
        self.port.initiate(tree);
    }

    /// Returns the messages from the engine to the host since the last call.
    fn host_messages(&self) -> Vec<ToHost> {
        self.port.from_engine.try_iter().collect()
    }

    fn arrives(&self, frame: Vec<u8>) {
        self.wire.lock().unwrap().receive.push_back((frame, RxChecksum::Unverified));
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.wire.lock().unwrap().sent)
    }
}

fn state(local_port: u16) -> ConnectionState {
    state_in_vlan(local_port, 0)
}

fn state_in_vlan(local_port: u16, vlan_id: u16) -> ConnectionState {
    let [local, remote] = [([10, 0, 0, 1], local_port), ([10, 0, 0, 2], 9000)].map(Into::into);
    let seqs = (SeqNum(1000), SeqNum(5000));
    let mut state = ConnectionState::established(local, remote, seqs, 60_000);
    state.neighbor.constant.vlan_id = vlan_id;
    state.neighbor.cached.dl_destination_address = PEERS;
    state
}

type TcpBuilder = PacketBuilderStep<TcpHeader>;

/// Builds a segment of the peer, with the flags that `dress` sets.
fn peer_segment(
    local_port: u16,
    seq: u32,
    window: u16,
    dress: impl FnOnce(TcpBuilder) -> TcpBuilder,
    payload: &[u8],
) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(PEERS.0, OURS.0).ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64);
    let mut frame = Vec::new();
    dress(ip.tcp(9000, local_port, seq, window)).write(&mut frame, payload).unwrap();
    frame
}

fn from_peer(local_port: u16, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    peer_segment(local_port, seq, 60_000, |tcp| tcp.ack(ack).psh(), payload)
}

fn tcp_of(frame: &[u8]) -> (u32, u32, Vec<u8>) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP in {frame:?}") };
    (tcp.sequence_number(), tcp.acknowledgment_number(), tcp.payload().to_vec())
}

// CH-INI: a connection is live once its initiate has completed. Its segments are no longer passed to the host.
#[test]
fn initiated_connection_receives_its_segments() {
    let mut bench = Bench::new(10);
    bench.arrives(from_peer(80, 5000, 1000, b"early"));
    bench.poll();
    assert!(matches!(bench.port.from_engine.try_recv(), Ok(ToHost::Frame { .. })));

    bench.initiate(7, 80);
    bench.poll();
    assert_eq!(bench.client().offloaded, [OffloadHandle(7)]);
    let Ok(ToHost::InitiateComplete(tree)) = bench.port.from_engine.try_recv() else {
        panic!("no completion")
    };
    assert_eq!(trees::statuses(&tree), [NdisStatus::SUCCESS; 3]);

    bench.arrives(from_peer(80, 5000, 1000, b"early"));
    bench.arrives(from_peer(81, 5000, 1000, b"other"));
    bench.poll();
    assert_eq!(bench.client().received, b"early");
    assert!(matches!(bench.port.from_engine.try_recv(), Ok(ToHost::Frame { .. })));
    assert!(bench.port.from_engine.try_recv().is_err(), "one frame is passed to the host");
    let stats = bench.engine.stats();
    assert_eq!((stats.rx_segments, stats.rx_to_host, stats.initiates), (1, 2, 1));
}

// CH-INI-4: a refused connection is returned complete. Exceeded capacity and double offload are refused.
#[test]
fn refused_state_is_returned() {
    let mut bench = Bench::new(2);
    bench.initiate(1, 80);
    bench.initiate(2, 80);
    bench.initiate(1, 81);
    bench.initiate(3, 82);
    bench.initiate(4, 83);
    bench.poll();
    let answers: Vec<_> = bench
        .port
        .from_engine
        .try_iter()
        .map(|message| {
            let ToHost::InitiateComplete(tree) = message else { panic!("{message:?}") };
            let tcp = &tree[0].dependents[0].dependents[0];
            assert_eq!(tcp.status == NdisStatus::SUCCESS, trees::context(tcp).is_some());
            (tcp.handle.0, tcp.status)
        })
        .collect();
    assert_eq!(
        answers,
        [
            (1, NdisStatus::SUCCESS),
            (2, NdisStatus::FAILURE),
            (1, NdisStatus::FAILURE),
            (3, NdisStatus::SUCCESS),
            (4, NdisStatus::OFFLOAD_TCP_ENTRIES),
        ]
    );
    assert_eq!(bench.engine.stats().initiate_failures, 3);
    assert_eq!(bench.engine.connections().len(), 2);
}

// RFC 9293 MUST-50: segments with IP options are passed to the host, which forwards them to the connection.
#[test]
fn segments_with_ip_options_pass_through_host() {
    let mut bench = Bench::new(10);
    let (_, _, tcps) = bench.offload(&[80]);
    let mut frame = from_peer(80, 5000, 1000, b"optional");
    frame.splice(34..34, [1, 1, 1, 0]);
    frame[14] = 0x46;
    let length = u16::from_be_bytes([frame[16], frame[17]]) + 4;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    let header = Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap().to_header();
    frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    bench.arrives(frame.clone());
    bench.poll();
    assert!(bench.client().received.is_empty());
    assert!(matches!(bench.port.from_engine.try_recv(), Ok(ToHost::Frame { .. })));
    let status = NdisStatus::PENDING;
    bench.port.forward(Forward { connection: tcps[0], frame, status });
    bench.poll();
    assert_eq!(bench.client().received, b"optional");
}

#[test]
fn wrong_checksum_is_dropped_and_counted() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    let mut frame = from_peer(80, 5000, 1000, b"data");
    *frame.last_mut().unwrap() ^= 1;
    bench.arrives(frame.clone());
    bench.poll();
    assert_eq!(bench.client().received, b"");
    assert_eq!(bench.engine.stats().rx_checksum_errors, 1);
    // The same frame is accepted if the link vouches for it: its checksum was never filled in.
    bench.wire.lock().unwrap().receive.push_back((frame, RxChecksum::Valid));
    bench.poll();
    assert_eq!(bench.client().received, b"dat`");
}

// A frame for another station is not processed, even if its IP addresses and ports match a connection.
#[test]
fn frames_for_other_stations_are_not_processed() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    let mut frame = from_peer(80, 5000, 1000, b"data");
    frame[5] ^= 1;
    bench.arrives(frame);
    bench.poll();
    assert_eq!(bench.client().received, b"");
    assert_eq!((bench.engine.stats().rx_segments, bench.engine.stats().rx_to_host), (0, 1));
}

// There is one acknowledgment per batch, and it covers the batch.
#[test]
fn batch_is_acknowledged_once() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.poll();
    bench.sent();
    for index in 0..4 {
        bench.arrives(from_peer(80, 5000 + index * 1460, 1000, &vec![7; 1460]));
    }
    bench.poll();
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(tcp_of(&sent[0]).1, 5000 + 4 * 1460);
}

// `poll_first_frame` indicates a small frame that requires a response before it reads the next frame. The response
// carries the acknowledgment, and is sent before the client's earlier send completes. Then the batch continues.
#[test]
fn response_precedes_rest_of_batch() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.poll();
    let post = |bench: &mut Bench, context| {
        let list = NetBufferList::from_mdl(context, Bytes::from_static(b"hello"));
        let now = bench.now;
        bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
        bench.engine.flush(now, &mut bench.clients);
    };
    post(&mut bench, 1);
    assert_eq!(bench.sent().len(), 1);
    bench.arrives(from_peer(80, 5000, 1005, b"first"));
    bench.arrives(from_peer(80, 5005, 1005, b"then"));
    assert!(bench.engine.poll_first_frame(bench.now, &mut bench.clients).unwrap());
    assert!(bench.engine.has_batch_left() && bench.engine.has_input());
    assert_eq!(bench.client().received, b"first");
    assert!(bench.sent().is_empty() && bench.client().completed.is_empty());

    post(&mut bench, 2);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1, "it acknowledges the data");
    assert_eq!(tcp_of(&sent[0]), (1005, 5005, b"hello".to_vec()));
    assert_eq!(bench.client().completed.len(), 1);
    assert_eq!(bench.client().sent_before_completion, [10], "after the response");

    assert!(bench.engine.poll_first_frame(bench.now, &mut bench.clients).unwrap());
    assert!(!bench.engine.has_batch_left() && !bench.engine.has_input());
    assert_eq!(bench.client().received, b"firstthen");
    assert!(!bench.engine.poll_first_frame(bench.now, &mut bench.clients).unwrap());
}

// An interrupted batch results in as many acknowledgments as any other: at most one, and none before its end.
#[test]
fn interrupted_batch_is_acknowledged_once() {
    for (bytes, first) in [(100, 1), (1460, 4)] {
        let four_frames = || {
            let mut bench = Bench::new(10);
            bench.initiate(1, 80);
            bench.poll();
            bench.sent();
            for index in 0..4 {
                let payload = vec![7; bytes as usize];
                bench.arrives(from_peer(80, 5000 + index * bytes, 1000, &payload));
            }
            bench
        };
        let acks = |bench: &mut Bench| {
            bench.sent().iter().map(|frame| tcp_of(frame).1).collect::<Vec<_>>()
        };
        let mut bench = four_frames();
        bench.engine.poll_first_frame(bench.now, &mut bench.clients).unwrap();
        assert_eq!(bench.client().received.len(), first * bytes as usize, "large frames");
        bench.engine.poll_first_frame(bench.now, &mut bench.clients).unwrap();
        assert_eq!(bench.client().received.len(), 4 * bytes as usize);
        let interrupted = acks(&mut bench);

        let mut bench = four_frames();
        bench.poll();
        assert_eq!(interrupted, acks(&mut bench));
        assert!(interrupted.len() <= 1);
    }
}

// Frames are processed in order, up to the configured frames and bytes per iteration, whatever the number of buffers.
#[test]
fn batch_is_limited_by_frames_and_bytes() {
    let batches = |frames_max: usize, bytes_max: usize| {
        let mut config = EngineConfig::new(OURS);
        config.rx_batch_frames_max = frames_max;
        config.rx_batch_bytes_max = bytes_max;
        let mut bench = Bench::with(config);
        bench.initiate(1, 80);
        bench.poll();
        bench.client().takes = usize::MAX;
        for at in 0..7_u8 {
            bench.arrives(from_peer(80, 5000 + u32::from(at) * 100, 1000, &[at; 100]));
        }
        let mut counts = vec![];
        for _ in 0..7 {
            let before = bench.client().received.len();
            bench.poll();
            counts.push((bench.client().received.len() - before) / 100);
        }
        counts.retain(|count| *count > 0);
        let all: Vec<u8> = (0..7).flat_map(|at| [at; 100]).collect();
        assert_eq!(bench.client().received, all);
        counts
    };
    assert_eq!(batches(3, usize::MAX), [3, 3, 1]);
    // A frame has 154 bytes, so the second one reaches the limit.
    assert_eq!(batches(16, 200), [2, 2, 2, 1]);
    assert_eq!(batches(16, usize::MAX), [7]);
}

// CH-IND-2: after a refusal no data is indicated until receiving is resumed. Order is kept.
#[test]
fn refused_data_is_buffered_in_order() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.client().takes = 3;
    bench.arrives(from_peer(80, 5000, 1000, b"abcde"));
    bench.arrives(from_peer(80, 5005, 1000, b"fgh"));
    bench.poll();
    assert_eq!(bench.client().received, b"abc");
    assert_eq!(bench.client().indications, 1);

    bench.client().takes = 2;
    bench.engine.connections().get(bench.now, OffloadHandle(1)).unwrap().resume_receive();
    bench.poll();
    assert_eq!(bench.client().received, b"abcdefg");

    // The client accepts data when it is offered send room. No other event triggers the delivery.
    bench.client().takes = usize::MAX;
    bench.client().resumes = true;
    bench.engine.connections().schedule_send_room(OffloadHandle(1));
    bench.engine.flush(bench.now, &mut bench.clients);
    assert_eq!(bench.client().received, b"abcdefgh");
}

// CH-SND-1, CH-SNC-1: a list posted outside an upcall is sent at the next flush and completed when acknowledged.
#[test]
fn posted_send_is_transmitted_and_completed() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.poll();
    bench.sent();
    let list = NetBufferList::from_mdl(42, Bytes::from_static(b"hello"));
    let now = bench.now;
    bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
    bench.engine.flush(now, &mut bench.clients);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(tcp_of(&sent[0]), (1000, 5000, b"hello".to_vec()));
    assert!(bench.client().completed.is_empty());

    bench.arrives(from_peer(80, 5000, 1005, b""));
    bench.poll();
    let completed = &bench.client().completed;
    assert_eq!(completed.len(), 1);
    let list = &completed[0];
    assert_eq!((list.context, list.status, list.bytes_transferred), (42, NdisStatus::SUCCESS, 5));
}

// An abortive disconnect closes the connection: RST, Released as the last event, and a message to the host.
#[test]
fn release_is_reported_once() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.poll();
    bench.port.from_engine.try_iter().for_each(drop);
    let now = bench.now;
    let nbl = NetBufferList::new(0);
    bench
        .engine
        .connections()
        .get(now, OffloadHandle(1))
        .unwrap()
        .disconnect(Disconnect::Abortive, nbl);
    bench.poll();
    bench.poll();
    assert_eq!(bench.client().events.last(), Some(&ConnectionEvent::Released));
    let sent: Vec<_> = bench.port.from_engine.try_iter().collect();
    assert!(matches!(sent[..], [ToHost::Released { handle: OffloadHandle(1) }]), "{sent:?}");
    assert!(bench.engine.connections().is_empty());
    assert!(bench.engine.connections().get(now, OffloadHandle(1)).is_none());
}

// Frames for a host stack that is too slow are dropped and counted. Control messages never are.
#[test]
fn host_queue_is_bounded() {
    let mut bench = Bench::new(10);
    for _ in 0..TO_HOST_FRAMES_MAX + 10 {
        bench.arrives(from_peer(99, 1, 1, b""));
    }
    while bench.poll() {}
    bench.initiate(1, 80);
    bench.poll();
    assert_eq!(bench.engine.stats().rx_to_host_dropped, 10);
    assert_eq!(bench.port.from_engine.len(), TO_HOST_FRAMES_MAX + 1);
}

/// Builds "Fragmentation needed" from a router, about a transmitted frame.
fn too_big(about: &[u8], next_hop_mtu: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let [a, b] = next_hop_mtu.to_be_bytes();
    let kind = Icmpv4Type::Unknown { type_u8: 3, code_u8: 4, bytes5to8: [0, 0, a, b] };
    PacketBuilder::ethernet2(PEERS.0, OURS.0)
        .ipv4([10, 0, 0, 254], [10, 0, 0, 1], 64)
        .icmpv4(kind)
        .write(&mut frame, &about[14..14 + 28])
        .unwrap();
    frame
}

// RFC 9293 MUST-54, RFC 1191 §6: an ICMP error about an offloaded connection is applied immediately. The host receives
// it too (CH §9.1, CH-UPD-5). An error that quotes no bytes in flight changes nothing.
#[test]
fn icmp_errors_are_delivered_to_connection_and_host() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.poll();
    let now = bench.now;
    let list = NetBufferList::from_mdl(42, Bytes::from(vec![7; 3000]));
    bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
    bench.engine.flush(now, &mut bench.clients);
    let sent = bench.sent();
    assert_eq!(tcp_of(&sent[0]).2.len(), 1460);
    bench.port.from_engine.try_iter().for_each(drop);

    let mut stranger = sent[0].clone();
    stranger[35] ^= 1; // local port
    let mut old = sent[0].clone();
    old[38] ^= 1; // sequence number
    for about in [&stranger, &old, &sent[0]] {
        bench.arrives(too_big(about, 1280));
    }
    bench.poll();
    let again = bench.sent();
    let shape: Vec<_> =
        again.iter().map(|frame| (tcp_of(frame).0, tcp_of(frame).2.len())).collect();
    // The last 80 bytes were delivered, but they are part of the one GSO packet that the frames were cut from.
    assert_eq!(shape, [(1000, 1240), (2240, 1240), (3480, 520)]);
    let messages: Vec<_> = bench.port.from_engine.try_iter().collect();
    let frames = messages.iter().filter(|message| matches!(message, ToHost::Frame { .. })).count();
    assert_eq!(frames, 3, "the host gets every frame");
    let handle = OffloadHandle(1);
    let mtus: Vec<_> = messages
        .iter()
        .filter_map(|message| match message {
            ToHost::PathMtu { handle, path_mtu } => Some((*handle, *path_mtu)),
            _ => None,
        })
        .collect();
    assert_eq!(mtus, [(handle, 1280)]);
    let stats = bench.engine.stats();
    assert_eq!((stats.rx_path_errors, stats.rx_path_errors_ignored, stats.rx_to_host), (1, 1, 3));

    // An error for another station is ignored.
    let mut flooded = too_big(&sent[0], 1000);
    flooded[5] ^= 1;
    bench.arrives(flooded);
    bench.poll();
    assert_eq!(bench.engine.stats().rx_path_errors, 1);
}

// CH §9.4: frames with the neighbor's tag are processed. Others of the connection are dropped and counted.
#[test]
fn only_frames_of_neighbor_vlan_are_processed() {
    let mut bench = Bench::new(10);
    bench.initiate_state(1, state_in_vlan(80, 5));
    bench.initiate(2, 81);
    bench.poll();
    bench.port.from_engine.try_iter().for_each(drop);
    let tagged =
        |tag: u8, frame: Vec<u8>| [&frame[..12], &[0x81, 0, 0, tag], &frame[12..]].concat();
    bench.arrives(from_peer(80, 5000, 1000, b"untagged"));
    bench.arrives(tagged(6, from_peer(80, 5000, 1000, b"six")));
    bench.arrives(tagged(5, from_peer(80, 5000, 1000, b"five, ")));
    bench.arrives(tagged(6, from_peer(81, 5000, 1000, b"any, ")));
    bench.arrives(from_peer(81, 5005, 1000, b"none"));
    bench.poll();
    assert_eq!(bench.client().received, b"five, any, none");
    bench.now += Duration::from_millis(40);
    bench.poll();
    let stats = bench.engine.stats();
    assert_eq!((stats.rx_vlan_dropped, stats.rx_segments, stats.rx_to_host), (2, 3, 0));
    // Transmitted frames have the tag.
    let sent = bench.sent();
    let tags: Vec<_> = sent.iter().map(|frame| frame[12..16].to_vec()).collect();
    assert!(tags.contains(&vec![0x81, 0, 0, 5]), "{tags:?}");
}

// RFC 3168 §6.1: a CE mark is echoed as ECE, and data is sent ECN-capable with correct checksums.
#[test]
fn ce_mark_is_echoed_and_data_is_ect() {
    let mut bench = Bench::new(10);
    let mut agreed = state(80);
    agreed.tcp.constant.ecn_enabled = true;
    bench.initiate_state(1, agreed);
    bench.poll();
    bench.sent();
    let mut frame = from_peer(80, 5000, 1000, b"data");
    frame[15] |= 3;
    let sum = u16::from_be_bytes([frame[24], frame[25]]);
    frame[24..26].copy_from_slice(&(sum - 3).to_be_bytes());
    bench.arrives(frame);
    bench.poll();
    let now = bench.now;
    let list = NetBufferList::from_mdl(42, Bytes::from_static(b"hello"));
    bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
    bench.engine.flush(now, &mut bench.clients);
    let sent = bench.sent();
    let (ack, data) = (&sent[0], &sent[1]);
    assert_eq!((ack[15] & 3, ack[47] & 0x40), (0, 0x40));
    assert_eq!((data[15] & 3, data[47] & 0x40), (2, 0x40));
    assert!(sent.iter().all(|frame| classify(frame).is_some_and(|tcp| tcp.checksum_is_valid())));
}

// Without segmentation by the link no frame exceeds the path MTU. This also holds if the path MTU is so small that two
// of its segments fit into one of the link's (RFC 2923 §2.1).
#[test]
fn frames_fit_path_mtu() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.poll();
    bench.sent();
    let now = bench.now;
    let list = NetBufferList::from_mdl(42, Bytes::from(vec![7; 30_000]));
    bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
    bench.engine.flush(now, &mut bench.clients);
    let mut mtus = Vec::new();
    for _ in 0..8 {
        let longest = bench.sent().iter().map(|frame| frame.len() - 14).max().unwrap();
        mtus.push(longest);
        let due = bench.engine.connections().list(bench.now).next().unwrap().2.rto;
        bench.now += due;
        bench.poll();
    }
    assert_eq!(mtus, [1500, 1500, 1500, 1064, 1064, 1064, 576, 576]);
    bench.arrives(from_peer(80, 5000, 1000 + 536, b""));
    bench.poll();
    let sent = bench.sent();
    assert!(!sent.is_empty() && sent.iter().all(|frame| frame.len() - 14 <= 576));
}

/// File that the test can read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// A trace has one row per batch that changes the state, and none for other batches.
#[test]
fn trace_has_one_row_per_change() {
    let mut bench = Bench::new(8);
    let file = Shared::default();
    bench.engine.start_trace(Box::new(io::BufWriter::new(file.clone()))).unwrap();
    bench.initiate(7, 80);
    bench.poll();
    let list = NetBufferList::from_mdl(1, Bytes::from(vec![1; 3000]));
    let now = bench.now;
    let connections = bench.engine.connections();
    connections.get(now, OffloadHandle(7)).unwrap().send([list].into());
    bench.poll();
    bench.poll();
    bench.engine.connections().schedule_send_room(OffloadHandle(7));
    bench.poll();
    bench.now += Duration::from_millis(20);
    for acked in [1460, 2920, 3000] {
        bench.arrives(from_peer(80, 5000, 1000 + acked, b""));
    }
    bench.poll();
    drop(bench.engine);
    let text = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let name = "10.0.0.1:80-10.0.0.2:9000";
    let row = |time: u32, rest: &str| format!("{time},{name},{rest}");
    assert_eq!(lines[0], super::trace::TRACE_HEADER);
    assert_eq!(lines[1], row(1_000, "14600,,,,1000000,0,60000,60000,,0,0,open,offloaded"));
    assert_eq!(lines[2], row(1_000, "14600,,,,1000000,3000,60000,60000,,0,0,open,offloaded"));
    assert!(lines[3].starts_with(&row(21_000, "14600,,20000,")), "{}", lines[3]);
    assert!(lines[3].ends_with(",0,60000,60000,,3000,0,open,offloaded"), "{}", lines[3]);
    assert_eq!(lines.len(), 4, "{text}");
}
