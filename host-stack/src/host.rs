//! The host stack: a passive object around an unmodified smoltcp.
//!
//! [`Host::poll`] takes pending frames and control from the engine and requests from clients. It polls smoltcp,
//! offloads established connections according to [`OffloadPolicy`], and sends the results. Time is its argument; it
//! owns no thread and never blocks. The driver calls it when a doorbell rings, and at [`Host::poll_at`].
//!
//! A received TCP frame has one of three owners:
//! - The target: [`HostPort::forward`] returns the frame. It is held while the connection is in transition (CH-FWD-2,
//!   -3).
//! - The host: the observer records the frame, then smoltcp processes it.
//! - No connection: `half_open` handles a SYN for a listener; otherwise smoltcp answers with RST.
//!
//! The owner of a 4-tuple changes before its socket is removed from smoltcp, and after it is inserted. So no frame of a
//! connection reaches smoltcp without its socket, which would answer RST (P1).
//!
//! Limits: [`CONNECTIONS_MAX`] accepted connections in the host, [`BACKLOG_MAX`] handshakes per listener,
//! [`HELD_FRAMES_MAX`] frames held for a connection in transition, MTUs of 1,024 narrow paths.
//! Timers: [`HANDSHAKE_MAX`] for the handshake of an accepted connection, [`RETRANSMISSION_MAX`] for an unanswered
//! retransmission, and the timers of smoltcp.
//!
//! ISNs of accepted connections follow RFC 6528. ISNs of opened connections are drawn by smoltcp's unkeyed generator:
//! seed it from the OS.

mod config;
mod connection;
mod datagrams;
mod half_open;
mod history;
mod ingress;
mod list;
mod neighbors;
mod objects;
mod offload;
mod out_of_order;
mod paths;
mod ports;
mod requests;
mod routes;
mod service;
mod shards;
mod stalls;
mod time_wait;
mod upkeep;
mod upload;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};
use core::{fmt, net::IpAddr};

use hashbrown::HashMap;
use offload_engine::{
    chimney::client::OffloadHandle,
    engine::{
        EARLY_BYTES_MAX,
        port::{FromHost, HostPort, TO_HOST_FRAMES_MAX, ToHost},
    },
    frame::FlowKey,
    state::{MacAddress, TcpCached},
    tcp::Flags,
    time::{Duration, Instant},
};
use smoltcp::{
    iface::{Config, Interface, SocketSet},
    phy::Medium,
    socket::tcp,
    wire::{EthernetAddress, HardwareAddress, IpCidr},
};

pub use self::config::{
    ADDRESSES_MAX, BUFFER_RANGE, ConfigError, HostConfig, HostStats, MTU_MAX, MTU_MIN,
};
use self::{
    connection::{Connection, Listener, OffloadStage, Offloaded, Owner},
    datagrams::Datagrams,
    half_open::HalfOpen,
    paths::Paths,
    ports::Ports,
    shards::{ClientId, ShardId, Shards},
    time_wait::TimeWaits,
};
#[cfg(doc)]
use crate::socket::OffloadPolicy;
use crate::{
    clock::{TimestampClock, from_smoltcp, to_smoltcp},
    cookie::Isns,
    device::QueueDevice,
    observer::Disposition,
    socket::{ClientRequest, HostSocketPort, Notice},
    window::raise_scale,
    wire::{self, Frame},
};

/// Maximum number of accepted connections in the host, half-open ones included. Above it SYNs are answered with
/// cookies.
pub const CONNECTIONS_MAX: usize = 2048;
/// Maximum number of half-open connections of one listener, whatever its backlog. A SYN flood leaves capacity for other
/// listeners.
pub const BACKLOG_MAX: usize = CONNECTIONS_MAX / 2;
/// Maximum number of frames held for one connection in transition: equal to the capacity of the channel from the
/// target. Further frames are dropped and counted as loss.
pub const HELD_FRAMES_MAX: usize = TO_HOST_FRAMES_MAX;
/// Maximum number of bytes of these frames.
pub const HELD_BYTES_MAX: usize = EARLY_BYTES_MAX;
/// Time limit for the handshake of an accepted connection (RFC 9293 §3.8.3, MUST-23: a SYN is retransmitted for at
/// least three minutes). The opener may be in ESTABLISHED since the first SYN-ACK. A limit shorter than its search for
/// a moved neighbor would abort its connection.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(180);
/// Time limit for unanswered retransmissions of a connection in the host (RFC 9293 §3.8.3, R2): the default of Linux
/// (`tcp_retries2`). smoltcp's timeout doubles up to 60 s, so the 100 s that the RFC requires may leave only two
/// retransmissions.
pub const RETRANSMISSION_MAX: Duration = Duration::from_secs(924);

