//! Sockets of connections, and their numbers for the child of a fork.
//!
//! The child of a fork has a copy of each descriptor, but the connections belong to the parent. With a copy open, a
//! connection would outlive the parent: its peers would send to a socket that no adapter reads. So the child closes its
//! copies. It reads no object of the parent's adapter for that: another thread may have held its lock at the fork.

use alloc::{collections::BTreeSet, vec::Vec};
use std::{
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use offload_engine::{
    descriptor::{Guarded, are_lost},
    time::Duration,
};
use rustix::io::Errno;

/// Numbers of the descriptors of all connections of this process.
static NUMBERS: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// True if the lock of the numbers is that of a thread of the parent, which does not exist in this process.
static IS_ABANDONED: AtomicBool = AtomicBool::new(false);

fn numbers() -> Option<MutexGuard<'static, BTreeSet<RawFd>>> {
    let is_usable = !IS_ABANDONED.load(Ordering::Relaxed);
    is_usable.then(|| NUMBERS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Number in the set, removed when it is dropped.
#[derive(Debug)]
struct Number(RawFd);

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(mut numbers) = numbers() {
            numbers.remove(&self.0);
        }
    }
}

/// Socket of a connection.
#[derive(Debug)]
pub(super) struct ConnectionSocket {
    // Dropped first: another file may have the number once it is closed.
    _number: Number,
    socket: Guarded<OwnedFd>,
}

impl ConnectionSocket {
    /// Creates a socket with `create`. A fork does not take place in between.
    pub(super) fn create(
        create: impl FnOnce() -> Result<Guarded<OwnedFd>, Errno>,
    ) -> Result<Self, Errno> {
        let mut numbers = numbers();
        let socket = create()?;
        let number = socket.as_raw_fd();
        if let Some(numbers) = &mut numbers {
            numbers.insert(number);
        }
        Ok(Self { _number: Number(number), socket })
    }
}

impl Deref for ConnectionSocket {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.socket
    }
}

impl AsFd for ConnectionSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Numbers of the descriptors of this process's connections. While it exists, no connection is opened or closed.
#[derive(Debug)]
pub struct ConnectionDescriptors(MutexGuard<'static, BTreeSet<RawFd>>);

impl ConnectionDescriptors {
    /// Waits for threads that open or close a connection, which takes microseconds. `None` after `limit`: the caller
    /// may be a signal handler that has interrupted such a thread.
    #[must_use]
    pub fn hold(limit: Duration) -> Option<Self> {
        if IS_ABANDONED.load(Ordering::Relaxed) {
            return None;
        }
        let since = std::time::Instant::now();
        loop {
            match NUMBERS.try_lock() {
                Ok(numbers) => return Some(Self(numbers)),
                Err(TryLockError::Poisoned(poisoned)) => return Some(Self(poisoned.into_inner())),
                Err(TryLockError::WouldBlock) if since.elapsed() >= limit => return None,
                Err(TryLockError::WouldBlock) => thread::yield_now(),
            }
        }
    }

    /// Ends the use of the numbers, in the child of a fork during which the caller did not hold them: another thread
    /// may have held them. The child's connections are not recorded.
    pub fn abandon() {
        IS_ABANDONED.store(true, Ordering::Relaxed);
    }

    /// Removes and returns the numbers, in the child of a fork. The caller closes them. None if the program has closed
    /// descriptors of the library before: the numbers may be those of other files.
    #[must_use]
    pub fn take(&mut self) -> Vec<RawFd> {
        let numbers = std::mem::take(&mut *self.0);
        if are_lost() { Vec::new() } else { numbers.into_iter().collect() }
    }
}
