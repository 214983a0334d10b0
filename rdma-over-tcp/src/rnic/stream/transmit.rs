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
//! flight than the path holds ([`LlpStream::path_octets`]), so that the copies stay in the cache from which the kernel
//! copies them again: with more in flight a Read of 1 MiB takes a third longer.

mod fpdus;
mod request;
mod source;

use alloc::{collections::VecDeque, vec::Vec};

use offload_engine::memory::Span;

use self::source::Source;
use super::{
    failure::Failure,
    inbound_read::InboundRequest,
    sizes::{Limits, ulpdu_max},
};
use crate::{
    ddp::{Msn, Stag, TaggedOffset},
    mpa::{Encoder, GatherList, Slab, startup::RtrKind},
    rdmap::{PendingRead, ReadRequest, Segmenter, Terminate, rtr_header, terminate_header},
    rnic::{
        config::{Config, FpduSize},
        memory::region::{Owner, Regions},
        objects::id::QpId,
        queues::{
            qp::{Pumped, Qp},
            send_queue::Progress,
        },
        status::WcStatus,
        tables::Objects,
        transport::LlpStream,
    },
};

/// Bytes of a message up to which it is copied aside.
pub const COPY_ASIDE_MAX: u32 = 16 * 1024;

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
    pub(super) fn send_terminate(&mut self, io: &mut impl LlpStream) {
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
        io: &mut impl LlpStream,
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
fn release_tail(qp: &mut Qp, io: &mut impl LlpStream) {
    let end = qp.sends.next_serial();
    if qp.sends.awaits_acknowledgement(end) && io.detach_tail(COPY_ASIDE_MAX as usize) {
        qp.sends.acknowledge(end);
        qp.stats.tails_copied += 1;
    }
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
