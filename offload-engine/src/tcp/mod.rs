//! One connection's data path: RFC 9293 from ESTABLISHED on, as an offload target runs it.
//!
//! A [`Connection`] does no I/O: it takes segments, requests and the time, and returns segments, events and deadlines.
//! Each input is followed by a drain:
//!
//! 1. [`Connection::handle_segment`] for each received segment, then [`Connection::deliver`] of its in-order data.
//! 2. [`Connection::deliver_backlog`] after calls of the consumer.
//! 3. [`Connection::poll_transmit`] until `None`, once per batch of input: a batch causes one ACK.
//! 4. [`Connection::poll_event`] until `None`, then [`Connection::poll_timeout`].
//!
//! Files:
//!
//! | file | subject |
//! |---|---|
//! | `input` | segment acceptance and acknowledgment processing |
//! | `output` | selection of the next segment |
//! | `expiry` | timer expiry |
//! | `state` | import and export of the connection state |
//! | `upload` | a connection under upload, or with an invalidated object below it |
//! | `config` | limits and policies |
//! | `send` | send queue: memory of the posted bytes |
//! | `receive`, `reassembly` | received data, receive window, ACK policy |
//! | `delivery` | delivery to receive requests or by indication |
//! | `autotune` | receive window size |
//! | `recovery` | loss detection and recovery |
//! | `congestion` | congestion control |
//! | `pacing` | pacing |
//! | `retrieve` | upload requests, and the ideal send backlog |
//! | `chrono`, `trace` | times for `Info`; trace samples |
//! | `rtt`, `timers` | RTT estimation and RTO; timers |
//! | `path_mtu` | path MTU; ICMP errors |
//! | `ecn` | Explicit Congestion Notification |
//!
//! Limits: 64 memory slices per segment; send room of [`SEND_BACKLOG`] bytes beyond the windows; an ACK at least every
//! 32 KiB; 16 responses per second to empty segments outside the window; one challenge ACK for RSTs until an acceptable
//! segment arrives; one per 3 s for SYNs.
//!
//! Timers: retransmission, tail loss probe, reordering, window probe, delayed ACK, keep-alive, pacing, push,
//! low activity, and one for FIN_WAIT_2 and TIME_WAIT.

mod api;
mod autotune;
mod chrono;
mod config;
mod congestion;
mod delivery;
mod ecn;
mod expiry;
mod input;
mod output;
mod pacing;
mod path_mtu;
mod reassembly;
mod receive;
mod recovery;
mod retrieve;
mod rtt;
mod send;
mod seq;
mod state;
#[cfg(test)]
mod tests;
mod timers;
mod trace;
mod upload;

use alloc::{boxed::Box, collections::VecDeque};

use bytes::Bytes;

pub use self::{
    api::{
        CaState, Disconnect, Event, ImportError, Info, Received, Transmit, TxLimits, UploadReason,
    },
    config::{
        Activity, Config, CongestionAlgorithm, CongestionOptions, PathOptions, PushPolicy, Share,
        SmallIo, UploadThresholds,
    },
    delivery::Consumer,
    path_mtu::{
        BLACK_HOLE_TIMEOUTS, BLACK_HOLE_TIMEOUTS_PROVEN, MTU_MIN_IPV4, MTU_MIN_IPV6, RAISE_AFTER,
        REDUCTIONS_PER_FLIGHT_MAX,
    },
    recovery::RecoveryOptions,
    retrieve::UPLOAD_REQUEST_INTERVAL,
    send::SLICES_MAX,
    trace::TraceSample,
};
use self::{
    chrono::Chrono,
    congestion::{Congestion, Controller, Usage},
    delivery::Requests,
    ecn::EcnState,
    input::Challenges,
    pacing::{Pacer, Rate},
    path_mtu::PathMtu,
    receive::{AckDue, Receiver},
    recovery::{Recovery, ScoreboardCounts},
    retrieve::{SendBacklog, UploadMonitor},
    rtt::RttEstimator,
    send::SendQueue,
    seq::Position,
    timers::{Timer, Timers},
};
use crate::{
    nbl::{NblChain, NetBufferList},
    state::{ConnectionState, NeighborState, PathState, TcpCached, TcpConst},
    status::NdisStatus,
    time::{Duration, Instant, nanos},
};
pub use crate::{
    segment::{
        Ecn, Flags, PathError, PathErrorKind, SackBlock, Segment, SeqNum, SoftError, Timestamps,
    },
    state::TcpPhase,
};

