//! Transport over kernel sockets: TCP, and UDP for queue pairs without a connection.
//!
//! Theory of operation
//!
//! [`SocketRnic`] is passive: its owner calls `poll`, which makes one non-blocking pass over the sockets that are
//! ready. All sockets are in one epoll set, edge-triggered. A stream that is not completely read or written is queued
//! for another turn. A few streams that have received recently are read without a query of the epoll set, which happens
//! in every 16th pass only: that saves a system call per round trip. Received bytes use one buffer, which stays in the
//! cache; the adapter checks the CRC and places from there in one pass.
//!
//! Sent data is complete when the kernel has it, so the memory of a request may then be reused. Sends are gathered from
//! registered memory. With aligned FPDUs, no data is appended to a list that ends with a short segment (MSG_EOR): the
//! next list begins a segment, as MPA prefers for FPDUs (RFC 5044 §5.1). Full lists share writes. During consecutive
//! posts a partial list is kept for the next ones; a poll sends it.
//!
//! A socket has SO_LINGER 0 until its connection is closed gracefully: a killed process resets its connections.
//! Keep-alive detects unreachable peers. User guide: `docs/guide/transports.md`.

mod capture;
mod connection;
mod core;
mod datagrams;
mod kernel;
mod listening;
mod stream;

pub use self::{connection::ConnectionDescriptors, core::SocketRnic, listening::ListeningSocket};
