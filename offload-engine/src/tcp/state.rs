//! Import and export of the connection state.
//!
//! Every structure is destructured and built member by member, so that a forgotten member is a compile error. Ticks are
//! milliseconds. SND.UNA, SND.NXT and SND.MAX, the right edge of the window, the timestamp clock and TS.Recent continue
//! exactly. RTT, windows and timers continue with the resolution of the chimney's ticks.

use alloc::{boxed::Box, collections::VecDeque, vec::Vec};

use super::{
    Attempts, Challenges, Chrono, Clock, ClosedEvent, Config, Connection, Controller, Counters,
    EcnState, ImportError, Pacer, PathMtu, PendingSegments, Position, Receiver, Recovery, Requests,
    RttEstimator, SendBacklog, SendQueue, SendVariables, TcpPhase, Timer, Timers, UploadMonitor,
    congestion::{Congestion, Usage},
    path_mtu::effective_mss,
    upload::Hold,
};
use crate::{
    nbl::{NblChain, NetBufferList},
    state::{ConnectionState, TcpDelegated, TcpState, TcpUpdate, TimerState},
    time::{Duration, Instant},
};

/// Largest window scale (RFC 7323 §2.3).
const WINDOW_SCALE_MAX: u8 = 14;
/// Largest window that can be advertised, in bytes.
const WINDOW_MAX: u64 = 65_535 << WINDOW_SCALE_MAX;

/// True if SND.MAX may cover our FIN.
const fn fin_requested(phase: TcpPhase) -> bool {
    matches!(phase, TcpPhase::FinWait1 | TcpPhase::Closing | TcpPhase::LastAck)
}

/// True if our FIN is acknowledged.
const fn fin_acknowledged(phase: TcpPhase) -> bool {
    matches!(phase, TcpPhase::FinWait2 | TcpPhase::TimeWait)
}

/// Validates the consistency of a state.
pub(super) fn check(state: &ConnectionState) -> Result<(), ImportError> {
    let tcp = &state.tcp;
    let delegated = &tcp.delegated;
    if delegated.state == TcpPhase::Closed {
        return Err(ImportError::Phase);
    }
    if tcp.constant.snd_wind_scale > WINDOW_SCALE_MAX
        || tcp.constant.rcv_wind_scale > WINDOW_SCALE_MAX
    {
        return Err(ImportError::WindowScale);
    }
    check_send(delegated, &state.send_data)?;
    check_receive(state)
}

fn check_send(delegated: &TcpDelegated, send_data: &NblChain) -> Result<(), ImportError> {
    let data: u64 = send_data.iter().map(|list| list.data_length() as u64).sum();
    let fin = u64::from(fin_requested(delegated.state));
    let nxt = u64::try_from(delegated.snd_nxt.distance(delegated.snd_una));
    let max = u64::try_from(delegated.snd_max.distance(delegated.snd_una));
    let (Ok(nxt), Ok(max)) = (nxt, max) else { return Err(ImportError::SendSequence) };
    let nothing_left = data == 0 && max == 0;
    let ordered = nxt <= max && max <= data + fin;
    if !ordered || (fin_acknowledged(delegated.state) && !nothing_left) {
        return Err(ImportError::SendSequence);
    }
    Ok(())
}

fn check_receive(state: &ConnectionState) -> Result<(), ImportError> {
    let delegated = &state.tcp.delegated;
    let window = u64::from(delegated.rcv_wnd);
    let buffered: u64 = state.buffered_data.iter().map(|data| data.len() as u64).sum();
    let beyond = state.out_of_order.iter().any(|(start, data)| {
        let start = i64::from(start.distance(delegated.rcv_nxt));
        start <= 0 || start as u64 + data.len() as u64 > window
    });
    if beyond || window > WINDOW_MAX || buffered > WINDOW_MAX {
        return Err(ImportError::ReceiveData);
    }
    Ok(())
}

/// Retransmissions before the offload; known in TIME-WAIT only.
const fn retransmissions_before(phase: TcpPhase, retransmit: TimerState) -> u64 {
    if matches!(phase, TcpPhase::TimeWait) { retransmit.count as u64 } else { 0 }
}

