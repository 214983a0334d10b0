//! Start of a message: selection of the next request or response, its header, and its memory.

use offload_engine::memory::{Piece, Span};

use super::{
    ListBuilder, Message, Outstanding, Response, Started, Transmitter, sent,
    source::OutboundMessage,
};
use crate::{
    ddp::{Stag, TaggedOffset},
    error::WireError,
    mpa::GatherList,
    rdmap::{AtomicRequest, PendingRead, ReadRequest, Segmenter, SendKind, Terminate},
    rnic::{
        memory::{
            region::{Granted, Owner, Regions},
            registration::{Access, User},
        },
        queues::{
            qp::Qp,
            send_queue::Progress,
            wr::{Remote, Sge, WqeKind, WrFlags},
        },
        status::WcStatus,
        stream::{failure::Failure, inbound_read::InboundRequest, sizes::ListLimits},
    },
};

/// Maximum number of memory pieces for a direct copy after the header. A message with more pieces takes the slow path.
const PIECES_MAX: usize = 4;

/// Pieces of memory of a message to copy.
struct Pieces<'a> {
    pieces: [Piece<'a>; PIECES_MAX],
    /// Count of pieces. Those beyond [`PIECES_MAX`] are not stored.
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

    /// Returns all pieces, if there are at most [`PIECES_MAX`].
    fn all(&self) -> Option<&[Piece<'a>]> {
        self.pieces.get(..self.count)
    }
}

/// Memory of a request.
struct RequestMemory {
    /// Serial of the request.
    serial: u64,
    /// True if the peer answers the request.
    awaits_response: bool,
    /// True if its data was captured by the post.
    is_captured: bool,
    /// Its entry, if there is exactly one.
    single: Option<Sge>,
}

impl Transmitter {
    /// Starts the next message.
    #[inline]
    pub(super) fn start_message(
        &mut self,
        qp: &mut Qp,
        regions: &mut Regions,
        limits: ListLimits,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) -> Result<Started, Failure> {
        if self.responses.is_empty() || self.was_response {
            self.was_response = false;
            let started = self.start_request(qp, regions, limits, builder)?;
            if started != Started::Nothing {
                return Ok(started);
            }
        }
        let Some(request) = self.responses.pop_front() else { return Ok(Started::Nothing) };
        self.was_response = true;
        let (source, octets) = match request {
            InboundRequest::Read(read) => (OutboundMessage::Response(read), read.request.octets),
            // EXT-5.4-1: executed now, after the previous response.
            InboundRequest::Atomic(atomic) => {
                let response = atomic.execute(qp.user(), regions, &mut self.response_region)?;
                let msn = self.atomic_response_msn;
                self.atomic_response_msn = msn.next();
                (OutboundMessage::AtomicResponse { msn, response }, 0)
            }
        };
        let segmenter = Segmenter::new(octets);
        self.message = Some(Message { source, segmenter, is_copied: true });
        Ok(Started::Begun)
    }

    /// Starts the next request of the consumer. Local operations before it are executed.
    #[inline]
    fn start_request(
        &mut self,
        qp: &mut Qp,
        regions: &mut Regions,
        limits: ListLimits,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) -> Result<Started, Failure> {
        loop {
            let serial = qp.sends.next_serial();
            let read_limit = qp.read_limit as usize;
            let Some(request) = qp.sends.next_mut() else { return Ok(Started::Nothing) };
            // The request was posted after a disconnect.
            if let done @ Progress::Done(_) = request.progress {
                qp.sends.advance(done);
                continue;
            }
            // NDK-FEN-1. Only earlier Reads and atomics can be outstanding.
            if request.flags.contains(WrFlags::READ_FENCE) && !self.outstanding.is_empty() {
                return Ok(Started::Nothing);
            }
            let solicited = request.flags.contains(WrFlags::SOLICITED);
            let length = request.length;
            let (is_captured, single) = (request.captured().is_some(), request.single());
            let source = match &request.kind {
                WqeKind::FastRegister { .. }
                | WqeKind::Invalidate { .. }
                | WqeKind::Bind { .. } => {
                    execute_local(qp, regions)?;
                    continue;
                }
                WqeKind::Send { invalidate } => {
                    let kind = SendKind::new(*invalidate, solicited);
                    request.msn = self.send_msn.0;
                    qp.stats.sends += 1;
                    OutboundMessage::Send { kind, msn: self.send_msn }
                }
                WqeKind::Write { to: Remote { stag, offset } } => {
                    let source = OutboundMessage::Write { stag: *stag, offset: *offset };
                    qp.stats.writes += 1;
                    source
                }
                WqeKind::Read { .. } | WqeKind::Atomic { .. }
                    if self.outstanding.len() >= read_limit =>
                {
                    return Ok(Started::Nothing);
                }
                WqeKind::Read { from, .. } => {
                    let request_header = ReadRequest {
                        sink_stag: Stag(qp.sink_token & !0xff | self.read_msn.0 & 0xff),
                        sink_offset: TaggedOffset(0),
                        octets: length,
                        source_stag: from.stag,
                        source_offset: from.offset,
                    };
                    request.msn = self.read_msn.0;
                    qp.stats.reads += 1;
                    OutboundMessage::Read { msn: self.read_msn, request: request_header }
                }
                WqeKind::Atomic { target: Remote { stag, offset }, .. } => {
                    let (stag, offset, msn) = (*stag, *offset, self.read_msn);
                    request.msn = msn.0;
                    let Some(operation) = qp.sends.take_operands() else {
                        unreachable!("each atomic has operands")
                    };
                    qp.stats.atomics += 1;
                    let request = AtomicRequest { operation, identifier: msn.0, stag, offset };
                    OutboundMessage::Atomic { msn, request }
                }
                WqeKind::Immediate { data } => {
                    let (msn, data) = (self.send_msn, *data);
                    request.msn = msn.0;
                    qp.stats.immediates += 1;
                    OutboundMessage::Immediate { msn, data, solicited }
                }
            };
            let awaits_response = source.awaits_response();
            let octets = if awaits_response { 0 } else { length };
            let is_copied = octets <= self.copied_max || is_captured;
            let is_whole = is_copied && self.fits(limits, builder, &source, octets);
            let memory = RequestMemory { serial, awaits_response, is_captured, single };
            let pushed = self.take_memory(qp, regions, &memory, (&source, is_whole), builder)?;
            if is_copied && !is_captured {
                qp.stats.copied_aside_bytes += u64::from(octets);
            }
            self.number(serial, &source);
            if pushed {
                qp.sends.advance(sent(awaits_response, true));
                return Ok(Started::Whole);
            }
            let segmenter = Segmenter::new(octets);
            self.message = Some(Message { source, segmenter, is_copied });
            return Ok(Started::Begun);
        }
    }

