//! Who may let time go by, and who waits.
//!
//! packetdrill has two threads: one runs the script, the other makes the system calls that the script
//! expects to block; one of them stands still while the other does something. Time goes by in `usleep`,
//! in `gettimeofday` (a microsecond a call, since packetdrill spins on it), in `netdev_receive`, and in
//! calls that have to wait, if they come from the thread that made the instance. A call of the other
//! thread sleeps instead. After each step of the clock it looks whether it can return, and whoever
//! moved the clock waits until it has looked and, if it returns, has read the clock: so a call ends at the
//! moment of what ended it.
//!
//! Bounds: a call of the driving thread, and the wait for a packet, end after [`PATIENCE`] of virtual time;
//! the wait for the other thread after [`REAL_PATIENCE`].

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

/// Virtual time that a wait may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time for the other thread to look; it only has to be scheduled.
const REAL_PATIENCE: RealDuration = RealDuration::from_secs(60);
/// The least step: what is due in the past must not make time stand still.
const LEAST: Duration = Duration::from_micros(1);
/// Where virtual time begins in packetdrill's eyes, in seconds since 1970: anything but 0.
const EPOCH_SECONDS: u64 = 1_000_000_000;

/// One adapter under test.
pub(crate) struct Instance {
    state: Mutex<State>,
    /// The waiting threads have to look.
    changed: Condvar,
    /// They have looked.
    looked: Condvar,
    driver: ThreadId,
}

struct State {
    sockets: Sockets,
    /// Threads in a call that waits.
    waiting: usize,
    /// Those of them that have not looked since the last change.
    to_look: usize,
    /// Counts changes.
    change: u64,
    /// The thread whose call is over and that has not read the clock since.
    leaving: Option<ThreadId>,
    /// When the waiting call gives up.
    deadline: Option<Instant>,
}

type Guard<'a> = MutexGuard<'a, State>;

fn is_driver(driver: ThreadId) -> bool {
    std::thread::current().id() == driver
}

impl Instance {
    /// An adapter whose clock this thread drives.
    pub(crate) fn new(settings: Settings) -> Self {
        let state = State {
            sockets: Sockets::new(settings),
            waiting: 0,
            to_look: 0,
            change: 0,
            leaving: None,
            deadline: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            looked: Condvar::new(),
            driver: std::thread::current().id(),
        }
    }

    fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that does not wait.
    pub(crate) fn now<T>(&self, call: impl FnOnce(&mut Sockets) -> T) -> T {
        let mut state = self.lock();
        let result = call(&mut state.sockets);
        drop(self.rouse(state));
        result
    }

    /// A call that may wait: asked until it is done. `timeout`: after that it is told that time is over.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut call: impl FnMut(&mut Sockets, bool) -> Progress<T>,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        let deadline = state.sockets.machine.now() + timeout.unwrap_or(PATIENCE);
        let mut roused = false;
        loop {
            let over = timeout.is_some() && state.sockets.machine.now() >= deadline;
            let progress = call(&mut state.sockets, over);
            if roused {
                state.to_look -= 1;
                self.looked.notify_all();
            }
            if let Progress::Done(result) = progress {
                if roused {
                    state.leaving = Some(std::thread::current().id());
                } else {
                    drop(self.rouse(state));
                }
                return result;
            }
            if is_driver(self.driver) {
                if state.sockets.machine.now() >= deadline {
                    return Err(Errno::TIMEDOUT);
                }
                state.sockets.machine.step(deadline);
                state = self.rouse(state);
            } else {
                state.deadline = timeout.map(|_| deadline);
                state = self.sleep(state);
                roused = true;
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

    /// Lets the waiting threads look, and those whose call is over go.
    fn rouse<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        if state.waiting == 0 && state.leaving.is_none() {
            return state;
        }
        if state.waiting > 0 {
            state.to_look = state.waiting;
            state.change += 1;
            self.changed.notify_all();
        }
        let busy = |state: &mut State| state.to_look > 0 || state.leaving.is_some();
        let (mut state, _) = self
            .looked
            .wait_timeout_while(state, REAL_PATIENCE, busy)
            .unwrap_or_else(PoisonError::into_inner);
        state.leaving = None;
        state
    }

    /// Lets `time` go by.
    fn advance<'a>(&'a self, mut state: Guard<'a>, time: Duration) -> Guard<'a> {
        let until = state.sockets.machine.now() + time;
        loop {
            let now = state.sockets.machine.now();
            let next = state.deadline.filter(|deadline| *deadline > now);
            let there = state.sockets.machine.step(next.map_or(until, |next| next.min(until)));
            state = self.rouse(state);
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
        if state.leaving == Some(std::thread::current().id()) {
            state.leaving = None;
            self.looked.notify_all();
        } else {
            state = self.advance(state, Duration::from_micros(1));
        }
        let micros = state.sockets.machine.now().as_micros();
        (EPOCH_SECONDS + micros / 1_000_000, micros % 1_000_000)
    }

    /// A packet from packetdrill.
    pub(crate) fn inject(&self, packet: &[u8]) {
        self.now(|sockets| sockets.machine.inject(packet));
    }

    /// The next packet of the adapter, and its time in microseconds since 1970; waits for it. `None`: none
    /// comes.
    pub(crate) fn sniff(&self) -> Option<(u64, Vec<u8>)> {
        let mut state = self.lock();
        let limit = state.sockets.machine.now() + PATIENCE;
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
            state = self.advance(state, LEAST.max(next.unwrap_or(now) - now));
        }
    }
}
