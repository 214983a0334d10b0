//! Two hosts, connected by a wire on virtual time. The bench acts as both engines: it passes frames, accepts neighbors
//! and paths, and answers for connections as the test requires.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
    string::String,
    sync::Arc,
    vec,
    vec::Vec,
};
use core::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use offload_engine::{
    chimney::{
        client::{ClientTag, OffloadHandle},
        tree::{
            InitiateNode, InitiateTree, InvalidateTree, ObjectNode, QueryTree, TargetContext,
            TcpBlock, TcpObject, TerminateTree, UpdateTree,
        },
    },
    engine::{
        Clients,
        doorbell::Doorbell,
        port::{FromHost, HostPort, ToHost},
    },
    link::LinkCapabilities,
    nbl::NetBufferList,
    state::{ConnectionState, MacAddress, NeighborState, PathState},
    status::NdisStatus,
    time::{Duration, Instant},
};

use crate::{
    host::{Host, HostConfig},
    socket::{ListenerId, Notice, OffloadPolicy, Request, SocketPort},
};

/// Latency of a frame.
const LATENCY: Duration = Duration::from_millis(1);

pub(super) struct Node {
    pub(super) host: Host,
    pub(super) port: SocketPort,
    pub(super) to_host: Sender<ToHost>,
    from_host: Receiver<FromHost>,
    pub(super) notices: Vec<Notice>,
    /// Initiates with unanswered connections.
    trees: Vec<InitiateTree>,
    pub(super) initiates: VecDeque<Initiated>,
    /// Shape of each initiate.
    pub(super) shapes: Vec<String>,
    /// True if neighbors initiated alone are held until [`Node::release_neighbors`].
    pub(super) holds_neighbors: bool,
    /// Objects of the target.
    pub(super) neighbors: BTreeMap<OffloadHandle, NeighborState>,
    pub(super) paths: BTreeMap<OffloadHandle, PathState>,
    names: Contexts,
    terminates: VecDeque<TerminateTree>,
    pub(super) updates: VecDeque<UpdateTree>,
    pub(super) queries: VecDeque<QueryTree>,
    pub(super) invalidates: VecDeque<InvalidateTree>,
    next_context: u64,
    pub(super) forwards: Vec<Vec<u8>>,
    /// All frames sent.
    pub(super) sent: Vec<Vec<u8>>,
    /// Clients reported to the target as unregistered.
    pub(super) left: Vec<ClientTag>,
}

/// Offloaded connection, joined with the objects that it depends on.
#[derive(Debug)]
pub(super) struct Initiated {
    pub(super) handle: OffloadHandle,
    pub(super) client: ClientTag,
    pub(super) state: Box<ConnectionState>,
}

/// Allocator of unused contexts.
#[derive(Default)]
struct Contexts(u32);

impl Contexts {
    fn next(&mut self) -> TargetContext {
        self.0 += 1;
        TargetContext::new(self.0, 0)
    }
}

fn connections(
    tree: &InitiateTree,
) -> impl Iterator<Item = &TcpBlock<InitiateNode<Box<TcpObject>>>> {
    tree.iter().flat_map(|neighbor| &neighbor.dependents).flat_map(|path| &path.dependents)
}

/// Short form of a tree: N(ew) or L(inker) for each node, T for a connection.
fn shape(tree: &InitiateTree) -> String {
    fn letter<S>(node: &InitiateNode<S>) -> char {
        match node {
            InitiateNode::Placeholder => 'P',
            InitiateNode::Linker(_) => 'L',
            InitiateNode::New { .. } => 'N',
        }
    }
    let mut text = String::new();
    for neighbor in tree {
        text.push(letter(&neighbor.payload));
        text.push('{');
        for path in &neighbor.dependents {
            text.push(letter(&path.payload));
            text.extend(path.dependents.iter().map(|_| 'T'));
        }
        text.push('}');
    }
    text
}

pub(super) const CLIENT: ClientTag = Clients::FIRST;

