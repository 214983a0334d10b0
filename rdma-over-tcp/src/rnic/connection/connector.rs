//! Connectors and their state machine.
//!
//! ```text
//! active:  Idle -Connect-> Connecting -> ConnectDone -CompleteConnect-> Completing -> Connected
//! passive: Pending -Accept-> Accepting -> Connected
//! both:    Connected -Disconnect-> Disconnecting -> Closed
//! ```
//! A failed Connect returns to Idle and may be repeated (NDK-CON-1). Every other failure moves to Closed.

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

/// Callback for the end of an established connection, called once, unless the consumer has disconnected it
/// (NDK-DISC-4). The argument is the reason, if there is one (NDK-DISC-7).
pub type DisconnectEvent = Box<dyn FnOnce(Option<EndReason>) + Send>;

/// Data of the peer from the establishment of the connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionData {
    /// Effective read limits.
    pub limits: ReadLimit,
    /// The peer's private data, up to 512 bytes.
    pub private_data: Bytes,
}

/// State of a connector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectorState {
    /// Can connect.
    Idle,
    /// A connect is pending.
    Connecting,
    /// The peer has accepted. The connect has to be completed or rejected.
    ConnectDone,
    /// The completion of the connect is pending.
    Completing,
    /// An incoming request has to be accepted or rejected.
    Pending,
    /// An accept is pending.
    Accepting,
    /// The connection is established.
    Connected,
    /// A disconnect is pending.
    Disconnecting,
    /// The connection has ended. The connector cannot be used again.
    Closed,
}

/// State of one connector.
pub(crate) struct Connector {
    pub(crate) life: Life,
    pub(crate) state: ConnectorState,
    pub(crate) qp: Option<QpId>,
    pub(crate) listener: Option<ListenerId>,
    /// Shared endpoint that it connects from.
    pub(crate) shared: Option<SharedEndpointId>,
    pub(crate) stream: Option<StreamId>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    /// Reference that it holds to a local endpoint (NDK-EP-1).
    pub(crate) endpoint: Option<LocalAddress>,
    pub(crate) request: Option<RequestCompletion>,
    pub(crate) disconnect_event: Option<DisconnectEvent>,
    /// Available in the intervals of NDK-CD-2 and NDK-CD-7.
    pub(crate) data: Option<ConnectionData>,
    /// Cause of the last failed attempt.
    pub(crate) cause: Option<ConnectCause>,
    /// Second attempt, for a peer that does not support enhanced start-up.
    pub(crate) plain: Option<Box<PlainAttempt>>,
}

/// Parameters of a connect with revision 1.
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
