//! Messages of a control socket: one request and one reply, each one line of JSON.

use std::{fmt, net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    VERSION,
    record::{AdapterCounters, Record},
};
use crate::NodeOptions;
use host_stack::socket::OffloadPolicy;
use offload_engine::tcp::CongestionAlgorithm;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub flue_control: u32,
    /// The operation.
    #[serde(flatten)]
    pub operation: Operation,
}

/// Operation of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Operation {
    /// Lists listeners and connections, ordered by handle. The reply is [`Answer::List`].
    List {
        /// Lists only those with a handle above this one; `null`: all.
        #[serde(default)]
        after: Option<u64>,
        /// True to include the three classes of offload state.
        #[serde(default)]
        state: bool,
    },
    /// Offloads or uploads a connection. The reply is [`Answer::Moved`] when that is done or refused, or after
    /// [`MOVE_LIMIT`](super::MOVE_LIMIT).
    Move(Move),
    /// Starts a capture. The reply is [`Answer::Capture`]. The request has the descriptor of a regular file for each
    /// queue (`SCM_RIGHTS`).
    StartCapture {
        /// Path of the first file, for reports.
        path: PathBuf,
    },
    /// Stops the capture. The reply is [`Answer::Capture`].
    StopCapture,
}

/// Offload or upload of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Move {
    /// Handle of the connection.
    pub handle: u64,
    /// Destination of the connection.
    pub to: Destination,
    /// True to request it from the host stack; false to wait only.
    pub begin: bool,
    /// Refusals that the client has counted so far: one more ends the wait.
    pub refusals: u32,
}

/// Destination of an offload or upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// The offload target.
    Target,
    /// The host stack.
    Host,
}

/// A reply.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub flue_control: u32,
    /// Answer to the request.
    #[serde(flatten)]
    pub answer: Answer,
}

/// Answer to a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Answer {
    /// Listeners and connections.
    List(Box<Page>),
    /// State of the connection after the move; `null` if no connection has this handle.
    Moved {
        /// The connection, without `info` and `state_tree`; `state` is null for an offloaded connection.
        connection: Option<Box<Record>>,
    },
    /// State of the capture after its start or end.
    Capture(CaptureReport),
    /// The request failed or was not valid.
    Failed {
        /// Layer, object and limit.
        message: String,
    },
}

/// Capture of a running node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureReport {
    /// File; with several queues, that of the first one.
    pub path: PathBuf,
    /// True until it was stopped, or an error ended it.
    pub is_running: bool,
    /// Frames recorded.
    pub frames: u64,
    /// Error that ended the capture; null: none.
    pub error: Option<String>,
}

impl Request {
    /// Creates a request of this version.
    pub const fn new(operation: Operation) -> Self {
        Self { flue_control: VERSION, operation }
    }
}

impl Reply {
    /// Creates a reply of this version.
    pub const fn new(answer: Answer) -> Self {
        Self { flue_control: VERSION, answer }
    }
}

/// A page of a node's listeners and connections.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Page {
    /// The node.
    pub node: NodeName,
    /// Counters of its adapter; null for a node without one.
    #[serde(default)]
    pub adapter: Option<AdapterCounters>,
    /// Capture that runs, or was ended by an error; null: none.
    #[serde(default)]
    pub capture: Option<CaptureReport>,
    /// Listeners and connections, ordered by handle.
    pub connections: Vec<Record>,
    /// True if there are more, with handles above the last one.
    pub more: bool,
}

/// Identity and policies of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeName {
    /// TAP; `kernel` for kernel sockets.
    pub tap: String,
    /// Process id.
    pub pid: u32,
    /// Number of queues, each with a file of a capture.
    pub queues: u8,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// Policy that selects the connections to offload.
    pub offload: OffloadPolicy,
    /// Congestion control of offloaded connections.
    pub congestion_control: CongestionAlgorithm,
}

impl NodeName {
    /// Returns the identity of a node of this process.
    pub fn of(options: &NodeOptions) -> Self {
        Self {
            tap: options.tap.clone(),
            pid: std::process::id(),
            queues: options.queues,
            addresses: options.addresses.iter().map(|prefix| prefix.address()).collect(),
            offload: options.offload,
            congestion_control: options.congestion_control,
        }
    }

    /// Returns the identity of this process's kernel sockets, which have no TAP.
    pub fn of_sockets() -> Self {
        Self { tap: "kernel".into(), addresses: Vec::new(), ..Self::of(&NodeOptions::default()) }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.tap, self.pid)
    }
}
