//! Receive queues.
//!
//! A queue pair takes a receive from its queue when the first segment of a message arrives, and keeps it until the
//! message is complete. So several queue pairs can share one queue (a shared receive queue).
//!
//! A shared queue can have a limit. When a receive is taken and fewer receives than the limit remain, its consumer is
//! notified, once per limit set (NDK-SRQ-2).

use alloc::{collections::VecDeque, vec::Vec};

use super::{
    sges::{Entries, SgeRing, pieces},
    wr::Sge,
};
use crate::rnic::{objects::id::QpId, status::VerbError};

/// Receive taken from its queue. Its storage is reused for the next receive.
#[derive(Default, Debug)]
pub(crate) struct Receive {
    pub(crate) context: u64,
    /// Bytes over all entries.
    pub(crate) length: u32,
    sges: Vec<Sge>,
}

impl Receive {
    /// Returns the pieces that hold `length` bytes from byte `offset` on.
    pub(crate) fn pieces(&self, offset: u32, length: u32) -> impl Iterator<Item = Sge> {
        pieces(self.sges.iter().copied(), offset, length)
    }

    /// As [`Receive::pieces`], if the result is one piece of a single entry.
    pub(crate) fn single_piece(&self, offset: u32, length: u32) -> Option<Sge> {
        let &[entry] = &self.sges[..] else { return None };
        let is_within = offset.checked_add(length).is_some_and(|end| end <= entry.length);
        let address = entry.address.wrapping_add(u64::from(offset));
        is_within.then_some(Sge { address, length, token: entry.token })
    }
}

/// Posted receive.
#[derive(Clone, Copy, Debug)]
struct Posted {
    context: u64,
    length: u32,
    sges: Entries,
}

/// Queue of posted receives.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    depth: u32,
    posted: VecDeque<Posted>,
    sges: SgeRing,
    limit: u32,
    watch: Watch,
    /// Queue pairs of a shared queue with a message that waits for a receive.
    waiting: Vec<QpId>,
}

/// State of the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    /// No limit is set, or the consumer has been notified.
    Off,
    /// The limit is armed once this many receives are queued (NDK-SRQ-3).
    OnceFilled,
    Armed,
    /// The notification of the consumer is due.
    Due,
}

impl ReceiveQueue {
    pub(crate) fn new(depth: u32) -> Self {
        let (posted, sges) = (VecDeque::new(), SgeRing::default());
        let waiting = Vec::new();
        Self { depth, posted, sges, limit: 0, watch: Watch::Off, waiting }
    }

    /// Registers a queue pair whose message waits for a receive.
    pub(crate) fn wait(&mut self, qp: QpId) {
        self.waiting.push(qp);
    }

    /// Removes and returns the waiting queue pairs, the longest waiting first.
    #[inline]
    pub(crate) fn take_waiting(&mut self) -> Vec<QpId> {
        core::mem::take(&mut self.waiting)
    }

    /// Returns true if a message of another queue pair than the owner waits for a receive.
    #[inline]
    pub(crate) const fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Receives that no message has taken.
    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    pub(crate) const fn depth(&self) -> u32 {
        self.depth
    }

    /// Armed limit; 0: none.
    pub(crate) const fn armed_limit(&self) -> u32 {
        match self.watch {
            Watch::Off | Watch::Due => 0,
            Watch::OnceFilled | Watch::Armed => self.limit,
        }
    }

    /// Changes the depth.
    ///
    /// # Errors
    /// [`VerbError::ReceivesPresent`]: more than `depth` receives are queued.
    pub(crate) fn resize(&mut self, depth: u32) -> Result<(), VerbError> {
        if self.posted.len() > depth as usize {
            return Err(VerbError::ReceivesPresent);
        }
        self.depth = depth;
        Ok(())
    }

    /// Sets a limit that is armed once this many receives are queued.
    pub(crate) fn limit_once_filled(&mut self, limit: u32) {
        self.limit = limit;
        self.watch = if limit > 0 { Watch::OnceFilled } else { Watch::Off };
    }

