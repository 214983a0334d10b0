//! Object tables, and the rules that apply to every kind of object.

mod connection;

use alloc::{boxed::Box, sync::Arc, vec, vec::Vec};

use super::{
    config::{Capabilities, Limits},
    connection::{
        connector::Connector, endpoint::Endpoints, listener::Listener, read_limit::ReadLimit,
        shared_endpoint::SharedEndpoint,
    },
    memory::region::Regions,
    objects::{
        id::{ConnectorId, CqId, Key, QpId, RegionId, StreamId, Table, kind},
        lifetime::{
            Close, CloseCompletion, Life, Outbox, RequestCompletion, Return, ReturnGuard, Returns,
        },
        pd::Pd,
    },
    queues::{
        cq::Cq,
        qp::{Completed, CompletionRetention, Qp, ReceiveOutcome},
        receive_queue::ReceiveQueue,
        srq::Srq,
        ud::Datagrams,
    },
    stats::Counters,
    status::ConnectError,
};

/// All objects of an adapter.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) limits: Limits,
    rnic: Life,
    pub(crate) pds: Table<kind::Pd, Pd>,
    pub(crate) cqs: Table<kind::Cq, Cq>,
    pub(crate) regions: Regions,
    pub(crate) receive_queues: Table<kind::ReceiveQueue, ReceiveQueue>,
    pub(crate) qps: Table<kind::Qp, Qp>,
    pub(crate) srqs: Table<kind::Srq, Srq>,
    pub(crate) connectors: Table<kind::Connector, Connector>,
    pub(crate) listeners: Table<kind::Listener, Listener>,
    pub(crate) shared_endpoints: Table<kind::SharedEndpoint, SharedEndpoint>,
    pub(crate) endpoints: Endpoints,
    pub(crate) counters: Counters,
    /// Completions that are not yet in their queues.
    pub(crate) completed: Vec<Completed>,
    pub(crate) outbox: Outbox,
    pub(crate) returns: Arc<Returns>,
    /// Queue pairs whose completion queue failed: the core ends their connections.
    pub(crate) failed_qps: Vec<QpId>,
    /// Completion queues with a moderated notification whose interval has not started.
    pub(crate) held: Vec<CqId>,
    /// True if streams may defer a partly filled list to the next posts, because a poll will follow.
    pub(crate) may_defer: bool,
    /// Streams with a deferred list.
    pub(crate) deferred: Vec<StreamId>,
    /// Work of the core after the current call.
    pub(crate) follow_ups: Vec<FollowUp>,
    /// Queue pairs without a connection.
    pub(crate) datagrams: Datagrams,
}

/// Work of the core after a call that has found it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowUp {
    /// The peer of a connector does not support enhanced start-up: the core connects it again.
    Connect(ConnectorId),
    /// A stream of [`QpService::Rc`](crate::rnic::QpService) has executed messages: the core schedules it.
    Acknowledge(StreamId),
}

impl Objects {
    pub(crate) fn new(
        limits: Limits,
        capabilities: Capabilities,
        seed: u128,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        let Capabilities {
            max_pd_count,
            max_cq_count,
            max_mr_count,
            max_mw_count,
            max_lam_count,
            max_qp_count,
            max_srq_count,
            max_connector_count,
            max_listener_count,
            max_shared_endpoint_count,
        } = capabilities;
        let memory_counts = [max_mr_count, max_mw_count, max_lam_count];
        let returns = Returns::new(wake);
        Self {
            limits,
            rnic: Life::default(),
            pds: Table::new(max_pd_count),
            cqs: Table::new(max_cq_count),
            regions: Regions::new(memory_counts, seed, returns.clone()),
            receive_queues: Table::new(max_qp_count.saturating_add(max_srq_count)),
            qps: Table::new(max_qp_count),
            srqs: Table::new(max_srq_count),
            connectors: Table::new(max_connector_count),
            listeners: Table::new(max_listener_count),
            shared_endpoints: Table::new(max_shared_endpoint_count),
            endpoints: Endpoints::default(),
            counters: Counters::default(),
            completed: Vec::new(),
            outbox: Outbox::default(),
            returns,
            failed_qps: Vec::new(),
            held: Vec::new(),
            may_defer: false,
            deferred: Vec::new(),
            follow_ups: Vec::new(),
            datagrams: Datagrams::default(),
        }
    }

