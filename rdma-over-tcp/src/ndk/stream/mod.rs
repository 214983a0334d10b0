//! One connection, from its request to its release: MPA start-up, full operation, end.
//!
//! ```text
//! Opening -> AwaitReply ---------------------> Operating -> Ended
//!         -> AwaitRequest -> Offered ---------^
//! ```
//! A stream outlives its connector and queue pair: after they have let go it only waits for the
//! engine's Released. Whatever a consumer asks for is noted here and done in the next upcall, when
//! there is a way into the connection; [`Stream::act`] ends every upcall.

mod receive;
mod sizes;
mod startup;
mod teardown;
mod transmit;

use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use core::net::SocketAddr;

use bytes::Bytes;
use offload_engine::{
    chimney::client::{ConnectionEvent, Disconnect, OffloadHandle, UploadReason},
    nbl::{NblChain, NetBufferList},
    status::NdisStatus,
    time::Instant,
};

pub use self::transmit::COPY_ASIDE_MAX;
use self::{
    receive::{Received, Receiver},
    transmit::{Pumped, Transmitter},
};
use super::{
    config::AdapterConfig,
    connector::{Connector, ConnectorState, ReadLimit},
    listener::Listener,
    objects::Objects,
    qp::Qp,
    slab::Id,
    status::NtStatus,
    wire::Wire,
};
use crate::{
    mpa::{
        Decoder,
        startup::{Initiator, Negotiated, Offer, ReadLimits, Responder},
    },
    rdmap::Terminate,
};

/// Why a stream fails, found on this side.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// What the peer is told.
    terminate: Option<Terminate>,
    /// How the receive in progress ends, if not CANCELLED.
    receive_status: Option<NtStatus>,
}

impl Failure {
    const fn new(terminate: Terminate) -> Self {
        Self { terminate: Some(terminate), receive_status: None }
    }
}

#[derive(Debug)]
enum Phase {
    /// TCP's handshake and the hand-over are under way. Active streams hold what they will ask for.
    Opening(Option<Initiator>),
    AwaitReply(Initiator),
    AwaitRequest(Responder),
    /// The consumer has been asked.
    Offered(Offer),
    Operating(Box<Operation>),
    /// Nothing is received any more.
    Ended,
}

/// How far the end of the stream is.
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

/// Full operation.
#[derive(Debug)]
struct Operation {
    decoder: Decoder,
    receiver: Receiver,
    transmitter: Transmitter,
    /// A responder holds its first FPDU until it has received one (RFC 5044 7.1.2 rule 4); an
    /// initiator until its consumer completes the connect.
    may_send: bool,
    limits: ReadLimit,
    /// The connector knows that the connection is there.
    is_established: bool,
}

/// How a connection came to be where it is: for those who watch.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct History {
    /// TCP's handshake was done, and the hand-over began; `None`: it is with the host stack.
    pub offloading: Option<Instant>,
    /// The target had it.
    pub offloaded: Option<Instant>,
    /// What MPA agreed on.
    pub negotiated: Option<Negotiated>,
    /// Reads in each direction, as they came to be.
    pub limits: Option<ReadLimit>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) handle: OffloadHandle,
    pub(crate) connector: Option<Id<Connector>>,
    pub(crate) qp: Option<Id<Qp>>,
    /// Of a passive stream that no connector stands for yet.
    pub(crate) listener: Option<Id<Listener>>,
    /// Local and remote end, of a passive stream.
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
    phase: Phase,
    /// TCP's handshake is done: an upcall, or a notice of the end, will come.
    pub(crate) is_established: bool,
    is_offloaded: bool,
    own_limits: ReadLimits,
    /// A start-up frame that came in pieces; at most one frame and one indication.
    startup_octets: Vec<u8>,
    /// A start-up frame to be sent.
    frame: Option<Bytes>,
    ending: Ending,
    /// When [`Stream::expire`] is due.
    pub(crate) deadline: Option<Instant>,
    /// A kick is under way.
    pub(crate) is_kicked: bool,
    pub(crate) history: History,
}

