//! One connection, from its request to its release: MPA start-up, full operation, end.
//!
//! ```text
//! Opening -> AwaitReply ---------------------> Operating -> Ended
//!         -> AwaitRequest -> Offered ---------^
//! ```
//! A stream outlives its connector and queue pair: after they have let go it only waits for the
//! transport's Released. What a consumer asks for is noted here and done in the next call of the transport, which has
//! a way into the connection; [`Stream::act`] ends every such call.

mod accept_race;
mod await_receive;
mod failure;
mod inbound_read;
mod receive;
mod silence;
mod sizes;
mod startup;
mod teardown;
mod transmit;
mod waiting;

use alloc::{boxed::Box, vec::Vec};
use core::net::SocketAddr;

use bytes::Bytes;
use offload_engine::time::Instant;

pub use self::transmit::COPY_ASIDE_MAX;
use self::{
    accept_race::Nudge,
    receive::{Received, Receiver},
    silence::Silence,
    transmit::Transmitter,
    waiting::Waiting,
};
use super::{
    config::Config,
    connection::{connector::ConnectorState, listener::ArrivalNumber, read_limit::ReadLimit},
    objects::id::{ConnectorId, ListenerId, QpId, StreamId},
    queues::qp::{Pumped, Qp},
    stats::History,
    status::ConnectError,
    tables::Objects,
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
    /// The transport has not opened the stream. Active streams hold what they will ask for.
    Opening(Option<Initiator>),
    AwaitReply(Initiator),
    AwaitRequest(Responder),
    /// The consumer has been asked.
    Offered(Offer),
    Operating(Box<FullOperation>),
    /// Nothing is received any more.
    Ended,
}

/// The stage of a stream's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Not,
    /// FIN when all that can be sent is with TCP (NDK-DISC-5).
    AfterData,
    /// FIN behind what was posted.
    Fin,
    Abort,
    /// Asked for.
    Done,
}

/// State of the full operation phase (RFC 5044 §7.1.2).
#[derive(Debug)]
struct FullOperation {
    decoder: Decoder,
    receiver: Receiver,
    transmitter: Transmitter,
    /// A responder holds its first FPDU until it has received one (RFC 5044 §7.1.2 rule 4); an
    /// initiator until its consumer completes the connect.
    may_send: bool,
    limits: ReadLimit,
    /// The connector knows that the connection is there.
    is_established: bool,
    nudge: Nudge,
}

