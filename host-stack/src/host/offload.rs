//! The host's half of the chimney, downward: which connections are due, their tree, and what became of it.
//!
//! All connections of a shard that are due in one poll go down in one tree (CH-ARC-5). A neighbor or a path that the
//! target has already appears in it as a linker; one that is on its way down or up is waited for (CH-INI-1).

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::net::IpAddr;

use offload_engine::{
    chimney::{
        client::OffloadHandle,
        tree::{Block, InitiateNode, InitiateTree, TargetContext, TcpBlock, TcpObject},
    },
    listing::Refusal,
    state::{ConnectionState, NeighborState, PathState},
    status::NdisStatus,
    time::Instant,
};
use smoltcp::socket::tcp::{self, State};

use super::{
    Host,
    connection::{Connection, OffloadStage, Offloaded, Owner, Stage, Stay},
    objects::{Link, Neighbor, Object, Path, PathKey, Unused},
    shards::ShardId,
    upload::Origin,
};
use crate::{
    clock::to_smoltcp,
    handoff::{
        self,
        export::{ExportError, Surroundings, export, push_acknowledgement},
    },
    offload_policy::may_change,
    socket::{HostError, Notice, OffloadPolicy},
};

/// Whether a connection is to be offloaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OffloadTiming {
    No,
    /// At the end of its handshake.
    AtOnce,
    /// Later in its life.
    Later,
}

/// The tree of one poll and one shard while it grows.
#[derive(Default)]
struct Batch(BTreeMap<IpAddr, NeighborGroup>);

/// A neighbor in it, and the paths behind it.
struct NeighborGroup {
    handle: OffloadHandle,
    node: InitiateNode<NeighborState>,
    paths: BTreeMap<PathKey, PathGroup>,
}

/// A path in it, and the connections on it.
struct PathGroup {
    handle: OffloadHandle,
    node: InitiateNode<PathState>,
    connections: Vec<TcpBlock<InitiateNode<Box<TcpObject>>>>,
}

impl Batch {
    fn into_tree(self) -> InitiateTree {
        let path =
            |PathGroup { handle, node, connections }| Block::new(handle, node).with(connections);
        let neighbor = |NeighborGroup { handle, node, paths }: NeighborGroup| {
            Block::new(handle, node).with(paths.into_values().map(path).collect())
        };
        self.0.into_values().map(neighbor).collect()
    }
}

/// A node for an object that the target may have already.
fn node<S>(context: Option<TargetContext>, state: impl FnOnce() -> S) -> InitiateNode<S> {
    context.map_or_else(|| InitiateNode::new(state()), InitiateNode::Linker)
}

impl Host {
    /// Hands over every connection whose time has come. Everything that the engine had queued has
    /// been seen by smoltcp, and everything that smoltcp had to acknowledge has been sent (CH-INI-7).
    pub(super) fn hand_over(&mut self, now: Instant) -> bool {
        let due = |(handle, connection): (&OffloadHandle, &Connection)| {
            let wish = self.wish(now, connection);
            (wish != OffloadTiming::No).then_some((*handle, wish))
        };
        let due = self.connections.iter().filter_map(due).collect::<Vec<_>>();
        let mut batches = BTreeMap::<ShardId, Batch>::new();
        let mut work = false;
        for (handle, wish) in due {
            let Some(connection) = self.connections.get(&handle) else { continue };
            let batch = batches.entry(connection.shard).or_default();
            work |= self.offload(now, handle, wish == OffloadTiming::AtOnce, batch);
        }
        for (shard, batch) in batches {
            if !batch.0.is_empty() {
                self.shards[shard].engine.initiate(batch.into_tree());
            }
        }
        work
    }

    pub(super) fn wish(&self, now: Instant, connection: &Connection) -> OffloadTiming {
        let at = match connection.stage {
            Stage::Handshake(_) | Stage::Open => self.offload_at(connection),
            Stage::Lingering => None,
        };
        match (at, connection.stage) {
            (Some(at), Stage::Handshake(_)) if at <= now => OffloadTiming::AtOnce,
            (Some(at), _) if at <= now => OffloadTiming::Later,
            _ => OffloadTiming::No,
        }
    }

