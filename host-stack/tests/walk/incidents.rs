//! Incidents of a run, in addition to impairments and migrations, and their coverage.
//!
//! Half of the seeds have none. The others draw each incident independently, from a separate generator: the choices of
//! [`Plan`](crate::plan::Plan) for a seed do not depend on it.

use std::collections::BTreeMap;

use offload_engine::time::{Duration, Instant};
use oorandom::Rand64;

use crate::plan::{Peer, coin, pick};

/// Period of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

impl Span {
    pub(crate) fn has(self, now: Instant) -> bool {
        self.from <= now && now < self.to
    }
}

/// Path with a smaller MTU than its links for some time, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NarrowPath {
    pub(crate) span: Span,
    pub(crate) mtu: usize,
    /// True if no ICMP error is sent for large packets.
    pub(crate) black_hole: bool,
}

/// Reason for the end of connections before all data is transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Ending {
    #[default]
    Graceful,
    /// The first connection is reset by this node, and perhaps by the other one too, after this number of turns.
    Abort { by: [bool; 2], turns: [u64; 2] },
    /// The link is lost for longer than any connection survives.
    LinkLost,
}

/// Incidents selected by a seed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Incidents {
    /// Interval of additional polls, so that connections also migrate without other events.
    pub(crate) tick: Option<Duration>,
    /// Number of each node's FINs that are lost before one arrives.
    pub(crate) fins_lost: [u64; 2],
    /// True if readers pause so long that their windows close and are probed.
    pub(crate) long_pauses: bool,
    /// True if writers pause so long that the neighbor's reachability is unconfirmed.
    pub(crate) pauses: bool,
    /// Narrow path in each node's send direction.
    pub(crate) narrow: [Option<NarrowPath>; 2],
    /// Percentage of each node's ECN-capable packets that get a CE mark.
    pub(crate) marks_pct: [u64; 2],
    /// Percentage of each node's SACK blocks that report undelivered data, and are not repeated.
    pub(crate) reneges_pct: [u64; 2],
    /// Time of the change of each node's Ethernet address, and delay of its announcement.
    pub(crate) new_mac: [Option<(Instant, Duration)>; 2],
    /// True for migration requests during outstanding migrations, and before the handshake is complete.
    pub(crate) early_requests: bool,
    /// Periods without any delivery.
    pub(crate) outages: Vec<Span>,
    /// True if the migrating nodes' targets have a small capacity.
    pub(crate) small_capacity: bool,
    /// True for pause, resume and upload of all.
    pub(crate) adapter: bool,
    /// True for changed settings and queries.
    pub(crate) settings: bool,
    pub(crate) ending: Ending,
    /// Time of the change of node 0's gateway, and delay until the first one is removed.
    pub(crate) new_hop: Option<(Instant, Duration)>,
}

