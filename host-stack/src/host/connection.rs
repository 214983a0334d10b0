//! What the host knows of a connection, a listener, and a connection that it has given away.

use alloc::{collections::VecDeque, vec::Vec};
use core::{
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use bytes::Bytes;
use offload_engine::{
    address::LocalAddress,
    chimney::{
        client::{ClientTag, OffloadHandle, UploadReason},
        tree::TargetContext,
    },
    frame::FlowKey,
    nbl::{NblChain, NetBufferList},
    state::{ConnectionState, TcpCached},
    status::NdisStatus,
    tcp::SeqNum,
    time::{Duration, Instant},
};
use smoltcp::{
    iface::SocketHandle,
    socket::tcp::{Socket, State},
};

use super::{
    history::History,
    shards::{ClientId, ShardId},
};
use crate::{
    copy::send_piece, observer::Flow, retrieve::SeqState, socket::ListenerId, wire::Segment,
};

/// Ports given to who asks for none (RFC 6335 §6).
pub(super) const EPHEMERAL_PORTS: Range<u32> = 49_152..65_536;

/// Who processes the frames of a 4-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// smoltcp.
    Host(OffloadHandle),
    /// The host itself, until the handshake is done.
    HalfOpen(OffloadHandle),
    /// The target.
    Target(OffloadHandle),
}

/// Where a connection in the host stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Before ESTABLISHED, or established and not announced; given up at that time.
    Handshake(Instant),
    /// The client knows it.
    Open,
    /// The client has been notified of its end. smoltcp has still to send an RST, or waits in TIME-WAIT.
    Lingering,
}

/// A connection that smoltcp serves.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) shard: ShardId,
    pub(super) client: ClientTag,
    pub(super) listener: Option<ListenerId>,
    pub(super) tuple: FlowKey,
    pub(super) socket: SocketHandle,
    pub(super) flow: Flow,
    /// How much larger the scale of its windows is on the wire than in smoltcp.
    pub(super) scale_raise: u8,
    pub(super) stay: Stay,
    /// Its client has requested its offload, regardless of the policy.
    pub(super) wanted: bool,
    pub(super) history: History,
    pub(super) stage: Stage,
    /// When the host next solicits the next hop, while our SYN has not left.
    pub(super) solicit_at: Instant,
    /// When smoltcp was last made to send again.
    pub(super) woken: Option<Wakeup>,
    pub(super) send: SendHalf,
    pub(super) receive: ReceiveHalf,
}

/// Duplicate acknowledgements that the host has made. For smoltcp they are the peer's: its time-out starts over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wakeup {
    pub(super) at: Instant,
    pub(super) idle: Duration,
}

/// What goes out. All counts are bytes since the socket was made.
#[derive(Debug, Default)]
pub(super) struct SendHalf {
    /// Sequence number of the first byte written; known once established.
    pub(super) first: SeqNum,
    /// Written to the socket.
    pub(super) written: u64,
    /// Lists that are not complete, written or not, in order.
    lists: VecDeque<Parked>,
    /// Where the last list ends.
    posted: u64,
    /// The client has asked for FIN.
    pub(super) shutdown: bool,
    /// The client knows that the FIN is acknowledged.
    pub(super) shut_down_told: bool,
    /// A list waits until those before it have left.
    pub(super) is_held: bool,
}

/// A list that waits for its acknowledgement.
#[derive(Debug)]
struct Parked {
    list: NetBufferList,
    /// Count of the byte behind its last.
    end: u64,
    /// It begins a segment.
    apart: bool,
}

/// What comes in.
#[derive(Debug, Default)]
pub(super) struct ReceiveHalf {
    /// Sequence number of the first byte.
    pub(super) first: SeqNum,
    /// Blocks that SACK has reported and smoltcp has no room for, in order: see `kept`.
    pub(super) beyond: VecDeque<(SeqNum, Bytes)>,
    /// Read from the socket.
    pub(super) read: u64,
    /// Read, and not yet consumed by the client.
    pub(super) unconsumed: usize,
    /// The peer's FIN has come.
    pub(super) fin_received: bool,
    /// The client knows of it.
    pub(super) closed_told: bool,
}

