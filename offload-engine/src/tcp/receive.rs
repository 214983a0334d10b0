//! The receive side: RCV.NXT, the advertised window, what waits for the consumer, and when to acknowledge.
//!
//! The window is `limit` less what waits in the backlog (CH-IND-6). Its right edge never moves left
//! (CH P9, RFC 9293 s3.8.6), moves right only by an MSS or half of the limit (s3.8.6.2.2), and is
//! rounded up to the scale's unit when rounding down would move it left, never more than one unit
//! beyond the limit.
//!
//! An ACK is due at once after `ack_frequency` segments or [`ACK_BYTES_MAX`] bytes, after anything out
//! of order, duplicate, or that fills a hole (RFC 5681 s4.2), after a FIN and after a refusal of
//! data outside the window, and for the next [`QUICK_ACKS`] segments while a sender repairs a loss
//! with few segments in flight; otherwise after the delayed-ACK time.

use alloc::collections::VecDeque;
use core::ops::Range;

use bytes::Bytes;

use super::{Config, SackBlock, reassembly::Reassembly, seq::Position};

/// Bytes received after which an ACK is due whatever the frequency says.
pub(super) const ACK_BYTES_MAX: u64 = 32 * 1024;
/// ACKs sent without delay after something arrived out of order or twice: a sender that repairs a loss
/// may have only one segment in flight.
const QUICK_ACKS: u8 = 16;
/// Largest window field.
const WINDOW_FIELD_MAX: u64 = 65_535;
/// Waiting pieces are joined up to this size, in bytes, so that tiny segments cost little memory.
const BACKLOG_JOIN_MAX: usize = 4096;
/// Most duplicate ACKs owed at once to a peer without SACK.
const DUPLICATE_ACKS_MAX: u32 = 64;

#[derive(Debug)]
struct Waiting {
    data: Bytes,
    push: bool,
}

/// How urgent an ACK is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum AckDue {
    /// None is owed.
    No,
    /// One is owed, with delay.
    Delayed,
    /// One is owed now.
    Now,
}

/// The receive side of one connection.
#[derive(Debug)]
pub(super) struct Receiver {
    nxt: Position,
    /// Right edge of the window that the peer has been told.
    edge: Position,
    /// SEG.ACK sent last (RFC 7323 s4.3, Last.ACK.sent).
    last_ack: Position,
    limit: u64,
    scale: u8,
    mss: u64,
    sack: bool,
    ack_frequency: u32,
    backlog: VecDeque<Waiting>,
    backlog_bytes: u64,
    reassembly: Reassembly,
    /// Where the peer's FIN stands, once known.
    fin: Option<Position>,
    fin_reached: bool,
    blocked: bool,
    due: AckDue,
    unacked_segments: u32,
    unacked_bytes: u64,
    duplicates_owed: u32,
    /// ACKs that are still to go out without delay.
    quick: u8,
    duplicate: Option<(Position, Position)>,
}

impl Receiver {
    pub(super) fn new(nxt: Position, window: u32, scale: u8, sack: bool, config: &Config) -> Self {
        Self {
            nxt,
            edge: nxt + u64::from(window),
            last_ack: nxt,
            limit: 0,
            scale,
            mss: 1,
            sack,
            ack_frequency: u32::from(config.ack_frequency.max(1)),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            reassembly: Reassembly::new(config.reassembly_bytes_max, config.reassembly_gaps_max),
            fin: None,
            fin_reached: false,
            blocked: false,
            due: AckDue::No,
            unacked_segments: 0,
            unacked_bytes: 0,
            duplicates_owed: 0,
            quick: 0,
            duplicate: None,
        }
    }

