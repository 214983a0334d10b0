//! Wake-up of a thread that sleeps in poll(2): an eventfd, written only after the sleeper has announced its sleep.
//!
//! The order that prevents lost wake-ups: the sleeper announces its sleep, checks its queues once more, then sleeps.
//! The ringer queues its message, then clears the announcement and, if there was one, writes the eventfd. Both swap one
//! flag, so the swaps are ordered. A later ringer reads the announcement. A later sleeper (Acquire) reads the messages
//! queued before the ring (Release). The flag is never written by a plain store: swaps continue the release sequence of
//! earlier ringers. [`Doorbell::sleep`] and [`Doorbell::ring`] implement these orders; `models.rs` proves them.

use std::{io, os::fd::BorrowedFd, sync::Arc, task::Wake};

use self::event::EventFd;
use crate::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Doorbell with one sleeper at a time and any number of ringers.
#[derive(Debug)]
pub struct Doorbell {
    event: EventFd,
    asleep: AtomicBool,
}

/// Conditions that end a sleep, in addition to the doorbell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sleep<'a> {
    /// File descriptor that ends the sleep when it becomes readable.
    pub link: Option<BorrowedFd<'a>>,
    /// True if the descriptor becoming writable ends the sleep too.
    pub writable: bool,
    /// Longest sleep. `None` is unlimited.
    pub timeout: Option<Duration>,
}

impl Doorbell {
    /// Creates a doorbell.
    ///
    /// # Errors
    /// No file descriptor is available.
    pub fn new() -> io::Result<Self> {
        Ok(Self { event: EventFd::new()?, asleep: AtomicBool::new(false) })
    }

    /// Sleeps until the doorbell is rung, or as long as `check_queues` allows. It checks every queue whose messages
    /// ring the doorbell, and returns `None` to cancel the sleep if a message is queued.
    pub fn sleep<'a>(&self, check_queues: impl FnOnce() -> Option<Sleep<'a>>) {
        self.asleep.swap(true, Ordering::Acquire);
        let is_signaled = check_queues().is_some_and(|sleep| self.event.wait(sleep));
        let is_rung = !self.asleep.swap(false, Ordering::Relaxed);
        // A ringer that cleared the announcement may signal after this. The next sleep then ends immediately and clears
        // the signal. A sleeper woken by the link alone makes no system call here.
        if is_signaled || is_rung {
            self.event.clear();
        }
    }

    /// Wakes the sleeper if it sleeps. Call after the message is queued.
    pub fn ring(&self) {
        if self.asleep.swap(false, Ordering::Release) {
            self.event.signal();
        }
    }
}

/// For code that requires a waker, such as a link.
impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// Signal that poll(2) waits for.
#[cfg(not(loom))]
mod event {
    use std::{io, os::fd::OwnedFd};

    use rustix::{
        event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
        io::Errno,
    };

    use super::Sleep;
    use crate::descriptor::{Guarded, move_to_high_number};

    #[derive(Debug)]
    pub(super) struct EventFd(Guarded<OwnedFd>);

    impl EventFd {
        pub(super) fn new() -> io::Result<Self> {
            let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Self(move_to_high_number(counter).into()))
        }

        pub(super) fn signal(&self) {
            if !self.0.is_intact() {
                return;
            }
            // The write only fails if the counter is at its limit (EAGAIN). The descriptor is readable then anyway.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }

        /// Clears pending signals. Returns true if there was one.
        pub(super) fn clear(&self) -> bool {
            if !self.0.is_intact() {
                return false;
            }
            let mut count = [0; 8];
            // EAGAIN: the counter is zero, because no thread has rung the doorbell. This is the usual case.
            rustix::io::read(&self.0, &mut count).is_ok()
        }

        /// Returns true if the doorbell was signaled.
        pub(super) fn wait(&self, sleep: Sleep<'_>) -> bool {
            if !self.0.is_intact() {
                return false;
            }
            let Sleep { link, writable, timeout } = sleep;
            let events = if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let bell = PollFd::new(&self.0, PollFlags::IN);
            // A timeout that does not fit into a timespec is treated as unlimited.
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            // Without a link the doorbell is polled twice; the second result is not used.
            let link =
                link.map_or_else(|| bell.clone(), |link| PollFd::from_borrowed_fd(link, events));
            let mut both = [bell, link];
            let ended = poll(&mut both, timeout.as_ref());
            match ended {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => tracing::warn!(%error, "poll failed"),
            }
            !both[0].revents().is_empty()
        }
    }
}

/// Model of an eventfd: a flag. A timeout expires immediately, because a model has no clock. So does the wait for a
/// full link.
#[cfg(loom)]
mod event {
    use std::io;

    use super::Sleep;
    use crate::sync::{Condvar, Mutex};

    #[derive(Debug)]
    pub(super) struct EventFd {
        signaled: Mutex<bool>,
        changed: Condvar,
    }

    impl EventFd {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self { signaled: Mutex::new(false), changed: Condvar::new() })
        }

        pub(super) fn signal(&self) {
            *self.signaled.lock() = true;
            self.changed.notify_all();
        }

        pub(super) fn clear(&self) -> bool {
            core::mem::take(&mut *self.signaled.lock())
        }

        pub(super) fn wait(&self, sleep: Sleep<'_>) -> bool {
            let mut signaled = self.signaled.lock();
            while !*signaled && sleep.timeout.is_none() && !sleep.writable {
                signaled = self.changed.wait(signaled, None);
            }
            *signaled
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ring_writes_only_while_asleep() {
        let bell = Doorbell::new().unwrap();
        bell.ring();
        assert!(!bell.event.clear(), "awake: no system call");
        bell.sleep(|| {
            bell.ring();
            bell.ring();
            assert!(bell.event.clear());
            assert!(!bell.event.clear(), "one write for two rings");
            None
        });
    }

    #[test]
    fn ring_or_timeout_ends_sleep_and_clears_ring() {
        let bell = Doorbell::new().unwrap();
        bell.sleep(|| {
            bell.ring();
            Some(Sleep::default())
        });
        assert!(!bell.event.clear(), "withdrawn");
        bell.sleep(|| Some(Sleep { timeout: Some(Duration::ZERO), ..Sleep::default() }));
        bell.ring();
        assert!(!bell.event.clear(), "awake again: no system call");
    }

    // A ringer that cleared the announcement, and signals after the sleep has ended, causes one spurious wake-up.
    #[test]
    fn late_signal_is_cleared_by_next_sleep() {
        let bell = Doorbell::new().unwrap();
        bell.event.signal();
        bell.sleep(|| Some(Sleep::default()));
        assert!(!bell.event.clear());
    }
}
