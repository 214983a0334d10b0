//! Messages: header of each FPDU, and the response that the peer sends.

use crate::{
    ddp::{HeaderOctets, Msn, Stag, TAGGED_OCTETS, TaggedOffset, UNTAGGED_OCTETS},
    rdmap::{
        ATOMIC_REQUEST_OCTETS, ATOMIC_RESPONSE_OCTETS, AtomicRequest, AtomicResponse, Cut,
        IMMEDIATE_OCTETS, PendingRead, READ_REQUEST_OCTETS, ReadRequest, Segmenter, SendKind,
        atomic_request_header, atomic_response_header, immediate_header, read_request_header,
        read_response_header, send_header, write_header,
    },
    rnic::{
        config::FpduSize,
        stream::{
            inbound_read::InboundRead,
            sizes::{ListLimits, ulpdu_max},
        },
    },
};

/// Header fields of a message, with its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum OutboundMessage {
    Send { kind: SendKind, msn: Msn },
    Write { stag: Stag, offset: TaggedOffset },
    Read { msn: Msn, request: ReadRequest },
    Response(InboundRead),
    Atomic { msn: Msn, request: AtomicRequest },
    AtomicResponse { msn: Msn, response: AtomicResponse },
    Immediate { msn: Msn, data: [u8; IMMEDIATE_OCTETS], solicited: bool },
}

/// Message being segmented.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) source: OutboundMessage,
    pub(super) segmenter: Segmenter,
    /// True if its payload is copied.
    pub(super) is_copied: bool,
}

/// Next segment of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum NextCut {
    /// The message waits for the next list.
    NoRoom,
    /// All segments are cut.
    End,
    Cut(Cut),
}

impl Message {
    /// Cuts the next segment, after `filled` bytes of a list.
    #[inline(always)]
    pub(super) fn next_cut(
        &mut self,
        size: FpduSize,
        markers: bool,
        limits: ListLimits,
        filled: usize,
    ) -> NextCut {
        let header_octets = self.source.header_octets();
        let message = (header_octets, self.segmenter.remaining() as usize);
        match ulpdu_max(size, markers, limits, filled, message) {
            None => NextCut::NoRoom,
            Some(mulpdu) => {
                self.segmenter.next(mulpdu, header_octets).map_or(NextCut::End, NextCut::Cut)
            }
        }
    }
}

impl OutboundMessage {
    pub(super) const fn is_request(&self) -> bool {
        !matches!(self, Self::Response(_) | Self::AtomicResponse { .. })
    }

    /// Returns true if the peer answers the request.
    pub(super) const fn awaits_response(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }

    /// Returns true if the peer counts the message when it acknowledges ([`QpService::Rc`](crate::rnic::QpService)).
    pub(super) const fn is_counted(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { .. } | Self::Immediate { .. })
    }

    pub(super) const fn header_octets(&self) -> usize {
        match self {
            Self::Send { .. } => UNTAGGED_OCTETS,
            Self::Write { .. } | Self::Response(_) => TAGGED_OCTETS,
            Self::Read { .. } => UNTAGGED_OCTETS + READ_REQUEST_OCTETS,
            Self::Atomic { .. } => UNTAGGED_OCTETS + ATOMIC_REQUEST_OCTETS,
            Self::AtomicResponse { .. } => UNTAGGED_OCTETS + ATOMIC_RESPONSE_OCTETS,
            Self::Immediate { .. } => UNTAGGED_OCTETS + IMMEDIATE_OCTETS,
        }
    }

    #[inline(always)]
    pub(super) fn header(&self, offset: u32, last: bool) -> HeaderOctets {
        let at = |TaggedOffset(start)| TaggedOffset(start.wrapping_add(u64::from(offset)));
        match *self {
            Self::Send { kind, msn } => send_header(last, kind, msn, offset),
            Self::Write { stag, offset } => write_header(last, stag, at(offset)),
            Self::Read { msn, request } => read_request_header(msn, &request),
            Self::Response(InboundRead { request, .. }) => {
                read_response_header(last, request.sink_stag, at(request.sink_offset))
            }
            Self::Atomic { msn, request } => atomic_request_header(msn, &request),
            Self::AtomicResponse { msn, response } => atomic_response_header(msn, &response),
            Self::Immediate { msn, data, solicited } => immediate_header(solicited, msn, data),
        }
    }
}

/// Request that the peer answers. These requests share one numbering and are answered in order.
#[derive(Clone, Copy, Debug)]
pub(in crate::rnic::stream) struct Outstanding {
    /// Serial of the request; `None` for an RTR.
    pub(in crate::rnic::stream) serial: Option<u64>,
    pub(in crate::rnic::stream) response: Response,
}

/// Response expected from the peer.
#[derive(Clone, Copy, Debug)]
pub(in crate::rnic::stream) enum Response {
    Read(PendingRead),
    /// Response to the atomic with this identifier.
    Atomic(u32),
}

impl Response {
    /// Returns true if it has started, and its last segment has not arrived.
    pub(super) const fn is_in_message(&self) -> bool {
        match self {
            Self::Read(pending) => pending.is_in_message(),
            Self::Atomic(_) => false,
        }
    }
}
