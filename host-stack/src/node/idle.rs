//! What a loop does that finds nothing.

use offload_engine::{
    sync::yield_now,
    time::{Duration, Instant},
};

/// Idle iterations before the thread yields: a few microseconds, within which an expected answer may come.
const IDLE_POLLS: u32 = 32;
/// Away for so long, a loop that let others go first has made room for one: it comes back sooner otherwise.
const CROWDED: Duration = Duration::from_micros(2);

/// What an idle loop does: it polls; after [`IDLE_POLLS`] it yields the CPU before each poll; after the time to spin it
/// sleeps. If another thread needs the CPU, which shows in how long a yield takes, it yields from the first idle
/// iteration on.
#[derive(Default)]
pub(super) struct Idle {
    since: Option<Instant>,
    polls: u32,
    /// When the loop let others go, and whether one did.
    yielded: Option<Instant>,
    crowded: bool,
}

impl Idle {
    /// There was something to do.
    pub(super) fn end(&mut self) {
        (self.since, self.polls, self.yielded) = (None, 0, None);
    }

    /// Nothing to do at `now`. Returns whether to look again, or to sleep.
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

    // Vain polls go on for the time to spin; others have the processor at first after some, and at once when one of
    // them was seen to want it, until it comes back quickly.
    #[test]
    fn an_idle_loop_makes_room_and_sleeps() {
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
