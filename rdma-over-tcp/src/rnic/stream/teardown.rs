//! Ends of streams: disconnects, local errors, Terminates of the peer, loss.
//!
//! The order visible to the consumer is fixed: the outcome of the failed request, the remaining requests Flushed, then
//! the disconnect event. The connection itself ends with a FIN, so that a Terminate arrives (RFC 5040 §6.2.1). It ends
//! with an RST if the peer does not answer in time.

use offload_engine::time::{Duration, Instant};

use super::{
    Ending, FullOperation, Phase, Stream,
    failure::Failure,
    progress_limit::{PeerProgress, ProgressLimit, TERMINATE_DRAIN_MAX},
};
use crate::{
    ddp::{QueueNumber, Segment},
    error::{EndReason, Loss, Truncation, WireError},
    rdmap::{Opcode, ReceivedTerminate, Terminate},
    rnic::{
        config::Config,
        connection::{cause::ConnectCause, connector::ConnectorState},
        objects::id::QpId,
        queues::{
            qp::{ErrorStatePosts, QpState, ReceiveOutcome},
            send_queue::{Progress, WorkRequest},
            wr::WqeKind,
        },
        status::{ConnectError, WcStatus},
        tables::Objects,
        transport::LlpStream,
    },
};

impl Stream {
    /// Detaches connector and queue pair.
    pub(crate) fn detach(&mut self) {
        self.connector = None;
        self.qp = None;
        self.listener = None;
        if let Phase::Operating(operation) = &mut self.phase {
            operation.may_send = false;
        } else {
            self.phase = Phase::Ended;
        }
    }

    /// Ends the connection of the connector, if there is one, and detaches it.
    pub(super) fn end_connector(
        &mut self,
        objects: &mut Objects,
        outcome: Result<(), ConnectError>,
        reason: Option<EndReason>,
    ) {
        self.remove_from_listener(objects);
        if let Some(id) = self.connector {
            let state = objects.connectors.get(id).map(|connector| connector.state);
            let is_attempt =
                !matches!(state, Some(ConnectorState::Connected | ConnectorState::Disconnecting));
            // For an attempt whose handshake is not done, TCP's error is the cause.
            if is_attempt && (self.is_established || reason == Some(EndReason::CqOverrun)) {
                let cause = reason.map_or(ConnectCause::Closed, ConnectCause::Ended);
                objects.record_cause(id, cause);
            }
            match state {
                // Unsent requests are Flushed; the disconnect itself is complete.
                Some(ConnectorState::Disconnecting) if outcome == Err(ConnectError::Aborted) => {
                    objects.connection_ended(id, Ok(()));
                }
                Some(ConnectorState::Connected | ConnectorState::Disconnecting) => {
                    // The flush precedes the event, and the event needs the state before the end.
                    if let Some(qp) = self.qp {
                        objects.break_qp(qp);
                    }
                    objects.disconnected(id, reason);
                    objects.connection_ended(id, outcome);
                }
                // A reset instead of a Reply is the refusal of a peer without MPA. The overrun of a completion queue is
                // local.
                Some(ConnectorState::Connecting)
                    if outcome == Err(ConnectError::Aborted)
                        && reason != Some(EndReason::CqOverrun) =>
                {
                    objects.connection_failed(id, ConnectError::Refused);
                }
                _ => objects.connection_failed(id, outcome.err().unwrap_or(ConnectError::Aborted)),
            }
        } else if self.listener.is_some() {
            objects.counters.connect_failure += 1;
        }
        self.detach();
    }

    /// Ends the connection gracefully: posted requests are sent first (NDK-DISC-5).
    pub(crate) fn disconnect(&mut self, config: &Config, now: Instant) {
        if self.ending == Ending::Not {
            self.ending = Ending::AfterData;
        }
        self.deadline = Some(now + config.disconnect_timeout);
    }

    /// Resets the connection in the next call of the transport.
    pub(crate) fn abort(&mut self) {
        self.detach();
        self.phase = Phase::Ended;
        self.progress_limit = None;
        if self.ending != Ending::Done {
            self.ending = Ending::Abort;
        }
        self.deadline = None;
    }

