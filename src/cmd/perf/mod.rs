//! `flue perf`: bandwidth, latency and rates, in the manner of perftest and iperf3.
//!
//! Server without HOST, client with HOST. The client sends its options to the server ([`message`]); the server needs
//! only kind and port. `rdma` measures NDK queue pairs; `tcp` measures byte streams of the node or kernel sockets.
//! Results are printed by [`report`], with times from [`histogram`] and CPU time from [`cpu`].

pub mod cpu;
pub mod histogram;
pub mod kind;
pub mod message;
mod phase;
mod queues;
mod rdma;
pub mod report;
mod tcp;

use std::{net::SocketAddr, time::Duration};

use clap::{Args, ValueEnum};
use flue_adapter::{AdapterOptions, random_seed, word};
use host_stack::{node::Progress, socket::OffloadPolicy};
use rdma_over_tcp::ndk::ListenerConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use self::{
    kind::{ALL_MAX_BYTES, Kind, all_sizes, parse_seconds, parse_size},
    message::{Bound, Parameters},
    report::{OutputFormat, Reporter},
};
use crate::{
    adapter::{self, Transport},
    failure::{Failure, unless_stopped},
    host::HostAddress,
    options::{ListenOptions, MpaOptions, NodeArgs, NodeSetup, OutputArgs, QueueOptions, Rtr},
    report::Console,
    sandbox::SandboxArgs,
    station::ConnectOptions,
};

/// Default port: that of perftest.
pub const PORT_DEFAULT: u16 = 18515;
/// Largest number of data connections.
pub const CONNECTIONS_MAX: u32 = 16 * 1024;
/// Largest number of outstanding messages per connection: the adapter's queue depth.
pub const DEPTH_MAX: u32 = 16 * 1024;
/// Default number of outstanding messages per connection: that of perftest.
pub const DEPTH_DEFAULT: u32 = 128;
/// Largest number of messages posted per doorbell, also the default.
pub const POST_LIST_MAX: u32 = 64;
/// Default duration of a measurement, seconds.
const DURATION_DEFAULT_SECONDS: f64 = 1.0;
/// Default reporting interval on a terminal, seconds.
const INTERVAL_DEFAULT_SECONDS: f64 = 1.0;

/// Transport of this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StackName {
    /// Node, its connections offloaded as --offload selects
    #[default]
    Flue,
    /// Kernel sockets
    Kernel,
    /// Node with --offload never; tcp-* and connect-rate only
    Smoltcp,
}

/// Wait strategy of this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Waiting {
    /// Busy-polls
    Spin,
    /// Sleeps until an event
    Block,
}

/// Measure bandwidth, latency and rates of RDMA Write, Read, Send and TCP
///
/// Without HOST it is the server, which serves one client after the other; with HOST it is the client. The client sends
/// the parameters of the measurement to the server. The server needs only KIND and the port. --progress, --wait,
/// --stack and the node options apply to one end.
///
/// Bandwidth is payload bits per second, the sum of both directions with -b. Latency is half a round trip; of read-lat,
/// atomic-lat and connect-rate it is the whole operation.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  # two nodes on a bridge: server, then client
  ip link add br0 type bridge && ip link set br0 up
  flue perf write-bw --bridge br0 &
  flue perf write-bw --bridge br0 --tap flue1 --addr 10.77.0.3/24 10.77.0.2

  # a ping-pong of 8 B on kernel sockets
  flue perf send-lat --stack kernel -1 -p 5000 &
  flue perf send-lat --stack kernel -p 5000 -n 1000 127.0.0.1")]
pub struct PerfArgs {
    /// Test to run
    #[arg(value_enum)]
    pub kind: Kind,

    /// Connect to the server at this address; absent: be the server
    pub host: Option<HostAddress>,

    /// Time limit of its connects.
    #[command(flatten)]
    pub connect: ConnectOptions,

    /// Message size, bytes: 1..=64M, suffixes K and M
    ///
    /// Default: 64K for *-bw, 8 for *-lat and tcp-rr. Always 8 for atomic-*.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    pub size: Option<u64>,

    /// Measure all powers of two from 2 B to 8 MiB
    ///
    /// Each size uses new connections.
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,

    /// Measure this number of messages per direction
    ///
    /// The messages of all connections are counted.
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub iterations: Option<u64>,

    /// Measure each size for this time, seconds [default: 1]
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub duration: Option<f64>,

    /// Number of connections (queue pairs, streams): 1..=16384
    #[arg(short = 'P', long, visible_alias = "qp", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    pub connections: u32,

    /// Outstanding messages per connection: 1..=16384
    #[arg(short = 't', long, value_name = "N", default_value_t = DEPTH_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub depth: u32,

    /// Requests posted per doorbell: 1..=64
    #[arg(long, value_name = "N", default_value_t = POST_LIST_MAX,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(POST_LIST_MAX)))]
    pub post_list: u32,

    /// Send in both directions; *-bw only
    #[arg(short, long)]
    pub bidirectional: bool,

