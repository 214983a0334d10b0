//! Locks, conditions and atomics of what several threads share.
//!
//! They are the standard library's. Two builds for tests replace them, and the code that uses them stays
//! what it is:
//!
//! * `--cfg loom`: loom's, whose models run every interleaving that matters of the code under them.
//! * `--cfg race_detector`: locks that are waited for in this crate. The standard library comes compiled
//!   without ThreadSanitizer's marks, so the detector sees a lock that is free being taken (that is inlined
//!   here), but not one that had to be waited for, and would report every access behind it.
//!
//! In a build with debug assertions each thread counts the locks it has taken ([`locks_taken`]), for the tests that
//! say how many a message may cost.
//!
//! A lock whose holder has panicked is taken all the same: one consumer's mistake must not take the other
//! connections down.

#[cfg(not(loom))]
pub use std::{sync::atomic, thread::yield_now};

#[cfg(loom)]
pub use loom::{sync::atomic, thread::yield_now};

#[cfg(race_detector)]
pub use self::spinning::{Condvar, Mutex, MutexGuard};
#[cfg(not(race_detector))]
pub use self::waiting::{Condvar, Mutex, MutexGuard};

#[cfg(debug_assertions)]
std::thread_local! {
    static TAKEN: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Locks that this thread has taken so far; 0 in a build without debug assertions.
pub fn locks_taken() -> u64 {
    #[cfg(debug_assertions)]
    return TAKEN.get();
    #[cfg(not(debug_assertions))]
    0
}

#[inline]
fn count_taken() {
    // A thread that ends may still lock; nobody asks it any more.
    #[cfg(debug_assertions)]
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

#[cfg(not(race_detector))]
mod waiting {
    #[cfg(not(loom))]
    use std::sync as primitive;
    use std::sync::{PoisonError, TryLockError};

    #[cfg(loom)]
    use loom::sync as primitive;

    use crate::time::Duration;

    /// What [`Mutex::lock`] gives.
    pub type MutexGuard<'a, T> = primitive::MutexGuard<'a, T>;

    /// Mutual exclusion.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(primitive::Mutex<T>);

    impl<T> Mutex<T> {
        /// A free lock around `value`.
        pub fn new(value: T) -> Self {
            Self(primitive::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            super::count_taken();
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let guard = match self.0.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            super::count_taken();
            Some(guard)
        }
    }

    /// Waiting for what others do under a lock.
    #[derive(Debug, Default)]
    pub struct Condvar(primitive::Condvar);

    impl Condvar {
        /// A new one, without waiters.
        pub fn new() -> Self {
            Self::default()
        }

        /// Releases the lock, waits for [`Condvar::notify_all`] or for `timeout` to pass, and takes the lock
        /// again. May return without either.
        pub fn wait<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            timeout: Option<Duration>,
        ) -> MutexGuard<'a, T> {
            match timeout {
                Some(timeout) => {
                    let waited = self.0.wait_timeout(guard, timeout);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.0.wait(guard).unwrap_or_else(PoisonError::into_inner),
            }
        }

        /// Ends every wait.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(race_detector)]
mod spinning {
    use core::ops::{Deref, DerefMut};
    use std::{
        sync::{
            self, TryLockError,
            atomic::{AtomicU64, Ordering},
        },
        thread::yield_now,
        time::Instant,
    };

    use crate::time::Duration;

    /// Mutual exclusion.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(sync::Mutex<T>);

    /// What [`Mutex::lock`] gives.
    #[derive(Debug)]
    pub struct MutexGuard<'a, T> {
        guard: sync::MutexGuard<'a, T>,
        mutex: &'a Mutex<T>,
    }

    impl<T> Mutex<T> {
        /// A free lock around `value`.
        pub fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            loop {
                match self.try_lock() {
                    Some(guard) => return guard,
                    None => yield_now(),
                }
            }
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let guard = match self.0.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            super::count_taken();
            Some(MutexGuard { guard, mutex: self })
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    /// Waiting for what others do under a lock.
    #[derive(Debug, Default)]
    pub struct Condvar {
        notified: AtomicU64,
    }

    impl Condvar {
        /// A new one, without waiters.
        pub fn new() -> Self {
            Self::default()
        }

        /// Releases the lock, waits for [`Condvar::notify_all`] or for `timeout` to pass, and takes the lock
        /// again. May return without either.
        pub fn wait<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            timeout: Option<Duration>,
        ) -> MutexGuard<'a, T> {
            // Relaxed: the lock is what orders the accesses behind it, as with any condition.
            let before = self.notified.load(Ordering::Relaxed);
            let mutex = guard.mutex;
            drop(guard);
            let begin = Instant::now();
            while self.notified.load(Ordering::Relaxed) == before
                && timeout.is_none_or(|timeout| begin.elapsed() < timeout)
            {
                yield_now();
            }
            mutex.lock()
        }

        /// Ends every wait.
        pub fn notify_all(&self) {
            self.notified.fetch_add(1, Ordering::Relaxed);
        }
    }
}
