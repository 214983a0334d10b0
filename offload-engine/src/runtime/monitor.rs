//! Monitor of a core: its lock, its wake-ups, and the waits of threads.
//!
//! Theory of operation
//!
//! One lock ([`Monitor::state`]) guards the core and the record of who waits for what; one condition wakes the
//! consumer's threads, the doorbell wakes the one thread that sleeps on the link. Nothing is published by order of
//! stores: a thread announces its sleep under the lock, after checking the core under the same lock, and a thread that
//! changes the core checks, before it releases the lock, whether another sleeps too long.
//!
//! * *The sleeper* is the engine's thread, or with manual progress one of those in [`Monitor::wait`]; the other
//!   threads that have nothing to do wait for the condition, and the sleeper wakes them when it wakes.
//! * *Changes* are counted under the lock. A thread that reads the count before it checks its condition, and finds
//!   under the lock that the count has moved, checks again instead of waiting.
//! * *Callbacks* are collected under the lock and called without it (`callbacks`).

use std::{
    boxed::Box,
    mem,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    string::ToString,
    sync::Arc,
};

use super::{
    LAST_ACK_REPEATS, Passive, Progress, Urgency, WaitError,
    callbacks::{Callbacks, Due, Queue},
    idle::Idle,
};
use crate::{
    descriptor::{self, Guarded},
    engine::doorbell::{Doorbell, Sleep},
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        yield_now,
    },
    time::{Duration, Instant},
};

/// State under the lock.
struct State<K> {
    core: K,
    /// True while a thread sleeps on the link, or is about to.
    has_sleeper: bool,
    /// That sleep; published after the last check of the core, under the same lock.
    sleeping: Option<Sleeping>,
    /// Threads that wait for the condition.
    waiting: usize,
    failure: Option<WaitError>,
    /// True if the core has handled the loss of the device.
    is_lost: bool,
    /// Time of the next [`Monitor::check_descriptors`].
    descriptor_check_at: Instant,
}

/// Interval of the checks whether the program has closed the library's descriptors. A check is a system call, which
/// a request of 64 bytes need not pay for; until the next one a closed number may be that of a file of the program.
const DESCRIPTOR_CHECK_INTERVAL: Duration = Duration::from_micros(100);

#[derive(Clone, Copy)]
struct Sleeping {
    until: Option<Instant>,
    /// True if a writable link ends it.
    writable: bool,
    /// True if changes by other threads end it.
    waits: bool,
}

impl<K: Passive> State<K> {
    /// Returns true if a thread sleeps too long, or for too few events.
    fn has_overslept(&self, now: Instant) -> bool {
        let Some(Sleeping { until, writable, .. }) = self.sleeping else { return false };
        let is_sooner =
            self.core.poll_at(now).is_some_and(|due| until.is_none_or(|until| due < until));
        is_sooner
            || self.core.has_input()
            || self.core.has_callbacks_of_loop()
            || (self.core.awaits_writable() && !writable)
    }
}

/// Core shared by threads.
pub struct Monitor<K> {
    state: Mutex<State<K>>,
    /// Signaled after iterations and calls that did something.
    changed: Condvar,
    /// Changes that the condition of [`Monitor::wait_until`] may depend on. Written under the lock.
    changes: AtomicU64,
    /// Threads that wait for the lock; the engine's thread yields it to them. A hint: nothing depends on when it is
    /// seen.
    contenders: AtomicUsize,
    callbacks: Callbacks,
    doorbell: Arc<Doorbell>,
    /// Descriptor of the link, to sleep on without holding the lock.
    descriptor: Option<Guarded<OwnedFd>>,
    started: std::time::Instant,
    spin: Duration,
    progress: Progress,
    /// Stored before the doorbells are rung, loaded before sleeping on them.
    stopping: AtomicBool,
}

