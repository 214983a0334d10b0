//! Messages of RFC 7306: immediate data, atomics of the peer, responses to local atomics.
//!
//! They are unexpected on a queue pair that does not support them ([`Config::rfc7306`](crate::rnic::Config::rfc7306)).

use super::{Receiver, UlpduError, UlpduOutcome, complete_receive};
use crate::{
    ddp::{HeaderCopy, Segment, UntaggedSegment},
    error::WireError,
    rdmap::{
        ATOMIC_REQUEST_OCTETS, ATOMIC_RESPONSE_OCTETS, ATOMIC_TARGET_OCTETS, AtomicResponse,
        Extension, IMMEDIATE_OCTETS, Opcode, RdmapError,
    },
    rnic::{
        memory::registration::Access,
        objects::id::QpId,
        queues::{cq::Arrival, qp::Qp, send_queue::Progress},
        status::WcStatus,
        stream::{
            inbound_read::{InboundAtomic, InboundRequest},
            transmit::{Response, Transmitter},
        },
        tables::Objects,
    },
};

/// Checks that the queue pair supports RFC 7306.
fn expected(objects: &Objects, id: QpId) -> Result<(), WireError> {
    match objects.qps.get(id) {
        Some(qp) if !qp.rfc7306 => Err(WireError::OperationUnexpectedOpcode),
        _ => Ok(()),
    }
}

impl Receiver {
    /// Returns the number of an error in a ULPDU. On a queue pair without RFC 7306, its messages are an unexpected
    /// opcode, regardless of other errors in them. The same holds for private messages.
    #[cold]
    pub(super) fn refusal(
        objects: &Objects,
        id: QpId,
        ulpdu: &[u8],
        error: RdmapError,
    ) -> WireError {
        let segment = Segment::parse(ulpdu).ok();
        let opcode = segment.and_then(|(segment, _)| Opcode::from_control(segment.ulp()).ok());
        match opcode {
            Some(opcode) if opcode.is_extension() => expected(objects, id).err(),
            Some(opcode) if opcode.is_private() => {
                let is_rc = objects.qps.get(id).is_some_and(Qp::is_rc);
                (!is_rc).then_some(WireError::OperationUnexpectedOpcode)
            }
            _ => None,
        }
        .unwrap_or_else(|| error.wire())
    }

    /// Processes a message of RFC 7306.
    #[cold]
    pub(super) fn extension(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        (segment, opcode, payload): (&UntaggedSegment, Opcode, &[u8]),
        header: Option<HeaderCopy>,
    ) -> (Result<(), UlpduError>, UlpduOutcome) {
        if let Err(error) = expected(objects, id) {
            return (Err(error.into()), UlpduOutcome::Placed);
        }
        match Extension::parse(opcode, segment, payload) {
            Ok(Extension::Immediate { solicited, data }) => {
                (self.immediate(objects, id, segment, solicited, data), UlpduOutcome::Placed)
            }
            Ok(Extension::AtomicRequest(request)) => {
                let atomic = InboundAtomic { header, request };
                let taken = self.atomic_request(objects, id, transmitter, segment, atomic);
                (taken.map_err(UlpduError::from), UlpduOutcome::MaySend)
            }
            Ok(Extension::AtomicResponse(response)) => {
                let placed = self.atomic_response(objects, id, transmitter, segment, response);
                (placed, UlpduOutcome::MaySend)
            }
            Err(error) => (Err(error.wire().into()), UlpduOutcome::Placed),
        }
    }

    /// Processes immediate data, which consumes a receive like a Send, and places no data (EXT-6.3-1).
    fn immediate(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        segment: &UntaggedSegment,
        solicited: bool,
        data: [u8; IMMEDIATE_OCTETS],
    ) -> Result<(), UlpduError> {
        let octets = IMMEDIATE_OCTETS as u32;
        if objects.qps.get(id).is_some_and(Qp::is_unreliable)
            && (self.dropped.is_write || objects.take_receive(id).is_none())
        {
            self.dropped.is_write = false;
            let accepted = self.sends.accept(segment, IMMEDIATE_OCTETS, Some(octets));
            return accepted.map(drop).map_err(|error| error.wire().into());
        }
        let bytes = match objects.qps.get(id) {
            Some(qp) if qp.is_rc() => {
                let [.., a, b, c, d] = data;
                let bytes = u32::from_be_bytes([a, b, c, d]);
                if bytes != self.write_octets {
                    return Err(WireError::OperationUnspecified.into());
                }
                bytes
            }
            _ => 0,
        };
        // A receive of any length is sufficient.
        let capacity = objects.take_receive(id).map(|_| octets);
        self.sends.accept(segment, IMMEDIATE_OCTETS, capacity).map_err(|error| error.wire())?;
        self.executed = self.executed.wrapping_add(1);
        complete_receive(objects, id, bytes, Arrival::Immediate(data), solicited);
        Ok(())
    }

    /// Processes an atomic of the peer. It is executed when its response is due, as the memory of a Read is read at
    /// that time.
    fn atomic_request(
        &mut self,
        objects: &Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        segment: &UntaggedSegment,
        atomic: InboundAtomic,
    ) -> Result<(), WireError> {
        self.take_request(transmitter, segment, ATOMIC_REQUEST_OCTETS)?;
        let Some(qp) = objects.qps.get(id) else { return Ok(()) };
        if !qp.permits(Access::REMOTE_ATOMIC) {
            return Err(WireError::OperationStreamCatastrophic);
        }
        atomic.accept(qp.user(), &objects.regions)?;
        transmitter.respond(InboundRequest::Atomic(atomic));
        Ok(())
    }

    /// Processes the response to the oldest request, which is an atomic.
    fn atomic_response(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        segment: &UntaggedSegment,
        AtomicResponse { identifier, original }: AtomicResponse,
    ) -> Result<(), UlpduError> {
        let oldest = transmitter.outstanding.front();
        let awaited = oldest.and_then(|oldest| match oldest.response {
            Response::Atomic(identifier) => Some((identifier, oldest.serial?)),
            Response::Read(_) => None,
        });
        let Some((expected, serial)) = awaited else {
            return Err(WireError::OperationUnexpectedOpcode.into());
        };
        let octets = ATOMIC_RESPONSE_OCTETS;
        self.atomic_responses
            .accept(segment, octets, Some(octets as u32))
            .map_err(|error| error.wire())?;
        if identifier != expected {
            // RFC 7306 has no code for this.
            return Err(WireError::OperationStreamCatastrophic.into());
        }
        transmitter.outstanding.pop_front();
        let Objects { qps, regions, completed, .. } = objects;
        let Some(qp) = qps.get_mut(id) else { return Ok(()) };
        let sge = qp.sends.sges(serial).next();
        let granted = sge.and_then(|sge| {
            let (length, right) = (ATOMIC_TARGET_OCTETS, Access::LOCAL_WRITE);
            let hint = &mut self.local_region;
            regions.access_again(hint, qp.user(), sge.token, sge.address, length, right).ok()
        });
        if let Some(granted) = &granted {
            granted.place(&original.to_ne_bytes());
        }
        if let Some(request) = qp.sends.get_mut(serial) {
            let status = match granted {
                Some(_) => WcStatus::Success,
                // The sink was deregistered during the atomic.
                None => WcStatus::LocalProtection,
            };
            request.progress = Progress::Done(status);
        }
        if granted.is_none() {
            return Err(WireError::DdpLocalCatastrophic.into());
        }
        qp.complete_done(completed);
        Ok(())
    }
}
