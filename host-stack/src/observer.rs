//! Variables of a connection in the host that only the wire shows.
//!
//! smoltcp does not expose its sequence variables, and implements some of them more weakly than the target needs. It
//! takes window and timestamp from any acceptable segment, rewinds SND.NXT at a retransmission timeout, and does not
//! count the byte of a window probe (P3). A [`Flow`] processes every segment of one connection in both directions, in
//! the same order as smoltcp, and maintains the variables of RFC 9293 and RFC 7323.
//!
//! It also implements ECN, which smoltcp does not: it returns the flags that a segment of smoltcp needs to offer or
//! accept ECN and to echo marks. Segments of smoltcp are not ECN-capable, so no echo for them arrives.
//!
//! It measures the RTT of one segment per round trip, beginning with the SYN, so that the target need not start with a
//! timeout of one second (RFC 6298 §2). Retransmitted segments give no sample (Karn, §3).
//!
//! A flow is created by our SYN, or by a SYN that a listening socket has accepted. So the number of half-open flows is
//! limited by the listeners' backlogs and the outstanding connects. It has no timers and holds no data: about 150
//! bytes.

use offload_engine::{
    nbl::NetBufferList,
    state::{ConnectionState, MacAddress, Ticks},
    tcp::{Ecn, Flags, SeqNum, Timestamps},
    time::{Duration, Instant},
};

use crate::wire::{Acknowledgment, ECN_OFFER, Segment, SynOptions};

/// Initial and minimum RTO of smoltcp (RFC 6298 §2.4).
pub(crate) const RTO_TICKS: Ticks = 1_000;
const RTO: Duration = Duration::from_millis(RTO_TICKS as u64);

/// Result of the negotiation by the two SYNs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    /// The peer's MSS, if it announced one.
    pub(crate) remote_mss: Option<u16>,
    /// Our MSS, if we announced one.
    pub(crate) local_mss: Option<u16>,
    /// Scales of the peer's windows and of ours; `None`: no scaling.
    pub(crate) window_scales: Option<(u8, u8)>,
    /// True if SACK is permitted in both directions.
    pub(crate) sack: bool,
    /// True if every segment has timestamps.
    pub(crate) timestamps: bool,
    /// True if ECN was negotiated (RFC 3168 §6.1.1).
    pub(crate) ecn: bool,
}

/// A SYN as it was on the wire.
#[derive(Clone, Copy, Debug)]
struct ObservedSyn {
    seq: SeqNum,
    options: SynOptions,
    timestamps: bool,
    /// True if it offers or accepts ECN.
    ecn: bool,
}

/// Peer window and the segment that it was last taken from (RFC 9293 §3.10.7.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SendWindow {
    pub(crate) snd_wnd: u32,
    pub(crate) max_snd_wnd: u32,
    pub(crate) snd_wl1: SeqNum,
    snd_wl2: SeqNum,
}

/// Round-trip times measured by the host (RFC 6298 §2.2, §2.3).
#[derive(Clone, Copy, Debug, Default)]
struct RoundTrips {
    /// Smoothed RTT and its variance; `None` before the first sample.
    smoothed: Option<(Duration, Duration)>,
    /// Timed segment: sequence number after its last, and time of its first transmission.
    timed: Option<(SeqNum, Instant)>,
}

impl RoundTrips {
    /// Restores the values from their form in a connection state.
    fn restored(srtt8: u16, rttvar4: u16) -> Self {
        let ticks = |value: u16, parts: u32| Duration::from_millis(u64::from(value)) / parts;
        let smoothed = (srtt8 != 0).then(|| (ticks(srtt8, 8), ticks(rttvar4, 4)));
        Self { smoothed, timed: None }
    }

    /// Records the transmission of a segment that ends at `end`; `again`: part of it was sent before.
    fn sent(&mut self, now: Instant, end: SeqNum, again: bool) {
        if again {
            self.timed = None;
        } else {
            self.timed.get_or_insert((end, now));
        }
    }

    fn acknowledged(&mut self, now: Instant, ack: SeqNum) {
        let Some((_, sent)) = self.timed.take_if(|(end, _)| end.is_at_or_before(ack)) else {
            return;
        };
        let sample = now.saturating_since(sent);
        self.smoothed = Some(match self.smoothed {
            None => (sample, sample / 2),
            Some((srtt, rttvar)) => {
                ((srtt * 7 + sample) / 8, (rttvar * 3 + srtt.abs_diff(sample)) / 4)
            }
        });
    }

