//! One run: connects, transfers data in both directions while a seed migrates the connections, closes, and verifies
//! that no state is left.

use std::{
    fmt::Write as _,
    fs::File,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use flue_test_support::{
    check,
    tcp_validator::{Counts, Feed, Monitor, Rules},
};
use host_stack::{
    simulation::{Pair, Stall},
    socket::{HostError, ListenerId},
};
use offload_engine::{
    link::{CaptureLink, Impaired, Impairments, Link, MemoryLink, memory_link_pair},
    time::{Duration, Instant},
};
use oorandom::Rand64;

use crate::{
    client::ClientCounts,
    client::Walker,
    end::{ABORT_TIMEOUT, End},
    fault_injector::FaultInjector,
    incidents::{Coverage, CoverageEvent, Ending},
    lossy_network::{LossyNetwork, NetworkPort},
    middlebox::Middlebox,
    plan::{PORT, Plan},
    queues::{self, FlushedCaptureLink, queues},
    threads::ScheduledThreads,
};

/// Time limit of a seed, in virtual time: generous, since smoltcp waits a second and more for each loss.
const LIMIT: Duration = Duration::from_secs(3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Polling interval of a node without further decisions.
const SLOW_TICK: Duration = Duration::from_secs(1);

/// Destination of a capture: the monitor, and a file if `FLUE_PCAP` names one.
struct Output {
    feed: Feed,
    file: Option<File>,
}

impl io::Write for Output {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if let Some(file) = &mut self.file {
            file.write_all(data)?;
        }
        self.feed.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.feed.flush()
    }
}

/// Queues of node `index`, with a monitor on them: it sees sent frames before the impairments, and received frames
/// after them.
fn watched(
    seed: u64,
    plan: &Plan,
    network: &Arc<Mutex<LossyNetwork>>,
    index: usize,
    link: MemoryLink,
) -> (Vec<Box<dyn Link>>, Arc<Mutex<Monitor>>) {
    let rules = Rules {
        mac: Plan::mac(index).0,
        mtu: plan.link.mtu,
        gso_packets: plan.link.offloads,
        window_max: plan.window_limit(index),
        lag: Duration::ZERO,
        in_order: plan.queues.wrong_pct[index] == 0,
        resets: plan.incidents.ending != Ending::Graceful,
        // Each connection begins in smoltcp.
        echoes_latest_timestamp: true,
    };
    let monitor = Arc::new(Mutex::new(Monitor::new(rules)));
    let file = std::env::var("FLUE_PCAP")
        .ok()
        .map(|path| File::create(format!("{path}.{index}")).expect("the capture can be written"));
    let output = || {
        // One file for all queues.
        let file = file.as_ref().map(|file| file.try_clone().expect("descriptors are left"));
        Output { feed: Feed::new(monitor.clone()), file }
    };
    let stripped = if index == 0 { plan.stripped } else { Default::default() };
    let link = Impaired::new(link, plan.impairments[index], Impairments::default()).unwrap();
    let link = Middlebox::new(link, stripped);
    let link = NetworkPort::new(link, network.clone(), index);
    let count = plan.queues.count[index];
    if count == 1 {
        return (vec![Box::new(CaptureLink::new(link, output(), "wire", 0).unwrap())], monitor);
    }
    let prompt = |queue| {
        let tee = CaptureLink::new(queue, output(), "wire", 0).unwrap();
        Box::new(FlushedCaptureLink(tee)) as Box<dyn Link>
    };
    let seed = 2 * seed + index as u64;
    let queues = queues(link, count, plan.queues.wrong_pct[index], seed, network.clone());
    (queues.into_iter().map(prompt).collect(), monitor)
}

/// Result of a run.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Summary {
    pub(crate) plan: String,
    pub(crate) is_clean: bool,
    pub(crate) ended_at: Instant,
    /// Counts of each queue of each node.
    pub(crate) counts_of_nodes: Vec<ClientCounts>,
    pub(crate) counts: [Counts; 2],
    pub(crate) seen: Coverage,
}

