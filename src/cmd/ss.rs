//! `flue ss`: lists the connections of running nodes in the format of `ss -ti`, with the Offload State column of
//! Windows netstat.
//!
//! Nodes are queried over their control sockets, sequentially, at most [`client::LIMIT`] each.

pub mod filter;
mod format;

use std::{fs, path::PathBuf};

use clap::Args;
use serde::Serialize;

use self::filter::{Filter, States};
use crate::{
    control::{
        client::{self, Nodes},
        message::NodeName,
        record::{Record, shown},
    },
    failure::Failure,
    options::OutputArgs,
    report::Console,
    table::{Align, Table, cell},
};

/// List connections of running nodes, in the format of "ss -ti"
///
/// The column Offload has the offload state: InHost (host stack), Offloading, Offloaded (target), Uploading, or Kernel
/// (kernel sockets). By default, connected sockets are shown, except those in TIME-WAIT.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Filters are those of ss, states first:
  state STATE, exclude STATE
      established, syn-sent, syn-recv, fin-wait-1, fin-wait-2,
      time-wait, closed, close-wait, last-ack, closing, listening;
      all, connected, synchronized
  offload STATE
      inhost, offloading, offloaded, uploading, kernel
  sport OP :PORT, dport OP :PORT, src HOST, dst HOST
      joined by and, or, not and parentheses

Examples:
  flue ss -i
  flue ss state established dport = :7174
  flue ss offload inhost dst 10.77.0.0/24
  flue ss --json --state | jq '.result.nodes[].connections[].state_tree'
  flue ss --node flue0 -al")]
pub struct SsArgs {
    /// Filter of connections
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    pub filter: Vec<String>,

    /// Print the variables of TCP_INFO, offloads and uploads
    #[arg(short, long)]
    pub info: bool,

    /// List listeners only
    #[arg(short, long)]
    pub listening: bool,

    /// List listeners and closed connections too
    #[arg(short, long)]
    pub all: bool,

    /// No effect, as in ss: addresses and ports are always numbers
    #[arg(short, long)]
    pub numeric: bool,

    /// No effect, as in ss: all sockets are TCP
    #[arg(short, long)]
    pub tcp: bool,

    /// Print the TAP and the process id of the node
    #[arg(short, long)]
    pub processes: bool,

    /// Omit the heading
    #[arg(short = 'H', long)]
    pub no_header: bool,

    /// Print each connection on one line, also with -i
    #[arg(short = 'O', long)]
    pub oneline: bool,

    /// Add the offload state of offloaded connections; with --json
    ///
    /// By object (neighbor, path, tcp) and class (const, cached, delegated).
    #[arg(long)]
    pub state: bool,

    /// Query this node: control socket, process id or TAP [default: all]
    ///
    /// By default all nodes of the user are queried.
    #[arg(long, value_name = "PATH|PID|TAP")]
    pub node: Option<String>,

    /// Same as --json
    #[arg(short)]
    pub json_short: bool,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Entry of one node in the document.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Listed {
    /// Control socket of the node.
    pub control: PathBuf,
    /// Name of the node; null if it did not reply.
    #[serde(flatten)]
    pub node: Option<NodeName>,
    /// Connections selected by the filter.
    pub connections: Vec<Record>,
    /// Reason for the missing reply.
    pub error: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct ListedNodes {
    nodes: Vec<Listed>,
}

impl SsArgs {
    /// Returns the quietness.
    pub const fn output_args(&self) -> OutputArgs {
        OutputArgs { json: self.output.json || self.json_short, ..self.output }
    }

    fn states(&self) -> States {
        match (self.all, self.listening) {
            (true, _) => States::all(),
            (false, true) => States::listening(),
            (false, false) => States::connected(),
        }
    }
}

/// Runs `flue ss`.
///
/// # Errors
/// The filter is invalid, a requested node was not found, or a node did not reply.
pub fn run(args: &SsArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let filter = Filter::parse(&args.filter, args.states())?;
    let (sockets, place) = client::find(&Nodes::parse(args.node.as_deref()))?;
    let mut ended = Ok(());
    let mut nodes = Vec::new();
    for control in sockets {
        nodes.push(match client::list(&control, args.state) {
            Ok((node, mut connections)) => {
                if connections.is_empty() {
                    console.remark(idle(&node));
                }
                connections.retain(|record| filter.shows(record));
                Listed { control, node: Some(node), connections, error: None }
            }
            Err(failure) => {
                let error = Some(failure.message().to_owned());
                ended = ended.and_then(|()| Err(failure.into()));
                Listed { control, node: None, connections: Vec::new(), error }
            }
        });
    }
    if nodes.is_empty() {
        console.remark(format_args!("no running node: no control socket in {}", place.display()));
    }
    let text = render(args, &nodes);
    if !text.is_empty() {
        console.print(text.trim_end());
    }
    console.result(&ListedNodes { nodes });
    ended
}

/// Returns the note for a node without rows.
fn idle(node: &NodeName) -> String {
    let NodeName { pid, tap, .. } = node;
    // Not readable for a process of another user or in another namespace.
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim_end();
    format!("{tap}: pid={pid} name={name}: device open, no connection and no listener")
}

/// Renders the table, with a line of variables below each connection.
fn render(args: &SsArgs, nodes: &[Listed]) -> String {
    let mut head = vec![
        ("State", Align::Left),
        ("Recv-Q", Align::Left),
        ("Send-Q", Align::Left),
        ("Local Address:Port", Align::Right),
        ("Peer Address:Port", Align::Right),
        ("Offload", Align::Left),
    ];
    if args.processes {
        head.push(("Process", Align::Left));
    }
    let mut table = Table::new(&head);
    let mut details = Vec::new();
    for Listed { node, connections, .. } in nodes {
        let Some(node) = node else { continue };
        for record in connections {
            let mut cells = vec![
                cell(record.state.as_ref()),
                cell(record.recv_q),
                cell(record.send_q),
                shown(Some(record.local)),
                shown(record.remote),
                record.offload_state.to_string(),
            ];
            if args.processes {
                cells.push(format!("node:((\"{}\",pid={}))", node.tap, node.pid));
            }
            table.row(cells);
            details.push(format::of(record, node));
        }
    }
    let table = table.to_string();
    let mut text = String::new();
    let mut lines = table.lines();
    if let Some(head) = lines.next().filter(|_| !args.no_header) {
        text.push_str(head);
        text.push('\n');
    }
    for (line, detail) in lines.zip(details) {
        text.push_str(line);
        if args.info {
            text.push_str(if args.oneline { " " } else { "\n\t " });
            text.push_str(&detail);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;
