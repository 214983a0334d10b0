//! Common set-up of simulations: stations of one network, the wire between two of them, and a byte stream over it.

use std::{boxed::Box, env, fs::File, net::SocketAddr};

use bytes::Bytes;
use offload_engine::{
    chimney::client::OffloadHandle,
    engine::{Connections, EngineConfig},
    link::{
        CaptureLink, Impaired, ImpairmentError, Impairments, Link, MemoryLinkOptions,
        memory_link_pair,
    },
    state::MacAddress,
    time::{Duration, Instant},
};

use super::Pair;
use crate::{
    host::HostConfig,
    node::Core,
    stream::{OffloadState, StreamStatus, Streams},
};

/// Port of the second station in [`Pair::connect`].
const PORT: u16 = 7;
/// Time limit of a connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Station `number` of a network: 10.0.0.`number`/24, with an Ethernet address and a seed of that number.
pub fn station(number: u8) -> HostConfig {
    let mac = MacAddress([2, 0, 0, 0, 0, number]);
    HostConfig { seed: number.into(), ..HostConfig::new(mac, [10, 0, 0, number].into()) }
}

/// Engine of a node with a lossy wire. A peer's RTO may grow to two minutes before it retransmits its FIN; TIME-WAIT
/// must last that long.
pub fn engine_with_long_time_wait(mac: MacAddress) -> EngineConfig {
    let mut engine = EngineConfig::new(mac);
    engine.tcp.time_wait = Duration::from_secs(240);
    engine
}

/// Ends of an in-memory link, each of which impairs its transmissions. With `FLUE_PCAP` set, all frames on the wire are
/// written to that file.
///
/// # Errors
/// Impairments out of range.
///
/// # Panics
/// The file cannot be written.
pub fn impaired_wire(
    options: MemoryLinkOptions,
    impairments: [Impairments; 2],
) -> Result<[Impaired<Box<dyn Link>>; 2], ImpairmentError> {
    let (left, right) = memory_link_pair(options);
    let left: Box<dyn Link> = match env::var("FLUE_PCAP") {
        Ok(path) => {
            let file = File::create(path).expect("the capture can be written");
            Box::new(CaptureLink::new(left, file, "wire", 0).expect("the capture can be written"))
        }
        Err(_) => Box::new(left),
    };
    let (right, none): (Box<dyn Link>, _) = (Box::new(right), Impairments::default());
    let [to_right, to_left] = impairments;
    Ok([Impaired::new(left, to_right, none)?, Impaired::new(right, to_left, none)?])
}

/// Two nodes whose first client is [`Streams`]. Nodes are 0 and 1 here.
impl Pair<Core> {
    /// Creates nodes on the ends of a link.
    ///
    /// # Panics
    /// The configuration is invalid.
    pub fn streams<A: Link + 'static, B: Link + 'static>(
        links: (A, B),
        hosts: [HostConfig; 2],
    ) -> Self {
        let node = |link: Box<dyn Link>, host: HostConfig| {
            let engine = EngineConfig::new(host.mac);
            Core::new(link, engine, host, Streams::new).expect("a configuration that works")
        };
        let [a, b] = hosts;
        Self::new(node(Box::new(links.0), a), node(Box::new(links.1), b))
    }

    /// Creates stations 1 and 2 on the ends of a link.
    ///
    /// # Panics
    /// No descriptor is available.
    pub fn stations<A: Link + 'static, B: Link + 'static>(links: (A, B)) -> Self {
        Self::streams(links, [station(1), station(2)])
    }

    /// Connects a stream from node 0 to the second station, and returns the handle of each end. Both ends are in the
    /// stack that their policy selects when the nodes are idle.
    ///
    /// # Panics
    /// It is not connected by `limit`.
    pub fn connect(&mut self, limit: Instant) -> [OffloadHandle; 2] {
        let server = SocketAddr::from(([10, 0, 0, 2], PORT));
        let listener = self.b.clients.first_mut::<Streams>().listen(server, 4);
        let listens = |pair: &mut Self| pair.b.clients.first::<Streams>().listening(listener);
        self.run(limit, listens).expect("an answer").expect("a free port");
        let near = self.a.clients.first_mut::<Streams>().connect(None, server, CONNECT_TIMEOUT);
        let accept = |pair: &mut Self| pair.b.clients.first_mut::<Streams>().accept(listener);
        [near, self.run(limit, accept).expect("a connection")]
    }

    /// Waits until both ends of a stream are offloaded.
    ///
    /// # Panics
    /// They are not offloaded by `limit`.
    pub fn until_offloaded(&mut self, limit: Instant, ends: [OffloadHandle; 2]) {
        let is_offloaded =
            |pair: &Self, node| pair.status(node, ends[node]).state == OffloadState::Offloaded;
        let both = |pair: &mut Self| [0, 1].iter().all(|node| is_offloaded(pair, *node));
        self.run(limit, |pair| both(pair).then_some(())).expect("both are offloaded");
    }

    fn core(&mut self, node: usize) -> &mut Core {
        if node == 0 { &mut self.a } else { &mut self.b }
    }

    /// Streams and offloaded connections of a node.
    pub fn parts(&mut self, node: usize) -> (&mut Streams, &mut Connections) {
        let Core { clients, engine, .. } = self.core(node);
        (clients.first_mut(), engine.connections())
    }

    /// Posts data at a node; it is queued until the nodes run. Returns the list's context.
    pub fn send(&mut self, node: usize, handle: OffloadHandle, data: Bytes) -> u64 {
        let now = self.now;
        let (streams, connections) = self.parts(node);
        streams.send(now, connections, handle, data)
    }

    /// Returns the next data received by a node.
    pub fn receive(&mut self, node: usize, handle: OffloadHandle) -> Option<Bytes> {
        let now = self.now;
        let (streams, connections) = self.parts(node);
        streams.receive(now, connections, handle)
    }

    /// Returns the status of a node's stream.
    ///
    /// # Panics
    /// The node has no such stream.
    pub fn status(&self, node: usize, handle: OffloadHandle) -> StreamStatus {
        let core = if node == 0 { &self.a } else { &self.b };
        core.clients.first::<Streams>().status(handle).expect("a stream of that node")
    }
}

/// True if neither stack of a node has a connection.
///
/// # Panics
/// The node has no host stack of its own.
pub fn has_no_connection(core: &mut Core) -> bool {
    let host = core.host.as_ref().expect("a host stack");
    host.is_idle() && core.engine.connections().is_empty()
}
