//! What the threads of a node share, and how they wait for each other.
//!
//! Theory of operation
//!
//! A monitor. One lock ([`Monitor::state`]) guards the core and who waits for what; one condition wakes the
//! consumer's threads, the doorbell the one thread that sleeps on the link. Nothing is published by order
//! of stores: a thread announces its sleep under the lock, after checking the core under the same lock,
//! and a thread that changes the core checks, before it releases the lock, whether another sleeps too long.
//!
//! * *The sleeper* is the engine's thread, or with manual progress one of those in [`Monitor::wait`]; others
//!   that have nothing to do wait for the condition, and the sleeper wakes them when it rises.
//! * *Changes* are counted under the lock. A thread that counted before it looked, and finds under the lock
//!   that the count has moved, looks again instead of waiting.
//! * *Callbacks* are collected under the core's lock, in the order they became due, and called with no lock
//!   held; the lock of their queue is inside the core's and is held for a push or a pop. Lock order: core, then
//!   callbacks. There are two queues. What is in the first is called by whoever comes first, also by a thread that has
//!   only made a call. What is in the second is called by threads that run the loop, or by the thread that attends the
//!   core if there is one: a consumer that calls under a lock which its callback takes does not meet itself. Behind
//!   the loss of the device no thread runs the loop any more, and callers call those too.
//!
//! No clock but its own, no engine: [`Passive`] defines the core. So a model of a few lines stands for
//! it when every interleaving of these threads is tried (`models.rs`).

use std::{
    boxed::Box,
    io,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    string::ToString,
    sync::Arc,
    vec::Vec,
};

use offload_engine::{
    descriptor::{self, Guarded},
    engine::{
        Callback,
        doorbell::{Doorbell, Sleep},
    },
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        yield_now,
    },
    time::{Duration, Instant},
};

use super::{LAST_ACK_REPEATS, Progress, Urgency, WaitError, callbacks::Callbacks, idle::Idle};

/// A core, as the threads around it see it.
pub trait Passive {
    /// One iteration. Returns whether there was anything to do.
    fn poll(&mut self, now: Instant) -> io::Result<bool>;

    /// Does what follows from a call: notices taken, segments sent. Returns whether there was anything.
    fn settle(&mut self, now: Instant) -> bool;

    /// When [`Passive::poll`] has to be called again though nothing has happened.
    fn poll_at(&self, now: Instant) -> Option<Instant>;

    /// Whether something waits in a queue.
    fn has_input(&self) -> bool;

    /// Whether something waits for the link to become writable.
    fn wants_writable(&self) -> bool;

    /// Moves out the consumer's callbacks that became due.
    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>);

    /// As [`Passive::take_callbacks`], of those that a thread may call which has only made a call.
    fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        self.take_callbacks(callbacks);
    }

    /// Whether others wait.
    fn has_callbacks_of_loop(&self) -> bool {
        false
    }

    /// The device is gone.
    fn device_lost(&mut self);

    /// The node ends before its connections' TIME-WAIT.
    fn repeat_last_acks(&mut self, now: Instant);
}

/// What the lock guards.
pub(super) struct State<K> {
    pub(super) core: K,
    /// A thread sleeps on the link, or is about to.
    has_sleeper: bool,
    /// Until when, and for what; published after the last look at the core, under the same lock.
    sleeping: Option<Sleeping>,
    /// Threads that wait for the condition.
    waiting: usize,
    failure: Option<WaitError>,
    /// The core was told that the device is gone.
    is_lost: bool,
}

#[derive(Clone, Copy)]
struct Sleeping {
    until: Option<Instant>,
    writable: bool,
    /// Changes by other threads are news to it too.
    waits: bool,
}

impl<K: Passive> State<K> {
    /// Whether the sleeper, if there is one, sleeps too long or for too little.
    fn is_overslept(&self, now: Instant) -> bool {
        let Some(Sleeping { until, writable, .. }) = self.sleeping else { return false };
        let is_sooner =
            self.core.poll_at(now).is_some_and(|due| until.is_none_or(|until| due < until));
        is_sooner
            || self.core.has_input()
            || self.core.has_callbacks_of_loop()
            || (self.core.wants_writable() && !writable)
    }
}

