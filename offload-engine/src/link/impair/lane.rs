//! One direction of an impaired link: decides each frame's fate and holds it until it is due.
//!
//! The wire is first in, first out (jitter keeps order), so frames that wait for a moment wait in a
//! plain queue. Reordered frames wait beside it for later frames to pass.
#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    string::{String, ToString},
    vec::Vec,
};

use oorandom::Rand64;

use super::{
    Impairments, LaneStats, QueueLimit,
    loss::{Loss, roll},
};
use crate::{
    link::{TxOffload, device::ETHERNET_HEADER_BYTES},
    time::{Duration, Instant},
};

/// Later frames that pass a reordered one, at most. Beyond 3 TCP takes it for a loss (RFC 5681
/// §3.2), so both cases occur.
pub const REORDER_DISTANCE_MAX: u64 = 5;
/// How long a reordered frame waits when no later frame comes.
pub const REORDER_HOLD_MAX: Duration = Duration::from_millis(5);
/// Frames that wait to be passed at once; beyond, frames keep their place.
const REORDERED_FRAMES_MAX: usize = 64;
/// Frames on their way at once, whatever the delay; beyond, they are lost.
const HELD_FRAMES_MAX: usize = 262_144;
/// Bytes on their way at once: 10 Gbit/s for 0.2 s; beyond, they are lost.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// Buffers kept for later frames.
const SPARE_BUFFERS_MAX: usize = 1024;

/// A frame on its way. Complete, checksums and all, unless `offload` says what is still to be done.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) data: Vec<u8>,
    pub(super) offload: TxOffload,
    pub(super) comment: Option<String>,
    pub(super) due: Instant,
    /// What it is on the wire.
    pub(super) size: WireSize,
}

/// What a frame, or a super-segment once it is cut, is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WireSize {
    pub(super) frames: u64,
    /// From Ethernet headers to last bytes.
    pub(super) bytes: u64,
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
    loss: Loss,
    /// When the last bit of the last frame has left the rate-limited wire.
    wire_free_at: Instant,
    /// When those frames leave it that had not left it yet; kept for a limit in frames alone.
    departures: VecDeque<Instant>,
    /// In order of `due`.
    travelling: VecDeque<Held>,
    travelling_bytes: u64,
    reordered: Vec<Waiting>,
    spare: Vec<Vec<u8>>,
    stats: LaneStats,
}

impl Lane {
    /// `stream` tells directions of the same seed apart.
    pub(super) fn new(settings: Impairments, stream: u64) -> Self {
        Self {
            settings,
            dice: Rand64::new(u128::from(stream) << 64 | u128::from(settings.seed)),
            loss: Loss::new(settings.drop_pct, settings.burst_mean),
            wire_free_at: Instant::ZERO,
            departures: VecDeque::new(),
            travelling: VecDeque::new(),
            travelling_bytes: 0,
            reordered: Vec::new(),
            spare: Vec::new(),
            stats: LaneStats::default(),
        }
    }

    /// Whether frames may pass it by.
    pub(super) fn is_transparent(&self) -> bool {
        self.settings.is_none()
    }

    /// Whether super-segments have to be cut before they come in.
    pub(super) fn cuts(&self) -> bool {
        self.settings.cuts()
    }

