//! Calls for shared receive queues ([`srq`](crate::rnic::queues::srq)): create, post, modify, query.

use offload_engine::runtime::Urgency;

use crate::rnic::{
    Rnic,
    objects::{
        id::{Key, PdId, ReceiveQueueId, SrqId},
        lifetime::{Life, Return, ReturnGuard},
    },
    queues::{
        receive_queue::ReceiveQueue,
        sges::total_length,
        srq::{Srq, SrqAttributes, SrqConfig, SrqEvent, SrqNotification},
        wr::Sge,
    },
    status::VerbError,
    tables::Objects,
};

impl Rnic {
    /// Creates a shared receive queue for queue pairs of the same domain ([`QpConfig::srq`](crate::rnic::QpConfig)).
    ///
    /// # Errors
    /// [`VerbError::InvalidArgument`]: a limit exceeds that of the adapter; [`VerbError::InvalidHandle`]: the domain
    /// does not exist or is being closed; [`VerbError::NoResources`].
    pub fn create_srq(
        &mut self,
        pd: PdId,
        config: SrqConfig,
        notification: SrqNotification,
    ) -> Result<SrqId, VerbError> {
        let SrqConfig { depth, max_receive_request_sge: sges_max, limit } = config;
        let limits = &self.config.limits;
        if depth > limits.srq_depth_max || sges_max > limits.receive_sges_max || limit > depth {
            return Err(VerbError::InvalidArgument);
        }
        self.check_parent(Key::Pd(pd))?;
        let mut queue = ReceiveQueue::new(depth);
        queue.limit_once_filled(limit);
        let objects = &mut self.objects;
        let queue = objects.receive_queues.insert(queue).map_err(|_| VerbError::NoResources)?;
        let srq = Srq { life: Life::default(), pd, queue, sges_max, notification };
        let Ok(id) = objects.srqs.insert(srq) else {
            objects.receive_queues.remove(queue);
            return Err(VerbError::NoResources);
        };
        objects.pin(Key::Pd(pd));
        Ok(id)
    }

    /// Posts a receive to a shared receive queue. Its memory is checked when a message arrives for it.
    ///
    /// # Errors
    /// As [`Rnic::post_receive`].
    pub fn post_srq_receive(
        &mut self,
        id: SrqId,
        context: u64,
        sges: &[Sge],
    ) -> (Result<(), VerbError>, Urgency) {
        let result = self.try_post_srq_receive(id, context, sges);
        let queue = self.objects.srqs.get(id).map(|srq| srq.queue).filter(|_| result.is_ok());
        let urgency = queue.map_or(Urgency::None, |queue| self.schedule_waiting(queue));
        (result, urgency)
    }

    /// Schedules all queue pairs whose messages wait for a receive of a queue that is not their own. The longest
    /// waiting one alone is not sufficient: it may be about to fail, or another one may be served before it. Those
    /// without a receive continue to wait.
    #[inline]
    pub(crate) fn schedule_waiting(&mut self, queue: ReceiveQueueId) -> Urgency {
        let queue = self.objects.receive_queues.get_mut(queue);
        let waiting = queue.map(ReceiveQueue::take_waiting).unwrap_or_default();
        if waiting.is_empty() {
            return Urgency::None;
        }
        // The last scheduled queue pair is served first.
        for id in waiting.into_iter().rev() {
            if let Some(qp) = self.objects.qps.get_mut(id) {
                qp.awaits_receive = false;
                self.schedule_qp(id);
            }
        }
        Urgency::Now
    }

    fn try_post_srq_receive(
        &mut self,
        id: SrqId,
        context: u64,
        sges: &[Sge],
    ) -> Result<(), VerbError> {
        let bytes_max = self.config.limits.transfer_bytes_max;
        let Objects { srqs, receive_queues, .. } = &mut self.objects;
        let srq = srqs.get(id).filter(|srq| !srq.life.is_closing());
        let srq = srq.ok_or(VerbError::InvalidHandle)?;
        let queue = receive_queues.get_mut(srq.queue).ok_or(VerbError::InvalidHandle)?;
        let length = total_length(sges, srq.sges_max, bytes_max)?;
        if queue.is_full(0) {
            return Err(VerbError::QueueFull);
        }
        queue.push(context, length, sges);
        Ok(())
    }

    /// Changes the depth, the limit, or both; `None` leaves a value unchanged. A new limit is armed: its event is
    /// reported when a message leaves fewer receives in the queue, or immediately if there are fewer now. 0 disarms.
    ///
    /// # Errors
    /// Nothing was changed. [`VerbError::InvalidHandle`]; [`VerbError::InvalidArgument`]: a depth that exceeds the
    /// adapter's limit, or a limit that exceeds the depth; [`VerbError::ReceivesPresent`]: more receives are queued
    /// than the new depth.
    pub fn modify_srq(
        &mut self,
        id: SrqId,
        depth: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbError> {
        let depth_max = self.config.limits.srq_depth_max;
        let Objects { srqs, receive_queues, .. } = &mut self.objects;
        let srq = srqs.get(id).ok_or(VerbError::InvalidHandle)?;
        let queue = receive_queues.get_mut(srq.queue).ok_or(VerbError::InvalidHandle)?;
        let new_depth = depth.unwrap_or_else(|| queue.depth());
        if new_depth > depth_max || limit.is_some_and(|limit| limit > new_depth) {
            return Err(VerbError::InvalidArgument);
        }
        queue.resize(new_depth)?;
        if let Some(limit) = limit {
            queue.arm(limit);
        }
        self.objects.notify_srq(id);
        Ok(())
    }

    /// Attributes of a shared receive queue; `None`: it does not exist.
    #[must_use]
    pub fn srq_attributes(&self, id: SrqId) -> Option<SrqAttributes> {
        let srq = self.objects.srqs.get(id)?;
        let queue = self.objects.receive_queues.get(srq.queue)?;
        Some(SrqAttributes {
            depth: queue.depth(),
            max_receive_request_sge: srq.sges_max,
            limit: queue.armed_limit(),
            posted: queue.len() as u32,
        })
    }
}

impl Objects {
    /// Notifies the consumer of a shared receive queue if its limit is reached.
    pub(crate) fn notify_srq(&mut self, id: SrqId) {
        let Some(srq) = self.srqs.get_mut(id) else { return };
        let is_due = self.receive_queues.get_mut(srq.queue).is_some_and(ReceiveQueue::take_due);
        if is_due {
            self.raise_srq_event(id, SrqEvent::LimitReached);
        }
    }

    /// Reports an event of a shared receive queue, unless the queue is being closed.
    pub(crate) fn raise_srq_event(&mut self, id: SrqId, event: SrqEvent) {
        let Some(srq) = self.srqs.get_mut(id).filter(|srq| !srq.life.is_closing()) else { return };
        srq.life.pin();
        let notification = srq.notification.clone();
        let guard = ReturnGuard::new(&self.returns, Return::Unpin(Key::Srq(id)));
        self.outbox.push(guard, move || notification(event));
    }
}
