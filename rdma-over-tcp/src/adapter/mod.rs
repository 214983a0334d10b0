//! One handle and one trait through which every interface uses an adapter, independent of its transport.
//!
//! An [`Adapter`] is a handle through which interfaces and their objects enter the core ([`Rnic`]). A [`Driver`] is the
//! threads, the lock and the clock around a core on one transport. There are two drivers: kernel sockets (`sockets`),
//! and with the feature `node` a node on a link (`node`).
//!
//! ```
//! use rdma_over_tcp::{
//!     adapter,
//!     rnic::{Config, Key, QpConfig, QpLimits, QpService, ErrorStatePosts},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let adapter = adapter::open_sockets(adapter::SocketsConfig::default(), Config::default())?;
//! let (pd, qp) = adapter.with(|rnic, _| {
//!     let pd = rnic.create_pd()?;
//!     let (cq, _queue) = rnic.create_cq(16, std::sync::Arc::new(|_| {}))?;
//!     let limits = QpLimits::default();
//!     let error_state_posts = ErrorStatePosts::Flush;
//!     let service = QpService::Iwarp;
//!     let config =
//!         QpConfig { receive_cq: cq, send_cq: cq, context: 1, limits, srq: None, error_state_posts, service };
//!     rnic.create_qp(pd, config).map(|qp| (pd, qp))
//! })?;
//! adapter.with(|rnic, _| {
//!     assert!(rnic.is_in_use(Key::Pd(pd)));
//!     let _ = rnic.close(Key::Qp(qp), Box::new(|| {}));
//!     assert!(!rnic.is_in_use(Key::Pd(pd)));
//! });
//! # Ok(())
//! # }
//! ```

mod driver;
#[cfg(feature = "node")]
mod node;
mod panic_handler;
#[cfg(feature = "simulation")]
pub mod simulation;
mod sockets;

use alloc::sync::{Arc, Weak};
use core::{fmt, ops::Deref};

use offload_engine::{
    runtime::WaitError,
    time::{Duration, Instant},
};

#[cfg(feature = "node")]
pub use self::node::{open, open_on, open_queues};
pub use self::{
    driver::{Driver, Stack},
    panic_handler::PanicHandler,
    sockets::{SocketsConfig, open_captured_sockets, open_sockets},
};
use crate::rnic::{Rnic, Urgency};

/// Handle of an adapter. Clones refer to the same adapter, which is destroyed with the last of them and of its objects.
/// Dereferences to the adapter's [`Driver`].
#[derive(Clone)]
pub struct Adapter(Arc<dyn Driver>);

impl Adapter {
    /// Creates a handle of the adapter that `driver` runs.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self(driver)
    }

    /// Calls `work` with the core and the time, and performs the resulting actions. Due callbacks run before this
    /// returns, or on another thread. Must not be called within `work`.
    pub fn with<R>(&self, work: impl FnOnce(&mut Rnic, Instant) -> R) -> R {
        let mut work = Some(work);
        let mut result = None;
        self.0.enter(&mut |core, now| {
            if let Some(work) = work.take() {
                result = Some(work(core, now));
                core.objects.deliver_completions();
            }
        });
        let Some(result) = result else { unreachable!("Driver::enter calls its argument") };
        result
    }

    /// Calls `work` as [`Adapter::with`] does, for posts. Their effects may be flushed later, in a batch.
    #[inline]
    pub fn post<R>(&self, work: impl Fn(&mut Rnic) -> (R, Urgency)) -> R {
        let mut result = None;
        self.0.enter_for_post(&mut |core| {
            let (outcome, urgency) = work(core);
            result = Some(outcome);
            urgency
        });
        let Some(result) = result else {
            unreachable!("Driver::enter_for_post calls its argument")
        };
        result
    }

    /// Waits until `look` returns a result ([`Driver::wait_while`]).
    ///
    /// # Errors
    /// As [`Driver::wait_while`].
    pub fn wait_until<R>(
        &self,
        timeout: Option<Duration>,
        mut look: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        let mut found = None;
        self.0.wait_while(timeout, &mut || {
            found = look();
            found.is_some()
        })?;
        found.ok_or(WaitError::TimedOut)
    }

    /// True if both are the same adapter. Object ids are unique within one adapter only.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        // The data pointers alone are compared: one type may have several vtables.
        core::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }

    /// Returns a handle that does not keep the adapter alive, for callbacks that the adapter itself owns.
    #[must_use]
    pub fn downgrade(&self) -> WeakAdapter {
        WeakAdapter(Arc::downgrade(&self.0))
    }
}

impl Deref for Adapter {
    type Target = dyn Driver;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Adapter")
    }
}

/// Handle that does not keep the adapter alive.
#[derive(Clone)]
pub struct WeakAdapter(Weak<dyn Driver>);

impl WeakAdapter {
    /// Returns the adapter, unless its last handle was dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<Adapter> {
        self.0.upgrade().map(Adapter)
    }
}

impl fmt::Debug for WeakAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakAdapter")
    }
}
