//! One connection from its request to its release: MPA start-up, full operation, end.
//!
//! ```text
//! Opening -> AwaitReply ---------------------> Operating -> Ended
//!         -> AwaitRequest -> Offered ---------^
//! ```
//! A stream outlives its connector and queue pair: after they are detached it only waits for the transport's Released
//! event. Requests of consumers are recorded here and executed in the next call of the transport, which has access to
//! the connection. [`Stream::act`] ends every such call.

mod accept_race;
mod await_receive;
mod failure;
mod inbound_read;
mod progress_limit;
mod rc;
mod receive;
mod sizes;
mod startup;
mod teardown;
mod transmit;
mod waiting;

use alloc::{boxed::Box, vec::Vec};
use core::net::SocketAddr;

use bytes::Bytes;
use offload_engine::time::Instant;

pub(super) use self::receive::{complete_receive, place_in};
pub use self::transmit::COPY_ASIDE_MAX;
use self::{
    accept_race::AcceptRace,
    progress_limit::ProgressLimit,
    receive::{Received, Receiver},
    transmit::Transmitter,
    waiting::Waiting,
};
use super::{
    config::Config,
    connection::{connector::ConnectorState, listener::ArrivalNumber, read_limit::ReadLimit},
    memory::registration::User,
    objects::id::{ConnectorId, ListenerId, QpId, StreamId},
    queues::qp::{Qp, TransmitOutcome},
    stats::History,
    status::ConnectError,
    tables::{FollowUp, Objects},
    transport::{LlpStream, StreamEvent},
};
use crate::{
    error::{EndReason, Loss},
    mpa::{
        Decoder, GatherList,
        startup::{Initiator, Offer, ReadLimits, Responder},
    },
};

#[derive(Debug)]
enum Phase {
    /// The transport has not opened the stream. Active streams contain the parameters of their Request.
    Opening(Option<Initiator>),
    AwaitReply(Initiator),
    AwaitRequest(Responder),
    /// The connect event was delivered, and the consumer has not answered.
    Offered(Offer),
    Operating(Box<FullOperation>),
    /// No more data is received.
    Ended,
}

/// Stage of a stream's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Not,
    /// FIN when all data that can be sent is passed to TCP (NDK-DISC-5).
    AfterData,
    /// FIN after the acknowledgments and responses that are due (`QpService::Rc`).
    Drain,
    /// FIN after the data already posted to the transport.
    Fin,
    Abort,
    /// FIN or reset requested.
    Done,
}

/// State of the full operation phase (RFC 5044 §7.1.2).
#[derive(Debug)]
struct FullOperation {
    decoder: Decoder,
    receiver: Receiver,
    transmitter: Transmitter,
    /// True if FPDUs may be sent. A responder holds its first FPDU until it has received one (RFC 5044 §7.1.2 rule 4),
    /// an initiator until its consumer completes the connect.
    may_send: bool,
    limits: ReadLimit,
    /// True if the connector was notified of the established connection.
    is_established: bool,
    accept_race: AcceptRace,
}

/// State of one connection. After its end it holds no other memory.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) connector: Option<ConnectorId>,
    pub(crate) qp: Option<QpId>,
    /// Listener of a passive stream that has no connector yet.
    pub(crate) listener: Option<ListenerId>,
    /// Listener and arrival number, while the Request is not complete.
    pub(crate) awaiting: Option<(ListenerId, ArrivalNumber)>,
    /// Local and remote address of a passive stream.
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
    phase: Phase,
    /// True if the handshake is done: a call of the transport will follow.
    pub(crate) is_established: bool,
    is_open: bool,
    own_limits: ReadLimits,
    /// Octets of an incomplete start-up frame; at most one frame and one indication.
    startup_octets: Vec<u8>,
    /// Start-up frame to send.
    frame: Option<Bytes>,
    ending: Ending,
    /// Progress limit of the peer, after a Terminate or a disconnect with requests outstanding.
    progress_limit: Option<ProgressLimit>,
    /// Message that waits for a receive.
    waiting: Option<Box<Waiting>>,
    /// User of the responses to send before the FIN, in [`Ending::Drain`].
    drained_user: Option<User>,
    /// True if the transport is not configured for `QpService::Rc` yet.
    is_rc_new: bool,
    /// Time at which [`Stream::expire`] is due.
    pub(crate) deadline: Option<Instant>,
    /// Last deadline that was extended because the process was stopped. It is not extended again.
    pub(crate) extended: Option<Instant>,
    /// True if the stream is scheduled.
    pub(crate) is_scheduled: bool,
    /// True if posted requests are deferred to the next poll.
    pub(crate) is_deferred: bool,
    /// True if withdrawn memory, which this stream may use, has to be released, or the transport has to be configured.
    pub(crate) has_chores: bool,
    pub(crate) history: History,
}

