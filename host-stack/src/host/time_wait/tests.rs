use alloc::vec::Vec;

use etherparse::PacketBuilder;
use offload_engine::{
    frame::FlowKey,
    tcp::SeqNum,
    time::{Duration, Instant},
};

use super::{ANSWER_INTERVAL, Answer, RECORDS_MAX, ShardId, TimeWaits};
use crate::{
    observer::Flow,
    wire::{self, Frame, Segment},
};

const TIME: Duration = Duration::from_secs(60);
const START: Instant = Instant::from_millis(1_000);
/// RCV.NXT of each connection.
const RCV_NXT: u32 = 501;

/// Calls `then` with a segment for connection `number`: an address and a port of the peer.
fn with_segment<R>(
    number: usize,
    seq: u32,
    flags: &str,
    then: impl FnOnce(&Segment<'_>) -> R,
) -> R {
    let [.., high, low, port] = (number as u32).to_be_bytes();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 1, high, low], [10, 0, 0, 2], 64)
        .tcp(1_000 + u16::from(port), 5_000, seq, 100)
        .ack(1);
    let payload = if flags.contains('D') { &b"data"[..] } else { b"" };
    let frame = wire::forged(builder, flags, 1, payload);
    let Frame::Tcp(segment) = wire::parse(&frame) else { panic!("a segment") };
    then(&segment)
}

fn tuple(number: usize) -> FlowKey {
    with_segment(number, 0, "", |segment| segment.received_on())
}

const fn just_before(at: Instant) -> Instant {
    Instant::from_nanos(at.as_nanos() - 1)
}

impl TimeWaits {
    fn has_ended(&mut self, now: Instant, number: usize) {
        let mut flow = Flow::new(now);
        flow.acknowledged = SeqNum(RCV_NXT);
        self.insert(now, (TIME, false), tuple(number), (ShardId::FIRST, flow));
    }

    fn answer_to(&mut self, now: Instant, number: usize, seq: u32, flags: &str) -> Answer {
        with_segment(number, seq, flags, |segment| self.answer(now, TIME, segment))
    }

    /// True if a record exists; uses a segment that is dropped and restarts no timer.
    fn has_record(&mut self, now: Instant, number: usize) -> bool {
        !matches!(self.answer_to(now, number, RCV_NXT, ""), Answer::Unknown)
    }

    /// True if a repeated FIN is acknowledged.
    fn acknowledges_fin(&mut self, now: Instant, number: usize) -> bool {
        matches!(self.answer_to(now, number, RCV_NXT - 1, "F"), Answer::Acknowledge(..))
    }
}

// The oldest record is evicted first, even if its timer was restarted.
#[test]
fn oldest_record_is_evicted() {
    let mut waits = TimeWaits::default();
    for number in 0..RECORDS_MAX {
        waits.has_ended(START, number);
    }
    assert_eq!(waits.records.len(), RECORDS_MAX);
    assert!(waits.acknowledges_fin(START, 0));
    assert!(waits.has_record(START, 0) && waits.has_record(START, RECORDS_MAX - 1));
    for more in 0..3 {
        waits.has_ended(START, RECORDS_MAX + more);
        assert_eq!((waits.records.len(), waits.order.len()), (RECORDS_MAX, RECORDS_MAX));
        assert!(waits.has_record(START, RECORDS_MAX + more), "the newest");
        assert!(!waits.has_record(START, more), "the oldest");
        assert!(waits.has_record(START, more + 1), "the oldest but one");
    }
}

// A reused 4-tuple has a record with its own age. Its first use also counts until its time has expired.
#[test]
fn replaced_record_has_the_age_of_its_last_connection() {
    let mut waits = TimeWaits::default();
    for number in [0, 1, 0] {
        waits.has_ended(START, number);
    }
    for number in 2..RECORDS_MAX {
        waits.has_ended(START, number);
    }
    assert!(
        waits.has_record(START, 0) && waits.has_record(START, 1),
        "the first use was the oldest"
    );
    waits.has_ended(START, RECORDS_MAX);
    assert!(waits.has_record(START, 0) && !waits.has_record(START, 1));
    waits.has_ended(START, RECORDS_MAX + 1);
    assert!(!waits.has_record(START, 0));
}

// RFC 9293 §3.6.1: 2 MSL after the last repeated FIN.
#[test]
fn records_expire() {
    let mut waits = TimeWaits::default();
    waits.has_ended(START, 0);
    waits.has_ended(START, 1);
    let later = START + Duration::from_secs(40);
    assert!(waits.acknowledges_fin(later, 1));
    assert!(waits.has_record(just_before(START + TIME), 0));
    assert!(!waits.has_record(START + TIME, 0) && waits.has_record(START + TIME, 1));
    // A new record expires the others.
    waits.has_ended(START + TIME, 2);
    assert_eq!((waits.records.len(), waits.order.len()), (2, 2));
    assert!(waits.has_record(just_before(later + TIME), 1));
    assert!(!waits.has_record(later + TIME, 1));
    waits.has_ended(START + TIME * 2, 3);
    assert_eq!((waits.records.len(), waits.order.len()), (1, 1));
}

// RFC 5961 §7: of a flood one segment per interval is acknowledged, the first immediately.
#[test]
fn answers_to_a_connection_are_limited() {
    for (seq, flags) in [(RCV_NXT - 1, "F"), (RCV_NXT - 4, "D"), (RCV_NXT + 9_000, "D"), (1, "")] {
        let mut waits = TimeWaits::default();
        waits.has_ended(START, 0);
        let answers = (0..5_000).filter(|millis| {
            let now = START + Duration::from_millis(*millis);
            matches!(waits.answer_to(now, 0, seq, flags), Answer::Acknowledge(..))
        });
        let expected: Vec<_> = (0..10).map(|interval| interval * 500).collect();
        assert_eq!(answers.collect::<Vec<_>>(), expected, "{seq}, {flags}");
    }
}

// A repeated FIN is answered, whatever arrived for other connections, and restarts the timer even without an answer.
#[test]
fn repeated_fin_is_answered() {
    let mut waits = TimeWaits::default();
    waits.has_ended(START, 0);
    waits.has_ended(START, 1);
    // Unanswered segments do not count.
    waits.has_record(START, 0);
    waits.answer_to(START, 0, RCV_NXT, "R");
    assert!(waits.acknowledges_fin(START, 1) && waits.acknowledges_fin(START, 0));
    let early = just_before(START + ANSWER_INTERVAL);
    assert!(!waits.acknowledges_fin(early, 0));
    assert!(waits.has_record(just_before(early + TIME), 0), "restarted");
    assert!(!waits.has_record(early + TIME, 0));
    // The next connection has no answer interval yet.
    waits.has_ended(START + TIME * 2, 0);
    assert!(waits.acknowledges_fin(START + TIME * 2, 0));
    assert!(waits.acknowledges_fin(START + TIME * 2 + ANSWER_INTERVAL, 0));
}
