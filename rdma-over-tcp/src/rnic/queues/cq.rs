//! Completion queues: entries, arms, moderation, and overrun.
//!
//! Each queue has its own lock. The engine takes it once for all completions of an upcall; the consumer takes it to
//! poll a queue that is not empty. Polling an empty queue takes no lock.
//!
//! The ring grows to the largest number of entries queued, not to the depth of the queue. So a consumer that keeps up
//! reuses memory that remains in the CPU caches.
//!
//! Every entry has a serial number, counted from 1. Three serials decide about arms: that of the newest entry, that of
//! the newest solicited or failed entry, and that of the newest entry at the last notification. So no entry needs a
//! flag of its own.
//!
//! With moderation ([`CqModeration`]) a satisfied arm is held. It remains, and merges with later arms, until the count
//! of entries is reached or the interval has expired. The queue has no clock: it numbers its holds, and the adapter
//! reports the expiry of a hold.

use alloc::{collections::VecDeque, sync::Arc};
use core::fmt;

use offload_engine::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::wr::WcOpcode;
use crate::{
    ddp::Stag,
    error::ErrorNumber,
    rdmap::IMMEDIATE_OCTETS,
    rnic::{
        objects::{id::QpId, lifetime::Life},
        status::{CqFailure, VerbError, WcStatus},
    },
};

/// Completion of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Outcome of the request.
    pub status: WcStatus,
    /// Kind of the request.
    pub opcode: WcOpcode,
    /// Error that was detected locally, or reported by the peer's Terminate.
    pub error: Option<ErrorNumber>,
    /// Bytes of the message; 0 unless the status is [`WcStatus::Success`].
    pub bytes: u32,
    /// Message that consumed the receive.
    pub arrival: Arrival,
    /// True if the peer requested a solicited event for this receive.
    pub solicited: bool,
    /// Queue pair of the request.
    pub qp: QpId,
    /// Context of the queue pair.
    pub qp_context: u64,
    /// Context of the request.
    pub context: u64,
}

impl Completion {
    /// Returns the number of the error as interfaces report it; 0: none.
    #[must_use]
    pub fn error_code(&self) -> u32 {
        self.error.map_or(0, ErrorNumber::nonzero_code)
    }

    /// Returns true if the completion satisfies [`Arm::Solicited`]: a solicited receive, or an error.
    #[must_use]
    pub fn is_solicited_event(&self) -> bool {
        self.solicited || self.status != WcStatus::Success
    }
}

/// Kind of the message that consumed a receive.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Arrival {
    /// A Send. Also used for other requests, and for failed ones.
    #[default]
    Plain,
    /// A Send with Invalidate. This STag was invalidated.
    Invalidating(Stag),
    /// Immediate data. No data was placed in the receive. With [`QpService::Rc`](crate::rnic::QpService), the bytes of
    /// the completion are those of the Write before it.
    Immediate([u8; IMMEDIATE_OCTETS]),
    /// A Send with immediate data.
    SendImmediate([u8; 4]),
    /// A datagram ([`QpService::Ud`](crate::rnic::QpService)). The receive begins with the global route header, which
    /// the bytes of the completion include.
    Datagram {
        /// Number of the sending queue pair.
        source: u32,
        /// Immediate data in message order.
        immediate: Option<[u8; 4]>,
        /// True if the global route header contains a header of IPv4, otherwise one of IPv6.
        is_ipv4: bool,
    },
}

/// Condition of a notification of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Arm {
    /// Failure of the queue itself.
    Failure,
    /// Solicited receive, or completion in error.
    Solicited,
    /// Next completion.
    Next,
}

/// Callback for a satisfied arm, or for the failure of the queue. Calls never overlap, and no lock is held.
pub type Notification = Arc<dyn Fn(Result<(), CqFailure>) + Send + Sync>;

/// Moderation of notifications: a satisfied arm is notified when the count is reached or the interval has expired,
/// whichever is first. Completions can be polled immediately in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqModeration {
    /// Time from the completion that satisfies the arm; `None`: unlimited.
    pub interval: Option<Duration>,
    /// Completions newer than the last notification; `None`: unlimited.
    pub count: Option<u32>,
}