/// Address 10.0.0.`number` or fd00::`number`.
pub(super) fn address(number: u8, v6: bool) -> IpAddr {
    if v6 {
        core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into()
    } else {
        [10, 0, 0, number].into()
    }
}

pub(super) fn config(number: u8, policy: OffloadPolicy) -> HostConfig {
    HostConfig {
        mac: MacAddress([2, 0, 0, 0, 0, number]),
        addresses: vec![(address(number, false), 24), (address(number, true), 64)],
        policy,
        seed: number.into(),
        ..HostConfig::default()
    }
}

impl Node {
    pub(super) fn new(config: HostConfig) -> Self {
        let (to_engine, from_host) = crossbeam_channel::unbounded();
        let (to_host, from_engine) = crossbeam_channel::unbounded();
        let host_doorbell = Arc::new(Doorbell::new().unwrap());
        let (port, clients) = SocketPort::pair(host_doorbell.clone());
        let mtu = config.mtu;
        let engine = HostPort {
            to_engine,
            from_engine,
            engine_doorbell: Arc::new(Doorbell::new().unwrap()),
            host_doorbell,
            capabilities: LinkCapabilities { mtu, tx_checksum: false, tso4_max: 0, tso6_max: 0 },
        };
        Self {
            host: Host::new(config, engine, clients).unwrap(),
            port,
            to_host,
            from_host,
            notices: Vec::new(),
            trees: Vec::new(),
            initiates: VecDeque::new(),
            shapes: Vec::new(),
            holds_neighbors: false,
            neighbors: BTreeMap::new(),
            paths: BTreeMap::new(),
            names: Contexts::default(),
            terminates: VecDeque::new(),
            updates: VecDeque::new(),
            queries: VecDeque::new(),
            invalidates: VecDeque::new(),
            next_context: 1,
            forwards: Vec::new(),
            sent: Vec::new(),
            left: Vec::new(),
        }
    }

    pub(super) fn listen(&self, local: SocketAddr, backlog: usize, must: bool) -> ListenerId {
        let listener = ListenerId(self.port.allocate());
        self.port.request(Request::Listen {
            listener,
            local: local.into(),
            endpoint: None,
            backlog,
            at_once: must,
        });
        listener
    }

    pub(super) fn connect(&self, remote: SocketAddr, at_once: bool) -> OffloadHandle {
        let handle = OffloadHandle(self.port.allocate());
        self.port.request(Request::Connect {
            handle,
            endpoint: None,
            local: None,
            remote,
            timeout: Duration::from_secs(5),
            at_once,
        });
        handle
    }

    /// Sends a list. Returns its context: 1, 2, ….
    pub(super) fn send(&mut self, handle: OffloadHandle, data: impl Into<Bytes>) -> u64 {
        let context = self.next_context;
        self.next_context += 1;
        let list = NetBufferList::from_mdl(context, data.into());
        self.port.request(Request::Send { handle, list, begins_segment: false });
        context
    }

    /// Lists completed by `Sent`: contexts, bytes transferred, statuses.
    pub(super) fn completed(&self) -> Vec<(u64, usize, NdisStatus)> {
        let chains = self.notices.iter().filter_map(|notice| match notice {
            Notice::Sent { chain, .. } => Some(chain),
            _ => None,
        });
        chains.flatten().map(|list| (list.context, list.bytes_transferred, list.status)).collect()
    }

    pub(super) fn shutdown(&self, handle: OffloadHandle) {
        self.port.request(Request::Shutdown { handle });
    }

    /// Delivers a frame with an unverified checksum.
    pub(super) fn frame(&self, data: Vec<u8>) {
        self.to_host.send(ToHost::Frame { data, checksum_valid: false }).unwrap();
    }

    /// Answers for a connection: accepted, or refused for lack of an entry.
    pub(super) fn complete(&mut self, handle: OffloadHandle, state: Option<ConnectionState>) {
        match state {
            None => {
                let context = Some(self.names.next());
                let node = InitiateNode::New { state: None, context };
                self.answer(handle, NdisStatus::SUCCESS, node);
            }
            Some(state) => self.refuse(handle, state, NdisStatus::OFFLOAD_TCP_ENTRIES),
        }
    }

