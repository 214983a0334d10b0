//! One run: connect, talk both ways while a seed moves the connections about, close, and leave nothing behind.

use std::{
    fmt::Write as _,
    fs::File,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use flue_test_support::{
    check,
    legal::{Counts, Feed, Monitor, Rules},
};
use host_stack::{
    node::Core,
    simulation::{Pair, Stall},
    socket::{HostError, ListenerId},
};
use offload_engine::{
    link::{Impaired, Impairments, Link, MemoryLink, Tee, memory_link_pair},
    time::{Duration, Instant},
};
use oorandom::Rand64;

use crate::{
    client::{Tally, Walker},
    end::{End, GIVE_UP},
    incidents::{Ending, Seen, Sight},
    meddler::Meddler,
    middlebox::Middlebox,
    plan::{PORT, Plan},
    road::{Road, Roadside},
};

/// Virtual time one seed may take: generous, since smoltcp waits a second and more for each loss.
const LIMIT: Duration = Duration::from_secs(3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Steps of time of a node that has nothing left to decide.
const SLOW_TICK: Duration = Duration::from_secs(1);

/// Where a capture goes: to the monitor, and to a file if `FLUE_PCAP` names one.
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

/// The wire before node `index`, with a monitor on it: it sees what the node sends before the weather does, and
/// what comes when the weather is done with it.
fn watched(
    plan: &Plan,
    road: &Arc<Mutex<Road>>,
    index: usize,
    link: MemoryLink,
) -> (impl Link + use<>, Arc<Mutex<Monitor>>) {
    let rules = Rules {
        mac: Plan::mac(index).0,
        mtu: plan.link.mtu,
        super_segments: plan.link.offloads,
        window_max: plan.window_limit(index),
        lag: Duration::ZERO,
        resets: plan.incidents.ending != Ending::Graceful,
        // Each connection begins there.
        like_smoltcp: true,
    };
    let monitor = Arc::new(Mutex::new(Monitor::new(rules)));
    let file = std::env::var("FLUE_PCAP")
        .ok()
        .map(|path| File::create(format!("{path}.{index}")).expect("the capture can be written"));
    let output = Output { feed: Feed::new(monitor.clone()), file };
    let stripped = if index == 0 { plan.stripped } else { Default::default() };
    let link = Impaired::new(link, plan.impairments[index], Impairments::default()).unwrap();
    let link = Middlebox::new(link, stripped);
    let link = Roadside::new(link, road.clone(), index);
    (Tee::new(link, output, "wire", 0).unwrap(), monitor)
}

/// What came of a run.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Summary {
    pub(crate) plan: String,
    pub(crate) is_clean: bool,
    pub(crate) ended_at: Instant,
    pub(crate) tallies: [Tally; 2],
    pub(crate) counts: [Counts; 2],
    pub(crate) seen: Seen,
}

/// Runs a seed.
pub(crate) fn walk(seed: u64) -> Summary {
    let mut rng = Rand64::new(u128::from(seed));
    let plan = Plan::new(seed, &mut rng);
    let road = Road::new(&plan, seed);
    let (left, right) = memory_link_pair(plan.link);
    let (left, left_monitor) = watched(&plan, &road, 0, left);
    let (right, right_monitor) = watched(&plan, &road, 1, right);
    let mut pair = Pair::new(plan.node(0, left, &mut rng), plan.node(1, right, &mut rng));
    let mut scene = Scene::new(seed, plan, road, &mut rng);
    let outcome = scene.talk(&mut pair);
    let text = scene.describe(&pair);
    let tallies = [pair.a.client.tally, pair.b.client.tally];
    let (ended_at, pending) = (pair.now, [&pair.a, &pair.b].map(|core| core.client.posted()));
    let result = outcome.map(|()| scene.check(&mut pair, &text));
    let seen = scene.seen(&pair);
    // The capture is written out with the links.
    drop(pair);
    let counts = [(left_monitor, "node 0"), (right_monitor, "node 1")].map(|(monitor, who)| {
        let monitor = monitor.lock().unwrap_or_else(PoisonError::into_inner);
        monitor.expect_legal(&format!("{text}{who}"))
    });
    check!(Stuck, result.is_ok(), "{result:?}\n{text}");
    check!(WrongCompletion, pending == [0, 0], "receive requests are left: {pending:?}\n{text}");
    let Scene { plan, .. } = scene;
    let is_clean = plan.is_clean() && plan.incidents.tick.is_none();
    let plan = format!("{plan:?}");
    Summary { plan, is_clean, ended_at, tallies, counts, seen }
}

/// Who acts on the nodes of a run.
struct Scene {
    plan: Plan,
    road: Arc<Mutex<Road>>,
    ends: [Vec<End>; 2],
    meddlers: [Meddler; 2],
}

impl Scene {
    fn new(seed: u64, plan: Plan, road: Arc<Mutex<Road>>, rng: &mut Rand64) -> Self {
        let ends = [0, 1].map(|node| {
            (0..plan.connections).map(|index| End::new(node, index, &plan, rng)).collect()
        });
        let mut scene =
            Self { plan, road, ends, meddlers: [0, 1].map(|node| Meddler::new(seed, node)) };
        if scene.plan.incidents.ending == Ending::LinkLost {
            let lost_at = scene.plan.incidents.outages.last().map(|outage| outage.from);
            for end in scene.ends.iter_mut().flatten() {
                end.abort_at = lost_at.map(|at| at + GIVE_UP);
            }
        }
        scene
    }

    /// Until both ends of all connections have sent, heard and closed everything; then until everybody has
    /// forgotten them.
    fn talk(&mut self, pair: &mut Pair<Walker>) -> Result<(), Stall> {
        let server = SocketAddr::new(self.plan.addresses[1], PORT);
        let listener = pair.b.client.streams.listen(server, 2 * self.plan.connections);
        for (index, end) in self.ends[0].iter_mut().enumerate() {
            let local = SocketAddr::new(self.plan.addresses[0], PORT + 1 + index as u16);
            end.handle = Some(pair.a.client.streams.connect(Some(local), server, CONNECT_TIMEOUT));
        }
        pair.run(Instant::ZERO + LIMIT, |pair| {
            self.turn(pair, listener);
            self.ends.iter().flatten().all(|end| end.is_over).then_some(())
        })?;
        pair.b.client.streams.unlisten(listener);
        pair.run(pair.now + LIMIT, |pair| {
            // Who has not heard of the end yet may still have to be told.
            if self.ends.iter().flatten().any(|end| end.is_doomed) {
                self.turn(pair, listener);
            } else {
                (pair.a.client.tick, pair.b.client.tick) = (None, None);
            }
            let empty = |core: &mut Core<Walker>| {
                // Somebody may have to be told of the end yet.
                !core.has_input()
                    && core.engine.connections().is_empty()
                    && core.engine.objects().paths() + core.engine.objects().neighbors() == 0
                    && core.host.as_ref().is_some_and(|host| host.is_idle())
            };
            (empty(&mut pair.a) && empty(&mut pair.b)).then_some(())
        })
    }

    /// Everybody acts.
    fn turn(&mut self, pair: &mut Pair<Walker>, listener: ListenerId) {
        while let Some(handle) = pair.b.client.streams.accept(listener) {
            let remote = pair.b.client.streams.status(handle).and_then(|status| status.remote);
            let port = remote.expect("an accepted stream has a peer").port();
            self.ends[1][usize::from(port - PORT - 1)].handle = Some(handle);
        }
        let Self { plan, road, ends, meddlers } = self;
        let now = pair.now;
        for (node, ends) in ends.iter_mut().enumerate() {
            let core = if node == 0 { &mut pair.a } else { &mut pair.b };
            let mut decides = false;
            for (index, end) in ends.iter_mut().enumerate() {
                let closed = || {
                    let road = road.lock().unwrap_or_else(PoisonError::into_inner);
                    plan.incidents.tick.is_some() && road.window_is_closed(index)
                };
                let Some(status) = end.act(core, now, plan, closed) else { continue };
                decides |= plan.walks(node) && end.decides();
                if end.is_doomed {
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
            meddlers[node].act(core, plan, node, now);
            core.client.tick =
                plan.incidents.tick.map(|tick| if decides { tick } else { SLOW_TICK });
        }
        self.tell_doomed(now);
    }

    /// One end is gone; the other hears of it, or does not and gives up some time.
    fn tell_doomed(&mut self, now: Instant) {
        let [a, b] = &mut self.ends;
        for (a, b) in a.iter_mut().zip(b) {
            a.follow(b, now);
            b.follow(a, now);
        }
    }

    /// Every byte, and every list.
    fn check(&self, pair: &mut Pair<Walker>, text: &str) {
        for (index, (a, b)) in self.ends[0].iter().zip(&self.ends[1]).enumerate() {
            for (from, to, core) in [(a, b, &pair.b), (b, a, &pair.a)] {
                let received = to.handle.map_or(&[][..], |handle| core.client.received(handle));
                let is_right = match from.is_doomed {
                    true => from.data.starts_with(received),
                    false => received == from.data,
                };
                check!(WrongData, is_right, "connection {index} to node {}\n{text}", to.node);
                let ledger = &from.ledger;
                check!(WrongCompletion, ledger.is_empty(), "lists are left: {ledger:?}\n{text}");
            }
        }
        for (ends, core) in self.ends.iter().zip([&mut pair.a, &mut pair.b]) {
            for (end, handle) in ends.iter().filter_map(|end| Some((end, end.handle?))) {
                let status = core.client.streams.status(handle).expect("nobody forgets streams");
                if end.is_doomed {
                    let verdict = end.check_doomed(status, &self.plan);
                    check!(LostConnection, verdict.is_ok(), "{verdict:?}\n{text}");
                }
                match status.error {
                    Some(HostError::Reset) => core.client.seen.note(Sight::HeardReset),
                    Some(HostError::RetransmissionLimit | HostError::Unanswered(_)) => {
                        core.client.seen.note(Sight::GaveUp);
                    }
                    _ => {}
                }
            }
        }
    }

    /// What has happened.
    fn seen(&self, pair: &Pair<Walker>) -> Seen {
        let mut seen = self.road.lock().unwrap_or_else(PoisonError::into_inner).seen.clone();
        for core in [&pair.a, &pair.b] {
            seen.add(&core.client.seen);
            if let Some(host) = &core.host {
                seen.count(Sight::Refused, host.stats().initiates_refused);
                seen.count(Sight::Updated, host.stats().updates);
            }
        }
        seen
    }

    fn describe(&self, pair: &Pair<Walker>) -> String {
        let mut text = format!("{:?}\n", self.plan);
        for (ends, core) in self.ends.iter().zip([&pair.a, &pair.b]) {
            for (index, end) in ends.iter().enumerate() {
                let status = end.handle.and_then(|handle| core.client.streams.status(handle));
                let received = end.handle.map_or(0, |handle| core.client.received(handle).len());
                let _ = writeln!(
                    text,
                    "node {}, connection {index}: sent {} of {}, received {received}, moves {}, \
                     lists {}, {status:?}",
                    end.node,
                    end.sent,
                    end.data.len(),
                    end.moves,
                    end.ledger.len(),
                );
            }
            let _ = writeln!(text, "  {:?}", core.client.tally);
            let _ = writeln!(text, "  {:?} {:?}", core.engine.stats(), core.engine.link_stats());
            let _ = writeln!(text, "  {:?}", core.host);
        }
        text
    }
}
