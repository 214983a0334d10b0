//! Transports: what carries the byte streams below MPA.
//!
//! [`NodeRnic`] has connections of a node, which the offload target owns.

pub(crate) mod offloaded;

pub use self::offloaded::NodeRnic;
