//! One direction of an impaired link: determines the outcome of each frame and holds it until it is due.
//!
//! The wire is a FIFO (jitter keeps order), so frames in flight are stored in a plain queue. Reordered frames are
//! stored separately until enough later frames have passed.
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

/// Maximum number of later frames that pass a reordered one. Beyond 3 TCP treats it as a loss (RFC 5681 §3.2), so both
/// cases occur.
pub const REORDER_DISTANCE_MAX: u64 = 5;
/// Hold time of a reordered frame if too few later frames follow.
pub const REORDER_HOLD_MAX: Duration = Duration::from_millis(5);
/// Concurrently reordered frames. Beyond this limit frames keep their order.
const REORDERED_FRAMES_MAX: usize = 64;
/// Frames in flight, at any delay. Further frames are dropped.
const HELD_FRAMES_MAX: usize = 262_144;
/// Bytes in flight: 10 Gbit/s for 0.2 s. Further frames are dropped.
const HELD_BYTES_MAX: u64 = 256 << 20;
/// Buffers kept for later frames.
const SPARE_BUFFERS_MAX: usize = 1024;

/// Frame in flight. It is complete, including checksums, except for the work specified by `offload`.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) data: Vec<u8>,
    pub(super) offload: TxOffload,
    pub(super) comment: Option<String>,
    pub(super) due: Instant,
    /// Size of the frame on the wire.
    pub(super) size: WireSize,
}

/// Size on the wire of a frame, or of a segmented GSO packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WireSize {
    pub(super) frames: u64,
    /// Bytes from the Ethernet header to the last byte of each frame.
    pub(super) bytes: u64,
}

/// Reordered frame.
#[derive(Debug)]
struct Reordered {
    held: Held,
    /// Later frames that are still to pass.
    remaining: u64,
}

#[derive(Debug)]
pub(super) struct Lane {
    settings: Impairments,
    random: Rand64,
    loss: Loss,
    /// Time at which the last bit of the last frame leaves the rate-limited wire.
    wire_free_at: Instant,
    /// Times at which queued frames leave the wire. Used only for a limit in frames.
    departures: VecDeque<Instant>,
    /// Frames in flight, in order of `due`.
    in_flight: VecDeque<Held>,
    in_flight_bytes: u64,
    reordered: Vec<Reordered>,
    spare: Vec<Vec<u8>>,
    stats: LaneStats,
}

impl Lane {
    /// Creates a lane. `stream` distinguishes directions with the same seed.
    pub(super) fn new(settings: Impairments, stream: u64) -> Self {
        Self {
            settings,
            random: Rand64::new(u128::from(stream) << 64 | u128::from(settings.seed)),
            loss: Loss::new(settings.drop_pct, settings.burst_mean),
            wire_free_at: Instant::ZERO,
            departures: VecDeque::new(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            reordered: Vec::new(),
            spare: Vec::new(),
            stats: LaneStats::default(),
        }
    }

    /// True if frames may bypass the lane.
    pub(super) fn is_transparent(&self) -> bool {
        self.settings.is_none()
    }

    /// True if GSO packets must be segmented before they are added.
    pub(super) fn cuts(&self) -> bool {
        self.settings.cuts()
    }

    /// True if no frame is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.reordered.is_empty()
    }

    /// True if frames must have complete checksums when they are added: a flipped bit must not be included in the sum.
    pub(super) fn needs_checksums(&self) -> bool {
        self.settings.corrupt_pct > 0.0
    }

    /// Adds a frame of the wire's size. `offload` leaves its checksum to the device at the other end.
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
        if self.loss.drops_next(&mut self.random) {
            self.stats.lost += 1;
            return;
        }
        let mut data = self.copy(frame);
        if roll(&mut self.random, corrupt_pct) {
            self.stats.corrupted += 1;
            if !is_ip(&data) {
                // Nothing above the FCS would detect the error, but the FCS would.
                self.stats.corrupted_lost += 1;
                self.recycle(data);
                return;
            }
            let first = ETHERNET_HEADER_BYTES as u64 * 8;
            let bit = self.random.rand_range(first..data.len() as u64 * 8);
            data[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let copy = roll(&mut self.random, duplicate_pct).then(|| self.copy(&data));
        self.schedule(now, data, offload, comment);
        if let Some(copy) = copy {
            self.stats.duplicated += 1;
            self.schedule(now, copy, offload, comment);
        }
    }

    /// Adds a frame of any size, with its remaining offload. Only for a lane that does not segment.
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
        self.enqueue(now, Held { data, offload, comment: None, due: now, size });
    }