impl Incidents {
    pub(crate) fn new(seed: u64, peer: Peer, is_clean: bool, v6: bool, mtu: usize) -> Self {
        let rng = &mut Rand64::new(u128::from(seed) ^ 0x1f3a_11e5 << 64);
        let mut these = Self::default();
        if coin(rng) {
            return these;
        }
        let some = |rng: &mut Rand64| rng.rand_range(0..5) == 0;
        these.tick = Some(Duration::from_millis(pick(rng, &[1, 5, 50])));
        if some(rng) || some(rng) {
            these.fins_lost = [rng.rand_range(0..4), rng.rand_range(0..4)];
        }
        these.long_pauses = some(rng);
        these.pauses = some(rng);
        if some(rng) {
            // smoltcp does not support path MTU discovery.
            let has_engine = [true, peer == Peer::Engine];
            these.narrow = has_engine.map(|has| has.then(|| narrow(rng, v6, mtu)));
        }
        if some(rng) || some(rng) {
            these.marks_pct = [pick(rng, &[0, 1, 10, 50]), pick(rng, &[1, 10, 50])];
        }
        if !is_clean && (some(rng) || some(rng)) {
            these.reneges_pct = [pick(rng, &[0, 20, 100]), pick(rng, &[20, 100])];
        }
        if some(rng) {
            let mut change = || (millis(rng, 600), Duration::from_millis(rng.rand_range(0..2_000)));
            these.new_mac = [Some(change()), Some(change())];
            these.new_mac[usize::from(coin(rng))] = None;
        }
        these.early_requests = some(rng);
        if some(rng) {
            // After longer ones a peer requests its last acknowledgment after the end of smoltcp's TIME-WAIT, 10 s.
            let mut outage = || {
                let from = millis(rng, 600);
                Span { from, to: from + Duration::from_millis(pick(rng, &[5, 60, 700, 2_000])) }
            };
            these.outages = vec![outage(), outage()];
        }
        these.small_capacity = some(rng) && these.narrow == [None; 2];
        these.adapter = some(rng) || some(rng) && these.early_requests;
        these.settings = some(rng);
        these.ending = ending(rng);
        // Some are reset during a migration.
        these.early_requests |= matches!(these.ending, Ending::Abort { .. }) && coin(rng);
        if these.ending == Ending::LinkLost {
            let from = millis(rng, 400);
            these.outages.push(Span { from, to: from + LINK_LOST });
        }
        if some(rng) && these.new_mac == [None; 2] {
            these.new_hop =
                Some((millis(rng, 600), Duration::from_millis(rng.rand_range(0..2_000))));
        }
        these
    }

    /// True if no incident loses or delays a frame.
    pub(crate) fn is_clean(&self) -> bool {
        let changes = self.narrow.iter().flatten().count() + self.new_mac.iter().flatten().count();
        changes == 0
            && self.new_hop.is_none()
            && self.outages.is_empty()
            && self.fins_lost == [0; 2]
    }

    /// True if connection `index` may end before all data is transferred.
    pub(crate) fn may_end_early(&self, index: usize) -> bool {
        match self.ending {
            Ending::Graceful => false,
            Ending::Abort { .. } => index == 0,
            Ending::LinkLost => true,
        }
    }
}

/// Length of a permanent outage: longer than the timeout of either stack.
pub(crate) const LINK_LOST: Duration = Duration::from_secs(2_400);

fn millis(rng: &mut Rand64, below: u64) -> Instant {
    Instant::from_millis(rng.rand_range(0..below))
}

fn narrow(rng: &mut Rand64, v6: bool, mtu: usize) -> NarrowPath {
    let from = millis(rng, 300);
    let lasts = Duration::from_millis(pick(rng, &[300, 5_000, 60_000]));
    let most = mtu.min(pick(rng, &[1_280, 1_400, 4_000]));
    NarrowPath {
        span: Span { from, to: from + lasts },
        mtu: if v6 { most.max(1_280) } else { most.min(pick(rng, &[576, 1_000, 4_000])) },
        black_hole: rng.rand_range(0..3) == 0,
    }
}

fn ending(rng: &mut Rand64) -> Ending {
    match rng.rand_range(0..8) {
        0 => Ending::LinkLost,
        1..=3 => {
            let first = coin(rng);
            let by = pick(rng, &[[first, !first], [first, !first], [true, true]]);
            let turns = [(); 2].map(|()| {
                let most = pick(rng, &[3, 100, 1_000]);
                rng.rand_range(0..most)
            });
            Ending::Abort { by, turns }
        }
        _ => Ending::Graceful,
    }
}

