//! Wake-ups of a waiting node by other threads and by signals.

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

/// Function that makes the waiters of a node check their conditions.
type Wake = Box<dyn Fn() + Send>;

/// Handle that wakes the node from other threads, and the received signal (0: none).
///
/// Threads that may block forever hold this handle instead of the node. So the node is dropped (and its capture
/// written) at the end of the run.
#[derive(Clone, Default)]
pub struct Waker {
    wake: Arc<Mutex<Option<Wake>>>,
    signal: Arc<AtomicI32>,
}

impl Waker {
    /// Creates a handle without a node.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the node's wake function.
    pub fn set(&self, wake: impl Fn() + Send + 'static) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wake));
    }

    /// Detaches the handle from its node.
    pub fn clear(&self) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Makes the node's waiters check their conditions.
    pub fn wake(&self) {
        if let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }

    /// Returns an error if a signal was received.
    ///
    /// # Errors
    /// A signal was received.
    pub fn interrupted(&self) -> Result<(), Failure> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                Err(Failure::work(format!("interrupted by {name}")))
            }
        }
    }

    /// Installs handlers: SIGINT, SIGTERM and SIGHUP wake the node instead of ending the process.
    ///
    /// # Errors
    /// A handler or thread could not be created.
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
