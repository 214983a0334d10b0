//! State machine of the lab: the actions that follow from each report of a node.
//!
//! ```text
//! both: Namespace  ->  cable, then Start to both
//! both: Linked, B: Listening  ->  Connect to A
//! Moved, Connected, Passed, Verified, Closed: printed and recorded
//! both: Done  ->  the end
//! ```
//!
//! Pure: no process, no clock. [`Director::handle`] takes a report, [`Director::poll`] returns the next action.

use std::collections::VecDeque;

use host_stack::stream::OffloadState;
use serde::Serialize;

use super::{
    control::{Counters, Negotiated, NodePlan, Order, Report, Side},
    script::TransferKind,
};
use crate::{
    adapter::Transport,
    failure::Failure,
    table::{Align, Table, cell},
    units::{format_bytes, format_duration, format_rate, rate_of},
};

/// Action of the lab.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Connect the namespaces of these two processes, A first.
    Cable([u32; 2]),
    /// Send an order.
    Order(Side, Order),
    /// Print a step.
    Print(String),
    /// Show the bytes transferred, of all transfers.
    Progress(TransferKind, u64),
    /// Both nodes are done.
    Finish,
}

/// One transfer of the file, as printed by `--json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Operation {
    /// Kind of the transfer.
    pub operation: TransferKind,
    /// Bytes of the file.
    pub bytes: u64,
    /// Time until B confirmed the arrival of all bytes, nanoseconds.
    pub time_ns: u64,
    /// Bits of the file per second.
    pub rate_bps: Option<f64>,
    /// Segments sent by node A, which has the file.
    #[serde(flatten)]
    pub counters: Counters,
    /// Offload state of the connection.
    pub offload_state: OffloadState,
    /// SHA-256 on both sides; `None` until both are known.
    pub sha256: Option<String>,
}

/// Change of a connection's offload state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct StateChange {
    /// Node that reports the change.
    pub node: Side,
    /// New offload state.
    pub offload_state: OffloadState,
    /// Time since that node connected or listened, nanoseconds.
    pub at_ns: u64,
}

/// Results of one node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeResult {
    /// Process id.
    pub pid: Option<u32>,
    /// True if TAP frames carry a virtio-net header.
    pub vnet_header: Option<bool>,
    /// Parameters negotiated by its queue pair.
    pub negotiated: Option<Negotiated>,
    /// Counters over the lifetime of its connection.
    pub totals: Option<Counters>,
    #[serde(skip)]
    linked: bool,
    #[serde(skip)]
    done: bool,
}

/// Results of the lab.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LabResult {
    /// Results of A and B.
    pub nodes: [NodeResult; 2],
    /// Offload state changes, in order of their reports.
    pub moves: Vec<StateChange>,
    /// Transfers, in order.
    pub operations: Vec<Operation>,
}

impl LabResult {
    /// Returns the table printed at the end of the run.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("operation", Align::Left),
            ("time ms", Align::Right),
            ("Gbit/s", Align::Right),
            ("segments", Align::Right),
            ("retrans", Align::Right),
            ("PSH", Align::Right),
            ("offload", Align::Left),
            ("SHA-256", Align::Left),
        ]);
        for operation in &self.operations {
            let Counters { segments, retransmitted_segments, psh_segments } = operation.counters;
            let verdict = match &operation.sha256 {
                Some(digest) => format!("{} equal", digest.get(..8).unwrap_or(digest)),
                None => "not compared".into(),
            };
            table.row([
                operation.operation.to_string(),
                format!("{:.3}", operation.time_ns as f64 / 1e6),
                cell(operation.rate_bps.map(|rate| format!("{:.2}", rate / 1e9))),
                cell(segments),
                cell(retransmitted_segments),
                cell(psh_segments),
                operation.offload_state.to_string(),
                verdict,
            ]);
        }
        table.without_unknown()
    }
}

/// State machine of the lab.
#[derive(Debug)]
pub struct Director {
    plans: [NodePlan; 2],
    result: LabResult,
    listening: bool,
    started: bool,
    connecting: bool,
    actions: VecDeque<Action>,
}

impl Director {
    /// Creates the state machine for two nodes from the plans of A and B.
    pub fn new(plans: [NodePlan; 2]) -> Self {
        Self {
            plans,
            result: LabResult::default(),
            listening: false,
            started: false,
            connecting: false,
            actions: VecDeque::new(),
        }
    }

    /// Returns the results so far.
    pub const fn result(&self) -> &LabResult {
        &self.result
    }

    /// Returns true if `side` reported that it is done: its process may exit.
    pub const fn is_done(&self, side: Side) -> bool {
        self.result.nodes[side.index()].done
    }

