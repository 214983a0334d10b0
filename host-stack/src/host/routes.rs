//! Changes of a path's next hop (CH-UPD-2, -7).
//!
//! The new neighbor is resolved and offloaded alone, then an update links the paths to it. The old neighbor is
//! terminated with its last path. Until then connections continue through the old one, which may still be reachable. A
//! path that is being relinked accepts no new connection.
//!
//! Timer: the new next hop is solicited every [`SOLICIT_INTERVAL`] until it answers.

use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::net::IpAddr;

use offload_engine::{
    chimney::{
        client::OffloadHandle,
        tree::{Block, InitiateNode, UpdateNode},
    },
    state::MacAddress,
    status::NdisStatus,
    time::Instant,
};

use super::{
    ConfigError, Host, HostConfig,
    connection::Connection,
    neighbors::SOLICIT_INTERVAL,
    objects::{Neighbor, Object, PathKey, Unused},
    offload::OffloadTiming,
    shards::ShardId,
};

impl Host {
    /// Changes the default gateways. New packets use them immediately; offloaded connections as soon as the new next
    /// hop has answered.
    ///
    /// # Errors
    /// [`ConfigError::Gateway`]; nothing is changed.
    pub fn set_gateways(&mut self, gateways: Vec<IpAddr>) -> Result<(), ConfigError> {
        let config = HostConfig { gateways, ..self.config.clone() };
        config.check()?;
        self.config = config;
        self.gateway_macs.retain(|gateway, _| self.config.gateways.contains(gateway));
        let routes = self.interface.routes_mut();
        let _ = (routes.remove_default_ipv4_route(), routes.remove_default_ipv6_route());
        self.config.add_routes(&mut self.interface);
        self.solicit_hops_at = Some(Instant::ZERO);
        self.wake_at = Some(Instant::ZERO);
        Ok(())
    }

