//! NDKPI: the kernel-mode RDMA interface of Windows, as a mapping of the RDMA adapter ([`rnic`](crate::rnic)).
//!
//! Consumers hold [`Adapter`], [`Pd`], [`Cq`], [`Qp`], [`Srq`], [`Mr`], [`Mw`], [`Connector`] and [`Listener`]: names
//! of objects and a way to the adapter ([`Access`](crate::access::Access)). This module has NDKPI's names, flags,
//! statuses, results and argument checks; queues, memory, connections and their states are the adapter's.
//!
//! Limits are those of [`AdapterInfo`] and [`Capabilities`]; time limits those of [`AdapterConfig`].
//! Asynchronous functions return PENDING and call back exactly once; creating and registering needs no
//! waiting here and succeeds inline, which NDKPI allows (NDK-ASY-1).
//!
//! Not offered yet, and answered so: shared endpoints, logical address mappings, the privileged token, interrupt
//! moderation.

pub mod asynchronous;
pub mod blocking;
mod call;
mod flags;
mod handles;
mod info;
mod open;
mod outcome;
mod pair;
mod result;
pub mod simulation;
mod status;
#[cfg(test)]
mod tests;

use alloc::{boxed::Box, sync::Arc};

pub use self::{
    call::{CallError, turn_away},
    flags::{AdapterFlags, CqNotify, MrFlags, OpFlags, OperationType},
    handles::{Adapter, Connector, Cq, Invalidate, Listener, Mr, Mw, Pd, Qp, Srq},
    info::{AdapterInfo, NDK_VERSION, NdkVersion, RdmaTechnology},
    open::{open, open_on, open_queues, open_sockets},
    outcome::{Begun, Ended},
    pair::Pair,
    result::{DisconnectReason, NdkResult, NdkResultEx},
    status::NtStatus,
};
pub use offload_engine::state::KeepAlive;

pub use crate::{
    access::{CoreAccess, Driver},
    rdmap::AtomicOperation,
    rnic::{
        COPY_ASIDE_MAX, Capabilities, CloseCompletion, Config as AdapterConfig, ConnectCause,
        ConnectionEntry, Counters, Data, FpduSize, History, ListenerConfig, PAGE_SIZE, QpLimits,
        QpStats, ReadLimit, RegisteredBuffer, Sge,
    },
    transport::{CaptureOutput, NodeRnic as AdapterCore, Sockets, SocketsConfig},
};

/// Called when an arm is satisfied: SUCCESS, or why the queue failed (NDK-CQ-2, -9).
pub type Notification = Arc<dyn Fn(NtStatus) + Send + Sync>;

/// Ends an asynchronous request (NDK_FN_REQUEST_COMPLETION).
pub type RequestCompletion = Box<dyn FnOnce(NtStatus) + Send>;

/// Called once when an established connection ended, unless by the consumer's own disconnect (NDK-DISC-4). The argument
/// is a [`DisconnectReason`] (NDK-DISC-7).
pub type DisconnectEvent = Box<dyn FnOnce(u32) + Send>;
