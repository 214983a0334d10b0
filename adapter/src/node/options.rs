//! Options of a node: fields, defaults, limits and dependencies.

use std::{fmt, net::IpAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use host_stack::{
    dad::Detection,
    host::HostConfig,
    node::{NodeConfig, Progress},
    socket::OffloadPolicy,
};
use offload_engine::{
    engine::EngineConfig,
    link::{NapiMode, ReclaimMode, TAP_QUEUES_MAX, TapOptions, VnetMode},
    state::MacAddress,
    tcp::{CongestionAlgorithm, PushPolicy},
};
use serde::{Deserialize, Serialize};

use super::{chimney::ChimneyOptions, impairment::Impairment};
use crate::{
    error::Error,
    format::{joined, word},
    units::IpPrefix,
};

/// Default address of a node.
pub const ADDRESS_DEFAULT: &str = "10.77.0.2/24";
/// Default TAP of a node.
pub const TAP_DEFAULT: &str = "flue0";
/// Default MTU, bytes.
pub const MTU_DEFAULT_BYTES: u16 = 1500;
/// MTUs of a node, bytes. The minimum is that of IPv6 (RFC 8200 §5); the maximum is that of a TAP, 65 535 octets less
/// the Ethernet header.
pub const MTU_RANGE_BYTES: RangeInclusive<i64> = 1280..=65_521;
/// Default of TcpMaximumRetransmissions.
pub const MAX_RETRANSMISSIONS_DEFAULT: u8 = 15;
/// Default of the maximum receive window: 4 MiB.
pub const RECEIVE_WINDOW_DEFAULT_BYTES: u32 = 4 * 1024 * 1024;
/// Range of the maximum receive window, bytes; 1 GiB is the maximum of a scaled window (RFC 7323 §2.3).
pub const RECEIVE_WINDOW_RANGE_BYTES: RangeInclusive<i64> = 4096..=1 << 30;
/// Range of the queue length of a TAP, frames; the maximum takes 8 MB.
pub const TXQUEUELEN_RANGE: RangeInclusive<i64> = 1..=1_000_000;
/// Longest interface name, bytes: IFNAMSIZ less its NUL.
pub const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// Maximum number of queues of a TAP.
pub const QUEUES_MAX: u8 = TAP_QUEUES_MAX as u8;
/// Maximum number of addresses of a node; the host stack is built for this number.
pub const ADDRESSES_MAX: usize = 8;

/// Time that an idle node polls before it sleeps; a wake-up on another CPU costs about as much.
const SPIN: Duration = Duration::from_micros(50);

/// Parses an interface name: 1..=15 bytes, no blank, slash or colon, not "." or "..".
///
/// # Errors
/// The text is not a valid name.
pub fn parse_interface(text: &str) -> Result<String, String> {
    let fits = (1..=INTERFACE_NAME_BYTES_MAX).contains(&text.len());
    let clean = text.bytes().all(|b| b.is_ascii_graphic() && !b"/:%".contains(&b));
    if fits && clean && text != "." && text != ".." {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "expected an interface name: 1 to {INTERFACE_NAME_BYTES_MAX} visible ASCII characters \
             except / : %"
        ))
    }
}

