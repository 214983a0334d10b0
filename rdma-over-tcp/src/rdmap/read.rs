//! RDMA Read: encoding of the request, and checks of the response at the requester.

use super::RdmapError;
use crate::ddp::{DdpError, Stag, TaggedOffset, TaggedSegment};

/// Octets of a Read Request after the DDP header.
pub const READ_REQUEST_OCTETS: usize = 28;

/// Read Request (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// STag of the requester's buffer; copied unchanged to the response (RDM-4.4-2).
    pub sink_stag: Stag,
    /// Offset in the requester's buffer.
    pub sink_offset: TaggedOffset,
    /// Octets to read. If 0, the source is not checked (RDM-5.2.1-6).
    pub octets: u32,
    /// STag of the responder's buffer.
    pub source_stag: Stag,
    /// Offset in the responder's buffer.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// Parses the payload of a segment on the queue of Read Requests; `last` is the segment's L.
    ///
    /// # Errors
    /// [`RdmapError::Length`] unless the segment is exactly one Read Request.
    pub fn parse(payload: &[u8], last: bool) -> Result<Self, RdmapError> {
        let error = RdmapError::Length { octets: payload.len(), expected: READ_REQUEST_OCTETS };
        let octets: &[u8; READ_REQUEST_OCTETS] = payload.try_into().map_err(|_| error)?;
        if last { Ok(Self::from_octets(octets)) } else { Err(error) }
    }

    pub(super) fn from_octets(octets: &[u8; READ_REQUEST_OCTETS]) -> Self {
        let word = |at: usize| {
            u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
        };
        let offset = |at| TaggedOffset(u64::from(word(at)) << 32 | u64::from(word(at + 4)));
        Self {
            sink_stag: Stag(word(0)),
            sink_offset: offset(4),
            octets: word(12),
            source_stag: Stag(word(16)),
            source_offset: offset(20),
        }
    }

    /// Encodes the octets after the DDP header.
    pub fn emit(&self) -> [u8; READ_REQUEST_OCTETS] {
        let &Self { sink_stag, sink_offset, octets, source_stag, source_offset } = self;
        let mut out = [0; READ_REQUEST_OCTETS];
        out[..4].copy_from_slice(&sink_stag.0.to_be_bytes());
        out[4..12].copy_from_slice(&sink_offset.0.to_be_bytes());
        out[12..16].copy_from_slice(&octets.to_be_bytes());
        out[16..20].copy_from_slice(&source_stag.0.to_be_bytes());
        out[20..].copy_from_slice(&source_offset.0.to_be_bytes());
        out
    }

    /// Returns the remaining request after `octets` have been answered. A Terminate returns a partly answered request
    /// in this form (RFC 5040 §4.8).
    #[must_use]
    pub fn advanced(&self, octets: u32) -> Self {
        let octets = octets.min(self.octets);
        let forward = |TaggedOffset(offset)| TaggedOffset(offset.wrapping_add(u64::from(octets)));
        Self {
            sink_offset: forward(self.sink_offset),
            octets: self.octets - octets,
            source_offset: forward(self.source_offset),
            ..*self
        }
    }
}

/// Outstanding read at the requester. Responses arrive in the order of requests (RDM-5.2.2-3): segments of Read
/// Responses belong to the oldest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRead {
    sink_stag: Stag,
    sink_offset: TaggedOffset,
    octets: u32,
    received: u32,
    /// True if a segment was received and it was not the last.
    is_in_message: bool,
}

impl PendingRead {
    /// Creates the outstanding read of this request.
    pub const fn new(request: &ReadRequest) -> Self {
        let &ReadRequest { sink_stag, sink_offset, octets, source_stag: _, source_offset: _ } =
            request;
        Self { sink_stag, sink_offset, octets, received: 0, is_in_message: false }
    }

    /// True if a part of the response was received, but not the last.
    pub const fn is_in_message(&self) -> bool {
        self.is_in_message
    }

    /// Octets of the response received so far.
    pub const fn received(&self) -> u32 {
        self.received
    }

    /// Compares a segment of the response with the request (RDM-5.2.2-5): STag, next offset, and length if it is the
    /// last. The sink needs no remote write access for that. Returns the offset of the payload from the start of the
    /// sink, in octets, and true if the read is complete.
    ///
    /// # Errors
    /// [`DdpError::InvalidStag`] or [`DdpError::Bounds`]; the state is then unchanged. A zero-length response is
    /// compared as well, except for its STag and offset (DDP-5.2-7).
    pub fn accept(
        &mut self,
        segment: &TaggedSegment,
        payload_octets: usize,
    ) -> Result<(u32, bool), DdpError> {
        let &TaggedSegment { last, ulp: _, stag, offset } = segment;
        let at = self.received;
        let expected = self.sink_offset.checked_add(u64::from(at));
        let is_empty = last && at == 0 && payload_octets == 0;
        if stag != self.sink_stag && !is_empty {
            return Err(DdpError::InvalidStag(stag));
        }
        if expected != Some(offset) && !is_empty {
            return Err(DdpError::Bounds(offset));
        }
        let received = u32::try_from(payload_octets)
            .ok()
            .and_then(|octets| at.checked_add(octets))
            .filter(|&received| received <= self.octets && (!last || received == self.octets))
            .ok_or(DdpError::Bounds(offset))?;
        self.received = received;
        self.is_in_message = !last;
        Ok((at, last))
    }
}