/// Event that a run should cover. States are those of RFC 9293 §3.3.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum CoverageEvent {
    /// The target has accepted a connection in this state.
    OffloadedIn(&'static str),
    /// A client has requested the upload of an offloaded connection in this state.
    UploadedFrom(&'static str),
    /// Migration while a window of the connection was closed.
    MoveAtZeroWindow,
    FinLost,
    /// A packet exceeded the path MTU, and an ICMP error was sent.
    TooBig,
    /// A packet exceeded the path MTU without an ICMP error.
    BlackHole,
    Marked,
    Reneged,
    NewMac,
    /// Frame to an obsolete Ethernet address.
    OldMac,
    NewHop,
    /// Frame to a removed gateway.
    OldHop,
    /// ARP requests and neighbor solicitations.
    Solicited,
    /// Migration request in this situation.
    MoveRequested(&'static str),
    LostInOutage,
    /// The target has refused a connection.
    Refused,
    Paused,
    UploadAll,
    Resumed,
    /// Cached variables were sent to a target.
    Updated,
    Queried,
    /// A client has reset a connection in this situation.
    Aborted(&'static str),
    /// A node has received a reset.
    ResetReceived,
    /// A node has timed out a connection.
    TimedOut,
    /// Lists completed with REQUEST_ABORTED.
    ListsAborted,
    /// Offload to the target of this queue, on a node with two.
    OffloadedOnQueue(usize),
    UploadedFromQueue(usize),
    /// A frame arrived on another queue than that of its connection.
    WrongQueue,
    /// An engine passed such a frame on, and another one received it.
    PassedOn,
    PassedIn,
}

/// Events required of the fixed slice of seeds.
const REQUIRED: &[CoverageEvent] = &[
    CoverageEvent::OffloadedIn("FIN-WAIT-1"),
    CoverageEvent::OffloadedIn("FIN-WAIT-2"),
    CoverageEvent::OffloadedIn("CLOSE-WAIT"),
    CoverageEvent::OffloadedIn("CLOSING"),
    CoverageEvent::OffloadedIn("LAST-ACK"),
    CoverageEvent::UploadedFrom("FIN-WAIT-1"),
    CoverageEvent::UploadedFrom("FIN-WAIT-2"),
    CoverageEvent::UploadedFrom("CLOSE-WAIT"),
    CoverageEvent::UploadedFrom("CLOSING"),
    CoverageEvent::UploadedFrom("LAST-ACK"),
    CoverageEvent::MoveAtZeroWindow,
    CoverageEvent::FinLost,
    CoverageEvent::TooBig,
    CoverageEvent::BlackHole,
    CoverageEvent::Marked,
    CoverageEvent::Reneged,
    CoverageEvent::NewMac,
    CoverageEvent::OldMac,
    CoverageEvent::NewHop,
    CoverageEvent::Solicited,
    CoverageEvent::MoveRequested("handshake"),
    CoverageEvent::MoveRequested("Offloading"),
    CoverageEvent::MoveRequested("Uploading"),
    CoverageEvent::LostInOutage,
    CoverageEvent::Refused,
    CoverageEvent::Paused,
    CoverageEvent::UploadAll,
    CoverageEvent::Resumed,
    CoverageEvent::Updated,
    CoverageEvent::Queried,
    CoverageEvent::Aborted("handshake"),
    CoverageEvent::Aborted("InHost"),
    CoverageEvent::Aborted("Offloaded"),
    CoverageEvent::Aborted("offload begun"),
    CoverageEvent::Aborted("upload begun"),
    CoverageEvent::ResetReceived,
    CoverageEvent::TimedOut,
    CoverageEvent::ListsAborted,
    CoverageEvent::OffloadedOnQueue(0),
    CoverageEvent::OffloadedOnQueue(1),
    CoverageEvent::UploadedFromQueue(0),
    CoverageEvent::UploadedFromQueue(1),
    CoverageEvent::WrongQueue,
    CoverageEvent::PassedOn,
    CoverageEvent::PassedIn,
];

/// Number of occurrences of each event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Coverage(BTreeMap<CoverageEvent, u64>);

impl Coverage {
    pub(crate) fn note(&mut self, sight: CoverageEvent) {
        self.count(sight, 1);
    }

    pub(crate) fn count(&mut self, sight: CoverageEvent, count: u64) {
        if count > 0 {
            *self.0.entry(sight).or_default() += count;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sight, count) in &other.0 {
            self.count(*sight, *count);
        }
    }

    /// Verifies that every kind of incident has occurred.
    pub(crate) fn check(&self) {
        let missing: Vec<_> = REQUIRED.iter().filter(|sight| !self.0.contains_key(sight)).collect();
        assert!(missing.is_empty(), "not covered: {missing:?}");
    }
}
