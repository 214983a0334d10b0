//! Dumbbell network in virtual time: flows that share one bottleneck with a drop-tail queue.
//!
//! Only the bottleneck, in the direction of the data, has a rate, a queue and losses. The senders' own links are
//! infinitely fast. Acknowledgments take half a round trip and are never lost. Time is counted in nanoseconds, and in
//! picoseconds where frames are serialized, so that rounding errors do not accumulate. Payload is one shared block, so
//! the cost of a byte is independent of the rate.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BinaryHeap},
};

use bytes::Bytes;
use offload_engine::{
    nbl::{NblChain, NetBufferList},
    tcp::{Config, CongestionAlgorithm, Connection, PushPolicy, SeqNum, Transmit, TxLimits},
    time::{Duration, Instant},
};
use oorandom::Rand64;

use super::state::{Shape, state};

/// Payload bytes of a full frame: an MTU of 1500 minus the IPv4, TCP and timestamp headers.
pub(crate) const MSS: u64 = 1448;
/// Bytes on the wire in addition to the payload: headers, and Ethernet's preamble, FCS and gap.
pub(crate) const OVERHEAD: u64 = 20 + 20 + 12 + 14 + 24;
/// Frames of the largest GSO packet.
const GSO_PACKET_FRAMES: u64 = 44;
/// Bytes of one posted list.
const LIST: u64 = 1 << 20;
/// Window of every receiver: the largest with scale 14.
const WINDOW: u32 = 65_535 << SCALE;
const SCALE: u8 = 14;
/// Frames of the smallest queue.
const QUEUE_FRAMES_MIN: u64 = 64;
/// Denominator of loss and reordering.
pub(crate) const PARTS: u64 = 10_000;

/// Bottleneck.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Megabits per second, including frame overhead.
    pub(crate) rate: u64,
    /// Round-trip time without queueing.
    pub(crate) rtt: Duration,
    /// Randomly lost frames per [`PARTS`].
    pub(crate) loss: u64,
    /// Frames delayed by up to a quarter of the round trip, per [`PARTS`].
    pub(crate) late: u64,
}

impl Link {
    /// Transmission time of a frame of `payload` bytes, in picoseconds.
    fn picos(&self, payload: u64) -> u64 {
        (payload + OVERHEAD) * 8 * 1_000_000 / self.rate
    }

    /// Full frames of one bandwidth-delay product.
    pub(crate) fn bdp_frames(&self) -> u64 {
        self.rtt.as_nanos() as u64 * 1_000 / self.picos(MSS)
    }

    /// Queue limit in picoseconds: one bandwidth-delay product.
    fn queue_picos(&self) -> u64 {
        self.bdp_frames().max(QUEUE_FRAMES_MIN) * self.picos(MSS)
    }

    /// Frames combined by segmentation and receive offload: as many as a fast link sends in about 50 us, one on a slow
    /// link.
    fn burst_frames(&self) -> u64 {
        (50_000_000 / self.picos(MSS)).clamp(1, GSO_PACKET_FRAMES)
    }
}

/// Sender and its start time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) algorithm: CongestionAlgorithm,
    pub(crate) start: Instant,
}

/// Results of one flow.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Outcome {
    /// Bytes delivered in order.
    pub(crate) delivered: u64,
    /// Bytes delivered in order in the second half of the run.
    pub(crate) delivered_late: u64,
    /// Segments with at least one retransmitted byte.
    pub(crate) retransmitted: u64,
    /// Retransmission timeouts.
    pub(crate) timeouts: u64,
    /// Bytes received twice, in full segments.
    pub(crate) spurious: u64,
    /// Frames dropped by the full queue.
    pub(crate) overflowed: u64,
    /// Randomly lost frames.
    pub(crate) lost: u64,
}

/// Received bytes of a stream, by offset.
#[derive(Default, Debug)]
struct ReceivedRanges {
    next: u64,
    ranges: BTreeMap<u64, u64>,
}

impl ReceivedRanges {
    /// Records `start..end`. Returns how many of its bytes were received before.
    fn record(&mut self, start: u64, end: u64) -> u64 {
        let mut seen = self.next.min(end).saturating_sub(start);
        let (mut from, mut to) = (start.max(self.next), end.max(self.next));
        while let Some((&low, &high)) = self.ranges.range(..=to).next_back()
            && high >= from
        {
            seen += high.min(end).saturating_sub(low.max(start));
            from = from.min(low);
            to = to.max(high);
            self.ranges.remove(&low);
        }
        if from <= self.next {
            self.next = to;
        } else if from < to {
            self.ranges.insert(from, to);
        }
        seen
    }
}

struct Flow {
    source: Source,
    sender: Connection,
    receiver: Connection,
    received_ranges: ReceivedRanges,
    outcome: Outcome,
}

#[derive(Debug)]
enum EventKind {
    /// Data for the receiver.
    Data { transmit: Transmit, offset: u64 },
    /// Acknowledgment for the sender.
    Ack(Transmit),
}

