//! C interface of connection management (`rdma_cma.h`).
//!
//! `id` has the identifiers, `id/channel` their event channels, `connect` their connections, `queues` their queue
//! pairs, `endpoint` identifiers that one call creates and connects. `unsupported` has multicast and enhanced
//! connection establishment.

pub(crate) mod connect;
pub(crate) mod endpoint;
pub(crate) mod id;
pub(crate) mod queues;
pub(crate) mod unsupported;
