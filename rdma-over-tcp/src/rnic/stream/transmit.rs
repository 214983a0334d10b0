//! From work requests and peers' Reads to lists of FPDUs.
//!
//! FPDUs are made when the transport has room for them, not when requests are posted. What is pending then shares
//! lists: a list is as long as a segment, or a super-segment, takes. In a list FPDUs lie back to back: headers, CRCs
//! and all payload that is copied in one piece of memory, payload that is lent between them. So a super-segment of
//! small messages is one slice or two of a gathered write, and one of a large message three.
//!
//! A message that is to be copied and fits goes from registered memory straight behind its header. Messages are not
//! mixed: the next begins when the last segment of the one before is cut. Requests of the consumer and responses to
//! the peer's reads take turns.
//!
//! A send or write of up to [`COPY_ASIDE_MAX`] bytes is copied when its turn comes and done once TCP has
//! all of it, so that its completion never waits for a delayed acknowledgement. Larger ones are read
//! where they lie and done when acknowledged, but for a tail of as many bytes, which is copied aside. Of them
//! too, pieces of up to `COPIED_PIECE_MAX` bytes are copied: one more slice of a gathered write costs more.
//! With CRCs and [`Config::copies_payload`] messages of any size are copied: consumers may change the memory meanwhile,
//! and a CRC must fit what leaves.
//!
//! Read Responses are always copied, FPDU by FPDU, each after a check of the peer's rights: the peer may write the
//! memory at any time, a CRC must fit what leaves, and nothing leaves after the rights are gone. No more of them is in
//! flight than the path holds ([`Transport::path_octets`]), so that the copies stay in the cache from which the kernel
//! copies them again: with more in flight a Read of 1 MiB takes a third longer.

mod fpdus;

use alloc::{collections::VecDeque, vec::Vec};

use offload_engine::memory::{Piece, Span};

use super::{
    failure::Failure,
    inbound_read::{InboundRead, InboundRequest},
    sizes::{Limits, ulpdu_max},
};
use crate::{
    ddp::{HeaderOctets, Msn, Stag, TAGGED_OCTETS, TaggedOffset, UNTAGGED_OCTETS},
    error::WireError,
    mpa::{Encoder, GatherList, Slab, startup::RtrKind},
    rdmap::{
        AtomicRequest, AtomicResponse, IMMEDIATE_OCTETS, PendingRead, ReadRequest, Segmenter,
        SendKind, Terminate, atomic_request_header, atomic_response_header, immediate_header,
        read_request_header, read_response_header, rtr_header, send_header, terminate_header,
        write_header,
    },
    rnic::{
        config::{Config, FpduSize},
        id::QpId,
        objects::Objects,
        qp::{Pumped, Qp},
        region::{Access, Granted, Owner, Regions},
        registration::User,
        send_queue::Progress,
        status::WcStatus,
        transport::Transport,
        wr::{Kind, Remote, Sge, WrFlags},
    },
};

/// Bytes of a message up to which it is copied aside.
pub const COPY_ASIDE_MAX: u32 = 16 * 1024;

/// Pieces of memory that a message may have to go straight behind its header; one of more takes the longer way.
const PIECES_MAX: usize = 4;

/// The message being cut.
#[derive(Debug)]
struct Message {
    source: Source,
    segmenter: Segmenter,
    /// Its payload is to be copied.
    is_copied: bool,
}

/// Outcome of starting a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Started {
    /// Nothing can begin.
    Nothing,
    /// All of it is in the list.
    Whole,
    /// It is to be cut.
    Begun,
}

/// A list in the making.
struct Train<L> {
    list: L,
    octets: usize,
    fpdus: u64,
}

/// The memory of a message, to be copied.
struct Pieces<'a> {
    pieces: [Piece<'a>; PIECES_MAX],
    /// Count of pieces; those beyond [`PIECES_MAX`] are missing.
    count: usize,
}

impl<'a> Pieces<'a> {
    const fn new() -> Self {
        Self { pieces: [Piece::EMPTY; PIECES_MAX], count: 0 }
    }

    fn push(&mut self, piece: Piece<'a>) {
        if let Some(place) = self.pieces.get_mut(self.count) {
            *place = piece;
        }
        self.count += 1;
    }

