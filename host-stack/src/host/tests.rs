//! Two hosts talk; the bench plays their engines.

mod bench;
mod closed;
mod closed_window;
mod conformance;
mod ecn;
mod half_open;
mod kept;
mod listing;
mod offloading;
mod opening;
mod ports;
mod retrieving;
mod sharding;
mod staying;
mod upkeep;
mod uploading;
