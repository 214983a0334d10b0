//! The send queue: requests that were posted and are not completed.
//!
//! Requests have serial numbers, counted from 0 per queue, so that a list of FPDUs can say "everything before serial n
//! is in here" with one number.

use alloc::collections::VecDeque;
use core::ops::Range;

use bytes::Bytes;

use super::{
    sges::{Entries, SgeRing},
    wr::{Sge, WqeKind, WrFlags},
};
use crate::{
    error::ErrorNumber,
    rdmap::{ATOMIC_TARGET_OCTETS, AtomicOperation},
    rnic::{objects::id::CqId, status::WcStatus},
};

/// The progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Not begun, or partly handed to TCP.
    Queued,
    /// All of it is with TCP; waits for the acknowledgement, or for the read response.
    Sent,
    /// Outcome known; completes when everything before it has.
    Done(WcStatus),
}

/// A request of the send queue.
#[derive(Debug)]
pub(crate) struct WorkRequest {
    pub(crate) context: u64,
    pub(crate) flags: WrFlags,
    pub(crate) kind: WqeKind,
    pub(crate) progress: Progress,
    /// Bytes over all entries.
    pub(crate) length: u32,
    /// For a send or immediate data: its MSN. For a read or an atomic: its MSN on queue 1. Known once begun.
    pub(crate) msn: u32,
    /// The error for the completion.
    pub(crate) error: Option<ErrorNumber>,
    memory: Memory,
}

impl WorkRequest {
    /// The data, if the post has captured it.
    pub(crate) const fn captured(&self) -> Option<&Bytes> {
        match &self.memory {
            Memory::Captured(data) => Some(data),
            Memory::Listed(_) => None,
        }
    }

    /// The entry, if there is one only.
    pub(crate) const fn single(&self) -> Option<Sge> {
        match self.memory {
            Memory::Listed(Entries::One([sge])) => Some(sge),
            _ => None,
        }
    }

    const fn entries(&self) -> Option<&Entries> {
        match &self.memory {
            Memory::Captured(_) => None,
            Memory::Listed(entries) => Some(entries),
        }
    }
}

/// The memory of a request.
#[derive(Debug)]
enum Memory {
    /// Data captured by the post.
    Captured(Bytes),
    Listed(Entries),
}

/// The send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) cq: CqId,
    depth: u32,
    requests: VecDeque<WorkRequest>,
    /// How many of them are parts of the one behind: the depth does not count them.
    parts: usize,
    sges: SgeRing,
    /// Operands of the atomics that are queued.
    operands: VecDeque<AtomicOperation>,
    /// Serial of the front request.
    base: u64,
    /// Serial of the first request that is still [`Progress::Queued`].
    next: u64,
    /// End of the acknowledged serials (exclusive).
    acknowledged: u64,
}

impl SendQueue {
    pub(crate) fn new(cq: CqId, depth: u32) -> Self {
        Self {
            cq,
            depth,
            requests: VecDeque::new(),
            parts: 0,
            sges: SgeRing::default(),
            operands: VecDeque::new(),
            base: 0,
            next: 0,
            acknowledged: 0,
        }
    }

