//! Data right of RCV.NXT, kept until the hole before it is filled.
//!
//! Pieces are copies, sorted and disjoint. Islands are the maximal runs of pieces: what SACK blocks
//! describe (RFC 2018 s4). Limits: bytes and islands from [`super::Config`], and one piece for each
//! [`PIECE_BYTES_MIN`] bytes of the byte limit, so that tiny segments cannot bloat the queue.

use alloc::{collections::VecDeque, vec::Vec};

use bytes::Bytes;

use super::{SackBlock, seq::Position};

/// Mean piece size below which the queue counts as full, in bytes.
const PIECE_BYTES_MIN: usize = 256;
/// Pieces that are always allowed.
const PIECES_MIN: usize = 64;

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) start: Position,
    pub(super) data: Bytes,
    /// The piece ends with a PSH (CH-DEL-4).
    pub(super) push: bool,
}

impl Piece {
    fn end(&self) -> Position {
        self.start + self.data.len() as u64
    }
}

#[derive(Clone, Copy, Debug)]
struct Island {
    start: Position,
    end: Position,
    /// When it last grew, as a count of insertions.
    stamp: u64,
}

/// The queue of one connection.
#[derive(Debug)]
pub(super) struct Reassembly {
    pieces: VecDeque<Piece>,
    islands: Vec<Island>,
    bytes: usize,
    stamp: u64,
    bytes_max: usize,
    islands_max: usize,
}

impl Reassembly {
    pub(super) const fn new(bytes_max: usize, islands_max: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            islands: Vec::new(),
            bytes: 0,
            stamp: 0,
            bytes_max,
            islands_max,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn is_full(&self, more: usize) -> bool {
        self.bytes + more > self.bytes_max
            || self.pieces.len() >= PIECES_MIN.max(self.bytes_max / PIECE_BYTES_MIN)
    }

    /// Copies what is new of `data`. `false` when a limit forbade keeping part of it.
    pub(super) fn insert(&mut self, start: Position, data: &[u8], push: bool) -> bool {
        self.insert_with(start, data.len(), push, |from, to| {
            Bytes::copy_from_slice(&data[from..to])
        })
    }

    /// Keeps what is new of `data`, beyond any limit: bytes that a hand-over brings were promised to
    /// the peer (RFC 2018 s8).
    pub(super) fn adopt(&mut self, start: Position, data: &Bytes) {
        let limits = (self.bytes_max, self.islands_max);
        (self.bytes_max, self.islands_max) = (usize::MAX, usize::MAX);
        self.insert_with(start, data.len(), false, |from, to| data.slice(from..to));
        (self.bytes_max, self.islands_max) = limits;
    }

    fn insert_with(
        &mut self,
        start: Position,
        len: usize,
        push: bool,
        piece: impl Fn(usize, usize) -> Bytes,
    ) -> bool {
        let end = start + len as u64;
        if len == 0 {
            return true;
        }
        let first = self.islands.partition_point(|island| island.end < start);
        let last = self.islands.partition_point(|island| island.start <= end);
        if first == last && self.islands.len() >= self.islands_max {
            return false;
        }
        let mut at = start;
        let mut index = self.pieces.partition_point(|piece| piece.end() <= start);
        while at < end {
            let next = self.pieces.get(index);
            let gap_end = next.map_or(end, |next| next.start.min(end));
            if at < gap_end {
                let (from, to) = (offset(start, at), offset(start, gap_end));
                if self.is_full(to - from) {
                    break;
                }
                self.bytes += to - from;
                let push = push && gap_end == end;
                self.pieces.insert(index, Piece { start: at, data: piece(from, to), push });
                index += 1;
                at = gap_end;
                continue;
            }
            let Some(next) = next else { break };
            at = next.end();
            index += 1;
        }
        if at > start {
            self.note(first, last, start, at.min(end));
        }
        at >= end
    }

    /// Merges `start..end` into the islands `first..last` that it touches.
    fn note(&mut self, first: usize, last: usize, start: Position, end: Position) {
        self.stamp += 1;
        // A cut-off insertion may not reach the last island it would have touched.
        let reached = self.islands[first..last].iter().filter(|island| island.start <= end).count();
        let touched = first..first + reached;
        let mut merged = Island { start, end, stamp: self.stamp };
        for island in &self.islands[touched.clone()] {
            merged.start = merged.start.min(island.start);
            merged.end = merged.end.max(island.end);
        }
        self.islands.splice(touched, [merged]);
    }

    /// The piece that continues the stream at `nxt`, without what lies before. Call until `None`.
    pub(super) fn pop(&mut self, nxt: Position) -> Option<Piece> {
        while self.pieces.front()?.start <= nxt {
            let mut piece = self.pieces.pop_front()?;
            self.bytes -= piece.data.len();
            let end = piece.end();
            self.forget_before(end.max(nxt));
            if end > nxt {
                let stale = offset(piece.start, nxt);
                piece.data = piece.data.slice(stale..);
                piece.start = nxt;
                return Some(piece);
            }
        }
        None
    }

    fn forget_before(&mut self, nxt: Position) {
        let gone = self.islands.partition_point(|island| island.end <= nxt);
        self.islands.drain(..gone);
        if let Some(island) = self.islands.first_mut() {
            island.start = island.start.max(nxt);
        }
    }

    /// The island that holds `start..end` entirely.
    pub(super) fn holds(&self, start: Position, end: Position) -> bool {
        self.islands.iter().any(|island| island.start <= start && end <= island.end)
    }

    /// Writes SACK blocks, the island that changed last first (RFC 2018 s4); returns how many.
    pub(super) fn blocks(&self, blocks: &mut [SackBlock]) -> usize {
        let mut below = u64::MAX;
        for (count, block) in blocks.iter_mut().enumerate() {
            let newest = self.islands.iter().filter(|i| i.stamp < below).max_by_key(|i| i.stamp);
            let Some(island) = newest else { return count };
            below = island.stamp;
            *block = SackBlock { start: island.start.seq(), end: island.end.seq() };
        }
        blocks.len()
    }

    /// Everything that is kept, in order, for a hand-over.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Piece> {
        self.islands.clear();
        self.bytes = 0;
        self.pieces.drain(..)
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.take().for_each(drop);
    }
}

