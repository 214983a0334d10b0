//! Final phase: the peer conforms to the RFCs, and both streams must complete regardless of the earlier operations.

use offload_engine::{
    tcp::{Ecn, Flags, Segment, SeqNum, Timestamps, TxLimits},
    time::Duration,
};

use super::{AllowedOutcomes, End, GSO_PAYLOAD_MAX, PROGRESS_TIMEOUT_MIN, World, stream::Stream};

/// Time limit of the final phase: backed-off timers, FIN_WAIT_2 and TIME_WAIT.
const TIME_MAX: Duration = Duration::from_secs(1_200);
/// Turn limit of the final phase.
const TURNS_MAX: u32 = 20_000;

/// Full segments that arrive as one, as from a link with receive offload.
const COALESCED: usize = 8;

/// Receive state of the conforming peer.
struct PeerReceiver {
    /// End of the data received in order. Out-of-order data is discarded, even if a forged SACK block has
    /// reported them (RFC 2018 §8 allows that, and the sender must cope).
    next: u64,
    answer: bool,
}

impl World {
    pub(super) fn run_conforming_peer(&mut self) {
        let started = self.now;
        let mut receiver = PeerReceiver { next: self.una, answer: true };
        let silent_since = receiver.next;
        self.allowed_outcomes = AllowedOutcomes::default();
        // All retransmissions may have been spent while the peer was silent.
        let spent = self.now - self.progress_at >= PROGRESS_TIMEOUT_MIN;
        self.resume();
        self.disconnect(0);
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "traffic does not stop: {:?}", self.info());
            assert!(self.now - started < TIME_MAX, "a stall: {:?}", self.info());
            self.tick();
            let is_sent = self.poll_connection(&mut receiver);
            let is_answered = self.run_peer(&mut receiver);
            self.drain_events();
            self.check_quiet();
            if self.end.is_some() {
                break;
            }
            if !is_sent && !is_answered {
                self.check_timers();
                let deadline = self.tcp.poll_timeout().expect("an open connection has a timer");
                self.now = self.now.max(deadline);
            }
            if self.tcp.poll_timeout().is_some_and(|deadline| deadline <= self.now) {
                self.allowed_outcomes.timeout = spent && receiver.next == silent_since;
                self.tcp.handle_timeout(self.now);
            }
        }
        if self.end == Some(End::Upload) {
            return;
        }
        assert_eq!(receiver.next, self.requests.end(), "the sent stream is incomplete");
        assert_eq!(self.delivered, self.highest, "the peer's stream is incomplete");
        assert!(self.peer_closed && self.requests.is_closed_gracefully());
    }

    /// Polls the connection. True if it sent a segment.
    fn poll_connection(&mut self, receiver: &mut PeerReceiver) -> bool {
        let mut is_sent = false;
        let limits = TxLimits { gso_payload_max: GSO_PAYLOAD_MAX, new_data: true };
        while let Some(transmit) = self.tcp.poll_transmit(self.now, limits) {
            is_sent = true;
            self.check_transmit(&transmit, GSO_PAYLOAD_MAX);
            let from = SeqNum(self.setup.local_isn) + receiver.next as u32;
            let ahead = i64::from(transmit.seq.distance(from));
            let fin = transmit.flags.contains(Flags::FIN);
            let len = transmit.payload_len as i64 + i64::from(fin);
            if ahead <= 0 && ahead + len > 0 {
                receiver.next += (ahead + len).cast_unsigned();
            }
            // A conforming peer acknowledges data, and segments before its window.
            receiver.answer |= len > 0 || ahead < 0;
        }
        is_sent
    }

    /// Runs the peer's turn: missing data that no SACK block has covered, then a FIN, then acknowledgments.
    fn run_peer(&mut self, receiver: &mut PeerReceiver) -> bool {
        let nxt = self.rcv_nxt();
        let fin = self.fin_reached();
        let gap = self.sacked.first_gap(nxt, self.highest.min(self.edge)).filter(|_| !fin);
        if let Some((start, end)) = gap {
            let end = end.min(start + (COALESCED * self.mss()) as u64);
            self.send_segment(receiver, start, end, false);
        } else if !fin && nxt >= self.highest {
            // All data has arrived: the stream ends here.
            self.fin = Some(self.highest);
            self.send_segment(receiver, self.highest, self.highest, true);
        } else if core::mem::take(&mut receiver.answer) {
            let end = self.highest + u64::from(fin);
            self.send_segment(receiver, end, end, false);
        } else {
            return false;
        }
        true
    }

    fn send_segment(&mut self, receiver: &mut PeerReceiver, start: u64, end: u64, fin: bool) {
        receiver.answer = false;
        self.sent.insert(start, end);
        let mut payload = Vec::new();
        Stream::Theirs.write(start, end - start, &mut payload);
        let value = self.peer_clock();
        self.stamps.insert(value);
        let echo = self.our_stamp.unwrap_or(0);
        let flags = if fin { Flags::ACK | Flags::FIN } else { Flags::ACK };
        let segment = Segment {
            seq: SeqNum(self.setup.remote_isn) + start as u32,
            ack: SeqNum(self.setup.local_isn) + receiver.next as u32,
            flags,
            window: u16::MAX,
            timestamps: self.setup.timestamps.then_some(Timestamps { value, echo }),
            sack: &[],
            payload: &payload,
            gso_size: if payload.len() > self.mss() { self.mss() } else { 0 },
            ecn: Ecn::default(),
        };
        self.feed(&segment);
        self.drain_events();
        self.wnd = self.info().snd_wnd;
        self.check_quiet();
    }
}
