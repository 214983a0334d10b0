//! Two adapters on a link in memory, for tests and first programs.

use alloc::boxed::Box;
use core::net::{IpAddr, Ipv4Addr};
use std::io;

use host_stack::{
    host::HostConfig,
    node::{Node, NodeConfig},
};
use offload_engine::{
    link::{MemoryLinkOptions, memory_link_pair},
    state::MacAddress,
};

use super::{Adapter, AdapterConfig, AdapterCore, open};

/// Two adapters, each on its own node with automatic progress, joined by a link in memory. It exercises all of an
/// adapter but the TAP, without privileges and in one process. The nodes exit when the last handles are dropped.
#[derive(Debug)]
pub struct Pair {
    /// The adapters.
    pub adapters: [Adapter; 2],
    /// Their nodes.
    pub nodes: [Node<AdapterCore>; 2],
}

impl Pair {
    /// Address of each adapter. All ports are free.
    pub const ADDRESSES: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

    /// Starts both nodes. Their tokens are drawn from different seeds: that of `config` and the next one.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(config: AdapterConfig) -> io::Result<Self> {
        let (near, far) = memory_link_pair(MemoryLinkOptions::default());
        let other = AdapterConfig { seed: config.seed.wrapping_add(1), ..config.clone() };
        let start = |link, host: u8, config| {
            let mac = MacAddress([2, 0, 0, 0, 0, host]);
            let host = HostConfig::new(mac, Self::ADDRESSES[usize::from(host) - 1]);
            open(Box::new(link), NodeConfig::new(host), config)
        };
        let (near, far) = (start(near, 1, config)?, start(far, 2, other)?);
        Ok(Self { adapters: [near.1, far.1], nodes: [near.0, far.0] })
    }
}
