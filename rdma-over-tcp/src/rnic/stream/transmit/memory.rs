//! Memory of a request: check, and pieces to copy or to lend.

use offload_engine::memory::{Piece, Span};

use super::{ListBuilder, Transmitter, message::OutboundMessage};
use crate::{
    error::WireError,
    mpa::GatherList,
    rdmap::Terminate,
    rnic::{
        memory::{
            region::{Granted, Owner, Regions},
            registration::{Access, User},
        },
        queues::{qp::Qp, send_queue::Progress, wr::Sge},
        status::WcStatus,
        stream::failure::Failure,
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
pub(super) struct RequestMemory {
    /// Serial of the request.
    pub(super) serial: u64,
    /// True if the peer answers the request.
    pub(super) awaits_response: bool,
    /// True if its data was captured by the post.
    pub(super) is_captured: bool,
    /// Its entry, if there is exactly one.
    pub(super) single: Option<Sge>,
}

impl Transmitter {
    /// Checks a request's memory (NDK-MEM-17) and takes its payload. The payload is added to the list if `is_whole` and
    /// it has few pieces; otherwise it is queued for segmentation. Returns true if all of the message is in the list.
    #[inline]
    pub(super) fn take_memory(
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
