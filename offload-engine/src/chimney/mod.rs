//! The chimney's contract: offload state, and the calls between host, target and upper layer.
//!
//! * [`state`]: neighbor, path and TCP state in its three classes (const, cached, delegated).
//! * [`client`]: what the target calls in the layer above (send and receive completion, indication,
//!   events), and what that layer may do from inside such a call.

pub mod client;
pub mod state;
