//! Two adapters joined by a pipe that follows the contracts of engine and host stack. It splits data at arbitrary
//! points drawn from a seed.
//!
//! Time does not advance unless a test advances it. Bytes are acknowledged when they are delivered, unless
//! acknowledgments are held back.
//!
//! A test that needs only a byte stream from the pipe also runs over the kernel's sockets ([`kernel`]), and on nodes
//! with TAPs ([`taps`]).
//!
//! [`kernel`]: super::kernel
//! [`taps`]: super::taps

use std::{
    boxed::Box,
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    vec::Vec,
};

use bytes::Bytes;
use offload_engine::{
    memory::{Span, to_vec},
    time::{Duration, Instant},
};
use oorandom::Rand32;

use super::{
    kernel::{self, PolledSockets},
    taps,
};
use crate::{
    mpa::GatherList,
    ndk::{Adapter, AdapterConfig, Driver},
    rdmap::Opcode,
    rnic::{
        ConnectError, Rnic, StreamId, Urgency,
        objects::id::ListenerId,
        transport::{Command, LlpStream, StreamEvent},
    },
};

pub(super) const EMSS: usize = 1448;
/// Address at which node 1 listens.
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 7000);

/// Driver of a core in tests: a lock and a clock.
pub(super) struct TestAccess {
    core: Mutex<Rnic>,
    now: Mutex<Instant>,
    /// Urgency with which the effects of the last post must be flushed.
    pub(super) urgency: Mutex<Option<Urgency>>,
}

impl Driver for TestAccess {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        let now = *self.now.lock().unwrap();
        work(&mut self.lock(), now);
    }

    fn enter_for_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        *self.urgency.lock().unwrap() = Some(work(&mut self.lock()));
    }
}

impl TestAccess {
    pub(super) fn lock(&self) -> MutexGuard<'_, Rnic> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One end of a connection.
struct End {
    node: usize,
    id: StreamId,
    /// Bytes in flight to the other end.
    in_flight: VecDeque<u8>,
    /// Bytes at the front of `in_flight` that are acknowledged: the other end has not read them.
    unread: usize,
    /// Serials of unacknowledged lists, with the number of unacknowledged bytes of each.
    lists: VecDeque<(u64, usize)>,
    unacknowledged: usize,
    has_fin: bool,
    /// True if the FIN was not sent by the adapter.
    is_fin_foreign: bool,
    fin_delivered: bool,
}

impl End {
    fn new(node: usize, id: StreamId) -> Self {
        Self {
            node,
            id,
            in_flight: VecDeque::new(),
            unread: 0,
            lists: VecDeque::new(),
            unacknowledged: 0,
            has_fin: false,
            is_fin_foreign: false,
            fin_delivered: false,
        }
    }
}

/// Transport calls made by the adapter during one upcall.
struct Io {
    now: Instant,
    room: usize,
    outstanding: usize,
    gso_payload: usize,
    path_octets: usize,
    sent: Vec<(u64, Vec<Span>)>,
    /// Ends requested, in the order of the calls; `true`: a reset.
    ends: Vec<bool>,
}

impl LlpStream for Io {
    type List = Vec<Span>;

    const CAN_REFUSE_DATA: bool = false;
    const READS_PAYLOAD_ONCE: bool = false;

    fn resume_receive(&mut self) {}

    fn now(&self) -> Instant {
        self.now
    }

    fn list(&mut self) -> Vec<Span> {
        Vec::new()
    }

    fn keep(&mut self, list: Vec<Span>) {
        assert!(list.is_empty());
    }

    fn send(&mut self, serial: u64, list: Vec<Span>) {
        let bytes: usize = list.iter().map(Span::len).sum();
        self.room = self.room.saturating_sub(bytes);
        self.outstanding += bytes;
        self.sent.push((serial, list));
    }

    fn shutdown(&mut self) {
        self.ends.push(false);
    }

    fn reset(&mut self) {
        self.ends.push(true);
    }

    fn send_room(&self) -> usize {
        self.room
    }

    /// The pipe's lists complete when they are delivered; it has no tail.
    fn detach_tail(&mut self, _octets_max: usize) -> bool {
        false
    }

    /// The pipe copies all data passed to it.
    fn detach_withdrawn(&mut self) {}

