//! Listeners: where connections come in.

mod awaiting;

use alloc::sync::Arc;
use core::{fmt, net::SocketAddr, sync::atomic::AtomicBool};

use self::awaiting::Awaiting;
pub(crate) use self::awaiting::Place;
use super::{
    id::ConnectorId,
    lifetime::{Life, RequestCompletion},
};

/// Limits of a listener (NDK-EP-9: the provider's choice).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerConfig {
    /// Connections in their TCP handshake at once; the host stack takes at least 1 and at most 128.
    pub backlog: usize,
    /// Connections whose handshake is done and whose MPA Request is not complete, at least 1. A new one displaces the
    /// oldest, which is reset and counted ([`Counters::requests_displaced`](super::Counters::requests_displaced)).
    pub requests_max: usize,
    /// Those of one peer address, at least 1: a new one displaces that peer's oldest.
    pub requests_per_peer_max: usize,
}

impl ListenerConfig {
    /// A backlog of so many connections, for handshakes and for each peer's Requests.
    pub fn with_backlog(backlog: usize) -> Self {
        Self { backlog, requests_per_peer_max: backlog, ..Self::default() }
    }
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self { backlog: 128, requests_max: 1024, requests_per_peer_max: 128 }
    }
}

/// Tells the consumer of an incoming request, inside the core: the handles wrap the consumer's.
pub(crate) type ConnectEvent = Arc<dyn Fn(ConnectorId) + Send + Sync>;

/// Where a listener is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListenerState {
    Idle,
    /// The transport has been asked.
    Starting,
    Listening,
}

/// A listener.
pub(crate) struct Listener {
    pub(crate) life: Life,
    pub(crate) state: ListenerState,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) endpoint: Option<SocketAddr>,
    /// Connect events are not delivered: paused or closed. Shared with the events under way (NDK-EP-7).
    pub(crate) quiet: Arc<AtomicBool>,
    pub(crate) event: ConnectEvent,
    pub(crate) request: Option<RequestCompletion>,
    pub(crate) config: ListenerConfig,
    /// Connections whose Request is not complete.
    pub(crate) awaiting: Awaiting,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({:?}, {:?})", self.state, self.local)
    }
}
