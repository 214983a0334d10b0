//! Connector and queue pair while their connection is established, fails and ends.

use super::{FollowUp, Objects};
use crate::{
    error::EndReason,
    rnic::{
        connection::{cause::ConnectCause, connector::ConnectorState, read_limit::ReadLimit},
        objects::{
            id::{ConnectorId, Key, QpId},
            lifetime::{RequestCompletion, Return, ReturnGuard},
        },
        queues::qp::{QpEvent, QpState},
        status::ConnectError,
    },
};

impl Objects {
    /// Starts an asynchronous request of a connector.
    pub(crate) fn begin_request(&mut self, id: ConnectorId, completion: RequestCompletion) {
        self.pin(Key::Connector(id));
        if let Some(connector) = self.connectors.get_mut(id) {
            debug_assert!(connector.request.is_none(), "one request at a time");
            connector.request = Some(completion);
        }
    }

    /// Ends the pending request, if there is one.
    pub(crate) fn end_connector_request(
        &mut self,
        id: ConnectorId,
        outcome: Result<(), ConnectError>,
    ) {
        let request = self.connectors.get_mut(id).and_then(|connector| connector.request.take());
        if let Some(completion) = request {
            self.end_request(Key::Connector(id), completion, outcome);
        }
    }

    /// Marks the connection as established: both ends may post (NDK-CON-12), and the pending CompleteConnect or Accept
    /// is complete.
    pub(crate) fn connection_established(&mut self, id: ConnectorId, limits: ReadLimit) {
        let Some(connector) = self.connectors.get_mut(id) else { return };
        match connector.state {
            ConnectorState::Completing => self.counters.connect += 1,
            ConnectorState::Accepting => self.counters.accept += 1,
            _ => return,
        }
        connector.state = ConnectorState::Connected;
        self.counters.active_connection += 1;
        if let Some(qp) = connector.qp.and_then(|qp| self.qps.get_mut(qp)) {
            qp.state = QpState::Connected;
            qp.read_limit = match qp.is_rc() {
                // The peer decides about a Read beyond its limit.
                true => limits.outbound.max(1),
                false => limits.outbound,
            };
        }
        self.end_connector_request(id, Ok(()));
    }

    /// Records the cause of an attempt that is about to fail, unless one is recorded already.
    pub(crate) fn record_cause(&mut self, id: ConnectorId, cause: ConnectCause) {
        if let Some(connector) = self.connectors.get_mut(id) {
            connector.cause.get_or_insert(cause);
        }
    }

    /// Ends a failed connection attempt. An active connector may try again, with any queue pair.
    pub(crate) fn connection_failed(&mut self, id: ConnectorId, error: ConnectError) {
        let Some(connector) = self.connectors.get_mut(id) else { return };
        if connector.state == ConnectorState::Connecting
            && connector.plain.is_some()
            && connector.cause.as_ref().is_some_and(ConnectCause::suggests_plain)
        {
            (connector.stream, connector.cause) = (None, None);
            if let Some(endpoint) = connector.endpoint.take() {
                self.endpoints.release(endpoint);
            }
            self.follow_ups.push(FollowUp::Connect(id));
            return;
        }
        self.counters.connect_failure += 1;
        // NDK-EP-3: the shared endpoint owns the address; only the pair of addresses is in use.
        let error = match error {
            ConnectError::AddressInUse if connector.shared.is_some() => {
                ConnectError::ConnectionExists
            }
            error => error,
        };
        connector.cause.get_or_insert(ConnectCause::Tcp(error));
        let retry = connector.state == ConnectorState::Connecting;
        connector.stream = None;
        connector.disconnect_event = None;
        if retry {
            connector.state = ConnectorState::Idle;
            if let Some(endpoint) = connector.endpoint.take() {
                self.endpoints.release(endpoint);
            }
            if let Some(qp) = connector.qp.take() {
                if let Some(qp) = self.qps.get_mut(qp) {
                    // NDK-CON-1: restores the state before the attempt.
                    qp.state = QpState::Idle;
                    qp.stream = None;
                }
                self.end_connector_request(id, Err(error));
                self.unpin(Key::Qp(qp));
            }
            if let Some(shared) = self.connectors.get_mut(id).and_then(|it| it.shared.take()) {
                self.unpin(Key::SharedEndpoint(shared));
            }
        } else {
            connector.state = ConnectorState::Closed;
            let qp = connector.qp;
            self.end_connector_request(id, Err(error));
            if let Some(id) = qp
                && !self.restore_rc_qp(id)
            {
                self.break_qp(id);
            }
        }
    }

