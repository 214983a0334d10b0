//! From FPDUs to registered memory and completions.
//!
//! By the time a ULPDU comes here its CRC is right. Every check comes before the first byte is placed; a
//! message is delivered when its last segment is, which over an in-order stream means all of it is placed.

use super::{Failure, transmit::Transmitter};
use crate::{
    ddp::{QueueNumber, Stag, TaggedReceiver, TaggedSegment, UntaggedReceiver, UntaggedSegment},
    ndk::{
        flags::{MrFlags, OpFlags},
        objects::Objects,
        qp::{Qp, ReceiveOutcome},
        queue::{Progress, pieces},
        slab::Id,
        status::NtStatus,
    },
    rdmap::{
        self, Inbound, READ_REQUEST_OCTETS, RdmapError, ReadRequest, ReceivedTerminate, SendKind,
        Terminate, TerminatePhase, error::WireError,
    },
};

/// The receiving half of a stream in full operation.
#[derive(Debug)]
pub(super) struct Receiver {
    sends: UntaggedReceiver,
    read_requests: UntaggedReceiver,
    writes: TaggedReceiver,
    /// Reads of the peer served at once: the agreed IRD, rounded up as peers round it (see siw).
    inbound_reads_max: usize,
    fpdus: u64,
}

/// What a ULPDU led to, if not just a completion.
#[derive(Debug)]
pub(super) enum Received {
    Nothing,
    /// The peer has given up.
    Terminate(Option<ReceivedTerminate>),
}

impl Receiver {
    pub(super) fn new(inbound_reads: u16) -> Self {
        let inbound_reads_max = match inbound_reads {
            0 => 0,
            some => usize::from(some).next_power_of_two(),
        };
        Self {
            sends: UntaggedReceiver::new(QueueNumber::SEND),
            read_requests: UntaggedReceiver::new(QueueNumber::READ_REQUEST),
            writes: TaggedReceiver::new(),
            inbound_reads_max,
            fpdus: 0,
        }
    }

    /// Whether an FPDU has been received.
    pub(super) const fn has_received(&self) -> bool {
        self.fpdus > 0
    }

    /// Handles one ULPDU.
    ///
    /// # Errors
    /// The stream has failed; the failure says what to tell whom.
    pub(super) fn handle(
        &mut self,
        objects: &mut Objects,
        id: Id<Qp>,
        transmitter: &mut Transmitter,
        ulpdu: &[u8],
    ) -> Result<Received, Failure> {
        let is_first = self.fpdus == 0;
        self.fpdus += 1;
        objects.counters.fpdu_in += 1;
        if let Some(qp) = objects.qps.get_mut(id) {
            qp.stats.fpdu_in += 1;
        }
        let outcome = match rdmap::parse(ulpdu) {
            Err(error) => Err(error.wire().into()),
            Ok(Inbound::Write { segment, payload }) => {
                self.write(objects, id, &segment, payload).map_err(Fault::from)
            }
            Ok(Inbound::ReadResponse { segment, payload }) => {
                read_response(objects, id, transmitter, &segment, payload)
            }
            Ok(Inbound::ReadRequest { segment, request }) => {
                self.read_request(objects, id, transmitter, &segment, request).map_err(Fault::from)
            }
            Ok(Inbound::Send { segment, kind, payload }) => {
                self.send(objects, id, &segment, kind, payload)
            }
            Ok(Inbound::Terminate { segment: _, payload }) => {
                let phase =
                    if is_first { TerminatePhase::Startup } else { TerminatePhase::Operation };
                return Ok(Received::Terminate(ReceivedTerminate::parse(payload, phase)));
            }
        };
        outcome.map(|()| Received::Nothing).map_err(|fault| Failure {
            terminate: Some(Terminate::for_ulpdu(fault.error, ulpdu)),
            receive_status: fault.receive_status,
        })
    }

    fn write(
        &mut self,
        objects: &mut Objects,
        id: Id<Qp>,
        segment: &TaggedSegment,
        payload: &[u8],
    ) -> Result<(), WireError> {
        let Some(qp) = objects.qps.get_mut(id) else { return Ok(()) };
        // The rights are checked first: a peer that names a foreign buffer is told so (RFC 5041 7.1).
        if !payload.is_empty() {
            let TaggedSegment { stag: Stag(token), offset, .. } = *segment;
            let right = MrFlags::ALLOW_REMOTE_WRITE;
            let granted = objects
                .regions
                .access(qp.pd, token, offset.0, payload.len() as u32, right)
                .map_err(super::super::mr::AccessError::tagged)?;
            self.writes.accept(segment, payload.len()).map_err(|error| error.wire())?;
            granted.place(payload);
            qp.stats.write_segments_placed += 1;
            return Ok(());
        }
        self.writes.accept(segment, 0).map_err(|error| error.wire())?;
        Ok(())
    }

