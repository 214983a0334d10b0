//! One run: connect, talk both ways while a seed moves the connections about, close, and leave nothing behind.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    fs::File,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use flue_test_support::{
    check,
    legal::{Counts, Feed, Monitor, Rules},
    stream::Stream,
};
use host_stack::{
    node::Core,
    simulation::{Pair, Stall},
    stream::{OffloadState, StreamStatus},
};
use offload_engine::{
    chimney::client::OffloadHandle,
    link::{Impaired, Impairments, Link, MemoryLink, Tee, memory_link_pair},
    nbl::{NblChain, NetBuffer, NetBufferList},
    status::NdisStatus,
    time::{Duration, Instant},
};
use oorandom::Rand64;

use crate::{
    client::{Tally, Walker},
    middlebox::Middlebox,
    plan::{PORT, Plan},
};

/// Virtual time one seed may take: generous, since smoltcp waits a second and more for each loss.
const LIMIT: Duration = Duration::from_secs(3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes that an end has posted and that are not acknowledged, at most.
const POSTED_BYTES_MAX: usize = 200_000;
/// Moves of one connection at one end: so that a walk ends.
const MOVES_MAX: u64 = 60;

/// One end of one connection.
struct End {
    node: usize,
    handle: Option<OffloadHandle>,
    data: Vec<u8>,
    sent: usize,
    shut: bool,
    /// It had sent everything, all of that was acknowledged, and it did not shut down.
    hesitated: bool,
    rng: Rand64,
    /// Bytes of the lists that have not come back.
    ledger: VecDeque<usize>,
    last_context: u64,
    moves: u64,
    is_over: bool,
}

impl End {
    fn new(node: usize, length: usize, rng: &mut Rand64) -> Self {
        let mut rng = Rand64::new(u128::from(rng.rand_u64()));
        let mut data = vec![0; length];
        Stream::new(rng.rand_u64()).fill(&mut data);
        Self {
            node,
            handle: None,
            data,
            sent: 0,
            shut: false,
            hesitated: false,
            rng,
            ledger: VecDeque::new(),
            last_context: 0,
            moves: 0,
            is_over: false,
        }
    }

    /// A turn: posts, moves, settles what came back.
    fn act(&mut self, core: &mut Core<Walker>, now: Instant, plan: &Plan) -> Option<StreamStatus> {
        let handle = self.handle?;
        core.client.attend(handle);
        let status = core.client.streams.status(handle)?;
        if status.connected && !status.closed {
            self.post(core, now, handle, plan.list_bytes_max, status);
            if plan.walks(self.node) {
                self.step(core, handle, plan.calm);
            }
        }
        self.settle(core, handle);
        core.client.streams.status(handle)
    }

    fn post(
        &mut self,
        core: &mut Core<Walker>,
        now: Instant,
        handle: OffloadHandle,
        list_bytes_max: u64,
        status: StreamStatus,
    ) {
        let mut unacknowledged = status.unacknowledged;
        while self.sent < self.data.len() && unacknowledged < POSTED_BYTES_MAX {
            let mut chain = NblChain::new();
            for _ in 0..1 + self.rng.rand_range(0..3) {
                if self.sent < self.data.len() {
                    let list = self.list(list_bytes_max);
                    unacknowledged += list.data_length();
                    self.ledger.push_back(list.data_length());
                    chain.push_back(list);
                }
            }
            core.client.streams.post(now, core.engine.connections(), handle, chain);
            // Not all at once: what is posted later meets the connection elsewhere.
            if self.rng.rand_range(0..4) == 0 {
                return;
            }
        }
        if self.sent == self.data.len() && !self.shut {
            // When nothing is in flight, there may be only one more turn.
            let was_last = unacknowledged == 0 && std::mem::replace(&mut self.hesitated, true);
            if !was_last && self.rng.rand_range(0..4) != 0 {
                return;
            }
            self.shut = true;
            core.client.streams.shutdown(now, core.engine.connections(), handle);
        }
    }

    /// The next bytes as one list of up to three net buffers of up to two MDLs each.
    fn list(&mut self, bytes_max: u64) -> NetBufferList {
        let mut list = NetBufferList::new(0);
        for _ in 0..1 + self.rng.rand_range(0..3) {
            let mut net_buffer = NetBuffer::new();
            for _ in 0..1 + self.rng.rand_range(0..2) {
                let most = (self.data.len() - self.sent) as u64;
                if most > 0 {
                    let length = 1 + self.rng.rand_range(0..most.min(bytes_max)) as usize;
                    let piece = &self.data[self.sent..self.sent + length];
                    net_buffer.push_mdl(Bytes::copy_from_slice(piece));
                    self.sent += length;
                }
            }
            list.net_buffers.push(net_buffer);
        }
        list
    }

    /// Each list comes back once, in order, with all its bytes acknowledged (CH-SND-2, CH-SNC-1).
    fn settle(&mut self, core: &mut Core<Walker>, handle: OffloadHandle) {
        let node = self.node;
        // Its lists come back aborted: what is wrong is the connection.
        if core.client.streams.status(handle).is_some_and(|status| status.error.is_some()) {
            return;
        }
        for list in core.client.streams.completed(handle) {
            let (left, expected) = (list.data_length(), self.ledger.pop_front());
            let NetBufferList { context, bytes_transferred, status, .. } = list;
            let is_next = expected == Some(bytes_transferred) && context > self.last_context;
            check!(
                WrongCompletion,
                is_next && left == 0 && status == NdisStatus::SUCCESS,
                "node {node}, not {expected:?} bytes: list {context} after {}, {status}, \
                 {bytes_transferred} bytes, {left} left",
                self.last_context
            );
            self.last_context = list.context;
        }
    }

    /// At every turn the seed decides: the other stack, or nothing.
    fn step(&mut self, core: &mut Core<Walker>, handle: OffloadHandle, calm: u64) {
        let Some(status) = core.client.streams.status(handle) else { return };
        if self.moves == MOVES_MAX || self.rng.rand_range(0..calm) != 0 {
            return;
        }
        match status.state {
            OffloadState::InHost => core.client.streams.offload(handle),
            OffloadState::Offloaded => core.client.streams.upload(handle),
            OffloadState::Offloading | OffloadState::Uploading => return,
        }
        self.moves += 1;
    }
}

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
    index: usize,
    link: MemoryLink,
) -> (impl Link + use<>, Arc<Mutex<Monitor>>) {
    let rules = Rules {
        mac: Plan::mac(index).0,
        mtu: plan.link.mtu,
        super_segments: plan.link.offloads,
        window_max: plan.window_limit(index),
        lag: Duration::ZERO,
        resets: false,
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
}

/// Runs a seed.
pub(crate) fn walk(seed: u64) -> Summary {
    let mut rng = Rand64::new(u128::from(seed));
    let plan = Plan::new(&mut rng);
    let (left, right) = memory_link_pair(plan.link);
    let (left, left_monitor) = watched(&plan, 0, left);
    let (right, right_monitor) = watched(&plan, 1, right);
    let mut pair = Pair::new(plan.node(0, left, &mut rng), plan.node(1, right, &mut rng));
    let mut ends: [Vec<End>; 2] = [0, 1]
        .map(|node| plan.bytes.iter().map(|bytes| End::new(node, bytes[node], &mut rng)).collect());
    let outcome = talk(&mut pair, &plan, &mut ends);
    let text = describe(&plan, &ends, &pair);
    let tallies = [pair.a.client.tally, pair.b.client.tally];
    let (ended_at, pending) = (pair.now, [&pair.a, &pair.b].map(|core| core.client.posted()));
    let result = outcome.map(|()| check(&ends, &pair, &text));
    // The capture is written out with the links.
    drop(pair);
    let counts = [(left_monitor, "node 0"), (right_monitor, "node 1")].map(|(monitor, who)| {
        let monitor = monitor.lock().unwrap_or_else(PoisonError::into_inner);
        monitor.expect_legal(&format!("{text}{who}"))
    });
    check!(Stuck, result.is_ok(), "{result:?}\n{text}");
    check!(WrongCompletion, pending == [0, 0], "receive requests are left: {pending:?}\n{text}");
    Summary { plan: format!("{plan:?}"), is_clean: plan.is_clean(), ended_at, tallies, counts }
}

/// Until both ends of all connections have sent, heard and closed everything; then until everybody has
/// forgotten them.
fn talk(pair: &mut Pair<Walker>, plan: &Plan, ends: &mut [Vec<End>; 2]) -> Result<(), Stall> {
    let server = SocketAddr::new(plan.addresses[1], PORT);
    let listener = pair.b.client.streams.listen(server, 2 * plan.connections);
    for (index, end) in ends[0].iter_mut().enumerate() {
        let local = SocketAddr::new(plan.addresses[0], PORT + 1 + index as u16);
        end.handle = Some(pair.a.client.streams.connect(Some(local), server, CONNECT_TIMEOUT));
    }
    pair.run(Instant::ZERO + LIMIT, |pair| {
        while let Some(handle) = pair.b.client.streams.accept(listener) {
            let remote = pair.b.client.streams.status(handle).and_then(|status| status.remote);
            let port = remote.expect("an accepted stream has a peer").port();
            ends[1][usize::from(port - PORT - 1)].handle = Some(handle);
        }
        let now = pair.now;
        for (node, ends) in ends.iter_mut().enumerate() {
            let core = if node == 0 { &mut pair.a } else { &mut pair.b };
            for end in ends {
                let Some(status) = end.act(core, now, plan) else { continue };
                let error = status.error;
                check!(
                    LostConnection,
                    error.is_none(),
                    "{error:?}, node {node} at {now:?}, {status:?}\n{plan:?}"
                );
                end.is_over = status.shut_down && status.peer_closed && status.unread == 0;
            }
        }
        ends.iter().flatten().all(|end| end.is_over).then_some(())
    })?;
    pair.b.client.streams.unlisten(listener);
    pair.run(pair.now + LIMIT, |pair| {
        let empty = |core: &mut Core<Walker>| {
            core.engine.connections().is_empty()
                && core.host.as_ref().is_some_and(|host| host.is_idle())
        };
        (empty(&mut pair.a) && empty(&mut pair.b)).then_some(())
    })
}

/// Every byte, and every list.
fn check(ends: &[Vec<End>; 2], pair: &Pair<Walker>, text: &str) {
    for (index, (a, b)) in ends[0].iter().zip(&ends[1]).enumerate() {
        for (from, to, core) in [(a, b, &pair.b), (b, a, &pair.a)] {
            let received = to.handle.map_or(&[][..], |handle| core.client.received(handle));
            let is_equal = received == from.data;
            check!(WrongData, is_equal, "connection {index} to node {}\n{text}", to.node);
            let ledger = &from.ledger;
            check!(WrongCompletion, ledger.is_empty(), "lists are left: {ledger:?}\n{text}");
        }
    }
}

fn describe(plan: &Plan, ends: &[Vec<End>; 2], pair: &Pair<Walker>) -> String {
    let mut text = format!("{plan:?}\n");
    for (node, core) in [&pair.a, &pair.b].into_iter().enumerate() {
        for (index, end) in ends[node].iter().enumerate() {
            let status = end.handle.and_then(|handle| core.client.streams.status(handle));
            let received = end.handle.map_or(0, |handle| core.client.received(handle).len());
            let _ = writeln!(
                text,
                "node {node}, connection {index}: sent {} of {}, received {received}, moves {}, \
                 lists {}, {status:?}",
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
