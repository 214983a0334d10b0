//! `flue offload` and `flue upload`: request the migration of connections from a running node, and wait for completion.
//!
//! Requests are sent over the control socket to the host stack of the node, which decides on each. Limits:
//! [`client::LIMIT`] for each reply, `--wait` for each connection.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, Instant},
};

use clap::Args;
use host_stack::stream::OffloadState;
use serde::Serialize;

use crate::{
    control::{
        client::{self, Nodes},
        message::{Answer, Destination, Move, Operation},
        record::{Record, Refused, shown},
    },
    failure::Failure,
    options::OutputArgs,
    report::Console,
    units::format_duration,
};

/// Offload a connection of a running node to its target
///
/// Independent of the policy of the node. Exits when the connection is offloaded, or prints the reason for the refusal:
/// that of the host stack, or the target's status by name and number.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue offload 10.77.0.2:7174
  flue offload 10.77.0.2:7174 --node flue1
  flue offload all --wait 30")]
pub struct OffloadArgs {
    /// Common arguments.
    #[command(flatten)]
    pub common: MoveArgs,
}

/// Upload a connection of a running node to its host stack
///
/// The connection continues in the host stack, with all data that was not sent, acknowledged or delivered. A queue pair
/// on it continues to work.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue upload 10.77.0.2:7174
  flue upload 10.77.0.2:7174 --node flue1
  flue upload all --json")]
pub struct UploadArgs {
    /// Common arguments.
    #[command(flatten)]
    pub common: MoveArgs,
}

/// Arguments of both commands.
#[derive(Args, Clone, Debug)]
pub struct MoveArgs {
    /// Handle, LOCAL-PEER, PEER, or "all"; addresses are ADDRESS:PORT
    ///
    /// "flue ss --json" prints handles.
    #[arg(value_name = "CONNECTION")]
    pub connection: Selector,

    /// Query this node: socket, process id, TAP or program [default: all]
    ///
    /// By default all nodes of the user are queried.
    #[arg(long, value_name = "PATH|PID|TAP|PROGRAM")]
    pub node: Option<String>,

    /// Wait for a connection, seconds: 0..=600
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u16).range(0..=600))]
    pub wait: u16,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Selection of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selector {
    /// All connections.
    All,
    /// The connection with this handle.
    Handle(u64),
    /// Connections with this peer.
    Peer(SocketAddr),
    /// The connection between these endpoints, local and remote.
    Between(SocketAddr, SocketAddr),
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            String::from("expected a handle, ADDRESS:PORT, ADDRESS:PORT-ADDRESS:PORT, or \"all\"")
        };
        if text == "all" {
            return Ok(Self::All);
        }
        if let Ok(handle) = text.parse() {
            return Ok(Self::Handle(handle));
        }
        match text.split_once('-') {
            Some((local, peer)) => Ok(Self::Between(
                local.parse().map_err(|_| wrong())?,
                peer.parse().map_err(|_| wrong())?,
            )),
            None => text.parse().map(Self::Peer).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Handle(handle) => write!(f, "{handle}"),
            Self::Peer(peer) => write!(f, "{peer}"),
            Self::Between(local, peer) => write!(f, "{local}-{peer}"),
        }
    }
}

impl Selector {
    /// Returns true if `record` is selected. Listeners are never selected.
    pub fn selects(self, record: &Record) -> bool {
        !record.is_listener()
            && match self {
                Self::All => true,
                Self::Handle(handle) => record.handle == handle,
                Self::Peer(peer) => record.remote == Some(peer),
                Self::Between(local, peer) => record.local == local && record.remote == Some(peer),
            }
    }
}

/// Result of the hand-over of one connection.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HandOverResult {
    /// Control socket of the node.
    pub control: PathBuf,
    /// Handle of the connection.
    pub handle: u64,
    /// Local endpoint.
    pub local: SocketAddr,
    /// Remote endpoint.
    pub remote: Option<SocketAddr>,
    /// Offload state before the hand-over.
    pub from: OffloadState,
    /// Offload state after the hand-over; null if the connection has closed.
    pub to: Option<OffloadState>,
    /// True if the connection is in the requested state.
    pub ok: bool,
    /// Reason for the refusal.
    pub refused: Option<Refused>,
    /// Duration of the hand-over, nanoseconds.
    pub took_ns: u64,
}

/// Runs `flue offload` or `flue upload`.
///
/// # Errors
/// No node or connection is selected, or the hand-over of one connection failed.
pub fn run(args: &MoveArgs, to: Destination, console: &mut Console<'_>) -> Result<(), Failure> {
    let (sockets, place) = client::find(&Nodes::parse(args.node.as_deref()))?;
    let wait = Duration::from_secs(args.wait.into());
    let mut moved = Vec::new();
    let mut ended = Ok(());
    for control in &sockets {
        let (_, connections) = client::list(control, false)?;
        for record in connections.iter().filter(|record| args.connection.selects(record)) {
            let one = hand_over(control, record, to, wait)?;
            console.print(describe(&one));
            if !one.ok && ended.is_ok() {
                ended = Err(Failure::work(reason(&one)));
            }
            moved.push(one);
        }
    }
    console.result(&serde_json::json!({ "connections": moved }));
    if moved.is_empty() {
        return Err(Failure::work(if sockets.is_empty() {
            format!("no running node: no control socket in {}", place.display())
        } else {
            format!("connection {}: not found on {} nodes", args.connection, sockets.len())
        }));
    }
    ended
}

