//! Cost of a message in the steady state: allocations, locks and system calls.
//!
//! Traffic is streams both ways, and RDMA Write, Send and Read of 64 B, 64 KiB and 1 MiB. It runs over links in
//! memory on virtual time, and over a pair of TAPs on a bridge; RDMA runs on kernel sockets too. The consumer's
//! loop allocates nothing, so the counts are those of the adapters; the work of a link in memory is excluded. A
//! row that exceeds its budget fails.
//!
//! `FLUE_ALLOCATION_SITES=1` and `-- --nocapture` print the call stacks of allocations.

mod budget;
mod sockets;
mod system_calls;
mod taps;

use flue_guard::{
    counting::{self, CountingAllocator, Usage},
    rdma::{self, Operation, Traffic},
    stream::Pump,
    virtual_time::{Stations, address},
};
use flue_test_support::needs::{Need, lacks};
use rdma_over_tcp::ndk::{Adapter, AdapterConfig, AdapterCore};

use self::{
    budget::{Cost, LinkKind, Work},
    sockets::SocketPair,
    taps::TapPair,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Listening port of the second node.
const PORT: u16 = 7000;
/// Prerequisites of the bench with TAPs.
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft")];
/// Number of counts on a real clock, of which the cheapest is used. A thread that waits long for its CPU makes
/// TCP probe, which is not the steady state.
const COUNTS: usize = 5;
/// Maximum measurements of a row on a real clock.
const MEASUREMENTS_MAX: usize = 4;

/// Message transport that reports its number of frames.
trait Transport {
    /// Transfers `messages` messages.
    fn run(&mut self, messages: u64);
    /// Frames sent so far by both nodes.
    fn frames(&self) -> u64;
}

/// Cost of a message, after `warm_up` messages.
fn measure(work: Work, transport: &mut impl Transport, counts: usize) -> Cost {
    let (warm_up, messages) = work.messages();
    transport.run(warm_up);
    if counting::is_site_recording_requested() {
        let ((), sites) = counting::record_sites(|| transport.run(messages));
        for (stack, site) in sites {
            let each = site.count as f64 / messages as f64;
            println!(
                "{work}: {each:.3} allocations, {} bytes each\n{stack}",
                site.bytes / site.count
            );
        }
    }
    let count = |_| {
        let (before, frames) = (Usage::now(), transport.frames());
        transport.run(messages);
        Cost::new(Usage::now().since(before), transport.frames() - frames, messages)
    };
    (0..counts).map(count).min_by(Cost::compare).expect("it is counted at least once")
}

/// Measures up to [`MEASUREMENTS_MAX`] times, until the cost is within the budget. Empty polls take a lock each, and a
/// peer that waits for its CPU during a whole measurement adds many.
fn measure_on_real_clock(
    table: &budget::Table,
    work: Work,
    transport: &mut impl Transport,
) -> Cost {
    let mut cost = measure(work, transport, COUNTS);
    for _ in 1..MEASUREMENTS_MAX {
        if table.excess(work, &cost).is_empty() {
            break;
        }
        cost = measure(work, transport, COUNTS);
    }
    cost
}

struct RdmaInMemory {
    stations: Stations<AdapterCore>,
    traffic: Traffic,
}

impl RdmaInMemory {
    fn new(operation: Operation, bytes: usize) -> Self {
        let mut stations =
            Stations::new(|port| AdapterCore::new(AdapterConfig::default(), port, Box::new(|| {})));
        let adapters = [0, 1].map(|index| Adapter::new(stations.nodes[index].clone()));
        let mut step = || stations.step();
        let ends = rdma::connect(
            [&adapters[0], &adapters[1]],
            address(1, PORT),
            (operation, bytes),
            &mut step,
        );
        Self { traffic: Traffic::new(ends.unwrap(), operation, bytes), stations }
    }
}

impl Transport for RdmaInMemory {
    fn run(&mut self, messages: u64) {
        self.traffic.run(messages, &mut || self.stations.step());
    }

    fn frames(&self) -> u64 {
        self.stations.frames()
    }
}

struct StreamInMemory(Stations<Pump>);

impl StreamInMemory {
    fn new(list_bytes: usize) -> Self {
        let mut stations = Stations::new(|port| Pump::new(port, list_bytes));
        stations.nodes[1].with(|pump, _| pump.listen(address(1, PORT)));
        stations.nodes[0].with(|pump, _| pump.connect(address(1, PORT)));
        let is_up = |stations: &Stations<Pump>| {
            stations.nodes.iter().all(|node| node.with_client(|pump| pump.offloaded().is_some()))
        };
        while !is_up(&stations) {
            stations.step();
        }
        for node in &stations.nodes {
            node.with(|pump, _| pump.sends = true);
        }
        Self(stations)
    }
}

impl Transport for StreamInMemory {
    /// Transfers `lists` lists in each direction.
    fn run(&mut self, lists: u64) {
        let sent = |stations: &Stations<Pump>| {
            stations.nodes.iter().map(|node| node.with_client(|pump| pump.lists_sent)).min()
        };
        let end = sent(&self.0).map(|sent| sent + lists);
        while sent(&self.0) < end {
            self.0.step();
        }
    }

    fn frames(&self) -> u64 {
        self.0.frames()
    }
}

#[test]
fn in_memory() {
    let mut table = budget::Table::new(LinkKind::Memory);
    for work in Work::all() {
        let cost = match work {
            Work::Stream { bytes } => measure(work, &mut StreamInMemory::new(bytes), 1),
            Work::Rdma { operation, bytes } => {
                measure(work, &mut RdmaInMemory::new(operation, bytes), 1)
            }
        };
        table.add(work, cost);
    }
    table.finish();
}

#[test]
fn on_kernel_sockets() {
    let mut table = budget::Table::new(LinkKind::Sockets);
    for work in Work::all() {
        if let Work::Rdma { operation, bytes } = work {
            let mut transport = SocketPair::new(operation, bytes);
            table.add(work, measure_on_real_clock(&table, work, &mut transport));
        }
    }
    table.finish();
}

#[test]
fn over_taps() {
    if lacks(NEEDS) {
        return;
    }
    let mut table = budget::Table::new(LinkKind::Taps);
    for work in Work::all() {
        let pair = TapPair::new();
        let cost = match work {
            Work::Stream { bytes } => measure_on_real_clock(&table, work, &mut pair.stream(bytes)),
            Work::Rdma { operation, bytes } => {
                measure_on_real_clock(&table, work, &mut pair.rdma(operation, bytes))
            }
        };
        table.add(work, cost);
    }
    table.finish();
}
