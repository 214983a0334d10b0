//! The object tables, and the rules that hold for every kind of object.

use alloc::{boxed::Box, sync::Arc, vec, vec::Vec};

use offload_engine::chimney::client::OffloadHandle;

use super::{
    connector::Connector,
    cq::NdkResultEx,
    endpoint::Endpoints,
    info::{AdapterInfo, Counters},
    lifetime::{
        CloseCompletion, Cq, Key, Life, Outbox, RequestCompletion, Return, ReturnGuard, Returns,
    },
    listener::Listener,
    mr::Regions,
    pd::Pd,
    qp::Qp,
    slab::{Id, Slab},
    status::NtStatus,
};

/// Objects of each kind, at most (NDIS_NDK_CAPABILITIES).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Protection domains.
    pub max_pd_count: u32,
    /// Completion queues.
    pub max_cq_count: u32,
    /// Memory regions.
    pub max_mr_count: u32,
    /// Queue pairs.
    pub max_qp_count: u32,
    /// Connectors; each incoming request takes one.
    pub max_connector_count: u32,
    /// Listeners.
    pub max_listener_count: u32,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_pd_count: 4096,
            max_cq_count: 65_536,
            max_mr_count: 262_144,
            max_qp_count: 65_536,
            max_connector_count: 65_536,
            max_listener_count: 1024,
        }
    }
}

/// A completion on its way to its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completed {
    pub(crate) cq: Id<Cq>,
    pub(crate) entry: NdkResultEx,
    /// It is of a receive of a send with SEND_AND_SOLICIT_EVENT.
    pub(crate) solicited: bool,
}

/// All objects of an adapter.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) info: AdapterInfo,
    adapter: Life,
    pub(crate) pds: Slab<Pd>,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) regions: Regions,
    pub(crate) qps: Slab<Qp>,
    pub(crate) connectors: Slab<Connector>,
    pub(crate) listeners: Slab<Listener>,
    pub(crate) endpoints: Endpoints,
    pub(crate) counters: Counters,
    /// Completions that are not in their queues yet.
    pub(crate) completed: Vec<Completed>,
    pub(crate) outbox: Outbox,
    pub(crate) returns: Arc<Returns>,
    /// Connections whose queue pair lost a completion queue: the core ends them.
    pub(crate) doomed: Vec<OffloadHandle>,
}

impl Objects {
    pub(crate) fn new(
        info: AdapterInfo,
        capabilities: Capabilities,
        seed: u128,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        let Capabilities {
            max_pd_count,
            max_cq_count,
            max_mr_count,
            max_qp_count,
            max_connector_count,
            max_listener_count,
        } = capabilities;
        Self {
            info,
            adapter: Life::default(),
            pds: Slab::new(max_pd_count),
            cqs: Slab::new(max_cq_count),
            regions: Regions::new(max_mr_count, seed),
            qps: Slab::new(max_qp_count),
            connectors: Slab::new(max_connector_count),
            listeners: Slab::new(max_listener_count),
            endpoints: Endpoints::default(),
            counters: Counters::default(),
            completed: Vec::new(),
            outbox: Outbox::default(),
            returns: Returns::new(wake),
            doomed: Vec::new(),
        }
    }

    fn life_mut(&mut self, key: Key) -> Option<&mut Life> {
        Some(match key {
            Key::Adapter => &mut self.adapter,
            Key::Pd(id) => &mut self.pds.get_mut(id)?.life,
            Key::Cq(id) => &mut self.cqs.get_mut(id)?.life,
            Key::Mr(id) => &mut self.regions.slab.get_mut(id)?.life,
            Key::Qp(id) => &mut self.qps.get_mut(id)?.life,
            Key::Connector(id) => &mut self.connectors.get_mut(id)?.life,
            Key::Listener(id) => &mut self.listeners.get_mut(id)?.life,
        })
    }

    pub(crate) fn pin(&mut self, key: Key) {
        let life = self.life_mut(key);
        debug_assert!(life.is_some(), "{key:?} is gone");
        if let Some(life) = life {
            life.pin();
        }
    }

    /// Whether `key` may be given to new successors.
    pub(crate) fn is_open(&mut self, key: Key) -> bool {
        self.life_mut(key).is_some_and(|life| !life.is_closing())
    }

    pub(crate) fn unpin(&mut self, key: Key) {
        let Some(completion) = self.life_mut(key).and_then(Life::unpin) else { return };
        // NDK-LIFE-6: antecedents wait until the completion has returned.
        let guards: Vec<_> = self
            .remove(key)
            .into_iter()
            .map(|antecedent| ReturnGuard::new(&self.returns, Return::Unpin(antecedent)))
            .collect();
        self.outbox.push(guards, completion);
    }