    /// All of them, if they are few enough.
    fn all(&self) -> Option<&[Piece<'a>]> {
        self.pieces.get(..self.count)
    }
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Send { kind: SendKind, msn: Msn },
    Write { stag: Stag, offset: TaggedOffset },
    Read { msn: Msn, request: ReadRequest },
    Response(InboundRead),
    Atomic { msn: Msn, request: AtomicRequest },
    AtomicResponse { msn: Msn, response: AtomicResponse },
    Immediate { msn: Msn, data: [u8; IMMEDIATE_OCTETS], solicited: bool },
}

impl Source {
    const fn is_request(&self) -> bool {
        !matches!(self, Self::Response(_) | Self::AtomicResponse { .. })
    }

    const fn header_octets(&self) -> usize {
        match self {
            Self::Send { .. } => UNTAGGED_OCTETS,
            Self::Write { .. } | Self::Response(_) => TAGGED_OCTETS,
            Self::Read { .. } => UNTAGGED_OCTETS + crate::rdmap::READ_REQUEST_OCTETS,
            Self::Atomic { .. } => UNTAGGED_OCTETS + crate::rdmap::ATOMIC_REQUEST_OCTETS,
            Self::AtomicResponse { .. } => UNTAGGED_OCTETS + crate::rdmap::ATOMIC_RESPONSE_OCTETS,
            Self::Immediate { .. } => UNTAGGED_OCTETS + IMMEDIATE_OCTETS,
        }
    }

    #[inline(always)]
    fn header(&self, offset: u32, last: bool) -> HeaderOctets {
        let at = |TaggedOffset(start)| TaggedOffset(start.wrapping_add(u64::from(offset)));
        match *self {
            Self::Send { kind, msn } => send_header(last, kind, msn, offset),
            Self::Write { stag, offset } => write_header(last, stag, at(offset)),
            Self::Read { msn, request } => read_request_header(msn, &request),
            Self::Response(InboundRead { request, .. }) => {
                read_response_header(last, request.sink_stag, at(request.sink_offset))
            }
            Self::Atomic { msn, request } => atomic_request_header(msn, &request),
            Self::AtomicResponse { msn, response } => atomic_response_header(msn, &response),
            Self::Immediate { msn, data, solicited } => immediate_header(solicited, msn, data),
        }
    }
}

/// A request that the peer answers. These requests are numbered together and answered in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    /// Serial of the request; `None` for an RTR.
    pub(super) serial: Option<u64>,
    pub(super) response: Response,
}

/// The response that is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) enum Response {
    Read(PendingRead),
    /// Of the atomic with this identifier.
    Atomic(u32),
}

/// The sending half of a stream in full operation.
#[derive(Debug)]
pub(super) struct Transmitter {
    encoder: Encoder,
    markers: bool,
    size: FpduSize,
    slab: Slab,
    send_msn: Msn,
    /// Of Reads and atomics.
    read_msn: Msn,
    atomic_response_msn: Msn,
    message: Option<Message>,
    /// Payload of the message that is not cut yet.
    payload: VecDeque<Span>,
    /// Payload of one FPDU.
    cut: Vec<Span>,
    /// Reads and atomics of the peer that wait for their response, oldest first.
    responses: VecDeque<InboundRequest>,
    /// Own requests that await their response, oldest first.
    pub(super) outstanding: VecDeque<Outstanding>,
    /// Bytes of a message up to which it is copied.
    copied_max: u32,
    /// To be sent before the next message: the RTR, or a nudge.
    rtr: Option<RtrKind>,
    terminate: Option<Terminate>,
    has_sent: bool,
    /// The last message was a response: the next one is a request, if there is one.
    was_response: bool,
    /// The region of the last request: most likely the next one's.
    source_region: Option<Owner>,
    /// The region of the last Read Response.
    response_region: Option<Owner>,
}

impl Transmitter {
    pub(super) fn new(crc: bool, markers: bool, config: &Config, rtr: Option<RtrKind>) -> Self {
        Self {
            encoder: Encoder::new(crc, markers),
            markers,
            size: config.fpdu_size,
            copied_max: if crc && config.copies_payload { u32::MAX } else { COPY_ASIDE_MAX },
            slab: Slab::new(),
            send_msn: Msn::FIRST,
            read_msn: Msn::FIRST,
            atomic_response_msn: Msn::FIRST,
            message: None,
            payload: VecDeque::new(),
            cut: Vec::new(),
            responses: VecDeque::new(),
            outstanding: VecDeque::new(),
            rtr,
            terminate: None,
            has_sent: false,
            was_response: false,
            source_region: None,
            response_region: None,
        }
    }