    /// Counts a frame that bypassed the lane, accepted or refused by the device.
    pub(super) fn count_bypassed(&mut self, size: WireSize, taken: bool) {
        self.stats.frames_in += size.frames;
        self.stats.bytes_in += size.bytes;
        self.count_outcome(size, taken);
    }

    /// Counts the outcome of a frame returned by [`Lane::due`].
    pub(super) fn count_outcome(&mut self, size: WireSize, taken: bool) {
        if taken {
            self.stats.frames_out += size.frames;
            self.stats.bytes_out += size.bytes;
        } else {
            self.stats.refused += size.frames;
        }
    }

    /// Counts a frame that the wire cannot carry.
    pub(super) fn count_malformed(&mut self) {
        self.stats.frames_in += 1;
        self.stats.malformed += 1;
    }

    /// Returns the next frame that has arrived by `now`.
    pub(super) fn due(&mut self, now: Instant) -> Option<&Held> {
        // The hold time of a reordered frame has expired.
        while let Some(at) = self.reordered.iter().position(|waiting| waiting.held.due <= now) {
            let Reordered { held, .. } = self.reordered.remove(at);
            self.enqueue(now, held);
        }
        self.in_flight.front().filter(|held| held.due <= now)
    }

    /// Removes the frame returned by [`Lane::due`].
    pub(super) fn release(&mut self) {
        if let Some(held) = self.in_flight.pop_front() {
            self.in_flight_bytes -= held.data.len() as u64;
            self.recycle(held.data);
        }
    }

    /// Time at which the next frame is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let waiting = self.reordered.iter().map(|waiting| waiting.held.due);
        self.in_flight.front().map(|held| held.due).into_iter().chain(waiting).min()
    }

    pub(super) fn stats(&self) -> LaneStats {
        self.stats
    }

    /// Reorders the frame or sends it, followed by reordered frames whose distance is reached.
    fn schedule(&mut self, now: Instant, data: Vec<u8>, offload: TxOffload, comment: Option<&str>) {
        let comment = comment.map(ToString::to_string);
        let size = WireSize { frames: 1, bytes: data.len() as u64 };
        let mut held = Held { data, offload, comment, due: now, size };
        let reorder = roll(&mut self.random, self.settings.reorder_pct);
        if reorder && self.reordered.len() < REORDERED_FRAMES_MAX {
            self.stats.reordered += 1;
            held.due = now + REORDER_HOLD_MAX;
            let remaining = self.random.rand_range(1..REORDER_DISTANCE_MAX + 1);
            self.reordered.push(Reordered { held, remaining });
            return;
        }
        self.enqueue(now, held);
        for waiting in &mut self.reordered {
            waiting.remaining -= 1;
        }
        while let Some(at) = self.reordered.iter().position(|waiting| waiting.remaining == 0) {
            let Reordered { held, .. } = self.reordered.remove(at);
            self.enqueue(now, held);
        }
    }

    /// Puts the frame on the wire at `now`. From here on order is kept.
    fn enqueue(&mut self, now: Instant, mut held: Held) {
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
        if self.in_flight.len() >= HELD_FRAMES_MAX || self.in_flight_bytes + bytes > HELD_BYTES_MAX
        {
            self.stats.overflow += held.size.frames;
            return self.recycle(held.data);
        }
        let arrival = departure + self.draw_delay();
        held.due = self.in_flight.back().map_or(arrival, |before| before.due.max(arrival));
        self.in_flight_bytes += bytes;
        self.in_flight.push_back(held);
    }

    /// Returns the time at which the last bit of a frame sent `now` leaves the wire. `None` if the queue is full.
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
        // A frame has at most 64 KiB: even at 1 bit/s the time fits into 64 bits.
        let departure = self.wire_free_at.max(now) + Duration::from_nanos(nanos as u64);
        self.wire_free_at = departure;
        if let QueueLimit::Frames(_) = self.settings.queue {
            self.departures.push_back(departure);
        }
        Some(departure)
    }

    /// Returns the delay, plus or minus the jitter.
    fn draw_delay(&mut self) -> Duration {
        let Impairments { delay, jitter, .. } = self.settings;
        if jitter.is_zero() {
            return delay;
        }
        // Validated: jitter <= delay <= 60 s, so both fit into 64 bits.
        let range = 2 * jitter.as_nanos() as u64;
        delay - jitter + Duration::from_nanos(self.random.rand_range(0..range + 1))
    }

    /// Copies the frame into a recycled buffer.
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

/// True if the frame carries an IP packet, with at least one byte after its Ethernet header.
fn is_ip(frame: &[u8]) -> bool {
    frame.len() > ETHERNET_HEADER_BYTES && matches!(frame[12..14], [0x08, 0x00] | [0x86, 0xdd])
}
