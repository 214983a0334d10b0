//! Upload of connections, and termination of unused objects.
//!
//! A connection is uploaded because its client requests it, because the target requests it and the policy agrees
//! (CH-EVT-1), or because the target requests the upload of all. A refused initiate is handled the same way. In all
//! cases a smoltcp socket is built from the connection state, and the client is notified that the host serves the
//! connection. Frames that arrive during the transition are held, and are delivered to that socket (CH-TRM-7).

use alloc::{boxed::Box, collections::BTreeMap, vec, vec::Vec};

use offload_engine::{
    chimney::{
        client::{OffloadHandle, UploadReason},
        provider::AdapterStatus,
        tree::{Block, ObjectNode, TcpObject, TerminateTree},
    },
    engine::port::FromHost,
    listing::Refusal,
    state::{ConnectionState, Ticks, TimerState},
    status::NdisStatus,
    tcp::TcpPhase,
    time::{Duration, Instant},
};

use super::{
    Host,
    connection::{
        Connection, Hold, OffloadStage, Offloaded, Owner, ReceiveHalf, SendHalf, Stage,
        fin_received, owned,
    },
    ingress::configure,
    objects::{PathKey, Unused},
    ports::Name,
    shards::{ClientId, ShardId},
};
use crate::{
    clock::{self, to_smoltcp},
    handoff::import::{Imported, import},
    observer::Flow,
    socket::{HostError, Notice},
    wire,
};

/// Placeholder handle of ignored objects: no object has this handle.
const NO_HANDLE: OffloadHandle = OffloadHandle(0);

/// Reason of a connection's return to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The target refused the initiate.
    Refused(NdisStatus),
    /// Terminated, with the target's reason if it requested the upload.
    Uploaded(Option<UploadReason>),
}

impl Host {
    /// Handles a client's request to upload its connection.
    pub(super) fn upload(&mut self, handle: OffloadHandle) {
        self.terminate([handle], None);
    }

    /// TcpIndicateRetrieve: a mandatory reason is always followed, an optional one if the policy permits it (CH-EVT-1).
    pub(super) fn retrieve_requested(&mut self, handle: OffloadHandle, reason: UploadReason) {
        self.stats.retrieves += 1;
        if !self.offloaded.contains_key(&handle) {
            return;
        }
        if reason.is_mandatory() || self.config.rules.upload_on.contains(reason) {
            self.terminate([handle], Some(reason));
        } else {
            self.stats.retrieves_ignored += 1;
        }
    }

    /// NdisMIndicateStatusEx (CH §5.7).
    pub(super) fn adapter_status(&mut self, shard: ShardId, status: AdapterStatus) {
        match status {
            AdapterStatus::Pause => self.shards[shard].paused = true,
            AdapterStatus::UploadAll => {
                self.shards[shard].paused = true;
                let of_it = self.offloaded.iter().filter(|(_, found)| found.shard == shard);
                let all = of_it.map(|(handle, _)| *handle).collect::<Vec<_>>();
                // Paths and neighbors follow after the last connection on them is uploaded.
                self.terminate(all, Some(UploadReason::UploadRequested));
            }
            AdapterStatus::Resume(_) => {
                self.shards[shard].paused = false;
                // The target's capabilities have changed, so it may accept connections that it refused.
                let all = self.connections.values_mut();
                for connection in all.filter(|connection| connection.shard == shard) {
                    if connection.history.refusal.take().is_some() {
                        connection.hold = Hold::No;
                    }
                }
            }
        }
    }

    /// Terminates the connections that the target has. A connection with an outstanding initiate is uploaded after the
    /// initiate completes (CH-INI-1).
    pub(super) fn terminate(
        &mut self,
        handles: impl IntoIterator<Item = OffloadHandle>,
        reason: Option<UploadReason>,
    ) {
        let mut nodes = BTreeMap::<ShardId, Vec<_>>::new();
        for handle in handles {
            let Some(offloaded) = self.offloaded.get_mut(&handle) else { continue };
            match offloaded.stage {
                // CH-TRM-1: its update must complete first.
                OffloadStage::With(_) if offloaded.updating.is_some() => {
                    offloaded.recall = Some(reason);
                }
                OffloadStage::With(context) => {
                    offloaded.stage = OffloadStage::Terminating(reason);
                    let payload = ObjectNode::Object { context, payload: None };
                    let of_shard = nodes.entry(offloaded.shard).or_default();
                    of_shard.push(Block::new(handle, payload));
                }
                OffloadStage::Initiating => offloaded.recall = Some(reason),
                OffloadStage::Terminating(_) => {}
            }
        }
        for (shard, nodes) in nodes {
            self.stats.terminates += nodes.len() as u64;
            let path = Block::new(NO_HANDLE, ObjectNode::Placeholder).with(nodes);
            let tree = vec![Block::new(NO_HANDLE, ObjectNode::Placeholder).with(vec![path])];
            self.shards[shard].engine.terminate(tree);
        }
    }