    /// When a connection is to be offloaded, as things are; `None`: not until something happens to it.
    pub(super) fn offload_at(&self, connection: &Connection) -> Option<Instant> {
        let state = self.sockets.get::<tcp::Socket<'_>>(connection.socket).state();
        let open = matches!(state, State::Established | State::CloseWait);
        // CH-ST-1: also half closed, but that pays only on request.
        let closing =
            matches!(state, State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck);
        if self.shards[connection.shard].paused || !(open || closing) {
            return None;
        }
        if connection.wanted {
            return Some(Instant::ZERO);
        }
        let (local, remote) = (connection.tuple.local().port(), connection.tuple.remote().port());
        if closing
            || connection.send.shutdown && connection.stage == Stage::Open
            || !self.config.rules.covers(local, remote)
        {
            return None;
        }
        let by_policy = match (self.config.policy, connection.stage) {
            (OffloadPolicy::Never, _) | (OffloadPolicy::Auto, Stage::Handshake(_)) => None,
            (OffloadPolicy::Always, _) => Some(Instant::ZERO),
            (OffloadPolicy::Auto, _) => {
                let carried = connection.receive.read.max(connection.send.completed());
                if carried >= self.config.auto_offload_bytes {
                    Some(Instant::ZERO)
                } else {
                    let age = self.config.rules.after_age;
                    age.map(|age| connection.history.opened_at + age)
                }
            }
        };
        match connection.stay {
            // Each hand-over restarts the count of unanswered retransmissions: without an answer in between nothing
            // would ever give up.
            Stay::Until(_)
                if connection.send.outstanding() > 0 && !connection.received_since_return() =>
            {
                None
            }
            Stay::Until(rested) => by_policy.map(|at| at.max(rested)),
            Stay::No => by_policy,
            Stay::UntilAsked => None,
        }
    }

    /// A client wants its connection offloaded.
    pub(super) fn wish_offload(&mut self, handle: OffloadHandle) {
        if let Some(connection) = self.connections.get_mut(&handle) {
            connection.wanted = true;
            if self.shards[connection.shard].paused {
                connection.history.refused(Refusal::Host("the target has indicated a pause"));
            }
        }
    }

    /// Takes the connection out of smoltcp, and puts it into the batch. Returns whether anything was done.
    fn offload(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        at_once: bool,
        batch: &mut Batch,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        if at_once {
            connection.establish();
        }
        let (shard, path) = (connection.shard, PathKey::of(&connection.tuple));
        let seen = connection.flow.peer_mac;
        let Some(next_hop) = self.ready_next_hop(shard, batch, path) else { return false };
        let Some(mac) = self.mac_of_hop(now, next_hop, path.destination, seen) else {
            return false;
        };
        // Sends that are not acknowledged move along; those that are complete to the client now.
        self.answer_sends(handle);
        let Some(connection) = self.connections.get(&handle) else { return false };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        if connection.rcv_nxt(socket) != connection.flow.acknowledged {
            self.push_acknowledgement(now, handle);
        }
        let Some(connection) = self.connections.get(&handle) else { return false };
        let slot = connection.socket;
        let socket = handoff::take(&mut self.sockets, slot);
        let acknowledged = connection.acknowledged(&socket);
        let surroundings = Surroundings {
            tuple: connection.tuple,
            flow: &connection.flow,
            snd_una: connection.snd_una(&socket),
            rcv_nxt: connection.rcv_nxt(&socket),
            beyond: &connection.receive.beyond,
            closing: connection.send.shutdown,
            cached: self.tcp_of(connection.client_id()),
            path_mtu: self.paths.mtu(now, path.destination, self.config.mtu as u32),
            ts_time: self.timestamps.at(now),
        };
        match export(now, socket, &surroundings) {
            Ok(mut state) => {
                state.neighbor.cached.dl_destination_address = mac;
                self.leave(now, handle, at_once, acknowledged, state, (path, next_hop), batch);
                true
            }
            Err(refused) => {
                let (error, socket) = *refused;
                self.export_refused(handle, error, socket)
            }
        }
    }

    /// The neighbor through which a new connection on `path` would be offloaded; `None`: one of the two is on its
    /// way down or up, so the connection has to wait.
    fn ready_next_hop(&self, shard: ShardId, batch: &Batch, path: PathKey) -> Option<IpAddr> {
        let objects = &self.shards[shard].objects;
        let known = objects.paths.get(&path);
        let next_hop = match known {
            Some(path) => path.state.next_hop,
            // A peer without a route has sent a segment all the same: it is its own next hop.
            None => self.config.hop_back(path.destination),
        };
        let group = batch.0.get(&next_hop);
        let has_path = group.is_some_and(|group| group.paths.contains_key(&path));
        let path_ready = known.is_none_or(|path| {
            path.state.moving_to.is_none() && (has_path || path.context().is_some())
        });
        let neighbor = objects.neighbors.get(&next_hop);
        let neighbor_ready =
            group.is_some() || neighbor.is_none_or(|neighbor| neighbor.context().is_some());
        (path_ready && neighbor_ready).then_some(next_hop)
    }