    fn send_outstanding(&self) -> usize {
        self.outstanding
    }

    fn path_octets(&self) -> usize {
        self.path_octets
    }

    fn effective_mss(&self) -> usize {
        EMSS
    }

    fn gso_payload_max(&self) -> usize {
        self.gso_payload
    }
}

impl GatherList for Vec<Span> {
    type Payload = Span;

    fn push_encoded(&mut self, octets: Bytes) {
        self.push(octets.into());
    }

    fn push_payload(&mut self, payload: Span) {
        self.push(payload);
    }
}

/// Returns the sizes of the FPDUs of a list without markers (MPA-4.1-3).
fn fpdu_octets(list: &[Span]) -> Vec<usize> {
    let octets = to_vec(list.iter().map(Span::piece));
    let mut rest = &octets[..];
    let mut fpdus = Vec::new();
    while let Some(length) = rest.first_chunk() {
        let fpdu = (2 + usize::from(u16::from_be_bytes(*length))).next_multiple_of(4) + 4;
        fpdus.push(fpdu);
        rest = rest.get(fpdu..).unwrap_or_default();
    }
    fpdus
}

/// Removes the Terminate at the end of a list with FPDUs of these sizes, if there is one.
fn remove_terminate(octets: &mut Vec<u8>, fpdus: &[usize]) {
    let Some(last) = fpdus.last() else { return };
    let start = octets.len() - last;
    // The control octet of RDMAP is the second one of the ULPDU.
    if octets[start + 3] == Opcode::Terminate.control() {
        octets.truncate(start);
    }
}

/// Adapter of a node, on its transport.
enum Core {
    Pipe(Arc<TestAccess>),
    Kernel(Arc<PolledSockets>),
    Tap(Box<taps::PolledNode>),
}

pub(super) struct Node {
    core: Core,
    pub(super) adapter: Adapter,
    listeners: Vec<(ListenerId, SocketAddr)>,
}

impl Node {
    fn new(config: AdapterConfig, names: Arc<AtomicU64>) -> Self {
        let names = move || StreamId(names.fetch_add(1, Ordering::Relaxed));
        let core = Rnic::new(config, Box::new(names), Box::new(|| {}));
        let access = Arc::new(TestAccess {
            core: Mutex::new(core),
            now: Mutex::new(Instant::ZERO),
            urgency: Mutex::default(),
        });
        let adapter = Adapter::new(access.clone());
        Self { core: Core::Pipe(access), adapter, listeners: Vec::new() }
    }

    fn on_kernel(config: AdapterConfig) -> Self {
        let polled = Arc::new(PolledSockets::new(config));
        let adapter = Adapter::new(polled.clone());
        Self { core: Core::Kernel(polled), adapter, listeners: Vec::new() }
    }

    fn on_tap(wire: &taps::Wire, index: usize, config: AdapterConfig) -> Self {
        let (polled, adapter) = taps::PolledNode::new(wire, index, config);
        Self { core: Core::Tap(Box::new(polled)), adapter, listeners: Vec::new() }
    }

    /// Returns the core of the adapter on the pipe.
    pub(super) fn access(&self) -> &Arc<TestAccess> {
        match &self.core {
            Core::Pipe(access) => access,
            Core::Kernel(_) | Core::Tap(_) => panic!("this test needs the pipe"),
        }
    }

    /// Returns the adapter on kernel sockets.
    pub(super) fn kernel(&self) -> Option<&PolledSockets> {
        match &self.core {
            Core::Kernel(polled) => Some(polled),
            Core::Pipe(_) | Core::Tap(_) => None,
        }
    }

