//! Export of a connection from smoltcp: reads the state of its socket.
//!
//! The first probe, a challenge ACK, does not change the socket. Its answer is compared with the recorded wire state
//! and the caller's byte counts. If they disagree the export is refused, and the connection continues in the host. Only
//! after that is the received data read from the socket. Send data is not read from it: the caller has the net buffer
//! lists from which they were written.
//!
//! Clock: the socket's time advances by 2 s, past the limit of one challenge ACK per second (P6).

use alloc::{boxed::Box, collections::VecDeque, vec, vec::Vec};
use core::net::SocketAddr;

use bytes::Bytes;
use offload_engine::{
    frame::FlowKey,
    nbl::NblChain,
    state::{
        ConnectionState, MacAddress, NeighborCached, NeighborConst, NeighborDelegated,
        NeighborState, PathCached, PathConst, PathState, TcpCached, TcpConst, TcpDelegated,
        TcpState, Ticks, TimerState,
    },
    tcp::{SeqNum, TcpPhase},
    time::Instant,
};
use smoltcp::{
    iface::{Interface, SocketHandle, SocketSet},
    socket::tcp::{CongestionControl, Socket, State},
    time::{Duration, Instant as SmolInstant},
};

use super::{BLOCKS_MAX, PIECE_MAX, stage::Stage, take};
use crate::{
    clock::to_smoltcp,
    device::QueueDevice,
    observer::{Agreed, Flow, RTO_TICKS, SendWindow},
};

/// Longer than smoltcp's interval of one challenge ACK per second.
const CHALLENGE_PAUSE: Duration = Duration::from_secs(2);
/// MSS assumed when the peer announced none (RFC 9293 §3.7.1), IPv4 and IPv6.
const DEFAULT_MSS: (u16, u16) = (536, 1220);

/// State that the socket does not hold.
pub(crate) struct ExportInput<'a> {
    /// 4-tuple of the connection.
    pub(crate) tuple: FlowKey,
    /// Record of the observer.
    pub(crate) flow: &'a Flow,
    /// SND.UNA by byte count: first sequence number + bytes written - bytes in the send queue.
    pub(crate) snd_una: SeqNum,
    /// RCV.NXT by byte count: first sequence number + bytes read + bytes in the receive queue + FIN.
    pub(crate) rcv_nxt: SeqNum,
    /// Blocks right of RCV.NXT that do not fit into the socket, in order.
    pub(crate) beyond: &'a VecDeque<(SeqNum, Bytes)>,
    /// True if our FIN is requested, even if the socket is not closed yet.
    pub(crate) closing: bool,
    /// Host-owned part of the state.
    pub(crate) cached: TcpCached,
    /// Size of the largest IP packet on the path, in bytes.
    pub(crate) path_mtu: u32,
    /// Timestamp of a segment sent now.
    pub(crate) ts_time: u32,
}

/// Reason for a failed export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ExportError {
    /// An acknowledgment of received data is unsent (CH-INI-7): poll, then retry.
    #[error("acknowledgment of received data not sent yet")]
    AcknowledgmentDue,
    /// Before ESTABLISHED, or over (CH-ST-1).
    #[error("state {0}: cannot be offloaded")]
    Phase(State),
    /// Socket and wire state disagree.
    #[error("{0}: socket and observed segments disagree")]
    Disagreement(&'static str),
    /// The socket was drained but did not return all data: the connection is lost.
    #[error("{0}: not returned by the socket")]
    Lost(&'static str),
}

impl ExportError {
    /// Reason without details, for connection lists.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::AcknowledgmentDue => "acknowledgment of received data not sent yet",
            Self::Phase(_) => "connection cannot be offloaded in its state",
            Self::Disagreement(_) => "socket and observed segments disagree",
            Self::Lost(_) => "socket did not return all of its data",
        }
    }
}

/// Exports a connection from `socket`, except its send data. On refusal the socket is returned unchanged, unless the
/// error is [`ExportError::Lost`].
pub(crate) fn export(
    now: Instant,
    socket: Socket<'static>,
    input: &ExportInput<'_>,
) -> Result<Box<ConnectionState>, Box<(ExportError, Socket<'static>)>> {
    let Some(phase) = phase(socket.state(), input.closing) else {
        return Err(Box::new((ExportError::Phase(socket.state()), socket)));
    };
    let Some(agreed) = input.flow.agreed() else {
        return Err(Box::new((ExportError::Disagreement("handshake"), socket)));
    };
    if let Err(error) = compare(input) {
        return Err(Box::new((error, socket)));
    }
    let mut interview = StateExtractor::begin(now, socket, input);
    let opening = match interview.opening(input) {
        Ok(opening) => opening,
        Err(error) => return Err(Box::new((error, interview.end()))),
    };
    match interview.empty(&opening, agreed, input) {
        Ok(data) => Ok(Box::new(describe(now, phase, &opening, agreed, data, input))),
        Err(error) => Err(Box::new((error, interview.end()))),
    }
}