    /// Ends the stream after an error that was detected locally.
    pub(super) fn fail(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &impl LlpStream,
        failure: Failure,
    ) {
        if self.is_rc() && failure.is_of_own_request() {
            return self.fail_own_request(objects, failure.reason());
        }
        let reason = failure.reason();
        let Failure { terminate, receive_status, truncation: _ } = failure;
        let error = terminate.map(|terminate| terminate.number);
        if let Some(id) = self.qp {
            if let Some(status) = receive_status {
                objects.complete_receive(id, ReceiveOutcome::failed(status, error));
            }
            if let Some(qp) = objects.qps.get_mut(id) {
                qp.stats.terminates_out += u64::from(terminate.is_some());
            }
        }
        if let Some(terminate) = terminate.filter(|_| self.is_rc()) {
            return self.fail_request_of_peer(objects, config, io, terminate);
        }
        if let Phase::Operating(operation) = &mut self.phase {
            operation.transmitter.abandon(terminate);
        }
        self.end_connector(objects, Err(ConnectError::Aborted), reason);
        if !matches!(self.ending, Ending::Done | Ending::Abort) {
            self.ending = Ending::Fin;
        }
        self.begin_terminate(objects, config, io);
    }

    /// Starts the time limit of a Terminate that is sent, or about to be sent.
    pub(super) fn begin_terminate(
        &mut self,
        objects: &Objects,
        config: &Config,
        io: &impl LlpStream,
    ) {
        self.begin_progress_limit(objects, io, TERMINATE_DRAIN_MAX, config.terminate_timeout);
    }

    /// Starts the time limit of a disconnect with requests outstanding. Other adapters flush them immediately; here
    /// they are sent as long as the peer makes progress.
    #[cold]
    pub(super) fn limit_disconnect(
        &mut self,
        objects: &Objects,
        config: &Config,
        io: &impl LlpStream,
    ) {
        let qp = self.qp.and_then(|id| objects.qps.get(id));
        if self.progress_limit.is_none() && qp.is_some_and(|qp| !qp.sends.is_empty()) {
            self.begin_progress_limit(objects, io, config.disconnect_timeout, config.end_wait);
        }
    }

    fn begin_progress_limit(
        &mut self,
        objects: &Objects,
        io: &impl LlpStream,
        all: Duration,
        limit: Duration,
    ) {
        let (until, progress) = (io.now() + all, self.progress(objects, io));
        self.progress_limit = Some(ProgressLimit { until, limit, progress, is_overdue: false });
        self.deadline = Some(until.min(io.now() + limit));
    }

    fn progress(&self, objects: &Objects, io: &impl LlpStream) -> PeerProgress {
        let qp = self.qp.and_then(|id| objects.qps.get(id));
        let lists = qp.map_or(0, |qp| qp.stats.lists_out);
        PeerProgress { lists, unacknowledged: io.unacknowledged() }
    }

    /// Records the expiry of the deadline. Returns true if the transport has to be queried for the peer's progress
    /// first.
    fn expire_progress_limit(&mut self) -> bool {
        if let Some(progress_limit) = &mut self.progress_limit {
            progress_limit.is_overdue = true;
        }
        self.progress_limit.is_some()
    }

    /// Grants another interval to a peer with progress, and resets the connection otherwise.
    #[cold]
    pub(super) fn check_progress(&mut self, objects: &mut Objects, io: &impl LlpStream) {
        let (now, progress) = (io.now(), self.progress(objects, io));
        let Some(progress_limit) = &mut self.progress_limit else { return };
        if progress.exceeds(&progress_limit.progress) && now < progress_limit.until {
            (progress_limit.progress, progress_limit.is_overdue) = (progress, false);
            self.deadline = Some(progress_limit.until.min(now + progress_limit.limit));
            return;
        }
        self.fail_unanswered(objects);
    }

    /// Ends the connection because the peer did not answer in time.
    fn fail_unanswered(&mut self, objects: &mut Objects) {
        let reason = Some(EndReason::Lost(Loss::NoAnswer));
        self.end_connector(objects, Err(ConnectError::TimedOut), reason);
        self.abort();
        self.ending = Ending::Abort;
    }

