//! Consumer calls that establish and end connections.

use alloc::boxed::Box;
use core::net::SocketAddr;

use bytes::Bytes;
use offload_engine::{
    address::{self, LocalAddress, canonical},
    time::Instant,
};

use crate::{
    mpa::startup::{ENHANCED_OCTETS, PRIVATE_DATA_OCTETS_MAX, PrivateData, Revision},
    rnic::{
        Rnic,
        config::ListenerConfig,
        connection::{
            connector::{Connector, ConnectorState, DisconnectEvent, PlainAttempt},
            listener::ListenerState,
            read_limit::ReadLimit,
        },
        objects::{
            id::{ConnectorId, Key, ListenerId, QpId, SharedEndpointId, StreamId},
            lifetime::RequestCompletion,
        },
        queues::qp::QpState,
        status::ConnectError,
        stream::Stream,
        transport::Command,
    },
};

/// Local endpoint of a connect.
#[derive(Clone, Copy)]
enum LocalEndpoint {
    Address(Option<SocketAddr>),
    Shared(SharedEndpointId),
}

impl Rnic {
    /// Checks private data for a frame with or without enhanced data (NDK-CD-5, MPA-7.1.1-11, MPE-6-3).
    fn private_data(&self, data: &[u8], is_enhanced: bool) -> Result<PrivateData, ConnectError> {
        let room = PRIVATE_DATA_OCTETS_MAX - if is_enhanced { ENHANCED_OCTETS } else { 0 };
        if data.len() > room.min(self.config.limits.private_data_max as usize) {
            return Err(ConnectError::PrivateDataTooLong);
        }
        PrivateData::new(Bytes::copy_from_slice(data)).map_err(|_| ConnectError::PrivateDataTooLong)
    }

    /// Returns true if the connector's peer expects a Reply with enhanced data.
    fn is_offer_enhanced(&self, id: ConnectorId) -> bool {
        let stream = self.objects.connectors.get(id).and_then(|connector| connector.stream);
        stream.and_then(|id| self.streams.get(&id)).is_some_and(Stream::is_offer_enhanced)
    }

    /// Returns true if a local address is refused because it is in use.
    pub(crate) fn is_taken(&self, local: impl Into<LocalAddress>) -> bool {
        self.config.exclusive_endpoints && self.objects.endpoints.is_in_use(local)
    }

    pub(crate) fn check_device(&self) -> Result<(), ConnectError> {
        if self.is_lost { Err(ConnectError::DeviceLost) } else { Ok(()) }
    }

    /// Checks a queue pair for a new connection: idle and not closed.
    fn check_qp(&mut self, id: QpId) -> Result<(), ConnectError> {
        self.check_open(Key::Qp(id)).map_err(|_| ConnectError::InvalidHandle)?;
        let Some(qp) = self.objects.qps.get(id) else { return Err(ConnectError::InvalidHandle) };
        let cqs = [qp.receive_cq, qp.sends.cq].map(|cq| self.objects.cqs.get(cq));
        match qp.state {
            // NDK-CQ-13: its completions would never be delivered.
            QpState::Idle if cqs.into_iter().flatten().any(|cq| cq.queue.has_failed()) => {
                Err(ConnectError::QpUnusable)
            }
            QpState::Idle => Ok(()),
            QpState::Connecting | QpState::Connected => Err(ConnectError::QpConnected),
            // NDK-DISC-6
            QpState::Error | QpState::Lost => Err(ConnectError::QpUnusable),
        }
    }

    /// Returns a connector in one of `states`, with its stream.
    fn connector_in_state(
        &mut self,
        id: ConnectorId,
        states: &[ConnectorState],
    ) -> Result<(&mut Connector, StreamId), ConnectError> {
        // NDK-LIFE-2: a connector with a pending close is refused, because no call would end the new request.
        self.check_open(Key::Connector(id)).map_err(|_| ConnectError::InvalidState)?;
        let connector = self.objects.connectors.get_mut(id).ok_or(ConnectError::InvalidState)?;
        match connector.stream {
            Some(stream) if states.contains(&connector.state) => Ok((connector, stream)),
            // The peer aborted the connection before.
            _ if connector.state == ConnectorState::Closed => Err(ConnectError::Aborted),
            _ => Err(ConnectError::InvalidState),
        }
    }

