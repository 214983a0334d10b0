//! An adapter that is a client of a node: calls take the node's lock, and what follows from them is sent before it is
//! released.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use std::{io, sync::OnceLock};

use host_stack::{
    node::{Node, NodeConfig, WaitError},
    socket::{ConnectionRow, Request},
};
use offload_engine::{
    chimney::client::OffloadHandle,
    engine::{ConnectionSnapshot, NodeClient, TooManyClients, doorbell::Doorbell},
    link::Link,
    time::{Duration, Instant},
};

use super::{
    Adapter,
    driver::{Driver, Stack},
};
use crate::{
    rnic::{Config, Rnic, Urgency},
    transport::NodeRnic,
};

/// Starts a node on `link` whose first client is an adapter, and opens that. The node runs until the last handle of
/// either is dropped.
///
/// # Errors
/// As [`Node::start`].
pub fn open(
    link: Box<dyn Link>,
    node: NodeConfig,
    adapter: Config,
) -> io::Result<(Node<NodeRnic>, Adapter)> {
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
) -> io::Result<Vec<(Node<NodeRnic>, Adapter)>> {
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
        // Set once: it was made above.
        let _ = bell.set(node.doorbell().clone());
        (node.clone(), Adapter::new(Arc::new(node)))
    };
    Ok(nodes.into_iter().zip(bells).map(open).collect())
}

/// Opens an adapter on a running node, beside its other clients, on the shard of this handle. The adapter leaves the
/// node when its last handle, and the last of the node that is returned, are dropped.
///
/// # Errors
/// As [`Node::register`].
pub fn open_on<C: NodeClient>(
    node: &Node<C>,
    adapter: Config,
) -> Result<(Node<NodeRnic>, Adapter), TooManyClients> {
    let bell = node.doorbell().clone();
    let node = node.register(|port| NodeRnic::new(adapter, port, Box::new(move || bell.ring())))?;
    Ok((node.clone(), Adapter::new(Arc::new(node))))
}

impl Driver for Node<NodeRnic> {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.with(|core, _, now| work(core.rnic(), now));
    }

    fn enter_to_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.with_lazily(|core| work(core.rnic()));
    }

    fn progress(&self) -> bool {
        self.progress_once()
    }

    fn wait_while(
        &self,
        timeout: Option<Duration>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError> {
        self.wait_until(timeout, || is_over().then_some(()))
    }

    fn wake(&self) {
        Self::wake(self);
    }

    fn linger(&self, timeout: Duration) -> Result<(), WaitError> {
        Self::linger(self, timeout)
    }

    fn list(&self, timeout: Duration) -> Result<Vec<ConnectionRow>, WaitError> {
        Self::list(self, timeout)
    }

    fn find(
        &self,
        handle: OffloadHandle,
        timeout: Duration,
    ) -> Result<Option<ConnectionRow>, WaitError> {
        Self::find(self, handle, timeout)
    }

    fn look(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        Self::look(self, handles)
    }

    fn migrate(&self, handle: OffloadHandle, to: Stack) -> io::Result<()> {
        self.request(match to {
            Stack::Target => Request::Offload { handle },
            Stack::Host => Request::Upload { handle },
        });
        Ok(())
    }

    fn segments_received(&self) -> Option<u64> {
        Some(self.with_engine(|engine, _| engine.stats().rx_segments))
    }

    fn finish(&self, timeout: Duration) {
        // The connections that are left are reset.
        let _ = Self::linger(self, timeout);
        self.with_engine(|engine, _| engine.sync());
    }

    fn abandon(&self) {
        Self::abandon(self);
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}
