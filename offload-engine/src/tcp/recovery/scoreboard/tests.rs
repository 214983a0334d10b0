use alloc::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::tcp::SeqNum;

/// Segment size of the model.
const MSS: u64 = 4;

fn at(offset: u64) -> Position {
    Position::first(SeqNum(u32::MAX - 50)) + offset
}

fn moment(number: u64) -> Instant {
    Instant::from_millis(number)
}

#[derive(Clone, Debug)]
enum Step {
    Send(u64),
    Ack(u64),
    Sack(u64, u64),
    /// Everything sent before a transmission, and long enough ago.
    Overdue(u64, u64),
    Count(u32),
    First(u64),
    Resend(u64),
    Unmark,
    Renege,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u64..40).prop_map(Step::Send),
        2 => (0u64..30).prop_map(Step::Ack),
        4 => (0u64..200, 1u64..40).prop_map(|(s, l)| Step::Sack(s, s + l)),
        2 => (0u64..40, 0u64..40).prop_map(|(n, t)| Step::Overdue(n, t)),
        1 => (1u32..4).prop_map(Step::Count),
        1 => (1u64..20).prop_map(Step::First),
        3 => (1u64..30).prop_map(Step::Resend),
        1 => Just(Step::Unmark),
        1 => Just(Step::Renege),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Byte {
    state: RecordState,
    number: u64,
    resent: bool,
}

/// Model of the scoreboard, byte by byte.
#[derive(Default)]
struct Model {
    bytes: Vec<Byte>,
    una: u64,
    number: u64,
    /// Upper bound of the bytes processed by [`Step::Count`].
    counted_to: u64,
}

impl Model {
    fn send(&mut self, start: u64, end: u64, resent: bool) {
        self.number += 1;
        let byte = Byte { state: RecordState::InFlight, number: self.number, resent };
        self.bytes.resize(self.bytes.len().max(end as usize), byte);
        self.bytes[start as usize..end as usize].fill(byte);
    }

    fn outstanding(&mut self) -> &mut [Byte] {
        &mut self.bytes[self.una as usize..]
    }

    fn sum(&mut self, state: RecordState) -> u64 {
        self.outstanding().iter().filter(|byte| byte.state == state).count() as u64
    }

    fn replace(&mut self, from: RecordState, to: RecordState) {
        self.outstanding().iter_mut().filter(|b| b.state == from).for_each(|b| b.state = to);
    }

    /// RFC 6675 §4: end of the bytes below enough sacked ranges, or sacked bytes.
    fn edge(&self, threshold: u32) -> Option<u64> {
        let sacked = |n: u64| self.bytes[n as usize].state == RecordState::Sacked;
        let enough = |n: u64| {
            let above = n + 1..self.bytes.len() as u64;
            let bytes = above.clone().filter(|n| sacked(*n)).count() as u64;
            let runs = above.filter(|m| sacked(*m) && !sacked(*m - 1)).count();
            // A range that starts below counts only from its start.
            !sacked(n) && (bytes > u64::from(threshold - 1) * MSS || runs >= threshold as usize)
        };
        (self.una..self.bytes.len() as u64).rev().find(|n| enough(*n)).map(|n| n + 1)
    }
}

struct ModelCheck {
    board: Scoreboard,
    model: Model,
}

