//! The next hop of a path changes (CH-UPD-2, -7).
//!
//! The new neighbor is sought, offloaded alone, and then the paths are linked to it by an update; the old one is
//! terminated when its last path has gone. Until then connections go on through the old one: it need not be dead. A
//! path that is being linked anew takes no new connection.
//!
//! Timer: the new next hop is solicited every [`SOLICIT_INTERVAL`] until it answers.

use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::net::IpAddr;

use offload_engine::{
    chimney::{
        client::OffloadHandle,
        provider::OffloadProvider,
        state::MacAddress,
        tree::{Block, InitiateNode, UpdateNode},
    },
    status::NdisStatus,
    time::Instant,
};

use super::{
    ConfigError, Host, HostConfig,
    neighbors::SOLICIT_INTERVAL,
    objects::{Neighbor, Object, PathKey, Unused},
};

impl Host {
    /// Changes the default gateways: what is sent from now on goes through them, and so do the connections of the
    /// target's as soon as the new next hop has answered.
    ///
    /// # Errors
    /// [`ConfigError::Gateway`], and nothing has changed.
    pub fn set_gateways(&mut self, gateways: Vec<IpAddr>) -> Result<(), ConfigError> {
        let config = HostConfig { gateways, ..self.config.clone() };
        config.check()?;
        self.config = config;
        let routes = self.interface.routes_mut();
        let _ = (routes.remove_default_ipv4_route(), routes.remove_default_ipv6_route());
        self.config.add_routes(&mut self.interface);
        self.seek_hops_at = Some(Instant::ZERO);
        self.wake_at = Some(Instant::ZERO);
        Ok(())
    }

    /// Links paths anew whose next hop has changed, as far as the new one is there, and seeks it where it is not.
    /// Returns whether anything was done.
    pub(super) fn relink_paths(&mut self, now: Instant) -> bool {
        let Some(seek_at) = self.seek_hops_at else { return false };
        let mut moves = BTreeMap::<IpAddr, Vec<PathKey>>::new();
        let mut missing = Vec::new();
        let mut waiting = false;
        for (key, path) in &self.objects.paths {
            let Some(hop) = self.config.next_hop(key.destination) else { continue };
            if hop == path.state.next_hop {
                continue;
            }
            waiting = true;
            match self.objects.neighbors.get(&hop) {
                None => missing.push(hop),
                Some(neighbor) if neighbor.context().is_some() => {
                    if path.context().is_some() && !path.updating {
                        moves.entry(hop).or_default().push(*key);
                    }
                }
                Some(_) => {}
            }
        }
        let work = !moves.is_empty();
        for (hop, paths) in moves {
            self.link_to(hop, &paths);
        }
        if !waiting {
            self.seek_hops_at = None;
            self.drop_unused_neighbors();
        } else if seek_at <= now {
            self.seek_hops_at = Some(now + SOLICIT_INTERVAL);
            missing.dedup();
            for hop in missing {
                self.solicit(now, hop);
            }
            return true;
        }
        work
    }

    /// Asks the target to link these paths to that neighbor.
    fn link_to(&mut self, hop: IpAddr, paths: &[PathKey]) {
        let mut nodes = Vec::new();
        for key in paths {
            let Some(path) = self.objects.paths.get_mut(key) else { continue };
            let Some(context) = path.context() else { continue };
            path.updating = true;
            path.state.moving_to = Some(hop);
            nodes.push(Block::new(path.handle, UpdateNode::Linker(context)));
        }
        let Some(neighbor) = self.objects.neighbors.get_mut(&hop) else { return };
        let Some(context) = neighbor.context() else { return };
        neighbor.dependents += nodes.len();
        let node = Block::new(neighbor.handle, UpdateNode::Linker(context)).with(nodes);
        self.send_update(vec![node]);
    }

    /// What has become of a path that was to be linked anew. Returns the connections that have to come back.
    pub(super) fn relinked(
        &mut self,
        key: PathKey,
        status: NdisStatus,
        unused: &mut Unused,
    ) -> Vec<OffloadHandle> {
        let Some(path) = self.objects.paths.get_mut(&key) else { return Vec::new() };
        let Some(hop) = path.state.moving_to.take() else { return Vec::new() };
        let done = status == NdisStatus::SUCCESS;
        let left = if done { core::mem::replace(&mut path.state.next_hop, hop) } else { hop };
        if let Some(neighbor) = self.objects.neighbors.get_mut(&left) {
            neighbor.dependents -= 1;
        }
        self.objects.drop_neighbor_if_unused(left, unused);
        if done { Vec::new() } else { self.connections_on(key) }
    }

    /// A station has told where it is. If paths wait for it, the target gets it as a neighbor.
    pub(super) fn found_neighbor(&mut self, now: Instant, address: IpAddr, mac: MacAddress) {
        let waits = self.objects.paths.iter().any(|(key, path)| {
            path.state.next_hop != address && self.config.next_hop(key.destination) == Some(address)
        });
        if self.paused || self.seek_hops_at.is_none() || !waits {
            return;
        }
        let object = Object::new(self.new_handle(), Neighbor { mac, heard_at: now, probing: None });
        let state = InitiateNode::new(object.state.offload_state(now));
        let tree = vec![Block::new(object.handle, state)];
        self.objects.neighbors.insert(address, object);
        self.engine.initiate(tree);
        self.ring = true;
    }

    /// Lets go of neighbors that were offloaded for paths that then stayed where they were.
    fn drop_unused_neighbors(&mut self) {
        let mut unused = Unused::default();
        let all = self.objects.neighbors.iter();
        let idle = all.filter(|(_, neighbor)| neighbor.context().is_some());
        for hop in idle.map(|(hop, _)| *hop).collect::<Vec<_>>() {
            self.objects.drop_neighbor_if_unused(hop, &mut unused);
        }
        self.terminate_unused(unused);
    }
}
