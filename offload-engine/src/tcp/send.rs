//! Send queue: posted net buffer lists, owned and in order.
//!
//! Nothing is copied: a segment is a range of positions, and [`SendQueue::pieces`] returns its memory. A cursor marks
//! the end of the last segment, so that sequential sending needs no search. Lists that [`SendQueue::cut`] has passed
//! are not walked again. A retransmission finds its list by binary search and walks inside that list only.
//!
//! Limits: [`SLICES_MAX`] slices in one segment, [`SPARE_CHAINS_MAX`] emptied chains kept for completions.

use alloc::{collections::VecDeque, vec::Vec};

use super::seq::Position;
use crate::{
    memory::Piece,
    nbl::{Mdl, NblChain, NetBuffer, NetBufferList},
    status::NdisStatus,
};

/// Maximum number of memory slices of one segment or GSO packet: bounds the cost of the gathered write.
pub const SLICES_MAX: usize = 64;
/// Maximum number of emptied chains kept, so that completions do not allocate.
const SPARE_CHAINS_MAX: usize = 4;
/// Capacity in lists of a chain for several completions.
const CHAIN_LISTS: usize = 4;

#[derive(Debug)]
struct PostedList {
    list: NetBufferList,
    start: Position,
    end: Position,
}

/// Position in the memory of the queue.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Number of the list, counted from the first ever posted.
    list: u64,
    net_buffer: usize,
    mdl: usize,
    offset: usize,
    at: Position,
}

/// Result of [`SendQueue::measure`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    /// Bytes that one segment may take.
    pub(super) len: usize,
    /// True if the cut ends where a list ends.
    pub(super) ends_list: bool,
    /// True if the slice limit ended the cut, not `max` or a boundary.
    pub(super) fragmented: bool,
    /// Context of the list of the first byte.
    pub(super) context: Option<u64>,
}

/// Send queue of one connection.
#[derive(Debug)]
pub(super) struct SendQueue {
    lists: VecDeque<PostedList>,
    /// Number of the front list.
    first: u64,
    /// One beyond the last byte posted.
    end: Position,
    /// List of a disconnect, after all lists of `lists`; completes with the FIN.
    disconnect: Option<PostedList>,
    /// Start and end of the last committed segment.
    current: Cursor,
    next: Cursor,
    /// Start and end of the last cut.
    cut: (Cursor, Cursor),
    spare: Vec<NblChain>,
}

impl SendQueue {
    pub(super) fn new(start: Position) -> Self {
        let cursor = Cursor { list: 0, net_buffer: 0, mdl: 0, offset: 0, at: start };
        Self {
            lists: VecDeque::new(),
            first: 0,
            end: start,
            disconnect: None,
            current: cursor,
            next: cursor,
            cut: (cursor, cursor),
            spare: Vec::new(),
        }
    }

    /// One beyond the last byte posted; position of a FIN.
    pub(super) const fn end(&self) -> Position {
        self.end
    }

    /// Appends a chain and keeps its emptied storage for a completion.
    #[inline]
    pub(super) fn post(&mut self, mut chain: NblChain) {
        while let Some(list) = chain.pop_front() {
            let posted = self.place(list);
            self.lists.push_back(posted);
        }
        self.recycle_chain(chain);
    }

    /// Recycles an empty chain.
    #[inline]
    pub(super) fn recycle_chain(&mut self, chain: NblChain) {
        debug_assert!(chain.is_empty());
        if self.spare.len() < SPARE_CHAINS_MAX {
            self.spare.push(chain);
        }
    }

    /// Appends a disconnect's list.
    pub(super) fn post_disconnect(&mut self, list: NetBufferList) {
        debug_assert!(self.disconnect.is_none(), "one graceful disconnect");
        self.disconnect = Some(self.place(list));
    }

    fn place(&mut self, mut list: NetBufferList) -> PostedList {
        list.status = NdisStatus::PENDING;
        let start = self.end;
        self.end += list.data_length() as u64;
        PostedList { list, start, end: self.end }
    }

