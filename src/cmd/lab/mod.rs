//! `flue lab`: two nodes in two network namespaces transfer a file by Send, RDMA Write and RDMA Read.
//!
//! ```text
//!  namespace A                                      namespace B
//!  node A - TAP - bridge - veth ========= veth - bridge - TAP - node B
//! ```
//!
//! The lab consists of three processes. The first one enters a separate network namespace (through a user namespace
//! if it is not root), so that the machine's namespace is unaffected. It starts the two nodes, which create their own
//! namespaces below it ([`children`], [`session`]). It connects them by a veth pair, each end created directly in its
//! namespace, and then executes the actions of [`director`]. The nodes run [`script`] over their queue pair, and
//! [`control`] with the lab.
//!
//! Limits: a step that takes longer than [`STALL_LIMIT`] is a failure.

pub mod children;
pub mod control;
pub mod director;
pub mod memory;
pub mod node;
pub mod script;
pub mod session;

use std::{
    fmt, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use clap::Args;
use flue_adapter::NodeOptions;
use offload_engine::state::MacAddress;
use serde::Serialize;

use self::{
    children::{Children, Input},
    control::{NodePlan, Side},
    director::{Action, Director, LabResult},
    script::{CHUNK_BYTES_MAX, FILE_BYTES_MAX, TransferKind, WINDOW_RECEIVES_MAX},
};
use crate::{
    adapter::{Transport, TransportArgs},
    control::socket_path::ControlSocketPath,
    environment,
    failure::Failure,
    namespace::{self, EntryMethod},
    net::{NamespaceOf, Netlink, VethEnd},
    options::{NodeArgs, NodeSetup, OutputArgs},
    report::{Console, progress::Progress},
    units::{IpPrefix, format_bytes},
};

/// Time limit for the next report of a node. The slowest step is a long file over a lossy wire.
pub const STALL_LIMIT: Duration = Duration::from_secs(60);
/// Default address of node A.
pub const ADDRESS_A_DEFAULT: &str = "10.77.0.1/24";
/// Default bridge name in each namespace.
pub const BRIDGE_DEFAULT: &str = "br0";
/// Name of the veth end in each namespace.
pub const CABLE: &str = "cable0";
/// Default port where B listens: the port of rping.
pub const PORT_DEFAULT: u16 = 7174;
/// Path of the running program, as its child processes resolve it.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Hidden command that runs a node of the lab.
pub const NODE_COMMAND: &str = "lab-node";

/// Transfer a file by Send, RDMA Write and RDMA Read, and verify it
///
/// Creates two network namespaces, with a TAP and a bridge in each, and a veth pair between the bridges. Requires
/// /dev/net/tun, and root or user namespaces. Node A connects to node B through its host stack (ARP, TCP handshake).
/// Both nodes offload the connection to the target and negotiate MPA. The file is transferred three times, and SHA-256
/// is compared each time. --pcap FILE captures the frames of node A. Everything is removed with the processes, also on
/// Ctrl-C.
///
/// Node options apply to both nodes, except --addr, which is that of A (B has the next address), and --pcap and
/// --tcp-trace, which are those of A.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue lab
  flue lab --file /etc/passwd --mtu 9000 --pcap lab.pcapng
  flue lab --file /etc/passwd --drop 0.5 --delay 1ms --seed 7
  flue lab --json | jq '.result.operations[] | {operation, rate_bps}'")]
pub struct LabArgs {
    /// Transfer this file, 1 byte to 1 GiB [default: the flue executable]
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,

    /// Size of one Send, Write or Read, bytes: 1..=16777216
    #[arg(long, value_name = "BYTES", default_value_t = 256 * 1024,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(CHUNK_BYTES_MAX)))]
    pub chunk: u32,

    /// Receives that B posts in advance: 1..=1024
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(WINDOW_RECEIVES_MAX)))]
    pub window: u32,

    /// Port of B: 1..=65535
    #[arg(short, long, value_name = "PORT", default_value_t = PORT_DEFAULT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Log events on standard error
    #[arg(short, long, conflicts_with = "quiet", help_heading = "Output")]
    pub verbose: bool,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Transport of the queue pair.
    #[command(flatten)]
    pub transport: TransportArgs,

    /// Both nodes.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// Effective configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LabConfig {
    /// File to transfer.
    pub file: PathBuf,
    /// Length of the file, bytes.
    pub file_bytes: u64,
    /// Bytes of one Send, Write or Read.
    pub chunk_bytes: u32,
    /// Receives that B posts ahead.
    pub window_receives: u32,
    /// Port where B listens.
    pub port: u16,
    /// Transport of the queue pair.
    pub transport: Transport,
    /// Setups of A and B.
    pub nodes: [NodeSetup; 2],
}

