//! How streams end: disconnects, errors found here, errors told by the peer, loss.
//!
//! However it ends, the consumer sees the same order: the outcome of the request that is to blame, the
//! rest CANCELLED, then the disconnect event. The connection itself goes by FIN, so that a Terminate
//! arrives (RFC 5040 6.2.1), and by RST when the peer does not answer in time.

use super::{Ending, Failure, Operation, Phase, Stream};
use crate::{
    ddp::{QueueNumber, Segment},
    error::{ErrorNumber, WireError},
    ndk::{
        config::AdapterConfig,
        connector::ConnectorState,
        objects::Objects,
        qp::{Qp, ReceiveOutcome},
        queue::{Kind, Progress, WorkRequest},
        slab::Id,
        status::NtStatus,
        wire::Wire,
    },
    rdmap::{Opcode, ReceivedTerminate, Terminate},
};
use offload_engine::time::Instant;

impl Stream {
    /// Connector and queue pair have let go.
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

    /// Tells the connector, if there is one, that the connection is over, and lets go of it.
    fn end_connector(&mut self, objects: &mut Objects, status: NtStatus, reason: u32) {
        if let Some(id) = self.connector {
            let state = objects.connectors.get(id).map(|connector| connector.state);
            match state {
                // What was not sent is CANCELLED; the disconnect itself is done.
                Some(ConnectorState::Disconnecting) if status == NtStatus::CONNECTION_ABORTED => {
                    objects.connection_ended(id, NtStatus::SUCCESS);
                }
                Some(ConnectorState::Connected | ConnectorState::Disconnecting) => {
                    // The flush comes before the event, the event needs the state before the end.
                    if let Some(qp) = self.qp {
                        objects.break_qp(qp);
                    }
                    objects.tell_disconnect(id, reason);
                    objects.connection_ended(id, status);
                }
                // A reset instead of a Reply is how a peer without MPA refuses.
                Some(ConnectorState::Connecting) if status == NtStatus::CONNECTION_ABORTED => {
                    objects.connection_failed(id, NtStatus::CONNECTION_REFUSED);
                }
                _ => objects.connection_failed(id, status),
            }
        } else if self.listener.is_some() {
            objects.counters.connect_failure += 1;
        }
        self.detach();
    }

    /// NdkDisconnect: what was posted goes out first (NDK-DISC-5).
    pub(crate) fn disconnect(&mut self, config: &AdapterConfig, now: Instant) {
        if self.ending == Ending::Not {
            self.ending = Ending::AfterData;
        }
        self.deadline = Some(now + config.disconnect_timeout);
    }

    /// Reset at the next opportunity.
    pub(crate) fn abort(&mut self) {
        self.detach();
        self.phase = Phase::Ended;
        if self.ending != Ending::Done {
            self.ending = Ending::Abort;
        }
        self.deadline = None;
    }

    /// An error was found on this side.
    pub(super) fn fail(
        &mut self,
        objects: &mut Objects,
        config: &AdapterConfig,
        wire: &impl Wire,
        failure: Failure,
    ) {
        let Failure { terminate, receive_status } = failure;
        let reason = terminate.map_or(0, |terminate| code(terminate.number));
        if let Some(id) = self.qp {
            if let Some(status) = receive_status {
                objects.complete_receive(id, ReceiveOutcome::failed(status, reason));
            }
            if let Some(qp) = objects.qps.get_mut(id) {
                qp.stats.terminates_out += u64::from(terminate.is_some());
            }
        }
        if let Phase::Operating(operation) = &mut self.phase {
            operation.transmitter.abandon(terminate);
        }
        self.end_connector(objects, NtStatus::CONNECTION_ABORTED, reason);
        if !matches!(self.ending, Ending::Done | Ending::Abort) {
            self.ending = Ending::Fin;
        }
        self.deadline = Some(wire.now() + config.terminate_timeout);
    }

    /// The peer has sent a Terminate: nothing more is sent (RFC 5040 5.4).
    pub(super) fn terminated(
        &mut self,
        objects: &mut Objects,
        config: &AdapterConfig,
        wire: &impl Wire,
        received: Option<&ReceivedTerminate>,
    ) {
        let terminate = received.map(ReceivedTerminate::meant);
        let reason = terminate.map_or(0, |terminate| code(terminate.number));
        if let (Some(id), Phase::Operating(operation)) = (self.qp, &mut self.phase) {
            if let Some(qp) = objects.qps.get_mut(id) {
                qp.stats.terminates_in += 1;
            }
            if let Some(terminate) = terminate {
                blame(objects, id, operation, terminate);
            }
            operation.transmitter.abandon(None);
        }
        self.end_connector(objects, NtStatus::CONNECTION_ABORTED, reason);
        if !matches!(self.ending, Ending::Done | Ending::Abort) {
            self.ending = Ending::Fin;
        }
        self.deadline = Some(wire.now() + config.terminate_timeout);
    }

