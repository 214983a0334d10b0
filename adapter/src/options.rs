//! Options of an adapter, and the running adapter opened from them. The transport is selected here, for all programs.

use std::{fmt, mem, path::PathBuf, str::FromStr, time::Duration};

use host_stack::node::Node;
use rdma_over_tcp::{
    adapter::{Adapter, SocketsConfig, open_captured_sockets, open_sockets},
    rnic::Config,
    transport::NodeRnic,
};
use serde::{Deserialize, Serialize};

use crate::{
    address_map::AddressMap,
    control::{
        message::NodeName,
        server::{self, Control, ControlListener},
        socket_path::ControlSocketPath,
    },
    error::Error,
    launched::LaunchedNode,
    mpa::{MpaOptions, Switch},
    node::{NodeOptions, OpenLinks, random_seed},
    output::OutputFile,
    port_range::PortRange,
};

/// Environment variable in which a launcher passes [`AdapterOptions`] to a program, in JSON.
pub const OPTIONS_VARIABLE: &str = "FLUE_ADAPTER_OPTIONS";

/// Longest time that a message may wait for a receive, seconds.
pub const RECEIVE_WAIT_MAX_SECONDS: f64 = 3600.0;

/// Kind of a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Transport {
    /// Node on a TAP, with host stack and offload target
    #[default]
    Tap,
    /// TCP sockets of the kernel: no TAP, no privileges, the addresses of this machine
    Kernel,
}

/// Kind of the device that verbs programs see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum DeviceKind {
    /// RoCE adapter: programs connect with librdmacm or connect their queue pairs with ibv_modify_qp
    #[default]
    Roce,
    /// iWARP adapter: programs connect with librdmacm
    Iwarp,
}

/// Options of kernel sockets.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SocketsOptions {
    /// File of a capture, in pcapng. Its frames are synthesized around the bytes of the sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PathBuf>,
    /// Seed of the STags; `None`: random.
    #[serde(skip_serializing_if = "Option::is_none", with = "crate::seed")]
    pub seed: Option<u64>,
}

/// Transport of an adapter's connections, with its options.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportOptions {
    /// Sockets of the kernel.
    Sockets(SocketsOptions),
    /// A node on a TAP.
    Node(Box<NodeOptions>),
    /// A node on a TAP that a launcher has opened, and this process has inherited.
    Launched(Box<LaunchedNode>),
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self::Sockets(SocketsOptions::default())
    }
}

impl TransportOptions {
    /// Creates the options of a transport of this kind from those of a node.
    ///
    /// # Errors
    /// An option error: kernel sockets do not have one of the options.
    pub fn new(kind: Transport, node: NodeOptions) -> Result<Self, Error> {
        if kind == Transport::Tap {
            return Ok(Self::Node(Box::new(node)));
        }
        let (pcap, seed) = (node.pcap.clone(), node.seed);
        if node != (NodeOptions { pcap: pcap.clone(), seed, ..NodeOptions::default() }) {
            return Err(Error::option(
                "kernel sockets: only --control, --pcap and --seed of the node options are supported",
            ));
        }
        Ok(Self::Sockets(SocketsOptions { pcap, seed }))
    }

    /// Returns the options of the node; `None`: kernel sockets.
    pub fn node(&self) -> Option<&NodeOptions> {
        match self {
            Self::Sockets(_) => None,
            Self::Node(node) => Some(node),
            Self::Launched(launched) => Some(&launched.options),
        }
    }

    /// Returns the paths of the files that the transport writes.
    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let (pcap, tcp_trace) = match self {
            Self::Sockets(sockets) => (&mut sockets.pcap, None),
            Self::Node(node) => (&mut node.pcap, node.tcp_trace.as_mut()),
            Self::Launched(launched) => {
                (&mut launched.options.pcap, launched.options.tcp_trace.as_mut())
            }
        };
        pcap.iter_mut().chain(tcp_trace)
    }
}

