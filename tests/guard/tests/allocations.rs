//! What a message costs once everything is warm: allocations, locks, calls of the link.

use flue_guard::{
    counting::{self, CountingAllocator, Usage},
    rdma::{self, Operation, Traffic},
    stream::Pump,
    virtual_time::{Stations, address},
};
use rdma_over_tcp::ndk::{Adapter, AdapterConfig, AdapterCore};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PORT: u16 = 7000;
const OPERATIONS: [Operation; 3] = [Operation::Write, Operation::Send, Operation::Read];
/// Bytes of a message, messages before the count, messages that count.
const SIZES: [(usize, u64, u64); 3] =
    [(64, 20_000, 4_000), (64 * 1024, 1_000, 500), (1024 * 1024, 200, 100)];

fn rdma_in_memory(operation: Operation, bytes: usize, warm_up: u64, messages: u64) -> Usage {
    let mut stations = Stations::new(|port| {
        AdapterCore::new(AdapterConfig::default(), port, Box::new(|| {}))
    });
    let nodes = stations.nodes.clone();
    let adapters = [0, 1].map(|index| Adapter::new(nodes[index].clone()));
    let mut step = || stations.step();
    let ends = rdma::connect([&adapters[0], &adapters[1]], address(1, PORT), bytes, &mut step);
    let mut traffic = Traffic::new(ends.unwrap(), operation, bytes);
    traffic.run(warm_up, &mut step);
    if counting::wants_sites() {
        let ((), sites) = counting::record_sites(|| traffic.run(messages, &mut step));
        for (stack, site) in sites {
            println!(
                "SITE {operation:?} {bytes} B: {:.3} allocations a message, {} bytes each\n{stack}",
                site.count as f64 / messages as f64,
                site.bytes / site.count
            );
        }
    }
    let calls = [0, 1].map(|index| nodes[index].calls().counts());
    let before = Usage::now();
    traffic.run(messages, &mut step);
    let used = Usage::now().since(before);
    let after = [0, 1].map(|index| nodes[index].calls().counts());
    let per = |count: u64| count as f64 / messages as f64;
    println!(
        "memory {operation:?} {bytes:>8} B: {:.3} allocations, {:.1} bytes, {:.3} locks, tx {:.3} {:.3}, rx {:.3} {:.3}",
        per(used.allocations.count),
        per(used.allocations.bytes),
        per(used.locks),
        per(after[0].transmits - calls[0].transmits),
        per(after[1].transmits - calls[1].transmits),
        per(after[0].frames - calls[0].frames),
        per(after[1].frames - calls[1].frames),
    );
    used
}

#[test]
fn rdma_in_memory_allocates_nothing() {
    for operation in OPERATIONS {
        for (bytes, warm_up, messages) in SIZES {
            rdma_in_memory(operation, bytes, warm_up, messages);
        }
    }
}

#[test]
fn streams_in_memory() {
    for list_bytes in [1448, 64 * 1024] {
        for both in [false, true] {
            let mut stations = Stations::new(|port| Pump::new(port, list_bytes));
            let nodes = stations.nodes.clone();
            nodes[1].with(|pump, _| pump.listen(address(1, PORT)));
            nodes[0].with(|pump, _| pump.connect(address(1, PORT)));
            while nodes.iter().any(|node| node.core().client.offloaded().is_none()) {
                stations.step();
            }
            nodes[0].with(|pump, _| pump.sends = true);
            nodes[1].with(|pump, _| pump.sends = both);
            let mut run = |lists: u64| {
                let end = nodes[0].core().client.lists_sent + lists;
                while nodes[0].core().client.lists_sent < end {
                    stations.step();
                }
            };
            run(2_000);
            if counting::wants_sites() {
                let ((), sites) = counting::record_sites(|| run(500));
                for (stack, site) in sites {
                    println!(
                        "SITE stream both {both} {list_bytes} B: {:.3} allocations a list, {} bytes each\n{stack}",
                        site.count as f64 / 500.,
                        site.bytes / site.count
                    );
                }
            }
            let before = Usage::now();
            run(2_000);
            let used = Usage::now().since(before);
            println!("stream both {both} {list_bytes}: {used:?}");
        }
    }
}
