//! The options that every command which runs a node has, and the node's configuration they become.
//!
//! [`NodeOptions`] is what was typed. [`NodeOptions::resolve`] checks what no single option can know
//! (an MTU too small for the IPv6 address beside it) and fills in what was left out, and the result,
//! [`NodeConfig`], is what is printed at start, what stands in `--json` documents, and what the lab
//! sends to its nodes.

mod chimney;
mod impairment;

use std::{fmt, net::IpAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use offload_engine::link::NapiMode;
use serde::{Deserialize, Serialize};

pub use self::{
    chimney::{
        Capacity, ChimneyConfig, ChimneyOptions, OFFLOAD_AFTER_BYTES_DEFAULT, PORTS_MAX,
        UPLOAD_REST_DEFAULT_SECONDS, UploadOn,
    },
    impairment::{Impairment, ImpairmentOptions},
};
use crate::{
    control::place::ControlPlace,
    failure::Failure,
    units::{IpPrefix, Mac},
};

/// The address of a node for which none is given.
pub const ADDRESS_DEFAULT: &str = "10.77.0.2/24";
/// The TAP of a node for which none is given.
pub const TAP_DEFAULT: &str = "flue0";
/// Bytes of an Ethernet MTU.
pub const MTU_DEFAULT_BYTES: u16 = 1500;
/// TcpMaximumRetransmissions of a node for which none is given.
pub const MAX_RETRANSMISSIONS_DEFAULT: u8 = 15;
/// Largest receive window of a node for which none is given: 4 MiB.
pub const RECEIVE_WINDOW_DEFAULT_BYTES: u32 = 4 * 1024 * 1024;
/// Largest receive windows that can be chosen, bytes; 1 GiB is what a scaled window can say (RFC 7323 s2.3).
pub const RECEIVE_WINDOW_RANGE_BYTES: std::ops::RangeInclusive<i64> = 4096..=1 << 30;
/// Frames that the kernel can be told to keep for a TAP's reader; a queue of the most takes 8 MB.
pub const TXQUEUELEN_RANGE: std::ops::RangeInclusive<i64> = 1..=1_000_000;
/// Smallest MTU, the host stack's: IPv6 demands it of every link (RFC 8200 section 5).
pub const MTU_MIN_BYTES: u16 = 1280;
/// Largest MTU of a TAP: 65 535 octets less the Ethernet header.
pub const MTU_MAX_BYTES: u16 = 65_521;
/// Longest interface name: IFNAMSIZ less its NUL.
pub const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// Most queues of a TAP.
pub const QUEUES_MAX: u8 = offload_engine::link::TAP_QUEUES_MAX as u8;
/// Most addresses of a node: what the host stack is built for.
pub const ADDRESSES_MAX: usize = 8;

/// Whether TAP frames carry a virtio-net header, through which the kernel cuts and checksums
/// super-segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vnet {
    /// Probe, and fall back to plain frames.
    #[default]
    Auto,
    /// Fail when the kernel refuses it.
    On,
    /// For checksums of sent frames only: frames of at most one MTU.
    Checksum,
    /// Plain frames of at most one MTU.
    Off,
}

/// Whether pages of transmitted super-segments are brought back to the processor that wrote them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reclaim {
    /// Where the kernel's page lists make it worth while, and it can be had.
    #[default]
    Auto,
    /// Fail when it cannot be had.
    On,
    /// Leave them to their readers.
    Off,
}

/// Who takes the frames that a node sends up the kernel's stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Napi {
    /// Who sends them, one at a time.
    #[default]
    Off,
    /// A thread of the kernel, as many at a time as wait: more bandwidth with plain frames, a wake-up more for a frame
    /// that comes alone. Off where the kernel refuses it.
    Threaded,
}

impl Napi {
    /// As the link calls it.
    pub fn mode(self) -> NapiMode {
        match self {
            Self::Off => NapiMode::Off,
            Self::Threaded => NapiMode::Threaded,
        }
    }
}

/// Which connections are handed to the offload target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// Each one, as soon as it is established.
    #[default]
    Always,
    /// None.
    Never,
    /// Those that have carried 64 KiB in one direction, and at once those of queue pairs.
    Auto,
}