/// Options of an adapter: its transport, MPA, addresses and control socket. Options that are not given keep the default
/// of the program ([`AdapterOptions::configure`]).
///
/// In JSON, [`fmt::Display`] and [`FromStr`] pass them from a launcher to a program ([`OPTIONS_VARIABLE`]).
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterOptions {
    /// The transport.
    pub transport: TransportOptions,
    /// Start-up of MPA.
    pub mpa: MpaOptions,
    /// Atomics and immediate data (RFC 7306).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rfc7306: Option<Switch>,
    /// Time limit for a message to wait for a receive; zero: a missing receive ends the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_wait: Option<Duration>,
    /// Mappings between addresses and ports of the program and of the adapter.
    pub map: AddressMap,
    /// The control socket; `None`: in the directory of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlSocketPath>,
    /// The device that a verbs program sees.
    pub device: DeviceKind,
    /// Ports at which peers reach the queue pairs that a verbs program connects itself; `None`: selected by the kernel
    /// or the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rendezvous_ports: Option<PortRange>,
}

/// Open devices and files of an adapter, before its first thread.
#[derive(Debug)]
pub struct PreparedAdapter<'a> {
    options: &'a AdapterOptions,
    resources: Resources<'a>,
}

#[derive(Debug)]
enum Resources<'a> {
    Sockets(&'a SocketsOptions, Option<OutputFile>),
    Node(Box<NodeOptions>, OpenLinks),
    Launched(&'a LaunchedNode),
}

/// A running adapter.
#[derive(Debug)]
pub struct OpenAdapter {
    /// One adapter per queue of the TAP, at least one; on kernel sockets exactly one.
    pub adapters: Vec<Adapter>,
    /// Nodes of the adapters; empty on kernel sockets and on a launched node.
    pub nodes: Vec<Node<NodeRnic>>,
    /// True if frames carry a virtio-net header; `None`: the TAP was not opened here.
    pub vnet_header: Option<bool>,
    /// Configuration of the adapters: the program's defaults, overridden by the options. Its seed is not used.
    pub config: Config,
}

impl OpenAdapter {
    /// Returns the adapter of the first queue.
    pub fn first(&self) -> &Adapter {
        &self.adapters[0]
    }
}

impl AdapterOptions {
    /// Returns the options, checked and completed; those of a node as [`NodeOptions::completed`].
    ///
    /// # Errors
    /// As [`NodeOptions::completed`].
    pub fn completed(mut self) -> Result<Self, Error> {
        // The launcher has already completed the options of a launched node.
        if let TransportOptions::Node(node) = &mut self.transport {
            **node = mem::take(&mut **node).completed()?;
        }
        Ok(self)
    }

    /// Returns `config`, the defaults of a program, overridden by the options that are given.
    #[must_use]
    pub fn configure(&self, config: Config) -> Config {
        let Self {
            transport: _,
            mpa,
            rfc7306,
            receive_wait,
            map: _,
            control: _,
            device: _,
            rendezvous_ports: _,
        } = self;
        Config {
            rfc7306: rfc7306.map_or(config.rfc7306, |it| it == Switch::On),
            receive_wait: receive_wait.unwrap_or(config.receive_wait),
            ..mpa.configure(config)
        }
    }

    /// Opens the adapter, with `config` as the program's defaults. The seed of `config` is not used.
    ///
    /// The options are those of [`AdapterOptions::completed`], or are completed here.
    ///
    /// # Errors
    /// An option, a prerequisite or an operation: [`Error::cause`]. [`Error::Busy`]: another process uses the launched
    /// node.
    pub fn open(&self, config: Config) -> Result<OpenAdapter, Error> {
        self.prepare()?.start(config)
    }

    /// Opens devices and files, the first half of [`AdapterOptions::open`]. It starts no thread.
    ///
    /// After it, an adapter on a TAP opens no file, socket or device, and needs no capability. An adapter on kernel
    /// sockets opens IP sockets. A launched node is opened by the second half.
    ///
    /// # Errors
    /// As [`AdapterOptions::open`].
    pub fn prepare(&self) -> Result<PreparedAdapter<'_>, Error> {
        let resources = match &self.transport {
            TransportOptions::Sockets(sockets) => {
                let create = |path| OutputFile::create("--pcap", path);
                Resources::Sockets(sockets, sockets.pcap.as_deref().map(create).transpose()?)
            }
            TransportOptions::Node(node) => {
                let node = Box::new(NodeOptions::clone(node).completed()?);
                let links = node.open_links()?;
                Resources::Node(node, links)
            }
            TransportOptions::Launched(launched) => Resources::Launched(launched),
        };
        Ok(PreparedAdapter { options: self, resources })
    }

    /// Serves the control socket of `adapters`, which were opened with these options.
    ///
    /// # Errors
    /// As [`AdapterOptions::listen`].
    pub fn serve(&self, adapters: Vec<Adapter>) -> Result<Option<Control>, Error> {
        self.listen()?.map(|listener| listener.serve(adapters)).transpose()
    }

    /// Creates the control socket of adapters that are opened with these options. `None`: without a socket.
    ///
    /// # Errors
    /// The requested control socket cannot be created; or as [`AdapterOptions::completed`].
    pub fn listen(&self) -> Result<Option<ControlListener>, Error> {
        let name = match self.transport.node() {
            None => NodeName::of_sockets(),
            Some(node) => NodeName::of(&node.clone().completed()?),
        };
        let socket_path = self.control.clone().unwrap_or_else(|| ControlSocketPath::resolve(None));
        server::listen(name, &socket_path)
    }
}