    /// Refuses at the level of `status`: nodes below that one are not tried (CH-TREE-6).
    pub(super) fn refuse_at(
        &mut self,
        handle: OffloadHandle,
        state: ConnectionState,
        status: NdisStatus,
    ) {
        let (neighbor, path) = (state.neighbor, state.path);
        let refuses_neighbor = matches!(
            status,
            NdisStatus::OFFLOAD_NEIGHBOR_ENTRIES
                | NdisStatus::OFFLOAD_HW_ADDRESS_ENTRIES
                | NdisStatus::OFFLOAD_VLAN_ENTRIES
                | NdisStatus::OFFLOAD_VLAN_MISMATCH
        );
        let refuses_path = refuses_neighbor
            || matches!(
                status,
                NdisStatus::OFFLOAD_PATH_ENTRIES
                    | NdisStatus::OFFLOAD_IP_ADDRESS_ENTRIES
                    | NdisStatus::OFFLOAD_PATH_MTU
            );
        for root in self.trees.iter_mut().flatten() {
            if refuses_neighbor {
                (root.status, root.payload) = (status, InitiateNode::new(neighbor));
                self.neighbors.remove(&root.handle);
            }
            for below in root.dependents.iter_mut().filter(|_| refuses_path) {
                below.status = if refuses_neighbor { NdisStatus::FAILURE } else { status };
                below.payload = InitiateNode::new(path);
                self.paths.remove(&below.handle);
            }
        }
        self.refuse(handle, state, if refuses_path { NdisStatus::FAILURE } else { status });
    }

    /// Refuses a connection.
    pub(super) fn refuse(
        &mut self,
        handle: OffloadHandle,
        state: ConnectionState,
        status: NdisStatus,
    ) {
        let (_, _, object) = TcpObject::split(CLIENT, state);
        self.answer(handle, status, InitiateNode::new(Box::new(object)));
    }

    /// Answers for a connection. A tree is complete when all its connections are answered.
    pub(super) fn answer(
        &mut self,
        handle: OffloadHandle,
        status: NdisStatus,
        node: InitiateNode<Box<TcpObject>>,
    ) {
        let has = |tree: &InitiateTree| connections(tree).any(|tcp| tcp.handle == handle);
        let index = self.trees.iter().position(has).expect("initiate of that connection");
        let paths = self.trees[index].iter_mut().flat_map(|neighbor| &mut neighbor.dependents);
        let mut nodes = paths.flat_map(|path| &mut path.dependents);
        let tcp = nodes.find(|tcp| tcp.handle == handle).expect("node of that connection");
        (tcp.status, tcp.payload) = (status, node);
        if connections(&self.trees[index]).all(|tcp| tcp.status != NdisStatus::PENDING) {
            let tree = self.trees.remove(index);
            self.to_host.send(ToHost::InitiateComplete(tree)).unwrap();
        }
    }

    pub(super) fn release_neighbors(&mut self) {
        for tree in self.trees.extract_if(.., |tree| connections(tree).next().is_none()) {
            self.to_host.send(ToHost::InitiateComplete(tree)).unwrap();
        }
    }

    /// Accepts neighbors and paths, and stores the connections.
    fn take_initiate(&mut self, mut tree: InitiateTree) {
        for neighbor in &mut tree {
            neighbor.status = NdisStatus::SUCCESS;
            if let InitiateNode::New { state, context } = &mut neighbor.payload {
                self.neighbors.insert(neighbor.handle, state.take().unwrap());
                *context = Some(self.names.next());
            }
            for path in &mut neighbor.dependents {
                path.status = NdisStatus::SUCCESS;
                if let InitiateNode::New { state, context } = &mut path.payload {
                    self.paths.insert(path.handle, state.take().unwrap());
                    *context = Some(self.names.next());
                }
                for tcp in &mut path.dependents {
                    let InitiateNode::New { state, context: None } = &mut tcp.payload else {
                        panic!("a connection is always new")
                    };
                    let (neighbor, path) =
                        (self.neighbors[&neighbor.handle], self.paths[&path.handle]);
                    let (client, state) = state.take().unwrap().join(neighbor, path);
                    let state = Box::new(state);
                    self.initiates.push_back(Initiated { handle: tcp.handle, client, state });
                }
            }
        }
        self.shapes.push(shape(&tree));
        if connections(&tree).next().is_some() || self.holds_neighbors {
            self.trees.push(tree);
        } else {
            self.to_host.send(ToHost::InitiateComplete(tree)).unwrap();
        }
    }