/// Which segments carry PSH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Psh {
    /// The last one made from each net buffer list.
    #[default]
    List,
    /// The last one before the send queue runs empty.
    Empty,
}

/// Congestion control of offloaded connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    /// CUBIC, RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 and 6582.
    Newreno,
    /// No window but the peer's.
    None,
}

/// Who makes the engine progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// A thread of its own.
    #[default]
    Auto,
    /// The caller, when it polls for completions.
    Manual,
}

/// An interface name: 1..=15 bytes, no blank, slash or colon, not "." or "..".
pub(crate) fn parse_interface(text: &str) -> Result<String, String> {
    let fits = (1..=INTERFACE_NAME_BYTES_MAX).contains(&text.len());
    let clean = text.bytes().all(|b| b.is_ascii_graphic() && !b"/:%".contains(&b));
    if fits && clean && text != "." && text != ".." {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "not an interface name: 1 to {INTERFACE_NAME_BYTES_MAX} visible ASCII characters, \
             none of them / : %"
        ))
    }
}

/// Options of the node: its TAP, its addresses, its policies, its weather.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Node options")]
pub struct NodeOptions {
    /// TAP to use: created if absent, attached to if there
    ///
    /// A TAP that this run creates goes away with it. One that was made before ("ip tuntap add mode
    /// tap user $USER name flue0") can be used without CAP_NET_ADMIN by the user it belongs to.
    #[arg(long, value_name = "NAME", default_value = TAP_DEFAULT, value_parser = parse_interface)]
    pub tap: String,

    /// Address of the node and length of its prefix; repeat for more, IPv4 or IPv6, at most 8
    /// [default: 10.77.0.2/24; lab: 10.77.0.1/24]
    ///
    /// In the lab it is node A's; node B gets the address after it.
    #[arg(long, value_name = "IP/PREFIX")]
    pub addr: Vec<IpPrefix>,

    /// Router for everything outside the prefixes of --addr; at most one for each family
    #[arg(long, value_name = "IP")]
    pub gateway: Vec<IpAddr>,

    /// Ethernet address of the node [default: locally administered, derived from TAP name, address
    /// and --seed, if given]
    #[arg(long, value_name = "MAC")]
    pub mac: Option<Mac>,

