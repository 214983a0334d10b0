//! Memory for the adapter's own octets in a stream, and for copied payload: blocks written from front to end.
//!
//! Octets written to a [`Slab`] are one open piece of a block until it is closed; a closed piece holds a reference to
//! its block. Blocks have [`BLOCK_OCTETS`]. The first one is smaller, so a stream with little data in flight uses
//! little memory. If the current block has too little room left, the slab reuses the first of its at most
//! [`BLOCKS_MAX`] blocks whose pieces have all been dropped. With fewer octets in flight fewer blocks rotate, so they
//! stay in the caches, and steady state allocates nothing. If all of them are still referenced (by unacknowledged
//! data), a new block replaces one of them, which is freed with its last piece. The slab itself never holds more than
//! `BLOCKS_MAX * BLOCK_OCTETS` octets; the poster of the FPDUs bounds the data in flight.

use alloc::vec::Vec;

use bytes::{Bytes, BytesMut};

use super::{GatherList, Source};

/// Octets of one block: room for a 64 KiB message with its headers, which is more than one FPDU.
pub const BLOCK_OCTETS: usize = 72 * 1024;

/// Octets of a slab's first block: small messages. A larger message continues in the next block, so it is in two pieces
/// at most.
const FIRST_OCTETS: usize = BLOCK_OCTETS / 8;

/// Blocks kept by a slab: Read Responses of 1 MiB have 2.5 MiB in flight over a TAP.
pub const BLOCKS_MAX: usize = 48;

/// Allocator of memory that is written once and then shared.
#[derive(Debug, Default)]
pub struct Slab {
    /// The open piece, followed by the rest of its block.
    open: BytesMut,
    /// Rest of each block other than the current one.
    other_blocks: Vec<BytesMut>,
    /// Octets of the current block, unless one message needed more; 0 if there is none.
    block_octets: usize,
    /// Index of the next block to be replaced.
    victim: usize,
    blocks_allocated: u64,
}

impl Slab {
    /// Creates an empty slab; blocks are allocated when first needed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of blocks allocated so far; constant in steady state.
    pub const fn blocks_allocated(&self) -> u64 {
        self.blocks_allocated
    }

    /// Returns the octets that can be written before [`Slab::turn`] is needed.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.open.capacity() - self.open.len()
    }

    /// Returns the octets of the open piece.
    #[inline]
    pub(crate) fn open(&self) -> &[u8] {
        &self.open
    }

    /// Appends octets to the open piece; the caller has checked the room.
    #[inline]
    pub(crate) fn put(&mut self, octets: impl Source) {
        debug_assert!(octets.octets() <= self.room());
        octets.append_to(&mut self.open);
    }

    /// Appends the open piece to `list`, which then holds all of its FPDUs.
    #[inline(always)]
    pub fn flush(&mut self, list: &mut impl GatherList) {
        if let Some(piece) = self.close() {
            list.push_encoded(piece);
        }
    }

    /// Closes and returns the open piece, if any.
    #[inline]
    pub(crate) fn close(&mut self) -> Option<Bytes> {
        (!self.open.is_empty()).then(|| self.open.split().freeze())
    }

    /// Switches to another block, with room for `octets`. No piece may be open.
    pub(crate) fn turn(&mut self, octets: usize) {
        debug_assert!(self.open.is_empty());
        let wanted = octets.max(self.block_octets);
        if self.open.try_reclaim(wanted) {
            return;
        }
        for block in &mut self.other_blocks {
            if block.try_reclaim(wanted) {
                core::mem::swap(block, &mut self.open);
                return;
            }
        }
        let is_growing = self.block_octets < BLOCK_OCTETS;
        if is_growing {
            self.block_octets = if self.block_octets == 0 { FIRST_OCTETS } else { BLOCK_OCTETS };
        }
        let block = BytesMut::with_capacity(octets.max(self.block_octets));
        let used = core::mem::replace(&mut self.open, block);
        self.blocks_allocated += 1;
        if is_growing {
            // The smaller block is freed with its last piece.
        } else if self.other_blocks.len() + 1 < BLOCKS_MAX {
            self.other_blocks.push(used);
        } else {
            self.victim = (self.victim + 1) % self.other_blocks.len();
            self.other_blocks[self.victim] = used;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    fn piece(slab: &mut Slab, octets: &[u8]) -> Bytes {
        if slab.room() < octets.len() {
            slab.turn(octets.len());
        }
        slab.put(octets);
        slab.close().expect("a piece")
    }

    // Pieces that are dropped in time are served from the same blocks, and from no more than they fill.
    #[test]
    fn steady_state_allocates_nothing() {
        let mut slab = Slab::new();
        let mut in_flight = VecDeque::new();
        for round in 0..100_000u32 {
            in_flight.push_back(piece(&mut slab, &[round as u8; 24]));
            if in_flight.len() > 2000 {
                let oldest = in_flight.pop_front().unwrap();
                assert_eq!(oldest[..], [(round - 2000) as u8; 24]);
            }
        }
        assert_eq!(slab.blocks_allocated(), 1 + 2, "48,000 octets are in flight");
    }

    // Pieces that are kept are not overwritten; the slab allocates new blocks.
    #[test]
    fn kept_pieces_are_not_overwritten() {
        let mut slab = Slab::new();
        let kept: Vec<_> = (0..300_000u128).map(|n| piece(&mut slab, &n.to_be_bytes())).collect();
        for (n, piece) in (0..).zip(&kept) {
            assert_eq!(piece[..], u128::to_be_bytes(n));
        }
        let large = 300_000 * 16 - FIRST_OCTETS;
        assert_eq!(slab.blocks_allocated(), 1 + large.div_ceil(BLOCK_OCTETS) as u64);
        assert_eq!(slab.other_blocks.len(), BLOCKS_MAX - 1);
    }

    // A stream with little data in flight keeps its first block.
    #[test]
    fn little_in_flight_keeps_the_first_block() {
        let mut slab = Slab::new();
        for round in 0..10_000u32 {
            assert_eq!(piece(&mut slab, &[round as u8; 400])[..], [round as u8; 400]);
        }
        assert_eq!((slab.blocks_allocated(), slab.block_octets), (1, FIRST_OCTETS));
    }

    // An allocation larger than a block succeeds.
    #[test]
    fn room_for_more_than_a_block() {
        let mut slab = Slab::new();
        let large = alloc::vec![7; BLOCK_OCTETS + 1];
        assert_eq!(piece(&mut slab, &large), large);
        assert_eq!(piece(&mut slab, b"small"), b"small"[..]);
        assert_eq!(slab.close(), None);
    }
}
