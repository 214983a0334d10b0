//! From FPDUs to registered memory and completions.
//!
//! By the time a ULPDU comes here its CRC is right. Every check comes before the first byte is placed; a
//! message is delivered when its last segment is, which over an in-order stream means all of it is placed.

mod extensions;

use alloc::boxed::Box;

use super::{
    failure::Failure,
    inbound_read::{InboundRead, InboundRequest},
    transmit::{Response, Transmitter},
};
use crate::{
    ddp::{
        HeaderCopy, QueueNumber, Stag, TaggedReceiver, TaggedSegment, UntaggedReceiver,
        UntaggedSegment,
    },
    error::WireError,
    mpa::Decoder,
    rdmap,
    rdmap::{
        Inbound, READ_REQUEST_OCTETS, RdmapError, ReadRequest, ReceivedTerminate, SendKind,
        Terminate, TerminatePhase,
    },
    rnic::{
        memory::{
            region::{Owner, Regions},
            registration::{Access, AccessError},
        },
        objects::id::QpId,
        queues::{
            cq::Arrival,
            qp::{Qp, ReceiveOutcome},
            send_queue::Progress,
            sges::pieces,
            wr::{Sge, WqeKind},
        },
        status::WcStatus,
        tables::Objects,
    },
};

/// The receiving half of a stream in full operation.
#[derive(Debug)]
pub(super) struct Receiver {
    sends: UntaggedReceiver,
    /// Read Requests and Atomic Requests.
    read_requests: UntaggedReceiver,
    atomic_responses: UntaggedReceiver,
    writes: TaggedReceiver,
    /// Reads and atomics of the peer served at once: the agreed IRD.
    inbound_reads_max: usize,
    fpdus: u64,
    /// The regions of the last write and of the last buffer of ours: most likely the next one's.
    write_region: Option<Owner>,
    local_region: Option<Owner>,
}

/// Outcome of the FPDUs of an input, beside placed bytes and completions.
#[derive(Debug)]
pub(super) enum Received {
    /// All that end in the input are handled. `may_send`: something may be sent that could not be before.
    All { may_send: bool },
    /// The stream's first one is handled; more may follow.
    First,
    /// The peer has given up.
    Terminate(Option<Box<ReceivedTerminate>>),
    /// A message has found no receive: its first segment, which may come again, and what it is otherwise.
    WithoutReceive(Box<[u8]>, Box<Failure>),
}

/// Outcome of one of them.
pub(super) enum Handled {
    Placed,
    /// A response is owed, or a read is done that others wait for.
    MaySend,
    Terminate(Option<Box<ReceivedTerminate>>),
}

impl Receiver {
    pub(super) fn new(inbound_reads: u16) -> Self {
        Self {
            sends: UntaggedReceiver::new(QueueNumber::SEND),
            read_requests: UntaggedReceiver::new(QueueNumber::READ_REQUEST),
            atomic_responses: UntaggedReceiver::new(QueueNumber::ATOMIC_RESPONSE),
            writes: TaggedReceiver::new(),
            inbound_reads_max: inbound_reads.into(),
            fpdus: 0,
            write_region: None,
            local_region: None,
        }
    }

    /// Returns whether an FPDU has been received.
    pub(super) const fn has_received(&self) -> bool {
        self.fpdus > 0
    }

    /// Returns whether a Send or Write has begun whose last segment has not come.
    pub(super) const fn is_in_message(&self) -> bool {
        self.sends.is_in_message() || self.writes.is_in_message()
    }

    /// Handles the FPDUs that end in `input`, up to one after which its caller has something to do.
    ///
    /// # Errors
    /// The stream has failed; the failure has the Terminate and the receive's status.
    pub(super) fn receive(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        decoder: &mut Decoder,
        input: &mut &[u8],
    ) -> Result<Received, Box<Failure>> {
        let (fpdus, octets) = (self.fpdus, decoder.counters().octets);
        let outcome = self.receive_some(objects, id, transmitter, decoder, input);
        let fpdus = self.fpdus - fpdus;
        objects.counters.fpdu_in += fpdus;
        objects.counters.fpdu_in_octets += decoder.counters().octets - octets;
        if let Some(qp) = objects.qps.get_mut(id) {
            qp.stats.fpdu_in += fpdus;
        }
        outcome
    }

    fn receive_some(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        decoder: &mut Decoder,
        input: &mut &[u8],
    ) -> Result<Received, Box<Failure>> {
        let mut may_send = false;
        while !input.is_empty() {
            let ulpdu = match decoder.next(input) {
                Ok(Some(ulpdu)) => ulpdu,
                Ok(None) => break,
                Err(error) => return Err(Box::new(Failure::new(Terminate::new(error.wire())))),
            };
            self.fpdus += 1;
            match self.handle(objects, id, transmitter, ulpdu) {
                Ok(Handled::Placed) => {}
                Ok(Handled::MaySend) => may_send = true,
                Ok(Handled::Terminate(terminate)) => return Ok(Received::Terminate(terminate)),
                Err(failure) if failure.is_without_receive() => {
                    return Ok(Received::WithoutReceive(ulpdu.into(), failure));
                }
                Err(failure) => return Err(failure),
            }
            if self.fpdus == 1 {
                return Ok(Received::First);
            }
        }
        Ok(Received::All { may_send })
    }