/// The host stack of one node.
pub struct Host {
    config: HostConfig,
    shards: Shards,
    interface: Interface,
    device: QueueDevice,
    sockets: SocketSet<'static>,
    timestamps: TimestampClock,
    ports: Ports,
    /// Owner of each 4-tuple. Every entry has a connection in `connections`, `half_open` or `offloaded`.
    owners: HashMap<FlowKey, Owner>,
    /// Ordered, so that the events of one poll have a reproducible order.
    connections: BTreeMap<OffloadHandle, Connection>,
    offloaded: BTreeMap<OffloadHandle, Offloaded>,
    /// Accepted connections in the handshake.
    half_open: BTreeMap<OffloadHandle, HalfOpen>,
    /// Earliest time of the next SYN-ACK, or end of a handshake.
    half_open_at: Option<Instant>,
    isns: Isns,
    listeners: BTreeMap<u64, Listener>,
    /// Connections of `offloaded` whose target may hold outdated cached variables.
    outdated: BTreeSet<OffloadHandle>,
    /// Time of the next solicitation of missing next hops.
    solicit_hops_at: Option<Instant>,
    /// Known Ethernet addresses of gateways.
    gateway_macs: BTreeMap<IpAddr, MacAddress>,
    paths: Paths,
    datagrams: Datagrams,
    time_waits: TimeWaits,
    stats: HostStats,
    wake_at: Option<Instant>,
    /// True if `config.tcp` has changed since the last poll.
    tcp_changed: bool,
    /// Time of the last change of `config.tcp`. Earlier time without segments does not count against the peer.
    tcp_since: Instant,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("mac", &self.config.mac)
            .field("connections", &self.connections.len())
            .field("offloaded", &self.offloaded.len())
            .field("listeners", &self.listeners.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// Creates a host.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration is invalid.
    pub fn new(
        config: HostConfig,
        engine: HostPort,
        requests: HostSocketPort,
    ) -> Result<Self, ConfigError> {
        Self::of_shards(config, vec![(engine, requests)])
    }

    /// Creates the host stack for engines on the queues of one device, each with the port of its clients.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration is invalid.
    pub fn of_shards(
        mut config: HostConfig,
        ports: Vec<(HostPort, HostSocketPort)>,
    ) -> Result<Self, ConfigError> {
        let shards = Shards::new(ports).ok_or(ConfigError::Shards)?;
        for shard in shards.iter() {
            config.mtu = config.mtu.min(shard.engine.capabilities.mtu);
        }
        config.check()?;
        let mut random = oorandom::Rand32::new(config.seed);
        let mut device = QueueDevice::new(Medium::Ethernet, config.mtu);
        let mac = HardwareAddress::Ethernet(EthernetAddress(config.mac.0));
        let mut settings = Config::new(mac);
        settings.random_seed = u64::from(random.rand_u32()) << 32 | u64::from(random.rand_u32());
        let mut interface = Interface::new(settings, &mut device, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            for (address, prefix) in &config.addresses {
                // `check` has verified their number.
                let _ = addresses.push(IpCidr::new((*address).into(), *prefix));
            }
        });
        config.add_routes(&mut interface);
        let isn_key = [config.isn_key[0] ^ config.seed, config.isn_key[1]];
        let timestamps = TimestampClock::new(random.rand_u32());
        let next_port =
            random.rand_range(connection::EPHEMERAL_PORTS.start..u32::from(u16::MAX) + 1);
        Ok(Self {
            config,
            shards,
            interface,
            device,
            sockets: SocketSet::new(vec![]),
            timestamps,
            ports: Ports::new(next_port as u16),
            owners: HashMap::new(),
            connections: BTreeMap::new(),
            offloaded: BTreeMap::new(),
            half_open: BTreeMap::new(),
            half_open_at: None,
            isns: Isns::new(isn_key),
            listeners: BTreeMap::new(),
            outdated: BTreeSet::new(),
            solicit_hops_at: None,
            gateway_macs: BTreeMap::new(),
            paths: Paths::default(),
            datagrams: Datagrams::default(),
            time_waits: TimeWaits::default(),
            stats: HostStats::default(),
            wake_at: Some(Instant::ZERO),
            tcp_changed: false,
            tcp_since: Instant::ZERO,
        })
    }

