//! Receive side: RCV.NXT, the advertised window, the backlog for the consumer, and the ACK policy.
//!
//! **Window.** `limit` less the backlog (CH-IND-6). The limit starts at InitialRcvWnd and grows with the bytes that the
//! consumer takes (`autotune`). The right edge never moves left (P9, RFC 9293 §3.8.6): an advertised edge is honored,
//! although the field may be lower by part of one unit of the scale (RFC 7323 §2.4). It moves right only by an MSS or
//! half of the limit (§3.8.6.2.2). It is rounded up to the unit where rounding down would move it left, never more than
//! one unit beyond the limit. After the consumer takes bytes of the backlog, a window update is sent if it at least
//! doubles the remaining window. It must also be worth two segments or half of the limit.
//!
//! **Acknowledgments.** At most one per batch of input. An ACK is due without delay:
//!
//! - after `ack_frequency` segments, the bytes of as many full-sized ones, or [`ACK_BYTES_MAX`] (RFC 9293 §3.8.6.3);
//!   the full size is measured, as links coalesce segments and peers send less than our MSS;
//! - for a full-sized segment, the first [`Config::quick_acks`] times after an offload, since the peer may be in slow
//!   start;
//! - after data that is out of order, duplicate, or fills a gap (RFC 5681 §4.2);
//! - after a FIN, and after refused data outside the window;
//! - for the next [`QUICK_ACKS`] segments after a loss, as the sender may have few segments in flight.
//!
//! Otherwise it is due after the delayed-ACK time. PSH alone makes no ACK due: the consumer's response would carry it.
//!
//! **Overlaps.** The first copy is kept: later bytes with the same sequence numbers replace neither in-order nor
//! out-of-order bytes.
//!
//! **Memory.** The backlog is left of RCV.NXT, and out-of-order data is between RCV.NXT and the edge. Together they
//! contain at most `limit` (or the window that the previous owner advertised, if larger) and one unit of the scale: 4
//! MiB by default at most. Buffers may be twice as large as their bytes. Small pieces are joined, so that tiny segments
//! cost little more: see [`Config::receive_memory_max`].

use alloc::collections::VecDeque;
use core::ops::Range;

use bytes::Bytes;

use super::{Config, SackBlock, autotune::Autotune, reassembly::Reassembly, seq::Position};
use crate::time::{Duration, Instant};

/// Bytes received after which an ACK is due, regardless of the frequency.
pub(super) const ACK_BYTES_MAX: u64 = 32 * 1024;
/// ACKs sent without delay after out-of-order or duplicate data: a sender in loss recovery may have only one segment in
/// flight.
const QUICK_ACKS: u8 = 16;
/// Largest window field.
const WINDOW_FIELD_MAX: u64 = 65_535;
/// Size in bytes up to which backlog pieces are joined, so that tiny segments cost little memory.
const BACKLOG_JOIN_MAX: usize = 4096;
/// Backlog pieces that a PSH may keep separate. Beyond it they are joined too: a PSH is not a record mark (RFC 9293
/// §3.9.1.2).
const BACKLOG_PIECES_MAX: usize = 1024;
/// Full size of the peer's segments before the first one (RFC 9293 §3.7.1), in bytes.
const FULL_SIZE_DEFAULT: u64 = 536;
/// Largest age in bytes of a reported duplicate (RFC 2883): the largest window (RFC 7323 §2.3). Half of the sequence
/// space away, old and new data cannot be distinguished.
const DUPLICATE_AGE_MAX: u64 = 1 << 30;
/// Maximum number of duplicate ACKs pending at once for a peer without SACK.
const DUPLICATE_ACKS_MAX: u32 = 64;

#[derive(Debug)]
struct BacklogPiece {
    data: Bytes,
    push: bool,
}

/// Urgency of an ACK.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum AckDue {
    /// No ACK is pending.
    No,
    /// An ACK is pending, with delay.
    Delayed,
    /// An ACK is due now.
    Now,
}

