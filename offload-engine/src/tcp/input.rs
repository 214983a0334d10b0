//! Processing of a received segment (RFC 9293 §3.10.7.4, RFC 5961, RFC 7323 §5).
//!
//! Order of checks: RST, SYN, timestamps, sequence, ACK, URG; then acknowledgment, window, payload, FIN. A RST is
//! accepted only at exactly RCV.NXT. Elsewhere in the window it causes a challenge ACK, as does a SYN (CH §9.2). An
//! empty segment left of RCV.NXT is acknowledged: Linux probes a zero window with it. RSTs are exempt from PAWS (RFC
//! 7323 §5.2).
//!
//! Responses to unacceptable segments are limited per connection only. RFC 5961 §7 leaves a global limit open, and a
//! counter shared by connections discloses one peer to another (CVE-2016-5696). Data outside the window is always
//! acknowledged, once per batch: it cannot cause an ACK loop.

use super::{
    Connection, Flags, Received, Segment, TcpPhase, Timer, UploadReason,
    congestion::{AckSample, Congestion},
    receive::Arrival,
    recovery::{Ack, Report},
    seq::Position,
};
use crate::time::{Duration, Instant};

/// Time between two challenge ACKs for SYNs (CH §9.2).
const SYN_CHALLENGE_INTERVAL: Duration = Duration::from_secs(3);
/// Start of keep-alive after a challenge ACK (CH §9.2).
pub(super) const CHALLENGE_KEEP_ALIVE: Duration = Duration::from_secs(300);
/// Responses to empty segments outside the window per [`STRAY_INTERVAL`]: two unsynchronized peers must not acknowledge
/// each other forever.
const STRAY_RESPONSES_MAX: u32 = 16;
/// Interval of [`STRAY_RESPONSES_MAX`].
const STRAY_INTERVAL: Duration = Duration::from_secs(1);
/// Age from which TS.Recent is invalid (RFC 7323 §5.5).
const TS_RECENT_AGE_MAX: Duration = Duration::from_secs(24 * 24 * 60 * 60);
/// SACK blocks processed; more do not fit into a header.
const SACK_BLOCKS_MAX: usize = 4;

/// Rate limits of responses to unacceptable segments.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Challenges {
    /// True after the one challenge for RSTs until an acceptable segment arrives (CH §9.2).
    rst_challenged: bool,
    syn_challenged_at: Option<Instant>,
    stray_since: Option<Instant>,
    stray_responses: u32,
    /// True if a challenge started keep-alive; an acceptable segment stops it.
    pub(super) keep_alive_armed: bool,
}

impl Challenges {
    fn allow_syn(&mut self, now: Instant) -> bool {
        let allowed = self.syn_challenged_at.is_none_or(|at| now - at >= SYN_CHALLENGE_INTERVAL);
        if allowed {
            self.syn_challenged_at = Some(now);
        }
        allowed
    }

    fn allow_stray(&mut self, now: Instant) -> bool {
        if self.stray_since.is_none_or(|since| now - since >= STRAY_INTERVAL) {
            self.stray_since = Some(now);
            self.stray_responses = 0;
        }
        self.stray_responses += 1;
        self.stray_responses <= STRAY_RESPONSES_MAX
    }
}

impl Segment<'_> {
    /// Number of segments that the link coalesced into this one.
    #[inline]
    pub(super) fn pieces(&self) -> u32 {
        let pieces = match self.gso_size {
            0 => 1,
            size => self.payload.len().div_ceil(size).max(1),
        };
        u32::try_from(pieces).unwrap_or(u32::MAX)
    }

    /// Payload bytes of the largest coalesced segment.
    #[inline]
    fn piece_size(&self) -> u64 {
        let whole = self.payload.len();
        if self.gso_size == 0 { whole as u64 } else { whole.min(self.gso_size) as u64 }
    }

    /// Input of the receive side for this segment at `start`.
    #[inline]
    fn arrival(&self, start: Position) -> Arrival<'_> {
        Arrival {
            start,
            payload: self.payload,
            pieces: self.pieces(),
            piece_size: self.piece_size(),
            push: self.flags.contains(Flags::PSH),
            fin: self.flags.contains(Flags::FIN),
        }
    }
}