    /// Relinks paths whose next hop has changed if the new one is resolved; otherwise solicits it. Returns true if
    /// anything was done.
    pub(super) fn relink_paths(&mut self, now: Instant) -> bool {
        let Some(seek_at) = self.solicit_hops_at else { return false };
        let mut moves = BTreeMap::<(ShardId, IpAddr), Vec<PathKey>>::new();
        let mut missing = Vec::new();
        let mut waiting = false;
        for shard in self.shards.ids() {
            let objects = &self.shards[shard].objects;
            for (key, path) in &objects.paths {
                let Some(hop) = self.config.next_hop(key.destination) else { continue };
                if hop == path.state.next_hop {
                    continue;
                }
                waiting = true;
                match objects.neighbors.get(&hop) {
                    None => missing.push(hop),
                    Some(neighbor) if neighbor.context().is_some() => {
                        if path.context().is_some() && !path.updating {
                            moves.entry((shard, hop)).or_default().push(*key);
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        for hop in self.missing_gateways(now) {
            waiting = true;
            missing.push(hop);
        }
        let work = !moves.is_empty();
        for ((shard, hop), paths) in moves {
            self.link_to(shard, hop, &paths);
        }
        if !waiting {
            self.solicit_hops_at = None;
            self.shards.ids().for_each(|shard| self.drop_unused_neighbors(shard));
        } else if seek_at <= now {
            self.solicit_hops_at = Some(now + SOLICIT_INTERVAL);
            missing.sort_unstable();
            missing.dedup();
            for hop in missing {
                self.solicit(now, hop);
            }
            return true;
        }
        work
    }

    /// Gateways without a known Ethernet address that delay the offload of a connection.
    fn missing_gateways(&self, now: Instant) -> Vec<IpAddr> {
        let waits =
            |connection: &&Connection| self.offload_timing(now, connection) != OffloadTiming::No;
        let waiting = self.connections.values().filter(waits);
        let hops = waiting.filter_map(|connection| {
            let destination = connection.tuple.remote().ip();
            self.config.next_hop(destination).filter(|hop| *hop != destination)
        });
        hops.filter(|hop| !self.gateway_macs.contains_key(hop)).collect()
    }

    /// Ethernet address of `hop` on the route to `destination`, whose last segment had the source address `seen`. A
    /// gateway's address is taken from its ARP or ND, since received packets may use another one. `None`: unknown, and
    /// solicited.
    pub(super) fn mac_of_hop(
        &mut self,
        now: Instant,
        hop: IpAddr,
        destination: IpAddr,
        seen: MacAddress,
    ) -> Option<MacAddress> {
        if hop == destination || !self.config.gateways.contains(&hop) {
            return Some(seen);
        }
        let known = self.gateway_macs.get(&hop).copied();
        if known.is_none() {
            self.solicit_hops_at.get_or_insert(now);
        }
        known
    }

    /// Requests that the target link these paths to the neighbor.
    fn link_to(&mut self, shard: ShardId, hop: IpAddr, paths: &[PathKey]) {
        let objects = &mut self.shards[shard].objects;
        let mut nodes = Vec::new();
        for key in paths {
            let Some(path) = objects.paths.get_mut(key) else { continue };
            let Some(context) = path.context() else { continue };
            path.updating = true;
            path.state.moving_to = Some(hop);
            nodes.push(Block::new(path.handle, UpdateNode::Linker(context)));
        }
        let Some(neighbor) = objects.neighbors.get_mut(&hop) else { return };
        let Some(context) = neighbor.context() else { return };
        neighbor.dependents += nodes.len();
        let node = Block::new(neighbor.handle, UpdateNode::Linker(context)).with(nodes);
        self.send_update(shard, vec![node]);
    }

    /// Handles the result of a relink. Returns the connections to upload.
    pub(super) fn relinked(
        &mut self,
        shard: ShardId,
        key: PathKey,
        status: NdisStatus,
        unused: &mut Unused,
    ) -> Vec<OffloadHandle> {
        let objects = &mut self.shards[shard].objects;
        let Some(path) = objects.paths.get_mut(&key) else { return Vec::new() };
        let Some(hop) = path.state.moving_to.take() else { return Vec::new() };
        let done = status == NdisStatus::SUCCESS;
        let left = if done { core::mem::replace(&mut path.state.next_hop, hop) } else { hop };
        if let Some(neighbor) = objects.neighbors.get_mut(&left) {
            neighbor.dependents -= 1;
        }
        objects.drop_neighbor_if_unused(left, unused);
        if done { Vec::new() } else { self.connections_on(shard, key) }
    }

    /// Handles a resolved Ethernet address. If paths need it, the target receives it as a neighbor.
    pub(super) fn neighbor_resolved(
        &mut self,
        now: Instant,
        shard: ShardId,
        address: IpAddr,
        mac: MacAddress,
    ) {
        let waits = self.shards[shard].objects.paths.iter().any(|(key, path)| {
            path.state.next_hop != address && self.config.next_hop(key.destination) == Some(address)
        });
        if self.shards[shard].paused || self.solicit_hops_at.is_none() || !waits {
            return;
        }
        let handle = self.shards.new_handle();
        let object = Object::new(handle, Neighbor { mac, confirmed_at: now, probing: None });
        let state = InitiateNode::new(object.state.offload_state(now));
        let tree = vec![Block::new(object.handle, state)];
        let shard = &mut self.shards[shard];
        shard.objects.neighbors.insert(address, object);
        shard.engine.initiate(tree);
    }

    /// Releases neighbors that were offloaded for a relink that did not happen.
    pub(super) fn drop_unused_neighbors(&mut self, shard: ShardId) {
        let mut unused = Unused::default();
        let objects = &mut self.shards[shard].objects;
        let all = objects.neighbors.iter();
        let idle = all.filter(|(_, neighbor)| neighbor.context().is_some());
        for hop in idle.map(|(hop, _)| *hop).collect::<Vec<_>>() {
            objects.drop_neighbor_if_unused(hop, &mut unused);
        }
        self.terminate_unused(shard, unused);
    }
}
