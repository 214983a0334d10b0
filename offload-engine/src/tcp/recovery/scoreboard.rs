//! What is in flight: one record for each transmission, split where SACK blocks and
//! retransmissions cut it.
//!
//! The records cover [SND.UNA, SND.NXT) without holes. Each knows when it was last sent, whether that
//! was a retransmission, and which of three states it is in: in flight, selectively acknowledged, or
//! presumed lost and not yet resent. `pipe` (RFC 6675 s4) is what is in flight.

use alloc::collections::VecDeque;

use crate::{tcp::seq::Position, time::Instant};

/// State of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Sent, nothing heard.
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
    pub(super) fate: Fate,
}

impl Record {
    pub(super) fn len(&self) -> u64 {
        self.end.since(self.start)
    }
}

/// The scoreboard of one connection.
#[derive(Debug)]
pub(super) struct Scoreboard {
    records: VecDeque<Record>,
    una: Position,
    nxt: Position,
    sacked: u64,
    lost: u64,
    /// Records that were resent: while there are none and nothing is sacked, order is intact.
    resent: usize,
    /// Nothing below is presumed lost.
    lost_hint: Position,
    transmissions: u64,
}

impl Scoreboard {
    pub(super) const fn new(una: Position) -> Self {
        Self {
            records: VecDeque::new(),
            una,
            nxt: una,
            sacked: 0,
            lost: 0,
            resent: 0,
            lost_hint: una,
            transmissions: 0,
        }
    }

    /// Bytes presumed to be on the wire (`pipe`, RFC 6675 s4).
    pub(super) fn in_flight(&self) -> u64 {
        self.nxt.since(self.una) - self.sacked - self.lost
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
        let resent = |record: &&Record| record.resent && record.fate == Fate::InFlight;
        self.records.iter().filter(resent).map(Record::len).sum()
    }

    /// Whether something waits to be resent.
    pub(super) const fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Whether every record was sent once and none is sacked: then none can be overtaken.
    pub(super) const fn is_in_order(&self) -> bool {
        self.sacked == 0 && self.resent == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    #[cfg(test)]
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    pub(super) fn first(&self) -> Option<&Record> {
        self.records.front()
    }

    pub(super) fn first_in_flight(&self) -> Option<&Record> {
        self.records.iter().find(|record| record.fate == Fate::InFlight)
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
            self.resent += usize::from(tail.resent);
            self.records.insert(index + 1, tail);
            return index + 1;
        }
        index
    }

    /// `start..end` was sent, now; what lies below SND.NXT was sent before.
    pub(super) fn sent(&mut self, start: Position, end: Position, resent: bool, now: Instant) {
        debug_assert!(self.una <= start && start <= self.nxt, "a hole in what was sent");
        self.transmissions += 1;
        let number = self.transmissions;
        if start < self.nxt {
            let first = self.split(start);
            let last = self.split(end);
            for record in self.records.range_mut(first..last) {
                match record.fate {
                    Fate::InFlight => {}
                    Fate::Sacked => self.sacked -= record.len(),
                    Fate::Lost => self.lost -= record.len(),
                }
                self.resent += usize::from(!record.resent);
                let (resent, fate) = (true, Fate::InFlight);
                *record = Record { sent_at: now, number, resent, fate, ..*record };
            }
        }
        if end > self.nxt {
            let start = start.max(self.nxt);
            self.records.push_back(Record {
                start,
                end,
                sent_at: now,
                number,
                resent,
                fate: Fate::InFlight,
            });
            self.resent += usize::from(resent);
            self.nxt = end;
        }
    }

