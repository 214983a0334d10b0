//! Completion queues.

use alloc::sync::Arc;
use core::time::Duration;

use crate::{
    adapter::Adapter,
    ndk::{
        flags::CqNotify,
        result::{NdkResult, NdkResultEx},
        status::NtStatus,
    },
    rnic::{Completion, CompletionQueue, CqId, CqModeration},
};

/// Completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    pub(super) adapter: Adapter,
    pub(super) id: CqId,
    pub(super) queue: Arc<CompletionQueue>,
}

impl Cq {
    /// NdkGetCqResults: moves completions into `results` and returns their number; 0: none. Must not be called
    /// concurrently for one queue (NDK-CQ-1).
    pub fn poll(&self, results: &mut [NdkResult]) -> usize {
        self.poll_as(results)
    }

    /// NdkGetCqResultsEx.
    pub fn poll_ex(&self, results: &mut [NdkResultEx]) -> usize {
        self.poll_as(results)
    }

    fn poll_as<R: From<Completion>>(&self, results: &mut [R]) -> usize {
        match self.queue.poll(results) {
            0 => {
                self.adapter.progress();
                self.queue.poll(results)
            }
            count => count,
        }
    }

    /// NdkArmCq (NDK-CQ-4 to -10). Takes only the queue's lock, unless a notification is due.
    pub fn arm(&self, notify: CqNotify) {
        let armed = self.queue.arm(notify.into());
        if armed.due || armed.is_hold_new {
            self.adapter.with(|core, _| core.handle_arm(self.id, armed));
        } else {
            self.adapter.expect_sleep();
        }
    }

    /// NdkResizeCq; never pends.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: zero entries, or more than the adapter's limit; [`NtStatus::BUFFER_OVERFLOW`]:
    /// more entries are present, nothing has changed (NDK-RSZ-2); [`NtStatus::INVALID_DEVICE_STATE`]: the queue has
    /// failed; [`NtStatus::DEVICE_REMOVED`].
    pub fn resize(&self, depth: u32) -> Result<(), NtStatus> {
        Ok(self.adapter.with(|core, _| core.resize_cq(self.id, depth))?)
    }

    /// NdkControlCqInterruptModeration. A satisfied arm is notified after `count` completions or `interval_us`
    /// microseconds, whichever is first. Completions can be polled immediately (NDK-MOD-5).
    ///
    /// - An interval of 0, or a count of 0 or 1: no moderation, the default (NDK-MOD-2).
    /// - An interval of [`u32::MAX`]: only the count applies.
    /// - A count of [`u32::MAX`], or over the queue's depth: only the interval applies (NDK-MOD-3).
    ///
    /// In force when it returns; never pends.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER_MIX`]: neither applies; [`NtStatus::INVALID_PARAMETER`]: the queue is closed;
    /// [`NtStatus::DEVICE_REMOVED`].
    pub fn control_interrupt_moderation(&self, interval_us: u32, count: u32) -> NtStatus {
        let moderation = match (interval_us, count) {
            (0, _) | (_, 0 | 1) => None,
            _ => Some(CqModeration {
                interval: (interval_us != u32::MAX)
                    .then(|| Duration::from_micros(interval_us.into())),
                count: (count <= self.queue.depth()).then_some(count),
            }),
        };
        self.adapter.with(|core, _| core.moderate_cq(self.id, moderation)).into()
    }
}
