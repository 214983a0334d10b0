//! Neighbor and path objects of the target (CH §4): tables, names, reference counts, limits.
//!
//! Links point upward only, from a connection to its path and from a path to its neighbor (CH-TREE-9). Transmission
//! follows them; reception finds the connection directly. Each object counts its dependents, and an object with
//! dependents cannot be terminated. A name is an index and a generation ([`TargetContext`]). Objects of all layers have
//! different names, until one table entry has held 2^30 objects.
//!
//! Limits are those of [`OffloadCapabilities`]; each has its own status. No limit is checked per packet.

use alloc::vec::Vec;
use core::{hash::Hash, net::IpAddr};

use hashbrown::HashMap;

use super::{client::OffloadHandle, provider::OffloadCapabilities, tree::TargetContext};
use crate::{
    state::{
        MacAddress, NeighborCached, NeighborConst, NeighborDelegated, NeighborState, PathCached,
        PathConst, PathState, Ticks,
    },
    status::NdisStatus,
    table::Table,
    time::{Duration, Instant},
};

/// Layers of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layer {
    Neighbor = 1,
    Path,
    #[cfg_attr(
        not(feature = "std"),
        expect(dead_code, reason = "connections are in `engine`, which needs std")
    )]
    Tcp,
}

/// Creates the object table of one layer. Generations of different layers have different remainders.
pub(crate) const fn objects<T>(layer: Layer) -> Table<TargetContext, T> {
    Table::starting_at(layer as u32, 4, u32::MAX)
}

/// Distinct values in use, each with its use count.
#[derive(Debug)]
struct UseCounts<K>(HashMap<K, u32>);

impl<K: Eq + Hash> UseCounts<K> {
    fn new() -> Self {
        Self(HashMap::new())
    }

    /// True if `key` is already in use, or fewer than `max` distinct values are.
    fn fits(&self, key: &K, max: usize) -> bool {
        self.0.len() < max || self.0.contains_key(key)
    }

    fn add(&mut self, key: K) {
        *self.0.entry(key).or_insert(0) += 1;
    }

    fn remove(&mut self, key: &K) {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }
}

/// Time in ticks, modulo 2^32 as in the chimney.
type TickCount = u32;

const fn tick_count(now: Instant) -> TickCount {
    now.as_millis() as u32
}

#[derive(Debug)]
struct Neighbor {
    handle: OffloadHandle,
    constant: NeighborConst,
    dl_destination_address: MacAddress,
    /// HRT: time of the host's last reachability confirmation.
    host_reachable: TickCount,
    /// NRT: time of the target's last reachability confirmation.
    nic_reachable: TickCount,
    /// Time of a reachability query that the host has not answered.
    queried_at: Option<TickCount>,
    paths: u32,
    invalid: bool,
}

#[derive(Debug)]
struct Path {
    constant: PathConst,
    cached: PathCached,
    neighbor: TargetContext,
    connections: u32,
    invalid: bool,
}

/// Reachability query to the host (CH §9.7), sent as [`ToHost::NeighborReachabilityQuery`].
///
/// [`ToHost::NeighborReachabilityQuery`]: crate::engine::port::ToHost::NeighborReachabilityQuery
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReachabilityQuery {
    /// Neighbor queried.
    pub neighbor: OffloadHandle,
    /// Ticks since the host last confirmed reachability.
    pub host_reachability_delta: Ticks,
    /// Ticks since the target last confirmed reachability.
    pub nic_reachability_delta: Ticks,
}

/// Neighbor and path objects of a target.
#[derive(Debug)]
pub struct Objects {
    neighbors: Table<TargetContext, Neighbor>,
    paths: Table<TargetContext, Path>,
    interface_mac: MacAddress,
    interface_vlans: Vec<u16>,
    nce_stale: TickCount,
    capabilities: OffloadCapabilities,
    hw_addresses: UseCounts<MacAddress>,
    vlans: UseCounts<u16>,
    ip_addresses: UseCounts<IpAddr>,
}

impl Objects {
    /// Creates empty tables. `nce_stale` is NceStaleTicks (CH §9.7).
    pub fn new(
        interface_mac: MacAddress,
        capabilities: OffloadCapabilities,
        nce_stale: Duration,
    ) -> Self {
        Self {
            neighbors: objects(Layer::Neighbor),
            paths: objects(Layer::Path),
            interface_mac,
            interface_vlans: Vec::new(),
            nce_stale: TickCount::try_from(nce_stale.as_millis()).unwrap_or(TickCount::MAX),
            capabilities,
            hw_addresses: UseCounts::new(),
            vlans: UseCounts::new(),
            ip_addresses: UseCounts::new(),
        }
    }