#[derive(Debug)]
struct Event {
    at: Instant,
    /// Sequence number that keeps the order of events at the same time.
    order: u64,
    flow: usize,
    kind: EventKind,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns the greatest first.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// Flows, their bottleneck, and the time.
pub(crate) struct Network {
    link: Link,
    now: Instant,
    random: Rand64,
    /// Time at which the bottleneck has sent its queue, in picoseconds.
    busy_until: u64,
    events: BinaryHeap<Event>,
    order: u64,
    block: Bytes,
    flows: Vec<Flow>,
}

const CLIENT_ISN: SeqNum = SeqNum(0xffff_0000);
const SERVER_ISN: SeqNum = SeqNum(7_000);

impl Network {
    pub(crate) fn new(link: Link, seed: u64, sources: &[Source]) -> Self {
        let flow = |source: &Source| Flow {
            source: *source,
            sender: connection(source.algorithm, CLIENT_ISN, SERVER_ISN),
            receiver: connection(source.algorithm, SERVER_ISN, CLIENT_ISN),
            received_ranges: ReceivedRanges::default(),
            outcome: Outcome::default(),
        };
        Self {
            link,
            now: Instant::ZERO,
            random: Rand64::new(u128::from(seed)),
            busy_until: 0,
            events: BinaryHeap::new(),
            order: 0,
            block: Bytes::from(vec![7; LIST as usize]),
            flows: sources.iter().map(flow).collect(),
        }
    }

    /// Runs the network for `time`. Every flow sends as much as it may.
    pub(crate) fn run(mut self, time: Duration) -> Vec<Outcome> {
        let (half, end) = (Instant::ZERO + time / 2, Instant::ZERO + time);
        self.run_until(half);
        let early: Vec<_> = self.flows.iter().map(|flow| flow.outcome.delivered).collect();
        self.run_until(end);
        let outcome = |(flow, early): (&Flow, u64)| {
            let info = flow.sender.info(end);
            Outcome {
                delivered_late: flow.outcome.delivered - early,
                retransmitted: info.total_retrans,
                timeouts: info.timeouts,
                spurious: flow.outcome.spurious / MSS,
                ..flow.outcome
            }
        };
        self.flows.iter().zip(early).map(outcome).collect()
    }

    fn run_until(&mut self, end: Instant) {
        while let Some(next) = self.next_event_time().filter(|next| *next < end) {
            self.now = self.now.max(next);
            for index in 0..self.flows.len() {
                self.fire_timers(index);
            }
            while let Some(event) = self.events.peek()
                && event.at <= self.now
            {
                let Some(Event { flow, kind, .. }) = self.events.pop() else { break };
                match kind {
                    EventKind::Data { transmit, offset } => self.receive(flow, &transmit, offset),
                    EventKind::Ack(transmit) => self.acknowledge(flow, &transmit),
                }
            }
        }
    }

    fn next_event_time(&self) -> Option<Instant> {
        let timers = self.flows.iter().flat_map(|flow| {
            let start = (flow.source.start >= self.now && flow.sender.send_outstanding() == 0)
                .then_some(flow.source.start);
            [flow.sender.poll_timeout(), flow.receiver.poll_timeout(), start]
        });
        timers.flatten().chain(self.events.peek().map(|event| event.at)).min()
    }

    fn fire_timers(&mut self, index: usize) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let due = |tcp: &Connection| tcp.poll_timeout().is_some_and(|deadline| deadline <= now);
        if due(&flow.receiver) {
            flow.receiver.handle_timeout(now);
            self.send_acks(index);
        }
        let flow = &mut self.flows[index];
        let starts = flow.source.start <= now && flow.sender.send_outstanding() == 0;
        if due(&flow.sender) || starts {
            flow.sender.handle_timeout(now);
            self.send_data(index);
        }
    }

    fn push(&mut self, at: Instant, flow: usize, kind: EventKind) {
        self.order += 1;
        self.events.push(Event { at, order: self.order, flow, kind });
    }

    /// Posts data for the sender, and queues its segments at the bottleneck.
    fn send_data(&mut self, index: usize) {
        let limits =
            TxLimits { gso_payload_max: (self.link.burst_frames() * MSS) as usize, new_data: true };
        loop {
            let flow = &mut self.flows[index];
            while flow.sender.send_room() > 0 {
                let list = NetBufferList::from_mdl(0, self.block.clone());
                flow.sender.post_send(self.now, NblChain::from([list]));
            }
            let Some(transmit) = flow.sender.poll_transmit(self.now, limits) else { break };
            self.enter(index, &transmit);
        }
        while self.flows[index].sender.poll_event().is_some() {}
    }

