//! Completion queues: what is in them, when an arm is satisfied, and what an overrun does.
//!
//! A queue has its own small lock, taken only by the engine, once for all that an upcall has completed, and by the
//! consumer when it polls a queue that is not empty; polling an empty queue takes none.
//!
//! The ring grows to the most that ever waited, not to the queue's depth: a consumer that keeps up goes round in
//! memory that stays in the caches.
//!
//! Every entry has a serial number, counted from 1. Three of them decide about arms: the newest
//! entry, the newest that is solicited or an error, and the newest at the time of the last
//! notification. So no entry needs a mark of its own.
//!
//! With moderation ([`CqModeration`]) a satisfied arm is held: it stays, and merges with later ones, until enough
//! entries have come or the time is over. The queue has no clock. It numbers its holds, and the adapter tells it when
//! the time of one is over.

use alloc::{collections::VecDeque, sync::Arc};
use core::fmt;

use offload_engine::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    ddp::Stag,
    error::ErrorNumber,
    rdmap::IMMEDIATE_OCTETS,
    rnic::{
        objects::{id::QpId, lifetime::Life},
        status::{CqFailure, VerbError, WcStatus},
    },
};

/// The kind of a completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcOpcode {
    /// A Send, with or without invalidation.
    Send,
    /// An RDMA Write.
    Write,
    /// An RDMA Read.
    Read,
    /// A fast registration.
    FastRegister,
    /// A local invalidation.
    Invalidate,
    /// A bind of a memory window.
    Bind,
    /// A receive.
    Receive,
    /// An atomic FetchAdd (RFC 7306).
    FetchAdd,
    /// An atomic CmpSwap (RFC 7306).
    CompareSwap,
    /// Immediate data sent (RFC 7306).
    Immediate,
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Outcome of the request.
    pub status: WcStatus,
    /// The kind of the request.
    pub opcode: WcOpcode,
    /// The error that was detected, here or by the peer's Terminate.
    pub error: Option<ErrorNumber>,
    /// Bytes of the message; 0 unless the status is [`WcStatus::Success`].
    pub bytes: u32,
    /// What has taken the receive.
    pub arrival: Arrival,
    /// A receive whose peer has asked for a solicited event.
    pub solicited: bool,
    /// The queue pair.
    pub qp: QpId,
    /// The context of the queue pair.
    pub qp_context: u64,
    /// The context of the request.
    pub context: u64,
}

impl Completion {
    /// The number of the error, as interfaces show it; 0: none.
    #[must_use]
    pub fn error_code(&self) -> u32 {
        self.error.map_or(0, ErrorNumber::nonzero_code)
    }

    /// It satisfies [`Arm::Solicited`]: a solicited receive, or an error.
    #[must_use]
    pub fn is_solicited_event(&self) -> bool {
        self.solicited || self.status != WcStatus::Success
    }
}

/// What a receive was taken by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Arrival {
    /// A Send; or the request is no receive, or has failed.
    #[default]
    Plain,
    /// A Send with Invalidate, which has invalidated this STag.
    Invalidating(Stag),
    /// Immediate data; nothing was placed.
    Immediate([u8; IMMEDIATE_OCTETS]),
}

/// When a completion queue notifies its consumer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Arm {
    /// On a failure of the queue itself.
    Failure,
    /// On a solicited receive, or a completion in error.
    Solicited,
    /// On the next completion.
    Next,
}

/// Called when an arm is satisfied, or the queue has failed; never twice at a time, and when no lock is held.
pub type Notification = Arc<dyn Fn(Result<(), CqFailure>) + Send + Sync>;

/// When a satisfied arm is told: when as many completions have come, or when the time is over, whichever is first.
/// Completions can be polled at once in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqModeration {
    /// Time from the completion that satisfies the arm; `None`: only the count matters.
    pub interval: Option<Duration>,
    /// Completions, counted from those that are newer than the last notification; `None`: only the time matters.
    pub count: Option<u32>,
}

/// A completion queue as an object.
pub(crate) struct Cq {
    pub(crate) life: Life,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) notification: Notification,
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({:?}, {:?})", self.life, self.queue)
    }
}

/// Entries, arm and failure of one queue.
#[derive(Debug)]
struct State {
    depth: usize,
    entries: VecDeque<Completion>,
    /// Serial of the newest entry.
    newest: u64,
    /// Serial of the newest entry that satisfies a SOLICITED arm.
    newest_solicited: u64,
    /// `newest` when an arm was last satisfied.
    notified: u64,
    arm: Option<Arm>,
    moderation: Option<CqModeration>,
    /// The arm is satisfied, and not told yet: the serial of the first completion that counts for it.
    held: Option<u64>,
    /// Number of the last hold.
    holds: u64,
    /// The time of the last hold does not run yet.
    is_hold_new: bool,
    failure: Option<CqFailure>,
    /// The failure is to be told, armed or not.
    is_failure_watched: bool,
    /// An arm was satisfied; the callback has not been given out yet.
    due: Option<Result<(), CqFailure>>,
    /// A callback was given out and has not returned (NDK-CQ-3).
    calling: bool,
}