    /// Checks a request's memory (NDK-MEM-17) and takes its payload. The payload is added to the list if `is_whole` and
    /// it has few pieces; otherwise it is queued for segmentation. Returns true if all of the message is in the list.
    #[inline]
    fn take_memory(
        &mut self,
        qp: &mut Qp,
        regions: &Regions,
        memory: &RequestMemory,
        (source, is_whole): (&OutboundMessage, bool),
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) -> Result<bool, Failure> {
        let &RequestMemory { serial, awaits_response, is_captured, single } = memory;
        let mut pieces = Pieces::new();
        let region = &mut self.source_region;
        let is_accessible = if awaits_response {
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
            return Err(Failure::new(Terminate::new(WireError::RdmapLocalCatastrophic)));
        }
        if !is_whole {
            return Ok(false);
        }
        if let Some(all) = pieces.all() {
            self.push_whole(builder, source, all);
            return Ok(true);
        }
        let Self { payload, source_region: region, .. } = self;
        visit(region, qp, regions, (serial, single), Access::NONE, |granted| {
            granted.each_span(|span| payload.push_back(span));
        });
        Ok(false)
    }

    /// Assigns the next message number, and registers the expected response.
    #[inline]
    fn number(&mut self, serial: u64, source: &OutboundMessage) {
        let response = match *source {
            OutboundMessage::Write { .. }
            | OutboundMessage::Response(_)
            | OutboundMessage::AtomicResponse { .. } => return,
            OutboundMessage::Send { .. } | OutboundMessage::Immediate { .. } => {
                self.send_msn = self.send_msn.next();
                return;
            }
            OutboundMessage::Read { request, .. } => Response::Read(PendingRead::new(&request)),
            OutboundMessage::Atomic { request, .. } => Response::Atomic(request.identifier),
        };
        self.outstanding.push_back(Outstanding { serial: Some(serial), response });
        self.read_msn = self.read_msn.next();
    }
}

/// Checks the memory of request `serial`, which may have a `single` entry, and calls `take` with each entry. `region`
/// is looked up first. Returns true if all of the memory is accessible.
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

/// As [`visit`], for one entry.
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

/// Executes the next request, a local operation, and completes it.
#[inline(never)]
fn execute_local(qp: &mut Qp, regions: &mut Regions) -> Result<(), Failure> {
    let user = qp.user();
    let Some(request) = qp.sends.next_mut() else { return Ok(()) };
    let ok = match &request.kind {
        WqeKind::FastRegister { region, prepared } => regions.fast_register(*region, prepared),
        WqeKind::Invalidate { target } => regions.invalidate(user, *target), // NDK-MEM-10, NDK-CQ-17
        WqeKind::Bind { prepared } => regions.bind(user, **prepared),
        _ => unreachable!("a local operation"),
    };
    let status = if ok { WcStatus::Success } else { WcStatus::LocalOperation };
    qp.sends.advance(Progress::Done(status));
    match ok {
        true => Ok(()),
        false => Err(Failure::new(Terminate::new(WireError::RdmapLocalCatastrophic))),
    }
}
