//! One direction of an impaired link: decides each frame's fate and holds it until it is due.
//!
//! Delay is constant and the wire is first in, first out, so frames that wait for a moment wait in
//! a plain queue. Reordered frames wait beside it for later frames to pass.
#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    string::{String, ToString},
    vec::Vec,
};

use oorandom::Rand64;

use super::Impairments;
use crate::{
    link::{LinkStats, device::ETHERNET_HEADER_BYTES},
    time::{Duration, Instant},
};

/// Later frames that pass a reordered one, at most. Beyond 3 TCP takes it for a loss (RFC 5681
/// s3.2), so both cases occur.
pub const REORDER_DISTANCE_MAX: u64 = 5;
/// How long a reordered frame waits when no later frame comes.
pub const REORDER_HOLD_MAX: Duration = Duration::from_millis(5);
/// Frames that wait to be passed at once; beyond, frames keep their place.
const REORDERED_FRAMES_MAX: usize = 64;
/// Bytes that wait for a rate-limited wire: 1000 frames of 1514, the queue of a TAP.
pub const RATE_QUEUE_BYTES_MAX: u64 = 1_514_000;
/// Frames on their way at once, whatever the delay; beyond, they are lost.
const HELD_FRAMES_MAX: usize = 65_536;
/// Buffers kept for later frames.
const SPARE_BUFFERS_MAX: usize = 1024;

/// A frame on its way: complete, checksums and all.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) data: Vec<u8>,
    pub(super) comment: Option<String>,
    due: Instant,
}

/// A frame that lets others pass.
#[derive(Debug)]
struct Waiting {
    held: Held,
    /// Later frames still to pass.
    behind: u64,
}

#[derive(Debug)]
pub(super) struct Lane {
    settings: Impairments,
    dice: Rand64,
    /// When the last bit of the last frame has left the rate-limited wire.
    wire_free_at: Instant,
    /// In order of `due`.
    travelling: VecDeque<Held>,
    reordered: Vec<Waiting>,
    spare: Vec<Vec<u8>>,
    dropped: u64,
    duplicated: u64,
    reorder_count: u64,
    corrupted: u64,
}

impl Lane {
    /// `stream` tells directions of the same seed apart.
    pub(super) fn new(settings: Impairments, stream: u64) -> Self {
        Self {
            settings,
            dice: Rand64::new(u128::from(stream) << 64 | u128::from(settings.seed)),
            wire_free_at: Instant::ZERO,
            travelling: VecDeque::new(),
            reordered: Vec::new(),
            spare: Vec::new(),
            dropped: 0,
            duplicated: 0,
            reorder_count: 0,
            corrupted: 0,
        }
    }

    /// Whether frames may pass it by.
    pub(super) fn is_transparent(&self) -> bool {
        self.settings.is_none()
    }

