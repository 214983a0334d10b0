//! Device as seen by NDIS. It enables and disables NDK, opens adapters by version, and answers management queries for
//! all of them.

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

/// Miniport with NDK. Several adapters may be open at a time; they are independent of each other.
pub struct Miniport {
    config: AdapterConfig,
    opener: Opener,
    state: Mutex<State>,
}

struct State {
    is_enabled: bool,
    opened: u128,
    /// Adapters with at least one handle.
    adapters: Vec<WeakAdapter>,
}

impl fmt::Debug for Miniport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Miniport").field("info", &self.info()).finish_non_exhaustive()
    }
}

impl Miniport {
    /// Creates an enabled miniport whose adapters are clients of a node.
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

    /// Creates an enabled miniport whose adapters use the kernel's TCP sockets. Each adapter has its own thread.
    pub fn on_sockets(sockets: SocketsConfig, config: AdapterConfig) -> Self {
        Self::with_opener(config, move |config| match open_sockets(sockets, config) {
            Ok(adapter) => Ok(adapter),
            Err(_) => Err(NdisStatus::RESOURCES),
        })
    }

    /// Creates an enabled miniport. `opener` opens each adapter with the configuration passed to it.
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

    /// Returns NDIS_MINIPORT_ADAPTER_NDK_ATTRIBUTES, enabled or not.
    #[must_use]
    pub fn attributes(&self) -> NdkAttributes {
        let capabilities = NdkCapabilities::new(&self.config.capabilities, self.info());
        NdkAttributes { enabled: self.state().is_enabled, capabilities }
    }

    /// OPEN_NDK_ADAPTER_HANDLER: opens an adapter with the interface's highest minor version ([`NDK_VERSION`]). That
    /// must be `lowest` or higher, of the same major version (NDK-VER-1). [`Adapter::close`] closes it.
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
        // Each adapter draws its own tokens.
        let seed = self.config.seed.wrapping_add(state.opened);
        state.opened += 1;
        let adapter = (self.opener)(AdapterConfig { seed, ..self.config.clone() })?;
        state.adapters.retain(|adapter| adapter.upgrade().is_some());
        state.adapters.push(adapter.downgrade());
        Ok(adapter)
    }

    /// OID_NDK_SET_STATE. While NDK is disabled no adapter can be opened. Open adapters continue until their consumers
    /// close them ([`Miniport::is_disabled`]). Never pends (NDK-MGT-2).
    pub fn set_state(&self, enable: bool) {
        self.state().is_enabled = enable;
    }

    /// True if NDK is disabled and every adapter is closed, that is, disabling has completed.
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

    /// OID_NDK_STATISTICS: returns the counters of the open adapters.
    #[must_use]
    pub fn statistics(&self) -> NdkPerformanceCounters {
        let mut sum = NdkPerformanceCounters::default();
        Self::for_each(&self.state(), |rnic| sum.add(&rnic.counters()));
        sum
    }

    /// OID_NDK_CONNECTIONS: returns the connections of the open adapters (NDK-MGT-1).
    #[must_use]
    pub fn connections(&self) -> NdkConnections {
        let mut all = NdkConnections::new();
        Self::for_each(&self.state(), |rnic| all.add(rnic));
        all
    }

    /// OID_NDK_LOCAL_ENDPOINTS: returns listening listeners and shared endpoints of the open adapters.
    #[must_use]
    pub fn local_endpoints(&self) -> NdkLocalEndpoints {
        let mut all = NdkLocalEndpoints::new();
        Self::for_each(&self.state(), |rnic| all.add(rnic));
        all
    }
}