impl<K> Monitor<K> {
    /// A core whose loop sleeps on `descriptor` and on `doorbell`. An idle loop polls for `spin` before it sleeps.
    pub fn new(
        core: K,
        doorbell: Arc<Doorbell>,
        descriptor: Option<OwnedFd>,
        spin: Duration,
        progress: Progress,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                core,
                has_sleeper: false,
                sleeping: None,
                waiting: 0,
                failure: None,
                is_lost: false,
                descriptor_check_at: Instant::ZERO,
            }),
            changed: Condvar::new(),
            changes: AtomicU64::new(0),
            contenders: AtomicUsize::new(0),
            callbacks: Callbacks::default(),
            doorbell,
            descriptor: descriptor.map(Guarded::from),
            started: std::time::Instant::now(),
            spin,
            progress,
            stopping: AtomicBool::new(false),
        }
    }

    /// Has the callbacks of the loop called by the thread of [`Monitor::progress_thread`] alone, which `wake` wakes.
    #[must_use]
    pub fn with_progress_thread(self, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { callbacks: Callbacks::with_progress_thread(wake), ..self }
    }

    /// Time since the monitor was created.
    pub fn now(&self) -> Instant {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(nanos)
    }

    /// Doorbell that wakes the loop.
    pub const fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Threads that run the loop.
    pub const fn progress_mode(&self) -> Progress {
        self.progress
    }

    /// Locks the core for a caller, for which a busy engine's thread yields.
    fn enter(&self) -> MutexGuard<'_, State<K>> {
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Calls `f` on the core and flushes nothing: for counters and settings.
    pub fn with_core<R>(&self, f: impl FnOnce(&mut K, Instant) -> R) -> R {
        let mut state = self.enter();
        f(&mut state.core, self.now())
    }

    /// Count of changes. Acquire: everything done before a change that is counted is seen.
    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change, and wakes the sleeper if changes end its sleep. The lock is held, so no thread is between its
    /// last check and its sleep.
    fn count_change(&self, state: &State<K>) {
        self.changes.fetch_add(1, Ordering::Release);
        if state.sleeping.is_some_and(|sleeping| sleeping.waits) {
            self.doorbell.ring();
        }
    }

    fn notify(&self, state: &State<K>) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Stops the threads, and ends waits with `failure`.
    fn fail(&self, state: &mut State<K>, failure: WaitError) {
        // Once: each iteration of a lost link fails, and each would count as a change.
        if state.failure.is_none() {
            state.failure = Some(failure);
            self.count_change(state);
        }
        self.stopping.store(true, Ordering::Relaxed);
        self.notify(state);
    }

    /// Guard of a thread: its panic stops the threads of the core and ends waits.
    pub fn fail_by_panic(self: &Arc<Self>) -> impl Drop + use<K> {
        struct Guard<K>(Arc<Monitor<K>>);
        impl<K> Drop for Guard<K> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.fail(&mut self.0.enter(), WaitError::Panicked);
                }
            }
        }
        Guard(self.clone())
    }

    /// Stops the threads of the core. The caller rings their doorbells afterwards.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Returns true after [`Monitor::stop`], or after the loss of the device.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Returns true if the device is lost, or a thread has panicked.
    pub fn has_failed(&self) -> bool {
        self.enter().failure.is_some()
    }

    /// Waits for the condition.
    fn pause<'a>(
        &self,
        mut state: MutexGuard<'a, State<K>>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, State<K>> {
        state.waiting += 1;
        let mut state = self.changed.wait(state, left);
        state.waiting -= 1;
        state
    }

    /// Has every [`Monitor::wait`] check its condition again, after a change outside the core.
    pub fn wake(&self) {
        let state = self.enter();
        self.count_change(&state);
        self.notify(&state);
    }
}

impl<K: Passive> Monitor<K> {
    /// Calls the callbacks that are due for any thread.
    fn deliver_of_calls(&self) {
        self.deliver_from(&self.callbacks.of_calls);
    }