/// Acceptable segment, as input of the receive side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) start: Position,
    pub(super) payload: &'a [u8],
    /// Segments that the link has coalesced into this one, and the payload bytes of the largest.
    pub(super) pieces: u32,
    pub(super) piece_size: u64,
    pub(super) push: bool,
    pub(super) fin: bool,
}

impl Arrival<'_> {
    fn end(&self) -> Position {
        self.start + self.payload.len() as u64
    }
}

/// Receive side of one connection.
#[derive(Debug)]
pub(super) struct Receiver {
    nxt: Position,
    /// Right edge of the window that was advertised to the peer.
    edge: Position,
    /// SEG.ACK of the last segment sent (RFC 7323 §4.3, Last.ACK.sent).
    last_ack: Position,
    limit: u64,
    autotune: Autotune,
    scale: u8,
    mss: u64,
    /// Measured payload bytes of a full-sized segment, and of the last smaller one.
    full_size: u64,
    small_size: u64,
    sack: bool,
    ack_frequency: u32,
    backlog: VecDeque<BacklogPiece>,
    backlog_bytes: u64,
    reassembly: Reassembly,
    /// Position of the peer's FIN, once known.
    fin: Option<Position>,
    fin_reached: bool,
    blocked: bool,
    due: AckDue,
    unacked_segments: u32,
    unacked_bytes: u64,
    duplicates_pending: u32,
    /// Bytes indicated and not yet settled.
    indicated: u64,
    /// Remaining ACKs without delay.
    quick: u8,
    /// Remaining ACKs without delay for full-sized segments.
    quick_start: u8,
    duplicate: Option<(Position, Position)>,
}

impl Receiver {
    pub(super) fn new(nxt: Position, window: u32, scale: u8, sack: bool, config: &Config) -> Self {
        Self {
            nxt,
            edge: nxt + u64::from(window),
            last_ack: nxt,
            limit: 0,
            autotune: Autotune::new(config.rcv_wnd_max),
            scale,
            mss: 1,
            full_size: FULL_SIZE_DEFAULT,
            small_size: 0,
            sack,
            ack_frequency: u32::from(config.ack_frequency.max(1)),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            reassembly: Reassembly::new(config.reassembly_gaps_max),
            fin: None,
            fin_reached: false,
            blocked: false,
            due: AckDue::No,
            unacked_segments: 0,
            unacked_bytes: 0,
            duplicates_pending: 0,
            indicated: 0,
            quick: 0,
            quick_start: config.quick_acks,
            duplicate: None,
        }
    }

