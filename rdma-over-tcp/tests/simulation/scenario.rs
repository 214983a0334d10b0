//! One scenario, from the first listen to the last close.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use flue_test_support::{
    check,
    seeds::{Class, fail},
};
use oorandom::Rand64;
use rdma_over_tcp::mpa::startup::{RtrKind, RtrSet};
use rdma_over_tcp::ndk::{Connector, Counters, Cq, CqNotify, Listener, NdkResultEx, NtStatus, Pd};

use crate::{
    bench::{Bench, Stage},
    extensions::Shared,
    loopback::Loopback,
    moves::Migrators,
    plan::{Action, Conversation, Plan, SidePlan, conversations, draw, once_in},
    side::Side,
    stream::ByteStream,
};

/// Closes an object, with the callback for a pending close.
type Close<'a> = Box<dyn Fn(Box<dyn FnOnce() + Send>) -> NtStatus + 'a>;

/// Completion queue and its consumer.
struct Queue {
    cq: Cq,
    /// Notifications since the start.
    fired: Arc<AtomicUsize>,
    seen: usize,
    serves_receives: bool,
}

/// Assignment of the completion queues of a node to its queue pairs.
#[derive(Clone, Copy, Debug)]
enum Layout {
    One,
    ReceivesAndRequests,
    TwoPerQueuePair,
}

impl Layout {
    /// Returns the queues of queue pair `index`: for receives, for requests.
    const fn queues(self, index: usize) -> [usize; 2] {
        match self {
            Self::One => [0, 0],
            Self::ReceivesAndRequests => [0, 1],
            Self::TwoPerQueuePair => [2 * index, 2 * index + 1],
        }
    }
}

/// Objects of one node shared by its queue pairs.
struct Objects {
    pd: Pd,
    queues: Vec<Queue>,
    layout: Layout,
    shared: Option<Shared>,
    /// True if it polls only after a notification; false if it polls continuously, and arms for solicited events.
    by_notification: bool,
}

impl Objects {
    fn new(rng: &mut Rand64, bench: &dyn Stage, node: usize, plans: &[&SidePlan]) -> Self {
        let layout =
            [Layout::One, Layout::ReceivesAndRequests, Layout::TwoPerQueuePair][draw(rng, 3)];
        let by_notification = once_in(rng, 2);
        // Exactly as deep as the outstanding requests: one completion too many is an overrun.
        let mut depths = Vec::new();
        for (index, plan) in plans.iter().enumerate() {
            let parts = [plan.limits.receive_queue_depth, plan.limits.initiator_queue_depth];
            for (queue, part) in layout.queues(index).into_iter().zip(parts) {
                depths.resize(depths.len().max(queue + 1), 0);
                depths[queue] += part;
            }
        }
        let adapter = &bench.adapters()[node];
        let queue = |(index, depth): (usize, u32)| {
            let fired = Arc::new(AtomicUsize::new(0));
            let counter = fired.clone();
            let notify = move |status| {
                assert_eq!(status, NtStatus::SUCCESS, "a queue of depth {depth} failed");
                counter.fetch_add(1, Ordering::Relaxed);
            };
            let cq = adapter.create_cq(depth, notify).unwrap();
            cq.arm(if by_notification { CqNotify::Any } else { CqNotify::Solicited });
            let serves_receives = index % 2 == 0;
            Queue { cq, fired, seen: 0, serves_receives }
        };
        let queues = depths.into_iter().enumerate().map(queue).collect();
        let pd = adapter.create_pd().unwrap();
        let is_extended = plans.iter().any(|plan| !plan.words.is_empty());
        let shared = is_extended.then(|| Shared::new(adapter, &pd));
        Self { pd, queues, layout, shared, by_notification }
    }
}

/// Bench with all objects.
pub(crate) struct World {
    plan: Plan,
    nodes: [Objects; 2],
    pub(crate) pairs: Vec<[Side; 2]>,
    listener: Listener,
    incoming: Arc<Mutex<Vec<Connector>>>,
}

/// Order in which the ends of a connection disconnect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DisconnectOrder {
    /// This side first, the other after its disconnect event.
    First(usize),
    Both,
}

