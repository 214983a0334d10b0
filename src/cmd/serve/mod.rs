//! `flue serve`: passive side of an RDMA test. It announces memory regions in the private data of its Reply
//! ([`offer`]), accepts operations of the peer, and logs them ([`event`]).
//!
//! It posts only receives, and with `--echo` Sends. Writes, Reads and atomics of a peer are handled by the adapter
//! alone. Limits: [`CONNECTIONS_MAX`] connections, `--receives` receives per connection, and the number of regions that
//! fits into the private data.

pub mod event;
pub mod offer;
mod run;

use std::net::SocketAddr;

use clap::Args;

use self::offer::Region;
use crate::{
    adapter::{self, TransportArgs},
    cmd::perf::kind::parse_size,
    failure::{Failure, unless_stopped},
    host::HostAddress,
    options::{ListenOptions, MpaAcceptOptions, NodeArgs, OutputArgs, QueueOptions, Switch},
    report::{Console, Document},
    sandbox::SandboxArgs,
};

/// Default port: that of rping.
pub const PORT_DEFAULT: u16 = 7174;
/// Largest number of connections.
pub const CONNECTIONS_MAX: usize = 64;
/// Largest number of receives per connection.
pub const RECEIVES_MAX: u16 = 1024;
/// Largest number of outstanding Reads and atomics of a peer: the adapter's limit.
pub const IRD_MAX: u16 = 128;

/// Offer memory to RDMA Write, Read and atomics, receive Sends, log events
///
/// A responder for driver and conformance tests. The private data of the MPA Reply lists the regions, one line per
/// region: "flue1 stag=0x00c0ffee addr=0x00007f0012345000 len=65536 rights=rw". All peers share the regions, whose
/// contents persist between connections. The log has requests, Sends, immediate data, errors and ends with the counters
/// of the connection; Writes, Reads and atomics appear in the counters only.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  # two regions, an echo of each Send, events as JSON
  flue serve --transport kernel --region 1M:w --region 4K:ra --echo --json &
  flue run -- rdma_client -s 127.0.0.1 -p 7174

  # on a node, for initiators on the bridge
  ip link add br0 type bridge && ip link set br0 up
  flue serve --bridge br0 &")]
pub struct ServeArgs {
    /// Listen on this address [default: all addresses of the node]
    #[arg(short = 'a', long, value_name = "IP[%INTERFACE]")]
    pub address: Option<HostAddress>,

    /// Port to listen on: 1..=65535
    #[arg(short, long, value_name = "PORT", default_value_t = PORT_DEFAULT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Offer a region of this size, 1..=64M; repeatable [default: 64K:rwa]
    ///
    /// Rights: remote read (r), write (w), atomics (a); rw if absent.
    #[arg(long = "region", value_name = "SIZE[:rwa]", value_parser = offer::parse)]
    pub regions: Vec<Region>,

    /// Receives posted on each connection: 0..=1024
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(..=i64::from(RECEIVES_MAX)))]
    pub receives: u16,

    /// Size of a receive, bytes: 1..=64M
    ///
    /// A longer Send ends the connection.
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub receive_size: u64,

    /// Send received messages and immediate data back
    #[arg(long)]
    pub echo: bool,

    /// Limit outstanding Reads and atomics of a peer (IRD): 1..=128
    #[arg(long, value_name = "N", default_value_t = IRD_MAX,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(IRD_MAX)))]
    pub ird: u16,

    /// Enable atomics and immediate data (RFC 7306)
    ///
    /// off: their opcodes are unexpected.
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    pub rfc7306: Switch,

    /// The listener's limits.
    #[command(flatten)]
    pub listen: ListenOptions,

    /// Exit after the first connection
    #[arg(short = '1', long)]
    pub once: bool,

    /// Print one JSON object per event and line instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Print events and errors only
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Log events on standard error
    #[arg(short, long, conflicts_with = "quiet", help_heading = "Output")]
    pub verbose: bool,

    /// Log every frame with its headers on standard error
    #[arg(long, conflicts_with = "quiet", help_heading = "Output")]
    pub trace: bool,

    /// Transport of its connections.
    #[command(flatten)]
    pub transport: TransportArgs,

    /// Rights of the process.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// The queues of its TAP; the connections are the first one's.
    #[command(flatten)]
    pub queues: QueueOptions,

    /// Start-up of MPA.
    #[command(flatten)]
    pub mpa: MpaAcceptOptions,

    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

impl ServeArgs {
    /// Returns the quietness. `json` stays off: events are lines.
    pub const fn output_args(&self) -> OutputArgs {
        OutputArgs { quiet: self.quiet || self.json, trace: self.trace, json: false }
    }

    /// Returns the address to listen on.
    ///
    /// # Errors
    /// Same as [`HostAddress::at`].
    fn local(&self) -> Result<SocketAddr, Failure> {
        match &self.address {
            Some(address) => address.at(self.port, self.transport.transport),
            None => Ok(SocketAddr::new(self.node.all_addresses(), self.port)),
        }
    }

    /// Returns the requested regions, or the default region.
    fn regions(&self) -> Vec<Region> {
        match &self.regions[..] {
            [] => vec![Region::DEFAULT],
            regions => regions.to_vec(),
        }
    }
}

/// Runs `flue serve`.
///
/// # Errors
/// The node or its memory could not be opened, listening failed, or a signal was received.
pub fn run(args: &ServeArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let ended = run::run(args, console);
    let ended = if args.once { ended } else { unless_stopped(ended) };
    let ended = adapter::with_failed_outputs(ended);
    if let (Err(failure), true) = (&ended, args.json) {
        let document =
            Document::new(event::NAME, Some(failure), serde_json::json!({ "event": "error" }));
        // Cannot fail: the keys are strings.
        console.print(document.line().unwrap_or_default());
    }
    ended
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn parse(line: &str) -> Result<ServeArgs, String> {
        let words = std::iter::once("serve").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.serve).map_err(|error| error.to_string())
    }

    #[test]
    fn absent_options_have_defaults() {
        let plain = parse("").unwrap();
        assert_eq!(plain.regions(), [offer::parse("64K:rwa").unwrap()]);
        assert_eq!((plain.port, plain.receives, plain.receive_size), (7174, 16, 4096));
        let local = plain.local().map(|local| local.ip());
        assert_eq!((local, plain.rfc7306), (Ok([0, 0, 0, 0].into()), Switch::On));
        let given = parse("--region 1M --region 4K:a -1 --json --rfc7306 off").unwrap();
        assert_eq!(given.regions().len(), 2);
        assert!(given.once && given.output_args().quiet && !given.output_args().json);
        assert_eq!(given.rfc7306, Switch::Off);
    }

    #[test]
    fn invalid_options_are_rejected() {
        for (line, word) in [
            ("--receives 1025", "0..=1024"),
            ("--ird 0", "1..=128"),
            ("--region 0", "64 MiB"),
            ("--region 4K:x", "r, w and a"),
            ("--port 0", "1..=65535"),
            ("-q -v", "cannot be used with"),
        ] {
            let text = parse(line).err().unwrap();
            assert!(text.contains(word), "{line}: {word:?} is not in {text}");
        }
    }
}
