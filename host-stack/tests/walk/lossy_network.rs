//! Network between the nodes with its [`Incidents`]: frames of a node are dropped, marked, rejected as too large or
//! readdressed here, before the link's impairments apply.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use flue_test_support::icmp;
use offload_engine::{
    link::{
        Link, RxBatch, RxChecksum, TxFrame, TxOutcome,
        wrapper::{LinkWrapper, wraps},
    },
    state::MacAddress,
    time::Instant,
};
use oorandom::Rand64;

use crate::{
    frames::{self, Tcp},
    incidents::{Coverage, CoverageEvent, Incidents, NarrowPath},
    plan::{PORT, Plan},
};

/// Maximum advance of a SACK block, in bytes.
const RENEGED_BYTES_MAX: u64 = 4_000;
/// Ethernet address of the second gateway.
const SECOND_GATEWAY: MacAddress = MacAddress([2, 0, 0, 0, 2, 2]);

/// State shared by both directions.
#[derive(Debug)]
pub(crate) struct LossyNetwork {
    incidents: Incidents,
    addresses: [IpAddr; 2],
    second_gateway: Option<IpAddr>,
    rng: Rand64,
    pub(crate) seen: Coverage,
    /// Flows by the opener's port.
    flows: HashMap<u16, [Half; 2]>,
    fins_lost: [u64; 2],
    announced: [bool; 2],
}

/// Sequence state of a node's frames on a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    max: Option<u32>,
    window_is_closed: bool,
}

impl LossyNetwork {
    pub(crate) fn new(plan: &Plan, seed: u64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            incidents: plan.incidents.clone(),
            second_gateway: plan.gateways().map(|[_, second]| second),
            addresses: plan.addresses,
            rng: Rand64::new(u128::from(seed) ^ 0x40ad << 64),
            seen: Coverage::default(),
            flows: HashMap::new(),
            fins_lost: [0; 2],
            announced: [false; 2],
        }))
    }

    /// True if one of the windows of connection `index` is closed.
    pub(crate) fn window_is_closed(&self, index: usize) -> bool {
        let flow = self.flows.get(&(PORT + 1 + index as u16));
        flow.is_some_and(|halves| halves.iter().any(|half| half.window_is_closed))
    }

    fn chance(&mut self, percent: u64) -> bool {
        percent > 0 && self.rng.rand_range(0..100) < percent
    }

    /// Ethernet address of a node, as the other one should use it.
    fn mac(&self, node: usize, now: Instant) -> MacAddress {
        let mut mac = Plan::mac(node);
        if self.incidents.new_mac[node].is_some_and(|(at, _)| at <= now) {
            mac.0[4] = 1;
        }
        mac
    }

    /// Time of the announcement of `node`'s new address, if it is pending.
    fn announcement_at(&self, node: usize) -> Option<Instant> {
        let (at, late) = self.incidents.new_mac[node].filter(|_| !self.announced[node])?;
        Some(at + late)
    }

    /// True if a frame of `node` is forwarded; applies its changes.
    fn pass(&mut self, now: Instant, node: usize, frame: &mut [u8], by_link: bool) -> bool {
        if self.incidents.outages.iter().any(|outage| outage.has(now)) {
            self.seen.note(CoverageEvent::LostInOutage);
            return false;
        }
        if frames::is_solicitation(frame) {
            self.seen.note(CoverageEvent::Solicited);
        }
        if let Some(tcp) = Tcp::of(frame) {
            if tcp.fin && self.fins_lost[node] < self.incidents.fins_lost[node] {
                self.fins_lost[node] += 1;
                self.seen.note(CoverageEvent::FinLost);
                return false;
            }
            self.note(node, &tcp);
            self.renege(node, frame, &tcp, by_link);
            if self.chance(self.incidents.marks_pct[node]) && frames::mark(frame) {
                self.seen.note(CoverageEvent::Marked);
            }
        }
        self.readdress(now, node, frame) && self.route(now, node, frame)
    }

    /// Routes a frame through the gateways: the second one has its own Ethernet address, and the first one forwards
    /// until it is removed.
    fn route(&mut self, now: Instant, node: usize, frame: &mut [u8]) -> bool {
        let (Some(second), Some((at, late))) = (self.second_gateway, self.incidents.new_hop) else {
            return true;
        };
        let by_first = at + late > now || Tcp::of(frame).is_none();
        if node == 1 {
            if !by_first || frames::announces(frame, second) {
                frames::send_from(frame, SECOND_GATEWAY);
            }
            return true;
        }
        if frame[..6] == SECOND_GATEWAY.0 {
            frame[..6].copy_from_slice(&Plan::mac(1).0);
            return true;
        }
        if !by_first {
            self.seen.note(CoverageEvent::OldHop);
        }
        by_first
    }

    fn note(&mut self, node: usize, tcp: &Tcp) {
        let half = &mut self.flows.entry(tcp.from.max(tcp.to)).or_default()[node];
        let max = *half.max.get_or_insert_with(|| tcp.end());
        if tcp.end().wrapping_sub(max).cast_signed() > 0 {
            half.max = Some(tcp.end());
        }
        half.window_is_closed = tcp.window == 0 && !tcp.rst;
    }

    /// RFC 2018 §8: a receiver may discard data that it has reported, and then no longer reports them. This one reports
    /// data that it has never received.
    fn renege(&mut self, node: usize, frame: &mut [u8], tcp: &Tcp, by_link: bool) {
        let flow = self.flows.get(&tcp.from.max(tcp.to));
        let max = flow.and_then(|halves| halves[1 - node].max);
        if !tcp.syn
            && let Some(max) = max
            && self.chance(self.incidents.reneges_pct[node])
        {
            let bytes = self.rng.rand_range(1..RENEGED_BYTES_MAX) as u32;
            if frames::extend_sack(frame, tcp, bytes, max, by_link) {
                self.seen.note(CoverageEvent::Reneged);
            }
        }
    }

    /// Replaces addresses for the other side. Returns true if the destination address is in use.
    fn readdress(&mut self, now: Instant, node: usize, frame: &mut [u8]) -> bool {
        if self.incidents.new_mac == [None; 2] {
            return true;
        }
        let is_unicast = frame[0] & 1 == 0;
        if is_unicast && frame[..6] != self.mac(1 - node, now).0 {
            self.seen.note(CoverageEvent::OldMac);
            return false;
        }
        if is_unicast {
            frame[..6].copy_from_slice(&Plan::mac(1 - node).0);
        }
        frames::send_from(frame, self.mac(node, now));
        true
    }

    /// Path that is too narrow for a frame of this size.
    fn too_narrow(
        &self,
        now: Instant,
        node: usize,
        frame: &[u8],
        segment: usize,
    ) -> Option<NarrowPath> {
        let narrow = self.incidents.narrow[node].filter(|narrow| narrow.span.has(now))?;
        let tcp = Tcp::of(frame)?;
        (tcp.header_bytes + tcp.payload_bytes.min(segment) > narrow.mtu).then_some(narrow)
    }
}

