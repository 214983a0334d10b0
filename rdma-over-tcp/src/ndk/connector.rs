//! Connectors and what a consumer may do with them when.
//!
//! ```text
//! active:  Idle -Connect-> Connecting -> ConnectDone -CompleteConnect-> Completing -> Connected
//! passive: Pending -Accept-> Accepting -> Connected
//! both:    Connected -Disconnect-> Disconnecting -> Closed
//! ```
//! A failed Connect leads back to Idle and may be repeated (NDK-CON-1); every other failure to Closed.

use alloc::boxed::Box;
use core::{fmt, net::SocketAddr};

use bytes::Bytes;
use offload_engine::chimney::client::OffloadHandle;

use super::{
    lifetime::{Key, Life, RequestCompletion, Return, ReturnGuard},
    listener::Listener,
    objects::Objects,
    qp::{Qp, QpState},
    slab::Id,
    status::NtStatus,
};
use crate::mpa::startup::{Enhanced, ReadLimits};

/// Called once when an established connection ended, but for the consumer's own disconnect
/// (NDK-DISC-4). The argument is the reason: the Terminate's layer, type and code as `0xLTCC`, or 0
/// (NDK-DISC-7).
pub type DisconnectEvent = Box<dyn FnOnce(u32) + Send>;

/// Read limits as a consumer asks for them and as they came to be (NDK-CD-1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadLimit {
    /// Reads of the peer that are served at once (IRD).
    pub inbound: u32,
    /// Own reads outstanding at once (ORD).
    pub outbound: u32,
}

impl ReadLimit {
    /// Capped by the adapter's limits; over-large wishes never fail (NDK-CD-1).
    pub(crate) fn capped(self, adapter: Self) -> ReadLimits {
        let narrow = |wish: u32, max: u32| u16::try_from(wish.min(max)).unwrap_or(u16::MAX);
        ReadLimits {
            ird: narrow(self.inbound, adapter.inbound),
            ord: narrow(self.outbound, adapter.outbound),
        }
    }

    /// The effective limits of a connection, given what the peer said of itself; a peer that said
    /// nothing of a limit leaves ours.
    pub(crate) fn effective(own: ReadLimits, peer: Option<&Enhanced>) -> Self {
        let peer_ird = peer.and_then(|peer| peer.ird.reads()).unwrap_or(u16::MAX);
        let peer_ord = peer.and_then(|peer| peer.ord.reads()).unwrap_or(u16::MAX);
        Self { inbound: own.ird.min(peer_ord).into(), outbound: own.ord.min(peer_ird).into() }
    }
}

/// NdkGetConnectionData.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ConnectionData {
    pub(crate) limits: ReadLimit,
    pub(crate) private_data: Bytes,
}

impl ConnectionData {
    /// The table of NDK-CD-3; returns the status and the size required. `None` with a size above 0 is
    /// the consumer's mistake.
    pub(crate) fn copy_out(&self, buffer: Option<&mut [u8]>) -> (NtStatus, usize) {
        let required = self.private_data.len();
        let Some(buffer) = buffer else { return (NtStatus::SUCCESS, required) };
        let count = buffer.len().min(required);
        buffer[..count].copy_from_slice(&self.private_data[..count]);
        let status = if count < required { NtStatus::BUFFER_TOO_SMALL } else { NtStatus::SUCCESS };
        (status, required)
    }
}

/// Where a connector is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectorState {
    Idle,
    Connecting,
    ConnectDone,
    Completing,
    Pending,
    Accepting,
    Connected,
    Disconnecting,
    Closed,
}

/// A connector.
pub(crate) struct Connector {
    pub(crate) life: Life,
    pub(crate) state: ConnectorState,
    pub(crate) qp: Option<Id<Qp>>,
    pub(crate) listener: Option<Id<Listener>>,
    pub(crate) stream: Option<OffloadHandle>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    /// The endpoint reference it holds (NDK-EP-1).
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) request: Option<RequestCompletion>,
    pub(crate) disconnect_event: Option<DisconnectEvent>,
    /// What NdkGetConnectionData tells, in its windows (NDK-CD-2, NDK-CD-7).
    pub(crate) data: Option<ConnectionData>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({:?}, {:?} to {:?})", self.state, self.local, self.remote)
    }
}

impl Connector {
    pub(crate) fn new(state: ConnectorState) -> Self {
        Self {
            life: Life::default(),
            state,
            qp: None,
            listener: None,
            stream: None,
            local: None,
            remote: None,
            endpoint: None,
            request: None,
            disconnect_event: None,
            data: None,
        }
    }
}

impl Objects {
    /// Begins an asynchronous request of a connector.
    pub(crate) fn begin_request(&mut self, id: Id<Connector>, completion: RequestCompletion) {
        self.pin(Key::Connector(id));
        if let Some(connector) = self.connectors.get_mut(id) {
            debug_assert!(connector.request.is_none(), "one request at a time");
            connector.request = Some(completion);
        }
    }

    /// Ends the request that is pending, if one is.
    pub(crate) fn end_connector_request(&mut self, id: Id<Connector>, status: NtStatus) {
        let request = self.connectors.get_mut(id).and_then(|connector| connector.request.take());
        if let Some(completion) = request {
            self.end_request(Key::Connector(id), completion, status);
        }
    }

