//! RDMA verbs and connection management as a mapping of the RDMA core ([`rdma_over_tcp::rnic`]), without C.
//!
//! `libibverbs.so.1` and `librdmacm.so.1` (the package `flue-verbs`) convert pointers and structures to these objects
//! and back. This crate has the rules of the two interfaces: states of queue pairs and of connection identifiers,
//! numbers of statuses and events, lifetimes and acknowledgments. Queues, memory protection and the protocol are those
//! of the core.
//!
//! The crate has no unsafe code, no output and no thread of its own; the adapter has one thread ([`device`]).

#![forbid(unsafe_code)]

pub mod address;
pub mod async_event;
pub mod attributes;
pub mod cm;
pub mod completion;
pub mod cq;
pub mod device;
pub mod errno;
pub mod event_queue;
pub mod fatal;
pub mod gid;
pub mod identity;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod process;
pub mod qp;
pub mod rendezvous;
pub mod rsocket;
pub mod srq;
mod sync;
pub mod usage;
