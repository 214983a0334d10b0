//! Transports: what carries the byte streams below MPA.
//!
//! [`offloaded`] has connections of a node that the offload target owns.

pub(crate) mod offloaded;

pub use self::offloaded::NodeRnic;