/// Runs a seed.
pub(crate) fn walk(seed: u64) -> Summary {
    let mut rng = Rand64::new(u128::from(seed));
    let plan = Plan::new(seed, &mut rng);
    let network = LossyNetwork::new(&plan, seed);
    let (left, right) = memory_link_pair(plan.link);
    let (left, left_monitor) = watched(seed, &plan, &network, 0, left);
    let (right, right_monitor) = watched(seed, &plan, &network, 1, right);
    let mut pair = Pair::new(plan.node(0, left, &mut rng), plan.node(1, right, &mut rng));
    let mut state = RunState::new(seed, plan, network, &mut rng);
    let outcome = state.run_to_close(&mut pair);
    let text = state.describe(&pair);
    let clients = || [&pair.a, &pair.b].into_iter().flat_map(|node| &node.shards);
    let counts_of_nodes = clients().map(|core| core.clients.first::<Walker>().tally).collect();
    let pending: Vec<_> = clients().map(|core| core.clients.first::<Walker>().posted()).collect();
    let ended_at = pair.now;
    let result = outcome.map(|()| state.check(&mut pair, &text));
    let seen = state.seen(&pair);
    // The capture is flushed with the links.
    drop(pair);
    let counts = [(left_monitor, "node 0"), (right_monitor, "node 1")].map(|(monitor, name)| {
        let monitor = monitor.lock().unwrap_or_else(PoisonError::into_inner);
        monitor.expect_legal(&format!("{text}{name}"))
    });
    check!(Stuck, result.is_ok(), "{result:?}\n{text}");
    let none_pending = pending.iter().all(|posted| *posted == 0);
    check!(WrongCompletion, none_pending, "receive requests are left: {pending:?}\n{text}");
    let RunState { plan, .. } = state;
    let in_order = plan.queues.wrong_pct == [0; 2];
    let is_clean = plan.is_clean() && in_order && plan.incidents.tick.is_none();
    // On a clean link no segment is sent twice, with one exception: smoltcp, which probes a window that has just
    // opened, repeats the probe's octet once per connection. A repeated acknowledgment is an answer.
    if is_clean {
        let repeated = counts.iter().map(|counts| counts.retransmitted).sum::<u64>();
        let idle = counts.iter().map(|counts| counts.idle_acks).sum::<u64>();
        let probes_max = plan.connections as u64;
        check!(
            IllegalOnTheWire,
            repeated <= probes_max && idle == 0,
            "clean link: {repeated} segments retransmitted, expected at most {probes_max}; {idle} acknowledgments \
             without a cause, expected none\n{text}"
        );
    }
    let plan = format!("{plan:?}");
    Summary { plan, is_clean, ended_at, counts_of_nodes, counts, seen }
}

/// Ends and fault injectors of a run.
struct RunState {
    plan: Plan,
    network: Arc<Mutex<LossyNetwork>>,
    ends: [Vec<End>; 2],
    fault_injectors: [FaultInjector; 2],
}

impl RunState {
    fn new(seed: u64, plan: Plan, network: Arc<Mutex<LossyNetwork>>, rng: &mut Rand64) -> Self {
        let ends = [0, 1].map(|node| {
            (0..plan.connections).map(|index| End::new(node, index, &plan, rng)).collect()
        });
        let mut state = Self {
            plan,
            network,
            ends,
            fault_injectors: [0, 1].map(|node| FaultInjector::new(seed, node)),
        };
        if state.plan.incidents.ending == Ending::LinkLost {
            let lost_at = state.plan.incidents.outages.last().map(|outage| outage.from);
            for end in state.ends.iter_mut().flatten() {
                end.abort_at = lost_at.map(|at| at + ABORT_TIMEOUT);
            }
        }
        state
    }

