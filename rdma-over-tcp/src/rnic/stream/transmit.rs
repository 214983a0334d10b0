//! Transmit path: from work requests and peers' Reads to lists of FPDUs.
//!
//! FPDUs are created when the transport has room for them, not when requests are posted. All pending messages share
//! lists of at most one segment or GSO packet. FPDUs are adjacent in a list: headers, CRCs and copied payload in one
//! piece of memory, with lent payload between them. So a GSO packet of small messages needs one or two slices of a
//! gathered write, and one of a large message needs three.
//!
//! The payload of a copied message that fits is copied from registered memory directly after its header. Messages are
//! not interleaved: the next one starts after the last segment of the previous one. Requests of the consumer and
//! responses to the peer's Reads alternate.
//!
//! A Send or Write of up to [`COPY_ASIDE_MAX`] bytes is copied when it starts, and is done when all of it is passed to
//! TCP. So its completion never waits for a delayed acknowledgment. Larger ones are read in place and are done when
//! acknowledged, except for a tail of up to the same size, which is copied. Their pieces of up to `COPIED_PIECE_MAX`
//! bytes are also copied: another slice of a gathered write costs more.
//!
//! With CRCs and [`Config::copies_payload`], messages of any size are copied: consumers may change the memory
//! concurrently, and the CRC must match the data sent.
//!
//! Read Responses are created FPDU by FPDU, each after a check of the peer's rights, and are copied. The peer may write
//! the memory at any time, and the CRC, or a checksum of the transport, must match the data sent. No data is sent after
//! the rights are revoked. Their data in flight is limited to the capacity of the path ([`LlpStream::path_octets`]). So
//! the copies remain in the CPU cache until the kernel copies them again. With more in flight a Read of 1 MiB takes a
//! third longer. Without CRCs, and on a transport that reads payload once ([`LlpStream::READS_PAYLOAD_ONCE`]), they are
//! read in place, except if an invalidation can revoke the rights: it would not wait for data in the transport's queue.

mod acknowledge;
mod acknowledgments;
mod drain;
mod fpdus;
mod memory;
mod message;
mod request;

use alloc::{boxed::Box, collections::VecDeque, vec::Vec};

use offload_engine::memory::Span;

pub(super) use self::message::{Outstanding, Response};
use self::{
    acknowledgments::Acknowledgments,
    message::{Message, NextCut, OutboundMessage},
};
use super::{failure::Failure, inbound_read::InboundRequest, sizes::ListLimits};
use crate::{
    ddp::{Msn, Stag, TaggedOffset},
    mpa::{Encoder, GatherList, Slab, startup::RtrKind},
    rdmap::{PendingRead, ReadRequest, Terminate, rtr_header, terminate_header},
    rnic::{
        config::{Config, FpduSize},
        memory::region::{Owner, Regions},
        objects::id::QpId,
        queues::{
            qp::{Qp, TransmitOutcome},
            rc::QpService,
            send_queue::Progress,
        },
        status::WcStatus,
        tables::Objects,
        transport::LlpStream,
    },
};

/// Maximum size in bytes of a message that is copied.
pub const COPY_ASIDE_MAX: u32 = 16 * 1024;

/// Outcome of starting a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Started {
    /// No message can start.
    Nothing,
    /// All of the message is in the list.
    Whole,
    /// The message has to be segmented.
    Begun,
}

/// List under construction.
struct ListBuilder<L> {
    list: L,
    octets: usize,
    fpdus: u64,
    /// True if large Read Responses are not copied.
    lends_responses: bool,
}

impl<L> ListBuilder<L> {
    const fn new(list: L, lends_responses: bool) -> Self {
        Self { list, octets: 0, fpdus: 0, lends_responses }
    }
}

/// Transmit state of a stream in full operation.
#[derive(Debug)]
pub(super) struct Transmitter {
    encoder: Encoder,
    markers: bool,
    size: FpduSize,
    slab: Slab,
    send_msn: Msn,
    /// MSN of Reads and atomics.
    read_msn: Msn,
    atomic_response_msn: Msn,
    message: Option<Message>,
    /// Payload of the message that is not segmented yet.
    payload: VecDeque<Span>,
    /// Payload of one FPDU.
    cut: Vec<Span>,
    /// Reads and atomics of the peer without a response, oldest first.
    responses: VecDeque<InboundRequest>,
    /// Own requests without a response, oldest first.
    pub(super) outstanding: VecDeque<Outstanding>,
    /// Maximum size in bytes of a message that is copied.
    copied_max: u32,
    /// Message to send before the next one: the RTR, or an empty Write.
    rtr: Option<RtrKind>,
    terminate: Option<Terminate>,
    has_sent: bool,
    /// True if the last message was a response: the next one is a request, if there is one.
    was_response: bool,
    /// Region of the last request, likely reused by the next one.
    source_region: Option<Owner>,
    /// Region of the last Read Response.
    response_region: Option<Owner>,
    /// True for [`QpService::Rc`](crate::rnic::QpService) and [`QpService::Uc`](crate::rnic::QpService).
    is_rc: bool,
    /// Acknowledgments of [`QpService::Rc`](crate::rnic::QpService); `None`: another service.
    acknowledgments: Option<Box<Acknowledgments>>,
}

