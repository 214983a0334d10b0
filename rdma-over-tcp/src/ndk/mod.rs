//! NDKPI, the kernel-mode RDMA interface of Windows, as a mapping of the RDMA adapter ([`rnic`](crate::rnic)).
//!
//! Consumers hold [`Adapter`], [`Pd`], [`Cq`], [`Qp`], [`Srq`], [`Mr`], [`Mw`], [`Connector`] and [`Listener`]. Each is
//! an object id and a handle of the adapter ([`adapter`](crate::adapter)). This module defines NDKPI's names, flags,
//! statuses, results and argument checks. Queues, memory, connections and their states belong to the adapter.
//!
//! Limits are those of [`AdapterInfo`] and [`Capabilities`]; timeouts are those of [`AdapterConfig`].
//!
//! [`blocking`] and [`asynchronous`] wait for results or await them, in place of callbacks.
#![doc = ""]
#![doc = include_str!("contract.md")]

pub mod asynchronous;
pub mod blocking;
mod call;
mod flags;
mod handles;
mod info;
mod management;
mod miniport;
mod outcome;
#[cfg(feature = "node")]
mod pair;
mod result;
mod status;
#[cfg(all(test, feature = "simulation"))]
mod tests;

use alloc::{boxed::Box, sync::Arc};

#[cfg(feature = "node")]
pub use self::pair::Pair;
pub use self::{
    call::{CallError, reject_and_close},
    flags::{AdapterFlags, CqNotify, MrFlags, OpFlags, OperationType},
    handles::{
        Connector, Cq, ExtensionInterface, Guid, Invalidate, Listener, LogicalAddressMapping, Mr,
        Mw, Pd, Qp, RFC7306_INTERFACE, RFC7306_VERSION, SharedEndpoint, Srq,
    },
    info::{AdapterInfo, NDK_VERSION, NdkVersion, RdmaTechnology},
    management::{
        MISSING_COUNTERS, NdkAttributes, NdkCapabilities, NdkConnectionEntry, NdkConnections,
        NdkLocalEndpointEntry, NdkLocalEndpoints, NdkPerformanceCounters,
    },
    miniport::Miniport,
    outcome::{Disconnection, PendingCall},
    result::{DisconnectReason, NdkResult, NdkResultEx},
    status::NtStatus,
};
pub use offload_engine::{state::KeepAlive, status::NdisStatus};

#[cfg(feature = "simulation")]
pub use crate::adapter::simulation;
pub use crate::{
    adapter::{Adapter, Driver, SocketsConfig, open_sockets},
    rdmap::AtomicOperation,
    rnic::{
        COPY_ASIDE_MAX, CallbackThread, Capabilities, CloseCompletion, Config as AdapterConfig,
        ConnectCause, ConnectionEntry, Counters, CrcRequest, Data, Deferral, FpduSize, History,
        ListenerConfig, PAGE_SIZE, QpLimits, QpStats, ReadLimit, RegisteredBuffer, Sge,
    },
};
#[cfg(feature = "node")]
pub use crate::{
    adapter::{open, open_on, open_queues},
    transport::NodeRnic as AdapterCore,
};

/// Notification callback, called when an arm is satisfied. SUCCESS, or the failure of the queue (NDK-CQ-2, -9).
pub type Notification = Arc<dyn Fn(NtStatus) + Send + Sync>;

/// Completion of an asynchronous request (NDK_FN_REQUEST_COMPLETION).
pub type RequestCompletion = Box<dyn FnOnce(NtStatus) + Send>;

/// Outcome of a create (NDK-ASY-1).
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Created<T> {
    /// SUCCESS: the object. The completion was dropped and is not called.
    Done(T),
    /// PENDING: the completion is called once, with the object or the failure. It may have been called already.
    Pending,
}

/// Disconnect event, called once when an established connection ends for a reason other than the consumer's own
/// disconnect (NDK-DISC-4). The argument is a [`DisconnectReason`] (NDK-DISC-7).
pub type DisconnectEvent = Box<dyn FnOnce(u32) + Send>;
