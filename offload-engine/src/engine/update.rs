//! MiniportQueryOffload, MiniportUpdateOffload and MiniportInvalidateOffload (CH §5.2 to §5.4).
//!
//! Each node is independent: the failure of one does not affect the others. A change of a neighbor or a path applies to
//! all its connections. They are found by visiting all connections, since these operations are rare and the links point
//! in the other direction.

use std::vec::Vec;

use super::{Clients, Engine, port::ToHost, terminate::outcome};
use crate::{
    chimney::tree::{
        ClassQuery, InvalidateTree, ObjectNode, PathDelegated, Query, QueryTree, TargetContext,
        TcpQueried, UpdateNode, UpdateTree,
    },
    state::{NeighborState, PathCached, PathState, TcpCached, TcpConst, TcpState, TcpUpdate},
    status::NdisStatus,
    time::Instant,
};

/// Effect of a neighbor node on the paths below it at update.
#[derive(Clone, Copy)]
enum RelinkTarget {
    /// Linker nodes of paths are linked to this neighbor.
    Neighbor(TargetContext),
    /// Linker nodes of paths fail: the neighbor does not exist or is invalid.
    Refused,
    /// The neighbor node is not a linker.
    None,
}

fn fill_query<C, A, D>(query: &mut Query<C, A, D>, constant: C, cached: A, delegated: D) {
    fn fill<T>(asked: &mut ClassQuery<T>, value: T) {
        if !matches!(asked, ClassQuery::No) {
            *asked = ClassQuery::Answer(value);
        }
    }
    fill(&mut query.constant, constant);
    fill(&mut query.cached, cached);
    fill(&mut query.delegated, delegated);
}

impl Engine {
    pub(super) fn query(&mut self, now: Instant, mut tree: QueryTree, clients: &mut Clients) {
        for neighbor in &mut tree {
            for path in &mut neighbor.dependents {
                for tcp in &mut path.dependents {
                    tcp.status = match &mut tcp.payload {
                        ObjectNode::Placeholder => NdisStatus::SUCCESS,
                        ObjectNode::Object { context, payload } => outcome(
                            self.query_connection(now, *context, payload, clients).is_some(),
                        ),
                    };
                }
                path.status = match &mut path.payload {
                    ObjectNode::Placeholder => NdisStatus::SUCCESS,
                    ObjectNode::Object { context, payload } => {
                        let state = self.objects.path(*context);
                        outcome(
                            state
                                .map(|PathState { constant, cached }| {
                                    fill_query(payload, constant, cached, PathDelegated);
                                })
                                .is_some(),
                        )
                    }
                };
            }
            neighbor.status = match &mut neighbor.payload {
                ObjectNode::Placeholder => NdisStatus::SUCCESS,
                ObjectNode::Object { context, payload } => {
                    let state = self.objects.neighbor(now, *context);
                    outcome(
                        state
                            .map(|NeighborState { constant, cached, delegated }| {
                                fill_query(payload, constant, cached, delegated);
                            })
                            .is_some(),
                    )
                }
            };
        }
        self.notify_host(ToHost::QueryComplete(tree));
    }

    fn query_connection(
        &mut self,
        now: Instant,
        context: TargetContext,
        query: &mut Query<TcpConst, TcpCached, TcpQueried>,
        clients: &mut Clients,
    ) -> Option<()> {
        let slot = self.find_working(now, context, clients)?;
        let offloaded = self.connections.slot(slot)?;
        let TcpState { constant, cached, delegated } = offloaded.tcp.tcp_state(now);
        let queried = TcpQueried {
            delegated,
            send_backlog_size: offloaded.tcp.send_backlog_size(),
            receive_backlog_size: offloaded.tcp.receive_backlog_size(),
        };
        fill_query(query, constant, cached, queried);
        Some(())
    }

    /// Returns the slot of a connection. `None` if its hardware has failed, which is detected here (CH §5.6).
    fn find_working(
        &mut self,
        now: Instant,
        context: TargetContext,
        clients: &mut Clients,
    ) -> Option<usize> {
        let slot = self.connections.find_context(context)?;
        if self.connections.slot(slot)?.failed {
            self.fail(now, slot, clients);
            return None;
        }
        Some(slot)
    }

    pub(super) fn update(&mut self, now: Instant, mut tree: UpdateTree) {
        for neighbor in &mut tree {
            let (status, link) = match neighbor.payload {
                UpdateNode::Placeholder => (NdisStatus::SUCCESS, RelinkTarget::None),
                UpdateNode::Linker(context) if self.objects.neighbor_is_valid(context) => {
                    (NdisStatus::SUCCESS, RelinkTarget::Neighbor(context))
                }
                UpdateNode::Linker(_) => (NdisStatus::FAILURE, RelinkTarget::Refused),
                UpdateNode::Cached { context, cached } => {
                    let updated = self.objects.update_neighbor(now, context, cached).is_ok();
                    if updated {
                        self.renew(now, |engine, path| {
                            engine.objects.neighbor_of(path) == Some(context)
                        });
                    }
                    (outcome(updated), RelinkTarget::None)
                }
            };
            neighbor.status = status;
            for path in &mut neighbor.dependents {
                path.status = self.update_path(now, link, &path.payload);
                for tcp in &mut path.dependents {
                    tcp.status = match &tcp.payload {
                        UpdateNode::Placeholder => NdisStatus::SUCCESS,
                        UpdateNode::Linker(context) => {
                            outcome(self.connections.find_context(*context).is_some())
                        }
                        UpdateNode::Cached { context, cached } => {
                            outcome(self.update_connection(now, *context, cached).is_some())
                        }
                    };
                }
            }
        }
        self.notify_host(ToHost::UpdateComplete(tree));
    }

