//! Shared receive queues: receives that the messages of several queue pairs take.
//!
//! A message takes the oldest receive when its first segment arrives, on whatever connection, and its completion goes
//! to the completion queue of that queue pair. DDP's message numbers stay those of the connection. A message that finds
//! no receive ends its connection, as on a queue pair's own queue (RFC 5041 §7.2), and no other; or it waits
//! ([`Config::receive_wait`](crate::rnic::Config)), and as a rule the connection that has waited longest takes the next
//! receive.

use alloc::sync::Arc;
use core::fmt;

use crate::rnic::objects::{
    id::{PdId, ReceiveQueueId},
    lifetime::Life,
};

/// What a shared receive queue tells its consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SrqEvent {
    /// Fewer receives are queued than the limit. Told once for each limit that was set.
    LimitReached,
    /// The device is gone, and with it every queue pair of the queue. Told once.
    DeviceLost,
}

/// Called when a shared receive queue has something to tell. Called when no lock is held; it must not keep the adapter
/// alive, or the two hold each other.
pub type SrqNotification = Arc<dyn Fn(SrqEvent) + Send + Sync>;

/// What a shared receive queue is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqConfig {
    /// Receives queued, up to [`Limits::srq_depth_max`](crate::rnic::Limits). Those that a message is arriving for do
    /// not count.
    pub depth: u32,
    /// Scatter/gather entries of a receive.
    pub max_receive_request_sge: u32,
    /// The first limit, which counts once so many receives are queued; 0: none.
    pub limit: u32,
}

/// A shared receive queue as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttributes {
    /// Receives that it takes.
    pub depth: u32,
    /// Scatter/gather entries of a receive.
    pub max_receive_request_sge: u32,
    /// The limit, unless it was reached; 0: none.
    pub limit: u32,
    /// Receives queued.
    pub posted: u32,
}

/// A shared receive queue.
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
