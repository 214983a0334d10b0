//! Segment whose payload is placed in parts: its header, and what is left of it.

use crate::{
    ddp::{HeaderCopy, TaggedSegment, UntaggedSegment},
    rdmap::SendKind,
};

/// Kind of a segment that is taken in parts, with the header of what is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Write(TaggedSegment),
    ReadResponse(TaggedSegment),
    Send(UntaggedSegment, SendKind),
}

/// Segment whose payload is placed in parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenSegment {
    pub(super) kind: Kind,
    pub(super) header: HeaderCopy,
    pub(super) ulpdu_octets: usize,
    /// Octets of the payload that are left.
    pub(super) left: usize,
}

impl OpenSegment {
    /// Splits off a part of `octets` octets and returns it.
    pub(super) fn take(&mut self, octets: usize) -> Kind {
        self.left = self.left.saturating_sub(octets);
        let is_end = self.left == 0;
        match &mut self.kind {
            Kind::Write(segment) => Kind::Write(take_tagged(segment, octets, is_end)),
            Kind::ReadResponse(segment) => Kind::ReadResponse(take_tagged(segment, octets, is_end)),
            Kind::Send(segment, kind) => {
                let part = UntaggedSegment { last: segment.last && is_end, ..*segment };
                segment.offset = segment.offset.wrapping_add(octets as u32);
                Kind::Send(part, *kind)
            }
        }
    }
}

/// Splits a part off the segment. The whole segment was checked, so the offset does not wrap.
fn take_tagged(segment: &mut TaggedSegment, octets: usize, is_end: bool) -> TaggedSegment {
    let part = TaggedSegment { last: segment.last && is_end, ..*segment };
    segment.offset.0 = segment.offset.0.wrapping_add(octets as u64);
    part
}