impl Connection {
    /// The client that owns it.
    pub(super) const fn client_id(&self) -> ClientId {
        ClientId { shard: self.shard, tag: self.client }
    }

    /// When it has to be looked at though nothing has happened; `offload_at`: when the policy wants it
    /// offloaded, as things are.
    pub(super) fn deadline(&self, offload_at: Option<Instant>) -> Option<Instant> {
        match self.stage {
            Stage::Handshake(deadline) if self.flow.syn_sent() => Some(deadline),
            Stage::Handshake(deadline) => Some(deadline.min(self.solicit_at)),
            Stage::Open => offload_at.into_iter().chain(self.stalls_at()).min(),
            Stage::Lingering => None,
        }
    }

    /// Whether a segment has been received since the connection came back from the target.
    pub(super) fn received_since_return(&self) -> bool {
        self.flow.last_received_at > self.history.returned_at
    }

    /// Bytes that the peer has acknowledged.
    pub(super) fn acknowledged(&self, socket: &Socket<'_>) -> u64 {
        match socket.state() {
            // After an RST the contents of its buffer mean nothing.
            State::Closed => self.send.count_at(self.flow.snd_una),
            _ => self.send.written - socket.send_queue() as u64,
        }
    }

    /// Oldest unacknowledged sequence number, by counting.
    pub(super) fn snd_una(&self, socket: &Socket<'_>) -> SeqNum {
        let fin = u32::from(matches!(socket.state(), State::FinWait2 | State::TimeWait));
        // Modulo 2^32, as sequence numbers are.
        self.send.first + self.acknowledged(socket) as u32 + fin
    }

    /// Next sequence number expected, by counting.
    pub(super) fn rcv_nxt(&self, socket: &Socket<'_>) -> SeqNum {
        let received = self.receive.read + socket.recv_queue() as u64;
        let fin = u32::from(fin_received(socket.state()));
        self.receive.first + received as u32 + fin
    }

    /// Both FINs have arrived. `flow` has seen what `socket` has.
    pub(super) fn both_closed(&self, socket: &Socket<'_>) -> bool {
        let fin_received = self.receive.fin_received || fin_received(socket.state());
        fin_received && self.send.shutdown && self.flow.snd_una == self.send.end() + 1
    }

    /// Takes the byte out of a keep-alive probe over data in flight: the peer would take it for theirs. Returns whether
    /// the segment is another one now. smoltcp probes whenever its timer does not run, also where a fast retransmission
    /// had to be dropped (see `stalls`); a probe is for a connection with nothing in flight (RFC 9293 §3.8.4).
    pub(super) fn bare_probe(&self, segment: &mut Segment<'_>) -> bool {
        let &[byte] = segment.frame.payload() else { return false };
        if segment.seq.is_before(self.flow.snd_una) || self.send.byte_at(segment.seq) == Some(byte)
        {
            return false;
        }
        (segment.seq, segment.payload_len) = (self.flow.snd_max, 0);
        true
    }

    /// What [`retrieve`](crate::retrieve::retrieve) has to know of it.
    pub(super) fn standing(&self, socket: &Socket<'_>) -> SeqState {
        SeqState {
            snd_una: self.snd_una(socket),
            rcv_nxt: self.rcv_nxt(socket),
            fin_heard: fin_received(socket.state()),
        }
    }
}

impl SendHalf {
    /// Of a connection that comes back with its lists, of which the socket holds `written` bytes.
    pub(super) fn restored(
        snd_una: SeqNum,
        send_data: NblChain,
        written: u64,
        shutdown: bool,
    ) -> Self {
        let mut half = Self { first: snd_una, written, shutdown, ..Self::default() };
        send_data.into_iter().for_each(|list| half.post(list, false));
        half
    }

    /// Appends a list, which begins a segment if it is `apart`.
    pub(super) fn post(&mut self, mut list: NetBufferList, apart: bool) {
        list.status = NdisStatus::PENDING;
        self.posted += list.data_length() as u64;
        self.lists.push_back(Parked { list, end: self.posted, apart });
    }

