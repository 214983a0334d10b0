//! Updates of cached variables of offloaded connections, and reachability of their neighbors.
//!
//! An object has at most one outstanding update (CH-UPD-3); later changes are sent with the next. If the target cannot
//! apply an update, all connections that depend on the object are uploaded (CH-UPD-4).
//!
//! The target queries a neighbor that neither side has confirmed recently (CH §9.7). If the host has confirmed it, it
//! reports the time. Otherwise it answers "just now", which delays the next query, and solicits the neighbor itself.
//! After [`PROBES_MAX`] unanswered solicitations, [`SOLICIT_INTERVAL`] apart, and without forward progress of an
//! offloaded connection, the neighbor is invalidated. Its connections are uploaded, and smoltcp resolves the next hop
//! again.

use alloc::{boxed::Box, vec, vec::Vec};
use core::net::IpAddr;

use offload_engine::{
    chimney::{
        client::{OffloadHandle, UploadReason},
        tree::{Block, ClassQuery, ObjectNode, Query, QueryTree, TcpBlock, UpdateNode, UpdateTree},
    },
    state::{MacAddress, NeighborCached, TcpUpdate},
    status::NdisStatus,
    time::{Duration, Instant},
};
use smoltcp::wire::{
    ArpPacket, ArpRepr, EthernetFrame, EthernetProtocol, Icmpv6Packet, IpProtocol, Ipv6Packet,
    NdiscRepr,
};

use super::{
    Host,
    connection::OffloadStage,
    neighbors::SOLICIT_INTERVAL,
    objects::{PathKey, Probing, Unused},
    shards::ShardId,
};

/// Validity of a neighbor confirmation in the host: the target's default (NceStaleTicks).
pub(super) const NEIGHBOR_STALE: Duration = Duration::from_secs(30);
/// Maximum number of solicitations of a suspected neighbor (RFC 4861 §10: MAX_UNICAST_SOLICIT).
const PROBES_MAX: u32 = 3;

/// Placeholder handle of ignored objects: no object has this handle.
const NO_HANDLE: OffloadHandle = OffloadHandle(0);

impl Host {
    /// Sends pending updates to all targets.
    pub(super) fn push_all_updates(&mut self, now: Instant) {
        self.shards.ids().for_each(|shard| self.push_updates(now, shard));
    }

    /// Sends pending updates to the target of `shard`, unless an update is outstanding.
    pub(super) fn push_updates(&mut self, now: Instant, shard: ShardId) {
        let mut tree: UpdateTree = Vec::new();
        let objects = &mut self.shards[shard].objects;
        for object in objects.neighbors.values_mut() {
            if let Some(context) = object.begin_update() {
                let cached = object.state.cached(now);
                tree.push(Block::new(object.handle, UpdateNode::Cached { context, cached }));
            }
        }
        let mut paths = Vec::new();
        for object in objects.paths.values_mut() {
            if let Some(context) = object.begin_update() {
                let cached = object.state.cached();
                paths.push(Block::new(object.handle, UpdateNode::Cached { context, cached }));
            }
        }
        let connections = self.connection_updates(shard);
        if !connections.is_empty() {
            paths.push(Block::new(NO_HANDLE, UpdateNode::Placeholder).with(connections));
        }
        if !paths.is_empty() {
            tree.push(Block::new(NO_HANDLE, UpdateNode::Placeholder).with(paths));
        }
        if !tree.is_empty() {
            self.send_update(shard, tree);
        }
    }

    fn connection_updates(&mut self, shard: ShardId) -> Vec<TcpBlock<UpdateNode<Box<TcpUpdate>>>> {
        let mut nodes = Vec::new();
        let Self { outdated, offloaded, config, shards, .. } = self;
        outdated.retain(|handle| {
            let Some(offloaded) = offloaded.get_mut(handle) else { return false };
            // A connection with an outstanding initiate is checked after its completion.
            let OffloadStage::With(context) = offloaded.stage else { return false };
            if offloaded.shard != shard || offloaded.updating.is_some() {
                return true;
            }
            let client = shards[shard].client(offloaded.client);
            let cached = config.cached(client.and_then(|client| client.keep_alive));
            if offloaded.cached != cached {
                offloaded.updating = Some(cached);
                let cached = Box::new(TcpUpdate::of(&offloaded.cached, cached));
                nodes.push(Block::new(*handle, UpdateNode::Cached { context, cached }));
            }
            false
        });
        nodes
    }

    pub(super) fn send_update(&mut self, shard: ShardId, tree: UpdateTree) {
        self.stats.updates += 1;
        self.shards[shard].engine.update(tree);
    }

