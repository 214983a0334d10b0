//! The chimney's contract: the calls between host, target and upper layer. They carry
//! [offload state](crate::state).
//!
//! * [`tree`]: the trees of objects that state operations carry.
//! * [`provider`]: state operations and their completions, between host and target.
//! * [`objects`]: the target's tables of neighbor and path objects.
//! * [`statistics`]: what the target counts.
//! * [`client`]: what the target calls in the layer above (send and receive completion, indication,
//!   events), and what that layer may do from inside such a call.

pub mod client;
pub mod objects;
pub mod provider;
pub mod statistics;
pub mod tree;
