//! Peer whose MPA frames are built by the test: a byte stream of another client of the first node. The adapter under
//! test belongs to the second node, with its connections in either stack.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use host_stack::{
    socket::{OffloadPolicy, Request},
    stream::{OffloadState, StreamStatus, Streams},
};
use offload_engine::{
    chimney::client::{ClientTag, OffloadHandle},
    engine::Connections,
    link::Impairments,
    time::{Duration, Instant},
};
use oorandom::Rand64;
use rdma_over_tcp::{
    mpa::{
        Encoder, Slab,
        startup::{Initiator, RtrKind, RtrSet, StartupConfig},
    },
    ndk::{AdapterConfig, Connector, Listener, ListenerConfig, NtStatus},
    rdmap::rtr_header,
};

use crate::{bench::Bench, foreign::CallbackResults, plan::Plan};

/// One-way delay of the link.
pub(crate) const DELAY: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(30);

/// Connectors of a listener, oldest first.
pub(crate) type Mailbox = Arc<Mutex<Vec<Connector>>>;

/// Creates two nodes with their connections in one stack, on a lossless link.
pub(crate) fn bench(policy: OffloadPolicy, config: AdapterConfig) -> (Bench, Plan) {
    bench_with(policy, config, Impairments { delay: DELAY, ..Impairments::default() })
}

/// Creates two nodes on a link with impairments.
pub(crate) fn bench_with(
    policy: OffloadPolicy,
    config: AdapterConfig,
    impairments: Impairments,
) -> (Bench, Plan) {
    let mut plan = Plan::with(&mut Rand64::new(7), false);
    plan.adapters = [config.clone(), config];
    plan.impairments = [impairments; 2];
    plan.policies = [policy; 2];
    (Bench::new(&plan, [1, 2]), plan)
}

/// Plain configuration: CRC, no markers, RTR by Write.
pub(crate) fn config() -> AdapterConfig {
    AdapterConfig { rtr: RtrSet::only(RtrKind::Write), ..AdapterConfig::default() }
}

/// Listens on the second node's adapter.
pub(crate) fn listen(bench: &mut Bench, at: SocketAddr) -> (Listener, Mailbox) {
    listen_with(bench, at, ListenerConfig::default())
}

/// Listens with limits.
pub(crate) fn listen_with(
    bench: &mut Bench,
    at: SocketAddr,
    config: ListenerConfig,
) -> (Listener, Mailbox) {
    let mailbox = Mailbox::default();
    let inbox = mailbox.clone();
    let event = move |connector| inbox.lock().unwrap().push(connector);
    let listener = bench.adapters[1].create_listener(event).unwrap();
    let done = CallbackResults::default();
    assert_eq!(listener.listen_with(at, config, done.callback()), NtStatus::PENDING);
    bench.run(|| done.is_done()).unwrap();
    assert_eq!(done.take(), Some(NtStatus::SUCCESS));
    (listener, mailbox)
}

/// Asserts that the connections of the second node are in the stack of its policy.
pub(crate) fn assert_place(bench: &mut Bench, policy: OffloadPolicy) {
    let (reply, rows) = crossbeam_channel::bounded(1);
    bench.pair.b.request(Request::List { only: None, reply });
    let now = bench.pair.now;
    let _ = bench.pair.run(now, |_| None::<()>);
    let rows = rows.recv().unwrap();
    let wanted = match policy {
        OffloadPolicy::Never => OffloadState::InHost,
        _ => OffloadState::Offloaded,
    };
    let mut connections = rows.iter().filter(|row| row.remote.is_some()).peekable();
    assert!(connections.peek().is_some());
    assert!(connections.all(|row| row.offload == wanted), "{policy:?}: {rows:?}");
}

/// Encodes an FPDU with a CRC.
pub(crate) fn fpdu(header: &[u8], payload: &'static [u8]) -> Vec<u8> {
    let payload = [bytes::Bytes::from_static(payload)];
    let mut fpdu: Vec<bytes::Bytes> = Vec::new();
    Encoder::new(true, false).encode(header, &payload, &mut Slab::new(), &mut fpdu);
    fpdu.concat()
}

/// Initiator of the peer.
pub(crate) fn initiator() -> Initiator {
    let rtr = RtrSet::only(RtrKind::Write);
    Initiator::new(StartupConfig { rtr, ..StartupConfig::default() })
}