    /// Splits a GSO packet into frames. Frames received without a gap arrive together.
    fn enter(&mut self, index: usize, transmit: &Transmit) {
        let flow = &self.flows[index];
        let next = flow.received_ranges.next;
        let distance = transmit.seq.distance(CLIENT_ISN + next as u32);
        let offset = next.wrapping_add_signed(i64::from(distance));
        let (mut at, end) = (offset, offset + transmit.payload_len as u64);
        let mut run: Option<(u64, u64, u64)> = None;
        while at < end {
            let to = end.min(at + transmit.mss as u64);
            match self.cross(index, to - at) {
                Some((done, Duration::ZERO)) => {
                    run = Some((run.map_or(at, |(from, ..)| from), to, done));
                }
                Some((done, late)) => {
                    self.arrive(index, transmit, run.take(), Duration::ZERO);
                    self.arrive(index, transmit, Some((at, to, done)), late);
                }
                None => self.arrive(index, transmit, run.take(), Duration::ZERO),
            }
            at = to;
        }
        self.arrive(index, transmit, run, Duration::ZERO);
    }

    /// Returns the time at which a frame leaves the bottleneck, in picoseconds, and its additional delay. `None` if the
    /// frame is lost.
    fn cross(&mut self, index: usize, payload: u64) -> Option<(u64, Duration)> {
        let now = self.now.as_nanos() * 1_000;
        let busy = self.busy_until.max(now);
        let outcome = &mut self.flows[index].outcome;
        if busy - now + self.link.picos(payload) > self.link.queue_picos() {
            outcome.overflowed += 1;
            return None;
        }
        self.busy_until = busy + self.link.picos(payload);
        let mut draw = |parts: u64| parts > 0 && self.random.rand_range(0..PARTS) < parts;
        if draw(self.link.loss) {
            outcome.lost += 1;
            return None;
        }
        if draw(self.link.late) {
            let quarter = self.link.rtt.as_nanos() as u64 / 4;
            let late = self.random.rand_range(1..quarter);
            return Some((self.busy_until, Duration::from_nanos(late)));
        }
        Some((self.busy_until, Duration::ZERO))
    }

    fn arrive(
        &mut self,
        index: usize,
        transmit: &Transmit,
        run: Option<(u64, u64, u64)>,
        late: Duration,
    ) {
        let Some((start, end, done)) = run else { return };
        let at = Instant::from_nanos(done.div_ceil(1_000)) + self.link.rtt / 2 + late;
        let transmit = Transmit {
            seq: CLIENT_ISN + start as u32,
            payload_len: (end - start) as usize,
            ..*transmit
        };
        self.push(at, index, EventKind::Data { transmit, offset: start });
    }

    fn receive(&mut self, index: usize, transmit: &Transmit, offset: u64) {
        let payload = &self.block[..transmit.payload_len];
        let segment = transmit.received(payload);
        let flow = &mut self.flows[index];
        let end = offset + transmit.payload_len as u64;
        flow.outcome.spurious += flow.received_ranges.record(offset, end);
        let received = flow.receiver.handle_segment(self.now, &segment);
        flow.outcome.delivered += received.in_order.len() as u64;
        flow.receiver.settle(&[], false);
        while let Some((data, _)) = flow.receiver.backlog() {
            let count = data.len();
            flow.outcome.delivered += count as u64;
            flow.receiver.backlog_consumed(count);
        }
        self.send_acks(index);
    }

    fn send_acks(&mut self, index: usize) {
        let limits = TxLimits { gso_payload_max: 0, new_data: true };
        while let Some(transmit) = self.flows[index].receiver.poll_transmit(self.now, limits) {
            self.push(self.now + self.link.rtt / 2, index, EventKind::Ack(transmit));
        }
    }

    fn acknowledge(&mut self, index: usize, transmit: &Transmit) {
        let flow = &mut self.flows[index];
        flow.sender.handle_segment(self.now, &transmit.received(&[]));
        flow.sender.settle(&[], false);
        self.send_data(index);
    }
}

fn connection(algorithm: CongestionAlgorithm, local: SeqNum, remote: SeqNum) -> Connection {
    let config = Config {
        congestion: algorithm,
        // Lists are only used to supply data: frames are full.
        push: PushPolicy::QueueEmpty,
        reassembly_gaps_max: 1 << 20,
        ..Config::default()
    };
    let shape =
        Shape { sack: true, timestamps: true, mss: MSS as u16 + 12, scale: SCALE, window: WINDOW };
    let payload = (MSS + 12) as usize;
    Connection::from_state(Instant::ZERO, Box::new(state(shape, local, remote)), payload, config)
        .expect("consistent state")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Verifies the count of spurious retransmissions for all kinds of overlap.
    #[test]
    fn duplicate_bytes_are_counted() {
        let mut received_ranges = ReceivedRanges::default();
        assert_eq!(received_ranges.record(10, 20), 0);
        assert_eq!(received_ranges.record(30, 40), 0);
        assert_eq!(received_ranges.record(5, 35), 15);
        assert_eq!(received_ranges.record(38, 45), 2);
        assert_eq!(received_ranges.record(0, 5), 0);
        assert_eq!((received_ranges.next, received_ranges.ranges.len()), (45, 0));
        assert_eq!(received_ranges.record(0, 50), 45);
    }
}
