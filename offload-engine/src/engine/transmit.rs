//! Transmission of segments and of the host's frames: headers, offloads, and the queue for a full link.
//!
//! Limit: [`STALLED_FRAMES_MAX`](super::STALLED_FRAMES_MAX) frames are queued while the link is full.

use std::{format, string::String, vec::Vec};

use super::{
    Engine, Stalled,
    adapter::FrameCount,
    connections::Offloaded,
    loans::SegmentLender,
    payload::{FramePieces, Payload},
};
use crate::{
    frame::{HEADER_BYTES_MAX, HeaderTemplate},
    link::{
        Lender, Link, TX_PAYLOAD_SLICES_MAX, TxChecksum, TxFrame, TxOffload, TxOutcome, TxSegment,
    },
    memory::Piece,
    tcp::{self, Flags, Transmit},
    time::Instant,
};

const _: () = assert!(tcp::SLICES_MAX <= TX_PAYLOAD_SLICES_MAX);

impl Engine {
    /// Sends frames queued for a full link. Returns true if any was sent.
    pub(super) fn resend_stalled(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while let Some(Stalled { frame, head_len, offload }) = self.stalled.front() {
            let (head, payload) = frame.split_at(*head_len);
            let payload = [Piece::Private(payload)];
            let (offload, payload) = (*offload, &payload[..]);
            let frame = TxFrame { offload, head, payload, lender: None, comment: None };
            if self.link.transmit(now, &frame) == TxOutcome::Full {
                break;
            }
            self.unflushed = true;
            self.stalled.pop_front();
            busy = true;
        }
        busy
    }

    /// Sends a segment of a connection. `reset` is true if it resets an established connection. A GSO packet that
    /// exceeds the link's limit is segmented here: TCP is polled once and has one record for all of its frames.
    pub(super) fn transmit_segment(
        &mut self,
        now: Instant,
        slot: usize,
        transmit: &Transmit,
        reset: bool,
    ) {
        let uses_comments = self.link.uses_comments();
        let Self {
            connections,
            link,
            capabilities,
            statistics,
            stalled,
            stats,
            borrowed,
            unflushed,
            ..
        } = self;
        let Some(offloaded) = connections.slot(slot) else { return };
        let statistics = &mut statistics[usize::from(offloaded.headers.is_ipv6())];
        if reset {
            statistics.reset_established();
        }
        let is_invalid = offloaded.tcp.is_invalid();
        let frame_payload_max = offloaded.gso_payload_max();
        let Offloaded { tcp, headers, hand_over, sent_since_data, loans, .. } = offloaded;
        *sent_since_data |= !is_invalid;
        let mut payload = Payload::new(tcp.payload(transmit));
        let mut segment = *transmit;
        let mut left = transmit.payload_len;
        loop {
            segment.payload_len = left.min(frame_payload_max);
            left -= segment.payload_len;
            let last = left == 0;
            segment.flags = flags_of_piece(transmit.flags, segment.seq == transmit.seq, last);
            let pieces = match segment.payload_len <= segment.mss {
                true => 1,
                false => segment.payload_len.div_ceil(segment.mss.max(1)),
            };
            let mut header = [0; HEADER_BYTES_MAX];
            let header_len = write_header(headers, &segment, pieces, &mut header);
            let header = &mut header[..header_len];
            let counted = FrameCount {
                segments: pieces,
                header_octets: header_len - headers.ip_offset(),
                payload_octets: segment.payload_len,
            };
            if is_invalid {
                // CH-INV-2: the RST of an abortive disconnect is not sent.
                stats.tx_invalid += 1;
                statistics.sent(&segment, counted, None);
                return;
            }
            let mut places = FramePieces::new();
            let payload = payload.cut(segment.payload_len, &mut places);
            let comment = uses_comments.then(|| comment_of(hand_over.take(), &segment)).flatten();
            let offload = if capabilities.tx_checksum {
                offload_of(headers, &segment, header_len)
            } else {
                headers.finish_checksum(header, payload.iter().copied());
                TxOffload::default()
            };
            let lender = SegmentLender { tcp, transmit, loans };
            let (lender, comment) = (Some(&lender as &dyn Lender), comment.as_deref());
            let frame = TxFrame { offload, head: header, payload, lender, comment };
            // Queued frames precede this one; sending it directly would reorder them.
            let outcome = match stalled.is_empty() {
                true => link.transmit(now, &frame),
                false => TxOutcome::Full,
            };
            if outcome == TxOutcome::Full {
                stats.tx_stalled += 1;
                let copy = Stalled { frame: gather(&frame), head_len: header_len, offload };
                stalled.push_back(copy);
            }
            stats.tx_segments += 1;
            statistics.sent(&segment, counted, Some(outcome));
            if last {
                Self::track_loan(loans, slot, borrowed);
                *unflushed = true;
                return;
            }
            segment.seq += segment.payload_len as u32;
            segment.nbl_context = None;
        }
    }

