//! The two queues of a queue pair: what was posted and is not completed.
//!
//! Requests have serial numbers, counted from 0 per queue, so that a net buffer list can say "all
//! before serial n are in here" with one number. Scatter/gather entries lie in one ring per queue
//! beside the requests, because both are taken in order: posting allocates nothing in steady state.

use alloc::{boxed::Box, collections::VecDeque};
use core::ops::Range;

use bytes::Bytes;

use super::{
    flags::{OpFlags, OperationType},
    lifetime::Cq,
    mr::{Mr, Registration},
    slab::Id,
    status::NtStatus,
};
use crate::mpa::Slab;

/// NDK_SGE: a piece of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Local token of the region.
    pub token: u32,
}

/// The data of a send or write.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory, read where it lies until the request completes.
    Registered(&'a [Sge]),
    /// Any memory, captured before the post returns: [`OpFlags::INLINE`] is implied (NDK-INL-1).
    Inline(&'a [&'a [u8]]),
}

/// What an initiator request does.
#[derive(Debug)]
pub(crate) enum Kind {
    Send { invalidate: Option<u32> },
    Write { address: u64, token: u32 },
    Read { address: u64, token: u32 },
    FastRegister { mr: Id<Mr>, registration: Box<Registration> },
    Invalidate { mr: Id<Mr> },
}

impl Kind {
    pub(crate) const fn operation(&self) -> OperationType {
        match self {
            Self::Send { .. } => OperationType::Send,
            Self::Write { .. } => OperationType::Write,
            Self::Read { .. } => OperationType::Read,
            Self::FastRegister { .. } => OperationType::FastRegister,
            Self::Invalidate { .. } => OperationType::Invalidate,
        }
    }
}

/// How far an initiator request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Not begun, or partly handed to TCP.
    Queued,
    /// All of it is with TCP; waits for the acknowledgement, or for the read response.
    Sent,
    /// Outcome known; completes when everything before it has.
    Done(NtStatus),
}

/// An initiator request.
#[derive(Debug)]
pub(crate) struct WorkRequest {
    pub(crate) context: u64,
    pub(crate) flags: OpFlags,
    pub(crate) kind: Kind,
    pub(crate) progress: Progress,
    /// Bytes over all entries.
    pub(crate) length: u32,
    /// For a send: its MSN. For a read: its MSN on queue 1. Known once begun.
    pub(crate) msn: u32,
    /// Layer, type and code of the error, as [`NdkResultEx`](super::NdkResultEx) tells it.
    pub(crate) error_code: u32,
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

    const fn entries(&self) -> Option<&Entries> {
        match &self.memory {
            Memory::Captured(_) => None,
            Memory::Listed(entries) => Some(entries),
        }
    }
}

/// What a request sends from, or reads into.
#[derive(Debug)]
enum Memory {
    /// Data captured by the post.
    Captured(Bytes),
    Listed(Entries),
}

/// The entries of a request. Most have one, which lies in the request itself.
#[derive(Clone, Copy, Debug)]
enum Entries {
    One([Sge; 1]),
    /// So many of the ring, from this serial on.
    InRing {
        first: u64,
        count: u32,
    },
}

/// Scatter/gather entries of a queue's requests, in order.
#[derive(Debug, Default)]
struct SgeRing {
    entries: VecDeque<Sge>,
    /// Serial of the front entry.
    base: u64,
}

impl SgeRing {
    #[inline]
    fn push(&mut self, sges: &[Sge]) -> Entries {
        if let &[sge] = sges {
            return Entries::One([sge]);
        }
        let first = self.base + self.entries.len() as u64;
        self.entries.extend(sges);
        Entries::InRing { first, count: sges.len() as u32 }
    }

    /// The entries of a request, if there is one.
    #[inline]
    fn get<'a>(&'a self, entries: Option<&'a Entries>) -> impl Iterator<Item = Sge> {
        let (front, back) = match entries {
            None => (&[][..], &[][..]),
            Some(Entries::One(sge)) => (&sge[..], &[][..]),
            Some(Entries::InRing { first, count }) => self.in_ring(*first, *count),
        };
        front.iter().chain(back).copied()
    }

    /// The ring wraps anywhere.
    fn in_ring(&self, first: u64, count: u32) -> (&[Sge], &[Sge]) {
        let (front, back) = self.entries.as_slices();
        let start = (first - self.base) as usize;
        let end = start + count as usize;
        let seam = front.len();
        let part = |at: usize| at.saturating_sub(seam);
        (&front[start.min(seam)..end.min(seam)], &back[part(start)..part(end)])
    }

    /// Drops the entries of the front request.
    #[inline]
    fn pop(&mut self, entries: Entries) {
        if let Entries::InRing { first, count } = entries {
            debug_assert_eq!(first, self.base);
            self.entries.drain(..count as usize);
            self.base += u64::from(count);
        }
    }
}