/// Completion queue as an object.
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

/// Entries, arm and failure of a queue.
#[derive(Debug)]
struct State {
    depth: usize,
    entries: VecDeque<Completion>,
    /// Serial of the newest entry.
    newest: u64,
    /// Serial of the newest entry that satisfies [`Arm::Solicited`].
    newest_solicited: u64,
    /// Value of `newest` when an arm was last satisfied.
    notified: u64,
    arm: Option<Arm>,
    moderation: Option<CqModeration>,
    /// Serial of the first completion counted for a satisfied arm whose notification is held; `None`: no hold.
    held: Option<u64>,
    /// Number of the last hold.
    holds: u64,
    /// True if the interval of the last hold has not started.
    is_hold_new: bool,
    failure: Option<CqFailure>,
    /// True if the failure is notified once even without an arm.
    is_failure_watched: bool,
    /// Outcome for the callback of a satisfied arm that was not yet delivered.
    due: Option<Result<(), CqFailure>>,
    /// True while a delivered callback has not returned (NDK-CQ-3).
    calling: bool,
}

/// Completion queue, shared by the engine and the handles of its consumer.
#[derive(Debug)]
pub struct CompletionQueue {
    /// Count of entries. An empty queue is polled without the lock.
    len: AtomicUsize,
    state: Mutex<State>,
}

/// Outcome of adding completions, or of an arm.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct PushOutcome {
    /// True if an entry did not fit: the queue has failed (NDK-CQ-13).
    pub(crate) overrun: bool,
    /// True if a notification is due, now or after the running callback has returned.
    pub(crate) due: bool,
    /// True if a new hold needs its interval started: [`CompletionQueue::begin_hold`].
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
        // No code that can panic runs with the lock held, except for broken invariants.
        self.state.lock()
    }

    /// Adds completions, in order. A failed queue discards them (NDK-CQ-13).
    pub(crate) fn push_all(&self, mut entries: impl Iterator<Item = Completion>) -> PushOutcome {
        let mut state = self.state();
        let has_failed = state.failure == Some(CqFailure::Overrun);
        let overrun = !has_failed && !entries.all(|entry| state.push(entry));
        self.len.store(state.entries.len(), Ordering::Release);
        PushOutcome { overrun, due: state.due.is_some(), is_hold_new: state.is_hold_new }
    }

    #[cfg(test)]
    fn push(&self, entry: Completion, solicited: bool) -> Result<(), ()> {
        let entry = Completion { solicited, ..entry };
        match self.push_all(core::iter::once(entry)).overrun {
            true => Err(()),
            false => Ok(()),
        }
    }

    /// Moves completions into `results`, oldest first, and returns their count. One consumer polls a queue at a time
    /// (NDK-CQ-1). It needs no access to the adapter, but an adapter that is not driven makes no progress
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

    /// Removes the completions of a queue pair. The order of the remaining ones is kept, and so are the arms they have
    /// satisfied.
    pub(crate) fn remove(&self, qp: QpId) {
        let mut state = self.state();
        state.remove(qp);
        self.len.store(state.entries.len(), Ordering::Release);
    }

    /// Arms a notification. Of two arms the stronger one applies. The adapter processes the result
    /// ([`Rnic::handle_arm`](crate::rnic::Rnic::handle_arm)).
    pub(crate) fn arm(&self, arm: Arm) -> PushOutcome {
        let mut state = self.state();
        state.arm = state.arm.max(Some(arm)); // NDK-CQ-6
        state.satisfy();
        PushOutcome { overrun: false, due: state.due.is_some(), is_hold_new: state.is_hold_new }
    }

    /// Sets the moderation of notifications; `None`: disabled. A held notification is held again. Returns true if its
    /// interval has to be started.
    pub(crate) fn moderate(&self, moderation: Option<CqModeration>) -> bool {
        let mut state = self.state();
        state.moderation = moderation;
        if state.held.is_some() {
            state.begin_hold();
            state.satisfy();
        }
        state.is_hold_new
    }

    /// Returns the number and the interval of a new hold, once per hold with an interval.
    pub(crate) fn begin_hold(&self) -> Option<(u64, Duration)> {
        let mut state = self.state();
        let is_new = core::mem::take(&mut state.is_hold_new) && state.held.is_some();
        let interval = state.moderation.and_then(|moderation| moderation.interval);
        is_new.then_some(state.holds).zip(interval)
    }

    /// Ends a hold whose interval has expired. No effect if the arm was notified before.
    pub(crate) fn end_hold(&self, hold: u64) {
        let mut state = self.state();
        if state.held.is_some() && state.holds == hold {
            state.notify(Ok(()));
        }
    }

    /// Marks the device as lost: each arm reports it from now on (NDK-CQ-14). Completions, present and future, can be
    /// polled.
    pub(crate) fn lose_device(&self) {
        let mut state = self.state();
        state.failure.get_or_insert(CqFailure::DeviceLost);
        state.satisfy();
    }

    /// Requests one notification of an overrun, even without an arm, as verbs requires.
    pub fn watch_failure(&self) {
        let mut state = self.state();
        state.is_failure_watched = true;
        state.satisfy();
    }

    /// Returns the callback outcome that is due, unless a callback is running.
    pub(crate) fn take_due(&self) -> Option<Result<(), CqFailure>> {
        let mut state = self.state();
        if state.calling {
            return None;
        }
        let due = state.due.take();
        state.calling = due.is_some();
        due
    }

    /// Records that the delivered callback has returned.
    pub(crate) fn callback_returned(&self) {
        self.state().calling = false;
    }

    /// Changes the depth.
    ///
    /// # Errors
    /// [`VerbError::CompletionsPresent`]: the queue has more than `depth` entries (NDK-RSZ-2); [`VerbError::CqFailed`].
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

    /// Maximum number of entries.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.state().depth).unwrap_or(u32::MAX)
    }

    /// Returns true if the queue has failed: it has overrun (NDK-CQ-13), or the device was lost.
    pub fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }
}