    pub(super) fn push_acknowledgement(&mut self, now: Instant, handle: OffloadHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        push_acknowledgement(
            to_smoltcp(now),
            &mut self.interface,
            &mut self.device,
            &mut self.sockets,
            &mut connection.socket,
        );
        self.send_down(now);
    }

    /// The connection, out of smoltcp, becomes a node of the batch.
    #[expect(clippy::too_many_arguments, reason = "the parts of one hand-over")]
    fn leave(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        at_once: bool,
        acknowledged: u64,
        mut state: Box<ConnectionState>,
        (path, next_hop): (PathKey, IpAddr),
        batch: &mut Batch,
    ) {
        let Some(connection) = self.connections.remove(&handle) else { return };
        self.left(connection.listener, connection.stage);
        let notice = connection.established(handle, true, &self.config);
        let owner = connection.client_id();
        let Connection { shard, client, listener, tuple, send, receive, history, .. } = connection;
        // The frames that come from now on are the target's.
        self.owners.insert(tuple, Owner::Target(handle));
        self.stats.initiates += 1;
        let (unanswered, shutdown) = (send.outstanding_lists(), send.shutdown);
        if at_once {
            self.stats.passive_opens += u64::from(listener.is_some());
            self.notify(owner, notice);
        }
        if !at_once || unanswered > 0 || shutdown {
            self.notify(owner, Notice::Offloading { handle, unanswered, shutdown });
        }
        // The lists go down as they were given, not as smoltcp had copied their bytes.
        state.send_data = send.into_send_data(acknowledged);
        let offloaded = Offloaded {
            shard,
            tuple,
            client,
            listener,
            stage: OffloadStage::Initiating,
            frames: Vec::new(),
            frame_bytes: 0,
            unconsumed: receive.unconsumed,
            aborted: false,
            recall: None,
            cached: state.tcp.cached,
            updating: None,
            history,
        };
        self.offloaded.insert(handle, offloaded);
        let (neighbor, route, object) = TcpObject::split(client, *state);
        let block = Block::new(handle, InitiateNode::new(Box::new(object)));
        self.attach(now, shard, batch, (path, next_hop), (neighbor, route), block);
    }

    /// Puts a connection's node below those of its path and its neighbor, which are made if the target does not
    /// have them.
    fn attach(
        &mut self,
        now: Instant,
        shard: ShardId,
        batch: &mut Batch,
        (path, next_hop): (PathKey, IpAddr),
        (neighbor, route): (NeighborState, PathState),
        block: TcpBlock<InitiateNode<Box<TcpObject>>>,
    ) {
        let (neighbor_handle, path_handle) = (self.shards.new_handle(), self.shards.new_handle());
        let mac = neighbor.cached.dl_destination_address;
        let objects = &mut self.shards[shard].objects;
        let object = objects.neighbors.entry(next_hop).or_insert_with(|| {
            Object::new(neighbor_handle, Neighbor { mac, confirmed_at: now, probing: None })
        });
        // The peer's last segment came from there.
        object.stale |= object.state.mac != mac;
        object.state.mac = mac;
        let group = batch.0.entry(next_hop).or_insert_with(|| NeighborGroup {
            handle: object.handle,
            node: node(object.context(), || object.state.offload_state(now)),
            paths: BTreeMap::new(),
        });
        let mtu = route.cached.path_mtu;
        let is_new = !objects.paths.contains_key(&path);
        object.dependents += usize::from(is_new);
        let object = objects
            .paths
            .entry(path)
            .or_insert_with(|| Object::new(path_handle, Path { next_hop, moving_to: None, mtu }));
        object.dependents += 1;
        let path_group = group.paths.entry(path).or_insert_with(|| PathGroup {
            handle: object.handle,
            node: node(object.context(), || route),
            connections: Vec::new(),
        });
        path_group.connections.push(block);
    }

    fn export_refused(
        &mut self,
        handle: OffloadHandle,
        error: ExportError,
        socket: tcp::Socket<'static>,
    ) -> bool {
        let slot = self.sockets.add(socket);
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        connection.socket = slot;
        match error {
            // Its next hop has to be found first, and smoltcp wakes us.
            ExportError::AcknowledgementDue => return false,
            ExportError::Phase(_) | ExportError::Disagreement(_) | ExportError::Lost(_) => {}
        }
        tracing::warn!(tuple = ?connection.tuple, %error, "connection not offloaded");
        connection.stay = Stay::UntilAsked;
        connection.wanted = false;
        connection.history.refused(Refusal::Host(error.reason()));
        self.stats.exports_refused += 1;
        let lost = matches!(error, ExportError::Lost(_));
        self.stats.handoffs_lost += u64::from(lost);
        if lost {
            self.end_unoffloaded(handle);
        }
        true
    }

