//! Start of a message: selection of the next request or response, and its conversion.

use offload_engine::memory::Span;

use super::{
    ListBuilder, Started, Transmitter,
    memory::RequestMemory,
    message::{Message, OutboundMessage, Outstanding, Response},
    sent,
};
use crate::{
    ddp::{Stag, TaggedOffset},
    error::WireError,
    mpa::GatherList,
    rdmap::{AtomicRequest, PendingRead, ReadRequest, Segmenter, SendKind, Terminate},
    rnic::{
        memory::{region::Regions, registration::User},
        queues::{
            qp::Qp,
            send_queue::Progress,
            wr::{Remote, SendWord, WqeKind, WrFlags},
        },
        stream::{failure::Failure, inbound_read::InboundRequest, sizes::ListLimits},
    },
};

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
        if self.responses.is_empty() || !self.start_response(qp.user(), regions)? {
            return Ok(Started::Nothing);
        }
        Ok(Started::Begun)
    }

    /// Starts the next response. Returns false if there is none.
    pub(super) fn start_response(
        &mut self,
        user: User,
        regions: &Regions,
    ) -> Result<bool, Failure> {
        let Some(request) = self.responses.pop_front() else { return Ok(false) };
        self.was_response = true;
        let (source, octets) = match request {
            InboundRequest::Read(read) => (OutboundMessage::Response(read), read.request.octets),
            // EXT-5.4-1: executed now, after the previous response.
            InboundRequest::Atomic(atomic) => {
                let response = atomic.execute(user, regions, &mut self.response_region)?;
                let msn = self.atomic_response_msn;
                self.atomic_response_msn = msn.next();
                (OutboundMessage::AtomicResponse { msn, response }, 0)
            }
        };
        let segmenter = Segmenter::new(octets);
        self.message = Some(Message { source, segmenter, is_copied: true });
        Ok(true)
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
            if let Some(rc) = &qp.rc
                && (rc.holds_sends || self.is_paused())
            {
                return Ok(Started::Nothing);
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
                    if !qp.execute_local(regions) {
                        let error = WireError::RdmapLocalCatastrophic;
                        return Err(Failure::new(Terminate::new(error)));
                    }
                    continue;
                }
                WqeKind::Send { word } => {
                    let kind = match *word {
                        SendWord::None => SendKind::new(None, solicited),
                        SendWord::Invalidate(stag) => SendKind::new(Some(stag), solicited),
                        SendWord::Immediate(data) => SendKind::Immediate { data, solicited },
                    };
                    request.msn = self.send_msn.0;
                    qp.stats.sends += 1;
                    qp.stats.send_bytes += u64::from(length);
                    OutboundMessage::Send { kind, msn: self.send_msn }
                }
                WqeKind::Write { to: Remote { stag, offset } } => {
                    let source = OutboundMessage::Write { stag: *stag, offset: *offset };
                    qp.stats.writes += 1;
                    qp.stats.write_bytes += u64::from(length);
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
            if self.is_acknowledged() {
                self.count_started(qp, &source, pushed);
            } else if pushed {
                qp.sends.advance(sent(awaits_response, true));
            }
            if pushed {
                return Ok(Started::Whole);
            }
            let segmenter = Segmenter::new(octets);
            self.message = Some(Message { source, segmenter, is_copied });
            return Ok(Started::Begun);
        }
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