    /// True if no object of the adapter remains.
    pub(super) fn is_idle(&self) -> bool {
        match &self.core {
            Core::Pipe(access) => access.lock().is_idle(),
            Core::Kernel(_) => panic!("this test needs the pipe, or TAPs"),
            Core::Tap(polled) => polled.is_idle(),
        }
    }
}

/// Test bench of two nodes.
pub(super) struct Bench {
    pub(super) nodes: [Node; 2],
    /// Address at which node 1 listens.
    pub(super) server: SocketAddr,
    connections: Vec<[End; 2]>,
    names: Arc<AtomicU64>,
    random: Rand32,
    pub(super) now: Instant,
    /// Maximum unacknowledged bytes per end.
    pub(super) window: usize,
    pub(super) gso_payload: usize,
    pub(super) path_octets: usize,
    pub(super) hold_acks: bool,
    /// True if nothing is delivered.
    pub(super) is_cut: bool,
    /// Node that does not read. Its TCP acknowledges the data.
    pub(super) stopped: Option<usize>,
    /// True if Terminates are removed from the lists that nodes send.
    pub(super) drops_terminates: bool,
    /// True if all bytes in flight are delivered together.
    pub(super) is_whole: bool,
    /// Position in the stream toward node 1 of a byte with a flipped bit.
    pub(super) corrupt_at: Option<u64>,
    delivered: u64,
    /// Callback after the adapter has queued a list, before its bytes are read: a writer concurrent with the device.
    pub(super) after_send: Option<Box<dyn FnMut() + Send>>,
    /// Sizes of the FPDUs of each posted list, per node.
    pub(super) posted: [Vec<Vec<usize>>; 2],
    /// Number of memory slices of each of these lists.
    pub(super) slices: [Vec<usize>; 2],
    pub(super) connect_error: Option<ConnectError>,
}

impl Bench {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(seed, AdapterConfig::default())
    }

    pub(super) fn with(seed: u64, config: AdapterConfig) -> Self {
        let names = Arc::new(AtomicU64::new(1));
        let (nodes, server) = match (taps::chosen(), kernel::is_chosen()) {
            (Some(wire), _) => {
                let node = |index| Node::on_tap(&wire, index, config.clone());
                ([node(0), node(1)], SERVER)
            }
            (None, true) => ([config.clone(), config].map(Node::on_kernel), kernel::server()),
            (None, false) => {
                ([config.clone(), config].map(|it| Node::new(it, names.clone())), SERVER)
            }
        };
        Self {
            nodes,
            server,
            connections: Vec::new(),
            names,
            random: Rand32::new(seed),
            now: Instant::ZERO,
            window: 64 * 1024,
            gso_payload: 44 * EMSS,
            path_octets: usize::MAX,
            hold_acks: false,
            is_cut: false,
            stopped: None,
            drops_terminates: false,
            is_whole: false,
            corrupt_at: None,
            delivered: 0,
            after_send: None,
            posted: [Vec::new(), Vec::new()],
            slices: [Vec::new(), Vec::new()],
            connect_error: None,
        }
    }

    /// Returns the address of a node. On the pipe, and on kernel sockets, both nodes have the same.
    pub(super) fn address(&self, node: usize) -> IpAddr {
        match &self.nodes[node].core {
            Core::Pipe(_) | Core::Kernel(_) => self.server.ip(),
            Core::Tap(_) => taps::address(node).into(),
        }
    }

    /// Advances the time, with a run at each time limit on the way: a loop that is late extends limits.
    pub(super) fn advance(&mut self, by: Duration) {
        let until = self.now + by;
        while let Some(next) = self.poll_at().filter(|at| *at > self.now && *at < until) {
            self.run_at(next);
        }
        self.run_at(until);
    }

    /// Advances the time at once, as for a process that was stopped.
    pub(super) fn jump(&mut self, by: Duration) {
        self.run_at(self.now + by);
    }

    /// Runs until `look` returns a result, on the pipe or on kernel sockets.
    pub(super) fn step_until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> T {
        if let [Some(a), Some(b)] = self.nodes.each_ref().map(Node::kernel) {
            return a.poll_until(|| {
                b.poll();
                look()
            });
        }
        for _ in 0..1_000_000 {
            if let Some(found) = look() {
                return found;
            }
            self.step();
        }
        panic!("no result");
    }

    /// Time of the next time limit on the pipe or on kernel sockets.
    fn poll_at(&self) -> Option<Instant> {
        let limits = self.nodes.iter().filter_map(|node| match &node.core {
            Core::Pipe(access) => access.lock().run_at(),
            Core::Kernel(polled) => polled.poll_at(),
            Core::Tap(_) => None,
        });
        limits.min()
    }

    fn run_at(&mut self, now: Instant) {
        self.now = now;
        for node in &self.nodes {
            match &node.core {
                Core::Pipe(access) => *access.now.lock().unwrap() = self.now,
                Core::Kernel(polled) => polled.set_now(self.now),
                Core::Tap(_) => {}
            }
        }
        self.settle();
    }