/// Bytes that a producer keeps queued beyond the windows: two GSO packets.
pub const SEND_BACKLOG: usize = 2 * 64 * 1024;
/// Largest list in bytes whose completion may be reported after its connection's next segment.
const SMALL_LIST_BYTES_MAX: usize = 1024;

/// Bytes of each segment used by the timestamps option, padding included.
const TIMESTAMPS_OPTION: usize = 12;

/// The send sequence variables of RFC 9293 §3.3.1.
#[derive(Debug)]
struct SendVariables {
    /// Oldest unacknowledged (SND.UNA).
    una: Position,
    /// Next to send (SND.NXT). Below `max` only for bytes to retransmit first (CH-SNB-3) and for the byte of a window
    /// probe.
    nxt: Position,
    /// One beyond the highest ever sent (SND.MAX).
    max: Position,
    /// The peer's window in bytes.
    wnd: u64,
    /// Largest window that the peer advertised, in bytes.
    max_wnd: u64,
    /// Segment sequence number used for the last window update.
    wl1: SeqNum,
    /// Segment acknowledgment number used for the last window update.
    wl2: Position,
    /// End of the last segment sent that was not full-sized (SND.SML of Minshall's rule).
    sml: Position,
}

/// Timestamps (RFC 7323) and their clock (CH §10.9).
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// NicDelta: offset added to the engine's milliseconds.
    delta: u32,
    /// TS.Recent.
    recent: u32,
    /// Time at which `recent` was set.
    recent_at: Instant,
}

impl Clock {
    fn value(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.delta)
    }
}

/// Counters of unanswered retransmissions and probes.
#[derive(Clone, Copy, Default, Debug)]
struct Attempts {
    /// Timeouts of the segment at SND.UNA.
    retransmissions: u8,
    /// Time of its first timeout.
    since: Option<Instant>,
    /// Time spent on it before the offload.
    spent: Duration,
    /// Round of window probes.
    probe_round: u8,
    /// Probes in this round.
    probes: u8,
    /// Time of the first probe of the closed window.
    closed_since: Option<Instant>,
    /// Unanswered keep-alive probes.
    keep_alives: u8,
}