    /// Sets the window's limit in bytes, bounded by what the window field can say.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = u64::from(limit).min(WINDOW_FIELD_MAX << self.scale);
    }

    /// Sets the size of the peer's full segments, in bytes.
    pub(super) fn set_mss(&mut self, mss: u64) {
        self.mss = mss.max(1);
    }

    /// RCV.NXT.
    pub(super) const fn nxt(&self) -> Position {
        self.nxt
    }

    /// Right edge of the advertised window.
    pub(super) const fn edge(&self) -> Position {
        self.edge
    }

    /// RCV.WND: what remains of the advertised window, in bytes.
    pub(super) const fn window(&self) -> u64 {
        self.edge.since(self.nxt)
    }

    /// SEG.ACK of the last segment sent.
    pub(super) const fn last_ack(&self) -> Position {
        self.last_ack
    }

    /// The peer's FIN, and everything before it, has arrived.
    pub(super) const fn fin_reached(&self) -> bool {
        self.fin_reached
    }

    /// The peer's FIN is behind us already: the connection was taken over after it.
    pub(super) fn set_fin_reached(&mut self) {
        self.fin = Some(self.nxt.previous());
        self.fin_reached = true;
    }

    /// Takes bytes that the previous owner had received but not delivered (CH-DEL-3).
    pub(super) fn adopt_buffered(&mut self, data: Bytes) {
        self.push_waiting(data, false);
    }

    /// Takes bytes right of RCV.NXT that the previous owner had selectively acknowledged.
    pub(super) fn adopt_out_of_order(&mut self, start: Position, data: &Bytes) {
        self.reassembly.adopt(start, data);
    }

    /// Takes the payload of an acceptable segment that starts at `start`; `pieces` segments were
    /// coalesced into it. Returns the part that continues the stream, and whether it ends with the PSH.
    pub(super) fn accept(
        &mut self,
        start: Position,
        payload: &[u8],
        pieces: u32,
        push: bool,
        fin: bool,
    ) -> (Range<usize>, bool) {
        let end = start + payload.len() as u64;
        if fin && end <= self.edge && end >= self.nxt {
            // A second opinion about the end of the stream is a peer's error: the first one stands.
            self.fin.get_or_insert(end);
        }
        if fin {
            self.due = AckDue::Now;
        }
        let limit = self.fin.map_or(self.edge, |fin| fin.min(self.edge));
        let from = self.nxt.max(start).min(end.max(start));
        let to = end.min(limit).max(from);
        let range = index(start, from)..index(start, to);
        if !payload.is_empty() {
            self.count(payload.len() as u64, pieces);
        }
        if start < self.nxt || to < end {
            self.due = AckDue::Now;
            self.quick = QUICK_ACKS;
        }
        if start < self.nxt && start < end {
            self.duplicate = Some((start, end.min(self.nxt)));
        }
        if range.is_empty() {
            return (0..0, false);
        }
        let push = push && to == end;
        if from > self.nxt {
            self.due = AckDue::Now;
            self.quick = QUICK_ACKS;
            self.duplicates_owed = (self.duplicates_owed + 1).min(DUPLICATE_ACKS_MAX);
            if self.reassembly.holds(from, to) {
                self.duplicate = Some((from, to));
            }
            self.reassembly.insert(from, &payload[range], push);
            return (0..0, false);
        }
        self.nxt = to;
        if !self.reassembly.is_empty() {
            self.due = AckDue::Now;
        }
        (range, push)
    }

    fn count(&mut self, bytes: u64, pieces: u32) {
        self.unacked_segments = self.unacked_segments.saturating_add(pieces);
        self.unacked_bytes += bytes;
        let now = self.unacked_segments >= self.ack_frequency
            || self.unacked_bytes >= ACK_BYTES_MAX
            || self.quick > 0;
        self.due = self.due.max(if now { AckDue::Now } else { AckDue::Delayed });
    }

    /// Ends the processing of a segment: what the consumer refused, then what has become contiguous,
    /// waits for it; then the FIN counts.
    pub(super) fn settle(&mut self, refused: &[u8], push: bool) {
        if !refused.is_empty() {
            self.wait(refused, push);
        }
        while let Some(piece) = self.reassembly.pop(self.nxt) {
            self.nxt += piece.data.len() as u64;
            self.push_waiting(piece.data, piece.push);
        }
        if !self.fin_reached && self.fin == Some(self.nxt) {
            self.nxt += 1;
            self.fin_reached = true;
            self.reassembly.clear();
            self.due = AckDue::Now;
        }
    }

    fn wait(&mut self, data: &[u8], push: bool) {
        if let Some(last) = self.backlog.back_mut()
            && !last.push
            && last.data.len() + data.len() <= BACKLOG_JOIN_MAX
        {
            match core::mem::take(&mut last.data).try_into_mut() {
                Ok(mut joined) => {
                    joined.extend_from_slice(data);
                    *last = Waiting { data: joined.freeze(), push };
                    self.backlog_bytes += data.len() as u64;
                    return;
                }
                Err(shared) => last.data = shared,
            }
        }
        self.push_waiting(Bytes::copy_from_slice(data), push);
    }

    fn push_waiting(&mut self, data: Bytes, push: bool) {
        if !data.is_empty() {
            self.backlog_bytes += data.len() as u64;
            self.backlog.push_back(Waiting { data, push });
        }
    }

    /// The front of what waits for the consumer, and whether it ends with a PSH.
    pub(super) fn backlog(&self) -> Option<(&Bytes, bool)> {
        self.backlog.front().map(|waiting| (&waiting.data, waiting.push))
    }

    /// Bytes that wait for the consumer.
    pub(super) const fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// The consumer has taken `count` bytes of the front. An ACK is due when the window can reopen by
    /// two segments or half of its limit.
    pub(super) fn consumed(&mut self, count: usize) {
        let Some(front) = self.backlog.front_mut() else { return };
        let count = count.min(front.data.len());
        self.backlog_bytes -= count as u64;
        bytes::Buf::advance(&mut front.data, count);
        if front.data.is_empty() {
            self.backlog.pop_front();
        }
        let opening = self.open_edge().since(self.edge);
        if opening > 0 && opening >= (2 * self.mss).min(self.limit / 2) && !self.fin_reached {
            self.due = AckDue::Now;
        }
    }

    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// Takes everything undelivered, for a hand-over: the backlog, and the pieces right of RCV.NXT.
    pub(super) fn take(&mut self) -> (alloc::vec::Vec<Bytes>, alloc::vec::Vec<(Position, Bytes)>) {
        self.backlog_bytes = 0;
        let backlog = self.backlog.drain(..).map(|waiting| waiting.data).collect();
        (backlog, self.reassembly.take().map(|piece| (piece.start, piece.data)).collect())
    }

    /// Drops everything undelivered (CH-EVT-7).
    pub(super) fn discard(&mut self) {
        self.backlog.clear();
        self.backlog_bytes = 0;
        self.reassembly.clear();
        self.due = AckDue::No;
        self.duplicates_owed = 0;
    }

    // Acknowledging.

    /// How urgent an ACK is.
    pub(super) const fn ack_due(&self) -> AckDue {
        self.due
    }

    /// Makes an ACK due now.
    pub(super) fn ack_now(&mut self) {
        self.due = AckDue::Now;
    }

    /// Whether the next ACK has to be a segment of its own: SACK blocks travel without data, so that a
    /// data segment never shrinks and a duplicate ACK is one in the sense of RFC 5681 s2.
    pub(super) fn wants_bare_ack(&self) -> bool {
        self.due == AckDue::Now
            && (self.duplicates_owed > 0
                || self.sack && (self.duplicate.is_some() || !self.reassembly.is_empty()))
    }

    /// The farthest edge that the limit allows.
    fn open_edge(&self) -> Position {
        let free = self.limit.saturating_sub(self.backlog_bytes);
        self.nxt + (free >> self.scale << self.scale)
    }

    /// The window field of a segment that is being sent, and with it an acknowledgement.
    pub(super) fn advertise(&mut self) -> u16 {
        let open = self.open_edge();
        if open.since(self.edge) >= self.mss.min(self.limit / 2).max(1) {
            self.edge = open;
        }
        let unit = 1 << self.scale;
        let window = self.window();
        let mut field = window.div_ceil(unit).min(WINDOW_FIELD_MAX);
        let rounded = self.nxt + field * unit;
        let within_limit = rounded + self.backlog_bytes <= self.nxt + self.limit + unit;
        if rounded <= self.edge || within_limit {
            self.edge = self.edge.max(rounded);
        } else {
            field = window / unit;
        }
        self.last_ack = self.nxt;
        if self.unacked_segments > 0 {
            self.quick = self.quick.saturating_sub(1);
        }
        self.unacked_segments = 0;
        self.unacked_bytes = 0;
        self.duplicates_owed = if self.sack { 0 } else { self.duplicates_owed.saturating_sub(1) };
        self.due = if self.duplicates_owed > 0 { AckDue::Now } else { AckDue::No };
        u16::try_from(field).unwrap_or(u16::MAX)
    }

    /// SACK blocks for a bare ACK, a report of a duplicate first (RFC 2883 s4); returns how many.
    pub(super) fn sack_blocks(&mut self, blocks: &mut [SackBlock]) -> usize {
        if !self.sack || blocks.is_empty() {
            return 0;
        }
        match self.duplicate.take() {
            Some((start, end)) => {
                blocks[0] = SackBlock { start: start.seq(), end: end.seq() };
                1 + self.reassembly.blocks(&mut blocks[1..])
            }
            None => self.reassembly.blocks(blocks),
        }
    }
}

fn index(start: Position, at: Position) -> usize {
    usize::try_from(at.since(start)).unwrap_or(usize::MAX)
}
