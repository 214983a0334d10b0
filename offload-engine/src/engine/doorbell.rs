//! Waking a thread that sleeps in poll(2): an eventfd, written only when the sleeper has announced its sleep.
//!
//! The order that loses no wake-up: the sleeper announces sleep, then looks at its queues once more,
//! then sleeps; the ringer queues its message, then takes the announcement and, if there was one,
//! writes the eventfd. Both swap one flag, so one of them comes after the other there: a later ringer finds
//! the announcement, a later sleeper (Acquire) sees what was queued before the ring (Release). The flag is never
//! plainly stored: swaps carry what earlier ringers have released on. [`Doorbell::sleep`] and
//! [`Doorbell::ring`] are these orders; `models.rs` proves them.

use std::{io, os::fd::BorrowedFd, sync::Arc, task::Wake};

use self::bell::Bell;
use crate::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// One sleeper at a time, any number of ringers.
#[derive(Debug)]
pub struct Doorbell {
    bell: Bell,
    asleep: AtomicBool,
}

/// What ends a sleep besides the doorbell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sleep<'a> {
    /// A descriptor that becomes readable.
    pub link: Option<BorrowedFd<'a>>,
    /// That one becoming writable ends the sleep too.
    pub writable: bool,
    /// So much time; `None`: none does.
    pub timeout: Option<Duration>,
}

impl Doorbell {
    /// A new doorbell.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new()?, asleep: AtomicBool::new(false) })
    }

    /// Sleeps until the doorbell is rung, or as long as `look` allows. `look` checks every queue that is rung for;
    /// `None`: something is there already, do not sleep.
    pub fn sleep<'a>(&self, look: impl FnOnce() -> Option<Sleep<'a>>) {
        self.asleep.swap(true, Ordering::Acquire);
        let is_struck = look().is_some_and(|sleep| self.bell.wait(sleep));
        let is_rung = !self.asleep.swap(false, Ordering::Relaxed);
        // A ringer that has taken the announcement may strike after this: then the next sleep ends at once, and
        // takes the strike back. Who was woken by the link alone makes no call for it.
        if is_struck || is_rung {
            self.bell.clear();
        }
    }

    /// Wakes the sleeper if it sleeps. Call after the message is in its queue.
    pub fn ring(&self) {
        if self.asleep.swap(false, Ordering::Release) {
            self.bell.strike();
        }
    }
}

/// For code that takes a waker, such as a link.
impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// What poll(2) waits for.
#[cfg(not(loom))]
mod bell {
    use std::{io, os::fd::OwnedFd};

    use rustix::{
        event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
        io::Errno,
    };

    use super::Sleep;
    use crate::descriptor::{Guarded, moved_up};

    #[derive(Debug)]
    pub(super) struct Bell(Guarded<OwnedFd>);

    impl Bell {
        pub(super) fn new() -> io::Result<Self> {
            let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Self(moved_up(counter).into()))
        }

        pub(super) fn strike(&self) {
            if !self.0.is_intact() {
                return;
            }
            // Only a counter at its limit (EAGAIN) can fail, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }

        /// Takes the strikes back that came. Returns whether there was one.
        pub(super) fn clear(&self) -> bool {
            if !self.0.is_intact() {
                return false;
            }
            let mut count = [0; 8];
            // Empty (EAGAIN) is the usual case: it was not rung.
            rustix::io::read(&self.0, &mut count).is_ok()
        }

        /// Returns whether there was a strike.
        pub(super) fn wait(&self, sleep: Sleep<'_>) -> bool {
            if !self.0.is_intact() {
                return false;
            }
            let Sleep { link, writable, timeout } = sleep;
            let events = if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let bell = PollFd::new(&self.0, PollFlags::IN);
            // A time-out that does not fit a timespec is as good as none.
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            // Without a link the doorbell is polled twice: it costs nothing, and the second result is not used.
            let link =
                link.map_or_else(|| bell.clone(), |link| PollFd::from_borrowed_fd(link, events));
            let mut both = [bell, link];
            let ended = poll(&mut both, timeout.as_ref());
            match ended {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => tracing::warn!(%error, "poll"),
            }
            !both[0].revents().is_empty()
        }
    }
}

/// An eventfd as a model has it: nothing but a flag. A time-out passes at once, for a model has no clock;
/// so does the wait for a link that is full.
#[cfg(loom)]
mod bell {
    use std::io;

    use super::Sleep;
    use crate::sync::{Condvar, Mutex};

    #[derive(Debug)]
    pub(super) struct Bell {
        struck: Mutex<bool>,
        changed: Condvar,
    }

    impl Bell {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self { struck: Mutex::new(false), changed: Condvar::new() })
        }

        pub(super) fn strike(&self) {
            *self.struck.lock() = true;
            self.changed.notify_all();
        }

        pub(super) fn clear(&self) -> bool {
            core::mem::take(&mut *self.struck.lock())
        }

        pub(super) fn wait(&self, sleep: Sleep<'_>) -> bool {
            let mut struck = self.struck.lock();
            while !*struck && sleep.timeout.is_none() && !sleep.writable {
                struck = self.changed.wait(struck, None);
            }
            *struck
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rings_only_the_sleeping() {
        let bell = Doorbell::new().unwrap();
        bell.ring();
        assert!(!bell.bell.clear(), "awake: no system call");
        bell.sleep(|| {
            bell.ring();
            bell.ring();
            assert!(bell.bell.clear());
            assert!(!bell.bell.clear(), "one write for two rings");
            None
        });
    }

    #[test]
    fn a_sleep_ends_by_a_ring_or_by_its_time_and_takes_the_ring_back() {
        let bell = Doorbell::new().unwrap();
        bell.sleep(|| {
            bell.ring();
            Some(Sleep::default())
        });
        assert!(!bell.bell.clear(), "taken back");
        bell.sleep(|| Some(Sleep { timeout: Some(Duration::ZERO), ..Sleep::default() }));
        bell.ring();
        assert!(!bell.bell.clear(), "awake again: no system call");
    }

    // A ringer that has taken the announcement, and strikes when the sleeper is gone, ends one sleep too many.
    #[test]
    fn a_late_strike_is_taken_back_by_the_next_sleep() {
        let bell = Doorbell::new().unwrap();
        bell.bell.strike();
        bell.sleep(|| Some(Sleep::default()));
        assert!(!bell.bell.clear());
    }
}