impl Connection {
    /// Processes one received segment with a valid checksum. Indicate the returned data, then call
    /// [`Connection::settle`]. Never panics, for any segment.
    pub fn handle_segment(&mut self, now: Instant, segment: &Segment<'_>) -> Received {
        self.now = now;
        if self.stopped || self.is_ended() {
            return Received::default();
        }
        let pieces = segment.pieces();
        self.counters.segs_in += u64::from(pieces);
        let start = self.receiver.nxt().locate(segment.seq);
        if !self.admit(segment, start) {
            self.update_delayed_ack();
            return Received::default();
        }
        let Some(ack) = self.admit_ack(segment) else {
            self.update_delayed_ack();
            return Received::default();
        };
        if segment.flags.contains(Flags::URG) {
            self.stop(UploadReason::ReceivedUrgentData);
            return Received::default();
        }
        self.on_acceptable(segment, start);
        self.process_ce(segment);
        self.last_ack_recv = Some(now);
        if !segment.payload.is_empty() {
            self.last_data_recv = Some(now);
        }
        let fin = segment.flags.contains(Flags::FIN);
        if self.process_ack(segment, ack, fin) {
            return Received::default();
        }
        let beyond = start > self.receiver.nxt();
        self.check_arrival(pieces, !segment.payload.is_empty(), beyond);
        if segment.payload.is_empty() && !fin && !self.receiver.fin_reached() {
            // No input for the receive side, which has settled all earlier segments.
            self.update_delayed_ack();
            return Received::default();
        }
        let (in_order, push) = self.receiver.accept(&segment.arrival(start));
        self.measure_receive_rtt(segment);
        self.counters.bytes_received += in_order.len() as u64;
        if in_order.is_empty() {
            self.settle(&[], false);
        }
        self.update_delayed_ack();
        Received { in_order, push }
    }

    /// Checks RST, PAWS, sequence and SYN. Returns true if processing continues.
    fn admit(&mut self, segment: &Segment<'_>, start: Position) -> bool {
        let (nxt, edge) = (self.receiver.nxt(), self.receiver.edge());
        let fin = segment.flags.contains(Flags::FIN);
        let end = start + segment.payload.len() as u64 + u64::from(fin);
        let in_window = nxt <= start && (start < edge || start == nxt);
        if segment.flags.contains(Flags::RST) {
            self.on_rst(start == nxt, in_window);
            return false;
        }
        if segment.flags.contains(Flags::SYN) {
            if self.config.syn_uploads && start == nxt && self.phase != TcpPhase::TimeWait {
                // CH §9.2; in TIME_WAIT it may open the peer's next connection.
                self.stop_closed(UploadReason::UploadRequested);
                return false;
            }
            // RFC 5961 §4.2, for any sequence number; CH §9.2 limits those in the window.
            let allowed = if in_window {
                self.challenges.allow_syn(self.now)
            } else {
                self.challenges.allow_stray(self.now)
            };
            if allowed {
                self.challenge(in_window);
            }
            return false;
        }
        if self.lacks_timestamp(segment) {
            return false;
        }
        if self.is_outdated(segment) {
            // RFC 7323 §5.3 R1.
            self.ack_stray(segment);
            return false;
        }
        // A peer that has filled the window sends at the right edge itself.
        let overlaps = if end > start { end > nxt } else { start >= nxt };
        if !(overlaps && start <= edge) {
            self.on_unacceptable(segment, start, end, fin);
            return false;
        }
        true
    }

    fn on_rst(&mut self, exact: bool, in_window: bool) {
        // RFC 5961 §3.2.
        if exact {
            self.on_reset();
        } else if in_window && !self.challenges.rst_challenged {
            self.challenges.rst_challenged = true;
            self.challenge(true);
        }
    }

    fn on_unacceptable(
        &mut self,
        segment: &Segment<'_>,
        start: Position,
        end: Position,
        fin: bool,
    ) {
        if end > start && end <= self.receiver.nxt() {
            // A duplicate: our ACK was lost. The receiver records it for a DSACK report (RFC 2883).
            let stale = Arrival { push: false, fin: false, ..segment.arrival(start) };
            self.receiver.accept(&stale);
            self.receiver.ack_now();
            if fin && self.phase == TcpPhase::TimeWait {
                // RFC 9293 §3.10.7.4, eighth: restart the 2 MSL.
                self.timers.set(Timer::Close, self.now + self.config.time_wait);
            }
            return;
        }
        self.ack_stray(segment);
    }

