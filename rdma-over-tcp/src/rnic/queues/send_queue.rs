//! Send queue: requests that were posted and are not completed.
//!
//! Requests have serial numbers, counted from 0 per queue. So one number records that a list of FPDUs contains
//! everything before serial n.

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

/// Progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Not started, or partly passed to TCP.
    Queued,
    /// Completely passed to TCP; waits for the acknowledgment, of TCP or of the peer ([`QpService::Rc`]), or for the
    /// response of the peer.
    ///
    /// [`QpService::Rc`]: crate::rnic::QpService
    Sent,
    /// Outcome known; completes after all earlier requests.
    Done(WcStatus),
}

/// Request of the send queue.
#[derive(Debug)]
pub(crate) struct WorkRequest {
    pub(crate) context: u64,
    pub(crate) flags: WrFlags,
    pub(crate) kind: WqeKind,
    pub(crate) progress: Progress,
    /// Bytes over all entries.
    pub(crate) length: u32,
    /// MSN of a Send or immediate data; MSN on queue 1 of a Read or an atomic. With [`QpService::Rc`], the number of a
    /// Send, Write or immediate data. Valid once the request has started.
    ///
    /// [`QpService::Rc`]: crate::rnic::QpService
    pub(crate) msn: u32,
    /// Error for the completion.
    pub(crate) error: Option<ErrorNumber>,
    memory: Memory,
}

impl WorkRequest {
    /// Captured data of the request, if the post captured it.
    pub(crate) const fn captured(&self) -> Option<&Bytes> {
        match &self.memory {
            Memory::Captured(data) => Some(data),
            Memory::Listed(_) => None,
        }
    }

    /// Returns the entry, if there is exactly one.
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

/// Memory of a request.
#[derive(Debug)]
enum Memory {
    /// Data captured by the post.
    Captured(Bytes),
    Listed(Entries),
}

/// Queue of the requests of the send side.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) cq: CqId,
    depth: u32,
    requests: VecDeque<WorkRequest>,
    /// Requests that are the first part of the next one. They do not count for the depth.
    parts: usize,
    sges: SgeRing,
    /// Operands of the queued atomics.
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

    /// Count of requests that can be posted.
    pub(crate) fn room(&self) -> usize {
        (self.depth as usize).saturating_sub(self.requests.len() - self.parts)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() - self.parts >= self.depth as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns true if a request is [`Progress::Queued`].
    pub(crate) fn has_queued(&self) -> bool {
        (self.next - self.base) < self.requests.len() as u64
    }

    /// Count of requests that have passed to TCP and are not complete.
    pub(crate) const fn begun(&self) -> u64 {
        self.next - self.base
    }

    /// Count of posted requests that are not complete.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len() - self.parts
    }

    /// Returns the oldest request whose outcome is not known.
    pub(crate) fn oldest_unfinished(&mut self) -> Option<&mut WorkRequest> {
        self.requests.iter_mut().find(|request| !matches!(request.progress, Progress::Done(_)))
    }

    /// Adds a request for the memory of `sges`.
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

    /// Adds an atomic that stores its result in `sges`, one entry.
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

    /// Removes and returns the operands of the next request, an atomic that starts.
    pub(crate) fn take_operands(&mut self) -> Option<AtomicOperation> {
        self.operands.pop_front()
    }

    /// Drops the operands of all queued atomics: none of them will start.
    pub(crate) fn drop_operands(&mut self) {
        self.operands.clear();
    }

    /// Adds a request whose data the post captured.
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

    /// Sets the outcome of the last request, which will not start.
    pub(crate) fn finish_last(&mut self, status: WcStatus) {
        let Some(last) = self.requests.back_mut() else { return };
        last.progress = Progress::Done(status);
        if matches!(last.kind, WqeKind::Atomic { .. }) {
            self.operands.pop_back();
        }
    }

    /// Sets the outcome of all requests without one. None of them will start.
    pub(crate) fn finish_all(&mut self, status: WcStatus) {
        let unfinished =
            self.requests.iter_mut().filter(|it| !matches!(it.progress, Progress::Done(_)));
        unfinished.for_each(|request| request.progress = Progress::Done(status));
        self.next = self.base + self.requests.len() as u64;
        self.operands.clear();
    }

    /// Serial of the first request that is not completely passed to TCP.
    pub(crate) const fn next_serial(&self) -> u64 {
        self.next
    }

    /// First request that is not completely passed to TCP.
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

    /// Captured data of request `serial`, if the post captured it.
    #[inline]
    pub(crate) fn captured(&self, serial: u64) -> Option<&Bytes> {
        self.get(serial)?.captured()
    }

