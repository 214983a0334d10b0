//! Locks that ignore poisoning, and one-shot results.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of a holder: each critical section leaves a valid state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result that one thread sets and another one waits for.
#[derive(Debug)]
pub(crate) struct OneShot<T> {
    result: Mutex<Option<T>>,
    arrived: Condvar,
}

impl<T> Default for OneShot<T> {
    fn default() -> Self {
        Self { result: Mutex::new(None), arrived: Condvar::new() }
    }
}

impl<T> OneShot<T> {
    /// Sets the result.
    pub(crate) fn set(&self, result: T) {
        *lock(&self.result) = Some(result);
        self.arrived.notify_all();
    }

    /// Waits for the result and takes it.
    pub(crate) fn wait(&self) -> T {
        let mut result = lock(&self.result);
        loop {
            match result.take() {
                Some(result) => return result,
                None => {
                    result = self.arrived.wait(result).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}
