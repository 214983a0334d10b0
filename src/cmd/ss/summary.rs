//! Totals of a listing, by state and by data path.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use super::listing::Listed;
use crate::table::{Align, Table};

/// Totals of the connections of one data path.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(super) struct PathTotals {
    connections: u64,
    ipv4: u64,
    ipv6: u64,
    queue_pairs: u64,
}

/// Totals of a listing. Listeners are connections in the state LISTEN.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub(super) struct Summary {
    nodes: u64,
    connections: u64,
    queue_pairs: u64,
    /// Requests posted and not complete.
    outstanding: u64,
    /// Receives posted. Those of a shared receive queue count for each of its queue pairs.
    receives_posted: u64,
    /// Connections by state; those of an unknown state are not included.
    states: BTreeMap<String, u64>,
    /// Totals by data path.
    data_paths: BTreeMap<String, PathTotals>,
}

impl Summary {
    /// Counts the nodes that replied, and their listed connections.
    pub(super) fn of(nodes: &[Listed]) -> Self {
        let mut summary = Self::default();
        for Listed { node, connections, .. } in nodes {
            summary.nodes += u64::from(node.is_some());
            for record in connections.iter().map(|row| &row.record) {
                summary.connections += 1;
                if let Some(state) = &record.state {
                    *summary.states.entry(state.clone()).or_default() += 1;
                }
                let path = record.offload_state.to_string();
                let path = summary.data_paths.entry(path).or_default();
                path.connections += 1;
                match record.local.ip().to_canonical().is_ipv4() {
                    true => path.ipv4 += 1,
                    false => path.ipv6 += 1,
                }
                if let Some(rdma) = &record.rdma {
                    path.queue_pairs += 1;
                    summary.queue_pairs += 1;
                    summary.outstanding = summary.outstanding.saturating_add(rdma.outstanding);
                    let posted = summary.receives_posted.saturating_add(rdma.receives_posted);
                    summary.receives_posted = posted;
                }
            }
        }
        summary
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, connections, queue_pairs, outstanding, receives_posted, .. } = self;
        writeln!(f, "Nodes: {nodes}")?;
        let states: Vec<_> =
            self.states.iter().map(|(state, count)| format!("{state} {count}")).collect();
        let states = match states.is_empty() {
            true => String::new(),
            false => format!(" ({})", states.join(", ")),
        };
        writeln!(f, "TCP:   {connections}{states}")?;
        let pairs = if *queue_pairs == 1 { "queue pair" } else { "queue pairs" };
        writeln!(
            f,
            "RDMA:  {queue_pairs} {pairs} ({outstanding} requests outstanding, {receives_posted} receives posted)"
        )?;
        if self.data_paths.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&[
            ("Data path", Align::Left),
            ("Total", Align::Right),
            ("IPv4", Align::Right),
            ("IPv6", Align::Right),
            ("Queue pairs", Align::Right),
        ]);
        for (path, totals) in &self.data_paths {
            let PathTotals { connections, ipv4, ipv6, queue_pairs } = totals;
            let counts = [connections, ipv4, ipv6, queue_pairs].map(ToString::to_string);
            table.row(std::iter::once(path.clone()).chain(counts));
        }
        write!(f, "\n{table}")
    }
}