    /// The end of every NdkCloseXxx, after its side effects: SUCCESS, or PENDING and `completion` follows
    /// (NDK-LIFE-1, -4).
    pub(crate) fn close(&mut self, key: Key, completion: CloseCompletion) -> NtStatus {
        let Some(life) = self.life_mut(key) else { return NtStatus::SUCCESS };
        if !life.close(completion) {
            return NtStatus::PENDING;
        }
        for antecedent in self.remove(key) {
            self.unpin(antecedent);
        }
        NtStatus::SUCCESS
    }

    /// Takes an object out of its table; returns what it was pinning.
    fn remove(&mut self, key: Key) -> Vec<Key> {
        match key {
            Key::Adapter => vec![],
            Key::Pd(id) => self.pds.remove(id).map_or(vec![], |_| vec![Key::Adapter]),
            Key::Cq(id) => self.cqs.remove(id).map_or(vec![], |_| vec![Key::Adapter]),
            Key::Mr(id) => self.regions.remove(id).map_or(vec![], |mr| vec![Key::Pd(mr.pd)]),
            Key::Qp(id) => self.qps.remove(id).map_or(vec![], |qp| {
                self.regions.give_back(qp.sink_token);
                vec![Key::Cq(qp.receives.cq), Key::Cq(qp.initiator.cq), Key::Pd(qp.pd)]
            }),
            Key::Connector(id) => self.connectors.remove(id).map_or(vec![], |connector| {
                if let Some(endpoint) = connector.endpoint {
                    self.endpoints.release(endpoint); // NDK-EP-1
                }
                let mut antecedents = vec![];
                antecedents.extend(connector.qp.map(Key::Qp));
                antecedents.extend(connector.listener.map(Key::Listener));
                antecedents.push(Key::Adapter);
                antecedents
            }),
            Key::Listener(id) => self.listeners.remove(id).map_or(vec![], |listener| {
                if let Some(endpoint) = listener.endpoint {
                    self.endpoints.release(endpoint);
                }
                vec![Key::Adapter]
            }),
        }
    }

    /// Calls a request completion; `key` was pinned when the request began.
    pub(crate) fn end_request(
        &mut self,
        key: Key,
        completion: RequestCompletion,
        status: NtStatus,
    ) {
        let guard = ReturnGuard::new(&self.returns, Return::Unpin(key));
        self.outbox.push(guard, move || completion(status));
    }

    /// Completes a request. The completion is in its queue after [`Objects::deliver_completions`].
    pub(crate) fn complete(&mut self, cq: Id<Cq>, entry: NdkResultEx, solicited: bool) {
        self.completed.push(Completed { cq, entry, solicited });
    }

    /// Puts completions into their queues; every way into the core ends with it. Those of a queue that is being
    /// closed are dropped (NDK-LIFE-13); an overrun dooms all queue pairs on the queue (NDK-CQ-13).
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
            let entries = same.iter().map(|completed| (completed.entry, completed.solicited));
            let pushed = object.queue.push_all(entries);
            if pushed.overrun {
                self.counters.cq_error += 1;
                let on_queue = |qp: &Qp| qp.receives.cq == cq || qp.initiator.cq == cq;
                let streams = self.qps.ids().filter_map(|id| self.qps.get(id));
                self.doomed.extend(streams.filter(|qp| on_queue(qp)).filter_map(|qp| qp.stream));
            }
            if pushed.due {
                self.notify(cq);
            }
        }
        self.completed.clear();
    }

    /// Gives out the notification that is due, if one is (NDK-CQ-3, NDK-LIFE-8).
    pub(crate) fn notify(&mut self, cq: Id<Cq>) {
        let Some(object) = self.cqs.get_mut(cq) else { return };
        if object.life.is_closing() {
            return;
        }
        let Some(status) = object.queue.take_due() else { return };
        object.life.pin();
        let notification = object.notification.clone();
        let guard = ReturnGuard::new(&self.returns, Return::CqNotification(cq));
        self.outbox.push(guard, move || notification(status));
    }

    /// A notification callback has returned.
    pub(crate) fn notification_returned(&mut self, cq: Id<Cq>) {
        if let Some(object) = self.cqs.get(cq) {
            object.queue.callback_returned();
        }
        self.notify(cq);
        self.unpin(Key::Cq(cq));
    }

    /// Objects that exist, the adapter not counted.
    pub(crate) fn count(&self) -> usize {
        self.pds.len()
            + self.cqs.len()
            + self.regions.slab.len()
            + self.qps.len()
            + self.connectors.len()
            + self.listeners.len()
    }
}