/// A thread that makes the loop's callbacks and does not always run the loop.
struct ProgressThread {
    wake: Box<dyn Fn() + Send + Sync>,
    /// It has something to call.
    is_due: AtomicBool,
}

/// What the threads of a node share.
pub struct Monitor<K> {
    state: Mutex<State<K>>,
    /// Signalled after iterations and calls that did something.
    changed: Condvar,
    /// Counts what [`Monitor::wait_until`] may want to look at again. Written under the core's lock.
    changes: AtomicU64,
    /// Threads that want the core's lock; the engine's thread lets them go first. A hint: nothing depends
    /// on when it is seen.
    contenders: AtomicUsize,
    /// Callbacks for whoever comes first.
    callbacks: Callbacks,
    /// Callbacks for the loop's threads.
    of_loop: Callbacks,
    /// The thread that calls those, if it is another one.
    attendant: Option<ProgressThread>,
    pub(super) engine_doorbell: Arc<Doorbell>,
    /// The link's descriptor, to sleep on without holding the lock.
    descriptor: Option<Guarded<OwnedFd>>,
    started: std::time::Instant,
    spin: Duration,
    pub(super) progress: Progress,
    /// Stored before the doorbells are rung, looked at before sleeping on them.
    stopping: AtomicBool,
}

impl<K> Monitor<K> {
    /// A core that sleeps on `descriptor` and on `engine_doorbell`; `spin` is [`NodeConfig::spin`](super::NodeConfig).
    pub fn new(
        core: K,
        engine_doorbell: Arc<Doorbell>,
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
            }),
            changed: Condvar::new(),
            changes: AtomicU64::new(0),
            contenders: AtomicUsize::new(0),
            callbacks: Callbacks::default(),
            of_loop: Callbacks::default(),
            attendant: None,
            engine_doorbell,
            descriptor: descriptor.map(Guarded::from),
            started: std::time::Instant::now(),
            spin,
            progress,
            stopping: AtomicBool::new(false),
        }
    }

    /// Has the thread of [`Monitor::attend`], which `wake` wakes, call the callbacks of the loop, and nobody else.
    #[must_use]
    pub fn with_attendant(self, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { attendant: Some(ProgressThread { wake, is_due: AtomicBool::new(false) }), ..self }
    }

    /// The time since this was made.
    pub fn now(&self) -> Instant {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(nanos)
    }

    /// The core for a caller: announced, so that a busy engine's thread lets it in.
    pub(super) fn enter(&self) -> MutexGuard<'_, State<K>> {
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// The count of changes. Acquire: what was done before a change that is counted is seen.
    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change, and wakes who sleeps on the link and waits for one. Under the lock: who has looked and is
    /// about to wait has not let go of it.
    fn count_change(&self, state: &State<K>) {
        self.changes.fetch_add(1, Ordering::Release);
        if state.sleeping.is_some_and(|sleeping| sleeping.waits) {
            self.engine_doorbell.ring();
        }
    }

    fn notify(&self, state: &State<K>) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Ends the node: its threads stop, waiting calls return the reason.
    pub(super) fn fail(&self, state: &mut State<K>, failure: WaitError) {
        // Once: whoever iterates a link that is gone hears of it each time, and would count as a change for ever.
        if state.failure.is_none() {
            state.failure = Some(failure);
            self.count_change(state);
        }
        self.stopping.store(true, Ordering::Relaxed);
        self.notify(state);
    }

    /// Ends the core's threads and waits, if the thread that drops this panics.
    pub fn fail_by_panic(self: &Arc<Self>) -> impl Drop + use<K> {
        struct Fallen<K>(Arc<Monitor<K>>);
        impl<K> Drop for Fallen<K> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.fail(&mut self.0.enter(), WaitError::Panicked);
                }
            }
        }
        Fallen(self.clone())
    }

    /// Has the node's threads end soon. Ring their doorbells after it.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether link or threads are gone.
    pub(super) fn has_failed(&self) -> bool {
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

    /// Has every [`Monitor::wait`] look at its condition again: something outside the node has changed.
    pub fn wake(&self) {
        let state = self.enter();
        self.count_change(&state);
        self.notify(&state);
    }
}

impl<K: Passive> Monitor<K> {
    /// Calls what is due for any thread ([`Monitor::deliver_from`]).
    pub(super) fn deliver(&self) {
        self.deliver_from(&self.callbacks);
    }