    /// Everything before `to` is acknowledged. Calls `delivered` for each record that was not sacked
    /// before; returns the bytes newly acknowledged by the cumulative acknowledgement.
    pub(super) fn acknowledge(&mut self, to: Position, mut delivered: impl FnMut(&Record)) -> u64 {
        let acked = to.since(self.una);
        while let Some(front) = self.records.front_mut()
            && front.start < to
        {
            let part = Record { end: front.end.min(to), ..*front };
            match part.fate {
                Fate::InFlight => {}
                Fate::Sacked => self.sacked -= part.len(),
                Fate::Lost => self.lost -= part.len(),
            }
            if part.fate != Fate::Sacked {
                delivered(&part);
            }
            if front.end > to {
                front.start = to;
            } else {
                self.resent -= usize::from(front.resent);
                self.records.pop_front();
            }
        }
        self.una = self.una.max(to);
        self.nxt = self.nxt.max(to);
        self.lost_hint = self.lost_hint.max(to);
        acked
    }

    /// `start..end` is selectively acknowledged. Calls `delivered` for each record that this is news
    /// about; returns the bytes newly sacked.
    pub(super) fn sack(
        &mut self,
        start: Position,
        end: Position,
        mut delivered: impl FnMut(&Record),
    ) -> u64 {
        let (start, end) = (start.max(self.una), end.min(self.nxt));
        if start >= end {
            return 0;
        }
        // Most blocks repeat what is known: do not cut records for them.
        let known = self.index_of(start);
        if self
            .records
            .range(known..)
            .take_while(|record| record.start < end)
            .all(|record| record.fate == Fate::Sacked)
        {
            return 0;
        }
        let first = self.split(start);
        let last = self.split(end);
        let mut news = 0;
        for record in self.records.range_mut(first..last) {
            match record.fate {
                Fate::Sacked => continue,
                Fate::InFlight => {}
                Fate::Lost => self.lost -= record.len(),
            }
            delivered(record);
            record.fate = Fate::Sacked;
            news += record.len();
        }
        self.sacked += news;
        self.merge_sacked(first, last);
        news
    }

    /// Joins neighbouring sacked records around `first..last`: their times no longer matter.
    fn merge_sacked(&mut self, first: usize, last: usize) {
        let from = first.saturating_sub(1);
        let mut index = (last + 1).min(self.records.len());
        while index > from + 1 {
            index -= 1;
            let (left, right) = (self.records[index - 1], self.records[index]);
            if left.fate == Fate::Sacked && right.fate == Fate::Sacked {
                self.resent -= usize::from(left.resent) + usize::from(right.resent);
                let resent = left.resent || right.resent;
                self.resent += usize::from(resent);
                self.records[index - 1] = Record { end: right.end, resent, ..left };
                self.records.remove(index);
            }
        }
    }

    /// Presumes every record in flight lost for which `is_lost` holds; returns the bytes.
    pub(super) fn mark_lost(&mut self, mut is_lost: impl FnMut(&Record) -> bool) -> u64 {
        let mut news = 0;
        for record in &mut self.records {
            if record.fate == Fate::InFlight && is_lost(record) {
                record.fate = Fate::Lost;
                news += record.len();
                self.lost_hint = self.lost_hint.min(record.start);
            }
        }
        self.lost += news;
        news
    }

    /// Presumes `len` bytes at SND.UNA lost, if they are in flight.
    pub(super) fn mark_first_lost(&mut self, len: u64) -> u64 {
        let end = (self.una + len).min(self.nxt);
        self.split(end);
        let una = self.una;
        self.mark_lost(|record| una <= record.start && record.start < end)
    }

    /// Forgets what was selectively acknowledged: the receiver has reneged (RFC 2018 s8).
    pub(super) fn forget_sacks(&mut self) {
        for record in &mut self.records {
            if record.fate == Fate::Sacked {
                record.fate = Fate::Lost;
                self.lost += record.len();
            }
        }
        self.sacked = 0;
        self.lost_hint = self.una;
    }