impl Stream {
    pub(crate) fn active(
        handle: OffloadHandle,
        connector: Id<Connector>,
        qp: Id<Qp>,
        initiator: Initiator,
        own_limits: ReadLimits,
    ) -> Self {
        let phase = Phase::Opening(Some(initiator));
        let mut stream = Self::new(handle, phase);
        stream.own_limits = own_limits;
        stream.connector = Some(connector);
        stream.qp = Some(qp);
        stream
    }

    pub(crate) fn passive(
        handle: OffloadHandle,
        listener: Id<Listener>,
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        let mut stream = Self::new(handle, Phase::Opening(None));
        stream.listener = Some(listener);
        stream.addresses = Some(addresses);
        stream.is_established = true;
        stream
    }

    /// A connection that nobody waits for: it is reset once the target has it.
    pub(crate) fn orphan(handle: OffloadHandle) -> Self {
        let mut stream = Self::new(handle, Phase::Ended);
        stream.ending = Ending::Abort;
        stream.is_established = true;
        stream
    }

    fn new(handle: OffloadHandle, phase: Phase) -> Self {
        Self {
            handle,
            connector: None,
            qp: None,
            listener: None,
            addresses: None,
            phase,
            is_established: false,
            is_offloaded: false,
            own_limits: ReadLimits::default(),
            startup_octets: Vec::new(),
            frame: None,
            ending: Ending::Not,
            deadline: None,
            is_kicked: false,
            history: History::default(),
        }
    }

    /// The target has the connection.
    pub(crate) const fn is_offloaded(&self) -> bool {
        self.is_offloaded
    }

    /// In-order data. All of it is always consumed.
    pub(crate) fn receive(
        &mut self,
        objects: &mut Objects,
        config: &AdapterConfig,
        wire: &mut impl Wire,
        data: &[u8],
    ) {
        match &self.phase {
            Phase::Operating(_) => {
                // Data that was only placed gives nothing to send; the connection's turn follows in any case.
                if !self.receive_fpdus(objects, config, wire, data) {
                    return;
                }
            }
            Phase::AwaitReply(_) | Phase::AwaitRequest(_) | Phase::Offered(_) => {
                self.receive_startup(objects, config, wire, data);
            }
            Phase::Opening(_) | Phase::Ended => {}
        }
        self.act(objects, config, wire);
    }

    /// Returns whether there may be something to do on the connection.
    fn receive_fpdus(
        &mut self,
        objects: &mut Objects,
        config: &AdapterConfig,
        wire: &impl Wire,
        data: &[u8],
    ) -> bool {
        let mut input = data;
        let mut may_act = self.ending != Ending::Not;
        loop {
            let (Phase::Operating(operation), Some(qp)) = (&mut self.phase, self.qp) else {
                return true;
            };
            let Operation { decoder, receiver, transmitter, .. } = &mut **operation;
            match receiver.receive(objects, qp, transmitter, decoder, &mut input) {
                Ok(Received::All { may_send }) => {
                    self.first_fpdu_received(objects);
                    return may_act || may_send;
                }
                Ok(Received::First) => self.first_fpdu_received(objects),
                Ok(Received::Terminate(terminate)) => {
                    self.terminated(objects, config, wire, terminate.as_deref());
                }
                Err(failure) => self.fail(objects, config, wire, *failure),
            }
            may_act = true;
        }
    }