    /// Releases neighbors and paths; connections are held until [`Node::terminated`].
    fn take_terminate(&mut self, mut tree: TerminateTree) {
        let mut waits = false;
        for neighbor in &mut tree {
            neighbor.status = NdisStatus::SUCCESS;
            if let ObjectNode::Object { .. } = neighbor.payload {
                assert!(self.neighbors.remove(&neighbor.handle).is_some(), "CH-TRM-2");
            }
            for path in &mut neighbor.dependents {
                path.status = NdisStatus::SUCCESS;
                if let ObjectNode::Object { .. } = path.payload {
                    assert!(self.paths.remove(&path.handle).is_some(), "CH-TRM-2");
                }
                waits |= !path.dependents.is_empty();
            }
        }
        if waits {
            self.terminates.push_back(tree);
        } else {
            self.to_host.send(ToHost::TerminateComplete(tree)).unwrap();
        }
    }

    /// Handles of the connections in the oldest outstanding terminate.
    pub(super) fn terminating(&self) -> Vec<OffloadHandle> {
        let paths = self.terminates.front().into_iter().flatten().flat_map(|n| &n.dependents);
        paths.flat_map(|path| &path.dependents).map(|tcp| tcp.handle).collect()
    }

    /// Context of the first connection in the oldest terminate.
    pub(super) fn terminating_context(&self) -> TargetContext {
        let connection = &self.terminates[0][0].dependents[0].dependents[0];
        let ObjectNode::Object { context, .. } = connection.payload else { panic!() };
        context
    }

    /// Completes the oldest terminate: `state_of` has the connections' states; `None`: lost.
    pub(super) fn terminated(
        &mut self,
        mut state_of: impl FnMut(OffloadHandle) -> Option<ConnectionState>,
    ) {
        let mut tree = self.terminates.pop_front().expect("a terminate");
        let paths = tree.iter_mut().flat_map(|neighbor| &mut neighbor.dependents);
        for tcp in paths.flat_map(|path| &mut path.dependents) {
            let ObjectNode::Object { payload, .. } = &mut tcp.payload else { panic!() };
            *payload =
                state_of(tcp.handle).map(|state| Box::new(TcpObject::split(CLIENT, state).2));
            tcp.status = if payload.is_some() { NdisStatus::SUCCESS } else { NdisStatus::FAILURE };
        }
        self.to_host.send(ToHost::TerminateComplete(tree)).unwrap();
    }

    /// Completes the oldest update, with `status` for all nodes.
    pub(super) fn updated(&mut self, status: NdisStatus) {
        let mut tree = self.updates.pop_front().expect("an update");
        for neighbor in &mut tree {
            neighbor.status = status;
            for path in &mut neighbor.dependents {
                path.status = status;
                path.dependents.iter_mut().for_each(|tcp| tcp.status = status);
            }
        }
        self.to_host.send(ToHost::UpdateComplete(tree)).unwrap();
    }

    /// Handle of the only `Established` notice so far, and its `offloading`.
    pub(super) fn established(&self) -> (OffloadHandle, bool) {
        let mut found = self.notices.iter().filter_map(|notice| match notice {
            Notice::Established { handle, offloading, .. } => Some((*handle, *offloading)),
            _ => None,
        });
        let first = found.next().expect("an Established notice");
        assert!(found.next().is_none(), "a second Established notice");
        first
    }

    pub(super) fn has(&self, matches: impl Fn(&Notice) -> bool) -> bool {
        self.notices.iter().any(matches)
    }

