//! Parameters selected by a seed.

use std::net::IpAddr;

use host_stack::{
    host::HostConfig, node::Cores, simulation::engine_with_long_time_wait, socket::OffloadPolicy,
    stream::Streams,
};
use offload_engine::{
    chimney::provider::OffloadCapabilities,
    link::{Impairments, Link, MemoryLinkOptions},
    state::MacAddress,
    tcp::PushPolicy,
    time::Duration,
};
use oorandom::Rand64;

use crate::{
    client::{ReceiverProfile, Walker},
    incidents::Incidents,
    queues::Queues,
    threads::ScheduledThreads,
};

/// Port that node B listens on; node A uses the following ones.
pub(crate) const PORT: u16 = 5000;
/// Maximum number of connections in a run.
const CONNECTIONS_MAX: u64 = 3;

/// Maximum pause of a reader whose peer must probe its window, in microseconds.
const LONG_PAUSE_MICROS: u64 = 20_000_000;
/// Additional data to send in that case, in bytes.
const LONG_PAUSE_BYTES: usize = 400_000;

/// Peer of the walker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    /// The engine, from the handshake to the end.
    Engine,
    /// smoltcp, permanently.
    Host,
    /// A node that changes stacks too.
    Walker,
}

/// Options removed from the opener's SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StrippedOptions {
    pub(crate) sack: bool,
    pub(crate) window_scale: bool,
}

/// All parameters of a seed, except the timing of events.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) peer: Peer,
    pub(crate) connections: usize,
    pub(crate) impairments: [Impairments; 2],
    pub(crate) link: MemoryLinkOptions,
    pub(crate) stripped: StrippedOptions,
    pub(crate) push: [PushPolicy; 2],
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) timestamps: [bool; 2],
    pub(crate) ecn: [bool; 2],
    pub(crate) receive_buffer: [usize; 2],
    pub(crate) receive_window_max: [usize; 2],
    pub(crate) send_buffer: [usize; 2],
    /// Mean number of turns per migration at each end.
    pub(crate) turns_per_move: u64,
    pub(crate) profile: [ReceiverProfile; 2],
    /// Size of the largest posted list, in bytes.
    pub(crate) list_bytes_max: u64,
    /// Bytes of each connection in each direction.
    pub(crate) bytes: Vec<[usize; 2]>,
    /// In-flight limit that the connections share, in bytes; `None` for the default, which they do not reach.
    pub(crate) in_flight_max: Option<u64>,
    pub(crate) incidents: Incidents,
    pub(crate) queues: Queues,
}

pub(crate) fn pick<T: Copy>(rng: &mut Rand64, choices: &[T]) -> T {
    choices[rng.rand_range(0..choices.len() as u64) as usize]
}

pub(crate) fn coin(rng: &mut Rand64) -> bool {
    rng.rand_range(0..2) == 0
}

/// Loss, duplication, reordering and corruption, unless `clean`; delay in any case.
fn impairments(rng: &mut Rand64, clean: bool) -> Impairments {
    let percent = |rng: &mut Rand64, most: u64| rng.rand_range(0..most * 100) as f64 / 100.0;
    let mut one = Impairments { seed: rng.rand_u64(), ..Impairments::default() };
    one.delay = Duration::from_micros(rng.rand_range(0..3_000));
    if !clean {
        one.drop_pct = percent(rng, 4);
        one.duplicate_pct = percent(rng, 4);
        one.reorder_pct = percent(rng, 10);
        one.corrupt_pct = percent(rng, 2);
        one.jitter = one.delay * (rng.rand_range(0..2) as u32);
        one.rate_bps = (rng.rand_range(0..4) == 0).then(|| rng.rand_range(5..100) * 1_000_000);
    }
    one
}