    fn ack_stray(&mut self, segment: &Segment<'_>) {
        if !segment.payload.is_empty() || self.challenges.allow_stray(self.now) {
            self.receiver.ack_now();
        }
    }

    /// Sends a challenge ACK; `arm` also starts keep-alive to detect a dead peer (CH §9.2).
    fn challenge(&mut self, arm: bool) {
        self.receiver.ack_now();
        self.counters.challenge_acks += 1;
        if !arm || self.phase == TcpPhase::TimeWait {
            return;
        }
        let deadline = self.now + CHALLENGE_KEEP_ALIVE;
        match self.timers.deadline(Timer::KeepAlive) {
            Some(running) if running <= deadline => {}
            running => {
                self.challenges.keep_alive_armed |= running.is_none();
                self.timers.set(Timer::KeepAlive, deadline);
            }
        }
    }

    /// True if timestamps were negotiated and are required, but missing (RFC 7323 §3.2).
    fn lacks_timestamp(&self, segment: &Segment<'_>) -> bool {
        self.config.timestamps_required
            && self.constant.timestamp_enabled
            && segment.timestamps.is_none()
    }

    /// PAWS (RFC 7323 §5.3 R1).
    fn is_outdated(&self, segment: &Segment<'_>) -> bool {
        let Some(timestamps) = segment.timestamps.filter(|_| self.constant.timestamp_enabled)
        else {
            return false;
        };
        let age = timestamps.value.wrapping_sub(self.clock.recent).cast_signed();
        age < 0 && self.now - self.clock.recent_at < TS_RECENT_AGE_MAX
    }

    /// RFC 5961 §5.2: returns the position of the acknowledgment if it is acceptable.
    fn admit_ack(&mut self, segment: &Segment<'_>) -> Option<Position> {
        if !segment.flags.contains(Flags::ACK) {
            return None;
        }
        let ack = self.snd.una.locate(segment.ack);
        let too_old = self.snd.una.since(ack) > self.snd.max_wnd;
        if ack > self.snd.max || too_old {
            if self.challenges.allow_stray(self.now) {
                self.challenge(false);
            }
            return None;
        }
        Some(ack)
    }

    /// Records an acceptable segment: the peer is alive, and its timestamp may update TS.Recent.
    fn on_acceptable(&mut self, segment: &Segment<'_>, start: Position) {
        // RFC 7323 §4.3: only a segment that covers the last acknowledgment sent.
        if let Some(timestamps) = segment.timestamps.filter(|_| self.constant.timestamp_enabled)
            && start <= self.receiver.last_ack()
        {
            self.clock.recent = timestamps.value;
            self.clock.recent_at = self.now;
        }
        self.challenges.rst_challenged = false;
        self.challenges.keep_alive_armed = false;
        self.attempts.keep_alives = 0;
        self.restart_keep_alive();
        if self.phase == TcpPhase::FinWait2 {
            // CH §10.7.
            self.timers.set(Timer::Close, self.now + self.config.fin_wait_2);
        }
    }

    /// Processes acknowledgment and window. Returns true if the connection has ended with it.
    fn process_ack(&mut self, segment: &Segment<'_>, ack: Position, fin: bool) -> bool {
        let window = u64::from(segment.window) << self.constant.snd_wind_scale;
        if ack == self.snd.una && self.is_one_way(segment) {
            self.update_window(segment, ack, window);
            if self.snd.wnd > 0 {
                self.timers.stop(Timer::Persist);
            }
            self.indicate_send_backlog();
        } else if ack >= self.snd.una {
            let bare = segment.payload.is_empty() && !fin && window == self.snd.wnd;
            let cwnd = self.congestion.cwnd();
            let outstanding = self.snd.nxt.since(self.snd.una).min(cwnd);
            self.confirm_path_mtu(ack);
            let report = self.acknowledge(segment, ack, bare);
            self.snd.una = ack;
            self.snd.nxt = self.snd.nxt.max(ack);
            self.update_window(segment, ack, window);
            if report.acked > 0 || report.rtt.is_some() {
                self.sample_rtt(segment, &report);
            }
            self.update_congestion(&report, outstanding);
            self.process_ece(segment, report.acked, outstanding);
            self.recovery.update_prr(&report, self.congestion.ssthresh(), self.mss);
            if report.acked > 0 {
                self.on_progress(report.acked);
            }
            self.update_send_timers(&report);
            self.check_drop_rate();
            self.indicate_send_backlog();
        } else if !segment.sack.is_empty() {
            self.process_old_sacks(segment, ack);
        }
        self.phase == TcpPhase::Closed
    }

