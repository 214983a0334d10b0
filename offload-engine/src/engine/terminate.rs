//! MiniportTerminateOffload (CH §5.5), and the release of connections that are closed.
//!
//! Dependents are removed before the object they depend on, so one tree can upload a neighbor with all its dependents
//! (CH-TRM-2). A connection is uploaded in one step, between two segments. Its due ACK is sent, and data for its client
//! is delivered or uploaded with it. Later frames are passed to the host (CH-TRM-7, -11). Forwarded segments and the
//! other state operations complete in order of arrival, so none is ever outstanding (CH-TRM-3).

use std::{boxed::Box, vec::Vec};

use super::{
    Clients, Engine, STALLED_FRAMES_MAX, TRANSMIT_SEGMENTS_MAX,
    connections::{HeldFrames, Offloaded},
    port::ToHost,
    upcalls::{EventOutcome, deliver_backlog, raise_events},
};
use crate::{
    chimney::{
        client::{ClientTag, Disconnect},
        tree::{Block, ObjectNode, TargetContext, TcpObject, TerminateTree},
    },
    nbl::NetBufferList,
    status::NdisStatus,
    tcp::TcpPhase,
    time::Instant,
};

impl Engine {
    /// Terminates the objects of a tree, or delays this until the link has returned the connections' payload. The send
    /// lists are uploaded with the state, and the host may complete them immediately. Nothing else is sent during the
    /// delay.
    pub(super) fn terminate_or_delay(
        &mut self,
        now: Instant,
        tree: TerminateTree,
        clients: &mut Clients,
    ) {
        let connections = tree.iter().flat_map(|neighbor| &neighbor.dependents);
        let mut connections = connections.flat_map(|path| &path.dependents);
        let is_lent = connections.any(|tcp| match &tcp.payload {
            ObjectNode::Placeholder => false,
            ObjectNode::Object { context, payload: _ } => {
                let slot = self.connections.find_context(*context);
                let offloaded = slot.and_then(|slot| self.connections.slot(slot));
                offloaded.is_some_and(|offloaded| offloaded.loans.is_lent())
            }
        });
        match is_lent {
            true => {
                self.delayed_terminate = Some(tree);
                self.stalled_max = 0;
            }
            false => {
                self.stalled_max = STALLED_FRAMES_MAX;
                self.terminate(now, tree, clients);
            }
        }
    }

    pub(super) fn terminate(
        &mut self,
        now: Instant,
        mut tree: TerminateTree,
        clients: &mut Clients,
    ) {
        // Frames passed by other engines are older than those that the host receives from now on.
        self.process_all_passed(now, clients);
        // The client first acts on upcalls that it has queued.
        clients.poll(now, &mut self.connections);
        let mut frames = Vec::new();
        for neighbor in &mut tree {
            for path in &mut neighbor.dependents {
                for Block { handle: _, payload, status, dependents: _ } in &mut path.dependents {
                    *status = match payload {
                        ObjectNode::Placeholder => NdisStatus::SUCCESS,
                        ObjectNode::Object { context, payload } => {
                            *payload = self.upload(now, *context, clients, &mut frames);
                            outcome(payload.is_some())
                        }
                    };
                }
                path.status = match path.payload {
                    ObjectNode::Placeholder => NdisStatus::SUCCESS,
                    ObjectNode::Object { context, payload: () } => {
                        outcome(self.objects.remove_path(context).is_ok())
                    }
                };
            }
            neighbor.status = match &mut neighbor.payload {
                ObjectNode::Placeholder => NdisStatus::SUCCESS,
                ObjectNode::Object { context, payload } => {
                    *payload = self.objects.remove_neighbor(now, *context).ok();
                    outcome(payload.is_some())
                }
            };
        }
        self.notify_host(ToHost::TerminateComplete(tree));
        for data in frames {
            // The checksum was verified on reception.
            self.notify_host(ToHost::Frame { data, checksum_valid: true });
        }
    }