    /// Entries of request `serial`.
    #[inline]
    pub(crate) fn sges(&self, serial: u64) -> impl Iterator<Item = Sge> {
        self.sges.get(self.get(serial).and_then(WorkRequest::entries))
    }

    /// Moves the next request out of the queued state.
    #[inline]
    pub(crate) fn advance(&mut self, progress: Progress) {
        debug_assert_ne!(progress, Progress::Queued);
        if let Some(request) = self.next_mut() {
            request.progress = progress;
            self.next += 1;
        }
    }

    /// Completes the Sends and Writes before request `end`: all data passed to TCP before it is acknowledged.
    pub(crate) fn acknowledge(&mut self, end: u64) {
        // Fast path: every request was done when it was passed to TCP.
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

    /// Completes the Sends, Writes and immediate data with numbers before `count`: the peer has executed them.
    pub(crate) fn acknowledge_messages(&mut self, count: u32) {
        self.acknowledged = self.acknowledged.max(self.base);
        let begun = (self.acknowledged - self.base) as usize..(self.next - self.base) as usize;
        for request in self.requests.range_mut(begun) {
            if request.progress == Progress::Sent && request.kind.is_counted() {
                // Far fewer than 2^31 are outstanding.
                if (count.wrapping_sub(request.msn) as i32) <= 0 {
                    break;
                }
                request.progress = Progress::Done(WcStatus::Success);
            }
            self.acknowledged += 1;
        }
    }

    /// Indexes of the requests before `end` that no acknowledgment has covered yet.
    fn unacknowledged(&self, end: u64) -> Range<usize> {
        let place =
            |serial: u64| serial.saturating_sub(self.base).min(self.requests.len() as u64) as usize;
        place(self.acknowledged.min(end))..place(end)
    }

    /// Returns true if a Send or Write before request `end` waits for its acknowledgment.
    pub(crate) fn awaits_acknowledgment(&self, end: u64) -> bool {
        self.requests
            .range(self.unacknowledged(end))
            .any(|request| request.progress == Progress::Sent && !request.kind.awaits_response())
    }

    /// Returns the oldest request that has started, is not done, and `matches`. The first queued request has started if
    /// `is_cutting`.
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

    /// Returns the front request with its outcome, if the outcome is known: completions are in order (NDK-WR-6).
    pub(crate) fn front_outcome(&self) -> Option<(&WorkRequest, WcStatus)> {
        let request = self.requests.front()?;
        let Progress::Done(status) = request.progress else { return None };
        Some((request, status))
    }

    /// Removes and returns the front request, regardless of its progress.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<WorkRequest> {
        self.release_front()?;
        self.requests.pop_front()
    }

    /// As [`SendQueue::pop`], without returning the request.
    #[inline]
    pub(crate) fn discard_front(&mut self) {
        if self.release_front().is_some() {
            drop(self.requests.pop_front());
        }
    }

    /// Releases the entries and the serial of the front request.
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
            queues::wr::{Remote, SendWord},
        },
    };

    const REMOTE: Remote = Remote { stag: Stag(0), offset: TaggedOffset(0) };

    fn sge(address: u64, length: u32) -> Sge {
        Sge { address, length, token: 0 }
    }

    proptest! {
        // Each request keeps its own entries (none, one or a list), at any position of the ring. A request with
        // captured data has none.
        #[test]
        fn requests_keep_their_entries(counts in prop::collection::vec(0_usize..6, 1..60)) {
            let mut queue = SendQueue::new(test_cq(), 8);
            let entries = |serial: u64, count: usize| -> Vec<Sge> {
                (0..count as u64).map(|n| sge(serial << 16 | n, 1)).collect()
            };
            for (serial, count) in (0_u64..).zip(&counts) {
                let kind = WqeKind::Send { word: SendWord::None };
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

    // NDK-WR-6, NDK-WR-7: only a pending Read delays the completion of later requests.
    #[test]
    fn completions_are_in_order() {
        let mut queue = SendQueue::new(test_cq(), 4);
        let kinds = [
            WqeKind::Send { word: SendWord::None },
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
            let context = queue.front_outcome().map(|(request, _)| request.context);
            context.and_then(|_| queue.pop());
            context
        };
        assert_eq!(pop_done(&mut queue), Some(0));
        assert_eq!(pop_done(&mut queue), None, "the Read Response has not arrived");
        queue.get_mut(1).unwrap().progress = Progress::Done(WcStatus::Success);
        assert_eq!(pop_done(&mut queue), Some(1));
        assert_eq!(pop_done(&mut queue), Some(2));
        assert!(queue.pop().is_none());
    }

    fn test_cq() -> CqId {
        Table::<kind::Cq, ()>::new(1).insert(()).unwrap()
    }
}