    /// 8 x SRTT and 4 x RTTVAR in ticks of 1 ms, rounded up; 0: no sample.
    fn carried(&self) -> (u16, u16) {
        let ticks = |time: Duration, parts: u32| {
            let millis = (time * parts).as_nanos().div_ceil(1_000_000);
            u16::try_from(millis).unwrap_or(u16::MAX)
        };
        self.smoothed.map_or((0, 0), |(srtt, rttvar)| (ticks(srtt, 8).max(1), ticks(rttvar, 4)))
    }
}

/// Disposition of an outgoing segment of smoltcp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disposition {
    /// Sent unchanged.
    Unchanged,
    /// Sent with changed contents.
    Changed,
    /// Not sent: the window has no room for its data, and the rest was sent before.
    Dropped,
}

/// Wire state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    ours: Option<ObservedSyn>,
    theirs: Option<ObservedSyn>,
    agreed: Option<Agreed>,
    /// True if a CE mark has arrived, and no CWR since (RFC 3168 §6.1.3).
    pub(crate) ecn_echo: bool,
    /// Source address of the peer's last acceptable segment.
    pub(crate) peer_mac: MacAddress,
    /// Oldest unacknowledged sequence number.
    pub(crate) snd_una: SeqNum,
    /// Sequence number after the highest sent.
    pub(crate) snd_max: SeqNum,
    /// Sequence number after the highest that smoltcp considers sent: see [`Flow::trim_to_window`].
    pub(crate) stack_max: SeqNum,
    /// Window of the peer.
    pub(crate) send_window: SendWindow,
    /// Highest right edge that the peer has offered.
    snd_edge: SeqNum,
    /// Last acknowledgment sent (Last.ACK.sent).
    pub(crate) acknowledged: SeqNum,
    /// Highest right edge advertised (P9: never withdrawn).
    pub(crate) right_edge: SeqNum,
    /// TS.Recent, and the time of its update.
    pub(crate) ts_recent: u32,
    pub(crate) ts_recent_at: Instant,
    round_trips: RoundTrips,
    /// Time of the last data transmission.
    pub(crate) last_sent_at: Instant,
    /// Time of the first transmission of the data that is in flight.
    pub(crate) in_flight_since: Instant,
    /// Time of the peer's last progress: an acknowledgment of new data, a closed window, or the start of the current
    /// flight.
    pub(crate) progressed_at: Instant,
    /// True if a segment was retransmitted: the path loses segments.
    pub(crate) has_retransmitted: bool,
    /// Time of the last received segment.
    pub(crate) last_received_at: Instant,
    /// True if an RST was sent before one arrived: we aborted the connection, not the peer.
    pub(crate) reset_sent: bool,
    /// True if an acceptable RST has arrived.
    pub(crate) reset_received: bool,
}

