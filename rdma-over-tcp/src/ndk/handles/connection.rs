//! Connectors and listeners.

use alloc::boxed::Box;
use core::net::SocketAddr;

use super::{Adapter, Qp, SharedEndpoint, check_same};
use crate::{
    ndk::{DisconnectEvent, DisconnectReason, status::NtStatus},
    rnic::{
        self, ConnectCause, ConnectError, ConnectionData, ConnectorId, ListenerConfig, ListenerId,
        ReadLimit,
    },
};

/// Status of a call that pends once begun.
fn pending(begun: Result<(), ConnectError>) -> NtStatus {
    begun.map_or_else(NtStatus::from, |()| NtStatus::PENDING)
}

fn request(completion: impl FnOnce(NtStatus) + Send + 'static) -> rnic::RequestCompletion {
    Box::new(move |outcome: Result<(), ConnectError>| completion(outcome.into()))
}

fn disconnected(event: Option<DisconnectEvent>) -> Option<rnic::DisconnectEvent> {
    let event = event?;
    Some(Box::new(move |reason| event(DisconnectReason::new(reason).0)))
}

/// Table of NDK-CD-3: the status and the size required.
fn copy_out(data: &ConnectionData, buffer: Option<&mut [u8]>) -> (NtStatus, usize) {
    let required = data.private_data.len();
    let Some(buffer) = buffer else { return (NtStatus::SUCCESS, required) };
    let count = buffer.len().min(required);
    buffer[..count].copy_from_slice(&data.private_data[..count]);
    let status = if count < required { NtStatus::BUFFER_TOO_SMALL } else { NtStatus::SUCCESS };
    (status, required)
}

/// Connector.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(super) adapter: Adapter,
    pub(super) id: ConnectorId,
}

impl Connector {
    /// NdkConnect: PENDING, then `completion` with SUCCESS once the peer has accepted. Then call
    /// [`Connector::complete_connect`] or [`Connector::reject`]. After a failure the connect may be retried
    /// (NDK-CON-1). `local`: with `None` or port 0 the host stack chooses.
    ///
    /// # Errors
    /// Inline: [`NtStatus::INVALID_BUFFER_SIZE`] (private data over the limit, NDK-CD-5),
    /// [`NtStatus::INVALID_ADDRESS`], [`NtStatus::SHARING_VIOLATION`], [`NtStatus::ADDRESS_ALREADY_ASSOCIATED`] (the
    /// connector is in use), [`NtStatus::CONNECTION_ACTIVE`] (the queue pair is in use),
    /// [`NtStatus::INVALID_DEVICE_STATE`] (the queue pair was connected before, NDK-DISC-6).
    ///
    /// Later: CONNECTION_REFUSED, CONNECTION_ABORTED, IO_TIMEOUT, HOST_UNREACHABLE, NETWORK_UNREACHABLE,
    /// INVALID_ADDRESS, SHARING_VIOLATION, ADDRESS_ALREADY_EXISTS, TOO_MANY_ADDRESSES, INSUFFICIENT_RESOURCES.
    pub fn connect(
        &self,
        qp: &Qp,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        limits: ReadLimit,
        private_data: &[u8],
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        if let Err(status) = check_same(&self.adapter, &qp.adapter) {
            return status;
        }
        self.adapter.with(|core, _| {
            let addresses = (local, remote);
            let completion = request(completion);
            pending(core.connect(self.id, qp.id, addresses, limits, private_data, completion))
        })
    }

    /// NdkConnectWithSharedEndpoint: as [`Connector::connect`], from a shared endpoint, which may have connections to
    /// other peers (NDK-EP-3).
    ///
    /// # Errors
    /// Inline and later as [`Connector::connect`], without SHARING_VIOLATION and TOO_MANY_ADDRESSES;
    /// [`NtStatus::ADDRESS_ALREADY_EXISTS`]: the endpoint already has a connection to this peer.
    pub fn connect_with_shared_endpoint(
        &self,
        qp: &Qp,
        endpoint: &SharedEndpoint,
        remote: SocketAddr,
        limits: ReadLimit,
        private_data: &[u8],
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        let is_same = check_same(&self.adapter, &qp.adapter)
            .and_then(|()| check_same(&self.adapter, &endpoint.adapter));
        if let Err(status) = is_same {
            return status;
        }
        self.adapter.with(|core, _| {
            let addresses = (endpoint.id, remote);
            let completion = request(completion);
            pending(core.connect_from(self.id, qp.id, addresses, limits, private_data, completion))
        })
    }

    /// NdkCompleteConnectEx. The queue pair accepts initiator requests after the completion's SUCCESS (NDK-CON-12).
    /// `disconnect` is called when the connection ends other than by this side.
    ///
    /// # Errors
    /// [`NtStatus::CONNECTION_INVALID`]: not connecting; [`NtStatus::CONNECTION_ABORTED`], inline or later: the
    /// accepting side aborted.
    pub fn complete_connect(
        &self,
        disconnect: Option<DisconnectEvent>,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        let (disconnect, completion) = (disconnected(disconnect), request(completion));
        self.adapter.with(|core, _| pending(core.complete_connect(self.id, disconnect, completion)))
    }

    /// NdkAcceptEx: PENDING, then SUCCESS once the peer's first message has arrived (NDK-CON-4, NDK-CON-9).
    ///
    /// # Errors
    /// Inline as [`Connector::connect`] for private data and queue pair; [`NtStatus::CONNECTION_INVALID`]: there is no
    /// request to accept; [`NtStatus::CONNECTION_ABORTED`], inline or later: the connecting peer aborted;
    /// [`NtStatus::IO_TIMEOUT`] later: the peer never completed.
    pub fn accept(
        &self,
        qp: &Qp,
        limits: ReadLimit,
        private_data: &[u8],
        disconnect: Option<DisconnectEvent>,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        if let Err(status) = check_same(&self.adapter, &qp.adapter) {
            return status;
        }
        self.adapter.with(|core, now| {
            let (event, completion) = (disconnected(disconnect), request(completion));
            pending(core.accept(now, self.id, qp.id, limits, private_data, event, completion))
        })
    }