    fn life_mut(&mut self, key: Key) -> Option<&mut Life> {
        Some(match key {
            Key::Rnic => &mut self.rnic,
            Key::Pd(id) => &mut self.pds.get_mut(id)?.life,
            Key::Cq(id) => &mut self.cqs.get_mut(id)?.life,
            Key::Region(id) => &mut self.regions.table.get_mut(id)?.life,
            Key::Window(id) => &mut self.regions.windows.get_mut(id)?.life,
            Key::Lam(id) => &mut self.regions.lams.get_mut(id)?.life,
            Key::Qp(id) => &mut self.qps.get_mut(id)?.life,
            Key::Srq(id) => &mut self.srqs.get_mut(id)?.life,
            Key::Connector(id) => &mut self.connectors.get_mut(id)?.life,
            Key::Listener(id) => &mut self.listeners.get_mut(id)?.life,
            Key::SharedEndpoint(id) => &mut self.shared_endpoints.get_mut(id)?.life,
        })
    }

    pub(crate) fn pin(&mut self, key: Key) {
        let life = self.life_mut(key);
        debug_assert!(life.is_some(), "{key:?} was removed");
        if let Some(life) = life {
            life.pin();
        }
    }

    /// Returns true if `key` is pinned.
    pub(crate) fn is_pinned(&mut self, key: Key) -> bool {
        self.life_mut(key).is_some_and(|life| life.is_pinned())
    }

    /// Returns true if the object exists.
    pub(crate) fn exists(&mut self, key: Key) -> bool {
        self.life_mut(key).is_some()
    }

    /// Returns true if the adapter's close is complete.
    pub(crate) const fn is_closed(&self) -> bool {
        self.rnic.is_closed()
    }

    /// Returns true if new objects may depend on `key`.
    pub(crate) fn is_open(&mut self, key: Key) -> bool {
        self.life_mut(key).is_some_and(|life| !life.is_closing())
    }

    pub(crate) fn unpin(&mut self, key: Key) {
        let Some(completion) = self.life_mut(key).and_then(Life::unpin) else { return };
        // NDK-LIFE-6: antecedents remain pinned until the completion has returned.
        let guards: Vec<_> = self
            .remove(key)
            .into_iter()
            .map(|antecedent| ReturnGuard::new(&self.returns, Return::Unpin(antecedent)))
            .collect();
        self.outbox.push(guards, completion);
    }

    /// Completes every close, after its side effects (NDK-LIFE-1, -4).
    pub(crate) fn close(&mut self, key: Key, completion: CloseCompletion) -> Close {
        let Some(life) = self.life_mut(key) else { return Close::Done };
        let close = life.close(completion);
        if close == Close::Done {
            for antecedent in self.remove(key) {
                self.unpin(antecedent);
            }
        }
        close
    }