    /// Header prediction: data is received and none of ours is in flight. An acknowledgment of nothing new, without
    /// blocks or ECN echo, then affects neither recovery nor congestion control.
    fn is_one_way(&self, segment: &Segment<'_>) -> bool {
        segment.sack.is_empty()
            && !segment.flags.contains(Flags::ECE)
            && self.recovery.is_inactive()
    }

    /// Processes a reordered acknowledgment: its SACK blocks may still be new.
    fn process_old_sacks(&mut self, segment: &Segment<'_>, ack: Position) {
        let outstanding = self.snd.nxt.since(self.snd.una).min(self.congestion.cwnd());
        let report = self.acknowledge(segment, ack, false);
        self.update_congestion(&report, outstanding);
        self.recovery.update_prr(&report, self.congestion.ssthresh(), self.mss);
        self.update_send_timers(&report);
    }

    /// Applies `report` to the congestion window.
    #[inline]
    fn update_congestion(&mut self, report: &Report, outstanding: u64) {
        if report.undo {
            self.congestion.undo();
        }
        self.notify_congestion(report, outstanding);
    }

    /// Passes an acknowledgment and its SACK blocks to recovery.
    fn acknowledge(&mut self, segment: &Segment<'_>, ack: Position, bare: bool) -> Report {
        let to = ack.max(self.snd.una);
        let mut sacks = [(ack, ack); SACK_BLOCKS_MAX];
        let mut count = 0;
        let mut dsack = None;
        for (index, block) in segment.sack.iter().take(SACK_BLOCKS_MAX).enumerate() {
            let start = self.snd.una.locate(block.start);
            let end = start.locate(block.end);
            if end <= start || end > self.snd.max {
                continue;
            }
            // RFC 2883 §4: the first block is below the acknowledgment or inside the second block.
            let inside_next = segment.sack.get(1).is_some_and(|next| {
                let (from, to) = (start.locate(next.start), start.locate(next.end));
                from <= start && end <= to
            });
            if index == 0 && (end <= ack || inside_next) {
                // A block this old is not a valid report.
                let recent = self.snd.una.since(start) <= self.snd.max_wnd;
                dsack = recent.then_some((start, end));
            } else if start >= ack {
                sacks[count] = (start.max(to), end);
                count += 1;
            }
        }
        self.recovery.on_ack(&Ack {
            now: self.now,
            to,
            sacks: &sacks[..count],
            dsack,
            bare,
            can_send_new: self.snd.nxt < self.send_end().min(self.snd.una + self.snd.wnd),
            echo: self.echo(segment).map(|echo| echo.wrapping_sub(self.clock.delta)),
            mss: self.mss,
            rtt_min: self.rtt.min(),
            srtt: self.rtt.srtt(),
        })
    }

    /// RFC 9293 §3.10.7.4: only a newer segment may change the window. A segment that acknowledges more is newer, even
    /// with older data. Otherwise the advanced SND.UNA would shift a window advertised for less beyond its right edge.
    fn update_window(&mut self, segment: &Segment<'_>, ack: Position, window: u64) {
        let newer = self.snd.wl2 < ack
            || self.snd.wl1.is_before(segment.seq)
            || (self.snd.wl1 == segment.seq && self.snd.wl2 <= ack);
        if newer {
            self.snd.wnd = window;
            self.snd.max_wnd = self.snd.max_wnd.max(window);
            self.snd.wl1 = segment.seq;
            self.snd.wl2 = ack;
        }
        if self.snd.wnd > 0 {
            self.attempts.probe_round = 0;
            self.attempts.probes = 0;
            if self.attempts.closed_since.take().is_some() {
                self.attempts.spent = Duration::ZERO;
            }
            self.pending.window_probe = false;
        } else if self.attempts.probes > 0 {
            // CH §10.4: a response to a probe starts the next, longer round.
            self.attempts.probe_round = self.attempts.probe_round.saturating_add(1);
            self.attempts.probes = 0;
            self.timers.stop(Timer::Persist);
        }
    }

