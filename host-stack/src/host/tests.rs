//! Two hosts that exchange frames; the bench acts as their engines.

mod bench;
mod closed;
mod closed_window;
mod conformance;
mod datagrams;
mod ecn;
mod half_open;
mod in_host;
mod listing;
mod offloading;
mod opening;
mod out_of_order;
mod ports;
mod retrieving;
mod sharding;
mod upkeep;
mod uploading;
