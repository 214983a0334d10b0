//! Listing of a node, by a query of its control socket, and of several nodes at the same time.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    control::{
        client,
        message::{CaptureReport, NodeName, Page},
        record::{AdapterCounters, Record},
    },
    failure::Failure,
};

/// Throughput of a connection between two listings.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Rates {
    /// Time between the listings, seconds.
    pub seconds: f64,
    /// Bytes acknowledged by the peer, bits per second.
    pub send_bps: f64,
    /// Bytes received, bits per second.
    pub receive_bps: f64,
    /// Segments retransmitted, per second.
    pub retransmits_per_second: f64,
    /// Requests started by the queue pair, per second; null without a queue pair.
    pub requests_per_second: Option<f64>,
}

/// Connection in a listing.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Record of the node.
    #[serde(flatten)]
    pub record: Record,
    /// Throughput since the previous listing; null in the first one, and if the counters restarted.
    pub rates: Option<Rates>,
    /// Inode of a kernel socket; null if not requested or not known.
    pub inode: Option<u32>,
}

impl From<Record> for Row {
    fn from(record: Record) -> Self {
        Self { record, rates: None, inode: None }
    }
}

/// Entry of one node in the document.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Listed {
    /// Control socket of the node.
    pub control: PathBuf,
    /// Time of the reply.
    #[serde(skip)]
    pub at: Instant,
    /// User id of its owner; null if the control socket was removed.
    pub uid: Option<u32>,
    /// Name of its program; null for a process of another user or in another namespace.
    pub program: Option<String>,
    /// Name of the node; null if it did not reply.
    #[serde(flatten)]
    pub node: Option<NodeName>,
    /// Counters of the node's adapter; null for a node without one.
    pub adapter: Option<AdapterCounters>,
    /// Capture that runs, or was ended by an error; null: none.
    pub capture: Option<CaptureReport>,
    /// Listeners and connections.
    pub connections: Vec<Row>,
    /// Reason for the missing reply.
    pub error: Option<String>,
}

impl Listed {
    /// Queries the node at `control` for at most `limit`. `state`: include the three classes of offload state.
    pub fn query(control: &Path, state: bool, limit: Duration) -> (Self, Result<(), Failure>) {
        let listed = client::page(control, state, limit);
        let mut empty = Self {
            control: control.to_owned(),
            at: Instant::now(),
            uid: control.metadata().ok().map(|it| it.uid()),
            program: None,
            node: None,
            adapter: None,
            capture: None,
            connections: Vec::new(),
            error: None,
        };
        match listed {
            Ok(Page { node, adapter, capture, connections, more: _ }) => {
                let program = client::program_name(node.pid);
                let connections = connections.into_iter().map(Row::from).collect();
                let node = Some(node);
                (Self { program, node, adapter, capture, connections, ..empty }, Ok(()))
            }
            Err(failure) => {
                empty.error = Some(failure.message().to_owned());
                (empty, Err(failure.into()))
            }
        }
    }
}

/// Maximum number of nodes that are queried at the same time.
const PARALLEL_MAX: usize = 16;
/// Time limit of each node for a view that is repeated.
pub const REFRESH_LIMIT: Duration = Duration::from_secs(2);

/// Queries nodes, up to 16 at the same time, each for at most [`REFRESH_LIMIT`]. Those that do not reply have an error.
pub fn query_all(controls: &[PathBuf]) -> Vec<Listed> {
    let query = |control: &PathBuf| Listed::query(control, false, REFRESH_LIMIT).0;
    let mut listed = Vec::with_capacity(controls.len());
    for controls in controls.chunks(PARALLEL_MAX) {
        thread::scope(|scope| {
            let queries: Vec<_> =
                controls.iter().map(|control| scope.spawn(move || query(control))).collect();
            // A panic ends the command.
            listed.extend(queries.into_iter().filter_map(|query| query.join().ok()));
        });
    }
    listed
}