    /// Terminates objects without dependents: paths first (CH-TRM-2).
    pub(super) fn terminate_unused(&mut self, shard: ShardId, unused: Unused) {
        let Unused { paths, neighbors } = unused;
        let engine = &mut self.shards[shard].engine;
        if !paths.is_empty() {
            let paths = paths.into_iter().map(|(handle, context)| {
                Block::new(handle, ObjectNode::Object { context, payload: () })
            });
            let below = paths.collect();
            engine.terminate(vec![Block::new(NO_HANDLE, ObjectNode::Placeholder).with(below)]);
        }
        if !neighbors.is_empty() {
            let neighbors = neighbors.into_iter().map(|(handle, context)| {
                Block::new(handle, ObjectNode::Object { context, payload: None })
            });
            engine.terminate(neighbors.collect());
        }
    }

    /// NdisMTerminateOffloadComplete.
    pub(super) fn terminated(&mut self, now: Instant, shard: ShardId, tree: TerminateTree) {
        // Requests of clients issued before the target had the connection are returned first.
        self.take_requests(now);
        for Block { handle: neighbor, payload, status: _, dependents: paths } in tree {
            for Block { handle: path, payload, status: _, dependents: connections } in paths {
                for Block { handle, payload, status, dependents: _ } in connections {
                    match payload {
                        ObjectNode::Object { payload: Some(object), .. }
                            if status == NdisStatus::SUCCESS =>
                        {
                            self.uploaded(now, handle, object);
                        }
                        _ => self.state_lost(handle),
                    }
                }
                let objects = &mut self.shards[shard].objects;
                if let (ObjectNode::Object { .. }, Some((key, _))) =
                    (payload, objects.path_by(path))
                {
                    objects.paths.remove(&key);
                }
            }
            let objects = &mut self.shards[shard].objects;
            if let (ObjectNode::Object { .. }, Some((key, _))) =
                (payload, objects.neighbor_by(neighbor))
            {
                objects.neighbors.remove(&key);
            }
        }
    }

    fn uploaded(&mut self, now: Instant, handle: OffloadHandle, object: Box<TcpObject>) {
        let Some(offloaded) = self.offloaded.get(&handle) else { return };
        let OffloadStage::Terminating(reason) = offloaded.stage else { return };
        self.return_to_host(now, handle, object, Origin::Uploaded(reason));
    }

    /// Handles a connection that has ended and that the target has released.
    pub(super) fn released(&mut self, handle: OffloadHandle) {
        let _ = self.remove_offloaded(handle);
        self.ports.release(Name::Connection(handle));
    }

    /// Removes an offloaded connection and terminates objects that only it depended on. It keeps its port, since it may
    /// continue in the host.
    fn remove_offloaded(&mut self, handle: OffloadHandle) -> Option<Offloaded> {
        let offloaded = self.offloaded.remove(&handle)?;
        self.owners.remove(&offloaded.tuple);
        let shard = &mut self.shards[offloaded.shard];
        shard.connections -= 1;
        let unused = shard.objects.release(&PathKey::of(&offloaded.tuple));
        self.terminate_unused(offloaded.shard, unused);
        Some(offloaded)
    }

    /// CH-TRM-9: without the state no segment can be sent to the peer; its next segment is answered with RST.
    pub(super) fn state_lost(&mut self, handle: OffloadHandle) {
        if let Some(offloaded) = self.remove_offloaded(handle) {
            self.stats.handoffs_lost += 1;
            self.ports.release(Name::Connection(handle));
            self.notify(
                offloaded.client_id(),
                Notice::Closed { handle, error: Some(HostError::StateLost) },
            );
        }
    }

    /// Continues a connection in the host, or resets it if that fails.
    pub(super) fn return_to_host(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        object: Box<TcpObject>,
        origin: Origin,
    ) {
        let Some(offloaded) = self.offloaded.get(&handle) else { return };
        let states =
            self.shards[offloaded.shard].objects.states(now, &PathKey::of(&offloaded.tuple));
        let Some(offloaded) = self.remove_offloaded(handle) else { return };
        let Some((neighbor, path)) = states else {
            self.ports.release(Name::Connection(handle));
            return;
        };
        let (_, state) = object.join(neighbor, path);
        if is_over(&state) {
            return self.take_time_wait(now, handle, offloaded, &state);
        }
        self.stats.uploads += u64::from(matches!(origin, Origin::Uploaded(_)));
        if let Some(error) = end_reason(&offloaded, origin, state.tcp.delegated.state) {
            self.end_state(offloaded.client_id(), handle, state, error);
            return;
        }
        self.timestamps.catch_up(now, state.tcp.delegated.ts_time);
        match import(to_smoltcp(now), &state, self.config.send_buffer, clock::tsval) {
            Ok(imported) => self.settle(now, handle, offloaded, state, imported, origin),
            Err(error) => {
                tracing::error!(tuple = ?offloaded.tuple, %error, "connection lost during upload");
                self.stats.handoffs_lost += 1;
                self.end_state(offloaded.client_id(), handle, state, HostError::StateLost);
            }
        }
    }

