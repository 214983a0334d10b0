//! Forged segment: its offsets, its legality, and the state that it may change.

use offload_engine::{
    tcp::{Ecn, Flags, SackBlock, Segment, SeqNum, TcpPhase, Timestamps},
    time::Duration,
};

use super::{AllowedOutcomes, World, stream::Stream};
use crate::script::{AckFrom, Forged, SeqFrom, Stamp};

/// Payload bytes of the largest segment, coalesced segments included.
const PAYLOAD_MAX: u16 = 60_000;
/// Jump of the peer's clock, in milliseconds: short enough that earlier timestamps stay old.
const JUMP: u32 = 1 << 29;

/// Treatment of a segment's text and acknowledgment according to the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// Both must be processed.
    Take,
    /// Either may be processed: the rules allow both, or depend on state that the model does not track.
    Ambiguous,
    /// Neither may be processed.
    Never,
}

/// Segment with resolved offsets, which may be before the start of the stream.
#[derive(Clone, Copy, Debug)]
struct Placed {
    start: i64,
    end: i64,
    ack: i64,
    flags: Flags,
    stamp: Stamp,
    window: u16,
}

fn wrapped(origin: u64, offset: i64) -> i64 {
    // The wire carries 32 bits; the offset is the one nearest to the origin.
    origin.cast_signed() + i64::from((offset - origin.cast_signed()) as i32)
}

impl World {
    pub(super) fn forge(&mut self, forged: Forged) {
        let mut placed = self.place(&forged);
        let verdict = self.judge(&placed);
        self.place_fin(&mut placed, verdict);
        let timestamps = self.stamp(&forged, verdict);
        let payload = self.text(&placed, verdict);
        let blocks = self.blocks(&forged);
        let mss = self.mss();
        let segment = Segment {
            seq: SeqNum(self.setup.remote_isn) + placed.start as u32,
            ack: SeqNum(self.setup.local_isn) + placed.ack as u32,
            flags: placed.flags,
            window: forged.window,
            timestamps,
            sack: &blocks,
            payload: &payload,
            gso_size: if payload.len() > mss { mss } else { 0 },
            ecn: Ecn::from_bits(forged.ecn),
        };
        let reset =
            placed.flags.contains(Flags::RST) && placed.start == self.rcv_nxt().cast_signed();
        self.allowed_outcomes = AllowedOutcomes {
            reset,
            urgent: placed.flags.contains(Flags::URG) && verdict != Verdict::Never,
            timeout: false,
        };
        self.marked |= verdict != Verdict::Never && forged.ecn == 3 && !payload.is_empty();
        self.summary.segments += 1;
        self.summary.dropped += u64::from(verdict == Verdict::Never);
        let before = self.rcv_nxt();
        self.feed(&segment);
        let upload = segment.flags.contains(Flags::URG) && verdict == Verdict::Take;
        self.drain_events();
        // In TIME_WAIT an RST ends the connection without an event (RFC 9293 §3.10.7.4, second).
        let closed = self.info().phase == TcpPhase::Closed;
        assert!(!reset || closed, "a RST at RCV.NXT was ignored (RFC 5961 §3.2)");
        assert!(!upload || self.end.is_some(), "urgent data was ignored (CH-EVT-1)");
        if self.end.is_none() {
            self.check_received(&placed, verdict, before);
            self.check_acknowledged(&placed, verdict);
        }
    }

    /// Passes a segment to the connection as a link does.
    pub(super) fn feed(&mut self, segment: &Segment<'_>) {
        let waiting = self.tcp.backlog().is_some() || self.tcp.receive_blocked();
        let received = self.tcp.handle_segment(self.now, segment);
        let fresh = &segment.payload[received.in_order];
        let taken = if waiting || fresh.is_empty() { 0 } else { self.offer(fresh) };
        self.tcp.settle(&fresh[taken..], received.push);
        self.take_backlog();
    }

