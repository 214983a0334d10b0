//! Adapters: information, counters, and creation of the objects that do not belong to a protection domain.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use super::{Connector, Cq, Listener, Pd};
use crate::{
    adapter::Adapter,
    ndk::{
        info::AdapterInfo,
        management::{NdkConnections, NdkLocalEndpoints},
        status::NtStatus,
    },
    rnic::{ConnectionEntry, Counters, CqFailure, Key, RegisteredBuffer},
};

/// NDK_ADAPTER.
impl Adapter {
    /// NdkQueryAdapterInfo.
    #[must_use]
    pub fn info(&self) -> AdapterInfo {
        self.with(|core, _| AdapterInfo::from(core.config()))
    }

    /// NDK performance counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.with(|core, _| core.counters())
    }

    /// Current connections (OID_NDK_CONNECTIONS), with the statistics of their queue pairs.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionEntry> {
        self.with(|core, _| core.connections())
    }

    /// Allocates memory for registration: page-aligned and zeroed.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: zero bytes; [`NtStatus::INSUFFICIENT_RESOURCES`]: no memory.
    pub fn allocate(&self, len: usize) -> Result<RegisteredBuffer, NtStatus> {
        if len == 0 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        RegisteredBuffer::allocate(len).ok_or(NtStatus::INSUFFICIENT_RESOURCES)
    }

    /// OID_NDK_CONNECTIONS of this adapter alone ([`Miniport::connections`](crate::ndk::Miniport::connections)).
    #[must_use]
    pub fn connection_entries(&self) -> NdkConnections {
        let mut all = NdkConnections::new();
        self.with(|core, _| all.add(core));
        all
    }

    /// OID_NDK_LOCAL_ENDPOINTS of this adapter alone.
    #[must_use]
    pub fn local_endpoints(&self) -> NdkLocalEndpoints {
        let mut all = NdkLocalEndpoints::new();
        self.with(|core, _| all.add(core));
        all
    }

    /// NdkCreateCq: a queue of `depth` entries. `notification` is called once per satisfied arm, never concurrently
    /// with itself (NDK-CQ-2, -3).
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: zero entries, more than the adapter's limit, or the adapter is being closed;
    /// [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn create_cq(
        &self,
        depth: u32,
        notification: impl Fn(NtStatus) + Send + Sync + 'static,
    ) -> Result<Cq, NtStatus> {
        let notification =
            Arc::new(move |outcome: Result<(), CqFailure>| notification(outcome.into()));
        let (id, queue) = self.with(|core, _| core.create_cq(depth, notification))?;
        Ok(Cq { adapter: self.clone(), id, queue })
    }

    /// NdkCreatePd.
    ///
    /// # Errors
    /// [`NtStatus::INSUFFICIENT_RESOURCES`]; [`NtStatus::INVALID_PARAMETER`]: the adapter is being closed.
    pub fn create_pd(&self) -> Result<Pd, NtStatus> {
        let id = self.with(|core, _| core.create_pd())?;
        Ok(Pd { adapter: self.clone(), id })
    }

    /// NdkCreateConnector.
    ///
    /// # Errors
    /// As [`Adapter::create_pd`].
    pub fn create_connector(&self) -> Result<Connector, NtStatus> {
        let id = self.with(|core, _| core.create_connector())?;
        Ok(Connector { adapter: self.clone(), id })
    }

    /// NdkCreateListener. `event` receives a connector for each incoming request, to be accepted, rejected or closed.
    ///
    /// # Errors
    /// As [`Adapter::create_pd`].
    pub fn create_listener(
        &self,
        event: impl Fn(Connector) + Send + Sync + 'static,
    ) -> Result<Listener, NtStatus> {
        // A strong handle in the core would be a reference cycle, and the node would never exit.
        let adapter = self.downgrade();
        let event = Arc::new(move |id| {
            // Otherwise no consumer is left that could use the connector.
            if let Some(adapter) = adapter.upgrade() {
                event(Connector { adapter, id });
            }
        });
        let id = self.with(|core, _| core.create_listener(event))?;
        Ok(Listener { adapter: self.clone(), id })
    }

    /// CLOSE_NDK_ADAPTER_HANDLER: SUCCESS, or PENDING and `completion` follows. It is called when every object of the
    /// adapter is closed and all callbacks have returned (NDK-LIFE-9). A node with the blocking form waits for it.
    pub fn close(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
        self.with(|core, now| core.close_at(now, Key::Rnic, Box::new(completion))).into()
    }
}
