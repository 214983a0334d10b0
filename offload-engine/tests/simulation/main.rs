//! Connections in virtual time.
//!
//! - [`table`]: goodput of a bulk transfer over a bottleneck, with loss. [`fairness`]: goodput of several flows. The
//!   results are tables in `tests/snapshots`, so a change of performance is visible in review. A row is one seeded run
//!   with the same result on every machine. To accept a change:
//!
//!       FLUE_BLESS=1 cargo test -p offload-engine --test simulation
//!
//! - [`exhaustive`]: all orders of a few events on two connections.

mod exhaustive;
mod fairness;
mod network;
mod snapshot;
mod state;
mod table;
