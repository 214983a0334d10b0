//! Private messages between queue pairs of [`QpService::Rc`](crate::rnic::QpService).
//!
//! They are unexpected on a queue pair of another service.

use super::{Receiver, UlpduError, UlpduOutcome};
use crate::{
    ddp::UntaggedSegment,
    error::WireError,
    rdmap::{ACKNOWLEDGMENT_OCTETS, Acknowledgment, Opcode, Syndrome, immediate_kind},
    rnic::{objects::id::QpId, status::WcStatus, stream::transmit::Transmitter, tables::Objects},
};

impl Receiver {
    /// Processes a private message.
    #[inline(never)]
    pub(super) fn private(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        (segment, opcode, payload): (&UntaggedSegment, Opcode, &[u8]),
    ) -> (Result<(), UlpduError>, UlpduOutcome) {
        if !transmitter.is_rc() {
            let error = WireError::OperationUnexpectedOpcode;
            return (Err(error.into()), UlpduOutcome::Placed);
        }
        match opcode {
            Opcode::SendImmediate => {
                let kind = immediate_kind(segment);
                (self.send(objects, id, segment, kind, payload), UlpduOutcome::Placed)
            }
            _ => match self.acknowledgment(objects, id, transmitter, segment, payload) {
                Ok(outcome) => (Ok(()), outcome),
                Err(error) => (Err(error.into()), UlpduOutcome::Placed),
            },
        }
    }

    /// Completes the requests that the peer has executed.
    fn acknowledgment(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        segment: &UntaggedSegment,
        payload: &[u8],
    ) -> Result<UlpduOutcome, WireError> {
        let acknowledgment =
            Acknowledgment::parse(payload, segment.last).map_err(|error| error.wire())?;
        let octets = ACKNOWLEDGMENT_OCTETS;
        self.acknowledgments
            .accept(segment, octets, Some(octets as u32))
            .map_err(|error| error.wire())?;
        let may_send = transmitter.acknowledged(&acknowledgment)?;
        let Objects { qps, completed, .. } = objects;
        if let Some(qp) = qps.get_mut(id) {
            qp.sends.acknowledge_messages(acknowledgment.count);
            qp.complete_done(completed);
        }
        Ok(match acknowledgment.syndrome {
            Syndrome::Failed(_) if transmitter.reported() == Some(WcStatus::RnrRetryExceeded) => {
                UlpduOutcome::RetriesExceeded
            }
            _ if may_send => UlpduOutcome::MaySend,
            _ => UlpduOutcome::Placed,
        })
    }
}
