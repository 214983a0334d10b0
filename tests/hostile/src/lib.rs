//! Server for hostile peers: queue pairs whose consumer executes the commands of its peer's Sends, and reports the
//! outcome of each connection.
//!
//! Each connection has its own protection domain, queue pair and eight pages of memory ([`memory`]); their STags are in
//! the private data of the Reply. [`command`] defines the commands. A well-behaved connection queries the report of
//! another one ([`report`]): the reason of its end, the status of each receive, and the changed bytes.
//!
//! Limits: 4 reads in each direction, 1,024 bytes of a command or reply, the reports of the last 64 connections.
#![forbid(unsafe_code)]

pub mod command;
pub mod memory;
pub mod report;
pub mod server;
mod session;
