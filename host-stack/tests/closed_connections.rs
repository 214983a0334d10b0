//! Connections in TIME-WAIT: memory of each, and their effect on other connections.
#![cfg(not(loom))]

use std::{fs, net::SocketAddr, time};

use host_stack::{
    host::HostConfig,
    node::Core,
    simulation::Pair,
    socket::{ListenerId, OffloadPolicy},
    stream::Streams,
};
use offload_engine::{
    chimney::client::OffloadHandle,
    engine::EngineConfig,
    link::{MemoryLinkOptions, memory_link_pair},
    state::MacAddress,
    time::Duration,
};

const PORT: u16 = 9;

fn at(number: u8, port: u16) -> SocketAddr {
    ([10, 4, 0, number], port).into()
}

fn core(
    number: u8,
    policy: OffloadPolicy,
    link: impl offload_engine::link::Link + 'static,
) -> Core {
    let mac = MacAddress([2, 0, 0, 0, 4, number]);
    let mut engine = EngineConfig::new(mac);
    // No connection leaves TIME-WAIT during the run.
    engine.tcp.time_wait = Duration::from_secs(3600);
    let addresses = vec![(at(number, 0).ip(), 24)];
    let host = HostConfig { mac, addresses, policy, ..HostConfig::default() };
    Core::new(Box::new(link), engine, host, Streams::new).unwrap()
}

/// Two nodes; the first one opens and closes first.
struct Bench {
    pair: Pair<Core>,
    listener: ListenerId,
}

fn streams(core: &mut Core) -> &mut Streams {
    core.clients.first_mut::<Streams>()
}

impl Bench {
    fn new(policy: OffloadPolicy) -> Self {
        let (left, right) = memory_link_pair(MemoryLinkOptions::default());
        let pair = Pair::new(core(1, policy, left), core(2, OffloadPolicy::Always, right));
        let mut bench = Self { pair, listener: ListenerId(0) };
        bench.listener = streams(&mut bench.pair.b).listen(at(2, PORT), 8);
        let listener = bench.listener;
        bench.run(|pair| streams(&mut pair.b).listening(listener)?.ok());
        bench
    }

    fn run<R>(&mut self, condition: impl FnMut(&mut Pair<Core>) -> Option<R>) -> R {
        let limit = self.pair.now + Duration::from_secs(10);
        self.pair.run(limit, condition).unwrap()
    }

    fn connect(&mut self) -> [OffloadHandle; 2] {
        let own = streams(&mut self.pair.a).connect(None, at(2, PORT), Duration::from_secs(5));
        let listener = self.listener;
        let other = self.run(|pair| streams(&mut pair.b).accept(listener));
        self.run(|pair| streams(&mut pair.a).status(own).filter(|status| status.connected));
        [own, other]
    }

    /// Closes until both FINs are acknowledged; the first node's end is in TIME-WAIT, without a notice to its client.
    fn close(&mut self, [own, other]: [OffloadHandle; 2]) {
        let Pair { a, b, now } = &mut self.pair;
        a.clients.first_mut::<Streams>().shutdown(*now, a.engine.connections(), own);
        b.clients.first_mut::<Streams>().shutdown(*now, b.engine.connections(), other);
        self.run(|pair| {
            let ends = [streams(&mut pair.a).status(own)?, streams(&mut pair.b).status(other)?];
            ends.iter().all(|status| status.closed).then_some(())
        });
        let Pair { a, b, now } = &mut self.pair;
        a.clients.first_mut::<Streams>().forget(*now, a.engine.connections(), own);
        b.clients.first_mut::<Streams>().forget(*now, b.engine.connections(), other);
    }
}

// CH-EVT-3: an offloaded connection that both sides have closed becomes a record of the host for its TIME-WAIT.
#[test]
fn closed_connections_leave_the_target() {
    const COUNT: u64 = 50;
    let mut bench = Bench::new(OffloadPolicy::Always);
    for _ in 0..COUNT {
        let ends = bench.connect();
        bench.close(ends);
    }
    bench.run(|pair| pair.a.engine.connections().is_empty().then_some(()));
    let stats = bench.pair.a.host.as_ref().expect("a host stack").stats();
    assert_eq!((stats.time_waits, stats.uploads, stats.imports), (COUNT, 0, 0), "{stats:?}");
}

/// Resident memory of the process, in bytes.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

// Prints results; not part of the normal run.
#[test]
#[ignore = "a measurement"]
fn cost() {
    for policy in [OffloadPolicy::Always, OffloadPolicy::Never] {
        let mut bench = Bench::new(policy);
        let ends = bench.connect();
        bench.close(ends);
        let mut before = resident();
        for step in [1usize, 999, 2_000, 3_000, 4_000] {
            for _ in 0..step {
                let ends = bench.connect();
                bench.close(ends);
            }
            let held = resident().saturating_sub(before);
            let begun = time::Instant::now();
            let ends: Vec<_> = (0..20).map(|_| bench.connect()).collect();
            let took = begun.elapsed() / 20;
            before = resident();
            ends.into_iter().for_each(|ends| bench.close(ends));
            let closed = bench.pair.a.engine.connections().len();
            println!(
                "{policy:?}: {closed} with the target, {took:?} a connect, {} B each",
                held / step
            );
        }
    }
}