impl PreparedAdapter<'_> {
    /// Starts the adapter, the second half of [`AdapterOptions::open`].
    ///
    /// # Errors
    /// As [`AdapterOptions::open`].
    pub fn start(self, config: Config) -> Result<OpenAdapter, Error> {
        let config = self.options.configure(config);
        let mut opened =
            OpenAdapter { adapters: Vec::new(), nodes: Vec::new(), vnet_header: None, config };
        let config = opened.config.clone();
        match self.resources {
            Resources::Sockets(sockets, output) => {
                opened.adapters.push(sockets.open(output, config)?);
            }
            Resources::Node(node, links) => {
                opened.vnet_header = Some(links.vnet_header);
                let started = node.start_ndk(links, config)?;
                (opened.nodes, opened.adapters) = started.into_iter().unzip();
            }
            Resources::Launched(launched) => opened.adapters.push(launched.open(config)?),
        }
        Ok(opened)
    }
}

impl SocketsOptions {
    fn open(&self, output: Option<OutputFile>, config: Config) -> Result<Adapter, Error> {
        let seed = match self.seed {
            Some(seed) => seed.into(),
            None => u128::from(random_seed()?) << 64 | u128::from(random_seed()?),
        };
        let config = Config { seed, ..config };
        let Some(output) = output else {
            return open_sockets(SocketsConfig::default(), config)
                .map_err(|error| Error::sockets(&error));
        };
        open_captured_sockets(SocketsConfig::default(), config, Box::new(output))
            .map_err(|error| Error::sockets(&error))
    }
}

impl fmt::Display for AdapterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for AdapterOptions {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let options: Self = serde_json::from_str(text)?;
        match options.receive_wait {
            Some(wait) if wait.as_secs_f64() > RECEIVE_WAIT_MAX_SECONDS => {
                let expected =
                    format!("receive_wait: expected seconds, 0 to {RECEIVE_WAIT_MAX_SECONDS}");
                Err(serde::de::Error::custom(expected))
            }
            _ => Ok(options),
        }
    }
}

