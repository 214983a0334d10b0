//! Shared endpoints.

use alloc::boxed::Box;
use core::net::SocketAddr;

use super::{Adapter, NtStatus};
use crate::rnic::{ConnectError, SharedEndpointId};

/// Shared endpoint: a local address from which several connectors connect, each to a different peer (NDK-EP-3).
#[derive(Clone, Debug)]
pub struct SharedEndpoint {
    pub(super) adapter: Adapter,
    pub(super) id: SharedEndpointId,
}

impl SharedEndpoint {
    /// NdkGetSharedEndpointLocalAddress; `None` once the endpoint is closed.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.adapter.with(|core, _| core.shared_endpoint_address(self.id))
    }
}

impl Adapter {
    /// NdkCreateSharedEndpoint at `local`; with port 0 a free port is chosen (NDK-EP-4). PENDING, and `completion`
    /// follows with the endpoint or a failure. There is no plain form, because the transport has to reserve the
    /// address. An unspecified address means every address of this machine.
    ///
    /// Over kernel sockets the kernel refuses an address with a listener, or one of a socket that does not share it
    /// (SO_REUSEADDR). Other processes may share the address in the same way. For port 0 the kernel chooses from its
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
        // A strong handle in the core would be a reference cycle, and the node would never exit.
        let adapter = self.downgrade();
        let begun = self.with(|core, _| {
            core.create_shared_endpoint(local, |id| {
                Box::new(move |outcome: Result<(), ConnectError>| {
                    // Otherwise no consumer is left that could use the endpoint.
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