    /// Returns the limits.
    pub const fn capabilities(&self) -> &OffloadCapabilities {
        &self.capabilities
    }

    /// Replaces the limits. Objects already offloaded are not affected.
    pub const fn set_capabilities(&mut self, capabilities: OffloadCapabilities) {
        self.capabilities = capabilities;
    }

    /// Sets the VLAN ids of the interface, without 0. If there are none, any neighbor's id is accepted (CH §9.4).
    pub fn set_interface_vlans(&mut self, vlans: Vec<u16>) {
        self.interface_vlans = vlans;
    }

    /// Number of offloaded neighbors.
    pub const fn neighbors(&self) -> usize {
        self.neighbors.len()
    }

    /// Number of offloaded paths.
    pub const fn paths(&self) -> usize {
        self.paths.len()
    }

    /// True if frames to `address` are for this target: the interface's address, or the source address of a neighbor.
    pub fn is_ours(&self, address: &[u8; 6]) -> bool {
        *address == self.interface_mac.0
            || !self.hw_addresses.0.is_empty()
                && self.hw_addresses.0.contains_key(&MacAddress(*address))
    }

    /// Source address of a neighbor if it needs a separate entry.
    fn explicit_source(&self, constant: &NeighborConst) -> Option<MacAddress> {
        let source = constant.dl_source_address;
        (source != MacAddress::default() && source != self.interface_mac).then_some(source)
    }

    /// Checks a neighbor's VLAN id (CH §9.4).
    fn check_vlan(&self, vlan_id: u16) -> Result<(), NdisStatus> {
        if vlan_id == 0 {
            return Ok(());
        }
        if !self.interface_vlans.is_empty() && !self.interface_vlans.contains(&vlan_id) {
            return Err(NdisStatus::OFFLOAD_VLAN_MISMATCH);
        }
        match self.vlans.fits(&vlan_id, self.capabilities.vlans_max) {
            true => Ok(()),
            false => Err(NdisStatus::OFFLOAD_VLAN_ENTRIES),
        }
    }

    /// Adds a neighbor.
    ///
    /// # Errors
    /// OFFLOAD_NEIGHBOR_ENTRIES, OFFLOAD_VLAN_MISMATCH, OFFLOAD_VLAN_ENTRIES, OFFLOAD_HW_ADDRESS_ENTRIES, RESOURCES.
    pub fn add_neighbor(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        state: &NeighborState,
    ) -> Result<TargetContext, NdisStatus> {
        let NeighborState { constant, cached, delegated } = *state;
        let NeighborCached { dl_destination_address, host_reachability_delta } = cached;
        let NeighborDelegated { nic_reachability_delta } = delegated;
        if self.neighbors.len() >= self.capabilities.neighbors_max {
            return Err(NdisStatus::OFFLOAD_NEIGHBOR_ENTRIES);
        }
        let vlan_id = constant.vlan_id & 0xfff;
        self.check_vlan(vlan_id)?;
        let source = self.explicit_source(&constant);
        if let Some(source) = &source
            && !self.hw_addresses.fits(source, self.capabilities.hw_addresses_max)
        {
            return Err(NdisStatus::OFFLOAD_HW_ADDRESS_ENTRIES);
        }
        let neighbor = Neighbor {
            handle,
            constant,
            dl_destination_address,
            host_reachable: tick_count(now).wrapping_sub(host_reachability_delta),
            nic_reachable: tick_count(now).wrapping_sub(nic_reachability_delta),
            queried_at: None,
            paths: 0,
            invalid: false,
        };
        let context = self.neighbors.insert(neighbor).map_err(|_| NdisStatus::RESOURCES)?;
        if vlan_id != 0 {
            self.vlans.add(vlan_id);
        }
        if let Some(source) = source {
            self.hw_addresses.add(source);
        }
        Ok(context)
    }

