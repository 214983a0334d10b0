//! Shutdown of a shared library's adapters after a panic, as if their devices were lost.
//!
//! A panic can occur on any thread: a consumer's thread in a call, an adapter's thread, or the thread of a callback.
//! The panic hook runs for each of them. It starts a thread that shuts the adapters down, since the panicking thread
//! may still hold locks. A call that panicked returns after the shutdown.

use std::{
    boxed::Box,
    panic::{AssertUnwindSafe, catch_unwind, set_hook},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use offload_engine::thread;

/// Panic handler of a shared library, which shuts its adapters down. Intended for a static.
#[derive(Debug)]
pub struct PanicHandler {
    /// True after the first panic; the adapters are unusable from then on.
    has_panicked: AtomicBool,
    installed: Once,
    ended: Once,
    end: fn(),
}

impl PanicHandler {
    /// Creates a handler. `end` shuts the library's adapters down; it is called once, and may panic.
    pub const fn new(end: fn()) -> Self {
        let (installed, ended) = (Once::new(), Once::new());
        Self { has_panicked: AtomicBool::new(false), installed, ended, end }
    }

    /// True if any thread has panicked.
    #[inline]
    pub fn has_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::Relaxed)
    }

    /// Installs a panic hook that shuts the adapters down and logs the panic. Standard output and error belong to the
    /// program.
    pub fn install_hook(&'static self) {
        self.installed.call_once(|| {
            set_hook(Box::new(|panic| {
                tracing::error!("{panic}");
                if !self.has_panicked.swap(true, Ordering::Relaxed) {
                    // If no thread can be started, the panicking call shuts the adapters down.
                    let _ = thread::start("flue-fatal", || self.end());
                }
            }));
        });
    }

    /// Handles the panic of a call: shuts the adapters down, or waits until another thread has done so.
    #[cold]
    pub fn panicked(&self) {
        self.has_panicked.store(true, Ordering::Relaxed);
        self.end();
    }

    fn end(&self) {
        // The shutdown itself may panic after a panic.
        self.ended.call_once(|| {
            let _ = catch_unwind(AssertUnwindSafe(self.end));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    // All panicking calls return after the single shutdown, even if the shutdown panics.
    #[test]
    fn adapters_end_once() {
        static ENDS: AtomicU32 = AtomicU32::new(0);
        static HANDLER: PanicHandler = PanicHandler::new(|| {
            ENDS.fetch_add(1, Ordering::Relaxed);
            panic!("once more");
        });
        assert!(!HANDLER.has_panicked());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    HANDLER.panicked();
                    assert_eq!(ENDS.load(Ordering::Relaxed), 1);
                });
            }
        });
        assert!(HANDLER.has_panicked());
    }
}
