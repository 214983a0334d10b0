//! Waking a thread that sleeps in poll(2): an eventfd, written only when the sleeper said so.
//!
//! The order that loses no wake-up: the sleeper announces sleep, then looks at its queues once more,
//! then sleeps; the ringer queues its message, then takes the announcement and, if there was one,
//! writes the eventfd. A sequentially consistent fence stands between the two steps on each side.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering, fence},
};

use rustix::event::{EventfdFlags, eventfd};

/// One sleeper, any number of ringers.
#[derive(Debug)]
pub struct Doorbell {
    descriptor: OwnedFd,
    asleep: AtomicBool,
}

impl Doorbell {
    /// A doorbell nobody has rung.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor, asleep: AtomicBool::new(false) })
    }

    /// Announces sleep. Look at every queue again after it, and only then wait for
    /// [`Doorbell::descriptor`]; call [`Doorbell::awake`] in every case.
    pub fn announce_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends the announcement and takes back a ring that came.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        let mut count = [0; 8];
        // Empty (EAGAIN) is the usual case: nobody rang.
        let _ = rustix::io::read(&self.descriptor, &mut count);
    }

    /// Wakes the sleeper if it sleeps. Call after the message is in its queue.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::Relaxed) {
            // Only a counter at its limit (EAGAIN) can fail, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Readable once rung.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(bell: &Doorbell) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&bell.descriptor, &mut count).is_ok()
    }

    #[test]
    fn rings_only_the_sleeping() {
        let bell = Doorbell::new().unwrap();
        bell.ring();
        assert!(!rung(&bell), "awake: no system call");
        bell.announce_sleep();
        bell.ring();
        bell.ring();
        assert!(rung(&bell));
        assert!(!rung(&bell), "one write for two rings");
    }

    #[test]
    fn awake_takes_the_ring_back() {
        let bell = Doorbell::new().unwrap();
        bell.announce_sleep();
        bell.ring();
        bell.awake();
        assert!(!rung(&bell));
        bell.ring();
        assert!(!rung(&bell));
    }
}