    /// Does all work possible at `now`. Returns true if there was any.
    pub fn poll(&mut self, now: Instant) -> bool {
        let due = self.wake_at.is_some_and(|at| at <= now);
        if !due && !self.has_input() {
            return false;
        }
        self.timestamps.set_tsval(now);
        if core::mem::take(&mut self.tcp_changed) {
            self.tcp_since = now;
            self.outdated.extend(self.offloaded.keys());
            self.push_all_updates(now);
        }
        let took = self.take_requests(now) | self.take_from_engines(now);
        let mut work = took;
        if due || took {
            self.interface.poll_maintenance(to_smoltcp(now));
            work |= self.transmit(now);
            work |= self.hand_over(now) | self.serve(now) | self.deliver_datagrams();
            work |= self.probe_neighbors(now) | self.relink_paths(now) | self.serve_half_open(now);
            work |= self.serve_hops(now);
            // Closing, consuming and writing may have produced segments to send.
            work |= self.transmit(now);
            while self.write_held() {
                work |= self.transmit(now);
            }
            self.wake_at = self.next_wake(now);
        }
        self.shards.ring();
        work
    }

    /// Time of the next call of [`Host::poll`] without new input. `now` or earlier means immediately.
    pub fn poll_at(&self, _now: Instant) -> Option<Instant> {
        self.wake_at
    }

    /// Changes the settings that the host applies itself (Nagle, keep-alive, TTL, `max_rt`). They apply immediately to
    /// connections in the host, and by an update to offloaded ones (CH-UPD-5).
    ///
    /// # Errors
    /// [`ConfigError::Ttl`]; nothing is changed.
    pub fn set_tcp(&mut self, tcp: TcpCached) -> Result<(), ConfigError> {
        HostConfig { tcp, ..self.config.clone() }.check()?;
        self.config.tcp = tcp;
        self.configure_all(|_| true);
        Ok(())
    }