    /// Returns the next action. The answer changes only with [`Director::handle`]; call until `None`.
    #[must_use]
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Handles a report.
    ///
    /// # Errors
    /// The node reports a failure, or the report is unexpected in this state.
    pub fn handle(&mut self, side: Side, report: Report) -> Result<(), Failure> {
        let text = match report {
            Report::Failed { failure } => return Err(failure.at(&format!("node {side}"))),
            Report::Namespace { pid } => {
                self.node(side).pid = Some(pid);
                match self.plans[0].cable {
                    Some(_) => format!("network namespace of process {pid}"),
                    None => format!("process {pid}"),
                }
            }
            Report::Linked { vnet_header } => {
                let NodePlan { setup, transport, cable, target, .. } = &self.plans[side.index()];
                let node = &setup.node;
                let text = match (transport, cable) {
                    (Transport::Tap, _) => {
                        linked_text(&node.tap, node.bridge.as_deref(), vnet_header)
                    }
                    (Transport::Kernel, Some(cable)) => {
                        format!("kernel sockets on {cable}, {}", node.addresses[0])
                    }
                    (Transport::Kernel, None) => format!("kernel sockets on loopback, {target}"),
                };
                let node = self.node(side);
                node.vnet_header = vnet_header;
                node.linked = true;
                text
            }
            Report::Listening if side == Side::A => return Err(unexpected(side, "node A listens")),
            Report::Listening => {
                self.listening = true;
                let NodePlan { target, port, .. } = &self.plans[side.index()];
                format!("listening on {target} port {port}")
            }
            Report::Moved { state, at_ns } => {
                self.result.moves.push(StateChange { node: side, offload_state: state, at_ns });
                let at = format_duration(std::time::Duration::from_nanos(at_ns));
                let since = if side == Side::A { "connect" } else { "listen" };
                format!("connection is {state} ({at} after {since})")
            }
            Report::Connected { negotiated } => {
                self.node(side).negotiated = Some(negotiated);
                negotiated.to_string()
            }
            Report::Progress { passage, bytes } => {
                // The result of the same transfer may be reported earlier, by the other node.
                let before = self.result.operations.iter().filter(|it| it.operation != passage);
                let before: u64 = before.map(|it| it.bytes).sum();
                self.actions.push_back(Action::Progress(passage, before + bytes));
                return Ok(());
            }
            Report::Passed { passage, bytes, time_ns, counters, state } => {
                // A has the file in every transfer, so only the counters of A describe its segments.
                if side == Side::B {
                    return Ok(());
                }
                self.passed(side, passage, bytes, time_ns, counters, state)?
            }
            Report::Verified { passage, sha256 } => {
                let text = match side {
                    Side::A => format!("{passage}: SHA-256 matches"),
                    Side::B => format!("{passage}: SHA-256 {sha256}"),
                };
                self.verified(side, passage, sha256)?;
                text
            }
            Report::Closed { counters } => {
                self.node(side).totals = Some(counters);
                "queue pair disconnected, connection closed".into()
            }
            Report::Done => {
                self.node(side).done = true;
                self.advance();
                return Ok(());
            }
        };
        self.actions.push_back(Action::Print(format!("{side}  {text}")));
        self.advance();
        Ok(())
    }

    const fn node(&mut self, side: Side) -> &mut NodeResult {
        &mut self.result.nodes[side.index()]
    }

    fn advance(&mut self) {
        let [a, b] = &self.result.nodes;
        if let (false, Some(a), Some(b)) = (self.started, a.pid, b.pid) {
            self.started = true;
            if self.plans[0].cable.is_some() {
                self.actions.push_back(Action::Cable([a, b]));
            }
            for side in Side::BOTH {
                let plan = Box::new(self.plans[side.index()].clone());
                self.actions.push_back(Action::Order(side, Order::Start { plan }));
            }
        }
        let [a, b] = &self.result.nodes;
        if !self.connecting && self.listening && a.linked && b.linked {
            self.connecting = true;
            let NodePlan { target, port, transport, .. } = &self.plans[0];
            let through = match transport {
                Transport::Tap => "its host stack",
                Transport::Kernel => "the kernel's TCP",
            };
            let text = format!("A  connecting to {target} port {port} through {through}");
            self.actions.push_back(Action::Print(text));
            self.actions.push_back(Action::Order(Side::A, Order::Connect));
        }
        if a.done && b.done {
            self.actions.push_back(Action::Finish);
        }
    }

    fn passed(
        &mut self,
        side: Side,
        passage: TransferKind,
        bytes: u64,
        time_ns: u64,
        counters: Counters,
        offload_state: OffloadState,
    ) -> Result<String, Failure> {
        if self.operation(passage).is_some() {
            return Err(unexpected(side, "a second result of a transfer"));
        }
        let time = std::time::Duration::from_nanos(time_ns);
        let rate_bps = rate_of(bytes, time);
        self.result.operations.push(Operation {
            operation: passage,
            bytes,
            time_ns,
            rate_bps,
            counters,
            offload_state,
            sha256: None,
        });
        let rate = rate_bps.map(|rate| format!(", {}", format_rate(rate))).unwrap_or_default();
        Ok(format!("{passage}: {} in {}{rate}", format_bytes(bytes), format_duration(time)))
    }

    fn operation(&mut self, passage: TransferKind) -> Option<&mut Operation> {
        self.result.operations.iter_mut().find(|operation| operation.operation == passage)
    }

    /// Only the report of A counts: A compares the digests and has both.
    fn verified(
        &mut self,
        side: Side,
        passage: TransferKind,
        sha256: String,
    ) -> Result<(), Failure> {
        match (side, self.operation(passage)) {
            (Side::B, _) => Ok(()),
            (Side::A, Some(operation)) => {
                operation.sha256 = Some(sha256);
                Ok(())
            }
            (Side::A, None) => Err(unexpected(side, "a digest before its transfer")),
        }
    }
}

fn unexpected(side: Side, what: &str) -> Failure {
    Failure::work(format!("node {side}: unexpected report: {what}"))
}

fn linked_text(tap: &str, bridge: Option<&str>, vnet_header: Option<bool>) -> String {
    let vnet = match vnet_header {
        Some(true) => "with virtio-net header",
        Some(false) => "plain frames",
        None => "unknown header",
    };
    match bridge {
        Some(bridge) => format!("TAP {tap} ({vnet}), port of bridge {bridge}, forwarding"),
        None => format!("TAP {tap} ({vnet}), forwarding"),
    }
}

#[cfg(test)]
mod tests;
