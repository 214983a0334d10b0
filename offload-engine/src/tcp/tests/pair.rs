//! A sender and a receiver, connected by links that delay and may drop.

use alloc::collections::VecDeque;

use oorandom::Rand64;

use super::*;
use crate::memory::to_vec;

/// Window scale of both sides, for windows up to 8 MiB.
const SCALE: u8 = 7;

/// A sender, a receiver, and the links between them.
pub(super) struct Pair {
    pub(super) now: Instant,
    delay: Duration,
    pub(super) sender: Connection,
    pub(super) receiver: Connection,
    /// Limits of a transmission; the link carries each segment of it separately.
    pub(super) limits: TxLimits,
    /// Drop rate of both links in frames per 1,000, and its random generator.
    pub(super) loss: Option<(u64, Rand64)>,
    /// Link to the receiver and link to the sender.
    wires: [VecDeque<(Instant, Transmit, Vec<u8>)>; 2],
    /// Payload bytes of each data segment, as sent.
    pub(super) sizes: Vec<usize>,
    pub(super) received: usize,
    /// True if the consumer takes all data at once.
    pub(super) auto_consume: bool,
}

pub(super) fn pair(
    delay: Duration,
    timestamps: bool,
    change: impl Fn(&mut TcpState, &mut Config),
) -> Pair {
    let end = |swap: bool| {
        let mut state = state();
        let tcp = &mut state.tcp;
        tcp.constant.sack_enabled = true;
        tcp.constant.timestamp_enabled = timestamps;
        tcp.constant.window_scaling_enabled = true;
        (tcp.constant.snd_wind_scale, tcp.constant.rcv_wind_scale) = (SCALE, SCALE);
        tcp.cached.initial_rcv_wnd = 256 * 1024;
        let mut config = Config { congestion: CongestionAlgorithm::Unlimited, ..Config::default() };
        change(tcp, &mut config);
        if swap {
            let delegated = &mut tcp.delegated;
            core::mem::swap(&mut delegated.rcv_nxt, &mut delegated.snd_una);
            delegated.snd_nxt = delegated.snd_una;
            delegated.snd_max = delegated.snd_una;
            delegated.snd_wl1 = delegated.rcv_nxt;
        }
        Connection::from_state(Instant::from_millis(1), state, PATH_PAYLOAD, config)
            .expect("a valid state")
    };
    Pair {
        now: Instant::from_millis(1),
        delay,
        sender: end(false),
        receiver: end(true),
        limits: WIRE,
        loss: None,
        wires: [VecDeque::new(), VecDeque::new()],
        sizes: vec![],
        received: 0,
        auto_consume: true,
    }
}

impl Pair {
    pub(super) fn post(&mut self, bytes: usize) {
        let list = NetBufferList::from_mdl(0, Bytes::from(vec![7; bytes]));
        self.sender.post_send(self.now, NblChain::from([list]));
    }

    /// Sends all segments of both ends.
    pub(super) fn transmit(&mut self) {
        let at = self.now + self.delay;
        for (end, wire) in [&mut self.sender, &mut self.receiver].into_iter().zip(&mut self.wires) {
            while let Some(transmit) = end.poll_transmit(self.now, self.limits) {
                let payload = to_vec(end.payload(&transmit));
                let mut seq = transmit.seq;
                let mut send = |piece: &[u8]| {
                    let lost = |(per_mille, random): &mut (u64, Rand64)| {
                        random.rand_range(0..1_000) < *per_mille
                    };
                    if !self.loss.as_mut().is_some_and(lost) {
                        wire.push_back((at, Transmit { seq, ..transmit }, piece.to_vec()));
                    }
                    seq += piece.len() as u32;
                };
                if payload.is_empty() {
                    send(&[]);
                }
                for piece in payload.chunks(transmit.mss) {
                    self.sizes.push(piece.len());
                    send(piece);
                }
            }
            while end.poll_event().is_some() {}
        }
    }

    /// Time of the next arrival or timer.
    pub(super) fn next(&self) -> Option<Instant> {
        let wires = self.wires.iter().filter_map(|wire| wire.front().map(|frame| frame.0));
        let timers = [self.sender.poll_timeout(), self.receiver.poll_timeout()];
        wires.chain(timers.into_iter().flatten()).min()
    }

    /// Advances to `now`, and processes timers and arrivals.
    pub(super) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.sender.handle_timeout(self.now);
        self.receiver.handle_timeout(self.now);
        for index in 0..2 {
            while self.wires[index].front().is_some_and(|frame| frame.0 <= self.now) {
                let Some((_, transmit, payload)) = self.wires[index].pop_front() else { break };
                self.arrive(index, &transmit, &payload);
            }
        }
    }

    fn arrive(&mut self, index: usize, transmit: &Transmit, payload: &[u8]) {
        let segment = transmit.received(payload);
        let end = if index == 0 { &mut self.receiver } else { &mut self.sender };
        let edge = end.receiver.edge();
        let range = end.handle_segment(self.now, &segment).in_order;
        assert!(end.receiver.edge() >= edge, "P9");
        if self.auto_consume {
            self.received += range.len();
            end.settle(&[], false);
            while let Some(count) = end.backlog().map(|(data, _)| data.len()) {
                self.received += count;
                end.backlog_consumed(count);
            }
        } else {
            end.settle(&payload[range], false);
        }
    }

    /// Runs until `end`.
    pub(super) fn run_until(&mut self, end: Instant) {
        self.transmit();
        while let Some(next) = self.next().filter(|at| *at < end) {
            self.advance(next);
            self.transmit();
        }
        self.advance(end);
    }

    /// Sends `bytes` and runs until they are received; returns the time taken.
    pub(super) fn transfer(&mut self, bytes: usize) -> Duration {
        self.post(bytes);
        self.until_received(bytes, |_| {})
    }

    /// Runs until `bytes` more are received; calls `act` before each transmission.
    pub(super) fn until_received(
        &mut self,
        bytes: usize,
        mut act: impl FnMut(&mut Self),
    ) -> Duration {
        let (begin, goal) = (self.now, self.received + bytes);
        while self.received < goal {
            act(self);
            self.transmit();
            let next = self.next().expect("a frame or a timer is pending");
            self.advance(next);
        }
        self.now - begin
    }

    pub(super) fn rcv_space(&self) -> usize {
        self.receiver.info(self.now).rcv_space as usize
    }
}