impl Transmitter {
    pub(super) fn new(
        (crc, markers): (bool, bool),
        config: &Config,
        rtr: Option<RtrKind>,
        service: QpService,
    ) -> Self {
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
            is_rc: matches!(service, QpService::Rc | QpService::Uc),
            acknowledgments: match service {
                QpService::Iwarp | QpService::Uc | QpService::Ud => None,
                QpService::Rc => Some(Box::new(Acknowledgments::new())),
            },
        }
    }

    /// Queues the response to a request of the peer.
    pub(super) fn respond(&mut self, request: InboundRequest) {
        self.responses.push_back(request);
    }

    /// Count of the peer's Reads and atomics being served.
    pub(super) fn inbound_reads(&self) -> usize {
        self.responses.len() + usize::from(self.is_cutting_response())
    }

    /// Returns true if the response to a local Read has started and its last segment has not arrived.
    pub(super) fn is_in_response(&self) -> bool {
        self.outstanding.front().is_some_and(|oldest| oldest.response.is_in_message())
    }

    /// Returns true if the message in progress needs memory that its owner has withdrawn.
    pub(super) fn needs_withdrawn(&self) -> bool {
        self.payload.iter().any(Span::is_withdrawn)
    }

    /// Drops all work. Only `terminate`, if given, is still sent.
    pub(super) fn abandon(&mut self, terminate: Option<Terminate>) {
        self.abandon_suspended();
        self.message = None;
        self.payload.clear();
        self.responses.clear();
        self.outstanding.clear();
        self.rtr = None;
        self.terminate = terminate;
    }

    /// Returns true if the negotiated RTR has not been sent.
    pub(super) const fn has_unsent_rtr(&self) -> bool {
        self.rtr.is_some()
    }

    /// Returns true if an FPDU has been sent.
    pub(super) const fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Schedules a zero-length Write, which has no effect at the peer. Within a message it does nothing, because the
    /// rest of the message has the same effect. Returns true if the Write is scheduled.
    pub(super) const fn schedule_empty_write(&mut self) -> bool {
        let is_between = self.message.is_none() && self.rtr.is_none();
        if is_between {
            self.rtr = Some(RtrKind::Write);
        }
        is_between
    }

    /// Returns true if a message of the consumer is being segmented.
    pub(super) fn is_cutting_request(&self) -> bool {
        self.message.as_ref().is_some_and(|message| message.source.is_request())
            || self.has_suspended()
    }

    /// Returns true if a response is being segmented.
    fn is_cutting_response(&self) -> bool {
        self.message.as_ref().is_some_and(|message| !message.source.is_request())
    }

    /// Returns true if only new posts of the consumer can give data to send.
    fn is_idle(&self) -> bool {
        self.message.is_none() && self.has_only_requests()
    }

    /// Returns true if all data to send belongs to requests of the consumer.
    fn has_only_requests(&self) -> bool {
        self.responses.is_empty()
            && self.rtr.is_none()
            && self.terminate.is_none()
            && !self.is_cutting_response()
            && !self.has_due_acknowledgment()
    }

    /// Returns true if there is nothing to send, and no posted request is outstanding, except those that wait for the
    /// peer's acknowledgment.
    #[inline(always)]
    pub(super) fn has_no_work(&self, qp: &Qp) -> bool {
        (qp.sends.is_empty() || self.is_acknowledged() && !qp.sends.has_queued()) && self.is_idle()
    }

    /// Sends the pending Terminate, if there is one, even without room: it is the last message.
    #[inline(always)]
    pub(super) fn send_terminate(&mut self, io: &mut impl LlpStream) {
        if self.terminate.is_some() {
            self.send_last(io);
        }
    }

    #[cold]
    #[inline(never)]
    fn send_last(&mut self, io: &mut impl LlpStream) {
        if let Some(terminate) = self.terminate.take() {
            let mut builder = ListBuilder::new(io.list(), false);
            self.push_acknowledgment(&mut builder);
            self.push_header(&mut builder, &terminate_header(&terminate));
            self.post(io, 0, builder);
        }
    }

    /// Builds lists while the transport has room and there is work. With `may_defer`, and while the connection is busy,
    /// data that does not fill a list is deferred to the next posts.
    ///
    /// # Errors
    /// A request of the consumer, or a Read of the peer, cannot be executed: the stream has failed. FPDUs created
    /// before are posted.
    pub(super) fn pump<IO: LlpStream>(
        &mut self,
        objects: &mut Objects,
        id: QpId,
        may_defer: bool,
        io: &mut IO,
    ) -> Result<TransmitOutcome, Failure> {
        let Objects { qps, regions, counters, completed, .. } = objects;
        let Some(qp) = qps.get_mut(id) else { return Ok(TransmitOutcome::Drained) };
        let lends_responses = IO::READS_PAYLOAD_ONCE && !self.encoder.uses_crc();
        while io.send_room() > 0 {
            if self.is_cutting_response() && io.send_outstanding() >= io.path_octets() {
                return Ok(TransmitOutcome::Full);
            }
            let emss = io.effective_mss();
            let limits = ListLimits { emss, gso_payload: io.gso_payload_max().max(emss) };
            if may_defer && self.has_only_requests() && qp.flow.defers(limits.gso_payload) {
                qp.complete_done(completed);
                return Ok(TransmitOutcome::Deferred);
            }
            let mut builder = ListBuilder::new(io.list(), lends_responses);
            let filled = self.fill(qp, regions, limits, &mut builder);
            let ListBuilder { octets, fpdus, .. } = builder;
            if fpdus == 0 {
                io.keep(builder.list);
                release_tail(qp, io);
                qp.complete_done(completed);
                return filled.map(|()| TransmitOutcome::Drained);
            }
            qp.stats.lists_out += 1;
            qp.stats.fpdu_out += fpdus;
            counters.fpdu_out += fpdus;
            counters.fpdu_out_octets += octets as u64;
            qp.flow.sent(octets);
            self.post(io, qp.sends.next_serial(), builder);
            qp.complete_done(completed);
            filled?;
            // A single message: the search for another one is skipped.
            if self.has_no_work(qp) {
                return Ok(TransmitOutcome::Drained);
            }
        }
        Ok(TransmitOutcome::Full)
    }

    /// Fills one list with FPDUs.
    fn fill(
        &mut self,
        qp: &mut Qp,
        regions: &mut Regions,
        limits: ListLimits,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) -> Result<(), Failure> {
        if let Some(kind) = self.rtr.take() {
            // MPE-9.2-7: the RTR is the first message. A Read or Send uses the first number of its queue.
            match kind {
                RtrKind::Write => self.message_sent(),
                RtrKind::Send => {
                    self.send_msn = self.send_msn.next();
                    self.message_sent();
                }
                RtrKind::Read => {
                    self.read_msn = self.read_msn.next();
                    let response = Response::Read(PendingRead::new(&EMPTY_READ));
                    self.outstanding.push_back(Outstanding { serial: None, response });
                }
            }
            self.push_header(builder, &rtr_header(kind));
        }
        self.begin_list(builder);
        loop {
            if self.message.is_none() {
                match self.start_message(qp, regions, limits, builder)? {
                    Started::Nothing => return Ok(()),
                    Started::Whole => continue,
                    Started::Begun => {}
                }
            }
            let Some(message) = &mut self.message else { return Ok(()) };
            let cut = match message.next_cut(self.size, self.markers, limits, builder.octets) {
                NextCut::NoRoom => return Ok(()),
                NextCut::End => {
                    self.message = None;
                    continue;
                }
                NextCut::Cut(cut) => cut,
            };
            let header = message.source.header(cut.offset, cut.last);
            match message.source {
                OutboundMessage::Response(read) => {
                    let range = (cut.offset, cut.octets);
                    self.push_response(qp.user(), regions, read, &header, range, builder)?;
                    qp.stats.read_responses += u64::from(cut.last);
                    qp.stats.read_response_bytes += u64::from(cut.octets);
                }
                OutboundMessage::AtomicResponse { .. } => {
                    self.push_header(builder, &header);
                    qp.stats.atomic_responses += 1;
                }
                _ => {
                    let (is_copied, is_counted) = (message.is_copied, message.source.is_counted());
                    take_front(&mut self.payload, cut.octets as usize, &mut self.cut);
                    self.push_cut(builder, &header, is_copied);
                    if cut.last {
                        match self.is_acknowledged() {
                            true => self.count_sent(qp, is_counted),
                            false => finish_request(qp, is_copied),
                        }
                    }
                }
            }
            if cut.last {
                self.message = None;
            }
        }
    }
}

