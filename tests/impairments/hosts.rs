//! Hosts: kernels with buffers sized for the path, and flue nodes in this process.

use std::time::Duration;

use flue_adapter::NodeOptions;
use flue_test_support::netns::Namespace;
use flue_test_support::switch::Switch;
use host_stack::node::Node;
use host_stack::stream::Streams;
use offload_engine::tcp::PushPolicy;

/// Maximum buffer of a kernel socket per direction: above the bandwidth-delay product of all paths here.
const SOCKET_BYTES_MAX: u64 = 64 << 20;
/// Time limit for the setup of a connection or listener.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Raises the socket buffer limits of a kernel to those of the path.
pub(crate) fn raise_buffer_limits(kernel: &Namespace) {
    for direction in ["tcp_rmem", "tcp_wmem"] {
        kernel.sysctl(&format!("net/ipv4/{direction}"), &format!("4096 131072 {SOCKET_BYTES_MAX}"));
    }
    // Routes cache the slow-start threshold of previous connections.
    kernel.sysctl("net/ipv4/tcp_no_metrics_save", "1");
}

/// Opens a flue node at 10.0.0.`host` on the bridge of `switch`, closed when dropped. It uses byte-stream semantics,
/// as the kernel does: a PSH at the end of each list would create a short segment per list.
pub(crate) fn flue_node(switch: &Switch, host: u8) -> Node<Streams> {
    let options = NodeOptions {
        tap: format!("tap{host}"),
        addresses: vec![format!("10.0.0.{host}/24").parse().expect("an address")],
        bridge: Some(Switch::BRIDGE.into()),
        seed: Some(host.into()),
        psh: PushPolicy::QueueEmpty,
        receive_window_bytes: u32::try_from(SOCKET_BYTES_MAX)
            .expect("a buffer size within 32 bits"),
        ..NodeOptions::default()
    };
    // The TAP belongs to the namespace in which it is opened; the node's threads may run in another.
    let nodes = switch.namespace().run(|| options.open(Streams::new)).expect("a TAP for the node");
    nodes.into_iter().next().expect("one node per queue")
}
