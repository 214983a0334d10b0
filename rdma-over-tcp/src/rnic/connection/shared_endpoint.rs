//! Shared endpoints: a local address of several connections, each to a different peer (NDK-EP-3).
//!
//! The transport reserves the address when the endpoint is created. It releases the address when the endpoint and all
//! connectors connected from it are closed (NDK-EP-1).

use core::{fmt, net::SocketAddr};

use offload_engine::address::LocalAddress;

use crate::rnic::objects::lifetime::{Life, RequestCompletion};

/// State of one shared endpoint.
pub(crate) struct SharedEndpoint {
    pub(crate) life: Life,
    /// Requested address. The port is set when the transport has reserved it.
    pub(crate) local: SocketAddr,
    /// Reference to the local endpoint, once it is reserved.
    pub(crate) endpoint: Option<LocalAddress>,
    /// Completion of the pending creation.
    pub(crate) request: Option<RequestCompletion>,
}

impl fmt::Debug for SharedEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedEndpoint({:?}, {})", self.life, self.local)
    }
}