/// Requests the hand-over of `record`, and waits for its completion.
pub(super) fn hand_over(
    control: &Path,
    record: &Record,
    to: Destination,
    wait: Duration,
) -> Result<HandOverResult, Failure> {
    let goal = match to {
        Destination::Target => OffloadState::Offloaded,
        Destination::Host => OffloadState::InHost,
    };
    let mut now = Some(record.clone());
    let began = Instant::now();
    let mut begin = true;
    let refused = |now: &Record| now.refusals > record.refusals;
    while let Some(current) = &now
        && current.offload_state != goal
        && !refused(current)
        && (begin || began.elapsed() < wait)
    {
        let Record { handle, refusals, .. } = *record;
        let wanted = Move { handle, to, begin, refusals };
        let Answer::Moved { connection } = client::request(control, Operation::Move(wanted))?
        else {
            return Err(Failure::work(format!(
                "control socket {}: unexpected answer, expected a moved connection",
                control.display()
            )));
        };
        now = connection.map(|connection| *connection);
        begin = false;
    }
    let why = now.clone().filter(refused).and_then(|now| now.last_refusal);
    Ok(outcome(control, record, goal, now, why, began.elapsed()))
}

/// Returns the result for `record`, whose current record is `now`.
fn outcome(
    control: &Path,
    record: &Record,
    goal: OffloadState,
    now: Option<Record>,
    refused: Option<Refused>,
    took: Duration,
) -> HandOverResult {
    let to = now.map(|now| now.offload_state);
    HandOverResult {
        control: control.to_owned(),
        handle: record.handle,
        local: record.local,
        remote: record.remote,
        from: record.offload_state,
        to,
        ok: to == Some(goal),
        refused,
        took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// Returns the text of a result.
pub(super) fn describe(moved: &HandOverResult) -> String {
    let HandOverResult { local, remote, from, to, ok, took_ns, .. } = moved;
    let took = format_duration(Duration::from_nanos(*took_ns));
    let ends = format!("{local} {}", shown(*remote));
    match to {
        Some(to) if *ok && from == to => format!("{ends}: already {to}"),
        Some(to) if *ok => format!("{ends}: {from} to {to} in {took}"),
        _ => reason(moved),
    }
}

/// Returns the reason why a connection is not in the requested state.
fn reason(moved: &HandOverResult) -> String {
    let HandOverResult { local, remote, to, refused, took_ns, .. } = moved;
    let ends = format!("{local} {}", shown(*remote));
    let took = format_duration(Duration::from_nanos(*took_ns));
    match (to, refused) {
        (None, _) => format!("{ends}: connection closed"),
        (Some(to), Some(refused)) => format!("{ends}: {to}: {}", refused.message),
        (Some(to), None) => format!("{ends}: still {to} after {took}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::ss::tests::connection;

    #[test]
    fn connections_are_selected_by_handle_peer_or_both_endpoints() {
        let record = connection("10.0.0.2:5000", Some("10.0.0.1:7174"));
        for text in ["all", "7", "10.0.0.1:7174", "10.0.0.2:5000-10.0.0.1:7174"] {
            let selector: Selector = text.parse().unwrap();
            assert!(selector.selects(&record), "{text}");
            assert_eq!(selector.to_string(), text);
        }
        for text in ["8", "10.0.0.2:5000", "10.0.0.2:5001-10.0.0.1:7174"] {
            assert!(!text.parse::<Selector>().unwrap().selects(&record), "{text}");
        }
        let listener = connection("0.0.0.0:7174", None);
        assert!(!Selector::All.selects(&listener) && !Selector::Handle(7).selects(&listener));
        for text in ["", "none", "10.0.0.1", "10.0.0.1:1-", "-1"] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
        let six: Selector = "[fd00::2]:1-[fd00::1]:2".parse().unwrap();
        assert!(matches!(six, Selector::Between(..)));
    }

    #[test]
    fn failed_hand_over_has_its_reason() {
        let record = connection("10.0.0.2:5000", Some("10.0.0.1:7174"));
        let moved = HandOverResult {
            control: "/x".into(),
            handle: 7,
            local: record.local,
            remote: record.remote,
            from: OffloadState::InHost,
            to: Some(OffloadState::InHost),
            ok: false,
            refused: None,
            took_ns: 5_000_000_000,
        };
        let ends = "10.0.0.2:5000 10.0.0.1:7174";
        assert_eq!(reason(&moved), format!("{ends}: still InHost after 5.00 s"));
        let closed = HandOverResult { to: None, ..moved.clone() };
        assert_eq!(reason(&closed), format!("{ends}: connection closed"));
        let message = "target: NDIS_STATUS_OFFLOAD_TCP_ENTRIES (0xc0231004)".to_owned();
        let refused = Some(Refused { message, ndis_status: None, ndis_status_name: None });
        let refused = HandOverResult { refused, ..moved };
        assert!(
            reason(&refused)
                .ends_with("InHost: target: NDIS_STATUS_OFFLOAD_TCP_ENTRIES (0xc0231004)")
        );
    }
}
