//! Transports: what carries the byte streams below MPA.
//!
//! [`NodeRnic`] has connections of a node: while the offload target owns them (`offloaded`), and while the host stack
//! does (`host`). Connections of another kind get a module beside these.

mod host;
mod node;
mod offloaded;

pub use self::node::NodeRnic;