fn offset(from: Position, to: Position) -> usize {
    usize::try_from(to.since(from)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::tcp::SeqNum;

    const BASE: SeqNum = SeqNum(u32::MAX - 20);

    fn at(offset: u64) -> Position {
        Position::first(BASE) + offset
    }

    fn block(start: u32, end: u32) -> SackBlock {
        SackBlock { start: BASE + start, end: BASE + end }
    }

    fn blocks(queue: &Reassembly, max: usize) -> Vec<SackBlock> {
        let mut blocks = vec![block(0, 0); max];
        let count = queue.blocks(&mut blocks);
        blocks.truncate(count);
        blocks
    }

    // RFC 2018 s4: the block of the most recent arrival first, the others in order of recency.
    #[test]
    fn most_recent_block_first() {
        let mut queue = Reassembly::new(1000, 8);
        for (start, len) in [(10, 10), (30, 10), (50, 10), (70, 10)] {
            assert!(queue.insert(at(start), &[0; 10][..len], false));
        }
        assert_eq!(blocks(&queue, 3), [block(70, 80), block(50, 60), block(30, 40)]);
        assert!(queue.insert(at(20), &[0; 10], false));
        assert_eq!(blocks(&queue, 4), [block(10, 40), block(70, 80), block(50, 60)]);
        assert!(queue.holds(at(12), at(40)) && !queue.holds(at(12), at(41)));
    }

    #[test]
    fn limits_hold() {
        let mut queue = Reassembly::new(20, 2);
        assert!(queue.insert(at(10), &[1; 5], false));
        assert!(queue.insert(at(20), &[2; 5], false));
        assert!(!queue.insert(at(30), &[3; 5], false), "a third gap");
        assert!(!queue.insert(at(15), &[4; 16], false), "too many bytes");
        assert_eq!(blocks(&queue, 4), [block(10, 25)]);
        let mut tiny = Reassembly::new(1000, 1000);
        let kept = (0..200).filter(|n| tiny.insert(at(2 * n + 1), b"x", false)).count();
        assert_eq!(kept, PIECES_MIN);
    }

    proptest! {
        // RFC 9293 s3.10.7.4, RFC 2018 s3: against a map of bytes.
        #[test]
        fn behaves_like_a_map_of_bytes(
            inserts in prop::collection::vec((1u64..120, 1usize..30, any::<bool>()), 1..40),
            fill in 1u64..60,
        ) {
            let mut queue = Reassembly::new(usize::MAX / 2, usize::MAX);
            let mut model = [None; 200];
            for (n, (start, len, push)) in inserts.iter().enumerate() {
                let data = vec![n as u8; *len];
                prop_assert!(queue.insert(at(*start), &data, *push));
                for byte in &mut model[*start as usize..*start as usize + len] {
                    byte.get_or_insert(n as u8);
                }
            }
            let mut expected = Vec::new();
            for (n, byte) in model.iter().enumerate() {
                let run = byte.is_some();
                if run && (n == 0 || model[n - 1].is_none()) {
                    expected.push((n as u32, n as u32));
                }
                if run {
                    expected.last_mut().unwrap().1 = n as u32 + 1;
                }
            }
            let mut seen = blocks(&queue, 200);
            seen.sort_by_key(|block| Position::first(BASE).locate(block.start));
            let expected: Vec<_> = expected.iter().map(|&(s, e)| block(s, e)).collect();
            prop_assert_eq!(seen, expected);

            let mut nxt = at(fill);
            while let Some(piece) = queue.pop(nxt) {
                prop_assert_eq!(piece.start, nxt);
                for byte in &piece.data {
                    prop_assert_eq!(model[nxt.since(at(0)) as usize], Some(*byte));
                    nxt += 1;
                }
            }
            prop_assert_eq!(model[nxt.since(at(0)) as usize], None);
            let left: usize = queue.take().map(|piece| piece.data.len()).sum();
            let unread = model[nxt.since(at(0)) as usize..].iter().flatten().count();
            prop_assert_eq!(left, unread);
        }
    }
}
