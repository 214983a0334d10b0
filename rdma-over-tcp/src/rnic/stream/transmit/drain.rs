//! End of a stream of [`QpService::Rc`](crate::rnic::QpService): acknowledgments and responses that are due are sent
//! without the queue pair.

use offload_engine::memory::Span;

use super::{
    ListBuilder, Transmitter,
    message::{NextCut, OutboundMessage},
};
use crate::{
    mpa::GatherList,
    rdmap::Terminate,
    rnic::{
        memory::{region::Regions, registration::User},
        queues::qp::TransmitOutcome,
        stream::{failure::Failure, sizes::ListLimits},
        transport::LlpStream,
    },
};

impl Transmitter {
    /// Drops all requests. Acknowledgments and responses remain, and `terminate`, if given, is sent after them.
    pub(in crate::rnic::stream) fn abandon_requests(&mut self, terminate: Option<Terminate>) {
        self.abandon_suspended();
        if self.is_cutting_request() {
            self.message = None;
        }
        self.payload.clear();
        self.outstanding.clear();
        self.rtr = None;
        self.terminate = terminate;
    }

    /// Drops the responses: one of them has failed.
    pub(in crate::rnic::stream) fn abandon_responses(&mut self) {
        if self.is_cutting_response() {
            self.message = None;
        }
        self.responses.clear();
    }

    /// Sends acknowledgments and responses while the transport has room. A response that the memory no longer permits,
    /// and those after it, are dropped.
    pub(in crate::rnic::stream) fn drain(
        &mut self,
        user: User,
        regions: &Regions,
        io: &mut impl LlpStream,
    ) -> TransmitOutcome {
        loop {
            let is_full = io.send_room() == 0
                || self.is_cutting_response() && io.send_outstanding() >= io.path_octets();
            if is_full && !self.has_no_responses() {
                return TransmitOutcome::Full;
            }
            let emss = io.effective_mss();
            let limits = ListLimits { emss, gso_payload: io.gso_payload_max().max(emss) };
            let mut builder = ListBuilder::new(io.list(), false);
            self.push_acknowledgment(&mut builder);
            let filled = self.fill_responses(user, regions, limits, &mut builder);
            if filled.is_err() {
                self.abandon_responses();
            }
            if builder.fpdus == 0 {
                io.keep(builder.list);
                return TransmitOutcome::Drained;
            }
            self.post(io, 0, builder);
        }
    }

    fn has_no_responses(&self) -> bool {
        self.responses.is_empty() && self.message.is_none()
    }

    fn fill_responses(
        &mut self,
        user: User,
        regions: &Regions,
        limits: ListLimits,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) -> Result<(), Failure> {
        loop {
            if self.message.is_none() && !self.start_response(user, regions)? {
                return Ok(());
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
                    self.push_response(user, regions, read, &header, range, builder)?;
                }
                _ => self.push_header(builder, &header),
            }
            if cut.last {
                self.message = None;
            }
        }
    }
}
