//! Other threads and signals reach a node that waits.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    thread,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::failure::Failure;

/// Has the waiters of a node look again.
type Wake = Box<dyn Fn() + Send>;

/// Wakes the node, for other threads; and the signal that has come, 0 for none.
///
/// Threads that may block for ever hold this, and not the node, so that the node ends (and its capture
/// is written out) when the run does.
#[derive(Clone, Default)]
pub struct Waker {
    wake: Arc<Mutex<Option<Wake>>>,
    signal: Arc<AtomicI32>,
}

impl Waker {
    /// Of no node yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of the node that `wake` wakes from now on.
    pub fn set(&self, wake: impl Fn() + Send + 'static) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wake));
    }

    /// Of no node any more.
    pub fn clear(&self) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Has the node's waiters look again.
    pub fn wake(&self) {
        if let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }

    /// Tells of a signal that has come.
    ///
    /// # Errors
    /// One has.
    pub fn interrupted(&self) -> Result<(), Failure> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                Err(Failure::work(format!("interrupted by {name}")))
            }
        }
    }

    /// From now on SIGINT, SIGTERM and SIGHUP wake the node instead of ending the process.
    ///
    /// # Errors
    /// No handler or thread can be had.
    pub fn catch_signals(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::work(format!("catch signals: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
        let waker = self.clone();
        let watch = move || {
            for signal in signals.forever() {
                waker.signal.store(signal, Ordering::Relaxed);
                waker.wake();
            }
        };
        thread::Builder::new().name("flue-signals".into()).spawn(watch).map_err(failed)?;
        Ok(())
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waker").field("signal", &self.signal).finish_non_exhaustive()
    }
}