    /// Bytes of lists that are not complete.
    pub(super) fn outstanding(&self) -> u64 {
        self.lists.front().map_or(0, |front| self.posted - front.start())
    }

    /// Bytes of lists that are complete.
    pub(super) fn completed(&self) -> u64 {
        self.posted - self.outstanding()
    }

    /// Lists that are not complete.
    pub(super) fn outstanding_lists(&self) -> usize {
        self.lists.len()
    }

    /// Those of them with a client to complete to: how many, and their bytes, acknowledged or not.
    pub(super) fn owned_lists(&self) -> (usize, usize) {
        let owned = self.lists.iter().map(|parked| &parked.list).filter(|list| is_owned(list));
        owned.fold((0, 0), |(lists, bytes), list| {
            (lists + 1, bytes + list.bytes_transferred + list.data_length())
        })
    }

    /// Whether everything is in the socket.
    pub(super) const fn all_written(&self) -> bool {
        self.written == self.posted
    }

    /// Sequence number behind the last byte, the FIN's.
    pub(super) fn end(&self) -> SeqNum {
        // Modulo 2^32, as sequence numbers are.
        self.first + self.posted as u32
    }

    /// Where `una` lies among the bytes, at most behind the last.
    pub(super) fn count_at(&self, una: SeqNum) -> u64 {
        // Not more than a window, so the distance is the nearest of all that are equal modulo 2^32.
        let beyond = una.distance(self.first + self.written as u32);
        self.written.saturating_add_signed(beyond.into()).min(self.posted)
    }

    /// The byte with this sequence number, if it is there and not acknowledged.
    fn byte_at(&self, seq: SeqNum) -> Option<u8> {
        let count = self.count_at(seq);
        let parked = self.lists.iter().find(|parked| count < parked.end)?;
        let mut skip = count.checked_sub(parked.start())? as usize;
        parked.list.pieces().find_map(|piece| {
            let byte = piece.byte(skip);
            skip = skip.saturating_sub(piece.len());
            byte
        })
    }

    /// Moves data into the socket; `snd_max` is behind all that was ever sent. Returns whether any went.
    pub(super) fn write(&mut self, socket: &mut Socket<'_>, snd_max: SeqNum) -> bool {
        let before = self.written;
        self.is_held = false;
        let from = self.lists.partition_point(|parked| parked.end <= before);
        for parked in self.lists.range(from..) {
            // Modulo 2^32, as sequence numbers are.
            let is_begun = self.written > parked.start();
            if parked.apart && !is_begun && snd_max.is_before(self.first + self.written as u32) {
                self.is_held = true;
                break;
            }
            let mut skip = (self.written - parked.start()) as usize;
            for piece in parked.list.pieces() {
                let left = piece.split_at(skip.min(piece.len())).1;
                skip -= piece.len() - left.len();
                if left.is_empty() {
                    continue;
                }
                let count = send_piece(socket, left);
                self.written += count as u64;
                if count < left.len() {
                    return self.written > before;
                }
            }
        }
        self.written > before
    }

    /// The lists of which the peer has acknowledged the last byte, at `acknowledged` (CH-SNC-5).
    pub(super) fn take_complete(&mut self, acknowledged: u64) -> NblChain {
        let complete = self.lists.partition_point(|parked| parked.end <= acknowledged);
        let complete = self.lists.drain(..complete);
        owned(complete.map(|parked| parked.complete(NdisStatus::SUCCESS, u64::MAX)))
    }

    /// Fails every list that is left: the first keeps the count of its acknowledged bytes (CH-SNC-1, -2).
    pub(super) fn abort(&mut self, acknowledged: u64) -> NblChain {
        let mut chain = self.take_complete(acknowledged);
        let failed = self.lists.drain(..);
        chain.extend(owned(
            failed.map(|parked| parked.complete(NdisStatus::REQUEST_ABORTED, acknowledged)),
        ));
        chain
    }

