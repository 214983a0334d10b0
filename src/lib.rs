//! The command `flue`: a software RDMA adapter with a TCP chimney, in user space, on a TAP.
//!
//! This crate is thin: it parses, prints, and calls the three crates below it. [`cli`] finds the
//! command; [`options`] are what all commands that run a node have in common; [`net`] and
//! [`namespace`] prepare the machine (links, bridges, namespaces) without any other program;
//! [`failure`] says how a run ends, [`report`], [`table`] and [`units`] how it is told.
#![deny(unsafe_code)]

pub mod cli;
pub mod cmd;
pub mod control;
pub mod environment;
pub mod failure;
pub mod frame_log;
pub mod namespace;
pub mod net;
pub mod node;
pub mod options;
pub mod report;
pub mod table;
pub mod units;
pub mod waker;