    /// Handles one ULPDU.
    ///
    /// # Errors
    /// As [`Receiver::receive`]. Of a message without a receive nothing has changed.
    #[inline(always)]
    pub(super) fn handle(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        ulpdu: &[u8],
    ) -> Result<Handled, Box<Failure>> {
        let (placed, handled) = match rdmap::parse(ulpdu) {
            Ok(Inbound::Write { segment, payload }) => {
                let placed = self.write(objects, id, &segment, payload).map_err(Fault::from);
                (placed, Handled::Placed)
            }
            Ok(Inbound::Send { segment, kind, payload }) => {
                (self.send(objects, id, &segment, kind, payload), Handled::Placed)
            }
            Ok(Inbound::ReadResponse { segment, payload }) => {
                let placed = self.read_response(objects, id, transmitter, &segment, payload);
                (placed, Handled::MaySend)
            }
            Ok(Inbound::ReadRequest { segment, request }) => {
                let read = InboundRead { header: HeaderCopy::of(ulpdu), request };
                let taken = self.read_request(objects, id, transmitter, &segment, read);
                (taken.map_err(Fault::from), Handled::MaySend)
            }
            Ok(Inbound::Terminate { segment: _, payload }) => {
                let phase = match self.fpdus {
                    1 => TerminatePhase::Startup,
                    _ => TerminatePhase::Operation,
                };
                let terminate = ReceivedTerminate::parse(payload, phase).map(Box::new);
                (Ok(()), Handled::Terminate(terminate))
            }
            Ok(Inbound::Extension { segment, opcode, payload }) => {
                let message = (&segment, opcode, payload);
                self.extension(objects, id, transmitter, message, HeaderCopy::of(ulpdu))
            }
            Err(error) => (Err(Self::refusal(objects, id, ulpdu, error).into()), Handled::Placed),
        };
        match placed {
            Ok(()) => Ok(handled),
            Err(Fault { error, receive_status }) => {
                let terminate = Some(Terminate::for_ulpdu(error, ulpdu));
                Err(Box::new(Failure { terminate, receive_status, truncation: None }))
            }
        }
    }