    /// The lists as a hand-over takes them along: the first starts at the first byte that is not acknowledged
    /// (CH-SNB-2).
    pub(super) fn into_send_data(self, acknowledged: u64) -> NblChain {
        self.lists
            .into_iter()
            .map(|parked| parked.complete(NdisStatus::PENDING, acknowledged))
            .collect()
    }
}

/// The lists with a client to complete to.
pub(super) fn owned(lists: impl IntoIterator<Item = NetBufferList>) -> NblChain {
    lists.into_iter().filter(is_owned).collect()
}

/// Returns whether somebody waits for the list.
fn is_owned(list: &NetBufferList) -> bool {
    list.context != ConnectionState::DISCONNECT_DATA
}

impl Parked {
    fn start(&self) -> u64 {
        self.end - self.list.data_length() as u64
    }

    /// The list with this status, and its bytes before `acknowledged` counted as transferred.
    fn complete(mut self, status: NdisStatus, acknowledged: u64) -> NetBufferList {
        let count = acknowledged.min(self.end).saturating_sub(self.start());
        self.list.complete(status, count as usize);
        self.list
    }
}

/// A listener. SYNs for it are answered by cookies while `backlog` of its connections are in their handshake.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) shard: ShardId,
    pub(super) client: ClientTag,
    pub(super) local: LocalAddress,
    pub(super) backlog: usize,
    pub(super) at_once: bool,
    pub(super) half_open: usize,
}

impl Listener {
    /// The client that owns it.
    pub(super) const fn client_id(&self) -> ClientId {
        ClientId { shard: self.shard, tag: self.client }
    }

    /// Whether one more connection may be in its handshake.
    pub(super) const fn has_room(&self) -> bool {
        self.half_open < self.backlog
    }

    /// Whether a SYN to `address` is for it.
    pub(super) fn covers(&self, address: SocketAddr) -> bool {
        self.local.covers(address)
    }
}

/// A connection of the target's.
#[derive(Debug)]
pub(super) struct Offloaded {
    pub(super) shard: ShardId,
    pub(super) tuple: FlowKey,
    pub(super) client: ClientTag,
    pub(super) listener: Option<ListenerId>,
    pub(super) stage: OffloadStage,
    /// Frames that have come while it changes hands: for the target at last, or for smoltcp (CH-FWD-3, CH-TRM-7).
    pub(super) frames: Vec<Vec<u8>>,
    pub(super) frame_bytes: usize,
    /// Bytes that its client has been given by the host and has not consumed yet.
    pub(super) unconsumed: usize,
    /// The client has asked for its end, but could not do it itself.
    pub(super) aborted: bool,
    /// It is to come back as soon as its initiate is complete; why, if the target asked.
    pub(super) recall: Option<Option<UploadReason>>,
    /// The cached variables that the target knows.
    pub(super) cached: TcpCached,
    /// Those that are on their way to it.
    pub(super) updating: Option<TcpCached>,
    pub(super) history: History,
}

impl Offloaded {
    /// The client that owns it.
    pub(super) const fn client_id(&self) -> ClientId {
        ClientId { shard: self.shard, tag: self.client }
    }
}

/// Where a connection of the target's stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OffloadStage {
    /// The initiate is not complete.
    Initiating,
    /// The target has it, under this name.
    With(TargetContext),
    /// The terminate is not complete; why it was asked for, if the target asked.
    Terminating(Option<UploadReason>),
}

/// Whether a connection in the host may leave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Stay {
    /// When the policy decides so.
    #[default]
    No,
    /// Not before that time, unless its client asks: the target has refused it, or it has just come back.
    Until(Instant),
    /// Only when its client asks: who has asked for it before, or it could not be handed over.
    UntilAsked,
}

/// Whether the peer's FIN is part of what has been received in this state.
pub(super) const fn fin_received(state: State) -> bool {
    matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait)
}

/// The address without its port, if it names one.
pub(super) fn specified(address: SocketAddr) -> Option<IpAddr> {
    Some(address.ip()).filter(|ip| !ip.is_unspecified())
}
