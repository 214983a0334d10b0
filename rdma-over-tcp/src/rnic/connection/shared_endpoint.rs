//! Shared endpoints: a local address that several connections have, each to another peer (NDK-EP-3).
//!
//! The transport reserves the address when the endpoint is made, and releases it when the endpoint and all connectors
//! that have connected from it are closed (NDK-EP-1).

use core::{fmt, net::SocketAddr};

use offload_engine::address::LocalAddress;

use crate::rnic::objects::lifetime::{Life, RequestCompletion};

/// A shared endpoint.
pub(crate) struct SharedEndpoint {
    pub(crate) life: Life,
    /// Where it is to be; with the port, once the transport has reserved it.
    pub(crate) local: SocketAddr,
    /// The reference it holds, once it has one.
    pub(crate) endpoint: Option<LocalAddress>,
    /// Its creation is under way.
    pub(crate) request: Option<RequestCompletion>,
}

impl fmt::Debug for SharedEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedEndpoint({:?}, {})", self.life, self.local)
    }
}