    /// Sends a frame of the host stack, or queues it while the link is full.
    pub(super) fn transmit_or_stall(
        &mut self,
        now: Instant,
        offload: TxOffload,
        head: &[u8],
        payload: &[Piece<'_>],
        comment: Option<&str>,
    ) {
        let frame = TxFrame { offload, head, payload, lender: None, comment };
        // Queued frames precede this one, as in `transmit_segment`.
        let full = !self.stalled.is_empty();
        self.unflushed = true;
        if full || self.link.transmit(now, &frame) == TxOutcome::Full {
            if self.is_stalled() {
                self.stats.tx_lost += 1;
                return;
            }
            self.stats.tx_stalled += 1;
            self.stalled.push_back(Stalled {
                frame: gather(&frame),
                head_len: head.len(),
                offload,
            });
        }
    }
}

fn gather(frame: &TxFrame<'_>) -> Vec<u8> {
    let mut all = Vec::with_capacity(frame.len());
    frame.gather_into(&mut all);
    all
}

/// Flags of one frame of a segmented GSO packet. PSH and FIN are set in the last, CWR in the first (RFC 3168 §6.1.2).
pub(super) fn flags_of_piece(flags: Flags, first: bool, last: bool) -> Flags {
    let end = if last { Flags::default() } else { Flags::PSH | Flags::FIN };
    let start = if first { Flags::default() } else { Flags::CWR };
    Flags(flags.0 & !(end | start).0)
}

fn offload_of(headers: &HeaderTemplate, transmit: &Transmit, header_len: usize) -> TxOffload {
    let checksum = Some(TxChecksum { start: headers.tcp_offset() as u16, offset: 16 });
    let segment = (transmit.payload_len > transmit.mss).then(|| TxSegment {
        size: transmit.mss as u16,
        header_len: header_len as u16,
        ipv6: headers.is_ipv6(),
    });
    TxOffload { checksum, segment }
}

/// Writes the headers of a segment, or of a GSO packet that the link segments into `pieces`. Returns their length.
fn write_header(
    headers: &mut HeaderTemplate,
    transmit: &Transmit,
    pieces: usize,
    header: &mut [u8; HEADER_BYTES_MAX],
) -> usize {
    headers.write(header, &transmit.header(), u16::try_from(pieces).unwrap_or(u16::MAX))
}

/// Capture comment of a segment: the migration it follows, and the list whose bytes it carries.
fn comment_of(hand_over: Option<&str>, transmit: &Transmit) -> Option<String> {
    let again = if transmit.retransmission { ", retransmission" } else { "" };
    match (hand_over, transmit.nbl_context) {
        (None, None) => None,
        (Some(hand_over), None) => Some(hand_over.into()),
        (None, Some(context)) => Some(format!("NBL {context:#x}{again}")),
        (Some(hand_over), Some(context)) => Some(format!("{hand_over}; NBL {context:#x}{again}")),
    }
}