    /// The first run of bytes to be resent (NextSeg rule 1, RFC 6675 s4).
    pub(super) fn next_lost(&mut self) -> Option<(Position, Position)> {
        if self.lost == 0 {
            return None;
        }
        let from = self.index_of(self.lost_hint);
        let mut run: Option<(Position, Position)> = None;
        for record in self.records.range(from..) {
            match (&mut run, record.fate) {
                (None, Fate::Lost) => run = Some((record.start, record.end)),
                (Some((_, end)), Fate::Lost) => *end = record.end,
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
mod tests {
    use alloc::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;
    use crate::tcp::SeqNum;

    fn at(offset: u64) -> Position {
        Position::first(SeqNum(u32::MAX - 50)) + offset
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send(u64),
        Ack(u64),
        Sack(u64, u64),
        Lose(u64, u64),
        Resend(u64),
        Renege,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u64..40).prop_map(Step::Send),
            (0u64..30).prop_map(Step::Ack),
            (0u64..200, 1u64..40).prop_map(|(s, l)| Step::Sack(s, s + l)),
            (0u64..200, 1u64..40).prop_map(|(s, l)| Step::Lose(s, s + l)),
            (1u64..30).prop_map(Step::Resend),
            Just(Step::Renege),
        ]
    }

    proptest! {
        // RFC 6675 s4: the sums agree with a byte by byte model after any history.
        #[test]
        fn sums_agree_with_a_model(steps in prop::collection::vec(step(), 1..80)) {
            let mut board = Scoreboard::new(at(0));
            let mut model: Vec<Fate> = vec![];
            let mut una = 0;
            for step in steps {
                match step {
                    Step::Send(len) => {
                        let start = model.len() as u64;
                        board.sent(at(start), at(start + len), false, Instant::ZERO);
                        model.resize((start + len) as usize, Fate::InFlight);
                    }
                    Step::Ack(len) => {
                        let to = (una + len).min(model.len() as u64);
                        let acked = board.acknowledge(at(to), |_| {});
                        prop_assert_eq!(acked, to - una);
                        una = to;
                    }
                    Step::Sack(start, end) => {
                        let mut heard = 0;
                        let news = board.sack(at(start), at(end), |record| heard += record.len());
                        let (start, end) = (start.max(una), end.min(model.len() as u64));
                        let mut expected = 0;
                        for n in start..end.max(start) {
                            expected += u64::from(model[n as usize] != Fate::Sacked);
                            model[n as usize] = Fate::Sacked;
                        }
                        prop_assert_eq!((news, heard), (expected, expected));
                    }
                    Step::Lose(start, end) => {
                        let mut lost = vec![];
                        board.mark_lost(|record| {
                            let is = at(start) <= record.start && record.start < at(end);
                            if is {
                                lost.push((record.start.since(at(0)), record.end.since(at(0))));
                            }
                            is
                        });
                        for (start, end) in lost {
                            for n in start..end {
                                prop_assert_eq!(model[n as usize], Fate::InFlight);
                                model[n as usize] = Fate::Lost;
                            }
                        }
                    }
                    Step::Resend(len) => {
                        let first = (una..model.len() as u64).find(|n| model[*n as usize] == Fate::Lost);
                        let next = board.next_lost();
                        prop_assert_eq!(next.map(|(start, _)| start), first.map(at));
                        if let Some((start, end)) = next {
                            let end = end.min(start + len);
                            for n in start.since(at(0))..end.since(at(0)) {
                                prop_assert_eq!(model[n as usize], Fate::Lost);
                                model[n as usize] = Fate::InFlight;
                            }
                            board.sent(start, end, true, Instant::ZERO);
                        }
                    }
                    Step::Renege => {
                        board.forget_sacks();
                        for fate in &mut model[una as usize..] {
                            if *fate == Fate::Sacked {
                                *fate = Fate::Lost;
                            }
                        }
                    }
                }
                let live = &model[una as usize..];
                let count = |fate| live.iter().filter(|f| **f == fate).count() as u64;
                prop_assert_eq!(board.in_flight(), count(Fate::InFlight));
                prop_assert_eq!(board.sacked(), count(Fate::Sacked));
                prop_assert_eq!(board.has_lost(), count(Fate::Lost) > 0);
                prop_assert_eq!(board.resent, board.records().filter(|r| r.resent).count());
                let mut edge = at(una);
                for record in board.records() {
                    prop_assert_eq!(record.start, edge);
                    prop_assert!(record.len() > 0);
                    edge = record.end;
                }
                prop_assert_eq!(edge, at(model.len() as u64));
            }
        }
    }
}
