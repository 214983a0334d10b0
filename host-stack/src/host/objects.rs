//! Neighbor and path objects: their state in the target, and their dependents.
//!
//! A neighbor is identified by the address of the next hop, a path by its two addresses. Each is offloaded once,
//! however many connections use it. Dependents are counted here (CH-TRM-2): connections for a path, paths for a
//! neighbor. An object without dependents is terminated. No new dependent is added until the terminate is complete, nor
//! while its initiate is outstanding (CH-INI-1).
//!
//! Limits: an object exists only as long as an offloaded connection, so there are at most as many.

use alloc::{collections::BTreeMap, vec::Vec};
use core::net::IpAddr;

use offload_engine::{
    chimney::{client::OffloadHandle, tree::TargetContext},
    frame::FlowKey,
    state::{
        MacAddress, NeighborCached, NeighborConst, NeighborDelegated, NeighborState, PathCached,
        PathConst, PathState, Ticks,
    },
    time::Instant,
};

/// Source and destination of a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PathKey {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

/// State of an object in the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    /// The initiate is outstanding.
    Initiating,
    /// The target has it, under this context.
    Offloaded(TargetContext),
    /// The terminate is outstanding.
    Terminating,
}

/// Neighbor or path.
#[derive(Debug)]
pub(super) struct Object<S> {
    pub(super) handle: OffloadHandle,
    pub(super) link: Link,
    /// Number of paths, or connections, that depend on it.
    pub(super) dependents: usize,
    /// True if an update is outstanding; another one is deferred (CH-UPD-3).
    pub(super) updating: bool,
    /// True if the target's state, or that of the outstanding update, differs from `state`.
    pub(super) stale: bool,
    pub(super) state: S,
}

/// Variables of a neighbor.
#[derive(Debug)]
pub(super) struct Neighbor {
    pub(super) mac: MacAddress,
    /// Time of the last confirmation by ARP, neighbor discovery, or forward progress of a connection in the host.
    pub(super) confirmed_at: Instant,
    /// Probing requested by the target's reachability query.
    pub(super) probing: Option<Probing>,
}

/// Probing of a neighbor (CH §9.7).
#[derive(Clone, Copy, Debug)]
pub(super) struct Probing {
    pub(super) since: Instant,
    pub(super) next_at: Instant,
    pub(super) sent: u32,
    /// True if a query to the target for its confirmation is outstanding.
    pub(super) query_outstanding: bool,
}

/// Variables of a path.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) next_hop: IpAddr,
    /// Next hop that the path is being linked to.
    pub(super) moving_to: Option<IpAddr>,
    pub(super) mtu: u32,
}

/// Neighbors and paths of a shard.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) neighbors: BTreeMap<IpAddr, Object<Neighbor>>,
    pub(super) paths: BTreeMap<PathKey, Object<Path>>,
}

/// Objects to terminate because nothing depends on them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unused {
    pub(super) paths: Vec<(OffloadHandle, TargetContext)>,
    pub(super) neighbors: Vec<(OffloadHandle, TargetContext)>,
}

impl PathKey {
    pub(super) fn of(tuple: &FlowKey) -> Self {
        Self { source: tuple.local().ip(), destination: tuple.remote().ip() }
    }
}

impl<S> Object<S> {
    pub(super) const fn new(handle: OffloadHandle, state: S) -> Self {
        let (link, dependents) = (Link::Initiating, 0);
        Self { handle, link, dependents, updating: false, stale: false, state }
    }

    pub(super) const fn context(&self) -> Option<TargetContext> {
        match self.link {
            Link::Offloaded(context) => Some(context),
            Link::Initiating | Link::Terminating => None,
        }
    }

    /// Returns the object's context if an update of the target is due and possible, and marks it as outstanding.
    pub(super) fn begin_update(&mut self) -> Option<TargetContext> {
        let context = self.context().filter(|_| self.stale && !self.updating)?;
        self.stale = false;
        self.updating = true;
        Some(context)
    }

