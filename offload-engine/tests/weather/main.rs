//! Throughput over loss: what a bulk transfer gets of a bottleneck, in virtual time, as a table that is
//! kept in the repository. What becomes faster or slower shows in review as a changed number.
//!
//! A row is one seeded run and the same on every machine. When the change is meant:
//!
//!     FLUE_BLESS=1 cargo test -p offload-engine --test weather

mod fairness;
mod network;
mod snapshot;
mod table;