/// A connection. One that is over holds no memory but this.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) connector: Option<ConnectorId>,
    pub(crate) qp: Option<QpId>,
    /// Of a passive stream that no connector stands for yet.
    pub(crate) listener: Option<ListenerId>,
    /// Its number among those of a listener whose Request is not complete.
    pub(crate) awaiting: Option<(ListenerId, ArrivalNumber)>,
    /// Local and remote end, of a passive stream.
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
    phase: Phase,
    /// The handshake is done: a call of the transport will come.
    pub(crate) is_established: bool,
    is_open: bool,
    own_limits: ReadLimits,
    /// A start-up frame that came in pieces; at most one frame and one indication.
    startup_octets: Vec<u8>,
    /// A start-up frame to be sent.
    frame: Option<Bytes>,
    ending: Ending,
    /// This side has sent a Terminate, or disconnects with requests outstanding.
    silence: Option<Silence>,
    /// A message without a receive.
    waiting: Option<Box<Waiting>>,
    /// When [`Stream::expire`] is due.
    pub(crate) deadline: Option<Instant>,
    /// A kick is under way.
    pub(crate) is_kicked: bool,
    /// Some of what was posted is left to the next poll.
    pub(crate) is_left: bool,
    /// Memory is wanted back that this stream may use.
    pub(crate) is_recalling: bool,
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

    /// A connection that nobody waits for: it is reset once the transport has opened it.
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
            silence: None,
            waiting: None,
            deadline: None,
            is_kicked: false,
            is_left: false,
            is_recalling: false,
            history: History::default(),
        }
    }

    /// The transport has opened the stream.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// In-order data. Returns how many octets are taken: all, but while a message waits for a receive.
    pub(crate) fn receive<T: LlpStream>(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut T,
        data: &[u8],
    ) -> usize {
        if self.waiting.is_some() {
            return self.receive_behind(objects, config, io, data);
        }
        let mut rest: &[u8] = &[];
        match &self.phase {
            Phase::Operating(_) => {
                rest = data;
                // Data that was only placed gives nothing to send; the connection's turn follows in any case.
                if !self.receive_fpdus(objects, config, io, &mut rest) {
                    return data.len();
                }
                if !T::MAY_REFUSE {
                    self.keep_behind(core::mem::take(&mut rest));
                }
            }
            Phase::AwaitReply(_) | Phase::AwaitRequest(_) | Phase::Offered(_) => {
                self.receive_startup(objects, config, io, data);
            }
            Phase::Opening(_) | Phase::Ended => {}
        }
        self.act(objects, config, io);
        data.len() - rest.len()
    }

    /// Returns whether there may be something to do on the connection. `input` keeps what is not taken.
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
                    self.first_fpdu_received(objects);
                    return may_act || may_send;
                }
                Ok(Received::First) => self.first_fpdu_received(objects),
                Ok(Received::Terminate(terminate)) => {
                    self.terminated(objects, config, io, terminate.as_deref());
                }
                Ok(Received::WithoutReceive(ulpdu, failure)) => {
                    self.first_fpdu_received(objects);
                    self.wait_for_receive(objects, config, io, ulpdu, failure);
                    if self.waiting.is_some() {
                        return true;
                    }
                }
                Err(failure) => self.fail(objects, config, io, *failure),
            }
            may_act = true;
        }
    }

    /// A responder may send once an FPDU has come, and its Accept is done.
    #[inline]
    fn first_fpdu_received(&mut self, objects: &mut Objects) {
        let Phase::Operating(operation) = &mut self.phase else { return };
        if operation.is_established {
            if matches!(operation.nudge, Nudge::Armed { .. }) {
                self.call_nudge_off();
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

    /// All lists up to serial `end` are acknowledged, if any are.
    pub(crate) fn sent(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut impl LlpStream,
        end: Option<u64>,
    ) {
        let Objects { qps, completed, .. } = objects;
        if let Some(qp) = self.qp.and_then(|id| qps.get_mut(id)) {
            if let Some(end) = end {
                qp.sends.acknowledge(end);
            }
            qp.complete_done(completed);
        }
        self.act(objects, config, io);
    }

    /// Something happened to the connection.
    pub(crate) fn event(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut impl LlpStream,
        event: StreamEvent,
    ) {
        match event {
            StreamEvent::PeerClosed if self.closes_behind() => return,
            StreamEvent::PeerClosed => self.peer_closed(objects, config, io),
            StreamEvent::ShutDown => {
                if let Some(connector) = self.connector {
                    if let Some(silence) = self.silence.take() {
                        // All has been taken. What is left is the peer's FIN.
                        self.deadline = Some(silence.until);
                    }
                    objects.connection_ended(connector, Ok(()));
                    self.detach();
                }
                // The transport may keep it for long, in TIME-WAIT: without the buffers.
                self.phase = Phase::Ended;
                self.startup_octets = Vec::new();
                self.waiting = None;
            }
            StreamEvent::Reset => {
                let reset = EndReason::Lost(Loss::Reset);
                self.lost_by(objects, ConnectError::Aborted, reset);
            }
            StreamEvent::Released => {
                self.lost(objects, ConnectError::Aborted);
            }
        }
        if event == StreamEvent::PeerClosed {
            self.act(objects, config, io);
        }
    }

    /// Does what is to be done, now that there is a way into the connection.
    pub(crate) fn act(&mut self, objects: &mut Objects, config: &Config, io: &mut impl LlpStream) {
        self.is_kicked = false;
        if core::mem::take(&mut self.is_recalling) {
            self.give_back(objects, config, io);
        }
        if self.silence.is_some_and(|silence| silence.is_overdue) {
            self.judge_silence(objects, io);
        }
        if self.waiting.is_some() {
            self.end_wait(objects, config, io);
        }
        if let Some(qp) = self.quiet_qp(objects) {
            qp.flow.pumped(Pumped::Drained, io.is_flowing());
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
        let mut pumped = Pumped::Drained;
        if let Phase::Operating(operation) = &mut self.phase {
            let may_leave = objects.may_leave && self.ending == Ending::Not;
            let result = match self.qp {
                Some(qp) if operation.may_send => {
                    operation.transmitter.pump(objects, qp, may_leave, io)
                }
                _ => Ok(Pumped::Drained),
            };
            match result {
                Ok(state) => pumped = state,
                Err(failure) => self.fail(objects, config, io, failure),
            }
        }
        if self.ending == Ending::AfterData {
            self.limit_disconnect(objects, config, io);
        }
        let is_drained = pumped == Pumped::Drained;
        if pumped == Pumped::Left && !core::mem::replace(&mut self.is_left, true) {
            objects.left.push(self.id);
        }
        self.note_flow(objects, io, pumped);
        self.arm_nudge(config, io.now());
        self.connect_completed(objects);
        if let Phase::Operating(operation) = &mut self.phase {
            operation.transmitter.send_terminate(io);
        }
        let is_fin_due =
            self.ending == Ending::Fin || self.ending == Ending::AfterData && is_drained;
        if is_fin_due {
            self.ending = Ending::Done;
            if matches!(self.phase, Phase::Ended) && self.deadline.is_none() {
                // Behind a Reply that rejects: the peer has to close too.
                self.deadline = Some(io.now() + config.terminate_timeout);
            }
            io.shutdown();
        }
    }

    /// The queue pair, if nothing is to be done: full operation goes on, and all that was posted is done.
    #[inline]
    fn quiet_qp<'a>(&self, objects: &'a mut Objects) -> Option<&'a mut Qp> {
        let (Phase::Operating(operation), Some(qp)) = (&self.phase, self.qp) else { return None };
        if self.ending != Ending::Not || self.frame.is_some() {
            return None;
        }
        objects.qps.get_mut(qp).filter(|qp| operation.transmitter.is_quiet(qp))
    }

    fn note_flow(&self, objects: &mut Objects, io: &impl LlpStream, pumped: Pumped) {
        if let Some(qp) = self.qp.and_then(|qp| objects.qps.get_mut(qp)) {
            qp.flow.pumped(pumped, io.is_flowing());
        }
    }

    /// CompleteConnect is done when the RTR, if one was agreed on, is with TCP.
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
        if is_completing && !operation.transmitter.owes_rtr() {
            operation.is_established = true;
            objects.connection_established(connector, operation.limits);
        }
    }
}
