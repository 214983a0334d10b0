//! `flue rping`: the rping of rdma-core, wire for wire, over NDK queue pairs.
//!
//! Each ping moves `-S` octets both ways: the server reads them from the client's source by RDMA
//! Read and writes them into the client's sink by RDMA Write, and the client compares.

pub mod pattern;
pub mod steps;
pub mod wire;
