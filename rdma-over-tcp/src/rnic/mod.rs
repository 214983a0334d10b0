//! The RDMA adapter: RFC 5040 and RFC 5041 with the objects of the RDMA Protocol Verbs draft
//! (draft-hilland-rddp-verbs). Its terms are neutral; every interface maps them.
//!
//! Modules, bottom up. Each module uses only the modules above it in this table:
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
//! | `datagrams` | the calls of the transport for queue pairs without a connection |
//! | `calls/` | the calls of consumers |
//!
//! [`Rnic`] is a passive state machine. Its inputs are calls of the transport and of consumers; its outputs are lists
//! of FPDUs, commands to the transport, and callbacks. It has no thread and no clock. STags are drawn from a seeded
//! generator.
//!
//! ```text
//! post -> send queue -> (room in the transport) -> FPDUs in lists -> transport
//! transport -> FPDUs -> registered memory, completion queue -> callback, outside of any lock
//! ```
//!
//! The core depends on two interfaces only. Below MPA it is the trait `transport::LlpStream`; above it are the methods
//! of [`Rnic`] that an interface such as [`ndk`](crate::ndk) maps. The limits are defined by [`Limits`],
//! [`Capabilities`] and [`Config`].
//!
//! # For interfaces
//!
//! [`adapter`](crate::adapter) opens an [`Adapter`](crate::adapter::Adapter). Each call of [`Rnic`] is made within
//! [`Adapter::with`](crate::adapter::Adapter::with), each post within [`Adapter::post`](crate::adapter::Adapter::post).
//! Objects have identifiers ([`PdId`], [`CqId`], ...), which any number of handles may share. A stale identifier is
//! refused. Objects exist until they are closed.
//!
//! No call blocks. A call that cannot complete immediately takes a callback. The callback is called exactly once if the
//! call was started, and never if it was refused. Callbacks run one at a time and in order on the thread that drives
//! the adapter, with no lock held. They may call the adapter.

#![forbid(unsafe_code)]

pub(crate) mod calls;
mod config;
mod connection;
mod datagrams;
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
        CallbackThread, Capabilities, Config, CrcRequest, Deferral, FpduSize, KEEP_ALIVE_IDLE,
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
        cq::{Arm, Arrival, Completion, CompletionQueue, CqModeration, Notification},
        qp::{
            CompletionRetention, ErrorStatePosts, QpConfig, QpEvent, QpLimits, QpNotification,
            QpState,
        },
        rc::{QpService, RcPeer},
        srq::{SrqAttributes, SrqConfig, SrqEvent, SrqNotification},
        ud::Destination,
        wr::{Data, Operation, Remote, Sge, WcOpcode, WrFlags},
    },
    rnic::Rnic,
    stats::{ConnectionEntry, Counters, History, QpStats},
    status::{ConnectError, CqFailure, VerbError, WcStatus},
    stream::COPY_ASIDE_MAX,
    transport::DatagramPath,
};
