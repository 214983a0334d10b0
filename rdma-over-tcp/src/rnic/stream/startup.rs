//! MPA start-up on a stream (RFC 5044 §7.1, RFC 6581 §9).

use alloc::boxed::Box;
use core::{net::SocketAddr, sync::atomic::Ordering};

use bytes::Bytes;
use offload_engine::time::Instant;

use super::{
    Ending, FullOperation, Phase, Stream,
    accept_race::{AcceptRace, EMPTY_WRITES_MAX},
    receive::Receiver,
    transmit::Transmitter,
};
use crate::{
    mpa::{
        Decoder,
        startup::{
            Enhanced, FailureAction, Framing, Initiator, Negotiated, PrivateData, ReadLimits,
            Responder, ResponderConfig, Revision, Role, StartupConfig, StartupError,
        },
    },
    rdmap::Terminate,
    rnic::{
        config::Config,
        connection::{
            cause::ConnectCause,
            connector::{ConnectionData, Connector, ConnectorState},
            read_limit::ReadLimit,
        },
        objects::{
            id::{ConnectorId, Key, ListenerId, QpId, StreamId},
            lifetime::{Return, ReturnGuard},
        },
        queues::rc::QpService,
        status::ConnectError,
        tables::Objects,
        transport::LlpStream,
    },
};

impl Stream {
    /// Starts MPA start-up: bytes may flow.
    pub(crate) fn open(&mut self, objects: &mut Objects, config: &Config, io: &mut impl LlpStream) {
        self.is_open = true;
        self.history.offloaded = Some(io.now());
        if let Phase::Opening(initiator) = &mut self.phase {
            match initiator.take() {
                Some(mut initiator) => {
                    initiator.request_crc(config.crc.applies(|| io.is_on_one_host()));
                    self.frame = Some(initiator.request());
                    self.phase = Phase::AwaitReply(initiator);
                    self.deadline = Some(io.now() + config.reply_timeout);
                }
                None => {
                    let Config { markers, rtr, .. } = *config;
                    let crc = config.crc.applies(|| io.is_on_one_host());
                    let responder = Responder::new(ResponderConfig { crc, markers, rtr });
                    self.phase = Phase::AwaitRequest(responder);
                    self.deadline = Some(io.now() + config.request_timeout);
                }
            }
        }
        self.act(objects, config, io);
    }

    pub(super) fn receive_startup(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut impl LlpStream,
        data: &[u8],
    ) {
        self.startup_octets.extend_from_slice(data);
        match &self.phase {
            Phase::AwaitReply(initiator) => {
                match initiator.receive(&self.startup_octets) {
                    Ok(None) => {}
                    Ok(Some((reply, taken))) => {
                        let octets = core::mem::take(&mut self.startup_octets);
                        let negotiated = reply.negotiated;
                        let service = self.service(objects);
                        self.operate(config, &negotiated, reply.peer.as_ref(), service);
                        self.connect_done(objects, reply.private_data);
                        // Peers such as siw may send directly after their Reply.
                        let mut rest = &octets[taken..];
                        self.receive_fpdus(objects, config, io, &mut rest);
                        if self.waiting.is_some() {
                            self.receive_while_waiting(objects, config, io, rest);
                        }
                    }
                    Err(error) => self.startup_failed(objects, config, io, error),
                }
            }
            Phase::AwaitRequest(responder) => match responder.receive(&self.startup_octets) {
                Ok(None) => {}
                Ok(Some(offer)) => {
                    self.startup_octets.clear();
                    // NDK-CON-6: the consumer may be slow, but the peer gets an answer within the limit.
                    self.deadline = Some(io.now() + config.accept_timeout);
                    self.phase = Phase::Offered(offer);
                    self.raise_connect_event(objects);
                }
                Err(error) => self.startup_failed(objects, config, io, error),
            },
            // An initiator must wait for the Reply (MPA-7.1.2-10).
            Phase::Offered(_) => {
                let octets = self.startup_octets.len();
                let error = StartupError::EarlyData { octets };
                self.startup_failed(objects, config, io, error);
            }
            Phase::Opening(_) | Phase::Operating(_) | Phase::Ended => {}
        }
    }

