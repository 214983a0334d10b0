//! Two nodes connected in memory, on virtual time, polled alternately on one thread.
//!
//! Unlike in `host_stack::simulation::Pair`, the cores are shared with their consumers, as in a node: the
//! frames of a call are sent before it returns.

use std::{
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use host_stack::{host::HostConfig, node::Core, socket::SocketPort};
use offload_engine::{
    engine::{Callback, EngineConfig, NodeClient},
    link::{Link, MemoryLinkOptions, memory_link_pair},
    state::MacAddress,
    time::Instant,
};
use rdma_over_tcp::{
    ndk::{AdapterCore, Driver},
    rnic::Rnic,
};

use crate::wire::{Calls, CountedLink};

/// Virtual time limit of a run.
const LIMIT: Instant = Instant::from_millis(600_000);

/// Address of node 0 or 1, with a port.
pub fn address(index: usize, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 9, 0, 1 + index as u8), port).into()
}

/// Configuration of engine and host stack of node 0 or 1.
pub fn configuration(index: usize) -> (EngineConfig, HostConfig) {
    let mac = MacAddress([2, 0, 0, 0, 9, 1 + index as u8]);
    let own: IpAddr = address(index, 0).ip();
    let host = HostConfig { seed: 1 + index as u64, ..HostConfig::new(mac, own) };
    (EngineConfig::new(mac), host)
}

/// Node without clock or thread.
#[derive(Debug)]
pub struct Station<C> {
    core: Mutex<Core>,
    now_ns: AtomicU64,
    calls: Arc<Calls>,
    client: PhantomData<fn() -> C>,
}

impl<C: NodeClient> Station<C> {
    fn new(index: usize, link: impl Link + 'static, client: impl FnOnce(SocketPort) -> C) -> Self {
        let (engine, host) = configuration(index);
        let (link, calls) = CountedLink::new(link, true);
        let core =
            Core::new(Box::new(link), engine, host, client).expect("a descriptor is available");
        Self { core: Mutex::new(core), now_ns: AtomicU64::new(0), calls, client: PhantomData }
    }

    /// Engine, clients and host stack.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Current virtual time.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }

    /// Reads the state of the client.
    pub fn with_client<R>(&self, look: impl FnOnce(&C) -> R) -> R {
        look(self.core().clients.first())
    }

    /// Calls the client, and sends the resulting frames.
    pub fn with<R>(&self, work: impl FnOnce(&mut C, Instant) -> R) -> R {
        let core = &mut *self.core();
        let now = self.now();
        let result = work(core.clients.first_mut(), now);
        core.clients.poll(now, core.engine.connections());
        core.engine.flush(now, &mut core.clients);
        result
    }
}

impl Driver for Station<AdapterCore> {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.with(|client, now| work(client.rnic(), now));
    }
}

/// Two stations and their clock.
#[derive(Debug)]
pub struct Stations<C> {
    /// Nodes 0 and 1.
    pub nodes: [Arc<Station<C>>; 2],
    now: Instant,
    idle_rounds: u32,
}

impl<C: NodeClient> Stations<C> {
    /// Creates two nodes at time zero, on a link with Ethernet's MTU and the offloads of a virtio-net header.
    pub fn new(mut client: impl FnMut(SocketPort) -> C) -> Self {
        let (one, other) = memory_link_pair(MemoryLinkOptions::default());
        let nodes = [
            Arc::new(Station::new(0, one, &mut client)),
            Arc::new(Station::new(1, other, &mut client)),
        ];
        Self { nodes, now: Instant::ZERO, idle_rounds: 0 }
    }

    /// Frames sent so far by both nodes.
    pub fn frames(&self) -> u64 {
        self.nodes.iter().map(|node| node.calls.counts().transmits).sum()
    }

    /// Runs one iteration of both nodes and the due callbacks. If both are idle, advances the time.
    ///
    /// # Panics
    /// If no event is pending, or the limit of virtual time is reached.
    pub fn step(&mut self) {
        let mut is_busy = false;
        for node in &self.nodes {
            let mut core = node.core();
            is_busy |= core.poll(self.now).expect("in-memory link");
            let mut callbacks: Vec<Callback> = Vec::new();
            core.clients.take_callbacks(&mut callbacks);
            drop(core);
            is_busy |= !callbacks.is_empty();
            callbacks.into_iter().for_each(|callback| callback());
        }
        self.idle_rounds = if is_busy { 0 } else { self.idle_rounds + 1 };
        // The other node must still receive a frame sent in this round.
        if self.idle_rounds >= 2 {
            let due = |node: &Arc<Station<C>>| node.core().poll_at(self.now);
            let next = self.nodes.iter().filter_map(due).min().expect("something is due");
            self.now = self.now.max(next);
            assert!(self.now <= LIMIT, "stuck until {:?}", self.now);
            self.idle_rounds = 0;
            for node in &self.nodes {
                node.now_ns.store(self.now.as_nanos(), Ordering::Relaxed);
            }
        }
    }
}
