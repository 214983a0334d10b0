//! Ends of streams of [`QpService::Rc`](crate::rnic::QpService) and [`QpService::Uc`](crate::rnic::QpService).
//!
//! | end | queue pair of this end | queue pair of the peer |
//! |---|---|---|
//! | request of the peer fails here | error, after a Terminate | its request fails, then error |
//! | request of this end fails here | error; only a FIN is sent | lost |
//! | close, reset or break by the consumer | flushed; only a FIN is sent | lost |
//! | FIN, reset or timeout | lost, unless the peer has reported an error | |
//!
//! A FIN follows the acknowledgments and responses that are due. The stream then discards data until the peer's FIN: a
//! reset could destroy data that the peer has not read.

use super::{Ending, Phase, Stream};
use crate::{
    error::{EndReason, WireError},
    rdmap::Terminate,
    rnic::{
        config::Config,
        connection::connector::ConnectorState,
        objects::id::QpId,
        queues::{
            qp::{Flow, QpEvent, QpState, TransmitOutcome},
            send_queue::Progress,
        },
        status::{ConnectError, WcStatus},
        tables::Objects,
        transport::LlpStream,
    },
};

impl Stream {
    /// Returns true if a request is partly passed to TCP.
    pub(crate) fn is_cutting_request(&self) -> bool {
        matches!(&self.phase, Phase::Operating(operation) if operation.transmitter.is_cutting_request())
    }

    /// Returns true if posted requests are outstanding.
    pub(super) fn has_requests(&self, objects: &Objects) -> bool {
        let qp = self.qp.and_then(|id| objects.qps.get(id));
        qp.is_some_and(|qp| !qp.sends.is_empty())
    }

    /// Ends the connection on a request of this end. Returns false if the transport has to abort the stream.
    pub(crate) fn end_locally(
        &mut self,
        objects: &mut Objects,
        error: ConnectError,
        reason: EndReason,
    ) -> bool {
        let user = self.qp.and_then(|id| objects.qps.get(id)).map(|qp| qp.user());
        let may_drain = self.is_rc() && !matches!(self.ending, Ending::Abort | Ending::Done);
        self.end_connector(objects, Err(error), Some(reason));
        self.waiting = None;
        self.deadline = None;
        if may_drain {
            self.drained_user = user;
            self.begin_drain(None);
        } else {
            self.phase = Phase::Ended;
        }
        may_drain
    }

    /// Starts the end of the sending direction. The queue pair is detached.
    fn begin_drain(&mut self, terminate: Option<Terminate>) {
        if let Phase::Operating(operation) = &mut self.phase {
            operation.transmitter.abandon_requests(terminate);
        }
        self.progress_limit = None;
        self.ending = Ending::Drain;
    }

    /// Sends what is due, then the FIN.
    #[cold]
    pub(super) fn drain(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut impl LlpStream,
    ) {
        self.deadline.get_or_insert_with(|| io.now() + config.disconnect_timeout);
        io.resume_receive();
        if let (Phase::Operating(operation), Some(user)) = (&mut self.phase, self.drained_user)
            && operation.transmitter.drain(user, &objects.regions, io) == TransmitOutcome::Full
        {
            return;
        }
        if let Phase::Operating(operation) = &mut self.phase {
            operation.transmitter.send_terminate(io);
        }
        self.ending = Ending::Done;
        io.shutdown();
    }

    /// Ends the stream after a failed request of this end. The peer's queue pair is not affected.
    pub(super) fn fail_own_request(&mut self, objects: &mut Objects, reason: Option<EndReason>) {
        let Some(id) = self.qp else { return };
        let reason =
            reason.unwrap_or(EndReason::Detected(WireError::RdmapLocalCatastrophic.number()));
        self.end_locally(objects, ConnectError::Aborted, reason);
        // A connection that is not established leaves the queue pair idle otherwise.
        objects.break_qp(id);
    }