    /// NdkReject: rejects an incoming request with private data, or an accepted connect instead of
    /// [`Connector::complete_connect`] (NDK-CON-2). Never pends.
    ///
    /// # Errors
    /// [`NtStatus::CONNECTION_ABORTED`]: the peer aborted before; [`NtStatus::CONNECTION_INVALID`]: there is no request
    /// to reject; [`NtStatus::INVALID_BUFFER_SIZE`]: private data over the limit.
    pub fn reject(&self, private_data: &[u8]) -> NtStatus {
        self.adapter.with(|core, _| core.reject(self.id, private_data)).into()
    }

    /// NdkGetConnectionData: copies the peer's private data into `buffer`. Returns the status, the size required, and
    /// the current read limits (NDK-CD-1, -3). `None` queries the size.
    ///
    /// # Errors
    /// [`NtStatus::BUFFER_TOO_SMALL`]: the part that fits was copied; [`NtStatus::CONNECTION_INVALID`]: outside the
    /// windows of NDK-CD-2 and NDK-CD-7.
    pub fn connection_data(&self, buffer: Option<&mut [u8]>) -> (NtStatus, usize, ReadLimit) {
        let data = self.adapter.with(|core, _| core.connection_data(self.id).cloned());
        match data {
            None => (NtStatus::CONNECTION_INVALID, 0, ReadLimit::default()),
            Some(data) => {
                let (status, required) = copy_out(&data, buffer);
                (status, required, data.limits)
            }
        }
    }

    /// NdkDisconnect: posted requests are sent, then FIN; the queue pair is flushed. `completion` is called when the
    /// FIN is acknowledged (NDK-DISC-1, -5).
    ///
    /// # Errors
    /// [`NtStatus::CONNECTION_INVALID`]: not connected, or being disconnected; [`NtStatus::IO_TIMEOUT`] later: the peer
    /// did not acknowledge the FIN, and the connection was reset.
    pub fn disconnect(&self, completion: impl FnOnce(NtStatus) + Send + 'static) -> NtStatus {
        self.adapter.with(|core, now| pending(core.disconnect(now, self.id, request(completion))))
    }

    /// Returns the cause of the connector's last failed connect or accept. It distinguishes causes with the same
    /// status, and holds the private data of a rejection.
    #[must_use]
    pub fn failure(&self) -> Option<ConnectCause> {
        self.adapter.with(|core, _| core.connect_cause(self.id).cloned())
    }

    /// NdkGetConnectorLocalAddress, while connected or connecting.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.adapter.with(|core, _| core.local_address(self.id))
    }

    /// NdkGetConnectorPeerAddress, while connected or connecting.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.adapter.with(|core, _| core.peer_address(self.id))
    }
}

/// Listener.
#[derive(Clone, Debug)]
pub struct Listener {
    pub(super) adapter: Adapter,
    pub(super) id: ListenerId,
}

impl Listener {
    /// NdkListen: PENDING, then `completion`. Port 0: the host stack chooses (NDK-EP-4).
    ///
    /// # Errors
    /// Inline: [`NtStatus::SHARING_VIOLATION`] (NDK-EP-2), [`NtStatus::ADDRESS_ALREADY_ASSOCIATED`] (the listener is
    /// listening). Later: SHARING_VIOLATION, INVALID_ADDRESS, TOO_MANY_ADDRESSES, INSUFFICIENT_RESOURCES.
    pub fn listen(
        &self,
        local: SocketAddr,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        self.listen_with(local, ListenerConfig::default(), completion)
    }

    /// As [`Listener::listen`], with limits for this listener (NDK-EP-9).
    ///
    /// # Errors
    /// As [`Listener::listen`].
    pub fn listen_with(
        &self,
        local: SocketAddr,
        config: ListenerConfig,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        let completion = request(completion);
        self.adapter.with(|core, _| pending(core.listen(self.id, local, config, completion)))
    }

    /// NdkControlConnectEvents: while paused, peers are refused as if there were no listener (NDK-EP-6).
    pub fn control_connect_events(&self, pause: bool) {
        self.adapter.with(|core, _| core.pause(self.id, pause));
    }

    /// NdkGetListenerLocalAddress, once listening.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.adapter.with(|core, _| core.listener_address(self.id))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    // NDK-CD-3: the four rows of the table.
    #[test]
    fn connection_data_table() {
        let data = ConnectionData {
            private_data: Bytes::from_static(b"abcd"),
            ..ConnectionData::default()
        };
        assert_eq!(copy_out(&data, None), (NtStatus::SUCCESS, 4));
        let mut buffer = [0; 6];
        assert_eq!(copy_out(&data, Some(&mut buffer)), (NtStatus::SUCCESS, 4));
        assert_eq!(&buffer, b"abcd\0\0");
        let mut buffer = [0; 4];
        assert_eq!(copy_out(&data, Some(&mut buffer)), (NtStatus::SUCCESS, 4));
        let mut buffer = [0; 3];
        assert_eq!(copy_out(&data, Some(&mut buffer)), (NtStatus::BUFFER_TOO_SMALL, 4));
        assert_eq!(&buffer, b"abc");
        assert_eq!(copy_out(&data, Some(&mut [])), (NtStatus::BUFFER_TOO_SMALL, 4));
    }
}
