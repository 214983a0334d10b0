//! Offload of connections: selection, initiate tree and result.
//!
//! All connections of a shard that are due in one poll are offloaded in one tree (CH-ARC-5). A neighbor or path that
//! the target already has is a linker in it. A connection whose neighbor or path has an outstanding initiate or
//! terminate is deferred (CH-INI-1).

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
    connection::{Connection, Hold, OffloadStage, Offloaded, Owner, Stage},
    objects::{Link, Neighbor, Object, Path, PathKey, Unused},
    shards::ShardId,
    upload::Origin,
};
use crate::{
    clock::to_smoltcp,
    handoff::{
        self,
        export::{ExportError, ExportInput, export, push_acknowledgment},
    },
    offload_policy::may_change,
    socket::{HostError, Notice, OffloadPolicy},
};

/// Time at which the policy offloads a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OffloadTiming {
    No,
    /// At the end of the handshake.
    AtOnce,
    /// After the handshake.
    Later,
}

/// Initiate tree of one poll and one shard, under construction.
#[derive(Default)]
struct Batch(BTreeMap<IpAddr, NeighborGroup>);

/// Neighbor in the batch, with its paths.
struct NeighborGroup {
    handle: OffloadHandle,
    node: InitiateNode<NeighborState>,
    paths: BTreeMap<PathKey, PathGroup>,
}

/// Path in the batch, with its connections.
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

/// Returns a node for an object; a linker if the target has it.
fn node<S>(context: Option<TargetContext>, state: impl FnOnce() -> S) -> InitiateNode<S> {
    context.map_or_else(|| InitiateNode::new(state()), InitiateNode::Linker)
}

impl Host {
    /// Offloads every due connection. smoltcp has processed everything that the engine had queued, and has sent all due
    /// acknowledgments (CH-INI-7).
    pub(super) fn hand_over(&mut self, now: Instant) -> bool {
        let due = |(handle, connection): (&OffloadHandle, &Connection)| {
            let offload_timing = self.offload_timing(now, connection);
            (offload_timing != OffloadTiming::No).then_some((*handle, offload_timing))
        };
        let due = self.connections.iter().filter_map(due).collect::<Vec<_>>();
        let mut batches = BTreeMap::<ShardId, Batch>::new();
        let mut work = false;
        for (handle, offload_timing) in due {
            let Some(connection) = self.connections.get(&handle) else { continue };
            let batch = batches.entry(connection.shard).or_default();
            work |= self.offload(now, handle, offload_timing == OffloadTiming::AtOnce, batch);
        }
        for (shard, batch) in batches {
            if !batch.0.is_empty() {
                self.shards[shard].engine.initiate(batch.into_tree());
            }
        }
        work
    }