impl World {
    pub(crate) fn new(
        rng: &mut Rand64,
        bench: &dyn Stage,
        plan: Plan,
        conversations: Vec<Conversation>,
    ) -> Self {
        let nodes = [0, 1].map(|node| {
            let plans: Vec<_> = conversations.iter().map(|talk| &talk.sides[node]).collect();
            Objects::new(rng, bench, node, &plans)
        });
        let side = |node: usize, index: usize, plan| {
            let Objects { pd, queues, layout, shared, .. } = &nodes[node];
            let cqs = layout.queues(index).map(|queue| &queues[queue].cq);
            let adapter = &bench.adapters()[node];
            Side::new(adapter, pd, cqs, shared.as_ref(), index as u64, node == 0, plan)
        };
        let mut pairs = Vec::new();
        for (index, Conversation { sides: [a, b] }) in conversations.into_iter().enumerate() {
            pairs.push([side(0, index, a), side(1, index, b)]);
        }
        let incoming = Arc::new(Mutex::new(Vec::new()));
        let inbox = incoming.clone();
        let listener = bench.adapters()[1]
            .create_listener(move |connector| inbox.lock().unwrap().push(connector))
            .unwrap();
        Self { plan, nodes, pairs, listener, incoming }
    }

    fn server(&self) -> SocketAddr {
        self.listener.local_address().expect("a listening listener")
    }

    fn describe(&self, bench: &dyn Stage) -> String {
        format!("{:?}\n{}", self.plan, bench.describe())
    }

    pub(crate) fn check(
        &self,
        bench: &dyn Stage,
        what: &str,
        outcome: Result<(), impl fmt::Display>,
    ) {
        if let Err(stall) = outcome {
            let (text, pairs) = (self.describe(bench), &self.pairs);
            fail(Class::Stuck, &format!("{what}: {stall}\n{text}\n{pairs:#?}"));
        }
    }

    pub(crate) fn listen(&self, bench: &mut dyn Stage) {
        let results = Arc::new(Mutex::new(None));
        let keep = results.clone();
        let completion = move |status| *keep.lock().unwrap() = Some(status);
        let local = SocketAddr::new(self.plan.addresses[1], self.plan.port);
        assert_eq!(self.listener.listen(local, completion), NtStatus::PENDING);
        let outcome = bench.run(&mut || results.lock().unwrap().is_some());
        self.check(bench, "listen", outcome);
        assert_eq!(*results.lock().unwrap(), Some(NtStatus::SUCCESS));
    }

    pub(crate) fn connect(&mut self, bench: &dyn Stage) {
        let server = self.server();
        for (index, [active, passive]) in self.pairs.iter_mut().enumerate() {
            // Allowed before the connection exists (NDK-CON-10).
            active.post_receives();
            passive.post_receives();
            let connector = bench.adapters()[0].create_connector().unwrap();
            let note = active.note(|results, status| results.connected = Some(status));
            let (limits, name) = (active.plan.reads, [index as u8]);
            let status = connector.connect(&active.qp, None, server, limits, &name, note);
            assert_eq!(status, NtStatus::PENDING);
            active.connector = Some(connector);
        }
    }

    /// Accepts connectors, polls, posts.
    pub(crate) fn act(&mut self) {
        for connector in self.incoming.lock().unwrap().drain(..) {
            let mut name = [0];
            let (status, required, _) = connector.connection_data(Some(&mut name));
            assert_eq!((status, required), (NtStatus::SUCCESS, 1));
            let side = &mut self.pairs[usize::from(name[0])][1];
            let note = side.note(|results, status| results.completed = Some(status));
            let (event, limits) = (side.disconnect_event(), side.plan.reads);
            let status = connector.accept(&side.qp, limits, &[!name[0]], event, note);
            assert_eq!(status, NtStatus::PENDING);
            assert!(side.connector.replace(connector).is_none(), "one request per connect");
        }
        self.poll();
        for (index, [active, passive]) in self.pairs.iter_mut().enumerate() {
            complete_connect(index, active);
            step(active, passive);
            step(passive, active);
        }
    }