    /// Whether no frame is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.travelling.is_empty() && self.reordered.is_empty()
    }

    /// Whether the checksums of frames have to be complete when they come in: a bit that is flipped
    /// must not be summed.
    pub(super) fn needs_checksums(&self) -> bool {
        self.settings.corrupt_pct > 0.0
    }

    /// Takes a frame of the wire's size; `offload` leaves its checksum to the device at the end.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: TxOffload,
        comment: Option<&str>,
    ) {
        debug_assert!(!self.needs_checksums() || offload == TxOffload::default());
        let Impairments { duplicate_pct, corrupt_pct, .. } = self.settings;
        self.stats.frames_in += 1;
        self.stats.bytes_in += frame.len() as u64;
        if self.loss.strikes(&mut self.dice) {
            self.stats.lost += 1;
            return;
        }
        let mut data = self.copy(frame);
        if roll(&mut self.dice, corrupt_pct) {
            self.stats.corrupted += 1;
            if !is_ip(&data) {
                // Nothing above the FCS would notice; the FCS would have.
                self.stats.corrupted_lost += 1;
                self.recycle(data);
                return;
            }
            let first = ETHERNET_HEADER_BYTES as u64 * 8;
            let bit = self.dice.rand_range(first..data.len() as u64 * 8);
            data[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let copy = roll(&mut self.dice, duplicate_pct).then(|| self.copy(&data));
        self.depart(now, data, offload, comment);
        if let Some(copy) = copy {
            self.stats.duplicated += 1;
            self.depart(now, copy, offload, comment);
        }
    }

    /// Takes a frame as it is, of any size, with what is still to be done to it. Only for a lane that
    /// does not cut.
    pub(super) fn admit_whole(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: TxOffload,
        size: WireSize,
    ) {
        debug_assert!(!self.cuts());
        self.stats.frames_in += size.frames;
        self.stats.bytes_in += size.bytes;
        let data = self.copy(frame);
        self.travel(now, Held { data, offload, comment: None, due: now, size });
    }

    /// Counts a frame that passed the lane by, taken by the device or refused.
    pub(super) fn count_passed(&mut self, size: WireSize, taken: bool) {
        self.stats.frames_in += size.frames;
        self.stats.bytes_in += size.bytes;
        self.count_end(size, taken);
    }

    /// Counts what became of a frame that [`Lane::due`] gave.
    pub(super) fn count_end(&mut self, size: WireSize, taken: bool) {
        if taken {
            self.stats.frames_out += size.frames;
            self.stats.bytes_out += size.bytes;
        } else {
            self.stats.refused += size.frames;
        }
    }

    /// Counts a frame that never came to the wire.
    pub(super) fn count_malformed(&mut self) {
        self.stats.frames_in += 1;
        self.stats.malformed += 1;
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
            self.travelling_bytes -= held.data.len() as u64;
            self.recycle(held.data);
        }
    }

    /// When a frame is due next.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let waiting = self.reordered.iter().map(|waiting| waiting.held.due);
        self.travelling.front().map(|held| held.due).into_iter().chain(waiting).min()
    }

    pub(super) fn stats(&self) -> LaneStats {
        self.stats
    }

    /// Reorders the frame or sends it on its way, and with it those that waited for it.
    fn depart(&mut self, now: Instant, data: Vec<u8>, offload: TxOffload, comment: Option<&str>) {
        let comment = comment.map(ToString::to_string);
        let size = WireSize { frames: 1, bytes: data.len() as u64 };
        let mut held = Held { data, offload, comment, due: now, size };
        let reorder = roll(&mut self.dice, self.settings.reorder_pct);
        if reorder && self.reordered.len() < REORDERED_FRAMES_MAX {
            self.stats.reordered += 1;
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
        let departure = match self.settings.rate_bps {
            None => now,
            Some(rate_bps) => match self.departure(now, rate_bps, held.data.len()) {
                Some(departure) => departure,
                None => {
                    self.stats.queue_full += held.size.frames;
                    return self.recycle(held.data);
                }
            },
        };
        let bytes = held.data.len() as u64;
        if self.travelling.len() >= HELD_FRAMES_MAX
            || self.travelling_bytes + bytes > HELD_BYTES_MAX
        {
            self.stats.overflow += held.size.frames;
            return self.recycle(held.data);
        }
        let arrival = departure + self.travel_time();
        held.due = self.travelling.back().map_or(arrival, |before| before.due.max(arrival));
        self.travelling_bytes += bytes;
        self.travelling.push_back(held);
    }

    /// When the last bit of a frame that comes `now` leaves the wire; `None`: the queue is full.
    fn departure(&mut self, now: Instant, rate_bps: u64, frame_len: usize) -> Option<Instant> {
        let room = match self.settings.queue {
            QueueLimit::Bytes(limit) => {
                let backlog = self.wire_free_at.saturating_since(now);
                let backlog_bytes = backlog.as_nanos() * u128::from(rate_bps) / 8_000_000_000;
                backlog_bytes + frame_len as u128 <= u128::from(limit)
            }
            QueueLimit::Frames(limit) => {
                while self.departures.front().is_some_and(|&departure| departure <= now) {
                    self.departures.pop_front();
                }
                self.departures.len() < limit as usize
            }
        };
        if !room {
            return None;
        }
        let nanos = frame_len as u128 * 8_000_000_000 / u128::from(rate_bps);
        // A frame has at most 64 KiB: even at 1 bit/s the time fits 64 bits.
        let departure = self.wire_free_at.max(now) + Duration::from_nanos(nanos as u64);
        self.wire_free_at = departure;
        if let QueueLimit::Frames(_) = self.settings.queue {
            self.departures.push_back(departure);
        }
        Some(departure)
    }

    /// The delay, give or take the jitter.
    fn travel_time(&mut self) -> Duration {
        let Impairments { delay, jitter, .. } = self.settings;
        if jitter.is_zero() {
            return delay;
        }
        // Validated: jitter <= delay <= 60 s, so both fit 64 bits.
        let range = 2 * jitter.as_nanos() as u64;
        delay - jitter + Duration::from_nanos(self.dice.rand_range(0..range + 1))
    }

    /// The frame in a buffer of ours.
    fn copy(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut data = self.spare.pop().unwrap_or_default();
        data.clear();
        data.extend_from_slice(frame);
        data
    }

    fn recycle(&mut self, data: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(data);
        }
    }
}

/// Whether the frame carries an IP packet, with a byte behind its Ethernet header at least.
fn is_ip(frame: &[u8]) -> bool {
    frame.len() > ETHERNET_HEADER_BYTES && matches!(frame[12..14], [0x08, 0x00] | [0x86, 0xdd])
}