    /// Applies changed TCP settings to the connections of these clients.
    fn configure_all(&mut self, is_changed: impl Fn(ClientId) -> bool) {
        for connection in self.connections.values() {
            let client = connection.client_id();
            if is_changed(client) {
                let tcp = self.tcp_of(client);
                let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.socket);
                ingress::configure(socket, &tcp);
            }
        }
        // Deadlines depend on the settings; the next poll recomputes them.
        self.tcp_changed = true;
        self.wake_at = Some(Instant::ZERO);
    }

    /// TCP settings for the connections of a client.
    fn tcp_of(&self, client: ClientId) -> TcpCached {
        let keep_alive = self.shards[client.shard].client(client.tag).and_then(|it| it.keep_alive);
        self.config.cached(keep_alive)
    }

    /// True if input is pending for [`Host::poll`]. Check it after announcing sleep and before sleeping.
    pub fn has_input(&self) -> bool {
        self.shards.iter().any(|shard| {
            !shard.engine.from_engine.is_empty() || !shard.requests.requests.is_empty()
        })
    }

    /// True if no connection is left in the host or offloaded. Listeners do not count.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.offloaded.is_empty() && self.half_open.is_empty()
    }

    /// True if nothing is left to send to a peer: every connection in the host is in TIME-WAIT, none is in transition,
    /// and no datagram waits for a next hop.
    pub fn is_silent(&self) -> bool {
        let waits = |found: &Connection| self.state_of(found) == tcp::State::TimeWait;
        self.half_open.is_empty()
            && !self.datagrams.are_waiting()
            && self.connections.values().all(waits)
            && self.offloaded.values().all(|found| matches!(found.stage, OffloadStage::With(_)))
    }

    /// As [`Engine::repeat_last_acks`](offload_engine::engine::Engine::repeat_last_acks), for connections in the host.
    pub fn repeat_last_acks(&mut self, now: Instant) {
        let recently_closed = self.time_waits.recently_closed(now);
        let suspects: Vec<_> =
            recently_closed.filter(|(_, _, flow)| flow.has_retransmitted).collect();
        for (tuple, shard, flow) in suspects {
            self.acknowledge(now, shard, &flow, flow.peer_mac, tuple);
        }
    }

    /// Counters of the host.
    pub fn stats(&self) -> HostStats {
        self.stats
    }

    /// Processes all pending requests of clients.
    fn take_requests(&mut self, now: Instant) -> bool {
        let mut took = false;
        for shard in self.shards.ids() {
            for _ in 0..self.shards[shard].requests.requests.len() {
                let Ok(next) = self.shards[shard].requests.requests.try_recv() else { break };
                took = true;
                let ClientRequest { client: tag, request } = next;
                self.request(now, ClientId { shard, tag }, request);
            }
        }
        took
    }

    /// Drains the engines' channels, so that smoltcp processes earlier messages before an offload is decided. Takes at
    /// most slightly more than a full queue, so that a poll is bounded.
    fn take_from_engines(&mut self, now: Instant) -> bool {
        self.shards.ids().fold(false, |took, shard| took | self.take_from_engine(now, shard, true))
    }

    /// `in_order`: frames that arrived on other queues for connections taken over by this shard's target are older than
    /// later traffic to the target. They are forwarded first.
    fn take_from_engine(&mut self, now: Instant, shard: ShardId, in_order: bool) -> bool {
        let mut took = false;
        for _ in 0..2 * TO_HOST_FRAMES_MAX {
            let Ok(message) = self.shards[shard].engine.from_engine.try_recv() else { break };
            took = true;
            if in_order && matches!(message, ToHost::InitiateComplete(_)) {
                for other in self.shards.ids().filter(|other| *other != shard) {
                    self.take_from_engine(now, other, false);
                }
            }
            self.take(now, shard, message);
        }
        took
    }

    /// Handles a message of the target.
    fn take(&mut self, now: Instant, shard: ShardId, message: ToHost) {
        match message {
            ToHost::Frame { data, checksum_valid } => {
                self.stats.frames_in += 1;
                self.receive(now, shard, data, checksum_valid);
            }
            ToHost::InitiateComplete(tree) => self.initiated(now, shard, tree),
            ToHost::QueryComplete(tree) => self.queried(now, shard, tree),
            ToHost::UpdateComplete(tree) => self.updated(now, shard, tree),
            // The connections that it stops request an upload: Retrieve(InvalidState).
            ToHost::InvalidateComplete(_) => {}
            ToHost::TerminateComplete(tree) => self.terminated(now, shard, tree),
            ToHost::ForwardComplete(segment) => self.forwarded(now, shard, segment),
            ToHost::Retrieve { handle, reason } => self.retrieve_requested(handle, reason),
            // The host answers with its own confirmation.
            ToHost::NeighborReachabilityQuery {
                neighbor,
                host_reachability_delta: _,
                nic_reachability_delta: _,
            } => self.reachability_query(now, shard, neighbor),
            ToHost::Status(status) => self.adapter_status(shard, status),
            ToHost::PathMtu { handle, path_mtu } => self.path_narrowed(now, handle, path_mtu),
            ToHost::Released { handle } => self.released(handle),
        }
    }

    /// Transmits pending segments of smoltcp. Returns true if there were any.
    fn transmit(&mut self, now: Instant) -> bool {
        let at = to_smoltcp(now);
        let mut work = false;
        loop {
            let result = self.interface.poll_egress(at, &mut self.device, &mut self.sockets);
            self.pass_sent_frames(now);
            if result == smoltcp::iface::PollResult::None {
                return work;
            }
            work = true;
        }
    }

    /// Passes frames sent by smoltcp through the observer to the engine.
    fn pass_sent_frames(&mut self, now: Instant) {
        while let Some(mut frame) = self.device.sent.pop_front() {
            let mut shard = ShardId::FIRST;
            if let Frame::Tcp(segment) = wire::parse(&frame)
                && let Some(Owner::Host(handle)) = self.owners.get(&segment.sent_on())
                && let Some(connection) = self.connections.get_mut(handle)
            {
                shard = connection.shard;
                let flow = &mut connection.flow;
                raise_scale(&mut frame, connection.scale_raise, flow.windows_are_scaled());
                if let Frame::Tcp(mut segment) = wire::parse(&frame) {
                    let ecn = flow.ecn_flags(&segment, self.config.ecn);
                    let tcp_at = segment.tcp_at;
                    segment.flags |= ecn;
                    let is_bared = connection.bare_probe(&mut segment);
                    let leaves = connection.flow.outgoing(now, &mut segment);
                    if leaves == Disposition::Dropped {
                        continue;
                    }
                    if leaves == Disposition::Changed || is_bared {
                        let Some(other) = wire::rewritten(&frame, &segment) else { continue };
                        frame = other;
                    } else if ecn != Flags::default() {
                        wire::add_flags(&mut frame, tcp_at, ecn);
                    }
                }
            }
            self.stats.frames_out += 1;
            self.shards[shard].send_to_engine(FromHost::Frame(frame));
        }
    }

    /// Sends a notice to a client.
    fn notify(&mut self, client: ClientId, notice: Notice) {
        self.shards[client.shard].notify(client.tag, notice);
    }

    fn next_wake(&mut self, now: Instant) -> Option<Instant> {
        let smoltcp = self.interface.poll_at(to_smoltcp(now), &self.sockets).map(from_smoltcp);
        let deadlines = self.connections.values().filter_map(|connection| {
            // Overdue work that was not possible needs another event first.
            let offload_at = self.offload_at(connection).filter(|at| *at > now);
            connection.deadline(offload_at)
        });
        let solicit_at = self.datagrams.next_solicitation();
        let others = [self.next_probe(), self.solicit_hops_at, self.half_open_at, solicit_at];
        smoltcp.into_iter().chain(deadlines).chain(others.into_iter().flatten()).min()
    }
}

#[cfg(test)]
mod tests;
