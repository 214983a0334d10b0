//! The target's calls (the client half of the chimney's generic interface), each to where it is dealt with.

use offload_engine::{
    chimney::{
        client::{OffloadHandle, UploadReason},
        provider::{AdapterStatus, Forward, OffloadHost},
        tree::{InitiateTree, InvalidateTree, QueryTree, TerminateTree, UpdateTree},
    },
    state::Ticks,
    time::Instant,
};

use super::{Host, shards::ShardId};

/// The host, as the engine of one shard calls it.
pub(super) struct FromEngine<'a> {
    pub(super) host: &'a mut Host,
    pub(super) shard: ShardId,
}

impl OffloadHost for FromEngine<'_> {
    fn initiate_complete(&mut self, now: Instant, tree: InitiateTree) {
        self.host.initiated(now, self.shard, tree);
    }

    fn query_complete(&mut self, now: Instant, tree: QueryTree) {
        self.host.queried(now, self.shard, tree);
    }

    fn update_complete(&mut self, now: Instant, tree: UpdateTree) {
        self.host.updated(now, self.shard, tree);
    }

    fn invalidate_complete(&mut self, _: Instant, _: InvalidateTree) {
        // Connections that it stops request an upload: Retrieve(InvalidState).
    }

    fn terminate_complete(&mut self, now: Instant, tree: TerminateTree) {
        self.host.terminated(now, self.shard, tree);
    }

    fn forward_complete(&mut self, now: Instant, segment: Forward) {
        self.host.forwarded(now, self.shard, segment);
    }

    fn retrieve(&mut self, _: Instant, connection: OffloadHandle, reason: UploadReason) {
        self.host.wanted_back(connection, reason);
    }

    fn neighbor_reachability_query(
        &mut self,
        now: Instant,
        neighbor: OffloadHandle,
        _: Ticks,
        _: Ticks,
    ) {
        // The host answers out of what it knows itself.
        self.host.reachability_query(now, self.shard, neighbor);
    }

    fn status(&mut self, _: Instant, status: AdapterStatus) {
        self.host.adapter_status(self.shard, status);
    }
}
