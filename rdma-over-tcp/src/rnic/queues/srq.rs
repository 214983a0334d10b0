//! Shared receive queues: receives shared by several queue pairs.
//!
//! A message of any connection takes the oldest receive when its first segment arrives. Its completion is added to the
//! completion queue of that queue pair. DDP message numbers remain per connection. A message without a receive ends its
//! own connection only, as on a queue pair's own queue (RFC 5041 §7.2). With
//! [`Config::receive_wait`](crate::rnic::Config) it waits instead; in general the connection that has waited longest
//! takes the next receive.
//! receive.

use alloc::sync::Arc;
use core::fmt;

use crate::rnic::objects::{
    id::{PdId, ReceiveQueueId},
    lifetime::Life,
};

/// Asynchronous event of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SrqEvent {
    /// Fewer receives are queued than the limit. Reported once for each limit set.
    LimitReached,
    /// The device was lost, and with it every queue pair of the queue. Reported once.
    DeviceLost,
}

/// Callback for the events of a shared receive queue. Called with no lock held. It must not own the adapter, because
/// that would be a reference cycle.
pub type SrqNotification = Arc<dyn Fn(SrqEvent) + Send + Sync>;

/// Creation attributes of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqConfig {
    /// Maximum number of queued receives, up to [`Limits::srq_depth_max`](crate::rnic::Limits). Receives taken by a
    /// message in progress do not count.
    pub depth: u32,
    /// Scatter/gather entries of a receive.
    pub max_receive_request_sge: u32,
    /// Initial limit, armed once this many receives are queued; 0: none.
    pub limit: u32,
}

/// Current attributes of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttributes {
    /// Maximum number of queued receives.
    pub depth: u32,
    /// Scatter/gather entries of a receive.
    pub max_receive_request_sge: u32,
    /// Armed limit; 0: none.
    pub limit: u32,
    /// Receives queued.
    pub posted: u32,
}

/// Shared receive queue.
pub(crate) struct Srq {
    pub(crate) life: Life,
    pub(crate) pd: PdId,
    pub(crate) queue: ReceiveQueueId,
    pub(crate) sges_max: u32,
    pub(crate) notification: SrqNotification,
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({:?}, {:?})", self.life, self.queue)
    }
}