/// Segments other than data that the next calls of `poll_transmit` send.
#[derive(Clone, Copy, Default, Debug)]
struct PendingSegments {
    reset: bool,
    window_probe: bool,
    tail_probe: bool,
    keep_alive: bool,
    /// True if the timer of silly window avoidance has expired.
    small_segment: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClosedEvent {
    /// Not closed.
    No,
    /// `Closed` is raised after all other events.
    Due,
    /// `Closed` was raised.
    Raised,
}

/// Monotonic counters.
#[derive(Clone, Copy, Default, Debug)]
struct Counters {
    segs_out: u64,
    segs_in: u64,
    total_retrans: u64,
    bytes_sent: u64,
    bytes_retrans: u64,
    bytes_acked: u64,
    bytes_received: u64,
    push_out: u64,
    timeouts: u64,
    fast_retransmits: u64,
    challenge_acks: u64,
    path_mtu_reductions: u64,
    black_holes: u64,
    soft_errors: u64,
    path_errors_ignored: u64,
    ce_received: u64,
    delivered_ce: u64,
    ecn_reductions: u64,
}

/// A connection's data path.
#[derive(Debug)]
pub struct Connection {
    neighbor: NeighborState,
    path: PathState,
    constant: TcpConst,
    cached: TcpCached,
    config: Config,
    phase: TcpPhase,
    /// Time of the latest call.
    now: Instant,
    /// Effective send MSS in bytes, never 0.
    mss: u64,
    path_mtu: PathMtu,
    ecn: EcnState,
    snd: SendVariables,
    queue: SendQueue,
    /// True if a FIN follows the last byte of the queue.
    fin_requested: bool,
    receiver: Receiver,
    requests: Requests,
    recovery: Recovery,
    congestion: Controller,
    usage: Usage,
    pacer: Pacer,
    chrono: Chrono,
    /// Time at which data was last sent, initially the time of the offload.
    last_sent: Instant,
    last_data_sent: Option<Instant>,
    /// Arrival times of the peer's last data and last acknowledgment.
    last_data_recv: Option<Instant>,
    last_ack_recv: Option<Instant>,
    rtt: RttEstimator,
    /// In-flight limit in bytes from the minimum RTT; unlimited before the first sample.
    in_flight_max: u64,
    clock: Clock,
    timers: Timers,
    attempts: Attempts,
    challenges: Challenges,
    pending: PendingSegments,
    /// Abortive disconnect until its RST is sent.
    aborting: Option<NetBufferList>,
    /// True after a mandatory upload reason: no segment is processed (CH-EVT-1).
    stopped: bool,
    /// Conditions that keep an open connection from sending.
    hold: upload::Hold,
    /// True if the cached class was updated since [`Connection::take_cached_changed`].
    cached_changed: bool,
    peer_closed_raised: bool,
    /// True after a received RST or an abortive disconnect. Undelivered data is dropped, and receives complete
    /// REQUEST_ABORTED.
    aborted: bool,
    closed_event: ClosedEvent,
    events: VecDeque<Event>,
    counters: Counters,
    upload_monitor: UploadMonitor,
    send_backlog: SendBacklog,
}

impl Connection {
    /// Offloads a connection. `path_mtu_payload` is the path MTU less the IP header and the 20 bytes of a TCP header
    /// without options. The effective send MSS is the smaller of it and the peer's MSS, less the timestamps option.
    ///
    /// Data in [SND.UNA, SND.NXT) counts as in flight; [SND.NXT, SND.MAX) is sent first (CH-SNB-3). Buffered receive
    /// data becomes the backlog (CH-DEL-3). In FIN_WAIT_1, CLOSING and LAST_ACK, a FIN follows the data; it counts as
    /// sent if SND.MAX covers it.
    ///
    /// # Errors
    /// Returns [`ImportError`] and the unchanged state if the state is inconsistent.
    pub fn from_state(
        now: Instant,
        state: Box<ConnectionState>,
        path_mtu_payload: usize,
        config: Config,
    ) -> Result<Self, (ImportError, Box<ConnectionState>)> {
        match state::check(&state) {
            Ok(()) => Ok(state::import(now, *state, path_mtu_payload, config)),
            Err(error) => Err((error, state)),
        }
    }

    /// Posts a chain. It is always accepted (PENDING) and sent in order. Each list completes exactly once and in order
    /// (CH-SND-1, -2). After a graceful disconnect, or on a closed connection, the lists complete REQUEST_ABORTED
    /// without being sent (CH-DIS-6).
    pub fn post_send(&mut self, now: Instant, mut chain: NblChain) {
        self.now = now;
        if self.fin_requested || self.is_ended() {
            for list in &mut chain {
                list.complete(NdisStatus::REQUEST_ABORTED, 0);
            }
            self.events.push_back(Event::SendComplete(chain));
            return;
        }
        self.queue.post(chain);
        self.complete_sends();
    }

    /// Returns an empty chain with recycled storage. A poster that takes its chains from here, and returns those of
    /// completions with [`Connection::recycle_chain`], allocates none in steady state.
    pub fn empty_chain(&mut self) -> NblChain {
        self.queue.empty_chain()
    }

    /// Recycles a chain that the poster has emptied.
    pub fn recycle_chain(&mut self, mut chain: NblChain) {
        chain.clear();
        self.queue.recycle_chain(chain);
    }

