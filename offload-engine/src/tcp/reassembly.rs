//! Reassembly queue: data right of RCV.NXT, kept until the gap before it is filled.
//!
//! Pieces are copies, sorted and disjoint; where two segments overlap, the first one's bytes are kept. Ranges are the
//! maximal runs of pieces, as reported in SACK blocks (RFC 2018 §4).
//!
//! Limits: ranges from [`super::Config`]; bytes by the window, since nothing beyond it is offered. Small adjacent
//! pieces are joined, so that a flood of tiny segments creates at most [`pieces_max`] pieces. An insertion moves at
//! most half of that table.

use alloc::{collections::VecDeque, vec::Vec};

use bytes::{Bytes, BytesMut};

use super::{SackBlock, seq::Position};

/// Size in bytes up to which adjacent pieces are joined: more than one Ethernet segment, less than two.
const JOIN_MAX: usize = 2048;
/// Pieces that a PSH may keep separate. Beyond it they are joined too: a PSH is not a record mark (RFC 9293 §3.9.1.2).
const PUSHED_PIECES_MAX: usize = 1024;

/// Maximum number of pieces for `bytes` of out-of-order data: of two adjacent ones, one is large.
const fn pieces_max(bytes: usize, ranges_max: usize) -> usize {
    PUSHED_PIECES_MAX + 2 * (bytes / JOIN_MAX + 1) + ranges_max
}

/// Heap of the tables, in bytes: both may have twice the needed capacity.
pub(super) const fn tables_max(bytes: usize, ranges_max: usize) -> usize {
    2 * pieces_max(bytes, ranges_max) * size_of::<Piece>()
        + 2 * ranges_max * size_of::<OutOfOrderRange>()
}

/// Appends `more` to `data`, in place if there is no other reference.
pub(super) fn append(data: &mut Bytes, more: &[u8]) {
    let mut joined = match core::mem::take(data).try_into_mut() {
        Ok(own) => own,
        Err(shared) => BytesMut::from(&shared[..]),
    };
    joined.extend_from_slice(more);
    *data = joined.freeze();
}

/// Capacity of the buffer in bytes; 0 if `data` is not its only reference.
#[cfg(test)]
pub(super) fn capacity_of(data: Bytes) -> usize {
    data.try_into_mut().map_or(0, |own| own.capacity())
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) start: Position,
    pub(super) data: Bytes,
    /// True if the piece ends with a PSH (CH-DEL-4).
    pub(super) push: bool,
}

impl Piece {
    fn end(&self) -> Position {
        self.start + self.data.len() as u64
    }
}

#[derive(Clone, Copy, Debug)]
struct OutOfOrderRange {
    start: Position,
    end: Position,
    /// Insertion count at its last growth.
    stamp: u64,
}

/// Reassembly queue of one connection.
#[derive(Debug)]
pub(super) struct Reassembly {
    pieces: VecDeque<Piece>,
    ranges: Vec<OutOfOrderRange>,
    stamp: u64,
    ranges_max: usize,
}

