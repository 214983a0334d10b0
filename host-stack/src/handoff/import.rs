//! Import of a connection into smoltcp: replay of the handshake and of the data in flight.
//!
//! The new socket opens the connection itself, with ISN = SND.UNA - 1. The replayed peer's sequence numbers start
//! before the undelivered data. The socket then sends the data in flight. Its sequence numbers equal the connection's,
//! so frames need no translation afterwards.
//!
//! | state | replay |
//! |---|---|
//! | ESTABLISHED | handshake, received data, sent data |
//! | CLOSE-WAIT | also the peer's FIN, after the received data |
//! | FIN-WAIT-1, LAST-ACK | our FIN after the sent data, if it was sent; otherwise the caller closes after all data |
//! | FIN-WAIT-2 | our FIN, and its acknowledgment |
//! | CLOSING, TIME-WAIT | the peer's FIN after ours. If ours is unsent: a CLOSE-WAIT, to be closed |
//!
//! The replay's clock is set back by the time that the connection has already spent on its outstanding acknowledgment.
//! So smoltcp's retransmission timer, an RTO of one second, expires with the imported one (CH §10.1), or earlier if
//! that had backed off. Repeated migrations never delay a retransmission.
//!
//! The receive buffer covers the advertised edge, and is no larger than that requires. Its scale may be smaller than
//! the wire's; then every window is divided before it is sent ([`crate::window`]).
//!
//! Not imported: RTT, congestion state and the peer's SACK blocks (smoltcp uses none of them).

use alloc::{vec, vec::Vec};

use bytes::Bytes;
use offload_engine::{
    frame::FlowKey,
    nbl::{NblChain, NetBufferList},
    state::{ConnectionState, PathConst, TcpCached, TcpConst, TcpDelegated, TcpState},
    tcp::{SeqNum, TcpPhase},
};
use smoltcp::{
    iface::SocketHandle,
    socket::tcp::{CongestionControl, Socket, SocketBuffer, State},
    time::{Duration, Instant},
    wire::{TcpControl, TcpRepr, TcpTimestampGenerator, TcpTimestampRepr},
};

use super::{
    BLOCKS_MAX, PIECE_MAX,
    isn::{SALTS, seed_for},
    stage::{Sent, Stage},
};
use crate::{
    copy::send_piece, observer::RTO_TICKS, window::scale_of_buffer, wire::WINDOW_SCALE_MAX,
};

/// Largest receive buffer, in bytes: the maximum scaled window (RFC 7323 §2.3).
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// Reason for a failed import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// SND.UNA <= SND.MAX does not hold, or the data does not reach SND.MAX (P10).
    #[error("send sequence variables and data disagree")]
    SendSequence,
    /// The phase leaves nothing for a socket to do.
    #[error("connection already closed")]
    Phase,
    /// The received data exceed the largest receive buffer of the connection's window scale.
    #[error("received data exceeds the largest buffer of the window scale")]
    ReceiveData,
    /// smoltcp has drawn another ISN than chosen, or announced another window scale (§3.3).
    #[error("smoltcp did not open with the connection's ISN and window scale")]
    Syn,
    /// The socket did not follow the replay.
    #[error("replay failed at {0}")]
    Replay(&'static str),
}

/// Imported connection.
#[derive(Debug)]
pub(crate) struct Imported {
    /// Its socket. Congestion control, Nagle and delayed ACK have smoltcp's defaults; the caller sets its own.
    pub(crate) socket: Socket<'static>,
    /// Bytes in its send buffer, from SND.UNA on. The rest of the send data is written when there is room.
    pub(crate) written: u64,
    /// True if our FIN is requested. If the socket is not closed yet, the caller closes it after all data is written.
    pub(crate) closing: bool,
    /// Difference between the window scale on the wire and smoltcp's.
    pub(crate) scale_raise: u8,
    /// Out-of-order blocks that do not fit into smoltcp: the highest.
    pub(crate) beyond: Vec<(SeqNum, Bytes)>,
}