    /// A responder may send once an FPDU has come, and its Accept is done.
    #[inline]
    fn first_fpdu_received(&mut self, objects: &mut Objects) {
        let Phase::Operating(operation) = &mut self.phase else { return };
        if operation.is_established {
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

    /// Lists came back.
    pub(crate) fn send_complete(
        &mut self,
        objects: &mut Objects,
        config: &AdapterConfig,
        wire: &mut impl Wire,
        mut chain: NblChain,
    ) {
        let Objects { qps, completed, .. } = objects;
        if let Some(qp) = self.qp.and_then(|id| qps.get_mut(id)) {
            for list in chain.iter().filter(|list| list.status == NdisStatus::SUCCESS) {
                qp.initiator.acknowledge(list.context);
            }
            qp.complete_done(completed);
        }
        if let Phase::Operating(operation) = &mut self.phase {
            operation.transmitter.recycle(&mut chain);
            wire.keep_chain(chain);
        }
        self.act(objects, config, wire);
    }

    /// Our FIN is acknowledged, or the connection is gone.
    pub(crate) fn disconnect_complete(&mut self, objects: &mut Objects) {
        if let Some(connector) = self.connector {
            objects.connection_ended(connector, NtStatus::SUCCESS);
            self.detach();
        }
    }

    /// Something happened to the connection.
    pub(crate) fn event(
        &mut self,
        objects: &mut Objects,
        config: &AdapterConfig,
        wire: &mut impl Wire,
        event: ConnectionEvent,
    ) {
        match event {
            ConnectionEvent::SendBacklogChange(_) => {}
            ConnectionEvent::Disconnect => self.peer_closed(objects, config),
            ConnectionEvent::Abort => self.lost(objects, NtStatus::CONNECTION_ABORTED),
            ConnectionEvent::Retrieve(reason) if reason.is_mandatory() => {
                // The target has stopped the connection. NDK runs on offloaded connections only.
                let timed_out = reason == UploadReason::TimeoutExpiration;
                let status =
                    if timed_out { NtStatus::IO_TIMEOUT } else { NtStatus::CONNECTION_ABORTED };
                self.lost(objects, status);
                self.ending = Ending::Abort;
            }
            // The target would be glad to be rid of it, but carries on (CH-EVT-1).
            ConnectionEvent::Retrieve(_) => {}
            ConnectionEvent::Released => self.lost(objects, NtStatus::CONNECTION_ABORTED),
        }
        if event != ConnectionEvent::Released {
            self.act(objects, config, wire);
        }
    }

    /// Does what is to be done, now that there is a way into the connection.
    pub(crate) fn act(
        &mut self,
        objects: &mut Objects,
        config: &AdapterConfig,
        wire: &mut impl Wire,
    ) {
        self.is_kicked = false;
        if let Some(qp) = self.quiet_qp(objects) {
            qp.flow.pumped(false, wire.send_outstanding(), wire.effective_mss());
            self.connect_completed(objects);
            return;
        }
        if self.ending == Ending::Abort {
            self.ending = Ending::Done;
            wire.disconnect(Disconnect::Abortive, NetBufferList::new(0));
        }
        if self.ending == Ending::Done {
            return;
        }
        if let Some(frame) = self.frame.take() {
            wire.send(VecDeque::from([NetBufferList::from_mdl(0, frame)]));
        }
        let mut is_drained = true;
        if let Phase::Operating(operation) = &mut self.phase {
            let pumped = match self.qp {
                Some(qp) if operation.may_send => operation.transmitter.pump(objects, qp, wire),
                _ => Ok(Pumped::Drained),
            };
            match pumped {
                Ok(pumped) => is_drained = pumped == Pumped::Drained,
                Err(failure) => self.fail(objects, config, wire, failure),
            }
        }
        self.note_flow(objects, wire, is_drained);
        self.connect_completed(objects);
        if let Phase::Operating(operation) = &mut self.phase {
            operation.transmitter.send_terminate(wire);
        }
        let is_fin_due =
            self.ending == Ending::Fin || self.ending == Ending::AfterData && is_drained;
        if is_fin_due {
            self.ending = Ending::Done;
            wire.disconnect(Disconnect::Graceful, NetBufferList::new(0));
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

    fn note_flow(&self, objects: &mut Objects, wire: &impl Wire, is_drained: bool) {
        if let Some(qp) = self.qp.and_then(|qp| objects.qps.get_mut(qp)) {
            qp.flow.pumped(!is_drained, wire.send_outstanding(), wire.effective_mss());
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