    /// A connection that cannot go on in the host.
    pub(super) fn end_unoffloaded(&mut self, handle: OffloadHandle) {
        let Some(connection) = self.connections.get(&handle) else { return };
        let error = HostError::OffloadRefused;
        let notice = match (connection.stage, connection.listener) {
            (Stage::Open, _) => Some(Notice::Closed { handle, error: Some(error) }),
            (Stage::Handshake(_), None) => Some(Notice::ConnectFailed { handle, error }),
            (Stage::Handshake(_), Some(_)) | (Stage::Lingering, _) => None,
        };
        if let Some(notice) = notice {
            let client = connection.client_id();
            if let Notice::ConnectFailed { .. } = notice {
                self.ports.fail(handle);
            }
            self.abort_sends(handle);
            self.notify(client, notice);
        }
        self.reset(handle);
    }

    /// NdisMInitiateOffloadComplete: each node has its result.
    pub(super) fn initiated(&mut self, now: Instant, shard: ShardId, tree: InitiateTree) {
        // What clients had asked before they knew of the hand-over goes back to them first.
        self.take_requests(now);
        for Block { handle, payload, status: neighbor_status, dependents: paths } in tree {
            let mut root = None;
            let objects = &mut self.shards[shard].objects;
            match (payload, objects.neighbor_by(handle)) {
                (InitiateNode::New { context: Some(context), .. }, Some((_, object))) => {
                    object.link = Link::There(context);
                }
                (InitiateNode::New { context: None, .. }, Some((next_hop, _))) => {
                    root = Some(neighbor_status);
                    // One that came alone; else it goes with the last that depends on it.
                    objects.drop_neighbor_if_unused(next_hop, &mut Unused::default());
                }
                _ => {}
            }
            for Block { handle, payload, status: path_status, dependents: connections } in paths {
                let mut cause = root;
                match (payload, self.shards[shard].objects.path_by(handle)) {
                    (InitiateNode::New { context: Some(context), .. }, Some((_, object))) => {
                        object.link = Link::There(context);
                    }
                    (InitiateNode::New { context: None, .. }, _) => {
                        cause = cause.or(Some(path_status));
                    }
                    _ => {}
                }
                for Block { handle, payload, status, dependents: _ } in connections {
                    // CH-TREE-6: below a node that has failed FAILURE means no more than that.
                    self.connection_initiated(now, handle, cause.unwrap_or(status), payload);
                }
            }
        }
        if self.seek_hops_at.is_none() {
            // A path that waited for its neighbor may have gone meanwhile.
            self.drop_unused_neighbors(shard);
        }
        self.push_updates(now, shard);
    }

    fn connection_initiated(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        status: NdisStatus,
        payload: InitiateNode<Box<TcpObject>>,
    ) {
        let Some(offloaded) = self.offloaded.get_mut(&handle) else { return };
        if offloaded.stage != OffloadStage::Initiating {
            return;
        }
        match payload {
            InitiateNode::New { context: Some(context), .. } => {
                offloaded.stage = OffloadStage::With(context);
                self.outdated.insert(handle);
                offloaded.history.offloads += 1;
                offloaded.frame_bytes = 0;
                let shard = offloaded.shard;
                for frame in core::mem::take(&mut offloaded.frames) {
                    self.receive(now, shard, frame, true);
                }
                self.shards[shard].engine.forwarded(context);
                let Some(offloaded) = self.offloaded.get_mut(&handle) else { return };
                let recall = offloaded.recall.take().or_else(|| offloaded.aborted.then_some(None));
                if let Some(reason) = recall {
                    self.terminate([handle], reason);
                }
            }
            InitiateNode::New { state: Some(object), context: None } => {
                self.stats.initiates_refused += 1;
                self.take_back(now, handle, object, Origin::Refused(status));
            }
            InitiateNode::New { state: None, context: None }
            | InitiateNode::Linker(_)
            | InitiateNode::Placeholder => self.state_lost(handle),
        }
    }

    /// How long a connection stays that the target has refused with `status`.
    pub(super) fn rest_after(&self, now: Instant, status: NdisStatus) -> Stay {
        if may_change(status) {
            Stay::Until(now + self.config.rules.rest)
        } else {
            Stay::UntilAsked
        }
    }
}
