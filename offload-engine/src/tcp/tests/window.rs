//! The receive window between two ends: how it grows, and that it never grows silly.

use alloc::collections::VecDeque;

use super::*;
use crate::memory::to_vec;

/// Scale of both windows: up to 8 MiB.
const SCALE: u8 = 7;
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// A sender, a receiver, and the time between them.
struct Pair {
    now: Instant,
    delay: Duration,
    sender: Connection,
    receiver: Connection,
    /// To the receiver and to the sender.
    wires: [VecDeque<(Instant, Transmit, Vec<u8>)>; 2],
    /// Payload bytes of each data segment, as sent.
    sizes: Vec<usize>,
    received: usize,
    /// The consumer takes all it is given.
    greedy: bool,
}

fn pair(delay: Duration, timestamps: bool, change: impl Fn(&mut TcpState, &mut Config)) -> Pair {
    let end = |swap: bool| {
        let mut state = state();
        let tcp = &mut state.tcp;
        tcp.constant.sack_enabled = true;
        tcp.constant.timestamp_enabled = timestamps;
        tcp.constant.window_scaling_enabled = true;
        (tcp.constant.snd_wind_scale, tcp.constant.rcv_wind_scale) = (SCALE, SCALE);
        tcp.cached.initial_rcv_wnd = 256 * KIB as u32;
        let mut config = Config { congestion: CongestionAlgorithm::Unlimited, ..Config::default() };
        change(tcp, &mut config);
        if swap {
            let delegated = &mut tcp.delegated;
            core::mem::swap(&mut delegated.rcv_nxt, &mut delegated.snd_una);
            delegated.snd_nxt = delegated.snd_una;
            delegated.snd_max = delegated.snd_una;
            delegated.snd_wl1 = delegated.rcv_nxt;
        }
        Connection::from_state(Instant::from_millis(1), state, PATH_PAYLOAD, config).expect("good")
    };
    Pair {
        now: Instant::from_millis(1),
        delay,
        sender: end(false),
        receiver: end(true),
        wires: [VecDeque::new(), VecDeque::new()],
        sizes: vec![],
        received: 0,
        greedy: true,
    }
}

impl Pair {
    fn post(&mut self, bytes: usize) {
        let list = NetBufferList::from_mdl(0, Bytes::from(vec![7; bytes]));
        self.sender.post_send(self.now, NblChain::from([list]));
    }

    /// Everything that both ends send now.
    fn transmit(&mut self) {
        let at = self.now + self.delay;
        for (end, wire) in [&mut self.sender, &mut self.receiver].into_iter().zip(&mut self.wires) {
            while let Some(transmit) = end.poll_transmit(self.now, WIRE) {
                let payload = to_vec(end.payload(&transmit));
                if !payload.is_empty() {
                    self.sizes.push(payload.len());
                }
                wire.push_back((at, transmit, payload));
            }
            while end.poll_event().is_some() {}
        }
    }

    /// When something happens next.
    fn next(&self) -> Option<Instant> {
        let wires = self.wires.iter().filter_map(|wire| wire.front().map(|frame| frame.0));
        let timers = [self.sender.poll_timeout(), self.receiver.poll_timeout()];
        wires.chain(timers.into_iter().flatten()).min()
    }

    /// Goes on to `now`, and takes what has arrived by then.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        for index in 0..2 {
            while self.wires[index].front().is_some_and(|frame| frame.0 <= self.now) {
                let Some((_, transmit, payload)) = self.wires[index].pop_front() else { break };
                self.arrive(index, &transmit, &payload);
            }
        }
        self.sender.handle_timeout(self.now);
        self.receiver.handle_timeout(self.now);
    }

    fn arrive(&mut self, index: usize, transmit: &Transmit, payload: &[u8]) {
        let segment = transmit.received(payload);
        let end = if index == 0 { &mut self.receiver } else { &mut self.sender };
        let edge = end.receiver.edge();
        let range = end.handle_segment(self.now, &segment).in_order;
        assert!(end.receiver.edge() >= edge, "P9");
        if self.greedy {
            self.received += range.len();
            end.settle(&[], false);
        } else {
            end.settle(&payload[range], false);
        }
    }

    /// Whatever happens until `end`.
    fn run_until(&mut self, end: Instant) {
        self.transmit();
        while let Some(next) = self.next().filter(|at| *at < end) {
            self.advance(next);
            self.transmit();
        }
        self.advance(end);
    }

    /// Sends `bytes` and waits until they are received; returns how long it took.
    fn transfer(&mut self, bytes: usize) -> Duration {
        let (begin, goal) = (self.now, self.received + bytes);
        self.post(bytes);
        while self.received < goal {
            self.transmit();
            let next = self.next().expect("something is under way");
            self.advance(next);
        }
        self.now - begin
    }

    fn rcv_space(&self) -> usize {
        self.receiver.info(self.now).rcv_space as usize
    }
}

