//! Requests and closes with a deferred completion ([`deferred`](crate::rnic::objects::deferred)), and timers of
//! consumers.

use offload_engine::time::Instant;

use crate::rnic::{
    Rnic,
    objects::{
        deferred::DeferredCompletion,
        id::{Key, RegionId},
        lifetime::{Callback, Close, CloseCompletion, Return, ReturnGuard},
    },
};

impl Rnic {
    /// Defers `completion` of a request that has already ended, if the random draw defers it. `key` is pinned until the
    /// callback has returned.
    ///
    /// # Errors
    /// The request is not deferred: returns the completion.
    pub fn pend(&mut self, now: Instant, key: Key, completion: Callback) -> Result<(), Callback> {
        self.pend_as(now, key, completion, DeferredCompletion::Request)
    }

    /// As [`Rnic::pend`], for a region that was registered. Until its completion is due, [`Rnic::token`] returns no
    /// token.
    ///
    /// # Errors
    /// As [`Rnic::pend`].
    pub fn pend_registration(
        &mut self,
        now: Instant,
        id: RegionId,
        completion: Callback,
    ) -> Result<(), Callback> {
        self.pend_as(now, Key::Region(id), completion, DeferredCompletion::Registration)
    }

    /// Calls `callback` at `at`, or when the device is lost. The object `key` is pinned until it has returned.
    ///
    /// # Errors
    /// The device is lost, or the object does not exist: returns the callback.
    pub fn call_at(&mut self, at: Instant, key: Key, callback: Callback) -> Result<(), Callback> {
        if self.is_lost || !self.objects.exists(key) {
            return Err(callback);
        }
        self.objects.pin(key);
        self.deferred.add(at, key, DeferredCompletion::Request(callback));
        Ok(())
    }

    fn pend_as(
        &mut self,
        now: Instant,
        key: Key,
        completion: Callback,
        end: fn(Callback) -> DeferredCompletion,
    ) -> Result<(), Callback> {
        let may_pend = !self.is_lost && self.objects.exists(key);
        let Some(at) = may_pend.then(|| self.deferred.draw(now)).flatten() else {
            return Err(completion);
        };
        self.objects.pin(key);
        self.deferred.add(at, key, end(completion));
        Ok(())
    }

    /// As [`Rnic::close`], with a completion that may be deferred.
    pub fn close_at(&mut self, now: Instant, key: Key, completion: CloseCompletion) -> Close {
        let is_held = !self.is_lost && self.objects.is_open(key);
        let Some(at) = is_held.then(|| self.deferred.draw(now)).flatten() else {
            return self.close(key, completion);
        };
        self.objects.pin(key);
        let close = self.close(key, completion);
        self.deferred.add(at, key, DeferredCompletion::Close);
        close
    }

    /// Delivers the completions that are due; with `None`, all of them. Returns true if there was any.
    pub(crate) fn end_deferred(&mut self, now: Option<Instant>) -> bool {
        let mut worked = false;
        while let Some(end) = self.deferred.take_due(now) {
            worked = true;
            match end {
                (
                    key,
                    DeferredCompletion::Request(completion)
                    | DeferredCompletion::Registration(completion),
                ) => {
                    let guard = ReturnGuard::new(&self.objects.returns, Return::Unpin(key));
                    self.objects.outbox.push(guard, completion);
                }
                (key, DeferredCompletion::Close) => self.objects.unpin(key),
            }
        }
        worked
    }
}