/// CH-ST-1. A requested FIN counts even if it is held until the socket's buffer has room.
const fn phase(state: State, closing: bool) -> Option<TcpPhase> {
    match state {
        State::Established if closing => Some(TcpPhase::FinWait1),
        State::Established => Some(TcpPhase::Established),
        State::CloseWait if closing => Some(TcpPhase::LastAck),
        State::CloseWait => Some(TcpPhase::CloseWait),
        State::FinWait1 => Some(TcpPhase::FinWait1),
        State::FinWait2 => Some(TcpPhase::FinWait2),
        State::Closing => Some(TcpPhase::Closing),
        State::LastAck => Some(TcpPhase::LastAck),
        State::Closed | State::Listen | State::SynSent | State::SynReceived | State::TimeWait => {
            None
        }
    }
}

/// Compares the byte counts with the recorded wire state, before the socket is probed.
fn compare(input: &ExportInput<'_>) -> Result<(), ExportError> {
    let ExportInput { flow, snd_una, rcv_nxt, .. } = input;
    if rcv_nxt.is_after(flow.acknowledged) {
        Err(ExportError::AcknowledgmentDue)
    } else if flow.snd_una != *snd_una {
        Err(ExportError::Disagreement("SND.UNA"))
    } else if flow.acknowledged != *rcv_nxt {
        Err(ExportError::Disagreement("RCV.NXT"))
    } else {
        Ok(())
    }
}

/// Sends a delayed acknowledgment, since no timer may remain (CH-INI-7). The socket alone, in a separate set, is
/// polled at the time at which the delay expires. It is returned in another slot of `sockets`.
pub(crate) fn push_acknowledgment(
    now: SmolInstant,
    interface: &mut Interface,
    device: &mut QueueDevice,
    sockets: &mut SocketSet<'static>,
    slot: &mut SocketHandle,
) {
    let socket = take(sockets, *slot);
    let delay = socket.ack_delay().unwrap_or(Duration::ZERO);
    let mut alone = SocketSet::new(vec![]);
    let handle = alone.add(socket);
    let _ = interface.poll_egress(now + delay, device, &mut alone);
    *slot = sockets.add(take(&mut alone, handle));
}

/// Answer to the first probe.
struct ProbeAnswer {
    snd_una: SeqNum,
    snd_nxt: SeqNum,
    rcv_nxt: SeqNum,
    /// True if data is unacknowledged or unsent.
    has_unacknowledged: bool,
}

/// Received data of the socket.
struct Data {
    undelivered: Vec<Bytes>,
    out_of_order: Vec<(SeqNum, Bytes)>,
}

struct StateExtractor {
    stage: Stage,
    socket: SocketHandle,
    clock: SmolInstant,
}

impl StateExtractor {
    fn begin(now: Instant, socket: Socket<'static>, input: &ExportInput<'_>) -> Self {
        let clock = to_smoltcp(now) + CHALLENGE_PAUSE;
        let mut stage = Stage::new(clock, input.tuple, 0);
        let socket = stage.add_socket(socket);
        Self { stage, socket, clock }
    }