    fn poll(&mut self) {
        let mut results = [NdkResultEx::default(); 7];
        for (node, Objects { queues, by_notification, layout, .. }) in
            self.nodes.iter_mut().enumerate()
        {
            for (number, queue) in queues.iter_mut().enumerate() {
                let fired = queue.fired.load(Ordering::Relaxed);
                if *by_notification && fired == queue.seen {
                    continue;
                }
                loop {
                    let count = queue.cq.poll_ex(&mut results);
                    if count == 0 {
                        break;
                    }
                    for result in &results[..count] {
                        let [a, b] = &mut self.pairs[result.qp_context as usize];
                        let (side, peer) = if node == 0 { (a, b) } else { (b, a) };
                        side.complete(result, peer);
                    }
                }
                if *by_notification {
                    assert_eq!(fired, queue.seen + 1, "one call per arm (NDK-CQ-2)");
                    queue.seen = fired;
                    queue.cq.arm(CqNotify::Any);
                } else if fired > 0 {
                    // An error counts as solicited.
                    let failed = self.pairs.iter().any(|pair| pair[node].after.is_some());
                    let is_served = |index: &usize| layout.queues(*index)[0] == number;
                    let solicited: usize = (0..self.pairs.len())
                        .filter(is_served)
                        .map(|index| self.pairs[index][node].solicited)
                        .sum();
                    assert!(
                        solicited > 0 || failed,
                        "notified without a solicited event (NDK-CQ-8)"
                    );
                }
            }
        }
    }