    /// Records TIME-WAIT of a closed connection without a socket; its client is done with it (CH-EVT-3). The remaining
    /// time continues.
    fn take_time_wait(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        offloaded: Offloaded,
        state: &ConnectionState,
    ) {
        self.stats.time_waits += 1;
        let delegated = &state.tcp.delegated;
        self.timestamps.catch_up(now, delegated.ts_time);
        let TimerState { count: lost, timeout_delta } = delegated.retransmit;
        let millis = |ticks: Ticks| Duration::from_millis(ticks.into());
        let left = timeout_delta.map_or(self.config.time_wait, millis);
        let mut flow = Flow::restored(state, now);
        flow.has_retransmitted = lost > 0;
        let client = offloaded.client_id();
        let Offloaded { shard, tuple, frames, .. } = offloaded;
        self.time_waits.insert(now, (left, true), tuple, (shard, flow));
        self.ports.release(Name::Connection(handle));
        self.notify(client, Notice::Closed { handle, error: None });
        for frame in frames {
            // Verified before it was held.
            self.receive(now, shard, frame, true);
        }
    }

    /// Resets a connection of which only the state is left.
    fn end_state(
        &mut self,
        client: ClientId,
        handle: OffloadHandle,
        state: ConnectionState,
        error: HostError,
    ) {
        if let Some(frame) = wire::reset_frame(&state, self.config.mac) {
            self.stats.frames_out += 1;
            self.shards[client.shard].send_to_engine(FromHost::Frame(frame));
        }
        self.ports.release(Name::Connection(handle));
        let mut chain = owned(state.send_data);
        if !chain.is_empty() {
            chain.iter_mut().for_each(|list| list.complete(NdisStatus::REQUEST_ABORTED, 0));
            self.notify(client, Notice::Sent { handle, chain });
        }
        self.notify(client, Notice::Closed { handle, error: Some(error) });
    }

    /// Adds an imported socket to the set, and notifies its client that the host serves it.
    fn settle(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        offloaded: Offloaded,
        state: ConnectionState,
        imported: Imported,
        origin: Origin,
    ) {
        let Offloaded { shard, tuple, client, listener, frames, unconsumed, .. } = offloaded;
        let Imported { mut socket, written, closing, scale_raise, beyond } = imported;
        configure(&mut socket, &self.tcp_of(ClientId { shard, tag: client }));
        let undelivered = socket.recv_queue() as u32;
        let fin = u32::from(fin_received(socket.state()));
        let delegated = &state.tcp.delegated;
        let fin_acknowledged = matches!(delegated.state, TcpPhase::FinWait2 | TcpPhase::TimeWait);
        let mut history = offloaded.history;
        history.returned_at = now;
        let hold = match origin {
            Origin::Refused(status) => {
                tracing::warn!(?tuple, %status, "connection refused by the target");
                history.refusal = Some(status);
                history.refused(Refusal::Target(status));
                self.rest_after(now, status)
            }
            Origin::Uploaded(reason) => {
                history.uploads += 1;
                history.upload_reason = reason;
                // The client that uploaded the connection decides about its next offload.
                reason
                    .map_or(Hold::UntilRequested, |_| Hold::Until(now + self.config.rules.holddown))
            }
        };
        let connection = Connection {
            shard,
            client,
            listener,
            tuple,
            flow: Flow::restored(&state, now),
            scale_raise,
            hold,
            offload_requested: false,
            history,
            stage: Stage::Open,
            is_limit_extended: false,
            solicit_at: now,
            forced_retransmit: None,
            receive: ReceiveHalf {
                first: delegated.rcv_nxt - undelivered - fin,
                beyond: beyond.into(),
                read: 0,
                unconsumed,
                fin_received: fin != 0,
                closed_notified: false,
            },
            send: SendHalf::restored(
                delegated.snd_una - u32::from(fin_acknowledged),
                state.send_data,
                written,
                closing,
            ),
            socket: self.sockets.add(socket),
        };
        self.stats.imports += 1;
        self.owners.insert(tuple, Owner::Host(handle));
        self.shards[shard].connections += 1;
        let notice = match origin {
            Origin::Refused(_) => connection.established(handle, false, &self.config),
            Origin::Uploaded(_) => {
                let (lists, bytes) = connection.send.owned_lists();
                Notice::Uploaded { handle, lists, bytes, mss: connection.mss(&self.config) }
            }
        };
        self.notify(connection.client_id(), notice);
        self.connections.insert(handle, connection);
        for frame in frames {
            // Verified before it was held.
            self.receive(now, shard, frame, true);
        }
    }
}

/// True if both sides have closed, and nothing is left to deliver to the client.
fn is_over(state: &ConnectionState) -> bool {
    state.tcp.delegated.state == TcpPhase::TimeWait && state.buffered_data.is_empty()
}

/// Reason to end a returned connection; `None` if it continues.
fn end_reason(offloaded: &Offloaded, origin: Origin, phase: TcpPhase) -> Option<HostError> {
    match origin {
        _ if offloaded.aborted => Some(HostError::Aborted),
        Origin::Uploaded(Some(UploadReason::TimeoutExpiration)) => {
            Some(HostError::RetransmissionLimit)
        }
        // The target has reported its end (CH §9.2).
        _ if phase == TcpPhase::Closed => Some(HostError::Reset),
        _ => None,
    }
}
