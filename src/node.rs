//! Start of a node in a sandbox, and its shutdown.

use std::time::Duration;

use flue_adapter::{
    Transport,
    control::{
        message::NodeName,
        server::{self, Control, ControlListener},
    },
};
use host_stack::{node::Node, socket::SocketPort};
use offload_engine::engine::NodeClient;

use crate::{
    failure::Failure,
    options::NodeSetup,
    report::Console,
    sandbox::{Policy, SandboxArgs},
    station::Station,
};

/// Nodes of a TAP, one per queue.
pub struct OpenNodes<C: NodeClient + 'static> {
    /// The nodes, at least one.
    pub nodes: Vec<Node<C>>,
    /// True if frames carry a virtio-net header.
    pub vnet_header: bool,
    /// The end of their connections.
    pub station: Station,
    /// Their control socket.
    pub control: Option<Control>,
}

impl<C: NodeClient + 'static> OpenNodes<C> {
    /// Opens TAP, files and control socket, enters the sandbox, and starts the nodes. `client` creates the client of
    /// each. `limit`: time limit of a connect.
    ///
    /// # Errors
    /// The options, the machine, or an operation that failed.
    pub fn open(
        setup: &NodeSetup,
        limit: Duration,
        sandbox: SandboxArgs,
        console: &mut Console<'_>,
        client: impl FnMut(SocketPort) -> C,
    ) -> Result<Self, Failure> {
        let NodeSetup { node, control } = setup;
        let links = node.open_links()?;
        let vnet_header = links.vnet_header;
        let station = Station::new(Some(node), limit);
        station.warn(console);
        let control = server::listen(NodeName::of(node), control)?;
        sandbox.enter(Policy::of(Transport::Tap, control.as_ref().map(ControlListener::path)));
        let nodes = node.start(links, client)?;
        let control = control.map(|it| it.serve(nodes[0].clone())).transpose()?;
        Ok(Self { nodes, vnet_header, station, control })
    }
}

/// Time limit for the peers' FINs after the work of a command is done. A peer that does not close in that time does not
/// depend on this node. It exceeds the minimum retransmission timeout (200 ms), so that a lost FIN is retransmitted.
pub const LINGER_LIMIT: Duration = Duration::from_millis(500);

/// Runs the node until its connections have closed, at most [`LINGER_LIMIT`], so that peers close without error.
pub fn linger<C: NodeClient + 'static>(node: &Node<C>) {
    if let Err(error) = node.linger(LINGER_LIMIT) {
        tracing::debug!(%error, "peers did not close in time");
    }
}
