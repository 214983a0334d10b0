//! The end of a shared library's adapters by a panic, as if their devices were gone.
//!
//! A panic may be on any thread: the consumer's in a call, one of an adapter's, that of a callback. The panic hook sees
//! all of them, and has a thread of its own end the adapters, since the one that panics may still hold locks. A call
//! that has panicked returns when they are ended.

use std::{
    boxed::Box,
    panic::{AssertUnwindSafe, catch_unwind, set_hook},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use offload_engine::thread;

/// The panic handler of a shared library: it ends the adapters. For a static.
#[derive(Debug)]
pub struct PanicHandler {
    /// Set by the first panic; the adapters are unusable from then on.
    has_panicked: AtomicBool,
    installed: Once,
    ended: Once,
    end: fn(),
}

impl PanicHandler {
    /// `end` ends the library's adapters. It is called once, and may panic.
    pub const fn new(end: fn()) -> Self {
        let (installed, ended) = (Once::new(), Once::new());
        Self { has_panicked: AtomicBool::new(false), installed, ended, end }
    }

    /// Returns whether anything has panicked.
    #[inline]
    pub fn has_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::Relaxed)
    }

    /// Has panics end the adapters, and be in the log: standard output and error belong to the program.
    pub fn install_hook(&'static self) {
        self.installed.call_once(|| {
            set_hook(Box::new(|panic| {
                tracing::error!("{panic}");
                if !self.has_panicked.swap(true, Ordering::Relaxed) {
                    // Without a thread the adapters end in the call, if it was one.
                    let _ = thread::start("flue-fatal", || self.end());
                }
            }));
        });
    }

    /// A call has panicked: ends the adapters, or waits until another thread has.
    #[cold]
    pub fn panicked(&self) {
        self.has_panicked.store(true, Ordering::Relaxed);
        self.end();
    }

    fn end(&self) {
        // After a panic anything may panic again.
        self.ended.call_once(|| {
            let _ = catch_unwind(AssertUnwindSafe(self.end));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    // All that have panicked return behind the one end, though that panics itself.
    #[test]
    fn adapters_end_once() {
        static ENDS: AtomicU32 = AtomicU32::new(0);
        static RESORT: PanicHandler = PanicHandler::new(|| {
            ENDS.fetch_add(1, Ordering::Relaxed);
            panic!("once more");
        });
        assert!(!RESORT.has_panicked());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    RESORT.panicked();
                    assert_eq!(ENDS.load(Ordering::Relaxed), 1);
                });
            }
        });
        assert!(RESORT.has_panicked());
    }
}