// RFC 9293 s3.8.6: the window follows what the path carries in a round trip, with and without timestamps, up
// to the limit; switched off it stays. 24 MiB over 40 ms are 96 windows of 256 KiB, or few that grow.
#[test]
fn the_window_grows_with_the_path() {
    let delay = Duration::from_millis(20);
    for timestamps in [true, false] {
        let mut grows = pair(delay, timestamps, |_, _| {});
        let time = grows.transfer(24 * MIB);
        assert_eq!(grows.rcv_space(), 4 * MIB);
        assert!(time < Duration::from_millis(500), "{time:?}");
        assert_eq!(grows.sender.info(grows.now).total_retrans, 0);
        assert_eq!(grows.sender.info(grows.now).snd_wnd, 4 * MIB as u64);
        let rtt = grows.receiver.info(grows.now).rcv_rtt.expect("measured");
        assert!((40..=44).contains(&rtt.as_millis()), "{rtt:?}");

        let mut off = pair(delay, timestamps, |_, config| config.rcv_wnd_max = 0);
        let time = off.transfer(24 * MIB);
        assert_eq!(off.rcv_space(), 256 * KIB);
        assert!(time > Duration::from_millis(95 * 40), "{time:?}");
    }
}

// RFC 7323 s2.2: the scale bounds what can be told, whatever the limit says.
#[test]
fn the_scale_bounds_the_window() {
    let mut pair = pair(Duration::from_millis(20), true, |tcp, _| {
        (tcp.constant.snd_wind_scale, tcp.constant.rcv_wind_scale) = (3, 3);
    });
    pair.transfer(24 * MIB);
    assert_eq!(pair.rcv_space(), 65_535 << 3);
}

// CH-UPD-5: InitialRcvWnd that the host sets is honoured, and ends the growth, as SO_RCVBUF does in Linux.
#[test]
fn the_host_has_the_last_word() {
    let mut pair = pair(Duration::from_millis(20), true, |_, _| {});
    pair.transfer(2 * MIB);
    let grown = pair.rcv_space();
    assert!(grown > 512 * KIB, "{grown}");
    let cached = TcpCached { initial_rcv_wnd: 512 * KIB as u32, ..pair.receiver.cached };
    pair.receiver.set_cached(pair.now, cached);
    pair.transfer(24 * MIB);
    assert_eq!(pair.rcv_space(), 512 * KIB);
    assert_eq!(pair.sender.info(pair.now).snd_wnd, 512 * KIB as u64);
}

// A consumer that takes a window at once, but seldom, has no use for a larger one.
#[test]
fn a_consumer_that_lags_gets_no_larger_window() {
    let mut pair = pair(Duration::from_millis(1), true, |_, _| {});
    pair.greedy = false;
    pair.post(8 * MIB);
    for second in 1..30 {
        pair.run_until(Instant::from_millis(1000 * second));
        while let Some(count) = pair.receiver.backlog().map(|(data, _)| data.len()) {
            pair.receiver.backlog_consumed(count);
            pair.received += count;
        }
    }
    assert!(pair.received > 6 * MIB, "{}", pair.received);
    assert_eq!(pair.rcv_space(), 256 * KIB);
}

// RFC 9293 s3.8.6.2, RFC 813: a consumer that takes 100 bytes at a time makes no small segments.
#[test]
fn a_sawtooth_reader_makes_no_small_segments() {
    for nagle in [false, true] {
        let mut pair = pair(Duration::from_micros(50), false, |tcp, config| {
            tcp.cached.initial_rcv_wnd = 20_000;
            tcp.cached.nagling_enabled = nagle;
            config.rcv_wnd_max = 0;
        });
        pair.greedy = false;
        pair.post(60 * 1460);
        let mut taken = 0;
        while taken < 60 * 1460 {
            pair.run_until(pair.now + Duration::from_micros(200));
            if let Some((data, _)) = pair.receiver.backlog() {
                let count = data.len().min(100);
                taken += count;
                pair.receiver.backlog_consumed(count);
            }
        }
        // Once the peer's first window of 60,000 bytes, of which 20,000 are meant, is used up.
        assert_eq!(pair.sizes, vec![1460; 60]);
        let acks = pair.receiver.info(pair.now).segs_out;
        assert!(acks < 60, "{acks}");
    }
}

// RFC 9293 s3.8.6: a retransmission of the peer's that acknowledges more brings the window for it. That of a later
// segment, told for less, does not move on: its right edge would.
#[test]
fn the_window_belongs_to_its_acknowledgement() {
    let mut bench = Bench::new(state());
    bench.post(3_000);
    bench.sent();
    bench.input(Segment { ack: LOCAL + 1_000, window: 2_000, ..data(1_000, &[7; 10]) });
    bench.input(Segment { ack: LOCAL + 2_000, window: 1_000, ..data(0, &[7; 1_000]) });
    bench.post(3_000);
    assert_eq!(bench.tcp.info(bench.now).snd_wnd, 1_000);
    assert_eq!(
        bench.sent().iter().map(|(offset, len, _)| *offset as usize + len).max(),
        Some(3_000)
    );
    // Later bytes, but older news.
    bench.input(Segment { ack: LOCAL + 1_500, window: 30_000, ..data(1_010, &[7; 10]) });
    assert_eq!(bench.tcp.info(bench.now).snd_wnd, 1_000);
}