    /// Both ends may post from now on (NDK-CON-12); the pending CompleteConnect or Accept is done.
    pub(crate) fn connection_established(&mut self, id: Id<Connector>, limits: ReadLimit) {
        let Some(connector) = self.connectors.get_mut(id) else { return };
        match connector.state {
            ConnectorState::Completing => self.counters.connect += 1,
            ConnectorState::Accepting => self.counters.accept += 1,
            _ => return,
        }
        connector.state = ConnectorState::Connected;
        self.counters.active_connection += 1;
        if let Some(qp) = connector.qp.and_then(|qp| self.qps.get_mut(qp)) {
            qp.state = QpState::Connected;
            qp.read_limit = limits.outbound;
        }
        self.end_connector_request(id, NtStatus::SUCCESS);
    }

    /// The connection attempt failed. An active connector may try again, with any queue pair.
    pub(crate) fn connection_failed(&mut self, id: Id<Connector>, status: NtStatus) {
        let Some(connector) = self.connectors.get_mut(id) else { return };
        self.counters.connect_failure += 1;
        let retry = connector.state == ConnectorState::Connecting;
        connector.stream = None;
        connector.disconnect_event = None;
        if retry {
            connector.state = ConnectorState::Idle;
            if let Some(endpoint) = connector.endpoint.take() {
                self.endpoints.release(endpoint);
            }
            if let Some(qp) = connector.qp.take() {
                if let Some(qp) = self.qps.get_mut(qp) {
                    // NDK-CON-1: back to where it was.
                    qp.state = QpState::Idle;
                    qp.stream = None;
                }
                self.end_connector_request(id, status);
                self.unpin(Key::Qp(qp));
            }
        } else {
            connector.state = ConnectorState::Closed;
            let qp = connector.qp;
            self.end_connector_request(id, status);
            if let Some(id) = qp {
                self.break_qp(id);
            }
        }
    }

    /// The queue pair's connection is over: everything posted is flushed.
    pub(crate) fn break_qp(&mut self, id: Id<Qp>) {
        if let Some(qp) = self.qps.get_mut(id) {
            qp.state = QpState::Error;
            qp.stream = None;
            self.flush(id);
        }
    }

    /// An established connection ended, or its peer closed: tells the consumer once (NDK-DISC-2, -4).
    pub(crate) fn tell_disconnect(&mut self, id: Id<Connector>, reason: u32) {
        let Some(connector) = self.connectors.get_mut(id) else { return };
        if connector.state != ConnectorState::Connected {
            return;
        }
        if let Some(event) = connector.disconnect_event.take() {
            connector.life.pin();
            let guard = ReturnGuard::new(&self.returns, Return::Unpin(Key::Connector(id)));
            self.outbox.push(guard, move || event(reason));
        }
    }

    /// The connection of an established connector is gone, gracefully or not.
    pub(crate) fn connection_ended(&mut self, id: Id<Connector>, status: NtStatus) {
        let Some(connector) = self.connectors.get_mut(id) else { return };
        match connector.state {
            ConnectorState::Connected => self.counters.connection_error += 1,
            ConnectorState::Disconnecting => {}
            _ => return,
        }
        connector.state = ConnectorState::Closed;
        connector.stream = None;
        self.counters.active_connection -= 1;
        let qp = connector.qp;
        // The flush belongs to the disconnect: its completions come first (NDK-DISC-1).
        if let Some(qp) = qp {
            self.break_qp(qp);
        }
        self.end_connector_request(id, status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpa::startup::{ReadDepth, RtrSet};

    // NDK-CD-3: the four rows of the table.
    #[test]
    fn connection_data_table() {
        let data = ConnectionData {
            private_data: Bytes::from_static(b"abcd"),
            ..ConnectionData::default()
        };
        assert_eq!(data.copy_out(None), (NtStatus::SUCCESS, 4));
        let mut buffer = [0; 6];
        assert_eq!(data.copy_out(Some(&mut buffer)), (NtStatus::SUCCESS, 4));
        assert_eq!(&buffer, b"abcd\0\0");
        let mut buffer = [0; 4];
        assert_eq!(data.copy_out(Some(&mut buffer)), (NtStatus::SUCCESS, 4));
        let mut buffer = [0; 3];
        assert_eq!(data.copy_out(Some(&mut buffer)), (NtStatus::BUFFER_TOO_SMALL, 4));
        assert_eq!(&buffer, b"abc");
        assert_eq!(data.copy_out(Some(&mut [])), (NtStatus::BUFFER_TOO_SMALL, 4));
    }

    // NDK-CD-1: min of wish, adapter and peer, in every combination.
    #[test]
    fn read_limit_matrix() {
        let adapter = ReadLimit { inbound: 8, outbound: 16 };
        for wish in [0, 1, 7, 8, 9, 16, 17, u32::MAX] {
            for peer in [None, Some(0), Some(1), Some(8), Some(128)] {
                let own = ReadLimit { inbound: wish, outbound: wish }.capped(adapter);
                let enhanced = peer.map(|depth| Enhanced {
                    ird: ReadDepth::new(depth),
                    ord: ReadDepth::new(depth),
                    peer_to_peer: false,
                    rtr: RtrSet::NONE,
                });
                let peer = peer.map_or(u32::MAX, u32::from);
                assert_eq!(
                    ReadLimit::effective(own, enhanced.as_ref()),
                    ReadLimit { inbound: wish.min(8).min(peer), outbound: wish.min(16).min(peer) }
                );
            }
        }
    }
}
