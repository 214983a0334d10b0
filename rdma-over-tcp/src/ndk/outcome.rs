//! Results of callbacks, polled by a waiting thread or awaited by a task.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::sync::OnceLock;

use offload_engine::sync::Mutex;

use super::{DisconnectEvent, NtStatus};

/// Wakers of tasks that wait for the same event.
#[derive(Default, Debug)]
pub(super) struct Wakers(Mutex<WakerTable>);

#[derive(Default, Debug)]
struct WakerTable {
    next: u64,
    wakers: Vec<(u64, Waker)>,
}

impl Wakers {
    /// Registers the task again, or under a new number. The caller must check its condition afterwards, or a wake-up
    /// may be missed.
    fn register(&self, registration: &mut Option<u64>, context: &Context<'_>) {
        let mut table = self.0.lock();
        let WakerTable { next, wakers } = &mut *table;
        match wakers.iter_mut().find(|(number, _)| *registration == Some(*number)) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => {
                *registration = Some(*next);
                wakers.push((*next, context.waker().clone()));
                *next += 1;
            }
        }
    }

    fn deregister(&self, registration: Option<u64>) {
        if registration.is_some() {
            self.0.lock().wakers.retain(|(number, _)| Some(*number) != registration);
        }
    }

    /// Wakes all tasks, each once. The lock is not held: a waker may run its task immediately.
    pub(super) fn wake(&self) {
        let woken = mem::take(&mut self.0.lock().wakers);
        for (_, waker) in woken {
            waker.wake();
        }
    }

    /// Returns the registration of one task, which is not active yet.
    pub(super) fn registration(self: &Arc<Self>) -> WakerRegistration {
        WakerRegistration { wakers: self.clone(), number: None }
    }
}

/// Registration of a task's waker, removed when it is dropped.
#[derive(Debug)]
pub(super) struct WakerRegistration {
    wakers: Arc<Wakers>,
    number: Option<u64>,
}

impl WakerRegistration {
    /// Registers the task until the next wake-up. The caller must check its condition afterwards.
    pub(super) fn register(&mut self, context: &Context<'_>) {
        self.wakers.register(&mut self.number, context);
    }
}

impl Drop for WakerRegistration {
    fn drop(&mut self) {
        self.wakers.deregister(self.number);
    }
}

#[derive(Debug)]
struct OutcomeState<T> {
    value: OnceLock<T>,
    wakers: Wakers,
}

/// Value that a callback sets once, and a future of it. Clones share the value; any number of tasks may await it.
#[derive(Debug)]
struct Outcome<T> {
    shared: Arc<OutcomeState<T>>,
    registration: Option<u64>,
}

impl<T> Clone for Outcome<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), registration: None }
    }
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        let shared = OutcomeState { value: OnceLock::new(), wakers: Wakers::default() };
        Self { shared: Arc::new(shared), registration: None }
    }
}

impl<T: Copy> Outcome<T> {
    /// Sets the value, unless it is set already.
    fn set(&self, value: T) {
        let _ = self.shared.value.set(value);
        self.shared.wakers.wake();
    }

    fn get(&self) -> Option<T> {
        self.shared.value.get().copied()
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<T> {
        if self.get().is_none() {
            self.shared.wakers.register(&mut self.registration, context);
        }
        self.get().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        self.shared.wakers.deregister(self.registration);
    }
}

/// Asynchronous call that was begun: a future of its status, which can also be polled. Dropping it does not cancel the
/// call.
#[derive(Clone, Debug)]
#[must_use = "the call continues, and its status is lost"]
pub struct PendingCall(Outcome<NtStatus>);

impl PendingCall {
    /// Begins a call and passes it its completion.
    pub fn begin(call: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus) -> Self {
        let outcome = Outcome::default();
        let completed = outcome.clone();
        // NDK-ASY-1: a pending call completes exactly once; any other call has no completion.
        let status = call(Box::new(move |status| completed.set(status)));
        if status != NtStatus::PENDING {
            outcome.set(status);
        }
        Self(outcome)
    }

    /// Begins a close or a deregistration. Their completions have no status, and map to SUCCESS.
    pub fn close(call: impl FnOnce(Box<dyn FnOnce() + Send>) -> NtStatus) -> Self {
        Self::begin(|done| call(Box::new(move || done(NtStatus::SUCCESS))))
    }

    /// Returns the status, once available.
    #[must_use]
    pub fn status(&self) -> Option<NtStatus> {
        self.0.get()
    }
}

impl Future for PendingCall {
    type Output = NtStatus;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NtStatus> {
        self.0.poll(context)
    }
}

/// End of one or more connections by their peers or by an error. The first end counts. A future of the
/// [`DisconnectReason`](super::DisconnectReason) (NDK-DISC-7), which can also be polled.
#[derive(Clone, Default)]
pub struct Disconnection(Outcome<u32>);

impl Disconnection {
    /// Returns the disconnect event for one more connection.
    #[must_use]
    pub fn event(&self) -> DisconnectEvent {
        let ended = self.0.clone();
        Box::new(move |reason| ended.set(reason))
    }

    /// Returns the reason, once a connection has ended.
    #[must_use]
    pub fn reason(&self) -> Option<u32> {
        self.0.get()
    }
}

impl fmt::Debug for Disconnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Disconnection").field(&self.reason()).finish()
    }
}

impl Future for Disconnection {
    type Output = u32;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
        self.0.poll(context)
    }
}