    /// Calls what is due for a thread that runs the loop.
    pub(super) fn deliver_of_loop(&self) {
        self.deliver_from(&self.of_loop);
    }

    /// Calls what is due for the thread that attends the core. Takes no lock if nothing is.
    pub(super) fn deliver_attended(&self) {
        let is_due = |attendant: &ProgressThread| attendant.is_due.swap(false, Ordering::Acquire);
        if self.attendant.as_ref().is_some_and(is_due) {
            self.deliver_of_loop();
        }
    }

    /// Whether the thread that attends the core has something to call.
    pub(super) fn is_due_attended(&self) -> bool {
        self.attendant.as_ref().is_some_and(|it| it.is_due.load(Ordering::Acquire))
    }

    /// Calls what is due, with no lock held. A callback that posts adds to the queue; the outermost
    /// delivery takes it, so callbacks neither nest nor overtake each other.
    fn deliver_from(&self, callbacks: &Callbacks) {
        let Some(first) = callbacks.begin() else { return };
        let mut next = Some(first);
        while let Some(callback) = next {
            // Another thread may call it, and others wait behind it.
            if catch_unwind(AssertUnwindSafe(callback)).is_err() {
                tracing::error!("a consumer's callback has panicked");
            }
            next = callbacks.next();
        }
        let mut state = self.state.lock();
        // Nobody runs the loop any more: what waits for the return of a callback goes on here.
        let done = state.is_lost.then(|| {
            state.core.settle(self.now());
            self.collect(&mut state, true)
        });
        self.count_change(&state);
        self.notify(&state);
        drop(state);
        if let Some((callbacks, of_loop)) = done {
            self.deliver_after(Done { busy: false, callbacks, of_loop });
        }
    }

    /// Runs `f` and what follows from it: notices taken, segments sent.
    fn call<R>(
        &self,
        state: &mut State<K>,
        now: Instant,
        f: impl FnOnce(&mut K, Instant) -> R,
    ) -> (R, Done) {
        let lost = self.check_descriptors(state);
        let result = f(&mut state.core, now);
        let busy = state.core.settle(now);
        if busy {
            self.count_change(state);
        }
        let (callbacks, of_loop) = self.collect(state, lost.is_some());
        if state.is_overslept(now) {
            self.engine_doorbell.ring();
        }
        let done = Done { busy, callbacks, of_loop };
        (result, lost.map_or(done, |lost| lost.or(done)))
    }

    /// Collects what has become due, in a call or in an iteration. Returns whether the thread has something to call:
    /// what any thread may, and what only one may that runs the loop.
    fn collect(&self, state: &mut State<K>, in_loop: bool) -> (bool, bool) {
        let State { core, is_lost, .. } = state;
        let callbacks = self.callbacks.collect(|due| core.take_callbacks_of_calls(due));
        if !in_loop && !*is_lost && self.attendant.is_none() {
            return (callbacks, false);
        }
        let of_loop = self.of_loop.collect(|due| core.take_callbacks(due));
        match &self.attendant {
            Some(ProgressThread { wake, is_due }) if of_loop && !*is_lost => {
                is_due.store(true, Ordering::Release);
                wake();
                self.engine_doorbell.ring();
                (callbacks, false)
            }
            _ => (callbacks, of_loop),
        }
    }

    /// Runs `f` and what follows from it, and calls back.
    pub fn with<R>(&self, f: impl FnOnce(&mut K, Instant) -> R) -> R {
        let mut state = self.enter();
        let (result, done) = self.call(&mut state, self.now(), f);
        self.notify(&state);
        drop(state);
        self.deliver_after(done);
        result
    }

    /// Runs `f`, and unless it may wait what follows from it, as [`Monitor::with`]. What may wait is left to the
    /// thread that runs the loop, or with manual progress to whoever runs it next; a thread that sleeps would have
    /// to be woken, so it does not wait then.
    pub fn with_lazily(&self, f: impl FnOnce(&mut K) -> Urgency) {
        self.with_lazily_unless(f, || false);
    }

