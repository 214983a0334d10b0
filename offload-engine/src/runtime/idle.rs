//! Idle strategy of a loop: spin, yield, sleep.

use crate::{
    sync::yield_now,
    time::{Duration, Instant},
};

/// Idle iterations before the thread yields: a few microseconds, within which an expected answer may come.
const IDLE_POLLS: u32 = 32;
/// A yield that takes so long has given the CPU to another thread.
const CROWDED: Duration = Duration::from_micros(2);

/// Idle loop: it polls; after [`IDLE_POLLS`] it yields the CPU before each poll; after the time to spin it
/// sleeps. If another thread needs the CPU, which shows in how long a yield takes, it yields from the first idle
/// iteration on.
#[derive(Default)]
pub(super) struct Idle {
    since: Option<Instant>,
    polls: u32,
    /// Time of the last yield.
    yielded: Option<Instant>,
    /// True if another thread took the CPU then.
    crowded: bool,
}

impl Idle {
    /// The loop found something to do.
    pub(super) fn end(&mut self) {
        (self.since, self.polls, self.yielded) = (None, 0, None);
    }

    /// The loop found nothing to do at `now`. Returns true if it polls again, false if it sleeps.
    pub(super) fn poll_on(&mut self, now: Instant, spin: Duration) -> bool {
        if let Some(yielded) = self.yielded.take() {
            self.crowded = now - yielded >= CROWDED;
        }
        if now - *self.since.get_or_insert(now) >= spin {
            return false;
        }
        self.polls += 1;
        if self.crowded || self.polls > IDLE_POLLS {
            self.yielded = Some(now);
            yield_now();
        } else {
            core::hint::spin_loop();
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn idle_loop_yields_earlier_on_a_contended_cpu_and_sleeps_after_the_spin_time() {
        let spin = Duration::from_micros(50);
        let mut idle = Idle::default();
        let mut now = Instant::from_micros(7);
        for _ in 0..IDLE_POLLS {
            assert!(idle.poll_on(now, spin));
            assert_eq!(idle.yielded, None);
            now += Duration::from_nanos(100);
        }
        assert!(idle.poll_on(now, spin));
        assert_eq!(idle.yielded, Some(now));
        now += CROWDED;
        assert!(idle.poll_on(now, spin));
        assert!(idle.crowded);
        idle.end();
        assert!(idle.poll_on(now, spin));
        assert_eq!(idle.yielded, Some(now), "from the first on");
        now += Duration::from_nanos(100);
        assert!(idle.poll_on(now, spin));
        assert!(!idle.crowded);
        assert!(!idle.poll_on(now + spin, spin), "it is time to sleep");
        assert!(!Idle::default().poll_on(now, Duration::ZERO));
    }
}
