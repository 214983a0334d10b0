//! Shutdown of a node.

use std::time::Duration;

use host_stack::node::Node;
use offload_engine::engine::NodeClient;

/// Time limit for the peers' FINs after the work of a command is done. A peer that does not close in that time does not
/// depend on this node. It exceeds the minimum retransmission timeout (200 ms), so that a lost FIN is retransmitted.
pub const LINGER_LIMIT: Duration = Duration::from_millis(500);

/// Runs the node until its connections have closed, at most [`LINGER_LIMIT`], so that peers close without error.
pub fn linger<C: NodeClient + 'static>(node: &Node<C>) {
    if let Err(error) = node.linger(LINGER_LIMIT) {
        tracing::debug!(%error, "peers did not close in time");
    }
}
