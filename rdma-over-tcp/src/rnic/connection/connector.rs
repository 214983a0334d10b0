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
use offload_engine::address::LocalAddress;

use super::{cause::ConnectCause, read_limit::ReadLimit};
use crate::{
    error::EndReason,
    mpa::startup::{PrivateData, ReadLimits},
    rnic::objects::{
        id::{ListenerId, QpId, SharedEndpointId, StreamId},
        lifetime::{Life, RequestCompletion},
    },
};

/// Called once when an established connection has ended, unless the consumer has disconnected it (NDK-DISC-4). The
/// argument is the reason, if there is one (NDK-DISC-7).
pub type DisconnectEvent = Box<dyn FnOnce(Option<EndReason>) + Send>;

/// Data of the peer from the set-up of the connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionData {
    /// The read limits as they stand.
    pub limits: ReadLimit,
    /// The peer's private data, up to 512 bytes.
    pub private_data: Bytes,
}

/// Where a connector is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectorState {
    /// May connect.
    Idle,
    /// Its connect is under way.
    Connecting,
    /// The peer has accepted: to be completed or rejected.
    ConnectDone,
    /// Its completion of the connect is under way.
    Completing,
    /// Of an incoming request: to be accepted or rejected.
    Pending,
    /// Its accept is under way.
    Accepting,
    /// The connection is established.
    Connected,
    /// Its disconnect is under way.
    Disconnecting,
    /// The connection is over. The connector cannot be used again.
    Closed,
}

/// A connector.
pub(crate) struct Connector {
    pub(crate) life: Life,
    pub(crate) state: ConnectorState,
    pub(crate) qp: Option<QpId>,
    pub(crate) listener: Option<ListenerId>,
    /// The shared endpoint that it has connected from.
    pub(crate) shared: Option<SharedEndpointId>,
    pub(crate) stream: Option<StreamId>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    /// The endpoint reference it holds (NDK-EP-1).
    pub(crate) endpoint: Option<LocalAddress>,
    pub(crate) request: Option<RequestCompletion>,
    pub(crate) disconnect_event: Option<DisconnectEvent>,
    /// Kept in the windows of NDK-CD-2 and NDK-CD-7.
    pub(crate) data: Option<ConnectionData>,
    /// Why the last attempt failed.
    pub(crate) cause: Option<ConnectCause>,
    /// Another attempt, should the peer not know enhanced start-up.
    pub(crate) plain: Option<Box<PlainAttempt>>,
}

/// A connect with revision 1.
#[derive(Clone, Debug)]
pub(crate) struct PlainAttempt {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) shared: Option<SharedEndpointId>,
    pub(crate) remote: SocketAddr,
    pub(crate) limits: ReadLimits,
    pub(crate) private_data: PrivateData,
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
            shared: None,
            stream: None,
            local: None,
            remote: None,
            endpoint: None,
            request: None,
            disconnect_event: None,
            data: None,
            cause: None,
            plain: None,
        }
    }
}