    /// A request of the peer was delivered; its response takes its turn.
    pub(super) fn respond(&mut self, request: InboundRequest) {
        self.responses.push_back(request);
    }

    /// Reads and atomics of the peer that are being served.
    pub(super) fn inbound_reads(&self) -> usize {
        self.responses.len() + usize::from(self.is_cutting_response())
    }

    /// Returns whether a response to a Read of ours has begun whose last segment has not come.
    pub(super) fn is_in_response(&self) -> bool {
        self.outstanding.front().is_some_and(|oldest| match &oldest.response {
            Response::Read(pending) => pending.is_in_message(),
            Response::Atomic(_) => false,
        })
    }

    /// Returns whether the message in progress needs memory that its owner has withdrawn.
    pub(super) fn needs_withdrawn(&self) -> bool {
        self.payload.iter().any(Span::is_withdrawn)
    }

    /// Drops all work; only `terminate`, if given, is still sent.
    pub(super) fn abandon(&mut self, terminate: Option<Terminate>) {
        self.message = None;
        self.payload.clear();
        self.responses.clear();
        self.outstanding.clear();
        self.rtr = None;
        self.terminate = terminate;
    }

    /// The RTR that was agreed on has not been sent.
    pub(super) const fn owes_rtr(&self) -> bool {
        self.rtr.is_some()
    }

    /// An FPDU has been sent.
    pub(super) const fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Sends a zero-length Write, which the peer does not notice. Does nothing within a message: the rest of it is as
    /// good. Returns whether it did.
    pub(super) const fn nudge(&mut self) -> bool {
        let is_between = self.message.is_none() && self.rtr.is_none();
        if is_between {
            self.rtr = Some(RtrKind::Write);
        }
        is_between
    }

    /// A message of the consumer is being cut.
    pub(super) fn is_cutting_request(&self) -> bool {
        self.message.as_ref().is_some_and(|message| message.source.is_request())
    }

    /// A response is being cut.
    fn is_cutting_response(&self) -> bool {
        self.message.as_ref().is_some_and(|message| !message.source.is_request())
    }

    /// Nothing but what the consumer posts can give something to send.
    fn is_idle(&self) -> bool {
        self.message.is_none() && self.has_only_requests()
    }

    /// Everything to be sent is a request of the consumer.
    fn has_only_requests(&self) -> bool {
        self.responses.is_empty()
            && self.rtr.is_none()
            && self.terminate.is_none()
            && !self.is_cutting_response()
    }

    /// Nothing is to be sent, and nothing that was posted waits to be done.
    pub(super) fn is_quiet(&self, qp: &Qp) -> bool {
        qp.sends.is_empty() && self.is_idle()
    }

    /// Sends the Terminate, if one waits. Room or not: it is the last that is sent.
    #[inline]
    pub(super) fn send_terminate(&mut self, io: &mut impl Transport) {
        if let Some(terminate) = self.terminate.take() {
            let mut train = Train { list: io.list(), octets: 0, fpdus: 0 };
            self.push_header(&mut train, &terminate_header(&terminate));
            self.post(io, 0, train);
        }
    }

    /// Makes lists while the transport has room and there is work. With `may_leave` what fills no list waits for the
    /// next posts while the connection flows.
    ///
    /// # Errors
    /// A request of the consumer, or a read of the peer, cannot be carried out: the stream has failed.
    /// FPDUs cut before are posted.
    pub(super) fn pump(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        may_leave: bool,
        io: &mut impl Transport,
    ) -> Result<Pumped, Failure> {
        let Objects { qps, regions, counters, completed, .. } = objects;
        let Some(qp) = qps.get_mut(id) else { return Ok(Pumped::Drained) };
        while io.send_room() > 0 {
            if self.is_cutting_response() && io.send_outstanding() >= io.path_octets() {
                return Ok(Pumped::Full);
            }
            let emss = io.effective_mss();
            let limits = Limits { emss, super_segment: io.super_segment_max().max(emss) };
            if may_leave && self.has_only_requests() && qp.flow.leaves(limits.super_segment) {
                qp.complete_done(completed);
                return Ok(Pumped::Left);
            }
            let mut train = Train { list: io.list(), octets: 0, fpdus: 0 };
            let filled = self.fill(qp, regions, limits, &mut train);
            let Train { octets, fpdus, .. } = train;
            if fpdus == 0 {
                io.keep(train.list);
                release_tail(qp, io);
                qp.complete_done(completed);
                return filled.map(|()| Pumped::Drained);
            }
            qp.stats.lists_out += 1;
            qp.stats.fpdu_out += fpdus;
            counters.fpdu_out += fpdus;
            counters.fpdu_out_octets += octets as u64;
            qp.flow.sent(octets);
            self.post(io, qp.sends.next_serial(), train);
            qp.complete_done(completed);
            filled?;
            // A lone message: there is no need to look for another.
            if self.is_quiet(qp) {
                return Ok(Pumped::Drained);
            }
        }
        Ok(Pumped::Full)
    }

