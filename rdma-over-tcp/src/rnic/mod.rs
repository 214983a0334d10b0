//! The RDMA adapter: RFC 5040 and RFC 5041 with the objects of the RDMA Protocol Verbs draft
//! (draft-hilland-rddp-verbs), in words of its own that every interface maps.
//!
//! [`Rnic`] is a passive state machine. Calls of the transport and of consumers go in; lists of FPDUs, commands to the
//! transport and callbacks come out. It has no thread and no clock; STags are drawn from a seeded generator.
//!
//! ```text
//! post -> send queue -> (room in the transport) -> FPDUs in lists -> transport
//! transport -> FPDUs -> registered memory, completion queue -> callback, outside of any lock
//! ```
//!
//! Two interfaces are all that it knows: the trait `transport::Transport` below MPA, and above it the methods of
//! [`Rnic`] that an interface such as [`ndk`](crate::ndk) maps. Limits are those of [`Limits`], [`Capabilities`] and
//! [`Config`].
//!
//! # For interfaces
//!
//! [`adapter`](crate::adapter) opens an [`Adapter`](crate::adapter::Adapter): each call of [`Rnic`] is
//! made within [`Adapter::with`](crate::adapter::Adapter::with), each post within
//! [`Adapter::post`](crate::adapter::Adapter::post). Objects have names ([`PdId`], [`CqId`], ...), which any number of
//! handles may hold; a name of an object that is gone is refused. Objects live until they are closed.
//!
//! Nothing waits. A call that cannot be answered at once takes a callback, which is called exactly once if the call was
//! begun and never if it was refused. Callbacks are called when no lock is held, one at a time and in order, by whoever
//! drives the adapter; they may call the adapter.

#![forbid(unsafe_code)]

mod bind;
mod cause;
mod config;
pub(crate) mod connect;
mod connection;
pub(crate) mod connector;
pub(crate) mod cq;
mod create;
mod deferral;
mod device;
mod endpoint;
mod fast;
pub(crate) mod id;
mod lam;
mod later;
pub(crate) mod lifetime;
pub(crate) mod listener;
mod map;
mod memory;
mod objects;
mod pd;
pub(crate) mod post;
pub(crate) mod qp;
mod query;
mod read_limit;
mod receive_queue;
pub(crate) mod region;
mod registration;
mod send_queue;
mod sges;
mod share;
mod shared_endpoint;
mod shared_receive;
mod spans;
mod srq;
mod stats;
mod status;
mod stream;
pub(crate) mod transport;
mod window;
pub(crate) mod wr;

pub use self::{
    cause::ConnectCause,
    config::{
        CallbackThread, Capabilities, Config, Deferral, FpduSize, KEEP_ALIVE_IDLE,
        KEEP_ALIVE_INTERVAL, KEEP_ALIVE_PROBES, Limits, ListenerConfig,
    },
    connector::{ConnectionData, ConnectorState, DisconnectEvent},
    cq::{Arm, Arrival, Completion, CompletionQueue, CqModeration, Notification, WcOpcode},
    device::Rnic,
    fast::FastMemory,
    id::{
        ConnectorId, CqId, Id, Key, LamId, ListenerId, PdId, QpId, RegionId, SharedEndpointId,
        SrqId, StreamId, WindowId,
    },
    lam::LogicalMemory,
    lifetime::{Callback, Close, CloseCompletion, RequestCompletion},
    listener::ConnectEvent,
    memory::{PAGE_SIZE, RegisteredBuffer},
    post::{FastRegister, Urgency},
    qp::{LatePosts, QpConfig, QpEvent, QpLimits, QpNotification, QpState, Unpolled},
    read_limit::ReadLimit,
    region::{Access, FastRegisterLimits},
    srq::{SrqAttributes, SrqConfig, SrqEvent, SrqNotification},
    stats::{ConnectionEntry, Counters, History, QpStats},
    status::{ConnectError, CqFailure, VerbError, WcStatus},
    stream::COPY_ASIDE_MAX,
    window::{Bind, Revocable, WindowType},
    wr::{Data, Operation, Remote, Sge, WrFlags},
};