impl fmt::Display for LabConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, file_bytes, chunk_bytes, window_receives, port, transport, nodes } = self;
        let size = format_bytes(*file_bytes);
        writeln!(f, "file: {} ({size}), chunks of {chunk_bytes} bytes", file.display())?;
        writeln!(f, "B: port {port}, {window_receives} receives posted in advance")?;
        if *transport == Transport::Kernel {
            return write!(f, "transport: kernel sockets");
        }
        for (side, node) in Side::BOTH.into_iter().zip(nodes) {
            for line in node.to_string().lines() {
                writeln!(f, "{side}: {line}")?;
            }
        }
        Ok(())
    }
}

impl LabArgs {
    /// Validates the options and fills in defaults.
    ///
    /// # Errors
    /// [`Failure::usage`] with the option and its limit.
    pub fn resolve(&self) -> Result<LabConfig, Failure> {
        let refused = [
            ("--mac", self.node.node.mac.is_some(), "the nodes require different ones"),
            ("--tap-fd", self.node.node.tap_fd.is_some(), "the nodes run in other namespaces"),
            (
                "--host-addr",
                !self.node.node.host_addresses.is_empty(),
                "the TAPs are ports of bridges",
            ),
            ("--control PATH", self.has_control_path(), "the nodes require different ones"),
            ("--gateway", !self.node.node.gateways.is_empty(), "the lab has no router"),
        ];
        for (option, given, why) in refused {
            if given {
                return Err(Failure::usage(format!("{option}: not supported by the lab: {why}")));
            }
        }
        let transport = self.transport.transport;
        if transport == Transport::Kernel {
            self.check_for_sockets()?;
        }
        let file = self.file.clone().unwrap_or_else(|| OWN_PROGRAM.into());
        let file_bytes = file_length(&file)?;
        let nodes = self.nodes()?;
        let interfaces = {
            let NodeOptions { tap, bridge, .. } = &nodes[0].node;
            [tap.as_str(), bridge.as_deref().unwrap_or(""), CABLE]
        };
        for (index, name) in interfaces.iter().enumerate() {
            if interfaces[..index].contains(name) {
                return Err(Failure::usage(format!(
                    "--tap and --bridge: name {name} used twice, expected different names"
                )));
            }
        }
        Ok(LabConfig {
            file,
            file_bytes,
            chunk_bytes: self.chunk,
            window_receives: self.window,
            port: self.port,
            transport,
            nodes,
        })
    }

    /// Rejects node options that kernel sockets do not support.
    fn check_for_sockets(&self) -> Result<(), Failure> {
        let NodeOptions { addresses, mtu_bytes, pcap, seed, .. } = self.node.node.clone();
        let own = NodeOptions { addresses, mtu_bytes, pcap, seed, ..NodeOptions::default() };
        if self.node.node == own {
            return Ok(());
        }
        Err(Failure::usage(
            "--transport kernel: only --addr, --control, --mtu, --pcap and --seed of the node options are supported",
        ))
    }

    fn has_control_path(&self) -> bool {
        matches!(
            ControlSocketPath::resolve(self.node.control.as_deref()),
            ControlSocketPath::Path(_)
        )
    }