    /// Starts a disconnect (CH §8.1).
    ///
    /// Graceful: sends the data of `nbl`, with the FIN on the last segment; completes SUCCESS when both are
    /// acknowledged. Abortive: outstanding sends complete REQUEST_ABORTED, a RST is sent, then `nbl` completes SUCCESS.
    /// A second graceful disconnect, and any disconnect of a closed connection, completes REQUEST_ABORTED (CH-DIS-6).
    pub fn disconnect(&mut self, now: Instant, kind: Disconnect, mut nbl: NetBufferList) {
        self.now = now;
        let refused = self.is_ended() || (self.fin_requested && kind == Disconnect::Graceful);
        if refused {
            nbl.complete(NdisStatus::REQUEST_ABORTED, 0);
            self.events.push_back(Event::DisconnectComplete(nbl));
            return;
        }
        match kind {
            Disconnect::Graceful => {
                self.queue.post_disconnect(nbl);
                self.fin_requested = true;
                self.return_disconnect();
            }
            Disconnect::Abortive => {
                self.abort_requests();
                self.abort_receives();
                self.timers.stop_all();
                self.aborting = Some(nbl);
                self.pending = PendingSegments { reset: true, ..PendingSegments::default() };
            }
        }
    }

    /// Finishes the processing of a segment that [`Connection::handle_segment`] started. `refused` is the tail of the
    /// in-order payload that the consumer refused; `push` is true if it ends with a PSH. It is copied to the backlog,
    /// followed by data that has become contiguous. Call it after every segment, even if nothing was refused.
    pub fn settle(&mut self, refused: &[u8], push: bool) {
        if self.stopped || self.is_ended() {
            return;
        }
        let before = self.receiver.nxt();
        let had_fin = self.receiver.fin_reached();
        self.receiver.settle(self.now, refused, push);
        let fin = self.receiver.fin_reached() && !had_fin;
        self.counters.bytes_received += self.receiver.nxt().since(before) - u64::from(fin);
        if fin {
            self.on_peer_fin();
        }
        self.raise_peer_closed();
        self.update_delayed_ack();
    }

    /// Returns the oldest undelivered bytes, and true if they end with a PSH (CH-DEL-4). `None` if the backlog is
    /// empty.
    pub fn backlog(&self) -> Option<(&Bytes, bool)> {
        self.receiver.backlog()
    }

    /// Removes `count` consumed bytes from the front of the backlog, at most that piece's length. The window opens by
    /// as much.
    pub fn backlog_consumed(&mut self, count: usize) {
        self.receiver.consumed(self.now, count);
        self.raise_peer_closed();
    }

    /// Stops indications after a refusal, until the consumer resumes (CH-IND-1).
    pub fn block_receive(&mut self) {
        self.receiver.set_blocked(true);
    }

    /// True if the consumer has refused data and not resumed.
    pub fn receive_blocked(&self) -> bool {
        self.receiver.is_blocked()
    }

    /// True if undelivered data may be indicated.
    pub fn may_deliver(&self) -> bool {
        !self.receiver.is_blocked() && self.receiver.backlog_bytes() > 0
    }

    /// Resumes indications (CH-IND-2).
    pub fn resume_receive(&mut self) {
        self.receiver.set_blocked(false);
    }

    /// Returns the next event; completed receive requests first. [`Event::Closed`] is returned once, after all other
    /// events and after the backlog is consumed.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(chain) = self.poll_receive_complete() {
            return Some(Event::ReceiveComplete(chain));
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let finished = self.closed_event == ClosedEvent::Due && self.receiver.backlog_bytes() == 0;
        if !finished {
            return None;
        }
        self.closed_event = ClosedEvent::Raised;
        Some(Event::Closed)
    }

    /// Deadline of [`Connection::handle_timeout`]; may be in the past.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Returns the bytes that a producer may post before the backlog is full: [`SEND_BACKLOG`], plus the part of the
    /// windows not yet queued. Posting more is legal. Not 0 once everything is acknowledged; 0 after a disconnect.
    pub fn send_room(&self) -> usize {
        if self.fin_requested || self.stopped || self.hold.any() || self.is_ended() {
            return 0;
        }
        let window = self.send_window().min(self.snd.wnd);
        let allowed = window.saturating_sub(self.recovery.occupied());
        let unsent = self.queue.end().since(self.snd.nxt);
        saturate((allowed.saturating_add(SEND_BACKLOG as u64)).saturating_sub(unsent))
    }