    /// Fills one list with FPDUs.
    fn fill(
        &mut self,
        qp: &mut Qp,
        regions: &mut Regions,
        limits: Limits,
        train: &mut Train<impl GatherList<Payload = Span>>,
    ) -> Result<(), Failure> {
        if let Some(kind) = self.rtr.take() {
            // MPE-9.2-7: nothing goes before it. A read or send takes the first number of its queue.
            match kind {
                RtrKind::Write => {}
                RtrKind::Send => self.send_msn = self.send_msn.next(),
                RtrKind::Read => {
                    self.read_msn = self.read_msn.next();
                    let response = Response::Read(PendingRead::new(&EMPTY_READ));
                    self.outstanding.push_back(Outstanding { serial: None, response });
                }
            }
            self.push_header(train, &rtr_header(kind));
        }
        loop {
            if self.message.is_none() {
                match self.start_message(qp, regions, limits, train)? {
                    Started::Nothing => return Ok(()),
                    Started::Whole => continue,
                    Started::Begun => {}
                }
            }
            let Some(Message { source, segmenter, is_copied }) = &mut self.message else {
                return Ok(());
            };
            let is_copied = *is_copied;
            let header_octets = source.header_octets();
            let message = (header_octets, segmenter.remaining() as usize);
            let cut = match ulpdu_max(self.size, self.markers, limits, train.octets, message) {
                Some(mulpdu) => segmenter.next(mulpdu, header_octets),
                None => return Ok(()),
            };
            let Some(cut) = cut else {
                self.message = None;
                continue;
            };
            let header = source.header(cut.offset, cut.last);
            match *source {
                Source::Response(read) => {
                    self.push_response(
                        qp,
                        regions,
                        read,
                        &header,
                        (cut.offset, cut.octets),
                        train,
                    )?;
                    qp.stats.read_responses += u64::from(cut.last);
                }
                Source::AtomicResponse { .. } => {
                    self.push_header(train, &header);
                    qp.stats.atomic_responses += 1;
                }
                _ => {
                    take_front(&mut self.payload, cut.octets as usize, &mut self.cut);
                    self.push_cut(train, &header, is_copied);
                    if cut.last {
                        finish_request(qp, is_copied);
                    }
                }
            }
            if cut.last {
                self.message = None;
            }
        }
    }

    /// Begins the next message.
    fn start_message(
        &mut self,
        qp: &mut Qp,
        regions: &mut Regions,
        limits: Limits,
        train: &mut Train<impl GatherList<Payload = Span>>,
    ) -> Result<Started, Failure> {
        if self.responses.is_empty() || self.was_response {
            self.was_response = false;
            let started = self.start_request(qp, regions, limits, train)?;
            if started != Started::Nothing {
                return Ok(started);
            }
        }
        let Some(request) = self.responses.pop_front() else { return Ok(Started::Nothing) };
        self.was_response = true;
        let (source, octets) = match request {
            InboundRequest::Read(read) => (Source::Response(read), read.request.octets),
            // EXT-5.4-1: carried out now, behind the response before.
            InboundRequest::Atomic(atomic) => {
                let response = atomic.execute(qp.user(), regions, &mut self.response_region)?;
                let msn = self.atomic_response_msn;
                self.atomic_response_msn = msn.next();
                (Source::AtomicResponse { msn, response }, 0)
            }
        };
        let segmenter = Segmenter::new(octets);
        self.message = Some(Message { source, segmenter, is_copied: true });
        Ok(Started::Begun)
    }

