//! The end of all adapters by a panic of the library, as if their devices were gone.
//!
//! A panic may be on any thread: the consumer's in a call, one of an adapter's, that of a callback. The panic hook sees
//! all of them, and has a thread of its own end the adapters, since the one that panics may still hold locks. A call
//! that has panicked returns when they are ended.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, set_hook},
    sync::{
        Mutex, Once, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// An adapter, to be ended.
pub(crate) trait Abandon: Send + Sync {
    /// Ends it. Not for callbacks.
    fn abandon(&self);
}

/// Set by the first panic; the adapters are unusable from then on.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Adapters that are open.
static OPEN: Mutex<Vec<Weak<dyn Abandon>>> = Mutex::new(Vec::new());

/// Returns whether anything has panicked.
#[inline]
pub(crate) fn has_panicked() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

/// An adapter is open: it ends with a panic.
pub(crate) fn watch(adapter: Weak<dyn Abandon>) {
    install_hook();
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|adapter| adapter.strong_count() > 0);
    open.push(adapter);
}

fn install_hook() {
    static INSTALLED: Once = Once::new();
    // Tests of this crate have a hook of their own.
    if cfg!(not(test)) {
        INSTALLED.call_once(|| {
            set_hook(Box::new(|panic| {
                tracing::error!("{panic}");
                if !PANICKED.swap(true, Ordering::Relaxed) {
                    // Without a thread the adapters end in the call, if it was one.
                    let _ = thread::Builder::new().name("flue-fatal".into()).spawn(end_adapters);
                }
            }));
        });
    }
}

/// A call has panicked: ends the adapters, or waits until another thread has.
#[cold]
pub(crate) fn panicked() {
    PANICKED.store(true, Ordering::Relaxed);
    end_adapters();
}

fn end_adapters() {
    static ENDED: Once = Once::new();
    ENDED.call_once(|| {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for adapter in open.iter().filter_map(Weak::upgrade) {
            // After a panic anything may panic again.
            let _ = catch_unwind(AssertUnwindSafe(|| adapter.abandon()));
        }
    });
}
