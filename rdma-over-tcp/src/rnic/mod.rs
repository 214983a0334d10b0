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
//! Two interfaces are all that it knows: the trait `transport::Transport` below MPA, and above it the methods
//! of [`Rnic`] that a mapping such as [`ndk`](crate::ndk) calls. Limits are those of [`Limits`], [`Capabilities`] and
//! [`Config`].
//!
//! Not offered yet: memory windows (the place is `region::Owner`), shared receive queues (a queue pair takes its
//! receives from a queue by name already).

#![forbid(unsafe_code)]

mod cause;
mod config;
pub(crate) mod connect;
mod connection;
pub(crate) mod connector;
pub(crate) mod cq;
mod create;
mod device;
mod endpoint;
pub(crate) mod id;
pub(crate) mod lifetime;
pub(crate) mod listener;
mod memory;
mod objects;
mod pd;
pub(crate) mod post;
pub(crate) mod qp;
mod read_limit;
mod receive_queue;
pub(crate) mod region;
mod send_queue;
mod sges;
mod stats;
mod status;
mod stream;
mod table;
pub(crate) mod transport;
pub(crate) mod wr;

pub use self::{
    cause::ConnectCause,
    config::{
        Capabilities, Config, FpduSize, KEEP_ALIVE_IDLE, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_PROBES,
        Limits, ListenerConfig,
    },
    cq::{Arm, Arrival, Completion, WcOpcode},
    device::Rnic,
    id::StreamId,
    lifetime::CloseCompletion,
    memory::{PAGE_SIZE, RegisteredBuffer},
    post::Urgency,
    qp::QpLimits,
    read_limit::ReadLimit,
    region::Access,
    stats::{ConnectionEntry, Counters, History, QpStats},
    status::{ConnectError, CqOverrun, VerbError, WcStatus},
    stream::COPY_ASIDE_MAX,
    wr::{Data, Remote, Sge, WrFlags},
};
