//! Execution of the calls of a script.

use std::time::{Duration, Instant};

use super::{
    calls::Call,
    ledger::{Queue, Sent},
    objects::QpPlan,
    post::SendPlan,
    watch::{WAIT_LIMIT, is_readable},
    world::{Id, Qp, Stage, World},
};

/// Time limit of [`Call::Drain`].
const MOMENT: Duration = Duration::from_millis(3);
/// Time limit of [`Call::Drain`] in a script that expects its requests to complete.
const LONG: Duration = Duration::from_secs(5);
/// Length of the private data of [`Call::Pair`].
const DATA: u8 = 20;

/// Makes a call with an object, if there is one.
fn with<O, T>(object: Option<O>, call: impl FnOnce(O) -> T) {
    if let Some(object) = object {
        call(object);
    }
}

impl World {
    pub(super) fn step(&mut self, call: &Call) {
        match *call {
            Call::Prepare { entries } => self.prepare(entries),
            Call::Pair { .. } => {
                self.pair(*call);
            }
            Call::CreateQp { .. } => {
                self.create_qp_of(*call);
            }
            Call::Establish { .. } => self.pump(MOMENT, |_| false),
            Call::Drain { cq } => self.drain(if cq == u8::MAX { LONG } else { MOMENT }),
            _ => {
                let _ = self.step_of_memory(*call)
                    || self.step_of_queues(*call)
                    || self.step_of_identifiers(*call);
            }
        }
    }

    /// Calls of domains, regions and windows.
    fn step_of_memory(&mut self, call: Call) -> bool {
        match call {
            Call::AllocPd {} => {
                self.alloc_pd();
            }
            Call::DeallocPd { pd } => with(self.pds.pick(pd), |pd| self.dealloc_pd(pd)),
            Call::RegMr { pd, area, access, offset, length, how } => {
                with(self.pds.pick(pd), |pd| self.reg_mr(pd, area, access, (offset, length), how));
            }
            Call::ReregMr { mr, flags, pd, area, access, offset, length } => {
                if let (Some(mr), Some(pd)) = (self.mrs.pick(mr), self.pds.pick(pd)) {
                    self.rereg_mr(mr, flags, pd, area, access, (offset, length));
                }
            }
            Call::DeregMr { mr, after } => with(self.mrs.pick(mr), |mr| self.dereg_mr(mr, after)),
            Call::AllocMw { pd, kind } => with(self.pds.pick(pd), |pd| self.alloc_mw(pd, kind)),
            Call::DeallocMw { mw } => with(self.mws.pick(mw), |mw| self.dealloc_mw(mw)),
            Call::BindMw { .. } => self.bind_mw(call),
            Call::InvalidateMw { qp, mw, flags, wild } => {
                if let (Some(qp), Some(mw)) = (self.qps.pick(qp), self.mws.pick(mw)) {
                    self.invalidate_mw(qp, mw, flags, wild);
                }
            }
            _ => return false,
        }
        true
    }

