//! Shared endpoints.

use alloc::boxed::Box;
use core::net::SocketAddr;

use super::{Adapter, NtStatus};
use crate::rnic::{ConnectError, SharedEndpointId};

/// A shared endpoint: a local address from which several connectors connect, each to another peer (NDK-EP-3).
#[derive(Clone, Debug)]
pub struct SharedEndpoint {
    pub(super) adapter: Adapter,
    pub(super) id: SharedEndpointId,
}

impl SharedEndpoint {
    /// NdkGetSharedEndpointLocalAddress; `None` once it is closed.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.adapter.with(|core, _| core.shared_endpoint_address(self.id))
    }
}

impl Adapter {
    /// NdkCreateSharedEndpoint at `local`; port 0: a free one is chosen (NDK-EP-4). PENDING, and `completion` follows
    /// with the endpoint or a failure, as the transport has to reserve the address: it has no plain form. An
    /// unspecified address is every address of this machine.
    ///
    /// Over kernel sockets the kernel refuses an address at which somebody listens, or which a socket has that does not
    /// share it (SO_REUSEADDR); other processes may share it in the same way. It chooses the port of port 0 from its
    /// own range (`net.ipv4.ip_local_port_range`).
    ///
    /// # Errors
    /// Inline: [`NtStatus::SHARING_VIOLATION`] (NDK-EP-2), [`NtStatus::INSUFFICIENT_RESOURCES`],
    /// [`NtStatus::INVALID_PARAMETER`] (the adapter is being closed), [`NtStatus::DEVICE_REMOVED`]. Later:
    /// [`NtStatus::SHARING_VIOLATION`], [`NtStatus::INVALID_ADDRESS`], [`NtStatus::TOO_MANY_ADDRESSES`],
    /// [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn create_shared_endpoint(
        &self,
        local: SocketAddr,
        completion: impl FnOnce(Result<SharedEndpoint, NtStatus>) + Send + 'static,
    ) -> NtStatus {
        // The core must not hold the way to itself: a node would never end.
        let adapter = self.downgrade();
        let begun = self.with(|core, _| {
            core.create_shared_endpoint(local, |id| {
                Box::new(move |outcome: Result<(), ConnectError>| {
                    // Nobody who could use the endpoint is left otherwise.
                    let Some(adapter) = adapter.upgrade() else { return };
                    completion(
                        outcome.map(|()| SharedEndpoint { adapter, id }).map_err(Into::into),
                    );
                })
            })
        });
        begun.map_or_else(NtStatus::from, |()| NtStatus::PENDING)
    }
}
