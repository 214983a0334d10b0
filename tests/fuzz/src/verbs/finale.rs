//! End of a script: pending operations complete, and all objects are destroyed.

use super::{
    Summary, ffi,
    ledger::Queue,
    watch::{WAIT_LIMIT, wait_until},
    world::{Stage, World},
};

impl World {
    /// Destroys all objects. Identifiers are destroyed before or after the other queue pairs.
    pub(super) fn finish(mut self, are_identifiers_first: bool) -> Summary {
        self.settle();
        self.flush();
        self.wait_for_due_events();
        if are_identifiers_first {
            self.ids.numbers().into_iter().for_each(|id| self.destroy_id(id));
        }
        self.qps.numbers().into_iter().for_each(|qp| self.destroy_qp(qp));
        self.ids.numbers().into_iter().for_each(|id| self.destroy_id(id));
        self.srqs.numbers().into_iter().for_each(|srq| self.destroy_srq(srq));
        self.cqs.numbers().into_iter().for_each(|cq| self.destroy_cq(cq));
        self.channels.numbers().into_iter().for_each(|it| self.destroy_channel(it));
        self.mws.numbers().into_iter().for_each(|mw| self.dealloc_mw(mw));
        self.mrs.numbers().into_iter().for_each(|mr| self.dereg_mr(mr, mr as u8));
        self.pds.numbers().into_iter().for_each(|pd| self.dealloc_pd(pd));
        assert!(self.mrs.live().next().is_none() && self.pds.live().next().is_none());
        for channel in &self.cm_channels {
            // SAFETY: the channel is live, and no identifier is left.
            unsafe { ffi::rdma_destroy_event_channel(*channel) };
        }
        assert!(!self.async_event(false), "an event without an object");
        self.memory().finish();
        self.summary
    }

    /// Waits until pending connects, accepts and disconnects have had their event. Rejects requests.
    fn settle(&mut self) {
        let is_under_way = |stage| {
            use Stage::{Accepting, AddressRequested, Connecting, Disconnecting, RouteRequested};
            matches!(
                stage,
                AddressRequested | RouteRequested | Connecting | Accepting | Disconnecting
            )
        };
        self.pump(WAIT_LIMIT, |world| {
            for id in world.ids.numbers() {
                if world.ids[id].stage == Stage::Requested {
                    world.reject(id, id as u8);
                }
            }
            !world.ids.live().any(|(_, it)| is_under_way(it.stage))
        });
        let late = self.ids.find(|it| is_under_way(it.stage)).map(|id| &self.ids[id]);
        assert!(late.is_none(), "an identifier without its event: {late:?}");
    }

    /// True if a completion queue has failed, and has reported the failure or must report it.
    pub(super) fn may_have_failed(&self, cq: usize) -> bool {
        // A queue fails when it is full; the failure is reported later.
        self.cqs[cq].has_failed || self.cqs[cq].needs_failure
    }

    /// Waits until every request that requires a completion has one.
    fn flush(&mut self) {
        self.qps.numbers().into_iter().for_each(|qp| self.modify_qp(qp, 6, 0));
        let mut outstanding = Vec::new();
        wait_until("requests of queue pairs in error complete", || {
            while self.turn() > 0 {}
            outstanding = self.outstanding();
            outstanding.is_empty()
        });
    }

    /// Requests that require a completion.
    fn outstanding(&self) -> Vec<u64> {
        let mut outstanding = Vec::new();
        for (number, qp) in self.qps.live() {
            if !self.may_have_failed(qp.send_cq) {
                let sends = self.ledger.of(Queue::Send(number));
                outstanding
                    .extend(sends.filter(|(_, it)| it.is_signaled).map(|(number, _)| *number));
            }
            if !self.may_have_failed(qp.receive_cq) {
                outstanding
                    .extend(self.ledger.of(Queue::Receive(number)).map(|(number, _)| *number));
            }
        }
        outstanding
    }

    /// Waits until due events have arrived.
    fn wait_for_due_events(&mut self) {
        wait_until("events of completion queues arrive", || {
            while self.turn() > 0 {}
            let is_due = |cq: &super::world::Cq| {
                cq.channel.is_some() && cq.is_event_due || cq.needs_failure && !cq.has_failed
            };
            !self.cqs.live().any(|(_, cq)| is_due(cq))
        });
    }
}