impl Flow {
    /// Flow without any segment.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            ours: None,
            theirs: None,
            agreed: None,
            ecn_echo: false,
            peer_mac: MacAddress::default(),
            snd_una: SeqNum(0),
            snd_max: SeqNum(0),
            stack_max: SeqNum(0),
            send_window: SendWindow::default(),
            snd_edge: SeqNum(0),
            acknowledged: SeqNum(0),
            right_edge: SeqNum(0),
            ts_recent: 0,
            ts_recent_at: now,
            round_trips: RoundTrips::default(),
            last_sent_at: now,
            in_flight_since: now,
            progressed_at: now,
            has_retransmitted: false,
            last_received_at: now,
            reset_sent: false,
            reset_received: false,
        }
    }

    /// Flow of an uploaded connection, restored from its state alone.
    pub(crate) fn restored(state: &ConnectionState, now: Instant) -> Self {
        let constant = &state.tcp.constant;
        let delegated = &state.tcp.delegated;
        let left = delegated.retransmit.timeout_delta.unwrap_or(RTO_TICKS);
        let posted = state.send_data.iter().map(NetBufferList::data_length).sum::<usize>() as u32;
        let fin_sent = delegated.snd_max == delegated.snd_una + posted + 1;
        // As in the replay: of the data beyond a closed window nothing counts as sent.
        let is_closed = delegated.snd_wnd == 0 && !fin_sent;
        let stack_max = if is_closed { delegated.snd_una } else { delegated.snd_max };
        let waited = Duration::from_millis(RTO_TICKS.saturating_sub(left).into());
        Self {
            // The remaining time counts from here, as if nothing had been lost.
            last_sent_at: Instant::from_nanos(
                now.as_nanos().saturating_sub(waited.as_nanos() as u64),
            ),
            agreed: Some(Agreed {
                remote_mss: Some(constant.remote_mss),
                local_mss: Some(constant.local_mss),
                window_scales: constant
                    .window_scaling_enabled
                    .then_some((constant.snd_wind_scale, constant.rcv_wind_scale)),
                sack: constant.sack_enabled,
                timestamps: constant.timestamp_enabled,
                ecn: constant.ecn_enabled,
            }),
            ecn_echo: delegated.ecn_echo,
            peer_mac: state.neighbor.cached.dl_destination_address,
            snd_una: delegated.snd_una,
            snd_max: delegated.snd_max,
            stack_max,
            send_window: SendWindow {
                snd_wnd: delegated.snd_wnd,
                max_snd_wnd: delegated.max_snd_wnd,
                snd_wl1: delegated.snd_wl1,
                // Not part of the state; a window update has acknowledged at least SND.UNA.
                snd_wl2: delegated.snd_una,
            },
            // Right edge that the replay has shown to the socket.
            snd_edge: delegated.snd_una + delegated.snd_wnd.max(if fin_sent { posted } else { 0 }),
            acknowledged: delegated.rcv_nxt,
            right_edge: delegated.rcv_nxt + delegated.rcv_wnd,
            ts_recent: delegated.ts_recent,
            round_trips: RoundTrips::restored(delegated.srtt, delegated.rtt_var),
            ..Self::new(now)
        }
    }

    /// Negotiated options, once both SYNs are known.
    pub(crate) const fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// 8 x SRTT and 4 x RTTVAR in ticks of 1 ms, as in a connection state; 0: no sample.
    pub(crate) fn round_trip(&self) -> (u16, u16) {
        self.round_trips.carried()
    }

    /// True if the windows of both sides are scaled.
    pub(crate) fn windows_are_scaled(&self) -> bool {
        self.agreed.is_some_and(|agreed| agreed.window_scales.is_some())
    }

    /// Shift of our advertised windows, once both SYNs are known.
    pub(crate) fn receive_scale(&self) -> Option<u8> {
        self.agreed.map(|agreed| agreed.window_scales.map_or(0, |(_, ours)| ours))
    }

    /// Acknowledgment of everything received; `ts_time`: timestamp of a segment sent now.
    pub(crate) fn acknowledgment(&self, ts_time: u32) -> Acknowledgment {
        let window = u32::try_from(self.right_edge.distance(self.acknowledged)).unwrap_or(0);
        let window = window >> self.receive_scale().unwrap_or(0);
        let has_timestamps = self.agreed.is_some_and(|agreed| agreed.timestamps);
        Acknowledgment {
            seq: self.snd_max,
            ack: self.acknowledged,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            timestamps: has_timestamps
                .then_some(Timestamps { value: ts_time, echo: self.ts_recent }),
            ece: self.ecn_echo,
            fin: false,
        }
    }

    /// Duplicate acknowledgment of the peer, generated for smoltcp.
    pub(crate) fn oldest_acknowledgment(&self, rcv_nxt: SeqNum) -> Acknowledgment {
        let edge = self.snd_edge.later(self.stack_max);
        let window = u32::try_from(edge.distance(self.snd_una)).unwrap_or(0);
        // Rounded down, so that smoltcp sends nothing beyond the edge.
        let window = (window >> self.peer_scale()).max(1);
        let has_timestamps = self.agreed.is_some_and(|agreed| agreed.timestamps);
        Acknowledgment {
            seq: rcv_nxt,
            ack: self.snd_una,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            timestamps: has_timestamps.then_some(Timestamps { value: self.ts_recent, echo: 0 }),
            ece: false,
            fin: false,
        }
    }

    /// Our initial sequence number.
    pub(crate) fn iss(&self) -> Option<SeqNum> {
        self.ours.map(|syn| syn.seq)
    }

    /// Initial sequence number of the peer.
    pub(crate) fn irs(&self) -> Option<SeqNum> {
        self.theirs.map(|syn| syn.seq)
    }

    /// True if our SYN was sent: the next hop has answered ARP or neighbor discovery.
    pub(crate) const fn syn_sent(&self) -> bool {
        self.ours.is_some()
    }

    /// True if the peer's SYN has arrived.
    pub(crate) const fn syn_received(&self) -> bool {
        self.theirs.is_some()
    }

    /// Processes a received frame with a verified checksum. Called before smoltcp processes it.
    pub(crate) fn incoming(&mut self, now: Instant, frame: &Segment<'_>) {
        if frame.flags.contains(Flags::RST) {
            self.reset_received |= self.acceptable(frame);
            return;
        }
        if frame.flags.contains(Flags::SYN) {
            self.incoming_syn(now, frame);
            return;
        }
        if self.agreed.is_none() || !self.acceptable(frame) {
            return;
        }
        self.peer_mac = frame.source_mac;
        self.last_received_at = now;
        self.record_marks(frame);
        // RFC 7323 §4.3: only a segment that contains or precedes Last.ACK.sent may update TS.Recent.
        if let Some(timestamps) = frame.timestamps
            && SeqNum(timestamps.value).is_at_or_after(SeqNum(self.ts_recent))
            && frame.seq.is_at_or_before(self.acknowledged)
        {
            self.ts_recent = timestamps.value;
            self.ts_recent_at = now;
        }
        if frame.flags.contains(Flags::ACK) {
            self.acknowledge(now, frame);
        }
    }

    fn incoming_syn(&mut self, now: Instant, frame: &Segment<'_>) {
        let has_ack = frame.flags.contains(Flags::ACK);
        let acknowledges_ours = has_ack && self.iss().is_some_and(|iss| frame.ack == iss + 1);
        if self.theirs.is_some() || has_ack != acknowledges_ours {
            return;
        }
        self.theirs = Some(ObservedSyn {
            seq: frame.seq,
            options: frame.syn_options,
            timestamps: frame.timestamps.is_some(),
            ecn: if has_ack { frame.accepts_ecn() } else { frame.offers_ecn() },
        });
        self.peer_mac = frame.source_mac;
        self.last_received_at = now;
        self.acknowledged = frame.seq;
        self.right_edge = frame.seq + 1;
        if let Some(timestamps) = frame.timestamps {
            self.ts_recent = timestamps.value;
            self.ts_recent_at = now;
        }
        if has_ack {
            self.snd_una = frame.ack;
            self.snd_edge = frame.ack + u32::from(frame.window);
            self.round_trips.acknowledged(now, frame.ack);
        }
        // A SYN's window is never scaled (P4).
        let snd_wnd = u32::from(frame.window);
        self.send_window =
            SendWindow { snd_wnd, max_snd_wnd: snd_wnd, snd_wl1: frame.seq, snd_wl2: frame.ack };
        self.agree();
    }

    /// True if the segment overlaps our advertised window (RFC 9293 §3.10.7.4).
    fn acceptable(&self, frame: &Segment<'_>) -> bool {
        (frame.seq + frame.sequence_len()).is_at_or_after(self.acknowledged)
            && frame.seq.is_at_or_before(self.right_edge)
    }

    fn acknowledge(&mut self, now: Instant, frame: &Segment<'_>) {
        if frame.ack.is_before(self.snd_una) || frame.ack.is_after(self.snd_max) {
            return;
        }
        if frame.ack.is_after(self.snd_una) || frame.window == 0 {
            self.progressed_at = now;
        }
        self.snd_una = frame.ack;
        // smoltcp considers acknowledged data sent, including data unsent since a closed window was imported.
        self.stack_max = self.stack_max.later(frame.ack);
        self.round_trips.acknowledged(now, frame.ack);
        let offered = u32::from(frame.window) << self.peer_scale();
        self.snd_edge = self.snd_edge.later(frame.ack + offered);
        let window = &mut self.send_window;
        // A segment that acknowledges more is newer, even if its bytes are older.
        let newer = window.snd_wl2.is_before(frame.ack)
            || window.snd_wl1.is_before(frame.seq)
            || (window.snd_wl1 == frame.seq && window.snd_wl2.is_at_or_before(frame.ack));
        if newer {
            window.snd_wnd = offered;
            window.max_snd_wnd = window.max_snd_wnd.max(window.snd_wnd);
            window.snd_wl1 = frame.seq;
            window.snd_wl2 = frame.ack;
        }
    }

    /// Shift of the peer's advertised windows.
    fn peer_scale(&self) -> u8 {
        self.agreed.and_then(|agreed| agreed.window_scales).map_or(0, |(theirs, _)| theirs)
    }

    /// Window field to show to smoltcp instead of the segment's own, if that would shrink the window over data in
    /// flight. Called before [`Flow::incoming`]. Of two acknowledgments that differ only in their window, the older
    /// may arrive last. smoltcp would use its window, and retransmit no more than fits. So data in flight stay inside
    /// the window, and no new data does (RFC 9293 §3.8.6, SHLD-15, MAY-7). With a closed window nothing is in flight:
    /// see [`Flow::is_overrun`].
    pub(crate) fn kept_window(&self, frame: &Segment<'_>) -> Option<u16> {
        let in_flight = u32::try_from(self.stack_max.distance(frame.ack)).ok()?;
        if in_flight == 0 || !self.is_current(frame) {
            return None;
        }
        // Rounded down: with one more unit smoltcp would consider data sent that do not fit into the window.
        let window = (in_flight >> self.peer_scale()).max(1);
        let window = u16::try_from(window).unwrap_or(u16::MAX);
        (window > frame.window).then_some(window)
    }

    /// True for an acknowledgment that RFC 9293 §3.10.7.4 processes, on a connection with both SYNs.
    fn is_current(&self, frame: &Segment<'_>) -> bool {
        let has = |flag| frame.flags.contains(flag);
        self.agreed.is_some()
            && has(Flags::ACK)
            && !has(Flags::SYN)
            && !has(Flags::RST)
            && frame.ack.is_at_or_after(self.snd_una)
            && frame.ack.is_at_or_before(self.snd_max)
    }

    /// True if smoltcp considers data sent that will not be acknowledged without a retransmission. Called before
    /// [`Flow::incoming`]. Its retransmission timer then runs and backs off; an opening window does not stop it.
    pub(crate) fn is_overrun(&self, now: Instant, frame: &Segment<'_>) -> bool {
        let is_read = frame.seq.is_at_or_after(self.acknowledged)
            && frame.seq.is_at_or_before(self.right_edge);
        let in_flight = self.stack_max.distance(frame.ack);
        if !is_read || !self.is_current(frame) || in_flight <= 0 {
            return false;
        }
        let offered = u32::from(frame.window) << self.peer_scale();
        let lacked =
            i64::from(self.send_window.snd_wnd) < i64::from(self.stack_max.distance(self.snd_una));
        let was_retransmitted = now.saturating_since(self.progressed_at) >= RTO;
        // RFC 9293 §3.8.6 MUST-35: a window that shrinks to 0 is probed. Or nothing is in flight, and yet smoltcp is
        // ahead of the sent data (`trim_to_window`). Or a window opens that retransmissions did not fit into.
        frame.window == 0
            || frame.ack == self.snd_max
            || frame.ack == self.snd_una
                && lacked
                && offered > self.send_window.snd_wnd
                && was_retransmitted
    }

    /// Marks everything unacknowledged in smoltcp as unsent.
    pub(crate) fn rewound(&mut self) {
        self.stack_max = self.snd_una;
    }

    /// RFC 3168 §6.1.3: records a mark on data, or the answer to our echo.
    fn record_marks(&mut self, frame: &Segment<'_>) {
        if !self.agreed.is_some_and(|agreed| agreed.ecn) || frame.payload_len == 0 {
            return;
        }
        self.ecn_echo &= !frame.flags.contains(Flags::CWR);
        self.ecn_echo |= frame.frame.ecn == Ecn::Congestion;
    }

    /// Flags that ECN adds to an outgoing segment; `willing`: ECN may be negotiated. A retransmitted SYN does not offer
    /// it: a middlebox may have dropped the first one because of it (RFC 3168 §6.1.1.1).
    pub(crate) fn ecn_flags(&self, frame: &Segment<'_>, willing: bool) -> Flags {
        let has_ack = frame.flags.contains(Flags::ACK);
        if frame.flags.contains(Flags::RST) {
            Flags::default()
        } else if !frame.flags.contains(Flags::SYN) {
            if self.ecn_echo { Flags::ECE } else { Flags::default() }
        } else if !willing {
            Flags::default()
        } else if !has_ack && self.ours.is_none() {
            ECN_OFFER
        } else if has_ack && self.theirs.is_some_and(|theirs| theirs.ecn) {
            Flags::ECE
        } else {
            Flags::default()
        }
    }

    /// Removes unsent data that exceed the peer's window from an outgoing segment. smoltcp's fast retransmission fills
    /// a segment whatever the window. Its next segments, acknowledgments included, continue after it, where the peer
    /// would not accept them (RFC 9293 §3.8.6, §3.10.7.4). Returns true if the segment has changed.
    fn trim_to_window(&mut self, frame: &mut Segment<'_>) -> bool {
        if self.agreed.is_none() || frame.flags.contains(Flags::SYN) {
            return false;
        }
        // smoltcp does not count its probes of a closed window.
        let is_probe = frame.payload_len == 1
            && frame.seq == self.snd_una
            && (self.send_window.snd_wnd == 0 || self.snd_edge.is_at_or_before(self.snd_una));
        if !is_probe {
            self.stack_max = self.stack_max.later(frame.seq + frame.sequence_len());
        }
        let is_ahead = frame.seq.is_after(self.snd_max);
        frame.seq = frame.seq.earlier(self.snd_max);
        // Data that fit into the window, a probe of a closed one, retransmissions.
        let end = self.snd_edge.later(self.snd_una + 1).later(self.snd_max);
        let room = if is_ahead { 0 } else { u32::try_from(end.distance(frame.seq)).unwrap_or(0) };
        if !is_ahead && frame.payload_len <= room {
            return false;
        }
        frame.payload_len = frame.payload_len.min(room);
        frame.flags = Flags(frame.flags.0 & !Flags::FIN.0);
        true
    }

    /// Processes an outgoing frame. Returns its disposition: see [`Flow::trim_to_window`].
    pub(crate) fn outgoing(&mut self, now: Instant, frame: &mut Segment<'_>) -> Disposition {
        let had = frame.sequence_len();
        let leaves =
            if self.trim_to_window(frame) { Disposition::Changed } else { Disposition::Unchanged };
        if frame.flags.contains(Flags::RST) {
            // smoltcp also answers with RST to segments after the peer's.
            self.reset_sent |= !self.reset_received;
            return leaves;
        }
        if had > 0 && frame.sequence_len() == 0 && !self.advances(frame) {
            return Disposition::Dropped;
        }
        let is_syn = frame.flags.contains(Flags::SYN);
        let again = self.ours.is_some() && frame.seq.is_before(self.snd_max);
        if is_syn && self.ours.is_none() {
            self.ours = Some(ObservedSyn {
                seq: frame.seq,
                options: frame.syn_options,
                timestamps: frame.timestamps.is_some(),
                ecn: frame.flags.contains(Flags::ECE),
            });
            self.snd_una = frame.seq;
            (self.snd_max, self.stack_max) = (frame.seq + 1, frame.seq + 1);
            // Window of the peer's SYN, if that arrived first.
            self.snd_edge = frame.seq + 1 + self.send_window.snd_wnd;
            self.agree();
        }
        if frame.sequence_len() > 0 {
            let end = frame.seq + frame.sequence_len();
            if self.snd_max == self.snd_una {
                (self.in_flight_since, self.progressed_at) = (now, now);
            }
            self.round_trips.sent(now, end, again);
            self.has_retransmitted |= again;
            self.snd_max = self.snd_max.later(end);
            self.last_sent_at = now;
        }
        if frame.flags.contains(Flags::ACK) && (self.theirs.is_some() || self.agreed.is_some()) {
            let scale = match self.agreed.and_then(|agreed| agreed.window_scales) {
                Some((_, ours)) if !is_syn => ours,
                _ => 0,
            };
            self.acknowledged = self.acknowledged.later(frame.ack);
            self.right_edge = self.right_edge.later(frame.ack + (u32::from(frame.window) << scale));
        }
        leaves
    }

    /// True if the segment acknowledges more than the last one, or moves the right edge.
    fn advances(&self, frame: &Segment<'_>) -> bool {
        let edge = frame.ack + (u32::from(frame.window) << self.receive_scale().unwrap_or(0));
        frame.ack.is_after(self.acknowledged) || edge.is_after(self.right_edge)
    }

    /// Records the host's own retransmission of the FIN.
    pub(crate) fn repeats_fin(&mut self, now: Instant) {
        self.last_sent_at = now;
        self.has_retransmitted = true;
        // smoltcp may have considered it sent while data preceded it.
        self.snd_max = self.snd_max.later(self.snd_una + 1);
    }

    fn agree(&mut self) {
        let (Some(ours), Some(theirs)) = (self.ours, self.theirs) else { return };
        self.agreed = Some(Agreed {
            remote_mss: theirs.options.mss,
            local_mss: ours.options.mss,
            window_scales: theirs.options.window_scale.zip(ours.options.window_scale),
            sack: ours.options.sack && theirs.options.sack,
            timestamps: ours.timestamps && theirs.timestamps,
            ecn: ours.ecn && theirs.ecn,
        });
    }
}

#[cfg(test)]
mod tests;