/// The 4-tuple of a connection's state.
pub(crate) fn tuple_of(state: &ConnectionState) -> FlowKey {
    let PathConst { source_address, destination_address } = state.path.constant;
    FlowKey::new(
        (source_address, state.tcp.constant.local_port).into(),
        (destination_address, state.tcp.constant.remote_port).into(),
    )
}

/// Closed socket with buffers of these sizes, in bytes.
pub(crate) fn fresh_socket(receive_buffer: usize, send_buffer: usize) -> Socket<'static> {
    Socket::new(SocketBuffer::new(vec![0; receive_buffer]), SocketBuffer::new(vec![0; send_buffer]))
}

/// Creates a socket that continues the connection. `generator` supplies timestamps if they were negotiated.
/// `send_buffer` is in bytes and grows to the data in flight.
pub(crate) fn import(
    now: Instant,
    state: &ConnectionState,
    send_buffer: usize,
    generator: TcpTimestampGenerator,
) -> Result<Imported, ImportError> {
    let left = state.tcp.delegated.retransmit.timeout_delta.unwrap_or(RTO_TICKS);
    let waited = RTO_TICKS.saturating_sub(left);
    let began = now - Duration::from_millis(waited.into());
    Replay::plan(state)?.run(began, send_buffer, generator)
}

/// State that the replay establishes.
struct Replay<'a> {
    tuple: FlowKey,
    constant: TcpConst,
    delegated: TcpDelegated,
    send_data: &'a NblChain,
    undelivered: &'a [Bytes],
    out_of_order: &'a [(SeqNum, Bytes)],
    /// Bytes of `send_data` that are on the wire; the peer may acknowledge them.
    on_wire: usize,
    /// Bytes of those that the socket retransmits when its timer expires; 0 with a closed window. smoltcp stops that
    /// timer then and does not start the persist timer instead; with nothing in flight it probes.
    in_flight: usize,
    /// Our FIN: requested, on the wire, acknowledged.
    closing: bool,
    fin_sent: bool,
    fin_acknowledged: bool,
    /// True if the peer's FIN has arrived.
    fin_received: bool,
    /// Receive buffer in smoltcp; it determines the scale.
    receive_buffer: usize,
}

impl<'a> Replay<'a> {
    fn plan(state: &'a ConnectionState) -> Result<Self, ImportError> {
        let ConnectionState { neighbor: _, path: _, tcp, send_data, buffered_data, out_of_order } =
            state;
        let TcpState { constant, cached, delegated } = tcp;
        let (closing, fin_received) = match delegated.state {
            TcpPhase::Established => (false, false),
            TcpPhase::FinWait1 | TcpPhase::FinWait2 => (true, false),
            TcpPhase::CloseWait => (false, true),
            TcpPhase::Closing | TcpPhase::LastAck | TcpPhase::TimeWait => (true, true),
            TcpPhase::Closed => return Err(ImportError::Phase),
        };
        let fin_acknowledged = matches!(delegated.state, TcpPhase::FinWait2 | TcpPhase::TimeWait);
        let length = send_data.iter().map(NetBufferList::data_length).sum::<usize>();
        let sent = usize::try_from(delegated.snd_max.distance(delegated.snd_una))
            .map_err(|_| ImportError::SendSequence)?;
        // A FIN in flight counts in SND.MAX, but is not a byte of data (P8).
        let fin_sent = closing && !fin_acknowledged && sent == length + 1;
        let on_wire = sent - usize::from(fin_sent);
        if on_wire > length || (fin_acknowledged && sent + length > 0) {
            return Err(ImportError::SendSequence);
        }
        let in_flight = if delegated.snd_wnd == 0 && !fin_sent { 0 } else { on_wire };
        let undelivered = buffered_data.iter().map(Bytes::len).sum::<usize>();
        let receive_buffer = receive_buffer(constant, cached, delegated, undelivered)
            .ok_or(ImportError::ReceiveData)?;
        Ok(Self {
            tuple: tuple_of(state),
            constant: *constant,
            delegated: *delegated,
            send_data,
            undelivered: buffered_data,
            out_of_order,
            on_wire,
            in_flight,
            closing,
            fin_sent,
            fin_acknowledged,
            fin_received,
            receive_buffer,
        })
    }

