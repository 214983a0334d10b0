//! Exhaustive test of the orders of events on two connections: data, duplicates, acknowledgments, FIN, RST, timers.
//! All orders are tested up to a depth (`FLUE_DEPTH`, 6), without seeds.
//!
//! A run makes its decisions one by one. [`Choices`] records them and gives the next run the next combination, like a
//! counter. Segments in flight are kept in a set. Any of them may arrive next, with or without remaining in flight.
//! Both ends are checked at every step. Then all segments are delivered without loss, and both streams must be complete
//! and both ends closed.

use std::collections::VecDeque;

use bytes::Bytes;
use offload_engine::{
    chimney::client::{Disconnect, UploadReason},
    memory::to_vec,
    nbl::{NblChain, NetBufferList},
    status::NdisStatus,
    tcp::{Config, Connection, Event, Flags, SeqNum, TcpPhase, Transmit, TxLimits},
    time::{Duration, Instant},
};

use super::state::{Shape, state};

/// Payload bytes of a full segment.
const MSS: usize = 100;
/// Bytes of each posted list: two segments.
const LIST: usize = 150;
/// Maximum number of lists posted by an end.
const LISTS_MAX: usize = 2;
/// Segments of the set that may be chosen next; later ones are delayed.
const CHOICES_MAX: usize = 3;
/// Maximum number of steps to the end of a run without further choices.
const TURNS_MAX: usize = 300;
/// FIN_WAIT_2 lasts until the other end closes, whatever the delay.
const UNLIMITED: Duration = Duration::from_secs(1 << 30);
const ISNS: [SeqNum; 2] = [SeqNum(u32::MAX - 120), SeqNum(9_000)];

/// Decisions of one run, and the state to determine the next run.
#[derive(Default)]
struct Choices {
    taken: Vec<(usize, usize)>,
    next: usize,
}

impl Choices {
    /// Returns one of `count` choices.
    fn choose(&mut self, count: usize) -> usize {
        if self.next == self.taken.len() {
            self.taken.push((0, count));
        }
        let (way, of) = self.taken[self.next];
        assert_eq!(of, count, "a run depends only on its choices");
        self.next += 1;
        way
    }

    /// Advances to the next combination. Returns false after the last.
    fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some((way, of)) = self.taken.pop() {
            if way + 1 < of {
                self.taken.push((way + 1, of));
                return true;
            }
        }
        false
    }
}

/// Possible next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Post(usize),
    Finish(usize),
    Abort(usize),
    /// Expiry of the next deadline of either end.
    Timer,
    /// Arrival of a segment of the set.
    Deliver(usize),
    /// Arrival of a segment that remains in flight.
    Duplicate(usize),
}

#[derive(Clone, Debug)]
struct Frame {
    to: usize,
    transmit: Transmit,
    payload: Vec<u8>,
}

impl Frame {
    fn is_same(&self, other: &Self) -> bool {
        let key = |frame: &Self| {
            let Transmit { seq, ack, flags, window, payload_len, .. } = frame.transmit;
            (frame.to, seq, ack, flags, window, payload_len)
        };
        key(self) == key(other)
    }
}

struct End {
    tcp: Connection,
    posted: usize,
    completed: usize,
    received: Vec<u8>,
    edge: Option<SeqNum>,
    finishes: bool,
    aborts: bool,
    disconnected: Option<NdisStatus>,
    peer_closed: bool,
    reset: bool,
    closed: bool,
}

struct Pair {
    ends: [End; 2],
    bag: VecDeque<Frame>,
    now: Instant,
}

fn byte(end: usize, at: usize) -> u8 {
    (at * 7 + end * 101 + at / 256) as u8
}