    /// Largest IP packet, bytes: 1280..=65521
    #[arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT_BYTES,
          value_parser = clap::value_parser!(u16).range(i64::from(MTU_MIN_BYTES)..=i64::from(MTU_MAX_BYTES)))]
    pub mtu: u16,

    /// Make the TAP a port of this bridge
    #[arg(long, value_name = "BRIDGE", value_parser = parse_interface)]
    pub bridge: Option<String>,

    /// Address of the kernel's side of the TAP; the TAP is brought up
    ///
    /// With it the machine itself can talk to the node: ping, iperf3, tcpdump on the TAP. A TAP that
    /// is the port of a bridge has no address: give the bridge one instead.
    #[arg(long, value_name = "IP/PREFIX", conflicts_with = "bridge")]
    pub host_addr: Vec<IpPrefix>,

    /// Virtio-net header on the TAP: super-segments of up to 64 KiB, cut and checksummed by the kernel
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub vnet: Vnet,

    /// Bring pages of transmitted super-segments back to the processor that wrote them
    ///
    /// For peers on the same machine, whose read would leave them on another processor; through a packet
    /// socket on the TAP. Needs CAP_NET_RAW, and one queue.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub reclaim: Reclaim,

    /// Who takes the frames that are sent up the kernel's stack
    #[arg(long, value_enum, value_name = "WHO", default_value_t)]
    pub napi: Napi,

    /// Frames that the kernel keeps for the node until it reads them: 1..=1000000 [default: 10000 on a TAP
    /// that the node makes; one that was made before keeps its own]
    ///
    /// What is more it drops. Each takes 8 bytes of the queue, and its own memory for as long as it waits. Of
    /// several queues each keeps as many. Needs CAP_NET_ADMIN; without it the queue stays as it is, with a warning.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(TXQUEUELEN_RANGE))]
    pub txqueuelen: Option<u32>,

    /// Which connections the host stack hands to the offload target
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    pub offload: Offload,

    /// Which segments of offloaded connections carry PSH
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    pub psh: Psh,

    /// Congestion control of offloaded connections
    #[arg(long, visible_alias = "cc", value_enum, value_name = "NAME", default_value_t)]
    pub congestion_control: CongestionControl,

    /// Spread the segments of offloaded connections over the round trip instead of sending what the
    /// window allows at once
    #[arg(long)]
    pub pacing: bool,

    /// Explicit congestion notification (RFC 3168): offered and accepted in handshakes
    ///
    /// Routers then mark instead of dropping. Data of offloaded connections is ECN-capable.
    #[arg(long)]
    pub ecn: bool,

    /// Times that an offloaded connection sends the same segment again, or probes a closed window, before
    /// it is given up: 1..=255
    ///
    /// From an RTT of a LAN: 3 are 3 seconds, 5 are 13, 8 are 100; 15 are 9 minutes.
    #[arg(long, value_name = "N", default_value_t = MAX_RETRANSMISSIONS_DEFAULT,
          value_parser = clap::value_parser!(u8).range(1..))]
    pub max_retransmissions: u8,

    /// Bytes that the receive window of an offloaded connection may grow to: 4096..=1073741824
    ///
    /// It starts at 256 KiB, or at this if that is less, and grows with what the reader takes in a round
    /// trip. 262144 or less: it does not grow.
    #[arg(long, value_name = "BYTES", default_value_t = RECEIVE_WINDOW_DEFAULT_BYTES,
          value_parser = clap::value_parser!(u32).range(RECEIVE_WINDOW_RANGE_BYTES))]
    pub receive_window: u32,

    /// Capture all frames of the node into this file (pcapng; comments name net buffer lists)
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Write congestion window, RTT and what is in flight of each offloaded connection into this file, as
    /// CSV; "flue plot" draws it
    #[arg(long, value_name = "FILE")]
    pub tcp_trace: Option<PathBuf>,

    /// Socket on which "flue ss", "flue offload" and "flue upload" find the node, or "none"
    /// [default: $XDG_RUNTIME_DIR/flue/TAP-PID.sock, or /tmp/flue-UID/TAP-PID.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// Seed of initial sequence numbers, STags and impairments [default: random, and printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Who makes the engine progress: a thread of its own, or the caller that polls
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub progress: Progress,

    /// The chimney.
    #[command(flatten)]
    pub chimney: ChimneyOptions,

    /// The weather on the wire.
    #[command(flatten)]
    pub impairment: ImpairmentOptions,
}

/// How many queues the TAP has, for commands that run a node on several.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Node options")]
pub struct QueueOptions {
    /// Queues of the TAP: 1..=16. Each has an engine with a thread and connections of its own
    ///
    /// A connection uses one queue. The kernel delivers what comes for it to that queue, as a rule; what comes by
    /// another is passed on. What is captured and traced of the first queue stands in FILE.EXT, of the next in
    /// FILE.1.EXT. --capacity, and weather, are those of each queue. A TAP that was made before has to be multi_queue.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: u8,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { queues: 1 }
    }
}

impl QueueOptions {
    /// The node on so many queues.
    ///
    /// # Errors
    /// [`Failure::usage`]: another option cannot be had with several.
    pub fn resolve(self, config: NodeConfig) -> Result<NodeConfig, Failure> {
        let Self { queues } = self;
        if queues > 1 && config.progress == Progress::Manual {
            return Err(Failure::usage(format!(
                "--queues {queues} --progress manual: each queue needs a loop, and a command has one; --progress \
                 auto has a thread for each"
            )));
        }
        if queues > 1 && config.impairment.rate_bps.is_some() {
            return Err(Failure::usage(format!(
                "--queues {queues} --rate: each queue would have a wire of that rate; \"flue wire\" joins two TAPs \
                 by one"
            )));
        }
        Ok(NodeConfig { queues, ..config })
    }
}

/// How a run is told. Commands that give `-v` a meaning of their own take [`Quietness`] alone.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct Quietness {
    /// Print results and errors only, not the configuration
    #[arg(short, long)]
    pub quiet: bool,

    /// Log each frame, with the headers of each layer, on standard error (a lot)
    #[arg(long, conflicts_with = "quiet")]
    pub trace: bool,

    /// Print one JSON document instead of text, also when the run fails
    #[arg(long)]
    pub json: bool,
}

