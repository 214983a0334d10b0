//! What connections and listeners there are, for who watches: one row each, as `ss` has it, and where its
//! data path is, as Windows has it.
//!
//! A row of an offloaded connection says what the host knows. Queues and variables are the target's then:
//! [`offload_engine::engine::Connections::look`].

use alloc::vec::Vec;
use core::net::SocketAddr;

use offload_engine::{
    chimney::client::{OffloadHandle, UploadReason},
    tcp::TcpPhase,
};
use smoltcp::socket::tcp::{self, State};

use super::{
    Host,
    connection::{Connection, Listener, OffloadStage, Offloaded},
    history::{History, Refusal},
};
use crate::stream::OffloadState;

/// A state of RFC 9293 s3.3.2, by the name that ss gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketState {
    /// LISTEN.
    Listen,
    /// SYN-SENT.
    SynSent,
    /// SYN-RECEIVED.
    SynReceived,
    /// ESTABLISHED.
    Established,
    /// FIN-WAIT-1.
    FinWait1,
    /// FIN-WAIT-2.
    FinWait2,
    /// CLOSE-WAIT.
    CloseWait,
    /// CLOSING.
    Closing,
    /// LAST-ACK.
    LastAck,
    /// TIME-WAIT.
    TimeWait,
    /// CLOSED.
    Closed,
}

impl SocketState {
    /// The word in the State column of `ss`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Listen => "LISTEN",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::Established => "ESTAB",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "UNCONN",
        }
    }
}

impl From<State> for SocketState {
    fn from(state: State) -> Self {
        match state {
            State::Closed => Self::Closed,
            State::Listen => Self::Listen,
            State::SynSent => Self::SynSent,
            State::SynReceived => Self::SynReceived,
            State::Established => Self::Established,
            State::FinWait1 => Self::FinWait1,
            State::FinWait2 => Self::FinWait2,
            State::CloseWait => Self::CloseWait,
            State::Closing => Self::Closing,
            State::LastAck => Self::LastAck,
            State::TimeWait => Self::TimeWait,
        }
    }
}

impl From<TcpPhase> for SocketState {
    fn from(phase: TcpPhase) -> Self {
        match phase {
            TcpPhase::Closed => Self::Closed,
            TcpPhase::Established => Self::Established,
            TcpPhase::FinWait1 => Self::FinWait1,
            TcpPhase::FinWait2 => Self::FinWait2,
            TcpPhase::CloseWait => Self::CloseWait,
            TcpPhase::Closing => Self::Closing,
            TcpPhase::LastAck => Self::LastAck,
            TcpPhase::TimeWait => Self::TimeWait,
        }
    }
}

/// How a connection has moved between host and target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// Times that the target has taken it over.
    pub offloads: u32,
    /// Times that the host has taken it back from the target.
    pub uploads: u32,
    /// Why the target last wanted it uploaded; `None`: it never did.
    pub last_upload_reason: Option<UploadReason>,
    /// Hand-overs, either way, that were not done.
    pub refusals: u32,
    /// Why the last one was not.
    pub last_refusal: Option<Refusal>,
}

impl From<History> for Moves {
    fn from(history: History) -> Self {
        let History {
            opened_at: _,
            returned_at: _,
            offloads,
            uploads,
            upload_reason,
            // The one that counts for the policy.
            refusal: _,
            refusals,
            last_refusal,
        } = history;
        Self { offloads, uploads, last_upload_reason: upload_reason, refusals, last_refusal }
    }
}

/// A connection or a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionRow {
    /// Its name within the node; a listener's comes from the same numbers.
    pub handle: OffloadHandle,
    /// Our end. An unspecified address: all of the node's.
    pub local: SocketAddr,
    /// The peer's end; `None` of a listener.
    pub remote: Option<SocketAddr>,
    /// State; of an offloaded connection `None`: the target knows.
    pub state: Option<SocketState>,
    /// Where its data path is.
    pub offload: OffloadState,
    /// Bytes received that the client has not taken; handshakes under way of a listener. `None` as for
    /// `state`.
    pub recv_q: Option<usize>,
    /// Bytes sent that the peer has not acknowledged; a listener's backlog. `None` as for `state`.
    pub send_q: Option<usize>,
    /// How it has moved.
    pub moves: Moves,
}

impl Host {
    /// Every listener and every connection, by handle.
    pub(super) fn list(&self) -> Vec<ConnectionRow> {
        let listeners = self.listeners.iter().map(|(id, listener)| listener.row(*id));
        let here = self.connections.iter().map(|(handle, connection)| {
            let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
            connection.row(*handle, socket)
        });
        let there = self.offloaded.iter().map(|(handle, offloaded)| offloaded.row(*handle));
        let mut rows = listeners.chain(here).chain(there).collect::<Vec<_>>();
        rows.sort_unstable_by_key(|row| row.handle);
        rows
    }
}

impl Listener {
    fn row(&self, id: u64) -> ConnectionRow {
        ConnectionRow {
            handle: OffloadHandle(id),
            local: self.local,
            remote: None,
            state: Some(SocketState::Listen),
            offload: OffloadState::InHost,
            recv_q: Some(self.half_open),
            send_q: Some(self.backlog),
            moves: Moves::default(),
        }
    }
}

impl Connection {
    fn row(&self, handle: OffloadHandle, socket: &tcp::Socket<'_>) -> ConnectionRow {
        ConnectionRow {
            handle,
            local: self.tuple.local,
            remote: Some(self.tuple.remote),
            state: Some(socket.state().into()),
            offload: OffloadState::InHost,
            recv_q: Some(socket.recv_queue() + self.receive.unconsumed),
            send_q: Some(self.send.outstanding() as usize),
            moves: self.history.into(),
        }
    }
}

impl Offloaded {
    fn row(&self, handle: OffloadHandle) -> ConnectionRow {
        let offload = match self.stage {
            OffloadStage::Initiating => OffloadState::Offloading,
            OffloadStage::With(_) => OffloadState::Offloaded,
            OffloadStage::Terminating(_) => OffloadState::Uploading,
        };
        ConnectionRow {
            handle,
            local: self.tuple.local,
            remote: Some(self.tuple.remote),
            state: None,
            offload,
            recv_q: None,
            send_q: None,
            moves: self.history.into(),
        }
    }
}