/// Options of a node: TAP, addresses, policies and impairments.
///
/// Create them with [`NodeOptions::default`] and change fields. [`NodeOptions::completed`] checks them and fills in
/// derived and random values. A configuration in JSON may omit options with their default value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Node options"))]
pub struct NodeOptions {
    /// Use this TAP; create it if absent
    ///
    /// A TAP that this run creates is removed with it. An existing TAP ("ip tuntap add mode tap user $USER name flue0")
    /// can be used by its user without CAP_NET_ADMIN.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "NAME", default_value = TAP_DEFAULT, value_parser = parse_interface)
    )]
    pub tap: String,

    /// Use the open TAP at this inherited descriptor instead of --tap
    ///
    /// The descriptor must have one queue and no packet information (IFF_NO_PI). Its interface may be in another
    /// network namespace. It must be up, with an MTU of at least --mtu. Only --bridge, --host-addr and --txqueuelen
    /// change the interface; they require that it is in this namespace.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FD", conflicts_with = "tap"))]
    pub tap_fd: Option<i32>,

    /// Assign this address; repeatable up to 8 [default: 10.77.0.2/24]
    ///
    /// IPv4 or IPv6. In the lab it is the address of node A, by default 10.77.0.1/24; node B has the next address.
    #[cfg_attr(feature = "clap", arg(long = "addr", value_name = "IP/PREFIX"))]
    pub addresses: Vec<IpPrefix>,

    /// Route other prefixes through this router; one per address family
    #[cfg_attr(feature = "clap", arg(long = "gateway", value_name = "IP"))]
    pub gateways: Vec<IpAddr>,

    /// Probe for the addresses of --addr before use (RFC 5227, RFC 4862)
    ///
    /// Takes 0.1 seconds on a bridge. A station that starts within that time, or that does not reply to probes, is not
    /// detected.
    #[cfg_attr(
        feature = "clap",
        arg(long = "dad", value_enum, value_name = "WHEN", default_value_t)
    )]
    pub detection: Detection,

    /// Ethernet address [default: derived from TAP, address and --seed]
    ///
    /// The default is locally administered.
    #[cfg_attr(feature = "clap", arg(long, value_name = "MAC"))]
    pub mac: Option<MacAddress>,

    /// Set the MTU, bytes: 1280..=65521
    #[cfg_attr(
        feature = "clap",
        arg(
            long = "mtu",
            value_name = "BYTES",
            default_value_t = MTU_DEFAULT_BYTES,
            value_parser = clap::value_parser!(u16).range(MTU_RANGE_BYTES),
        )
    )]
    pub mtu_bytes: u16,

    /// Make the TAP a port of this bridge
    #[cfg_attr(feature = "clap", arg(long, value_name = "BRIDGE", value_parser = parse_interface))]
    pub bridge: Option<String>,

    /// Assign this address to the kernel's side of the TAP; repeatable
    ///
    /// Brings the TAP up. The machine can then reach the node: ping, iperf3, tcpdump on the TAP. A port of a bridge has
    /// no address; assign one to the bridge instead.
    #[cfg_attr(
        feature = "clap",
        arg(long = "host-addr", value_name = "IP/PREFIX", conflicts_with = "bridge")
    )]
    pub host_addresses: Vec<IpPrefix>,

    /// Use a virtio-net header: GSO packets of up to 64 KiB
    ///
    /// The kernel segments and checksums them.
    #[cfg_attr(feature = "clap", arg(long, value_enum, value_name = "WHEN", default_value_t))]
    pub vnet: VnetMode,

    /// Recycle pages of sent GSO packets on the CPU that wrote them
    ///
    /// For peers on the same machine, whose reads free the pages on another CPU. Uses a packet socket on the TAP.
    /// Requires CAP_NET_RAW and one queue.
    #[serde(alias = "reclaim")]
    #[cfg_attr(
        feature = "clap",
        arg(long, alias = "reclaim", value_enum, value_name = "WHEN", default_value_t)
    )]
    pub tx_page_recycling: ReclaimMode,

    /// Select the NAPI mode for frames written to the TAP
    #[cfg_attr(feature = "clap", arg(long, value_enum, value_name = "MODE", default_value_t))]
    pub napi: NapiMode,

    /// Limit frames that the kernel queues per TAP queue: 1..=1000000
    ///
    /// Default: 10000 on a TAP that the node creates; unchanged on an existing TAP. The kernel drops further frames.
    /// Each slot takes 8 bytes. Requires CAP_NET_ADMIN; without it the length is unchanged, with a warning.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(TXQUEUELEN_RANGE))
    )]
    pub txqueuelen: Option<u32>,

    /// Queues of the TAP: 1..=16.
    // Commands that can use several have their own option.
    #[cfg_attr(feature = "clap", arg(skip = 1_u8))]
    pub queues: u8,

    /// Select the connections to offload
    #[cfg_attr(feature = "clap", arg(long, value_enum, value_name = "WHICH", default_value_t))]
    pub offload: OffloadPolicy,

    /// Select the segments with PSH on offloaded connections
    #[cfg_attr(feature = "clap", arg(long, value_enum, value_name = "WHICH", default_value_t))]
    pub psh: PushPolicy,

    /// Select the congestion control of offloaded connections
    #[cfg_attr(
        feature = "clap",
        arg(long, visible_alias = "cc", value_enum, value_name = "NAME", default_value_t)
    )]
    pub congestion_control: CongestionAlgorithm,

    /// Pace segments of offloaded connections over the round trip
    ///
    /// Otherwise everything that the window allows is sent at once.
    #[cfg_attr(feature = "clap", arg(long))]
    pub pacing: bool,

    /// Negotiate explicit congestion notification (RFC 3168)
    ///
    /// Routers then mark frames instead of dropping them. Data of offloaded connections is ECN-capable.
    #[cfg_attr(feature = "clap", arg(long))]
    pub ecn: bool,

    /// Limit retransmissions or window probes of a segment: 1..=255
    ///
    /// An offloaded connection is aborted after that. With the RTT of a LAN: 3 take 3 seconds, 5 take 13, 8 take 100;
    /// 15 take 9 minutes.
    #[cfg_attr(
        feature = "clap",
        arg(
            long,
            value_name = "N",
            default_value_t = MAX_RETRANSMISSIONS_DEFAULT,
            value_parser = clap::value_parser!(u8).range(1..),
        )
    )]
    pub max_retransmissions: u8,

    /// Limit the receive window, bytes: 4096..=1073741824
    ///
    /// It starts at 256 KiB, or at the limit if that is less, and grows with the bytes that the reader consumes per
    /// round trip. With 262144 or less it does not grow.
    #[cfg_attr(
        feature = "clap",
        arg(
            long = "receive-window",
            value_name = "BYTES",
            default_value_t = RECEIVE_WINDOW_DEFAULT_BYTES,
            value_parser = clap::value_parser!(u32).range(RECEIVE_WINDOW_RANGE_BYTES),
        )
    )]
    pub receive_window_bytes: u32,

    /// Capture frames to this file (pcapng)
    ///
    /// Comments name net buffer lists.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    pub pcap: Option<PathBuf>,

    /// Trace congestion control to this file (CSV for "flue plot")
    ///
    /// Congestion window, RTT and bytes in flight of each offloaded connection.
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    pub tcp_trace: Option<PathBuf>,

    /// Seed ISNs, STags and impairments [default: random, printed]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N"))]
    #[serde(with = "crate::seed")]
    pub seed: Option<u64>,

    /// Run the node by a thread, the application, or both
    ///
    /// With "shared", the application runs the node while it waits or polls, and a thread otherwise.
    #[cfg_attr(feature = "clap", arg(long, value_enum, value_name = "HOW", default_value_t))]
    pub progress: Progress,

    /// The chimney.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub chimney: ChimneyOptions,

    /// Impairments.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub impairment: Impairment,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            tap: TAP_DEFAULT.into(),
            tap_fd: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            detection: Detection::default(),
            mac: None,
            mtu_bytes: MTU_DEFAULT_BYTES,
            bridge: None,
            host_addresses: Vec::new(),
            vnet: VnetMode::default(),
            tx_page_recycling: ReclaimMode::default(),
            napi: NapiMode::default(),
            txqueuelen: None,
            queues: 1,
            offload: OffloadPolicy::default(),
            psh: PushPolicy::default(),
            congestion_control: CongestionAlgorithm::default(),
            pacing: false,
            ecn: false,
            max_retransmissions: MAX_RETRANSMISSIONS_DEFAULT,
            receive_window_bytes: RECEIVE_WINDOW_DEFAULT_BYTES,
            pcap: None,
            tcp_trace: None,
            seed: None,
            progress: Progress::default(),
            chimney: ChimneyOptions::default(),
            impairment: Impairment::default(),
        }
    }
}

