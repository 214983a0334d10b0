//! Connections joined in virtual time.
//!
//! - [`table`]: what a bulk transfer gets of a bottleneck, over loss; [`fairness`]: what several get. Both are tables
//!   kept in `tests/snapshots`: what becomes faster or slower shows in review as a changed number. A row is one
//!   seeded run and the same on every machine. When a change is meant:
//!
//!       FLUE_BLESS=1 cargo test -p offload-engine --test simulation
//!
//! - [`exhaustive`]: every order of a few events on two connections, not some of them.

mod exhaustive;
mod fairness;
mod network;
mod snapshot;
mod state;
mod table;
