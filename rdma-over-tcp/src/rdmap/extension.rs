//! Messages of RFC 7306, which an implementation may omit: [`parse`](super::parse) checks only their opcode and queue.

use super::{AtomicRequest, AtomicResponse, Opcode, RdmapError};
use crate::ddp::UntaggedSegment;

/// Octets of immediate data.
pub const IMMEDIATE_OCTETS: usize = 8;

/// Message of RFC 7306.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Immediate Data.
    Immediate {
        /// True if the sink may raise an event.
        solicited: bool,
        /// Immediate data, in octets.
        data: [u8; IMMEDIATE_OCTETS],
    },
    /// An Atomic Request.
    AtomicRequest(AtomicRequest),
    /// An Atomic Response.
    AtomicResponse(AtomicResponse),
}

impl Extension {
    /// Parses the payload of a segment with this opcode.
    ///
    /// # Errors
    /// [`RdmapError::Length`] unless the segment is exactly the whole message (EXT-6.3-2);
    /// [`RdmapError::AtomicOpcode`]; [`RdmapError::Opcode`] for an opcode of RFC 5040.
    #[cold]
    pub fn parse(
        opcode: Opcode,
        segment: &UntaggedSegment,
        payload: &[u8],
    ) -> Result<Self, RdmapError> {
        let last = segment.last;
        match opcode {
            Opcode::AtomicRequest => AtomicRequest::parse(payload, last).map(Self::AtomicRequest),
            Opcode::AtomicResponse => {
                AtomicResponse::parse(payload, last).map(Self::AtomicResponse)
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                let (octets, expected) = (payload.len(), IMMEDIATE_OCTETS);
                let error = RdmapError::Length { octets, expected };
                let data = payload.try_into().ok().filter(|_| last).ok_or(error)?;
                let solicited = opcode == Opcode::ImmediateSolicited;
                Ok(Self::Immediate { solicited, data })
            }
            other => Err(RdmapError::Opcode(other as u8)),
        }
    }
}