/// A completion queue, shared between the engine and its consumer's handles.
#[derive(Debug)]
pub struct CompletionQueue {
    /// Entries present: lets an empty queue be polled without the lock.
    len: AtomicUsize,
    state: Mutex<State>,
}

/// Outcome of adding completions, or of an arm.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    /// An entry did not fit: the queue has failed (NDK-CQ-13).
    pub(crate) overrun: bool,
    /// A notification is due, now or once the one that runs has returned.
    pub(crate) due: bool,
    /// A notification is held back: [`CompletionQueue::begin_hold`].
    pub(crate) is_hold_new: bool,
}

impl CompletionQueue {
    pub(crate) fn new(depth: u32) -> Arc<Self> {
        Arc::new(Self {
            len: AtomicUsize::new(0),
            state: Mutex::new(State {
                depth: depth as usize,
                entries: VecDeque::new(),
                newest: 0,
                newest_solicited: 0,
                notified: 0,
                arm: None,
                moderation: None,
                held: None,
                holds: 0,
                is_hold_new: false,
                failure: None,
                is_failure_watched: false,
                due: None,
                calling: false,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs with the lock held, but for a broken invariant.
        self.state.lock()
    }

    /// Adds completions, in order. A failed queue swallows completions (NDK-CQ-13).
    pub(crate) fn push_all(&self, entries: impl Iterator<Item = Completion>) -> Pushed {
        let mut state = self.state();
        let mut overrun = false;
        for entry in entries {
            if state.failure == Some(CqFailure::Overrun) {
                break;
            }
            overrun = !state.push(entry);
        }
        self.len.store(state.entries.len(), Ordering::Release);
        Pushed { overrun, due: state.due.is_some(), is_hold_new: state.is_hold_new }
    }

    #[cfg(test)]
    fn push(&self, entry: Completion, solicited: bool) -> Result<(), ()> {
        let entry = Completion { solicited, ..entry };
        match self.push_all(core::iter::once(entry)).overrun {
            true => Err(()),
            false => Ok(()),
        }
    }

    /// Moves completions out, oldest first; returns how many. One consumer polls a queue at a time (NDK-CQ-1); it needs
    /// no access to the adapter for it, but an adapter that nobody drives makes no progress
    /// ([`Driver::progress`](crate::adapter::Driver::progress)).
    pub fn poll<R: From<Completion>>(&self, results: &mut [R]) -> usize {
        if self.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut state = self.state();
        let count = results.len().min(state.entries.len());
        for result in &mut results[..count] {
            let Some(entry) = state.entries.pop_front() else { break };
            *result = entry.into();
        }
        self.len.store(state.entries.len(), Ordering::Release);
        count
    }

    /// Removes the completions of a queue pair. What the others have keeps its order, and what it has satisfied.
    pub(crate) fn remove(&self, qp: QpId) {
        let mut state = self.state();
        state.remove(qp);
        self.len.store(state.entries.len(), Ordering::Release);
    }

    /// Asks for a notification; of two arms the stronger one counts. What is due or held back from now on is for the
    /// adapter ([`Rnic::handle_arm`](crate::rnic::Rnic::handle_arm)).
    pub(crate) fn arm(&self, arm: Arm) -> Pushed {
        let mut state = self.state();
        state.arm = state.arm.max(Some(arm)); // NDK-CQ-6
        state.satisfy();
        Pushed { overrun: false, due: state.due.is_some(), is_hold_new: state.is_hold_new }
    }

    /// Has notifications held back from now on; `None`: no more. One that is held back already is held anew. Returns
    /// whether one is.
    pub(crate) fn moderate(&self, moderation: Option<CqModeration>) -> bool {
        let mut state = self.state();
        state.moderation = moderation;
        if state.held.is_some() {
            state.begin_hold();
            state.satisfy();
        }
        state.is_hold_new
    }

    /// The number of a hold that has begun, and its time, once for each hold that has one.
    pub(crate) fn begin_hold(&self) -> Option<(u64, Duration)> {
        let mut state = self.state();
        let is_new = core::mem::take(&mut state.is_hold_new) && state.held.is_some();
        let interval = state.moderation.and_then(|moderation| moderation.interval);
        is_new.then_some(state.holds).zip(interval)
    }

    /// The time of a hold is over. Nothing, if the arm was told before.
    pub(crate) fn end_hold(&self, hold: u64) {
        let mut state = self.state();
        if state.held.is_some() && state.holds == hold {
            state.tell(Ok(()));
        }
    }

    /// The device is gone: each arm is told so from now on (NDK-CQ-14). What is in the queue, and what comes, can be
    /// polled.
    pub(crate) fn lose_device(&self) {
        let mut state = self.state();
        state.failure.get_or_insert(CqFailure::DeviceLost);
        state.satisfy();
    }

    /// Has the failure of the queue told once, whether it is armed then or not. Verbs wants it so.
    pub fn watch_failure(&self) {
        let mut state = self.state();
        state.is_failure_watched = true;
        state.satisfy();
    }

    /// Gives out the callback that is due, unless one is running.
    pub(crate) fn take_due(&self) -> Option<Result<(), CqFailure>> {
        let mut state = self.state();
        if state.calling {
            return None;
        }
        let due = state.due.take();
        state.calling = due.is_some();
        due
    }

    /// The callback given out has returned.
    pub(crate) fn callback_returned(&self) {
        self.state().calling = false;
    }

    /// Changes the depth.
    ///
    /// # Errors
    /// [`VerbError::CompletionsPresent`]: more entries are present than that (NDK-RSZ-2); [`VerbError::CqFailed`].
    pub(crate) fn resize(&self, depth: u32) -> Result<(), VerbError> {
        let mut state = self.state();
        if state.failure.is_some() {
            return Err(VerbError::CqFailed);
        }
        if state.entries.len() > depth as usize {
            return Err(VerbError::CompletionsPresent);
        }
        state.depth = depth as usize;
        Ok(())
    }

    /// Entries that it takes.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.state().depth).unwrap_or(u32::MAX)
    }

    /// Returns whether the queue has failed: a completion did not fit (NDK-CQ-13), or the device is gone.
    pub fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }
}

impl State {
    /// Adds a completion; `false`: it does not fit, and the queue has failed.
    #[inline]
    fn push(&mut self, entry: Completion) -> bool {
        let fits = self.entries.len() < self.depth;
        if fits {
            self.newest += 1;
            if entry.is_solicited_event() {
                self.newest_solicited = self.newest;
            }
            self.entries.push_back(entry);
        } else {
            self.failure = Some(CqFailure::Overrun);
            self.entries.clear();
        }
        // Each entry counts, not the batch: those behind the one that satisfies an arm are new to the next.
        if self.arm.is_some() || !fits {
            self.satisfy();
        }
        fits
    }

    /// The entries that stay get new serials, without gaps: new ones stay new, old ones old.
    fn remove(&mut self, qp: QpId) {
        let popped = self.newest - self.entries.len() as u64;
        let seen = self.notified.saturating_sub(popped) as usize;
        let stays = |entry: &&Completion| entry.qp != qp;
        if self.notified > popped {
            let seen_stay = self.entries.iter().take(seen).filter(stays).count();
            self.notified = popped + seen_stay as u64;
        }
        self.entries.retain(|entry| entry.qp != qp);
        self.newest = popped + self.entries.len() as u64;
        let solicited = self.entries.iter().rposition(Completion::is_solicited_event);
        self.newest_solicited = solicited.map_or(popped, |at| popped + at as u64 + 1);
    }

    /// Clears the arm if it is satisfied now; a callback becomes due then.
    fn satisfy(&mut self) {
        let has_overrun = self.failure == Some(CqFailure::Overrun);
        let watch = (has_overrun && self.is_failure_watched).then_some(Arm::Failure);
        let Some(arm) = self.arm.or(watch) else { return };
        if let Some(failure) = self.failure {
            self.is_failure_watched = false;
            return self.tell(Err(failure)); // NDK-CQ-9, NDK-CQ-15
        }
        let popped = self.newest - self.entries.len() as u64;
        // NDK-CQ-4: newer than the last callback; polled away means seen.
        let is_new = |serial: u64| serial > self.notified && serial > popped;
        let is_satisfied = match arm {
            Arm::Next => is_new(self.newest),
            Arm::Solicited => is_new(self.newest_solicited),
            Arm::Failure => false,
        };
        if (is_satisfied || self.held.is_some()) && !self.is_held_back(popped) {
            self.tell(Ok(()));
        }
    }

    /// Gives out the notification: nothing is armed, and nothing held, any more.
    #[inline]
    fn tell(&mut self, outcome: Result<(), CqFailure>) {
        self.held = None;
        self.arm = None; // NDK-CQ-2
        self.notified = self.newest;
        self.due = Some(outcome);
    }

    /// Returns whether the notification of a satisfied arm has to wait (NDK-MOD-5), from now on or as before.
    #[inline]
    fn is_held_back(&mut self, popped: u64) -> bool {
        let Some(CqModeration { count, .. }) = self.moderation else { return false };
        if self.held.is_none() {
            self.held = Some(self.notified.max(popped) + 1);
            self.begin_hold();
        }
        let first = self.held.unwrap_or(self.newest);
        let came = (self.newest + 1).saturating_sub(first);
        count.is_none_or(|count| came < u64::from(count))
    }

    fn begin_hold(&mut self) {
        self.holds += 1;
        self.is_hold_new = true;
    }
}

/// A success.
#[cfg(test)]
const SUCCESS: Completion = Completion {
    status: WcStatus::Success,
    opcode: WcOpcode::Receive,
    error: None,
    bytes: 0,
    arrival: Arrival::Plain,
    solicited: false,
    qp: QpId::new(0, 0),
    qp_context: 0,
    context: 0,
};

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests;