    /// Runs until both ends of all connections have sent, received and closed everything; then until no state of them
    /// is left.
    fn run_to_close(&mut self, pair: &mut Pair<ScheduledThreads>) -> Result<(), Stall> {
        let server = SocketAddr::new(self.plan.addresses[1], PORT);
        let backlog = 2 * self.plan.connections;
        let listeners: Vec<_> = (pair.b.shards.iter_mut())
            .map(|core| core.clients.first_mut::<Walker>().streams.listen(server, backlog))
            .collect();
        for (index, end) in self.ends[0].iter_mut().enumerate() {
            let local = SocketAddr::new(self.plan.addresses[0], PORT + 1 + index as u16);
            let streams = &mut pair.a.shards[end.queue].clients.first_mut::<Walker>().streams;
            end.handle = Some(streams.connect(Some(local), server, CONNECT_TIMEOUT));
        }
        pair.run(Instant::ZERO + LIMIT, |pair| {
            self.turn(pair, &listeners);
            self.ends.iter().flatten().all(|end| end.is_over).then_some(())
        })?;
        for (core, listener) in pair.b.shards.iter_mut().zip(&listeners) {
            core.clients.first_mut::<Walker>().streams.unlisten(*listener);
        }
        pair.run(pair.now + LIMIT, |pair| {
            // An end may still have to be notified of the peer's end.
            if self.ends.iter().flatten().any(|end| end.may_end_early) {
                self.turn(pair, &listeners);
            } else {
                let both = pair.a.shards.iter_mut().chain(&mut pair.b.shards);
                both.for_each(|core| core.clients.first_mut::<Walker>().tick = None);
            }
            let empty = |cores: &mut ScheduledThreads| {
                // A client may have pending notices of the end.
                !cores.has_input()
                    && cores.host.is_idle()
                    && cores.shards.iter_mut().all(|core| {
                        let objects = core.engine.objects();
                        objects.paths() + objects.neighbors() == 0
                            && core.engine.connections().is_empty()
                    })
            };
            (empty(&mut pair.a) && empty(&mut pair.b)).then_some(())
        })
    }

    /// Runs one turn of all actors.
    fn turn(&mut self, pair: &mut Pair<ScheduledThreads>, listeners: &[ListenerId]) {
        for (queue, (core, listener)) in pair.b.shards.iter_mut().zip(listeners).enumerate() {
            while let Some(handle) = core.clients.first_mut::<Walker>().streams.accept(*listener) {
                let remote = core
                    .clients
                    .first::<Walker>()
                    .streams
                    .status(handle)
                    .and_then(|status| status.remote);
                let port = remote.expect("an accepted stream has a peer").port();
                let end = &mut self.ends[1][usize::from(port - PORT - 1)];
                (end.queue, end.handle) = (queue, Some(handle));
            }
        }
        let Self { plan, network, ends, fault_injectors } = self;
        let now = pair.now;
        for (node, ends) in ends.iter_mut().enumerate() {
            let cores = if node == 0 { &mut pair.a } else { &mut pair.b };
            let mut decides = false;
            for (index, end) in ends.iter_mut().enumerate() {
                let closed = || {
                    let network = network.lock().unwrap_or_else(PoisonError::into_inner);
                    plan.incidents.tick.is_some() && network.window_is_closed(index)
                };
                let core = &mut cores.shards[end.queue];
                let Some(status) = end.act(core, now, plan, closed) else { continue };
                decides |= plan.walks(node) && end.decides();
                if end.may_end_early {
                    end.is_over = status.closed;
                    continue;
                }
                let error = status.error;
                check!(
                    LostConnection,
                    error.is_none(),
                    "{error:?}, node {node} at {now:?}, {status:?}\n{plan:?}"
                );
                end.is_over = status.shut_down && status.peer_closed && status.unread == 0;
            }
            fault_injectors[node].act(cores, plan, node, now);
            for core in &mut cores.shards {
                core.clients.first_mut::<Walker>().tick =
                    plan.incidents.tick.map(|tick| if decides { tick } else { SLOW_TICK });
            }
        }
        self.notify_early_ends(now);
    }

