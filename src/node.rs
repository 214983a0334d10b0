//! The end of a node.

use std::time::Duration;

use host_stack::node::Node;
use offload_engine::engine::NodeClient;

/// How long a command whose work is done waits for its peers' FINs. A peer that does not close in that time does not
/// need us. Longer than the shortest retransmission time-out, 200 ms: a FIN that was lost comes again.
pub const LINGER_LIMIT: Duration = Duration::from_millis(500);

/// Stays until the connections have ended, so that the peers' ends are clean too; at most for [`LINGER_LIMIT`].
pub fn linger<C: NodeClient + 'static>(node: &Node<C>) {
    if let Err(error) = node.linger(LINGER_LIMIT) {
        tracing::debug!(%error, "waiting for the peers' ends");
    }
}