    /// Removal of the object if nothing depends on it.
    fn removal(&mut self) -> Removal {
        match self.link {
            _ if self.dependents > 0 || self.updating => Removal::None,
            Link::Initiating => Removal::Drop,
            Link::Offloaded(context) => {
                self.link = Link::Terminating;
                Removal::Terminate((self.handle, context))
            }
            Link::Terminating => Removal::None,
        }
    }
}

/// Removal of an object.
enum Removal {
    /// The object stays: it has dependents, or an update must complete first (CH-TRM-1).
    None,
    /// The target has never had the object.
    Drop,
    Terminate((OffloadHandle, TargetContext)),
}

impl Objects {
    /// Removes one connection from the dependents of `path`.
    #[must_use]
    pub(super) fn release(&mut self, path: &PathKey) -> Unused {
        let mut unused = Unused::default();
        let Some(object) = self.paths.get_mut(path) else { return unused };
        object.dependents -= 1;
        self.drop_path_if_unused(path, &mut unused);
        unused
    }

    /// Releases a path without dependents, and its neighbor.
    pub(super) fn drop_path_if_unused(&mut self, key: &PathKey, unused: &mut Unused) {
        let Some(object) = self.paths.get_mut(key) else { return };
        let next_hop = object.state.next_hop;
        match object.removal() {
            Removal::None => return,
            Removal::Drop => {
                self.paths.remove(key);
            }
            Removal::Terminate(path) => unused.paths.push(path),
        }
        if let Some(neighbor) = self.neighbors.get_mut(&next_hop) {
            neighbor.dependents -= 1;
        }
        self.drop_neighbor_if_unused(next_hop, unused);
    }

    /// Releases a neighbor without dependents.
    pub(super) fn drop_neighbor_if_unused(&mut self, next_hop: IpAddr, unused: &mut Unused) {
        let Some(object) = self.neighbors.get_mut(&next_hop) else { return };
        match object.removal() {
            Removal::None => {}
            Removal::Drop => {
                self.neighbors.remove(&next_hop);
            }
            Removal::Terminate(neighbor) => unused.neighbors.push(neighbor),
        }
    }

    pub(super) fn neighbor_by(
        &mut self,
        handle: OffloadHandle,
    ) -> Option<(IpAddr, &mut Object<Neighbor>)> {
        let mut all = self.neighbors.iter_mut();
        all.find(|(_, object)| object.handle == handle).map(|(key, object)| (*key, object))
    }

    pub(super) fn path_by(
        &mut self,
        handle: OffloadHandle,
    ) -> Option<(PathKey, &mut Object<Path>)> {
        let mut all = self.paths.iter_mut();
        all.find(|(_, object)| object.handle == handle).map(|(key, object)| (*key, object))
    }

    /// States of a path and its neighbor, for an uploaded connection.
    pub(super) fn states(&self, now: Instant, key: &PathKey) -> Option<(NeighborState, PathState)> {
        let path = self.paths.get(key)?;
        let neighbor = self.neighbors.get(&path.state.next_hop)?;
        Some((neighbor.state.offload_state(now), path.state.offload_state(key)))
    }
}

impl Neighbor {
    /// CH §9.7: both deltas are equal at the offload.
    pub(super) fn offload_state(&self, now: Instant) -> NeighborState {
        let delta = self.host_reachability_delta(now);
        NeighborState {
            constant: NeighborConst { dl_source_address: MacAddress::default(), vlan_id: 0 },
            cached: self.cached(now),
            delegated: NeighborDelegated { nic_reachability_delta: delta },
        }
    }

    pub(super) fn cached(&self, now: Instant) -> NeighborCached {
        NeighborCached {
            dl_destination_address: self.mac,
            host_reachability_delta: self.host_reachability_delta(now),
        }
    }

    pub(super) fn host_reachability_delta(&self, now: Instant) -> Ticks {
        let age = now.saturating_since(self.confirmed_at).as_millis();
        Ticks::try_from(age).unwrap_or(Ticks::MAX)
    }
}

impl Path {
    fn offload_state(&self, key: &PathKey) -> PathState {
        PathState {
            constant: PathConst {
                source_address: key.source,
                destination_address: key.destination,
            },
            cached: self.cached(),
        }
    }

    pub(super) const fn cached(&self) -> PathCached {
        PathCached { path_mtu: self.mtu }
    }
}
