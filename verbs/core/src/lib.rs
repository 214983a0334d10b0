//! RDMA verbs and connection management as a mapping of the RDMA core ([`rdma_over_tcp::rnic`]), without C.
//!
//! `libibverbs.so.1` and `librdmacm.so.1` (the package `flue-verbs`) are the shell around it: they turn pointers and
//! structures into these objects and back. Here are the rules of the two interfaces: states of queue pairs and of
//! connection identifiers, numbers of statuses and events, lifetimes, and what is counted for which acknowledgement.
//! Queues, memory protection and the protocol are the core's.
//!
//! Nothing here is unsafe, prints, or keeps a thread of its own; the core's has one for all ([`device`]).

#![forbid(unsafe_code)]

pub mod address;
pub mod async_event;
pub mod cm;
pub mod completion;
pub mod cq;
pub mod device;
pub mod errno;
pub mod event_queue;
pub mod fatal;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod process;
pub mod qp;
pub mod rsocket;
pub mod srq;
mod sync;
pub mod usage;
