//! Impaired networks: loss (optionally in bursts), duplication, reordering, corruption, delay, jitter and rate limit,
//! per direction, reproducible by seed. [`Impaired`] wraps a link, and [`Wire`] connects two links.
//!
//! Impairments apply to frames as on the wire. A GSO packet is first segmented into frames of MTU size. A TCP checksum
//! left to a device is computed, so that a flipped bit can be detected. A frame is processed in this order: loss,
//! corruption, duplication, reordering, queueing, delay. A reordered frame follows 1 to [`REORDER_DISTANCE_MAX`] later
//! frames, or is sent after [`REORDER_HOLD_MAX`] if fewer follow. The queue of the rate-limited wire has a
//! [`QueueLimit`], beyond which frames are lost. The delay varies by the jitter.
//!
//! Timers: [`Link::poll_at`] is the earliest time at which a held frame becomes due, in either direction.
//! [`Link::receive`] moves due frames in both directions, so a caller needs no other call at that time.
#![forbid(unsafe_code)]

mod lane;
mod lateness;
mod loss;
mod options;
mod stats;
mod wire;

use std::{io, vec::Vec};

use self::lane::Lane;
pub use self::{
    lane::{REORDER_DISTANCE_MAX, REORDER_HOLD_MAX},
    lateness::Lateness,
    options::{ImpairmentError, Impairments, QueueLimit, RATE_QUEUE_BYTES_MAX},
    stats::LaneStats,
    wire::{Wire, WireEnd},
};
use super::{
    Link, LinkStats, RxBatch, RxChecksum, RxFrame, TxFrame, TxOffload, TxOutcome, checksum,
    layout::TcpLayout, segment::Segments, wrapper,
};
use crate::time::{Duration, Instant};

/// Retry interval when the inner link is full and frames are due.
const FULL_RETRY: Duration = Duration::from_micros(100);
/// Frames received from the inner link at a time.
const SCRATCH_FRAMES_MAX: usize = 16;
/// Maximum number of such batches per `receive`.
const SCRATCH_ROUNDS_MAX: usize = 16;

/// Link with impairments.
#[derive(Debug)]
pub struct Impaired<L> {
    link: L,
    transmit: Lane,
    receive: Lane,
    /// Frames from the inner link before impairment. Without receive impairments it has no buffers.
    scratch: RxBatch,
    /// Frame being prepared.
    frame: Vec<u8>,
    /// Segment of that frame.
    piece: Vec<u8>,
    /// Time of the next attempt after the inner link was full.
    retry_at: Option<Instant>,
    /// True if frames were transmitted on the inner link since its last flush.
    unflushed: bool,
}

impl<L: Link> Impaired<L> {
    /// Impairs the frames that `link` transmits and, independently, those it receives.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(
        link: L,
        transmit: Impairments,
        receive: Impairments,
    ) -> Result<Self, ImpairmentError> {
        transmit.validate()?;
        receive.validate()?;
        let scratch = RxBatch::new(if receive.is_none() { 0 } else { SCRATCH_FRAMES_MAX });
        let (transmit, receive) = (Lane::new(transmit, 0), Lane::new(receive, 1));
        let (frame, piece) = (Vec::new(), Vec::new());
        let (retry_at, unflushed) = (None, false);
        Ok(Self { link, transmit, receive, scratch, frame, piece, retry_at, unflushed })
    }

    /// Transmits due frames on the inner link. Returns false if it is full.
    fn flush_transmit(&mut self, now: Instant) -> bool {
        self.retry_at = None;
        while let Some(held) = self.transmit.due(now) {
            let frame = TxFrame {
                offload: held.offload,
                head: &held.data,
                payload: &[],
                lender: None,
                comment: held.comment.as_deref(),
            };
            if self.link.transmit(now, &frame) == TxOutcome::Full {
                self.retry_at = Some(now + FULL_RETRY);
                return false;
            }
            self.unflushed = true;
            self.transmit.release();
        }
        true
    }

    /// Receives frames of the inner link into the receive lane.
    fn fill_receive(&mut self, now: Instant) -> io::Result<()> {
        let Self { link, receive, scratch, frame, piece, .. } = self;
        for _ in 0..SCRATCH_ROUNDS_MAX {
            scratch.clear();
            link.receive(now, scratch)?;
            for RxFrame { data, checksum, gso_size, .. } in scratch.frames() {
                frame.clear();
                frame.extend_from_slice(data);
                if gso_size != 0 {
                    admit_segments(receive, now, frame, gso_size, piece, None);
                    continue;
                }
                if checksum == RxChecksum::Valid {
                    fill_tcp_checksum(frame);
                }
                receive.admit(now, frame, TxOffload::default(), None);
            }
            if !scratch.is_full() {
                break;
            }
        }
        scratch.return_lent();
        Ok(())
    }
}

