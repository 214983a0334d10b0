//! Locks, condition variables and atomics for state shared by threads.
//!
//! They are those of the standard library. Two test builds replace them, without a change of the code that uses them:
//!
//! * `--cfg loom`: those of loom, whose models execute all relevant interleavings of the tested code.
//! * `--cfg race_detector`: locks implemented by spinning in this crate. The standard library is compiled without
//!   ThreadSanitizer instrumentation. So the detector observes an uncontended lock, which is inlined here, but not a
//!   contended one, and would report every access after it.
//!
//! In a build with debug assertions each thread counts the locks it has taken ([`locks_taken`]), for tests that limit
//! the locks per message.
//!
//! A lock whose holder has panicked can still be taken: an error of one consumer must not affect the other connections.

#[cfg(not(loom))]
pub use std::{sync::atomic, thread::yield_now};

#[cfg(loom)]
pub use loom::{sync::atomic, thread::yield_now};

#[cfg(not(race_detector))]
pub use self::blocking::{Condvar, Mutex, MutexGuard};
#[cfg(race_detector)]
pub use self::spinning::{Condvar, Mutex, MutexGuard};

#[cfg(debug_assertions)]
std::thread_local! {
    static TAKEN: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Number of locks that this thread has taken. 0 in a build without debug assertions.
pub fn locks_taken() -> u64 {
    #[cfg(debug_assertions)]
    return TAKEN.get();
    #[cfg(not(debug_assertions))]
    0
}

#[inline]
fn count_taken() {
    // A thread may still lock while it exits, when the counter is no longer accessible.
    #[cfg(debug_assertions)]
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

#[cfg(not(race_detector))]
mod blocking {
    #[cfg(not(loom))]
    use std::sync as primitive;
    use std::sync::{PoisonError, TryLockError};

    #[cfg(loom)]
    use loom::sync as primitive;

    use crate::time::Duration;

    /// Guard returned by [`Mutex::lock`].
    pub type MutexGuard<'a, T> = primitive::MutexGuard<'a, T>;

    /// Mutex.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(primitive::Mutex<T>);

    impl<T> Mutex<T> {
        /// Creates an unlocked mutex with `value`.
        pub fn new(value: T) -> Self {
            Self(primitive::Mutex::new(value))
        }

        /// Takes the lock, and blocks until it is free.
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

    /// Condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar(primitive::Condvar);

    impl Condvar {
        /// Creates a condition variable without waiters.
        pub fn new() -> Self {
            Self::default()
        }

        /// Releases the lock, waits for [`Condvar::notify_all`] or for `timeout`, and takes the lock again. Spurious
        /// wake-ups are possible.
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

        /// Wakes all waiters.
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

    /// Mutex.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(sync::Mutex<T>);

    /// Guard returned by [`Mutex::lock`].
    #[derive(Debug)]
    pub struct MutexGuard<'a, T> {
        guard: sync::MutexGuard<'a, T>,
        mutex: &'a Mutex<T>,
    }

    impl<T> Mutex<T> {
        /// Creates an unlocked mutex with `value`.
        pub fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        /// Takes the lock, and yields until it is free.
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

    /// Condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar {
        notified: AtomicU64,
    }

    impl Condvar {
        /// Creates a condition variable without waiters.
        pub fn new() -> Self {
            Self::default()
        }

        /// Releases the lock, waits for [`Condvar::notify_all`] or for `timeout`, and takes the lock again. Spurious
        /// wake-ups are possible.
        pub fn wait<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            timeout: Option<Duration>,
        ) -> MutexGuard<'a, T> {
            // Relaxed: the lock orders the accesses after the wait, as with any condition variable.
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

        /// Wakes all waiters.
        pub fn notify_all(&self) {
            self.notified.fetch_add(1, Ordering::Relaxed);
        }
    }
}