/// Imports a state that [`check`] has accepted.
pub(super) fn import(
    now: Instant,
    state: ConnectionState,
    path_mtu_payload: usize,
    config: Config,
) -> Connection {
    let ConnectionState { neighbor, path, tcp, send_data, buffered_data, out_of_order } = state;
    let TcpState { mut constant, cached, delegated } = tcp;
    let TcpDelegated {
        state: phase,
        rcv_nxt,
        rcv_wnd,
        snd_una,
        snd_nxt,
        snd_max,
        snd_wnd,
        max_snd_wnd,
        snd_wl1,
        cwnd,
        ss_thresh,
        srtt,
        rtt_var,
        ts_recent,
        ts_recent_age,
        ts_time,
        total_rt,
        dup_ack_count,
        snd_wnd_probe_count,
        keep_alive,
        retransmit,
        ecn_echo,
    } = delegated;
    if !constant.window_scaling_enabled {
        constant.snd_wind_scale = 0;
        constant.rcv_wind_scale = 0;
    }
    let mss = effective_mss(&constant, path_mtu_payload);
    let una = Position::first(snd_una);

    let queue_start = if fin_acknowledged(phase) { una.previous() } else { una };
    let mut queue = SendQueue::new(queue_start);
    queue.post(send_data);

    let rcv_nxt = Position::first(rcv_nxt);
    let mut receiver =
        Receiver::new(rcv_nxt, rcv_wnd, constant.rcv_wind_scale, constant.sack_enabled, &config);
    receiver.set_limit(cached.initial_rcv_wnd);
    receiver.set_mss(u64::from(constant.local_mss));
    // CH-DEL-3: buffered data is kept for receive requests, as if refused.
    receiver.set_blocked(!buffered_data.is_empty());
    buffered_data.into_iter().for_each(|data| receiver.adopt_buffered(data));
    for (start, data) in &out_of_order {
        receiver.adopt_out_of_order(rcv_nxt.locate(*start), data);
    }
    if phase.has_peer_closed() {
        receiver.set_fin_reached();
    }

    let mut rtt = RttEstimator::new(config.rto_min, config.rto_max);
    rtt.import(srtt, rtt_var);
    let mut recovery =
        Recovery::new(una, constant.sack_enabled, config.duplicate_ack_threshold, config.recovery);
    let nxt = una.locate(snd_nxt);
    if nxt > una {
        // Transmission times are unknown: these bytes give no RTT sample.
        recovery.sent(una, nxt, true, now);
        recovery.set_duplicate_acks(dup_ack_count);
    }
    let mut connection = Connection {
        neighbor,
        path,
        constant,
        cached,
        config,
        phase,
        now,
        mss,
        path_mtu: PathMtu::new(path_mtu_payload, path.constant.source_address.is_ipv6(), una),
        ecn: EcnState::new(constant.ecn_enabled, ecn_echo),
        snd: SendVariables {
            una,
            nxt,
            max: una.locate(snd_max),
            wnd: u64::from(snd_wnd),
            max_wnd: u64::from(max_snd_wnd.max(snd_wnd)),
            wl1: snd_wl1,
            wl2: una,
            sml: una,
        },
        queue,
        fin_requested: fin_requested(phase) || fin_acknowledged(phase),
        receiver,
        requests: Requests::default(),
        recovery,
        congestion: Controller::new(
            config.congestion,
            config.congestion_options,
            mss,
            cwnd,
            ss_thresh,
        ),
        usage: Usage::new(now, nxt),
        pacer: Pacer::new(now),
        chrono: Chrono::new(now),
        last_sent: now,
        last_data_sent: None,
        last_data_recv: None,
        last_ack_recv: None,
        rtt,
        in_flight_max: u64::MAX,
        clock: Clock {
            delta: ts_time.wrapping_sub(now.as_millis() as u32),
            recent: ts_recent,
            recent_at: before(now, ts_recent_age),
        },
        timers: Timers::default(),
        attempts: Attempts { spent: ticks(total_rt), ..Attempts::default() },
        challenges: Challenges::default(),
        pending: PendingSegments::default(),
        aborting: None,
        stopped: false,
        hold: Hold::default(),
        cached_changed: false,
        peer_closed_raised: false,
        aborted: false,
        closed_event: ClosedEvent::No,
        events: VecDeque::new(),
        counters: Counters {
            total_retrans: retransmissions_before(phase, retransmit),
            ..Counters::default()
        },
        upload_monitor: UploadMonitor::default(),
        send_backlog: SendBacklog::default(),
    };
    connection.start_upload_monitor();
    connection.import_timers(keep_alive, retransmit, snd_wnd_probe_count);
    connection.complete_sends();
    connection.settle(&[], false);
    connection
}

