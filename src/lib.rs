//! The command `flue`: a software RDMA adapter with a TCP chimney, in user space, on a TAP.
//!
//! This crate is thin: it parses, prints, and calls other crates. [`cli`] selects the command; [`options`] are the
//! common options of commands that run a node, and [`node`] closes one. `flue-report` provides output and failures,
//! `flue-network` links, bridges and namespaces, `flue-adapter` adapters and control sockets, and `flue-bench` the
//! command `flue bench`.
#![deny(unsafe_code)]

pub mod adapter;
pub mod cli;
pub mod cmd;
pub mod host;
pub mod node;
pub mod options;
pub mod sandbox;
pub mod station;
pub mod version;
pub mod waker;

pub use flue_adapter::control;
pub use flue_network::{self as net, environment, namespace};
pub use flue_report::{self as report, failure, table, units};

/// Examples of the front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Examples of the Rust guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/libraries/rust.md")]
struct RustGuide;