    /// Resolves the outcomes of atomics on words of a node, which depend on the network.
    pub(crate) fn settle_shared(&mut self) {
        for (node, Objects { shared, .. }) in self.nodes.iter().enumerate() {
            if let Some(shared) = shared {
                shared.settle(self.pairs.iter_mut().map(|pair| &mut pair[1 - node]));
            }
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.pairs.iter().flatten().all(Side::is_done)
    }

    /// Disconnects each pair in its own order.
    pub(crate) fn disconnect(&mut self, orders: &[DisconnectOrder]) -> bool {
        self.act();
        let mut over = true;
        for (pair, order) in self.pairs.iter_mut().zip(orders) {
            for (index, side) in pair.iter_mut().enumerate() {
                if side.after.is_some() {
                    continue;
                }
                let (is_notified, disconnected) = {
                    let results = side.results.lock().unwrap();
                    (!results.events.is_empty(), results.disconnected)
                };
                let may_disconnect = match order {
                    DisconnectOrder::Both => true,
                    DisconnectOrder::First(first) => *first == index || is_notified,
                };
                if may_disconnect && !side.is_ending {
                    side.is_ending = true;
                    let note = side.note(|results, status| results.disconnected = Some(status));
                    let status = side.connector.as_ref().unwrap().disconnect(note);
                    assert_eq!(status, NtStatus::PENDING);
                }
                if let Some(status) = disconnected {
                    assert_eq!(status, NtStatus::SUCCESS);
                }
                over &= disconnected.is_some() && side.cancelled == side.plan.spare_receives;
            }
        }
        over
    }

    fn assert_disconnected(&self, orders: &[DisconnectOrder]) {
        for (pair, order) in self.pairs.iter().zip(orders) {
            for (index, side) in pair.iter().enumerate() {
                let expected: &[u32] = match order {
                    DisconnectOrder::First(first) if *first != index => &[0],
                    _ => &[],
                };
                assert_eq!(side.results.lock().unwrap().events, expected, "NDK-DISC-4");
            }
        }
    }

    /// Closes all objects, in any order (NDK-LIFE-5).
    pub(crate) fn close(&self, rng: &mut Rand64, bench: &mut dyn Stage) {
        let mut closes: Vec<Close<'_>> = Vec::new();
        for side in self.pairs.iter().flatten() {
            closes.push(Box::new(|done| side.qp.close(done)));
            closes.push(Box::new(|done| side.connector.as_ref().unwrap().close(done)));
            for mr in side.mrs() {
                closes.push(Box::new(|done| mr.close(done)));
            }
            for mw in side.mws() {
                closes.push(Box::new(|done| mw.close(done)));
            }
        }
        for node in &self.nodes {
            closes.push(Box::new(|done| node.pd.close(done)));
            if let Some(shared) = &node.shared {
                closes.push(Box::new(|done| shared.mr.close(done)));
            }
            for queue in &node.queues {
                closes.push(Box::new(|done| queue.cq.close(done)));
            }
        }
        closes.push(Box::new(|done| self.listener.close(done)));
        for adapter in bench.adapters().clone() {
            closes.push(Box::new(move |done| adapter.close(done)));
        }
        let (mut pending, returned) = (0, Arc::new(AtomicUsize::new(0)));
        while !closes.is_empty() {
            let close = closes.swap_remove(draw(rng, closes.len()));
            let counter = returned.clone();
            let done = move || {
                counter.fetch_add(1, Ordering::Relaxed);
            };
            match close(Box::new(done)) {
                NtStatus::PENDING => pending += 1,
                status => assert_eq!(status, NtStatus::SUCCESS),
            }
        }
        let outcome = bench.run(&mut || returned.load(Ordering::Relaxed) == pending);
        self.check(bench, "close", outcome);
        let outcome = bench.run_until_empty();
        self.check(bench, "release", outcome);
        assert_eq!(returned.load(Ordering::Relaxed), pending, "each close once");
    }

    /// Asserts that the counters match the plan.
    fn assert_counters(&self, bench: &dyn Stage) {
        let count = self.pairs.len() as u64;
        // An RTR that is a read is answered as a read (RFC 6581 §9.2).
        let is_read_rtr = self.plan.adapters[0].rtr == RtrSet::only(RtrKind::Read);
        for [active, passive] in &self.pairs {
            for (side, peer) in [(active, passive), (passive, active)] {
                let planned = |which: fn(&Action) -> bool| {
                    let of = &side.plan.operations;
                    of.iter().filter(|operation| which(&operation.action)).count() as u64
                };
                let stats = side.qp.stats();
                let reads = planned(|action| matches!(action, Action::Read { .. }));
                let sends = planned(|action| matches!(action, Action::Send { .. }));
                assert_eq!(stats.sends, sends);
                assert_eq!(stats.writes, planned(|action| matches!(action, Action::Write { .. })));
                assert_eq!(stats.reads, reads);
                let immediates = planned(|action| matches!(action, Action::Immediate { .. }));
                let atomics = planned(|action| matches!(action, Action::Atomic { .. }));
                assert_eq!((stats.immediates, stats.atomics), (immediates, atomics));
                assert_eq!(peer.qp.stats().atomic_responses, atomics);
                let receives = sends + immediates + peer.plan.rtr_receives as u64;
                assert_eq!(peer.qp.stats().receives, receives);
                // Bytes of one side are placed on the other, of each kind and in both directions.
                let other = peer.qp.stats();
                let writes = planned(
                    |action| matches!(action, Action::Write { target, .. } if !target.is_empty()),
                );
                assert_eq!(other.writes_placed, writes);
                assert_eq!(other.write_bytes_placed, stats.write_bytes);
                assert_eq!(other.receive_bytes, stats.send_bytes);
                assert_eq!(other.read_response_bytes, stats.read_bytes);
                let rtr = u64::from(side.is_active && is_read_rtr);
                assert_eq!(peer.qp.stats().read_responses, reads + rtr);
                assert_eq!(stats.flushed, side.plan.spare_receives as u64);
                assert_eq!((stats.terminates_in, stats.terminates_out), (0, 0));
            }
        }
        let counters = bench.adapters().each_ref().map(|adapter| adapter.counters());
        for (node, own) in counters.iter().enumerate() {
            let expected = Counters {
                connect: if node == 0 { count } else { 0 },
                accept: if node == 1 { count } else { 0 },
                connect_failure: 0,
                connection_error: 0,
                active_connection: 0,
                cq_error: 0,
                ..*own
            };
            assert_eq!(*own, expected);
            assert_eq!(own.fpdu_out, counters[1 - node].fpdu_in);
            assert_eq!(own.fpdu_out_octets, counters[1 - node].fpdu_in_octets);
        }
        bench.assert_connections(count);
    }

    /// Polling consumers armed once: queues with a solicited receive have notified once, others never.
    fn assert_notified(&self, bench: &mut dyn Stage) {
        let polled = self.nodes.iter().filter(|node| !node.by_notification);
        let queues: Vec<_> = polled.flat_map(|node| &node.queues).collect();
        let calls = |queue: &Queue| queue.fired.load(Ordering::Relaxed);
        if !bench.is_lockstep() {
            // The callback thread may lag the polling thread.
            let has_notified = |queue: &&Queue| !queue.serves_receives || calls(queue) > 0;
            let outcome = bench.run(&mut || queues.iter().all(has_notified));
            assert_eq!(outcome, Ok(()), "NDK-CQ-8");
        }
        for queue in queues {
            assert_eq!(calls(queue), usize::from(queue.serves_receives), "NDK-CQ-8");
        }
    }
}

fn complete_connect(index: usize, active: &mut Side) {
    let connected = active.results.lock().unwrap().connected.take();
    let Some(status) = connected else { return };
    check!(LostConnection, status == NtStatus::SUCCESS, "connect: {status:?}");
    let connector = active.connector.as_ref().unwrap();
    let mut data = [0];
    let (status, required, _) = connector.connection_data(Some(&mut data));
    assert_eq!((status, required, data), (NtStatus::SUCCESS, 1, [!(index as u8)]));
    let note = active.note(|results, status| results.completed = Some(status));
    let status = connector.complete_connect(active.disconnect_event(), note);
    assert_eq!(status, NtStatus::PENDING);
}

fn step(side: &mut Side, peer: &mut Side) {
    let Some(status) = side.results.lock().unwrap().completed else { return };
    check!(LostConnection, status == NtStatus::SUCCESS, "completed: {status:?}");
    if side.is_ending {
        return;
    }
    side.post_receives();
    side.post(peer);
}

/// Activity in parallel to the queue pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Background {
    None,
    /// A byte stream.
    Stream,
    /// Moves of the connections.
    Migrator,
}