impl Plan {
    pub(crate) fn new(seed: u64, rng: &mut Rand64) -> Self {
        let peer = pick(rng, &[Peer::Engine, Peer::Engine, Peer::Engine, Peer::Host, Peer::Walker]);
        let clean = rng.rand_range(0..4) == 0;
        let mut both = |of: &mut dyn FnMut(&mut Rand64) -> usize| [of(rng), of(rng)];
        let receive_buffer =
            both(&mut |rng| pick(rng, &[4 * 1024, 8 * 1024, 60_000, 256 * 1024, 1 << 20]));
        let receive_window_max = both(&mut |rng| pick(rng, &[0, 0, 256 * 1024, 4 << 20]));
        let send_buffer = both(&mut |rng| pick(rng, &[4 * 1024, 64 * 1024, 256 * 1024]));
        let v6 = rng.rand_range(0..3) == 0;
        let texts = if v6 { ["fd00::1", "fd00::2"] } else { ["10.1.0.1", "10.1.0.2"] };
        let connections = 1 + rng.rand_range(0..CONNECTIONS_MAX) as usize;
        let size = |rng: &mut Rand64| match rng.rand_range(0..5) {
            0 => rng.rand_range(0..3) as usize,
            1 => rng.rand_range(0..5_000) as usize,
            _ => rng.rand_range(0..300_000) as usize / connections,
        };
        let mut plan = Self {
            peer,
            connections,
            impairments: [impairments(rng, clean), impairments(rng, clean)],
            link: MemoryLinkOptions {
                mtu: pick(rng, &[1280, 1500, 9000]),
                offloads: coin(rng),
                ..MemoryLinkOptions::default()
            },
            stripped: StrippedOptions {
                sack: rng.rand_range(0..4) == 0,
                window_scale: rng.rand_range(0..4) == 0,
            },
            push: [(); 2].map(|()| pick(rng, &[PushPolicy::EachList, PushPolicy::QueueEmpty])),
            addresses: texts.map(|text| text.parse().unwrap()),
            timestamps: [rng.rand_range(0..4) != 0, rng.rand_range(0..8) != 0],
            ecn: [coin(rng), rng.rand_range(0..4) != 0],
            receive_buffer,
            receive_window_max,
            send_buffer,
            turns_per_move: pick(rng, &[2, 10, 40, 200]),
            profile: [ReceiverProfile::new(rng), ReceiverProfile::new(rng)],
            list_bytes_max: pick(rng, &[100, 3_000, 30_000, 70_000]),
            bytes: (0..connections).map(|_| [size(rng), size(rng)]).collect(),
            in_flight_max: [None, None, Some(10_000), Some(40_000)][(seed / 3 % 4) as usize],
            incidents: Incidents::default(),
            queues: Queues::new(seed),
        };
        let is_clean = plan.is_clean();
        plan.incidents = Incidents::new(seed, peer, is_clean, v6, plan.link.mtu);
        plan.make_room();
        plan.route();
        plan
    }

    /// Puts the peer behind gateways if the next hop changes: the peer's own addresses on the opener's link.
    fn route(&mut self) {
        if self.incidents.new_hop.is_some() {
            let v6 = self.addresses[1].is_ipv6();
            self.addresses[1] = if v6 { "fd01::2" } else { "10.2.0.2" }.parse().unwrap();
        }
    }

    /// First and second gateway of node 0, if its next hop changes.
    pub(crate) fn gateways(&self) -> Option<[IpAddr; 2]> {
        let v6 = self.addresses[0].is_ipv6();
        let texts = if v6 { ["fd00::11", "fd00::12"] } else { ["10.1.0.11", "10.1.0.12"] };
        self.incidents.new_hop.map(|_| texts.map(|text| text.parse().unwrap()))
    }

    /// Adapts the other parameters to the incidents.
    fn make_room(&mut self) {
        if self.incidents.long_pauses {
            // More data than the host delivers to a client that does not read, and small buffers.
            self.bytes[0] = self.bytes[0].map(|bytes| bytes + LONG_PAUSE_BYTES);
            self.receive_buffer = [8 * 1024; 2];
            self.receive_window_max = [0; 2];
            for profile in &mut self.profile {
                (profile.pause_probability, profile.pause_max) =
                    (profile.pause_probability.max(1), LONG_PAUSE_MICROS);
            }
        }
        if self.incidents.narrow != [None; 2] {
            // smoltcp makes no progress on a narrow path, so no connection may stay there for long.
            self.turns_per_move = self.turns_per_move.min(40);
        }
        if self.turns_per_move > 40 {
            self.incidents.tick =
                self.incidents.tick.map(|tick| tick.min(Duration::from_millis(5)));
        }
    }