/// The configuration of one node, complete and consistent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    /// The TAP's name.
    pub tap: String,
    /// The node's addresses: 1..=8, no two alike.
    pub addresses: Vec<IpPrefix>,
    /// Routers, at most one of each family, each within the prefix of an address.
    pub gateways: Vec<IpAddr>,
    /// The node's Ethernet address.
    pub mac: Mac,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u16,
    /// The bridge the TAP is a port of.
    pub bridge: Option<String>,
    /// Addresses of the kernel's side of the TAP.
    pub host_addresses: Vec<IpPrefix>,
    /// Virtio-net header.
    pub vnet: Vnet,
    /// Bringing back of transmitted pages.
    pub reclaim: Reclaim,
    /// Who takes frames on.
    pub napi: Napi,
    /// Frames that the kernel keeps for each queue's reader; `None`: see
    /// [`KernelSide::txqueuelen`](crate::net::plumb::KernelSide::txqueuelen).
    pub txqueuelen: Option<u32>,
    /// Queues of the TAP: 1..=16.
    pub queues: u8,
    /// Offload policy.
    pub offload: Offload,
    /// What steers the chimney besides.
    pub chimney: ChimneyConfig,
    /// PSH policy.
    pub psh: Psh,
    /// Congestion control.
    pub congestion_control: CongestionControl,
    /// Offloaded connections are paced.
    pub pacing: bool,
    /// Explicit congestion notification.
    pub ecn: bool,
    /// TcpMaximumRetransmissions of offloaded connections: 1..=255.
    pub max_retransmissions: u8,
    /// Largest receive window of offloaded connections, bytes: 4096..=1 GiB.
    pub receive_window_bytes: u32,
    /// Capture file.
    pub pcap: Option<PathBuf>,
    /// Trace of congestion control.
    pub tcp_trace: Option<PathBuf>,
    /// Control socket.
    pub control: ControlPlace,
    /// Seed of all randomness.
    pub seed: u64,
    /// Who makes the engine progress.
    pub progress: Progress,
    /// Weather.
    pub impairment: Impairment,
}

impl NodeOptions {
    /// Checks the options against each other and completes them.
    ///
    /// # Errors
    /// [`Failure::usage`], naming the option and its limit.
    pub fn resolve(&self) -> Result<NodeConfig, Failure> {
        let addresses = if self.addr.is_empty() {
            vec![ADDRESS_DEFAULT.parse().expect("the default is an address, see the tests")]
        } else {
            self.addr.clone()
        };
        check_addresses(&addresses)?;
        check_gateways(&self.gateway, &addresses)?;
        for host in &self.host_addr {
            if addresses.iter().any(|own| own.address() == host.address()) {
                return Err(Failure::usage(format!(
                    "--host-addr {host}: the node itself has that address (--addr)"
                )));
            }
        }
        let mac = self.mac.unwrap_or_else(|| derived_mac(self.seed, &self.tap, addresses[0]));
        Ok(NodeConfig {
            tap: self.tap.clone(),
            addresses,
            gateways: self.gateway.clone(),
            mac,
            mtu_bytes: self.mtu,
            bridge: self.bridge.clone(),
            host_addresses: self.host_addr.clone(),
            vnet: self.vnet,
            reclaim: self.reclaim,
            napi: self.napi,
            txqueuelen: self.txqueuelen,
            queues: 1,
            offload: self.offload,
            chimney: self.chimney.resolve()?,
            psh: self.psh,
            congestion_control: self.congestion_control,
            pacing: self.pacing,
            ecn: self.ecn,
            max_retransmissions: self.max_retransmissions,
            receive_window_bytes: self.receive_window,
            pcap: self.pcap.clone(),
            tcp_trace: self.tcp_trace.clone(),
            control: ControlPlace::resolve(self.control.as_deref()),
            seed: self.seed.map_or_else(random_seed, Ok)?,
            progress: self.progress,
            impairment: self.impairment.resolve()?,
        })
    }
}