const _: () = assert!(size_of::<Stream>() <= 768);

impl Stream {
    pub(crate) fn active(
        id: StreamId,
        connector: ConnectorId,
        qp: QpId,
        initiator: Initiator,
        own_limits: ReadLimits,
    ) -> Self {
        let phase = Phase::Opening(Some(initiator));
        let mut stream = Self::new(id, phase);
        stream.own_limits = own_limits;
        stream.connector = Some(connector);
        stream.qp = Some(qp);
        stream
    }

    pub(crate) fn passive(
        id: StreamId,
        listener: ListenerId,
        number: ArrivalNumber,
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        let mut stream = Self::new(id, Phase::Opening(None));
        stream.listener = Some(listener);
        stream.awaiting = Some((listener, number));
        stream.addresses = Some(addresses);
        stream.is_established = true;
        stream
    }

    /// Creates a stream without listener or connector: it is reset when the transport has opened it.
    pub(crate) fn orphan(id: StreamId) -> Self {
        let mut stream = Self::new(id, Phase::Ended);
        stream.ending = Ending::Abort;
        stream.is_established = true;
        stream
    }

    fn new(id: StreamId, phase: Phase) -> Self {
        Self {
            id,
            connector: None,
            qp: None,
            listener: None,
            awaiting: None,
            addresses: None,
            phase,
            is_established: false,
            is_open: false,
            own_limits: ReadLimits::default(),
            startup_octets: Vec::new(),
            frame: None,
            ending: Ending::Not,
            progress_limit: None,
            waiting: None,
            drained_user: None,
            is_rc_new: false,
            deadline: None,
            extended: None,
            is_scheduled: false,
            is_deferred: false,
            has_chores: false,
            history: History::default(),
        }
    }

    /// Returns true if the transport has opened the stream.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Processes in-order data. Returns the count of accepted octets: all, unless a message waits for a receive.
    pub(crate) fn receive<T: LlpStream>(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut T,
        data: &[u8],
    ) -> usize {
        if self.waiting.is_some() {
            return self.receive_while_waiting(objects, config, io, data);
        }
        match &self.phase {
            Phase::Operating(_) => {
                let mut rest = data;
                // Placed data alone gives nothing to send, and the connection is scheduled in any case.
                if !self.receive_fpdus(objects, config, io, &mut rest) {
                    return data.len();
                }
                if self.waiting.is_some() {
                    let taken = data.len() - rest.len();
                    return taken + self.receive_while_waiting(objects, config, io, rest);
                }
            }
            Phase::AwaitReply(_) | Phase::AwaitRequest(_) | Phase::Offered(_) => {
                self.receive_startup(objects, config, io, data);
            }
            Phase::Opening(_) | Phase::Ended => {}
        }
        self.act(objects, config, io);
        data.len()
    }

    /// Processes FPDUs. Returns true if the connection may have work to do. `input` keeps the data not accepted.
    fn receive_fpdus(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &impl LlpStream,
        input: &mut &[u8],
    ) -> bool {
        let mut may_act = self.ending != Ending::Not;
        loop {
            let (Phase::Operating(operation), Some(qp)) = (&mut self.phase, self.qp) else {
                *input = &[];
                return true;
            };
            let FullOperation { decoder, receiver, transmitter, .. } = &mut **operation;
            match receiver.receive(objects, qp, transmitter, decoder, input) {
                Ok(Received::All { may_send }) => {
                    if transmitter.is_rc() {
                        self.note_executed(objects);
                    }
                    self.first_fpdu_received(objects);
                    return may_act || may_send;
                }
                Ok(Received::First) => self.first_fpdu_received(objects),
                Ok(Received::Terminate(terminate)) => {
                    self.terminated(objects, config, io, terminate.as_deref());
                }
                Ok(Received::WithoutReceive(ulpdu, failure)) => {
                    self.first_fpdu_received(objects);
                    self.note_executed(objects);
                    self.wait_for_receive(objects, config, io, &ulpdu, failure);
                    if self.waiting.is_some() {
                        return true;
                    }
                }
                Ok(Received::RetriesExceeded) => self.retries_exceeded(objects),
                Err(failure) => self.fail(objects, config, io, *failure),
            }
            may_act = true;
        }
    }

