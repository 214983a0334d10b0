//! Two nodes with adapters on virtual time. Callbacks run between two rounds.

use std::{fmt::Write as _, io};

use host_stack::{
    host::HostConfig,
    node::Core,
    simulation::{Pair, Stall, engine_with_long_time_wait, has_no_connection, impaired_wire},
};
use offload_engine::{
    link::{Impaired, Link},
    state::MacAddress,
    time::Instant,
};
use rdma_over_tcp::ndk::{Adapter, AdapterConfig, AdapterCore, simulation::AdapterClient};

use crate::{moves::Migrators, plan::Plan, stream::ByteStream};

/// Limit of the virtual time of one seed. A lost FIN, with the peer's TIME-WAIT after it, takes minutes.
const LIMIT: Instant = Instant::from_millis(1_800_000);

/// End of the link.
pub(crate) type Wire = Impaired<Box<dyn Link>>;

fn node(plan: &Plan, index: usize, link: impl Link + 'static, seed: u64) -> io::Result<Core> {
    let mac = MacAddress([2, 0, 0, 0, 0, 1 + index as u8]);
    let mut engine = engine_with_long_time_wait(mac);
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
        AdapterClient::new(AdapterCore::new(config, port, Box::new(|| {})))
    })
}

/// Environment in which a plan runs: two adapters, and their event loops.
pub(crate) trait Stage {
    fn adapters(&self) -> &[Adapter; 2];

    /// True if the adapters do not run while the consumers act.
    fn is_lockstep(&self) -> bool;

    /// Runs until `done`, which may use the adapters.
    ///
    /// # Errors
    /// `done` is still false at the time limit.
    fn run(&mut self, done: &mut dyn FnMut() -> bool) -> Result<(), String>;

    /// Runs until no connection is left, after all objects are closed.
    ///
    /// # Errors
    /// Some connections are left.
    fn run_until_empty(&mut self) -> Result<(), String>;

    /// Describes the transport of the connections, for failure reports.
    fn describe(&self) -> String;

    /// Asserts that queue pairs had `count` connections.
    fn assert_connections(&self, count: u64);
}

impl Stage for Bench {
    fn is_lockstep(&self) -> bool {
        true
    }

    fn adapters(&self) -> &[Adapter; 2] {
        &self.adapters
    }

    fn run(&mut self, done: &mut dyn FnMut() -> bool) -> Result<(), String> {
        Self::run(self, done).map_err(|stall| stall.to_string())
    }

    fn run_until_empty(&mut self) -> Result<(), String> {
        Self::run_until_empty(self).map_err(|stall| stall.to_string())?;
        // A deferred close without a callback completes after the last connection.
        let is_idle = |core: &Core| core.clients.first::<AdapterClient>().is_idle();
        let idle = |pair: &mut Pair<Core>| (is_idle(&pair.a) && is_idle(&pair.b)).then_some(());
        self.pair.run(LIMIT, idle).map_err(|stall| format!("objects are left: {stall}"))
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for (node, core) in self.cores().into_iter().enumerate() {
            let (stats, link) = (core.engine.stats(), core.engine.link_stats());
            let counters = self.adapters[node].counters();
            let _ = writeln!(text, "node {node}: {stats:?} {link:?} {counters:?}");
        }
        let _ = writeln!(text, "at {:?}", self.pair.now);
        text
    }

    fn assert_connections(&self, count: u64) {
        for core in self.cores() {
            let engine = core.engine.stats();
            assert_eq!(engine.initiate_failures, 0);
            if self.moves.is_none() {
                let streams = u64::from(self.stream.is_some());
                let expected = count + streams;
                // A connection moved to the host is offloaded again.
                let moves = self.stream.as_ref().map_or(0, |stream| stream.moved as u64);
                let initiates = expected..=expected + moves;
                assert!(initiates.contains(&engine.initiates), "{initiates:?} {engine:?}");
            }
        }
    }
}

/// Test bench on virtual time.
pub(crate) struct Bench {
    pub(crate) pair: Pair<Core>,
    pub(crate) adapters: [Adapter; 2],
    /// Byte stream of another client.
    pub(crate) stream: Option<ByteStream>,
    /// Mover of the connections.
    pub(crate) moves: Option<Migrators>,
}

impl Bench {
    pub(crate) fn new(plan: &Plan, seeds: [u64; 2]) -> Self {
        Self::through(plan, seeds, |_, link| link)
    }

    /// Creates a bench with the link of each node wrapped.
    pub(crate) fn through<L: Link + 'static>(
        plan: &Plan,
        seeds: [u64; 2],
        mut wrap: impl FnMut(usize, Wire) -> L,
    ) -> Self {
        let [left, right] = impaired_wire(plan.link, plan.impairments).unwrap();
        let a = node(plan, 0, wrap(0, left), seeds[0]).unwrap();
        let b = node(plan, 1, wrap(1, right), seeds[1]).unwrap();
        let adapters = [
            a.clients.first::<AdapterClient>().adapter(),
            b.clients.first::<AdapterClient>().adapter(),
        ];
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

    /// Runs until the byte stream is complete, if there is one.
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
