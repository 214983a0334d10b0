//! Opening an adapter, and the way to it: what every interface stands on.
//!
//! ```
//! use rdma_over_tcp::{
//!     access::{self, Access},
//!     rnic::{Config, Key, QpConfig, QpLimits, LatePosts},
//!     transport::SocketsConfig,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (_sockets, access) = access::open_sockets(SocketsConfig::default(), Config::default())?;
//! let (pd, qp) = access.with(|rnic, _| {
//!     let pd = rnic.create_pd()?;
//!     let (cq, _queue) = rnic.create_cq(16, std::sync::Arc::new(|_| {}))?;
//!     let limits = QpLimits::default();
//!     let late_posts = LatePosts::Flush;
//!     let config = QpConfig { receive_cq: cq, send_cq: cq, context: 1, limits, srq: None, late_posts };
//!     rnic.create_qp(pd, config).map(|qp| (pd, qp))
//! })?;
//! access.with(|rnic, _| {
//!     assert!(rnic.is_in_use(Key::Pd(pd)));
//!     let _ = rnic.close(Key::Qp(qp), Box::new(|| {}));
//!     assert!(!rnic.is_in_use(Key::Pd(pd)));
//! });
//! # Ok(())
//! # }
//! ```

mod driver;
mod last_resort;
mod open;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;

use alloc::sync::{Arc, Weak};
use core::fmt;

use offload_engine::time::Instant;

pub use self::{
    driver::Driver,
    last_resort::LastResort,
    open::{open, open_on, open_queues, open_sockets},
};
use crate::rnic::{Rnic, Urgency};

/// A way to an adapter. The node implements it: it takes its lock, calls `work`, has the engine
/// poll and flush, and runs the callbacks that became due after it has let go of the lock.
pub trait CoreAccess: Send + Sync {
    /// Calls `work` with the adapter, once.
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant));

    /// As [`CoreAccess::enter`], but `work` returns when its effects must be flushed: the way of posts.
    fn enter_to_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.enter(&mut |core, _| {
            work(core);
        });
    }

    /// In manual mode, runs the engine once: a consumer that polls makes its own progress. In automatic
    /// mode, nothing. Returns whether there was anything to do.
    fn progress(&self) -> bool {
        false
    }

    /// A consumer has asked for a notification without entering, and may be about to sleep where this library cannot
    /// see it.
    fn expect_sleep(&self) {}
}

/// A handle of an adapter, for interfaces and their objects. Clones are the same adapter.
#[derive(Clone)]
pub struct Access(Arc<dyn CoreAccess>);

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

impl Access {
    /// The adapter behind `core`.
    #[must_use]
    pub fn new(core: Arc<dyn CoreAccess>) -> Self {
        Self(core)
    }

    /// Calls `work` with the adapter and the time, and does what follows from it. Callbacks that become due run before
    /// this returns, or on another thread. Not to be called within `work`.
    pub fn with<R>(&self, work: impl FnOnce(&mut Rnic, Instant) -> R) -> R {
        let mut work = Some(work);
        let mut result = None;
        self.0.enter(&mut |core, now| {
            if let Some(work) = work.take() {
                result = Some(work(core, now));
                core.objects.deliver_completions();
            }
        });
        let Some(result) = result else { unreachable!("CoreAccess::enter calls its argument") };
        result
    }

    /// As [`Access::with`], for posts: what follows from them may be done later, together with others.
    #[inline]
    pub fn post<R>(&self, work: impl Fn(&mut Rnic) -> (R, Urgency)) -> R {
        let mut result = None;
        self.0.enter_to_post(&mut |core| {
            let (outcome, urgency) = work(core);
            result = Some(outcome);
            urgency
        });
        let Some(result) = result else {
            unreachable!("CoreAccess::enter_to_post calls its argument")
        };
        result
    }

    /// Makes some progress if the consumer has to ([`CoreAccess::progress`]): for a poll of a completion queue that
    /// finds it empty. Returns whether there was anything to do.
    #[inline]
    pub fn progress(&self) -> bool {
        self.0.progress()
    }

    /// Tells whoever drives the adapter that a consumer may be about to sleep ([`CoreAccess::expect_sleep`]).
    #[inline]
    pub fn expect_sleep(&self) {
        self.0.expect_sleep();
    }

    /// Returns whether both are the same adapter: names of one mean something else to another.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        // Compared without the vtables, of which there may be several.
        core::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }

    /// A handle that does not keep the adapter: for callbacks that the adapter itself holds.
    #[must_use]
    pub fn downgrade(&self) -> WeakAccess {
        WeakAccess(Arc::downgrade(&self.0))
    }
}

/// A handle that does not keep the adapter.
#[derive(Clone)]
pub struct WeakAccess(Weak<dyn CoreAccess>);

impl WeakAccess {
    /// The adapter, if anybody keeps it.
    #[must_use]
    pub fn upgrade(&self) -> Option<Access> {
        self.0.upgrade().map(Access)
    }
}

impl fmt::Debug for WeakAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakAccess")
    }
}