    /// Service of the queue pair.
    fn service(&self, objects: &Objects) -> QpService {
        match self.qp.and_then(|id| objects.qps.get(id)) {
            Some(qp) => qp.service(),
            None => QpService::Iwarp,
        }
    }

    /// Enters full operation.
    fn operate(
        &mut self,
        config: &Config,
        negotiated: &Negotiated,
        peer: Option<&Enhanced>,
        service: QpService,
    ) {
        let Framing { crc, send_markers, receive_markers } = negotiated.framing;
        let rtr = negotiated.rtr.filter(|_| negotiated.role == Role::Initiator);
        let own = ReadLimits { ord: negotiated.limits.ord, ..self.own_limits };
        let limits = ReadLimit::effective(own, peer);
        self.history.negotiated = Some(*negotiated);
        self.history.limits = Some(limits);
        self.is_rc_new = matches!(service, QpService::Rc | QpService::Uc);
        self.has_chores |= self.is_rc_new;
        self.phase = Phase::Operating(Box::new(FullOperation {
            decoder: Decoder::new(crc, receive_markers),
            // The limit in the start-up frame is binding, not the smaller of both.
            receiver: Receiver::new(negotiated.limits.ird),
            transmitter: Transmitter::new((crc, send_markers), config, rtr, service),
            may_send: false,
            limits,
            is_established: false,
            accept_race: AcceptRace::new(negotiated, peer),
        }));
    }

    /// Completes the connect: the peer has accepted. The consumer may read its data, and complete or reject
    /// (NDK-CON-2).
    fn connect_done(&mut self, objects: &mut Objects, private_data: Bytes) {
        let (Phase::Operating(operation), Some(id)) = (&self.phase, self.connector) else {
            return;
        };
        self.deadline = None; // NDK-CON-6
        if let Some(connector) = objects.connectors.get_mut(id) {
            connector.state = ConnectorState::ConnectDone;
            connector.data = Some(ConnectionData { limits: operation.limits, private_data });
        }
        objects.end_connector_request(id, Ok(()));
    }

    /// Completes the connect of the consumer: the negotiated RTR, if there is one, is sent in the next call.
    pub(crate) fn complete_connect(&mut self, objects: &mut Objects) {
        if let Phase::Operating(operation) = &mut self.phase {
            operation.may_send = true;
            // Reads may be queued, and start in the next call.
            if let Some(qp) = self.qp.and_then(|id| objects.qps.get_mut(id)).filter(|qp| qp.is_rc())
            {
                qp.read_limit = operation.limits.outbound.max(1);
            }
        }
    }

    /// Removes the stream from its listener: the Request is complete, or will not be.
    pub(super) fn remove_from_listener(&mut self, objects: &mut Objects) {
        if let Some((id, number)) = self.awaiting.take()
            && let Some(listener) = objects.listeners.get_mut(id)
        {
            listener.awaiting.remove(number);
        }
    }

    /// Raises the connect event, or refuses the request (NDK-EP-5, NDK-EP-6).
    fn raise_connect_event(&mut self, objects: &mut Objects) {
        self.remove_from_listener(objects);
        let Phase::Offered(offer) = &self.phase else { return };
        let data = ConnectionData {
            limits: offered_limits(objects, offer.peer()),
            private_data: offer.private_data().clone(),
        };
        let connector =
            self.listener.and_then(|id| objects.incoming(id, self.id, self.addresses, data));
        match connector {
            Some(id) => {
                self.connector = Some(id);
                self.listener = None;
            }
            None => self.refuse(),
        }
    }

    /// Returns true if a Request with enhanced data waits for its Reply.
    pub(crate) fn is_offer_enhanced(&self) -> bool {
        matches!(&self.phase, Phase::Offered(offer) if offer.peer().is_some())
    }

