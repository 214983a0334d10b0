//! Two adapters joined by a pipe that keeps the contracts of engine and host stack, and splits data at
//! arbitrary points drawn from a seed.
//!
//! Time stands still unless a test moves it. Bytes are acknowledged when they are delivered, unless
//! acknowledgements are held back.

use std::{
    boxed::Box,
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    vec::Vec,
};

use host_stack::{
    node::Urgency,
    socket::{HostError, HostSocketPort, ListenerId, Notice, Request, SocketPort},
};
use offload_engine::{
    chimney::client::{ConnectionEvent, Disconnect, OffloadHandle},
    engine::doorbell::Doorbell,
    nbl::{NblChain, NetBufferList},
    status::NdisStatus,
    time::{Duration, Instant},
};
use oorandom::Rand32;

use crate::ndk::{Adapter, AdapterConfig, AdapterCore, CoreAccess, wire::Wire};

pub(super) const EMSS: usize = 1448;
pub(super) const SERVER: &str = "10.0.0.2:7000";

/// The way to a core in tests: a lock and a clock.
pub(super) struct TestAccess {
    core: Mutex<AdapterCore>,
    now: Mutex<Instant>,
    /// How soon what the last post led to has to be done.
    pub(super) urgency: Mutex<Option<Urgency>>,
}

impl CoreAccess for TestAccess {
    fn enter(&self, work: &mut dyn FnMut(&mut AdapterCore, Instant)) {
        let now = *self.now.lock().unwrap();
        work(&mut self.lock(), now);
    }

    fn enter_lazily(&self, work: &mut dyn FnMut(&mut AdapterCore) -> Urgency) {
        *self.urgency.lock().unwrap() = Some(work(&mut self.lock()));
    }
}

impl TestAccess {
    pub(super) fn lock(&self) -> MutexGuard<'_, AdapterCore> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One end of a connection.
struct End {
    node: usize,
    handle: OffloadHandle,
    /// Bytes on their way to the other end.
    in_flight: VecDeque<u8>,
    /// Lists posted and not completed, with the bytes of each not yet acknowledged.
    lists: VecDeque<(NetBufferList, usize)>,
    unacknowledged: usize,
    fin: Option<NetBufferList>,
    fin_delivered: bool,
}

impl End {
    fn new(node: usize, handle: OffloadHandle) -> Self {
        Self {
            node,
            handle,
            in_flight: VecDeque::new(),
            lists: VecDeque::new(),
            unacknowledged: 0,
            fin: None,
            fin_delivered: false,
        }
    }
}

/// What an upcall asked for.
struct FakeWire {
    now: Instant,
    room: usize,
    outstanding: usize,
    super_segment: usize,
    sent: Vec<NblChain>,
    disconnects: Vec<(Disconnect, NetBufferList)>,
}

impl Wire for FakeWire {
    fn now(&self) -> Instant {
        self.now
    }

    fn empty_chain(&mut self) -> NblChain {
        NblChain::new()
    }

    fn keep_chain(&mut self, chain: NblChain) {
        assert!(chain.is_empty());
    }

    fn send(&mut self, chain: NblChain) {
        let bytes: usize = chain.iter().map(NetBufferList::data_length).sum();
        self.room = self.room.saturating_sub(bytes);
        self.outstanding += bytes;
        self.sent.push(chain);
    }

    fn disconnect(&mut self, kind: Disconnect, nbl: NetBufferList) {
        self.disconnects.push((kind, nbl));
    }

    fn send_room(&self) -> usize {
        self.room
    }

    /// The pipe's lists are complete when they are delivered; it has no tail.
    fn detach_tail(&mut self, _bytes_max: usize) -> bool {
        false
    }

    fn send_outstanding(&self) -> usize {
        self.outstanding
    }

    fn effective_mss(&self) -> usize {
        EMSS
    }