    /// Takes a complete frame.
    pub(super) fn admit(&mut self, now: Instant, frame: &[u8], comment: Option<&str>) {
        let Impairments { drop_pct, duplicate_pct, corrupt_pct, .. } = self.settings;
        if self.roll(drop_pct) {
            self.dropped += 1;
            return;
        }
        let mut data = self.spare.pop().unwrap_or_default();
        data.clear();
        data.extend_from_slice(frame);
        if self.roll(corrupt_pct) {
            self.corrupted += 1;
            if !is_ip(&data) {
                // Nothing above the FCS would notice; the FCS would have.
                self.recycle(data);
                return;
            }
            let first = ETHERNET_HEADER_BYTES as u64 * 8;
            let bit = self.dice.rand_range(first..data.len() as u64 * 8);
            data[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let copy = self.roll(duplicate_pct).then(|| data.clone());
        self.depart(now, data, comment);
        if let Some(copy) = copy {
            self.duplicated += 1;
            self.depart(now, copy, comment);
        }
    }

    /// Counts a frame that never came to the wire.
    pub(super) fn count_lost(&mut self) {
        self.dropped += 1;
    }

    /// The next frame that has arrived by `now`.
    pub(super) fn due(&mut self, now: Instant) -> Option<&Held> {
        // A reordered frame that nothing followed gives up waiting.
        while let Some(at) = self.reordered.iter().position(|waiting| waiting.held.due <= now) {
            let Waiting { held, .. } = self.reordered.remove(at);
            self.travel(now, held);
        }
        self.travelling.front().filter(|held| held.due <= now)
    }

    /// Forgets the frame that [`Lane::due`] gave.
    pub(super) fn release(&mut self) {
        if let Some(held) = self.travelling.pop_front() {
            self.recycle(held.data);
        }
    }

    /// When a frame is due next.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let waiting = self.reordered.iter().map(|waiting| waiting.held.due);
        self.travelling.front().map(|held| held.due).into_iter().chain(waiting).min()
    }

    pub(super) fn add_to(&self, stats: &mut LinkStats) {
        stats.impaired_dropped += self.dropped;
        stats.impaired_duplicated += self.duplicated;
        stats.impaired_reordered += self.reorder_count;
        stats.impaired_corrupted += self.corrupted;
    }

    /// Reorders the frame or sends it on its way, and with it those that waited for it.
    fn depart(&mut self, now: Instant, data: Vec<u8>, comment: Option<&str>) {
        let mut held = Held { data, comment: comment.map(ToString::to_string), due: now };
        let reorder = self.roll(self.settings.reorder_pct);
        if reorder && self.reordered.len() < REORDERED_FRAMES_MAX {
            self.reorder_count += 1;
            held.due = now + REORDER_HOLD_MAX;
            let behind = self.dice.rand_range(1..REORDER_DISTANCE_MAX + 1);
            self.reordered.push(Waiting { held, behind });
            return;
        }
        self.travel(now, held);
        for waiting in &mut self.reordered {
            waiting.behind -= 1;
        }
        while let Some(at) = self.reordered.iter().position(|waiting| waiting.behind == 0) {
            let Waiting { held, .. } = self.reordered.remove(at);
            self.travel(now, held);
        }
    }

    /// Puts the frame on the wire at `now`: from here on, order is kept.
    fn travel(&mut self, now: Instant, mut held: Held) {
        let mut departure = now;
        if let Some(rate_bps) = self.settings.rate_bps {
            let backlog = self.wire_free_at.saturating_since(now);
            let backlog_bytes = backlog.as_nanos() * u128::from(rate_bps) / 8_000_000_000;
            let queued = backlog_bytes + held.data.len() as u128;
            if queued > u128::from(RATE_QUEUE_BYTES_MAX) {
                return self.lose(held);
            }
            let nanos = held.data.len() as u128 * 8_000_000_000 / u128::from(rate_bps);
            // A frame fits the queue, so even at 1 bit/s the time fits 64 bits.
            departure = self.wire_free_at.max(now) + Duration::from_nanos(nanos as u64);
            self.wire_free_at = departure;
        }
        if self.travelling.len() >= HELD_FRAMES_MAX {
            return self.lose(held);
        }
        held.due = departure + self.settings.delay;
        self.travelling.push_back(held);
    }

    fn lose(&mut self, held: Held) {
        self.dropped += 1;
        self.recycle(held.data);
    }

    fn recycle(&mut self, data: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(data);
        }
    }

    /// Whether something that happens in `pct` of all cases happens.
    fn roll(&mut self, pct: f64) -> bool {
        pct > 0.0 && self.dice.rand_float() * 100.0 < pct
    }
}

/// Whether the frame carries an IP packet, with a byte behind its Ethernet header at least.
fn is_ip(frame: &[u8]) -> bool {
    frame.len() > ETHERNET_HEADER_BYTES && matches!(frame[12..14], [0x08, 0x00] | [0x86, 0xdd])
}
