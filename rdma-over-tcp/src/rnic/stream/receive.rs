//! Receive path: from FPDUs to registered memory and completions.
//!
//! The CRC of each ULPDU was verified before. All checks precede the placement of the first byte. A message is
//! delivered with its last segment. In an in-order stream all of it is placed by then.
//!
//! Without CRCs the payload of a long segment is placed as it arrives ([`parts`]).

mod behind;
mod counted;
mod extensions;
mod open_segment;
mod parts;
mod private;
mod unreliable;

use alloc::boxed::Box;

use self::open_segment::OpenSegment;
use super::{
    failure::Failure,
    inbound_read::{InboundRead, InboundRequest},
    transmit::{Response, Transmitter},
};
use crate::{
    ddp::{
        HeaderCopy, QueueNumber, Stag, TaggedPlacement, TaggedReceiver, TaggedSegment,
        UntaggedReceiver, UntaggedSegment,
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

/// Receive state of a stream in full operation.
#[derive(Debug)]
pub(super) struct Receiver {
    sends: UntaggedReceiver,
    /// Queue of Read Requests and Atomic Requests.
    read_requests: UntaggedReceiver,
    atomic_responses: UntaggedReceiver,
    acknowledgments: UntaggedReceiver,
    writes: TaggedReceiver,
    /// Maximum number of the peer's Reads and atomics served at the same time: the negotiated IRD.
    inbound_reads_max: usize,
    fpdus: u64,
    /// Sends, Writes and immediate data executed, modulo 2^32.
    executed: u32,
    /// Octets of the last complete Write.
    write_octets: u32,
    dropped: Dropped,
    /// Regions of the last Write and of the last local buffer, likely reused by the next ones.
    write_region: Option<Owner>,
    local_region: Option<Owner>,
    /// Segment whose payload is placed in parts.
    open: Option<OpenSegment>,
}

/// Messages of a peer of [`QpService::Uc`](crate::rnic::QpService) that are dropped.
#[derive(Clone, Copy, Default, Debug)]
struct Dropped {
    /// True if the Write in progress, or the last one, is dropped.
    is_write: bool,
    /// True if the Send in progress is dropped.
    is_send: bool,
}

/// Outcome of the FPDUs of an input, except placed bytes and completions.
#[derive(Debug)]
pub(super) enum Received {
    /// All FPDUs that end in the input were processed. `may_send` is true if data may be sent that could not be sent
    /// before.
    All { may_send: bool },
    /// The first FPDU of the stream was processed; more may follow.
    First,
    /// The peer sent a Terminate.
    Terminate(Option<Box<ReceivedTerminate>>),
    /// The peer has given up a message of this end that found no receive.
    RetriesExceeded,
    /// A message without a receive: its first segment, which may be processed again, and the failure if none is posted.
    WithoutReceive(Box<[u8]>, Box<Failure>),
}

/// Outcome of one ULPDU.
pub(super) enum UlpduOutcome {
    Placed,
    /// A response is due, or a Read is done that other requests wait for.
    MaySend,
    Terminate(Option<Box<ReceivedTerminate>>),
    /// The peer has given up a message of this end that found no receive.
    RetriesExceeded,
}

impl Receiver {
    pub(super) fn new(inbound_reads: u16) -> Self {
        Self {
            sends: UntaggedReceiver::new(QueueNumber::SEND),
            read_requests: UntaggedReceiver::new(QueueNumber::READ_REQUEST),
            atomic_responses: UntaggedReceiver::new(QueueNumber::ATOMIC_RESPONSE),
            acknowledgments: UntaggedReceiver::new(QueueNumber::ACKNOWLEDGMENT),
            writes: TaggedReceiver::new(),
            inbound_reads_max: inbound_reads.into(),
            fpdus: 0,
            executed: 0,
            write_octets: 0,
            dropped: Dropped::default(),
            write_region: None,
            local_region: None,
            open: None,
        }
    }

    /// Returns true if an FPDU has been received.
    pub(super) const fn has_received(&self) -> bool {
        self.fpdus > 0
    }

    /// Sends, Writes and immediate data executed, modulo 2^32.
    pub(super) const fn executed(&self) -> u32 {
        self.executed
    }

    /// Returns true if a Send or Write has started and its last segment has not arrived.
    pub(super) const fn is_in_message(&self) -> bool {
        self.sends.is_in_message() || self.writes.is_in_message()
    }

    /// Processes the FPDUs that end in `input`, up to one that requires action of the caller.
    ///
    /// # Errors
    /// The stream has failed. The failure contains the Terminate and the status of the receive.
    pub(super) fn receive(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        decoder: &mut Decoder,
        input: &mut &[u8],
    ) -> Result<Received, Box<Failure>> {
        self.counted(objects, id, decoder, |this, objects, decoder| {
            this.receive_some(objects, id, transmitter, decoder, input)
        })
    }

    /// Counts the FPDUs that `receive` processes.
    #[inline(always)]
    fn counted<R>(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        decoder: &mut Decoder,
        receive: impl FnOnce(&mut Self, &mut Objects, &mut Decoder) -> R,
    ) -> R {
        let (fpdus, octets) = (self.fpdus, decoder.counters().octets);
        let outcome = receive(self, objects, decoder);
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
            let whole = decoder.next_in_place(input);
            let ulpdu = match whole {
                Ok(Some(ulpdu)) => Ok(Some(ulpdu)),
                Ok(None) => match self.take_part(objects, id, transmitter, decoder, input)? {
                    Some(sends) => {
                        may_send |= sends;
                        continue;
                    }
                    None => decoder.next(input),
                },
                Err(error) => Err(error),
            };
            let ulpdu = match ulpdu {
                Ok(Some(ulpdu)) => ulpdu,
                Ok(None) => break,
                Err(error) => return Err(Box::new(Failure::new(Terminate::new(error.wire())))),
            };
            self.fpdus += 1;
            match self.handle(objects, id, transmitter, ulpdu) {
                Ok(UlpduOutcome::Placed) => {}
                Ok(UlpduOutcome::MaySend) => may_send = true,
                Ok(UlpduOutcome::Terminate(terminate)) => {
                    return Ok(Received::Terminate(terminate));
                }
                Ok(UlpduOutcome::RetriesExceeded) => return Ok(Received::RetriesExceeded),
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

    /// Processes one ULPDU, with a message that waits for its receive before it, or after a wait.
    ///
    /// # Errors
    /// As [`Receiver::receive`]. A message without a receive changes no state.
    #[cold]
    pub(super) fn handle_late(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        ulpdu: &[u8],
    ) -> Result<UlpduOutcome, Box<Failure>> {
        self.handle_any(objects, id, transmitter, ulpdu, rdmap::parse(ulpdu))
    }

    /// Processes one ULPDU.
    ///
    /// # Errors
    /// As [`Receiver::receive`]. A message without a receive changes no state.
    #[inline(always)]
    fn handle(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        ulpdu: &[u8],
    ) -> Result<UlpduOutcome, Box<Failure>> {
        match rdmap::parse(ulpdu) {
            Ok(Inbound::Write { segment, payload }) => {
                match self.write(objects, id, &segment, payload) {
                    Ok(()) => Ok(UlpduOutcome::Placed),
                    Err(error) => Err(failure(ulpdu, error.into())),
                }
            }
            other => self.handle_any(objects, id, transmitter, ulpdu, other),
        }
    }

    /// Processes a ULPDU of any kind.
    // Not inlined: one copy for all callers, and Writes are not slower.
    #[inline(never)]
    fn handle_any(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        ulpdu: &[u8],
        parsed: Result<Inbound<'_>, RdmapError>,
    ) -> Result<UlpduOutcome, Box<Failure>> {
        let (placed, handled) = match parsed {
            Ok(Inbound::Write { segment, payload }) => {
                let placed = self.write(objects, id, &segment, payload).map_err(UlpduError::from);
                (placed, UlpduOutcome::Placed)
            }
            Ok(Inbound::Send { segment, kind, payload }) => {
                (self.send(objects, id, &segment, kind, payload), UlpduOutcome::Placed)
            }
            Ok(Inbound::ReadResponse { segment, payload }) => {
                let placed = self.read_response(objects, id, transmitter, &segment, payload);
                (placed, UlpduOutcome::MaySend)
            }
            Ok(Inbound::ReadRequest { segment, request }) => {
                let read = InboundRead { header: HeaderCopy::of(ulpdu), request };
                let taken = self.read_request(objects, id, transmitter, &segment, read);
                (taken.map_err(UlpduError::from), UlpduOutcome::MaySend)
            }
            Ok(Inbound::Terminate { segment: _, payload }) => {
                let phase = match self.fpdus {
                    1 => TerminatePhase::Startup,
                    _ => TerminatePhase::Operation,
                };
                let terminate = ReceivedTerminate::parse(payload, phase).map(Box::new);
                (Ok(()), UlpduOutcome::Terminate(terminate))
            }
            Ok(Inbound::Private { segment, opcode, payload }) => {
                self.private(objects, id, transmitter, (&segment, opcode, payload))
            }
            Ok(Inbound::Extension { segment, opcode, payload }) => {
                let message = (&segment, opcode, payload);
                self.extension(objects, id, transmitter, message, HeaderCopy::of(ulpdu))
            }
            Err(error) => {
                (Err(Self::refusal(objects, id, ulpdu, error).into()), UlpduOutcome::Placed)
            }
        };
        placed.map(|()| handled).map_err(|error| failure(ulpdu, error))
    }

    #[inline(always)]
    fn write(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        segment: &TaggedSegment,
        payload: &[u8],
    ) -> Result<(), WireError> {
        let Objects { qps, regions, .. } = objects;
        let Some(qp) = qps.get_mut(id) else { return Ok(()) };
        if qp.is_rc() {
            return self.counted_write((qp, regions), segment, payload);
        }
        self.place_write(qp, regions, segment, payload).map(drop)
    }

    /// Checks and places a segment of a Write.
    #[inline(always)]
    fn place_write(
        &mut self,
        qp: &mut Qp,
        regions: &Regions,
        segment: &TaggedSegment,
        payload: &[u8],
    ) -> Result<TaggedPlacement, WireError> {
        // The rights are checked first: the error of a foreign buffer takes precedence (RFC 5041 §7.1).
        if !payload.is_empty() {
            let TaggedSegment { stag: Stag(token), offset, .. } = *segment;
            let right = Access::REMOTE_WRITE;
            let granted = regions
                .access_again(
                    &mut self.write_region,
                    qp.user(),
                    token,
                    offset.0,
                    payload.len() as u32,
                    right,
                )
                .map_err(AccessError::tagged)?;
            let placed =
                self.writes.accept(segment, payload.len()).map_err(|error| error.wire())?;
            granted.place(payload);
            qp.stats.write_segments_placed += 1;
            qp.stats.write_bytes_placed += payload.len() as u64;
            qp.stats.writes_placed += u64::from(segment.last);
            return Ok(placed);
        }
        let placed = self.writes.accept(segment, 0).map_err(|error| error.wire())?;
        // Empty messages are not counted: RTRs and workarounds for the accept race are such Writes.
        qp.stats.writes_placed += u64::from(placed.message_octets.is_some_and(|octets| octets > 0));
        Ok(placed)
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
        // RDM-5.2.1-6: the source of an empty Read is not checked.
        if let (Some(qp), 1..) = (objects.qps.get(id), read.request.octets) {
            let ReadRequest { source_stag, source_offset, octets, .. } = read.request;
            let right = Access::REMOTE_READ;
            if !qp.permits(right) {
                return Err(WireError::OperationStreamCatastrophic);
            }
            objects
                .regions
                .access(qp.user(), source_stag.0, source_offset.0, octets, right)
                .map_err(AccessError::request)?;
        }
        transmitter.respond(InboundRequest::Read(read));
        Ok(())
    }

    /// Checks the position of a peer's request in its queue, and the limit of requests (RDM-6.1-3, EXT-5.2.2-1).
    fn take_request(
        &mut self,
        transmitter: &Transmitter,
        segment: &UntaggedSegment,
        octets: usize,
    ) -> Result<(), WireError> {
        if transmitter.inbound_reads() >= self.inbound_reads_max {
            // RFC 5040 has no code for this; siw sends the same one.
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
    ) -> Result<(), UlpduError> {
        if objects.qps.get(id).is_some_and(Qp::is_unreliable) {
            return self.unreliable_send(objects, id, segment, kind, payload);
        }
        let capacity = objects.take_receive(id);
        let Some(qp) = objects.qps.get_mut(id) else { return Ok(()) };
        let place = self.sends.accept(segment, payload.len(), capacity).map_err(|error| {
            let error = error.wire();
            // NDK-ERR-5: the receive that was too short completes with this status.
            let receive_status =
                (error == WireError::UntaggedTooLong).then_some(WcStatus::LocalLength);
            UlpduError { error, receive_status }
        })?;
        let local_region = &mut self.local_region;
        if !place_in(&objects.regions, local_region, qp, place.offset, payload) {
            let error = WireError::DdpLocalCatastrophic;
            return Err(UlpduError { error, receive_status: Some(WcStatus::LocalProtection) });
        }
        let Some(bytes) = place.message_octets else { return Ok(()) };
        self.send_received(objects, id, kind, bytes)
    }

    /// Completes the receive of a Send.
    fn send_received(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        kind: SendKind,
        bytes: u32,
    ) -> Result<(), UlpduError> {
        if let Some(Stag(token)) = kind.invalidate() {
            // NDK-RI-1: invalidated before the completion is visible.
            let Some(user) = objects.qps.get(id).map(Qp::user) else { return Ok(()) };
            objects.regions.invalidate_remotely(user, token)?;
        }
        let arrival = match kind {
            SendKind::Plain | SendKind::Solicited => Arrival::Plain,
            SendKind::Invalidate(stag) | SendKind::SolicitedInvalidate(stag) => {
                Arrival::Invalidating(stag)
            }
            SendKind::Immediate { data, .. } => Arrival::SendImmediate(data),
        };
        self.executed = self.executed.wrapping_add(1);
        complete_receive(objects, id, bytes, arrival, kind.is_solicited());
        Ok(())
    }

    /// Places a part of the response to the oldest Read.
    fn read_response(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        transmitter: &mut Transmitter,
        segment: &TaggedSegment,
        payload: &[u8],
    ) -> Result<(), UlpduError> {
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
            // The sink was deregistered during the Read.
            if let Some(request) = qp.sends.get_mut(serial) {
                request.progress = Progress::Done(WcStatus::LocalProtection);
            }
            return Err(WireError::DdpLocalCatastrophic.into());
        }
        qp.stats.read_bytes += payload.len() as u64;
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

/// Failure of a stream by an error in a ULPDU.
#[cold]
fn failure(ulpdu: &[u8], UlpduError { error, receive_status }: UlpduError) -> Box<Failure> {
    let terminate = Some(Terminate::for_ulpdu(error, ulpdu));
    Box::new(Failure { terminate, receive_status, truncation: None })
}

/// Completes the receive of a message.
#[inline]
pub(crate) fn complete_receive(
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
        qp.stats.receive_bytes += u64::from(bytes);
        qp.complete_receiving(outcome, completed);
    }
}

/// Places a part of a Send in the receive in progress. Returns false if nothing was placed. The length of the pieces is
/// that of the payload, which was checked against the receive's length.
pub(crate) fn place_in(
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

/// Error in a ULPDU, and the status of its receive.
struct UlpduError {
    error: WireError,
    receive_status: Option<WcStatus>,
}

impl From<WireError> for UlpduError {
    fn from(error: WireError) -> Self {
        Self { error, receive_status: None }
    }
}