    fn attach(&mut self, id: ConnectorId, qp_id: QpId, stream: StreamId) {
        if let Some(qp) = self.objects.qps.get_mut(qp_id) {
            qp.state = QpState::Connecting;
            qp.stream = Some(stream);
            qp.flow.is_scheduled = false;
        }
        if let Some(connector) = self.objects.connectors.get_mut(id) {
            connector.qp = Some(qp_id);
            connector.stream = Some(stream);
        }
        self.objects.pin(Key::Qp(qp_id));
    }

    /// Connects a queue pair. `completion` is called when the peer has accepted or the attempt has failed. After
    /// success [`Rnic::complete_connect`] or [`Rnic::reject`] follows. After a failure connector and queue pair may be
    /// used again. With `local` = `None` or port 0, the transport chooses. `private_data`: at most 508 bytes, 512 with
    /// revision 1.
    ///
    /// # Errors
    /// Nothing was started, and `completion` is not called: [`ConnectError::PrivateDataTooLong`],
    /// [`ConnectError::InvalidHandle`], [`ConnectError::AlreadyBound`] (the connector is in use),
    /// [`ConnectError::QpConnected`], [`ConnectError::QpUnusable`] (see [`Rnic::reset_qp`]),
    /// [`ConnectError::InvalidAddress`], [`ConnectError::AddressInUse`], [`ConnectError::DeviceLost`].
    pub fn connect(
        &mut self,
        id: ConnectorId,
        qp: QpId,
        (local, remote): (Option<SocketAddr>, SocketAddr),
        limits: ReadLimit,
        private_data: &[u8],
        completion: RequestCompletion,
    ) -> Result<(), ConnectError> {
        self.try_connect(id, qp, (LocalEndpoint::Address(local), remote), limits, private_data)?;
        self.objects.begin_request(id, completion);
        Ok(())
    }

    /// As [`Rnic::connect`], from a shared endpoint.
    ///
    /// # Errors
    /// As [`Rnic::connect`], without [`ConnectError::AddressInUse`]; [`ConnectError::InvalidHandle`] also for the
    /// endpoint; [`ConnectError::ConnectionExists`]: the endpoint has a connection to this peer (NDK-EP-3).
    pub fn connect_from(
        &mut self,
        id: ConnectorId,
        qp: QpId,
        (endpoint, remote): (SharedEndpointId, SocketAddr),
        limits: ReadLimit,
        private_data: &[u8],
        completion: RequestCompletion,
    ) -> Result<(), ConnectError> {
        self.try_connect(id, qp, (LocalEndpoint::Shared(endpoint), remote), limits, private_data)?;
        self.objects.begin_request(id, completion);
        Ok(())
    }

    fn try_connect(
        &mut self,
        id: ConnectorId,
        qp: QpId,
        (from, remote): (LocalEndpoint, SocketAddr),
        limits: ReadLimit,
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        self.check_device()?;
        let is_enhanced = self.config.revision >= Revision::Two;
        let private_data = self.private_data(private_data, is_enhanced)?;
        self.check_open(Key::Connector(id)).map_err(|_| ConnectError::InvalidHandle)?;
        let state = self.objects.connectors.get(id).map(|connector| connector.state);
        if state != Some(ConnectorState::Idle) {
            return Err(ConnectError::AlreadyBound);
        }
        self.check_qp(qp)?;
        let remote = canonical(remote);
        if remote.ip().is_unspecified() || remote.port() == 0 {
            return Err(ConnectError::InvalidAddress);
        }
        let (local, shared) = match from {
            LocalEndpoint::Address(local) => {
                let local = local.map(|local| address::source_for(local, remote));
                let explicit = local.filter(|local| local.port() != 0);
                if explicit.is_some_and(|local| self.is_taken(local)) {
                    return Err(ConnectError::AddressInUse); // NDK-EP-2
                }
                (local, None)
            }
            LocalEndpoint::Shared(id) => (Some(self.check_shared_endpoint(id, remote)?), Some(id)),
        };
        let own = limits.capped(self.objects.read_limits());
        let plain = self.config.retry_plain && self.config.revision == Revision::Two;
        let attempt = PlainAttempt { local, shared, remote, limits: own, private_data };
        let stream = self.begin_attempt(id, qp, self.config.revision, &attempt);
        self.attach(id, qp, stream);
        if let Some(connector) = self.objects.connectors.get_mut(id) {
            connector.state = ConnectorState::Connecting;
            connector.shared = shared;
            connector.remote = Some(remote);
            connector.data = None;
            connector.cause = None;
            connector.plain = plain.then(|| Box::new(attempt));
        }
        if let Some(shared) = shared {
            self.objects.pin(Key::SharedEndpoint(shared));
        }
        Ok(())
    }

