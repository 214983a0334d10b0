//! Transports: what carries the byte streams below MPA.
//!
//! [`NodeRnic`] has connections of a node: while the offload target owns them (`offloaded`), and while the host stack
//! does (`host`); or with itself (`looped`). [`SocketRnic`] has sockets of the kernel (`sockets`).

mod host;
mod looped;
mod node;
mod offloaded;
mod sockets;

pub use self::{
    node::NodeRnic,
    sockets::{CaptureOutput, ListeningSocket, SocketRnic},
};