    /// Calls of completion queues, receive queues and queue pairs.
    fn step_of_queues(&mut self, call: Call) -> bool {
        match call {
            Call::CreateChannel {} => self.create_channel(),
            Call::DestroyChannel { channel } => {
                with(self.channels.pick(channel), |it| self.destroy_channel(it));
            }
            Call::CreateCq { entries, channel } => {
                let on = self.channels.pick(channel).filter(|_| channel & 1 == 0);
                self.create_cq(i32::from(entries.cast_signed()), on);
            }
            Call::ResizeCq { cq, entries } => {
                let entries = i32::from(entries.cast_signed());
                with(self.cqs.pick(cq), |cq| self.resize_cq(cq, entries));
            }
            Call::PollCq { cq, count } => with(self.cqs.pick(cq), |cq| self.poll_cq(cq, count)),
            Call::Notify { cq, solicited } => {
                with(self.cqs.pick(cq), |cq| self.notify(cq, solicited & 1 != 0));
            }
            Call::CqEvent { channel, hold } => {
                with(self.channels.pick(channel), |it| self.cq_event(it, hold & 1 != 0));
            }
            Call::DestroyCq { cq } => with(self.cqs.pick(cq), |cq| self.destroy_cq(cq)),
            Call::CreateSrq { pd, depth, sges } => {
                let (depth, sges) = (depth.into(), u32::from(sges % 18));
                with(self.pds.pick(pd), |pd| self.create_srq(pd, depth, sges));
            }
            Call::ModifySrq { srq, mask, depth, limit } => {
                with(self.srqs.pick(srq), |srq| self.modify_srq(srq, mask, depth, limit));
            }
            Call::PostSrq { srq, count, shape, mr, length } => {
                let queue = self.srqs.pick(srq).map(Queue::Shared);
                with(queue, |queue| self.post_receives(queue, count, shape, mr, length));
            }
            Call::DestroySrq { srq } => with(self.srqs.pick(srq), |srq| self.destroy_srq(srq)),
            Call::ModifyQp { qp, state, mask } => {
                with(self.qps.pick(qp), |qp| self.modify_qp(qp, state, mask));
            }
            Call::QueryQp { qp } => with(self.qps.pick(qp), |qp| self.query_qp(qp, None)),
            Call::DestroyQp { qp } => with(self.qps.pick(qp), |qp| self.destroy_qp(qp)),
            Call::PostSend {
                qp,
                opcode,
                flags,
                shape,
                mr,
                length,
                remote,
                offset,
                count,
                wild,
            } => {
                let plan = SendPlan { opcode, flags, shape, mr, length, remote, offset, wild };
                with(self.qps.pick(qp), |qp| self.post_send(qp, plan, count));
            }
            Call::Build { qp, opcode, flags, shape, length, offset, finish } => {
                let (mr, remote, wild) = (finish >> 3, finish, u16::from(finish) << 3);
                let plan = SendPlan { opcode, flags, shape, mr, length, remote, offset, wild };
                with(self.qps.pick(qp), |qp| self.build(qp, plan, finish));
            }
            Call::PostRecv { qp, count, shape, mr, length } => {
                let queue = self.qps.pick(qp).map(Queue::Receive);
                with(queue, |queue| self.post_receives(queue, count, shape, mr, length));
            }
            Call::AsyncEvent { hold } => {
                self.async_event(hold & 1 != 0);
            }
            _ => return false,
        }
        true
    }

    fn step_of_identifiers(&mut self, call: Call) -> bool {
        match call {
            Call::CreateId { channel, space } => drop(self.create_id(channel, space)),
            Call::Bind { id, how } => with(self.ids.pick(id), |id| self.bind(id, how)),
            Call::Listen { id, backlog } => with(self.ids.pick(id), |id| self.listen(id, backlog)),
            Call::ResolveAddr { id, to, how } => {
                let to = self.ids.pick(to);
                with(self.ids.pick(id), |id| self.resolve_address(id, to, how));
            }
            Call::ResolveRoute { id } => with(self.ids.pick(id), |id| self.resolve_route(id)),
            Call::Connect { id, qp, data, reads } => {
                with(self.ids.pick(id), |id| self.connect(id, qp, data, reads));
            }
            Call::Accept { id, qp, data, reads } => {
                with(self.ids.pick(id), |id| self.accept(id, qp, data, reads));
            }
            Call::Reject { id, data } => with(self.ids.pick(id), |id| self.reject(id, data)),
            Call::Disconnect { id } => with(self.ids.pick(id), |id| self.disconnect(id)),
            Call::CmEvent { channel, hold } => {
                self.cm_event(usize::from(channel & 1), hold & 1 != 0);
            }
            Call::Migrate { id, channel } => {
                with(self.ids.pick(id), |id| self.migrate(id, channel));
            }
            Call::DestroyId { id } => with(self.ids.pick(id), |id| self.destroy_id(id)),
            _ => return false,
        }
        true
    }

    /// Creates a domain with regions of the areas that have a purpose, and a completion queue.
    fn prepare(&mut self, entries: u8) {
        let Some(pd) = self.alloc_pd() else { return };
        for area in 0..5 {
            self.reg_mr(pd, area, 0xff, (0, 0), 0);
        }
        self.create_cq(i32::from(entries) + 1, self.channels.pick(0));
    }

    fn create_qp_of(&mut self, call: Call) -> Option<usize> {
        let Call::CreateQp { pd, id, send_cq, receive_cq, srq, caps, how } = call else {
            return None;
        };
        // One in four has an identifier, one in two a shared receive queue.
        let id = self.ids.pick(id).filter(|id| how & 0xc0 == 0xc0 && self.may_have_qp(*id));
        let plan = QpPlan {
            pd: self.pds.pick(pd)?,
            id,
            send_cq: self.cqs.pick(send_cq)?,
            receive_cq: self.cqs.pick(receive_cq)?,
            srq: self.srqs.pick(srq).filter(|_| srq & 1 == 0),
            caps,
            how,
        };
        self.create_qp(plan)
    }

