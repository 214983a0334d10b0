//! Opening an NDK adapter: that of [`access`](crate::access), with NDK's handles.

use alloc::{boxed::Box, vec::Vec};
use std::io;

use host_stack::node::{Node, NodeConfig};
use offload_engine::{
    engine::{NodeClient, TooManyClients},
    link::Link,
};

use super::{AdapterConfig, AdapterCore, handles::Adapter};
use crate::{
    access::{self, Access},
    transport::{Sockets, SocketsConfig},
};

fn adapter<T>((driver, access): (T, Access)) -> (T, Adapter) {
    (driver, Adapter::from(access))
}

/// Starts a node on `link` whose first client is NDK, and opens its adapter. The node runs until its last
/// handle is dropped; the adapter holds one.
///
/// # Errors
/// As [`Node::start`].
pub fn open(
    link: Box<dyn Link>,
    node: NodeConfig,
    config: AdapterConfig,
) -> io::Result<(Node<AdapterCore>, Adapter)> {
    access::open(link, node, config).map(adapter)
}

/// Starts a node on the queues of one device, and opens an adapter for each ([`access::open_queues`]): NDK allows a
/// machine several.
///
/// # Errors
/// As [`Node::start_queues`].
pub fn open_queues(
    links: Vec<Box<dyn Link>>,
    node: NodeConfig,
    config: AdapterConfig,
) -> io::Result<Vec<(Node<AdapterCore>, Adapter)>> {
    let opened = access::open_queues(links, node, config)?;
    Ok(opened.into_iter().map(adapter).collect())
}

/// Opens an adapter on a node that runs ([`access::open_on`]).
///
/// # Errors
/// As [`Node::register`].
pub fn open_on<C: NodeClient>(
    node: &Node<C>,
    config: AdapterConfig,
) -> Result<(Node<AdapterCore>, Adapter), TooManyClients> {
    access::open_on(node, config).map(adapter)
}

/// Opens an adapter on the kernel's TCP sockets ([`access::open_sockets`]).
///
/// # Errors
/// No descriptor or thread is left, or (InvalidInput) keep-alive is beyond its limits.
pub fn open_sockets(
    sockets: SocketsConfig,
    config: AdapterConfig,
) -> io::Result<(Sockets, Adapter)> {
    access::open_sockets(sockets, config).map(adapter)
}