/// Parses the time limit for a message to wait for a receive: seconds, with or without a fraction, at most
/// [`RECEIVE_WAIT_MAX_SECONDS`].
///
/// # Errors
/// The text is not valid; the error is the expected value.
pub fn parse_receive_wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.0..=RECEIVE_WAIT_MAX_SECONDS).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("expected seconds, 0 to {RECEIVE_WAIT_MAX_SECONDS}"))
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use rdma_over_tcp::rnic::CrcRequest;

    use super::*;
    use crate::control::client::{self, Nodes};

    #[test]
    fn option_of_nodes_is_refused_on_kernel_sockets() {
        let own = NodeOptions { seed: Some(7), pcap: Some("a".into()), ..NodeOptions::default() };
        let sockets = SocketsOptions { seed: Some(7), pcap: Some("a".into()) };
        let of_kernel = |node: &NodeOptions| TransportOptions::new(Transport::Kernel, node.clone());
        assert_eq!(of_kernel(&own), Ok(TransportOptions::Sockets(sockets)));
        for node in [
            NodeOptions { queues: 2, ..own.clone() },
            NodeOptions { mtu_bytes: 9000, ..own.clone() },
            NodeOptions { tap: "a".into(), ..own.clone() },
        ] {
            let error = of_kernel(&node).unwrap_err();
            assert!(matches!(&error, Error::Option(text) if text.starts_with("kernel sockets:")));
            let on_tap = TransportOptions::new(Transport::Tap, node.clone());
            assert_eq!(on_tap, Ok(TransportOptions::Node(Box::new(node))));
        }
    }

    #[test]
    fn given_option_replaces_default_of_the_program() {
        let program = || Config {
            receive_wait: Duration::from_secs(30),
            rfc7306: true,
            markers: true,
            crc: CrcRequest::Auto,
            ..Config::default()
        };
        let kept = AdapterOptions::default().configure(program());
        assert!(kept.rfc7306 && kept.markers && !kept.retry_plain);
        assert_eq!((kept.crc, kept.receive_wait), (CrcRequest::Auto, Duration::from_secs(30)));
        let mpa = r#"{"crc":"off","markers":"off","rtr":"send","revision":"auto"}"#;
        let options = AdapterOptions {
            mpa: serde_json::from_str(mpa).unwrap(),
            rfc7306: Some(Switch::Off),
            receive_wait: Some(Duration::ZERO),
            ..AdapterOptions::default()
        };
        let given = options.configure(program());
        assert!(!given.rfc7306 && !given.markers && given.retry_plain);
        assert!(given.rtr.send && !given.rtr.write && !given.rtr.read);
        assert_eq!((given.crc, given.receive_wait), (CrcRequest::Off, Duration::ZERO));
        assert_eq!(options.to_string().parse::<AdapterOptions>().unwrap(), options);
    }

    #[test]
    fn adapter_on_kernel_sockets_is_served_and_captured() {
        let directory = env::temp_dir().join(format!("flue-adapter-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (socket, pcap) = (directory.join("socket"), directory.join("pcap"));
        let sockets = SocketsOptions { pcap: Some(pcap.clone()), seed: None };
        let options = AdapterOptions {
            transport: TransportOptions::Sockets(sockets),
            control: Some(ControlSocketPath::Path(socket.clone())),
            ..AdapterOptions::default()
        };
        let opened = options.open(Config::default()).unwrap();
        assert_eq!((opened.adapters.len(), opened.vnet_header), (1, None));
        let control = options.serve(opened.adapters.clone()).unwrap();
        let (found, _) = client::find(&Nodes::Path(socket)).unwrap();
        let (name, connections) = client::list(&found[0], false).unwrap();
        assert_eq!((name.tap.as_str(), name.pid, connections), ("kernel", process::id(), vec![]));
        drop((control, opened));
        assert!(fs::metadata(pcap).unwrap().len() > 0, "the capture has a header");
        let absent = SocketsOptions { pcap: Some(directory.join("absent/file")), seed: None };
        let options = AdapterOptions {
            transport: TransportOptions::Sockets(absent),
            ..AdapterOptions::default()
        };
        let error = options.open(Config::default()).unwrap_err();
        assert!(error.message().starts_with("--pcap ") && error.message().contains("No such file"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn wait_for_a_receive_is_limited() {
        let json = |seconds: u64| format!(r#"{{"receive_wait":{{"secs":{seconds},"nanos":0}}}}"#);
        assert!(json(3600).parse::<AdapterOptions>().is_ok());
        for seconds in [3601, u64::MAX] {
            let error = json(seconds).parse::<AdapterOptions>().unwrap_err().to_string();
            assert!(error.contains("0 to 3600"), "{error}");
        }
        assert_eq!(parse_receive_wait("0.25"), Ok(Duration::from_millis(250)));
        for text in ["-1", "3600.1", "NaN", "inf", "1s"] {
            assert_eq!(
                parse_receive_wait(text),
                Err("expected seconds, 0 to 3600".into()),
                "{text}"
            );
        }
    }
}