    /// Restores the state of a queue pair of `QpService::Rc` before a failed attempt, with its receives and requests.
    /// Returns false for another service.
    fn restore_rc_qp(&mut self, id: QpId) -> bool {
        let Some(qp) = self.qps.get_mut(id) else { return false };
        let is_restored = qp.is_rc() && qp.state == QpState::Connecting;
        if is_restored {
            qp.state = QpState::Idle;
            qp.stream = None;
            qp.awaits_receive = false;
        }
        is_restored
    }

    /// Breaks a queue pair whose connection has ended: everything posted is flushed.
    pub(crate) fn break_qp(&mut self, id: QpId) {
        if let Some(qp) = self.qps.get_mut(id) {
            qp.state = QpState::Error;
            qp.stream = None;
            self.flush(id);
            self.report_last_receive(id);
        }
    }

    /// Reports that a broken queue pair consumes no more receives of its shared receive queue.
    fn report_last_receive(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(id).filter(|qp| qp.srq.is_some()) else { return };
        if !core::mem::replace(&mut qp.is_last_receive_reported, true) {
            self.raise_qp_event(id, QpEvent::LastReceive);
        }
    }

    /// Reports an event of a queue pair, unless the queue pair is being closed.
    pub(crate) fn raise_qp_event(&mut self, id: QpId, event: QpEvent) {
        let Some(qp) = self.qps.get_mut(id).filter(|qp| !qp.life.is_closing()) else { return };
        let Some(notification) = qp.notifier.0.clone() else { return };
        qp.life.pin();
        let guard = ReturnGuard::new(&self.returns, Return::Unpin(Key::Qp(id)));
        self.outbox.push(guard, move || notification(event));
    }

    /// Raises the disconnect event, once, when an established connection ends or its peer closes (NDK-DISC-2, -4).
    pub(crate) fn disconnected(&mut self, id: ConnectorId, reason: Option<EndReason>) {
        let Some(connector) = self.connectors.get_mut(id) else { return };
        if connector.state != ConnectorState::Connected {
            return;
        }
        if let Some(event) = connector.disconnect_event.take() {
            connector.life.pin();
            let guard = ReturnGuard::new(&self.returns, Return::Unpin(Key::Connector(id)));
            self.outbox.push(guard, move || event(reason));
        }
    }

    /// Ends the connection of an established connector, gracefully or not.
    pub(crate) fn connection_ended(&mut self, id: ConnectorId, outcome: Result<(), ConnectError>) {
        let Some(connector) = self.connectors.get_mut(id) else { return };
        match connector.state {
            ConnectorState::Connected => {
                self.counters.connection_error += u64::from(outcome.is_err())
            }
            ConnectorState::Disconnecting => {}
            _ => return,
        }
        connector.state = ConnectorState::Closed;
        connector.stream = None;
        self.counters.active_connection -= 1;
        let qp = connector.qp;
        // The flush belongs to the disconnect: its completions are delivered first (NDK-DISC-1).
        let is_lost = |id: QpId| self.qps.get(id).is_some_and(|qp| qp.state == QpState::Lost);
        if let Some(qp) = qp.filter(|qp| !is_lost(*qp)) {
            self.break_qp(qp);
        }
        self.end_connector_request(id, outcome);
    }
}