    /// Adds a path to `neighbor`.
    ///
    /// # Errors
    /// FAILURE: `neighbor` does not exist or is invalid, or the addresses are of two families or of an unsupported one.
    /// OFFLOAD_PATH_ENTRIES, OFFLOAD_PATH_MTU, OFFLOAD_IP_ADDRESS_ENTRIES, RESOURCES.
    pub fn add_path(
        &mut self,
        neighbor: TargetContext,
        state: &PathState,
    ) -> Result<TargetContext, NdisStatus> {
        let PathState { constant, cached } = *state;
        let PathConst { source_address, destination_address } = constant;
        let supported = match (source_address, destination_address) {
            (IpAddr::V4(_), IpAddr::V4(_)) => self.capabilities.support_ipv4,
            (IpAddr::V6(_), IpAddr::V6(_)) => self.capabilities.support_ipv6,
            _ => false,
        };
        if !supported || !self.neighbor_is_valid(neighbor) {
            return Err(NdisStatus::FAILURE);
        }
        if self.paths.len() >= self.capabilities.paths_max {
            return Err(NdisStatus::OFFLOAD_PATH_ENTRIES);
        }
        if cached.path_mtu > self.capabilities.path_mtu_max {
            return Err(NdisStatus::OFFLOAD_PATH_MTU);
        }
        if !self.ip_addresses.fits(&source_address, self.capabilities.ip_addresses_max) {
            return Err(NdisStatus::OFFLOAD_IP_ADDRESS_ENTRIES);
        }
        let path = Path { constant, cached, neighbor, connections: 0, invalid: false };
        let context = self.paths.insert(path).map_err(|_| NdisStatus::RESOURCES)?;
        self.ip_addresses.add(source_address);
        if let Some(neighbor) = self.neighbors.get_mut(neighbor) {
            neighbor.paths += 1;
        }
        Ok(context)
    }

    /// Removes a neighbor and returns its state (CH-TRM-4).
    ///
    /// # Errors
    /// FAILURE: the neighbor does not exist, or paths depend on it (CH-TRM-2).
    pub fn remove_neighbor(
        &mut self,
        now: Instant,
        context: TargetContext,
    ) -> Result<NeighborDelegated, NdisStatus> {
        let state = self.neighbor(now, context).ok_or(NdisStatus::FAILURE)?;
        if self.neighbors.get(context).is_none_or(|neighbor| neighbor.paths > 0) {
            return Err(NdisStatus::FAILURE);
        }
        self.neighbors.remove(context);
        let vlan_id = state.constant.vlan_id & 0xfff;
        if vlan_id != 0 {
            self.vlans.remove(&vlan_id);
        }
        if let Some(source) = self.explicit_source(&state.constant) {
            self.hw_addresses.remove(&source);
        }
        Ok(state.delegated)
    }

    /// Removes a path.
    ///
    /// # Errors
    /// FAILURE: the path does not exist, or connections depend on it (CH-TRM-2).
    pub fn remove_path(&mut self, context: TargetContext) -> Result<(), NdisStatus> {
        if self.paths.get(context).is_none_or(|path| path.connections > 0) {
            return Err(NdisStatus::FAILURE);
        }
        if let Some(path) = self.paths.remove(context) {
            self.ip_addresses.remove(&path.constant.source_address);
            self.unlink(path.neighbor);
        }
        Ok(())
    }

    fn unlink(&mut self, neighbor: TargetContext) {
        if let Some(neighbor) = self.neighbors.get_mut(neighbor) {
            neighbor.paths -= 1;
        }
    }

    /// Counts a connection offloaded on this path.
    pub fn attach(&mut self, path: TargetContext) {
        if let Some(path) = self.paths.get_mut(path) {
            path.connections += 1;
        }
    }

    /// Counts a connection removed from this path.
    pub fn detach(&mut self, path: TargetContext) {
        if let Some(path) = self.paths.get_mut(path) {
            path.connections -= 1;
        }
    }

    /// Returns a neighbor's state as of `now`.
    pub fn neighbor(&self, now: Instant, context: TargetContext) -> Option<NeighborState> {
        let Neighbor {
            handle: _,
            constant,
            dl_destination_address,
            host_reachable,
            nic_reachable,
            queried_at: _,
            paths: _,
            invalid: _,
        } = *self.neighbors.get(context)?;
        Some(NeighborState {
            constant,
            cached: NeighborCached {
                dl_destination_address,
                host_reachability_delta: tick_count(now).wrapping_sub(host_reachable),
            },
            delegated: NeighborDelegated {
                nic_reachability_delta: tick_count(now).wrapping_sub(nic_reachable),
            },
        })
    }

    /// Returns a path's state.
    pub fn path(&self, context: TargetContext) -> Option<PathState> {
        let Path { constant, cached, neighbor: _, connections: _, invalid: _ } =
            *self.paths.get(context)?;
        Some(PathState { constant, cached })
    }

    /// Returns the neighbor that a path is linked to.
    pub fn neighbor_of(&self, path: TargetContext) -> Option<TargetContext> {
        self.paths.get(path).map(|path| path.neighbor)
    }

    /// Returns the states of a path and its neighbor.
    pub fn joined(&self, now: Instant, path: TargetContext) -> Option<(NeighborState, PathState)> {
        let neighbor = self.neighbor(now, self.neighbor_of(path)?)?;
        Some((neighbor, self.path(path)?))
    }

    /// True if the neighbor exists and is not invalid.
    pub fn neighbor_is_valid(&self, context: TargetContext) -> bool {
        self.neighbors.get(context).is_some_and(|neighbor| !neighbor.invalid)
    }