    /// Begins the next request of the consumer. Local operations are carried out on the way.
    fn start_request(
        &mut self,
        qp: &mut Qp,
        regions: &mut Regions,
        limits: Limits,
        train: &mut Train<impl GatherList<Payload = Span>>,
    ) -> Result<Started, Failure> {
        loop {
            let serial = qp.sends.next_serial();
            let read_limit = qp.read_limit as usize;
            let Some(request) = qp.sends.next_mut() else { return Ok(Started::Nothing) };
            // It was posted behind a disconnect.
            if let done @ Progress::Done(_) = request.progress {
                qp.sends.advance(done);
                continue;
            }
            // NDK-FEN-1. Only reads before this one can be outstanding.
            if request.flags.contains(WrFlags::READ_FENCE) && !self.outstanding.is_empty() {
                return Ok(Started::Nothing);
            }
            let solicited = request.flags.contains(WrFlags::SOLICITED);
            let length = request.length;
            let (is_captured, single) = (request.captured().is_some(), request.single());
            let source = match &request.kind {
                Kind::FastRegister { region, prepared } => {
                    let ok = regions.fast_register(*region, prepared);
                    finish_local(qp, ok)?;
                    continue;
                }
                Kind::Invalidate { target } => {
                    let target = *target;
                    let ok = regions.invalidate(qp.user(), target); // NDK-MEM-10, NDK-CQ-17
                    finish_local(qp, ok)?;
                    continue;
                }
                Kind::Bind { prepared } => {
                    let prepared = **prepared;
                    let ok = regions.bind(qp.user(), prepared);
                    finish_local(qp, ok)?;
                    continue;
                }
                Kind::Send { invalidate } => {
                    let kind = match (*invalidate, solicited) {
                        (None, false) => SendKind::Plain,
                        (None, true) => SendKind::Solicited,
                        (Some(stag), false) => SendKind::Invalidate(stag),
                        (Some(stag), true) => SendKind::SolicitedInvalidate(stag),
                    };
                    request.msn = self.send_msn.0;
                    qp.stats.sends += 1;
                    Source::Send { kind, msn: self.send_msn }
                }
                Kind::Write { to: Remote { stag, offset } } => {
                    let source = Source::Write { stag: *stag, offset: *offset };
                    qp.stats.writes += 1;
                    source
                }
                Kind::Read { .. } | Kind::Atomic { .. } if self.outstanding.len() >= read_limit => {
                    return Ok(Started::Nothing);
                }
                Kind::Read { from, .. } => {
                    let request_header = ReadRequest {
                        sink_stag: Stag(qp.sink_token & !0xff | self.read_msn.0 & 0xff),
                        sink_offset: TaggedOffset(0),
                        octets: length,
                        source_stag: from.stag,
                        source_offset: from.offset,
                    };
                    request.msn = self.read_msn.0;
                    qp.stats.reads += 1;
                    Source::Read { msn: self.read_msn, request: request_header }
                }
                Kind::Atomic { target: Remote { stag, offset }, .. } => {
                    let (stag, offset, msn) = (*stag, *offset, self.read_msn);
                    request.msn = msn.0;
                    let Some(operation) = qp.sends.take_operands() else {
                        unreachable!("each atomic has operands")
                    };
                    qp.stats.atomics += 1;
                    let request = AtomicRequest { operation, identifier: msn.0, stag, offset };
                    Source::Atomic { msn, request }
                }
                Kind::Immediate { data } => {
                    let (msn, data) = (self.send_msn, *data);
                    request.msn = msn.0;
                    qp.stats.immediates += 1;
                    Source::Immediate { msn, data, solicited }
                }
            };
            let is_read = matches!(source, Source::Read { .. } | Source::Atomic { .. });
            let octets = if is_read { 0 } else { length };
            let is_copied = octets <= self.copied_max || is_captured;
            let is_whole = is_copied && self.fits(limits, train, &source, octets);
            // Checks the request's memory (NDK-MEM-17) and finds its payload.
            let mut pieces = Pieces::new();
            let region = &mut self.source_region;
            let is_accessible = if is_read {
                visit(region, qp, regions, (serial, single), Access::LOCAL_WRITE, |_| {})
            } else if is_captured {
                if let Some(captured) = qp.sends.captured(serial).filter(|data| !data.is_empty()) {
                    match is_whole {
                        true => pieces.push(Piece::Private(captured)),
                        false => self.payload.push_back(captured.clone().into()),
                    }
                }
                true
            } else if is_whole {
                visit(region, qp, regions, (serial, single), Access::NONE, |granted| {
                    granted.each_piece(|piece| pieces.push(piece));
                })
            } else {
                let payload = &mut self.payload;
                visit(region, qp, regions, (serial, single), Access::NONE, |granted| {
                    granted.each_span(|span| payload.push_back(span));
                })
            };
            if !is_accessible {
                self.payload.clear();
                qp.sends.advance(Progress::Done(WcStatus::LocalProtection));
                let error = WireError::RdmapLocalCatastrophic;
                return Err(Failure::new(Terminate::new(error)));
            }
            let pushed = is_whole && {
                let all = pieces.all();
                if let Some(all) = all {
                    self.push_whole(train, &source, all);
                }
                all.is_some()
            };
            if is_whole && !pushed {
                let Self { payload, source_region: region, .. } = self;
                visit(region, qp, regions, (serial, single), Access::NONE, |granted| {
                    granted.each_span(|span| payload.push_back(span));
                });
            }
            if is_copied && !is_captured {
                qp.stats.copied_aside_bytes += u64::from(octets);
            }
            match source {
                Source::Read { request, .. } => {
                    let response = Response::Read(PendingRead::new(&request));
                    self.outstanding.push_back(Outstanding { serial: Some(serial), response });
                    self.read_msn = self.read_msn.next();
                }
                Source::Send { .. } | Source::Immediate { .. } => {
                    self.send_msn = self.send_msn.next();
                }
                Source::Atomic { request, .. } => {
                    let response = Response::Atomic(request.identifier);
                    self.outstanding.push_back(Outstanding { serial: Some(serial), response });
                    self.read_msn = self.read_msn.next();
                }
                Source::Write { .. } | Source::Response(_) | Source::AtomicResponse { .. } => {}
            }
            if pushed {
                qp.sends.advance(sent(is_read, true));
                return Ok(Started::Whole);
            }
            let segmenter = Segmenter::new(octets);
            self.message = Some(Message { source, segmenter, is_copied });
            return Ok(Started::Begun);
        }
    }
}