    /// Sets the window's limit in bytes, bounded by the window field.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = u64::from(limit).min(WINDOW_FIELD_MAX << self.scale);
    }

    /// Sets the limit chosen by the host and stops its growth (CH-UPD-5).
    pub(super) fn fix_limit(&mut self, limit: u32) {
        self.autotune.stop();
        self.set_limit(limit);
    }

    /// Limit of the window, in bytes.
    pub(super) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Measured payload bytes of the peer's full-sized segments.
    pub(super) const fn full_size(&self) -> u64 {
        self.full_size
    }

    /// The receiver's estimate of the round-trip time.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.autotune.rtt()
    }

    /// Processes a full-sized segment that echoes our timestamp of `age` ago.
    pub(super) fn on_echo(&mut self, echo: u32, age: Duration) {
        self.autotune.on_echo(echo, age);
    }

    /// Passes the last accepted data to autotuning.
    #[inline]
    pub(super) fn measure(&mut self, now: Instant) {
        self.autotune.on_data(now, self.nxt, self.edge);
    }

    #[inline]
    fn grow(&mut self, now: Instant, consumed: u64) {
        if consumed == 0 {
            return;
        }
        if let Some(limit) = self.autotune.on_consumed(now, consumed, self.mss) {
            self.limit = self.limit.max(limit.min(WINDOW_FIELD_MAX << self.scale));
        }
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

    /// RCV.WND: remaining bytes of the advertised window.
    pub(super) const fn window(&self) -> u64 {
        self.edge.since(self.nxt)
    }

    /// SEG.ACK of the last segment sent.
    pub(super) const fn last_ack(&self) -> Position {
        self.last_ack
    }

    /// True if the peer's FIN, and everything before it, has arrived.
    pub(super) const fn fin_reached(&self) -> bool {
        self.fin_reached
    }

    /// Marks the peer's FIN as received before the offload.
    pub(super) fn set_fin_reached(&mut self) {
        self.fin = Some(self.nxt.previous());
        self.fin_reached = true;
    }

    /// Imports bytes that the previous owner had received but not delivered (CH-DEL-3).
    pub(super) fn adopt_buffered(&mut self, data: Bytes) {
        self.push_backlog(data, false);
    }

    /// Imports bytes right of RCV.NXT that the previous owner had selectively acknowledged.
    pub(super) fn adopt_out_of_order(&mut self, start: Position, data: &Bytes) {
        self.reassembly.adopt(start, data);
    }

    /// Accepts the payload of an acceptable segment. Returns the part that continues the stream, and true if it ends
    /// with the PSH.
    pub(super) fn accept(&mut self, arrival: &Arrival<'_>) -> (Range<usize>, bool) {
        let &Arrival { start, payload, push, fin, .. } = arrival;
        let end = arrival.end();
        let expected = start == self.nxt && start < end && end <= self.edge;
        if expected && !fin && self.fin.is_none() && self.reassembly.is_empty() {
            // The whole segment is new and in order, and no other data is kept.
            self.count(arrival);
            return self.take_in_order(start, payload, (start, end), push);
        }
        if fin {
            if end <= self.edge && end >= self.nxt {
                // A second FIN position is the peer's error: the first one is kept.
                self.fin.get_or_insert(end);
            }
            self.due = AckDue::Now;
        }
        let limit = self.fin.map_or(self.edge, |fin| fin.min(self.edge));
        let from = self.nxt.max(start).min(end.max(start));
        let to = end.min(limit).max(from);
        if !payload.is_empty() {
            self.count(arrival);
        }
        if start < self.nxt || to < end {
            self.due = AckDue::Now;
            self.quick = QUICK_ACKS;
        }
        if start < self.nxt && start < end && self.nxt.since(start) <= DUPLICATE_AGE_MAX {
            self.duplicate = Some((start, end.min(self.nxt)));
        }
        if from == to {
            return (0..0, false);
        }
        let push = push && to == end;
        if from > self.nxt {
            self.keep_out_of_order(from, &payload[index(start, from)..index(start, to)], push);
            return (0..0, false);
        }
        self.take_in_order(start, payload, (from, to), push)
    }

    /// Keeps out-of-order data.
    fn keep_out_of_order(&mut self, from: Position, data: &[u8], push: bool) {
        self.due = AckDue::Now;
        self.quick = QUICK_ACKS;
        self.duplicates_pending = (self.duplicates_pending + 1).min(DUPLICATE_ACKS_MAX);
        let to = from + data.len() as u64;
        if self.reassembly.contains(from, to) {
            self.duplicate = Some((from, to));
        }
        self.reassembly.insert(from, data, push);
    }

    /// Advances RCV.NXT over the part of a segment that continues the stream, up to data kept before.
    fn take_in_order(
        &mut self,
        start: Position,
        payload: &[u8],
        (from, to): (Position, Position),
        push: bool,
    ) -> (Range<usize>, bool) {
        let mut fresh = to;
        if let Some(held) = self.reassembly.first() {
            self.due = AckDue::Now;
            fresh = held.max(from).min(to);
            // Fills the gaps after it; `settle` delivers them.
            self.reassembly.insert(fresh, &payload[index(start, fresh)..index(start, to)], push);
        }
        self.nxt = fresh;
        self.indicated = fresh.since(from);
        (index(start, from)..index(start, fresh), push && fresh == to)
    }

    #[inline]
    fn count(&mut self, arrival: &Arrival<'_>) {
        self.update_full_size(arrival.piece_size, arrival.push);
        self.unacked_segments = self.unacked_segments.saturating_add(arrival.pieces);
        self.unacked_bytes += arrival.payload.len() as u64;
        let full = arrival.piece_size >= self.full_size;
        let enough = u64::from(self.ack_frequency) * self.full_size;
        let now = self.unacked_segments >= self.ack_frequency
            || self.unacked_bytes >= enough.min(ACK_BYTES_MAX)
            || self.quick > 0
            || (self.quick_start > 0 && full);
        self.due = self.due.max(if now { AckDue::Now } else { AckDue::Delayed });
    }

    /// Updates the full size: the largest size seen, at most our MSS. A smaller size replaces it if seen twice in a row
    /// without a PSH, as the path may have changed.
    #[inline]
    fn update_full_size(&mut self, size: u64, push: bool) {
        let size = size.min(self.mss);
        if size >= self.full_size || size == self.small_size {
            self.full_size = size;
            self.small_size = 0;
        } else {
            self.small_size = if push || size < FULL_SIZE_DEFAULT { 0 } else { size };
        }
    }

    /// Finishes the processing of a segment: refused data, then data that has become contiguous, joins the backlog.
    /// Then the FIN is processed.
    #[inline]
    pub(super) fn settle(&mut self, now: Instant, refused: &[u8], push: bool) {
        let indicated = core::mem::take(&mut self.indicated);
        self.grow(now, indicated.saturating_sub(refused.len() as u64));
        if !refused.is_empty() {
            self.add_backlog(refused, push);
        }
        while let Some(piece) = self.reassembly.pop(self.nxt) {
            self.nxt += piece.data.len() as u64;
            // Large pieces are moved without a copy.
            if !self.append_backlog(&piece.data, piece.push) {
                self.push_backlog(piece.data, piece.push);
            }
        }
        if !self.fin_reached && self.fin == Some(self.nxt) {
            self.nxt += 1;
            self.fin_reached = true;
            self.reassembly.clear();
            self.due = AckDue::Now;
        }
    }

    fn add_backlog(&mut self, data: &[u8], push: bool) {
        if !self.append_backlog(data, push) {
            self.push_backlog(Bytes::copy_from_slice(data), push);
        }
    }

    /// Appends `data` to the last backlog piece, if both are small and no PSH separates them.
    fn append_backlog(&mut self, data: &[u8], push: bool) -> bool {
        let many = self.backlog.len() >= BACKLOG_PIECES_MAX;
        let Some(last) = self.backlog.back_mut() else { return false };
        if last.push && !many || last.data.len() + data.len() > BACKLOG_JOIN_MAX {
            return false;
        }
        super::reassembly::append(&mut last.data, data);
        last.push = push;
        self.backlog_bytes += data.len() as u64;
        true
    }

    fn push_backlog(&mut self, data: Bytes, push: bool) {
        if !data.is_empty() {
            self.backlog_bytes += data.len() as u64;
            self.backlog.push_back(BacklogPiece { data, push });
        }
    }

    /// Front of the backlog, and true if it ends with a PSH.
    pub(super) fn backlog(&self) -> Option<(&Bytes, bool)> {
        self.backlog.front().map(|waiting| (&waiting.data, waiting.push))
    }

    /// Bytes of the backlog.
    pub(super) const fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// Removes `count` consumed bytes from the front. An ACK is due if the window can reopen by two segments or half of
    /// its limit, and at least doubles. A sender with much window left gets the update with the next data.
    pub(super) fn consumed(&mut self, now: Instant, count: usize) {
        let Some(front) = self.backlog.front_mut() else { return };
        let count = count.min(front.data.len());
        self.backlog_bytes -= count as u64;
        bytes::Buf::advance(&mut front.data, count);
        if front.data.is_empty() {
            self.backlog.pop_front();
        }
        self.grow(now, count as u64);
        let opening = self.open_edge().since(self.edge);
        let worth = (2 * self.mss).min(self.limit / 2).max(1);
        if opening >= worth.max(self.window()) && !self.fin_reached {
            self.due = AckDue::Now;
        }
    }

    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// Removes all undelivered data for an upload: the backlog, and the pieces right of RCV.NXT.
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
        self.duplicates_pending = 0;
    }

    /// Heap in use, in bytes. Consumes all pieces to read the capacities of their buffers.
    #[cfg(test)]
    pub(super) fn heap(&mut self) -> usize {
        let table = self.backlog.capacity() * size_of::<BacklogPiece>();
        let waiting =
            self.backlog.drain(..).map(|waiting| super::reassembly::capacity_of(waiting.data));
        table + waiting.sum::<usize>() + self.reassembly.heap()
    }

    // Acknowledgments.

    /// Urgency of the next ACK.
    pub(super) const fn ack_due(&self) -> AckDue {
        self.due
    }

    /// Makes an ACK due now.
    pub(super) fn ack_now(&mut self) {
        self.due = AckDue::Now;
    }

    /// True if the next ACK must be a separate segment. SACK blocks are sent without data, so that a data segment
    /// never shrinks and a duplicate ACK meets the definition of RFC 5681 §2.
    #[inline]
    pub(super) fn needs_pure_ack(&self) -> bool {
        self.due == AckDue::Now
            && (self.duplicates_pending > 0
                || self.sack && (self.duplicate.is_some() || !self.reassembly.is_empty()))
    }

    /// Farthest edge that the limit allows.
    #[inline]
    fn open_edge(&self) -> Position {
        let free = self.limit.saturating_sub(self.backlog_bytes);
        self.nxt + (free >> self.scale << self.scale)
    }

    /// Advertises the window: returns the window field of a segment that is sent now with an acknowledgment.
    #[inline]
    pub(super) fn advertise(&mut self) -> u16 {
        let open = self.open_edge();
        if open.since(self.edge) >= self.mss.min(self.limit / 2).max(1) {
            self.edge = open;
        }
        let unit = 1 << self.scale;
        let window = self.window();
        let mut field = ((window + unit - 1) >> self.scale).min(WINDOW_FIELD_MAX);
        let rounded = self.nxt + field * unit;
        let within_limit = rounded + self.backlog_bytes <= self.nxt + self.limit + unit;
        if rounded <= self.edge || within_limit {
            self.edge = self.edge.max(rounded);
        } else {
            field = window >> self.scale;
        }
        self.last_ack = self.nxt;
        if self.unacked_segments > 0 {
            self.quick = self.quick.saturating_sub(1);
            self.quick_start = self.quick_start.saturating_sub(1);
        }
        self.unacked_segments = 0;
        self.unacked_bytes = 0;
        self.duplicates_pending =
            if self.sack { 0 } else { self.duplicates_pending.saturating_sub(1) };
        self.due = if self.duplicates_pending > 0 { AckDue::Now } else { AckDue::No };
        u16::try_from(field).unwrap_or(u16::MAX)
    }

    /// Writes SACK blocks for a pure ACK, a DSACK first (RFC 2883 §4); returns their number.
    #[inline]
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

impl Config {
    /// Maximum heap of a connection's receive side in bytes, with a window of at most `window` bytes, for any input
    /// from the peer. Counts buffers of twice the window, and piece tables of twice the needed capacity. The
    /// allocator's overhead per piece is not included.
    pub const fn receive_memory_max(&self, window: usize) -> usize {
        let waiting = 2 * (window / BACKLOG_JOIN_MAX + 1) + BACKLOG_PIECES_MAX;
        let backlog = 2 * waiting * size_of::<BacklogPiece>();
        2 * window + backlog + super::reassembly::tables_max(window, self.reassembly_gaps_max)
    }
}

fn index(start: Position, at: Position) -> usize {
    usize::try_from(at.since(start)).unwrap_or(usize::MAX)
}