    /// Accepts the connection.
    pub(crate) fn accept(
        &mut self,
        objects: &Objects,
        config: &Config,
        qp: QpId,
        limits: ReadLimits,
        private_data: PrivateData,
    ) -> bool {
        match core::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Offered(offer) => {
                let peer = offer.peer().copied();
                self.qp = Some(qp);
                self.own_limits = limits;
                let (reply, negotiated) = offer.accept(limits, private_data);
                self.frame = Some(reply);
                let service = self.service(objects);
                self.operate(config, &negotiated, peer.as_ref(), service);
                true
            }
            other => {
                self.phase = other;
                false
            }
        }
    }

    /// Rejects the connection at the passive end: a Reply that rejects, then FIN.
    pub(crate) fn reject(&mut self, limits: ReadLimits, private_data: PrivateData) {
        if let Phase::Offered(offer) = core::mem::replace(&mut self.phase, Phase::Ended) {
            self.frame = Some(offer.reject(limits, private_data));
        }
        self.deadline = None;
        self.ending = Ending::Fin;
        self.detach();
    }

    /// Rejects the connection without private data.
    pub(crate) fn refuse(&mut self) {
        self.reject(ReadLimits::default(), PrivateData::default());
    }

    fn startup_failed(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &impl LlpStream,
        error: StartupError,
    ) {
        self.remove_from_listener(objects);
        let outcome = match &error {
            StartupError::Rejected { .. } => ConnectError::Refused,
            _ => ConnectError::Aborted,
        };
        let action = error.action();
        if let Some(id) = self.connector {
            objects.record_cause(id, ConnectCause::Startup(error.clone()));
        }
        if let (StartupError::Rejected { private_data, enhanced }, Some(connector)) =
            (error, self.connector.and_then(|id| objects.connectors.get_mut(id)))
        {
            // NDK-CD-7
            let limits = ReadLimit::effective(self.own_limits, enhanced.as_ref());
            connector.data = Some(ConnectionData { limits, private_data });
        }
        if let Some(connector) = self.connector {
            objects.connection_failed(connector, outcome);
        } else {
            objects.counters.connect_failure += 1;
        }
        self.detach();
        match action {
            FailureAction::LeaveMpa => {
                self.phase = Phase::Ended;
                self.ending = Ending::Fin;
                self.deadline = Some(io.now() + config.terminate_timeout);
            }
            FailureAction::Close => {
                self.phase = Phase::Ended;
                self.ending = Ending::Abort;
            }
            FailureAction::Terminate(error, framing) => {
                self.end_with_terminate(objects, config, io, framing, Terminate::new(error));
            }
        }
    }

    /// Ends the connection with a Terminate as its first and only FPDU (RFC 6581 §9.1, §9.2).
    fn end_with_terminate(
        &mut self,
        objects: &Objects,
        config: &Config,
        io: &impl LlpStream,
        framing: Framing,
        terminate: Terminate,
    ) {
        let Framing { crc, send_markers, receive_markers } = framing;
        let mut transmitter = Transmitter::new((crc, send_markers), config, None, QpService::Iwarp);
        transmitter.abandon(Some(terminate));
        self.phase = Phase::Operating(Box::new(FullOperation {
            decoder: Decoder::new(crc, receive_markers),
            receiver: Receiver::new(0),
            transmitter,
            may_send: false,
            limits: ReadLimit::default(),
            is_established: false,
            accept_race: AcceptRace::Never,
        }));
        self.ending = Ending::Fin;
        self.begin_terminate(objects, config, io);
    }
}

/// Read limits offered to the passive consumer, before it requests its own.
fn offered_limits(objects: &Objects, peer: Option<&Enhanced>) -> ReadLimit {
    let adapter = objects.read_limits();
    ReadLimit::effective(adapter.capped(adapter), peer)
}

