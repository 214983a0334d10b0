//! From work requests and peers' reads to net buffer lists.
//!
//! FPDUs are made when TCP has room for them, not when requests are posted. What is pending then shares
//! net buffer lists: a list is as long as a segment, or a super-segment, takes.
//!
//! Messages are not mixed: the next begins when the last segment of the one before is cut. Requests of
//! the consumer and responses to the peer's reads take turns.
//!
//! A send or write of up to [`COPY_ASIDE_MAX`] bytes is copied when its turn comes and done once TCP has
//! all of it, so that its completion never waits for a delayed acknowledgement. Larger ones are read
//! where they lie and done when acknowledged, but for a tail of as many bytes, which is copied aside.

use alloc::{collections::VecDeque, vec::Vec};

use bytes::{BufMut, Bytes};
use offload_engine::nbl::{NblChain, NetBuffer, NetBufferList};

use super::Failure;
use crate::{
    ddp::{HeaderOctets, Msn, Stag, TAGGED_OCTETS, TaggedOffset, UNTAGGED_OCTETS},
    mpa::{Encoder, MULPDU_MAX, MULPDU_MIN, Slab, mulpdu, startup::RtrKind},
    ndk::{
        config::FpduSize,
        flags::{MrFlags, OpFlags},
        objects::Objects,
        qp::Qp,
        queue::{Kind, Progress},
        slab::Id,
        status::NtStatus,
        wire::Wire,
    },
    rdmap::{
        PendingRead, ReadRequest, Segmenter, SendKind, Terminate, error::WireError,
        read_request_header, read_response_header, rtr_header, send_header, terminate_header,
        write_header,
    },
};

/// Bytes of a message up to which it is copied aside.
pub const COPY_ASIDE_MAX: u32 = 16 * 1024;

/// Net buffers and lists kept for reuse, each.
const SPARE_MAX: usize = 256;

/// The message being cut.
#[derive(Debug)]
struct Message {
    source: Source,
    segmenter: Segmenter,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Send { kind: SendKind, msn: Msn },
    Write { stag: Stag, offset: TaggedOffset },
    Read { msn: Msn, request: ReadRequest },
    Response(ReadRequest),
}

impl Source {
    const fn is_request(&self) -> bool {
        !matches!(self, Self::Response(_))
    }

    const fn header_octets(&self) -> usize {
        match self {
            Self::Send { .. } => UNTAGGED_OCTETS,
            Self::Write { .. } | Self::Response(_) => TAGGED_OCTETS,
            Self::Read { .. } => UNTAGGED_OCTETS + crate::rdmap::READ_REQUEST_OCTETS,
        }
    }

    fn header(&self, offset: u32, last: bool) -> HeaderOctets {
        let at = |TaggedOffset(start)| TaggedOffset(start.wrapping_add(u64::from(offset)));
        match *self {
            Self::Send { kind, msn } => send_header(last, kind, msn, offset),
            Self::Write { stag, offset } => write_header(last, stag, at(offset)),
            Self::Read { msn, request } => read_request_header(msn, &request),
            Self::Response(request) => {
                read_response_header(last, request.sink_stag, at(request.sink_offset))
            }
        }
    }
}

/// A read whose response is awaited: the request's serial, or none for an RTR.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutstandingRead {
    pub(super) serial: Option<u64>,
    pub(super) pending: PendingRead,
}

/// Storage that came back with completed lists.
#[derive(Debug, Default)]
struct Spare {
    buffers: Vec<NetBuffer>,
    lists: Vec<Vec<NetBuffer>>,
    chains: Vec<NblChain>,
}

/// The sending half of a stream in full operation.
#[derive(Debug)]
pub(super) struct Transmitter {
    encoder: Encoder,
    markers: bool,
    size: FpduSize,
    headers: Slab,
    copies: Slab,
    send_msn: Msn,
    read_msn: Msn,
    message: Option<Message>,
    /// Payload of the message that is not cut yet.
    payload: VecDeque<Bytes>,
    /// Payload of one FPDU.
    cut: Vec<Bytes>,
    /// Reads of the peer that wait for their response, oldest first.
    responses: VecDeque<ReadRequest>,
    /// Own reads, oldest first.
    pub(super) reads: VecDeque<OutstandingRead>,
    rtr: Option<RtrKind>,
    terminate: Option<Terminate>,
    /// The last message was a response: the next one is a request, if there is one.
    was_response: bool,
    spare: Spare,
}