    /// Uploads a connection. `None` if it does not exist or its state is lost (CH-TRM-9).
    fn upload(
        &mut self,
        now: Instant,
        context: TargetContext,
        clients: &mut Clients,
        frames: &mut Vec<Vec<u8>>,
    ) -> Option<Box<TcpObject>> {
        let slot = self.connections.find_context(context)?;
        let offloaded = self.connections.slot(slot)?;
        // Receive requests posted just before are filled from the buffered data (CH-TRM-6).
        deliver_backlog(now, offloaded, clients.of(offloaded.client));
        if offloaded.failed {
            self.fail(now, slot, clients);
            self.connections.slot(slot)?.tcp.close_failed(now);
        } else {
            offloaded.tcp.prepare_upload(now);
        }
        if self.quiesce(now, slot, clients) {
            self.release(now, slot);
            return None;
        }
        self.trace_upload(now, slot);
        let offloaded = self.remove(slot)?;
        let Offloaded { handle, client: tag, flow, tcp, held, early, .. } = *offloaded;
        self.mark_uploaded(flow);
        frames.extend(held.into_frames());
        frames.extend(early.into_iter().flat_map(HeldFrames::into_frames));
        let (state, disconnect) = tcp.into_state(now);
        debug_assert!(disconnect.is_none(), "prepare_upload has returned it");
        let (_, _, object) = TcpObject::split(tag, *state);
        self.stats.terminates += 1;
        clients.of(tag).uploaded(handle);
        Some(Box::new(object))
    }

    /// Sends due segments and delivers received data (CH-TRM-3, -6, -11). Returns true if this ended the connection.
    fn quiesce(&mut self, now: Instant, slot: usize, clients: &mut Clients) -> bool {
        // One ACK or RST. The bound limits what upcalls add.
        for _ in 0..TRANSMIT_SEGMENTS_MAX {
            let Some(offloaded) = self.connections.slot(slot) else { return true };
            if raise_events(now, offloaded, clients.of(offloaded.client)) == EventOutcome::Closed {
                return true;
            }
            let new_data = self.connections.may_send(slot);
            let Some(offloaded) = self.connections.slot(slot) else { return true };
            let Some((transmit, reset)) = offloaded.poll_transmit(now, new_data) else {
                return false;
            };
            self.transmit_segment(now, slot, &transmit, reset);
        }
        false
    }

    /// Releases a connection that was closed.
    pub(super) fn release(&mut self, now: Instant, slot: usize) {
        self.trace(now, slot);
        if let Some(offloaded) = self.remove(slot) {
            self.notify_host(ToHost::Released { handle: offloaded.handle });
        }
    }

    /// Removes a connection from the tables.
    fn remove(&mut self, slot: usize) -> Option<Box<Offloaded>> {
        self.notify_retrieves(slot);
        let offloaded = self.connections.remove(slot)?;
        self.withdraw(&offloaded.flow);
        self.objects.detach(offloaded.path);
        Some(offloaded)
    }

    /// Passes upload requests of a connection to the host too (CH §8.2).
    pub(super) fn notify_retrieves(&mut self, slot: usize) {
        let Some(offloaded) = self.connections.slot(slot) else { return };
        if offloaded.retrieves.is_empty() {
            return;
        }
        let handle = offloaded.handle;
        for reason in core::mem::take(&mut offloaded.retrieves) {
            self.notify_host(ToHost::Retrieve { handle, reason });
        }
    }

    /// Removes a client and resets its connections. Those that the host has now, or gets back later, are reset by the
    /// host.
    pub(super) fn remove_client(&mut self, now: Instant, tag: ClientTag, clients: &mut Clients) {
        clients.remove(tag);
        let of_tag = self.connections.occupied().filter(|(_, offloaded)| offloaded.client == tag);
        for slot in of_tag.map(|(slot, _)| slot).collect::<Vec<_>>() {
            if let Some(offloaded) = self.connections.slot(slot) {
                reset_unowned(now, offloaded);
            }
            self.connections.mark_ready(slot);
        }
    }

    /// Reports a failure of a connection's hardware that an operation has detected (CH §5.6).
    pub(super) fn fail(&mut self, now: Instant, slot: usize, clients: &mut Clients) {
        let Some(offloaded) = self.connections.slot(slot) else { return };
        if core::mem::replace(&mut offloaded.failure_reported, true) {
            return;
        }
        offloaded.tcp.fail(now);
        raise_events(now, offloaded, clients.of(offloaded.client));
        self.notify_retrieves(slot);
    }
}

/// Resets a connection whose client is not registered. A connection that both sides have closed needs no reset (RFC
/// 9293 §3.10.5).
pub(super) fn reset_unowned(now: Instant, offloaded: &mut Offloaded) {
    let phase = offloaded.tcp.phase();
    if matches!(phase, TcpPhase::Closing | TcpPhase::LastAck | TcpPhase::TimeWait) {
        return;
    }
    tracing::debug!(flow = ?offloaded.flow, client = ?offloaded.client, "connection reset: its client left the node");
    offloaded.io(now).disconnect(Disconnect::Abortive, NetBufferList::new(0));
}

pub(super) const fn outcome(success: bool) -> NdisStatus {
    if success { NdisStatus::SUCCESS } else { NdisStatus::FAILURE }
}
