//! What changes while connections are with the target: their cached variables, and whether their neighbors live.
//!
//! An object has one update in progress at most (CH-UPD-3); what changes meanwhile goes with the next. One that the
//! target could not apply means that everything that depends on the object is taken back (CH-UPD-4).
//!
//! The target asks for a neighbor of which neither side has heard for long (CH s9.7). If the host knows better it says
//! when it heard of it; if not it says "just now", which silences the target for a while, and solicits the
//! neighbor itself. When [`PROBES_MAX`] solicitations, [`SOLICIT_INTERVAL`] apart, are not answered and no connection of the
//! target's has gone forward either, the neighbor is invalidated: its connections come back, and smoltcp looks for it.

use alloc::{boxed::Box, vec, vec::Vec};
use core::net::IpAddr;

use offload_engine::{
    chimney::{
        client::{OffloadHandle, UploadReason},
        provider::OffloadProvider,
        state::{MacAddress, NeighborCached, TcpCached, Ticks},
        tree::{
            Asked, Block, ObjectNode, Query, QueryTree, TargetContext, TcpUpdate, UpdateNode,
            UpdateTree,
        },
    },
    status::NdisStatus,
    time::{Duration, Instant},
};
use smoltcp::wire::{
    ArpPacket, ArpRepr, EthernetFrame, EthernetProtocol, Icmpv6Message, Icmpv6Packet, IpProtocol,
    Ipv6Packet, NdiscRepr,
};

use super::{
    Host,
    connection::OffloadStage,
    neighbors::SOLICIT_INTERVAL,
    objects::{Probing, Unused},
};

/// How long the host trusts what it has heard of a neighbor: as long as the target does by default (NceStaleTicks).
pub(super) const NEIGHBOR_STALE: Duration = Duration::from_secs(30);
/// Solicitations of a neighbor under suspicion (RFC 4861 s10: MAX_UNICAST_SOLICIT).
const PROBES_MAX: u32 = 3;

/// Stands for an object that is of no concern.
const NOBODY: OffloadHandle = OffloadHandle(0);

impl Host {
    /// Sends what the target does not know yet, as far as no update is in its way.
    pub(super) fn push_updates(&mut self, now: Instant) {
        let mut tree: UpdateTree = Vec::new();
        for object in self.objects.neighbors.values_mut() {
            if let Some(context) = object.begin_update() {
                let cached = object.state.cached(now);
                tree.push(Block::new(object.handle, UpdateNode::Cached { context, cached }));
            }
        }
        let mut paths = Vec::new();
        for object in self.objects.paths.values_mut() {
            if let Some(context) = object.begin_update() {
                let cached = object.state.cached();
                paths.push(Block::new(object.handle, UpdateNode::Cached { context, cached }));
            }
        }
        let connections = self.connection_updates();
        if !connections.is_empty() {
            paths.push(Block::new(NOBODY, UpdateNode::Placeholder).with(connections));
        }
        if !paths.is_empty() {
            tree.push(Block::new(NOBODY, UpdateNode::Placeholder).with(paths));
        }
        if !tree.is_empty() {
            self.send_update(tree);
        }
    }

    fn connection_updates(
        &mut self,
    ) -> Vec<offload_engine::chimney::tree::TcpBlock<UpdateNode<Box<TcpUpdate>>>> {
        let cached = self.config.cached();
        let mut nodes = Vec::new();
        for (handle, offloaded) in &mut self.offloaded {
            if let OffloadStage::With(context) = offloaded.stage
                && offloaded.updating.is_none()
                && offloaded.cached != cached
            {
                offloaded.updating = Some(cached);
                let cached = Box::new(TcpUpdate::of(&offloaded.cached, cached));
                nodes.push(Block::new(*handle, UpdateNode::Cached { context, cached }));
            }
        }
        nodes
    }

    fn send_update(&mut self, tree: UpdateTree) {
        self.stats.updates += 1;
        self.engine.update(tree);
        self.ring = true;
    }

    /// NdisMUpdateOffloadComplete.
    pub(super) fn update_complete(&mut self, now: Instant, tree: UpdateTree) {
        let mut unused = Unused::default();
        let mut failed = Vec::new();
        for Block { handle, payload: _, status, dependents: paths } in tree {
            if let Some((next_hop, object)) = self.objects.neighbor_by(handle) {
                object.updating = false;
                if status == NdisStatus::FAILURE {
                    failed.extend(self.dependents_of(|path| path.next_hop == next_hop));
                }
                self.objects.drop_neighbor_if_unused(next_hop, &mut unused);
            }
            for Block { handle, payload: _, status, dependents: connections } in paths {
                if let Some((key, object)) = self.objects.path_by(handle) {
                    object.updating = false;
                    if status == NdisStatus::FAILURE {
                        let handle = object.handle;
                        failed.extend(self.dependents_of(|path| path.handle == handle));
                    }
                    self.objects.drop_path_if_unused(&key, &mut unused);
                }
                for Block { handle, payload: _, status, dependents: _ } in connections {
                    self.connection_updated(handle, status, &mut failed);
                }
            }
        }
        self.terminate_unused(unused);
        self.terminate(failed, Some(UploadReason::UploadRequested));
        self.push_updates(now);
    }

    fn connection_updated(
        &mut self,
        handle: OffloadHandle,
        status: NdisStatus,
        failed: &mut Vec<OffloadHandle>,
    ) {
        let Some(offloaded) = self.offloaded.get_mut(&handle) else { return };
        let Some(cached) = offloaded.updating.take() else { return };
        if status == NdisStatus::SUCCESS {
            offloaded.cached = cached;
        } else {
            failed.push(handle);
        }
        if let Some(reason) = offloaded.recall.take() {
            self.terminate([handle], reason);
        }
    }
}