impl Objects {
    /// Creates the connector of an incoming request and queues its connect event. `None`: the listener is paused or
    /// closed, or no connector is left.
    fn incoming(
        &mut self,
        listener_id: ListenerId,
        stream: StreamId,
        addresses: Option<(SocketAddr, SocketAddr)>,
        data: ConnectionData,
    ) -> Option<ConnectorId> {
        let listener = self.listeners.get(listener_id)?;
        if listener.is_paused.load(Ordering::Acquire) {
            return None;
        }
        let (event, is_paused) = (listener.event.clone(), listener.is_paused.clone());
        let mut connector = Connector::new(ConnectorState::Pending);
        connector.listener = Some(listener_id);
        connector.stream = Some(stream);
        connector.data = Some(data);
        connector.local = addresses.map(|(local, _)| local);
        connector.remote = addresses.map(|(_, remote)| remote);
        let id = self.connectors.insert(connector).ok()?;
        if let (Some(connector), Some((local, _))) = (self.connectors.get_mut(id), addresses) {
            connector.endpoint = Some(self.endpoints.reference(local));
        }
        self.pin(Key::Rnic);
        self.pin(Key::Listener(listener_id)); // pinned by the connector until it is closed
        self.pin(Key::Listener(listener_id)); // pinned by the callback
        let returned = ReturnGuard::new(&self.returns, Return::Unpin(Key::Listener(listener_id)));
        let returns = self.returns.clone();
        self.outbox.push(returned, move || {
            // NDK-EP-7: no event is delivered after Pause or Close has returned.
            if is_paused.load(Ordering::Acquire) {
                drop(ReturnGuard::new(&returns, Return::Refuse(id)));
            } else {
                event(id);
            }
        });
        Some(id)
    }
}

impl Stream {
    /// Creates an initiator from the configuration.
    pub(crate) fn initiator(
        config: &Config,
        revision: Revision,
        limits: ReadLimits,
        private_data: PrivateData,
    ) -> Initiator {
        let Config { markers, rtr, .. } = *config;
        // The request for CRCs is decided when the stream opens.
        let defaults = StartupConfig::default();
        Initiator::new(StartupConfig { revision, markers, limits, rtr, private_data, ..defaults })
    }
}

/// Workaround for the accept race ([`accept_race`](super::accept_race)).
impl Stream {
    /// Starts the timer of the first empty Write when the first FPDU is passed to TCP.
    #[inline]
    pub(super) fn arm_accept_race(&mut self, config: &Config, now: Instant) {
        let Phase::Operating(operation) = &mut self.phase else { return };
        if operation.accept_race == AcceptRace::Waiting && operation.transmitter.has_sent() {
            let FullOperation { accept_race, receiver, .. } = &mut **operation;
            let is_due = !receiver.has_received() && self.ending == Ending::Not;
            *accept_race = if is_due { AcceptRace::Armed { sent: 0 } } else { AcceptRace::Never };
            if is_due {
                self.deadline = Some(now + config.accept_race_timeout);
            }
        }
    }

    /// Cancels the empty Writes: the peer has sent data.
    #[cold]
    pub(super) fn cancel_accept_race(&mut self) {
        let Phase::Operating(operation) = &mut self.phase else { return };
        operation.accept_race = AcceptRace::Never;
        if self.ending == Ending::Not {
            self.deadline = None;
        }
    }

    /// Processes the expiry of the deadline. Returns true if it was that of an empty Write.
    pub(super) fn handle_accept_race_timeout(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        now: Instant,
    ) -> bool {
        let Phase::Operating(operation) = &mut self.phase else { return false };
        let AcceptRace::Armed { sent } = operation.accept_race else { return false };
        if self.ending != Ending::Not {
            return false;
        }
        objects.counters.empty_writes += u64::from(operation.transmitter.schedule_empty_write());
        let sent = sent + 1;
        operation.accept_race = AcceptRace::Never;
        if sent < EMPTY_WRITES_MAX {
            operation.accept_race = AcceptRace::Armed { sent };
            self.deadline = Some(now + config.accept_race_timeout.saturating_mul(1 << sent));
        }
        true
    }
}
