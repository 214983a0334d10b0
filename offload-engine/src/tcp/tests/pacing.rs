//! Pacing of whole connections, in virtual time: bursts, rate, and segments that are not paced.

use alloc::collections::VecDeque;

use super::*;

const MSS: u32 = 1460;

/// A sender, and a peer that acknowledges each segment after an RTT.
struct PacedPath {
    bench: Bench,
    rtt: Duration,
    limits: TxLimits,
    acks: VecDeque<(Instant, u32)>,
    /// Transmission times and bytes.
    bursts: Vec<(Instant, usize)>,
}

impl PacedPath {
    fn new(segments: u32, rtt: Duration, limits: TxLimits, pacing: bool) -> Self {
        let mut state = state();
        let delegated = &mut state.tcp.delegated;
        delegated.cwnd = segments * MSS;
        delegated.ss_thresh = 2 * MSS;
        delegated.srtt = 8 * rtt.as_millis() as u16;
        delegated.snd_wnd = 1 << 30;
        state.tcp.constant.window_scaling_enabled = true;
        state.tcp.constant.snd_wind_scale = 14;
        let mut config = Config { congestion: CongestionAlgorithm::NewReno, ..Config::default() };
        config.congestion_options.pacing = pacing;
        let bench = Bench::with(state, config);
        Self { bench, rtt, limits, acks: VecDeque::new(), bursts: Vec::new() }
    }

    /// Sends `bytes` for `time`; returns the bytes acknowledged.
    fn run(&mut self, bytes: usize, time: Duration) -> u64 {
        self.bench.post(bytes);
        let end = self.bench.now + time;
        loop {
            self.send();
            let arrival = self.acks.front().map(|(at, _)| *at);
            let next = [arrival, self.bench.tcp.poll_timeout()].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next < end) else { break };
            self.bench.now = self.bench.now.max(next);
            while let Some((at, ack)) = self.acks.front().copied()
                && at <= self.bench.now
            {
                self.acks.pop_front();
                self.bench.input(Segment { ack: LOCAL + ack, window: 60_000, ..super::ack() });
            }
            self.bench.tcp.handle_timeout(self.bench.now);
            self.bench.events();
        }
        self.bench.tcp.info(self.bench.now).bytes_acked
    }

    fn send(&mut self) {
        for transmit in self.bench.transmit(self.limits) {
            let now = self.bench.now;
            match self.bursts.last_mut() {
                Some((at, bytes)) if *at == now => *bytes += transmit.payload_len,
                _ => self.bursts.push((now, transmit.payload_len)),
            }
            let end = transmit.seq.distance(LOCAL).cast_unsigned() + transmit.payload_len as u32;
            self.acks.push_back((now + self.rtt, end));
        }
    }

    fn largest_burst(&self) -> usize {
        self.bursts.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default()
    }
}

const RTT: Duration = Duration::from_millis(10);

// A burst is one millisecond of data at 1.2 windows per RTT, not the whole window; configurable.
#[test]
fn bursts_are_limited_to_quantum() {
    for limits in [WIRE, GSO] {
        let mut path = PacedPath::new(100, RTT, limits, true);
        path.run(10_000_000, Duration::from_secs(1));
        let info = path.bench.tcp.info(path.bench.now);
        let rate = info.pacing_rate.expect("pacing is on");
        assert_eq!(rate, info.snd_cwnd * 120 / info.rtt.unwrap().as_millis() as u64 * 10);
        assert!(path.largest_burst() as u64 <= rate / 1_000, "{}", path.largest_burst());
        assert!(path.largest_burst() >= 8 * MSS as usize, "{}", path.largest_burst());
        let mut unpaced = PacedPath::new(100, RTT, limits, false);
        unpaced.run(10_000_000, Duration::from_secs(1));
        assert_eq!(unpaced.bursts[0].1, 100 * MSS as usize);
        assert_eq!(unpaced.bench.tcp.info(unpaced.bench.now).pacing_rate, None);
    }
}

// The window limits a long transfer, not the pacer.
#[test]
fn paced_transfer_uses_window_per_rtt() {
    for limits in [WIRE, GSO] {
        for segments in [1, 2, 3, 10, 100] {
            let acked = |pacing| {
                let mut path = PacedPath::new(segments, RTT, limits, pacing);
                path.run(50_000_000, Duration::from_secs(2))
            };
            let (paced, unpaced) = (acked(true), acked(false));
            assert!(paced * 100 >= unpaced * 95, "{segments}: {paced} of {unpaced}");
        }
    }
}

// RFC 6298: the timer measures the path, not the pacer; on a path of 2 s, with the minimum window.
#[test]
fn pacing_causes_no_timeout() {
    for segments in [1, 2, 20] {
        let mut path = PacedPath::new(segments, Duration::from_secs(2), WIRE, true);
        path.run(400_000, Duration::from_secs(100));
        let info = path.bench.tcp.info(path.bench.now);
        assert_eq!((info.timeouts, info.total_retrans), (0, 0), "{segments}");
        assert_eq!(info.bytes_acked, 400_000, "{segments}");
    }
}

// The retransmission of a timeout, and the first of fast recovery, are sent immediately; the rest is paced.
#[test]
fn first_retransmission_is_not_paced() {
    let mut path = PacedPath::new(10, Duration::from_secs(1), WIRE, true);
    path.bench.post(100 * MSS as usize);
    path.send();
    assert_eq!(path.largest_burst(), 2 * MSS as usize);
    for _ in 0..3 {
        path.bench.wait_for_timer();
        path.send();
    }
    assert_eq!(path.acks.len(), 8);
    // The first one changes the window and is not a duplicate ACK.
    for _ in 0..4 {
        path.bench.input(Segment { window: 60_000, ..ack() });
    }
    let again = path.bench.transmit(WIRE);
    assert_eq!((again.len(), again[0].seq, again[0].retransmission), (1, LOCAL, true));

    let mut path = PacedPath::new(10, Duration::from_secs(1), WIRE, true);
    path.bench.post(100 * MSS as usize);
    path.send();
    while path.bench.tcp.info(path.bench.now).timeouts == 0 {
        path.bench.wait_for_timer();
        if path.bench.tcp.info(path.bench.now).timeouts == 0 {
            path.send();
        }
    }
    let again = path.bench.transmit(WIRE);
    assert_eq!((again.len(), again[0].seq, again[0].retransmission), (1, LOCAL, true));
}

// ACKs are not paced.
#[test]
fn acknowledgments_are_not_paced() {
    let mut path = PacedPath::new(10, Duration::from_secs(1), WIRE, true);
    path.bench.post(100 * MSS as usize);
    path.send();
    path.bench.input(data(0, b"x"));
    path.bench.input(data(1, b"y"));
    let sent = path.bench.transmit(WIRE);
    assert_eq!((sent.len(), sent[0].payload_len), (1, 0));
}
