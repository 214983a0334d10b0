//! From a node's configuration to a running node: TAP, weather, capture, the kernel's side of it, and
//! the configuration of engine and host stack.

use std::{
    ffi::OsString,
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use host_stack::{
    frame_log,
    host::HostConfig,
    node::{self, Node},
    offload_policy::{OffloadRules, UploadReasons},
    socket::{OffloadPolicy, SocketPort},
};
use offload_engine::{
    chimney::provider::OffloadCapabilities,
    engine::{EngineConfig, NodeClient},
    link::{
        Impaired, Impairments, Link, OpenTap, ReclaimMode, TapOptions, Tee, VnetMode, open_tap,
        open_tap_queues,
    },
    state::MacAddress,
    tcp::{CongestionAlgorithm, PushPolicy, UploadThresholds},
};
use rdma_over_tcp::ndk::{self, Adapter, AdapterConfig, AdapterCore, FpduSize};

use crate::{
    environment::tap_failure,
    failure::Failure,
    net::{
        Netlink,
        plumb::{self, KernelSide},
    },
    options::{
        Capacity, ChimneyConfig, CongestionControl, Impairment, Napi, NodeConfig, Offload,
        Progress, Psh, Reclaim, Vnet,
    },
};

/// Bytes of the buffer between a capture or trace and its file.
const CAPTURE_BUFFER_BYTES: usize = 1 << 20;

/// How long an idle node polls before it sleeps: a wake-up across processors costs about as much.
const SPIN: Duration = Duration::from_micros(50);

/// A link that frames pass, and what is worth telling of it.
pub struct OpenLink {
    /// The TAP, behind capture and weather.
    pub link: Box<dyn Link>,
    /// Frames carry a virtio-net header.
    pub vnet_header: bool,
}

impl std::fmt::Debug for OpenLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenLink").field("vnet_header", &self.vnet_header).finish_non_exhaustive()
    }
}

/// A TAP with its queues, which frames pass.
pub struct OpenLinks {
    /// A link for each queue, each behind capture and weather; at least one.
    pub links: Vec<Box<dyn Link>>,
    /// Frames carry a virtio-net header.
    pub vnet_header: bool,
}

impl std::fmt::Debug for OpenLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenLinks")
            .field("queues", &self.links.len())
            .field("vnet_header", &self.vnet_header)
            .finish_non_exhaustive()
    }
}

/// Opens the node's TAP as [`open_link`] does, with as many queues as its options say. Each queue has a capture
/// file, and weather, of its own.
///
/// # Errors
/// As [`open_link`].
pub fn open_links(netlink: &mut Netlink, config: &NodeConfig) -> Result<OpenLinks, Failure> {
    let side = kernel_side(config);
    let options = tap_options(&side, config.vnet, config.reclaim, config.napi);
    let opened = open_tap_queues(&options, config.queues.into()).map_err(tap_failure)?;
    plumb::make_ready(netlink, &side)?;
    let vnet_header = opened.iter().all(|queue| queue.vnet_header);
    let wrapped = opened.into_iter().enumerate().map(|(queue, OpenTap { link, .. })| {
        let link = frame_log::logged(captured(link, config, queue)?);
        impaired(link, &config.impairment, config.seed.wrapping_add(2 * queue as u64))
    });
    Ok(OpenLinks { links: wrapped.collect::<Result<_, _>>()?, vnet_header })
}

/// Opens the node's TAP, makes the kernel's side of it ready, and puts capture and weather before it.
/// The capture stands at the wire: it has what weather has left, and not what it has taken.
///
/// # Errors
/// What stands in the way, as [`Failure`]'s kind: the options (several queues are for [`open_links`]), the machine, or
/// something else.
pub fn open_link(netlink: &mut Netlink, config: &NodeConfig) -> Result<OpenLink, Failure> {
    if config.queues != 1 {
        return Err(Failure::usage(format!("--queues {}: this command has one", config.queues)));
    }
    let OpenLinks { mut links, vnet_header } = open_links(netlink, config)?;
    let link = links.pop().ok_or_else(|| Failure::work("a TAP without a queue"))?;
    Ok(OpenLink { link, vnet_header })
}

