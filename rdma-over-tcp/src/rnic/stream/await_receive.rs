//! Wait of a message for its receive: see [`waiting`](super::waiting).

use alloc::boxed::Box;

use super::{
    Ending, FullOperation, Phase, Stream,
    failure::Failure,
    receive::{Received, UlpduOutcome},
    waiting::Waiting,
};
use crate::rnic::{config::Config, status::WcStatus, tables::Objects, transport::LlpStream};

impl Stream {
    /// Starts the wait of a message, or fails the stream if waiting is not permitted.
    #[cold]
    pub(super) fn wait_for_receive(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &impl LlpStream,
        ulpdu: &[u8],
        failure: Box<Failure>,
    ) {
        let may_wait = match self.is_rc() {
            true => matches!(self.ending, Ending::Not | Ending::AfterData),
            false => self.ending == Ending::Not && !config.receive_wait.is_zero(),
        };
        if self.qp.is_none() || !may_wait {
            return self.fail(objects, config, io, *failure);
        }
        self.waiting = Some(Box::new(Waiting::new(ulpdu, failure)));
        self.begin_wait(objects, config, io);
    }

    /// Starts the time of the message that waits.
    fn begin_wait(&mut self, objects: &mut Objects, config: &Config, io: &impl LlpStream) {
        let (Phase::Operating(operation), Some(id)) = (&mut self.phase, self.qp) else { return };
        let Some(waiting) = &mut self.waiting else { return };
        let now = io.now();
        waiting.is_due = false;
        match objects.qps.get(id).and_then(|qp| qp.rc) {
            None => {
                let until = now + config.receive_wait;
                waiting.until = Some(until);
                self.deadline = Some(until.min(now + config.end_wait));
            }
            Some(rc) => match rc.peer.receive_wait() {
                Some(wait) if wait.is_zero() => {
                    operation.transmitter.report_failure(WcStatus::RnrRetryExceeded);
                    return waiting.give_up();
                }
                wait => {
                    operation.transmitter.report_not_ready();
                    waiting.since = now;
                    waiting.until = wait.map(|wait| now + wait);
                    if self.ending == Ending::Not {
                        self.deadline = waiting.until;
                    }
                }
            },
        }
        objects.await_receive(id);
    }

    /// Applies the changed time limit of [`RcPeer`](crate::rnic::RcPeer) to the message that waits.
    pub(crate) fn change_wait(&mut self, objects: &Objects) {
        let rc = self.qp.and_then(|id| objects.qps.get(id)).and_then(|qp| qp.rc);
        let (Some(rc), Some(waiting)) = (rc, &mut self.waiting) else { return };
        if waiting.is_given_up {
            return;
        }
        waiting.until = rc.peer.receive_wait().map(|wait| waiting.since + wait);
        waiting.is_due = false;
        if self.ending == Ending::Not {
            self.deadline = waiting.until;
        }
    }

    /// Processes octets that arrive while a message waits. Returns the count of accepted octets.
    #[cold]
    pub(super) fn receive_while_waiting<T: LlpStream>(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut T,
        data: &[u8],
    ) -> usize {
        let mut rest = data;
        loop {
            let (Phase::Operating(operation), Some(qp), Some(waiting)) =
                (&mut self.phase, self.qp, &mut self.waiting)
            else {
                rest = &[];
                break;
            };
            let FullOperation { decoder, receiver, transmitter, .. } = &mut **operation;
            waiting.has_requests = objects.qps.get(qp).is_some_and(|qp| !qp.sends.is_empty());
            let decode = (decoder, &mut **waiting);
            match receiver.receive_behind(objects, qp, transmitter, decode, &mut rest) {
                Ok(Received::Terminate(terminate)) => {
                    self.terminated(objects, config, io, terminate.as_deref());
                }
                Ok(Received::RetriesExceeded) => self.retries_exceeded(objects),
                Ok(_) if rest.is_empty() || T::CAN_REFUSE_DATA => break,
                Ok(_) => {
                    let failure = waiting.failure.clone();
                    self.fail(objects, config, io, *failure);
                }
                Err(failure) => self.fail(objects, config, io, *failure),
            }
        }
        self.act(objects, config, io);
        let taken = data.len() - rest.len();
        // If the wait has ended in this call, the transport does not deliver the refused data again.
        match self.waiting.as_ref().is_some_and(|waiting| waiting.is_full()) || rest.is_empty() {
            true => taken,
            false => taken + self.receive(objects, config, io, rest),
        }
    }