    /// Requests that can be posted.
    pub(crate) fn room(&self) -> usize {
        (self.depth as usize).saturating_sub(self.requests.len() - self.parts)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() - self.parts >= self.depth as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request that works on the memory of `sges`.
    #[inline]
    pub(crate) fn push(
        &mut self,
        context: u64,
        flags: WrFlags,
        kind: WqeKind,
        length: u32,
        sges: &[Sge],
    ) {
        let memory = Memory::Listed(self.sges.push(sges));
        self.push_any(context, flags, kind, length, memory);
    }

    /// Adds an atomic whose outcome goes to `sges`, one entry.
    pub(crate) fn push_atomic(
        &mut self,
        context: u64,
        flags: WrFlags,
        kind: WqeKind,
        operation: AtomicOperation,
        sges: &[Sge],
    ) {
        debug_assert!(matches!(kind, WqeKind::Atomic { .. }));
        self.operands.push_back(operation);
        self.push(context, flags, kind, ATOMIC_TARGET_OCTETS, sges);
    }

    /// The operands of the next request, an atomic that begins.
    pub(crate) fn take_operands(&mut self) -> Option<AtomicOperation> {
        self.operands.pop_front()
    }

    /// No atomic that is queued will begin.
    pub(crate) fn drop_operands(&mut self) {
        self.operands.clear();
    }

    /// Adds a request whose data the post has captured.
    pub(crate) fn push_captured(
        &mut self,
        context: u64,
        flags: WrFlags,
        kind: WqeKind,
        captured: Bytes,
    ) {
        let length = captured.len() as u32;
        self.push_any(context, flags, kind, length, Memory::Captured(captured));
    }

    #[inline]
    fn push_any(
        &mut self,
        context: u64,
        flags: WrFlags,
        kind: WqeKind,
        length: u32,
        memory: Memory,
    ) {
        let progress = Progress::Queued;
        self.parts += usize::from(flags.contains(WrFlags::PART));
        let request =
            WorkRequest { context, flags, kind, progress, length, msn: 0, error: None, memory };
        self.requests.push_back(request);
    }

    /// The request that was pushed last will not begin: its outcome is known.
    pub(crate) fn finish_last(&mut self, status: WcStatus) {
        let Some(last) = self.requests.back_mut() else { return };
        last.progress = Progress::Done(status);
        if matches!(last.kind, WqeKind::Atomic { .. }) {
            self.operands.pop_back();
        }
    }

    /// Serial of the first request that is not completely with TCP.
    pub(crate) const fn next_serial(&self) -> u64 {
        self.next
    }

    /// That request.
    #[inline]
    pub(crate) fn next_mut(&mut self) -> Option<&mut WorkRequest> {
        self.get_mut(self.next)
    }

    #[inline]
    fn get(&self, serial: u64) -> Option<&WorkRequest> {
        let index = serial.checked_sub(self.base)?;
        self.requests.get(index as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, serial: u64) -> Option<&mut WorkRequest> {
        let index = serial.checked_sub(self.base)?;
        self.requests.get_mut(index as usize)
    }

    /// The data of request `serial`, if the post has captured it.
    #[inline]
    pub(crate) fn captured(&self, serial: u64) -> Option<&Bytes> {
        self.get(serial)?.captured()
    }

    /// The entries of request `serial`.
    #[inline]
    pub(crate) fn sges(&self, serial: u64) -> impl Iterator<Item = Sge> {
        self.sges.get(self.get(serial).and_then(WorkRequest::entries))
    }

    /// The next request has left the queued state.
    #[inline]
    pub(crate) fn advance(&mut self, progress: Progress) {
        debug_assert_ne!(progress, Progress::Queued);
        if let Some(request) = self.next_mut() {
            request.progress = progress;
            self.next += 1;
        }
    }

    /// Everything handed to TCP before request `end` is acknowledged: sends and writes are done.
    pub(crate) fn acknowledge(&mut self, end: u64) {
        // All was done when TCP had it.
        if self.requests.is_empty() {
            self.acknowledged = self.acknowledged.max(end);
            return;
        }
        for request in self.requests.range_mut(self.unacknowledged(end)) {
            if request.progress == Progress::Sent && !request.kind.awaits_response() {
                request.progress = Progress::Done(WcStatus::Success);
            }
        }
        self.acknowledged = self.acknowledged.max(end);
    }

    /// Places of the requests before `end` that no acknowledgement has covered yet.
    fn unacknowledged(&self, end: u64) -> Range<usize> {
        let place =
            |serial: u64| serial.saturating_sub(self.base).min(self.requests.len() as u64) as usize;
        place(self.acknowledged.min(end))..place(end)
    }

    /// Returns whether a Send or Write before request `end` waits for its acknowledgement.
    pub(crate) fn awaits_acknowledgement(&self, end: u64) -> bool {
        self.requests
            .range(self.unacknowledged(end))
            .any(|request| request.progress == Progress::Sent && !request.kind.awaits_response())
    }

    /// The first request from the front that has begun, is not done, and that `matches`. The first
    /// queued one has begun if `is_cutting`.
    pub(crate) fn find_begun(
        &mut self,
        is_cutting: bool,
        matches: impl Fn(&WorkRequest) -> bool,
    ) -> Option<&mut WorkRequest> {
        let begun = (self.next - self.base) as usize + usize::from(is_cutting);
        self.requests
            .iter_mut()
            .take(begun)
            .find(|request| !matches!(request.progress, Progress::Done(_)) && matches(request))
    }

    /// The front request with its outcome, if that is known: completions are in order (NDK-WR-6).
    pub(crate) fn front_done(&self) -> Option<(&WorkRequest, WcStatus)> {
        let request = self.requests.front()?;
        let Progress::Done(status) = request.progress else { return None };
        Some((request, status))
    }

    /// The front request, whatever its progress.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<WorkRequest> {
        self.release_front()?;
        self.requests.pop_front()
    }

    /// As [`SendQueue::pop`], of a request that nobody needs any more.
    #[inline]
    pub(crate) fn discard_front(&mut self) {
        if self.release_front().is_some() {
            drop(self.requests.pop_front());
        }
    }

    /// The front request goes: so do its entries and its serial.
    #[inline]
    fn release_front(&mut self) -> Option<()> {
        let request = self.requests.front()?;
        if let Memory::Listed(entries) = request.memory {
            self.sges.pop(entries);
        }
        self.parts -= usize::from(request.flags.contains(WrFlags::PART));
        self.base += 1;
        self.next = self.next.max(self.base);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        ddp::{Stag, TaggedOffset},
        rnic::{
            objects::id::{Table, kind},
            queues::wr::Remote,
        },
    };

    const REMOTE: Remote = Remote { stag: Stag(0), offset: TaggedOffset(0) };

    fn sge(address: u64, length: u32) -> Sge {
        Sge { address, length, token: 0 }
    }

    proptest! {
        // Each request has its own entries, none, one or a list, however the ring beside the queue has turned; one
        // whose data was captured has none.
        #[test]
        fn requests_keep_their_entries(counts in prop::collection::vec(0_usize..6, 1..60)) {
            let mut queue = SendQueue::new(test_cq(), 8);
            let entries = |serial: u64, count: usize| -> Vec<Sge> {
                (0..count as u64).map(|n| sge(serial << 16 | n, 1)).collect()
            };
            for (serial, count) in (0_u64..).zip(&counts) {
                let kind = WqeKind::Send { invalidate: None };
                match count {
                    5 => queue.push_captured(serial, WrFlags::NONE, kind, Bytes::from_static(b"data")),
                    _ => queue.push(serial, WrFlags::NONE, kind, 1, &entries(serial, *count)),
                }
                if serial >= 5 {
                    prop_assert_eq!(queue.pop().map(|request| request.context), Some(serial - 5));
                }
                let oldest = serial.saturating_sub(4);
                for (waiting, count) in (oldest..=serial).zip(&counts[oldest as usize..]) {
                    let expected = if *count == 5 { 0 } else { *count };
                    let found: Vec<Sge> = queue.sges(waiting).collect();
                    prop_assert_eq!(&found, &entries(waiting, expected));
                    let single = queue.get(waiting).and_then(WorkRequest::single);
                    prop_assert_eq!(single, found.first().copied().filter(|_| found.len() == 1));
                    prop_assert_eq!(queue.captured(waiting).is_some(), *count == 5);
                }
                prop_assert_eq!(queue.sges(serial + 1).count(), 0);
            }
        }
    }

    // NDK-WR-6, NDK-WR-7: a read that waits holds back what was posted later, and nothing else does.
    #[test]
    fn completions_are_in_order() {
        let mut queue = SendQueue::new(test_cq(), 4);
        let kinds = [
            WqeKind::Send { invalidate: None },
            WqeKind::Read { from: REMOTE, invalidate_sink: false },
            WqeKind::Write { to: REMOTE },
        ];
        for (context, kind) in (0..).zip(kinds) {
            queue.push(context, WrFlags::NONE, kind, 1, &[sge(0, 1)]);
        }
        for _ in 0..3 {
            queue.advance(Progress::Sent);
        }
        queue.acknowledge(3);
        let pop_done = |queue: &mut SendQueue| {
            let context = queue.front_done().map(|(request, _)| request.context);
            context.and_then(|_| queue.pop());
            context
        };
        assert_eq!(pop_done(&mut queue), Some(0));
        assert_eq!(pop_done(&mut queue), None, "the read's response has not come");
        queue.get_mut(1).unwrap().progress = Progress::Done(WcStatus::Success);
        assert_eq!(pop_done(&mut queue), Some(1));
        assert_eq!(pop_done(&mut queue), Some(2));
        assert!(queue.pop().is_none());
    }

    fn test_cq() -> CqId {
        Table::<kind::Cq, ()>::new(1).insert(()).unwrap()
    }
}
