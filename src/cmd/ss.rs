//! `flue ss`: lists the connections of running nodes in the format of `ss -ti`, with the Offload State column of
//! Windows netstat.
//!
//! Nodes are queried over their control sockets, sequentially, at most [`client::LIMIT`] each.

pub mod filter;
mod format;
mod kernel;
pub mod listing;
pub mod rates;
mod summary;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;

use self::{
    filter::{Filter, States},
    listing::{Listed, Row},
    rates::RateMeter,
    summary::Summary,
};
use crate::{
    control::{
        client::{self, Nodes},
        message::NodeName,
        record::shown,
    },
    failure::Failure,
    options::OutputArgs,
    report::{Body, Console, Document},
    table::{Align, Table, UNKNOWN, cell},
    waker::{Pause, parse_interval},
};

/// Name of the document.
const NAME: &str = "ss";

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
  flue ss -emo
  flue ss -s
  flue ss state established dport = :7174
  flue ss offload offloaded dst 10.77.0.0/24
  flue ss --node flue0 -al
  flue ss --json --state | jq '.result.nodes[].connections[].state_tree'
  flue ss --json | jq -c '.result.nodes[].connections[] | [.remote, .rdma.sends]'")]
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

    /// Print user, inode, program, node and handle
    ///
    /// Inodes are those of kernel sockets in this network namespace.
    #[arg(short, long)]
    pub extended: bool,

    /// Print the memory of the buffers, as ss does
    ///
    /// Of offloaded connections, and of kernel sockets in this network namespace.
    #[arg(short, long)]
    pub memory: bool,

    /// Print pending timers: kind, remaining time, retransmissions
    ///
    /// Of offloaded connections, and of kernel sockets in this network namespace.
    #[arg(short, long)]
    pub options: bool,

    /// Print totals by state and data path only
    #[arg(short, long, conflicts_with_all =
          ["info", "extended", "memory", "options", "processes", "oneline", "no_header"])]
    pub summary: bool,

    /// Omit the heading
    #[arg(short = 'H', long)]
    pub no_header: bool,

    /// Print each connection on one line, also with -e, -i, -m, -o
    #[arg(short = 'O', long)]
    pub oneline: bool,

    /// Add the offload state of offloaded connections; with --json
    ///
    /// By object (neighbor, path, tcp) and class (const, cached, delegated).
    #[arg(long)]
    pub state: bool,

    /// Query this node: socket, process id, TAP or program [default: all]
    ///
    /// By default all nodes of the user are queried.
    #[arg(long, value_name = "PATH|PID|TAP|PROGRAM")]
    pub node: Option<String>,

    /// Repeat at this interval, s: 0.1..=3600
    ///
    /// Until Ctrl-C. The table has the throughput since the previous listing in place of the queues, which -m prints.
    /// With --json, each listing is a document on one line.
    #[arg(long, value_name = "SECONDS", value_parser = parse_interval)]
    pub interval: Option<Duration>,

    /// Same as --json
    #[arg(short)]
    pub json_short: bool,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct ListedNodes {
    /// Time of the listing since 1970, nanoseconds.
    unix_time_ns: u64,
    nodes: Vec<Listed>,
    /// Totals of the listed connections.
    summary: Summary,
}

impl ListedNodes {
    fn new(nodes: Vec<Listed>) -> Self {
        Self { unix_time_ns: unix_time_ns(), summary: Summary::of(&nodes), nodes }
    }
}

impl SsArgs {
    /// Returns the quietness. With `--interval`, `json` stays off: documents are lines.
    pub const fn output_args(&self) -> OutputArgs {
        let (json, is_stream) = (self.is_json(), self.interval.is_some());
        OutputArgs {
            json: json && !is_stream,
            quiet: self.output.quiet || json && is_stream,
            trace: self.output.trace,
        }
    }

    const fn is_json(&self) -> bool {
        self.output.json || self.json_short
    }