    /// Sets and arms a limit. With fewer receives the consumer is notified immediately. 0: none.
    pub(crate) fn arm(&mut self, limit: u32) {
        self.limit = limit;
        self.watch = if limit > 0 { Watch::Armed } else { Watch::Off };
        self.check_limit();
    }

    fn check_limit(&mut self) {
        if self.watch == Watch::Armed && self.posted.len() < self.limit as usize {
            self.watch = Watch::Due;
        }
    }

    /// Returns true, once, if the notification of the limit is due.
    #[inline]
    pub(crate) fn take_due(&mut self) -> bool {
        let is_due = self.watch == Watch::Due;
        if is_due {
            self.watch = Watch::Off;
        }
        is_due
    }

    /// Returns true if no receive can be posted while `taken` receives are not complete. Taken receives count, because
    /// otherwise the completion queue could overrun.
    pub(crate) fn is_full(&self, taken: usize) -> bool {
        self.posted.len() + taken >= self.depth as usize
    }

    pub(crate) fn push(&mut self, context: u64, length: u32, sges: &[Sge]) {
        let sges = self.sges.push(sges);
        self.posted.push_back(Posted { context, length, sges });
        if self.watch == Watch::OnceFilled && self.posted.len() >= self.limit as usize {
            self.watch = Watch::Armed;
        }
    }

    /// Returns the bytes of the oldest receive.
    pub(crate) fn next_length(&self) -> Option<u32> {
        self.posted.front().map(|posted| posted.length)
    }

    /// Moves the oldest receive into `receive`. Returns true if there was one.
    #[inline]
    pub(crate) fn take(&mut self, receive: &mut Receive) -> bool {
        let Some(Posted { context, length, sges }) = self.posted.pop_front() else { return false };
        self.check_limit();
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

    /// Removes the oldest receive without a message. Returns its context.
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

    // Receives are taken in order, each with its own entries. The fast path for a receive with one entry finds the same
    // piece as the list.
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
        assert_eq!(receive.single_piece(9, 2), None, "beyond the end");
        assert_eq!(receive.single_piece(u32::MAX, 2), None);
        assert!(queue.take(&mut receive));
        assert_eq!(receive.context, 2);
        assert_eq!(receive.single_piece(0, 4), None, "two entries");
        assert_eq!(receive.pieces(3, 2).collect::<Vec<_>>(), vec![sge(103, 1), sge(200, 1)]);
    }

    // NDK-SRQ-2, -3: one event for each limit set. A limit set at creation is armed once the queue was filled.
    #[test]
    fn limits() {
        let mut queue = ReceiveQueue::new(8);
        let mut receive = Receive::default();
        queue.limit_once_filled(2);
        queue.push(1, 0, &[]);
        assert!(queue.take(&mut receive));
        assert!(!queue.take_due(), "two were never queued");
        (2..=4).for_each(|context| queue.push(context, 0, &[]));
        assert_eq!(queue.armed_limit(), 2);
        assert!(queue.take(&mut receive));
        assert!(!queue.take_due(), "two are left");
        assert!(queue.take(&mut receive));
        assert!(queue.take_due(), "one is left");
        assert!(!queue.take_due(), "once");
        assert!(queue.take(&mut receive));
        assert_eq!((queue.take_due(), queue.armed_limit()), (false, 0), "once for a limit");
        queue.arm(1);
        assert!(queue.take_due(), "no receive is left");
        queue.push(5, 0, &[]);
        queue.arm(1);
        assert!(!queue.take_due());
        assert!(queue.take(&mut receive));
        assert!(queue.take_due());
        queue.push(6, 0, &[]);
        queue.arm(1);
        queue.arm(0);
        assert!(queue.take(&mut receive));
        assert!(!queue.take_due(), "the limit was cleared");
        (7..=8).for_each(|context| queue.push(context, 0, &[]));
        assert_eq!(queue.resize(1), Err(VerbError::ReceivesPresent));
        assert_eq!(queue.resize(2), Ok(()));
        assert!(queue.is_full(0));
    }

    // A discarded receive is removed with its entries. Later receives keep their own.
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