    /// Calls the callbacks that are due for threads that run the loop.
    pub(super) fn deliver_of_loop(&self) {
        self.deliver_from(&self.callbacks.of_loop);
    }

    /// Calls the callbacks that are due for the progress thread. Takes no lock if there are none.
    pub(super) fn deliver_of_progress_thread(&self) {
        if self.callbacks.take_due_of_progress_thread() {
            self.deliver_of_loop();
        }
    }

    /// Returns true if callbacks are due for the progress thread.
    pub(super) fn is_due_for_progress_thread(&self) -> bool {
        self.callbacks.is_due_for_progress_thread()
    }

    /// Calls the callbacks of a queue, unless another thread does, and handles what they have changed.
    fn deliver_from(&self, queue: &Queue) {
        if !queue.deliver() {
            return;
        }
        let mut state = self.state.lock();
        // No thread runs the loop after the loss of the device: work that waited for the callbacks is done here.
        let due = state.is_lost.then(|| {
            state.core.settle(self.now());
            self.collect(&mut state, true)
        });
        self.count_change(&state);
        self.notify(&state);
        drop(state);
        if let Some(due) = due {
            self.deliver(due);
        }
    }

    /// Calls the callbacks that the caller has collected.
    fn deliver(&self, due: Due) {
        if due.of_calls {
            self.deliver_of_calls();
        }
        if due.of_loop {
            self.deliver_of_loop();
        }
    }

    /// Collects the callbacks that became due, in a call or in an iteration.
    fn collect(&self, state: &mut State<K>, in_loop: bool) -> Due {
        let State { core, is_lost, .. } = state;
        self.callbacks.collect(core, in_loop, *is_lost, &self.doorbell)
    }

    /// Runs `f` and flushes its effects.
    fn call<R>(
        &self,
        state: &mut State<K>,
        now: Instant,
        f: impl FnOnce(&mut K, Instant) -> R,
    ) -> (R, Done) {
        if now >= state.descriptor_check_at {
            self.check_descriptors(state, now);
        }
        let result = f(&mut state.core, now);
        let busy = state.core.settle(now);
        if busy {
            self.count_change(state);
        }
        let due = self.collect(state, false);
        if state.has_overslept(now) {
            self.doorbell.ring();
        }
        (result, Done { busy, due })
    }

    /// Calls `f` on the core, flushes its effects and calls callbacks that became due.
    pub fn with<R>(&self, f: impl FnOnce(&mut K, Instant) -> R) -> R {
        let mut state = self.enter();
        let (result, done) = self.call(&mut state, self.now(), f);
        self.notify(&state);
        drop(state);
        self.deliver(done.due);
        result
    }

    /// Calls `f` on the core, which returns when its effects must be flushed. Effects that may wait are flushed by the
    /// next iteration of the loop, with manual progress by the next thread that runs it; here if that thread sleeps.
    pub fn with_lazily(&self, f: impl FnOnce(&mut K) -> Urgency) {
        self.with_lazily_unless(f, || false);
    }

    /// As [`Monitor::with_lazily`]; instead of flushing here, a sleeping thread is woken if `wakes` returns true, which
    /// is called each time that effects may wait.
    pub(super) fn with_lazily_unless(
        &self,
        f: impl FnOnce(&mut K) -> Urgency,
        wakes: impl FnOnce() -> bool,
    ) {
        let mut state = self.enter();
        match f(&mut state.core) {
            Urgency::None => return,
            Urgency::Soon => {
                let is_woken = wakes();
                if state.sleeping.is_none() {
                    return;
                }
                if is_woken {
                    self.doorbell.ring();
                    return;
                }
            }
            Urgency::Now => {}
        }
        let ((), done) = self.call(&mut state, self.now(), |_, _| ());
        self.notify(&state);
        drop(state);
        self.deliver(done.due);
    }

