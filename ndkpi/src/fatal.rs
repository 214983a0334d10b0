//! The end of all adapters by a panic of the library, as if their devices were gone.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError, Weak},
};

use rdma_over_tcp::adapter::PanicHandler;

/// An adapter, to be ended.
pub(crate) trait Abandon: Send + Sync {
    /// Ends it. Not for callbacks.
    fn abandon(&self);
}

static RESORT: PanicHandler = PanicHandler::new(end_adapters);

/// Adapters that are open.
static OPEN: Mutex<Vec<Weak<dyn Abandon>>> = Mutex::new(Vec::new());

/// Returns whether anything has panicked.
#[inline]
pub(crate) fn has_panicked() -> bool {
    RESORT.has_panicked()
}

/// An adapter is open: it ends with a panic.
pub(crate) fn watch(adapter: Weak<dyn Abandon>) {
    // Tests of this crate have a hook of their own.
    if cfg!(not(test)) {
        RESORT.install_hook();
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|adapter| adapter.strong_count() > 0);
    open.push(adapter);
}

/// A call has panicked: ends the adapters, or waits until another thread has.
#[cold]
pub(crate) fn panicked() {
    RESORT.panicked();
}

fn end_adapters() {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for adapter in open.iter().filter_map(Weak::upgrade) {
        // One that panics again leaves the others to be ended.
        let _ = catch_unwind(AssertUnwindSafe(|| adapter.abandon()));
    }
}