    /// Removes an object from its table. Returns the objects that it pinned.
    fn remove(&mut self, key: Key) -> Vec<Key> {
        match key {
            Key::Rnic => vec![],
            Key::Pd(id) => self.pds.remove(id).map_or(vec![], |pd| {
                self.regions.release_token(pd.privileged_token);
                vec![Key::Rnic]
            }),
            Key::Cq(id) => self.cqs.remove(id).map_or(vec![], |_| vec![Key::Rnic]),
            Key::Region(id) => self.regions.remove(id).map_or(vec![], |mr| vec![Key::Pd(mr.pd)]),
            Key::Window(id) => {
                self.regions.remove_window(id).map_or(vec![], |window| vec![Key::Pd(window.pd)])
            }
            Key::Lam(id) => self.regions.lams.remove(id).map_or(vec![], |_| vec![Key::Rnic]),
            Key::Qp(id) => self.qps.remove(id).map_or(vec![], |qp| {
                self.regions.unbind_all(id);
                self.regions.release_token(qp.sink_token);
                let number =
                    qp.number.filter(|number| self.datagrams.numbers.get(number) == Some(&id));
                if let Some(number) = number {
                    self.datagrams.numbers.remove(&number);
                }
                let mut antecedents =
                    vec![Key::Cq(qp.receive_cq), Key::Cq(qp.sends.cq), Key::Pd(qp.pd)];
                antecedents.extend(qp.srq.map(Key::Srq));
                antecedents.extend(qp.twin_of.map(Key::Qp));
                if qp.has_own_receives() {
                    self.receive_queues.remove(qp.receives);
                }
                antecedents
            }),
            Key::Srq(id) => self.srqs.remove(id).map_or(vec![], |srq| {
                self.receive_queues.remove(srq.queue);
                vec![Key::Pd(srq.pd)]
            }),
            Key::Connector(id) => self.connectors.remove(id).map_or(vec![], |connector| {
                if let Some(endpoint) = connector.endpoint {
                    self.endpoints.release(endpoint); // NDK-EP-1
                }
                let mut antecedents = vec![];
                antecedents.extend(connector.qp.map(Key::Qp));
                antecedents.extend(connector.listener.map(Key::Listener));
                antecedents.extend(connector.shared.map(Key::SharedEndpoint));
                antecedents.push(Key::Rnic);
                antecedents
            }),
            Key::Listener(id) => self.listeners.remove(id).map_or(vec![], |listener| {
                if let Some(endpoint) = listener.endpoint {
                    self.endpoints.release(endpoint);
                }
                vec![Key::Rnic]
            }),
            Key::SharedEndpoint(id) => self.shared_endpoints.remove(id).map_or(vec![], |shared| {
                if let Some(endpoint) = shared.endpoint {
                    self.endpoints.release(endpoint);
                }
                vec![Key::Rnic]
            }),
        }
    }

    /// Ends one use of the memory of a region's registration. A pending deregistration completes before a pending
    /// close.
    pub(crate) fn registration_unused(&mut self, id: RegionId) {
        match self.regions.unused(id) {
            Some(completion) => {
                let guard = ReturnGuard::new(&self.returns, Return::Unpin(Key::Region(id)));
                self.outbox.push(guard, completion);
            }
            None => self.unpin(Key::Region(id)),
        }
    }

    /// Calls a request completion. `key` was pinned when the request started.
    pub(crate) fn end_request(
        &mut self,
        key: Key,
        completion: RequestCompletion,
        outcome: Result<(), ConnectError>,
    ) {
        let guard = ReturnGuard::new(&self.returns, Return::Unpin(key));
        self.outbox.push(guard, move || completion(outcome));
    }

    /// Limits of Reads of the adapter.
    pub(crate) const fn read_limits(&self) -> ReadLimit {
        ReadLimit { inbound: self.limits.ird_max, outbound: self.limits.ord_max }
    }

    /// Takes the next receive for the queue pair, unless a message is in progress. Returns its length; `None`: no
    /// receive is posted.
    #[inline]
    pub(crate) fn take_receive(&mut self, id: QpId) -> Option<u32> {
        let qp = self.qps.get_mut(id)?;
        let length = qp.take_receive(&mut self.receive_queues).then_some(qp.receiving.length);
        if let Some(srq) = qp.srq {
            self.notify_srq(srq);
        }
        length
    }

    /// Requests a notification of the queue pair when its next receive is posted.
    pub(crate) fn await_receive(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        if !core::mem::replace(&mut qp.awaits_receive, true)
            && let Some(queue) = self.receive_queues.get_mut(qp.receives)
            && !qp.has_own_receives()
        {
            queue.wait(id);
        }
    }

