//! End of all adapters after a panic of the library, as if their devices were removed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError, Weak},
};

use rdma_over_tcp::adapter::PanicHandler;

/// Adapter that can be ended.
pub(crate) trait EndAdapter: Send + Sync {
    /// Ends the adapter. Must not be called in a callback.
    fn abandon(&self);
}

static PANIC_HANDLER: PanicHandler = PanicHandler::new(end_adapters);

/// Open adapters.
static OPEN: Mutex<Vec<Weak<dyn EndAdapter>>> = Mutex::new(Vec::new());

/// Returns true if the library has panicked.
#[inline]
pub(crate) fn has_panicked() -> bool {
    PANIC_HANDLER.has_panicked()
}

/// Registers an open adapter, which ends after a panic.
pub(crate) fn watch(adapter: Weak<dyn EndAdapter>) {
    // Tests of this crate install their own hook.
    if cfg!(not(test)) {
        PANIC_HANDLER.install_hook();
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|adapter| adapter.strong_count() > 0);
    open.push(adapter);
}

/// Ends the adapters after a panic of a call, or waits until another thread has.
#[cold]
pub(crate) fn panicked() {
    PANIC_HANDLER.panicked();
}

fn end_adapters() {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for adapter in open.iter().filter_map(Weak::upgrade) {
        // A panic of one adapter must not prevent the end of the next ones.
        let _ = catch_unwind(AssertUnwindSafe(|| adapter.abandon()));
    }
}