    /// Ends the core as lost if the program has closed the descriptors of the library. Called once per
    /// [`DESCRIPTOR_CHECK_INTERVAL`].
    #[cold]
    fn check_descriptors(&self, state: &mut State<K>, now: Instant) {
        state.descriptor_check_at = now + DESCRIPTOR_CHECK_INTERVAL;
        if !state.is_lost && descriptor::are_lost() {
            self.end_lost(
                state,
                WaitError::Link("descriptors of the library closed by the program".into()),
            );
        }
    }

    fn iterate(&self, state: &mut State<K>, now: Instant) -> Done {
        if now >= state.descriptor_check_at {
            let was_lost = state.is_lost;
            self.check_descriptors(state, now);
            if state.is_lost && !was_lost {
                return Done { busy: false, due: self.collect(state, true) };
            }
        }
        match state.core.poll(now) {
            Ok(busy) => {
                let due = self.collect(state, true);
                if busy {
                    self.count_change(state);
                    self.notify(state);
                }
                Done { busy, due }
            }
            Err(error) => {
                if !state.is_lost {
                    tracing::error!(%error, "link failed");
                }
                let due = self.lose(state, WaitError::Link(error.to_string()));
                Done { busy: false, due }
            }
        }
    }

    /// Ends the core as lost, once, and stops as [`Monitor::fail`].
    fn lose(&self, state: &mut State<K>, failure: WaitError) -> Due {
        self.end_lost(state, failure);
        self.collect(state, true)
    }

    /// As [`Monitor::lose`], without its callbacks, which the next [`Monitor::collect`] returns.
    fn end_lost(&self, state: &mut State<K>, failure: WaitError) {
        if !mem::replace(&mut state.is_lost, true) {
            state.core.device_lost();
            // Objects that this has released are handled now: no thread runs the loop.
            state.core.settle(self.now());
        }
        self.fail(state, failure);
    }

    /// Ends the core after a panic, as if the device were lost. The core may be in any state.
    pub fn abandon(&self) {
        let mut state = self.enter();
        let lose = || self.lose(&mut state, WaitError::Panicked);
        if catch_unwind(AssertUnwindSafe(lose)).is_err() {
            tracing::error!(
                "node shut down without closing its connections: panic in the engine or host stack"
            );
            self.fail(&mut state, WaitError::Panicked);
        }
        drop(state);
        self.doorbell.ring();
        self.deliver_of_calls();
        self.deliver_of_loop();
    }

    /// Ends the core as lost: another core on the same device has failed.
    pub fn fail_with_lost(&self, failure: WaitError) {
        let due = self.lose(&mut self.enter(), failure);
        self.deliver(due);
    }

    /// Runs the loop once, with manual progress. Returns true if there was anything to do.
    // With automatic progress each poll of an empty queue skips it, and must not save registers for the loop.
    #[inline(never)]
    pub fn progress(&self) -> bool {
        let state = self.state.lock();
        self.progress_with(state, self.now()).busy
    }

    /// As [`Monitor::progress`], at `now`; `None` if another thread has the core.
    pub(super) fn try_progress(&self, now: Instant) -> Option<Pass> {
        self.state.try_lock().map(|state| self.progress_with(state, now))
    }

    fn progress_with(&self, mut state: MutexGuard<'_, State<K>>, now: Instant) -> Pass {
        let done = self.iterate(&mut state, now);
        let pass = Pass { busy: done.busy, received: state.core.received() };
        if state.has_overslept(now) {
            self.doorbell.ring();
        }
        drop(state);
        self.deliver(done.due);
        pass
    }

    /// Sleeps until the link is readable, the doorbell rings, a timer is due, or `deadline`. Does not sleep if there is
    /// input, or if there are changes after `seen`. For one thread at a time.
    fn sleep(&self, seen: Option<u64>, deadline: Option<Instant>) {
        let is_news = || seen.is_some_and(|seen| seen != self.changes()) || self.is_stopping();
        self.sleep_unless(deadline, seen.is_some(), |_| is_news());
    }

