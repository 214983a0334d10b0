//! Receive queues.
//!
//! A queue pair takes a receive from its queue when the first segment of a message arrives, and keeps it until the
//! message is complete. So several queue pairs can take from one queue (a shared receive queue).

use alloc::{collections::VecDeque, vec::Vec};

use super::{
    sges::{Entries, SgeRing, pieces},
    wr::Sge,
};

/// A receive that was taken from its queue. Its storage is used again for the next one.
#[derive(Default, Debug)]
pub(crate) struct Receive {
    pub(crate) context: u64,
    /// Bytes over all entries.
    pub(crate) length: u32,
    sges: Vec<Sge>,
}

impl Receive {
    /// The pieces that take `length` bytes from byte `offset` on.
    pub(crate) fn pieces(&self, offset: u32, length: u32) -> impl Iterator<Item = Sge> {
        pieces(self.sges.iter().copied(), offset, length)
    }

    /// The same, if it is one piece of a single entry.
    pub(crate) fn single_piece(&self, offset: u32, length: u32) -> Option<Sge> {
        let &[entry] = &self.sges[..] else { return None };
        let is_within = offset.checked_add(length).is_some_and(|end| end <= entry.length);
        let address = entry.address.wrapping_add(u64::from(offset));
        is_within.then_some(Sge { address, length, token: entry.token })
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
struct Posted {
    context: u64,
    length: u32,
    sges: Entries,
}

/// A receive queue.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    depth: u32,
    posted: VecDeque<Posted>,
    sges: SgeRing,
}

impl ReceiveQueue {
    pub(crate) fn new(depth: u32) -> Self {
        Self { depth, posted: VecDeque::new(), sges: SgeRing::default() }
    }

    /// Returns whether nothing more can be posted while `taken` receives are not complete. Those count, or more
    /// completions could be due than the completion queue holds.
    pub(crate) fn is_full(&self, taken: usize) -> bool {
        self.posted.len() + taken >= self.depth as usize
    }

    pub(crate) fn push(&mut self, context: u64, length: u32, sges: &[Sge]) {
        let sges = self.sges.push(sges);
        self.posted.push_back(Posted { context, length, sges });
    }

    /// Moves the oldest receive into `receive`. Returns whether there was one.
    #[inline]
    pub(crate) fn take(&mut self, receive: &mut Receive) -> bool {
        let Some(Posted { context, length, sges }) = self.posted.pop_front() else { return false };
        receive.context = context;
        receive.length = length;
        receive.sges.clear();
        match sges {
            Entries::One([sge]) => receive.sges.push(sge),
            Entries::InRing { count: 0, .. } => {}
            Entries::InRing { first, count } => {
                let (front, back) = self.sges.in_ring(first, count);
                receive.sges.extend_from_slice(front);
                receive.sges.extend_from_slice(back);
                self.sges.pop(sges);
            }
        }
        true
    }

    /// Removes the oldest receive, which nothing will be received into. Returns its context.
    pub(crate) fn discard(&mut self) -> Option<u64> {
        let Posted { context, sges, .. } = self.posted.pop_front()?;
        self.sges.pop(sges);
        Some(context)
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn sge(address: u64, length: u32) -> Sge {
        Sge { address, length, token: 0 }
    }

    // Receives are taken in order, each with its own entries; a piece of a receive with one entry is found without
    // cutting lists, and is the same piece.
    #[test]
    fn receives_are_taken_in_order() {
        let mut queue = ReceiveQueue::new(2);
        let mut receive = Receive::default();
        assert!(!queue.take(&mut receive));
        assert_eq!(receive.single_piece(0, 1), None);
        queue.push(1, 10, &[sge(100, 10)]);
        queue.push(2, 10, &[sge(100, 4), sge(200, 6)]);
        assert!(queue.is_full(0));
        assert!(queue.take(&mut receive));
        assert_eq!((receive.context, receive.length), (1, 10));
        assert!(queue.is_full(1) && !queue.is_full(0));
        for (offset, length) in [(0, 10), (3, 7), (9, 1)] {
            let piece = receive.single_piece(offset, length);
            let pieces: Vec<_> = receive.pieces(offset, length).collect();
            assert_eq!(piece.into_iter().collect::<Vec<_>>(), pieces);
        }
        assert_eq!(receive.single_piece(9, 2), None, "more than there is");
        assert_eq!(receive.single_piece(u32::MAX, 2), None);
        assert!(queue.take(&mut receive));
        assert_eq!(receive.context, 2);
        assert_eq!(receive.single_piece(0, 4), None, "two entries");
        assert_eq!(receive.pieces(3, 2).collect::<Vec<_>>(), vec![sge(103, 1), sge(200, 1)]);
    }
    // A receive that is discarded leaves with its entries: those of later ones are their own.
    #[test]
    fn receives_are_discarded_in_order() {
        let mut queue = ReceiveQueue::new(4);
        let mut receive = Receive::default();
        assert_eq!(queue.discard(), None);
        for context in 1..=3 {
            queue.push(context, 10, &[sge(100 * context, 4), sge(1000 * context, 6)]);
        }
        assert_eq!((queue.discard(), queue.discard()), (Some(1), Some(2)));
        assert!(queue.take(&mut receive));
        assert_eq!(receive.pieces(0, 10).collect::<Vec<_>>(), vec![sge(300, 4), sge(3000, 6)]);
        assert_eq!(queue.discard(), None);
    }
}
