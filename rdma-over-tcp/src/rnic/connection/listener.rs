//! Listeners for incoming connections.

mod awaiting;

use alloc::sync::Arc;
use core::{fmt, net::SocketAddr, sync::atomic::AtomicBool};

use offload_engine::address::LocalAddress;

pub(crate) use self::awaiting::ArrivalNumber;
use self::awaiting::Awaiting;
use crate::rnic::{
    config::ListenerConfig,
    objects::{
        id::ConnectorId,
        lifetime::{Life, RequestCompletion},
    },
};

/// Callback for an incoming request, with its connector. Called with no lock held. It must not own the adapter, because
/// that would be a reference cycle.
pub type ConnectEvent = Arc<dyn Fn(ConnectorId) + Send + Sync>;

/// State of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListenerState {
    Idle,
    /// The transport has not answered the command yet.
    Starting,
    Listening,
}

/// State of one listener.
pub(crate) struct Listener {
    pub(crate) life: Life,
    pub(crate) state: ListenerState,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) endpoint: Option<LocalAddress>,
    /// True if connect events are not delivered: paused or closed. Shared with the events in delivery (NDK-EP-7).
    pub(crate) is_paused: Arc<AtomicBool>,
    pub(crate) event: ConnectEvent,
    pub(crate) request: Option<RequestCompletion>,
    pub(crate) config: ListenerConfig,
    /// Connections whose MPA Request is not complete.
    pub(crate) awaiting: Awaiting,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({:?}, {:?})", self.state, self.local)
    }
}