    /// Runs until no work is left.
    pub(super) fn settle(&mut self) {
        if let [Some(a), Some(b)] = self.nodes.each_ref().map(Node::kernel) {
            return kernel::settle([a, b]);
        }
        if let [Core::Tap(a), Core::Tap(b)] = self.nodes.each_mut().map(|node| &mut node.core) {
            return taps::settle([a, b], &mut self.now);
        }
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the bench is never idle");
    }

    pub(super) fn step(&mut self) -> bool {
        let mut worked = false;
        for node in 0..2 {
            worked |= self.serve_host(node);
            worked |= self.poll(node);
            worked |= self.run_callbacks(node);
        }
        for index in 0..self.connections.len() {
            for end in 0..2 {
                worked |= self.deliver(index, end);
            }
            worked |= self.release(index);
        }
        self.connections.retain(|ends| ends.iter().any(|end| end.id.0 != 0));
        worked
    }

    /// Runs one step without running the callbacks of node `quiet`.
    pub(super) fn step_without_callbacks(&mut self, quiet: usize) -> bool {
        let mut worked = false;
        for node in 0..2 {
            worked |= self.serve_host(node);
            worked |= self.poll(node);
            worked |= node != quiet && self.run_callbacks(node);
        }
        for index in 0..self.connections.len() {
            worked |= self.deliver(index, 0);
            worked |= self.deliver(index, 1);
        }
        worked
    }

    /// Serves the adapter's requests to its transport.
    fn serve_host(&mut self, node: usize) -> bool {
        let mut worked = false;
        while let Some(command) = { self.nodes[node].access().lock().next_command() } {
            worked = true;
            match command {
                Command::Listen { listener, local, .. } => {
                    self.nodes[node].listeners.push((listener, local.address));
                    self.nodes[node].access().lock().handle_listening(listener, local.address);
                }
                Command::Unlisten { listener } => {
                    self.nodes[node].listeners.retain(|(name, _)| *name != listener);
                }
                Command::Connect { stream, local, remote, .. } => {
                    self.connect(node, stream, local, remote);
                }
                Command::Bind { endpoint, local } => {
                    let port = if local.port() == 0 { 49_152 } else { local.port() };
                    let local = SocketAddr::new(local.ip(), port);
                    self.nodes[node].access().lock().handle_bound(endpoint, local);
                }
                Command::Abort { .. }
                | Command::Release { .. }
                | Command::CloseDatagrams { .. } => {}
            }
        }
        worked
    }

    fn connect(
        &mut self,
        node: usize,
        id: StreamId,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) {
        let other = 1 - node;
        let listener = self.nodes[other].listeners.iter().find(|(_, local)| *local == remote);
        let error =
            self.connect_error.or_else(|| listener.is_none().then_some(ConnectError::Refused));
        if let Some(error) = error {
            self.nodes[node].access().lock().handle_stream_lost(id, error);
            return;
        }
        let listener = listener.map(|(name, _)| *name);
        let local = local.unwrap_or_else(|| "10.0.0.1:50000".parse().unwrap());
        let passive = StreamId(self.names.fetch_add(1, Ordering::Relaxed));
        let ends = [(node, id, None, (local, remote)), (other, passive, listener, (remote, local))];
        for (node, id, listener, addresses) in ends {
            let mut core = self.nodes[node].access().lock();
            core.handle_established(self.now, id, listener, addresses);
        }
        self.connections.push([End::new(node, id), End::new(other, passive)]);
        let index = self.connections.len() - 1;
        for end in 0..2 {
            self.upcall(index, end, |core, id, io| core.handle_open(id, io));
        }
    }

    fn poll(&mut self, node: usize) -> bool {
        let mut core = self.nodes[node].access().lock();
        let mut worked = core.run(self.now);
        let kicks: Vec<_> = core::iter::from_fn(|| core.next_scheduled()).collect();
        drop(core);
        for id in kicks {
            worked = true;
            if let Some((index, end)) = self.find(node, id) {
                self.upcall(index, end, |core, id, io| core.handle_room(id, io));
            }
        }
        worked
    }

