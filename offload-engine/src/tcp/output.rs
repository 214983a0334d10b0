//! Selection of the next segment.
//!
//! Order: a RST; an ACK that must be a separate segment; lost bytes; a tail loss probe; new bytes and the FIN; a
//! window probe; a keep-alive probe; a pending ACK. Every segment except the RST carries the current acknowledgment
//! and window.
//!
//! Data is cut at the end of its list or of the queue, otherwise to a multiple of the MSS. A short segment is held back
//! by the congestion window, by Nagle's algorithm if enabled (RFC 9293 §3.7.4; with Minshall's condition), and by silly
//! window avoidance unless it ends a list (§3.8.6.2.1, CH §10.8).

use super::{
    Connection, Ecn, Event, Flags, PendingSegments, PushPolicy, SackBlock, SeqNum, TcpPhase, Timer,
    Timestamps, Transmit, TxLimits, chrono::ChronoState, congestion::Congestion, pacing::Rate,
    receive::AckDue, saturate, send::Cut, seq::Position,
};
use crate::{
    memory::Piece,
    nbl::Mdl,
    status::NdisStatus,
    time::{Duration, Instant},
};

/// SACK blocks of one segment; one less with timestamps (RFC 2018 §3).
const SACK_BLOCKS_MAX: usize = 4;
/// Time that silly window avoidance waits for a larger window (RFC 9293 §3.8.6.2.1: 0.1 to 1 s).
const SMALL_SEGMENT_DELAY: Duration = Duration::from_millis(200);

const NO_BLOCKS: [SackBlock; 4] = [SackBlock { start: SeqNum(0), end: SeqNum(0) }; 4];

/// Data segment without its header.
#[derive(Clone, Copy, Debug)]
struct Draft {
    start: Position,
    len: usize,
    /// True if the data ends where a list ends.
    ends_list: bool,
    fin: bool,
    context: Option<u64>,
}

impl Draft {
    /// First `len` bytes of `cut`, followed by a FIN if `fin`.
    fn new(start: Position, len: usize, fin: bool, cut: &Cut) -> Self {
        let ends_list = cut.ends_list && len == cut.len;
        Self { start, len, ends_list, fin, context: cut.context }
    }
}

impl Connection {
    /// Returns the next segment or GSO packet to transmit; [`Connection::payload`] returns its payload. `None` if
    /// nothing may or must be sent now. A returned segment counts as sent.
    pub fn poll_transmit(&mut self, now: Instant, limits: TxLimits) -> Option<Transmit> {
        self.now = now;
        if self.pending.reset {
            return Some(self.transmit_reset());
        }
        if self.stopped || self.is_ended() {
            return None;
        }
        if self.hold.any() {
            return self.poll_transmit_held();
        }
        if self.receiver.needs_pure_ack() {
            return Some(self.transmit_pure_ack(self.acceptable_seq()));
        }
        if let Some(transmit) = self.transmit_data(limits) {
            return Some(transmit);
        }
        self.update_chrono();
        if core::mem::take(&mut self.pending.window_probe) && self.window_closed() {
            return Some(self.transmit_window_probe());
        }
        if core::mem::take(&mut self.pending.keep_alive) {
            // RFC 9293 §3.8.4: one byte back, so that the peer has to respond.
            return Some(self.transmit_pure_ack(self.snd.una.previous()));
        }
        (self.receiver.ack_due() == AckDue::Now)
            .then(|| self.transmit_pure_ack(self.acceptable_seq()))
    }