    /// As [`Monitor::sleep`], unless `is_news`. With `waits` any change ends the sleep.
    pub(super) fn sleep_unless(
        &self,
        deadline: Option<Instant>,
        waits: bool,
        is_news: impl Fn(&K) -> bool,
    ) {
        self.doorbell.sleep(|| {
            let mut state = self.state.lock();
            let State { core, .. } = &*state;
            if is_news(core)
                || descriptor::are_lost()
                || core.has_input()
                || core.has_callbacks_of_loop()
            {
                return None;
            }
            let now = self.now();
            let until = state.core.poll_at(now).into_iter().chain(deadline).min();
            let writable = state.core.awaits_writable();
            state.sleeping = Some(Sleeping { until, writable, waits });
            let link = self.descriptor.as_ref().map(AsFd::as_fd);
            Some(Sleep { link, writable, timeout: until.map(|until| until - now) })
        });
    }

    /// Runs the loop until [`Monitor::stop`], with automatic progress.
    pub fn engine_thread(&self) {
        let mut idle = Idle::default();
        while !self.is_stopping() {
            while self.contenders.load(Ordering::Relaxed) > 0 {
                yield_now();
            }
            let (now, done) = {
                let mut state = self.state.lock();
                state.sleeping = None;
                let now = self.now();
                (now, self.iterate(&mut state, now))
            };
            self.deliver(done.due);
            if done.busy {
                idle.end();
            } else if !idle.poll_on(now, self.spin) {
                self.sleep(None, None);
                idle.end();
            }
        }
    }

    /// Runs the loop of a core that ends, until `is_over`, which the doorbell signals, or until `deadline`.
    pub fn finish(&self, deadline: Instant, is_over: impl Fn(&K) -> bool) {
        let mut repeats = LAST_ACK_REPEATS;
        loop {
            let (now, done, over) = {
                let mut state = self.enter();
                state.sleeping = None;
                let now = self.now();
                let mut done = self.iterate(&mut state, now);
                let mut over = !done.busy && is_over(&state.core) || state.failure.is_some();
                if over && repeats > 0 && state.failure.is_none() {
                    repeats -= 1;
                    state.core.repeat_last_acks(now);
                    (over, done.busy) = (false, true);
                }
                (now, done, over)
            };
            self.deliver(done.due);
            if over || now >= deadline {
                return;
            }
            if !done.busy {
                self.sleep_unless(Some(deadline), false, &is_over);
            }
        }
    }

    /// Waits until `f` returns a result. It is called after each change, and its effects are flushed. With manual
    /// progress the loop runs here.
    ///
    /// # Errors
    /// The deadline has passed, or the core has failed.
    pub fn wait<R>(
        &self,
        deadline: Option<Instant>,
        f: impl FnMut(&mut K, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        match self.progress {
            Progress::Automatic => self.wait_automatic(deadline, f),
            Progress::Manual | Progress::Shared => self.wait_manual(deadline, f),
        }
    }

    /// As [`Monitor::wait`]; `f` is called with no lock held.
    ///
    /// # Errors
    /// As [`Monitor::wait`].
    pub fn wait_until<R>(
        &self,
        deadline: Option<Instant>,
        mut f: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        loop {
            let before = self.changes();
            if let Some(result) = f() {
                return Ok(result);
            }
            self.wait(deadline, |_, _| (self.changes() != before).then_some(()))?;
            // Changes may never stop.
            if deadline.is_some_and(|deadline| deadline <= self.now()) {
                return f().ok_or(WaitError::TimedOut);
            }
        }
    }

    /// Calls `f` for a waiting thread and flushes its effects. Returns the outcome if the wait has ended.
    fn check<R>(
        &self,
        state: &mut State<K>,
        now: Instant,
        deadline: Option<Instant>,
        f: impl FnMut(&mut K, Instant) -> Option<R>,
    ) -> (Option<Result<R, WaitError>>, Done) {
        let (result, done) = self.call(state, now, f);
        // The call may have done what other threads wait for. After one that found nothing to do they do not check
        // again: two that wait would keep each other awake.
        if done.busy || result.is_some() {
            self.notify(state);
        }
        if let Some(result) = result {
            return (Some(Ok(result)), done);
        }
        if let Some(failure) = &state.failure {
            return (Some(Err(failure.clone())), done);
        }
        let is_over = deadline.is_some_and(|deadline| deadline <= now);
        (is_over.then_some(Err(WaitError::TimedOut)), done)
    }

    /// True if a thread sleeps on the link, and the number of threads that wait for the condition.
    #[cfg(all(test, not(loom)))]
    pub(super) fn sleepers(&self) -> (bool, usize) {
        let state = self.state.lock();
        (state.has_sleeper, state.waiting)
    }

    /// Returns true if a thread has announced that it sleeps.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_sleeping(&self) -> bool {
        self.state.lock().sleeping.is_some()
    }