    fn find(&self, node: usize, id: StreamId) -> Option<(usize, usize)> {
        self.connections.iter().enumerate().find_map(|(index, ends)| {
            let end = ends.iter().position(|end| end.node == node && end.id == id)?;
            Some((index, end))
        })
    }

    fn run_callbacks(&mut self, node: usize) -> bool {
        let callbacks = core::mem::take(self.nodes[node].access().lock().callbacks());
        let worked = !callbacks.is_empty();
        callbacks.into_iter().for_each(|callback| callback());
        worked
    }

    fn upcall(
        &mut self,
        index: usize,
        end: usize,
        work: impl FnOnce(&mut Rnic, StreamId, &mut Io),
    ) {
        let state = &self.connections[index][end];
        let (node, id) = (state.node, state.id);
        if id.0 == 0 {
            return;
        }
        let mut io = Io {
            now: self.now,
            room: self.window.saturating_sub(state.unacknowledged),
            outstanding: state.unacknowledged,
            gso_payload: self.gso_payload,
            path_octets: self.path_octets,
            sent: Vec::new(),
            ends: Vec::new(),
        };
        work(&mut self.nodes[node].access().lock(), id, &mut io);
        let Io { sent, ends, .. } = io;
        for (serial, list) in sent {
            if let Some(write) = &mut self.after_send {
                write();
            }
            let state = &mut self.connections[index][end];
            assert!(!state.has_fin, "no list is posted after a FIN");
            let fpdus = fpdu_octets(&list);
            let mut octets = to_vec(list.iter().map(Span::piece));
            if self.drops_terminates {
                remove_terminate(&mut octets, &fpdus);
            }
            let bytes = octets.len();
            self.posted[node].push(fpdus);
            self.slices[node].push(list.len());
            state.in_flight.extend(octets);
            state.unacknowledged += bytes;
            state.lists.push_back((serial, bytes));
        }
        for is_reset in ends {
            match is_reset {
                false => self.connections[index][end].has_fin = true,
                true => self.reset(index, end),
            }
        }
    }

    /// Resets the connection from `end`, and releases both ends.
    pub(super) fn reset(&mut self, index: usize, end: usize) {
        for (which, event) in [(end, StreamEvent::ShutDown), (1 - end, StreamEvent::Reset)] {
            self.abort_lists(index, which);
            for event in [event, StreamEvent::Released] {
                self.upcall(index, which, |core, id, io| core.handle_event(id, io, event));
            }
            self.connections[index][which].id = StreamId(0);
        }
    }

    /// Ends the connection at `node` with `error`, without a call of its own; its peer is reset.
    pub(super) fn fail_connection(&mut self, node: usize, error: ConnectError) {
        let end = self.connections[0].iter().position(|end| end.node == node).unwrap();
        let state = &mut self.connections[0][end];
        state.lists.clear();
        let id = core::mem::replace(&mut state.id, StreamId(0));
        self.nodes[node].access().lock().handle_stream_lost(id, error);
        self.reset(0, end);
        self.settle();
    }

    /// Simulates the loss of the device of `node`.
    pub(super) fn lose_device(&mut self, node: usize) {
        self.nodes[node].access().lock().handle_device_lost();
        self.connections.clear();
        self.settle();
    }

    fn abort_lists(&mut self, index: usize, end: usize) {
        let state = &mut self.connections[index][end];
        state.in_flight.clear();
        (state.unread, state.unacknowledged) = (0, 0);
        if !core::mem::take(&mut state.lists).is_empty() {
            self.upcall(index, end, |core, id, io| core.handle_sent(id, io, None));
        }
    }