    /// Records the end of the peer's stream if a message waits. Returns true if one waits.
    ///
    /// A peer of [`QpService::Rc`](crate::rnic::QpService) that has closed executes no requests. The message waits only
    /// if there are none.
    pub(super) fn defer_peer_close(&mut self, objects: &Objects) -> bool {
        let has_requests = self.is_rc() && self.has_requests(objects);
        let Some(waiting) = &mut self.waiting else { return false };
        if has_requests || waiting.is_given_up {
            self.waiting = None;
            return false;
        }
        waiting.is_peer_closed = true;
        true
    }

    /// Records the expiry of the deadline if a message waits. Returns true if one waits.
    pub(super) fn expire_waiting(&mut self) -> bool {
        self.waiting.as_mut().is_some_and(|waiting| {
            waiting.is_due = true;
            true
        })
    }

    /// Processes the waiting message if a receive is available, and what follows it; or ends the wait.
    #[cold]
    pub(super) fn end_wait<T: LlpStream>(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut T,
    ) {
        let is_rc = self.is_rc();
        let has_requests = is_rc && self.has_requests(objects);
        let Some(mut waiting) = self.waiting.take() else { return };
        let (Phase::Operating(operation), Some(qp)) = (&mut self.phase, self.qp) else {
            // Connector and queue pair are detached.
            return io.resume_receive();
        };
        if waiting.is_peer_closed && has_requests {
            return self.peer_closed(objects, config, io);
        }
        if waiting.is_given_up {
            self.waiting = Some(waiting);
            return;
        }
        // A deadline that expired while the process was stopped was extended, so `until` alone does not count.
        let is_over = waiting.is_due && waiting.until.is_some_and(|until| io.now() >= until);
        if is_rc && is_over {
            operation.transmitter.report_failure(WcStatus::RnrRetryExceeded);
            waiting.give_up();
            self.waiting = Some(waiting);
            return io.resume_receive();
        }
        if !is_rc && (is_over || self.ending != Ending::Not) {
            self.fail(objects, config, io, *waiting.failure);
            return io.resume_receive();
        }
        let FullOperation { receiver, transmitter, .. } = &mut **operation;
        let mut has_advanced = false;
        while let Some(ulpdu) = waiting.first() {
            match receiver.handle_late(objects, qp, transmitter, ulpdu) {
                Ok(UlpduOutcome::Placed | UlpduOutcome::MaySend) => {}
                Ok(UlpduOutcome::Terminate(terminate)) => {
                    self.terminated(objects, config, io, terminate.as_deref());
                    return io.resume_receive();
                }
                Ok(UlpduOutcome::RetriesExceeded) => {
                    self.retries_exceeded(objects);
                    return io.resume_receive();
                }
                Err(failure) if failure.is_without_receive() => {
                    waiting.failure = failure;
                    return self.continue_wait((objects, config, io), waiting, has_advanced);
                }
                Err(failure) => {
                    self.fail(objects, config, io, *failure);
                    return io.resume_receive();
                }
            }
            waiting.remove_first();
            has_advanced = true;
        }
        transmitter.report_ready();
        if self.ending == Ending::Not {
            self.deadline = None;
        }
        self.note_executed(objects);
        match waiting.is_peer_closed {
            true => self.peer_closed(objects, config, io),
            false => io.resume_receive(),
        }
    }

    /// Continues a wait: there was no receive for the first message, because another queue pair has taken it from the
    /// shared queue, or, if the wait `has_advanced`, for a later message.
    fn continue_wait(
        &mut self,
        (objects, config, io): (&mut Objects, &Config, &mut impl LlpStream),
        mut waiting: Box<Waiting>,
        has_advanced: bool,
    ) {
        let Some(qp) = self.qp else { return };
        // There is room for the responses to new requests.
        let had_requests =
            core::mem::replace(&mut waiting.has_requests, self.has_requests(objects));
        let has_room = waiting.has_requests && !had_requests;
        if has_advanced {
            let has_room = has_room || waiting.has_much_room();
            self.waiting = Some(waiting);
            self.note_executed(objects);
            self.begin_wait(objects, config, io);
            if has_room {
                io.resume_receive();
            }
            return;
        }
        objects.await_receive(qp);
        if has_room {
            io.resume_receive();
        }
        if core::mem::take(&mut waiting.is_due)
            && let Some(until) = waiting.until
        {
            if let Some(connector) = self.connector
                && (waiting.is_peer_closed || io.has_peer_closed())
            {
                objects.disconnected(connector, None);
            }
            self.deadline = Some(until.min(io.now() + config.end_wait));
        }
        self.waiting = Some(waiting);
    }
}
