//! Node under test and its clock.
//!
//! Time is virtual: it stops while work is left, and advances while packetdrill waits. The node is created when
//! its first socket listens or connects, because the options of that socket configure the node.

use core::net::IpAddr;
use std::sync::{Arc, Mutex};

use host_stack::{host::HostConfig, node::Core, simulation::ITERATIONS_MAX, stream::Streams};
use offload_engine::{
    chimney::client::OffloadHandle,
    engine::EngineConfig,
    state::TcpCached,
    tcp::Info,
    time::{Duration, Instant},
};

use crate::{
    client::Client,
    info::InfoSnapshot,
    settings::Settings,
    wire::{self, OUR_MAC, Wire, WireLink},
};

/// Node under test and its clock.
pub(crate) struct Machine {
    pub(crate) settings: Settings,
    pub(crate) core: Option<Core>,
    wire: Arc<Mutex<Wire>>,
    now: Instant,
}

impl Machine {
    pub(crate) fn new(settings: Settings) -> Self {
        let wire = Arc::new(Mutex::new(Wire::new(settings.quirks)));
        Self { settings, core: None, wire, now: Instant::ZERO }
    }

    /// Current virtual time.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Creates the node, unless it exists, with this address and this state for its connections.
    pub(crate) fn start(&mut self, local: IpAddr, tcp: TcpCached) {
        if self.core.is_some() {
            return;
        }
        let settings = &self.settings;
        let tso = settings.gso_payload_max > 0;
        let link = WireLink::new(self.wire.clone(), settings.mtu, tso);
        let mut engine = EngineConfig::new(OUR_MAC);
        engine.gso_payload_max = settings.gso_payload_max;
        engine.tcp.push = settings.push;
        if let Some(congestion) = settings.congestion {
            engine.tcp.congestion = congestion;
        }
        engine.tcp.rcv_wnd_max = u32::try_from(settings.receive_window_max).unwrap_or(u32::MAX);
        engine.tcp.congestion_options = settings.congestion_options;
        let host = HostConfig {
            mac: OUR_MAC,
            // Every address is on-link, and the neighbor replies for all of them.
            addresses: vec![(local, 0)],
            mtu: settings.mtu,
            policy: settings.policy,
            auto_offload_bytes: settings.handover_bytes,
            timestamps: settings.timestamps,
            ecn: settings.ecn,
            receive_buffer: settings.receive_buffer,
            receive_window_max: settings.receive_window_max,
            send_buffer: settings.send_buffer,
            seed: settings.seed,
            tcp,
            ..HostConfig::default()
        };
        let client = |port| Client::new(Streams::new(port));
        let core = Core::new(Box::new(link), engine, host, client);
        self.core = Some(core.expect("so_flags valid for the host stack"));
    }

    /// Runs all work that is due at the current time.
    ///
    /// # Panics
    /// If that does not end, which is a bug of the node.
    pub(crate) fn settle(&mut self) {
        let Some(core) = &mut self.core else { return };
        // The neighbor's reply is not work of the node, so one idle poll is not the end.
        let mut idle = 0;
        for _ in 0..ITERATIONS_MAX {
            let busy = core.poll(self.now).expect("the wire always exists");
            idle = if busy || core.has_input() { 0 } else { idle + 1 };
            if idle == 2 {
                return;
            }
        }
        panic!("livelock at {:?}", self.now);
    }

    /// Next deadline of the node.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.core.as_ref()?.poll_at(self.now)
    }

    /// Advances the clock to `until`, or to an earlier deadline. True if `until` is reached.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        match self.due() {
            Some(due) if due <= until => {
                // A deadline in the past is due now. Time must advance eventually, whatever is due.
                self.now = due.max(self.now + Duration::from_micros(1)).min(until.max(self.now));
            }
            _ => self.now = self.now.max(until),
        }
        self.settle();
        self.now >= until
    }

    /// Passes a packet from packetdrill to the node.
    pub(crate) fn inject(&mut self, packet: &[u8]) {
        wire::lock(&self.wire).inject(packet);
        self.settle();
    }

    /// Next packet for packetdrill, and its time.
    pub(crate) fn sniff(&mut self) -> Option<(Instant, Vec<u8>)> {
        wire::lock(&self.wire).sniff()
    }

    /// TCP state of a connection; `None` if the target does not have it.
    pub(crate) fn info(&mut self, handle: OffloadHandle) -> Option<Info> {
        let core = self.core.as_mut()?;
        Some(core.engine.connections().get(self.now, handle)?.info())
    }

    /// Snapshot of a connection of the target.
    pub(crate) fn info_snapshot(&mut self, handle: OffloadHandle) -> Option<InfoSnapshot> {
        let core = self.core.as_mut()?;
        let io = core.engine.connections().get(self.now, handle)?;
        let outstanding = io.send_outstanding() as u64;
        Some(InfoSnapshot { info: io.info(), state: io.query(), outstanding })
    }

    /// Changes the settings of a connection, in the target or in the host stack.
    pub(crate) fn update(&mut self, handle: Option<OffloadHandle>, tcp: TcpCached) {
        let Some(core) = &mut self.core else { return };
        if let Some(host) = &mut core.host {
            // Only the TTL can be rejected, and no socket option sets it.
            host.set_tcp(tcp).expect("a valid TTL");
        }
        let connections = core.engine.connections();
        if let Some(mut io) = handle.and_then(|handle| connections.get(self.now, handle)) {
            io.update(tcp);
        }
        self.settle();
    }
}