impl NodeOptions {
    /// Checks the options and completes them with an address, an Ethernet address and a seed.
    ///
    /// # Errors
    /// An option error, which names the option and its limit.
    pub fn completed(mut self) -> Result<Self, Error> {
        if self.addresses.is_empty() {
            self.addresses = vec![ADDRESS_DEFAULT.parse().expect("see the tests")];
        }
        self.check_limits()?;
        check_addresses(&self.addresses)?;
        check_gateways(&self.gateways, &self.addresses)?;
        for host in &self.host_addresses {
            if self.addresses.iter().any(|own| own.address() == host.address()) {
                return Err(Error::option(format!(
                    "--host-addr {host}: the node has this address (--addr): choose another"
                )));
            }
        }
        if let (Some(bridge), [host, ..]) = (&self.bridge, self.host_addresses.as_slice()) {
            return Err(Error::option(format!(
                "--host-addr {host}: not supported on a port of bridge {bridge}: assign the address to the bridge"
            )));
        }
        if self.tap_fd.is_some() && self.queues > 1 {
            return Err(Error::option(format!(
                "--queues {}: not supported with --tap-fd: an inherited TAP has one queue",
                self.queues
            )));
        }
        if self.tap_fd.is_some() && self.napi != NapiMode::Off {
            return Err(Error::option(
                "--napi: not supported with --tap-fd: set the mode where the TAP is opened",
            ));
        }
        self.chimney.check()?;
        self.impairment.check()?;
        self.chimney.upload_on.sort_unstable();
        self.chimney.upload_on.dedup();
        self.mac = Some(self.mac());
        self.seed = Some(self.seed.map_or_else(random_seed, Ok)?);
        Ok(self)
    }

