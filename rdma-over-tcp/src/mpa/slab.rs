//! Memory for headers, pads, CRCs and markers: small pieces cut from large blocks.
//!
//! A [`Slab`] hands out pieces of a block of [`BLOCK_OCTETS`]; each piece holds a reference to its
//! block. When a block is used up the slab goes round its [`BLOCKS_MAX`] blocks for one whose
//! pieces have all been dropped and starts that one again: in steady state nothing is allocated.
//! When all of them are still referenced (by net buffers that wait for acknowledgement) a new block
//! takes the place of the oldest, which is freed with its last piece. So the slab itself never
//! holds more than `BLOCKS_MAX * BLOCK_OCTETS` octets; what is in flight is bounded by whoever
//! posts the FPDUs.

use bytes::BytesMut;

/// Octets of one block: room for the headers and CRCs of about 2,700 FPDUs.
pub const BLOCK_OCTETS: usize = 64 * 1024;

/// Blocks that a slab keeps.
pub const BLOCKS_MAX: usize = 4;

/// A source of small pieces of memory.
#[derive(Debug, Default)]
pub struct Slab {
    blocks: [BytesMut; BLOCKS_MAX],
    current: usize,
    blocks_allocated: u64,
}

impl Slab {
    /// An empty slab; blocks are allocated when first needed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Blocks allocated so far. Stands still in steady state.
    pub const fn blocks_allocated(&self) -> u64 {
        self.blocks_allocated
    }

    /// An empty buffer with room for exactly `octets` (1 to [`BLOCK_OCTETS`]).
    pub(crate) fn take(&mut self, octets: usize) -> BytesMut {
        debug_assert!((1..=BLOCK_OCTETS).contains(&octets));
        if self.blocks[self.current].capacity() < octets {
            self.turn(octets);
        }
        let block = &mut self.blocks[self.current];
        let rest = block.split_off(octets);
        core::mem::replace(block, rest)
    }

    fn turn(&mut self, octets: usize) {
        for _ in 0..BLOCKS_MAX {
            self.current = (self.current + 1) % BLOCKS_MAX;
            if self.blocks[self.current].try_reclaim(octets.max(BLOCK_OCTETS / 2)) {
                return;
            }
        }
        self.current = (self.current + 1) % BLOCKS_MAX;
        self.blocks[self.current] = BytesMut::with_capacity(BLOCK_OCTETS);
        self.blocks_allocated += 1;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use bytes::BufMut;

    use super::*;

    // Pieces that are dropped in time are served from the same blocks for ever.
    #[test]
    fn steady_state_allocates_nothing() {
        let mut slab = Slab::new();
        let mut in_flight = VecDeque::new();
        for round in 0..100_000u32 {
            let mut piece = slab.take(24);
            assert!(piece.is_empty());
            piece.put_bytes(round as u8, 24);
            in_flight.push_back(piece.freeze());
            if in_flight.len() > 2000 {
                let oldest = in_flight.pop_front().unwrap();
                assert_eq!(oldest[..], [(round - 2000) as u8; 24]);
            }
        }
        assert!(slab.blocks_allocated() <= BLOCKS_MAX as u64, "{}", slab.blocks_allocated());
    }

    // Pieces that are kept stay untouched; the slab goes on with new blocks.
    #[test]
    fn pieces_outlive_their_turn() {
        let mut slab = Slab::new();
        let kept: alloc::vec::Vec<_> = (0..40_000u32)
            .map(|n| {
                let mut piece = slab.take(16);
                piece.put_u128(u128::from(n));
                piece.freeze()
            })
            .collect();
        for (n, piece) in (0..).zip(&kept) {
            assert_eq!(piece[..], u128::to_be_bytes(n));
        }
        assert_eq!(slab.blocks_allocated(), (40_000 * 16usize).div_ceil(BLOCK_OCTETS) as u64);
    }
}