    /// Send from the server to the client; tcp-bw only
    #[arg(short = 'R', long, conflicts_with = "bidirectional")]
    pub reverse: bool,

    /// Warm up before each measurement, seconds
    ///
    /// The warm-up uses the same connections.
    #[arg(short = 'O', long, value_name = "SECONDS", default_value_t = 0.2, value_parser = parse_seconds)]
    pub omit: f64,

    /// Port of the server: 1..=65535
    #[arg(short, long, value_name = "PORT", default_value_t = PORT_DEFAULT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Exit after one client; server only
    #[arg(short = '1', long, conflicts_with = "host")]
    pub one_off: bool,

    /// TCP implementation of this end
    #[arg(long, visible_alias = "transport", value_enum, value_name = "STACK", default_value_t)]
    pub stack: StackName,

    /// Wait strategy [default: spin with --progress manual, else block]
    #[arg(long, value_enum, value_name = "HOW")]
    pub wait: Option<Waiting>,

    /// Print results at this interval, s [default: 1 on a terminal, else 0]
    ///
    /// 0: no intervals.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub interval: Option<f64>,

    /// Print one JSON object per line for each interval and size
    ///
    /// The last line is the document of --json.
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub json_stream: bool,

    /// Log events on standard error
    #[arg(short, long, conflicts_with = "quiet", help_heading = "Output")]
    pub verbose: bool,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,

    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,

    /// Rights of the process.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// The queues of its TAP, over which the connections are spread.
    #[command(flatten)]
    pub queues: QueueOptions,

    /// MPA, of queue pairs.
    #[command(flatten)]
    pub mpa: MpaOptions,

    /// Limits of a server of queue pairs.
    #[command(flatten)]
    pub listen: ListenOptions,
}

/// Validated plan of one end.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// Address of the server; `None` for the server itself.
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) port: u16,
    pub(crate) parameters: Parameters,
    pub(crate) sizes: Vec<u64>,
    pub(crate) bound: Bound,
    pub(crate) warm_up: Duration,
    pub(crate) interval: Option<Duration>,
    pub(crate) one_off: bool,
    pub(crate) stack: StackName,
    pub(crate) waiting: Waiting,
    pub(crate) listen: ListenerConfig,
    /// Session id, common to the connections of this end.
    pub(crate) session: u64,
    /// Time limit of a connect.
    pub(crate) connect_limit: Duration,
    pub(crate) sandbox: SandboxArgs,
}

impl PerfArgs {
    /// Returns the quietness. `json` stays off: this command prints its own document.
    pub const fn output_args(&self) -> OutputArgs {
        let quiet = self.output.quiet || self.is_json();
        OutputArgs { quiet, trace: self.output.trace, json: false }
    }

    const fn is_json(&self) -> bool {
        self.output.json || self.json_stream
    }

    /// Validates the combination of options.
    fn plan(&self) -> Result<Plan, Failure> {
        let kind = self.kind;
        let name = word(kind);
        let refuse = |what: &str| Err(Failure::usage(format!("{what}: not supported by {name}")));
        if self.bidirectional && !kind.is_bandwidth() {
            return refuse("-b");
        }
        if self.reverse && kind != Kind::TcpBw {
            return refuse("-R");
        }
        if self.connections > 1 && !kind.is_bandwidth() {
            return refuse("--connections above 1");
        }
        if kind.has_one_size() && (self.size.is_some() || self.all) {
            return refuse("-s and -a");
        }
        if kind.is_rdma() && self.stack == StackName::Smoltcp {
            return refuse("--stack smoltcp");
        }
        if self.queues.queues > 1 && self.stack == StackName::Kernel {
            return Err(Failure::usage(format!(
                "--queues {}: not supported with --stack kernel, which has no TAP",
                self.queues.queues
            )));
        }
        if let Some(host) = &self.host
            && (host.ip.is_unspecified() || host.ip.is_multicast())
        {
            return Err(Failure::usage(format!("HOST {host}: expected a unicast address")));
        }
        if self.duration == Some(0.0) {
            return Err(Failure::usage("-D 0: expected more than 0 seconds"));
        }
        let sizes: Vec<u64> = match (self.all, self.size) {
            (true, _) => all_sizes().collect(),
            (false, size) => vec![size.unwrap_or_else(|| kind.size_default_bytes())],
        };
        let size_max_bytes = if self.all { ALL_MAX_BYTES } else { sizes[0] };
        let depth = if kind.is_bandwidth() { self.depth } else { 1 };
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds);
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let bound = match self.iterations {
            Some(iterations) => Bound::Iterations(iterations),
            None => Bound::DurationNs(nanos(self.duration.unwrap_or(DURATION_DEFAULT_SECONDS))),
        };
        let on_terminal = !self.is_json() && rustix::termios::isatty(std::io::stdout());
        let interval = self.interval.or_else(|| on_terminal.then_some(INTERVAL_DEFAULT_SECONDS));
        let manual = self.node.node.progress == Progress::Manual && self.stack != StackName::Kernel;
        let by_progress = if manual { Waiting::Spin } else { Waiting::Block };
        if self.mpa.accept.rtr == Some(Rtr::Send) {
            return Err(Failure::usage(
                "--rtr send: not supported: the server posts no receive for it",
            ));
        }
        let transport =
            if self.stack == StackName::Kernel { Transport::Kernel } else { Transport::Tap };
        let remote = self.host.as_ref().map(|host| host.at(self.port, transport)).transpose()?;
        Ok(Plan {
            kind,
            remote,
            port: self.port,
            parameters: Parameters {
                kind,
                connections: self.connections,
                depth,
                post_list: self.post_list.min(depth),
                bidirectional: self.bidirectional,
                reverse: self.reverse,
                size_max_bytes,
            },
            sizes,
            bound,
            warm_up: seconds(self.omit),
            interval: interval.filter(|interval| *interval > 0.0).map(seconds),
            one_off: self.one_off,
            stack: self.stack,
            waiting: self.wait.unwrap_or(by_progress),
            listen: self.listen.config(),
            session: random_seed()?,
            connect_limit: self.connect.limit(),
            sandbox: self.sandbox,
        })
    }

    fn adapter(&self, plan: &Plan) -> Result<AdapterOptions, Failure> {
        match self.stack {
            StackName::Kernel => {
                adapter::resolve(&self.node, self.queues, Transport::Kernel, self.mpa)
            }
            StackName::Flue | StackName::Smoltcp => {
                Ok(adapter::on_node(self.node_setup(plan)?, self.mpa))
            }
        }
    }

    fn node_setup(&self, plan: &Plan) -> Result<NodeSetup, Failure> {
        let mut setup = queues::resolve(&self.node, self.queues, plan.waiting)?;
        if self.stack == StackName::Smoltcp {
            setup.node.offload = OffloadPolicy::Never;
        }
        Ok(setup)
    }
}

