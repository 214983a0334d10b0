//! Timers of consumers, and completions that an adapter defers, so that its consumer observes pending requests
//! ([`Deferral`]).
//!
//! The request itself is executed immediately. Only its completion is deferred, to a time drawn from the seed. So
//! several requests complete in a different order than they were made. The object remains pinned meanwhile, by the
//! request or by the deferred close.

use alloc::collections::BTreeMap;
use core::fmt;

use offload_engine::time::{Duration, Instant};
use oorandom::Rand64;

use super::{id::Key, lifetime::Callback};
use crate::rnic::config::Deferral;

/// One request in this many completes immediately.
const IMMEDIATE_ONE_IN: u64 = 4;

/// Deferred completion.
pub(crate) enum DeferredCompletion {
    /// Completion of a request or of a timer.
    Request(Callback),
    /// Completion of a region's registration, whose token is not reported before.
    Registration(Callback),
    /// Completion of a close. The object was pinned for it.
    Close,
}

/// Deferred completions by their time.
#[derive(Default)]
pub(crate) struct DeferredCompletions {
    random: Option<(Rand64, Duration)>,
    ends: BTreeMap<(Instant, u64), (Key, DeferredCompletion)>,
    count: u64,
}

impl fmt::Debug for DeferredCompletions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeferredCompletions({})", self.ends.len())
    }
}

impl DeferredCompletions {
    pub(crate) fn new(deferral: Option<Deferral>) -> Self {
        let random = deferral.map(|it| (Rand64::new(it.seed.into()), it.delay_max));
        Self { random, ..Self::default() }
    }

    /// Draws the time of a request's completion; `None`: immediately.
    pub(crate) fn draw(&mut self, now: Instant) -> Option<Instant> {
        let (random, delay_max) = self.random.as_mut()?;
        if random.rand_range(0..IMMEDIATE_ONE_IN) == 0 {
            return None;
        }
        let nanos = u64::try_from(delay_max.as_nanos()).unwrap_or(u64::MAX);
        Some(now + Duration::from_nanos(random.rand_range(0..nanos.saturating_add(1))))
    }

    pub(crate) fn add(&mut self, at: Instant, key: Key, end: DeferredCompletion) {
        self.count += 1;
        self.ends.insert((at, self.count), (key, end));
    }

    /// Removes and returns the first completion that is due; with `None`, the first one at any time.
    pub(crate) fn take_due(&mut self, now: Option<Instant>) -> Option<(Key, DeferredCompletion)> {
        let first = self.ends.first_entry()?;
        let is_due = now.is_none_or(|now| first.key().0 <= now);
        is_due.then(|| first.remove())
    }

    /// Returns true if the completion of a registration of `key` is deferred.
    pub(crate) fn is_registering(&self, key: Key) -> bool {
        self.ends
            .values()
            .any(|(of, end)| *of == key && matches!(end, DeferredCompletion::Registration(_)))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn first(&self) -> Option<Instant> {
        self.ends.first_key_value().map(|((at, _), _)| *at)
    }
}
