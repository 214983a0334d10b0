//! The chimney's contract: offload state, and the calls between host, target and upper layer.
//!
//! * [`state`]: neighbor, path and TCP state in its three classes (const, cached, delegated).
//! * [`tree`]: the trees of objects that state operations carry.
//! * [`provider`]: state operations and their completions, between host and target.
//! * [`objects`]: the target's tables of neighbor and path objects.
//! * [`statistics`]: what the target counts.
//! * [`client`]: what the target calls in the layer above (send and receive completion, indication,
//!   events), and what that layer may do from inside such a call.

pub mod client;
pub mod objects;
pub mod provider;
pub mod state;
pub mod statistics;
pub mod tree;
#[cfg(test)]
pub(crate) mod variables;