    fn place(&self, forged: &Forged) -> Placed {
        let (nxt, edge) = (self.rcv_nxt(), self.edge);
        let origin = match forged.seq_from {
            SeqFrom::Next => nxt,
            SeqFrom::Edge => edge,
            SeqFrom::Highest => self.highest,
            SeqFrom::Anywhere => 0,
        };
        let mut start = wrapped(nxt, origin.cast_signed() + i64::from(forged.seq));
        if let Some(fin) = self.fin
            && start > fin.cast_signed() + 1
            && start <= edge.cast_signed()
        {
            // A peer that has ended its stream uses no offset after the end: the window advertised there would
            // count forever (RFC 9293 §3.10.7.4, SND.WL1).
            start = fin.cast_signed() + 1;
        }
        let flight = self.snd_max - self.una;
        let ack = match forged.ack_from {
            AckFrom::Una => self.una.cast_signed() + i64::from(forged.ack),
            AckFrom::Max => self.snd_max.cast_signed() + i64::from(forged.ack),
            AckFrom::Between => {
                (self.una + (flight * u64::from(forged.ack as u16)).div_ceil(65_535)).cast_signed()
            }
            AckFrom::Anywhere => i64::from(forged.ack),
        };
        Placed {
            start,
            end: start + i64::from(forged.len.min(PAYLOAD_MAX)),
            ack: wrapped(self.una, ack),
            flags: Flags(forged.flags),
            stamp: forged.stamp,
            window: forged.window,
        }
    }

    /// Treatment by RFC 9293 §3.10.7.4, RFC 5961 §5.2, RFC 7323 §5.3.
    fn judge(&self, placed: &Placed) -> Verdict {
        let Placed { start, end, ack, flags, stamp, window: _ } = *placed;
        let (nxt, edge) = (self.rcv_nxt().cast_signed(), self.edge.cast_signed());
        let (una, max) = (self.una.cast_signed(), self.snd_max.cast_signed());
        let control = flags.contains(Flags::RST) || flags.contains(Flags::SYN);
        let phase = self.info().phase;
        // Closed, and only data that the consumer has not accepted yet remains.
        if phase == TcpPhase::Closed
            || control
            || !flags.contains(Flags::ACK)
            || ack > max
            || start > edge
        {
            return Verdict::Never;
        }
        if self.setup.timestamps && stamp == Stamp::Ancient {
            return Verdict::Never;
        }
        if una - ack > self.wnd_max.cast_signed() {
            return Verdict::Never;
        }
        let stale = if end > start { end <= nxt } else { start < nxt };
        let odd = self.setup.timestamps && matches!(stamp, Stamp::Absent | Stamp::Late);
        let over = phase == TcpPhase::TimeWait;
        // The right edge is outside the window, but it is SND.NXT of a conforming peer that has filled the window.
        if stale || odd || over || ack < una || start == edge && start != nxt {
            return Verdict::Ambiguous;
        }
        if start == edge && end > start {
            return Verdict::Ambiguous;
        }
        Verdict::Take
    }

    /// Makes a FIN that may count the end of the stream; removes it otherwise.
    fn place_fin(&mut self, placed: &mut Placed, verdict: Verdict) {
        if !placed.flags.contains(Flags::FIN) || verdict == Verdict::Never {
            return;
        }
        let at = placed.end.max(0).cast_unsigned();
        let repeated = placed.end >= 0 && self.fin == Some(at);
        let first =
            verdict == Verdict::Take && self.fin.is_none() && at >= self.highest && at < self.edge;
        // After the edge it does not count (RFC 9293 §3.10.7.4, first), and is retransmitted.
        let outside = verdict == Verdict::Take && at > self.edge;
        if first {
            self.fin = Some(at);
        } else if !repeated && !outside {
            placed.flags = Flags(placed.flags.0 & !Flags::FIN.0);
        }
    }

    fn stamp(&mut self, forged: &Forged, verdict: Verdict) -> Option<Timestamps> {
        if !self.setup.timestamps {
            // Not negotiated: must be ignored (RFC 7323 §3.2).
            return (forged.stamp == Stamp::Late).then_some(Timestamps { value: 1, echo: 1 });
        }
        if forged.stamp == Stamp::Ahead && !self.jumped && verdict != Verdict::Never {
            self.jumped = true;
            self.clock = self.clock.wrapping_add(JUMP);
        }
        let current = self.peer_clock();
        let value = match forged.stamp {
            Stamp::Absent => return None,
            Stamp::Current | Stamp::Ahead => current,
            Stamp::Ancient => current.wrapping_sub(1 << 30),
            Stamp::Late => current.wrapping_sub(3),
        };
        if verdict != Verdict::Never {
            self.stamps.insert(value);
        }
        let echo = self.our_stamp.unwrap_or(0).wrapping_add_signed(i32::from(forged.echo));
        Some(Timestamps { value, echo })
    }

