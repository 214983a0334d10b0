//! Transports: carriers of the byte streams below MPA.
//!
//! [`SocketRnic`] uses kernel sockets (`sockets`). With the feature `node`, `NodeRnic` uses the connections of a node:
//! owned by the offload target (`offloaded`) or by the host stack (`host`), or local to the adapter (`looped`). Its
//! datagrams use UDP ports of the host stack (`node_datagrams`).

mod buffers;
#[cfg(feature = "node")]
mod host;
#[cfg(feature = "node")]
mod looped;
#[cfg(feature = "node")]
mod node;
#[cfg(feature = "node")]
mod node_datagrams;
#[cfg(feature = "node")]
mod offloaded;
mod sockets;

#[cfg(feature = "node")]
pub use self::node::NodeRnic;
pub use self::sockets::{ConnectionDescriptors, ListeningSocket, SocketRnic};