    fn run(
        self,
        now: Instant,
        send_buffer: usize,
        generator: TcpTimestampGenerator,
    ) -> Result<Imported, ImportError> {
        let isn = self.delegated.snd_una - 1 - u32::from(self.fin_acknowledged);
        let (mut stage, socket) = (0..SALTS)
            .find_map(|salt| self.open(now, isn, salt, send_buffer, generator))
            .ok_or(ImportError::Syn)?;
        self.handshake(now, &mut stage, isn)?;
        self.received(now, &mut stage, socket)?;
        if self.fin_received && !self.fin_follows_ours() {
            self.fin(now, &mut stage)?;
        }
        let beyond = self.out_of_order(now, &mut stage);
        self.sent(now, &mut stage, socket)?;
        if self.fin_follows_ours() {
            self.fin(now, &mut stage)?;
        }
        self.finish(stage, socket, send_buffer, beyond)
    }

    /// True if the peer's FIN arrived after ours was sent (RFC 9293 §3.6): simultaneous close, or the second half of an
    /// orderly one. It decides which side enters TIME-WAIT.
    fn fin_follows_ours(&self) -> bool {
        match self.delegated.state {
            TcpPhase::Closing => self.fin_sent,
            TcpPhase::TimeWait => true,
            _ => false,
        }
    }

    /// First sequence number of the peer in the replay.
    fn base(&self) -> SeqNum {
        let undelivered = self.undelivered.iter().map(Bytes::len).sum::<usize>() as u32;
        self.delegated.rcv_nxt - undelivered - u32::from(self.fin_received)
    }

    /// Peer window during the replay of data, in units of the wire: all data in flight must fit, and the SYN's window
    /// does not count (P4).
    fn replay_window(&self) -> u16 {
        let window = self.delegated.snd_wnd.max(self.in_flight as u32 + u32::from(self.fin_sent));
        let scale = u32::from(self.constant.snd_wind_scale);
        u16::try_from(window.div_ceil(1 << scale)).unwrap_or(u16::MAX)
    }

    fn open(
        &self,
        now: Instant,
        isn: SeqNum,
        salt: u32,
        send_buffer: usize,
        generator: TcpTimestampGenerator,
    ) -> Option<(Stage, SocketHandle)> {
        let mut socket = fresh_socket(self.receive_buffer, send_buffer.max(self.on_wire));
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        // P2: a congestion window would hold back most of the data in flight.
        socket.set_congestion_control(CongestionControl::None);
        socket.set_tsval_generator(self.constant.timestamp_enabled.then_some(generator));
        let mut stage = Stage::new(now, self.tuple, seed_for(isn.0, salt));
        let socket = stage.add_socket(socket);
        if !stage.connect(socket) {
            return None;
        }
        let scale = scale_of_buffer(self.receive_buffer);
        let scale_matches =
            |syn: &Sent| !self.constant.window_scaling_enabled || syn.window_scale == Some(scale);
        let sent = stage.poll(now);
        let syn = sent.first()?;
        (syn.control == TcpControl::Syn && syn.seq == isn && scale_matches(syn))
            .then_some((stage, socket))
    }

