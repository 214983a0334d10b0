//! NDK: queue pairs and their objects over offloaded connections.
//!
//! [`AdapterCore`] is a passive state machine that lives with the engine: upcalls of the target, notices
//! of the host stack and calls of consumers go in; net buffer lists, requests to the host stack and
//! callbacks come out. It has no thread and no clock; tokens are drawn from a seeded generator.
//! Consumers hold [`Adapter`], [`Pd`], [`Cq`], [`Qp`], [`Mr`], [`Connector`] and [`Listener`]: names of
//! objects and a way to the core ([`CoreAccess`]), which a node provides.
//!
//! ```text
//! post -> queue -> (room in TCP) -> FPDUs in net buffer lists -> TCP
//! TCP -> FPDUs -> registered memory, completion queue -> callback, outside of any lock
//! ```
//!
//! Limits are those of [`AdapterInfo`] and [`Capabilities`]; time limits those of [`AdapterConfig`].
//! Asynchronous functions return PENDING and call back exactly once; creating and registering needs no
//! waiting here and succeeds inline, which NDKPI allows (NDK-ASY-1).
//!
//! Not offered yet, and answered so: memory windows, shared receive queues (`max_srq_depth` is 0),
//! shared endpoints, logical address mappings, the privileged token, interrupt moderation.

#![deny(unsafe_code)] // but in registered memory

mod access;
mod adapter;
mod config;
mod connector;

mod cq;
mod endpoint;
mod flags;
mod handles;
mod info;
mod lifetime;
mod listener;
mod memory;
mod mr;
mod objects;
mod pd;
mod post;
mod qp;
mod queue;
mod setup;
mod slab;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use alloc::sync::Arc;

pub use self::{
    access::{open, open_on, open_queues},
    adapter::AdapterCore,
    config::{AdapterConfig, FpduSize},
    connector::{DisconnectEvent, ReadLimit},
    cq::{NdkResult, NdkResultEx},
    flags::{AdapterFlags, CqNotify, MrFlags, OpFlags, OperationType},
    handles::{Adapter, Connector, CoreAccess, Cq, Listener, Mr, Pd, Qp},
    info::{AdapterInfo, Counters, NDK_VERSION, NdkVersion, QpStats, RdmaTechnology},
    lifetime::{CloseCompletion, RequestCompletion},
    listener::BACKLOG,
    memory::{PAGE_SIZE, RegisteredBuffer},
    objects::Capabilities,
    qp::{ConnectionEntry, QpLimits},
    queue::{Data, Sge},
    status::NtStatus,
    stream::{COPY_ASIDE_MAX, History},
};

/// Called when an arm is satisfied: SUCCESS, or why the queue failed (NDK-CQ-2, -9).
pub type Notification = Arc<dyn Fn(NtStatus) + Send + Sync>;