    fn left(&self, deadline: Option<Instant>) -> Option<Duration> {
        deadline.map(|deadline| deadline - self.now())
    }

    fn wait_automatic<R>(
        &self,
        deadline: Option<Instant>,
        mut f: impl FnMut(&mut K, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        let mut state = self.enter();
        let outcome = loop {
            let before = self.changes();
            if let (Some(outcome), _) = self.check(&mut state, self.now(), deadline, &mut f) {
                break outcome;
            }
            // Changes by the check itself are not signaled.
            if self.changes() != before || self.callbacks.of_calls.is_due() {
                drop(state);
                self.deliver_of_calls();
                state = self.enter();
            } else {
                state = self.pause(state, self.left(deadline));
            }
        };
        drop(state);
        self.deliver_of_calls();
        outcome
    }

    fn wait_manual<R>(
        &self,
        deadline: Option<Instant>,
        mut f: impl FnMut(&mut K, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        let mut idle = Idle::default();
        loop {
            let mut state = self.enter();
            // Read once for an iteration.
            let now = self.now();
            let iterated = self.iterate(&mut state, now);
            let before = self.changes();
            let (outcome, checked) = self.check(&mut state, now, deadline, &mut f);
            let busy = iterated.busy || self.changes() != before;
            drop(state);
            self.deliver(iterated.due.or(checked.due));
            if let Some(outcome) = outcome {
                return outcome;
            }
            if busy {
                idle.end();
            } else if !idle.poll_on(now, self.spin) {
                self.sleep_or_follow(before, deadline);
                idle.end();
            }
        }
    }

    /// Sleeps on the link for all threads that wait with manual progress, or waits for the one that does. Does neither
    /// if there are changes after `seen`.
    fn sleep_or_follow(&self, seen: u64, deadline: Option<Instant>) {
        let mut state = self.enter();
        if self.changes() != seen {
            return;
        }
        if state.has_sleeper {
            drop(self.pause(state, self.left(deadline)));
            return;
        }
        state.has_sleeper = true;
        drop(state);
        self.sleep(Some(seen), deadline);
        self.end_sleep();
    }

    /// Becomes the one sleeper. Returns false if there is one.
    pub(super) fn begin_sleep(&self) -> bool {
        !mem::replace(&mut self.enter().has_sleeper, true)
    }

    /// Ends the sleep of the one sleeper.
    pub(super) fn end_sleep(&self) {
        let mut state = self.enter();
        state.has_sleeper = false;
        state.sleeping = None;
        // It must not sleep again: another thread must sleep on the link.
        self.notify(&state);
    }
}

/// Outcome of an iteration for the thread that runs it.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    /// True if there was anything to do.
    pub(super) busy: bool,
    /// Messages received so far ([`Passive::received`]).
    pub(super) received: u64,
}

/// Outcome of an iteration or of a call.
struct Done {
    /// True if there was anything to do.
    busy: bool,
    /// Callbacks that became due.
    due: Due,
}