    /// Segment of the peer, with a timestamp if they were negotiated.
    fn bare(&self, stage: &Stage, seq: SeqNum, ack: SeqNum, window: u16) -> TcpRepr<'static> {
        let mut segment = stage.bare(seq, ack, window);
        // The socket stores the value for its echo; ours is not used.
        segment.timestamp = self
            .constant
            .timestamp_enabled
            .then(|| TcpTimestampRepr::new(self.delegated.ts_recent, 0));
        segment
    }

    fn handshake(&self, now: Instant, stage: &mut Stage, isn: SeqNum) -> Result<(), ImportError> {
        let window = u16::try_from(self.delegated.snd_wnd).unwrap_or(u16::MAX);
        let mut syn_ack = self.bare(stage, self.base() - 1, isn + 1, window);
        syn_ack.control = TcpControl::Syn;
        syn_ack.max_seg_size = Some(self.constant.remote_mss);
        syn_ack.window_scale =
            self.constant.window_scaling_enabled.then_some(self.constant.snd_wind_scale);
        syn_ack.sack_permitted = self.constant.sack_enabled;
        stage.inject(now, &syn_ack);
        let acknowledged = stage.poll(now).first().and_then(|sent| sent.ack);
        if acknowledged != Some(self.base()) {
            return Err(ImportError::Replay("handshake"));
        }
        let window = self.bare(stage, self.base(), isn + 1, self.replay_window());
        stage.inject(now, &window);
        Ok(())
    }

    /// Replays unread data of the peer.
    fn received(
        &self,
        now: Instant,
        stage: &mut Stage,
        socket: SocketHandle,
    ) -> Result<(), ImportError> {
        let ack = self.ack_before_ours();
        let mut next = self.base();
        for data in self.undelivered {
            for piece in data.chunks(PIECE_MAX) {
                let mut segment = self.bare(stage, next, ack, self.replay_window());
                segment.payload = piece;
                stage.inject(now, &segment);
                next += piece.len() as u32;
                // P5: the window advances only when an acknowledgment is sent.
                stage.poll(now);
            }
        }
        if stage.socket(socket).recv_queue() as u32 != next.0.wrapping_sub(self.base().0) {
            return Err(ImportError::Replay("undelivered data"));
        }
        Ok(())
    }

    /// SND.UNA before our FIN is sent in the replay.
    fn ack_before_ours(&self) -> SeqNum {
        self.delegated.snd_una - u32::from(self.fin_acknowledged)
    }

    /// Replays the peer's FIN; the final state shows the result.
    fn fin(&self, now: Instant, stage: &mut Stage) -> Result<(), ImportError> {
        let ack =
            if self.fin_follows_ours() { self.delegated.snd_una } else { self.ack_before_ours() };
        let window =
            if self.fin_follows_ours() { self.exact_window() } else { self.replay_window() };
        let mut fin = self.bare(stage, self.delegated.rcv_nxt - 1, ack, window);
        fin.control = TcpControl::Fin;
        let mut answers = stage.inject(now, &fin);
        answers.extend(stage.poll(now));
        let acknowledged = answers.iter().any(|sent| sent.ack == Some(self.delegated.rcv_nxt));
        acknowledged.then_some(()).ok_or(ImportError::Replay("FIN of the peer"))
    }

    /// Replays the blocks that SACK has reported. Returns those that do not fit: smoltcp's assembler has fewer entries
    /// than the target's.
    fn out_of_order(&self, now: Instant, stage: &mut Stage) -> Vec<(SeqNum, Bytes)> {
        let ack = self.ack_before_ours();
        let (mut end, mut blocks, mut beyond) = (self.delegated.rcv_nxt, 0, Vec::new());
        for (seq, data) in self.out_of_order {
            blocks += usize::from(seq.is_after(end));
            if blocks > BLOCKS_MAX {
                beyond.push((*seq, data.clone()));
                continue;
            }
            end = end.later(*seq + data.len() as u32);
            for (index, piece) in data.chunks(PIECE_MAX).enumerate() {
                let mut segment =
                    self.bare(stage, *seq + (index * PIECE_MAX) as u32, ack, self.replay_window());
                segment.payload = piece;
                stage.inject(now, &segment);
                stage.poll(now);
            }
        }
        beyond
    }

    /// Replays our sent data and FIN.
    fn sent(
        &self,
        now: Instant,
        stage: &mut Stage,
        socket: SocketHandle,
    ) -> Result<(), ImportError> {
        let queued = self.write(stage.socket(socket), 0, self.in_flight);
        if queued != self.in_flight {
            return Err(ImportError::Replay("data in flight"));
        }
        let fin = self.fin_sent || self.fin_acknowledged;
        if fin {
            stage.socket(socket).close();
        }
        let sent = stage
            .poll(now)
            .iter()
            .map(|sent| sent.payload.len() + usize::from(sent.control == TcpControl::Fin))
            .sum::<usize>();
        if sent != self.in_flight + usize::from(fin) {
            return Err(ImportError::Replay("data in flight"));
        }
        if self.exact_window() != self.replay_window() || self.fin_acknowledged {
            let next = self.delegated.rcv_nxt - u32::from(self.fin_follows_ours());
            let segment = self.bare(stage, next, self.delegated.snd_una, self.exact_window());
            stage.inject(now, &segment);
        }
        Ok(())
    }

    /// Peer window shown to the socket, in units of the wire. A window that has closed over data and FIN in flight is
    /// shown as before: they are retransmitted, and no new data is left to send.
    fn exact_window(&self) -> u16 {
        if self.delegated.snd_wnd == 0 && self.in_flight > 0 {
            return self.replay_window();
        }
        let scale = u32::from(self.constant.snd_wind_scale);
        u16::try_from(self.delegated.snd_wnd >> scale).unwrap_or(u16::MAX)
    }

    /// Writes send data from `from` up to `to`, as far as there is room. Returns the end of the written data.
    fn write(&self, socket: &mut Socket<'_>, from: usize, to: usize) -> usize {
        let mut at = 0;
        for piece in self.send_data.iter().flat_map(NetBufferList::pieces) {
            let (start, end) = (at.max(from), (at + piece.len()).min(to));
            if start < end {
                let wanted = piece.split_at(start - at).1.truncated(end - start);
                let count = send_piece(socket, wanted);
                if count < end - start {
                    return start + count;
                }
            }
            at += piece.len();
        }
        at.min(to)
    }

    fn finish(
        self,
        mut stage: Stage,
        socket: SocketHandle,
        send_buffer: usize,
        beyond: Vec<(SeqNum, Bytes)>,
    ) -> Result<Imported, ImportError> {
        let expected = match self.delegated.state {
            TcpPhase::TimeWait => State::TimeWait,
            TcpPhase::FinWait2 => State::FinWait2,
            // An unsent FIN is deferred until the data before it are sent.
            TcpPhase::FinWait1 if self.fin_sent => State::FinWait1,
            TcpPhase::Closing if self.fin_sent => State::Closing,
            TcpPhase::LastAck if self.fin_sent => State::LastAck,
            _ if self.fin_received => State::CloseWait,
            _ => State::Established,
        };
        if stage.socket(socket).state() != expected {
            return Err(ImportError::Replay("connection state"));
        }
        let mut socket = stage.into_socket(socket);
        let unsent =
            self.send_data.iter().map(NetBufferList::data_length).sum::<usize>() > self.in_flight;
        let written = if unsent {
            self.write(&mut socket, self.in_flight, send_buffer.max(self.on_wire))
        } else {
            self.in_flight
        };
        let scale = scale_of_buffer(self.receive_buffer);
        Ok(Imported {
            socket,
            written: written as u64,
            closing: self.closing,
            scale_raise: self.constant.rcv_wind_scale.saturating_sub(scale),
            beyond,
        })
    }
}

/// Size of the receive buffer, in bytes. It is the host's size, or covers the advertised edge (P9), and does not exceed
/// the wire's scale (§3.3). Without scaling smoltcp advertises at most 64 KiB of any buffer; data refused by the
/// consumer may exceed that.
fn receive_buffer(
    constant: &TcpConst,
    cached: &TcpCached,
    delegated: &TcpDelegated,
    undelivered: usize,
) -> Option<usize> {
    let largest = match (constant.window_scaling_enabled, constant.rcv_wind_scale) {
        (false, _) => BUFFER_BYTES_MAX,
        (true, scale) if scale > WINDOW_SCALE_MAX => return None,
        (true, scale) => (1 << (u32::from(scale) + 16)) - 1,
    };
    let needed = undelivered + delegated.rcv_wnd as usize;
    // A window is advertised in whole units of its scale; one extra unit keeps the last bytes inside.
    let unit = 1 << u32::from(constant.rcv_wind_scale);
    let size = (cached.initial_rcv_wnd as usize).max(needed + unit).clamp(1, largest);
    (needed <= largest).then_some(size)
}
