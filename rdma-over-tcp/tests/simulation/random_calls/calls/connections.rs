//! Calls on queues and connections, and closes.

use super::*;

impl World {
    pub(super) fn poll(&mut self, node: usize) {
        let cq = own!(self, node, cqs);
        let room = draw(&mut self.rng, 6);
        if once_in(&mut self.rng, 4) {
            let mut results = vec![NdkResult::default(); room];
            let count = cq.poll(&mut results);
            for result in &results[..count] {
                self.record_completion(node, result.request_context, result.status);
            }
        } else {
            let mut results = vec![NdkResultEx::default(); room];
            let count = cq.poll_ex(&mut results);
            for result in &results[..count] {
                self.record_completion(node, result.request_context, result.status);
            }
        }
    }

    pub(super) fn change_queue(&mut self, node: usize) {
        let arms = [CqNotify::Errors, CqNotify::Solicited, CqNotify::Any];
        let arm = arms[draw(&mut self.rng, 3)];
        let (depth, limit) = (self.number(128), self.number(8));
        match draw(&mut self.rng, 5) {
            0 | 1 => own!(self, node, cqs).arm(arm),
            2 => {
                let calls = self.expect();
                let status = own!(self, node, cqs).begin_resize(depth, done(&calls));
                self.record_call("resize", status, calls);
            }
            3 => {
                let calls = self.expect();
                let status = own!(self, node, srqs).begin_modify(depth, limit, done(&calls));
                self.record_call("modify srq", status, calls);
            }
            _ => {
                let status = own!(self, node, cqs).control_interrupt_moderation(depth, limit);
                self.record_status("moderate", status);
            }
        }
    }

    pub(super) fn address(&mut self, node: usize) -> SocketAddr {
        let node = if once_in(&mut self.rng, 10) { 1 - node } else { node };
        let mut address = self.pools[1]
            .listeners
            .any(&mut self.rng)
            .and_then(|listener| listener.local_address());
        if once_in(&mut self.rng, 2) {
            address =
                self.pools[node].endpoints.any(&mut self.rng).and_then(|end| end.local_address());
        }
        match draw(&mut self.rng, 8) {
            0 => ([0, 0, 0, 0], 0).into(),
            1 => ([203, 0, 113, 7], 9).into(),
            2 => ([255, 255, 255, 255], u16::MAX).into(),
            _ => address.unwrap_or_else(|| ([10, 0, 0, 1], 7001).into()),
        }
    }

    pub(super) fn connect(&mut self, node: usize) {
        let (connector, qp) = (own!(self, node, connectors), any!(self, node, qps));
        let (remote, local) = (self.address(1 - node), self.address(node));
        let local = once_in(&mut self.rng, 3).then_some(local);
        let limits = ReadLimit { inbound: self.number(8), outbound: self.number(8) };
        let data = vec![1; if once_in(&mut self.rng, 10) { 600 } else { draw(&mut self.rng, 40) }];
        let calls = self.expect();
        let status = if once_in(&mut self.rng, 3) {
            let endpoint = any!(self, node, endpoints);
            connector.connect_with_shared_endpoint(
                &qp,
                &endpoint,
                remote,
                limits,
                &data,
                done(&calls),
            )
        } else {
            connector.connect(&qp, local, remote, limits, &data, done(&calls))
        };
        self.record_call("connect", status, calls);
    }

    pub(super) fn answer(&mut self, node: usize) {
        let connector = own!(self, node, connectors);
        let calls = self.expect();
        match draw(&mut self.rng, 5) {
            0 => {
                let status = connector.complete_connect(None, done(&calls));
                self.record_call("complete connect", status, calls);
            }
            1 | 2 => {
                let (qp, limits) = (any!(self, node, qps), ReadLimit { inbound: 4, outbound: 4 });
                let status = connector.accept(&qp, limits, &[2; 8], None, done(&calls));
                self.record_call("accept", status, calls);
            }
            3 => {
                let status = connector.reject(&[3; 8]);
                self.record_status("reject", status);
            }
            _ => {
                let status = connector.disconnect(done(&calls));
                self.record_call("disconnect", status, calls);
            }
        }
    }

    pub(super) fn listen(&mut self, node: usize) {
        let listener = own!(self, node, listeners);
        if once_in(&mut self.rng, 3) {
            return listener.control_connect_events(once_in(&mut self.rng, 2));
        }
        let (local, calls) = (self.address(node), self.expect());
        let status = listener.listen(local, done(&calls));
        self.record_call("listen", status, calls);
    }

    pub(super) fn query(&mut self, node: usize) {
        let adapter = self.adapter(node);
        let (_, _) = (adapter.info(), adapter.counters());
        let _ = (adapter.connection_entries(), adapter.local_endpoints());
        let connector = own!(self, node, connectors);
        let mut buffer = vec![0; draw(&mut self.rng, 64)];
        let (status, _, _) = match once_in(&mut self.rng, 2) {
            true => connector.connection_data(None),
            false => connector.connection_data(Some(&mut buffer)),
        };
        self.record_status("connection data", status);
        let _ = (connector.local_address(), connector.peer_address(), connector.failure());
        let _ = own!(self, node, mws).remote_token();
        let qp = own!(self, node, qps);
        let _ = (qp.stats(), qp.is_connected());
    }

    pub(super) fn end(&mut self, node: usize) {
        match draw(&mut self.rng, 24) {
            0 => own!(self, node, qps).flush(),
            1 => close!(self, own!(self, node, pds), pds),
            2 => close!(self, own!(self, node, cqs), cqs),
            3 => close!(self, own!(self, node, qps), qps),
            4 => close!(self, own!(self, node, srqs), srqs),
            5 | 6 => close!(self, own!(self, node, mrs), mrs),
            7 | 8 => close!(self, own!(self, node, mws), mws),
            9 => close!(self, own!(self, node, connectors), connectors),
            10 => close!(self, own!(self, node, listeners), listeners),
            11 => close!(self, own!(self, node, endpoints), endpoints),
            // Most objects must stay open.
            _ => self.poll(node),
        }
    }

    pub(in crate::random_calls) fn close_all(&mut self) {
        // Pending creates have stored their objects by then.
        let is_over = |world: &Self| {
            let mut due = world
                .callbacks
                .iter()
                .filter(|callback| callback.pended && callback.call.starts_with("create"));
            due.all(|callback| callback.calls.load(Ordering::Relaxed) > 0)
        };
        let is_over = (0..PASSES_MAX).any(|_| {
            // Time advances after two rounds without events.
            self.pass(4);
            is_over(self)
        });
        check!(Stuck, is_over, "a create that pends does not end");
        for node in [0, 1] {
            macro_rules! all {
                ($($kind:ident)*) => {$(
                    for handle in self.pools[node].$kind.all() {
                        close!(self, handle, $kind);
                    }
                )*};
            }
            all! { pds cqs listeners mrs srqs qps mws endpoints connectors }
        }
        // Connectors that arrived since.
        self.pass(50);
        for node in [0, 1] {
            for connector in self.pools[node].connectors.all() {
                close!(self, connector, connectors);
            }
        }
    }
}