    /// Releases withdrawn memory. A message that still needs it ends the stream, like one that starts after the
    /// withdrawal.
    #[cold]
    pub(super) fn release_withdrawn(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut impl LlpStream,
    ) {
        io.detach_withdrawn();
        let Phase::Operating(operation) = &mut self.phase else { return };
        if !operation.transmitter.needs_withdrawn() {
            return;
        }
        if let Some(qp) = self.qp.and_then(|id| objects.qps.get_mut(id)) {
            qp.sends.advance(Progress::Done(WcStatus::LocalProtection));
        }
        let terminate = Terminate::new(WireError::RdmapLocalCatastrophic);
        self.fail(objects, config, io, Failure::new(terminate));
    }

    /// Ends the stream after a Terminate of the peer: nothing more is sent (RFC 5040 §5.4).
    pub(super) fn terminated(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &impl LlpStream,
        received: Option<&ReceivedTerminate>,
    ) {
        let terminate = received.map(ReceivedTerminate::meant);
        let reason = match terminate {
            Some(terminate) => EndReason::Terminated(terminate.number),
            None => EndReason::TerminatedUnnumbered,
        };
        if let (Some(id), Phase::Operating(operation)) = (self.qp, &mut self.phase) {
            if let Some(qp) = objects.qps.get_mut(id) {
                qp.stats.terminates_in += 1;
            }
            if let Some(terminate) = terminate {
                fail_reported_request(objects, id, operation, terminate);
            }
            operation.transmitter.abandon(None);
        }
        self.end_connector(objects, Err(ConnectError::Aborted), Some(reason));
        if !matches!(self.ending, Ending::Done | Ending::Abort) {
            self.ending = Ending::Fin;
        }
        self.deadline = Some(io.now() + config.terminate_timeout);
    }

    /// Processes the peer's FIN. After a complete message it is an event, and nothing is flushed (NDK-DISC-2).
    /// Otherwise it is an error (MPA-7.2-1, DDP-3-9): a message of the peer is lost.
    pub(super) fn peer_closed(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut impl LlpStream,
    ) {
        if self.is_rc() && self.connector.is_some() {
            if self.is_losable(objects) {
                self.lose(objects, None);
            } else if !self.is_disconnecting(objects) {
                self.end_connector(objects, Err(ConnectError::Aborted), None);
            }
            io.resume_receive();
            if matches!(self.ending, Ending::Not | Ending::AfterData) {
                self.ending = Ending::Fin;
            }
            return;
        }
        if let Some(truncation) = self.truncation() {
            return self.fail(objects, config, io, Failure::truncated(truncation));
        }
        let state = self
            .connector
            .and_then(|id| objects.connectors.get(id))
            .map(|connector| connector.state);
        match (self.connector, state) {
            (Some(id), Some(ConnectorState::Connected)) => {
                if config.flush_on_peer_close {
                    self.end_connector(objects, Ok(()), None);
                    self.ending = Ending::Fin;
                } else {
                    objects.disconnected(id, None);
                    self.refuse_posts(objects);
                }
            }
            (Some(_), Some(ConnectorState::Disconnecting)) => {}
            _ => {
                self.end_connector(objects, Err(ConnectError::Aborted), None);
                if self.ending == Ending::Not {
                    self.ending = Ending::Fin;
                }
            }
        }
    }

    /// Refuses new posts: the peer accepts no more messages, although TCP still carries them. Requests posted before
    /// remain (NDK-DISC-2).
    fn refuse_posts(&self, objects: &mut Objects) {
        if let Some(qp) = self.qp.and_then(|id| objects.qps.get_mut(id))
            && qp.error_state_posts == ErrorStatePosts::Refuse
        {
            qp.state = QpState::Error;
        }
    }

    /// Returns the kind of truncation if the peer's FIN arrived now; `None`: the stream may end here, or has failed
    /// before.
    fn truncation(&self) -> Option<Truncation> {
        let (Phase::Operating(operation), Some(_)) = (&self.phase, self.qp) else { return None };
        let FullOperation { decoder, receiver, transmitter, .. } = &**operation;
        if !decoder.is_between_fpdus() {
            return Some(Truncation::Fpdu);
        }
        let is_in_message = receiver.is_in_message() || transmitter.is_in_response();
        is_in_message.then_some(Truncation::Message)
    }

