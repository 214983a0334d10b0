//! Identifiers: how connections are made, and how they end.

use std::{
    mem,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rdma_over_tcp::{
    error::EndReason,
    mpa::startup::StartupError,
    rnic::{ConnectCause, ConnectError, ConnectionData, ConnectorId, Key, ReadLimit},
};

use super::id::{
    Attempt, ConnectParameters, Id, Phase,
    channel::{Event, EventKind},
};
use crate::{
    errno::Errno,
    qp::{Qp, State},
    usage,
};

/// How long a connect is repeated while nobody listens. With hardware it takes some milliseconds until a request is at
/// the peer, and programs count on that: perftest listens for its second connection when the client connects already.
const REFUSED_GRACE: Duration = Duration::from_millis(500);
/// The pause between two attempts.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// Bytes of private data that an event can tell of: its length is an octet.
const PRIVATE_DATA_MAX: usize = 255;

/// Reads at once, in the octet that they have in parameters and events.
fn narrow(reads: u32) -> u8 {
    u8::try_from(reads).unwrap_or(u8::MAX)
}

impl Event {
    /// Notes what the peer has said.
    pub(super) fn set_data(&mut self, data: &ConnectionData) {
        let ConnectionData { limits, private_data } = data;
        self.private_data = private_data[..private_data.len().min(PRIVATE_DATA_MAX)].to_vec();
        self.responder_resources = narrow(limits.inbound);
        self.initiator_depth = narrow(limits.outbound);
    }
}

/// The event and the status of a connection that was not made.
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
    /// The most Reads at once, in each direction.
    fn most_reads(&self) -> ReadLimit {
        let limits = self.engine().limits();
        ReadLimit { inbound: limits.ird_max, outbound: limits.ord_max }
    }

    /// Connects `qp`. An event says what has come of it.
    ///
    /// # Errors
    /// `EINVAL`: the route is not resolved, the queue pair cannot be connected, or there is too much private data.
    /// `EISCONN`: the queue pair is connected. `EADDRINUSE`. As [`Engine::check`](crate::engine::Engine::check).
    pub fn connect(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        parameters: &ConnectParameters,
    ) -> Result<(), Errno> {
        let engine = self.engine();
        engine.check()?;
        let (local, remote) = {
            let mut inner = self.lock();
            if inner.phase != Phase::RouteResolved {
                return Err(Errno::INVAL);
            }
            inner.phase = Phase::Connecting;
            let (qp, parameters) = (qp.clone(), parameters.clone());
            inner.attempt = Some(Attempt { qp, parameters, until: Instant::now() + REFUSED_GRACE });
            (inner.local, inner.remote)
        };
        let begun = self.begin_to_connect(qp, local, remote, parameters);
        if begun.is_err() {
            let mut inner = self.lock();
            inner.phase = Phase::RouteResolved;
            inner.attempt = None;
        }
        begun
    }

    /// Connects once more, after a pause, if nobody has listened and there is time left. Returns whether it does.
    fn connect_again(self: &Arc<Self>, cause: Option<&ConnectCause>) -> bool {
        if !matches!(cause, Some(ConnectCause::Tcp(ConnectError::Refused))) {
            return false;
        }
        let attempt = self.lock().attempt.clone();
        let Some(attempt) = attempt.filter(|attempt| Instant::now() < attempt.until) else {
            return false;
        };
        let this = self.clone();
        let again = move || {
            thread::park_timeout(REFUSED_PAUSE);
            let (local, remote, is_wanted) = {
                let inner = this.lock();
                (inner.local, inner.remote, inner.attempt.is_some())
            };
            let Attempt { qp, parameters, .. } = attempt;
            if is_wanted && this.begin_to_connect(&qp, local, remote, &parameters).is_err() {
                this.tell_failure(ConnectError::Refused, None);
            }
        };
        offload_engine::thread::start("flue-connect", again).is_ok()
    }

    fn begin_to_connect(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), Errno> {
        let engine = self.engine();
        let remote = remote.ok_or(Errno::INVAL)?;
        let most = self.most_reads();
        let limits = ReadLimit {
            inbound: parameters.responder_resources.map_or(most.inbound, u32::from),
            outbound: parameters.initiator_depth.map_or(most.outbound, u32::from),
        };
        let connector = engine.with(|core, _| core.create_connector())?;
        let is_wanted = {
            let mut inner = self.lock();
            if !inner.is_destroyed {
                inner.connector = Some(connector);
                inner.qp = Some(qp.clone());
                inner.is_qp_gone = false;
            }
            !inner.is_destroyed
        };
        // It was destroyed while it paused: nobody would close the connector.
        if !is_wanted {
            self.close(Key::Connector(connector));
            return Err(Errno::INVAL);
        }
        self.follow(qp);
        let this = self.clone();
        let completion = Box::new(move |outcome| this.connected(connector, outcome));
        let begun = engine.with(|core, _| {
            let addresses = (local, remote);
            core.connect(
                connector,
                qp.id(),
                addresses,
                limits,
                &parameters.private_data,
                completion,
            )
        });
        if let Err(error) = begun {
            let mut inner = self.lock();
            inner.connector = None;
            inner.qp = None;
            drop(inner);
            self.close(Key::Connector(connector));
            return Err(error.into());
        }
        Ok(())
    }

    /// The peer has answered, or never will.
    fn connected(self: &Arc<Self>, connector: ConnectorId, outcome: Result<(), ConnectError>) {
        let engine = self.engine();
        if let Err(error) = outcome {
            return self.not_connected(connector, error);
        }
        let data = engine.with(|core, _| core.connection_data(connector).cloned());
        let data = data.unwrap_or_default();
        let this = self.clone();
        let disconnected = self.clone();
        let disconnect: rdma_over_tcp::rnic::DisconnectEvent =
            Box::new(move |reason| disconnected.disconnected(reason));
        let completion = Box::new(move |outcome: Result<(), ConnectError>| match outcome {
            Ok(()) => this.established(connector, &data),
            Err(error) => this.not_connected(connector, error),
        });
        let begun =
            engine.with(|core, _| core.complete_connect(connector, Some(disconnect), completion));
        if let Err(error) = begun {
            self.not_connected(connector, error);
        }
    }

    fn established(self: &Arc<Self>, connector: ConnectorId, data: &ConnectionData) {
        let local = self.engine().with(|core, _| core.local_address(connector));
        {
            let mut inner = self.lock();
            inner.attempt = None;
            if matches!(inner.phase, Phase::Connecting | Phase::Accepting) {
                inner.phase = Phase::Connected;
            }
            inner.local = local.or(inner.local);
        }
        usage::count_connection();
        let mut event = Event::new(EventKind::Established, self);
        event.set_data(data);
        Self::raise(event);
        self.end_without_queue_pair();
    }

    /// Ends with the queue pair, which the program may destroy or reset: as with adapters of iWARP the event of a
    /// disconnect follows.
    fn follow(self: &Arc<Self>, qp: &Qp) {
        let this = Arc::downgrade(self);
        qp.on_departure(Box::new(move || {
            if let Some(this) = this.upgrade() {
                this.lock().is_qp_gone = true;
                this.end_without_queue_pair();
            }
        }));
    }

    /// Raises the event of a disconnect if the connection was there, and has gone with its queue pair.
    fn end_without_queue_pair(self: &Arc<Self>) {
        let is_over = {
            let inner = self.lock();
            inner.is_qp_gone && matches!(inner.phase, Phase::Connected | Phase::Disconnecting)
        };
        if is_over {
            self.disconnected(None);
        }
    }

    /// A connection that was to be made, from here, is not.
    fn not_connected(self: &Arc<Self>, connector: ConnectorId, error: ConnectError) {
        let cause = self.engine().with(|core, _| core.connect_cause(connector).cloned());
        {
            let mut inner = self.lock();
            inner.connector = None;
            inner.qp = None;
        }
        self.close(Key::Connector(connector));
        if !self.connect_again(cause.as_ref()) {
            self.tell_failure(error, cause);
        }
    }

    fn tell_failure(self: &Arc<Self>, error: ConnectError, cause: Option<ConnectCause>) {
        {
            let mut inner = self.lock();
            inner.phase = Phase::RouteResolved;
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

    /// Accepts a request. An event says what has come of it.
    ///
    /// # Errors
    /// `EINVAL`: there is none, the queue pair cannot be connected, or there is too much private data. `ECONNRESET`:
    /// the peer has given up. As [`Engine::check`](crate::engine::Engine::check).
    pub fn accept(
        self: &Arc<Self>,
        qp: &Arc<Qp>,
        parameters: &ConnectParameters,
    ) -> Result<(), Errno> {
        let engine = self.engine();
        engine.check()?;
        let (connector, offered) = {
            let mut inner = self.lock();
            let (Phase::Requested, Some(connector)) = (inner.phase, inner.connector) else {
                return Err(Errno::INVAL);
            };
            inner.phase = Phase::Accepting;
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
        let (this, disconnected) = (self.clone(), self.clone());
        let disconnect: rdma_over_tcp::rnic::DisconnectEvent =
            Box::new(move |reason| disconnected.disconnected(reason));
        let completion = Box::new(move |outcome: Result<(), ConnectError>| match outcome {
            Ok(()) => this.established(
                connector,
                &ConnectionData { limits, private_data: Default::default() },
            ),
            Err(error) => this.not_accepted(error),
        });
        let private_data = &parameters.private_data;
        let begun = engine.with(|core, now| {
            let id = qp.id();
            core.accept(now, connector, id, limits, private_data, Some(disconnect), completion)
        });
        if let Err(error) = begun {
            let is_peer_gone = error == ConnectError::Aborted;
            {
                let mut inner = self.lock();
                inner.qp = None;
                inner.phase = if is_peer_gone { Phase::Closed } else { Phase::Requested };
            }
            if is_peer_gone {
                // As the kernel's CM has it: what the program has posted completes as flushed.
                let _ = qp.modify(State::Error);
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// The peer of an accepted request has not gone on.
    fn not_accepted(self: &Arc<Self>, error: ConnectError) {
        self.lock().phase = Phase::Closed;
        let mut event = Event::new(EventKind::ConnectError, self);
        event.status = -Errno::from(error).0;
        Self::raise(event);
    }

    /// Rejects a request.
    ///
    /// # Errors
    /// `EINVAL`: there is none, or too much private data. As [`Engine::check`](crate::engine::Engine::check).
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Errno> {
        let engine = self.engine();
        engine.check()?;
        let connector = {
            let inner = self.lock();
            let (Phase::Requested, Some(connector)) = (inner.phase, inner.connector) else {
                return Err(Errno::INVAL);
            };
            connector
        };
        let rejected = engine.with(|core, _| core.reject(connector, private_data));
        match rejected {
            // A peer that has given up needs no answer.
            Ok(()) | Err(ConnectError::Aborted) => {
                let mut inner = self.lock();
                inner.phase = Phase::Closed;
                inner.connector = None;
                drop(inner);
                self.close(Key::Connector(connector));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the connection: what was posted is sent, then FIN. The event follows on both sides. One that has ended
    /// already is no error.
    ///
    /// # Errors
    /// `EINVAL`: there was no connection. As [`Engine::check`](crate::engine::Engine::check).
    pub fn disconnect(self: &Arc<Self>) -> Result<(), Errno> {
        let engine = self.engine();
        engine.check()?;
        let connector = {
            let mut inner = self.lock();
            match (inner.phase, inner.connector) {
                (Phase::Connected, Some(connector)) => {
                    inner.phase = Phase::Disconnecting;
                    connector
                }
                (Phase::Disconnecting | Phase::Closed, Some(_)) => return Ok(()),
                _ => return Err(Errno::INVAL),
            }
        };
        let this = self.clone();
        let completion = Box::new(move |_| this.disconnected(None));
        let begun = engine.with(|core, now| core.disconnect(now, connector, completion));
        if begun.is_err() {
            // It has ended already: by the peer, or with its queue pair, which was destroyed or reset.
            self.disconnected(None);
        }
        Ok(())
    }

    /// The connection is over, by either side.
    fn disconnected(self: &Arc<Self>, reason: Option<EndReason>) {
        let (qp, before) = {
            let mut inner = self.lock();
            (inner.qp.clone(), mem::replace(&mut inner.phase, Phase::Closed))
        };
        if let (Some(qp), Some(reason)) = (qp, reason) {
            qp.ended(reason);
        }
        if before != Phase::Closed {
            Self::raise(Event::new(EventKind::Disconnected, self));
        }
    }
}

#[cfg(test)]
mod tests {
    use rdma_over_tcp::error::Loss;

    use super::*;

    // A peer that resets has refused; a completion queue that has overrun is this side's.
    #[test]
    fn failures() {
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
