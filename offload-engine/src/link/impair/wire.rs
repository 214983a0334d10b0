//! Impaired network between two links: frames received by one are transmitted by the other.
//!
//! A lane with random impairments or a rate limit processes frames of the wire's size, so GSO packets are segmented for
//! it. A lane that only delays keeps them unsegmented. A lane without effect is bypassed without a copy. The device at
//! the other end then segments them, if necessary. Remaining offloads (checksum, segmentation) are left to that device
//! if it supports them, and are otherwise completed here.
//!
//! The caller runs it by [`Wire::take`] and [`Wire::send`] when a link is readable and at [`Wire::poll_at`]. Neither
//! blocks. Limits: [`TAKE_FRAMES_MAX`] frames from each link and [`SEND_FRAMES_MAX`] to each link, per call.
#![forbid(unsafe_code)]

use std::{io, vec::Vec};

use super::{
    FULL_RETRY, Impairments, Lateness, fill_tcp_checksum,
    lane::{Lane, WireSize},
    options::ImpairmentError,
    stats::LaneStats,
};
use crate::{
    link::{
        Link, LinkCapabilities, RxBatch, RxChecksum, TxChecksum, TxFrame, TxOffload, TxOutcome,
        TxSegment,
        checksum::{self, TCP_CHECKSUM_OFFSET},
        layout::TcpLayout,
        segment::Segments,
    },
    time::Instant,
};

/// Frames that one [`Wire::take`] receives from each link.
const TAKE_FRAMES_MAX: usize = 16;
/// Frames that one [`Wire::send`] transmits on each link.
const SEND_FRAMES_MAX: usize = 256;

/// End of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireEnd {
    /// First end.
    A,
    /// Second end.
    B,
}

/// Two links connected by an impaired network.
#[derive(Debug)]
pub struct Wire<L> {
    a: L,
    b: L,
    a_to_b: WireDirection,
    b_to_a: WireDirection,
    batch: RxBatch,
    lateness: Lateness,
}

/// One direction between the two links.
#[derive(Debug)]
struct WireDirection {
    lane: Lane,
    /// Time of the next attempt after the receiving link was full.
    retry_at: Option<Instant>,
    /// Segment of a GSO packet.
    piece: Vec<u8>,
}

/// Received frame to be forwarded.
struct RelayedFrame<'a> {
    data: &'a mut [u8],
    checksum: RxChecksum,
    gso_size: usize,
}

impl<L: Link> Wire<L> {
    /// Connects `a` and `b`.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(
        a: L,
        b: L,
        a_to_b: Impairments,
        b_to_a: Impairments,
    ) -> Result<Self, ImpairmentError> {
        let (a_to_b, b_to_a) = (WireDirection::new(a_to_b, 0)?, WireDirection::new(b_to_a, 1)?);
        let (batch, lateness) = (RxBatch::new(TAKE_FRAMES_MAX), Lateness::default());
        Ok(Self { a, b, a_to_b, b_to_a, batch, lateness })
    }

    /// Receives frames of both links. Returns the number of frames, with a GSO packet counted as one.
    ///
    /// The clock is read after the frames. With an earlier time a frame that arrived meanwhile would be delayed by less
    /// than the configured delay.
    ///
    /// # Errors
    /// The device of the link at that end was removed.
    pub fn take(
        &mut self,
        mut clock: impl FnMut() -> Instant,
    ) -> Result<usize, (WireEnd, io::Error)> {
        let Self { a, b, a_to_b, b_to_a, batch, lateness: _ } = self;
        let from_a = a_to_b.take(&mut clock, a, b, batch).map_err(|error| (WireEnd::A, error))?;
        let from_b = b_to_a.take(&mut clock, b, a, batch).map_err(|error| (WireEnd::B, error))?;
        Ok(from_a + from_b)
    }

    /// Transmits due frames on both links. Returns the number of frames, with a GSO packet counted as one.
    pub fn send(&mut self, now: Instant) -> usize {
        let Self { a, b, a_to_b, b_to_a, batch: _, lateness } = self;
        let count = a_to_b.send(now, b, lateness) + b_to_a.send(now, a, lateness);
        if count > 0 {
            b.flush(now);
            a.flush(now);
        }
        count
    }

    /// Time at which the next frame is due.
    pub fn poll_at(&self) -> Option<Instant> {
        let links = [self.a.poll_at(), self.b.poll_at()].into_iter().flatten();
        links.chain(self.a_to_b.next_at()).chain(self.b_to_a.next_at()).min()
    }

    /// Counters of the frames received at `from`.
    pub fn stats(&self, from: WireEnd) -> LaneStats {
        match from {
            WireEnd::A => self.a_to_b.lane.stats(),
            WireEnd::B => self.b_to_a.lane.stats(),
        }
    }

    /// Lateness of held frames at transmission.
    pub fn lateness(&self) -> &Lateness {
        &self.lateness
    }

    /// Returns the link at that end.
    pub fn link(&self, end: WireEnd) -> &L {
        match end {
            WireEnd::A => &self.a,
            WireEnd::B => &self.b,
        }
    }
}

impl WireDirection {
    fn new(settings: Impairments, stream: u64) -> Result<Self, ImpairmentError> {
        settings.validate()?;
        let lane = Lane::new(settings, stream);
        Ok(Self { lane, retry_at: None, piece: Vec::new() })
    }

    fn take<L: Link>(
        &mut self,
        mut clock: impl FnMut() -> Instant,
        from: &mut L,
        to: &mut L,
        batch: &mut RxBatch,
    ) -> io::Result<usize> {
        batch.clear();
        if from.receive(clock(), batch)? == 0 {
            return Ok(0);
        }
        let now = clock();
        for (data, checksum, gso_size) in batch.frames_mut() {
            self.relay(now, to, RelayedFrame { data, checksum, gso_size });
        }
        to.flush(now);
        Ok(batch.len())
    }

