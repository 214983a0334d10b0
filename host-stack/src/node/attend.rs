//! A background thread for a core that its consumers drive while they wait or poll.
//!
//! The thread runs the loop only when nobody else does. Consumers leave their mark in [`Presence`]: threads that wait
//! are counted, and so are polls. While there are any, the thread dozes: it looks again every [`DOZE`], and the
//! descriptors that wake the loop do not wake it. Otherwise it sleeps on them as any other sleeper.
//!
//! So a consumer that polls or waits has no thread hop and no competitor for its CPU; a consumer that computes, or that
//! polls memory, is served by the thread after one [`DOZE`] at the latest. [`Presence::request`] ends the doze at once:
//! a consumer is about to sleep where this library cannot see it.

use std::io;

use offload_engine::{
    engine::doorbell::{Doorbell, Sleep},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use super::monitor::{Monitor, Passive};

/// Interval at which a dozing thread checks whether it is needed.
const DOZE: Duration = Duration::from_millis(1);

/// Polls within a [`DOZE`] that stand for a consumer that goes on polling.
const POLLS_MIN: u64 = 4;

/// Which consumers drive the core.
#[derive(Debug)]
pub struct Presence {
    /// Threads that wait, and drive the core meanwhile.
    waiting: AtomicUsize,
    polls: AtomicU64,
    is_requested: AtomicBool,
    doorbell: Doorbell,
}

impl Presence {
    /// Nobody is there.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
            is_requested: AtomicBool::new(false),
            doorbell: Doorbell::new()?,
        })
    }

    /// A consumer polls.
    #[inline]
    pub fn poll(&self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the thread drive the core, unless somebody goes on doing so.
    #[inline]
    pub fn request(&self) {
        if !self.is_requested.load(Ordering::Relaxed) {
            self.is_requested.store(true, Ordering::Relaxed);
        }
        self.doorbell.ring();
    }

    fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns whether somebody drives the core; `seen` is the count of polls at the last check.
    fn is_driven(&self, seen: &mut u64) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        let polled = polls.wrapping_sub(std::mem::replace(seen, polls)) >= POLLS_MIN;
        let is_requested = self.is_requested.swap(false, Ordering::Relaxed);
        self.has_waiters() || polled && !is_requested
    }

    fn doze(&self, is_stopping: impl Fn() -> bool) {
        self.doorbell.sleep(|| {
            let wanted = self.is_requested.load(Ordering::Relaxed) || is_stopping();
            (!wanted).then_some(Sleep { timeout: Some(DOZE), ..Sleep::default() })
        });
    }
}

impl<K: Passive> Monitor<K> {
    /// Runs `wait`, which drives the core.
    pub fn attended<R>(&self, presence: &Presence, wait: impl FnOnce() -> R) -> R {
        struct Leave<'a>(&'a Presence);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.waiting.fetch_sub(1, Ordering::Relaxed);
                // Common case: the thread waits again soon.
                self.0.polls.fetch_add(POLLS_MIN, Ordering::Relaxed);
            }
        }
        presence.waiting.fetch_add(1, Ordering::Relaxed);
        let _leave = Leave(presence);
        // The thread makes room if it sleeps on the descriptors; the ring carries the count to it.
        self.engine_doorbell.ring();
        wait()
    }

    /// The background thread, until [`Monitor::stop`].
    pub fn attend(&self, presence: &Presence) {
        let mut seen = 0;
        while !self.is_stopping() {
            if presence.is_driven(&mut seen) {
                presence.doze(|| self.is_stopping());
            } else if !self.progress() && !self.sleep_alone(presence) {
                presence.doze(|| self.is_stopping());
            }
        }
    }

    /// Has [`Monitor::attend`] return.
    pub fn end_attendance(&self, presence: &Presence) {
        self.stop();
        self.engine_doorbell.ring();
        presence.doorbell.ring();
    }

    /// Sleeps as [`Monitor::wait`] does with manual progress, until a consumer waits. Returns whether it could: there
    /// is one sleeper.
    fn sleep_alone(&self, presence: &Presence) -> bool {
        if !self.enter_sleep() {
            return false;
        }
        self.sleep_unless(None, false, |_| presence.has_waiters() || self.is_stopping());
        self.leave_sleep();
        true
    }
}
