//! Shared receive queues.

use crate::{
    adapter::Adapter,
    ndk::status::NtStatus,
    rnic::{Sge, SrqId},
};

/// Shared receive queue. The close of a queue with queue pairs pends until they are closed.
#[derive(Clone, Debug)]
pub struct Srq {
    pub(in crate::ndk) adapter: Adapter,
    pub(in crate::ndk) id: SrqId,
}

impl Srq {
    /// NdkSrqReceive: posts a receive, consumed by the next send that arrives on any of the queue's queue pairs.
    ///
    /// # Errors
    /// [`NtStatus::NO_MORE_ENTRIES`]: the queue is at its depth; [`NtStatus::DATA_OVERRUN`]: too many entries;
    /// [`NtStatus::BUFFER_OVERFLOW`]: too many bytes; [`NtStatus::INVALID_PARAMETER`]: the queue is closed or being
    /// closed.
    pub fn receive(&self, context: u64, sges: &[Sge]) -> Result<(), NtStatus> {
        Ok(self.adapter.post(|core| core.post_srq_receive(self.id, context, sges))?)
    }

    /// NdkModifySrq; never pends. A depth of 0 keeps the depth. A threshold of 0 keeps the threshold and its arming.
    /// Any other threshold is set and armed. The notification is called when fewer receives are queued, immediately if
    /// that is already so (NDK-SRQ-2).
    ///
    /// # Errors
    /// Nothing has changed. [`NtStatus::INVALID_PARAMETER`]: a depth over the adapter's limit, or a threshold over the
    /// depth; [`NtStatus::BUFFER_OVERFLOW`]: more receives are queued than the new depth.
    pub fn modify(&self, depth: u32, notify_threshold: u32) -> Result<(), NtStatus> {
        let [depth, limit] = [depth, notify_threshold].map(|value| (value > 0).then_some(value));
        Ok(self.adapter.with(|core, _| core.modify_srq(self.id, depth, limit))?)
    }
}
