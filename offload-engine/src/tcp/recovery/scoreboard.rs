//! What is in flight: one record for each transmission, split where SACK blocks and
//! retransmissions cut it.
//!
//! The records cover [SND.UNA, SND.NXT) without holes. Each knows when it was last sent, whether that
//! was a retransmission, and which of three states it is in: in flight, selectively acknowledged, or
//! presumed lost and not yet resent. `pipe` (RFC 6675 §4) is what is in flight.
//!
//! Beside the records, in order of sequence, stands a log of transmissions in order of time: who looks
//! for what was sent too long ago reads it from its old end, and what was judged leaves it. So an
//! acknowledgement costs what it changes, and a binary search, however large the window is.
//!
//! Limits: SACK blocks cut records only up to one for each full-sized segment outstanding and
//! [`SPARE_RECORDS`] more; then their edges are rounded inward to records that are there. The log has
//! at most two entries for each record and [`SPARE_ENTRIES`] more.

use alloc::collections::VecDeque;

use crate::{tcp::seq::Position, time::Instant};

/// Records that SACK blocks may make beyond the number of full-sized segments outstanding.
const SPARE_RECORDS: u64 = 1_024;
/// Entries of the log beyond two for each record, before what is outdated is removed.
const SPARE_ENTRIES: usize = 64;

/// State of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordState {
    /// Sent, not acknowledged.
    InFlight,
    /// Selectively acknowledged.
    Sacked,
    /// Presumed lost; to be resent.
    Lost,
}

/// One transmission, or what is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: Position,
    pub(super) end: Position,
    pub(super) sent_at: Instant,
    /// Number of the transmission: a batch shares one time, and a retransmission in it does not go
    /// before new data just because its sequence number is lower.
    pub(super) number: u64,
    /// Sent more than once: no RTT sample without a timestamp (Karn).
    pub(super) resent: bool,
    pub(super) fate: RecordState,
}

impl Record {
    pub(super) fn len(&self) -> u64 {
        self.end.since(self.start)
    }
}

/// An entry of the log.
#[derive(Clone, Copy, Debug)]
struct Transmission {
    number: u64,
    start: Position,
    end: Position,
    sent_at: Instant,
}

/// The scoreboard of one connection.
#[derive(Debug)]
pub(super) struct Scoreboard {
    records: VecDeque<Record>,
    /// In order of `number`. Every record in flight lies in the entry of its number; an entry may have no
    /// such record any more.
    log: VecDeque<Transmission>,
    una: Position,
    nxt: Position,
    sacked: u64,
    lost: u64,
    /// One beyond the highest byte ever sacked.
    sacked_to: Position,
    /// Nothing below is presumed lost.
    lost_hint: Position,
    /// Everything below was judged by [`Scoreboard::mark_by_count`].
    judged: Position,
    transmissions: u64,
    /// Records and entries looked at.
    #[cfg(test)]
    pub(super) steps: core::cell::Cell<u64>,
}

impl Scoreboard {
    pub(super) const fn new(una: Position) -> Self {
        Self {
            records: VecDeque::new(),
            log: VecDeque::new(),
            una,
            nxt: una,
            sacked: 0,
            lost: 0,
            sacked_to: una,
            lost_hint: una,
            judged: una,
            transmissions: 0,
            #[cfg(test)]
            steps: core::cell::Cell::new(0),
        }
    }

    fn count_step(&self) {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
    }

    /// First byte that is not acknowledged.
    pub(super) const fn una(&self) -> Position {
        self.una
    }

    /// One beyond the last byte sent.
    pub(super) const fn nxt(&self) -> Position {
        self.nxt
    }

    /// Bytes sent and not acknowledged.
    #[inline]
    pub(super) fn outstanding(&self) -> u64 {
        self.nxt.since(self.una)
    }