    /// Measures the receive-side RTT by the timestamp echo of a full-sized segment or by RCV.NXT.
    #[inline]
    fn measure_receive_rtt(&mut self, segment: &Segment<'_>) {
        if segment.payload.is_empty() {
            return;
        }
        if segment.piece_size() >= self.receiver.full_size()
            && let Some(echo) = self.echo(segment)
        {
            self.receiver.on_echo(echo, self.echo_age(echo));
        }
        self.receiver.measure(self.now);
    }

    /// TSecr if it is one of our timestamps (RFC 7323 §3.2): not 0, and not in the future.
    #[inline]
    fn echo(&self, segment: &Segment<'_>) -> Option<u32> {
        let echo = segment.timestamps.filter(|_| self.constant.timestamp_enabled)?.echo;
        let age = self.clock.value(self.now).wrapping_sub(echo);
        (echo != 0 && age.cast_signed() >= 0).then_some(echo)
    }

    /// Time since the timestamp `echo` was sent. Resolution is the tick of 1 ms; less counts as one tick.
    fn echo_age(&self, echo: u32) -> Duration {
        let age = self.clock.value(self.now).wrapping_sub(echo);
        Duration::from_millis(u64::from(age.max(1)))
    }

    fn sample_rtt(&mut self, segment: &Segment<'_>, report: &Report) {
        let echoed = || self.echo(segment).map(|echo| self.echo_age(echo));
        if let Some(rtt) = report.rtt.or_else(echoed)
            && self.rtt.sample(self.now, rtt)
        {
            self.limit_flight();
        }
    }

    /// Passes the report to the congestion controller.
    #[inline]
    fn notify_congestion(&mut self, report: &Report, outstanding: u64) {
        let round_begins = self.usage.round_begins(self.snd.una, self.snd.nxt);
        if report.reduce {
            self.congestion.on_loss(self.now, outstanding);
            self.counters.fast_retransmits += 1;
        }
        if !report.may_grow || report.acked == 0 {
            return;
        }
        let slow_start = self.congestion.in_slow_start();
        let limited = self.usage.is_limited(self.congestion.cwnd(), slow_start);
        self.congestion.on_ack(AckSample {
            now: self.now,
            // As in Linux, bytes already selectively acknowledged are not counted again.
            acked: report.acked.min(report.delivered),
            limited,
            after_timeout: report.after_timeout,
            rtt: report.rtt,
            srtt: self.rtt.srtt(),
            round_begins,
        });
        let underused = self.usage.underused(self.now, self.rtt.rto(), limited);
        if let Some(used) = underused.filter(|_| !report.after_timeout)
            && self.config.congestion_options.cwnd_validation
        {
            self.congestion.on_underuse(used);
        }
    }

    /// Processes an advance of SND.UNA.
    fn on_progress(&mut self, acked: u64) {
        let fin_acked = self.fin_sent() && self.snd.una > self.queue.end();
        self.counters.bytes_acked += acked - u64::from(fin_acked);
        self.attempts.retransmissions = 0;
        self.attempts.since = None;
        self.attempts.spent = Duration::ZERO;
        self.timers.stop(Timer::Retransmit);
        self.complete_sends();
        if fin_acked {
            self.on_fin_acked();
        }
    }

    /// RFC 6298 §5.2, §5.3, and the timers of RFC 8985.
    fn update_send_timers(&mut self, report: &Report) {
        if self.phase == TcpPhase::Closed {
            return;
        }
        if self.snd.wnd > 0 {
            self.timers.stop(Timer::Persist);
        }
        match report.reordering_deadline {
            Some(deadline) => self.timers.set(Timer::Reordering, deadline),
            None => self.timers.stop(Timer::Reordering),
        }
        if self.recovery.is_idle() || self.snd.wnd == 0 {
            self.timers.stop(Timer::Retransmit);
        } else if !self.timers.is_running(Timer::Retransmit) {
            self.timers.set(Timer::Retransmit, self.rtt.timeout(self.now));
        }
        self.arm_tail_probe();
    }
}