    /// Recent minimum RTT.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.rtt.min()
    }

    /// Copies unacknowledged bytes out of shared memory if they are at most `bytes_max`, and returns true if so. The
    /// poster may then reuse the memory, although the lists are not complete.
    pub fn detach_tail(&mut self, bytes_max: usize) -> bool {
        let few = self.send_outstanding() <= bytes_max;
        if few {
            self.queue.detach(self.snd.una);
        }
        few
    }

    /// Copies bytes out of shared memory that its owner has withdrawn
    /// ([`SharedSpan::withdraw`](crate::memory::SharedSpan::withdraw)).
    pub fn detach_withdrawn(&mut self) {
        self.queue.detach_withdrawn();
    }

    /// True if an ACK is delayed, so that a response may carry it, and nothing else is outstanding.
    pub fn only_delayed_ack_pending(&self) -> bool {
        self.phase == TcpPhase::Established
            && self.receiver.ack_due() == AckDue::Delayed
            && self.snd.una == self.send_end()
            && !self.stopped
            && !self.hold.any()
    }

    /// True if the only pending event is a small send completion, and nothing is in flight. Large completions are
    /// reported immediately: their storage is reused by the next sends.
    pub fn only_small_send_pending(&self) -> bool {
        let Some(Event::SendComplete(chain)) = self.events.front() else { return false };
        let is_small = |list: &NetBufferList| list.data_length() <= SMALL_LIST_BYTES_MAX;
        self.phase == TcpPhase::Established
            && self.snd.una == self.snd.max
            && self.events.len() == 1
            && chain.len() == 1
            && chain.front().is_some_and(is_small)
    }

    /// Bytes posted and not yet acknowledged.
    pub fn send_outstanding(&self) -> usize {
        saturate(self.queue.end().since(self.snd.una))
    }

    /// Bytes posted and not yet sent, and 1 for a FIN.
    #[inline]
    pub fn unsent(&self) -> u64 {
        self.send_end().since(self.snd.nxt)
    }

    /// Bytes of data sent, each counted once.
    #[inline]
    pub fn bytes_sent(&self) -> u64 {
        self.counters.bytes_sent
    }

    /// Bytes in flight. 0 from a retransmission timeout to the next acknowledgment: the peer may be unreachable.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        if self.attempts.retransmissions == 0 { self.recovery.in_flight() } else { 0 }
    }

    /// Bytes that may be in flight on the path by its minimum RTT ([`Config::link_rate`]); `None` before the first
    /// sample.
    #[inline]
    pub fn in_flight_max(&self) -> Option<u64> {
        self.rtt.min().map(|_| self.in_flight_max)
    }

    /// Payload bytes of a full-sized segment after options.
    pub fn effective_mss(&self) -> usize {
        saturate(self.mss)
    }

    /// The members of TCP_INFO.
    pub fn info(&self, now: Instant) -> Info {
        let Counters {
            segs_out,
            segs_in,
            total_retrans,
            bytes_sent,
            bytes_retrans,
            bytes_acked,
            bytes_received,
            push_out,
            timeouts,
            fast_retransmits,
            challenge_acks,
            path_mtu_reductions,
            black_holes,
            soft_errors,
            path_errors_ignored,
            ce_received,
            delivered_ce,
            ecn_reductions,
        } = self.counters;
        let recovery::Counts {
            undo_by_timestamp,
            undo_by_dsack,
            undo_by_f_rto,
            spurious_timeouts,
            dsack_dups,
            reord_seen,
        } = self.recovery.counts();
        let (busy_time, rwnd_limited) = self.chrono.times(now);
        let ScoreboardCounts { sacked, lost, resent } = self.recovery.scoreboard_counts();
        Info {
            phase: self.phase,
            rto: self.rtt.rto(),
            rtt: self.rtt.srtt(),
            rttvar: self.rtt.rttvar(),
            snd_mss: self.effective_mss(),
            snd_cwnd: self.send_window(),
            snd_ssthresh: self.congestion.ssthresh(),
            snd_wnd: self.snd.wnd,
            rcv_wnd: self.receiver.window(),
            segs_out,
            segs_in,
            total_retrans,
            bytes_sent,
            bytes_retrans,
            bytes_acked,
            bytes_received,
            push_out,
            timeouts,
            fast_retransmits,
            challenge_acks,
            rcv_mss: saturate(self.receiver.full_size()),
            rcv_rtt: self.receiver.rtt(),
            rcv_space: self.receiver.limit(),
            pmtu: self.path_mtu(),
            path_mtu_reductions,
            black_holes,
            soft_errors,
            soft_error: self.path_mtu.soft_error(self.snd.una),
            path_errors_ignored,
            ecn: self.ecn.is_enabled(),
            ce_received,
            delivered_ce,
            ecn_reductions,
            undo_by_timestamp,
            undo_by_dsack,
            undo_by_f_rto,
            spurious_timeouts,
            dsack_dups,
            reord_seen,
            ca_state: self.ca_state(),
            min_rtt: self.rtt.min(),
            unacked: self.segments(self.snd.nxt.since(self.snd.una)),
            sacked: self.segments(sacked),
            lost: self.segments(lost),
            retrans: self.segments(resent),
            bytes_delivered: self.bytes_delivered(),
            pacing_rate: self.pacing_rate().map(Rate::bytes_per_second),
            advmss: self.constant.local_mss.into(),
            last_data_sent: self.last_data_sent.map(|at| now - at),
            last_data_recv: self.last_data_recv.map(|at| now - at),
            last_ack_recv: self.last_ack_recv.map(|at| now - at),
            busy_time,
            rwnd_limited,
        }
    }

    /// In-flight limit in bytes, without the peer's window: PRR's in fast recovery, otherwise the congestion
    /// controller's.
    #[inline]
    fn send_window(&self) -> u64 {
        let window = self.recovery.window().unwrap_or_else(|| self.congestion.cwnd());
        window.min(self.in_flight_max)
    }

    /// Updates the in-flight limit after a change of the minimum RTT.
    fn limit_flight(&mut self) {
        let Config { in_flight_min, link_rate, .. } = self.config;
        self.in_flight_max = self.rtt.min().map_or(u64::MAX, |rtt| {
            (link_rate.saturating_mul(nanos(rtt)) / 1_000_000_000).max(in_flight_min)
        });
    }

    /// True if no request can be served: closed, or a RST is due.
    fn is_ended(&self) -> bool {
        // A connection that stopped in CLOSED keeps its requests for the upload.
        self.phase == TcpPhase::Closed && !self.stopped || self.aborting.is_some()
    }

    /// True if both sides have closed, without a RST or an expired limit.
    fn closed_gracefully(&self) -> bool {
        self.closed_event == ClosedEvent::Due && !self.aborted
    }

    /// True if our FIN was sent.
    fn fin_sent(&self) -> bool {
        self.fin_requested && self.snd.max > self.queue.end()
    }

    /// End of the data to be sent, FIN included.
    fn send_end(&self) -> Position {
        self.queue.end() + u64::from(self.fin_requested)
    }

    /// Reports acknowledged lists in order, after those not polled yet.
    #[inline]
    fn complete_sends(&mut self) {
        if !self.queue.completes(self.snd.una) {
            return;
        }
        if let Some(Event::SendComplete(done)) = self.events.back_mut() {
            self.queue.acknowledge(self.snd.una, done);
            return;
        }
        let mut done = self.queue.empty_chain();
        self.queue.acknowledge(self.snd.una, &mut done);
        self.events.push_back(Event::SendComplete(done));
    }

    /// Fails outstanding requests: lists in order, then a graceful disconnect (CH-SNC-2, CH-DIS-6).
    fn abort_requests(&mut self) {
        let mut done = self.queue.empty_chain();
        let disconnect = self.queue.abort(self.snd.una, &mut done);
        if !done.is_empty() {
            self.events.push_back(Event::SendComplete(done));
        }
        self.events.extend(disconnect.map(Event::DisconnectComplete));
    }

    /// Processes the peer's FIN (RFC 9293 §3.10.7.4, eighth).
    fn on_peer_fin(&mut self) {
        match self.phase {
            TcpPhase::Established => self.phase = TcpPhase::CloseWait,
            TcpPhase::FinWait1 => self.phase = TcpPhase::Closing,
            TcpPhase::FinWait2 => self.enter_time_wait(),
            TcpPhase::CloseWait
            | TcpPhase::Closing
            | TcpPhase::LastAck
            | TcpPhase::TimeWait
            | TcpPhase::Closed => {}
        }
    }

    /// Processes the acknowledgment of our FIN.
    fn on_fin_acked(&mut self) {
        self.events.extend(self.queue.acknowledge_fin().map(Event::DisconnectComplete));
        match self.phase {
            TcpPhase::FinWait1 => {
                self.phase = TcpPhase::FinWait2;
                self.timers.set(Timer::Close, self.now + self.config.fin_wait_2);
            }
            TcpPhase::Closing => self.enter_time_wait(),
            TcpPhase::LastAck => self.end(),
            TcpPhase::Established
            | TcpPhase::FinWait2
            | TcpPhase::CloseWait
            | TcpPhase::TimeWait
            | TcpPhase::Closed => {}
        }
    }

    fn enter_time_wait(&mut self) {
        self.phase = TcpPhase::TimeWait;
        self.timers.stop_all();
        self.timers.set(Timer::Close, self.now + self.config.time_wait);
        self.request_time_wait_upload();
    }

    /// CH-EVT-3: requests the upload of a connection in TIME-WAIT once its consumer has taken all data, when little
    /// state remains. The state is kept until the host uploads it.
    fn request_time_wait_upload(&mut self) {
        let is_over = self.phase == TcpPhase::TimeWait && self.peer_closed_raised;
        if is_over && self.config.time_wait_uploads {
            self.events.push_back(Event::Retrieve(UploadReason::UploadRequested));
        }
    }

    /// Closes the connection.
    fn end(&mut self) {
        self.phase = TcpPhase::Closed;
        self.stopped = false;
        self.timers.stop_all();
        self.pending = PendingSegments::default();
        if self.closed_event == ClosedEvent::No {
            self.closed_event = ClosedEvent::Due;
        }
    }

    /// Processes an acceptable RST (CH §8.2, CH-EVT-7).
    fn on_reset(&mut self) {
        // RFC 9293 §3.10.7.4, second: no event. Both sides are done; a retransmission of ours reached a peer that has
        // dropped its state. Data not yet consumed is kept.
        if self.phase == TcpPhase::TimeWait {
            self.end();
            return;
        }
        self.abort_requests();
        self.abort_receives();
        self.events.push_back(Event::Reset);
        self.end();
    }

    /// Stops the connection for a mandatory upload reason (CH-EVT-1). An abortive disconnect still works.
    fn stop(&mut self, reason: UploadReason) {
        self.stopped = true;
        self.timers.stop_all();
        self.pending = PendingSegments::default();
        self.events.push_back(Event::Retrieve(reason));
    }

    /// Stops a closed connection for a mandatory upload reason; it is uploaded in state CLOSED (CH §9.2, §10.7).
    fn stop_closed(&mut self, reason: UploadReason) {
        self.stop(reason);
        self.phase = TcpPhase::Closed;
    }

    /// CH-EVT-6: raised once, after everything before the FIN is consumed.
    #[inline]
    fn raise_peer_closed(&mut self) {
        let reached = self.receiver.fin_reached() && self.receiver.backlog_bytes() == 0;
        if reached && !self.peer_closed_raised {
            self.peer_closed_raised = true;
            self.end_receives();
            self.events.push_back(Event::PeerClosed);
            self.request_time_wait_upload();
        }
    }

    /// Starts or stops the delayed-ACK timer by the receiver's pending ACK.
    #[inline]
    fn update_delayed_ack(&mut self) {
        match self.receiver.ack_due() {
            AckDue::Delayed if !self.timers.is_running(Timer::DelayedAck) => {
                self.timers.set(Timer::DelayedAck, self.now + self.config.delayed_ack);
            }
            AckDue::Delayed => {}
            AckDue::No | AckDue::Now => self.timers.stop(Timer::DelayedAck),
        }
    }
}

/// Converts `value` to a `usize`, saturating.
fn saturate(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