    fn read_request(
        &mut self,
        objects: &Objects,
        id: Id<Qp>,
        transmitter: &mut Transmitter,
        segment: &UntaggedSegment,
        request: ReadRequest,
    ) -> Result<(), WireError> {
        if transmitter.inbound_reads() >= self.inbound_reads_max {
            // RFC 5040 has no code for it; siw sends this one.
            return Err(WireError::OperationStreamCatastrophic);
        }
        let capacity = Some(READ_REQUEST_OCTETS as u32);
        self.read_requests
            .accept(segment, READ_REQUEST_OCTETS, capacity)
            .map_err(|error| error.wire())?;
        // RDM-5.2.1-6: an empty read's source is not looked at.
        if let (Some(qp), 1..) = (objects.qps.get(id), request.octets) {
            let ReadRequest { source_stag, source_offset, octets, .. } = request;
            let right = MrFlags::ALLOW_REMOTE_READ;
            objects
                .regions
                .access(qp.pd, source_stag.0, source_offset.0, octets, right)
                .map_err(super::super::mr::AccessError::read_request)?;
        }
        transmitter.respond(request);
        Ok(())
    }

    fn send(
        &mut self,
        objects: &mut Objects,
        id: Id<Qp>,
        segment: &UntaggedSegment,
        kind: SendKind,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let Some(qp) = objects.qps.get_mut(id) else { return Ok(()) };
        let capacity = qp.receives.front().map(|receive| receive.length);
        let place = self.sends.accept(segment, payload.len(), capacity).map_err(|error| {
            let error = error.wire();
            // NDK-ERR-5: the receive that was too short is told so.
            let receive_status =
                (error == WireError::UntaggedTooLong).then_some(NtStatus::BUFFER_OVERFLOW);
            Fault { error, receive_status }
        })?;
        for piece in qp.receives.pieces(place.offset, payload.len() as u32) {
            // The sum of the pieces is the payload: `accept` has compared it with the capacity.
            let right = MrFlags::ALLOW_LOCAL_WRITE;
            let checked =
                objects.regions.access(qp.pd, piece.token, piece.address, piece.length, right);
            if checked.is_err() {
                let error = WireError::DdpLocalCatastrophic;
                let receive_status = Some(NtStatus::ACCESS_VIOLATION);
                return Err(Fault { error, receive_status });
            }
        }
        let mut rest = payload;
        for piece in qp.receives.pieces(place.offset, payload.len() as u32) {
            let right = MrFlags::ALLOW_LOCAL_WRITE;
            let granted =
                objects.regions.access(qp.pd, piece.token, piece.address, piece.length, right);
            let (now, later) = rest.split_at(piece.length as usize);
            if let Ok(granted) = granted {
                granted.place(now);
            }
            rest = later;
        }
        let Some(bytes) = place.message_octets else { return Ok(()) };
        if let Some(Stag(token)) = kind.invalidate() {
            // NDK-RI-1: before the completion can be seen.
            let pd = qp.pd;
            objects.regions.invalidate_remotely(pd, token)?;
        }
        if let Some(qp) = objects.qps.get_mut(id) {
            qp.stats.receives += 1;
        }
        let outcome = ReceiveOutcome {
            status: NtStatus::SUCCESS,
            bytes,
            invalidated_token: kind.invalidate().map(|stag| stag.0),
            solicited: kind.is_solicited(),
            error_code: 0,
        };
        objects.complete_receive(id, outcome);
        Ok(())
    }
}

/// Places a part of the response to the oldest read.
fn read_response(
    objects: &mut Objects,
    id: Id<Qp>,
    transmitter: &mut Transmitter,
    segment: &TaggedSegment,
    payload: &[u8],
) -> Result<(), Fault> {
    let Some(read) = transmitter.reads.front_mut() else {
        return Err(WireError::OperationUnexpectedOpcode.into());
    };
    let (offset, is_complete) = read
        .pending
        .accept(segment, payload.len())
        .map_err(|error| RdmapError::from(error).wire())?;
    let serial = read.serial;
    if is_complete {
        transmitter.reads.pop_front();
    }
    let Some(serial) = serial else { return Ok(()) };
    let Objects { qps, regions, .. } = objects;
    let Some(qp) = qps.get_mut(id) else { return Ok(()) };
    let right = MrFlags::ALLOW_LOCAL_WRITE;
    let mut rest = payload;
    let mut accessible = true;
    for piece in pieces(qp.initiator.sges(serial), offset, payload.len() as u32) {
        let (now, later) = rest.split_at(piece.length as usize);
        match regions.access(qp.pd, piece.token, piece.address, piece.length, right) {
            Ok(granted) => granted.place(now),
            Err(_) => accessible = false,
        }
        rest = later;
    }
    if !accessible {
        // The sink was deregistered under the read.
        if let Some(request) = qp.initiator.get_mut(serial) {
            request.progress = Progress::Done(NtStatus::ACCESS_VIOLATION);
        }
        return Err(WireError::DdpLocalCatastrophic.into());
    }
    if is_complete {
        let first = qp.initiator.sges(serial).next();
        let Some(request) = qp.initiator.get_mut(serial) else { return Ok(()) };
        request.progress = Progress::Done(NtStatus::SUCCESS);
        // NDK-FLG-3: a success invalidates the token of the first entry.
        let invalidates = request.flags.contains(OpFlags::RDMA_READ_LOCAL_INVALIDATE);
        let region = first.filter(|_| invalidates).and_then(|sge| regions.find(sge.token));
        if let Some(region) = region {
            regions.revoke(region);
        }
        objects.complete_done(id);
    }
    Ok(())
}

/// An error in a ULPDU, and what becomes of the receive it was for.
struct Fault {
    error: WireError,
    receive_status: Option<NtStatus>,
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Self {
        Self { error, receive_status: None }
    }
}