/// Opens a TAP and makes the kernel's side of it ready; nothing is put before it.
///
/// # Errors
/// As [`open_link`].
pub fn open_bare(
    netlink: &mut Netlink,
    side: &KernelSide<'_>,
    vnet: Vnet,
) -> Result<OpenLink, Failure> {
    let options = tap_options(side, vnet, Reclaim::Off, Napi::Off);
    let OpenTap { link, vnet_header, .. } = open_tap(&options).map_err(tap_failure)?;
    plumb::make_ready(netlink, side)?;
    Ok(OpenLink { link, vnet_header })
}

fn kernel_side(config: &NodeConfig) -> KernelSide<'_> {
    let NodeConfig { tap, mtu_bytes, bridge, host_addresses, txqueuelen, .. } = config;
    KernelSide {
        tap,
        mtu_bytes: *mtu_bytes,
        bridge: bridge.as_deref(),
        addresses: host_addresses,
        txqueuelen: *txqueuelen,
    }
}

fn tap_options(side: &KernelSide<'_>, vnet: Vnet, reclaim: Reclaim, napi: Napi) -> TapOptions {
    TapOptions {
        name: side.tap.to_owned(),
        mtu: side.mtu_bytes.into(),
        vnet: match vnet {
            Vnet::Auto => VnetMode::Auto,
            Vnet::On => VnetMode::On,
            Vnet::Checksum => VnetMode::Checksum,
            Vnet::Off => VnetMode::Off,
        },
        reclaim: match reclaim {
            Reclaim::Auto => ReclaimMode::Auto,
            Reclaim::On => ReclaimMode::On,
            Reclaim::Off => ReclaimMode::Off,
        },
        napi: napi.mode(),
    }
}

/// Starts a node on `link`; `client` makes the layer above it.
///
/// # Errors
/// No descriptor or thread is left.
pub fn start<C: NodeClient + 'static>(
    link: Box<dyn Link>,
    config: &NodeConfig,
    client: impl FnOnce(SocketPort) -> C,
) -> Result<Node<C>, Failure> {
    let node = Node::start(link, settings(config), client).map_err(start_failure)?;
    start_trace(&node, config, 0)?;
    Ok(node)
}

/// Starts a node on the queues of its TAP, with a handle for each; `client` makes the layer above each.
///
/// # Errors
/// As [`start`].
pub fn start_queues<C: NodeClient + 'static>(
    links: Vec<Box<dyn Link>>,
    config: &NodeConfig,
    client: impl FnMut(SocketPort) -> C,
) -> Result<Vec<Node<C>>, Failure> {
    let nodes = Node::start_queues(links, settings(config), client).map_err(start_failure)?;
    for (queue, node) in nodes.iter().enumerate() {
        start_trace(node, config, queue)?;
    }
    Ok(nodes)
}

/// Starts a node on `link` whose client is NDK, and opens its adapter.
///
/// # Errors
/// No descriptor or thread is left; or the options forbid offloading, which queue pairs need.
pub fn open_adapter(
    link: Box<dyn Link>,
    config: &NodeConfig,
    fpdu_size: FpduSize,
) -> Result<(Node<AdapterCore>, Adapter), Failure> {
    let mut opened = open_adapters(vec![link], config, fpdu_size)?;
    opened.pop().ok_or_else(|| Failure::work("a node without an adapter"))
}

/// Starts a node on the queues of its TAP whose clients are NDK, and opens an adapter for each queue.
///
/// # Errors
/// As [`open_adapter`].
pub fn open_adapters(
    links: Vec<Box<dyn Link>>,
    config: &NodeConfig,
    fpdu_size: FpduSize,
) -> Result<Vec<(Node<AdapterCore>, Adapter)>, Failure> {
    let adapter =
        AdapterConfig { seed: u128::from(config.seed), fpdu_size, ..AdapterConfig::default() };
    let opened = ndk::open_queues(links, settings(config), adapter).map_err(start_failure)?;
    for (queue, (node, _)) in opened.iter().enumerate() {
        start_trace(node, config, queue)?;
    }
    Ok(opened)
}