    /// Delivers some bytes from `end` to the other one, or its FIN.
    fn deliver(&mut self, index: usize, end: usize) -> bool {
        if self.is_cut || self.connections[index][end].id.0 == 0 {
            return false;
        }
        let is_stopped = self.stopped == Some(self.connections[index][1 - end].node);
        let state = &mut self.connections[index][end];
        if is_stopped {
            let is_new = state.unread < state.in_flight.len();
            state.unread = state.in_flight.len();
            self.acknowledge(index, end);
            return is_new;
        }
        if state.in_flight.is_empty() {
            if !state.has_fin || state.fin_delivered {
                return false;
            }
            state.fin_delivered = true;
            let is_told = !state.is_fin_foreign;
            let closed = StreamEvent::PeerClosed;
            self.upcall(index, 1 - end, |core, id, io| core.handle_event(id, io, closed));
            if is_told {
                let shut_down = StreamEvent::ShutDown;
                self.upcall(index, end, |core, id, io| core.handle_event(id, io, shut_down));
            }
            return true;
        }
        let most = match self.random.rand_range(0..4) {
            0 => 3,
            1 => 200,
            2 => 3000,
            _ => 65_536,
        };
        let count = self.random.rand_range(1..most + 1) as usize;
        let count = if self.is_whole { usize::MAX } else { count }.min(state.in_flight.len());
        let mut data: Vec<u8> = state.in_flight.drain(..count).collect();
        state.unread = state.unread.saturating_sub(count);
        if self.connections[index][1 - end].node == 1 {
            let start = self.delivered;
            self.delivered += count as u64;
            if let Some(at) = self.corrupt_at.filter(|at| (start..self.delivered).contains(at)) {
                data[(at - start) as usize] ^= 0x10;
            }
        }
        self.upcall(index, 1 - end, |core, id, io| {
            core.handle_received(id, io, &data);
        });
        if !self.hold_acks {
            self.acknowledge(index, end);
        }
        true
    }

    /// Acknowledges the delivered bytes.
    fn acknowledge(&mut self, index: usize, end: usize) {
        let state = &mut self.connections[index][end];
        if state.id.0 == 0 {
            return;
        }
        let mut count = state.unacknowledged - (state.in_flight.len() - state.unread);
        let was_full = state.unacknowledged >= self.window;
        state.unacknowledged -= count;
        let mut done = None;
        while let Some((serial, left)) = state.lists.front_mut() {
            let part = count.min(*left);
            *left -= part;
            count -= part;
            if *left > 0 {
                break;
            }
            done = Some(*serial);
            state.lists.pop_front();
        }
        if done.is_some() {
            self.upcall(index, end, |core, id, io| core.handle_sent(id, io, done));
        }
        if was_full {
            self.upcall(index, end, |core, id, io| core.handle_room(id, io));
        }
    }

    pub(super) fn release_acks(&mut self) {
        self.hold_acks = false;
        for index in 0..self.connections.len() {
            for end in 0..2 {
                self.acknowledge(index, end);
            }
        }
        self.settle();
    }

    /// Releases both ends after both FINs were delivered, as the target does.
    fn release(&mut self, index: usize) -> bool {
        let ends = &self.connections[index];
        let is_over = ends.iter().all(|end| end.fin_delivered && end.id.0 != 0);
        if !is_over {
            return false;
        }
        for end in 0..2 {
            let released = StreamEvent::Released;
            self.upcall(index, end, |core, id, io| core.handle_event(id, io, released));
            self.connections[index][end].id = StreamId(0);
        }
        true
    }

    /// Appends raw bytes to the stream from `node`.
    pub(super) fn inject(&mut self, node: usize, bytes: &[u8]) {
        let end = self.connections[0].iter().position(|end| end.node == node).unwrap();
        let state = &mut self.connections[0][end];
        state.in_flight.extend(bytes);
        state.unacknowledged += bytes.len();
        state.lists.push_back((0, bytes.len()));
    }

    /// Sends a FIN from `node` after its data, without the adapter's involvement.
    pub(super) fn close_sending(&mut self, node: usize) {
        let end = self.connections[0].iter().position(|end| end.node == node).unwrap();
        let state = &mut self.connections[0][end];
        (state.has_fin, state.is_fin_foreign) = (true, true);
    }

    /// Removes all but the first `count` bytes in flight from `node`, and sends a FIN after them.
    pub(super) fn truncate(&mut self, node: usize, count: usize) {
        let end = self.connections[0].iter().position(|end| end.node == node).unwrap();
        let state = &mut self.connections[0][end];
        state.in_flight.truncate(count);
        state.lists.clear();
        state.unacknowledged = count;
        self.close_sending(node);
    }

    pub(super) fn connections(&self) -> usize {
        let of = |node: &Node| match &node.core {
            Core::Pipe(_) => None,
            Core::Kernel(polled) => Some(polled.connections()),
            Core::Tap(polled) => Some(polled.connections()),
        };
        self.nodes.iter().filter_map(of).max().unwrap_or(self.connections.len())
    }
}
