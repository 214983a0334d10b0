//! UDP ports of an adapter on a node.
//!
//! The host stack has the sockets ([`Request::OpenDatagrams`]). A datagram is copied once, into storage that the host
//! stack returns. A queue pair waits while the host stack has [`DATAGRAMS_SENT_MAX`] datagrams, and continues when it
//! has half of them.

use alloc::vec::Vec;
use core::net::SocketAddr;

use hashbrown::HashMap;
use host_stack::socket::{DATAGRAMS_SENT_MAX, HostError, Request, SocketPort};
use offload_engine::address::unscoped;

use crate::rnic::{DatagramPath, transport::DatagramIo};

/// UDP ports of an adapter on a node.
#[derive(Debug)]
pub(super) struct NodeDatagrams {
    port: SocketPort,
    /// Ports, with the answer of the host stack.
    ports: HashMap<u16, Option<Result<(), HostError>>>,
    /// Datagrams in the host stack.
    outstanding: usize,
    /// True if queue pairs wait until the host stack has fewer datagrams.
    is_blocked: bool,
    /// Storage that the host stack has returned.
    spare: Vec<Vec<u8>>,
}

impl NodeDatagrams {
    pub(super) fn new(port: SocketPort) -> Self {
        Self { port, ports: HashMap::new(), outstanding: 0, is_blocked: false, spare: Vec::new() }
    }

    /// Requests a port, unless it is open or requested.
    pub(super) fn open(&mut self, port: u16) {
        self.ports.entry(port).or_insert_with(|| {
            self.port.request(Request::OpenDatagrams { port });
            None
        });
    }

    /// Records the answer of the host stack.
    pub(super) fn opened(&mut self, port: u16, result: Result<(), HostError>) {
        if let Some(answer) = self.ports.get_mut(&port) {
            *answer = Some(result);
        }
    }

    /// Returns the answer of the host stack, once. A port that could not be opened can be requested again.
    pub(super) fn answer(&mut self, port: u16) -> Option<Result<(), HostError>> {
        let answer = (*self.ports.get(&port)?)?;
        if answer.is_err() {
            self.ports.remove(&port);
        }
        Some(answer)
    }

    /// Closes a port.
    pub(super) fn close(&mut self, port: u16) {
        if self.ports.remove(&port).is_some() {
            self.port.request(Request::CloseDatagrams { port });
        }
    }

    /// True if the host stack has sent all datagrams, or waits for an answer of their next hops.
    pub(super) const fn are_sent(&self) -> bool {
        self.outstanding == 0
    }

    /// Takes the storage of a datagram that the host stack has sent. Returns true if queue pairs may continue.
    pub(super) fn sent(&mut self, storage: Vec<u8>) -> bool {
        self.spare.push(storage);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.outstanding <= DATAGRAMS_SENT_MAX / 2 && core::mem::take(&mut self.is_blocked)
    }
}

impl DatagramIo for NodeDatagrams {
    fn send(&mut self, port: u16, path: &DatagramPath, datagram: &[u8]) -> bool {
        if self.outstanding >= DATAGRAMS_SENT_MAX {
            self.is_blocked = true;
            return false;
        }
        let mut data = self.spare.pop().unwrap_or_default();
        data.clear();
        data.extend_from_slice(datagram);
        self.outstanding += 1;
        let from = SocketAddr::new(path.local, port);
        self.port.request(Request::SendDatagram { from, to: unscoped(path.remote), data });
        true
    }
}
