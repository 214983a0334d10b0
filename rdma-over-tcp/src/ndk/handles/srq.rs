//! Shared receive queues.

use crate::{
    adapter::Adapter,
    ndk::status::NtStatus,
    rnic::{Sge, SrqId},
};

/// A shared receive queue. Closing one that has queue pairs is pending until they are closed.
#[derive(Clone, Debug)]
pub struct Srq {
    pub(in crate::ndk) adapter: Adapter,
    pub(in crate::ndk) id: SrqId,
}

impl Srq {
    /// NdkSrqReceive: taken by the next send that arrives on any of the queue's queue pairs.
    ///
    /// # Errors
    /// [`NtStatus::NO_MORE_ENTRIES`]: the queue is at its depth; [`NtStatus::DATA_OVERRUN`]: too many entries;
    /// [`NtStatus::BUFFER_OVERFLOW`]: too many bytes; [`NtStatus::INVALID_PARAMETER`]: it is gone or being closed.
    pub fn receive(&self, context: u64, sges: &[Sge]) -> Result<(), NtStatus> {
        Ok(self.adapter.post(|core| core.post_srq_receive(self.id, context, sges))?)
    }

    /// NdkModifySrq; never pends. A depth of 0 keeps the depth. A threshold of 0 keeps threshold and arming; another is
    /// set and armed: the notification comes when fewer receives are queued, at once if there are (NDK-SRQ-2).
    ///
    /// # Errors
    /// Nothing has changed. [`NtStatus::INVALID_PARAMETER`]: a depth over the adapter's, or a threshold over the depth;
    /// [`NtStatus::BUFFER_OVERFLOW`]: more receives are queued than the new depth.
    pub fn modify(&self, depth: u32, notify_threshold: u32) -> Result<(), NtStatus> {
        let [depth, limit] = [depth, notify_threshold].map(|wish| (wish > 0).then_some(wish));
        Ok(self.adapter.with(|core, _| core.modify_srq(self.id, depth, limit))?)
    }
}