/// Client that owns the peer's connections.
pub(crate) struct Peer(ClientTag);

impl Peer {
    pub(crate) fn new(bench: &mut Bench) -> Self {
        Self(bench.pair.a.register(Streams::new).unwrap())
    }

    /// Accesses the byte streams at the current time.
    pub(crate) fn now<R>(
        &self,
        bench: &mut Bench,
        work: impl FnOnce(&mut Streams, &mut Connections, Instant) -> R,
    ) -> R {
        let (now, core) = (bench.pair.now, &mut bench.pair.a);
        let streams = core.clients.get_mut(self.0).unwrap();
        work(streams, core.engine.connections(), now)
    }

    /// Runs both nodes and their callbacks until `look` has a result.
    pub(crate) fn run<R>(
        &self,
        bench: &mut Bench,
        mut look: impl FnMut(&mut Streams, &mut Connections, Instant) -> Option<R>,
    ) -> R {
        let limit = bench.pair.now + Duration::from_secs(400);
        let result = bench.pair.run(limit, |pair| {
            let mut callbacks = Vec::new();
            pair.a.clients.take_callbacks(&mut callbacks);
            pair.b.clients.take_callbacks(&mut callbacks);
            callbacks.into_iter().for_each(|callback| callback());
            let (now, core) = (pair.now, &mut pair.a);
            let streams = core.clients.get_mut(self.0).unwrap();
            look(streams, core.engine.connections(), now)
        });
        result.unwrap()
    }

    /// Runs until `is_done`, a condition set by callbacks.
    pub(crate) fn until(&self, bench: &mut Bench, mut is_done: impl FnMut() -> bool) {
        self.run(bench, |_, _, _| is_done().then_some(()));
    }

    /// Establishes a TCP connection, without MPA.
    pub(crate) fn connect(&self, bench: &mut Bench, remote: SocketAddr) -> OffloadHandle {
        let handle = self.now(bench, |streams, _, _| streams.connect(None, remote, TIMEOUT));
        let status = |streams: &mut Streams| streams.status(handle).filter(|it| it.connected);
        self.run(bench, |streams, _, _| status(streams));
        handle
    }

    /// Sends unframed octets.
    pub(crate) fn send(&self, bench: &mut Bench, handle: OffloadHandle, octets: Vec<u8>) {
        self.now(bench, |streams, connections, now| {
            streams.send(now, connections, handle, octets.into());
        });
    }

    /// Shuts down the sending direction with a FIN.
    pub(crate) fn shutdown(&self, bench: &mut Bench, handle: OffloadHandle) {
        self.now(bench, |streams, connections, now| streams.shutdown(now, connections, handle));
    }

    /// Receives until the adapter's FIN, or the end of the connection.
    pub(crate) fn receive_all(
        &self,
        bench: &mut Bench,
        handle: OffloadHandle,
    ) -> (Vec<u8>, StreamStatus) {
        let mut octets = Vec::new();
        let status = self.run(bench, |streams, connections, now| {
            while let Some(data) = streams.receive(now, connections, handle) {
                octets.extend_from_slice(&data);
            }
            streams.status(handle).filter(|status| status.peer_closed || status.closed)
        });
        (octets, status)
    }

    /// Sends a Request, makes the adapter's consumer `accept` it, receives the Reply, and sends the RTR.
    pub(crate) fn establish(
        &self,
        bench: &mut Bench,
        remote: SocketAddr,
        mailbox: &Mailbox,
        accept: impl FnOnce(&Connector),
    ) -> (OffloadHandle, Connector) {
        let handle = self.connect(bench, remote);
        self.send(bench, handle, initiator().request().to_vec());
        self.until(bench, || !mailbox.lock().unwrap().is_empty());
        let connector = mailbox.lock().unwrap().pop().unwrap();
        accept(&connector);
        let mut octets = Vec::new();
        self.run(bench, |streams, connections, now| {
            octets.extend_from_slice(&streams.receive(now, connections, handle)?);
            initiator().receive(&octets).unwrap()
        });
        self.send(bench, handle, fpdu(&rtr_header(RtrKind::Write), b""));
        (handle, connector)
    }
}