/// The initiator queue.
#[derive(Debug)]
pub(crate) struct InitiatorQueue {
    pub(crate) cq: Id<Cq>,
    depth: u32,
    requests: VecDeque<WorkRequest>,
    sges: SgeRing,
    /// Serial of the front request.
    base: u64,
    /// Serial of the first request that is still [`Progress::Queued`].
    next: u64,
    /// All before this serial was acknowledged, so far as it is there.
    acknowledged: u64,
}

impl InitiatorQueue {
    pub(crate) fn new(cq: Id<Cq>, depth: u32) -> Self {
        Self {
            cq,
            depth,
            requests: VecDeque::new(),
            sges: SgeRing::default(),
            base: 0,
            next: 0,
            acknowledged: 0,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() >= self.depth as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request that works on the memory of `sges`.
    #[inline]
    pub(crate) fn push(
        &mut self,
        context: u64,
        flags: OpFlags,
        kind: Kind,
        length: u32,
        sges: &[Sge],
    ) {
        let memory = Memory::Listed(self.sges.push(sges));
        self.push_any(context, flags, kind, length, memory);
    }

    /// Adds a request whose data the post has captured.
    pub(crate) fn push_captured(
        &mut self,
        context: u64,
        flags: OpFlags,
        kind: Kind,
        captured: Bytes,
    ) {
        let length = captured.len() as u32;
        self.push_any(context, flags, kind, length, Memory::Captured(captured));
    }

    #[inline]
    fn push_any(&mut self, context: u64, flags: OpFlags, kind: Kind, length: u32, memory: Memory) {
        let progress = Progress::Queued;
        let request =
            WorkRequest { context, flags, kind, progress, length, msn: 0, error_code: 0, memory };
        self.requests.push_back(request);
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

    /// The entry of request `serial`, if it has one only.
    #[inline]
    pub(crate) fn single(&self, serial: u64) -> Option<Sge> {
        match self.get(serial)?.memory {
            Memory::Listed(Entries::One([sge])) => Some(sge),
            _ => None,
        }
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
            let is_read = matches!(request.kind, Kind::Read { .. });
            if request.progress == Progress::Sent && !is_read {
                request.progress = Progress::Done(NtStatus::SUCCESS);
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

    /// Whether a send or write before request `end` waits for its acknowledgement.
    pub(crate) fn awaits_acknowledgement(&self, end: u64) -> bool {
        self.requests.range(self.unacknowledged(end)).any(|request| {
            request.progress == Progress::Sent && !matches!(request.kind, Kind::Read { .. })
        })
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
    pub(crate) fn front_done(&self) -> Option<(&WorkRequest, NtStatus)> {
        let request = self.requests.front()?;
        let Progress::Done(status) = request.progress else { return None };
        Some((request, status))
    }

    /// The front request, whatever its progress.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<WorkRequest> {
        let request = self.requests.pop_front()?;
        if let Memory::Listed(entries) = request.memory {
            self.sges.pop(entries);
        }
        self.base += 1;
        self.next = self.next.max(self.base);
        Some(request)
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) context: u64,
    /// Bytes over all entries.
    pub(crate) length: u32,
    sges: Entries,
}

/// The receive queue.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) cq: Id<Cq>,
    depth: u32,
    receives: VecDeque<Receive>,
    sges: SgeRing,
}

impl ReceiveQueue {
    pub(crate) fn new(cq: Id<Cq>, depth: u32) -> Self {
        Self { cq, depth, receives: VecDeque::new(), sges: SgeRing::default() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.receives.len() >= self.depth as usize
    }

    pub(crate) fn push(&mut self, context: u64, length: u32, sges: &[Sge]) {
        let sges = self.sges.push(sges);
        self.receives.push_back(Receive { context, length, sges });
    }

    /// The receive that the message in progress, or the next one, goes to.
    pub(crate) fn front(&self) -> Option<&Receive> {
        self.receives.front()
    }

    /// The pieces of the front receive that take `length` bytes from byte `offset` on.
    pub(crate) fn pieces(&self, offset: u32, length: u32) -> impl Iterator<Item = Sge> {
        let sges = self.sges.get(self.receives.front().map(|front| &front.sges));
        pieces(sges, offset, length)
    }

    /// The same, if it is one piece of the receive's one entry.
    pub(crate) fn single_piece(&self, offset: u32, length: u32) -> Option<Sge> {
        let Entries::One([entry]) = self.receives.front()?.sges else { return None };
        let is_within = offset.checked_add(length).is_some_and(|end| end <= entry.length);
        let address = entry.address.wrapping_add(u64::from(offset));
        is_within.then_some(Sge { address, length, token: entry.token })
    }

    pub(crate) fn pop(&mut self) -> Option<Receive> {
        let receive = self.receives.pop_front()?;
        self.sges.pop(receive.sges);
        Some(receive)
    }
}

/// Cuts `length` bytes from byte `offset` on out of a list of entries; empty pieces are left out.
pub(crate) fn pieces(
    sges: impl Iterator<Item = Sge>,
    offset: u32,
    length: u32,
) -> impl Iterator<Item = Sge> {
    sges.scan((offset, length), |(skip, left), sge| {
        let skipped = sge.length.min(*skip);
        *skip -= skipped;
        let length = (sge.length - skipped).min(*left);
        *left -= length;
        let address = sge.address.wrapping_add(u64::from(skipped));
        Some(Sge { address, length, token: sge.token })
    })
    .filter(|piece| piece.length > 0)
}

/// Bytes over all entries, if the list is within the limits of the queue pair.
///
/// # Errors
/// [`NtStatus::DATA_OVERRUN`]: too many entries; [`NtStatus::BUFFER_OVERFLOW`]: too many bytes.
#[inline]
pub(crate) fn total_length(sges: &[Sge], sges_max: u32, bytes_max: u32) -> Result<u32, NtStatus> {
    if sges.len() > sges_max as usize {
        return Err(NtStatus::DATA_OVERRUN);
    }
    let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    u32::try_from(total).ok().filter(|total| *total <= bytes_max).ok_or(NtStatus::BUFFER_OVERFLOW)
}

/// Copies inline data together (NDK-INL-1), into memory that is used again.
///
/// # Errors
/// [`NtStatus::INVALID_PARAMETER`]: more than `bytes_max`.
pub(crate) fn capture(
    memory: &mut Slab,
    parts: &[&[u8]],
    bytes_max: u32,
) -> Result<Bytes, NtStatus> {
    let total: usize = parts.iter().map(|part| part.len()).sum();
    if total > bytes_max as usize {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if memory.room() < total {
        memory.turn(total);
    }
    parts.iter().for_each(|part| memory.put(part));
    Ok(memory.close().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn sge(address: u64, length: u32) -> Sge {
        Sge { address, length, token: 0 }
    }

    proptest! {
        // Cutting a list in any pieces gives the same bytes as the list.
        #[test]
        fn pieces_cover_the_list(
            lengths in prop::collection::vec(0_u32..20, 0..6),
            cuts in prop::collection::vec(1_u32..15, 1..8),
        ) {
            let list: Vec<Sge> = lengths.iter().zip(1_u64..).map(|(length, n)| sge(n << 16, *length)).collect();
            let bytes = |sges: &[Sge]| -> Vec<u64> {
                sges.iter().flat_map(|sge| (0..sge.length).map(|n| sge.address + u64::from(n))).collect()
            };
            let total: u32 = lengths.iter().sum();
            let mut found = vec![];
            let mut offset = 0;
            for cut in cuts.iter().cycle() {
                if offset >= total { break; }
                let part: Vec<Sge> = pieces(list.iter().copied(), offset, *cut).collect();
                found.extend(bytes(&part));
                offset += *cut;
            }
            prop_assert_eq!(found, bytes(&list));
        }
    }

    proptest! {
        // Each request has its own entries, none, one or a list, however the ring beside the queue has turned; one
        // whose data was captured has none.
        #[test]
        fn requests_keep_their_entries(counts in prop::collection::vec(0_usize..6, 1..60)) {
            let mut queue = InitiatorQueue::new(test_cq(), 8);
            let entries = |serial: u64, count: usize| -> Vec<Sge> {
                (0..count as u64).map(|n| sge(serial << 16 | n, 1)).collect()
            };
            for (serial, count) in (0_u64..).zip(&counts) {
                let kind = Kind::Send { invalidate: None };
                match count {
                    5 => queue.push_captured(serial, OpFlags::NONE, kind, Bytes::from_static(b"data")),
                    _ => queue.push(serial, OpFlags::NONE, kind, 1, &entries(serial, *count)),
                }
                if serial >= 5 {
                    prop_assert_eq!(queue.pop().map(|request| request.context), Some(serial - 5));
                }
                let oldest = serial.saturating_sub(4);
                for (waiting, count) in (oldest..=serial).zip(&counts[oldest as usize..]) {
                    let expected = if *count == 5 { 0 } else { *count };
                    let found: Vec<Sge> = queue.sges(waiting).collect();
                    prop_assert_eq!(&found, &entries(waiting, expected));
                    prop_assert_eq!(queue.single(waiting), found.first().copied().filter(|_| found.len() == 1));
                    prop_assert_eq!(queue.captured(waiting).is_some(), *count == 5);
                }
                prop_assert_eq!(queue.sges(serial + 1).count(), 0);
            }
        }
    }

    // A piece of a receive with one entry is found without cutting lists, and is the same piece.
    #[test]
    fn single_pieces_are_pieces() {
        let mut queue = ReceiveQueue::new(test_cq(), 4);
        assert_eq!(queue.single_piece(0, 1), None);
        queue.push(1, 10, &[sge(100, 10)]);
        queue.push(2, 10, &[sge(100, 4), sge(200, 6)]);
        for (offset, length) in [(0, 10), (3, 7), (9, 1)] {
            let piece = queue.single_piece(offset, length);
            assert_eq!(
                piece.into_iter().collect::<Vec<_>>(),
                queue.pieces(offset, length).collect::<Vec<_>>()
            );
        }
        assert_eq!(queue.single_piece(9, 2), None, "more than there is");
        assert_eq!(queue.single_piece(u32::MAX, 2), None);
        queue.pop();
        assert_eq!(queue.single_piece(0, 4), None, "two entries");
    }

    // NDK-WR-6, NDK-WR-7: a read that waits holds back what was posted later, and nothing else does.
    #[test]
    fn completions_are_in_order() {
        let mut queue = InitiatorQueue::new(test_cq(), 4);
        let kinds = [
            Kind::Send { invalidate: None },
            Kind::Read { address: 0, token: 0 },
            Kind::Write { address: 0, token: 0 },
        ];
        for (context, kind) in (0..).zip(kinds) {
            queue.push(context, OpFlags::NONE, kind, 1, &[sge(0, 1)]);
        }
        for _ in 0..3 {
            queue.advance(Progress::Sent);
        }
        queue.acknowledge(3);
        let pop_done = |queue: &mut InitiatorQueue| {
            let context = queue.front_done().map(|(request, _)| request.context);
            context.and_then(|_| queue.pop());
            context
        };
        assert_eq!(pop_done(&mut queue), Some(0));
        assert_eq!(pop_done(&mut queue), None, "the read's response has not come");
        queue.get_mut(1).unwrap().progress = Progress::Done(NtStatus::SUCCESS);
        assert_eq!(pop_done(&mut queue), Some(1));
        assert_eq!(pop_done(&mut queue), Some(2));
        assert!(queue.pop().is_none());
    }

    fn test_cq() -> Id<Cq> {
        let mut cqs = super::super::slab::Slab::new(1);
        let Ok(id) = cqs.insert(Cq {
            life: super::super::lifetime::Life::default(),
            queue: super::super::cq::CompletionQueue::new(1),
            notification: alloc::sync::Arc::new(|_| {}),
        }) else {
            panic!("room for one")
        };
        id
    }

    #[test]
    fn limits() {
        let list = [sge(0, u32::MAX), sge(0, 2)];
        assert_eq!(total_length(&list, 1, 9), Err(NtStatus::DATA_OVERRUN));
        assert_eq!(total_length(&list, 2, u32::MAX), Err(NtStatus::BUFFER_OVERFLOW));
        assert_eq!(total_length(&list[1..], 2, 2), Ok(2));
        assert_eq!(total_length(&[], 0, 0), Ok(0), "NDK-SGE-4");
        let mut memory = Slab::new();
        let mut capture = |parts: &[&[u8]]| capture(&mut memory, parts, 3);
        assert_eq!(capture(&[b"ab", b"", b"c"]).unwrap(), Bytes::from_static(b"abc"));
        assert_eq!(capture(&[b"ab", b"cd"]), Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(capture(&[]).unwrap(), Bytes::new());
    }
}