impl ModelCheck {
    fn run(&mut self, step: Step) -> Result<(), TestCaseError> {
        let Self { board, model } = self;
        match step {
            Step::Send(len) => {
                let start = model.bytes.len() as u64;
                model.send(start, start + len, false);
                board.sent(at(start), at(start + len), false, moment(model.number));
            }
            Step::Ack(len) => {
                let to = (model.una + len).min(model.bytes.len() as u64);
                let mut reported = 0;
                let acked = board.acknowledge(at(to), |record| reported += record.len());
                prop_assert_eq!(acked, to - model.una);
                let passed = &model.bytes[model.una as usize..to as usize];
                let newly = passed.iter().filter(|b| b.state != RecordState::Sacked).count() as u64;
                prop_assert_eq!(reported, newly);
                model.una = to;
            }
            Step::Sack(start, end) => {
                let mut reported = 0;
                let newly = board.sack(at(start), at(end), 1, |record| reported += record.len());
                let (start, end) = (start.max(model.una), end.min(model.bytes.len() as u64));
                let mut expected = 0;
                for n in start..end.max(start) {
                    expected += u64::from(model.bytes[n as usize].state != RecordState::Sacked);
                    model.bytes[n as usize].state = RecordState::Sacked;
                }
                prop_assert_eq!((newly, reported), (expected, expected));
            }
            Step::Overdue(number, time) => self.overdue(number, time)?,
            Step::Count(threshold) => self.count(threshold)?,
            Step::First(len) => {
                let lost = board.mark_first(len);
                let mut expected = 0;
                for byte in model.outstanding().iter_mut().take(len as usize) {
                    if byte.state == RecordState::InFlight {
                        byte.state = RecordState::Lost;
                        expected += 1;
                    }
                }
                prop_assert_eq!(lost, expected);
            }
            Step::Resend(len) => self.resend(len)?,
            Step::Unmark => {
                board.unmark_lost();
                model.replace(RecordState::Lost, RecordState::InFlight);
            }
            Step::Renege => {
                board.clear_sacked();
                model.replace(RecordState::Sacked, RecordState::Lost);
                model.counted_to = model.una;
                // Sacked records were merged: times and numbers of their parts are lost.
                for record in board.records() {
                    let range =
                        record.start.since(at(0)) as usize..record.end.since(at(0)) as usize;
                    for byte in &mut model.bytes[range] {
                        (byte.number, byte.resent) = (record.number, record.resent);
                    }
                }
            }
        }
        self.compare()
    }

    fn overdue(&mut self, number: u64, time: u64) -> Result<(), TestCaseError> {
        let Self { board, model } = self;
        let number = number.min(model.number);
        let (lost, pending) = board.mark_overdue(number, at(0), |sent_at| sent_at <= moment(time));
        let (mut expected, mut oldest) = (0, None::<u64>);
        for byte in model.outstanding() {
            if byte.state == RecordState::InFlight && byte.number < number {
                if byte.number <= time {
                    byte.state = RecordState::Lost;
                    expected += 1;
                } else {
                    oldest = Some(oldest.map_or(byte.number, |n| n.min(byte.number)));
                }
            }
        }
        prop_assert_eq!((lost, pending), (expected, oldest.map(moment)));
        Ok(())
    }

    fn count(&mut self, threshold: u32) -> Result<(), TestCaseError> {
        let Self { board, model } = self;
        let since = model.number / 2;
        let lost = board.mark_by_count(threshold, MSS, since);
        let mut expected = 0;
        let counted_to = model.counted_to.max(model.una);
        if let Some(edge) = model.edge(threshold)
            && edge > counted_to
        {
            for byte in &mut model.bytes[counted_to as usize..edge as usize] {
                let old = !byte.resent || byte.number <= since;
                if byte.state == RecordState::InFlight && old {
                    byte.state = RecordState::Lost;
                    expected += 1;
                }
            }
            model.counted_to = edge;
        }
        prop_assert_eq!(lost, expected);
        Ok(())
    }