    /// Bytes presumed to be on the wire (`pipe`, RFC 6675 §4).
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.outstanding() - self.sacked - self.lost
    }

    /// Bytes selectively acknowledged.
    pub(super) const fn sacked(&self) -> u64 {
        self.sacked
    }

    /// Bytes that wait to be resent.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes resent and in flight.
    pub(super) fn resent_in_flight(&self) -> u64 {
        let resent = |record: &&Record| record.resent && record.fate == RecordState::InFlight;
        self.records.iter().filter(resent).map(Record::len).sum()
    }

    /// Whether something waits to be resent.
    pub(super) const fn has_lost(&self) -> bool {
        self.lost > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Number of the latest transmission.
    pub(super) const fn transmissions(&self) -> u64 {
        self.transmissions
    }

    #[cfg(test)]
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    pub(super) fn first(&self) -> Option<&Record> {
        self.records.front()
    }

    pub(super) fn first_in_flight(&self) -> Option<&Record> {
        self.records.iter().find(|record| record.fate == RecordState::InFlight)
    }

    pub(super) fn last(&self) -> Option<&Record> {
        self.records.back()
    }

    /// Index of the record that holds the byte at `at`.
    fn index_of(&self, at: Position) -> usize {
        self.records.partition_point(|record| record.end <= at)
    }

    /// Makes `at` a boundary between records; returns the index of the record that starts there.
    fn split(&mut self, at: Position) -> usize {
        let index = self.index_of(at);
        if let Some(record) = self.records.get_mut(index)
            && record.start < at
        {
            let tail = Record { start: at, ..*record };
            record.end = at;
            self.records.insert(index + 1, tail);
            return index + 1;
        }
        index
    }

    /// `start..end` was sent, now; what lies below SND.NXT was sent before.
    #[inline]
    pub(super) fn sent(&mut self, start: Position, end: Position, resent: bool, now: Instant) {
        debug_assert!(self.una <= start && start <= self.nxt, "a hole in what was sent");
        self.transmissions += 1;
        let number = self.transmissions;
        if start < self.nxt {
            let first = self.split(start);
            let last = self.split(end);
            for record in self.records.range_mut(first..last) {
                match record.fate {
                    RecordState::InFlight => {}
                    RecordState::Sacked => self.sacked -= record.len(),
                    RecordState::Lost => self.lost -= record.len(),
                }
                let (resent, fate) = (true, RecordState::InFlight);
                *record = Record { sent_at: now, number, resent, fate, ..*record };
            }
        }
        if end > self.nxt {
            let start = start.max(self.nxt);
            let fate = RecordState::InFlight;
            self.records.push_back(Record { start, end, sent_at: now, number, resent, fate });
            self.nxt = end;
        }
        self.log.push_back(Transmission { number, start, end, sent_at: now });
        if self.log.len() > 2 * self.records.len() + SPARE_ENTRIES {
            self.prune_log();
        }
    }

    /// Index of the first record that is still in flight from `entry`.
    fn live(&self, entry: &Transmission) -> Option<usize> {
        let from = self.index_of(entry.start.max(self.una));
        for (index, record) in self.records.range(from..).enumerate() {
            self.count_step();
            if record.start >= entry.end {
                return None;
            }
            if record.number == entry.number && record.fate == RecordState::InFlight {
                return Some(from + index);
            }
        }
        None
    }

    /// Removes entries with nothing in flight.
    fn prune_log(&mut self) {
        let mut log = core::mem::take(&mut self.log);
        log.retain(|entry| self.live(entry).is_some());
        self.log = log;
    }

    /// Everything before `to` is acknowledged. Calls `delivered` for each record that was not sacked
    /// before; returns the bytes newly acknowledged by the cumulative acknowledgement.
    pub(super) fn acknowledge(&mut self, to: Position, mut delivered: impl FnMut(&Record)) -> u64 {
        let acked = to.since(self.una);
        while let Some(front) = self.records.front_mut()
            && front.start < to
        {
            let part = Record { end: front.end.min(to), ..*front };
            if front.end > to {
                front.start = to;
            } else {
                self.records.pop_front();
            }
            match part.fate {
                RecordState::InFlight => {}
                RecordState::Sacked => {
                    self.sacked -= part.len();
                    continue;
                }
                RecordState::Lost => self.lost -= part.len(),
            }
            delivered(&part);
        }
        self.una = self.una.max(to);
        self.nxt = self.nxt.max(to);
        self.sacked_to = self.sacked_to.max(to);
        self.lost_hint = self.lost_hint.max(to);
        self.judged = self.judged.max(to);
        while self.log.front().is_some_and(|entry| entry.end <= self.una) {
            self.log.pop_front();
        }
        acked
    }

    /// `start..end` is selectively acknowledged. Calls `delivered` for each record that this is news
    /// about; returns the bytes newly sacked.
    pub(super) fn sack(
        &mut self,
        start: Position,
        end: Position,
        mss: u64,
        mut delivered: impl FnMut(&Record),
    ) -> u64 {
        let (start, end) = (start.max(self.una), end.min(self.nxt));
        if start >= end {
            return 0;
        }
        // Most blocks repeat what is known: do not cut records for them.
        let known = self.index_of(start);
        let is_known = |record: &Record| {
            self.count_step();
            record.fate == RecordState::Sacked
        };
        let mut covered = self.records.range(known..).take_while(|record| record.start < end);
        if covered.all(is_known) {
            return 0;
        }
        let (first, last) = self.cut(start, end, mss);
        let mut news = 0;
        for index in first..last {
            self.count_step();
            let record = &mut self.records[index];
            match record.fate {
                RecordState::Sacked => continue,
                RecordState::InFlight => {}
                RecordState::Lost => self.lost -= record.len(),
            }
            delivered(record);
            record.fate = RecordState::Sacked;
            news += record.len();
            self.sacked_to = self.sacked_to.max(record.end);
        }
        self.sacked += news;
        if news > 0 {
            self.merge_sacked(first, last);
        }
        news
    }

    /// The records of `start..end`, made exact if there may be more of them.
    fn cut(&mut self, start: Position, end: Position, mss: u64) -> (usize, usize) {
        let most = self.outstanding() / mss.max(1) + SPARE_RECORDS;
        if (self.records.len() as u64) < most {
            return (self.split(start), self.split(end));
        }
        // RFC 2018 §8 lets a sender ignore a block: a part of a record is not worth memory.
        let first = self.records.partition_point(|record| record.start < start);
        (first, self.index_of(end))
    }

    /// Joins neighbouring sacked records around `first..last`: their times no longer matter.
    fn merge_sacked(&mut self, first: usize, last: usize) {
        let from = first.saturating_sub(1);
        let mut index = (last + 1).min(self.records.len());
        while index > from + 1 {
            self.count_step();
            index -= 1;
            let (left, right) = (self.records[index - 1], self.records[index]);
            if left.fate == RecordState::Sacked && right.fate == RecordState::Sacked {
                let resent = left.resent || right.resent;
                self.records[index - 1] = Record { end: right.end, resent, ..left };
                self.records.remove(index);
            }
        }
    }

    /// Presumes the record at `index` lost if it is in flight and `is_lost`; returns its bytes.
    fn mark(&mut self, index: usize, is_lost: impl FnOnce(&Record) -> bool) -> u64 {
        self.count_step();
        let record = &mut self.records[index];
        if record.fate != RecordState::InFlight || !is_lost(record) {
            return 0;
        }
        record.fate = RecordState::Lost;
        let len = record.len();
        self.lost_hint = self.lost_hint.min(record.start);
        self.lost += len;
        len
    }

    /// Presumes lost what is at SND.UNA, and all that is in flight and `is_due` by the time of its sending.
    pub(super) fn mark_due(&mut self, is_due: impl Fn(Instant) -> bool) {
        for index in 0..self.records.len() {
            self.mark(index, |record| index == 0 || is_due(record.sent_at));
        }
    }

    /// Presumes lost what is in flight and longer than `len` bytes.
    pub(super) fn mark_larger(&mut self, len: u64) {
        for index in 0..self.records.len() {
            self.mark(index, |record| record.len() > len);
        }
    }

    /// Presumes `len` bytes at SND.UNA lost, if they are in flight; returns the bytes.
    pub(super) fn mark_first(&mut self, len: u64) -> u64 {
        let last = self.split((self.una + len).min(self.nxt));
        (0..last).map(|index| self.mark(index, |_| true)).sum()
    }

    /// Whether something that was sent no later than transmission `number` may be in flight:
    /// [`Scoreboard::mark_overdue`] has something to look at.
    pub(super) fn holds_older(&self, number: u64) -> bool {
        self.log.front().is_some_and(|entry| entry.number <= number)
    }

    /// RFC 8985 §6.2 step 5: presumes lost what is in flight, was sent before the piece of transmission
    /// `number` that ends at `end`, and is due by the time of its sending. Returns the bytes, and when the
    /// oldest of those that are not due was sent.
    pub(super) fn mark_overdue(
        &mut self,
        number: u64,
        end: Position,
        is_due: impl Fn(Instant) -> bool,
    ) -> (u64, Option<Instant>) {
        let mut news = 0;
        while let Some(&entry) = self.log.front() {
            if entry.number > number {
                break;
            }
            let Some(first) = self.live(&entry) else {
                self.log.pop_front();
                continue;
            };
            // Pieces of one transmission follow each other by their place.
            let limit = if entry.number == number { entry.end.min(end) } else { entry.end };
            if self.records[first].start >= limit {
                break;
            }
            if !is_due(entry.sent_at) {
                return (news, Some(entry.sent_at));
            }
            let last = self.records.partition_point(|record| record.start < limit);
            for index in first..last {
                news += self.mark(index, |record| record.number == entry.number);
            }
            if entry.number == number {
                break;
            }
            self.log.pop_front();
        }
        (news, None)
    }

    /// RFC 6675 §4, IsLost: presumes lost what lies below `threshold` separate runs of sacked bytes, or below
    /// more than `threshold - 1` segments of them, unless it was resent after transmission `since`. Returns the
    /// bytes.
    pub(super) fn mark_by_count(&mut self, threshold: u32, mss: u64, since: u64) -> u64 {
        if self.sacked == 0 {
            return 0;
        }
        let top = self.index_of(self.sacked_to.previous());
        let (mut runs, mut bytes, mut edge, mut above) = (0, 0, None, RecordState::InFlight);
        for record in self.records.range(..=top).rev() {
            self.count_step();
            if record.end <= self.judged {
                break;
            }
            if record.fate == RecordState::Sacked {
                // A resent or cut record may have left neighbours.
                runs += u32::from(above != RecordState::Sacked);
                bytes += record.len();
                if runs >= threshold || bytes > u64::from(threshold - 1) * mss {
                    edge = Some(record.start);
                    break;
                }
            }
            above = record.fate;
        }
        let Some(edge) = edge else { return 0 };
        let (first, last) = (self.index_of(self.judged), self.index_of(edge));
        self.judged = edge;
        (first..last)
            .map(|index| self.mark(index, |record| !record.resent || record.number <= since))
            .sum()
    }

    /// RFC 6675 §4, NextSeg rule 3: the first bytes that are in flight below a sacked byte and were not resent
    /// after transmission `since`.
    pub(super) fn next_doubtful(&self, since: u64) -> Option<(Position, Position)> {
        // What lies below is lost or was resent.
        let mut above = self.records.range(self.index_of(self.judged)..);
        let below = above.find(|record| {
            self.count_step();
            record.start >= self.sacked_to
                || record.fate == RecordState::InFlight && record.number <= since
        })?;
        (below.start < self.sacked_to).then_some((below.start, below.end))
    }

    /// Takes back that anything is presumed lost: it is in flight, as it was.
    pub(super) fn unmark_lost(&mut self) {
        self.log.clear();
        for record in &mut self.records {
            if record.fate == RecordState::Lost {
                record.fate = RecordState::InFlight;
            }
            if record.fate == RecordState::InFlight {
                let Record { start, end, sent_at, number, resent: _, fate: _ } = *record;
                self.log.push_back(Transmission { number, start, end, sent_at });
            }
        }
        self.log.make_contiguous().sort_unstable_by_key(|entry| (entry.number, entry.start));
        self.lost = 0;
    }

    /// Forgets what was selectively acknowledged: the receiver has reneged (RFC 2018 §8).
    pub(super) fn forget_sacks(&mut self) {
        for record in &mut self.records {
            if record.fate == RecordState::Sacked {
                record.fate = RecordState::Lost;
                self.lost += record.len();
            }
        }
        self.sacked = 0;
        self.sacked_to = self.una;
        self.judged = self.una;
        self.lost_hint = self.una;
    }

    /// The first run of bytes to be resent (NextSeg rule 1, RFC 6675 §4), or its first `most` bytes and more.
    #[inline]
    pub(super) fn next_lost(&mut self, most: u64) -> Option<(Position, Position)> {
        if self.lost == 0 {
            return None;
        }
        let from = self.index_of(self.lost_hint);
        let mut run: Option<(Position, Position)> = None;
        for record in self.records.range(from..) {
            self.count_step();
            match (&mut run, record.fate) {
                (None, RecordState::Lost) => run = Some((record.start, record.end)),
                (Some((start, end)), RecordState::Lost) if end.since(*start) < most => {
                    *end = record.end
                }
                (Some(_), _) => break,
                (None, _) => {}
            }
        }
        if let Some((start, _)) = run {
            self.lost_hint = start;
        }
        run
    }
}

#[cfg(test)]
mod tests;
