//! Common options of commands that run a node: those of the node, and those of the command.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    process,
};

use clap::Args;
use flue_adapter::{NodeOptions, QUEUES_MAX};
use host_stack::node::Progress;
use rdma_over_tcp::ndk::ListenerConfig;
use serde::{Deserialize, Serialize};

pub use flue_adapter::{MpaAcceptOptions, MpaOptions, Rtr, Switch};

use crate::{control::socket_path::ControlSocketPath, failure::Failure};

/// The node of a command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Node options")]
pub struct NodeArgs {
    /// The node.
    #[command(flatten)]
    pub node: NodeOptions,

    /// Serve "flue ss", "offload" and "upload" on this socket, or "none"
    ///
    /// Default: $XDG_RUNTIME_DIR/flue/TAP-PID.sock, or /tmp/flue-UID/TAP-PID.sock without that variable.
    #[arg(long, value_name = "PATH", help_heading = "Node options")]
    pub control: Option<PathBuf>,
}

/// Number of queues of the TAP, for commands that run a node on several.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Node options")]
pub struct QueueOptions {
    /// Number of TAP queues, each with an engine and a thread: 1..=16
    ///
    /// A connection uses one queue. The kernel usually delivers its frames to that queue; frames that arrive on another
    /// queue are passed on. Captures and traces of the first queue are in FILE.EXT, of the next in FILE.1.EXT.
    /// --capacity and impairments apply to each queue. An existing TAP must be multi_queue.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: u8,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { queues: 1 }
    }
}

/// Validated node setup of a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeSetup {
    /// Options of the node.
    #[serde(flatten)]
    pub node: NodeOptions,
    /// Control socket of the node.
    pub control: ControlSocketPath,
}

impl fmt::Display for NodeSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, control } = self;
        write!(f, "{node}\ncontrol socket: {}", shown_socket(control, &node.tap))
    }
}

/// Returns the path of the control socket of this process on `tap`.
pub(crate) fn shown_socket(control: &ControlSocketPath, tap: &str) -> String {
    let path = control.socket(tap, process::id());
    path.map_or_else(|| "none".into(), |path| path.display().to_string())
}

/// Limits of a listener, for commands that serve many peers.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Listener options")]
pub struct ListenOptions {
    /// Limit TCP handshakes in progress: 1..=1024
    ///
    /// The same limit applies to connections of one peer address without an MPA Request.
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub backlog: u16,

    /// Limit connections without an MPA Request: 1..=65535
    ///
    /// A further connection resets the oldest one.
    #[arg(long, alias = "pending-requests", value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub max_pending_mpa: u16,
}

impl ListenOptions {
    /// Returns the listener configuration with these limits.
    #[must_use]
    pub fn config(&self) -> ListenerConfig {
        let Self { backlog, max_pending_mpa } = *self;
        ListenerConfig {
            requests_max: max_pending_mpa.into(),
            ..ListenerConfig::with_backlog(backlog.into())
        }
    }
}

impl NodeArgs {
    /// Returns the unspecified address for all addresses of the node: `[::]` includes both families.
    #[must_use]
    pub fn all_addresses(&self) -> IpAddr {
        match self.node.addresses.iter().any(|own| own.address().is_ipv6()) {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// Validates the options and fills in defaults.
    ///
    /// # Errors
    /// [`Failure::usage`] with the option and its limit.
    pub fn resolve(&self) -> Result<NodeSetup, Failure> {
        let control = ControlSocketPath::resolve(self.control.as_deref());
        Ok(NodeSetup { node: self.node.clone().completed()?, control })
    }

    /// Same as [`NodeArgs::resolve`], on several queues.
    ///
    /// # Errors
    /// As [`NodeArgs::resolve`]; or another option is not supported with several queues.
    pub fn resolve_on(&self, QueueOptions { queues }: QueueOptions) -> Result<NodeSetup, Failure> {
        if queues > 1 && self.node.progress == Progress::Manual {
            return Err(Failure::usage(format!(
                "--queues {queues}: not supported with --progress manual, whose thread runs one queue: use \
                 --progress auto"
            )));
        }
        self.resolve_on_any(queues)
    }

    /// Same as [`NodeArgs::resolve_on`], for a command that runs the loops of several queues itself.
    pub(crate) fn resolve_on_any(&self, queues: u8) -> Result<NodeSetup, Failure> {
        if queues > 1 && self.node.impairment.rate_bps.is_some() {
            return Err(Failure::usage(format!(
                "--queues {queues}: not supported with --rate, which would apply to each queue: use \"flue wire\""
            )));
        }
        let node = NodeOptions { queues, ..self.node.clone() };
        Self { node, control: self.control.clone() }.resolve()
    }
}

/// Amount and form of a command's output. Commands that give `-v` a meaning of their own take [`OutputArgs`] alone.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print results and errors only
    #[arg(short, long)]
    pub quiet: bool,

    /// Log every frame with its headers on standard error
    #[arg(long, conflicts_with = "quiet")]
    pub trace: bool,

    /// Print one JSON document instead of text, also on failure
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::failure::Kind;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        node: NodeArgs,

        #[command(flatten)]
        queues: QueueOptions,
    }

    #[test]
    fn several_queues_forbid_other_options() {
        let parse = |line: &str| Command::try_parse_from(line.split_whitespace());
        for line in ["flue --queues 0", "flue --queues 17"] {
            let error = parse(line).map(drop).unwrap_err().to_string();
            assert!(error.contains("--queues") && error.contains("1..=16"), "{line}: {error}");
        }
        for (line, word) in [
            ("flue --queues 2 --progress manual", "--progress auto"),
            ("flue --queues 2 --rate 1gbit", "--rate"),
            ("flue --queues 2 --tap-fd 3", "--tap-fd"),
        ] {
            let Command { node, queues } = parse(line).unwrap_or_else(|error| panic!("{error}"));
            let failure = node.resolve_on(queues).expect_err(line);
            assert_eq!(failure.kind, Kind::Usage, "{line}");
            assert!(failure.message.contains(word), "{line}: {failure}");
        }
        let Command { node, queues } =
            parse("flue --queues 16").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(node.resolve_on(queues).unwrap().node.queues, 16);
    }
}
