//! FPDUs of a list: headers, and copied or lent payload.

use offload_engine::memory::{Piece, Span};

use super::{ListBuilder, OutboundMessage, Transmitter};
use crate::{
    mpa::GatherList,
    rdmap::ReadRequest,
    rnic::{
        memory::{
            region::Regions,
            registration::{Access, User},
        },
        stream::{failure::Failure, inbound_read::InboundRead, sizes, sizes::ListLimits},
        transport::LlpStream,
    },
};

/// Maximum size in bytes of a piece of lent payload that is copied instead.
const COPIED_PIECE_MAX: usize = 2048;

/// Returns true if a piece of payload is copied.
const fn copies(is_copied: bool, piece_octets: usize) -> bool {
    is_copied || piece_octets <= COPIED_PIECE_MAX
}

impl Transmitter {
    /// Returns true if a message of `octets` fits in one FPDU of the current list.
    pub(super) fn fits(
        &self,
        limits: ListLimits,
        builder: &ListBuilder<impl GatherList>,
        source: &OutboundMessage,
        octets: u32,
    ) -> bool {
        let message = (source.header_octets(), octets as usize);
        sizes::fits(self.size, self.markers, limits, builder.octets, message)
    }

    /// Adds an FPDU without payload.
    pub(super) fn push_header(
        &mut self,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
        header: &[u8],
    ) {
        let fpdu = self.encoder.begin(header, 0, 0, &mut self.slab, &mut builder.list);
        builder.octets += fpdu.finish();
        builder.fpdus += 1;
    }

    /// Adds a message of one FPDU with copied payload.
    pub(super) fn push_whole(
        &mut self,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
        source: &OutboundMessage,
        payload: &[Piece<'_>],
    ) {
        let octets = payload.iter().map(Piece::len).sum();
        let header = source.header(0, true);
        let Self { encoder, slab, .. } = self;
        let mut fpdu = encoder.begin(&header, octets, octets, slab, &mut builder.list);
        payload.iter().for_each(|piece| fpdu.copy_from(*piece));
        builder.octets += fpdu.finish();
        builder.fpdus += 1;
    }

    /// Adds an FPDU of a Read Response: `octets` of its source from `offset` on. The rights are checked for each FPDU,
    /// because they may have been revoked since the request arrived.
    pub(super) fn push_response(
        &mut self,
        user: User,
        regions: &Regions,
        read: InboundRead,
        header: &[u8],
        (offset, octets): (u32, u32),
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
    ) -> Result<(), Failure> {
        if octets == 0 {
            self.push_header(builder, header);
            return Ok(());
        }
        let ReadRequest { source_stag, source_offset, .. } = read.request;
        // The request was checked as a whole, so the sum does not wrap.
        let address = source_offset.0.wrapping_add(u64::from(offset));
        let region = &mut self.response_region;
        let granted = regions
            .access_again(region, user, source_stag.0, address, octets, Access::REMOTE_READ)
            .map_err(|error| read.failed(error.request(), offset))?;
        let is_lasting = region.is_some_and(|owner| regions.is_registered_by_call(owner));
        let is_copied = !(builder.lends_responses && is_lasting);
        let mut copied_octets = 0;
        granted.each_piece(|piece| {
            copied_octets += if copies(is_copied, piece.len()) { piece.len() } else { 0 };
        });
        let Self { encoder, slab, .. } = self;
        let mut fpdu =
            encoder.begin(header, octets as usize, copied_octets, slab, &mut builder.list);
        match is_copied {
            true => granted.each_piece(|piece| fpdu.copy_from(piece)),
            false => granted.each_span(|span| match copies(false, span.len()) {
                true => fpdu.copy_from(span.piece()),
                false => fpdu.lend(span),
            }),
        }
        builder.octets += fpdu.finish();
        builder.fpdus += 1;
        Ok(())
    }

    /// Adds an FPDU of `header` and the payload in `cut`.
    pub(super) fn push_cut(
        &mut self,
        builder: &mut ListBuilder<impl GatherList<Payload = Span>>,
        header: &[u8],
        is_copied: bool,
    ) {
        let Self { encoder, slab, cut, .. } = self;
        let octets = cut.iter().map(Span::len).sum();
        let copied = cut.iter().filter(|span| copies(is_copied, span.len()));
        let copied_octets = copied.map(Span::len).sum();
        let mut fpdu = encoder.begin(header, octets, copied_octets, slab, &mut builder.list);
        for span in cut.drain(..) {
            match copies(is_copied, span.len()) {
                true => fpdu.copy_from(span.piece()),
                false => fpdu.lend(span),
            }
        }
        builder.octets += fpdu.finish();
        builder.fpdus += 1;
    }

    /// Passes a list to the transport.
    pub(super) fn post<T: LlpStream>(
        &mut self,
        io: &mut T,
        serial: u64,
        mut builder: ListBuilder<T::List>,
    ) {
        self.slab.flush(&mut builder.list);
        self.has_sent = true;
        io.send(serial, builder.list);
    }
}