/// What a file of this name is called that is a queue's: that of the first queue as it is, `name.1.ext` the next.
fn of_queue(path: &Path, queue: usize) -> PathBuf {
    let Some(stem) = path.file_stem().filter(|_| queue > 0) else { return path.to_owned() };
    let mut name = OsString::from(stem);
    name.push(format!(".{queue}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn start_trace<C: NodeClient + 'static>(
    node: &Node<C>,
    config: &NodeConfig,
    queue: usize,
) -> Result<(), Failure> {
    let Some(path) = &config.tcp_trace else { return Ok(()) };
    let path = &of_queue(path, queue);
    let failed = |error| Failure::work(format!("--tcp-trace {}: {error}", path.display()));
    let file = File::create(path).map_err(failed)?;
    let output = BufWriter::with_capacity(CAPTURE_BUFFER_BYTES, file);
    node.with_engine(|engine, _| engine.start_trace(Box::new(output))).map_err(failed)
}

/// How long a command whose work is done waits for its peers' FINs. A peer that does not close in that time does not
/// need us. Longer than the shortest retransmission time-out, 200 ms: a FIN that was lost comes again.
pub const LINGER_LIMIT: Duration = Duration::from_millis(500);

/// Stays until the connections have ended, so that the peers' ends are clean too; at most for [`LINGER_LIMIT`].
pub fn linger<C: NodeClient + 'static>(node: &Node<C>) {
    if let Err(error) = node.linger(LINGER_LIMIT) {
        tracing::debug!(%error, "waiting for the peers' ends");
    }
}

fn start_failure(error: std::io::Error) -> Failure {
    Failure::work(format!("start of the node: {error}"))
}

/// Sets the limits that were given.
fn limit(capabilities: &mut OffloadCapabilities, capacity: Capacity) {
    let Capacity { tcp, path, neighbor, ip, send, receive, window } = capacity;
    let set = |limit: &mut usize, given: Option<u32>| {
        if let Some(given) = given {
            *limit = given as usize;
        }
    };
    set(&mut capabilities.connections_max, tcp);
    set(&mut capabilities.paths_max, path);
    set(&mut capabilities.neighbors_max, neighbor);
    set(&mut capabilities.ip_addresses_max, ip);
    set(&mut capabilities.transmit_buffer_max, send);
    set(&mut capabilities.receive_buffer_max, receive);
    if let Some(window) = window {
        capabilities.receive_window_max = window;
    }
}

/// When connections are handed over, in the words of the host stack.
fn rules(chimney: &ChimneyConfig) -> OffloadRules {
    let ChimneyConfig {
        offload_after_bytes: _,
        offload_after_age_s,
        offload_ports,
        upload_on,
        upload_rest_s,
        capacity: _,
    } = chimney;
    let upload_on = upload_on
        .iter()
        .fold(UploadReasons::default(), |reasons, reason| reasons.with((*reason).into()));
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    OffloadRules {
        after_age: offload_after_age_s.map(seconds),
        ports: offload_ports.clone(),
        upload_on,
        rest: seconds(*upload_rest_s),
    }
}

/// The configuration in the words of host stack and engine.
fn settings(config: &NodeConfig) -> node::NodeConfig {
    let mac = MacAddress(config.mac.octets());
    let mut engine = EngineConfig::new(mac);
    limit(&mut engine.capabilities, config.chimney.capacity);
    engine.tcp.push = match config.psh {
        Psh::List => PushPolicy::EachList,
        Psh::Empty => PushPolicy::QueueEmpty,
    };
    engine.tcp.congestion = match config.congestion_control {
        CongestionControl::Cubic => CongestionAlgorithm::Cubic,
        CongestionControl::Newreno => CongestionAlgorithm::NewReno,
        CongestionControl::None => CongestionAlgorithm::Unlimited,
    };
    engine.tcp.congestion_options.pacing = config.pacing;
    engine.tcp.retransmissions_max = config.max_retransmissions;
    engine.tcp.rcv_wnd_max = config.receive_window_bytes;
    let upload_on = config.chimney.upload_on.iter();
    engine.tcp.upload = upload_on
        .fold(UploadThresholds::default(), |thresholds, reason| thresholds.with((*reason).into()));
    let window = config.receive_window_bytes as usize;
    let receive_buffer = HostConfig::default().receive_buffer.min(window);
    let prefixes = config.addresses.iter();
    let host = HostConfig {
        mac,
        addresses: prefixes.map(|prefix| (prefix.address(), prefix.prefix_len())).collect(),
        gateways: config.gateways.clone(),
        mtu: config.mtu_bytes.into(),
        policy: match config.offload {
            Offload::Always => OffloadPolicy::Always,
            Offload::Never => OffloadPolicy::Never,
            Offload::Auto => OffloadPolicy::Auto,
        },
        auto_offload_bytes: config.chimney.offload_after_bytes,
        rules: rules(&config.chimney),
        ecn: config.ecn,
        receive_buffer,
        receive_window_max: window,
        seed: config.seed,
        ..HostConfig::default()
    };
    let progress = match config.progress {
        Progress::Auto => node::Progress::Automatic,
        Progress::Manual => node::Progress::Manual,
    };
    node::NodeConfig { engine, host, progress, spin: SPIN }
}

fn captured(
    link: Box<dyn Link>,
    config: &NodeConfig,
    queue: usize,
) -> Result<Box<dyn Link>, Failure> {
    let Some(path) = &config.pcap else { return Ok(link) };
    let path = &of_queue(path, queue);
    let failed = |error| Failure::work(format!("--pcap {}: {error}", path.display()));
    let file = File::create(path).map_err(failed)?;
    let output = BufWriter::with_capacity(CAPTURE_BUFFER_BYTES, file);
    // The node's time starts with the node, a moment from now.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let now_nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let tee = Tee::new(link, output, &config.tap, now_nanos).map_err(failed)?;
    Ok(Box::new(tee))
}

fn impaired(
    link: Box<dyn Link>,
    weather: &Impairment,
    seed: u64,
) -> Result<Box<dyn Link>, Failure> {
    if weather.is_none() {
        return Ok(link);
    }
    let transmit = weather.on_a_link(seed);
    let receive = Impairments { seed: seed.wrapping_add(1), ..transmit };
    let link = Impaired::new(link, transmit, receive)
        .map_err(|error| Failure::usage(format!("impairment: {error}")))?;
    Ok(Box::new(link))
}

#[cfg(test)]
mod tests {
    use offload_engine::link::QueueLimit;

    use super::*;

    #[test]
    fn each_queue_has_files_of_its_own() {
        let of = |path: &str, queue| of_queue(path.as_ref(), queue).display().to_string();
        assert_eq!(of("/tmp/run.pcapng", 0), "/tmp/run.pcapng");
        assert_eq!(of("/tmp/run.pcapng", 1), "/tmp/run.1.pcapng");
        assert_eq!(of("run.v2.csv", 15), "run.v2.15.csv");
        assert_eq!(of("trace", 2), "trace.2");
    }

    #[test]
    fn weather_keeps_its_numbers() {
        let weather = Impairment {
            drop_ppm: "0.5".parse().unwrap(),
            corrupt_ppm: "100".parse().unwrap(),
            delay_ns: 5_000_000,
            jitter_ns: 1_000_000,
            burst_frames: 3,
            rate_bps: Some("100Mbit".parse().unwrap()),
            queue: Some("20ms".parse().unwrap()),
            ..Impairment::default()
        };
        let impairments = weather.on_a_link(7);
        assert_eq!(impairments.drop_pct, 0.5);
        assert_eq!(impairments.corrupt_pct, 100.0);
        assert_eq!(impairments.duplicate_pct, 0.0);
        assert_eq!(impairments.delay, Duration::from_millis(5));
        assert_eq!(impairments.rate_bps, Some(100_000_000));
        assert_eq!(impairments.jitter, Duration::from_millis(1));
        assert_eq!(impairments.burst_mean, 3.0);
        assert_eq!(impairments.queue, QueueLimit::Bytes(250_000));
        assert_eq!(impairments.seed, 7);
        assert_eq!(impairments.validate(), Ok(()));
    }
}
