//! Clients that register with a running node and leave it, on virtual time. Connections of a leaving client are reset
//! in every stage, its ports are released, and its successor in the table receives nothing of them.

use std::net::SocketAddr;

use bytes::Bytes;
use host_stack::{
    node::Core,
    simulation::{Pair, has_no_connection},
    socket::{EndpointId, HostError, ListenerId, Notice, SocketPort},
    stream::{OffloadState, StreamStatus, Streams},
};
use offload_engine::{
    chimney::client::{ClientTag, ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Connections, NodeClient},
    link::{MemoryLinkOptions, memory_link_pair},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    time::{Duration, Instant},
};

/// Time limit of a run, in virtual time.
const LIMIT: Instant = Instant::from_millis(600_000);
const TIMEOUT: Duration = Duration::from_secs(60);
const PORT: u16 = 7;

type Nodes = Pair<Core>;

fn at(number: u8, port: u16) -> SocketAddr {
    ([10, 0, 0, number], port).into()
}

fn streams(core: &mut Core, client: ClientTag) -> &mut Streams {
    core.clients.get_mut(client).expect("registered client")
}

/// Node 1 with a second client, whose connection to the one client of node 2 is offloaded on both sides.
struct Bench {
    pair: Nodes,
    second: ClientTag,
    near: OffloadHandle,
    far: OffloadHandle,
    listener: ListenerId,
}

impl Bench {
    fn new() -> Self {
        let (near, far) = memory_link_pair(MemoryLinkOptions::default());
        let mut pair = Nodes::stations((near, far));
        let listener = pair.b.clients.first_mut::<Streams>().listen(at(2, PORT), 4);
        let listens = |pair: &mut Nodes| pair.b.clients.first::<Streams>().listening(listener);
        pair.run(LIMIT, listens).unwrap().unwrap();
        let second = pair.a.register(Streams::new).unwrap();
        let near = streams(&mut pair.a, second).connect(None, at(2, PORT), TIMEOUT);
        let accept = |pair: &mut Nodes| pair.b.clients.first_mut::<Streams>().accept(listener);
        let far = pair.run(LIMIT, accept).unwrap();
        let mut bench = Self { pair, second, near, far, listener };
        bench.run_until(|bench| {
            bench.near().state == OffloadState::Offloaded
                && bench.far().state == OffloadState::Offloaded
        });
        bench
    }

    fn near(&mut self) -> StreamStatus {
        streams(&mut self.pair.a, self.second).status(self.near).unwrap()
    }

    fn far(&mut self) -> StreamStatus {
        self.pair.status(1, self.far)
    }

    fn run_until(&mut self, mut is: impl FnMut(&mut Self) -> bool) {
        for _ in 0..1_000_000 {
            if is(self) {
                return;
            }
            let mut polls = 0;
            // One round of both nodes, or the next due time.
            let moved = self.pair.run(LIMIT, |_| {
                polls += 1;
                (polls > 1).then_some(())
            });
            moved.unwrap();
        }
        panic!("condition not reached");
    }

    /// Sends one more KiB from node 2, so that data is always in flight.
    fn far_sends(&mut self) {
        self.pair.send(1, self.far, Bytes::from_static(&[7; 1024]));
    }

    /// Unregisters the second client, and registers another one as soon as its slot is free.
    fn replace(&mut self) -> ClientTag {
        self.pair.a.unregister(self.second);
        let departed = self.second;
        let a = &mut self.pair.a;
        while a.clients.contains(departed) {
            a.poll(self.pair.now).unwrap();
        }
        let successor = a.register(ReplacementClient::new).unwrap();
        assert_ne!(successor, departed, "a tag is never reused");
        let slot = |tag: ClientTag| tag.0 >> 32;
        assert_eq!(slot(successor), slot(departed), "a slot is reused");
        successor
    }

    /// Connections of a departed client end with RST, no state of it is left, and its successor in the slot receives
    /// nothing.
    fn assert_ended(&mut self, successor: ClientTag, local: SocketAddr) {
        self.run_until(|bench| bench.far().closed);
        assert_eq!(self.far().error, Some(HostError::Reset));
        self.run_until(|bench| has_no_connection(&mut bench.pair.a));
        let bound = self.pair.a.clients.first_mut::<Streams>().bind(local);
        let is_bound = |bench: &Self, endpoint: EndpointId| {
            bench.pair.a.clients.first::<Streams>().bound(endpoint)
        };
        self.run_until(|bench| is_bound(bench, bound).is_some());
        assert_eq!(is_bound(self, bound), Some(Ok(local)), "its port is free");
        let upcalls = &self.pair.a.clients.get::<ReplacementClient>(successor).unwrap().upcalls;
        assert!(upcalls.is_empty(), "{upcalls:?}");
    }
}

/// Successor of a departed client, which records its upcalls.
struct ReplacementClient {
    port: SocketPort,
    upcalls: Vec<String>,
}

impl ReplacementClient {
    fn new(port: SocketPort) -> Self {
        Self { port, upcalls: Vec::new() }
    }

    fn record(&mut self, upcall: impl Into<String>) {
        self.upcalls.push(upcall.into());
    }
}