    /// Timestamp clock of the peer.
    pub(super) fn peer_clock(&self) -> u32 {
        self.clock.wrapping_add(self.now.as_millis() as u32)
    }

    /// Payload: true bytes if they may count, false bytes if they must not.
    fn text(&mut self, placed: &Placed, verdict: Verdict) -> Vec<u8> {
        let limit = self.fin.map_or(self.edge, |fin| fin.min(self.edge));
        let (from, to) = (self.rcv_nxt().cast_signed(), limit.cast_signed());
        let counts = verdict != Verdict::Never;
        let (low, high) = (placed.start.max(from), placed.end.min(to));
        if counts && low <= to {
            self.sent.insert(low.cast_unsigned(), high.max(low).cast_unsigned());
            self.highest = self.highest.max(low.max(high).cast_unsigned());
        }
        let mut text = Vec::new();
        // Before the start of the stream, any bytes are false.
        let before = placed.end.min(0) - placed.start.min(0);
        text.resize(before as usize, 0x55);
        let start = placed.start.max(0).cast_unsigned();
        Stream::Theirs.write(start, placed.end.max(0).cast_unsigned() - start, &mut text);
        for (at, value) in (placed.start..).zip(&mut text) {
            if !(counts && (low..high).contains(&at)) {
                *value = !*value;
            }
        }
        text
    }

    fn blocks(&self, forged: &Forged) -> Vec<SackBlock> {
        let [first, len, step] = forged.block.map(i32::from);
        let origin = SeqNum(self.setup.local_isn) + self.una as u32;
        let at = |offset: i32| SeqNum(origin.0.wrapping_add_signed(offset));
        let block =
            |n: i32| SackBlock { start: at(first + n * step), end: at(first + n * step + len) };
        (0..i32::from(forged.blocks.min(4))).map(block).collect()
    }

    /// Asserts that in-order text of an acceptable segment is accepted (RFC 9293 §3.10.7.4, seventh).
    fn check_received(&mut self, placed: &Placed, verdict: Verdict, before: u64) {
        let nxt = self.rcv_nxt();
        assert!(nxt >= before, "RCV.NXT moves back");
        let limit = self.fin.map_or(self.edge, |fin| fin.min(self.edge));
        let text_end = placed.end.min(limit.cast_signed());
        if verdict == Verdict::Never {
            assert_eq!(nxt, before, "a segment that must be dropped moves RCV.NXT");
        }
        if verdict == Verdict::Take && placed.start <= before.cast_signed() {
            assert!(nxt.cast_signed() >= text_end, "in-order data was not accepted: {placed:?}");
        }
        let received = nxt - u64::from(self.fin_reached());
        assert!(self.sent.covers(0, received), "received data that was never sent");
    }

    /// Checks the new values of SND.UNA and SND.WND.
    fn check_acknowledged(&mut self, placed: &Placed, verdict: Verdict) {
        let info = self.info();
        let una = info.bytes_acked + u64::from(self.requests.is_closed_gracefully());
        let window = u64::from(placed.window) << self.setup.scale;
        let ack = placed.ack.max(0).cast_unsigned();
        if una != self.una {
            assert_eq!(una, ack, "SND.UNA does not move to SEG.ACK");
            assert!(verdict != Verdict::Never, "a segment that must be dropped acknowledges");
        }
        if info.snd_wnd != self.wnd {
            assert_eq!(info.snd_wnd, window, "SND.WND differs from the segment's window");
            assert!(verdict != Verdict::Never, "a segment that must be dropped sets the window");
        }
        if verdict == Verdict::Take {
            assert_eq!(una, self.una.max(ack), "an acknowledgment was ignored: {placed:?}");
            let newer = (placed.start, ack) >= self.newest;
            if newer && placed.ack >= self.una.cast_signed() {
                assert_eq!(info.snd_wnd, window, "a newer window was ignored: {placed:?}");
            }
        }
        if verdict != Verdict::Never {
            // The maxima are separate: only a segment that is newer in both is certainly newer than the
            // processed ones.
            self.newest = (self.newest.0.max(placed.start), self.newest.1.max(ack));
            self.wnd_max = self.wnd_max.max(window);
        }
        self.wnd = info.snd_wnd;
        if una > self.una {
            self.una = una;
            self.progress_at = self.now;
        }
    }

    /// Advances the time slightly, so that replies have a separate instant.
    pub(super) fn tick(&mut self) {
        self.now += Duration::from_millis(1);
    }
}
