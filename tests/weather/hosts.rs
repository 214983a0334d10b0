//! The hosts: kernels with room for the path, and flue nodes that live in this process.

use std::time::Duration;

use clap::Parser;
use flue::net::Netlink;
use flue::node::{self, OpenLink};
use flue::options::NodeOptions;
use flue_test_support::netns::Namespace;
use flue_test_support::switch::Switch;
use host_stack::node::Node;
use host_stack::stream::Streams;

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

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    node: NodeOptions,
}

/// A flue node at 10.0.0.`host` on the bridge of `switch`. It ends with its value. Its streams are streams, as
/// the kernel's are: a PSH at the end of each list would make a short segment of each.
pub(crate) fn flue_node(switch: &Switch, host: u8) -> Node<Streams> {
    let bridge = Switch::BRIDGE;
    let line = format!(
        "node --tap tap{host} --addr 10.0.0.{host}/24 --bridge {bridge} --seed {host} --psh empty \
         --receive-window {SOCKET_BYTES_MAX}"
    );
    let options = Line::try_parse_from(line.split(' ')).expect("the line is right").node;
    let config = options.resolve().expect("the options fit each other");
    // The TAP belongs to the namespace it is opened in; the node's threads need not live there.
    let open = || node::open_link(&mut Netlink::open()?, &config);
    let OpenLink { link, .. } = switch.namespace().run(open).expect("a TAP can be had");
    node::start(link, &config, Streams::new).expect("a node can be started")
}