    fn nodes(&self) -> Result<[NodeSetup; 2], Failure> {
        let mut args = self.node.clone();
        args.node.bridge.get_or_insert_with(|| BRIDGE_DEFAULT.into());
        if args.node.addresses.is_empty() {
            args.node.addresses.push(ADDRESS_A_DEFAULT.parse().expect("default address is valid"));
        }
        // Ethernet addresses do not depend on the seed, so captures of two runs can be compared.
        let mac =
            |address: IpPrefix| Some(MacAddress::derived(format!("lab|{address}").as_bytes()));
        args.node.mac = mac(args.node.addresses[0]);
        let a = args.resolve()?;
        let following = |prefix: &IpPrefix| {
            prefix.successor().filter(|next| !a.node.addresses.contains(next)).ok_or_else(|| {
                Failure::usage(format!(
                    "--addr {prefix}: no next address for B in this prefix: choose a lower one"
                ))
            })
        };
        args.node.addresses = a.node.addresses.iter().map(following).collect::<Result<_, _>>()?;
        args.node.mac = mac(args.node.addresses[0]);
        args.node.pcap = None;
        args.node.tcp_trace = None;
        // With the same seed, both nodes would draw the same random numbers.
        args.node.seed = Some(a.node.seed().wrapping_add(1));
        let b = args.resolve()?;
        Ok([a, b])
    }
}

fn file_length(file: &Path) -> Result<u64, Failure> {
    let failed = |why: String| Failure::usage(format!("--file {}: {why}", file.display()));
    let metadata = fs::metadata(file).map_err(|error| failed(error.to_string()))?;
    if !metadata.is_file() {
        return Err(failed("not a regular file".into()));
    }
    match metadata.len() {
        length @ 1..=FILE_BYTES_MAX => Ok(length),
        length => Err(failed(format!("{length} bytes, expected 1 to {FILE_BYTES_MAX}"))),
    }
}

impl LabConfig {
    /// Returns the plan of a node, in a network namespace of its own or on loopback.
    fn plan(&self, side: Side, is_loopback: bool) -> NodePlan {
        NodePlan {
            setup: self.nodes[side.index()].clone(),
            transport: self.transport,
            cable: (!is_loopback).then(|| CABLE.into()),
            target: match is_loopback {
                true => Ipv4Addr::LOCALHOST.into(),
                false => self.nodes[Side::B.index()].node.addresses[0].address(),
            },
            port: self.port,
            file: self.file.clone(),
            chunk_bytes: self.chunk_bytes,
            window_receives: self.window_receives,
        }
    }
}

/// Runs the lab. Call it before the process has a second thread.
///
/// # Errors
/// The failed step and its node.
pub fn run(args: &LabArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let config = args.resolve()?;
    match args.verbose {
        true => console.config(&config),
        false => console.set_config(&config),
    }
    if config.transport == Transport::Tap {
        environment::check_tun()?;
    }
    let began = Instant::now();
    let seed = config.nodes[0].node.seed();
    let is_loopback = match namespace::enter() {
        Ok(entered) => {
            let way = match entered {
                EntryMethod::Privileged => "as root",
                EntryMethod::UserNamespace => "through a user namespace",
            };
            console.step(format_args!("namespaces: two, {way}; seed {seed}"));
            false
        }
        Err(failure) if config.transport == Transport::Kernel => {
            console.step(format_args!("loopback: {}; seed {seed}", failure.message));
            true
        }
        Err(failure) => return Err(failure.into()),
    };
    let command = |side: Side| {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg(NODE_COMMAND).arg(side.to_string());
        if is_loopback {
            command.arg("--loopback");
        }
        if args.output.trace {
            command.arg("--trace");
        } else if args.verbose {
            command.arg("--verbose");
        }
        command
    };
    let mut director = Director::new(Side::BOTH.map(|side| config.plan(side, is_loopback)));
    let mtu_bytes = config.nodes[0].node.mtu_bytes;
    let total = TransferKind::ALL.len() as u64 * config.file_bytes;
    let mut progress = Progress::new(began, total, console.style());
    let ended = Children::start(Side::BOTH.map(command)).and_then(|mut children| {
        direct(&mut director, &mut children, mtu_bytes, |event| match event {
            Event::Step(text) if args.verbose => {
                let seconds = began.elapsed().as_secs_f64();
                progress.above(|| console.remark(format_args!("{seconds:9.3} s  {text}")));
            }
            Event::Step(_) => {}
            Event::Progress(passage, bytes) => {
                let text = format!("{passage}, {} of {}", format_bytes(bytes), format_bytes(total));
                progress.update(Instant::now(), bytes, &text);
            }
        })?;
        children.finish()
    });
    drop(progress);
    console.result(director.result());
    print_result(&config, is_loopback, director.result(), console);
    let capture = config.nodes[0].node.pcap.as_ref().filter(|_| ended.is_ok());
    if let Some(capture) = capture {
        console.step(format_args!("capture of node A: {}", capture.display()));
    }
    ended
}