impl<L: Link> wrapper::LinkWrapper for Impaired<L> {
    wrapper::wraps!(L, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        self.flush_transmit(now);
        if self.unflushed {
            // Due frames form a separate batch.
            Link::flush(self, now);
        }
        if self.receive.is_transparent() {
            return self.link.receive(now, batch);
        }
        let before = batch.len();
        let result = self.fill_receive(now);
        while !batch.is_full()
            && let Some(held) = self.receive.due(now)
        {
            // Every frame was read from a receive buffer, so it fits into one.
            batch.push(&held.data, RxChecksum::Unverified, 0);
            self.receive.release();
        }
        match batch.len() - before {
            0 => result.map(|()| 0),
            added => Ok(added),
        }
    }

    /// A frame dropped by an impairment counts as sent, as in a network.
    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        if self.transmit.is_transparent() {
            return self.link.transmit(now, frame);
        }
        if !self.flush_transmit(now) {
            return TxOutcome::Full;
        }
        let Self { transmit, frame: whole, piece, .. } = self;
        let comment = if self.link.uses_comments() { frame.comment } else { None };
        whole.clear();
        frame.gather_into(whole);
        let TxOffload { checksum, segment } = frame.offload;
        match (segment, checksum) {
            (Some(segment), _) => {
                let size = usize::from(segment.size);
                admit_segments(transmit, now, whole, size, piece, comment);
            }
            (None, Some(place)) => {
                checksum::finish(whole, place);
                transmit.admit(now, whole, TxOffload::default(), comment);
            }
            (None, None) => transmit.admit(now, whole, TxOffload::default(), comment),
        }
        self.flush_transmit(now);
        TxOutcome::Sent
    }

    fn flush(&mut self, now: Instant) {
        self.unflushed = false;
        self.link.flush(now);
    }

    fn poll_at(&self) -> Option<Instant> {
        let transmit = self.retry_at.or_else(|| self.transmit.next_at());
        [transmit, self.receive.next_at(), self.link.poll_at()].into_iter().flatten().min()
    }

    fn stats(&self) -> LinkStats {
        let mut stats = self.link.stats();
        for lane in [&self.transmit, &self.receive] {
            lane.stats().add_to(&mut stats);
        }
        stats
    }
}

/// Adds the wire's frames of a GSO packet to the lane. One that cannot be segmented is dropped.
fn admit_segments(
    lane: &mut Lane,
    now: Instant,
    frame: &[u8],
    size: usize,
    piece: &mut Vec<u8>,
    comment: Option<&str>,
) {
    let Some(mut segments) = Segments::new(frame, size) else { return lane.count_malformed() };
    while segments.next_into(piece) {
        lane.admit(now, piece, TxOffload::default(), comment);
    }
}

/// Computes a checksum marked valid. That is correct if it was never filled in, and if the device verified it.
fn fill_tcp_checksum(frame: &mut [u8]) {
    if let Some(layout) = TcpLayout::of(frame) {
        checksum::fill_tcp(frame, &layout);
    }
}

#[cfg(test)]
mod tests;
