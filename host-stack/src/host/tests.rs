//! Two hosts talk; the bench plays their engines.

mod bench;
mod offloading;
mod opening;
mod staying;