    /// Memory of a segment's payload, in the poster's buffers. Cheap for the segment that [`Connection::poll_transmit`]
    /// returned last; otherwise needs a search. Yields at most 64 pieces.
    pub fn payload(&self, transmit: &Transmit) -> impl Iterator<Item = Piece<'_>> {
        self.queue.pieces(self.snd.una.locate(transmit.seq), transmit.payload_len)
    }

    /// The same memory as owned references, which keep it allocated.
    pub fn payload_memory(&self, transmit: &Transmit) -> impl Iterator<Item = Mdl> {
        self.queue.memory(self.snd.una.locate(transmit.seq), transmit.payload_len)
    }

    fn transmit_data(&mut self, limits: TxLimits) -> Option<Transmit> {
        if self.snd.wnd == 0 {
            self.start_persist_timer();
            return None;
        }
        self.raise_path_mtu();
        if self.snd.nxt >= self.send_end() && self.recovery.is_idle() {
            // No unsent data, nothing to retransmit and nothing to probe.
            self.pending.tail_probe = false;
            return None;
        }
        let most = limits.gso_payload_max as u64;
        let most = (most - most % self.mss).max(self.mss);
        if let Some(first) = self.recovery.awaits_new_data() {
            // RFC 5682 §2.1 step 2b.
            let draft = if first { self.draft_new(self.mss, true) } else { None };
            if first {
                self.recovery.offer_new_data(draft.is_some());
            }
            if let Some(draft) = draft {
                return Some(self.transmit(draft));
            }
        }
        // An acknowledgment may have arrived after the probe timer expired.
        if core::mem::take(&mut self.pending.tail_probe)
            && self.recovery.may_probe()
            && let Some(probe) = self.transmit_tail_probe()
        {
            return Some(probe);
        }
        let paced = self.paced_room();
        if self.recovery.awaits_new_data().is_none()
            && let Some((start, end, force)) = self.recovery.next_lost(most)
        {
            return match paced {
                Ok(room) => self.retransmit(start, end, force, most.min(room)),
                // The first segment of a repair is not paced.
                Err(_) if force => self.retransmit(start, end, force, self.mss),
                Err(due) => self.start_pacing_timer(due),
            };
        }
        if self.snd.nxt < self.send_end() && limits.new_data {
            self.restart_after_idle();
            let room = match paced {
                Ok(room) => room,
                Err(due) => return self.start_pacing_timer(due),
            };
            if let Some(draft) = self.draft_new(most.min(room), false) {
                return Some(self.transmit(draft));
            }
        }
        let (start, end) = self.recovery.next_unsacked(self.mss)?;
        let transmit = self.retransmit(start, end, false, most)?;
        self.recovery.unsacked_sent(start + transmit.payload_len as u64);
        Some(transmit)
    }

    /// Bytes that pacing allows now, otherwise the time at which it allows more.
    #[inline]
    fn paced_room(&mut self) -> Result<u64, Instant> {
        if !self.config.congestion_options.pacing {
            return Ok(u64::MAX);
        }
        match self.pacing_rate() {
            Some(rate) => self.pacer.room(self.now, rate, self.mss),
            None => Ok(u64::MAX),
        }
    }

    /// Current pacing rate; `None` if pacing is off or no RTT is known.
    #[inline]
    pub(super) fn pacing_rate(&self) -> Option<Rate> {
        let srtt = self.rtt.srtt().filter(|_| self.config.congestion_options.pacing)?;
        // The recovery window limits what this ACK may trigger, and is often 0.
        let window = self.send_window().max(self.congestion.cwnd());
        Rate::new(window, self.congestion.ssthresh(), srtt)
    }

    /// Starts the pacing timer: data is ready, but not before `due`.
    fn start_pacing_timer(&mut self, due: Instant) -> Option<Transmit> {
        self.timers.set(Timer::Pacing, due);
        None
    }

    /// Updates the sender's limiting factor when no segment is due.
    fn update_chrono(&mut self) {
        let state = if self.snd.una == self.send_end() {
            ChronoState::Idle
        } else {
            let window = (self.snd.una + self.snd.wnd).since(self.snd.nxt);
            let waiting = self.send_end().since(self.snd.nxt);
            let room = self.send_window().saturating_sub(self.recovery.in_flight());
            let next = waiting.min(self.mss);
            if window < next && next <= room { ChronoState::PeerLimited } else { ChronoState::Busy }
        };
        self.chrono.enter(self.now, state);
    }

    /// Retransmits the front of the lost bytes `start..end`, as the congestion window allows.
    fn retransmit(
        &mut self,
        start: Position,
        end: Position,
        force: bool,
        most: u64,
    ) -> Option<Transmit> {
        let room = self.send_window().saturating_sub(self.recovery.in_flight());
        let force = force || self.recovery.in_flight() == 0;
        let room = if force { room.max(self.mss) } else { room };
        let window = (self.snd.una + self.snd.wnd).since(start);
        let wanted = end.since(start).min(window);
        if wanted == 0 || room < self.mss.min(wanted) {
            return None;
        }
        let draft = self.draft_retransmission(start, wanted, most.min(room));
        Some(self.transmit(draft))
    }

    /// Cuts at most `max` of the `wanted` positions from `start`, which were sent before.
    fn draft_retransmission(&mut self, start: Position, wanted: u64, max: u64) -> Draft {
        let data = self.queue.end().since(start).min(wanted);
        let cut = self.cut(start, data.min(max));
        let mut len = cut.len as u64;
        if len < data && !(cut.ends_list && self.ends_at_lists()) && len > self.mss {
            len -= len % self.mss;
        }
        let end = start + len;
        let fin = self.fin_requested && end == self.queue.end() && wanted > len;
        Draft::new(start, saturate(len), fin, &cut)
    }

    /// RFC 8985 §7.3: new data if there is any, otherwise retransmits the last segment.
    fn transmit_tail_probe(&mut self) -> Option<Transmit> {
        if self.recovery.probes_with_new_data()
            && let Some(draft) = self.draft_new(self.mss, true)
        {
            let transmit = self.transmit(draft);
            self.recovery.probe_sent(self.snd.nxt, false);
            self.timers.stop(Timer::TailProbe);
            return Some(transmit);
        }
        let (start, end) = self.recovery.probe_bytes(self.mss)?;
        if end > self.snd.una + self.snd.wnd {
            // RFC 9293 §3.8.6: the window has shrunk, and the peer would drop the probe.
            return None;
        }
        let draft = self.draft_retransmission(start, end.since(start), self.mss);
        let transmit = self.transmit(draft);
        self.recovery.probe_sent(end, true);
        self.timers.stop(Timer::TailProbe);
        Some(transmit)
    }

    /// Cuts new data, or the FIN; `None` if it has to wait.
    #[inline]
    fn draft_new(&mut self, most: u64, probe: bool) -> Option<Draft> {
        let start = self.snd.nxt;
        let data = self.queue.end().since(start);
        let fin_pending = self.fin_requested && start <= self.queue.end();
        let window = (self.snd.una + self.snd.wnd).since(start);
        if data == 0 && !fin_pending || window == 0 {
            return None;
        }
        let idle = self.recovery.is_idle();
        let mut room = self.send_window().saturating_sub(self.recovery.occupied());
        if probe || self.recovery.in_flight() == 0 {
            room = room.max(self.mss);
        }
        let cut = self.cut(start, most.min(window).min(room));
        let at_end = start + cut.len as u64 == self.queue.end();
        let fin = fin_pending && at_end && window > cut.len as u64;
        let mut len = cut.len as u64;
        if !(at_end || cut.ends_list && self.ends_at_lists()) {
            if len >= self.mss {
                len -= len % self.mss;
            } else if !cut.fragmented {
                if room < window {
                    return None;
                }
                if self.is_silly(start, len) {
                    if idle && !self.timers.is_running(Timer::Persist) {
                        self.timers.set(Timer::Persist, self.now + SMALL_SEGMENT_DELAY);
                    }
                    return None;
                }
            }
        } else if at_end && !fin && !probe && self.is_nagled(start) {
            len -= len % self.mss;
        }
        if len == 0 && !fin {
            return None;
        }
        self.pending.small_segment = false;
        Some(Draft::new(start, saturate(len), fin, &cut))
    }

    /// Nagle's algorithm (RFC 9293 §3.7.4) with Minshall's condition, as in Linux: a short segment waits while another
    /// short one is unacknowledged. Full-sized ones do not count, so the short end of a large write never waits for a
    /// delayed ACK: the peer has at most one short segment whose ACK it delays.
    fn is_nagled(&self, start: Position) -> bool {
        self.cached.nagling_enabled && start >= self.snd.max && self.snd.una < self.snd.sml
    }

    /// CH §10.8: less than a segment, not the end of a list, less than half of the peer's largest window.
    fn is_silly(&self, start: Position, len: u64) -> bool {
        len.saturating_mul(2) < self.snd.max_wnd
            && start >= self.snd.max
            && !self.pending.small_segment
    }

    #[inline]
    fn cut(&mut self, start: Position, max: u64) -> Cut {
        let each_list = self.ends_at_lists();
        self.queue.cut(start, saturate(max), each_list)
    }

    /// CH-SND-5, -8.
    fn ends_at_lists(&self) -> bool {
        self.config.push == PushPolicy::EachList
    }

    /// RFC 5681 §4.1: after an idle RTO the congestion window no longer reflects the path.
    #[inline]
    fn restart_after_idle(&mut self) {
        if self.recovery.is_idle()
            && self.snd.nxt < self.send_end()
            && self.now - self.last_sent > self.rtt.rto()
            && self.config.congestion_options.idle_restart
        {
            self.congestion.on_idle();
        }
    }

    /// Builds the header of a data segment, and counts it as sent.
    fn transmit(&mut self, draft: Draft) -> Transmit {
        let Draft { start, len, ends_list, fin, context } = draft;
        let data_end = start + len as u64;
        let end = data_end + u64::from(fin);
        let push = len > 0
            && match self.config.push {
                PushPolicy::EachList => ends_list,
                PushPolicy::QueueEmpty => data_end == self.queue.end(),
            };
        let resent = end.min(self.snd.max).since(start);
        if self.recovery.is_idle() {
            self.congestion.on_resume(self.now);
        }
        self.queue.commit(start, len);
        self.recovery.sent(start, end, resent > 0, self.now);
        self.snd.nxt = self.snd.nxt.max(end);
        self.snd.max = self.snd.max.max(end);
        if !(len as u64).is_multiple_of(self.mss) {
            self.snd.sml = self.snd.sml.max(data_end);
        }
        if fin {
            self.on_fin_sent();
        }
        self.count_data(start, data_end, resent, push);
        self.last_sent = self.now;
        self.last_data_sent = Some(self.now);
        if let Some(rate) = self.pacing_rate() {
            self.pacer.sent(self.now, rate, len as u64);
        }
        let cwnd = self.congestion.cwnd();
        let in_flight = self.recovery.in_flight();
        self.usage.sent((self.snd.una, self.snd.nxt), in_flight, cwnd, self.mss);
        if !self.timers.is_running(Timer::Retransmit) {
            self.timers.set(Timer::Retransmit, self.rtt.timeout(self.now));
        }
        self.timers.stop(Timer::Persist);
        self.arm_tail_probe();
        let mut flags = Flags::ACK;
        if push {
            flags |= Flags::PSH;
        }
        if fin {
            flags |= Flags::FIN;
        }
        let mut ecn = Ecn::NotCapable;
        if len > 0 && resent == 0 {
            let cwr;
            (ecn, cwr) = self.ecn.on_new_data(&self.recovery);
            flags |= if cwr { Flags::CWR } else { Flags::default() };
        }
        Transmit {
            payload_len: len,
            retransmission: resent > 0,
            nbl_context: context,
            ecn,
            ..self.header(start, flags)
        }
    }

    fn on_fin_sent(&mut self) {
        match self.phase {
            TcpPhase::Established => self.phase = TcpPhase::FinWait1,
            TcpPhase::CloseWait => self.phase = TcpPhase::LastAck,
            TcpPhase::FinWait1
            | TcpPhase::FinWait2
            | TcpPhase::Closing
            | TcpPhase::LastAck
            | TcpPhase::TimeWait
            | TcpPhase::Closed => {}
        }
    }

    #[inline]
    fn count_data(&mut self, start: Position, data_end: Position, resent: u64, push: bool) {
        let len = data_end.since(start);
        let resent_data = resent.min(len);
        self.counters.segs_out += len.div_ceil(self.mss).max(1);
        self.counters.bytes_sent += len - resent_data;
        self.counters.bytes_retrans += resent_data;
        if resent > 0 {
            self.counters.total_retrans += resent_data.div_ceil(self.mss).max(1);
        }
        self.counters.push_out += u64::from(push);
    }

    /// RFC 8985 §7.2.
    #[inline]
    pub(super) fn arm_tail_probe(&mut self) {
        let deadline = self.timers.deadline(Timer::Retransmit).and_then(|timeout| {
            self.recovery.probe_deadline(self.now, self.rtt.srtt(), self.mss, timeout)
        });
        match deadline {
            Some(deadline) => self.timers.set(Timer::TailProbe, deadline),
            None => self.timers.stop(Timer::TailProbe),
        }
    }

    /// Header of a segment sent now; carries any pending acknowledgment.
    #[inline]
    fn header(&mut self, start: Position, mut flags: Flags) -> Transmit {
        self.timers.stop(Timer::DelayedAck);
        if self.ecn.echo() && !flags.contains(Flags::RST) {
            flags |= Flags::ECE;
        }
        let window = self.receiver.advertise();
        Transmit {
            seq: start.seq(),
            ack: self.receiver.nxt().seq(),
            flags,
            window,
            timestamps: self
                .constant
                .timestamp_enabled
                .then(|| Timestamps { value: self.clock.value(self.now), echo: self.clock.recent }),
            sack: NO_BLOCKS,
            sack_count: 0,
            payload_len: 0,
            mss: saturate(self.mss),
            retransmission: false,
            nbl_context: None,
            ecn: Ecn::NotCapable,
        }
    }

    /// Builds an ACK without data.
    pub(super) fn transmit_pure_ack(&mut self, seq: Position) -> Transmit {
        let mut sack = NO_BLOCKS;
        let room = SACK_BLOCKS_MAX - usize::from(self.constant.timestamp_enabled);
        let sack_count = self.receiver.sack_blocks(&mut sack[..room]);
        self.counters.segs_out += 1;
        Transmit { sack, sack_count, ..self.header(seq, Flags::ACK) }
    }

    /// Sequence number of a segment without data: SND.MAX, unless the peer's window ends before it.
    pub(super) fn acceptable_seq(&self) -> Position {
        let edge = self.snd.una + self.snd.wnd;
        if self.snd.max <= edge { self.snd.max } else { self.snd.nxt.min(edge).max(self.snd.una) }
    }

    /// True if the peer's window is closed and there is something to send.
    pub(super) fn window_closed(&self) -> bool {
        self.snd.wnd == 0 && self.snd.una < self.send_end()
    }

    /// Starts the persist timer if the window is closed (CH §10.4).
    fn start_persist_timer(&mut self) {
        if self.window_closed()
            && !self.timers.is_running(Timer::Persist)
            && !self.pending.window_probe
        {
            let round = u32::from(self.attempts.probe_round);
            self.timers.set(Timer::Persist, self.now + self.rtt.rto_shifted(round));
        }
    }

    /// RFC 9293 §3.8.6.1: one byte beyond the window; without data an empty segment before it.
    fn transmit_window_probe(&mut self) -> Transmit {
        let start = self.snd.una;
        if start >= self.queue.end() {
            return self.transmit_pure_ack(start.previous());
        }
        let context = self.cut(start, 1).context;
        let resent = (start + 1).min(self.snd.max).since(start);
        self.queue.commit(start, 1);
        // Not counted as in flight: the peer need not keep the byte, but may acknowledge it.
        self.snd.max = self.snd.max.max(start + 1);
        self.count_data(start, start + 1, resent, false);
        Transmit {
            payload_len: 1,
            retransmission: resent > 0,
            nbl_context: context,
            ..self.header(start, Flags::ACK)
        }
    }

    /// Builds the RST of an abortive disconnect: the connection's last segment.
    fn transmit_reset(&mut self) -> Transmit {
        let transmit = self.header(self.acceptable_seq(), Flags::RST | Flags::ACK);
        self.counters.segs_out += 1;
        self.pending = PendingSegments::default();
        if let Some(mut nbl) = self.aborting.take() {
            nbl.complete(NdisStatus::SUCCESS, 0);
            self.events.push_back(Event::DisconnectComplete(nbl));
        }
        self.end();
        transmit
    }
}
