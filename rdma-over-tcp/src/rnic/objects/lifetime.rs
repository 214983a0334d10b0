//! When an object may go: pins, closes that pend, and callbacks that must have returned.
//!
//! An object is pinned by each successor, each request that has not had its completion callback
//! return, and each event callback that was given out (NDK-LIFE-4). Close succeeds at once when
//! nothing pins the object, else it pends; the last unpin completes it, and the antecedents are
//! unpinned only when that completion has returned (NDK-LIFE-6).
//!
//! Callbacks run where the node calls them, without a lock. That one has returned comes back through
//! [`Returns`], which the core empties at its next poll. So does, from whatever thread and layer, that the last span of
//! a registration's memory was dropped.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::fmt;

use offload_engine::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::id::{ConnectorId, CqId, Key, RegionId};
use crate::rnic::status::ConnectError;

/// A callback, called once, when no lock is held.
pub type Callback = Box<dyn FnOnce() + Send>;

/// Ends an asynchronous request. Called once, when no lock is held.
pub type RequestCompletion = Box<dyn FnOnce(Result<(), ConnectError>) + Send>;

/// Ends a close that pended: the last callback of its object (NDK-LIFE-7).
pub type CloseCompletion = Callback;

/// Outcome of a close or of a deregistration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Close {
    /// It is done; the completion was dropped and is not called.
    Done,
    /// Its completion follows, once.
    Pending,
}

/// The life of one object.
#[derive(Default)]
pub(crate) struct Life {
    /// Successors, requests and callbacks that need the object.
    pins: u32,
    close: Option<CloseCompletion>,
    /// The close is done. Only the adapter is still there then.
    is_closed: bool,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Life {{ pins: {}, closing: {} }}", self.pins, self.close.is_some())
    }
}

impl Life {
    pub(crate) fn pin(&mut self) {
        self.pins += 1;
    }

    /// Returns the close completion if this was the last pin of an object that is being closed.
    pub(crate) fn unpin(&mut self) -> Option<CloseCompletion> {
        debug_assert!(self.pins > 0, "unpinned more often than pinned");
        self.pins = self.pins.saturating_sub(1);
        let close = if self.pins == 0 { self.close.take() } else { None };
        self.is_closed |= close.is_some();
        close
    }

    /// Closes the object. `completion` is kept if the close pends.
    pub(crate) fn close(&mut self, completion: CloseCompletion) -> Close {
        if self.pins == 0 {
            self.is_closed = true;
            return Close::Done;
        }
        // A second close of one object is the consumer's mistake (NDK-LIFE-2). It has said PENDING, so its completion
        // comes too, behind the first one's (NDK-ASY-1).
        self.close = Some(match self.close.take() {
            None => completion,
            Some(first) => Box::new(move || {
                first();
                completion();
            }),
        });
        Close::Pending
    }

    pub(crate) const fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether it is being closed, or closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closed || self.close.is_some()
    }
}

/// The registrations of a region whose memory is in use. Each pins the region.
#[derive(Default)]
pub(crate) struct Uses {
    count: u32,
    deregistration: Option<Callback>,
}

impl fmt::Debug for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uses {{ {}, awaited: {} }}", self.count, self.is_awaited())
    }
}

impl Uses {
    pub(crate) fn begin(&mut self) {
        self.count += 1;
    }

    /// Returns the end of a deregistration if this was the last use that it has waited for.
    pub(crate) fn end(&mut self) -> Option<Callback> {
        debug_assert!(self.count > 0, "ended more often than begun");
        self.count = self.count.saturating_sub(1);
        if self.count == 0 { self.deregistration.take() } else { None }
    }

    pub(crate) const fn are_any(&self) -> bool {
        self.count > 0
    }

    /// Keeps the end of a deregistration until the last use has ended.
    pub(crate) fn await_end(&mut self, deregistration: Callback) {
        self.deregistration = Some(deregistration);
    }

    /// Returns whether a deregistration is pending.
    pub(crate) const fn is_awaited(&self) -> bool {
        self.deregistration.is_some()
    }
}

/// The effect of a callback's return, or of the end of another use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Return {
    /// The object is pinned once less.
    Unpin(Key),
    /// The next notification of the queue may be given out (NDK-CQ-3).
    CqNotification(CqId),
    /// Not a callback: nothing uses the memory of a registration of the region any more.
    Unused(RegionId),
    /// A connect event was not delivered because its listener was paused or closed meanwhile
    /// (NDK-EP-7): refuse the connection.
    Refuse(ConnectorId),
}

/// Callbacks that have returned since the last poll.
pub(crate) struct Returns {
    list: Mutex<Vec<Return>>,
    /// The list is not empty: spares the lock in most polls.
    is_pending: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Returns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Returns").field(&self.list).finish()
    }
}

impl Returns {
    pub(crate) fn new(wake: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { list: Mutex::new(Vec::new()), is_pending: AtomicBool::new(false), wake })
    }

    fn add(&self, returned: Return) {
        self.list.lock().push(returned);
        // Swapped on both sides, as a doorbell's announcement is.
        self.is_pending.swap(true, Ordering::Release);
        (self.wake)();
    }

    /// Returns whether a callback has returned since.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    /// Moves out what has returned. To ask before is cheaper ([`Returns::is_pending`]).
    pub(crate) fn take(&self) -> Vec<Return> {
        if !self.is_pending.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        core::mem::take(&mut *self.list.lock())
    }
}

/// Reports its return when it is dropped: also when the callback panics, or is never called.
pub(crate) struct ReturnGuard {
    returns: Arc<Returns>,
    returned: Return,
}

impl ReturnGuard {
    pub(crate) fn new(returns: &Arc<Returns>, returned: Return) -> Self {
        Self { returns: returns.clone(), returned }
    }
}

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        self.returns.add(self.returned);
    }
}

/// Callbacks that became due, in order.
#[derive(Default)]
pub(crate) struct Outbox(pub(crate) Vec<Callback>);

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbox({})", self.0.len())
    }
}

impl Outbox {
    /// Adds a callback; `guards` report when it has returned.
    pub(crate) fn push<G: Send + 'static>(
        &mut self,
        guards: G,
        call: impl FnOnce() + Send + 'static,
    ) {
        self.0.push(Box::new(move || {
            let _guards = guards;
            call();
        }));
    }
}

#[cfg(all(test, loom))]
mod models;