impl Pair {
    fn new(shape: Shape) -> Self {
        let end = |index: usize| {
            let state = state(shape, ISNS[index], ISNS[1 - index]);
            let config = Config { fin_wait_2: UNLIMITED, ..Config::default() };
            let tcp = Connection::from_state(Instant::ZERO, Box::new(state), 1_460, config);
            End {
                tcp: tcp.expect("consistent state"),
                posted: 0,
                completed: 0,
                received: Vec::new(),
                edge: None,
                finishes: false,
                aborts: false,
                disconnected: None,
                peer_closed: false,
                reset: false,
                closed: false,
            }
        };
        Self { ends: [end(0), end(1)], bag: VecDeque::new(), now: Instant::ZERO }
    }

    /// Returns the possible events. The first event is at the first end, because the two are alike.
    fn steps(&self, first: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, end) in self.ends.iter().enumerate().take(if first { 1 } else { 2 }) {
            if end.closed || end.aborts {
                continue;
            }
            if !end.finishes {
                if end.posted < LISTS_MAX * LIST {
                    steps.push(Step::Post(index));
                }
                steps.push(Step::Finish(index));
            }
            steps.push(Step::Abort(index));
        }
        if self.next_deadline().is_some_and(|(at, _)| at < Instant::ZERO + UNLIMITED) {
            steps.push(Step::Timer);
        }
        for at in 0..self.bag.len().min(CHOICES_MAX) {
            steps.push(Step::Deliver(at));
            steps.push(Step::Duplicate(at));
        }
        steps
    }

    fn next_deadline(&self) -> Option<(Instant, usize)> {
        let deadline = |index: usize| Some((self.ends[index].tcp.poll_timeout()?, index));
        (0..2).filter_map(deadline).min()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Post(index) => self.post(index),
            Step::Finish(index) => self.finish(index),
            Step::Abort(index) => {
                let list = NetBufferList::new(u64::MAX);
                self.ends[index].aborts = true;
                self.ends[index].tcp.disconnect(self.now, Disconnect::Abortive, list);
            }
            Step::Timer => {
                let (deadline, index) = self.next_deadline().expect("a timer runs");
                self.now = self.now.max(deadline);
                self.ends[index].tcp.handle_timeout(self.now);
            }
            Step::Deliver(at) => {
                let frame = self.bag.remove(at).expect("chosen from the bag");
                self.deliver(&frame);
            }
            Step::Duplicate(at) => {
                let frame = self.bag[at].clone();
                self.deliver(&frame);
            }
        }
        self.now += Duration::from_micros(10);
        for index in 0..2 {
            self.drain(index);
        }
    }

    fn post(&mut self, index: usize) {
        let end = &mut self.ends[index];
        let data: Bytes = (end.posted..end.posted + LIST).map(|at| byte(index, at)).collect();
        let list = NetBufferList::from_mdl((end.posted / LIST) as u64, data);
        end.posted += LIST;
        end.tcp.post_send(self.now, NblChain::from([list]));
    }

    fn finish(&mut self, index: usize) {
        let end = &mut self.ends[index];
        end.finishes = true;
        end.tcp.disconnect(self.now, Disconnect::Graceful, NetBufferList::new(u64::MAX));
    }

    fn deliver(&mut self, frame: &Frame) {
        let Frame { to, transmit, payload } = frame;
        let end = &mut self.ends[*to];
        if end.tcp.info(self.now).phase == TcpPhase::Closed {
            self.answer_without_connection(*to, transmit);
            return;
        }
        let segment = transmit.received(payload);
        let received = end.tcp.handle_segment(self.now, &segment);
        end.received.extend_from_slice(&payload[received.in_order]);
        end.tcp.settle(&[], false);
        while let Some((data, _)) = end.tcp.backlog() {
            let count = data.len();
            end.received.extend_from_slice(data);
            end.tcp.backlog_consumed(count);
        }
    }

    /// Answers a segment without a connection, as the host does (RFC 9293 §3.10.7.1).
    fn answer_without_connection(&mut self, index: usize, transmit: &Transmit) {
        if transmit.flags.contains(Flags::RST) {
            return;
        }
        let reset = Transmit {
            seq: transmit.ack,
            flags: Flags::RST,
            payload_len: 0,
            sack_count: 0,
            timestamps: None,
            ..*transmit
        };
        self.put(Frame { to: 1 - index, transmit: reset, payload: Vec::new() });
    }

    fn put(&mut self, frame: Frame) {
        if !self.bag.iter().any(|other| other.is_same(&frame)) {
            self.bag.push_back(frame);
        }
    }

    fn drain(&mut self, index: usize) {
        let limits = TxLimits { gso_payload_max: 0, new_data: true };
        while let Some(transmit) = self.ends[index].tcp.poll_transmit(self.now, limits) {
            let end = &mut self.ends[index];
            let payload = to_vec(end.tcp.payload(&transmit));
            let start = i64::from(transmit.seq.distance(ISNS[index]));
            for (at, &value) in (start..).zip(&payload) {
                assert_eq!(value, byte(index, at as usize), "a byte differs from the posted one");
            }
            if !transmit.flags.contains(Flags::RST) {
                // RFC 9293 §3.8.6: there is no scale here, so the edge is exact.
                let edge = transmit.ack + u32::from(transmit.window);
                assert!(
                    end.edge.is_none_or(|before| !edge.is_before(before)),
                    "the window shrinks"
                );
                end.edge = Some(edge);
            }
            self.put(Frame { to: 1 - index, transmit, payload });
        }
        while let Some(event) = self.ends[index].tcp.poll_event() {
            self.ends[index].on_event(event);
        }
        self.check(index);
    }

    fn check(&self, index: usize) {
        let (end, peer) = (&self.ends[index], &self.ends[1 - index]);
        assert!(end.received.len() <= peer.posted);
        for (at, &value) in end.received.iter().enumerate() {
            assert_eq!(value, byte(1 - index, at), "a byte differs from the sent one");
        }
        let info = end.tcp.info(self.now);
        assert!(info.bytes_acked as usize <= end.posted);
        let ended = end.aborts || end.reset || info.phase == TcpPhase::Closed;
        let fin = usize::from(end.finishes && end.disconnected.is_none());
        if !ended && end.tcp.send_outstanding() + fin > 0 {
            assert!(end.tcp.poll_timeout().is_some(), "unacknowledged, and no timer runs");
        }
        if end.peer_closed && !end.reset {
            assert!(peer.finishes && end.received.len() == peer.posted, "an early end");
        }
        // RFC 5961 §3.2: only a peer that sends RSTs causes a reset: an abort, or a host without the connection.
        let gone = peer.aborts || peer.tcp.info(self.now).phase == TcpPhase::Closed;
        assert!(!end.reset || gone, "unexpected reset");
    }

    /// Delivers all segments and runs all timers until both ends are closed.
    fn settle(&mut self) {
        for index in 0..2 {
            let end = &self.ends[index];
            if !(end.finishes || end.aborts || end.closed) {
                self.finish(index);
            }
            self.drain(index);
        }
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "the ends exchange too many segments");
            if self.ends.iter().all(|end| end.closed) {
                break;
            }
            if !self.bag.is_empty() {
                self.take(Step::Deliver(0));
                continue;
            }
            self.take(Step::Timer);
        }
        self.check_ended();
    }

    fn check_ended(&self) {
        let reset = self.ends.iter().any(|end| end.aborts || end.reset);
        for (index, end) in self.ends.iter().enumerate() {
            let peer = &self.ends[1 - index];
            assert_eq!(end.completed * LIST, end.posted, "lists that never completed");
            assert!(end.disconnected.is_some() || !(end.finishes || end.aborts));
            assert_eq!(end.tcp.poll_timeout(), None);
            if !self.ends.iter().any(|end| end.aborts) {
                assert_eq!(end.received.len(), peer.posted, "incomplete stream");
            }
            if !reset {
                assert_eq!(end.disconnected, Some(NdisStatus::SUCCESS));
                assert!(end.peer_closed);
            }
        }
    }
}