    /// Notifies the remaining end of an ended connection, directly or by its time limit.
    fn notify_early_ends(&mut self, now: Instant) {
        let [a, b] = &mut self.ends;
        for (a, b) in a.iter_mut().zip(b) {
            a.follow(b, now);
            b.follow(a, now);
        }
    }

    /// Verifies every byte, and every list.
    fn check(&self, pair: &mut Pair<ScheduledThreads>, text: &str) {
        for (index, (a, b)) in self.ends[0].iter().zip(&self.ends[1]).enumerate() {
            for (from, to, cores) in [(a, b, &pair.b), (b, a, &pair.a)] {
                let core = &cores.shards[to.queue];
                let received = to
                    .handle
                    .map_or(&[][..], |handle| core.clients.first::<Walker>().received(handle));
                let is_right = match from.may_end_early {
                    true => from.data.starts_with(received),
                    false => received == from.data,
                };
                check!(WrongData, is_right, "connection {index} to node {}\n{text}", to.node);
                let ledger = &from.ledger;
                check!(WrongCompletion, ledger.is_empty(), "lists are left: {ledger:?}\n{text}");
            }
        }
        for (ends, cores) in self.ends.iter().zip([&mut pair.a, &mut pair.b]) {
            let passed = queues::passed(cores);
            check!(Stuck, passed.is_ok(), "{passed:?}\n{text}");
            for (end, handle) in ends.iter().filter_map(|end| Some((end, end.handle?))) {
                let core = &mut cores.shards[end.queue];
                let status =
                    core.clients.first::<Walker>().streams.status(handle).expect("stream exists");
                if end.may_end_early {
                    let verdict = end.check_early_end(status, &self.plan);
                    check!(LostConnection, verdict.is_ok(), "{verdict:?}\n{text}");
                }
                match status.error {
                    Some(HostError::Reset) => {
                        core.clients.first_mut::<Walker>().seen.note(CoverageEvent::ResetReceived)
                    }
                    Some(HostError::RetransmissionLimit | HostError::Unanswered(_)) => {
                        core.clients.first_mut::<Walker>().seen.note(CoverageEvent::TimedOut);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Collects the covered events.
    fn seen(&self, pair: &Pair<ScheduledThreads>) -> Coverage {
        let mut seen = self.network.lock().unwrap_or_else(PoisonError::into_inner).seen.clone();
        for cores in [&pair.a, &pair.b] {
            cores.shards.iter().for_each(|core| seen.add(&core.clients.first::<Walker>().seen));
            seen.count(CoverageEvent::Refused, cores.host.stats().initiates_refused);
            seen.count(CoverageEvent::Updated, cores.host.stats().updates);
            queues::count(&mut seen, cores);
        }
        seen
    }

    fn describe(&self, pair: &Pair<ScheduledThreads>) -> String {
        let mut text = format!("{:?}\n", self.plan);
        for (ends, cores) in self.ends.iter().zip([&pair.a, &pair.b]) {
            for (index, end) in ends.iter().enumerate() {
                let core = &cores.shards[end.queue];
                let status = end
                    .handle
                    .and_then(|handle| core.clients.first::<Walker>().streams.status(handle));
                let received = end
                    .handle
                    .map_or(0, |handle| core.clients.first::<Walker>().received(handle).len());
                let _ = writeln!(
                    text,
                    "node {}, queue {}, connection {index}: sent {} of {}, received {received}, moves {}, \
                     lists {}, {status:?}",
                    end.node,
                    end.queue,
                    end.sent,
                    end.data.len(),
                    end.moves,
                    end.ledger.len(),
                );
            }
            for core in &cores.shards {
                let stats = (core.engine.stats(), core.engine.link_stats());
                let _ = writeln!(text, "  {:?}\n  {stats:?}", core.clients.first::<Walker>().tally);
            }
            let _ = writeln!(text, "  {:?}", cores.host);
        }
        text
    }
}
