//! Listing of connections and listeners, for monitoring.
//!
//! The row of an offloaded connection has the host's part. Its queues and variables are in the target:
//! [`offload_engine::engine::Connections::look`].

use alloc::vec::Vec;

use offload_engine::{
    chimney::client::OffloadHandle,
    listing::{ConnectionRow, MigrationCounts, OffloadState, SocketState},
};
use smoltcp::socket::tcp;

use super::{
    Host,
    connection::{Connection, Listener, OffloadStage, Offloaded},
    history::History,
};

impl From<History> for MigrationCounts {
    fn from(history: History) -> Self {
        let History {
            opened_at: _,
            returned_at: _,
            offloads,
            uploads,
            upload_reason,
            // Relevant to the policy only.
            refusal: _,
            refusals,
            last_refusal,
        } = history;
        Self { offloads, uploads, last_upload_reason: upload_reason, refusals, last_refusal }
    }
}

impl Host {
    /// Returns every listener and connection in order of handles, or the one with the handle `only`.
    pub(super) fn list(&self, only: Option<OffloadHandle>) -> Vec<ConnectionRow> {
        if let Some(handle) = only {
            return self.row(handle).into_iter().collect();
        }
        let listeners = self.listeners.iter().map(|(id, listener)| listener.row(*id));
        let here =
            self.connections.iter().map(|(handle, connection)| self.row_here(*handle, connection));
        let there = self.offloaded.iter().map(|(handle, offloaded)| offloaded.row(*handle));
        let half = self.half_open.iter().map(|(handle, half)| half.row(*handle));
        let mut rows = listeners.chain(half).chain(here).chain(there).collect::<Vec<_>>();
        rows.sort_unstable_by_key(|row| row.handle);
        rows
    }

    fn row_here(&self, handle: OffloadHandle, connection: &Connection) -> ConnectionRow {
        connection.row(handle, self.sockets.get::<tcp::Socket<'_>>(connection.socket))
    }

    fn row(&self, handle: OffloadHandle) -> Option<ConnectionRow> {
        let here = self.connections.get(&handle).map(|it| self.row_here(handle, it));
        here.or_else(|| Some(self.offloaded.get(&handle)?.row(handle)))
            .or_else(|| Some(self.half_open.get(&handle)?.row(handle)))
            .or_else(|| Some(self.listeners.get(&handle.0)?.row(handle.0)))
    }
}

impl Listener {
    fn row(&self, id: u64) -> ConnectionRow {
        ConnectionRow {
            handle: OffloadHandle(id),
            local: self.local.address,
            remote: None,
            state: Some(SocketState::Listen),
            offload: OffloadState::InHost,
            recv_q: Some(self.half_open),
            send_q: Some(self.backlog),
            moves: MigrationCounts::default(),
        }
    }
}

impl Connection {
    fn row(&self, handle: OffloadHandle, socket: &tcp::Socket<'_>) -> ConnectionRow {
        ConnectionRow {
            handle,
            local: self.tuple.local(),
            remote: Some(self.tuple.remote()),
            state: Some(state_of(socket)),
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
            local: self.tuple.local(),
            remote: Some(self.tuple.remote()),
            state: None,
            offload,
            recv_q: None,
            send_q: None,
            moves: self.history.into(),
        }
    }
}

fn state_of(socket: &tcp::Socket<'_>) -> SocketState {
    match socket.state() {
        tcp::State::Closed => SocketState::Closed,
        tcp::State::Listen => SocketState::Listen,
        tcp::State::SynSent => SocketState::SynSent,
        tcp::State::SynReceived => SocketState::SynReceived,
        tcp::State::Established => SocketState::Established,
        tcp::State::FinWait1 => SocketState::FinWait1,
        tcp::State::FinWait2 => SocketState::FinWait2,
        tcp::State::CloseWait => SocketState::CloseWait,
        tcp::State::Closing => SocketState::Closing,
        tcp::State::LastAck => SocketState::LastAck,
        tcp::State::TimeWait => SocketState::TimeWait,
    }
}