/// Request of an RTR by Read: no octets.
const EMPTY_READ: ReadRequest = ReadRequest {
    sink_stag: Stag(0),
    sink_offset: TaggedOffset(0),
    octets: 0,
    source_stag: Stag(0),
    source_offset: TaggedOffset(0),
};

/// Moves `count` bytes from the front of `from` to `to`.
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

/// Completes large messages of which only the tail waits for its acknowledgment: the tail is copied. Called when there
/// is nothing to segment. A peer may delay that acknowledgment for long.
fn release_tail(qp: &mut Qp, io: &mut impl LlpStream) {
    let end = qp.sends.next_serial();
    if !qp.is_acknowledged()
        && qp.sends.awaits_acknowledgment(end)
        && io.detach_tail(COPY_ASIDE_MAX as usize)
    {
        qp.sends.acknowledge(end);
        qp.stats.tails_copied += 1;
    }
}

/// Progress of a request when all of its message is passed to the transport.
const fn sent(is_read: bool, is_copied: bool) -> Progress {
    match is_copied && !is_read {
        true => Progress::Done(WcStatus::Success),
        false => Progress::Sent,
    }
}

/// Advances the request whose message is completely segmented.
fn finish_request(qp: &mut Qp, is_copied: bool) {
    let Some(request) = qp.sends.next_mut() else { return };
    let is_read = request.kind.awaits_response();
    qp.sends.advance(sent(is_read, is_copied));
}
