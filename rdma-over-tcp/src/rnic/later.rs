//! Ends of requests that an adapter holds back, so that its consumer sees them pend ([`Deferral`](super::Deferral)).
//!
//! What is asked for is done at once; only its end is told later, at a time that is drawn from the seed. So the ends of
//! several requests come in another order than the requests. An object stays pinned meanwhile, by the request or by the
//! close that is held back.

use alloc::collections::BTreeMap;
use core::fmt;

use offload_engine::time::{Duration, Instant};
use oorandom::Rand64;

use super::{
    config::Deferral,
    device::Rnic,
    id::Key,
    lifetime::{Callback, Close, CloseCompletion, Return, ReturnGuard},
};

/// One of so many requests ends at once all the same.
const AT_ONCE: u64 = 4;

/// An end that is held back.
enum End {
    /// Of a request: its completion.
    Request(Callback),
    /// Of a close: the object was pinned for it.
    Close,
}

/// Ends that are held back, by the time of each.
#[derive(Default)]
pub(super) struct Later {
    random: Option<(Rand64, Duration)>,
    ends: BTreeMap<(Instant, u64), (Key, End)>,
    count: u64,
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Later({})", self.ends.len())
    }
}

impl Later {
    pub(super) fn new(deferral: Option<Deferral>) -> Self {
        let random = deferral.map(|it| (Rand64::new(it.seed.into()), it.delay_max));
        Self { random, ..Self::default() }
    }

    /// When the end of a request is told; `None`: at once.
    fn draw(&mut self, now: Instant) -> Option<Instant> {
        let (random, delay_max) = self.random.as_mut()?;
        if random.rand_range(0..AT_ONCE) == 0 {
            return None;
        }
        let nanos = u64::try_from(delay_max.as_nanos()).unwrap_or(u64::MAX);
        Some(now + Duration::from_nanos(random.rand_range(0..nanos.saturating_add(1))))
    }

    fn add(&mut self, at: Instant, key: Key, end: End) {
        self.count += 1;
        self.ends.insert((at, self.count), (key, end));
    }

    pub(super) fn first(&self) -> Option<Instant> {
        self.ends.first_key_value().map(|((at, _), _)| *at)
    }
}

impl Rnic {
    /// Has `completion` called later, if it is drawn that a request pends which has ended already; `key` is pinned until
    /// it has returned. Gives the completion back if the request does not pend.
    ///
    /// # Errors
    /// It does not pend: the completion.
    pub fn pend(&mut self, now: Instant, key: Key, completion: Callback) -> Result<(), Callback> {
        let may_pend = !self.is_lost && self.objects.exists(key);
        let Some(at) = may_pend.then(|| self.later.draw(now)).flatten() else {
            return Err(completion);
        };
        self.objects.pin(key);
        self.later.add(at, key, End::Request(completion));
        Ok(())
    }

    /// As [`Rnic::close`], which may be held back.
    pub fn close_at(&mut self, now: Instant, key: Key, completion: CloseCompletion) -> Close {
        let is_held = !self.is_lost && self.objects.is_open(key);
        let Some(at) = is_held.then(|| self.later.draw(now)).flatten() else {
            return self.close(key, completion);
        };
        self.objects.pin(key);
        let close = self.close(key, completion);
        self.later.add(at, key, End::Close);
        close
    }

    /// Tells the ends that are due; `None`: all of them. Returns whether there was one.
    pub(super) fn end_held(&mut self, now: Option<Instant>) -> bool {
        let mut worked = false;
        while let Some(entry) = self.later.ends.first_entry() {
            if now.is_some_and(|now| entry.key().0 > now) {
                break;
            }
            worked = true;
            match entry.remove() {
                (key, End::Request(completion)) => {
                    let guard = ReturnGuard::new(&self.objects.returns, Return::Unpin(key));
                    self.objects.outbox.push(guard, completion);
                }
                (key, End::Close) => self.objects.unpin(key),
            }
        }
        worked
    }
}
