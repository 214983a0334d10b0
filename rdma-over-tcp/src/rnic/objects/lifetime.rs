//! Lifetime of objects: pins, pending closes, and returned callbacks.
//!
//! Each successor, each request whose completion callback has not returned, and each delivered event callback pins an
//! object (NDK-LIFE-4). Close succeeds immediately if the object is not pinned; otherwise it pends, and the last unpin
//! completes it. The antecedents are unpinned only when that completion has returned (NDK-LIFE-6).
//!
//! The node calls callbacks without a lock. Their return is reported through [`Returns`], which the core drains at its
//! next poll. The drop of the last span of a registration's memory is reported the same way, from any thread and layer.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::fmt;

use offload_engine::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::id::{ConnectorId, CqId, Key, RegionId};
use crate::rnic::status::ConnectError;

/// Callback, called once, with no lock held.
pub type Callback = Box<dyn FnOnce() + Send>;

/// Completion of an asynchronous request. Called once, with no lock held.
pub type RequestCompletion = Box<dyn FnOnce(Result<(), ConnectError>) + Send>;

/// Completion of a pending close: the last callback of its object (NDK-LIFE-7).
pub type CloseCompletion = Callback;

/// Outcome of a close or of a deregistration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Close {
    /// The close is done. The completion was dropped and is not called.
    Done,
    /// The close pends. The completion is called once.
    Pending,
}

/// Lifetime state of one object.
#[derive(Default)]
pub(crate) struct Life {
    /// Successors, requests and callbacks that need the object.
    pins: u32,
    close: Option<CloseCompletion>,
    /// True if the close is complete. Only the adapter still exists in this state.
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
        debug_assert!(self.pins > 0, "more unpins than pins");
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
        // A second close of one object is an error of the consumer (NDK-LIFE-2). It returned PENDING, so its completion
        // is also called, after the first one (NDK-ASY-1).
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

    /// Returns true if the object is being closed, or is closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closed || self.close.is_some()
    }
}

/// Uses of the memory of a region's registrations. Each use pins the region.
#[derive(Default)]
pub(crate) struct Uses {
    count: u32,
    deregistration: Option<Callback>,
}

impl fmt::Debug for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uses {{ {}, awaited: {} }}", self.count, self.is_deregistering())
    }
}

impl Uses {
    pub(crate) fn begin(&mut self) {
        self.count += 1;
    }

    /// Returns the completion of a deregistration if this was the last use that it waited for.
    pub(crate) fn end(&mut self) -> Option<Callback> {
        debug_assert!(self.count > 0, "more ends than begins");
        self.count = self.count.saturating_sub(1);
        if self.count == 0 { self.deregistration.take() } else { None }
    }

    pub(crate) const fn is_in_use(&self) -> bool {
        self.count > 0
    }

    /// Stores the completion of a deregistration until the last use has ended.
    pub(crate) fn begin_deregistration(&mut self, deregistration: Callback) {
        self.deregistration = Some(deregistration);
    }

    /// Returns true if a deregistration is pending.
    pub(crate) const fn is_deregistering(&self) -> bool {
        self.deregistration.is_some()
    }
}

/// Effect of a callback's return, or of the end of another use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Return {
    /// Unpins the object once.
    Unpin(Key),
    /// Permits the next notification of the queue (NDK-CQ-3).
    CqNotification(CqId),
    /// Not a callback: the memory of one registration of the region is no longer in use.
    Unused(RegionId),
    /// Rejects the connection: its connect event was not delivered because the listener was paused or closed in the
    /// meantime (NDK-EP-7).
    Refuse(ConnectorId),
}

/// Callbacks that have returned since the last poll.
pub(crate) struct Returns {
    list: Mutex<Vec<Return>>,
    /// True if the list is not empty. Saves the lock in most polls.
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
        // Both ends swap, as with the announcement of a doorbell.
        self.is_pending.swap(true, Ordering::Release);
        (self.wake)();
    }

    /// Returns true if a callback has returned since the last [`Returns::take`].
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    /// Removes and returns the list. A check of [`Returns::is_pending`] before it is cheaper.
    pub(crate) fn take(&self) -> Vec<Return> {
        if !self.is_pending.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        core::mem::take(&mut *self.list.lock())
    }
}

/// Guard that reports the return of a callback when it is dropped, also if the callback panics or is never called.
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

/// Callbacks that are due, in order.
#[derive(Default)]
pub(crate) struct Outbox(pub(crate) Vec<Callback>);

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbox({})", self.0.len())
    }
}

impl Outbox {
    /// Adds a callback. `guards` are dropped after it has returned.
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