    /// NdisMUpdateOffloadComplete.
    pub(super) fn updated(&mut self, now: Instant, shard: ShardId, tree: UpdateTree) {
        let mut unused = Unused::default();
        let mut failed = Vec::new();
        for Block { handle, payload, status, dependents: paths } in tree {
            if let (UpdateNode::Cached { .. }, Some((next_hop, object))) =
                (payload, self.shards[shard].objects.neighbor_by(handle))
            {
                object.updating = false;
                if status == NdisStatus::FAILURE {
                    failed.extend(self.connections_through(shard, next_hop));
                }
                self.shards[shard].objects.drop_neighbor_if_unused(next_hop, &mut unused);
            }
            for Block { handle, payload, status, dependents: connections } in paths {
                if let Some((key, object)) = self.shards[shard].objects.path_by(handle) {
                    object.updating = false;
                    if let UpdateNode::Linker(_) = payload {
                        failed.extend(self.relinked(shard, key, status, &mut unused));
                    } else if status == NdisStatus::FAILURE {
                        failed.extend(self.connections_on(shard, key));
                    }
                    self.shards[shard].objects.drop_path_if_unused(&key, &mut unused);
                }
                for Block { handle, payload: _, status, dependents: _ } in connections {
                    self.connection_updated(handle, status, &mut failed);
                }
            }
        }
        self.terminate_unused(shard, unused);
        self.terminate(failed, Some(UploadReason::UploadRequested));
        self.push_updates(now, shard);
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

    /// Connections of the shard offloaded on this path.
    pub(super) fn connections_on(&self, shard: ShardId, path: PathKey) -> Vec<OffloadHandle> {
        let on_it = self
            .offloaded
            .iter()
            .filter(|(_, found)| found.shard == shard && PathKey::of(&found.tuple) == path);
        on_it.map(|(handle, _)| *handle).collect()
    }

    /// Connections of the shard offloaded through this neighbor.
    fn connections_through(&self, shard: ShardId, next_hop: IpAddr) -> Vec<OffloadHandle> {
        let objects = &self.shards[shard].objects;
        let of_shard = self.offloaded.iter().filter(|(_, found)| found.shard == shard);
        let through = of_shard.filter(|(_, found)| {
            let path = objects.paths.get(&PathKey::of(&found.tuple));
            path.is_some_and(|path| path.state.next_hop == next_hop)
        });
        through.map(|(handle, _)| *handle).collect()
    }

    /// Records a smaller path MTU of an offloaded connection, for all present and future connections on the path
    /// (CH-UPD-5).
    pub(super) fn path_narrowed(&mut self, now: Instant, handle: OffloadHandle, mtu: u32) {
        let Some(offloaded) = self.offloaded.get(&handle) else { return };
        let path = PathKey::of(&offloaded.tuple);
        self.paths.record_path_mtu(now, path.destination, mtu);
        for shard in self.shards.ids() {
            if let Some(object) = self.shards[shard].objects.paths.get_mut(&path)
                && mtu < object.state.mtu
            {
                object.state.mtu = mtu;
                object.stale = true;
                self.push_updates(now, shard);
            }
        }
    }

    /// Reads the Ethernet address of a neighbor from a frame: an ARP reply or neighbor advertisement, or a request that
    /// contains it (RFC 826, RFC 4861 §7.2.5).
    pub(super) fn read_announcement(&mut self, now: Instant, frame: &[u8]) {
        let Some((address, mac)) = announced(frame) else { return };
        if self.config.gateways.contains(&address) {
            self.gateway_macs.insert(address, mac);
        }
        self.confirm_hop(now, address, mac);
        self.move_half_open(address, mac);
        for connection in self.connections.values_mut() {
            if self.config.reply_hop(connection.tuple.remote().ip()) == address {
                // Newer than the last segment.
                connection.flow.peer_mac = mac;
            }
        }
        for shard in self.shards.ids() {
            let Some(object) = self.shards[shard].objects.neighbors.get_mut(&address) else {
                self.neighbor_resolved(now, shard, address, mac);
                continue;
            };
            object.state.confirmed_at = now;
            object.state.probing = None;
            if object.state.mac != mac {
                object.state.mac = mac;
                object.stale = true;
                self.push_updates(now, shard);
            }
        }
    }

    /// Confirms the next hop after forward progress of a connection in the host (CH §9.7).
    pub(super) fn confirm_neighbor(&mut self, now: Instant, path: &PathKey) {
        for objects in self.shards.iter_mut().map(|shard| &mut shard.objects) {
            let known = objects.paths.get(path).map(|path| path.state.next_hop);
            let next_hop = known.or_else(|| self.config.next_hop(path.destination));
            if let Some(object) = next_hop.and_then(|hop| objects.neighbors.get_mut(&hop)) {
                object.state.confirmed_at = now;
                object.state.probing = None;
            }
        }
    }

    /// NeighborReachabilityQuery.
    pub(super) fn reachability_query(
        &mut self,
        now: Instant,
        shard: ShardId,
        neighbor: OffloadHandle,
    ) {
        let objects = &mut self.shards[shard].objects;
        let Some((_, object)) = objects.neighbor_by(neighbor) else { return };
        let Some(context) = object.context() else { return };
        let delta = object.state.host_reachability_delta(now);
        let is_stale = now.saturating_since(object.state.confirmed_at) > NEIGHBOR_STALE;
        if is_stale && object.state.probing.is_none() {
            object.state.probing =
                Some(Probing { since: now, next_at: now, sent: 0, query_outstanding: false });
            self.wake_at = Some(now);
        }
        // The outstanding update carries a delta too.
        if core::mem::replace(&mut object.updating, true) {
            return;
        }
        let cached = NeighborCached {
            dl_destination_address: object.state.mac,
            host_reachability_delta: if is_stale { 0 } else { delta },
        };
        object.stale = false;
        let node = UpdateNode::Cached { context, cached };
        self.send_update(shard, vec![Block::new(neighbor, node)]);
    }

    /// Solicits the suspected neighbors that are due. Returns true if there were any.
    pub(super) fn probe_neighbors(&mut self, now: Instant) -> bool {
        self.shards.ids().fold(false, |work, shard| work | self.probe_neighbors_of(now, shard))
    }

    fn probe_neighbors_of(&mut self, now: Instant, shard: ShardId) -> bool {
        let mut solicit = Vec::new();
        let mut ask = Vec::new();
        for (next_hop, object) in &mut self.shards[shard].objects.neighbors {
            let context = object.context();
            let Some(probing) = &mut object.state.probing else { continue };
            if probing.next_at > now || probing.query_outstanding {
                continue;
            }
            probing.next_at = now + SOLICIT_INTERVAL;
            if probing.sent < PROBES_MAX {
                probing.sent += 1;
                solicit.push(*next_hop);
            } else if let Some(context) = context {
                probing.query_outstanding = true;
                ask.push((object.handle, context));
            }
        }
        let work = !solicit.is_empty() || !ask.is_empty();
        for next_hop in solicit {
            self.solicit(now, next_hop);
        }
        if !ask.is_empty() {
            let query = |(handle, context)| {
                let payload = Query::delegated();
                Block::new(handle, ObjectNode::Object { context, payload })
            };
            let tree: QueryTree = ask.into_iter().map(query).collect();
            self.shards[shard].engine.query(tree);
        }
        work
    }

    /// Time of the next [`Host::probe_neighbors`].
    pub(super) fn next_probe(&self) -> Option<Instant> {
        let neighbors = self.shards.iter().flat_map(|shard| shard.objects.neighbors.values());
        let probing = neighbors.filter_map(|object| object.state.probing);
        probing.filter(|probing| !probing.query_outstanding).map(|probing| probing.next_at).min()
    }

    /// NdisMQueryOffloadStateComplete: forward progress of offloaded connections through neighbors that do not answer
    /// the host.
    pub(super) fn queried(&mut self, now: Instant, shard: ShardId, tree: QueryTree) {
        let (mut unreachable, mut failed) = (Vec::new(), Vec::new());
        for Block { handle, payload, status, dependents: _ } in tree {
            let ObjectNode::Object { context, payload } = payload else { continue };
            let objects = &mut self.shards[shard].objects;
            let Some((next_hop, object)) = objects.neighbor_by(handle) else { continue };
            let Some(Probing { since, .. }) = object.state.probing.take() else { continue };
            let ClassQuery::Answer(answer) = payload.delegated else {
                // CH-QRY-3: connections whose state cannot be read are uploaded; the neighbor is released without
                // dependents.
                tracing::warn!(%next_hop, %status, "neighbor query failed");
                failed.extend(self.connections_through(shard, next_hop));
                continue;
            };
            let delta = answer.nic_reachability_delta;
            if u128::from(delta) > now.saturating_since(since).as_millis() {
                let node = ObjectNode::Object { context, payload: () };
                unreachable.push(Block::new(handle, node));
            }
        }
        self.terminate(failed, Some(UploadReason::HardwareFailure));
        if !unreachable.is_empty() {
            tracing::warn!(neighbors = unreachable.len(), "unreachable neighbors invalidated");
            self.shards[shard].engine.invalidate(unreachable);
        }
    }
}

/// IP and Ethernet address in an ARP packet, a neighbor advertisement or a solicitation.
fn announced(frame: &[u8]) -> Option<(IpAddr, MacAddress)> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    match ethernet.ethertype() {
        EthernetProtocol::Arp => {
            let packet = ArpPacket::new_checked(ethernet.payload()).ok()?;
            let ArpRepr::EthernetIpv4 { source_hardware_addr, source_protocol_addr, .. } =
                ArpRepr::parse(&packet).ok()?
            else {
                return None;
            };
            Some((source_protocol_addr.into(), MacAddress(source_hardware_addr.0)))
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
            // RFC 4861 §7.1: 255 proves that no router has forwarded it.
            if packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != 255 {
                return None;
            }
            let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
            if !message.verify_checksum(&packet.src_addr(), &packet.dst_addr()) {
                return None;
            }
            let (address, mac) = match NdiscRepr::parse(&message).ok()? {
                NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => (target_addr, lladdr?),
                NdiscRepr::NeighborSolicit { lladdr, .. } => (packet.src_addr(), lladdr?),
                _ => return None,
            };
            let mac = <[u8; 6]>::try_from(mac.as_bytes()).ok()?;
            Some((address.into(), MacAddress(mac)))
        }
        _ => None,
    }
}
