//! What one direction has done to its frames.
#![forbid(unsafe_code)]

use crate::link::LinkStats;

/// Counters of one direction. Frames are the wire's: a super-segment counts as the frames that it is cut
/// into, bytes are theirs from the Ethernet header to the last byte.
///
/// What comes in and is doubled, goes out, is lost for one of the reasons below, or is still on its way:
///
/// `frames_in + duplicated = frames_out + lost + queue_full + overflow + malformed + corrupted_lost +
/// refused` once nothing is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LaneStats {
    /// Frames that came in.
    pub frames_in: u64,
    /// Bytes of those.
    pub bytes_in: u64,
    /// Frames that arrived, duplicates included. Counted by [`Wire`](super::Wire) alone.
    pub frames_out: u64,
    /// Bytes of those.
    pub bytes_out: u64,
    /// Frames lost on the wire ([`drop_pct`](super::Impairments::drop_pct)).
    pub lost: u64,
    /// Frames that found the queue before the rate-limited wire full.
    pub queue_full: u64,
    /// Frames lost because too many were on their way: 262,144, or 256 MiB.
    pub overflow: u64,
    /// Super-segments that cannot be cut: no wire would carry them.
    pub malformed: u64,
    /// Frames that the device at the end refused.
    pub refused: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames held back behind later ones.
    pub reordered: u64,
    /// Frames with a bit flipped.
    pub corrupted: u64,
    /// Those of them that an FCS had thrown away, for they carry no IP packet.
    pub corrupted_lost: u64,
}

impl LaneStats {
    /// Frames that came in, or were doubled, and are neither out nor lost: those on their way.
    pub fn on_their_way(&self) -> u64 {
        let Self { frames_in, duplicated, frames_out, refused, corrupted_lost, .. } = *self;
        (frames_in + duplicated)
            .saturating_sub(frames_out + refused + corrupted_lost + self.dropped())
    }

    /// Frames lost on the wire or for want of room.
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
