//! Neighbor and path objects: what the target holds of them, and how many depend on each.
//!
//! A neighbor is known by the next hop's address, a path by the addresses of its ends; the target is given each
//! once, however many connections use it. Who depends on an object is counted here (CH-TRM-2): paths by
//! their connections, neighbors by their paths. An object that nothing depends on any more is terminated, and
//! until that is complete nothing new may depend on it; nor on one whose initiate is not complete (CH-INI-1).
//!
//! Limits: an object lives only as long as a connection of the target's, so there are at most as many.

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

/// The ends of a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PathKey {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

/// Where an object stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    /// Its initiate is not complete.
    Initiating,
    /// The target has it, under this name.
    There(TargetContext),
    /// Its terminate is not complete.
    Terminating,
}

/// A neighbor or a path.
#[derive(Debug)]
pub(super) struct Object<S> {
    pub(super) handle: OffloadHandle,
    pub(super) link: Link,
    /// Paths, or connections, that depend on it.
    pub(super) dependents: usize,
    /// An update is not complete; another one must wait (CH-UPD-3).
    pub(super) updating: bool,
    /// The target's state, or that of the update under way, differs from `state`.
    pub(super) stale: bool,
    pub(super) state: S,
}

/// A neighbor's variables.
#[derive(Debug)]
pub(super) struct Neighbor {
    pub(super) mac: MacAddress,
    /// When it was last confirmed, by ARP, neighbor discovery, or a connection in the host that went forward.
    pub(super) confirmed_at: Instant,
    /// It is being asked whether it is there, since the target's doubt.
    pub(super) probing: Option<Probing>,
}

/// A neighbor under suspicion (CH §9.7).
#[derive(Clone, Copy, Debug)]
pub(super) struct Probing {
    pub(super) since: Instant,
    pub(super) next_at: Instant,
    pub(super) sent: u32,
    /// A query to the target for its confirmation is under way.
    pub(super) asked: bool,
}

/// A path's variables.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) next_hop: IpAddr,
    /// The next hop that it is being linked to.
    pub(super) moving_to: Option<IpAddr>,
    pub(super) mtu: u32,
}

/// Both kinds.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) neighbors: BTreeMap<IpAddr, Object<Neighbor>>,
    pub(super) paths: BTreeMap<PathKey, Object<Path>>,
}

/// What has to be terminated because nothing depends on it any more.
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
            Link::There(context) => Some(context),
            Link::Initiating | Link::Terminating => None,
        }
    }

    /// The object's name, if an update of the target is due and possible. From now on an update is in progress.
    pub(super) fn begin_update(&mut self) -> Option<TargetContext> {
        let context = self.context().filter(|_| self.stale && !self.updating)?;
        self.stale = false;
        self.updating = true;
        Some(context)
    }

    /// What becomes of it if nothing depends on it.
    fn leave(&mut self) -> Leave {
        match self.link {
            _ if self.dependents > 0 || self.updating => Leave::No,
            Link::Initiating => Leave::Forget,
            Link::There(context) => {
                self.link = Link::Terminating;
                Leave::Terminate((self.handle, context))
            }
            Link::Terminating => Leave::No,
        }
    }
}

/// How an object goes.
enum Leave {
    /// Something depends on it, or an update has to be complete first (CH-TRM-1).
    No,
    /// The target has never had it.
    Forget,
    Terminate((OffloadHandle, TargetContext)),
}

impl Objects {
    /// One connection less depends on `path`.
    #[must_use]
    pub(super) fn release(&mut self, path: &PathKey) -> Unused {
        let mut unused = Unused::default();
        let Some(object) = self.paths.get_mut(path) else { return unused };
        object.dependents -= 1;
        self.drop_path_if_unused(path, &mut unused);
        unused
    }

    /// Lets go of a path that nothing depends on, and of its neighbor.
    pub(super) fn drop_path_if_unused(&mut self, key: &PathKey, unused: &mut Unused) {
        let Some(object) = self.paths.get_mut(key) else { return };
        let next_hop = object.state.next_hop;
        match object.leave() {
            Leave::No => return,
            Leave::Forget => {
                self.paths.remove(key);
            }
            Leave::Terminate(path) => unused.paths.push(path),
        }
        if let Some(neighbor) = self.neighbors.get_mut(&next_hop) {
            neighbor.dependents -= 1;
        }
        self.drop_neighbor_if_unused(next_hop, unused);
    }

    /// Lets go of a neighbor that nothing depends on.
    pub(super) fn drop_neighbor_if_unused(&mut self, next_hop: IpAddr, unused: &mut Unused) {
        let Some(object) = self.neighbors.get_mut(&next_hop) else { return };
        match object.leave() {
            Leave::No => {}
            Leave::Forget => {
                self.neighbors.remove(&next_hop);
            }
            Leave::Terminate(neighbor) => unused.neighbors.push(neighbor),
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

    /// The states of a path and of its neighbor, for a connection that comes back.
    pub(super) fn states(&self, now: Instant, key: &PathKey) -> Option<(NeighborState, PathState)> {
        let path = self.paths.get(key)?;
        let neighbor = self.neighbors.get(&path.state.next_hop)?;
        Some((neighbor.state.offload_state(now), path.state.offload_state(key)))
    }
}

impl Neighbor {
    /// CH §9.7: at the offload both deltas are the same.
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