    /// Completes the receive in progress, or the next one. No receive is taken from a shared receive queue for this.
    pub(crate) fn complete_receive(&mut self, id: QpId, outcome: ReceiveOutcome) {
        let Self { qps, receive_queues, completed, .. } = self;
        if let Some(qp) = qps.get_mut(id)
            && (qp.is_receiving || qp.has_own_receives() && qp.take_receive(receive_queues))
        {
            qp.complete_receiving(outcome, completed);
        }
    }

    /// Completes everything posted, in posting order.
    pub(crate) fn flush(&mut self, id: QpId) {
        let Self { qps, receive_queues, completed, .. } = self;
        let Some(qp) = qps.get_mut(id) else { return };
        qp.flush_sends(completed);
        qp.flush_receives(receive_queues, completed);
    }

    /// Removes the completions of a queue pair from its completion queues. No more of them are delivered.
    pub(crate) fn discard_completions(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        qp.retention = CompletionRetention::Discard;
        let cqs = [qp.receive_cq, qp.sends.cq];
        self.completed.retain(|completed| completed.completion.qp != id);
        for cq in cqs.into_iter().filter_map(|cq| self.cqs.get(cq)) {
            cq.queue.remove(id);
        }
    }

    /// Adds completions to their queues. Each call into the core ends with it. Completions of a queue that is being
    /// closed are dropped (NDK-LIFE-13). An overrun breaks all queue pairs on the queue (NDK-CQ-13).
    #[inline]
    pub(crate) fn deliver_completions(&mut self) {
        if !self.completed.is_empty() {
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        let mut delivered = 0;
        while let [first, rest @ ..] = &self.completed[delivered..] {
            let cq = first.cq;
            let count = 1 + rest.iter().take_while(|completed| completed.cq == cq).count();
            let same = &self.completed[delivered..][..count];
            delivered += count;
            let Some(object) = self.cqs.get(cq).filter(|object| !object.life.is_closing()) else {
                continue;
            };
            let entries = same.iter().map(|completed| completed.completion);
            let pushed = object.queue.push_all(entries);
            if pushed.overrun {
                self.counters.cq_error += 1;
                let on_queue = |qp: &Qp| qp.receive_cq == cq || qp.sends.cq == cq;
                let qps = self.qps.names().filter_map(|id| self.qps.get(id));
                self.failed_qps.extend(qps.filter(|qp| on_queue(qp)).map(|qp| qp.id));
            }
            if pushed.is_hold_new {
                self.held.push(cq);
            }
            if pushed.due {
                self.notify(cq);
            }
        }
        self.completed.clear();
    }

    /// Delivers the notification that is due, if there is one (NDK-CQ-3, NDK-LIFE-8).
    pub(crate) fn notify(&mut self, cq: CqId) {
        let Some(object) = self.cqs.get_mut(cq) else { return };
        if object.life.is_closing() {
            return;
        }
        let Some(outcome) = object.queue.take_due() else { return };
        object.life.pin();
        let notification = object.notification.clone();
        let guard = ReturnGuard::new(&self.returns, Return::CqNotification(cq));
        self.outbox.push(guard, move || notification(outcome));
    }

    /// Processes the return of a notification callback.
    pub(crate) fn notification_returned(&mut self, cq: CqId) {
        if let Some(object) = self.cqs.get(cq) {
            object.queue.callback_returned();
        }
        self.notify(cq);
        self.unpin(Key::Cq(cq));
    }

    /// Count of objects, without the adapter itself.
    pub(crate) fn count(&self) -> usize {
        self.pds.len()
            + self.cqs.len()
            + self.regions.table.len()
            + self.regions.windows.len()
            + self.regions.lams.len()
            + self.qps.len()
            + self.srqs.len()
            + self.connectors.len()
            + self.listeners.len()
            + self.shared_endpoints.len()
    }
}