    /// True if an identifier has a device but no queue pair.
    fn may_have_qp(&self, id: usize) -> bool {
        let Id { raw, qp, .. } = self.ids[id];
        // SAFETY: the identifier is live.
        qp.is_none() && !unsafe { (*raw).verbs }.is_null()
    }

    /// Connects two new identifiers, whose queue pairs have the same attributes.
    fn pair(&mut self, call: Call) -> Option<()> {
        let Call::Pair { cq, other_cq, srq, caps, reads, data } = call else { return None };
        let pd = self.pds.pick(0)?;
        let (send_cq, receive_cq) = (self.cqs.pick(cq)?, self.cqs.pick(other_cq)?);
        let srq = self.srqs.pick(srq).filter(|found| srq & 1 == 0 && self.srqs[*found].pd == pd);
        let plan =
            QpPlan { pd, id: None, send_cq, receive_cq, srq, caps: caps & 0x2f, how: data & 3 };
        let listener = self.listener()?;
        let client = self.create_id(data, 0)?;
        if !self.resolve_address(client, Some(listener), 0) || !self.resolve_route(client) {
            return None;
        }
        let client_qp = self.create_qp(plan)?;
        if !self.connect_with(client, client_qp, DATA, reads) {
            return None;
        }
        let attempt = Some((client, self.ids[client].attempt));
        self.pump(WAIT_LIMIT, |world| {
            let is_it = |it: &Id| it.client == attempt && it.stage == Stage::Requested;
            if let Some(child) = world.ids.find(is_it) {
                let qp = world.create_qp(QpPlan { how: plan.how >> 2, ..plan });
                if qp.is_none_or(|qp| !world.accept_with(child, qp, data, reads)) {
                    world.reject(child, data);
                }
            }
            let is_server = |it: &Id| it.client == attempt && it.stage == Stage::Accepting;
            let is_pending = |id: usize| world.ids[id].stage == Stage::Connecting;
            !is_pending(client) && world.ids.find(is_server).is_none()
        });
        assert_ne!(self.ids[client].stage, Stage::Connecting, "a connect without an outcome");
        Some(())
    }

    fn listener(&mut self) -> Option<usize> {
        let found = self.ids.find(|it| it.stage == Stage::Listening);
        if found.is_some() {
            return found;
        }
        let listener = self.create_id(0, 0)?;
        (self.bind(listener, 0) && self.listen(listener, 0)).then_some(listener)
    }

    /// Processes events of identifiers until `is_over` holds, or for `limit`.
    pub(super) fn pump(&mut self, limit: Duration, mut is_over: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        loop {
            let mut has_any = false;
            for channel in 0..self.cm_channels.len() {
                while self.cm_event(channel, false) {
                    has_any = true;
                }
            }
            if is_over(self) || start.elapsed() > limit {
                return;
            }
            if !has_any {
                // SAFETY: the channels are live.
                let descriptors = self.cm_channels.iter().map(|it| unsafe { (**it).fd });
                is_readable(&descriptors.collect::<Vec<_>>(), Duration::from_millis(1));
            }
        }
    }

    /// Polls all queues and channels once. Returns the number of completions and events.
    pub(super) fn turn(&mut self) -> usize {
        let mut found = 0;
        for cq in self.cqs.numbers() {
            found += self.poll_cq(cq, 16);
        }
        for channel in self.channels.numbers() {
            found += usize::from(self.cq_event(channel, false));
        }
        found + usize::from(self.async_event(false))
    }

    /// True if messages are in flight between queue pairs without an error.
    fn has_messages_in_flight(&self) -> bool {
        self.connections.iter().enumerate().any(|(number, it)| {
            let is_good = |end| {
                let is_end = |qp: &Qp| qp.connection == Some((number, end)) && qp.failures == 0;
                self.qps.find(is_end).is_some_and(|qp| self.qps[qp].ends == 0)
            };
            let is_message = |sent: &Sent| !matches!(sent, Sent::Write { .. });
            it.sent.iter().flatten().any(is_message) && is_good(0) && is_good(1)
        })
    }

    /// Polls until every signaled send request has completed and every message has arrived, or for `limit`.
    fn drain(&mut self, limit: Duration) {
        let start = Instant::now();
        while start.elapsed() < limit {
            let found = self.turn();
            let is_owed = |qp: usize| {
                !self.may_have_failed(self.qps[qp].send_cq)
                    && self.ledger.of(Queue::Send(qp)).any(|(_, it)| it.is_signaled)
            };
            if found == 0
                && !self.qps.numbers().into_iter().any(is_owed)
                && !self.has_messages_in_flight()
            {
                return;
            }
        }
    }
}