    /// Returns a chain to fill, a recycled one if possible.
    pub(super) fn empty_chain(&mut self) -> NblChain {
        self.spare.pop().unwrap_or_default()
    }

    /// Copies the bytes from `una` on, so that the poster may reuse their memory. Positions and cursors stay valid.
    pub(super) fn detach(&mut self, una: Position) {
        let from = self.lists.partition_point(|posted| posted.end <= una);
        let waiting = self.lists.range_mut(from..).chain(self.disconnect.as_mut());
        for PostedList { list, start, end: _ } in waiting {
            let mut at = *start;
            for net_buffer in &mut list.net_buffers {
                net_buffer.detach(length(at, una.max(at)));
                at += net_buffer.data_length() as u64;
            }
        }
    }

    /// Copies memory withdrawn by its owner, acknowledged or not. Positions and cursors stay valid.
    pub(super) fn detach_withdrawn(&mut self) {
        let posted = self.lists.iter_mut().chain(self.disconnect.as_mut());
        let net_buffers = posted.flat_map(|posted| &mut posted.list.net_buffers);
        net_buffers.for_each(NetBuffer::detach_withdrawn);
    }

    #[inline]
    fn get(&self, number: u64) -> Option<&PostedList> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        if index == self.lists.len() {
            return self.disconnect.as_ref();
        }
        self.lists.get(index)
    }

    /// Number of the list that contains the byte at `at`; one beyond the last list if none does.
    fn list_of(&self, at: Position) -> u64 {
        self.first + self.lists.partition_point(|posted| posted.end <= at) as u64
    }

    fn seek(&self, at: Position) -> Cursor {
        let list = self.list_of(at);
        let mut cursor = Cursor { list, net_buffer: 0, mdl: 0, offset: 0, at };
        let Some(posted) = self.get(list) else { return cursor };
        let mut left = usize::try_from(at.since(posted.start)).unwrap_or(usize::MAX);
        for net_buffer in &posted.list.net_buffers {
            let length = net_buffer.data_length();
            if left < length {
                left += net_buffer.data_offset();
                break;
            }
            left -= length;
            cursor.net_buffer += 1;
        }
        let Some(net_buffer) = posted.list.net_buffers.get(cursor.net_buffer) else {
            return cursor;
        };
        for mdl in net_buffer.mdls() {
            if left < mdl.len() {
                break;
            }
            left -= mdl.len();
            cursor.mdl += 1;
        }
        cursor.offset = left;
        cursor
    }

    /// True if `cursor` is at `at`, in a list that is still queued.
    #[inline]
    fn is_at(&self, cursor: &Cursor, at: Position) -> bool {
        cursor.at == at && cursor.list >= self.first
    }

    #[inline]
    fn cursor_at(&self, at: Position) -> Cursor {
        if self.is_at(&self.next, at) {
            self.next
        } else if self.is_at(&self.current, at) {
            self.current
        } else {
            self.seek(at)
        }
    }

    /// Advances over exhausted MDLs, net buffers and lists to the next byte of data. Returns its list and its MDL; the
    /// cursor's offset is in that MDL. `None` at the end of the queue.
    #[inline]
    fn next_data(&self, cursor: &mut Cursor) -> Option<(&PostedList, &Mdl)> {
        match self.mdl_at(cursor) {
            None => self.next_data_slow(cursor),
            found => found,
        }
    }

    /// List and MDL of the byte at `cursor`. `None` if the byte is in a later MDL, or the cursor is before a net
    /// buffer's data offset.
    #[inline]
    fn mdl_at(&self, cursor: &Cursor) -> Option<(&PostedList, &Mdl)> {
        let posted = self.get(cursor.list)?;
        let net_buffer = posted.list.net_buffers.get(cursor.net_buffer)?;
        if cursor.mdl == 0 && cursor.offset < net_buffer.data_offset() {
            return None;
        }
        let mdl = net_buffer.mdls().get(cursor.mdl)?;
        (cursor.offset < mdl.len()).then_some((posted, mdl))
    }

    /// Slow path of [`SendQueue::next_data`].
    fn next_data_slow(&self, cursor: &mut Cursor) -> Option<(&PostedList, &Mdl)> {
        loop {
            let posted = self.get(cursor.list)?;
            while let Some(net_buffer) = posted.list.net_buffers.get(cursor.net_buffer) {
                // A fresh net buffer: its data starts `data_offset` bytes into the chain (CH-BUF-1).
                if cursor.mdl == 0 && cursor.offset == 0 {
                    cursor.offset = net_buffer.data_offset();
                }
                while let Some(mdl) = net_buffer.mdls().get(cursor.mdl) {
                    if cursor.offset < mdl.len() {
                        return Some((posted, mdl));
                    }
                    cursor.offset -= mdl.len();
                    cursor.mdl += 1;
                }
                cursor.net_buffer += 1;
                cursor.mdl = 0;
                cursor.offset = 0;
            }
            cursor.list += 1;
            cursor.net_buffer = 0;
        }
    }

    fn advance(cursor: &mut Cursor, count: usize) {
        cursor.offset += count;
        cursor.at += count as u64;
    }

    /// Measures the bytes from `start` that one segment may take: at most `max`, at most [`SLICES_MAX`] slices, and
    /// with `each_list` no further than the end of the first list.
    pub(super) fn measure(&self, start: Position, max: usize, each_list: bool) -> Cut {
        self.walk(&mut self.cursor_at(start), max, each_list).0
    }

    /// Like [`SendQueue::measure`], for a segment that [`SendQueue::commit`] may follow.
    #[inline]
    pub(super) fn cut(&mut self, start: Position, max: usize, each_list: bool) -> Cut {
        let mut cursor = self.cursor_at(start);
        let (cut, end) = self.walk(&mut cursor, max, each_list);
        self.cut = (cursor, end);
        cut
    }

    /// Measures from `from`, which is advanced to its first byte; also returns the end of the cut.
    #[inline(always)]
    fn walk(&self, from: &mut Cursor, max: usize, each_list: bool) -> (Cut, Cursor) {
        let mut cut = Cut { len: 0, ends_list: false, fragmented: false, context: None };
        let Some((mut posted, mut mdl)) = self.next_data(from).filter(|_| max > 0) else {
            return (cut, *from);
        };
        cut.context = Some(posted.list.context);
        let mut cursor = *from;
        let mut slices = 0;
        loop {
            if slices == SLICES_MAX {
                cut.fragmented = true;
                break;
            }
            let count = (mdl.len() - cursor.offset).min(max - cut.len);
            cut.len += count;
            slices += 1;
            Self::advance(&mut cursor, count);
            cut.ends_list = posted.end == cursor.at;
            if cut.ends_list {
                cursor = Cursor {
                    list: cursor.list + 1,
                    at: cursor.at,
                    net_buffer: 0,
                    mdl: 0,
                    offset: 0,
                };
            }
            if cut.len == max || cut.ends_list && each_list {
                break;
            }
            let Some(next) = self.next_data(&mut cursor) else { break };
            (posted, mdl) = next;
        }
        (cut, cursor)
    }

    /// Commits the segment `start..start + len` as sent; the next one is expected to follow it.
    #[inline]
    pub(super) fn commit(&mut self, start: Position, len: usize) {
        let (from, end) = self.cut;
        if self.is_at(&from, start) && end.at == start + len as u64 {
            (self.current, self.next) = (from, end);
            return;
        }
        let mut cursor = self.cursor_at(start);
        self.current = cursor;
        let mut left = len;
        while left > 0 {
            let Some((_, mdl)) = self.next_data(&mut cursor) else { break };
            let count = (mdl.len() - cursor.offset).min(left);
            Self::advance(&mut cursor, count);
            left -= count;
        }
        self.next = cursor;
    }

    /// Iterates over the memory of `len` bytes from `start`, in order.
    pub(super) fn pieces(&self, start: Position, len: usize) -> Pieces<'_> {
        // The usual query is for the last committed segment.
        let is_current = self.is_at(&self.current, start);
        let cursor = if is_current { self.current } else { self.cursor_at(start) };
        Pieces { queue: self, cursor, left: len }
    }

    /// References to the memory of `len` bytes from `start`, in order.
    pub(super) fn memory(&self, start: Position, len: usize) -> impl Iterator<Item = Mdl> {
        let mut pieces = self.pieces(start, len);
        core::iter::from_fn(move || {
            let len = pieces.next()?.len();
            // The cursor is at the end of the piece, in the same MDL.
            let Cursor { list, net_buffer, mdl, offset, .. } = pieces.cursor;
            let net_buffer = self.get(list)?.list.net_buffers.get(net_buffer)?;
            Some(net_buffer.mdls().get(mdl)?.slice(offset - len..offset))
        })
    }

    /// True if [`SendQueue::acknowledge`] would complete a list.
    #[inline]
    pub(super) fn completes(&self, una: Position) -> bool {
        self.lists.front().is_some_and(|posted| posted.end <= una)
    }

    /// Completes every list whose last byte is below `una` (CH-SNC-5), in order, into `done`.
    #[inline]
    pub(super) fn acknowledge(&mut self, una: Position, done: &mut NblChain) {
        let several = self.lists.get(1).is_some_and(|posted| posted.end <= una);
        if several && done.is_empty() && done.capacity() < CHAIN_LISTS {
            // Most chains are allocated for one list, and growing one costs more than allocating one.
            *done = NblChain::with_capacity(CHAIN_LISTS);
        }
        while self.lists.front().is_some_and(|posted| posted.end <= una) {
            let Some(PostedList { mut list, start, end }) = self.lists.pop_front() else { return };
            list.complete(NdisStatus::SUCCESS, length(start, end));
            self.first += 1;
            done.push_back(list);
        }
    }

    /// Completes and returns the disconnect's list, as the FIN is acknowledged (CH-DIS-5).
    pub(super) fn acknowledge_fin(&mut self) -> Option<NetBufferList> {
        let PostedList { mut list, start, end } = self.disconnect.take()?;
        list.complete(NdisStatus::SUCCESS, length(start, end));
        Some(list)
    }

    /// Fails all remaining lists (CH-SNC-1, -2). The first list keeps the count of its acknowledged bytes; later ones
    /// have none. The disconnect's list is returned separately (CH-DIS-4).
    pub(super) fn abort(&mut self, una: Position, done: &mut NblChain) -> Option<NetBufferList> {
        let fail = |PostedList { mut list, start, end }: PostedList| {
            list.complete(NdisStatus::REQUEST_ABORTED, length(start, una.min(end).max(start)));
            list
        };
        self.first += self.lists.len() as u64 + 1;
        done.extend(self.lists.drain(..).map(fail));
        self.end = una;
        self.disconnect.take().map(fail)
    }

    /// Returns a disconnect's list because of an upload (CH-TRM-3). Its data stays queued, in a list with `context` and
    /// without an owner.
    pub(super) fn return_disconnect(
        &mut self,
        una: Position,
        context: u64,
    ) -> Option<NetBufferList> {
        let PostedList { mut list, start, end } = self.disconnect.take()?;
        if start < end {
            // The list keeps its number, so the cursors stay valid.
            self.lists.push_back(PostedList {
                list: NetBufferList { context, ..list.clone() },
                start,
                end,
            });
        }
        list.complete(NdisStatus::UPLOAD_IN_PROGRESS, length(start, una.min(end).max(start)));
        Some(list)
    }

    /// Removes all incomplete lists, advanced to `una` (CH-SNB-2), and separately a disconnect's list.
    pub(super) fn take(&mut self, una: Position) -> (NblChain, Option<NetBufferList>) {
        let advance = |PostedList { mut list, start, end }: PostedList| {
            list.complete(NdisStatus::PENDING, length(start, una.min(end).max(start)));
            list
        };
        (self.lists.drain(..).map(advance).collect(), self.disconnect.take().map(advance))
    }
}