    fn update_path(
        &mut self,
        now: Instant,
        link: RelinkTarget,
        node: &UpdateNode<PathCached>,
    ) -> NdisStatus {
        match (*node, link) {
            (UpdateNode::Placeholder, _) => NdisStatus::SUCCESS,
            (UpdateNode::Linker(_), RelinkTarget::Refused) => NdisStatus::FAILURE,
            (UpdateNode::Linker(path), RelinkTarget::None) => {
                outcome(self.objects.path(path).is_some())
            }
            (UpdateNode::Linker(path), RelinkTarget::Neighbor(neighbor)) => {
                let relinked = self.objects.relink(path, neighbor).is_ok();
                if relinked {
                    self.renew(now, |_, other| other == path);
                    self.update_validity(now);
                }
                outcome(relinked)
            }
            (UpdateNode::Cached { context, cached }, _) => {
                let updated = self.objects.update_path(context, cached).is_ok();
                if updated {
                    self.set_path_mtu(context);
                }
                outcome(updated)
            }
        }
    }

    /// Updates a connection. `None` if it does not exist or is invalid (CH-UPD-3).
    fn update_connection(
        &mut self,
        now: Instant,
        context: TargetContext,
        update: &TcpUpdate,
    ) -> Option<()> {
        let slot = self.connections.find_context(context)?;
        let offloaded = self.connections.slot(slot).filter(|offloaded| !offloaded.invalid)?;
        offloaded.tcp.update_cached(now, update);
        self.connections.mark_ready(slot);
        Some(())
    }

    /// Rebuilds the headers of the connections on the paths selected by `concerned`.
    fn renew(&mut self, now: Instant, concerned: impl Fn(&Self, TargetContext) -> bool) {
        let slots = self.slots_where(|path| concerned(self, path));
        for slot in slots {
            self.renew_headers(now, slot);
        }
    }

    /// Rebuilds the headers of a connection whose neighbor, path or cached variables have changed.
    pub(super) fn renew_headers(&mut self, now: Instant, slot: usize) {
        let Some(offloaded) = self.connections.slot(slot) else { return };
        let joined = self.objects.joined(now, offloaded.path);
        if let Some((neighbor, path)) = joined {
            self.connections.relabel(now, slot, &neighbor, &path);
        }
    }

    /// Applies the host's path MTU to every connection on the path (CH-UPD-5).
    fn set_path_mtu(&mut self, path: TargetContext) {
        let Some(state) = self.objects.path(path) else { return };
        let payload = self.connections.path_mtu_payload(&state);
        for slot in self.slots_where(|other| other == path) {
            if let Some(offloaded) = self.connections.slot(slot) {
                offloaded.tcp.update_path_mtu(payload);
            }
            self.connections.mark_ready(slot);
        }
    }

    fn slots_where(&self, concerned: impl Fn(TargetContext) -> bool) -> Vec<usize> {
        let concerned = self.connections.occupied().filter(|(_, found)| concerned(found.path));
        concerned.map(|(slot, _)| slot).collect()
    }

    pub(super) fn invalidate(
        &mut self,
        now: Instant,
        mut tree: InvalidateTree,
        clients: &mut Clients,
    ) {
        for neighbor in &mut tree {
            neighbor.status = match neighbor.payload {
                ObjectNode::Placeholder => NdisStatus::SUCCESS,
                ObjectNode::Object { context, payload: () } => {
                    outcome(self.objects.invalidate_neighbor(context))
                }
            };
            for path in &mut neighbor.dependents {
                path.status = match path.payload {
                    ObjectNode::Placeholder => NdisStatus::SUCCESS,
                    ObjectNode::Object { context, payload: () } => {
                        outcome(self.objects.invalidate_path(context))
                    }
                };
                for tcp in &mut path.dependents {
                    tcp.status = match tcp.payload {
                        ObjectNode::Placeholder => NdisStatus::SUCCESS,
                        ObjectNode::Object { context, payload: () } => {
                            let slot = self.find_working(now, context, clients);
                            let found = slot.and_then(|slot| self.connections.slot(slot));
                            outcome(found.map(|found| found.invalid = true).is_some())
                        }
                    };
                }
            }
        }
        self.update_validity(now);
        self.notify_host(ToHost::InvalidateComplete(tree));
    }

    /// Updates in every connection if the objects that it depends on are valid (CH-INV-2).
    fn update_validity(&mut self, now: Instant) {
        for slot in self.slots_where(|_| true) {
            let Some(offloaded) = self.connections.slot(slot) else { continue };
            let invalid = offloaded.invalid || !self.objects.path_is_valid(offloaded.path);
            if offloaded.tcp.is_invalid() != invalid {
                offloaded.tcp.set_invalid(now, invalid);
                self.connections.mark_ready(slot);
            }
        }
    }
}