    /// Creates the stream of a connect.
    fn begin_attempt(
        &mut self,
        id: ConnectorId,
        qp: QpId,
        revision: Revision,
        attempt: &PlainAttempt,
    ) -> StreamId {
        let PlainAttempt { local, shared, remote, limits, private_data } = attempt.clone();
        let stream = (self.new_stream_id)();
        let initiator = Stream::initiator(&self.config, revision, limits, private_data);
        self.streams.insert(stream, Stream::active(stream, id, qp, initiator, limits));
        let timeout = self.config.connect_timeout;
        let endpoint = shared;
        self.commands.push_back(Command::Connect { stream, local, endpoint, remote, timeout });
        stream
    }

    /// Retries a connect with revision 1: the peer does not support enhanced start-up (MPE-10-3).
    #[cold]
    pub(crate) fn retry_plain(&mut self, id: ConnectorId) {
        let Some(connector) = self.objects.connectors.get_mut(id) else { return };
        let (Some(attempt), Some(qp)) = (connector.plain.take(), connector.qp) else { return };
        let stream = self.begin_attempt(id, qp, Revision::One, &attempt);
        if let Some(connector) = self.objects.connectors.get_mut(id) {
            connector.stream = Some(stream);
        }
        if let Some(qp) = self.objects.qps.get_mut(qp) {
            qp.stream = Some(stream);
        }
    }

    /// Completes a connect that the peer has accepted (active end). When `completion` is called with success, the queue
    /// pair accepts requests. `disconnect_event` is called when the connection ends, unless this end closes it.
    ///
    /// # Errors
    /// [`ConnectError::InvalidState`]: there is no connect to complete; [`ConnectError::Aborted`]: the peer aborted
    /// before; [`ConnectError::DeviceLost`].
    pub fn complete_connect(
        &mut self,
        id: ConnectorId,
        disconnect_event: Option<DisconnectEvent>,
        completion: RequestCompletion,
    ) -> Result<(), ConnectError> {
        self.check_device()?;
        let (connector, stream) = self.connector_in_state(id, &[ConnectorState::ConnectDone])?;
        connector.state = ConnectorState::Completing;
        connector.disconnect_event = disconnect_event;
        connector.data = None; // NDK-CD-2
        self.objects.begin_request(id, completion);
        self.with_stream(stream, |it, objects, _| it.complete_connect(objects));
        Ok(())
    }

    /// Accepts a connection request. `completion` is called with success when the peer's first message has arrived.
    /// From then on the queue pair accepts requests.
    ///
    /// # Errors
    /// [`ConnectError::PrivateDataTooLong`], [`ConnectError::InvalidHandle`], [`ConnectError::QpConnected`],
    /// [`ConnectError::QpUnusable`]; [`ConnectError::InvalidState`]: there is no request to accept;
    /// [`ConnectError::Aborted`]: the peer aborted before; [`ConnectError::DeviceLost`].
    #[expect(clippy::too_many_arguments, reason = "an accept has them")]
    pub fn accept(
        &mut self,
        now: Instant,
        id: ConnectorId,
        qp: QpId,
        limits: ReadLimit,
        private_data: &[u8],
        disconnect_event: Option<DisconnectEvent>,
        completion: RequestCompletion,
    ) -> Result<(), ConnectError> {
        self.check_device()?;
        let private_data = self.private_data(private_data, self.is_offer_enhanced(id))?;
        self.check_qp(qp)?;
        let (connector, stream) = self.connector_in_state(id, &[ConnectorState::Pending])?;
        connector.state = ConnectorState::Accepting;
        connector.disconnect_event = disconnect_event;
        connector.data = None; // NDK-CD-2
        self.attach(id, qp, stream);
        self.objects.begin_request(id, completion);
        let own = limits.capped(self.objects.read_limits());
        self.with_stream(stream, |stream, objects, config| {
            stream.accept(objects, config, qp, own, private_data);
            stream.deadline = Some(now + config.accept_timeout);
        });
        Ok(())
    }