    #[inline]
    fn write(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        segment: &TaggedSegment,
        payload: &[u8],
    ) -> Result<(), WireError> {
        let Some(qp) = objects.qps.get_mut(id) else { return Ok(()) };
        // The rights are checked first: the error for a foreign buffer comes before others (RFC 5041 §7.1).
        if !payload.is_empty() {
            let TaggedSegment { stag: Stag(token), offset, .. } = *segment;
            let right = Access::REMOTE_WRITE;
            let granted = objects
                .regions
                .access_again(
                    &mut self.write_region,
                    qp.user(),
                    token,
                    offset.0,
                    payload.len() as u32,
                    right,
                )
                .map_err(AccessError::tagged)?;
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
        id: QpId,
        transmitter: &mut Transmitter,
        segment: &UntaggedSegment,
        read: InboundRead,
    ) -> Result<(), WireError> {
        self.take_request(transmitter, segment, READ_REQUEST_OCTETS)?;
        // RDM-5.2.1-6: an empty read's source is not looked at.
        if let (Some(qp), 1..) = (objects.qps.get(id), read.request.octets) {
            let ReadRequest { source_stag, source_offset, octets, .. } = read.request;
            let right = Access::REMOTE_READ;
            objects
                .regions
                .access(qp.user(), source_stag.0, source_offset.0, octets, right)
                .map_err(AccessError::request)?;
        }
        transmitter.respond(InboundRequest::Read(read));
        Ok(())
    }

    /// Checks the place of a request of the peer in its queue, and that there is room for one more (RDM-6.1-3,
    /// EXT-5.2.2-1).
    fn take_request(
        &mut self,
        transmitter: &Transmitter,
        segment: &UntaggedSegment,
        octets: usize,
    ) -> Result<(), WireError> {
        if transmitter.inbound_reads() >= self.inbound_reads_max {
            // RFC 5040 has no code for it; siw sends this one.
            return Err(WireError::OperationStreamCatastrophic);
        }
        let place = self.read_requests.accept(segment, octets, Some(octets as u32));
        place.map(drop).map_err(|error| error.wire())
    }

    fn send(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        segment: &UntaggedSegment,
        kind: SendKind,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let capacity = objects.take_receive(id);
        let Some(qp) = objects.qps.get_mut(id) else { return Ok(()) };
        let place = self.sends.accept(segment, payload.len(), capacity).map_err(|error| {
            let error = error.wire();
            // NDK-ERR-5: the receive that was too short fails with that status.
            let receive_status =
                (error == WireError::UntaggedTooLong).then_some(WcStatus::LocalLength);
            Fault { error, receive_status }
        })?;
        let local_region = &mut self.local_region;
        if !place_in(&objects.regions, local_region, qp, place.offset, payload) {
            let error = WireError::DdpLocalCatastrophic;
            return Err(Fault { error, receive_status: Some(WcStatus::LocalProtection) });
        }
        let Some(bytes) = place.message_octets else { return Ok(()) };
        if let Some(Stag(token)) = kind.invalidate() {
            // NDK-RI-1: before the completion can be seen.
            let user = qp.user();
            objects.regions.invalidate_remotely(user, token)?;
        }
        let arrival = kind.invalidate().map_or(Arrival::Plain, Arrival::Invalidating);
        complete_receive(objects, id, bytes, arrival, kind.is_solicited());
        Ok(())
    }

    /// Places a part of the response to the oldest read.
    fn read_response(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        segment: &TaggedSegment,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let Some(oldest) = transmitter.outstanding.front_mut() else {
            return Err(WireError::OperationUnexpectedOpcode.into());
        };
        let Response::Read(pending) = &mut oldest.response else {
            return Err(WireError::OperationUnexpectedOpcode.into());
        };
        let (offset, is_complete) = pending
            .accept(segment, payload.len())
            .map_err(|error| RdmapError::from(error).wire())?;
        let serial = oldest.serial;
        if is_complete {
            transmitter.outstanding.pop_front();
        }
        let Some(serial) = serial else { return Ok(()) };
        let Objects { qps, regions, completed, .. } = objects;
        let Some(qp) = qps.get_mut(id) else { return Ok(()) };
        let right = Access::LOCAL_WRITE;
        let local_region = &mut self.local_region;
        let mut rest = payload;
        let mut accessible = true;
        for piece in pieces(qp.sends.sges(serial), offset, payload.len() as u32) {
            let (now, later) = rest.split_at(piece.length as usize);
            match regions.access_again(
                local_region,
                qp.user(),
                piece.token,
                piece.address,
                piece.length,
                right,
            ) {
                Ok(granted) => granted.place(now),
                Err(_) => accessible = false,
            }
            rest = later;
        }
        if !accessible {
            // The sink was deregistered under the read.
            if let Some(request) = qp.sends.get_mut(serial) {
                request.progress = Progress::Done(WcStatus::LocalProtection);
            }
            return Err(WireError::DdpLocalCatastrophic.into());
        }
        if is_complete {
            let first = qp.sends.sges(serial).next();
            let Some(request) = qp.sends.get_mut(serial) else { return Ok(()) };
            // NDK-FLG-3: a success invalidates the token of the first entry.
            let invalidates = matches!(request.kind, WqeKind::Read { invalidate_sink: true, .. });
            let sink = first.filter(|_| invalidates);
            if sink.is_some_and(|sge| !regions.invalidate_locally(qp.pd, sge.token)) {
                request.progress = Progress::Done(WcStatus::LocalProtection);
                return Err(WireError::DdpLocalCatastrophic.into());
            }
            request.progress = Progress::Done(WcStatus::Success);
            qp.complete_done(completed);
        }
        Ok(())
    }
}

/// Completes the receive that a message has taken.
#[inline]
fn complete_receive(
    objects: &mut Objects,
    id: QpId,
    bytes: u32,
    arrival: Arrival,
    solicited: bool,
) {
    let status = WcStatus::Success;
    let outcome = ReceiveOutcome { status, bytes, arrival, solicited, error: None };
    let Objects { qps, completed, .. } = objects;
    if let Some(qp) = qps.get_mut(id) {
        qp.stats.receives += 1;
        qp.complete_receiving(outcome, completed);
    }
}

/// Places a part of a Send in the receive at the front: all of it, or `false` and nothing. The sum of the pieces is the
/// payload: it was compared with the receive's length.
fn place_in(
    regions: &Regions,
    hint: &mut Option<Owner>,
    qp: &Qp,
    offset: u32,
    payload: &[u8],
) -> bool {
    let right = Access::LOCAL_WRITE;
    let mut access = |piece: Sge| {
        regions.access_again(hint, qp.user(), piece.token, piece.address, piece.length, right)
    };
    if payload.is_empty() {
        return true;
    }
    if let Some(piece) = qp.receiving.single_piece(offset, payload.len() as u32) {
        return access(piece).map(|granted| granted.place(payload)).is_ok();
    }
    let pieces = || qp.receiving.pieces(offset, payload.len() as u32);
    if pieces().any(|piece| access(piece).is_err()) {
        return false;
    }
    let mut rest = payload;
    for piece in pieces() {
        let (now, later) = rest.split_at(piece.length as usize);
        if let Ok(granted) = access(piece) {
            granted.place(now);
        }
        rest = later;
    }
    true
}

/// An error in a ULPDU, and what becomes of the receive it was for.
struct Fault {
    error: WireError,
    receive_status: Option<WcStatus>,
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Self {
        Self { error, receive_status: None }
    }
}
