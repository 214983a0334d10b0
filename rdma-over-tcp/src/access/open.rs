//! An adapter on a node: consumers' calls take the node's lock, and leave by the wire before it is let go.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use std::{io, sync::OnceLock};

use host_stack::node::{Node, NodeConfig};
use offload_engine::{
    engine::{NodeClient, TooManyClients, doorbell::Doorbell},
    link::Link,
    time::Instant,
};

use super::{Access, CoreAccess};
use crate::{
    rnic::{Config, Rnic, Urgency},
    transport::{NodeRnic, Sockets, SocketsConfig},
};

/// Starts a node on `link` whose first client is an adapter, and opens that. The node runs until its last handle is
/// dropped; the access holds one.
///
/// # Errors
/// As [`Node::start`].
pub fn open(
    link: Box<dyn Link>,
    node: NodeConfig,
    adapter: Config,
) -> io::Result<(Node<NodeRnic>, Access)> {
    let mut opened = open_queues(Vec::from([link]), node, adapter)?;
    Ok(opened.pop().expect("one link makes one adapter"))
}

/// Starts a node on the queues of one device, and opens an adapter for each. An object belongs to the adapter that made
/// it, and a connection of its queue pairs to that adapter's queue; objects of two adapters are not used together.
/// Memory that several are to reach is registered with each. Listeners of several adapters may have one address, and
/// what is accepted is spread over them.
///
/// # Errors
/// As [`Node::start_queues`].
pub fn open_queues(
    links: Vec<Box<dyn Link>>,
    node: NodeConfig,
    adapter: Config,
) -> io::Result<Vec<(Node<NodeRnic>, Access)>> {
    let mut bells = Vec::<Arc<OnceLock<Arc<Doorbell>>>>::new();
    let nodes = Node::start_queues(links, node, |port| {
        let bell = Arc::<OnceLock<Arc<Doorbell>>>::default();
        bells.push(bell.clone());
        let wake = move || {
            if let Some(bell) = bell.get() {
                bell.ring();
            }
        };
        // Each draws tokens of its own.
        let seed = adapter.seed.wrapping_add(bells.len() as u128 - 1);
        NodeRnic::new(Config { seed, ..adapter.clone() }, port, Box::new(wake))
    })?;
    let open = |(node, bell): (Node<NodeRnic>, Arc<OnceLock<_>>)| {
        // Nobody has set it before: it was made above.
        let _ = bell.set(node.doorbell().clone());
        (node.clone(), Access::new(Arc::new(NodeAccess(node))))
    };
    Ok(nodes.into_iter().zip(bells).map(open).collect())
}

/// Opens an adapter on a node that runs, beside its other clients, on the shard of this handle. The adapter leaves the
/// node when its last handle, and the last of the node that is returned, are dropped.
///
/// # Errors
/// As [`Node::register`].
pub fn open_on<C: NodeClient>(
    node: &Node<C>,
    adapter: Config,
) -> Result<(Node<NodeRnic>, Access), TooManyClients> {
    let bell = node.doorbell().clone();
    let node = node.register(|port| NodeRnic::new(adapter, port, Box::new(move || bell.ring())))?;
    Ok((node.clone(), Access::new(Arc::new(NodeAccess(node)))))
}

/// Opens an adapter on the kernel's TCP sockets: it has the addresses and the ports of this machine. It needs neither
/// a TAP nor privileges.
///
/// # Errors
/// No descriptor or thread is left, or (InvalidInput) keep-alive is beyond its limits.
pub fn open_sockets(config: SocketsConfig, adapter: Config) -> io::Result<(Sockets, Access)> {
    let sockets = Sockets::start(config, adapter)?;
    Ok((sockets.clone(), Access::new(Arc::new(SocketsAccess(sockets)))))
}

struct SocketsAccess(Sockets);

impl CoreAccess for SocketsAccess {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.0.with(work);
    }

    fn enter_to_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.0.with_lazily(work);
    }

    fn progress(&self) -> bool {
        self.0.poll()
    }

    fn expect_sleep(&self) {
        self.0.expect_sleep();
    }
}

struct NodeAccess(Node<NodeRnic>);

impl CoreAccess for NodeAccess {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.0.with(|core, _, now| work(core.rnic(), now));
    }

    fn enter_to_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.0.with_lazily(|core| work(core.rnic()).into());
    }

    fn progress(&self) -> bool {
        self.0.progress_once()
    }
}