    /// The peer's FIN (NDK-DISC-2): told, but nothing is flushed.
    pub(super) fn peer_closed(&mut self, objects: &mut Objects, config: &AdapterConfig) {
        let state = self
            .connector
            .and_then(|id| objects.connectors.get(id))
            .map(|connector| connector.state);
        match (self.connector, state) {
            (Some(id), Some(ConnectorState::Connected)) => {
                if config.flush_on_peer_close {
                    self.end_connector(objects, NtStatus::SUCCESS, 0);
                    self.ending = Ending::Fin;
                } else {
                    objects.tell_disconnect(id, 0);
                }
            }
            (Some(_), Some(ConnectorState::Disconnecting)) => {}
            _ => {
                self.end_connector(objects, NtStatus::CONNECTION_ABORTED, 0);
                if self.ending == Ending::Not {
                    self.ending = Ending::Fin;
                }
            }
        }
    }

    /// The connection is gone without a word.
    pub(crate) fn lost(&mut self, objects: &mut Objects, status: NtStatus) {
        self.end_connector(objects, status, code(WireError::MpaConnectionLost.number()));
        self.phase = Phase::Ended;
        self.deadline = None;
    }

    /// The deadline has passed.
    pub(crate) fn expire(&mut self, objects: &mut Objects) {
        self.deadline = None;
        let reason = code(WireError::MpaConnectionLost.number());
        self.end_connector(objects, NtStatus::IO_TIMEOUT, reason);
        self.abort();
        self.ending = Ending::Abort;
    }
}

/// Layer, type and code as one number, `0xLTCC`.
fn code(number: ErrorNumber) -> u32 {
    u32::from(number.layer) << 12 | u32::from(number.etype) << 8 | u32::from(number.code)
}

/// The status of a request that a Terminate is about.
fn status_of(number: ErrorNumber) -> NtStatus {
    match (number.layer, number.etype, number.code) {
        (0, 1, 0x09) | (0, 2, 0x05 | 0x06 | 0x09) => NtStatus::REMOTE_RESOURCES,
        (0, 1, _) | (1, 1, 0x00..=0x03) => NtStatus::ACCESS_VIOLATION,
        (1, 2, 0x02) | (2, 0, 0x01) => NtStatus::IO_TIMEOUT, // NDK-ERR-4
        (1, 2, _) | (1, 1, 0x04) => NtStatus::REMOTE_RESOURCES,
        _ => NtStatus::INTERNAL_ERROR,
    }
}

/// Finds the request that the Terminate is about, if it has not completed yet, and fails it.
fn blame(objects: &mut Objects, id: Id<Qp>, operation: &Operation, terminate: &Terminate) {
    let Some(qp) = objects.qps.get_mut(id) else { return };
    let is_cutting = operation.transmitter.is_cutting_request();
    let mut find = |matches: &dyn Fn(&WorkRequest) -> bool| {
        qp.initiator.find_begun(is_cutting, matches).map(|request| {
            request.progress = Progress::Done(status_of(terminate.number));
            request.error_code = code(terminate.number);
        })
    };
    let is_read = |request: &WorkRequest| matches!(request.kind, Kind::Read { .. });
    // No match: the request has completed already, and there is nothing to fail.
    match terminate.segment {
        Some(Segment::Tagged(segment)) if segment.ulp == Opcode::Write.control() => {
            let token = segment.stag.0;
            find(
                &|request| matches!(request.kind, Kind::Write { token: written, .. } if written == token),
            )
        }
        Some(Segment::Tagged(_)) => None,
        Some(Segment::Untagged(segment)) if segment.queue == QueueNumber::READ_REQUEST => {
            // siw reports the size of the read where the MSN should be: the oldest one then.
            let msn = segment.msn.0;
            find(&|request| is_read(request) && request.msn == msn).or_else(|| find(&is_read))
        }
        Some(Segment::Untagged(segment)) => {
            let msn = segment.msn.0;
            find(&|request| matches!(request.kind, Kind::Send { .. }) && request.msn == msn)
        }
        None if (terminate.number.layer, terminate.number.etype) == (0, 1) => find(&is_read),
        None => find(&|_| true),
    };
}