    fn resend(&mut self, len: u64) -> Result<(), TestCaseError> {
        let Self { board, model } = self;
        let all = model.una..model.bytes.len() as u64;
        let first = all.into_iter().find(|n| model.bytes[*n as usize].state == RecordState::Lost);
        let next = board.next_lost(len);
        prop_assert_eq!(next.map(|(start, _)| start), first.map(at));
        if let Some((start, end)) = next {
            let end = end.min(start + len);
            for n in start.since(at(0))..end.since(at(0)) {
                prop_assert_eq!(model.bytes[n as usize].state, RecordState::Lost);
            }
            model.send(start.since(at(0)), end.since(at(0)), true);
            board.sent(start, end, true, moment(model.number));
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        let Self { board, model } = self;
        prop_assert_eq!(board.in_flight(), model.sum(RecordState::InFlight));
        prop_assert_eq!(board.sacked(), model.sum(RecordState::Sacked));
        prop_assert_eq!(board.lost(), model.sum(RecordState::Lost));
        let mut edge = at(model.una);
        for record in board.records() {
            prop_assert_eq!(record.start, edge);
            prop_assert!(record.len() > 0);
            edge = record.end;
            // Every record in flight has a log entry.
            let number = board.log.binary_search_by_key(&record.number, |entry| entry.number);
            prop_assert!(
                record.state != RecordState::InFlight || number.is_ok() || record.number == 0
            );
        }
        prop_assert_eq!(edge, at(model.bytes.len() as u64));
        prop_assert!(board.log.len() <= 2 * board.records.len() + SPARE_ENTRIES + 1);
        Ok(())
    }
}

proptest! {
    // RFC 6675 §4, RFC 8985 §6.2 step 5: counts, losses and retransmissions match a model after any history.
    #[test]
    fn scoreboard_matches_model(steps in prop::collection::vec(step(), 1..80)) {
        let mut pair = ModelCheck { board: Scoreboard::new(at(0)), model: Model::default() };
        for step in steps {
            pair.run(step)?;
        }
    }
}

/// `segments` of 1,448 bytes in flight, one transmission each.
fn flight(segments: u64) -> Scoreboard {
    let mut board = Scoreboard::new(at(0));
    for n in 0..segments {
        board.sent(at(n * 1_448), at((n + 1) * 1_448), false, moment(n));
    }
    board
}

// RFC 2018 §8: SACK blocks of one byte use bounded memory; blocks that cover whole records still count.
#[test]
fn single_byte_sack_blocks_use_bounded_memory() {
    const SEGMENTS: u64 = 1_000;
    let mut board = flight(SEGMENTS);
    let mut most = 0;
    for offset in (1..SEGMENTS * 1_448).step_by(2) {
        board.sack(at(offset), at(offset + 1), 1_448, |_| {});
        most = most.max(board.records.len() as u64);
    }
    assert!(most > SEGMENTS, "some records were split");
    assert!(most <= SEGMENTS + SPARE_RECORDS + 2, "{most}");
    let sacked = board.sacked();
    let newly = board.sack(at(900 * 1_448 + 1), at(902 * 1_448 - 1), 1_448, |_| {});
    assert_eq!(newly, 0, "no whole record is covered");
    let newly = board.sack(at(900 * 1_448 - 1), at(902 * 1_448 + 1), 1_448, |_| {});
    assert_eq!((newly, board.sacked()), (2 * 1_448, sacked + 2 * 1_448));
}

// A GSO packet is one record until part of it is acknowledged; its other segments are lost separately.
#[test]
fn lost_part_of_gso_packet_is_split() {
    let mut board = Scoreboard::new(at(0));
    board.sent(at(0), at(45 * 1_448), false, moment(1));
    let mut reported = vec![];
    board.sack(at(3 * 1_448), at(45 * 1_448), 1_448, |record| reported.push(record.end));
    assert_eq!(reported, [at(45 * 1_448)]);
    assert_eq!(board.mark_overdue(1, at(45 * 1_448), |_| true), (3 * 1_448, None));
    assert_eq!(board.next_lost(u64::MAX), Some((at(0), at(3 * 1_448))));
    board.sent(at(0), at(1_448), true, moment(2));
    assert_eq!((board.in_flight(), board.lost()), (1_448, 2 * 1_448));
    // The retransmission is more recent than the delivered part: nothing is overdue.
    assert_eq!(board.mark_overdue(1, at(45 * 1_448), |_| true), (0, None));
}
