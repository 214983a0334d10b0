//! Lane: one data connection, its queue pair, and its credit.

use rdma_over_tcp::ndk::{Connector, Cq, Pd, Qp, QpLimits};

use super::{memory::Slots, node::checked};
use crate::{
    cmd::perf::{kind::Kind, message::Parameters},
    failure::Failure,
};

/// Requests in addition to data: grants and markers.
const SPARE_REQUESTS: u32 = 16;
/// Requests of a latency phase whose completion was not polled.
const LATENCY_REQUESTS: u32 = 8;
/// Receives for markers.
const MARKER_RECEIVES: u32 = 4;
/// Minimum number of receives for Sends.
const SEND_RECEIVES_MIN: u32 = 16;
/// Maximum number of receives of a queue pair, from the adapter.
const RECEIVES_MAX: u32 = 16 * 1024;
/// Grants that cover all receives.
const GRANTS: u32 = 4;

/// Queue depths of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Depths {
    /// Outstanding messages.
    pub(super) requests: u32,
    /// Requests per message.
    posts: u32,
    /// Receives posted.
    pub(super) receives: u32,
    /// Receives covered by a grant.
    pub(super) grant: u32,
}

impl Depths {
    /// Returns the depths for the requested parameters.
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

    /// Returns the largest number of unpolled completions of one lane.
    pub(super) const fn completions(&self) -> u32 {
        self.requests * self.posts + self.receives + SPARE_REQUESTS
    }
}

/// Data connection.
#[derive(Debug)]
pub(super) struct Lane {
    /// Index of the local queue.
    pub(super) queue: usize,
    /// Remote token of the peer's memory on the peer's queue.
    pub(super) peer_token: u32,
    pub(super) qp: Qp,
    pub(super) connector: Option<Connector>,
    /// Data requests that may be posted.
    pub(super) room: u32,
    /// Data requests posted, in all phases.
    pub(super) posted: u64,
    /// Messages received, in all phases.
    pub(super) received: u64,
    /// Sends for which the peer has posted receives.
    pub(super) credit: u32,
    /// Peer grants included in `credit`, modulo 256.
    pub(super) grants_seen: u8,
    /// Grants sent to the peer, modulo 256.
    pub(super) grants_given: u8,
    /// Receives reposted since the last grant.
    pub(super) ungranted: u32,
    /// Slot of the next request.
    pub(super) slot_out: usize,
    /// Slot of the next receive to post.
    pub(super) slot_in: usize,
    /// True if the lane is in the list of ready lanes.
    pub(super) is_ready: bool,
}

impl Lane {
    /// Creates an unconnected lane on a queue with this PD and CQ; its completions carry `context`.
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

    /// Adds the peer's grants to the credit.
    pub(super) fn take_grants(&mut self, grants: u8, depths: Depths) {
        let fresh = grants.wrapping_sub(self.grants_seen);
        self.grants_seen = grants;
        // Clamped: a peer that grants more than it posted would only overrun itself.
        self.credit = (self.credit + u32::from(fresh) * depths.grant).min(depths.receives);
    }
}