impl End {
    fn on_event(&mut self, event: Event) {
        assert!(!self.closed, "event after Closed: {event:?}");
        match event {
            Event::SendComplete(chain) => {
                for list in chain {
                    assert_eq!(list.context, self.completed as u64, "completions in order");
                    let done = list.status == NdisStatus::SUCCESS;
                    assert!(
                        done || self.aborts
                            || self.reset
                            || list.status == NdisStatus::REQUEST_ABORTED
                    );
                    self.completed += 1;
                }
            }
            Event::DisconnectComplete(list) => self.disconnected = Some(list.status),
            Event::SendBacklogChange(_) => {}
            Event::ReceiveComplete(_) => panic!("nothing is posted"),
            Event::PeerClosed => {
                assert!(!self.peer_closed, "PeerClosed twice");
                self.peer_closed = true;
            }
            Event::Reset => self.reset = true,
            Event::Retrieve(UploadReason::TimeoutExpiration) => panic!("timed out"),
            Event::Retrieve(reason) => panic!("{reason:?}"),
            Event::Closed => self.closed = true,
        }
    }
}

/// Counts of a search.
#[derive(Default, Debug)]
struct Count {
    runs: u64,
    steps: u64,
    resets: u64,
    whole: u64,
}

/// Prints the events of a failing run.
struct EventTrace(Vec<Step>);