    /// Ends the stream after the peer has given up the oldest message of this end.
    #[cold]
    pub(super) fn retries_exceeded(&mut self, objects: &mut Objects) {
        self.fail_oldest_message(objects, WcStatus::RnrRetryExceeded);
        let reason = EndReason::Terminated(WireError::UntaggedNoBuffer.number());
        self.end_locally(objects, ConnectError::Aborted, reason);
    }

    /// Fails the oldest message that the peer has not executed.
    fn fail_oldest_message(&self, objects: &mut Objects, status: WcStatus) {
        let (Phase::Operating(operation), Some(id)) = (&self.phase, self.qp) else { return };
        let is_cutting = operation.transmitter.is_cutting_request();
        let Some(qp) = objects.qps.get_mut(id) else { return };
        if let Some(request) = qp.sends.find_begun(is_cutting, |request| request.kind.is_counted())
        {
            request.progress = Progress::Done(status);
        }
    }

    /// Returns true if the end of the connection without an error leaves the queue pair lost: the connection is
    /// established, and this end has not disconnected it.
    pub(super) fn is_losable(&self, objects: &Objects) -> bool {
        let connector = self.connector.and_then(|id| objects.connectors.get(id));
        self.is_rc()
            && connector.is_some_and(|connector| connector.state == ConnectorState::Connected)
    }

    /// Returns true if this end has disconnected the connection.
    pub(super) fn is_disconnecting(&self, objects: &Objects) -> bool {
        let connector = self.connector.and_then(|id| objects.connectors.get(id));
        connector.is_some_and(|connector| connector.state == ConnectorState::Disconnecting)
    }

    /// Ends the connection without an error. If the peer has reported one, its Terminate was lost.
    #[cold]
    pub(super) fn lose(&mut self, objects: &mut Objects, reason: Option<EndReason>) {
        let reported = match &self.phase {
            Phase::Operating(operation) => operation.transmitter.reported(),
            _ => None,
        };
        self.waiting = None;
        self.deadline = None;
        if let Some(status) = reported {
            self.fail_oldest_message(objects, status);
            return self.end_connector(objects, Err(ConnectError::Aborted), reason);
        }
        if let Some(id) = self.qp {
            objects.lose_qp(id);
        }
        if let Some(id) = self.connector {
            objects.disconnected(id, reason);
            objects.connection_ended(id, Err(ConnectError::Aborted));
        }
        self.detach();
    }

    /// Ends the stream after a failed request of the peer. The responses to earlier requests and an acknowledgment with
    /// the status of the failed one precede the Terminate.
    pub(super) fn fail_request_of_peer(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &impl LlpStream,
        terminate: Terminate,
    ) {
        self.note_executed(objects);
        if let Phase::Operating(operation) = &mut self.phase {
            let status = WcStatus::of_violation(terminate.number);
            operation.transmitter.report_failure(status);
        }
        let reason = EndReason::Detected(terminate.number);
        if self.end_locally(objects, ConnectError::Aborted, reason) {
            self.begin_drain(Some(terminate));
            self.begin_terminate(objects, config, io);
        }
    }
}

impl Objects {
    /// Moves a queue pair to [`QpState::Lost`].
    fn lose_qp(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        qp.state = QpState::Lost;
        qp.stream = None;
        qp.awaits_receive = false;
        qp.flow = Flow::default();
        if qp.is_unreliable() {
            return self.complete_lost(id);
        }
        if !qp.sends.is_empty() {
            self.raise_qp_event(id, QpEvent::RequestsWaiting);
        }
    }

    /// Completes all requests of an unreliable queue pair as sent: their messages are lost.
    pub(crate) fn complete_lost(&mut self, id: QpId) {
        let Self { qps, completed, .. } = self;
        if let Some(qp) = qps.get_mut(id) {
            qp.sends.finish_all(WcStatus::Success);
            qp.complete_done(completed);
        }
    }
}
