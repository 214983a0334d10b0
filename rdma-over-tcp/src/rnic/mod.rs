//! The RDMA adapter: RFC 5040 and RFC 5041 with the objects of the RDMA Protocol Verbs draft
//! (draft-hilland-rddp-verbs), in words of its own that every interface maps.
//!
//! The modules, from the bottom up; each uses only those before it:
//!
//! | module | contents |
//! |---|---|
//! | `config`, `status`, `transport` | limits and policies; outcomes; the contract with the byte stream below MPA |
//! | `objects/` | identifiers and lifetimes of all objects |
//! | `memory/` | registered buffers, regions, windows, logical address mappings, the check of every access |
//! | `connection/` | connectors, listeners, endpoints, and causes of failures |
//! | `stats` | counters and snapshots |
//! | `queues/` | work requests, queue pairs, send, receive and completion queues |
//! | `tables/` | all objects of an adapter, and the rules that connect them |
//! | `stream/` | one connection: MPA start-up, transmit, receive, teardown |
//! | `rnic` | [`Rnic`]: objects, streams, timers, and the calls of the transport |
//! | `calls/` | the calls of consumers |
//!
//! [`Rnic`] is a passive state machine. Calls of the transport and of consumers go in; lists of FPDUs, commands to the
//! transport and callbacks come out. It has no thread and no clock; STags are drawn from a seeded generator.
//!
//! ```text
//! post -> send queue -> (room in the transport) -> FPDUs in lists -> transport
//! transport -> FPDUs -> registered memory, completion queue -> callback, outside of any lock
//! ```
//!
//! Two interfaces are all that it knows: the trait `transport::LlpStream` below MPA, and above it the methods of
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

pub(crate) mod calls;
mod config;
mod connection;
pub(crate) mod memory;
pub(crate) mod objects;
pub(crate) mod queues;
#[expect(clippy::module_inception, reason = "the file of `Rnic`")]
mod rnic;
mod stats;
mod status;
mod stream;
mod tables;
pub(crate) mod transport;

pub use offload_engine::runtime::Urgency;

pub use self::{
    calls::post::FastRegister,
    config::{
        CallbackThread, Capabilities, Config, Deferral, FpduSize, KEEP_ALIVE_IDLE,
        KEEP_ALIVE_INTERVAL, KEEP_ALIVE_PROBES, Limits, ListenerConfig,
    },
    connection::{
        cause::ConnectCause,
        connector::{ConnectionData, ConnectorState, DisconnectEvent},
        listener::ConnectEvent,
        read_limit::ReadLimit,
    },
    memory::{
        buffer::{PAGE_SIZE, RegisteredBuffer},
        fast::FastMemory,
        lam::LogicalMemory,
        region::FastRegisterLimits,
        registration::Access,
        window::{Bind, Revocable, WindowType},
    },
    objects::{
        id::{
            ConnectorId, CqId, Id, Key, LamId, ListenerId, PdId, QpId, RegionId, SharedEndpointId,
            SrqId, StreamId, WindowId,
        },
        lifetime::{Callback, Close, CloseCompletion, RequestCompletion},
    },
    queues::{
        cq::{Arm, Arrival, Completion, CompletionQueue, CqModeration, Notification, WcOpcode},
        qp::{LatePosts, QpConfig, QpEvent, QpLimits, QpNotification, QpState, Unpolled},
        srq::{SrqAttributes, SrqConfig, SrqEvent, SrqNotification},
        wr::{Data, Operation, Remote, Sge, WrFlags},
    },
    rnic::Rnic,
    stats::{ConnectionEntry, Counters, History, QpStats},
    status::{ConnectError, CqFailure, VerbError, WcStatus},
    stream::COPY_ASIDE_MAX,
};
