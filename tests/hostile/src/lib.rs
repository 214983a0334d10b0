//! A server for hostile peers: queue pairs whose consumer does what its peer asks in Sends, and reports what became of
//! each connection.
//!
//! Each connection has a protection domain, a queue pair and eight pages of memory of its own ([`memory`]); their STags
//! are in the private data of the Reply. What a Send asks for is in [`command`]. A well-behaved connection asks for the
//! report of another one ([`report`]): why it ended, the status of each receive, and which bytes changed.
//!
//! Limits: 4 reads each way, 1,024 bytes of a command or an answer, the reports of the last 64 connections.
#![forbid(unsafe_code)]

pub mod command;
pub mod memory;
pub mod report;
pub mod server;
mod session;