/// Prints the file, the connection, the table of transfers, and the capture.
fn print_result(
    config: &LabConfig,
    is_loopback: bool,
    result: &LabResult,
    console: &mut Console<'_>,
) {
    if let Some(digest) = result.operations.iter().find_map(|it| it.sha256.as_ref()) {
        let (file, size) = (config.file.display(), format_bytes(config.file_bytes));
        console.step(format_args!("file: {file}, {size}, SHA-256 {digest}"));
    }
    if let Some(negotiated) = &result.nodes[Side::A.index()].negotiated {
        let NodePlan { target, port, .. } = config.plan(Side::A, is_loopback);
        console.step(format_args!("connection: {target} port {port}, {negotiated}"));
    }
    if result.operations.is_empty() {
        return;
    }
    console.print(format_args!("\n{}", result.table()));
    if config.transport == Transport::Tap {
        console.step("TX counters of node A, counted after segmentation");
    }
}

/// Event that the lab shows.
enum Event<'a> {
    Step(&'a str),
    /// Bytes transferred, of all transfers.
    Progress(TransferKind, u64),
}

/// Executes the director's actions until it is finished.
fn direct(
    director: &mut Director,
    children: &mut Children,
    mtu_bytes: u16,
    mut show: impl FnMut(Event<'_>),
) -> Result<(), Failure> {
    loop {
        while let Some(act) = director.poll() {
            match act {
                Action::Finish => return Ok(()),
                Action::Print(text) => show(Event::Step(&text)),
                Action::Progress(passage, bytes) => show(Event::Progress(passage, bytes)),
                Action::Order(side, order) => children.order(side, &order)?,
                Action::Cable(pids) => {
                    let [a, b] = pids
                        .map(|pid| VethEnd { name: CABLE, namespace: Some(NamespaceOf { pid }) });
                    Netlink::open()?.create_veth(a, b, mtu_bytes)?;
                }
            }
        }
        match children.next(STALL_LIMIT)? {
            Input::Report(side, report) => director.handle(side, report)?,
            Input::Ended(side) if director.is_done(side) => {}
            Input::Ended(side) => {
                let ending = children.ending(side);
                return Err(Failure::work(format!("node {side}: process exited: {ending}")));
            }
            Input::Invalid(side, line) => {
                let line = line.trim_end();
                return Err(Failure::work(format!("node {side}: invalid report {line:?}")));
            }
            Input::Signal(signal) => return Err(Failure::interrupted(signal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{control::Report, *};
    use crate::failure::Kind;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        lab: LabArgs,
    }

    fn resolve(line: &str) -> Result<LabConfig, Failure> {
        let words = std::iter::once("lab").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().lab.resolve()
    }

    #[test]
    fn nodes_differ_in_address_seed_and_capture() {
        let config = resolve("--seed 5").unwrap();
        let [a, b] = config.nodes.each_ref().map(|setup| &setup.node);
        assert_eq!(a.addresses[0].to_string(), ADDRESS_A_DEFAULT);
        assert_eq!(b.addresses[0].to_string(), flue_adapter::ADDRESS_DEFAULT);
        assert_ne!(a.mac(), b.mac());
        assert_eq!((a.seed(), b.seed()), (5, 6));
        assert_eq!(a.pcap, None, "no file without --pcap");
        let files = resolve("--pcap a.pcapng").unwrap().nodes.map(|setup| setup.node.pcap);
        assert_eq!(files, [Some("a.pcapng".into()), None], "only node A has a capture");
        assert_eq!(a.bridge.as_deref(), Some(BRIDGE_DEFAULT));
        let six = resolve("--addr fd77::1/64 --addr 10.1.0.9/16").unwrap();
        let addresses: Vec<_> =
            six.nodes[1].node.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["fd77::2/64", "10.1.0.10/16"]);
        assert_eq!(six.plan(Side::A, false).target, six.nodes[1].node.addresses[0].address());
    }

    #[test]
    fn inapplicable_options_are_rejected() {
        let cases = [
            ("--mac 02:00:00:00:00:01", "--mac"),
            ("--host-addr 10.77.0.9/24", "--host-addr"),
            ("--gateway 10.77.0.9", "--gateway"),
            ("--control /tmp/x.sock", "--control"),
            ("--addr 10.77.0.254/24", "--addr 10.77.0.254/24"),
            ("--addr 10.77.0.1/24 --addr 10.77.0.2/24", "--addr 10.77.0.1/24"),
            ("--tap br0", "br0"),
            ("--tap cable0", "cable0"),
            ("--file /nonexistent", "--file /nonexistent"),
            ("--file /", "not a regular file"),
            ("--file /proc/self/status", "0 bytes"),
        ];
        for (line, word) in cases {
            let failure = resolve(line).unwrap_err();
            assert_eq!(failure.kind, Kind::Usage, "{line}");
            assert!(failure.message.contains(word), "{word:?} is not in {failure}");
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    /// Runs the lab's loop on two shell scripts instead of nodes.
    fn direct_scripts(a: &str, b: &str) -> (Result<(), Failure>, Director) {
        let config = resolve("--seed 1").unwrap();
        let mut director = Director::new(Side::BOTH.map(|side| config.plan(side, false)));
        let mut children = Children::start([shell(a), shell(b)]).unwrap();
        let ended = direct(&mut director, &mut children, 1500, |_| {});
        (ended, director)
    }

    #[test]
    fn run_ends_when_both_nodes_are_done() {
        let done = r#"echo '{"report":"done"}'"#;
        let (ended, director) = direct_scripts(done, done);
        assert_eq!(ended, Ok(()));
        assert!(Side::BOTH.into_iter().all(|side| director.is_done(side)));
    }

    #[test]
    fn late_node_failure_fails_the_lab() {
        for (script, expected) in [
            ("read order; exit 0", None),
            ("read order; exit 1", Some("node B: process exited: exit status: 1")),
            ("kill -KILL $$", None),
        ] {
            let mut children = Children::start([shell("exit 0"), shell(script)]).unwrap();
            let failure = children.finish().err();
            assert_eq!(failure.as_ref().map(|failure| failure.message.as_str()), expected);
        }
    }

    #[test]
    fn crashed_node_is_reported_with_its_status() {
        let (ended, _) = direct_scripts("read order", "exit 9");
        let failure = ended.unwrap_err();
        assert_eq!(failure.message, "node B: process exited: exit status: 9");
        let (ended, _) = direct_scripts("kill -KILL $$", "read order");
        assert!(ended.unwrap_err().message.contains("node A: process exited: signal: 9"));
    }

    #[test]
    fn node_failure_keeps_its_kind() {
        let failure = Failure::lacking("no TUN");
        let report = serde_json::to_string(&Report::Failed { failure }).unwrap();
        let (ended, _) = direct_scripts(&format!("echo '{report}'; exit 3"), "read order");
        let failure = ended.unwrap_err();
        assert_eq!((failure.kind, failure.message.as_str()), (Kind::Lacking, "node A: no TUN"));
    }

    #[test]
    fn invalid_report_is_an_error() {
        let (ended, _) = direct_scripts("echo hello", "read order");
        assert!(ended.unwrap_err().message.contains(r#"node A: invalid report "hello"#));
    }
}