    pub(crate) fn capabilities(&self, index: usize) -> OffloadCapabilities {
        let all = OffloadCapabilities::default();
        if self.incidents.small_capacity && self.walks(index) {
            let (connections_max, receive_buffer_max) = (1, 20_000);
            return OffloadCapabilities { connections_max, receive_buffer_max, ..all };
        }
        all
    }

    /// True if no frame is lost, duplicated, reordered or corrupted.
    pub(crate) fn is_clean(&self) -> bool {
        self.impairments
            .iter()
            .all(|one| one.drop_pct + one.duplicate_pct + one.reorder_pct + one.corrupt_pct == 0.0)
            && self.incidents.is_clean()
    }

    /// Maximum window that node `index` may advertise: it may grow to the maximum of its scale, which depends on the
    /// configured window.
    pub(crate) fn window_limit(&self, index: usize) -> u64 {
        let most = self.receive_buffer[index].max(self.receive_window_max[index]) as u64;
        let bits = u64::BITS - most.leading_zeros();
        u64::from(u16::MAX) << bits.saturating_sub(u16::BITS)
    }

    /// True if a node changes stacks.
    pub(crate) fn walks(&self, index: usize) -> bool {
        index == 0 || self.peer == Peer::Walker
    }

    pub(crate) fn mac(index: usize) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, 1 + index as u8])
    }

    pub(crate) fn node(
        &self,
        index: usize,
        links: Vec<Box<dyn Link>>,
        rng: &mut Rand64,
    ) -> ScheduledThreads {
        let mac = Self::mac(index);
        let mut engine = engine_with_long_time_wait(mac);
        engine.tcp.push = self.push[index];
        engine.capabilities = self.capabilities(index);
        if let Some(bytes) = self.in_flight_max {
            (engine.tcp.in_flight_min, engine.tcp.link_rate) = (bytes, 1);
        }
        // Writers pause, and paths are narrow, for longer than a half-closed connection is kept by default (CH §10.7).
        engine.tcp.fin_wait_2 = Duration::from_secs(1_000);
        let address = self.addresses[index];
        let policy = match (self.walks(index), self.peer) {
            // The walk requests migrations, not the policy; half of the walkers begin offloaded.
            (true, _) if coin(rng) => OffloadPolicy::Always,
            (false, Peer::Engine) => OffloadPolicy::Always,
            _ => OffloadPolicy::Never,
        };
        let gateways = Vec::from_iter(self.gateways().into_iter().flatten());
        // It answers from its first address.
        let addresses = gateways.iter().filter(|_| index == 1).copied().chain([address]);
        let host = HostConfig {
            mac,
            addresses: addresses.map(|own| (own, if own.is_ipv4() { 24 } else { 64 })).collect(),
            gateways: gateways.iter().filter(|_| index == 0).take(1).copied().collect(),
            mtu: self.link.mtu,
            policy,
            ecn: self.ecn[index],
            timestamps: self.timestamps[index],
            // As in the target.
            time_wait: engine.tcp.time_wait,
            receive_buffer: self.receive_buffer[index],
            receive_window_max: self.receive_window_max[index],
            send_buffer: self.send_buffer[index],
            seed: rng.rand_u64(),
            ..HostConfig::default()
        };
        let (profile, seed) = (self.profile[index], rng.rand_u64());
        let incidents = &self.incidents;
        let mut seeds = seed..;
        let cores = Cores::new(links, engine, host, |port| {
            let seed = seeds.next().expect("few queues");
            let walker = Walker::new(Streams::new(port), profile, seed);
            walker.with_incidents(incidents)
        });
        ScheduledThreads::new(cores.unwrap(), self.queues.free[index], seed)
    }
}