    fn super_segment_max(&self) -> usize {
        self.super_segment
    }
}

/// Sizes of the FPDUs of a list without markers (MPA-4.1-3).
fn fpdu_octets(list: &NetBufferList) -> Vec<usize> {
    let octets = list.slices().collect::<Vec<_>>().concat();
    let mut rest = &octets[..];
    let mut fpdus = Vec::new();
    while let Some(length) = rest.first_chunk() {
        let fpdu = (2 + usize::from(u16::from_be_bytes(*length))).next_multiple_of(4) + 4;
        fpdus.push(fpdu);
        rest = rest.get(fpdu..).unwrap_or_default();
    }
    fpdus
}

pub(super) struct Node {
    pub(super) access: Arc<TestAccess>,
    pub(super) adapter: Adapter,
    host: HostSocketPort,
    /// Where the adapter hears of its connections; it has said so first.
    tell: Box<dyn Fn(Notice)>,
    listeners: Vec<(ListenerId, SocketAddr)>,
}

impl Node {
    fn new(config: AdapterConfig) -> Self {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let (port, host) = SocketPort::pair(doorbell);
        let registered = host.requests.try_recv().unwrap().request;
        let Request::Register { notices, .. } = registered else { panic!("{registered:?}") };
        let tell = Box::new(move |notice| notices.send(notice).unwrap());
        let core = AdapterCore::new(config, port, Box::new(|| {}));
        let access = Arc::new(TestAccess {
            core: Mutex::new(core),
            now: Mutex::new(Instant::ZERO),
            urgency: Mutex::default(),
        });
        let adapter = Adapter::new(access.clone());
        Self { access, adapter, host, tell, listeners: Vec::new() }
    }
}

/// The bench.
pub(super) struct Bench {
    pub(super) nodes: [Node; 2],
    connections: Vec<[End; 2]>,
    random: Rand32,
    pub(super) now: Instant,
    /// Bytes that an end may have unacknowledged.
    pub(super) window: usize,
    pub(super) super_segment: usize,
    pub(super) hold_acks: bool,
    /// Nothing is delivered.
    pub(super) is_cut: bool,
    /// Flips a bit of the byte at this position of the stream toward node 1.
    pub(super) corrupt_at: Option<u64>,
    delivered: u64,
    /// Sizes of the FPDUs of each list posted, from either node.
    pub(super) posted: [Vec<Vec<usize>>; 2],
    /// Slices of memory of each of these lists.
    pub(super) slices: [Vec<usize>; 2],
    pub(super) host_error: Option<HostError>,
}

impl Bench {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(seed, AdapterConfig::default())
    }

    pub(super) fn with(seed: u64, config: AdapterConfig) -> Self {
        Self {
            nodes: [Node::new(config.clone()), Node::new(config)],
            connections: Vec::new(),
            random: Rand32::new(seed),
            now: Instant::ZERO,
            window: 64 * 1024,
            super_segment: 44 * EMSS,
            hold_acks: false,
            is_cut: false,
            corrupt_at: None,
            delivered: 0,
            posted: [Vec::new(), Vec::new()],
            slices: [Vec::new(), Vec::new()],
            host_error: None,
        }
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.now += by;
        for node in &self.nodes {
            *node.access.now.lock().unwrap() = self.now;
        }
        self.settle();
    }