impl OffloadClient for ReplacementClient {
    fn offloaded(&mut self, _io: &mut ConnectionIo<'_>) {
        self.record("offloaded");
    }
    fn receive(&mut self, _io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        self.record("receive");
        data.len()
    }
    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {
        self.record("receive_complete");
    }
    fn send_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: NblChain) {
        self.record("send_complete");
    }
    fn send_room(&mut self, _io: &mut ConnectionIo<'_>) {
        self.record("send_room");
    }
    fn disconnect_complete(&mut self, _io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {
        self.record("disconnect_complete");
    }
    fn event(&mut self, _io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        self.record(format!("{event:?}"));
    }
    fn uploaded(&mut self, _handle: OffloadHandle) {
        self.record("uploaded");
    }
}

impl NodeClient for ReplacementClient {
    fn poll(&mut self, _now: Instant, _connections: &mut Connections) -> bool {
        let notice: Option<Notice> = self.port.notice();
        notice.is_some_and(|notice| {
            self.record(format!("{notice:?}"));
            true
        })
    }
    fn has_input(&self) -> bool {
        self.port.has_notice()
    }
}

/// Last request of the leaving client.
#[derive(Clone, Copy, Debug)]
enum Move {
    None,
    Up,
    /// Upload, and offload again.
    Down,
}

/// Unregisters the client `polls` polls after the request.
fn unregister_after(moves: Move, polls: usize) {
    let mut bench = Bench::new();
    let (near, second) = (bench.near, bench.second);
    let local = bench.near().local.unwrap();
    let of_second = |bench: &mut Bench, act: fn(&mut Streams, OffloadHandle)| {
        act(streams(&mut bench.pair.a, second), near);
    };
    match moves {
        Move::None => {}
        Move::Up => of_second(&mut bench, Streams::upload),
        Move::Down => {
            of_second(&mut bench, Streams::upload);
            bench.run_until(|bench| bench.near().state == OffloadState::InHost);
            of_second(&mut bench, Streams::offload);
        }
    }
    for _ in 0..polls {
        bench.far_sends();
        let now = bench.pair.now;
        bench.pair.b.poll(now).unwrap();
        bench.pair.a.poll(now).unwrap();
    }
    bench.far_sends();
    let successor = bench.replace();
    bench.far_sends();
    bench.assert_ended(successor, local);
}

#[test]
fn offloaded_connection_of_a_departed_client_is_reset() {
    for polls in 0..4 {
        unregister_after(Move::None, polls);
    }
}

// Offloaded, uploading, in the host: one poll after the other.
#[test]
fn client_departure_during_an_upload_resets() {
    for polls in 0..8 {
        unregister_after(Move::Up, polls);
    }
}

#[test]
fn client_departure_during_an_offload_resets() {
    for polls in 0..8 {
        unregister_after(Move::Down, polls);
    }
}

// An outstanding handshake, a listener with connections not accepted yet, and an endpoint: all are released.
#[test]
fn pending_requests_of_a_departed_client_are_released() {
    let mut bench = Bench::new();
    let second = bench.second;
    let client = streams(&mut bench.pair.a, second);
    client.connect(Some(at(1, 40)), at(9, PORT), TIMEOUT);
    client.listen(at(1, 41), 4);
    client.bind(at(1, 42));
    let other = bench.pair.b.clients.first_mut::<Streams>();
    let waits = other.connect(None, at(1, 41), TIMEOUT);
    let status = |bench: &Bench| bench.pair.b.clients.first::<Streams>().status(waits).unwrap();
    bench.run_until(|bench| status(bench).connected);
    let successor = bench.replace();
    bench.run_until(|bench| status(bench).closed);
    assert_eq!(status(&bench).error, Some(HostError::Reset));
    for port in [40, 41, 42] {
        bench.assert_ended(successor, at(1, port));
    }
    let refused = bench.pair.b.clients.first_mut::<Streams>().connect(None, at(1, 41), TIMEOUT);
    let error =
        |bench: &Bench| bench.pair.b.clients.first::<Streams>().status(refused).unwrap().error;
    bench.run_until(|bench| error(bench).is_some());
    assert_eq!(error(&bench), Some(HostError::Refused), "no listener is left");
}

// Each client receives its own events, and the first is unaffected by the second.
#[test]
fn clients_are_isolated() {
    let mut bench = Bench::new();
    let first = bench.pair.a.clients.first_mut::<Streams>();
    let own = first.connect(None, at(2, PORT), TIMEOUT);
    let listener = bench.listener;
    let accept = |pair: &mut Nodes| pair.b.clients.first_mut::<Streams>().accept(listener);
    let far = bench.pair.run(LIMIT, accept).unwrap();
    assert_eq!(bench.pair.a.clients.first::<Streams>().status(bench.near), None);
    assert_eq!(streams(&mut bench.pair.a, bench.second).status(own), None);
    let local = bench.near().local.unwrap();
    for round in 0_u8..4 {
        let data = Bytes::from(vec![round; 100]);
        bench.pair.send(1, far, data.clone());
        bench.far_sends();
        if round == 2 {
            bench.replace();
        }
        let mut upcalls = Vec::new();
        bench.run_until(|bench| {
            upcalls.extend(bench.pair.receive(0, own).unwrap_or_default());
            upcalls.len() == data.len()
        });
        assert_eq!(upcalls, data);
    }
    bench.run_until(|bench| bench.far().closed);
    assert_eq!(bench.far().error, Some(HostError::Reset));
    assert_ne!(bench.pair.a.clients.first::<Streams>().status(own).unwrap().local, Some(local));
}