impl Parameters {
    /// Validates the parameters requested by a client.
    ///
    /// # Errors
    /// [`Failure::work`] with the parameter that exceeds its limit.
    fn check(&self, kind: Kind) -> Result<(), Failure> {
        let Self { connections, depth, post_list, size_max_bytes, .. } = *self;
        if self.kind != kind {
            let other = self.kind;
            return Err(Failure::work(format!("kind {other}, expected {kind}")));
        }
        let within = |what: &str, value: u64, max: u64| match value {
            0 => Err(Failure::work(format!("{what} 0, expected 1 to {max}"))),
            value if value > max => {
                Err(Failure::work(format!("{what} {value}, expected 1 to {max}")))
            }
            _ => Ok(()),
        };
        within("connections", connections.into(), CONNECTIONS_MAX.into())?;
        within("depth", depth.into(), DEPTH_MAX.into())?;
        within("post list", post_list.into(), POST_LIST_MAX.into())?;
        within("size", size_max_bytes, kind::SIZE_MAX_BYTES)
    }

    /// Returns true if the client sends data in the phases.
    const fn client_sends(&self) -> bool {
        !self.reverse
    }

    /// Returns true if the server sends data in the phases.
    const fn server_sends(&self) -> bool {
        self.reverse || self.bidirectional
    }
}

/// Adds the remedy to a failed connect, unless it has one.
pub(crate) fn no_server(failure: Failure) -> Failure {
    let hint = "start a flue perf server of the same kind there; it serves one client at a time";
    match &failure.hint {
        Some(_) => failure,
        None => failure.with_hint(hint),
    }
}

/// Raises the limit of descriptors to the largest one permitted: each connection on kernel sockets has one.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Never denied up to the maximum; if it is, a connection reports the limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Runs `flue perf`.
///
/// # Errors
/// The node or the connection could not be opened, the peer violated the protocol, or progress stalled.
pub fn run(args: &PerfArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let output_format = match (args.output.json, args.json_stream) {
        (true, _) => OutputFormat::Document,
        (false, true) => OutputFormat::Stream,
        (false, false) => OutputFormat::Text,
    };
    // Before the process drops the right to open files.
    cpu::prepare();
    let mut reporter = Reporter::new(args.kind, args.host.is_some(), output_format);
    raise_descriptor_limit();
    let ended = args.plan().and_then(|plan| {
        reporter.plan(&plan, args.node.node.progress);
        if plan.kind.is_rdma() {
            let options = args.adapter(&plan)?;
            adapter::show(&options, console);
            rdma::run(&plan, &options, &mut reporter, console)
        } else if plan.stack == StackName::Kernel {
            tcp::run_kernel(&plan, &mut reporter, console)
        } else {
            let setup = args.node_setup(&plan)?;
            console.config(&setup);
            tcp::run_node(&plan, &setup, &mut reporter, console)
        }
    });
    // A server without a limit runs until a signal stops it.
    let ended = match args.host.is_none() && !args.one_off {
        true => unless_stopped(ended),
        false => ended,
    };
    let ended = adapter::with_failed_outputs(ended);
    reporter.finish(ended.as_ref().err(), console);
    ended
}

#[cfg(test)]
mod tests;
