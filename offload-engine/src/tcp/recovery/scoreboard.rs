//! Scoreboard of transmissions: one record per transmission, split by SACK blocks and retransmissions.
//!
//! The records cover [SND.UNA, SND.NXT) without gaps. Each has the time of its last transmission, a flag for
//! retransmission, and a state: in flight, selectively acknowledged, or presumed lost and not yet retransmitted. `pipe`
//! (RFC 6675 §4) is the sum of the bytes in flight.
//!
//! The records are ordered by sequence. A log of transmissions is ordered by time. A search for overdue transmissions
//! reads it from its old end, and marked entries are removed. So an acknowledgment costs its changes and a binary
//! search, regardless of the window.
//!
//! Limits: SACK blocks split records only up to one per full-sized segment outstanding and [`SPARE_RECORDS`] more; then
//! their edges are rounded inward to existing records. The log has at most two entries per record and [`SPARE_ENTRIES`]
//! more.

use alloc::collections::VecDeque;

use crate::{tcp::seq::Position, time::Instant};

/// Records that SACK blocks may create beyond the number of full-sized segments outstanding.
const SPARE_RECORDS: u64 = 1_024;
/// Log entries beyond two per record before obsolete ones are removed.
const SPARE_ENTRIES: usize = 64;

/// State of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordState {
    /// Sent, not acknowledged.
    InFlight,
    /// Selectively acknowledged.
    Sacked,
    /// Presumed lost; to be retransmitted.
    Lost,
}

/// One transmission, or the rest of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: Position,
    pub(super) end: Position,
    pub(super) sent_at: Instant,
    /// Number of the transmission. A batch shares one time, and a retransmission in it does not precede new data
    /// because of its lower sequence number.
    pub(super) number: u64,
    /// True if sent more than once: no RTT sample without a timestamp (Karn).
    pub(super) resent: bool,
    pub(super) state: RecordState,
}

impl Record {
    pub(super) fn len(&self) -> u64 {
        self.end.since(self.start)
    }
}

/// Entry of the transmission log.
#[derive(Clone, Copy, Debug)]
struct Transmission {
    number: u64,
    start: Position,
    end: Position,
    sent_at: Instant,
}

/// Scoreboard of one connection.
#[derive(Debug)]
pub(super) struct Scoreboard {
    records: VecDeque<Record>,
    /// Ordered by `number`. Every record in flight is inside the entry of its number; an entry may have no such record
    /// left.
    log: VecDeque<Transmission>,
    una: Position,
    nxt: Position,
    sacked: u64,
    lost: u64,
    /// One beyond the highest byte ever sacked.
    sacked_to: Position,
    /// Lower bound of the records presumed lost.
    lost_hint: Position,
    /// Upper bound of the records already processed by [`Scoreboard::mark_by_count`].
    counted_to: Position,
    transmissions: u64,
    /// Records and log entries visited.
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
            counted_to: una,
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