    /// Ends the stream of a connection that was lost without a Terminate.
    pub(crate) fn lost(&mut self, objects: &mut Objects, error: ConnectError) {
        self.lost_for_reason(objects, error, EndReason::Lost(error.into()));
    }

    /// As [`Stream::lost`], with this reason.
    pub(crate) fn lost_for_reason(
        &mut self,
        objects: &mut Objects,
        error: ConnectError,
        by: EndReason,
    ) {
        match self.is_losable(objects) {
            true => self.lose(objects, Some(by)),
            false => self.end_connector(objects, Err(error), Some(by)),
        }
        self.phase = Phase::Ended;
        self.waiting = None;
        self.deadline = None;
    }

    /// Processes the expiry of the deadline.
    pub(crate) fn expire(&mut self, objects: &mut Objects, config: &Config, now: Instant) {
        self.deadline = None;
        if self.ending == Ending::Not && self.expire_waiting()
            || self.handle_accept_race_timeout(objects, config, now)
        {
            return;
        }
        if self.expire_progress_limit() {
            return;
        }
        if let (Phase::Offered(_), Some(id)) = (&self.phase, self.connector) {
            objects.record_cause(id, ConnectCause::NotAnswered(config.accept_timeout));
            objects.connection_failed(id, ConnectError::TimedOut);
            return self.refuse();
        }
        let cause = match &self.phase {
            Phase::AwaitReply(_) => Some(ConnectCause::NoReply(config.reply_timeout)),
            Phase::Operating(operation) if !operation.is_established => {
                Some(ConnectCause::NoFirstMessage(config.accept_timeout))
            }
            _ => None,
        };
        if let (Some(id), Some(cause)) = (self.connector, cause) {
            objects.record_cause(id, cause);
        }
        self.fail_unanswered(objects);
    }
}

/// Fails the request that the Terminate refers to, if it has not completed yet.
fn fail_reported_request(
    objects: &mut Objects,
    id: QpId,
    operation: &FullOperation,
    terminate: &Terminate,
) {
    let Some(qp) = objects.qps.get_mut(id) else { return };
    let is_cutting = operation.transmitter.is_cutting_request();
    let is_rc = operation.transmitter.is_rc();
    let status = match operation.transmitter.reported() {
        Some(status) => status,
        None if is_rc => WcStatus::of_violation(terminate.number),
        None => WcStatus::of_terminate(terminate.number),
    };
    let mut find = |matches: &dyn Fn(&WorkRequest) -> bool| {
        qp.sends.find_begun(is_cutting, matches).map(|request| {
            request.progress = Progress::Done(status);
            request.error = Some(terminate.number);
        })
    };
    let is_read = |request: &WorkRequest| request.kind.awaits_response();
    let segment = terminate.segment();
    let is_of_read = matches!(
        segment,
        Some(Segment::Untagged(segment)) if segment.queue == QueueNumber::READ_REQUEST
    );
    if is_rc && !is_of_read {
        // The peer has counted the messages before the failed one.
        find(&|request| request.kind.is_counted());
        return;
    }
    // No match: the request has already completed.
    match segment {
        Some(Segment::Tagged(segment)) if segment.ulp == Opcode::Write.control() => {
            let stag = segment.stag;
            find(&|request| matches!(request.kind, WqeKind::Write { to } if to.stag == stag))
        }
        Some(Segment::Tagged(_)) => None,
        Some(Segment::Untagged(segment)) if segment.queue == QueueNumber::READ_REQUEST => {
            // siw reports the size of the Read instead of the MSN: use the oldest one in that case.
            let msn = segment.msn.0;
            find(&|request| is_read(request) && request.msn == msn).or_else(|| find(&is_read))
        }
        // It refers to a response.
        Some(Segment::Untagged(segment)) if segment.queue == QueueNumber::ATOMIC_RESPONSE => None,
        Some(Segment::Untagged(segment)) => {
            let msn = segment.msn.0;
            let is_send =
                |kind: &WqeKind| matches!(kind, WqeKind::Send { .. } | WqeKind::Immediate { .. });
            find(&|request| is_send(&request.kind) && request.msn == msn)
        }
        None if (terminate.number.layer, terminate.number.etype) == (0, 1) => find(&is_read),
        None => find(&|_| true),
    };
}
