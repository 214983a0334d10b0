//! Counters of one direction.
#![forbid(unsafe_code)]

use crate::link::LinkStats;

/// Counters of one direction. Frames are counted as on the wire: a GSO packet counts as the frames it is segmented
/// into. Bytes are counted from the Ethernet header to the last byte of each frame.
///
/// Every frame received or duplicated is output, lost for one of the reasons below, or still in flight:
///
/// `frames_in + duplicated = frames_out + lost + queue_full + overflow + malformed + corrupted_lost + refused` if no
/// frame is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LaneStats {
    /// Frames received.
    pub frames_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Frames that arrived, including duplicates. Only counted by [`Wire`](super::Wire).
    pub frames_out: u64,
    /// Bytes of these frames.
    pub bytes_out: u64,
    /// Frames lost on the wire ([`drop_pct`](super::Impairments::drop_pct)).
    pub lost: u64,
    /// Frames lost because the queue of the rate-limited wire was full.
    pub queue_full: u64,
    /// Frames lost because too many were in flight: 262,144, or 256 MiB.
    pub overflow: u64,
    /// GSO packets that cannot be segmented.
    pub malformed: u64,
    /// Frames refused by the device at the other end.
    pub refused: u64,
    /// Frames duplicated.
    pub duplicated: u64,
    /// Frames reordered after later ones.
    pub reordered: u64,
    /// Frames with a bit flipped.
    pub corrupted: u64,
    /// Corrupted frames that an FCS would drop, because they carry no IP packet.
    pub corrupted_lost: u64,
}

impl LaneStats {
    /// Number of frames in flight: received or duplicated, and neither output nor lost.
    pub fn in_flight(&self) -> u64 {
        let Self { frames_in, duplicated, frames_out, refused, corrupted_lost, .. } = *self;
        (frames_in + duplicated)
            .saturating_sub(frames_out + refused + corrupted_lost + self.dropped())
    }

    /// Number of frames lost on the wire or because of a limit.
    pub(super) fn dropped(&self) -> u64 {
        let Self { lost, queue_full, overflow, malformed, .. } = *self;
        lost + queue_full + overflow + malformed
    }

    pub(super) fn add_to(&self, stats: &mut LinkStats) {
        stats.impaired_dropped += self.dropped();
        stats.impaired_duplicated += self.duplicated;
        stats.impaired_reordered += self.reordered;
        stats.impaired_corrupted += self.corrupted;
    }
}
