//! Transports: what carries the byte streams below MPA.
//!
//! [`SocketRnic`] has sockets of the kernel (`sockets`). With the feature `node`, `NodeRnic` has connections of a node:
//! while the offload target owns them (`offloaded`), and while the host stack does (`host`); or with itself (`looped`).

mod buffers;
#[cfg(feature = "node")]
mod host;
#[cfg(feature = "node")]
mod looped;
#[cfg(feature = "node")]
mod node;
#[cfg(feature = "node")]
mod offloaded;
mod sockets;

#[cfg(feature = "node")]
pub use self::node::NodeRnic;
pub use self::sockets::{CaptureOutput, ListeningSocket, SocketRnic};