/// The request of an RTR by Read: no octets.
const EMPTY_READ: ReadRequest = ReadRequest {
    sink_stag: Stag(0),
    sink_offset: TaggedOffset(0),
    octets: 0,
    source_stag: Stag(0),
    source_offset: TaggedOffset(0),
};

/// Moves `count` bytes from the front of `from` into `to`.
fn take_front(from: &mut VecDeque<Span>, mut count: usize, to: &mut Vec<Span>) {
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
fn release_tail(qp: &mut Qp, io: &mut impl Transport) {
    let end = qp.sends.next_serial();
    if qp.sends.awaits_acknowledgement(end) && io.detach_tail(COPY_ASIDE_MAX as usize) {
        qp.sends.acknowledge(end);
        qp.stats.tails_copied += 1;
    }
}

/// Checks the memory of request `serial`, which may have a `single` entry, and shows it piece by piece; `region` is the
/// one to look at first. Returns whether all of it may be used so.
#[inline]
fn visit<'a>(
    region: &mut Option<Owner>,
    qp: &'a Qp,
    regions: &'a Regions,
    (serial, single): (u64, Option<Sge>),
    right: Access,
    mut take: impl FnMut(Granted<'a>),
) -> bool {
    let user = qp.user();
    match single {
        Some(sge) => visit_entry(region, user, regions, sge, right, take),
        None => {
            let mut entries = qp.sends.sges(serial);
            entries.all(|sge| visit_entry(region, user, regions, sge, right, &mut take))
        }
    }
}

/// [`visit`] of an entry.
#[inline(always)]
fn visit_entry<'a>(
    region: &mut Option<Owner>,
    user: User,
    regions: &'a Regions,
    sge: Sge,
    right: Access,
    take: impl FnOnce(Granted<'a>),
) -> bool {
    let Sge { address, length, token } = sge;
    length == 0
        || regions.access_again(region, user, token, address, length, right).map(take).is_ok()
}

/// The progress of a request when the transport has all of its message.
const fn sent(is_read: bool, is_copied: bool) -> Progress {
    match is_copied && !is_read {
        true => Progress::Done(WcStatus::Success),
        false => Progress::Sent,
    }
}

/// All of the request's message is cut.
fn finish_request(qp: &mut Qp, is_copied: bool) {
    let Some(request) = qp.sends.next_mut() else { return };
    let is_read = request.kind.awaits_response();
    qp.sends.advance(sent(is_read, is_copied));
}

/// A request that sends nothing has been carried out.
fn finish_local(qp: &mut Qp, ok: bool) -> Result<(), Failure> {
    let status = if ok { WcStatus::Success } else { WcStatus::LocalOperation };
    qp.sends.advance(Progress::Done(status));
    if ok {
        return Ok(());
    }
    Err(Failure::new(Terminate::new(WireError::RdmapLocalCatastrophic)))
}