const fn ticks(count: u32) -> Duration {
    Duration::from_millis(count as u64)
}

/// Time `age` ticks before `now`, or the origin.
fn before(now: Instant, age: u32) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_sub(u64::from(age) * 1_000_000))
}

impl Connection {
    /// Imports the keep-alive, retransmission, persist and FIN_WAIT_2 timers (CH §10.1).
    fn import_timers(&mut self, keep_alive: TimerState, retransmit: TimerState, round: u8) {
        let now = self.now;
        self.attempts.keep_alives = keep_alive.count;
        match keep_alive.timeout_delta {
            Some(left) => self.timers.set(Timer::KeepAlive, now + ticks(left)),
            // TIME-WAIT has one timer.
            None if self.phase == TcpPhase::TimeWait => {}
            None => self.restart_keep_alive(),
        }
        let deadline = |default: Duration| now + retransmit.timeout_delta.map_or(default, ticks);
        match self.phase {
            TcpPhase::FinWait2 => self.timers.set(Timer::Close, deadline(self.config.fin_wait_2)),
            TcpPhase::TimeWait => self.timers.set(Timer::Close, deadline(self.config.time_wait)),
            TcpPhase::Established
            | TcpPhase::FinWait1
            | TcpPhase::CloseWait
            | TcpPhase::Closing
            | TcpPhase::LastAck
            | TcpPhase::Closed => {}
        }
        if self.snd.wnd == 0 {
            self.attempts.probe_round = round;
        }
        if self.window_closed() {
            self.attempts.probes = retransmit.count;
            self.attempts.closed_since = (!self.attempts.spent.is_zero()).then_some(now);
            let default = self.rtt.rto_shifted(u32::from(round));
            self.timers.set(Timer::Persist, deadline(default));
        } else if !self.recovery.is_idle() {
            self.attempts.retransmissions = retransmit.count;
            self.attempts.since = (retransmit.count > 0).then_some(now);
            self.rtt.set_backoff(retransmit.count);
            self.timers.set(Timer::Retransmit, deadline(self.rtt.rto()));
            self.arm_tail_probe();
        }
    }

    /// Returns the connection's state in its three classes at `now`, for a query (CH §5.2).
    pub fn tcp_state(&self, now: Instant) -> TcpState {
        let (srtt, rtt_var) = self.rtt.export();
        let Attempts { since, closed_since, .. } = self.attempts;
        let since = if self.window_closed() { closed_since } else { since };
        let spent = since.map_or(Duration::ZERO, |since| now - since);
        TcpState {
            constant: self.constant,
            cached: self.cached,
            delegated: TcpDelegated {
                state: self.phase,
                rcv_nxt: self.receiver.nxt().seq(),
                rcv_wnd: clamp(self.receiver.window()),
                snd_una: self.snd.una.seq(),
                snd_nxt: self.snd.nxt.seq(),
                snd_max: self.snd.max.seq(),
                snd_wnd: clamp(self.snd.wnd),
                max_snd_wnd: clamp(self.snd.max_wnd),
                snd_wl1: self.snd.wl1,
                cwnd: clamp(self.congestion.cwnd()),
                ss_thresh: self.congestion.ssthresh().map_or(u32::MAX, clamp),
                srtt,
                rtt_var,
                ts_recent: self.clock.recent,
                ts_recent_age: millis(now - self.clock.recent_at),
                ts_time: self.clock.value(now),
                total_rt: millis(self.attempts.spent + spent),
                dup_ack_count: u8::try_from(self.recovery.duplicate_acks()).unwrap_or(u8::MAX),
                snd_wnd_probe_count: self.attempts.probe_round,
                keep_alive: TimerState {
                    count: self.attempts.keep_alives,
                    timeout_delta: self.ticks_left(Timer::KeepAlive, now),
                },
                retransmit: self.retransmit_state(now),
                ecn_echo: self.ecn.echo(),
            },
        }
    }