/// Runs one seed; returns its counters.
pub(crate) fn run(seed: u64) -> String {
    play(seed, Background::None).0
}

/// Runs one seed with a byte stream in parallel; also returns the number of its moves.
pub(crate) fn run_shared(seed: u64) -> (String, usize) {
    play(seed, Background::Stream)
}

/// Runs one seed with connections moved between the stacks; also returns the number of moves.
pub(crate) fn run_moved(seed: u64) -> (String, usize) {
    play(seed, Background::Migrator)
}

fn play(seed: u64, background: Background) -> (String, usize) {
    let mut rng = Rand64::new(u128::from(seed));
    let mut plan = Plan::new(&mut rng);
    plan.allow_queued_messages();
    if background == Background::Migrator {
        plan.mix_policies(&mut rng);
    }
    let conversations = conversations(&mut rng, &plan);
    let mut bench = Bench::new(&plan, [rng.rand_u64(), rng.rand_u64()]);
    let mut world = World::new(&mut rng, &bench, plan, conversations);
    match background {
        Background::None => {}
        Background::Stream => {
            let server = SocketAddr::new(world.plan.addresses[1], world.plan.port);
            bench.stream = Some(ByteStream::new(&mut rng, &mut bench.pair, server));
        }
        Background::Migrator => bench.moves = Some(Migrators::new(&mut rng)),
    }
    world.act_plan(&mut rng, &mut bench);
    let outcome = bench.run_stream();
    world.check(&bench, "the byte stream", outcome);
    world.end(&mut rng, &mut bench);
    let uploads = || bench.cores().map(|core| core.host.as_ref().unwrap().stats().uploads as usize);
    let moved = bench.stream.as_ref().map_or_else(|| uploads().iter().sum(), |stream| stream.moved);
    (world.describe(&bench), moved)
}

/// Runs one seed on kernel sockets, in real time.
pub(crate) fn run_on_sockets(seed: u64) {
    let mut rng = Rand64::new(u128::from(seed));
    let mut plan = Plan::new(&mut rng);
    plan.allow_queued_messages();
    plan.on_loopback();
    let conversations = conversations(&mut rng, &plan);
    let mut bench = Loopback::new(&plan);
    let mut world = World::new(&mut rng, &bench, plan, conversations);
    world.act_plan(&mut rng, &mut bench);
    world.end(&mut rng, &mut bench);
}

impl World {
    /// Runs from the first listen to the last disconnect.
    fn act_plan(&mut self, rng: &mut Rand64, bench: &mut dyn Stage) {
        self.listen(bench);
        self.connect(bench);
        let outcome = bench.run(&mut || {
            self.act();
            self.is_done()
        });
        self.check(bench, "operations", outcome);
        self.assert_notified(bench);
        self.settle_shared();
        self.pairs.iter().flatten().for_each(Side::assert_image);
        let orders: Vec<_> = self
            .pairs
            .iter()
            .map(|_| match draw(rng, 3) {
                // Without lockstep one end may receive the other's disconnect before it starts its own.
                2 if bench.is_lockstep() => DisconnectOrder::Both,
                first => DisconnectOrder::First(first % 2),
            })
            .collect();
        let outcome = bench.run(&mut || self.disconnect(&orders));
        self.check(bench, "disconnect", outcome);
        self.assert_disconnected(&orders);
        self.pairs.iter().flatten().for_each(Side::assert_image);
    }

    fn end(&self, rng: &mut Rand64, bench: &mut dyn Stage) {
        self.assert_counters(bench);
        self.close(rng, bench);
    }
}
