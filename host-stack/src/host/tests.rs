//! Two hosts talk; the bench plays their engines.

mod bench;
mod ecn;
mod offloading;
mod opening;
mod staying;