/// Whether everything that could be sent is with TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pumped {
    /// Yes; what is left waits for a read, or there is nothing.
    Drained,
    /// TCP has no more room.
    Full,
}

impl Transmitter {
    pub(super) fn new(crc: bool, markers: bool, size: FpduSize, rtr: Option<RtrKind>) -> Self {
        Self {
            encoder: Encoder::new(crc, markers),
            markers,
            size,
            headers: Slab::new(),
            copies: Slab::new(),
            send_msn: Msn::FIRST,
            read_msn: Msn::FIRST,
            message: None,
            payload: VecDeque::new(),
            cut: Vec::new(),
            responses: VecDeque::new(),
            reads: VecDeque::new(),
            rtr,
            terminate: None,
            was_response: false,
            spare: Spare::default(),
        }
    }

    /// A Read Request of the peer was delivered; its response takes its turn.
    pub(super) fn respond(&mut self, request: ReadRequest) {
        self.responses.push_back(request);
    }

    /// Reads of the peer that are being served.
    pub(super) fn inbound_reads(&self) -> usize {
        let current = self.message.as_ref().is_some_and(|message| !message.source.is_request());
        self.responses.len() + usize::from(current)
    }

    /// Drops all work; only `terminate`, if given, is still sent.
    pub(super) fn abandon(&mut self, terminate: Option<Terminate>) {
        self.message = None;
        self.payload.clear();
        self.responses.clear();
        self.reads.clear();
        self.rtr = None;
        self.terminate = terminate;
    }

    /// The RTR that was agreed on has not been sent.
    pub(super) const fn owes_rtr(&self) -> bool {
        self.rtr.is_some()
    }

    /// A message of the consumer is being cut.
    pub(super) fn is_cutting_request(&self) -> bool {
        self.message.as_ref().is_some_and(|message| message.source.is_request())
    }

    /// Sends the Terminate, if one waits. Room or not: it is the last that is sent.
    pub(super) fn send_terminate(&mut self, wire: &mut impl Wire) {
        if let Some(terminate) = self.terminate.take() {
            let header = terminate_header(&terminate);
            let mut list = self.new_list(0);
            self.push_fpdu(&mut list, &header);
            self.post(wire, list);
        }
    }

    /// Makes net buffer lists while TCP has room and there is work.
    ///
    /// # Errors
    /// A request of the consumer, or a read of the peer, cannot be carried out: the stream has failed.
    /// What was cut before is posted.
    pub(super) fn pump(
        &mut self,
        objects: &mut Objects,
        id: Id<Qp>,
        wire: &mut impl Wire,
    ) -> Result<Pumped, Failure> {
        while wire.send_room() > 0 {
            let mut list = self.new_list(0);
            let filled = self.fill(objects, id, wire, &mut list);
            if list.net_buffers.is_empty() {
                self.recycle_list(list);
                release_tail(objects, id, wire);
                objects.complete_done(id);
                return filled.map(|()| Pumped::Drained);
            }
            if let Some(qp) = objects.qps.get_mut(id) {
                list.context = qp.initiator.next_serial();
                qp.stats.lists_out += 1;
                qp.stats.fpdu_out += list.net_buffers.len() as u64;
            }
            objects.counters.fpdu_out += list.net_buffers.len() as u64;
            objects.counters.fpdu_out_octets += list.data_length() as u64;
            self.post(wire, list);
            objects.complete_done(id);
            filled?;
        }
        Ok(Pumped::Full)
    }

