//! Two nodes on virtual time: one with byte streams, used as the peer, one with an adapter.

use host_stack::{
    host::HostConfig,
    node::Core,
    simulation::{Pair, station},
    stream::Streams,
};
use offload_engine::{
    engine::{EngineConfig, NodeClient},
    link::{Link, MemoryLinkOptions, memory_link_pair},
};
use rdma_over_tcp::ndk::{AdapterConfig, AdapterCore, simulation::AdapterClient};

fn core<C: NodeClient + 'static>(
    link: impl Link + 'static,
    host: HostConfig,
    client: impl FnOnce(host_stack::socket::SocketPort) -> C,
) -> Core {
    let engine = EngineConfig::new(host.mac);
    Core::new(Box::new(link), engine, host, client).expect("a configuration that works")
}

/// Station 1 with byte streams, and station 2 with an adapter.
pub(super) fn pair() -> Pair<Core> {
    let (left, right) = memory_link_pair(MemoryLinkOptions::default());
    let adapter = |port| {
        AdapterClient::new(AdapterCore::new(AdapterConfig::default(), port, Box::new(|| {})))
    };
    Pair::new(core(left, station(1), Streams::new), core(right, station(2), adapter))
}
