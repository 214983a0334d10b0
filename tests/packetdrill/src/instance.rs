//! Virtual clock: the driving thread and the waiting thread.
//!
//! packetdrill has two threads: one runs the script, the other makes the system calls that the script expects
//! to block. One of them is blocked while the other runs. Time advances in `usleep`, in `netdev_receive`, and
//! in `gettimeofday` (a microsecond per call, since packetdrill spins on it). It also advances in blocking
//! calls of the thread that created the instance. Those of the other thread sleep instead. After each step of
//! the clock, that thread checks whether its call can return. The thread that advanced the clock waits for this
//! check and, if the call returns, for the read of the clock. A call therefore ends at the time of the event
//! that ended it.
//!
//! Bounds: a call of the driving thread, and the wait for a packet, end after [`WAIT_LIMIT`] of virtual time.
//! The wait for the other thread ends after [`REAL_WAIT_LIMIT`].

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::ThreadId,
    time::Duration as RealDuration,
};

use offload_engine::time::{Duration, Instant};
use rustix::io::Errno;

use crate::{
    settings::Settings,
    sockets::{Progress, Sockets},
};

/// Virtual time limit of a wait.
const WAIT_LIMIT: Duration = Duration::from_secs(600);
/// Real time limit for the other thread to check; it only has to be scheduled.
const REAL_WAIT_LIMIT: RealDuration = RealDuration::from_secs(60);
/// Minimum step: a deadline in the past must not stop the clock.
const STEP_MIN: Duration = Duration::from_micros(1);
/// Start of virtual time for packetdrill, in seconds since 1970: anything but 0.
const EPOCH_SECONDS: u64 = 1_000_000_000;

/// Adapter under test.
pub(crate) struct Instance {
    state: Mutex<State>,
    /// Signals the waiting threads to check.
    changed: Condvar,
    /// Signals that they have checked.
    checked: Condvar,
    driver: ThreadId,
}

struct State {
    sockets: Sockets,
    /// Threads in a blocked call.
    waiting: usize,
    /// Blocked threads that have not checked since the last change.
    unchecked: usize,
    /// Number of changes.
    change: u64,
    /// Thread whose call has returned and that has not read the clock since.
    returning: Option<ThreadId>,
    /// Deadline of the blocked call.
    deadline: Option<Instant>,
}

type Guard<'a> = MutexGuard<'a, State>;

fn is_driver(driver: ThreadId) -> bool {
    std::thread::current().id() == driver
}

impl Instance {
    /// Creates an adapter whose clock this thread drives.
    pub(crate) fn new(settings: Settings) -> Self {
        let state = State {
            sockets: Sockets::new(settings),
            waiting: 0,
            unchecked: 0,
            change: 0,
            returning: None,
            deadline: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            checked: Condvar::new(),
            driver: std::thread::current().id(),
        }
    }

    fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call that does not block.
    pub(crate) fn now<T>(&self, call: impl FnOnce(&mut Sockets) -> T) -> T {
        let mut state = self.lock();
        let result = call(&mut state.sockets);
        drop(self.notify_waiters(state));
        result
    }

    /// Runs a call that may block: repeats it until it is done. After `timeout` its argument is true.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut call: impl FnMut(&mut Sockets, bool) -> Progress<T>,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        let deadline = state.sockets.machine.now() + timeout.unwrap_or(WAIT_LIMIT);
        let mut is_notified = false;
        loop {
            let over = timeout.is_some() && state.sockets.machine.now() >= deadline;
            let progress = call(&mut state.sockets, over);
            if is_notified {
                state.unchecked -= 1;
                self.checked.notify_all();
            }
            if let Progress::Done(result) = progress {
                if is_notified {
                    state.returning = Some(std::thread::current().id());
                } else {
                    drop(self.notify_waiters(state));
                }
                return result;
            }
            if is_driver(self.driver) {
                if state.sockets.machine.now() >= deadline {
                    return Err(Errno::TIMEDOUT);
                }
                state.sockets.machine.step(deadline);
                state = self.notify_waiters(state);
            } else {
                state.deadline = timeout.map(|_| deadline);
                state = self.sleep(state);
                is_notified = true;
            }
        }
    }

    fn sleep<'a>(&self, mut state: Guard<'a>) -> Guard<'a> {
        state.waiting += 1;
        let seen = state.change;
        let mut state = self
            .changed
            .wait_while(state, |state| state.change == seen)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    /// Waits until the blocked threads have checked, and those whose call is done have returned.
    fn notify_waiters<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        if state.waiting == 0 && state.returning.is_none() {
            return state;
        }
        if state.waiting > 0 {
            state.unchecked = state.waiting;
            state.change += 1;
            self.changed.notify_all();
        }
        let busy = |state: &mut State| state.unchecked > 0 || state.returning.is_some();
        let (mut state, _) = self
            .checked
            .wait_timeout_while(state, REAL_WAIT_LIMIT, busy)
            .unwrap_or_else(PoisonError::into_inner);
        state.returning = None;
        state
    }

    /// Advances the clock by `time`.
    fn advance<'a>(&'a self, mut state: Guard<'a>, time: Duration) -> Guard<'a> {
        let until = state.sockets.machine.now() + time;
        loop {
            let now = state.sockets.machine.now();
            let next = state.deadline.filter(|deadline| *deadline > now);
            let there = state.sockets.machine.step(next.map_or(until, |next| next.min(until)));
            state = self.notify_waiters(state);
            if there && state.sockets.machine.now() >= until {
                return state;
            }
        }
    }

    /// usleep(3).
    pub(crate) fn sleep_for(&self, time: Duration) {
        drop(self.advance(self.lock(), time));
    }

    /// gettimeofday(2): seconds and microseconds since 1970.
    pub(crate) fn time(&self) -> (u64, u64) {
        let mut state = self.lock();
        if state.returning == Some(std::thread::current().id()) {
            state.returning = None;
            self.checked.notify_all();
        } else {
            state = self.advance(state, Duration::from_micros(1));
        }
        let micros = state.sockets.machine.now().as_micros();
        (EPOCH_SECONDS + micros / 1_000_000, micros % 1_000_000)
    }

    /// Passes a packet from packetdrill to the node.
    pub(crate) fn inject(&self, packet: &[u8]) {
        self.now(|sockets| sockets.machine.inject(packet));
    }

    /// Next packet of the adapter, and its time in microseconds since 1970; blocks until there is one. `None`
    /// if no packet is sent.
    pub(crate) fn sniff(&self) -> Option<(u64, Vec<u8>)> {
        let mut state = self.lock();
        let limit = state.sockets.machine.now() + WAIT_LIMIT;
        loop {
            if let Some((at, packet)) = state.sockets.machine.sniff() {
                return Some((EPOCH_SECONDS * 1_000_000 + at.as_micros(), packet));
            }
            let machine = &state.sockets.machine;
            let next = [machine.due(), state.deadline].into_iter().flatten().min();
            let now = machine.now();
            if next.is_none_or(|next| next > limit) || now >= limit {
                return None;
            }
            state = self.advance(state, STEP_MIN.max(next.unwrap_or(now) - now));
        }
    }
}
