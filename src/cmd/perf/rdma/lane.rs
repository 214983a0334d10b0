//! A connection for data: its queue pair, and what may be posted on it.

use rdma_over_tcp::ndk::{Connector, Cq, Pd, Qp, QpLimits};

use super::{memory::Slots, node::checked};
use crate::{
    cmd::perf::{kind::Kind, message::Parameters},
    failure::Failure,
};

/// Requests beside the data: grants and markers.
const SPARE_REQUESTS: u32 = 16;
/// Requests of a latency phase whose completion has not been taken.
const LATENCY_REQUESTS: u32 = 8;
/// Receives for markers.
const MARKER_RECEIVES: u32 = 4;
/// Least receives for Sends.
const SEND_RECEIVES_MIN: u32 = 16;
/// Most receives of a queue pair: the adapter's.
const RECEIVES_MAX: u32 = 16 * 1024;
/// Grants that cover all receives.
const GRANTS: u32 = 4;

/// How deep the queues of a lane are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Depths {
    /// Messages under way.
    pub(super) requests: u32,
    /// Requests of each.
    posts: u32,
    /// Receives posted.
    pub(super) receives: u32,
    /// Receives that a grant covers.
    pub(super) grant: u32,
}

impl Depths {
    /// As the parameters ask for.
    pub(super) fn new(parameters: &Parameters) -> Self {
        let posts = if parameters.kind == Kind::WriteImmBw { 2 } else { 1 };
        let requests = match parameters.kind.is_bandwidth() {
            true => parameters.depth.min((RECEIVES_MAX - SPARE_REQUESTS) / posts),
            false => LATENCY_REQUESTS,
        };
        let receives = match parameters.kind {
            Kind::SendBw | Kind::SendLat | Kind::WriteImmBw => {
                (2 * requests).clamp(SEND_RECEIVES_MIN, RECEIVES_MAX)
            }
            _ => MARKER_RECEIVES,
        };
        Self { requests, posts, receives, grant: receives / GRANTS }
    }

    /// Completions that one lane can have waiting.
    pub(super) const fn completions(&self) -> u32 {
        self.requests * self.posts + self.receives + SPARE_REQUESTS
    }
}

/// A connection for data.
#[derive(Debug)]
pub(super) struct Lane {
    /// Ours on which it is.
    pub(super) queue: usize,
    /// Of the peer's memory, where the peer has it.
    pub(super) peer_token: u32,
    pub(super) qp: Qp,
    pub(super) connector: Option<Connector>,
    /// Data requests that may be posted.
    pub(super) room: u32,
    /// Data requests that were posted, in all phases.
    pub(super) posted: u64,
    /// Messages that have come, in all phases.
    pub(super) received: u64,
    /// Sends that the peer has receives for.
    pub(super) credit: u32,
    /// The peer's grants that are in `credit`, modulo 256.
    pub(super) grants_seen: u8,
    /// Our own, modulo 256.
    pub(super) grants_given: u8,
    /// Receives posted again since the last grant.
    pub(super) ungranted: u32,
    /// The slot of the next request.
    pub(super) slot_out: usize,
    /// The slot of the next receive to be posted.
    pub(super) slot_in: usize,
    /// It is in the list of those that may post.
    pub(super) is_ready: bool,
}

impl Lane {
    /// Not connected, on a queue whose are PD and CQ; its completions carry `context`.
    pub(super) fn new(
        queue: usize,
        (pd, cq): (&Pd, &Cq),
        index: usize,
        context: u64,
        depths: Depths,
        slots: Slots,
    ) -> Result<Self, Failure> {
        let limits = QpLimits {
            receive_queue_depth: depths.receives,
            initiator_queue_depth: depths.requests * depths.posts + SPARE_REQUESTS,
            ..QpLimits::default()
        };
        let qp = checked("create a QP", pd.create_qp(cq, cq, context, limits))?;
        Ok(Self {
            queue,
            peer_token: 0,
            qp,
            connector: None,
            room: depths.requests,
            posted: 0,
            received: 0,
            credit: depths.receives,
            grants_seen: 0,
            grants_given: 0,
            ungranted: 0,
            slot_out: index % slots.count,
            slot_in: index % slots.count,
            is_ready: false,
        })
    }

    /// Adds what the peer has granted.
    pub(super) fn take_grants(&mut self, grants: u8, depths: Depths) {
        let fresh = grants.wrapping_sub(self.grants_seen);
        self.grants_seen = grants;
        // A peer that grants more than it has would only flood itself.
        self.credit = (self.credit + u32::from(fresh) * depths.grant).min(depths.receives);
    }
}