    /// True if the path exists and neither it nor its neighbor is invalid.
    pub fn path_is_valid(&self, context: TargetContext) -> bool {
        self.paths
            .get(context)
            .is_some_and(|path| !path.invalid && self.neighbor_is_valid(path.neighbor))
    }

    /// Replaces a neighbor's cached class (CH §5.3).
    ///
    /// # Errors
    /// FAILURE: the neighbor does not exist or is invalid (CH-UPD-3).
    pub fn update_neighbor(
        &mut self,
        now: Instant,
        context: TargetContext,
        cached: NeighborCached,
    ) -> Result<(), NdisStatus> {
        let NeighborCached { dl_destination_address, host_reachability_delta } = cached;
        let neighbor = self.neighbors.get_mut(context).filter(|neighbor| !neighbor.invalid);
        let neighbor = neighbor.ok_or(NdisStatus::FAILURE)?;
        neighbor.dl_destination_address = dl_destination_address;
        neighbor.host_reachable = tick_count(now).wrapping_sub(host_reachability_delta);
        neighbor.queried_at = None;
        Ok(())
    }

    /// Replaces a path's cached class.
    ///
    /// # Errors
    /// FAILURE: the path does not exist or is invalid, or the path MTU exceeds the limit.
    pub fn update_path(
        &mut self,
        context: TargetContext,
        cached: PathCached,
    ) -> Result<(), NdisStatus> {
        let path = self.paths.get_mut(context).filter(|path| !path.invalid);
        let path = path.ok_or(NdisStatus::FAILURE)?;
        if cached.path_mtu > self.capabilities.path_mtu_max {
            return Err(NdisStatus::FAILURE);
        }
        path.cached = cached;
        Ok(())
    }

    /// Links a path to another neighbor (CH-UPD-2). Its previous neighbor may be invalid: this is the usual reason to
    /// relink.
    ///
    /// # Errors
    /// FAILURE: the path or neighbor does not exist or is invalid. The path is not changed.
    pub fn relink(
        &mut self,
        path: TargetContext,
        neighbor: TargetContext,
    ) -> Result<(), NdisStatus> {
        if !self.neighbor_is_valid(neighbor) {
            return Err(NdisStatus::FAILURE);
        }
        let moved = self.paths.get_mut(path).filter(|path| !path.invalid);
        let moved = moved.ok_or(NdisStatus::FAILURE)?;
        let former = core::mem::replace(&mut moved.neighbor, neighbor);
        self.unlink(former);
        if let Some(neighbor) = self.neighbors.get_mut(neighbor) {
            neighbor.paths += 1;
        }
        Ok(())
    }

    /// Marks a neighbor invalid (CH-INV-2). Returns true if it exists.
    pub fn invalidate_neighbor(&mut self, context: TargetContext) -> bool {
        let neighbor = self.neighbors.get_mut(context);
        neighbor.map(|neighbor| neighbor.invalid = true).is_some()
    }

    /// Marks a path invalid. Returns true if it exists.
    pub fn invalidate_path(&mut self, context: TargetContext) -> bool {
        self.paths.get_mut(context).map(|path| path.invalid = true).is_some()
    }

    /// Records that the neighbor of `path` is reachable (CH §9.7).
    pub fn confirm(&mut self, now: Instant, path: TargetContext) {
        if let Some(neighbor) = self.neighbor_of(path)
            && let Some(neighbor) = self.neighbors.get_mut(neighbor)
        {
            neighbor.nic_reachable = tick_count(now);
        }
    }

    /// Returns a query to the host if neither side has confirmed the neighbor of `path` within NceStaleTicks (CH §9.7).
    /// Called before a segment is sent. An unanswered query is repeated after another NceStaleTicks.
    pub fn reachability_query(
        &mut self,
        now: Instant,
        path: TargetContext,
    ) -> Option<ReachabilityQuery> {
        let neighbor = self.neighbor_of(path)?;
        let neighbor = self.neighbors.get_mut(neighbor)?;
        let ticks = tick_count(now);
        let stale = |since: TickCount| ticks.wrapping_sub(since) > self.nce_stale;
        if !stale(neighbor.nic_reachable)
            || !stale(neighbor.host_reachable)
            || neighbor.queried_at.is_some_and(|queried_at| !stale(queried_at))
        {
            return None;
        }
        neighbor.queried_at = Some(ticks);
        Some(ReachabilityQuery {
            neighbor: neighbor.handle,
            host_reachability_delta: ticks.wrapping_sub(neighbor.host_reachable),
            nic_reachability_delta: ticks.wrapping_sub(neighbor.nic_reachable),
        })
    }
}
