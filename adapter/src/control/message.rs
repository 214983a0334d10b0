//! What goes over a control socket: a request, an answer, each one line of JSON.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{VERSION, record::Record};
use crate::NodeOptions;
use host_stack::socket::OffloadPolicy;
use offload_engine::tcp::CongestionAlgorithm;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub flue_control: u32,
    /// What is asked.
    #[serde(flatten)]
    pub ask: Ask,
}

/// What is asked of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Ask {
    /// Its listeners and connections, by handle. Answered by [`Answer::List`].
    List {
        /// Those after this one; `null`: from the first.
        #[serde(default)]
        after: Option<u64>,
        /// With the three classes of offload state.
        #[serde(default)]
        state: bool,
    },
    /// A hand-over. Answered by [`Answer::Moved`] when it is done or refused, or after
    /// [`MOVE_LIMIT`](super::MOVE_LIMIT).
    Move(Move),
}

/// A hand-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Move {
    /// Which connection.
    pub handle: u64,
    /// Where to.
    pub to: Destination,
    /// Ask the host stack for it; `false`: only wait.
    pub begin: bool,
    /// Refusals of the connection that are known: one more ends the wait.
    pub refusals: u32,
}

/// Where a connection is to be handed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// To the target.
    Target,
    /// To the host stack.
    Host,
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub flue_control: u32,
    /// What was asked.
    #[serde(flatten)]
    pub answer: Answer,
}

/// What a node answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Answer {
    /// Listeners and connections.
    List(Box<Page>),
    /// How the connection is now; `null`: there is none of that handle.
    Moved {
        /// Without `info` and `state`.
        connection: Option<Box<Record>>,
    },
    /// It could not be done, or was not understood.
    Failed {
        /// Layer, object, limit.
        message: String,
    },
}

impl Request {
    /// A request in this version.
    pub const fn new(ask: Ask) -> Self {
        Self { flue_control: VERSION, ask }
    }
}

impl Reply {
    /// An answer in this version.
    pub const fn new(answer: Answer) -> Self {
        Self { flue_control: VERSION, answer }
    }
}

/// Some of a node's listeners and connections.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Page {
    /// The node.
    pub node: NodeName,
    /// By handle.
    pub connections: Vec<Record>,
    /// There are more, after the last handle.
    pub more: bool,
}

/// Which node it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeName {
    /// Its TAP; `kernel` of kernel sockets.
    pub tap: String,
    /// Its process.
    pub pid: u32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Which connections it offloads by itself.
    pub offload: OffloadPolicy,
    /// Congestion control of offloaded connections.
    pub congestion_control: CongestionAlgorithm,
}

impl NodeName {
    /// That of this process's node.
    pub fn of(options: &NodeOptions) -> Self {
        Self {
            tap: options.tap.clone(),
            pid: std::process::id(),
            addresses: options.addresses.iter().map(|prefix| prefix.address()).collect(),
            offload: options.offload,
            congestion_control: options.congestion_control,
        }
    }

    /// That of this process's kernel sockets, which have no TAP.
    pub fn of_sockets() -> Self {
        Self { tap: "kernel".into(), addresses: Vec::new(), ..Self::of(&NodeOptions::default()) }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.tap, self.pid)
    }
}