/// The Ethernet address of a node for which none is given: the same for the same TAP and address on
/// every run, different for two nodes of one link, for these cannot share an IP address.
pub fn derived_mac(seed: Option<u64>, tap: &str, address: IpPrefix) -> Mac {
    Mac::derived(format!("{}|{tap}|{address}", seed.unwrap_or(0)).as_bytes())
}

pub(crate) fn random_seed() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::lacking(format!("getrandom: {error}")))?;
    if got != bytes.len() {
        return Err(Failure::lacking("getrandom: fewer than 8 bytes"));
    }
    Ok(u64::from_ne_bytes(bytes))
}

fn check_addresses(addresses: &[IpPrefix]) -> Result<(), Failure> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(Failure::usage(format!(
            "--addr: {} addresses, a node has at most {ADDRESSES_MAX}",
            addresses.len()
        )));
    }
    for (index, one) in addresses.iter().enumerate() {
        if addresses[..index].iter().any(|other| other.address() == one.address()) {
            return Err(Failure::usage(format!("--addr {one}: given twice")));
        }
    }
    Ok(())
}

fn check_gateways(gateways: &[IpAddr], addresses: &[IpPrefix]) -> Result<(), Failure> {
    for (index, gateway) in gateways.iter().enumerate() {
        let same_family = |other: &IpAddr| other.is_ipv4() == gateway.is_ipv4();
        if gateways[..index].iter().any(same_family) {
            return Err(Failure::usage(format!(
                "--gateway {gateway}: at most one for each address family"
            )));
        }
        if !addresses.iter().any(|own| own.contains(*gateway)) {
            return Err(Failure::usage(format!(
                "--gateway {gateway}: not within the prefix of any --addr"
            )));
        }
        if addresses.iter().any(|own| own.address() == *gateway) {
            return Err(Failure::usage(format!("--gateway {gateway}: the node's own address")));
        }
    }
    Ok(())
}

fn joined<T: fmt::Display>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The effective configuration as lines of `key: value`, as printed at start.
impl fmt::Display for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tap,
            addresses,
            gateways,
            mac,
            mtu_bytes,
            bridge,
            host_addresses,
            vnet,
            reclaim,
            napi,
            txqueuelen,
            queues,
            offload,
            chimney,
            psh,
            congestion_control,
            pacing,
            ecn,
            max_retransmissions,
            receive_window_bytes,
            pcap,
            tcp_trace,
            control,
            seed,
            progress,
            impairment,
        } = self;
        let none_if_empty = |text: String| if text.is_empty() { "none".to_owned() } else { text };
        let several = if *queues > 1 { format!(", {queues} queues") } else { String::new() };
        let (vnet, reclaim) = (name(*vnet), name(*reclaim));
        let threaded = if *napi == Napi::Threaded { ", napi threaded" } else { "" };
        let txqueuelen = txqueuelen.map_or_else(|| "auto".to_owned(), |frames| frames.to_string());
        write!(f, "tap: {tap}, mtu {mtu_bytes} bytes, vnet {vnet}, reclaim {reclaim}")?;
        writeln!(f, ", txqueuelen {txqueuelen}{threaded}{several}")?;
        writeln!(f, "bridge: {}", bridge.as_deref().unwrap_or("none"))?;
        writeln!(f, "host address: {}", none_if_empty(joined(host_addresses)))?;
        writeln!(f, "address: {} at {mac}", joined(addresses))?;
        writeln!(f, "gateway: {}", none_if_empty(joined(gateways)))?;
        writeln!(
            f,
            "offload: {}, psh {}, congestion control {}{}, ecn {}, \
             retransmissions {max_retransmissions}, \
             receive window {receive_window_bytes} bytes, progress {}",
            name(*offload),
            name(*psh),
            name(*congestion_control),
            if *pacing { " with pacing" } else { "" },
            if *ecn { "on" } else { "off" },
            name(*progress)
        )?;
        writeln!(f, "chimney: {chimney}")?;
        writeln!(f, "impairment: {impairment}")?;
        let shown = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string())
        };
        writeln!(f, "capture: {}, TCP trace: {}", shown(pcap), shown(tcp_trace))?;
        writeln!(f, "control socket: {control}")?;
        write!(f, "seed: {seed}")
    }
}

/// The word that stands for `value` on the command line.
pub(crate) fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests;
