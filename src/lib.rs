//! The command `flue`: a software RDMA adapter with a TCP chimney, in user space, on a TAP.
//!
//! This crate is thin: it parses, prints, and calls the crates below it. [`cli`] finds the command; [`options`] are
//! the options of all commands that run a node, and [`node`] runs one. `flue-report` is how commands print and fail,
//! `flue-network` sets up links, bridges and namespaces, `flue-adapter` opens adapters and serves control sockets,
//! `flue-bench` is all of `flue bench`.
#![deny(unsafe_code)]

pub mod adapter;
pub mod cli;
pub mod cmd;
pub mod host;
pub mod node;
pub mod options;
pub mod waker;

pub use flue_adapter::control;
pub use flue_network::{self as net, environment, namespace};
pub use flue_report::{self as report, failure, table, units};

/// Examples of the front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Examples of the guide for Rust.
#[cfg(doctest)]
#[doc = include_str!("../docs/libraries/rust.md")]
struct RustGuide;
