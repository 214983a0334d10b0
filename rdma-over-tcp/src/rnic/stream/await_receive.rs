//! Wait of a message for its receive: see [`waiting`](super::waiting).

use alloc::{boxed::Box, vec::Vec};

use super::{
    Ending, FullOperation, Phase, Stream,
    failure::Failure,
    receive::{Receiver, UlpduOutcome},
    transmit::Transmitter,
    waiting::Waiting,
};
use crate::rnic::{config::Config, objects::id::QpId, tables::Objects, transport::LlpStream};

/// Maximum number of octets kept for a transport that cannot be refused.
const OCTETS_MAX: usize = 1 << 20;

impl Stream {
    /// Starts the wait of a message, or fails the stream if waiting is not permitted.
    #[cold]
    pub(super) fn wait_for_receive(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &impl LlpStream,
        ulpdu: Box<[u8]>,
        failure: Box<Failure>,
    ) {
        let may_wait = self.ending == Ending::Not && !config.receive_wait.is_zero();
        let Some(qp) = self.qp.filter(|_| may_wait) else {
            return self.fail(objects, config, io, *failure);
        };
        objects.await_receive(qp);
        let until = io.now() + config.receive_wait;
        self.deadline = Some(until.min(io.now() + config.end_wait));
        self.waiting = Some(Box::new(Waiting {
            ulpdu,
            failure,
            later_octets: Vec::new(),
            is_peer_closed: false,
            until,
            is_due: false,
        }));
    }

    /// Keeps octets that follow the waiting message, for a transport that does not keep them.
    pub(super) fn keep_later_octets(&mut self, octets: &[u8]) {
        if let Some(waiting) = &mut self.waiting {
            waiting.later_octets.extend_from_slice(octets);
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
        if T::CAN_REFUSE_DATA {
            return 0;
        }
        self.keep_later_octets(data);
        self.act(objects, config, io);
        data.len()
    }

    /// Records the end of the peer's stream if a message waits. Returns true if one waits.
    pub(super) fn defer_peer_close(&mut self) -> bool {
        self.waiting.as_mut().is_some_and(|waiting| {
            waiting.is_peer_closed = true;
            true
        })
    }

    /// Records the expiry of the deadline if a message waits. Returns true if one waits.
    pub(super) fn expire_waiting(&mut self) -> bool {
        self.waiting.as_mut().is_some_and(|waiting| {
            waiting.is_due = true;
            true
        })
    }

    /// Processes the waiting message if a receive is available, and the octets after it; or ends the wait.
    #[cold]
    pub(super) fn end_wait<T: LlpStream>(
        &mut self,
        objects: &mut Objects,
        config: &Config,
        io: &mut T,
    ) {
        let Some(mut waiting) = self.waiting.take() else { return };
        let (Phase::Operating(operation), Some(qp)) = (&mut self.phase, self.qp) else {
            // Connector and queue pair are detached.
            return io.resume_receive();
        };
        let is_over = io.now() >= waiting.until || waiting.later_octets.len() > OCTETS_MAX;
        if is_over || self.ending != Ending::Not {
            self.fail(objects, config, io, *waiting.failure);
            return io.resume_receive();
        }
        let FullOperation { receiver, transmitter, .. } = &mut **operation;
        match take(receiver, objects, qp, transmitter, &waiting.ulpdu) {
            Ok(true) => {}
            Ok(false) => {
                // Another queue pair has taken the receive of the shared queue.
                objects.await_receive(qp);
                if core::mem::take(&mut waiting.is_due) {
                    if let Some(connector) = self.connector
                        && (waiting.is_peer_closed || io.has_peer_closed())
                    {
                        objects.disconnected(connector, None);
                    }
                    self.deadline = Some(waiting.until.min(io.now() + config.end_wait));
                }
                self.waiting = Some(waiting);
                return;
            }
            Err(failure) => self.fail(objects, config, io, *failure),
        }
        if self.ending == Ending::Not {
            self.deadline = None;
        }
        let mut rest = &waiting.later_octets[..];
        self.receive_fpdus(objects, config, io, &mut rest);
        self.keep_later_octets(rest);
        match &mut self.waiting {
            Some(again) => again.is_peer_closed = waiting.is_peer_closed,
            None if waiting.is_peer_closed => self.peer_closed(objects, config, io),
            None => io.resume_receive(),
        }
    }
}

/// Processes the segment again. Returns true if there was a receive for it.
fn take(
    receiver: &mut Receiver,
    objects: &mut Objects,
    qp: QpId,
    transmitter: &mut Transmitter,
    ulpdu: &[u8],
) -> Result<bool, Box<Failure>> {
    match receiver.handle(objects, qp, transmitter, ulpdu) {
        Ok(UlpduOutcome::Placed | UlpduOutcome::MaySend | UlpduOutcome::Terminate(_)) => Ok(true),
        Err(failure) if failure.is_without_receive() => Ok(false),
        Err(failure) => Err(failure),
    }
}