    fn end(self) -> Socket<'static> {
        self.stage.into_socket(self.socket)
    }

    /// Reads SND.NXT and RCV.NXT: an acknowledgment of unsent data triggers a challenge ACK.
    fn opening(&mut self, input: &ExportInput<'_>) -> Result<ProbeAnswer, ExportError> {
        let flow = input.flow;
        let beyond = self.stage.bare(flow.acknowledged, flow.snd_max + 0x4000_0000, 0);
        let answers = self.stage.inject(self.clock, &beyond);
        let Some((snd_nxt, rcv_nxt)) =
            answers.first().and_then(|answer| Some((answer.seq, answer.ack?)))
        else {
            return Err(ExportError::Disagreement("SND.MAX"));
        };
        let snd_una = input.snd_una;
        let socket = self.stage.socket(self.socket);
        // The FIN counts as soon as the socket is closed.
        let fin = matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck);
        let queued = socket.send_queue() as u32 + u32::from(fin);
        let sent = flow.snd_max.distance(snd_una);
        if rcv_nxt != input.rcv_nxt {
            Err(ExportError::Disagreement("RCV.NXT"))
        } else if !u32::try_from(sent).is_ok_and(|sent| sent <= queued) {
            Err(ExportError::Disagreement("SND.MAX"))
        } else if snd_nxt.is_before(snd_una) || snd_nxt.is_after(flow.stack_max) {
            Err(ExportError::Disagreement("SND.NXT"))
        } else {
            // `Flow::trim_to_window` has withheld segments beyond SND.MAX.
            let snd_nxt = snd_nxt.earlier(flow.snd_max);
            Ok(ProbeAnswer { snd_una, snd_nxt, rcv_nxt, has_unacknowledged: queued > 0 })
        }
    }

    fn empty(
        &mut self,
        opening: &ProbeAnswer,
        agreed: Agreed,
        input: &ExportInput<'_>,
    ) -> Result<Data, ExportError> {
        self.disable_delays();
        let undelivered = self.receive_all();
        // Data that no SACK has reported may be dropped.
        let ahead = input.flow.right_edge.is_after(opening.rcv_nxt);
        let out_of_order = if agreed.sack && ahead && self.may_receive() {
            let held = self.out_of_order(opening.rcv_nxt, opening.snd_una)?;
            joined(opening.rcv_nxt, held, input.beyond)
        } else {
            Vec::new()
        };
        Ok(Data { undelivered, out_of_order })
    }

    /// True before the peer's FIN; no data can follow it.
    fn may_receive(&mut self) -> bool {
        let state = self.stage.socket(self.socket).state();
        matches!(state, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Disables everything that could delay or limit an answer (P2).
    fn disable_delays(&mut self) {
        let socket = self.stage.socket(self.socket);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_timeout(None);
        socket.set_keep_alive(None);
        socket.set_congestion_control(CongestionControl::None);
    }

    fn receive_all(&mut self) -> Vec<Bytes> {
        let socket = self.stage.socket(self.socket);
        let mut pieces = Vec::new();
        while socket.can_recv() {
            match socket.recv(|data| (data.len(), Bytes::copy_from_slice(data))) {
                Ok(piece) => pieces.push(piece),
                // Every exported state may receive while data is queued.
                Err(_) => break,
            }
        }
        pieces
    }

    /// Reads out-of-order data: the socket reports its lowest block, the gap before it is filled with zeros, and both
    /// are received. Repeats until no block is left.
    fn out_of_order(
        &mut self,
        mut rcv_nxt: SeqNum,
        snd_una: SeqNum,
    ) -> Result<Vec<(SeqNum, Bytes)>, ExportError> {
        const ZEROS: &[u8] = &[0; PIECE_MAX];
        let mut blocks = Vec::new();
        for _ in 0..=BLOCKS_MAX {
            // An empty segment at RCV.NXT touches no block, so the lowest is reported next. Data left of the window are
            // acknowledged immediately, without a rate limit.
            let probe = self.stage.bare(rcv_nxt, snd_una, u16::MAX);
            self.stage.inject(self.clock, &probe);
            let mut stale = self.stage.bare(rcv_nxt - 2, snd_una, u16::MAX);
            stale.payload = &ZEROS[..1];
            let answers = self.stage.inject(self.clock, &stale);
            let Some((left, right)) = answers.first().and_then(|answer| answer.sack) else {
                return Ok(blocks);
            };
            let (Ok(gap), Ok(length)) =
                (usize::try_from(left.distance(rcv_nxt)), usize::try_from(right.distance(left)))
            else {
                return Err(ExportError::Lost("out-of-order data"));
            };
            for start in (0..gap).step_by(PIECE_MAX) {
                let mut plug = self.stage.bare(rcv_nxt + start as u32, snd_una, u16::MAX);
                plug.payload = &ZEROS[..(gap - start).min(PIECE_MAX)];
                self.stage.inject(self.clock, &plug);
            }
            let received = self.receive_all().concat();
            if received.len() != gap + length {
                return Err(ExportError::Lost("out-of-order data"));
            }
            blocks.push((left, Bytes::from(received).slice(gap..)));
            rcv_nxt = right;
        }
        Err(ExportError::Lost("out-of-order data"))
    }
}

/// Data of all blocks in order.
fn joined(
    rcv_nxt: SeqNum,
    mut held: Vec<(SeqNum, Bytes)>,
    beyond: &VecDeque<(SeqNum, Bytes)>,
) -> Vec<(SeqNum, Bytes)> {
    let end = |(seq, data): &(SeqNum, Bytes)| *seq + data.len() as u32;
    let is_held = |block: &&(SeqNum, Bytes)| {
        held.iter().any(|of| of.0.is_at_or_before(block.0) && end(block).is_at_or_before(end(of)))
    };
    let more: Vec<_> = beyond.iter().filter(|block| !is_held(block)).cloned().collect();
    held.extend(more);
    held.sort_by_key(|(seq, _)| seq.distance(rcv_nxt));
    held
}

fn describe(
    now: Instant,
    phase: TcpPhase,
    opening: &ProbeAnswer,
    agreed: Agreed,
    data: Data,
    input: &ExportInput<'_>,
) -> ConnectionState {
    let &ExportInput {
        tuple,
        flow,
        snd_una: _,
        rcv_nxt: _,
        beyond: _,
        closing: _,
        cached,
        path_mtu,
        ts_time,
    } = input;
    let Data { undelivered, out_of_order } = data;
    ConnectionState {
        neighbor: NeighborState {
            constant: NeighborConst { dl_source_address: MacAddress::default(), vlan_id: 0 },
            cached: NeighborCached {
                dl_destination_address: flow.peer_mac,
                host_reachability_delta: ticks_since(now, flow.last_received_at),
            },
            delegated: NeighborDelegated {
                nic_reachability_delta: ticks_since(now, flow.last_received_at),
            },
        },
        path: PathState {
            constant: PathConst {
                source_address: tuple.local().ip(),
                destination_address: tuple.remote().ip(),
            },
            cached: PathCached { path_mtu },
        },
        tcp: TcpState {
            constant: constant(tuple, agreed, path_mtu),
            cached,
            delegated: delegated(now, phase, opening, flow, ts_time),
        },
        send_data: NblChain::new(),
        buffered_data: undelivered,
        out_of_order,
    }
}

fn constant(tuple: FlowKey, agreed: Agreed, path_mtu: u32) -> TcpConst {
    let Agreed { remote_mss, local_mss, window_scales, sack, timestamps, ecn } = agreed;
    let (local, remote) = (tuple.local(), tuple.remote());
    let (default_mss, headers) = match local {
        SocketAddr::V4(_) => (DEFAULT_MSS.0, 40),
        SocketAddr::V6(_) => (DEFAULT_MSS.1, 60),
    };
    let (snd_wind_scale, rcv_wind_scale) = window_scales.unwrap_or((0, 0));
    let own_mss = u16::try_from(path_mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    TcpConst {
        timestamp_enabled: timestamps,
        sack_enabled: sack,
        window_scaling_enabled: window_scales.is_some(),
        remote_port: remote.port(),
        local_port: local.port(),
        snd_wind_scale,
        rcv_wind_scale,
        remote_mss: remote_mss.unwrap_or(default_mss),
        local_mss: local_mss.unwrap_or(own_mss),
        // One queue per engine: no receive-side scaling.
        hash_value: 0,
        ecn_enabled: ecn,
    }
}

fn delegated(
    now: Instant,
    state: TcpPhase,
    opening: &ProbeAnswer,
    flow: &Flow,
    ts_time: u32,
) -> TcpDelegated {
    let &ProbeAnswer { snd_una, snd_nxt, rcv_nxt, has_unacknowledged } = opening;
    let &SendWindow { snd_wnd, max_snd_wnd, snd_wl1, .. } = &flow.send_window;
    let (srtt, rtt_var) = flow.round_trip();
    // True if the retransmission timer runs, or the persist timer instead. smoltcp does not expose its expiry; the last
    // segment with data started it.
    let waiting = flow.snd_max != snd_una || (has_unacknowledged && snd_wnd == 0);
    let retransmit = TimerState {
        count: 0,
        timeout_delta: waiting
            .then(|| RTO_TICKS.saturating_sub(ticks_since(now, flow.last_sent_at))),
    };
    TcpDelegated {
        state,
        rcv_nxt,
        rcv_wnd: u32::try_from(flow.right_edge.distance(rcv_nxt)).unwrap_or(0),
        snd_una,
        snd_nxt,
        snd_max: flow.snd_max,
        snd_wnd,
        max_snd_wnd,
        snd_wl1,
        // smoltcp's congestion state is inaccessible: the target starts its own.
        cwnd: 0,
        ss_thresh: u32::MAX,
        srtt,
        rtt_var,
        ts_recent: flow.ts_recent,
        ts_recent_age: ticks_since(now, flow.ts_recent_at),
        ts_time,
        total_rt: 0,
        dup_ack_count: 0,
        snd_wnd_probe_count: 0,
        keep_alive: TimerState::default(),
        retransmit,
        ecn_echo: flow.ecn_echo,
    }
}

fn ticks_since(now: Instant, then: Instant) -> Ticks {
    Ticks::try_from(now.saturating_since(then).as_millis()).unwrap_or(Ticks::MAX)
}