    /// Fills one list with FPDUs.
    fn fill(
        &mut self,
        objects: &mut Objects,
        id: Id<Qp>,
        wire: &impl Wire,
        list: &mut NetBufferList,
    ) -> Result<(), Failure> {
        let emss = wire.effective_mss();
        let super_segment = wire.super_segment_max().max(emss);
        let mut filled = 0;
        if let Some(kind) = self.rtr.take() {
            // MPE-9.2-7: nothing goes before it. A read or send takes the first number of its queue.
            match kind {
                RtrKind::Write => {}
                RtrKind::Send => self.send_msn = self.send_msn.next(),
                RtrKind::Read => {
                    self.read_msn = self.read_msn.next();
                    let pending = PendingRead::new(&EMPTY_READ);
                    self.reads.push_back(OutstandingRead { serial: None, pending });
                }
            }
            filled += self.push_fpdu(list, &rtr_header(kind));
        }
        loop {
            if self.message.is_none() && !self.start_message(objects, id)? {
                return Ok(());
            }
            let Some(message) = &mut self.message else { return Ok(()) };
            let room = match self.size {
                FpduSize::Emss => segment_room(filled, emss, super_segment),
                FpduSize::Max => super_segment.saturating_sub(filled),
            };
            let header_octets = message.source.header_octets();
            let wanted = header_octets + message.segmenter.remaining() as usize;
            let mulpdu = match ulpdu_room(room, self.markers) {
                fits if fits >= wanted.min(MULPDU_MIN.into()) => fits as u16,
                _ if filled == 0 => mulpdu(emss as u32, self.markers),
                _ => return Ok(()),
            };
            let Some(cut) = message.segmenter.next(mulpdu, header_octets) else {
                self.message = None;
                continue;
            };
            let header = message.source.header(cut.offset, cut.last);
            let is_request = message.source.is_request();
            take_front(&mut self.payload, cut.octets as usize, &mut self.cut);
            filled += self.push_fpdu(list, &header);
            self.cut.clear();
            if cut.last {
                self.message = None;
                if is_request {
                    finish_request(objects, id);
                } else if let Some(qp) = objects.qps.get_mut(id) {
                    qp.stats.read_responses += 1;
                }
            }
        }
    }

    /// Begins the next message; `false` when none can begin.
    fn start_message(&mut self, objects: &mut Objects, id: Id<Qp>) -> Result<bool, Failure> {
        if self.responses.is_empty() || self.was_response {
            self.was_response = false;
            if self.start_request(objects, id)? {
                return Ok(true);
            }
        }
        let Some(request) = self.responses.pop_front() else { return Ok(false) };
        self.was_response = true;
        self.start_response(objects, id, request)?;
        Ok(true)
    }

    /// The source is looked up again: rights may have been revoked since the request came.
    fn start_response(
        &mut self,
        objects: &Objects,
        id: Id<Qp>,
        request: ReadRequest,
    ) -> Result<(), Failure> {
        if let (Some(qp), 1..) = (objects.qps.get(id), request.octets) {
            let ReadRequest { source_stag, source_offset, octets, .. } = request;
            let right = MrFlags::ALLOW_REMOTE_READ;
            match objects.regions.access(qp.pd, source_stag.0, source_offset.0, octets, right) {
                Ok(granted) => self.payload.push_back(granted.bytes()),
                Err(error) => return Err(Failure::new(Terminate::new(error.read_request()))),
            }
        }
        let segmenter = Segmenter::new(request.octets);
        self.message = Some(Message { source: Source::Response(request), segmenter });
        Ok(())
    }