impl Reassembly {
    pub(super) const fn new(ranges_max: usize) -> Self {
        Self { pieces: VecDeque::new(), ranges: Vec::new(), stamp: 0, ranges_max }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Start of the first piece.
    pub(super) fn first(&self) -> Option<Position> {
        self.pieces.front().map(|piece| piece.start)
    }

    /// Copies the new part of `data`. Returns false if it would exceed the limit of ranges.
    pub(super) fn insert(&mut self, start: Position, data: &[u8], push: bool) -> bool {
        self.insert_with(start, data.len(), push, |from, to| {
            Bytes::copy_from_slice(&data[from..to])
        })
    }

    /// Keeps the new part of `data` without a limit: bytes imported by an offload were already promised to the peer
    /// (RFC 2018 §8).
    pub(super) fn adopt(&mut self, start: Position, data: &Bytes) {
        let ranges_max = core::mem::replace(&mut self.ranges_max, usize::MAX);
        self.insert_with(start, data.len(), false, |from, to| data.slice(from..to));
        self.ranges_max = ranges_max;
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
        let first = self.ranges.partition_point(|range| range.end < start);
        let last = self.ranges.partition_point(|range| range.start <= end);
        if first == last && self.ranges.len() >= self.ranges_max {
            return false;
        }
        let mut at = start;
        let mut index = self.pieces.partition_point(|piece| piece.end() <= start);
        while at < end {
            let next = self.pieces.get(index).map(|next| (next.start, next.end()));
            let gap_end = next.map_or(end, |(start, _)| start.min(end));
            if at < gap_end {
                let data = piece(offset(start, at), offset(start, gap_end));
                let push = push && gap_end == end;
                self.pieces.insert(index, Piece { start: at, data, push });
                let joined = self.join_around(index);
                at = gap_end.max(self.pieces[joined].end());
                index = joined + 1;
                continue;
            }
            let Some((_, next_end)) = next else { break };
            at = next_end;
            index += 1;
        }
        self.merge_range(first, last, start, end);
        true
    }

    /// Joins the piece at `index` with its neighbors if they are small; returns its new index.
    fn join_around(&mut self, index: usize) -> usize {
        self.join(index);
        index - usize::from(index > 0 && self.join(index - 1))
    }

    /// Joins the pieces at `index` and `index + 1` if they are adjacent and small and no PSH separates them.
    fn join(&mut self, index: usize) -> bool {
        let many = self.pieces.len() > PUSHED_PIECES_MAX;
        let (Some(left), Some(right)) = (self.pieces.get(index), self.pieces.get(index + 1)) else {
            return false;
        };
        if left.end() != right.start
            || left.data.len() + right.data.len() > JOIN_MAX
            || left.push && !many
        {
            return false;
        }
        let Some(right) = self.pieces.remove(index + 1) else { return false };
        let left = &mut self.pieces[index];
        append(&mut left.data, &right.data);
        left.push = right.push;
        true
    }

    /// Merges `start..end` into the ranges `first..last` that it touches.
    fn merge_range(&mut self, first: usize, last: usize, start: Position, end: Position) {
        self.stamp += 1;
        let mut merged = OutOfOrderRange { start, end, stamp: self.stamp };
        for range in &self.ranges[first..last] {
            merged.start = merged.start.min(range.start);
            merged.end = merged.end.max(range.end);
        }
        self.ranges.splice(first..last, [merged]);
    }

    /// Removes the piece that continues the stream at `nxt`, without its bytes before `nxt`. Call until `None`.
    pub(super) fn pop(&mut self, nxt: Position) -> Option<Piece> {
        while self.pieces.front()?.start <= nxt {
            let mut piece = self.pieces.pop_front()?;
            let end = piece.end();
            self.remove_before(end.max(nxt));
            if end > nxt {
                let stale = offset(piece.start, nxt);
                piece.data = piece.data.slice(stale..);
                piece.start = nxt;
                return Some(piece);
            }
        }
        None
    }

    fn remove_before(&mut self, nxt: Position) {
        let removed = self.ranges.partition_point(|range| range.end <= nxt);
        self.ranges.drain(..removed);
        if let Some(range) = self.ranges.first_mut() {
            range.start = range.start.max(nxt);
        }
    }

    /// True if one range contains all of `start..end`.
    pub(super) fn contains(&self, start: Position, end: Position) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= start);
        after.checked_sub(1).is_some_and(|index| end <= self.ranges[index].end)
    }

    /// Writes SACK blocks, the most recently changed range first (RFC 2018 §4); returns their number.
    pub(super) fn blocks(&self, blocks: &mut [SackBlock]) -> usize {
        let mut below = u64::MAX;
        for (count, block) in blocks.iter_mut().enumerate() {
            let newest = self.ranges.iter().filter(|i| i.stamp < below).max_by_key(|i| i.stamp);
            let Some(range) = newest else { return count };
            below = range.stamp;
            *block = SackBlock { start: range.start.seq(), end: range.end.seq() };
        }
        blocks.len()
    }

    /// Removes all pieces, in order, for an upload.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Piece> {
        self.ranges.clear();
        self.pieces.drain(..)
    }

    /// Heap in use, in bytes. Consumes all pieces to read the capacities of their buffers.
    #[cfg(test)]
    pub(super) fn heap(&mut self) -> usize {
        let tables = self.pieces.capacity() * size_of::<Piece>()
            + self.ranges.capacity() * size_of::<OutOfOrderRange>();
        tables + self.take().map(|piece| capacity_of(piece.data)).sum::<usize>()
    }

    /// Drops all data.
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

    // RFC 2018 §4: the block of the most recent arrival first, then in order of recency.
    #[test]
    fn most_recent_block_first() {
        let mut queue = Reassembly::new(8);
        for (start, len) in [(10, 10), (30, 10), (50, 10), (70, 10)] {
            assert!(queue.insert(at(start), &[0; 10][..len], false));
        }
        assert_eq!(blocks(&queue, 3), [block(70, 80), block(50, 60), block(30, 40)]);
        assert!(queue.insert(at(20), &[0; 10], false));
        assert_eq!(blocks(&queue, 4), [block(10, 40), block(70, 80), block(50, 60)]);
        assert!(queue.contains(at(12), at(40)) && !queue.contains(at(12), at(41)));
    }

    // A gap beyond the limit is refused; data adjacent to a range is always kept.
    #[test]
    fn gaps_are_limited() {
        let mut queue = Reassembly::new(2);
        assert!(queue.insert(at(10), &[1; 5], false));
        assert!(queue.insert(at(20), &[2; 5], false));
        assert!(!queue.insert(at(30), &[3; 5], false), "a third gap");
        assert!(queue.insert(at(15), &[4; 16], false));
        assert_eq!(blocks(&queue, 4), [block(10, 31)]);
    }

    // Tiny segments, forward, backward and each with a PSH, create few pieces; full-sized ones stay separate.
    #[test]
    fn tiny_pieces_are_joined() {
        const BYTES: u64 = 100_000;
        let few = pieces_max(BYTES as usize, 0);
        type Order = fn(u64) -> u64;
        let orders: [(Order, bool, usize); 4] = [
            (|n| n, false, 100),
            (|n| BYTES - 1 - n, false, 100),
            (|n| n, true, few),
            (|n| n * 7919 % BYTES, true, few),
        ];
        for (order, push, most) in orders {
            let mut queue = Reassembly::new(usize::MAX);
            for n in 0..BYTES {
                assert!(queue.insert(at(1 + order(n)), &[order(n) as u8], push));
            }
            assert!(queue.pieces.len() <= most, "{} pieces", queue.pieces.len());
            assert_eq!(blocks(&queue, 2), [block(1, 1 + BYTES as u32)]);
            let pieces: Vec<_> = queue.take().collect();
            assert!(pieces.last().is_some_and(|last| last.push == push));
            let bytes = pieces.iter().flat_map(|piece| &piece.data);
            assert!(bytes.enumerate().all(|(n, &byte)| byte == n as u8));
        }
        let mut whole = Reassembly::new(8);
        for n in 0..10 {
            assert!(whole.insert(at(1 + 1448 * n), &[0; 1448], false));
        }
        assert_eq!(whole.pieces.len(), 10, "full-sized pieces are not joined");
    }

    proptest! {
        // RFC 9293 §3.10.7.4, RFC 2018 §3: compared with a map of bytes.
        #[test]
        fn inserts_match_map_of_bytes(
            inserts in prop::collection::vec((1u64..120, 1usize..30, any::<bool>()), 1..40),
            fill in 1u64..60,
        ) {
            let mut queue = Reassembly::new(usize::MAX);
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