    /// Returns true if the queue pair is of `QpService::Rc` or `QpService::Uc`, and the stream is in full operation.
    #[inline]
    fn is_rc(&self) -> bool {
        matches!(&self.phase, Phase::Operating(operation) if operation.transmitter.is_rc())
    }

    /// Records the executed messages for the next acknowledgment. It is sent at the end of the transport's pass, or
    /// with other data before.
    #[inline(never)]
    fn note_executed(&mut self, objects: &mut Objects) {
        let Phase::Operating(operation) = &mut self.phase else { return };
        let FullOperation { receiver, transmitter, .. } = &mut **operation;
        if transmitter.set_executed(receiver.executed()) {
            objects.follow_ups.push(FollowUp::Acknowledge(self.id));
        }
    }

    /// Marks the connection as established after the first FPDU, if the Accept of a responder is pending.
    #[inline]
    fn first_fpdu_received(&mut self, objects: &mut Objects) {
        let Phase::Operating(operation) = &mut self.phase else { return };
        if operation.is_established {
            if matches!(operation.accept_race, AcceptRace::Armed { .. }) {
                self.cancel_accept_race();
            }
            return;
        }
        let Some(connector) = self.connector else { return };
        let is_accepting = objects
            .connectors
            .get(connector)
            .is_some_and(|connector| connector.state == ConnectorState::Accepting);
        if is_accepting && operation.receiver.has_received() {
            operation.may_send = true;
            operation.is_established = true;
            self.deadline = None;
            objects.connection_established(connector, operation.limits);
        }
    }

    /// Processes the acknowledgment of all lists up to serial `end`, if there is one.
    pub(crate) fn sent(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut impl LlpStream,
        end: Option<u64>,
    ) {
        let Objects { qps, completed, .. } = objects;
        if let Some(qp) = self.qp.and_then(|id| qps.get_mut(id)) {
            if let Some(end) = end
                && !qp.is_acknowledged()
            {
                qp.sends.acknowledge(end);
            }
            qp.complete_done(completed);
        }
        self.act(objects, config, io);
    }

    /// Processes an event of the connection.
    pub(crate) fn event(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut impl LlpStream,
        event: StreamEvent,
    ) {
        match event {
            StreamEvent::PeerClosed if self.defer_peer_close(objects) => return,
            StreamEvent::PeerClosed => self.peer_closed(objects, config, io),
            StreamEvent::ShutDown => {
                if let Some(connector) = self.connector {
                    if let Some(progress_limit) = self.progress_limit.take() {
                        // The peer has acknowledged all data. Only its FIN is outstanding.
                        self.deadline = Some(progress_limit.until);
                    }
                    objects.connection_ended(connector, Ok(()));
                    self.detach();
                }
                // The transport may keep the stream for long, in TIME-WAIT: release the buffers.
                self.phase = Phase::Ended;
                self.startup_octets = Vec::new();
                self.waiting = None;
            }
            StreamEvent::Reset => {
                let reset = EndReason::Lost(Loss::Reset);
                self.lost_for_reason(objects, ConnectError::Aborted, reset);
            }
            StreamEvent::Released => {
                self.lost(objects, ConnectError::Aborted);
            }
        }
        if event == StreamEvent::PeerClosed {
            self.act(objects, config, io);
        }
    }

