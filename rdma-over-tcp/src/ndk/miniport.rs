//! The device as NDIS sees it: NDK is enabled or disabled there, adapters are opened by version, and queries of
//! management are answered for all of them.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use offload_engine::status::NdisStatus;

use super::{
    AdapterConfig,
    info::{AdapterInfo, NDK_VERSION, NdkVersion},
    management::{
        NdkAttributes, NdkCapabilities, NdkConnections, NdkLocalEndpoints, NdkPerformanceCounters,
    },
};
use crate::{
    adapter::{Adapter, SocketsConfig, WeakAdapter, open_sockets},
    rnic::Rnic,
};

type Opener = Box<dyn Fn(AdapterConfig) -> Result<Adapter, NdisStatus> + Send + Sync>;

/// A miniport with NDK. Several adapters may be open on it at a time; they are independent of each other.
pub struct Miniport {
    config: AdapterConfig,
    opener: Opener,
    state: Mutex<State>,
}

struct State {
    is_enabled: bool,
    opened: u128,
    /// Adapters whose handles are not all gone.
    adapters: Vec<WeakAdapter>,
}

impl fmt::Debug for Miniport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Miniport").field("info", &self.info()).finish_non_exhaustive()
    }
}

impl Miniport {
    /// A miniport, enabled, whose adapters are clients of a node.
    #[cfg(feature = "node")]
    pub fn on_node<C: offload_engine::engine::NodeClient>(
        node: host_stack::node::Node<C>,
        config: AdapterConfig,
    ) -> Self {
        Self::with_opener(config, move |config| match crate::adapter::open_on(&node, config) {
            Ok((_, adapter)) => Ok(adapter),
            Err(_) => Err(NdisStatus::RESOURCES),
        })
    }

    /// A miniport, enabled, whose adapters have the kernel's TCP sockets, each with a thread of its own.
    pub fn on_sockets(sockets: SocketsConfig, config: AdapterConfig) -> Self {
        Self::with_opener(config, move |config| match open_sockets(sockets, config) {
            Ok(adapter) => Ok(adapter),
            Err(_) => Err(NdisStatus::RESOURCES),
        })
    }

    /// A miniport, enabled, whose adapters `opener` opens, each with the configuration that it is given.
    pub fn with_opener(
        config: AdapterConfig,
        opener: impl Fn(AdapterConfig) -> Result<Adapter, NdisStatus> + Send + Sync + 'static,
    ) -> Self {
        let state = State { is_enabled: true, opened: 0, adapters: Vec::new() };
        Self { config, opener: Box::new(opener), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn info(&self) -> AdapterInfo {
        AdapterInfo::from(&self.config)
    }

    /// NDIS_MINIPORT_ADAPTER_NDK_ATTRIBUTES, enabled or not.
    #[must_use]
    pub fn attributes(&self) -> NdkAttributes {
        let capabilities = NdkCapabilities::new(&self.config.capabilities, self.info());
        NdkAttributes { enabled: self.state().is_enabled, capabilities }
    }

    /// OPEN_NDK_ADAPTER_HANDLER: an adapter that speaks the interface's highest minor version
    /// ([`NDK_VERSION`]), which must be `lowest` or higher, of the same major version (NDK-VER-1). Closed by
    /// [`Adapter::close`].
    ///
    /// # Errors
    /// [`NdisStatus::BAD_VERSION`]; [`NdisStatus::ADAPTER_NOT_READY`]: NDK is disabled; [`NdisStatus::RESOURCES`].
    pub fn open(&self, lowest: NdkVersion) -> Result<Adapter, NdisStatus> {
        if !lowest.is_met_by(NDK_VERSION) {
            return Err(NdisStatus::BAD_VERSION);
        }
        let mut state = self.state();
        if !state.is_enabled {
            return Err(NdisStatus::ADAPTER_NOT_READY);
        }
        // Each draws tokens of its own.
        let seed = self.config.seed.wrapping_add(state.opened);
        state.opened += 1;
        let adapter = (self.opener)(AdapterConfig { seed, ..self.config.clone() })?;
        state.adapters.retain(|adapter| adapter.upgrade().is_some());
        state.adapters.push(adapter.downgrade());
        Ok(adapter)
    }

    /// OID_NDK_SET_STATE. Disabled, no adapter can be opened; those that are open go on until their consumers have
    /// closed them ([`Miniport::is_disabled`]). Never pends (NDK-MGT-2).
    pub fn set_state(&self, enable: bool) {
        self.state().is_enabled = enable;
    }

    /// Returns whether NDK is disabled and every adapter closed: the end of a disabling.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        let state = self.state();
        !state.is_enabled && {
            let mut open = false;
            Self::for_each(&state, |rnic| open |= !rnic.is_closed());
            !open
        }
    }

    fn for_each(state: &State, mut look: impl FnMut(&Rnic)) {
        for adapter in state.adapters.iter().filter_map(WeakAdapter::upgrade) {
            adapter.with(|rnic, _| look(rnic));
        }
    }

    /// OID_NDK_STATISTICS: counters of the adapters that are open.
    #[must_use]
    pub fn statistics(&self) -> NdkPerformanceCounters {
        let mut sum = NdkPerformanceCounters::default();
        Self::for_each(&self.state(), |rnic| sum.add(&rnic.counters()));
        sum
    }

    /// OID_NDK_CONNECTIONS: connections of the adapters that are open (NDK-MGT-1).
    #[must_use]
    pub fn connections(&self) -> NdkConnections {
        let mut all = NdkConnections::new();
        Self::for_each(&self.state(), |rnic| all.add(rnic));
        all
    }

    /// OID_NDK_LOCAL_ENDPOINTS: listeners that listen, and shared endpoints, of the adapters that are open.
    #[must_use]
    pub fn local_endpoints(&self) -> NdkLocalEndpoints {
        let mut all = NdkLocalEndpoints::new();
        Self::for_each(&self.state(), |rnic| all.add(rnic));
        all
    }
}