/// Port of a node on the network.
#[derive(Debug)]
pub(crate) struct NetworkPort<L> {
    link: L,
    network: Arc<Mutex<LossyNetwork>>,
    node: usize,
    /// Frames generated by the network for this node.
    inbound: VecDeque<Vec<u8>>,
}

impl<L: Link> NetworkPort<L> {
    pub(crate) const fn new(link: L, network: Arc<Mutex<LossyNetwork>>, node: usize) -> Self {
        Self { link, network, node, inbound: VecDeque::new() }
    }

    fn announce(&mut self, now: Instant) {
        let mut network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        let other = 1 - self.node;
        if network.announcement_at(other).is_some_and(|at| at <= now) {
            network.announced[other] = true;
            network.seen.note(CoverageEvent::NewMac);
            let from = (network.addresses[other], network.mac(other, now));
            let to = (network.addresses[self.node], Plan::mac(self.node));
            self.inbound.push_back(frames::announcing_query(from, to));
        }
    }
}

impl<L: Link> LinkWrapper for NetworkPort<L> {
    wraps!(L, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        self.announce(now);
        let mut received = self.link.receive(now, batch)?;
        while !batch.is_full()
            && let Some(frame) = self.inbound.pop_front()
        {
            batch.push(&frame, RxChecksum::Unverified, 0);
            received += 1;
        }
        Ok(received)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let mut network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        let mut data = Vec::with_capacity(frame.len());
        frame.gather_into(&mut data);
        let segment = frame.offload.segment.map_or(usize::MAX, |segment| segment.size.into());
        if let Some(narrow) = network.too_narrow(now, self.node, &data, segment) {
            let icmp_error = icmp::too_big(&data, narrow.mtu).filter(|_| !narrow.black_hole);
            network.seen.note(if icmp_error.is_some() {
                CoverageEvent::TooBig
            } else {
                CoverageEvent::BlackHole
            });
            self.inbound.extend(icmp_error);
            return TxOutcome::Sent;
        }
        if !network.pass(now, self.node, &mut data, frame.offload.checksum.is_some()) {
            return TxOutcome::Sent;
        }
        drop(network);
        self.link.transmit(now, &TxFrame { head: &data, payload: &[], ..*frame })
    }

    fn poll_at(&self) -> Option<Instant> {
        let network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = (!self.inbound.is_empty()).then_some(Instant::ZERO);
        let announcement = network.announcement_at(1 - self.node);
        [waiting, announcement, self.link.poll_at()].into_iter().flatten().min()
    }
}
