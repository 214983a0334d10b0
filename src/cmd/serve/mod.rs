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
    adapter::TransportArgs,
    cmd::perf::kind::parse_size,
    failure::Failure,
    host::HostAddress,
    options::{ListenOptions, MpaAcceptOptions, NodeArgs, QueueOptions, Quietness, Switch},
    report::Console,
};

/// Default port: that of rping.
pub const PORT_DEFAULT: u16 = 7174;
/// Largest number of connections.
pub const CONNECTIONS_MAX: usize = 64;
/// Largest number of receives per connection.
pub const RECEIVES_MAX: u16 = 1024;
/// Largest number of outstanding Reads and atomics of a peer: the adapter's limit.
pub const IRD_MAX: u16 = 128;

/// Offer memory to RDMA Write, Read and atomics, receive Sends, and log what happens
///
/// A responder for driver and conformance tests. The private data of MPA's Reply lists the regions, one line per
/// region: "flue1 stag=0x00c0ffee addr=0x00007f0012345000 len=65536 rights=rw". All peers share the same regions, whose
/// contents persist between connections. The log has requests, Sends, immediate data, errors and ends with the
/// connection's counters; Writes, Reads and atomics appear in the counters only.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue serve --host-addr 10.77.0.1/24                         64 KiB for everything, and 16 receives
  flue serve --region 1M:w --region 4K:ra --echo --json       two regions; each Send comes back; events as JSON")]
pub struct ServeArgs {
    /// Address to listen on [default: all addresses of the node]
    #[arg(short = 'a', long, value_name = "IP[%INTERFACE]")]
    pub address: Option<HostAddress>,

    /// Port: 1..=65535
    #[arg(short, long, value_name = "PORT", default_value_t = PORT_DEFAULT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// A region of so many bytes, 1 to 64M, for remote read (r), write (w) and atomics (a), which need :rights to be
    /// named; may be given several times [default: 64K:rwa]
    #[arg(long = "region", value_name = "SIZE[:rwa]", value_parser = offer::parse)]
    pub regions: Vec<Region>,

    /// Receives posted on each connection: 0..=1024
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(..=i64::from(RECEIVES_MAX)))]
    pub receives: u16,

    /// Bytes of a receive: 1 to 64M; a longer Send ends the connection
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub receive_size: u64,

    /// Send back what was received, immediate data too
    #[arg(long)]
    pub echo: bool,

    /// Reads and atomics of a peer that are served at once (IRD): 1..=128
    #[arg(long, value_name = "N", default_value_t = IRD_MAX,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(IRD_MAX)))]
    pub ird: u16,

    /// Atomics and immediate data (RFC 7306); off: they are unexpected opcodes
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    pub rfc7306: Switch,

    /// The listener's limits.
    #[command(flatten)]
    pub listen: ListenOptions,

    /// End when the first connection has ended
    #[arg(short = '1', long)]
    pub once: bool,

    /// Print a JSON object for each event, one a line, instead of text
    #[arg(long)]
    pub json: bool,

    /// Print events and errors only, not the configuration
    #[arg(short, long)]
    pub quiet: bool,

    /// Log what happens in the node on standard error
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Log each frame, with the headers of each layer, on standard error (a lot)
    #[arg(long, conflicts_with = "quiet")]
    pub trace: bool,

    /// Transport of its connections.
    #[command(flatten)]
    pub transport: TransportArgs,

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
    pub const fn quietness(&self) -> Quietness {
        Quietness { quiet: self.quiet || self.json, trace: self.trace, json: false }
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
    run::run(args, console)
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
        assert!(given.once && given.quietness().quiet && !given.quietness().json);
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
