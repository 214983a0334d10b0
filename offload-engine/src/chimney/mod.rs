//! Chimney interface: calls between host, target and upper layer. They carry [offload state](crate::state).
//!
//! * [`tree`]: object trees of state operations.
//! * [`provider`]: state operations and their completions, between host and target.
//! * [`objects`]: tables of the target's neighbor and path objects.
//! * [`statistics`]: counters of the target.
//! * [`client`]: upcalls of the target to the layer above: send and receive completion, indication, events. Also the
//!   calls permitted from an upcall.

pub mod client;
pub mod objects;
pub mod provider;
pub mod statistics;
pub mod tree;