    /// Begins the next request of the consumer. Local operations are carried out on the way.
    fn start_request(&mut self, objects: &mut Objects, id: Id<Qp>) -> Result<bool, Failure> {
        loop {
            let Some(qp) = objects.qps.get_mut(id) else { return Ok(false) };
            let serial = qp.initiator.next_serial();
            let read_limit = qp.read_limit as usize;
            let Some(request) = qp.initiator.next_mut() else { return Ok(false) };
            // NDK-FEN-1. Only reads before this one can be outstanding.
            if request.flags.contains(OpFlags::READ_FENCE) && !self.reads.is_empty() {
                return Ok(false);
            }
            let solicited = request.flags.contains(OpFlags::SEND_AND_SOLICIT_EVENT);
            let length = request.length;
            let source = match &request.kind {
                Kind::FastRegister { mr, registration } => {
                    let (mr, registration) = (*mr, (**registration).clone());
                    let ok = objects.regions.fast_register(mr, registration);
                    finish_local(objects, id, ok)?;
                    continue;
                }
                Kind::Invalidate { mr } => {
                    let ok = objects.regions.revoke(*mr); // NDK-MEM-10, NDK-CQ-17
                    finish_local(objects, id, ok)?;
                    continue;
                }
                Kind::Send { invalidate } => {
                    let kind = match (invalidate.map(Stag), solicited) {
                        (None, false) => SendKind::Plain,
                        (None, true) => SendKind::Solicited,
                        (Some(stag), false) => SendKind::Invalidate(stag),
                        (Some(stag), true) => SendKind::SolicitedInvalidate(stag),
                    };
                    request.msn = self.send_msn.0;
                    qp.stats.sends += 1;
                    Source::Send { kind, msn: self.send_msn }
                }
                Kind::Write { address, token } => {
                    let source =
                        Source::Write { stag: Stag(*token), offset: TaggedOffset(*address) };
                    qp.stats.writes += 1;
                    source
                }
                Kind::Read { .. } if self.reads.len() >= read_limit => return Ok(false),
                Kind::Read { address, token } => {
                    let request_header = ReadRequest {
                        sink_stag: Stag(qp.sink_token & !0xff | self.read_msn.0 & 0xff),
                        sink_offset: TaggedOffset(0),
                        octets: length,
                        source_stag: Stag(*token),
                        source_offset: TaggedOffset(*address),
                    };
                    request.msn = self.read_msn.0;
                    qp.stats.reads += 1;
                    Source::Read { msn: self.read_msn, request: request_header }
                }
            };
            self.collect(objects, id, serial, &source)?;
            let octets = match source {
                Source::Read { request, .. } => {
                    let pending = PendingRead::new(&request);
                    self.reads.push_back(OutstandingRead { serial: Some(serial), pending });
                    self.read_msn = self.read_msn.next();
                    0
                }
                Source::Send { .. } => {
                    self.send_msn = self.send_msn.next();
                    length
                }
                Source::Write { .. } | Source::Response(_) => length,
            };
            self.message = Some(Message { source, segmenter: Segmenter::new(octets) });
            return Ok(true);
        }
    }

    /// Checks the request's memory (NDK-MEM-17) and collects its payload.
    fn collect(
        &mut self,
        objects: &mut Objects,
        id: Id<Qp>,
        serial: u64,
        source: &Source,
    ) -> Result<(), Failure> {
        let Objects { qps, regions, .. } = objects;
        let Some(qp) = qps.get_mut(id) else { return Ok(()) };
        let is_read = matches!(source, Source::Read { .. });
        let right = if is_read { MrFlags::ALLOW_LOCAL_WRITE } else { MrFlags::NONE };
        let Some(request) = qp.initiator.get_mut(serial) else { return Ok(()) };
        if let Some(captured) = &request.captured {
            if !captured.is_empty() {
                self.payload.push_back(captured.clone());
            }
            return Ok(());
        }
        let length = request.length;
        let mut accessible = true;
        for sge in qp.initiator.sges(serial).filter(|sge| sge.length > 0) {
            match regions.access(qp.pd, sge.token, sge.address, sge.length, right) {
                Ok(granted) if !is_read => self.payload.push_back(granted.bytes()),
                Ok(_) => {}
                Err(_) => accessible = false,
            }
        }
        if !accessible {
            self.payload.clear();
            qp.initiator.advance(Progress::Done(NtStatus::ACCESS_VIOLATION));
            let error = WireError::RdmapLocalCatastrophic;
            return Err(Failure::new(Terminate::new(error)));
        }
        if !is_read && (1..=COPY_ASIDE_MAX).contains(&length) {
            let mut copy = self.copies.take(length as usize);
            self.payload.drain(..).for_each(|piece| copy.put_slice(&piece));
            let copy = copy.freeze();
            qp.stats.copied_aside_bytes += u64::from(length);
            self.payload.push_back(copy);
        }
        Ok(())
    }

    fn new_list(&mut self, context: u64) -> NetBufferList {
        let mut list = NetBufferList::new(context);
        list.net_buffers = self.spare.lists.pop().unwrap_or_default();
        list
    }

    /// Encodes `header` and the payload cut; returns the FPDU's size.
    fn push_fpdu(&mut self, list: &mut NetBufferList, header: &[u8]) -> usize {
        let mut fpdu = self.spare.buffers.pop().unwrap_or_default();
        self.encoder.encode_into(header, &self.cut, &mut self.headers, &mut fpdu);
        let octets = fpdu.data_length();
        list.net_buffers.push(fpdu);
        octets
    }

