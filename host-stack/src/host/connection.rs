//! What the host knows of a connection, a listener, and a connection that it has given away.

use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use core::{
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use bytes::Bytes;
use offload_engine::{
    chimney::client::{ClientTag, OffloadHandle},
    tcp::SeqNum,
    time::Instant,
};
use smoltcp::{
    iface::SocketHandle,
    socket::tcp::{Socket, State},
};

use super::list::Moves;
use crate::{observer::Flow, socket::ListenerId, wire::FourTuple};

/// Ports given to who asks for none (RFC 6335 s6).
pub(super) const EPHEMERAL_PORTS: Range<u32> = 49_152..65_536;

/// Who processes the frames of a 4-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// smoltcp.
    Host(OffloadHandle),
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
    /// The client has been told of its end. smoltcp has still to send an RST, or waits in TIME-WAIT.
    Lingering,
}

/// A connection that smoltcp serves.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: ClientTag,
    pub(super) listener: Option<ListenerId>,
    pub(super) tuple: FourTuple,
    pub(super) socket: SocketHandle,
    pub(super) flow: Flow,
    /// How much larger the scale of its windows is on the wire than in smoltcp.
    pub(super) scale_raise: u8,
    pub(super) must_offload: bool,
    /// The target, or we, have refused to offload it: do not try again.
    pub(super) stays: bool,
    pub(super) stage: Stage,
    /// When the host next solicits the next hop, while our SYN has not left.
    pub(super) solicit_at: Instant,
    pub(super) moves: Moves,
    pub(super) send: SendHalf,
    pub(super) receive: ReceiveHalf,
}

/// What goes out. All counts are bytes since the socket was made.
#[derive(Debug, Default)]
pub(super) struct SendHalf {
    /// Sequence number of the first byte written; known once established.
    pub(super) first: SeqNum,
    /// Written to the socket.
    pub(super) written: u64,
    /// Written bytes of which the client has been told that the peer has acknowledged them.
    pub(super) answered: u64,
    /// Not yet written.
    pub(super) pending: VecDeque<Bytes>,
    /// The client has asked for FIN.
    pub(super) shutdown: bool,
}

/// What comes in.
#[derive(Debug, Default)]
pub(super) struct ReceiveHalf {
    /// Sequence number of the first byte.
    pub(super) first: SeqNum,
    /// Read from the socket.
    pub(super) read: u64,
    /// Read, and not yet consumed by the client.
    pub(super) unconsumed: usize,
    /// The client knows of the peer's FIN.
    pub(super) closed_told: bool,
}

impl Connection {
    /// When it has to be looked at though nothing has happened.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Handshake(deadline) if self.flow.syn_sent() => Some(deadline),
            Stage::Handshake(deadline) => Some(deadline.min(self.solicit_at)),
            Stage::Open | Stage::Lingering => None,
        }
    }

    /// Oldest unacknowledged sequence number, by counting.
    pub(super) fn snd_una(&self, socket: &Socket<'_>) -> SeqNum {
        let acknowledged = self.send.written - socket.send_queue() as u64;
        // Modulo 2^32, as sequence numbers are.
        self.send.first + acknowledged as u32
    }

    /// Next sequence number expected, by counting.
    pub(super) fn rcv_nxt(&self, socket: &Socket<'_>) -> SeqNum {
        let received = self.receive.read + socket.recv_queue() as u64;
        let fin = u32::from(socket.state() == State::CloseWait);
        self.receive.first + received as u32 + fin
    }
}

impl SendHalf {
    pub(super) fn pending_len(&self) -> usize {
        self.pending.iter().map(Bytes::len).sum()
    }

    /// Bytes the client has given and not been told about.
    pub(super) fn unanswered(&self) -> usize {
        // Bounded by the send credit, which is checked.
        (self.written - self.answered) as usize + self.pending_len()
    }
}

/// A listener. It keeps one socket in LISTEN as long as fewer than `backlog` of its connections are in
/// their handshake; a SYN takes that socket, and at once the next one stands there.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) client: ClientTag,
    pub(super) local: SocketAddr,
    pub(super) backlog: usize,
    pub(super) must_offload: bool,
    pub(super) socket: Option<SocketHandle>,
    pub(super) half_open: usize,
}

impl Listener {
    /// Whether a SYN to `address` is for it.
    pub(super) fn hears(&self, address: SocketAddr) -> bool {
        self.local.port() == address.port()
            && (self.local.ip().is_unspecified() || self.local.ip() == address.ip())
    }

    /// Whether it and a listener on `address` would hear the same SYN.
    pub(super) fn conflicts(&self, address: SocketAddr) -> bool {
        self.local.port() == address.port()
            && (self.local.ip().is_unspecified()
                || address.ip().is_unspecified()
                || self.local.ip() == address.ip())
    }
}

/// A connection of the target's.
#[derive(Debug)]
pub(super) struct Offloaded {
    pub(super) tuple: FourTuple,
    pub(super) client: ClientTag,
    pub(super) listener: Option<ListenerId>,
    pub(super) must_offload: bool,
    pub(super) moves: Moves,
    /// The initiate is not complete: what the host would need to take the connection back.
    pub(super) initiating: Option<Box<Initiating>>,
}

/// A connection on its way to the target.
#[derive(Debug, Default)]
pub(super) struct Initiating {
    /// Frames for the target that have come meanwhile (CH-FWD-3).
    pub(super) frames: Vec<Vec<u8>>,
    /// Bytes that its client has been given and has not consumed yet.
    pub(super) unconsumed: usize,
    /// The client has asked for its end.
    pub(super) aborted: bool,
}

/// The address without its port, if it names one.
pub(super) fn specified(address: SocketAddr) -> Option<IpAddr> {
    Some(address.ip()).filter(|ip| !ip.is_unspecified())
}