    /// Executes all pending work of the connection.
    pub(crate) fn act(&mut self, objects: &mut Objects, config: &Config, io: &mut impl LlpStream) {
        self.is_scheduled = false;
        if core::mem::take(&mut self.has_chores) {
            self.do_chores(objects, config, io);
        }
        if self.progress_limit.is_some_and(|progress_limit| progress_limit.is_overdue) {
            self.check_progress(objects, io);
        }
        if self.waiting.is_some() {
            self.end_wait(objects, config, io);
        }
        if let Some(qp) = self.idle_qp(objects) {
            qp.flow.transmit_ended(TransmitOutcome::Drained, io.is_busy());
            self.connect_completed(objects);
            return;
        }
        if self.ending == Ending::Abort {
            self.ending = Ending::Done;
            io.reset();
        }
        if self.ending == Ending::Done {
            return;
        }
        if let Some(frame) = self.frame.take() {
            let mut list = io.list();
            list.push_encoded(frame);
            io.send(0, list);
        }
        let mut pumped = TransmitOutcome::Drained;
        if let Phase::Operating(operation) = &mut self.phase {
            let may_defer = objects.may_defer && self.ending == Ending::Not;
            let result = match self.qp {
                Some(qp) if operation.may_send => {
                    operation.transmitter.pump(objects, qp, may_defer, io)
                }
                _ => Ok(TransmitOutcome::Drained),
            };
            match result {
                Ok(state) => pumped = state,
                Err(failure) => {
                    operation.transmitter.abandon_responses();
                    self.fail(objects, config, io, failure);
                }
            }
        }
        if self.ending != Ending::Not {
            match self.ending {
                Ending::AfterData => self.limit_disconnect(objects, config, io),
                Ending::Drain => self.drain(objects, config, io),
                Ending::Not | Ending::Fin | Ending::Abort | Ending::Done => {}
            }
        }
        let is_drained = pumped == TransmitOutcome::Drained;
        if pumped == TransmitOutcome::Deferred && !core::mem::replace(&mut self.is_deferred, true) {
            objects.deferred.push(self.id);
        }
        self.update_flow(objects, io, pumped);
        self.arm_accept_race(config, io.now());
        self.connect_completed(objects);
        if let Phase::Operating(operation) = &mut self.phase {
            operation.transmitter.send_terminate(io);
        }
        if self.ending != Ending::Not && self.is_fin_due(objects, is_drained) {
            self.ending = Ending::Done;
            if matches!(self.phase, Phase::Ended) && self.deadline.is_none() {
                // After a Reply that rejects, the peer has to close as well.
                self.deadline = Some(io.now() + config.terminate_timeout);
            }
            io.shutdown();
        }
    }

    /// Returns true if the FIN is due. `is_drained` is true if all data that can be sent is passed to the transport.
    fn is_fin_due(&self, objects: &Objects, is_drained: bool) -> bool {
        match self.ending {
            Ending::Fin => true,
            Ending::AfterData => is_drained && !(self.is_rc() && self.has_requests(objects)),
            Ending::Not | Ending::Drain | Ending::Abort | Ending::Done => false,
        }
    }

    /// Releases withdrawn memory, and configures the transport.
    #[cold]
    #[inline(never)]
    fn do_chores(&mut self, objects: &mut Objects, config: &Config, io: &mut impl LlpStream) {
        if core::mem::take(&mut self.is_rc_new) {
            io.send_fin_at_exit();
        }
        self.release_withdrawn(objects, config, io);
    }

    /// Returns the queue pair if there is no work: full operation continues, and all posted requests are done.
    #[inline]
    fn idle_qp<'a>(&self, objects: &'a mut Objects) -> Option<&'a mut Qp> {
        let (Phase::Operating(operation), Some(qp)) = (&self.phase, self.qp) else { return None };
        if self.ending != Ending::Not || self.frame.is_some() {
            return None;
        }
        objects.qps.get_mut(qp).filter(|qp| operation.transmitter.has_no_work(qp))
    }

    fn update_flow(&self, objects: &mut Objects, io: &impl LlpStream, pumped: TransmitOutcome) {
        if let Some(qp) = self.qp.and_then(|qp| objects.qps.get_mut(qp)) {
            qp.flow.transmit_ended(pumped, io.is_busy());
        }
    }

    /// Completes CompleteConnect when the negotiated RTR, if there is one, is passed to TCP.
    #[inline]
    fn connect_completed(&mut self, objects: &mut Objects) {
        let (Phase::Operating(operation), Some(connector)) = (&mut self.phase, self.connector)
        else {
            return;
        };
        if operation.is_established {
            return;
        }
        let is_completing = objects
            .connectors
            .get(connector)
            .is_some_and(|connector| connector.state == ConnectorState::Completing);
        if is_completing && !operation.transmitter.has_unsent_rtr() {
            operation.is_established = true;
            objects.connection_established(connector, operation.limits);
        }
    }
}