    fn relay<L: Link>(&mut self, now: Instant, to: &mut L, mut relayed: RelayedFrame<'_>) {
        if self.lane.cuts() || !relayed.is_supported_by(to.capabilities()) {
            let offload_checksums = !self.lane.needs_checksums() && to.capabilities().tx_checksum;
            return self.admit_cut(now, relayed, offload_checksums);
        }
        let Some((offload, size)) = relayed.prepare_offload() else {
            return self.lane.count_malformed();
        };
        if self.lane.is_transparent() && self.lane.is_idle() {
            match to.transmit(now, &whole(relayed.data, offload)) {
                TxOutcome::Sent => return self.lane.count_bypassed(size, true),
                TxOutcome::Dropped => return self.lane.count_bypassed(size, false),
                TxOutcome::Full => {}
            }
        }
        self.lane.admit_whole(now, relayed.data, offload, size);
    }

    /// Adds frames of the wire's size to the lane. Their checksums are left to the device at the other end if it
    /// supports that and no bit will be flipped. This is cheaper than computing them here, with the same result.
    fn admit_cut(&mut self, now: Instant, relayed: RelayedFrame<'_>, offload_checksums: bool) {
        let Self { lane, piece, retry_at: _ } = self;
        let RelayedFrame { data, checksum, gso_size } = relayed;
        if gso_size != 0 {
            let Some(mut segments) = Segments::new(data, gso_size) else {
                return lane.count_malformed();
            };
            let checksum = offload_checksums.then(|| segments.offload_checksums());
            while segments.next_into(piece) {
                lane.admit(now, piece, TxOffload { checksum, segment: None }, None);
            }
            return;
        }
        if checksum == RxChecksum::Unverified {
            return lane.admit(now, data, TxOffload::default(), None);
        }
        if offload_checksums {
            let mut relayed = RelayedFrame { data, checksum, gso_size };
            if let Some((offload, _)) = relayed.prepare_offload() {
                lane.admit(now, relayed.data, offload, None);
            }
            return;
        }
        fill_tcp_checksum(data);
        lane.admit(now, data, TxOffload::default(), None);
    }

    fn send<L: Link>(&mut self, now: Instant, to: &mut L, lateness: &mut Lateness) -> usize {
        self.retry_at = None;
        for sent in 0..SEND_FRAMES_MAX {
            let Some(held) = self.lane.due(now) else { return sent };
            let (size, late) = (held.size, now.saturating_since(held.due));
            let outcome = to.transmit(now, &whole(&held.data, held.offload));
            if outcome == TxOutcome::Full {
                self.retry_at = Some(now + FULL_RETRY);
                return sent;
            }
            lateness.add(late);
            self.lane.count_outcome(size, outcome == TxOutcome::Sent);
            self.lane.release();
        }
        SEND_FRAMES_MAX
    }

    fn next_at(&self) -> Option<Instant> {
        self.retry_at.or_else(|| self.lane.next_at())
    }
}

/// Creates a frame without payload slices.
fn whole(data: &[u8], offload: TxOffload) -> TxFrame<'_> {
    TxFrame { offload, head: data, payload: &[], lender: None, comment: None }
}

impl RelayedFrame<'_> {
    /// True if a link with these capabilities accepts the frame as received.
    fn is_supported_by(&self, capabilities: LinkCapabilities) -> bool {
        let LinkCapabilities { mtu: _, tx_checksum, tso4_max, tso6_max } = capabilities;
        match (self.gso_size, self.checksum) {
            (0, RxChecksum::Unverified) => true,
            (0, RxChecksum::Valid) => tx_checksum,
            // The smaller limit: both are equal if the link supports both.
            _ => tx_checksum && self.data.len() <= tso4_max.min(tso6_max),
        }
    }

    /// Prepares the frame for offload. Returns the remaining offload and the size of the frame on the wire. The
    /// checksum field is set to the pseudo-header sum, whether it contained that sum or a complete one. `None` for a
    /// GSO packet that cannot be segmented.
    fn prepare_offload(&mut self) -> Option<(TxOffload, WireSize)> {
        let length = self.data.len() as u64;
        let complete = (TxOffload::default(), WireSize { frames: 1, bytes: length });
        if self.gso_size == 0 && self.checksum == RxChecksum::Unverified {
            return Some(complete);
        }
        let layout = match TcpLayout::of(self.data) {
            Some(layout) => layout,
            None if self.gso_size == 0 => return Some(complete),
            None => return None,
        };
        if layout.end != self.data.len() {
            // Padding must not be summed, so the checksum is not left to a device.
            checksum::fill_tcp(self.data, &layout);
            return (self.gso_size == 0).then_some(complete);
        }
        checksum::store_pseudo_header_sum(self.data, &layout);
        // Offsets fit: a frame has at most 64 KiB.
        let place = TxChecksum { start: layout.tcp as u16, offset: TCP_CHECKSUM_OFFSET };
        let mut offload = TxOffload { checksum: Some(place), segment: None };
        let Some(gso_size) = u16::try_from(self.gso_size).ok().filter(|&size| size > 0) else {
            return (self.gso_size == 0).then_some((offload, complete.1));
        };
        let header_len = layout.payload as u16;
        offload.segment = Some(TxSegment { size: gso_size, header_len, ipv6: layout.ipv6 });
        let payload = layout.end - layout.payload;
        let frames = payload.div_ceil(self.gso_size).max(1) as u64;
        let bytes = length + (frames - 1) * u64::from(header_len);
        Some((offload, WireSize { frames, bytes }))
    }
}

#[cfg(test)]
mod tests;