    pub(super) fn offload_timing(&self, now: Instant, connection: &Connection) -> OffloadTiming {
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

    /// Offload time of a connection in its current state; `None` if it first needs another event.
    pub(super) fn offload_at(&self, connection: &Connection) -> Option<Instant> {
        let state = self.sockets.get::<tcp::Socket<'_>>(connection.socket).state();
        let open = matches!(state, State::Established | State::CloseWait);
        // CH-ST-1: half-closed connections too, but only on request.
        let closing =
            matches!(state, State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck);
        if self.shards[connection.shard].paused || !(open || closing) {
            return None;
        }
        if connection.offload_requested {
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
        match connection.hold {
            // Each offload restarts the count of unanswered retransmissions. Without an answer in between, no
            // retransmission limit would ever be reached.
            Hold::Until(_)
                if connection.send.outstanding() > 0 && !connection.received_since_return() =>
            {
                None
            }
            Hold::Until(rested) => by_policy.map(|at| at.max(rested)),
            Hold::No => by_policy,
            Hold::UntilRequested => None,
        }
    }

    /// Handles a client's request to offload its connection.
    pub(super) fn request_offload(&mut self, handle: OffloadHandle) {
        if let Some(connection) = self.connections.get_mut(&handle) {
            connection.offload_requested = true;
            if self.shards[connection.shard].paused {
                connection.history.refused(Refusal::Host("the target has indicated a pause"));
            }
        }
    }

    /// Exports the connection from smoltcp into the batch. Returns true if anything was done.
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
        // Unacknowledged sends are offloaded too; completed ones are reported to the client now.
        self.complete_sends(handle);
        let Some(connection) = self.connections.get(&handle) else { return false };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        if connection.rcv_nxt(socket) != connection.flow.acknowledged {
            self.push_acknowledgment(now, handle);
        }
        let Some(connection) = self.connections.get(&handle) else { return false };
        let slot = connection.socket;
        let socket = handoff::take(&mut self.sockets, slot);
        let acknowledged = connection.acknowledged(&socket);
        let input = ExportInput {
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
        match export(now, socket, &input) {
            Ok(mut state) => {
                state.neighbor.cached.dl_destination_address = mac;
                self.export_to_batch(
                    now,
                    handle,
                    at_once,
                    acknowledged,
                    state,
                    (path, next_hop),
                    batch,
                );
                true
            }
            Err(refused) => {
                let (error, socket) = *refused;
                self.export_refused(handle, error, socket)
            }
        }
    }

    /// Neighbor through which a new connection on `path` would be offloaded. `None` if the path or the neighbor has an
    /// outstanding initiate or terminate, so the connection is deferred.
    fn ready_next_hop(&self, shard: ShardId, batch: &Batch, path: PathKey) -> Option<IpAddr> {
        let objects = &self.shards[shard].objects;
        let known = objects.paths.get(&path);
        let next_hop = match known {
            Some(path) => path.state.next_hop,
            // A peer without a route is its own next hop: it has sent a segment.
            None => self.config.reply_hop(path.destination),
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

    pub(super) fn push_acknowledgment(&mut self, now: Instant, handle: OffloadHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        push_acknowledgment(
            to_smoltcp(now),
            &mut self.interface,
            &mut self.device,
            &mut self.sockets,
            &mut connection.socket,
        );
        self.pass_sent_frames(now);
    }

    /// Adds the exported connection to the batch as a node.
    #[expect(clippy::too_many_arguments, reason = "parts of one offload")]
    fn export_to_batch(
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
        self.release_backlog(connection.listener, connection.stage);
        let notice = connection.established(handle, true, &self.config);
        let owner = connection.client_id();
        let Connection { shard, client, listener, tuple, send, receive, history, .. } = connection;
        // Frames that arrive from now on belong to the target.
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
        // The original lists are offloaded, not smoltcp's copies of their bytes.
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

    /// Attaches a connection's node to its path and neighbor, which are added if the target does not have them.
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
        // The peer's last segment has this source address.
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
            // The next hop must be resolved first; smoltcp then schedules a poll.
            ExportError::AcknowledgmentDue => return false,
            ExportError::Phase(_) | ExportError::Disagreement(_) | ExportError::Lost(_) => {}
        }
        tracing::warn!(tuple = ?connection.tuple, %error, "connection not offloaded");
        connection.hold = Hold::UntilRequested;
        connection.offload_requested = false;
        connection.history.refused(Refusal::Host(error.reason()));
        self.stats.exports_refused += 1;
        let lost = matches!(error, ExportError::Lost(_));
        self.stats.handoffs_lost += u64::from(lost);
        if lost {
            self.abort_unoffloaded(handle);
        }
        true
    }

    /// Aborts a connection that cannot continue in the host.
    pub(super) fn abort_unoffloaded(&mut self, handle: OffloadHandle) {
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
        // Requests issued before the clients were notified of the offload are returned first.
        self.take_requests(now);
        for Block { handle, payload, status: neighbor_status, dependents: paths } in tree {
            let mut root = None;
            let objects = &mut self.shards[shard].objects;
            match (payload, objects.neighbor_by(handle)) {
                (InitiateNode::New { context: Some(context), .. }, Some((_, object))) => {
                    object.link = Link::Offloaded(context);
                }
                (InitiateNode::New { context: None, .. }, Some((next_hop, _))) => {
                    root = Some(neighbor_status);
                    // A neighbor initiated alone; otherwise it is dropped with its last dependent.
                    objects.drop_neighbor_if_unused(next_hop, &mut Unused::default());
                }
                _ => {}
            }
            for Block { handle, payload, status: path_status, dependents: connections } in paths {
                let mut cause = root;
                match (payload, self.shards[shard].objects.path_by(handle)) {
                    (InitiateNode::New { context: Some(context), .. }, Some((_, object))) => {
                        object.link = Link::Offloaded(context);
                    }
                    (InitiateNode::New { context: None, .. }, _) => {
                        cause = cause.or(Some(path_status));
                    }
                    _ => {}
                }
                for Block { handle, payload, status, dependents: _ } in connections {
                    // CH-TREE-6: below a failed node FAILURE carries no further reason.
                    self.connection_initiated(now, handle, cause.unwrap_or(status), payload);
                }
            }
        }
        if self.solicit_hops_at.is_none() {
            // The path that needed the neighbor may have been removed meanwhile.
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
                self.return_to_host(now, handle, object, Origin::Refused(status));
            }
            InitiateNode::New { state: None, context: None }
            | InitiateNode::Linker(_)
            | InitiateNode::Placeholder => self.state_lost(handle),
        }
    }

    /// Rest of a connection that the target has refused with `status`.
    pub(super) fn rest_after(&self, now: Instant, status: NdisStatus) -> Hold {
        if may_change(status) {
            Hold::Until(now + self.config.rules.holddown)
        } else {
            Hold::UntilRequested
        }
    }
}
