//! The hosts: kernels with room for the path, and flue nodes that live in this process.

use std::time::Duration;

use flue_adapter::NodeOptions;
use flue_test_support::netns::Namespace;
use flue_test_support::switch::Switch;
use host_stack::node::Node;
use host_stack::stream::Streams;
use offload_engine::tcp::PushPolicy;

/// Most that a kernel socket buffers, each way: beyond the product of all paths here.
const SOCKET_BYTES_MAX: u64 = 64 << 20;
/// How long a connection, or a listener, may take to be there.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A kernel whose sockets may grow as large as the path asks for.
pub(crate) fn make_roomy(kernel: &Namespace) {
    for direction in ["tcp_rmem", "tcp_wmem"] {
        kernel.sysctl(&format!("net/ipv4/{direction}"), &format!("4096 131072 {SOCKET_BYTES_MAX}"));
    }
    // A route remembers the slow start threshold of the connection before.
    kernel.sysctl("net/ipv4/tcp_no_metrics_save", "1");
}

/// A flue node at 10.0.0.`host` on the bridge of `switch`. It ends with its value. Its streams are streams, as
/// the kernel's are: a PSH at the end of each list would make a short segment of each.
pub(crate) fn flue_node(switch: &Switch, host: u8) -> Node<Streams> {
    let options = NodeOptions {
        tap: format!("tap{host}"),
        addresses: vec![format!("10.0.0.{host}/24").parse().expect("an address")],
        bridge: Some(Switch::BRIDGE.into()),
        seed: Some(host.into()),
        psh: PushPolicy::QueueEmpty,
        receive_window_bytes: u32::try_from(SOCKET_BYTES_MAX).expect("it fits"),
        ..NodeOptions::default()
    };
    // The TAP belongs to the namespace it is opened in; the node's threads need not live there.
    let nodes = switch.namespace().run(|| options.open(Streams::new)).expect("a TAP can be had");
    nodes.into_iter().next().expect("a node for the queue")
}
