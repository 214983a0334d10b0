//! Wake-ups of a waiting node by other threads and by signals.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
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
            signal => Err(Failure::interrupted(signal)),
        }
    }

    /// Returns the received signal.
    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
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

/// Pauses of a command without a node. A signal ends them.
#[derive(Debug)]
pub struct Pause {
    waker: Waker,
    woken: Receiver<()>,
}

impl Pause {
    /// Catches signals.
    ///
    /// # Errors
    /// As [`Waker::catch_signals`].
    pub fn new() -> Result<Self, Failure> {
        let (wake, woken) = bounded(1);
        let waker = Waker::new();
        // A full channel wakes too.
        waker.set(move || {
            let _ = wake.try_send(());
        });
        waker.catch_signals()?;
        Ok(Self { waker, woken })
    }

    /// Waits until `deadline`. Returns the signal that was received before.
    pub fn until(&self, deadline: Instant) -> Option<i32> {
        while self.waker.signal().is_none()
            && self.woken.recv_deadline(deadline) != Err(RecvTimeoutError::Timeout)
        {}
        self.waker.signal()
    }

    /// Returns the waker, which stores the received signal.
    pub const fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// Value of an option with an interval, seconds.
///
/// # Errors
/// The value and the range.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let expected = || "expected seconds, 0.1 to 3600, for example 1".to_owned();
    let seconds: f64 = text.parse().map_err(|_| expected())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_outside_its_range_is_refused() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "0.09", "3601", "-1", "nan", "inf", "1s", ""] {
            assert!(parse_interval(text).is_err_and(|why| why.contains("0.1 to 3600")), "{text}");
        }
    }
}