    fn states(&self) -> States {
        match (self.all || self.summary, self.listening) {
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
    let ended = match args.interval {
        None => run_once(args, console),
        Some(interval) => run_repeatedly(args, interval, console),
    };
    if let (Err(failure), true, true) = (&ended, args.is_json(), args.interval.is_some()) {
        print_line(Some(failure), None, console);
    }
    ended
}

fn run_once(args: &SsArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let filter = Filter::parse(&args.filter, args.states())?;
    let (nodes, ended) = list(args, &filter, true, console)?;
    let listed = ListedNodes::new(nodes);
    let text = render(args, &listed);
    if !text.is_empty() {
        console.print(text.trim_end());
    }
    console.result(&listed);
    ended
}

/// Lists until a signal stops it. Nodes may end: an error is part of one listing.
fn run_repeatedly(
    args: &SsArgs,
    interval: Duration,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let filter = Filter::parse(&args.filter, args.states())?;
    let pause = Pause::new()?;
    let mut meter = RateMeter::default();
    let mut next = Instant::now();
    let (mut is_first, mut was_empty) = (true, false);
    loop {
        let listed = list(args, &filter, !was_empty, console);
        let (mut nodes, ended) = match listed {
            Ok(listed) => listed,
            Err(failure) if is_first => return Err(failure),
            Err(failure) => (Vec::new(), Err(failure)),
        };
        meter.measure(&mut nodes);
        was_empty = nodes.is_empty();
        let listed = ListedNodes::new(nodes);
        if args.is_json() {
            print_line(ended.as_ref().err(), Some(&listed), console);
        } else {
            if let Err(failure) = ended {
                console.remark(failure);
            }
            let blank = if is_first { "" } else { "\n" };
            console.print(format_args!("{blank}{}", render(args, &listed).trim_end()));
        }
        console.check()?;
        is_first = false;
        next = (next + interval).max(Instant::now());
        if pause.until(next).is_some() {
            return Ok(());
        }
    }
}

/// Queries the nodes, and keeps the connections that the filter selects. `is_explained`: explain an empty list.
fn list(
    args: &SsArgs,
    filter: &Filter,
    is_explained: bool,
    console: &mut Console<'_>,
) -> Result<(Vec<Listed>, Result<(), Failure>), Failure> {
    let (sockets, place) = client::find(&Nodes::parse(args.node.as_deref()))?;
    let mut ended = Ok(());
    let mut nodes = Vec::new();
    for control in sockets {
        let (mut listed, result) = Listed::query(&control, args.state, client::LIMIT);
        if let (Some(node), true, true) =
            (&listed.node, listed.connections.is_empty(), is_explained && args.interval.is_none())
        {
            console.remark(idle(node));
        }
        listed.connections.retain(|row| filter.shows(&row.record));
        if args.extended || args.memory || args.options {
            kernel::complete(&mut listed);
        }
        ended = ended.and(result);
        nodes.push(listed);
    }
    if nodes.is_empty() && is_explained {
        console.remark(format_args!("no running node: no control socket in {}", place.display()));
    }
    Ok((nodes, ended))
}

/// Prints a document on one line.
fn print_line(failure: Option<&Failure>, listed: Option<&ListedNodes>, console: &mut Console<'_>) {
    let result = listed.and_then(|listed| serde_json::to_value(listed).ok());
    let body = Body { config: None, result: result.as_ref() };
    // Cannot fail: the keys are strings.
    console.print(Document::new(NAME, failure, body).line().unwrap_or_default());
}

fn unix_time_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the note for a node without rows.
fn idle(node: &NodeName) -> String {
    let NodeName { pid, tap, .. } = node;
    let name = client::program_name(*pid).unwrap_or_default();
    format!("{tap}: pid={pid} name={name}: device open, no connection and no listener")
}

/// Returns the heading of the connections of a node, if there are several nodes.
fn heading_of(node: &NodeName) -> String {
    let NodeName { pid, tap, .. } = node;
    let name = client::program_name(*pid).map_or_else(String::new, |name| format!("{name}, "));
    format!("{tap}: {name}pid {pid}")
}

/// Renders the summary or the table.
fn render(args: &SsArgs, listed: &ListedNodes) -> String {
    match args.summary {
        true => listed.summary.to_string(),
        false => render_table(args, &listed.nodes),
    }
}

/// Renders the table, with a line of variables below each connection.
fn render_table(args: &SsArgs, nodes: &[Listed]) -> String {
    // With throughput and queues, no address would fit 80 columns.
    let [first, second] = match args.interval {
        Some(_) => [("Send-Rate", Align::Right), ("Recv-Rate", Align::Right)],
        None => [("Recv-Q", Align::Left), ("Send-Q", Align::Left)],
    };
    let mut head = vec![
        ("State", Align::Left),
        first,
        second,
        ("Local Address:Port", Align::Right),
        ("Peer Address:Port", Align::Right),
        ("Offload", Align::Left),
    ];
    if args.processes {
        head.push(("Process", Align::Left));
    }
    let mut table = Table::new(&head);
    let mut details = Vec::new();
    for listed in nodes {
        let Some(node) = &listed.node else { continue };
        let mut heading = Some(heading_of(node));
        for row in &listed.connections {
            let Row { record, rates, .. } = row;
            let [first, second] = match (args.interval, rates) {
                (None, _) => [record.recv_q, record.send_q].map(cell),
                (Some(_), Some(rates)) => [rates.send_bps, rates.receive_bps].map(format::bits),
                (Some(_), None) => [UNKNOWN; 2].map(str::to_owned),
            };
            let mut cells = vec![
                cell(record.state.as_ref()),
                first,
                second,
                shown(Some(record.local)),
                shown(record.remote),
                record.offload_state.to_string(),
            ];
            if args.processes {
                cells.push(format!("node:((\"{}\",pid={}))", node.tap, node.pid));
            }
            table.row(cells);
            let mut parts = Vec::new();
            for (is_printed, text) in [
                (args.options, format::timers(record)),
                (args.extended, format::owner(listed, node, row)),
                (args.memory, format::memory(record)),
                (args.info, format::of(record, node)),
            ] {
                parts.extend(Some(text).filter(|text| is_printed && !text.is_empty()));
            }
            details.push((heading.take(), parts.join(" ")));
        }
    }
    let table = table.to_string();
    let mut text = String::new();
    let mut lines = table.lines();
    if let Some(head) = lines.next().filter(|_| !args.no_header) {
        text.push_str(head);
        text.push('\n');
    }
    // Without a heading, as for scripts, each line is a connection.
    let is_grouped = nodes.iter().filter(|listed| !listed.connections.is_empty()).count() > 1
        && !args.no_header
        && !args.oneline;
    for (line, (heading, detail)) in lines.zip(details) {
        if let Some(heading) = heading.filter(|_| is_grouped) {
            text.push_str(&heading);
            text.push('\n');
        }
        text.push_str(line);
        if !detail.is_empty() {
            text.push_str(if args.oneline { " " } else { "\n\t " });
            text.push_str(&detail);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;