    /// Rejects a connection: an incoming request, with private data, or a connect that the peer has accepted
    /// (NDK-CON-2, -3).
    ///
    /// # Errors
    /// [`ConnectError::PrivateDataTooLong`]; [`ConnectError::InvalidState`]: there is no connection to reject;
    /// [`ConnectError::Aborted`]: the peer aborted before; [`ConnectError::DeviceLost`].
    pub fn reject(&mut self, id: ConnectorId, private_data: &[u8]) -> Result<(), ConnectError> {
        self.check_device()?;
        let private_data = self.private_data(private_data, self.is_offer_enhanced(id))?;
        let (connector, stream) =
            self.connector_in_state(id, &[ConnectorState::Pending, ConnectorState::ConnectDone])?;
        let is_passive = connector.state == ConnectorState::Pending;
        if is_passive {
            connector.state = ConnectorState::Closed;
            connector.stream = None;
            self.with_stream(stream, |stream, _, _| {
                stream.reject(crate::mpa::startup::ReadLimits::default(), private_data);
            });
        } else {
            // MPA has no frame for this: the passive end detects the end of the connection.
            self.end_stream(stream, ConnectError::Aborted);
        }
        Ok(())
    }

    /// Ends a connection gracefully: posted requests are sent, then FIN. `completion` is called when the FIN is
    /// acknowledged. Requests not done by then are flushed before it. No disconnect event follows.
    ///
    /// # Errors
    /// [`ConnectError::InvalidState`]: not connected; [`ConnectError::DeviceLost`].
    pub fn disconnect(
        &mut self,
        now: Instant,
        id: ConnectorId,
        completion: RequestCompletion,
    ) -> Result<(), ConnectError> {
        self.check_device()?;
        let Some(connector) = self.objects.connectors.get_mut(id) else {
            return Err(ConnectError::InvalidState);
        };
        let (ConnectorState::Connected, Some(stream)) = (connector.state, connector.stream) else {
            return Err(ConnectError::InvalidState);
        };
        connector.state = ConnectorState::Disconnecting;
        connector.disconnect_event = None; // NDK-DISC-4
        let qp = connector.qp.and_then(|qp| self.objects.qps.get_mut(qp));
        if let Some(qp) = qp {
            qp.state = QpState::Error; // no more initiator requests
        }
        self.objects.begin_request(id, completion);
        self.with_stream(stream, |stream, _, config| stream.disconnect(config, now));
        Ok(())
    }

    /// Starts to listen. `completion` is called when the transport listens, or when it cannot. With port 0 the
    /// transport chooses ([`Rnic::listener_address`]).
    ///
    /// # Errors
    /// [`ConnectError::AddressInUse`], [`ConnectError::AlreadyBound`] (already listening),
    /// [`ConnectError::InvalidHandle`], [`ConnectError::DeviceLost`].
    pub fn listen(
        &mut self,
        id: ListenerId,
        local: SocketAddr,
        config: ListenerConfig,
        completion: RequestCompletion,
    ) -> Result<(), ConnectError> {
        self.check_device()?;
        let local = LocalAddress { address: canonical(local), v6_only: config.v6_only };
        if local.address.port() != 0 && self.is_taken(local) {
            return Err(ConnectError::AddressInUse); // NDK-EP-2
        }
        self.check_open(Key::Listener(id)).map_err(|_| ConnectError::InvalidHandle)?;
        let Some(listener) = self.objects.listeners.get_mut(id) else {
            return Err(ConnectError::InvalidHandle);
        };
        if listener.state != ListenerState::Idle {
            return Err(ConnectError::AlreadyBound);
        }
        listener.state = ListenerState::Starting;
        listener.config = config;
        listener.request = Some(completion);
        self.objects.pin(Key::Listener(id));
        self.commands.push_back(Command::Listen { listener: id, local, backlog: config.backlog });
        Ok(())
    }
}