    /// Checks limits that clap enforces for a command line, but not for a program or a configuration.
    fn check_limits(&self) -> Result<(), Error> {
        parse_interface(&self.tap)
            .map_err(|why| Error::option(format!("--tap {}: {why}", self.tap)))?;
        let txqueuelen = self.txqueuelen.map_or(*TXQUEUELEN_RANGE.start(), i64::from);
        let limits = [
            ("--mtu", self.mtu_bytes.into(), MTU_RANGE_BYTES),
            ("--txqueuelen", txqueuelen, TXQUEUELEN_RANGE),
            ("--queues", self.queues.into(), 1..=QUEUES_MAX.into()),
            ("--max-retransmissions", self.max_retransmissions.into(), 1..=u8::MAX.into()),
            ("--receive-window", self.receive_window_bytes.into(), RECEIVE_WINDOW_RANGE_BYTES),
        ];
        for (option, value, range) in limits {
            if !range.contains(&value) {
                return Err(Error::option(format!("{option} {value}: expected {range:?}")));
            }
        }
        Ok(())
    }

    /// Returns the Ethernet address. By default it is derived from TAP, address and seed. It is then the same on every
    /// run, and differs between nodes of one link, because they cannot share an IP address.
    pub fn mac(&self) -> MacAddress {
        self.mac.unwrap_or_else(|| {
            let address = self.addresses.first().map_or_else(String::new, ToString::to_string);
            MacAddress::derived(format!("{}|{}|{address}", self.seed(), self.tap).as_bytes())
        })
    }

    /// Returns the seed; 0 if it is neither given nor chosen yet.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(0)
    }

    /// Returns the options of the TAP.
    pub(crate) fn tap_options(&self) -> TapOptions {
        TapOptions {
            name: self.tap.clone(),
            mtu: self.mtu_bytes.into(),
            vnet: self.vnet,
            reclaim: self.tx_page_recycling,
            napi: self.napi,
        }
    }

    /// Returns the options of engine and host stack.
    pub fn node_config(&self) -> NodeConfig {
        let mac = self.mac();
        let mut engine = EngineConfig::new(mac);
        self.chimney.capacity.limit(&mut engine.capabilities);
        engine.tcp.push = self.psh;
        engine.tcp.congestion = self.congestion_control;
        engine.tcp.congestion_options.pacing = self.pacing;
        engine.tcp.retransmissions_max = self.max_retransmissions;
        engine.tcp.rcv_wnd_max = self.receive_window_bytes;
        engine.tcp.upload = self.chimney.thresholds();
        let window = self.receive_window_bytes as usize;
        let prefixes = self.addresses.iter();
        let host = HostConfig {
            mac,
            addresses: prefixes.map(|prefix| (prefix.address(), prefix.prefix_len())).collect(),
            gateways: self.gateways.clone(),
            mtu: self.mtu_bytes.into(),
            policy: self.offload,
            auto_offload_bytes: self.chimney.offload_after_bytes,
            rules: self.chimney.rules(),
            ecn: self.ecn,
            receive_buffer: HostConfig::default().receive_buffer.min(window),
            receive_window_max: window,
            seed: self.seed(),
            // Initial sequence numbers depend on the time too, so a seed would not repeat them.
            isn_key: [(); 2].map(|()| random_seed().unwrap_or_else(|_| self.seed())),
            ..HostConfig::default()
        };
        NodeConfig { engine, host, progress: self.progress, spin: SPIN }
    }
}