    /// Applies an update of the cached class (CH §5.3). Its flags take effect immediately; the values apply from now
    /// on.
    pub fn update_cached(&mut self, now: Instant, update: &TcpUpdate) {
        self.now = now;
        let TcpUpdate { cached, keep_alive_restart, max_rt_restart, update_rcv_wnd } = *update;
        let old = core::mem::replace(&mut self.cached, cached);
        self.cached_changed = true;
        if keep_alive_restart && !self.stopped && !self.is_ended() {
            // CH-UPD-6.
            self.attempts.keep_alives = 0;
            self.restart_keep_alive();
        }
        if max_rt_restart {
            self.attempts.spent = Duration::ZERO;
            self.attempts.since = self.attempts.since.map(|_| now);
            self.attempts.closed_since = self.attempts.closed_since.map(|_| now);
        }
        if old.initial_rcv_wnd != cached.initial_rcv_wnd {
            self.receiver.fix_limit(cached.initial_rcv_wnd);
        }
        if update_rcv_wnd {
            self.receiver.ack_now();
        }
    }

    /// Timer currently represented by the chimney's retransmit slot (CH §10.1).
    fn retransmit_state(&self, now: Instant) -> TimerState {
        let (count, timer) = if fin_acknowledged(self.phase) {
            // In TIME-WAIT, a count above 0 means that the last ACK may have been lost too
            // (`Connection::repeat_last_ack`).
            let is_over = self.phase == TcpPhase::TimeWait;
            let lost = if is_over { self.counters.total_retrans } else { 0 };
            (u8::try_from(lost).unwrap_or(u8::MAX), Timer::Close)
        } else if self.window_closed() {
            (self.attempts.probes, Timer::Persist)
        } else {
            (self.attempts.retransmissions, Timer::Retransmit)
        };
        TimerState { count, timeout_delta: self.ticks_left(timer, now) }
    }

    /// Exports the connection (terminate, CH §5.5).
    ///
    /// The state includes all unacknowledged and undelivered data. Without a preceding [`Connection::prepare_upload`],
    /// also returns the list of an incomplete graceful disconnect, to be completed UPLOAD_IN_PROGRESS. The data of that
    /// list is part of the send data, and the state is one in which a FIN follows.
    ///
    /// Drain events and send a pending ACK first (CH-TRM-3).
    pub fn into_state(mut self, now: Instant) -> (Box<ConnectionState>, Option<NetBufferList>) {
        let mut tcp = self.tcp_state(now);
        if self.fin_requested {
            tcp.delegated.state = match self.phase {
                TcpPhase::Established => TcpPhase::FinWait1,
                TcpPhase::CloseWait => TcpPhase::LastAck,
                // CLOSED is the state of a failed connection (CH §9.2, §10.7). Here both FINs are acknowledged, and
                // only received data remains for the consumer.
                TcpPhase::Closed if self.closed_gracefully() => TcpPhase::TimeWait,
                phase => phase,
            };
        }
        let (mut send_data, disconnect) = self.queue.take(self.snd.una);
        send_data.extend(disconnect.iter().filter(|list| list.data_length() > 0).cloned());
        let (buffered_data, out_of_order) = self.receiver.take();
        let out_of_order: Vec<_> =
            out_of_order.into_iter().map(|(start, data)| (start.seq(), data)).collect();
        let state = ConnectionState {
            neighbor: self.neighbor,
            path: self.path,
            tcp,
            send_data,
            buffered_data,
            out_of_order,
        };
        (Box::new(state), disconnect)
    }
}

fn clamp(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
