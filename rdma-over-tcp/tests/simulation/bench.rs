//! Two nodes with adapters on virtual time.
//!
//! The pair owns the engines and polls the adapters with them; consumers reach the same adapters
//! through a lock. Callbacks run between two rounds, when nobody holds it.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use host_stack::{
    host::HostConfig,
    node::Core,
    simulation::{Pair, Stall, has_no_connection, impaired_wire, patient_engine},
};
use offload_engine::{
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Callback, Connections, NodeClient},
    link::Link,
    nbl::{NblChain, NetBufferList, ReceiveChain},
    state::MacAddress,
    time::Instant,
};
use rdma_over_tcp::{
    ndk::{Adapter, AdapterConfig, AdapterCore, CoreAccess},
    rnic::Rnic,
};

use crate::{moves::Moves, plan::Plan, stream::ByteStream};

/// Virtual time one seed may take. With a lost FIN, and the peer's TIME_WAIT behind it, minutes pass.
const LIMIT: Instant = Instant::from_millis(1_800_000);

/// An adapter shared between the engine that polls it and its consumers.
struct Shared {
    core: Mutex<AdapterCore>,
    now: Mutex<Instant>,
    /// A consumer has called since the last poll.
    called: AtomicBool,
}

impl Shared {
    fn core(&self) -> MutexGuard<'_, AdapterCore> {
        self.core.lock().unwrap()
    }
}

impl CoreAccess for Shared {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.called.store(true, Ordering::Relaxed);
        let now = *self.now.lock().unwrap();
        work(self.core().rnic(), now);
    }
}

/// The adapter as its engine sees it.
#[derive(Clone)]
pub(crate) struct Client(Arc<Shared>);

impl Client {
    fn new(core: AdapterCore) -> Self {
        Self(Arc::new(Shared {
            core: Mutex::new(core),
            now: Mutex::new(Instant::ZERO),
            called: AtomicBool::new(false),
        }))
    }

    fn adapter(&self) -> Adapter {
        Adapter::new(self.0.clone())
    }
}

impl OffloadClient for Client {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        self.0.core().offloaded(io);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], push: bool) -> usize {
        self.0.core().receive(io, data, push)
    }

    fn receive_complete(&mut self, io: &mut ConnectionIo<'_>, chain: ReceiveChain) {
        self.0.core().receive_complete(io, chain);
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        self.0.core().send_complete(io, chain);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        self.0.core().send_room(io);
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        self.0.core().disconnect_complete(io, nbl);
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        self.0.core().event(io, event);
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        self.0.core().uploaded(handle);
    }
}

impl NodeClient for Client {
    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        *self.0.now.lock().unwrap() = now;
        let called = self.0.called.swap(false, Ordering::Relaxed);
        self.0.core().poll(now, connections) | called
    }

    fn poll_at(&self) -> Option<Instant> {
        self.0.core().poll_at()
    }

    fn has_input(&self) -> bool {
        self.0.called.load(Ordering::Relaxed) || self.0.core().has_input()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        self.0.core().take_callbacks(callbacks);
    }
}

fn node(plan: &Plan, index: usize, link: impl Link + 'static, seed: u64) -> io::Result<Core> {
    let mac = MacAddress([2, 0, 0, 0, 0, 1 + index as u8]);
    let mut engine = patient_engine(mac);
    engine.tcp.push = plan.push;
    let host = HostConfig {
        mtu: plan.link.mtu,
        policy: plan.policies[index],
        receive_buffer: plan.receive_buffer,
        seed,
        ..HostConfig::new(mac, plan.addresses[index])
    };
    let config: AdapterConfig = plan.adapters[index].clone();
    Core::new(Box::new(link), engine, host, |port| {
        Client::new(AdapterCore::new(config, port, Box::new(|| {})))
    })
}

/// The bench.
pub(crate) struct Bench {
    pub(crate) pair: Pair<Core>,
    pub(crate) adapters: [Adapter; 2],
    /// What another client does meanwhile.
    pub(crate) stream: Option<ByteStream>,
    /// Who moves their connections.
    pub(crate) moves: Option<Moves>,
}

impl Bench {
    pub(crate) fn new(plan: &Plan, seeds: [u64; 2]) -> Self {
        let [left, right] = impaired_wire(plan.link, plan.impairments).unwrap();
        let a = node(plan, 0, left, seeds[0]).unwrap();
        let b = node(plan, 1, right, seeds[1]).unwrap();
        let adapters =
            [a.clients.first::<Client>().adapter(), b.clients.first::<Client>().adapter()];
        Self { pair: Pair::new(a, b), adapters, stream: None, moves: None }
    }

    /// Runs until `done`; between the rounds callbacks run, then `done` may act.
    pub(crate) fn run(&mut self, mut done: impl FnMut() -> bool) -> Result<(), Stall> {
        let Self { pair, stream, moves, .. } = self;
        pair.run(LIMIT, |pair| {
            if let Some(stream) = stream {
                stream.step(pair);
            }
            if let Some(moves) = moves {
                moves.step(pair);
            }
            let mut callbacks = Vec::new();
            pair.a.clients.take_callbacks(&mut callbacks);
            pair.b.clients.take_callbacks(&mut callbacks);
            callbacks.into_iter().for_each(|callback| callback());
            done().then_some(())
        })
    }

    /// Runs until the byte stream is through, if there is one.
    pub(crate) fn run_stream(&mut self) -> Result<(), Stall> {
        let Self { pair, stream, .. } = self;
        let Some(stream) = stream else { return Ok(()) };
        pair.run(LIMIT, |pair| {
            stream.step(pair);
            stream.is_over().then_some(())
        })
    }

    /// Runs until neither stack of either node has a connection.
    pub(crate) fn run_until_empty(&mut self) -> Result<(), Stall> {
        self.pair.run(LIMIT, |pair| {
            (has_no_connection(&mut pair.a) && has_no_connection(&mut pair.b)).then_some(())
        })
    }

    pub(crate) fn cores(&self) -> [&Core; 2] {
        [&self.pair.a, &self.pair.b]
    }
}

impl Client {
    /// Whether no object is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.core().rnic().is_idle()
    }
}
