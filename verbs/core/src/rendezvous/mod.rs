//! Rendezvous of queue pairs that programs connect themselves, over TCP.
//!
//! A program exchanges GID, QP number and PSN with its peer, and calls `ibv_modify_qp`. The GID is an address of this
//! machine or node, and the QP number contains a port on which this process listens (`numbers`). So the peer can dial
//! the queue pair without a daemon. A connection is MPA, DDP and RDMAP over TCP; the private data of MPA names the
//! queue pair (`private_data`).
//!
//! From RTR on, the end with the larger GID and QP number dials, until it has a connection; the other end only accepts
//! (`endpoint`). A Request for a queue pair that is not yet in RTR is kept unanswered (`held`). A queue pair has one
//! connection until its next reset. Its loss is not reported: posted requests fail after the retry budget (`timing`).
//!
//! # Locks
//!
//! Changes are made within closures of [`Adapter::with`](rdma_over_tcp::adapter::Adapter::with), so the lock of the
//! adapter orders them. The locks of this module are taken in such closures, one at a time. Callbacks of the core take
//! the lock of the adapter first.

mod endpoint;
mod held;
mod life;
mod numbers;
mod private_data;
mod registry;
mod request;
mod timing;

pub use self::registry::close_inherited;
pub(crate) use self::{
    endpoint::Endpoint,
    registry::{add, allocate_number, modify, release_number, remove},
};
