//! Kernel TCP sockets as a transport.
//!
//! Theory of operation
//!
//! [`SocketRnic`] is passive: whoever has it calls its `poll`, which makes one non-blocking pass over the
//! sockets that are ready. All sockets are in one epoll set, edge-triggered; a stream that has not been read or written
//! to the end is noted in a list and has another turn. A few streams that have received lately are read
//! without asking the epoll set, which is asked in every 16th pass only: that saves a system call of a round trip.
//! Received bytes go through one buffer, which stays in the cache; the adapter checks the CRC and places from there in
//! one pass.
//!
//! What is sent is done with once the kernel has it, so the memory of a request may be used again then. Sends are
//! gathered from registered memory. With FPDUs that are to be aligned, nothing is added to a list that ends with a
//! short segment (MSG_EOR): the next one begins a segment, which is where MPA wants FPDUs to begin (RFC 5044 §5.1).
//! Full lists share writes. So posts that go on leave what fills no list to the next ones; a poll sends it.
//!
//! A socket is closed with SO_LINGER 0 until its connection ends in order: a process that is killed resets its peers.
//! Keep-alive finds peers that are gone. `docs/guide/transports.md` is the guide.

mod capture;
mod core;
mod kernel;
mod listening;
mod stream;

pub use self::{capture::CaptureOutput, core::SocketRnic, listening::ListeningSocket};