/// Returns a seed from the kernel.
///
/// # Errors
/// getrandom(2) failed.
pub fn random_seed() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::prerequisite(format!("getrandom: {error}")))?;
    if got != bytes.len() {
        return Err(Error::prerequisite(format!("getrandom: received {got} bytes, expected 8")));
    }
    Ok(u64::from_ne_bytes(bytes))
}

fn check_addresses(addresses: &[IpPrefix]) -> Result<(), Error> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(Error::option(format!(
            "--addr: {} addresses, expected at most {ADDRESSES_MAX}",
            addresses.len()
        )));
    }
    for (index, one) in addresses.iter().enumerate() {
        if addresses[..index].iter().any(|other| other.address() == one.address()) {
            return Err(Error::option(format!("--addr {one}: duplicate address")));
        }
    }
    Ok(())
}

fn check_gateways(gateways: &[IpAddr], addresses: &[IpPrefix]) -> Result<(), Error> {
    for (index, gateway) in gateways.iter().enumerate() {
        let same_family = |other: &IpAddr| other.is_ipv4() == gateway.is_ipv4();
        if gateways[..index].iter().any(same_family) {
            return Err(Error::option(format!(
                "--gateway {gateway}: second gateway of its address family, expected at most one"
            )));
        }
        if !addresses.iter().any(|own| own.contains(*gateway)) {
            return Err(Error::option(format!(
                "--gateway {gateway}: not within the prefix of any --addr"
            )));
        }
        if addresses.iter().any(|own| own.address() == *gateway) {
            return Err(Error::option(format!(
                "--gateway {gateway}: the address of the node, expected a router"
            )));
        }
    }
    Ok(())
}

/// Writes the options as lines of `key: value`, as printed at start.
impl fmt::Display for NodeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none_if_empty = |text: String| if text.is_empty() { "none".to_owned() } else { text };
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string())
        };
        match self.tap_fd {
            None => write!(f, "tap: {}", self.tap)?,
            Some(descriptor) => write!(f, "tap: descriptor {descriptor}")?,
        }
        write!(f, ", mtu {} bytes, vnet {}", self.mtu_bytes, word(self.vnet))?;
        let txqueuelen =
            self.txqueuelen.map_or_else(|| "auto".to_owned(), |frames| frames.to_string());
        write!(f, ", tx-page-recycling {}, txqueuelen {txqueuelen}", word(self.tx_page_recycling))?;
        if self.napi == NapiMode::Threaded {
            f.write_str(", napi threaded")?;
        }
        if self.queues > 1 {
            write!(f, ", {} queues", self.queues)?;
        }
        writeln!(f, "\nbridge: {}", self.bridge.as_deref().unwrap_or("none"))?;
        writeln!(f, "host address: {}", none_if_empty(joined(&self.host_addresses)))?;
        writeln!(f, "address: {} at {}", joined(&self.addresses), self.mac())?;
        write!(f, "gateway: {}", none_if_empty(joined(&self.gateways)))?;
        writeln!(f, ", duplicate address detection {}", word(self.detection))?;
        writeln!(
            f,
            "offload: {}, psh {}, congestion control {}{}, ecn {}, retransmissions {}, \
             receive window {} bytes, progress {}",
            word(self.offload),
            word(self.psh),
            word(self.congestion_control),
            if self.pacing { " with pacing" } else { "" },
            if self.ecn { "on" } else { "off" },
            self.max_retransmissions,
            self.receive_window_bytes,
            word(self.progress)
        )?;
        writeln!(f, "chimney: {}", self.chimney)?;
        writeln!(f, "impairment: {}", self.impairment)?;
        writeln!(f, "capture: {}, TCP trace: {}", path(&self.pcap), path(&self.tcp_trace))?;
        write!(f, "seed: {}", self.seed())
    }
}
