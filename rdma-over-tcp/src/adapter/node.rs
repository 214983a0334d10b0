//! Adapter as a client of a node. Calls take the node's lock, and the resulting frames are sent before it is released.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use std::{io, sync::OnceLock};

use host_stack::{
    node::{Node, NodeConfig, WaitError},
    socket::{ConnectionRow, HostError, Request},
};
use offload_engine::{
    chimney::client::OffloadHandle,
    engine::{ConnectionSnapshot, NodeClient, TooManyClients, doorbell::Doorbell},
    link::{CaptureOutput, CaptureStatus, Link},
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

/// Time limit of the host stack's answer to a request for a UDP port.
const OPEN_DATAGRAMS_MAX: Duration = Duration::from_secs(5);

/// Starts a node on `link` with an adapter as its first client, and opens that adapter. The node runs until the last
/// handle of either is dropped.
///
/// # Errors
/// As [`Node::start`].
pub fn open(
    link: Box<dyn Link>,
    node: NodeConfig,
    adapter: Config,
) -> io::Result<(Node<NodeRnic>, Adapter)> {
    let mut opened = open_queues(Vec::from([link]), node, adapter)?;
    Ok(opened.pop().expect("one adapter per link"))
}

/// Starts a node on the queues of one device, and opens one adapter per queue.
///
/// An object belongs to the adapter that created it, and a connection of its queue pairs to that adapter's queue.
/// Objects of two adapters cannot be used together. Memory for several adapters is registered with each. Listeners of
/// several adapters may share one address; accepted connections are distributed over them.
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
        // Each adapter draws its own tokens.
        let seed = adapter.seed.wrapping_add(bells.len() as u128 - 1);
        NodeRnic::new(Config { seed, ..adapter.clone() }, port, Box::new(wake))
    })?;
    let open = |(node, bell): (Node<NodeRnic>, Arc<OnceLock<_>>)| {
        // The cell is set once: it was created above.
        let _ = bell.set(node.doorbell().clone());
        (node.clone(), Adapter::new(Arc::new(node)))
    };
    Ok(nodes.into_iter().zip(bells).map(open).collect())
}

/// Opens an adapter on a running node that may have other clients, on the shard of this handle. The adapter is removed
/// from the node when its last handle and the last returned node handle are dropped.
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

    fn enter_for_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.with_lazily(|core| work(core.rnic()));
    }

    fn progress(&self) -> bool {
        self.progress_once()
    }

    fn expect_poll(&self) {
        Self::expect_poll(self);
    }

    fn expect_sleep(&self) {
        Self::expect_sleep(self);
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

    fn snapshots(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        Self::snapshots(self, handles)
    }

    fn migrate(&self, handle: OffloadHandle, to: Stack) -> io::Result<()> {
        self.request(match to {
            Stack::Target => Request::Offload { handle },
            Stack::Host => Request::Upload { handle },
        });
        Ok(())
    }

    fn start_capture(&self, output: CaptureOutput, interface: &str) -> io::Result<()> {
        self.with_engine(|engine, now| engine.start_capture(now, output, interface))
    }

    fn stop_capture(&self) -> Option<CaptureStatus> {
        self.with_engine(|engine, _| engine.stop_capture())
    }

    fn capture(&self) -> Option<CaptureStatus> {
        self.with_engine(|engine, _| engine.capture())
    }

    fn segments_received(&self) -> Option<u64> {
        Some(self.with_engine(|engine, _| engine.stats().rx_segments))
    }

    fn finish(&self, timeout: Duration) {
        // Completed requests of datagrams are sent, before the frames of the last connections.
        let _ = self.wait(Some(timeout), |core, _, _| core.are_datagrams_sent().then_some(()));
        // Remaining connections are reset.
        let _ = Self::linger(self, timeout);
        self.with_engine(|engine, _| engine.sync());
    }

    fn abandon(&self) {
        Self::abandon(self);
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn open_datagrams(&self, port: u16) -> io::Result<()> {
        self.with(|core, _, _| core.open_datagrams(port));
        let opened = self.wait(Some(OPEN_DATAGRAMS_MAX), |core, _, _| core.datagrams_answer(port));
        opened.map_err(io::Error::other)?.map_err(|error| match error {
            HostError::AddressInUse => io::Error::new(io::ErrorKind::AddrInUse, error),
            error => io::Error::other(error),
        })
    }
}
