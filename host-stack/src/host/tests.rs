//! Two hosts talk; the bench plays their engines.

mod bench;
mod conformance;
mod ecn;
mod listing;
mod offloading;
mod opening;
mod sharding;
mod staying;
mod upkeep;
mod uploading;