impl Drop for EventTrace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("steps: {:?}", self.0);
        }
    }
}

fn search(shape: Shape, depth: usize) -> Count {
    let mut choices = Choices::default();
    let mut count = Count::default();
    loop {
        let mut pair = Pair::new(shape);
        let mut events = EventTrace(Vec::new());
        for number in 0..depth {
            let steps = pair.steps(number == 0);
            if steps.is_empty() {
                break;
            }
            let step = steps[choices.choose(steps.len())];
            events.0.push(step);
            pair.take(step);
        }
        count.steps += events.0.len() as u64;
        pair.settle();
        count.runs += 1;
        count.resets += u64::from(pair.ends.iter().any(|end| end.reset));
        count.whole += u64::from(!pair.ends.iter().any(|end| end.reset || end.aborts));
        if !choices.advance() {
            return count;
        }
    }
}

fn depth() -> usize {
    let depth = std::env::var("FLUE_DEPTH").ok();
    depth.map_or(6, |depth| depth.parse().expect("FLUE_DEPTH is a number"))
}

fn shape(sack: bool, timestamps: bool) -> Shape {
    let mss = MSS as u16 + if timestamps { 12 } else { 0 };
    // The window has room for three segments: it can be filled, and blocks no event.
    Shape { sack, timestamps, mss, scale: 0, window: 3 * MSS as u32 }
}

// RFC 9293 §3.10: every order of six events, with SACK and timestamps.
#[test]
fn every_order_of_events_with_options() {
    let count = search(shape(true, true), depth());
    println!("{count:?}");
    assert!(count.runs > 100_000 && count.resets > 10_000 && count.whole > 10_000, "{count:?}");
}

// Variant without options: recovery by duplicate acknowledgments, no PAWS.
#[test]
fn every_order_of_events_without_options() {
    let count = search(shape(false, false), depth());
    println!("{count:?}");
    assert!(count.runs > 100_000 && count.resets > 10_000 && count.whole > 10_000, "{count:?}");
}

// The search itself yields every combination once.
#[test]
fn choices_enumerate_every_combination() {
    let mut choices = Choices::default();
    let mut seen = Vec::new();
    loop {
        let first = choices.choose(3);
        let second = if first == 1 { choices.choose(2) } else { 9 };
        seen.push((first, second));
        if !choices.advance() {
            break;
        }
    }
    assert_eq!(seen, [(0, 9), (1, 0), (1, 1), (2, 9)]);
}