    /// As [`Monitor::with_lazily`]; a sleeping thread is woken if `wakes` says so, which is asked each time that it may
    /// wait.
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
                    self.engine_doorbell.ring();
                    return;
                }
            }
            Urgency::Now => {}
        }
        let ((), done) = self.call(&mut state, self.now(), |_, _| ());
        self.notify(&state);
        drop(state);
        self.deliver_after(done);
    }

    /// Ends the node if the program has closed the descriptors of the library.
    #[inline]
    fn check_descriptors(&self, state: &mut State<K>) -> Option<Done> {
        let are_lost = !state.is_lost && descriptor::are_lost();
        are_lost
            .then(|| self.lose(state, WaitError::Link("descriptors closed by the program".into())))
    }

    fn iterate(&self, state: &mut State<K>, now: Instant) -> Done {
        if let Some(done) = self.check_descriptors(state) {
            return done;
        }
        match state.core.poll(now) {
            Ok(busy) => {
                let (callbacks, of_loop) = self.collect(state, true);
                if busy {
                    self.count_change(state);
                    self.notify(state);
                }
                Done { busy, callbacks, of_loop }
            }
            Err(error) => self.lose(state, WaitError::Link(error.to_string())),
        }
    }

    /// The device is gone: ends the node as [`Monitor::fail`], and notifies its clients, once.
    fn lose(&self, state: &mut State<K>, failure: WaitError) -> Done {
        if !std::mem::replace(&mut state.is_lost, true) {
            state.core.device_lost();
            // What has let go of memory by that is looked at now: nobody runs the loop any more.
            state.core.settle(self.now());
        }
        self.fail(state, failure);
        let (callbacks, of_loop) = self.collect(state, true);
        Done { busy: false, callbacks, of_loop }
    }

    /// Something has panicked: ends the node as if the device were gone. The core may be in any state.
    pub fn abandon(&self) {
        let mut state = self.enter();
        let lose = || self.lose(&mut state, WaitError::Panicked);
        if catch_unwind(AssertUnwindSafe(lose)).is_err() {
            tracing::error!("what has panicked cannot be ended in order");
            self.fail(&mut state, WaitError::Panicked);
        }
        drop(state);
        self.engine_doorbell.ring();
        self.deliver();
        self.deliver_of_loop();
    }

    /// Another shard has lost the device.
    pub(super) fn lose_with(&self, failure: WaitError) {
        let done = self.lose(&mut self.enter(), failure);
        self.deliver_after(done);
    }

    /// Calls what has become due by `done`; whoever made it due does.
    fn deliver_after(&self, done: Done) {
        if done.callbacks {
            self.deliver();
        }
        if done.of_loop {
            self.deliver_of_loop();
        }
    }

    /// Runs the loop once, with manual progress. Returns whether there was anything to do.
    // With automatic progress each poll of an empty queue passes by: it must not pay for the loop's registers.
    #[inline(never)]
    pub fn progress(&self) -> bool {
        self.progress_with(self.state.lock())
    }

    /// As [`Monitor::progress`], unless another thread has the core: then `None`.
    pub fn try_progress(&self) -> Option<bool> {
        self.state.try_lock().map(|state| self.progress_with(state))
    }

    fn progress_with(&self, mut state: MutexGuard<'_, State<K>>) -> bool {
        let now = self.now();
        let done = self.iterate(&mut state, now);
        if state.is_overslept(now) {
            self.engine_doorbell.ring();
        }
        drop(state);
        self.deliver_after(done);
        done.busy
    }

    /// Sleeps until the link is readable, the doorbell rings, a timer is due, or `deadline`. Does not sleep
    /// when there is input, or changes beyond `seen`. For one thread at a time.
    fn sleep(&self, seen: Option<u64>, deadline: Option<Instant>) {
        let is_news = || seen.is_some_and(|seen| seen != self.changes()) || self.is_stopping();
        self.sleep_unless(deadline, seen.is_some(), |_| is_news());
    }

    /// As [`Monitor::sleep`]; with `waits` any change wakes it.
    pub(super) fn sleep_unless(
        &self,
        deadline: Option<Instant>,
        waits: bool,
        is_news: impl Fn(&K) -> bool,
    ) {
        self.engine_doorbell.sleep(|| {
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
            let writable = state.core.wants_writable();
            state.sleeping = Some(Sleeping { until, writable, waits });
            let link = self.descriptor.as_ref().map(AsFd::as_fd);
            Some(Sleep { link, writable, timeout: until.map(|until| until - now) })
        });
    }

    /// The engine's thread.
    pub(super) fn engine_thread(&self) {
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
            self.deliver_after(done);
            if done.busy {
                idle.end();
            } else if !idle.poll_on(now, self.spin) {
                self.sleep(None, None);
                idle.end();
            }
        }
    }

    /// Runs the loop of a node that ends until `is_over`, which is signalled by the doorbell, or until `deadline`.
    pub(super) fn finish(&self, deadline: Instant, is_over: impl Fn(&K) -> bool) {
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
            self.deliver_after(done);
            if over || now >= deadline {
                return;
            }
            if !done.busy {
                self.sleep_unless(Some(deadline), false, &is_over);
            }
        }
    }

    /// Waits until `f` has a result. With manual progress the loop runs here.
    pub fn wait<R>(
        &self,
        deadline: Option<Instant>,
        f: impl FnMut(&mut K, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        match self.progress {
            Progress::Automatic => self.wait_automatic(deadline, f),
            Progress::Manual => self.wait_manual(deadline, f),
        }
    }

    /// Waits until `f`, which is called with no lock held, has a result.
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
            // Something may change all the time.
            if deadline.is_some_and(|deadline| deadline <= self.now()) {
                return f().ok_or(WaitError::TimedOut);
            }
        }
    }

    /// Looks once for a waiting thread: `f`, and what follows from it; then whether the wait is over.
    fn look<R>(
        &self,
        state: &mut State<K>,
        now: Instant,
        deadline: Option<Instant>,
        f: impl FnMut(&mut K, Instant) -> Option<R>,
    ) -> (Option<Result<R, WaitError>>, Done) {
        let (result, done) = self.call(state, now, f);
        // It may have done what others wait for. One that found nothing to do has them not look again:
        // two that wait would keep each other awake.
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

    /// Whether a thread sleeps on the link, and how many wait for it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn sleepers(&self) -> (bool, usize) {
        let state = self.state.lock();
        (state.has_sleeper, state.waiting)
    }

    /// Whether a thread has announced that it sleeps.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_sleeping(&self) -> bool {
        self.state.lock().sleeping.is_some()
    }

    /// Looks at the core, and does nothing that follows.
    #[cfg(all(test, not(loom)))]
    pub(super) fn look_at<R>(&self, look: impl FnOnce(&K) -> R) -> R {
        look(&self.state.lock().core)
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
            if let (Some(outcome), _) = self.look(&mut state, self.now(), deadline, &mut f) {
                break outcome;
            }
            // Changes by `look` itself are not signalled.
            if self.changes() != before || self.callbacks.is_due() {
                drop(state);
                self.deliver();
                state = self.enter();
            } else {
                state = self.pause(state, self.left(deadline));
            }
        };
        drop(state);
        self.deliver();
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
            let (outcome, looked) = self.look(&mut state, now, deadline, &mut f);
            let busy = iterated.busy || self.changes() != before;
            drop(state);
            self.deliver_after(iterated.or(looked));
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

    /// Sleeps on the link for all who wait with manual progress, or for whoever does. Does neither when there
    /// were changes beyond `seen`.
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
        self.leave_sleep();
    }

    /// Becomes the one sleeper. Returns whether there was none.
    pub(super) fn enter_sleep(&self) -> bool {
        !std::mem::replace(&mut self.enter().has_sleeper, true)
    }

    /// The end of the one sleeper's sleep.
    pub(super) fn leave_sleep(&self) {
        let mut state = self.enter();
        state.has_sleeper = false;
        state.sleeping = None;
        // It may be about to leave: one of the others has to sleep on the link.
        self.notify(&state);
    }
}

/// What an iteration or a call has done.
#[derive(Clone, Copy, Default)]
struct Done {
    /// There was something to do.
    busy: bool,
    /// Callbacks have become due for any thread.
    callbacks: bool,
    /// Callbacks have become due for this thread, which runs the loop.
    of_loop: bool,
}

impl Done {
    const fn or(self, other: Self) -> Self {
        Self {
            busy: self.busy || other.busy,
            callbacks: self.callbacks || other.callbacks,
            of_loop: self.of_loop || other.of_loop,
        }
    }
}
