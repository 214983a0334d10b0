//! Listeners: where connections come in.

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

/// Tells the consumer of an incoming request, by its connector. Called when no lock is held; it must not keep the
/// adapter alive, or the two hold each other.
pub type ConnectEvent = Arc<dyn Fn(ConnectorId) + Send + Sync>;

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
    pub(crate) endpoint: Option<LocalAddress>,
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
