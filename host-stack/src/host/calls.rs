//! The target's calls (the client half of the chimney's generic interface), each to where it is dealt with.

use offload_engine::{
    chimney::{
        client::{OffloadHandle, UploadReason},
        provider::{AdapterStatus, Forward, OffloadHost},
        state::Ticks,
        tree::{InitiateTree, InvalidateTree, QueryTree, TerminateTree, UpdateTree},
    },
    time::Instant,
};

use super::Host;

impl OffloadHost for Host {
    fn initiate_complete(&mut self, now: Instant, tree: InitiateTree) {
        self.initiated(now, tree);
    }

    fn query_complete(&mut self, now: Instant, tree: QueryTree) {
        self.queried(now, tree);
    }

    fn update_complete(&mut self, now: Instant, tree: UpdateTree) {
        self.updated(now, tree);
    }

    fn invalidate_complete(&mut self, _: Instant, _: InvalidateTree) {
        // What it stops says so itself: Retrieve(InvalidState).
    }

    fn terminate_complete(&mut self, now: Instant, tree: TerminateTree) {
        self.terminated(now, tree);
    }

    fn forward_complete(&mut self, now: Instant, segment: Forward) {
        self.forwarded(now, segment);
    }

    fn retrieve(&mut self, _: Instant, connection: OffloadHandle, reason: UploadReason) {
        self.wanted_back(connection, reason);
    }

    fn neighbor_reachability_query(
        &mut self,
        now: Instant,
        neighbor: OffloadHandle,
        _: Ticks,
        _: Ticks,
    ) {
        // The host answers out of what it knows itself.
        self.reachability_query(now, neighbor);
    }

    fn status(&mut self, _: Instant, status: AdapterStatus) {
        self.adapter_status(status);
    }
}