    /// All data delivered to the client so far.
    pub(super) fn data(&self) -> Vec<u8> {
        let pieces = self.notices.iter().filter_map(|notice| match notice {
            Notice::Data { data, .. } => Some(data.clone()),
            _ => None,
        });
        pieces.collect::<Vec<_>>().concat()
    }
}

pub(super) struct Bench {
    pub(super) nodes: [Node; 2],
    pub(super) now: Instant,
    wire: VecDeque<(Instant, usize, Vec<u8>)>,
    /// True if a frame from that node arrives.
    pub(super) passes: fn(usize, &[u8]) -> bool,
}

impl Bench {
    pub(super) fn new(policies: [OffloadPolicy; 2]) -> Self {
        Self::with([config(1, policies[0]), config(2, policies[1])])
    }

    pub(super) fn with(configs: [HostConfig; 2]) -> Self {
        Self {
            nodes: configs.map(Node::new),
            now: Instant::from_millis(5),
            wire: VecDeque::new(),
            passes: |_, _| true,
        }
    }

    /// Polls both hosts until they are idle, and processes their output.
    pub(super) fn settle(&mut self) {
        self.settle_once();
        // The bench's own answers require another round.
        while self.nodes.iter().any(|node| node.host.has_input()) {
            self.settle_once();
        }
    }

    fn settle_once(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let mut rounds = 0;
            while node.host.poll(self.now) {
                rounds += 1;
                assert!(rounds < 1_000, "host {index} does not become idle");
            }
            assert!(!node.host.has_input());
            let (mut initiates, mut terminates) = (Vec::new(), Vec::new());
            for message in node.from_host.try_iter() {
                match message {
                    FromHost::Frame(frame) => {
                        node.sent.push(frame.clone());
                        if (self.passes)(index, &frame) {
                            self.wire.push_back((self.now + LATENCY, 1 - index, frame));
                        }
                    }
                    FromHost::Initiate(tree) => initiates.push(tree),
                    FromHost::Terminate(tree) => terminates.push(tree),
                    FromHost::Update(tree) => node.updates.push_back(tree),
                    FromHost::Query(tree) => node.queries.push_back(tree),
                    FromHost::Invalidate(tree) => node.invalidates.push_back(tree),
                    FromHost::Forward(segment) => node.forwards.push(segment.frame),
                    FromHost::Forwarded(_) => {}
                    FromHost::RemoveClient(client) => node.left.push(client),
                }
            }
            initiates.into_iter().for_each(|tree| node.take_initiate(tree));
            terminates.into_iter().for_each(|tree| node.take_terminate(tree));
            while let Some(notice) = node.port.notice() {
                node.notices.push(notice);
            }
        }
    }

    /// Advances the time by `time`, from event to event.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut events = 0;
        loop {
            self.settle();
            events += 1;
            assert!(events < 1_000_000, "a host requests endless polls");
            let due = self.nodes.iter().filter_map(|node| node.host.poll_at(self.now));
            let next = due.chain(self.wire.front().map(|frame| frame.0)).min();
            match next {
                Some(next) if next <= end => {
                    self.now = self.now.max(next);
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
            while self.wire.front().is_some_and(|frame| frame.0 <= self.now) {
                let (_, to, data) = self.wire.pop_front().unwrap();
                self.nodes[to].frame(data);
            }
        }
    }

    /// Runs until `done`, for at most two minutes.
    pub(super) fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..120_000 {
            if done(self) {
                return;
            }
            self.run(Duration::from_millis(1));
        }
        panic!("condition not reached: {:?}", self.nodes[0].notices);
    }

    /// Number of TCP resets sent by `node`.
    pub(super) fn resets(&self, node: usize) -> usize {
        let is_reset = |frame: &&Vec<u8>| {
            matches!(crate::wire::parse(frame), crate::wire::Frame::Tcp(segment)
                if segment.flags.contains(offload_engine::tcp::Flags::RST))
        };
        self.nodes[node].sent.iter().filter(is_reset).count()
    }
}