fn length(start: Position, end: Position) -> usize {
    usize::try_from(end.since(start)).unwrap_or(usize::MAX)
}

/// Iterator over the memory of a segment.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    queue: &'a SendQueue,
    cursor: Cursor,
    left: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.left == 0 {
            return None;
        }
        let (_, mdl) = self.queue.next_data(&mut self.cursor)?;
        let count = (mdl.len() - self.cursor.offset).min(self.left);
        let piece = mdl.piece().part(self.cursor.offset, count);
        SendQueue::advance(&mut self.cursor, piece.len());
        self.left -= piece.len();
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        memory::{SharedSpan, to_vec},
        nbl::NetBuffer,
        tcp::SeqNum,
    };

    fn list(context: u64, parts: &[&[&'static [u8]]], skip: usize) -> NetBufferList {
        let mut list = NetBufferList::new(context);
        for mdls in parts {
            let mut net_buffer = NetBuffer::new();
            for mdl in *mdls {
                net_buffer.push_mdl(Bytes::from_static(mdl));
            }
            list.net_buffers.push(net_buffer);
        }
        let mut left = skip;
        for net_buffer in &mut list.net_buffers {
            let count = left.min(net_buffer.data_length());
            net_buffer.advance(count);
            left -= count;
        }
        list
    }

    fn queue(lists: Vec<NetBufferList>) -> (SendQueue, Position) {
        let start = Position::first(SeqNum(u32::MAX - 3));
        let mut queue = SendQueue::new(start);
        queue.post(lists.into());
        (queue, start)
    }

    fn bytes(queue: &SendQueue, start: Position, len: usize) -> Vec<u8> {
        let memory: Vec<Mdl> = queue.memory(start, len).collect();
        let places = |piece: Piece<'_>| (piece.as_ptr(), piece.len());
        let of_memory = memory.iter().map(|memory| places(memory.piece()));
        assert!(of_memory.eq(queue.pieces(start, len).map(places)));
        to_vec(queue.pieces(start, len))
    }

    fn addresses(queue: &SendQueue, start: Position) -> Vec<*const u8> {
        (0..6).map(|at| queue.pieces(start + at, 1).next().unwrap().as_ptr()).collect()
    }

    /// Returns a queue of "abc", and of "de" and "f" in another list, with their memory.
    fn shared_queue() -> (SendQueue, Position, SharedSpan) {
        let memory = SharedSpan::allocate(6, 1).unwrap();
        memory.write(0, b"abcdef");
        let mut second = NetBufferList::from_mdl(2, memory.slice(3..5));
        second.net_buffers.push(memory.slice(5..6).into());
        let lists = [NetBufferList::from_mdl(1, memory.slice(0..3)), second];
        let (queue, start) = queue(lists.into());
        (queue, start, memory)
    }

    // A detach copies unacknowledged data; positions stay the same.
    #[test]
    fn detached_tail_is_copied() {
        let (mut queue, start, _memory) = shared_queue();
        let addresses = |queue: &SendQueue| addresses(queue, start);
        let before = addresses(&queue);
        queue.detach(start + 4);
        let after = addresses(&queue);
        assert_eq!(before[..3], after[..3], "acknowledged data is not copied");
        assert!(before[4..].iter().zip(&after[4..]).all(|(before, after)| before != after));
        assert_eq!(bytes(&queue, start, 6), b"abcdef");
    }

    // Withdrawn memory is released, acknowledged or not.
    #[test]
    fn withdrawn_memory_is_detached() {
        let (mut queue, start, memory) = shared_queue();
        let last = memory.under(()).slice(5..6);
        queue.post_disconnect(NetBufferList::from_mdl(3, last.clone()));
        queue.detach_withdrawn();
        assert_eq!(addresses(&queue, start)[0], memory.as_ptr().cast_const());
        memory.withdraw();
        queue.detach_withdrawn();
        let own = memory.as_ptr().addr()..memory.as_ptr().addr() + 5;
        assert!(addresses(&queue, start).iter().all(|place| !own.contains(&place.addr())));
        let place = queue.pieces(start + 6, 1).next().unwrap().as_ptr();
        assert_eq!(place, last.as_ptr().cast_const(), "this memory is not withdrawn");
        memory.write(0, &[0; 5]);
        assert_eq!(bytes(&queue, start, 6), b"abcdef");
    }

    // CH-SND-3, CH-BUF-1: several net buffers, MDL chains, empty MDLs, data that starts inside.
    #[test]
    fn any_range_returns_its_memory() {
        let (queue, start) = queue(alloc::vec![
            list(1, &[&[b"xxab", b"", b"c"], &[], &[b"de"]], 2),
            list(2, &[], 0),
            list(3, &[&[b"", b"fg"], &[b"h"]], 0),
        ]);
        for from in 0..8usize {
            for len in 0..=8 - from {
                assert_eq!(bytes(&queue, start + from as u64, len), b"abcdefgh"[from..from + len]);
            }
        }
    }

    // CH-SND-5, -8: a segment ends at the list boundary, or crosses it.
    #[test]
    fn cut_follows_push_policy() {
        let (queue, start) = queue(alloc::vec![
            list(1, &[&[b"abc"]], 0),
            list(2, &[], 0),
            list(3, &[&[b"defg"]], 0)
        ]);
        let cut = |len, ends_list, context| Cut { len, ends_list, fragmented: false, context };
        assert_eq!(queue.measure(start, 10, true), cut(3, true, Some(1)));
        assert_eq!(queue.measure(start, 2, true), cut(2, false, Some(1)));
        assert_eq!(queue.measure(start + 3, 10, true), cut(4, true, Some(3)));
        assert_eq!(queue.measure(start, 10, false), cut(7, true, Some(1)));
        assert_eq!(queue.measure(start, 5, false), cut(5, false, Some(1)));
        assert_eq!(queue.measure(start + 7, 10, true), cut(0, false, None));
    }

    #[test]
    fn segment_slices_are_bounded() {
        let mut net_buffer = NetBuffer::new();
        for _ in 0..100 {
            net_buffer.push_mdl(Bytes::from_static(b"ab"));
        }
        let mut many = NetBufferList::new(1);
        many.net_buffers.push(net_buffer);
        let (queue, start) = queue(alloc::vec![many]);
        let cut = queue.measure(start, 1000, true);
        assert_eq!((cut.len, cut.fragmented, cut.ends_list), (2 * SLICES_MAX, true, false));
        let cut = queue.measure(start + cut.len as u64, 1000, true);
        assert_eq!((cut.len, cut.fragmented, cut.ends_list), (72, false, true));
    }

    // CH-SNC-1, -2, -5, CH-SND-9.
    #[test]
    fn sends_complete_in_order_and_abort_with_counts() {
        let (mut queue, start) = queue(alloc::vec![
            list(1, &[&[b"abc"]], 0),
            list(2, &[], 0),
            list(3, &[&[b"defg"]], 0),
            list(4, &[&[b"h"]], 0),
        ]);
        let mut done = queue.empty_chain();
        queue.acknowledge(start + 2, &mut done);
        assert!(done.is_empty());
        queue.acknowledge(start + 5, &mut done);
        queue.post_disconnect(list(5, &[&[b"z"]], 0));
        let disconnect = queue.abort(start + 5, &mut done).unwrap();
        let seen: Vec<_> =
            done.iter().map(|l| (l.context, l.status, l.bytes_transferred)).collect();
        assert_eq!(
            seen,
            [
                (1, NdisStatus::SUCCESS, 3),
                (2, NdisStatus::SUCCESS, 0),
                (3, NdisStatus::REQUEST_ABORTED, 2),
                (4, NdisStatus::REQUEST_ABORTED, 0),
            ]
        );
        assert_eq!(done[2].data_length(), 2);
        assert_eq!((disconnect.context, disconnect.bytes_transferred), (5, 0));
        assert_eq!(disconnect.status, NdisStatus::REQUEST_ABORTED);
    }

    proptest! {
        // A committed cut is read at the measured position, also if less of it was committed.
        #[test]
        fn committed_cut_matches_measurement(
            lists in prop::collection::vec(prop::collection::vec(0usize..5, 0..4), 1..8),
            steps in prop::collection::vec((0usize..9, any::<bool>(), 0usize..3, 0usize..6), 1..60),
        ) {
            let mut flat = Vec::new();
            let mut chain = NblChain::new();
            for (context, mdls) in lists.iter().enumerate() {
                let mut net_buffer = NetBuffer::new();
                for length in mdls {
                    let data: Vec<u8> = (0..*length).map(|n| (flat.len() + n) as u8).collect();
                    flat.extend_from_slice(&data);
                    net_buffer.push_mdl(data);
                }
                let mut list = NetBufferList::new(context as u64);
                list.net_buffers.push(net_buffer);
                chain.push_back(list);
            }
            let start = Position::first(SeqNum(5));
            let mut queue = SendQueue::new(start);
            queue.post(chain);
            let (mut at, mut una) = (0, 0);
            for (max, each_list, less, acked) in steps {
                let measured = queue.measure(start + at as u64, max, each_list);
                prop_assert_eq!(queue.cut(start + at as u64, max, each_list), measured);
                let len = measured.len.saturating_sub(less);
                queue.commit(start + at as u64, len);
                prop_assert_eq!(bytes(&queue, start + at as u64, len), &flat[at..at + len]);
                prop_assert_eq!(bytes(&queue, start + una as u64, at - una), &flat[una..at]);
                at += len;
                una = (una + acked).min(at);
                queue.acknowledge(start + una as u64, &mut NblChain::new());
            }
        }

        // Compares sequential cuts and random re-reads with the flat bytes.
        #[test]
        fn cuts_cover_the_stream(
            lists in prop::collection::vec(prop::collection::vec(prop::collection::vec(0usize..5, 0..4), 0..4), 1..8),
            steps in prop::collection::vec((1usize..9, any::<bool>(), 0usize..60, 0usize..12, 0usize..12), 1..60),
        ) {
            let mut flat = Vec::new();
            let mut chain = NblChain::new();
            for (context, buffers) in lists.iter().enumerate() {
                let mut list = NetBufferList::new(context as u64);
                for mdls in buffers {
                    let mut net_buffer = NetBuffer::new();
                    for length in mdls {
                        let data: Vec<u8> = (0..*length).map(|n| (flat.len() + n) as u8).collect();
                        flat.extend_from_slice(&data);
                        net_buffer.push_mdl(data);
                    }
                    list.net_buffers.push(net_buffer);
                }
                chain.push_back(list);
            }
            let start = Position::first(SeqNum(5));
            let mut queue = SendQueue::new(start);
            queue.post(chain);
            prop_assert_eq!(queue.end().since(start), flat.len() as u64);
            let (mut at, mut una) = (0, 0);
            let mut done = NblChain::new();
            for (max, each_list, again, again_len, acked) in steps {
                let cut = queue.measure(start + at as u64, max, each_list);
                prop_assert!(cut.len <= max && (cut.len > 0 || at == flat.len()));
                queue.commit(start + at as u64, cut.len);
                prop_assert_eq!(bytes(&queue, start + at as u64, cut.len), &flat[at..at + cut.len]);
                at += cut.len;
                una = (una + acked).min(at);
                queue.acknowledge(start + una as u64, &mut done);
                let again = (una + again).min(flat.len());
                let len = again_len.min(flat.len() - again);
                prop_assert_eq!(bytes(&queue, start + again as u64, len), &flat[again..again + len]);
            }
            prop_assert!(done.iter().enumerate().all(|(n, list)| list.context == n as u64));
        }
    }
}
