//! Connection of an identifier: establishment, events, end.

use std::{
    mem,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use rdma_over_tcp::{
    error::EndReason,
    mpa::startup::StartupError,
    rnic::{
        ConnectCause, ConnectError, ConnectionData, ConnectorId, DisconnectEvent, Key, ReadLimit,
        Rnic,
    },
};

use super::id::{
    ConnectAttempt, ConnectParameters, Id, IdPhase,
    channel::{Event, EventKind},
};
use crate::{errno::Errno, qp::Qp, sync::OneShot, usage};

/// Time for which a refused connect is retried. With hardware, a request needs some milliseconds to reach the peer, and
/// programs depend on that: perftest listens for its second connection while the client already connects.
const REFUSED_GRACE: Duration = Duration::from_millis(500);
/// Pause between two attempts.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of bytes of private data in an event, whose length is an octet.
const PRIVATE_DATA_MAX: usize = 255;

/// Limits a number of Reads to the octet that parameters and events have for it.
fn narrow(reads: u32) -> u8 {
    u8::try_from(reads).unwrap_or(u8::MAX)
}

impl Event {
    /// Sets the peer's private data and limits.
    pub(super) fn set_data(&mut self, data: &ConnectionData) {
        let ConnectionData { limits, private_data } = data;
        self.private_data = private_data[..private_data.len().min(PRIVATE_DATA_MAX)].to_vec();
        self.responder_resources = narrow(limits.inbound);
        self.initiator_depth = narrow(limits.outbound);
    }
}

/// Returns event and status of a failed connect.
fn failure(error: ConnectError, cause: Option<&ConnectCause>) -> (EventKind, i32) {
    if let Some(ConnectCause::Ended(EndReason::CqOverrun)) = cause {
        return (EventKind::ConnectError, -Errno::CONNABORTED.0);
    }
    let kind = match error {
        ConnectError::Refused => EventKind::Rejected,
        ConnectError::TimedOut
        | ConnectError::HostUnreachable
        | ConnectError::NetworkUnreachable => EventKind::Unreachable,
        _ => EventKind::ConnectError,
    };
    (kind, -Errno::from(error).0)
}

impl Id {
    /// Returns the maximum number of outstanding Reads in each direction.
    fn most_reads(&self) -> ReadLimit {
        let limits = self.device().limits();
        ReadLimit { inbound: limits.ird_max, outbound: limits.ord_max }
    }

    /// Connects `qp`. An event reports the result.
    ///
    /// # Errors
    /// `EINVAL`: the route is not resolved, the queue pair cannot be connected, or too much private data. `EISCONN`:
    /// the queue pair is connected. `EADDRINUSE`. As [`Device::check`](crate::device::Device::check).
    pub fn connect(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        parameters: &ConnectParameters,
    ) -> Result<(), Errno> {
        let device = self.device();
        device.check()?;
        qp.connect_by_identifier()?;
        let addresses = {
            let mut inner = self.lock();
            let remote = inner.remote.filter(|_| inner.phase == IdPhase::RouteResolved);
            let remote = remote.ok_or(Errno::INVAL)?;
            inner.phase = IdPhase::Connecting;
            inner.qp = Some(qp.clone());
            inner.is_qp_detached = false;
            let (qp, parameters) = (qp.clone(), parameters.clone());
            inner.attempt =
                Some(ConnectAttempt { qp, parameters, until: Instant::now() + REFUSED_GRACE });
            (inner.local, remote)
        };
        self.follow(qp);
        let begun = device.with(|core, _| {
            let connector = core.create_connector()?;
            let begun = self.dial(core, connector, qp, addresses, parameters);
            if let Err(error) = begun {
                let _ = core.close(Key::Connector(connector), Box::new(|| {}));
                return Err(error.into());
            }
            // Callbacks run after the closure.
            self.lock().connector = Some(connector);
            Ok(())
        });
        if begun.is_err() {
            let mut inner = self.lock();
            inner.phase = IdPhase::RouteResolved;
            inner.qp = None;
            inner.attempt = None;
        }
        begun
    }

    /// Starts an attempt in the core.
    fn dial(
        self: &Arc<Self>,
        core: &mut Rnic,
        connector: ConnectorId,
        qp: &Qp,
        addresses: (Option<SocketAddr>, SocketAddr),
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        let most = self.most_reads();
        let limits = ReadLimit {
            inbound: parameters.responder_resources.map_or(most.inbound, u32::from),
            outbound: parameters.initiator_depth.map_or(most.outbound, u32::from),
        };
        let this = self.clone();
        let completion = Box::new(move |outcome| this.connected(connector, outcome));
        core.connect(connector, qp.id(), addresses, limits, &parameters.private_data, completion)
    }

    /// Starts another attempt after a pause.
    fn connect_again(self: &Arc<Self>, connector: ConnectorId) {
        let (attempt, addresses) = {
            let inner = self.lock();
            (inner.attempt.clone(), inner.remote.map(|remote| (inner.local, remote)))
        };
        // If the program has destroyed the identifier, the connector is closed.
        let (Some(ConnectAttempt { qp, parameters, .. }), Some(addresses)) = (attempt, addresses)
        else {
            return;
        };
        let dialed =
            self.device().with(|core, _| self.dial(core, connector, &qp, addresses, &parameters));
        if dialed.is_err() {
            self.close_failed_attempt(connector);
            self.report_failure(ConnectError::Refused, None);
        }
    }

    /// Handles the result of an attempt.
    fn connected(self: &Arc<Self>, connector: ConnectorId, outcome: Result<(), ConnectError>) {
        if let Err(error) = outcome {
            return self.not_connected(connector, error);
        }
        let is_two_step = {
            let mut inner = self.lock();
            let attempt = inner.attempt.as_ref();
            inner.has_response = attempt.is_some_and(|attempt| attempt.parameters.is_two_step);
            inner.has_response
        };
        if is_two_step {
            let data = self.device().with(|core, _| core.connection_data(connector).cloned());
            let mut event = Event::new(EventKind::ConnectResponse, self);
            event.set_data(&data.unwrap_or_default());
            Self::raise(event);
            return;
        }
        let (this, disconnect) = (self.clone(), self.disconnect_event());
        let begun = self.device().with(|core, _| {
            let data = core.connection_data(connector).cloned().unwrap_or_default();
            let local = core.local_address(connector);
            let completion = Box::new(move |outcome: Result<(), ConnectError>| match outcome {
                Ok(()) => this.established(local, &data),
                Err(error) => this.not_connected(connector, error),
            });
            core.complete_connect(connector, Some(disconnect), completion)
        });
        if let Err(error) = begun {
            self.not_connected(connector, error);
        }
    }

    /// Returns the callback for the end of the connection.
    fn disconnect_event(self: &Arc<Self>) -> DisconnectEvent {
        let this = self.clone();
        Box::new(move |reason| this.disconnected(reason))
    }

    /// Establishes a connection that the peer has accepted. Requests can be posted when this returns; no event follows.
    ///
    /// # Errors
    /// `EINVAL`: no connection to establish. `ECONNRESET` and others: the connection was lost. As
    /// [`Device::check`](crate::device::Device::check).
    pub fn establish(self: &Arc<Self>) -> Result<(), Errno> {
        let device = self.device();
        device.check()?;
        let connector = {
            let mut inner = self.lock();
            let has_response = mem::take(&mut inner.has_response);
            inner.connector.filter(|_| has_response).ok_or(Errno::INVAL)?
        };
        let done = Arc::new(OneShot::default());
        let outcome = done.clone();
        let completion = Box::new(move |result| outcome.set(result));
        let disconnect = self.disconnect_event();
        let begun =
            device.with(|core, _| core.complete_connect(connector, Some(disconnect), completion));
        if let Err(error) = begun.and_then(|()| done.wait()) {
            self.close_failed_attempt(connector);
            self.lock().phase = IdPhase::RouteResolved;
            return Err(error.into());
        }
        let local = device.with(|core, _| core.local_address(connector));
        {
            let mut inner = self.lock();
            inner.attempt = None;
            if inner.phase == IdPhase::Connecting {
                inner.phase = IdPhase::Connected;
            }
            inner.local = local.or(inner.local);
        }
        usage::count_connection();
        self.end_without_queue_pair();
        Ok(())
    }

    fn established(self: &Arc<Self>, local: Option<SocketAddr>, data: &ConnectionData) {
        {
            let mut inner = self.lock();
            inner.attempt = None;
            if matches!(inner.phase, IdPhase::Connecting | IdPhase::Accepting) {
                inner.phase = IdPhase::Connected;
            }
            inner.local = local.or(inner.local);
        }
        usage::count_connection();
        let mut event = Event::new(EventKind::Established, self);
        event.set_data(data);
        Self::raise(event);
        self.end_without_queue_pair();
    }

    /// Closes the connection with its queue pair, which the program may destroy or reset. As with other iWARP adapters,
    /// a disconnect event follows.
    fn follow(self: &Arc<Self>, qp: &Qp) {
        let this = Arc::downgrade(self);
        qp.call_on_detach(Box::new(move || {
            if let Some(this) = this.upgrade() {
                this.lock().is_qp_detached = true;
                this.end_without_queue_pair();
            }
        }));
    }

    /// Raises the disconnect event if the connection was established and its queue pair is detached.
    fn end_without_queue_pair(self: &Arc<Self>) {
        let is_over = {
            let inner = self.lock();
            inner.is_qp_detached
                && matches!(inner.phase, IdPhase::Connected | IdPhase::Disconnecting)
        };
        if is_over {
            self.disconnected(None);
        }
    }

    /// Handles a failed connect. A refused one is retried after a pause, while time remains.
    fn not_connected(self: &Arc<Self>, connector: ConnectorId, error: ConnectError) {
        let has_time =
            self.lock().attempt.as_ref().is_some_and(|attempt| Instant::now() < attempt.until);
        let this = self.clone();
        let (cause, is_repeated) = self.device().with(|core, now| {
            let cause = core.connect_cause(connector).cloned();
            let is_refused = matches!(cause, Some(ConnectCause::Tcp(ConnectError::Refused)));
            let again = Box::new(move || this.connect_again(connector));
            let is_repeated = is_refused
                && has_time
                && core.call_at(now + REFUSED_PAUSE, Key::Connector(connector), again).is_ok();
            (cause, is_repeated)
        });
        if !is_repeated {
            self.close_failed_attempt(connector);
            self.report_failure(error, cause);
        }
    }

    /// Closes the connector of a failed attempt.
    fn close_failed_attempt(&self, connector: ConnectorId) {
        {
            let mut inner = self.lock();
            inner.connector = None;
            inner.qp = None;
        }
        self.close(Key::Connector(connector));
    }

    fn report_failure(self: &Arc<Self>, error: ConnectError, cause: Option<ConnectCause>) {
        {
            let mut inner = self.lock();
            inner.phase = IdPhase::RouteResolved;
            inner.attempt = None;
        }
        let mut event = Event::new(EventKind::ConnectError, self);
        (event.kind, event.status) = failure(error, cause.as_ref());
        if let Some(ConnectCause::Startup(StartupError::Rejected { private_data, .. })) = cause {
            let count = private_data.len().min(PRIVATE_DATA_MAX);
            event.private_data = private_data[..count].to_vec();
        }
        Self::raise(event);
    }

    /// Accepts a request. An event reports the result.
    ///
    /// # Errors
    /// `EINVAL`: no request, the queue pair cannot be connected, or too much private data. `ECONNRESET`: the peer has
    /// aborted the connection. As [`Device::check`](crate::device::Device::check).
    pub fn accept(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        parameters: &ConnectParameters,
    ) -> Result<(), Errno> {
        let device = self.device();
        device.check()?;
        qp.connect_by_identifier()?;
        let (connector, offered) = {
            let mut inner = self.lock();
            let (IdPhase::Requested, Some(connector)) = (inner.phase, inner.connector) else {
                return Err(Errno::INVAL);
            };
            inner.phase = IdPhase::Accepting;
            inner.qp = Some(qp.clone());
            (connector, inner.offered)
        };
        self.follow(qp);
        let most = self.most_reads();
        let limits = ReadLimit {
            inbound: parameters.responder_resources.unwrap_or(offered.0).into(),
            outbound: parameters.initiator_depth.unwrap_or(offered.1).into(),
        };
        let limits = ReadLimit {
            inbound: limits.inbound.min(most.inbound),
            outbound: limits.outbound.min(most.outbound),
        };
        let (this, disconnect) = (self.clone(), self.disconnect_event());
        let data = ConnectionData { limits, private_data: Default::default() };
        let private_data = &parameters.private_data;
        let begun = device.with(|core, now| {
            let (id, local) = (qp.id(), core.local_address(connector));
            let completion = Box::new(move |outcome: Result<(), ConnectError>| match outcome {
                Ok(()) => this.established(local, &data),
                Err(error) => this.not_accepted(error),
            });
            core.accept(now, connector, id, limits, private_data, Some(disconnect), completion)
        });
        if let Err(error) = begun {
            let is_peer_gone = error == ConnectError::Aborted;
            {
                let mut inner = self.lock();
                inner.qp = None;
                inner.phase = if is_peer_gone { IdPhase::Closed } else { IdPhase::Requested };
            }
            if is_peer_gone {
                // As in the CM of the kernel, posted requests complete as flushed.
                let _ = qp.fail();
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// Handles an accepted request whose peer did not complete the connection.
    fn not_accepted(self: &Arc<Self>, error: ConnectError) {
        self.lock().phase = IdPhase::Closed;
        let mut event = Event::new(EventKind::ConnectError, self);
        event.status = -Errno::from(error).0;
        Self::raise(event);
    }

    /// Rejects a request.
    ///
    /// # Errors
    /// `EINVAL`: no request, or too much private data. As [`Device::check`](crate::device::Device::check).
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Errno> {
        let device = self.device();
        device.check()?;
        let connector = {
            let inner = self.lock();
            let (IdPhase::Requested, Some(connector)) = (inner.phase, inner.connector) else {
                return Err(Errno::INVAL);
            };
            connector
        };
        let rejected = device.with(|core, _| core.reject(connector, private_data));
        match rejected {
            // An aborted request needs no reply.
            Ok(()) | Err(ConnectError::Aborted) => {
                let mut inner = self.lock();
                inner.phase = IdPhase::Closed;
                inner.connector = None;
                drop(inner);
                self.close(Key::Connector(connector));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Disconnects: posted requests are sent, then a FIN. Both sides get an event. A closed connection is not an error.
    ///
    /// # Errors
    /// `EINVAL`: never connected. As [`Device::check`](crate::device::Device::check).
    pub fn disconnect(self: &Arc<Self>) -> Result<(), Errno> {
        let device = self.device();
        device.check()?;
        let connector = {
            let mut inner = self.lock();
            match (inner.phase, inner.connector) {
                (IdPhase::Connected, Some(connector)) => {
                    inner.phase = IdPhase::Disconnecting;
                    connector
                }
                (IdPhase::Disconnecting | IdPhase::Closed, Some(_)) => return Ok(()),
                _ => return Err(Errno::INVAL),
            }
        };
        let this = self.clone();
        let completion = Box::new(move |_| this.disconnected(None));
        let begun = device.with(|core, now| core.disconnect(now, connector, completion));
        if begun.is_err() {
            // The connection is closed already: by the peer, or with its queue pair.
            self.disconnected(None);
        }
        Ok(())
    }

    /// Handles the end of the connection, by either side.
    fn disconnected(self: &Arc<Self>, reason: Option<EndReason>) {
        let (qp, before) = {
            let mut inner = self.lock();
            (inner.qp.clone(), mem::replace(&mut inner.phase, IdPhase::Closed))
        };
        if let (Some(qp), Some(reason)) = (qp, reason) {
            qp.ended(reason);
        }
        if before != IdPhase::Closed {
            Self::raise(Event::new(EventKind::Disconnected, self));
        }
    }
}

#[cfg(test)]
mod tests {
    use rdma_over_tcp::error::Loss;

    use super::*;

    // A reset by the peer is a rejection; an overrun of a completion queue is a local failure.
    #[test]
    fn failed_connect_has_event_and_status() {
        let reset = ConnectCause::Ended(EndReason::Lost(Loss::Reset));
        let overrun = ConnectCause::Ended(EndReason::CqOverrun);
        for (error, cause, expected) in [
            (ConnectError::Refused, Some(&reset), (EventKind::Rejected, -Errno::CONNREFUSED.0)),
            (ConnectError::TimedOut, None, (EventKind::Unreachable, -Errno::TIMEDOUT.0)),
            (
                ConnectError::Aborted,
                Some(&overrun),
                (EventKind::ConnectError, -Errno::CONNABORTED.0),
            ),
        ] {
            assert_eq!(failure(error, cause), expected);
        }
    }
}