    /// Runs until nothing happens any more.
    pub(super) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the bench never comes to rest");
    }

    fn step(&mut self) -> bool {
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
        self.connections.retain(|ends| ends.iter().any(|end| end.handle.0 != 0));
        worked
    }

    /// One step in which `quiet`'s callbacks stay where they are.
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

    /// The host stack.
    fn serve_host(&mut self, node: usize) -> bool {
        let mut worked = false;
        while let Ok(asked) = self.nodes[node].host.requests.try_recv() {
            worked = true;
            match asked.request {
                Request::Listen { listener, local, .. } => {
                    self.nodes[node].listeners.push((listener, local));
                    self.notify(node, Notice::Listening { listener, local });
                }
                Request::Unlisten { listener } => {
                    self.nodes[node].listeners.retain(|(name, _)| *name != listener);
                }
                Request::Connect { handle, remote, .. } => self.connect(node, handle, remote),
                Request::Abort { .. } => {}
                other => panic!("NDK does not ask for {other:?}"),
            }
        }
        worked
    }

    fn connect(&mut self, node: usize, handle: OffloadHandle, remote: SocketAddr) {
        let other = 1 - node;
        let listener = self.nodes[other].listeners.iter().find(|(_, local)| *local == remote);
        let error = self.host_error.or_else(|| listener.is_none().then_some(HostError::Refused));
        if let Some(error) = error {
            self.notify(node, Notice::ConnectFailed { handle, error });
            return;
        }
        let listener = listener.map(|(name, _)| *name);
        let local: SocketAddr = "10.0.0.1:50000".parse().unwrap();
        let next =
            self.nodes[other].host.next_id.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        // Names are unique per node only; keep the two apart.
        let passive = OffloadHandle(next);
        let established = |handle, listener, local, remote| Notice::Established {
            handle,
            listener,
            local,
            remote,
            offloading: true,
        };
        self.notify(node, established(handle, None, local, remote));
        self.notify(other, established(passive, listener, remote, local));
        self.connections.push([End::new(node, handle), End::new(other, passive)]);
        let index = self.connections.len() - 1;
        for end in 0..2 {
            let node = self.connections[index][end].node;
            self.poll(node);
            self.upcall(index, end, |core, handle, wire| core.on_offloaded(handle, wire));
        }
    }

    fn notify(&self, node: usize, notice: Notice) {
        (self.nodes[node].tell)(notice);
    }

    fn poll(&mut self, node: usize) -> bool {
        let mut core = self.nodes[node].access.lock();
        let mut worked = core.run(self.now);
        while let Some(notice) = core.port().notice() {
            worked = true;
            core.handle_notice(self.now, notice);
        }
        let kicks: Vec<_> = core::iter::from_fn(|| core.next_kick()).collect();
        drop(core);
        for handle in kicks {
            worked = true;
            if let Some((index, end)) = self.find(node, handle) {
                self.upcall(index, end, |core, handle, wire| core.on_send_room(handle, wire));
            }
        }
        worked
    }

    fn find(&self, node: usize, handle: OffloadHandle) -> Option<(usize, usize)> {
        self.connections.iter().enumerate().find_map(|(index, ends)| {
            let end = ends.iter().position(|end| end.node == node && end.handle == handle)?;
            Some((index, end))
        })
    }

    fn run_callbacks(&mut self, node: usize) -> bool {
        let callbacks = core::mem::take(self.nodes[node].access.lock().callbacks());
        let worked = !callbacks.is_empty();
        callbacks.into_iter().for_each(|callback| callback());
        worked
    }

    fn upcall(
        &mut self,
        index: usize,
        end: usize,
        work: impl FnOnce(&mut AdapterCore, OffloadHandle, &mut FakeWire),
    ) {
        let state = &self.connections[index][end];
        let (node, handle) = (state.node, state.handle);
        if handle.0 == 0 {
            return;
        }
        let mut wire = FakeWire {
            now: self.now,
            room: self.window.saturating_sub(state.unacknowledged),
            outstanding: state.unacknowledged,
            super_segment: self.super_segment,
            sent: Vec::new(),
            disconnects: Vec::new(),
        };
        work(&mut self.nodes[node].access.lock(), handle, &mut wire);
        let FakeWire { sent, disconnects, .. } = wire;
        for list in sent.into_iter().flatten() {
            let state = &mut self.connections[index][end];
            assert!(state.fin.is_none(), "nothing is posted behind a FIN");
            let bytes = list.data_length();
            self.posted[node].push(fpdu_octets(&list));
            self.slices[node].push(list.slices().count());
            list.slices().for_each(|slice| state.in_flight.extend(slice));
            state.unacknowledged += bytes;
            state.lists.push_back((list, bytes));
        }
        for (kind, nbl) in disconnects {
            match kind {
                Disconnect::Graceful => self.connections[index][end].fin = Some(nbl),
                Disconnect::Abortive => self.reset(index, end),
            }
        }
    }

    /// RST from `end`: both ends are gone.
    pub(super) fn reset(&mut self, index: usize, end: usize) {
        for (which, told) in [(end, false), (1 - end, true)] {
            self.abort_lists(index, which);
            if told {
                self.upcall(index, which, |core, handle, wire| {
                    core.on_event(handle, wire, ConnectionEvent::Abort);
                });
            } else {
                self.upcall(index, which, |core, handle, wire| {
                    core.on_disconnect_complete(handle, wire);
                });
            }
            self.upcall(index, which, |core, handle, wire| {
                core.on_event(handle, wire, ConnectionEvent::Released);
            });
            self.connections[index][which].handle = OffloadHandle(0);
        }
    }

    /// The target gives the connection at `node` back to the host, which resets it.
    pub(super) fn upload(&mut self, node: usize) {
        let end = self.connections[0].iter().position(|end| end.node == node).unwrap();
        let state = &mut self.connections[0][end];
        state.lists.clear();
        let handle = core::mem::replace(&mut state.handle, OffloadHandle(0));
        self.nodes[node].access.lock().on_uploaded(handle);
        self.reset(0, end);
        self.settle();
    }

    fn abort_lists(&mut self, index: usize, end: usize) {
        let state = &mut self.connections[index][end];
        state.in_flight.clear();
        state.unacknowledged = 0;
        let chain: NblChain = state
            .lists
            .drain(..)
            .map(|(mut list, _)| {
                list.complete(NdisStatus::REQUEST_ABORTED, 0);
                list
            })
            .collect();
        if !chain.is_empty() {
            self.upcall(index, end, |core, handle, wire| {
                core.on_send_complete(handle, wire, chain);
            });
        }
    }

    /// Moves some bytes from `end` to the other one, or its FIN.
    fn deliver(&mut self, index: usize, end: usize) -> bool {
        if self.is_cut || self.connections[index][end].handle.0 == 0 {
            return false;
        }
        let state = &mut self.connections[index][end];
        if state.in_flight.is_empty() {
            if state.fin.is_none() || state.fin_delivered {
                return false;
            }
            state.fin_delivered = true;
            let mut nbl = state.fin.clone().unwrap();
            nbl.complete(NdisStatus::SUCCESS, 0);
            self.upcall(index, 1 - end, |core, handle, wire| {
                core.on_event(handle, wire, ConnectionEvent::Disconnect);
            });
            self.upcall(index, end, |core, handle, wire| core.on_disconnect_complete(handle, wire));
            return true;
        }
        let most = match self.random.rand_range(0..4) {
            0 => 3,
            1 => 200,
            2 => 3000,
            _ => 65_536,
        };
        let count = self.random.rand_range(1..most + 1) as usize;
        let count = count.min(state.in_flight.len());
        let mut data: Vec<u8> = state.in_flight.drain(..count).collect();
        if self.connections[index][1 - end].node == 1 {
            let start = self.delivered;
            self.delivered += count as u64;
            if let Some(at) = self.corrupt_at.filter(|at| (start..self.delivered).contains(at)) {
                data[(at - start) as usize] ^= 0x10;
            }
        }
        self.upcall(index, 1 - end, |core, handle, wire| core.on_receive(handle, wire, &data));
        if !self.hold_acks {
            self.acknowledge(index, end);
        }
        true
    }

    /// Acknowledges what has been delivered.
    fn acknowledge(&mut self, index: usize, end: usize) {
        let state = &mut self.connections[index][end];
        if state.handle.0 == 0 {
            return;
        }
        let mut count = state.unacknowledged - state.in_flight.len();
        let was_full = state.unacknowledged >= self.window;
        state.unacknowledged -= count;
        let mut done = NblChain::new();
        while let Some((_, left)) = state.lists.front_mut() {
            let part = count.min(*left);
            *left -= part;
            count -= part;
            if *left > 0 {
                break;
            }
            if let Some((mut list, _)) = state.lists.pop_front() {
                let bytes = list.data_length();
                list.complete(NdisStatus::SUCCESS, bytes);
                done.push_back(list);
            }
        }
        if !done.is_empty() {
            self.upcall(index, end, |core, handle, wire| core.on_send_complete(handle, wire, done));
        }
        if was_full {
            self.upcall(index, end, |core, handle, wire| core.on_send_room(handle, wire));
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

    /// Both FINs are through: the target lets go.
    fn release(&mut self, index: usize) -> bool {
        let ends = &self.connections[index];
        let is_over = ends.iter().all(|end| end.fin_delivered && end.handle.0 != 0);
        if !is_over {
            return false;
        }
        for end in 0..2 {
            self.upcall(index, end, |core, handle, wire| {
                core.on_event(handle, wire, ConnectionEvent::Released);
            });
            self.connections[index][end].handle = OffloadHandle(0);
        }
        true
    }

    /// Puts raw bytes into the stream from `node`, behind what it has sent.
    pub(super) fn inject(&mut self, node: usize, bytes: &[u8]) {
        let end = self.connections[0].iter().position(|end| end.node == node).unwrap();
        let state = &mut self.connections[0][end];
        state.in_flight.extend(bytes);
        state.unacknowledged += bytes.len();
        state.lists.push_back((
            NetBufferList::from_mdl(0, bytes::Bytes::copy_from_slice(bytes)),
            bytes.len(),
        ));
    }

    /// An event of the target at `node`'s end of the first connection.
    pub(super) fn event(&mut self, node: usize, event: ConnectionEvent) {
        let end = self.connections[0].iter().position(|end| end.node == node).unwrap();
        self.upcall(0, end, |core, handle, wire| core.on_event(handle, wire, event));
        self.settle();
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }
}
