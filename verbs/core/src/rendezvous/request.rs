//! Connection requests for queue pairs, and their refusal.

use std::net::SocketAddr;

use rdma_over_tcp::rnic::{ConnectorId, Key, Rnic};

use super::private_data::{QpDescription, Refusal};

/// Connection request for a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) connector: ConnectorId,
    pub(super) description: QpDescription,
    /// Address of the peer.
    pub(super) peer: Option<SocketAddr>,
}

/// Refuses a request with a reason.
pub(super) fn refuse(core: &mut Rnic, request: &Request, refusal: Refusal) {
    let Request { connector, description, peer } = request;
    tracing::info!(
        qpn = description.destination,
        peer_qpn = description.source,
        peer = peer.map(tracing::field::display),
        reason = %refusal,
        "connection of a queue pair refused"
    );
    let reply = QpDescription {
        destination: description.source,
        source: description.destination,
        refusal: Some(refusal),
        ..*description
    };
    // A request that the peer has aborted needs no reply.
    let _ = core.reject(*connector, &reply.encode());
    close(core, *connector);
}

/// Closes a connector. The completion has no receiver.
pub(super) fn close(core: &mut Rnic, connector: ConnectorId) {
    let _ = core.close(Key::Connector(connector), Box::new(|| {}));
}