    fn post(&mut self, wire: &mut impl Wire, list: NetBufferList) {
        let mut chain = self.spare.chains.pop().unwrap_or_default();
        chain.push_back(list);
        wire.send(chain);
    }

    fn recycle_list(&mut self, mut list: NetBufferList) {
        for mut buffer in list.net_buffers.drain(..) {
            buffer.clear();
            if self.spare.buffers.len() < SPARE_MAX {
                self.spare.buffers.push(buffer);
            }
        }
        if self.spare.lists.len() < SPARE_MAX {
            self.spare.lists.push(list.net_buffers);
        }
    }

    /// Keeps the storage of completed lists.
    pub(super) fn recycle(&mut self, mut chain: NblChain) {
        for list in chain.drain(..) {
            self.recycle_list(list);
        }
        if self.spare.chains.len() < SPARE_MAX {
            self.spare.chains.push(chain);
        }
    }
}

/// What an RTR by Read asks for: nothing.
const EMPTY_READ: ReadRequest = ReadRequest {
    sink_stag: Stag(0),
    sink_offset: TaggedOffset(0),
    octets: 0,
    source_stag: Stag(0),
    source_offset: TaggedOffset(0),
};

/// Bytes left in the segment that a list of `filled` bytes ends in. Several full segments share a list as
/// long as every boundary between them is one between FPDUs: the EMSS is a multiple of 4 then.
fn segment_room(filled: usize, emss: usize, super_segment: usize) -> usize {
    match filled % emss {
        0 if filled == 0 => emss,
        0 if filled + emss <= super_segment => emss,
        0 => 0,
        used => emss - used,
    }
}

/// The largest ULPDU whose FPDU fits into `room` bytes; 0 when none does (RFC 5044 4.5, without its minimum).
fn ulpdu_room(room: usize, markers: bool) -> usize {
    let markers = if markers { 4 * (room / 512 + 1) } else { 0 };
    room.saturating_sub(6 + markers + room % 4).min(MULPDU_MAX.into())
}

/// Moves `count` bytes from the front of `from` into `to`.
fn take_front(from: &mut VecDeque<Bytes>, mut count: usize, to: &mut Vec<Bytes>) {
    while count > 0 {
        let Some(front) = from.front_mut() else { return };
        if front.len() <= count {
            count -= front.len();
            to.extend(from.pop_front());
        } else {
            to.push(front.split_to(count));
            count = 0;
        }
    }
}

/// Nothing is left to cut: when only the tail of large messages waits for its acknowledgement it is copied
/// aside, and they are done. A peer may delay that acknowledgement for long.
fn release_tail(objects: &mut Objects, id: Id<Qp>, wire: &mut impl Wire) {
    let Some(qp) = objects.qps.get_mut(id) else { return };
    let end = qp.initiator.next_serial();
    if qp.initiator.awaits_acknowledgement(end) && wire.detach_tail(COPY_ASIDE_MAX as usize) {
        qp.initiator.acknowledge(end);
        qp.stats.tails_copied += 1;
    }
}

/// All of the request's message is cut.
fn finish_request(objects: &mut Objects, id: Id<Qp>) {
    let Some(qp) = objects.qps.get_mut(id) else { return };
    let Some(request) = qp.initiator.next_mut() else { return };
    let is_read = matches!(request.kind, Kind::Read { .. });
    let is_copied = request.length <= COPY_ASIDE_MAX || request.captured.is_some();
    qp.initiator.advance(match is_copied && !is_read {
        true => Progress::Done(NtStatus::SUCCESS),
        false => Progress::Sent,
    });
}

/// A request that sends nothing has been carried out.
fn finish_local(objects: &mut Objects, id: Id<Qp>, ok: bool) -> Result<(), Failure> {
    let status = if ok { NtStatus::SUCCESS } else { NtStatus::INVALID_DEVICE_REQUEST };
    if let Some(qp) = objects.qps.get_mut(id) {
        qp.initiator.advance(Progress::Done(status));
    }
    if ok {
        return Ok(());
    }
    Err(Failure::new(Terminate::new(WireError::RdmapLocalCatastrophic)))
}