    /// Bytes presumed in flight (`pipe`, RFC 6675 §4).
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.outstanding() - self.sacked - self.lost
    }

    /// Bytes selectively acknowledged.
    pub(super) const fn sacked(&self) -> u64 {
        self.sacked
    }

    /// Bytes to be retransmitted.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes retransmitted and in flight.
    pub(super) fn resent_in_flight(&self) -> u64 {
        let resent = |record: &&Record| record.resent && record.state == RecordState::InFlight;
        self.records.iter().filter(resent).map(Record::len).sum()
    }

    /// True if bytes must be retransmitted.
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
        self.records.iter().find(|record| record.state == RecordState::InFlight)
    }

    pub(super) fn last(&self) -> Option<&Record> {
        self.records.back()
    }

    /// Index of the record that contains the byte at `at`.
    fn index_of(&self, at: Position) -> usize {
        self.records.partition_point(|record| record.end <= at)
    }

    /// Splits the records at `at`; returns the index of the record that starts there.
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

    /// Records the transmission of `start..end` now; bytes below SND.NXT were sent before.
    #[inline]
    pub(super) fn sent(&mut self, start: Position, end: Position, resent: bool, now: Instant) {
        debug_assert!(
            self.una <= start && start <= self.nxt,
            "transmission leaves a gap in the scoreboard"
        );
        self.transmissions += 1;
        let number = self.transmissions;
        if start < self.nxt {
            let first = self.split(start);
            let last = self.split(end);
            for record in self.records.range_mut(first..last) {
                match record.state {
                    RecordState::InFlight => {}
                    RecordState::Sacked => self.sacked -= record.len(),
                    RecordState::Lost => self.lost -= record.len(),
                }
                let (resent, state) = (true, RecordState::InFlight);
                *record = Record { sent_at: now, number, resent, state, ..*record };
            }
        }
        if end > self.nxt {
            let start = start.max(self.nxt);
            let state = RecordState::InFlight;
            self.records.push_back(Record { start, end, sent_at: now, number, resent, state });
            self.nxt = end;
        }
        self.log.push_back(Transmission { number, start, end, sent_at: now });
        if self.log.len() > 2 * self.records.len() + SPARE_ENTRIES {
            self.prune_log();
        }
    }

    /// Index of the first record that is still in flight from `entry`.
    fn first_in_flight_of(&self, entry: &Transmission) -> Option<usize> {
        let from = self.index_of(entry.start.max(self.una));
        for (index, record) in self.records.range(from..).enumerate() {
            self.count_step();
            if record.start >= entry.end {
                return None;
            }
            if record.number == entry.number && record.state == RecordState::InFlight {
                return Some(from + index);
            }
        }
        None
    }

    /// Removes entries without records in flight.
    fn prune_log(&mut self) {
        let mut log = core::mem::take(&mut self.log);
        log.retain(|entry| self.first_in_flight_of(entry).is_some());
        self.log = log;
    }

    /// Removes the records before `to`. Calls `delivered` for each record that was not sacked before; returns the bytes
    /// newly acknowledged by the cumulative acknowledgment.
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
            match part.state {
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
        self.counted_to = self.counted_to.max(to);
        while self.log.front().is_some_and(|entry| entry.end <= self.una) {
            self.log.pop_front();
        }
        acked
    }

    /// Marks `start..end` as sacked. Calls `delivered` for each newly sacked record; returns the bytes newly sacked.
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
        // Most blocks repeat earlier ones: do not split records for them.
        let known = self.index_of(start);
        let is_known = |record: &Record| {
            self.count_step();
            record.state == RecordState::Sacked
        };
        let mut covered = self.records.range(known..).take_while(|record| record.start < end);
        if covered.all(is_known) {
            return 0;
        }
        let (first, last) = self.cut(start, end, mss);
        let mut newly = 0;
        for index in first..last {
            self.count_step();
            let record = &mut self.records[index];
            match record.state {
                RecordState::Sacked => continue,
                RecordState::InFlight => {}
                RecordState::Lost => self.lost -= record.len(),
            }
            delivered(record);
            record.state = RecordState::Sacked;
            newly += record.len();
            self.sacked_to = self.sacked_to.max(record.end);
        }
        self.sacked += newly;
        if newly > 0 {
            self.merge_sacked(first, last);
        }
        newly
    }

    /// Returns the records of `start..end`, split at its edges if the record limit allows.
    fn cut(&mut self, start: Position, end: Position, mss: u64) -> (usize, usize) {
        let most = self.outstanding() / mss.max(1) + SPARE_RECORDS;
        if (self.records.len() as u64) < most {
            return (self.split(start), self.split(end));
        }
        // RFC 2018 §8 allows a sender to ignore a block: a partial record is not worth the memory.
        let first = self.records.partition_point(|record| record.start < start);
        (first, self.index_of(end))
    }

    /// Joins adjacent sacked records around `first..last`: their times no longer matter.
    fn merge_sacked(&mut self, first: usize, last: usize) {
        let from = first.saturating_sub(1);
        let mut index = (last + 1).min(self.records.len());
        while index > from + 1 {
            self.count_step();
            index -= 1;
            let (left, right) = (self.records[index - 1], self.records[index]);
            if left.state == RecordState::Sacked && right.state == RecordState::Sacked {
                let resent = left.resent || right.resent;
                self.records[index - 1] = Record { end: right.end, resent, ..left };
                self.records.remove(index);
            }
        }
    }

    /// Marks the record at `index` lost if it is in flight and `is_lost`; returns its bytes.
    fn mark(&mut self, index: usize, is_lost: impl FnOnce(&Record) -> bool) -> u64 {
        self.count_step();
        let record = &mut self.records[index];
        if record.state != RecordState::InFlight || !is_lost(record) {
            return 0;
        }
        record.state = RecordState::Lost;
        let len = record.len();
        self.lost_hint = self.lost_hint.min(record.start);
        self.lost += len;
        len
    }

    /// Marks lost the record at SND.UNA, and every record in flight whose transmission time `is_due`.
    pub(super) fn mark_due(&mut self, is_due: impl Fn(Instant) -> bool) {
        for index in 0..self.records.len() {
            self.mark(index, |record| index == 0 || is_due(record.sent_at));
        }
    }

    /// Marks lost the records in flight longer than `len` bytes.
    pub(super) fn mark_larger(&mut self, len: u64) {
        for index in 0..self.records.len() {
            self.mark(index, |record| record.len() > len);
        }
    }

    /// Marks `len` bytes at SND.UNA lost, if they are in flight; returns the bytes.
    pub(super) fn mark_first(&mut self, len: u64) -> u64 {
        let last = self.split((self.una + len).min(self.nxt));
        (0..last).map(|index| self.mark(index, |_| true)).sum()
    }

    /// True if a record sent no later than transmission `number` may be in flight, so that [`Scoreboard::mark_overdue`]
    /// has entries to check.
    pub(super) fn has_older(&self, number: u64) -> bool {
        self.log.front().is_some_and(|entry| entry.number <= number)
    }

    /// RFC 8985 §6.2 step 5: marks lost the records in flight that were sent before the part of transmission `number`
    /// that ends at `end`, and whose time `is_due`. Returns the bytes, and the transmission time of the oldest record
    /// not due.
    pub(super) fn mark_overdue(
        &mut self,
        number: u64,
        end: Position,
        is_due: impl Fn(Instant) -> bool,
    ) -> (u64, Option<Instant>) {
        let mut newly = 0;
        while let Some(&entry) = self.log.front() {
            if entry.number > number {
                break;
            }
            let Some(first) = self.first_in_flight_of(&entry) else {
                self.log.pop_front();
                continue;
            };
            // Parts of one transmission are ordered by sequence number.
            let limit = if entry.number == number { entry.end.min(end) } else { entry.end };
            if self.records[first].start >= limit {
                break;
            }
            if !is_due(entry.sent_at) {
                return (newly, Some(entry.sent_at));
            }
            let last = self.records.partition_point(|record| record.start < limit);
            for index in first..last {
                newly += self.mark(index, |record| record.number == entry.number);
            }
            if entry.number == number {
                break;
            }
            self.log.pop_front();
        }
        (newly, None)
    }

    /// RFC 6675 §4, IsLost: marks lost the records below `threshold` separate ranges of sacked bytes, or below more
    /// than `threshold - 1` segments of them, unless retransmitted after transmission `since`. Returns the bytes.
    pub(super) fn mark_by_count(&mut self, threshold: u32, mss: u64, since: u64) -> u64 {
        if self.sacked == 0 {
            return 0;
        }
        let top = self.index_of(self.sacked_to.previous());
        let (mut runs, mut bytes, mut edge, mut above) = (0, 0, None, RecordState::InFlight);
        for record in self.records.range(..=top).rev() {
            self.count_step();
            if record.end <= self.counted_to {
                break;
            }
            if record.state == RecordState::Sacked {
                // A retransmitted or split record may have left adjacent sacked records.
                runs += u32::from(above != RecordState::Sacked);
                bytes += record.len();
                if runs >= threshold || bytes > u64::from(threshold - 1) * mss {
                    edge = Some(record.start);
                    break;
                }
            }
            above = record.state;
        }
        let Some(edge) = edge else { return 0 };
        let (first, last) = (self.index_of(self.counted_to), self.index_of(edge));
        self.counted_to = edge;
        (first..last)
            .map(|index| self.mark(index, |record| !record.resent || record.number <= since))
            .sum()
    }

    /// RFC 6675 §4, NextSeg rule 3: the first bytes in flight below a sacked byte that were not retransmitted after
    /// transmission `since`.
    pub(super) fn next_unsacked(&self, since: u64) -> Option<(Position, Position)> {
        // Records below are lost or were retransmitted.
        let mut above = self.records.range(self.index_of(self.counted_to)..);
        let below = above.find(|record| {
            self.count_step();
            record.start >= self.sacked_to
                || record.state == RecordState::InFlight && record.number <= since
        })?;
        (below.start < self.sacked_to).then_some((below.start, below.end))
    }

    /// Returns all lost records to in flight, with their original times.
    pub(super) fn unmark_lost(&mut self) {
        self.log.clear();
        for record in &mut self.records {
            if record.state == RecordState::Lost {
                record.state = RecordState::InFlight;
            }
            if record.state == RecordState::InFlight {
                let Record { start, end, sent_at, number, resent: _, state: _ } = *record;
                self.log.push_back(Transmission { number, start, end, sent_at });
            }
        }
        self.log.make_contiguous().sort_unstable_by_key(|entry| (entry.number, entry.start));
        self.lost = 0;
    }

    /// Clears all selective acknowledgments: the receiver has reneged (RFC 2018 §8).
    pub(super) fn clear_sacked(&mut self) {
        for record in &mut self.records {
            if record.state == RecordState::Sacked {
                record.state = RecordState::Lost;
                self.lost += record.len();
            }
        }
        self.sacked = 0;
        self.sacked_to = self.una;
        self.counted_to = self.una;
        self.lost_hint = self.una;
    }

    /// First range of bytes to retransmit (NextSeg rule 1, RFC 6675 §4), cut after at least `most` bytes.
    #[inline]
    pub(super) fn next_lost(&mut self, most: u64) -> Option<(Position, Position)> {
        if self.lost == 0 {
            return None;
        }
        let from = self.index_of(self.lost_hint);
        let mut run: Option<(Position, Position)> = None;
        for record in self.records.range(from..) {
            self.count_step();
            match (&mut run, record.state) {
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