impl State {
    /// Adds a completion. Returns false if it does not fit and the queue has failed.
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
        // Each entry is checked, not the batch: entries after the one that satisfies an arm are new for the next arm.
        if self.arm.is_some() || !fits {
            self.satisfy();
        }
        fits
    }

    /// Renumbers the remaining entries without gaps. New entries stay new, old entries stay old.
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

    /// Clears the arm if it is satisfied. A callback is due in that case.
    fn satisfy(&mut self) {
        let has_overrun = self.failure == Some(CqFailure::Overrun);
        let watch = (has_overrun && self.is_failure_watched).then_some(Arm::Failure);
        let Some(arm) = self.arm.or(watch) else { return };
        if let Some(failure) = self.failure {
            self.is_failure_watched = false;
            return self.notify(Err(failure)); // NDK-CQ-9, NDK-CQ-15
        }
        let popped = self.newest - self.entries.len() as u64;
        // NDK-CQ-4: newer than the last callback, and not yet polled.
        let is_new = |serial: u64| serial > self.notified && serial > popped;
        let is_satisfied = match arm {
            Arm::Next => is_new(self.newest),
            Arm::Solicited => is_new(self.newest_solicited),
            Arm::Failure => false,
        };
        if (is_satisfied || self.held.is_some()) && !self.is_held_back(popped) {
            self.notify(Ok(()));
        }
    }

    /// Makes the notification due, and clears the arm and the hold.
    #[inline]
    fn notify(&mut self, outcome: Result<(), CqFailure>) {
        self.held = None;
        self.arm = None; // NDK-CQ-2
        self.notified = self.newest;
        self.due = Some(outcome);
    }

    /// Returns true if the notification of a satisfied arm is held (NDK-MOD-5). Starts the hold if it is new.
    #[inline]
    fn is_held_back(&mut self, popped: u64) -> bool {
        let Some(CqModeration { count, .. }) = self.moderation else { return false };
        if self.held.is_none() {
            self.held = Some(self.notified.max(popped) + 1);
            self.begin_hold();
        }
        let first = self.held.unwrap_or(self.newest);
        let completions = (self.newest + 1).saturating_sub(first);
        count.is_none_or(|count| completions < u64::from(count))
    }

    fn begin_hold(&mut self) {
        self.holds += 1;
        self.is_hold_new = true;
    }
}

/// Successful receive.
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
