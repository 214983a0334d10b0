//! Timers of consumers, and ends of requests that an adapter holds back, so that its consumer sees them pend
//! ([`Deferral`]).
//!
//! What is asked for is done at once; only its end is told later, at a time that is drawn from the seed. So the ends of
//! several requests come in another order than the requests. An object stays pinned meanwhile, by the request or by the
//! close that is held back.

use alloc::collections::BTreeMap;
use core::fmt;

use offload_engine::time::{Duration, Instant};
use oorandom::Rand64;

use super::{id::Key, lifetime::Callback};
use crate::rnic::config::Deferral;

/// One of so many requests ends at once all the same.
const AT_ONCE: u64 = 4;

/// An end that is held back.
pub(crate) enum End {
    /// Of a request, or of a timer: its completion.
    Request(Callback),
    /// Of a region's registration, whose token is not told before.
    Registration(Callback),
    /// Of a close: the object was pinned for it.
    Close,
}

/// Ends that are held back, by the time of each.
#[derive(Default)]
pub(crate) struct Later {
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
    pub(crate) fn new(deferral: Option<Deferral>) -> Self {
        let random = deferral.map(|it| (Rand64::new(it.seed.into()), it.delay_max));
        Self { random, ..Self::default() }
    }

    /// When the end of a request is told; `None`: at once.
    pub(crate) fn draw(&mut self, now: Instant) -> Option<Instant> {
        let (random, delay_max) = self.random.as_mut()?;
        if random.rand_range(0..AT_ONCE) == 0 {
            return None;
        }
        let nanos = u64::try_from(delay_max.as_nanos()).unwrap_or(u64::MAX);
        Some(now + Duration::from_nanos(random.rand_range(0..nanos.saturating_add(1))))
    }

    pub(crate) fn add(&mut self, at: Instant, key: Key, end: End) {
        self.count += 1;
        self.ends.insert((at, self.count), (key, end));
    }

    /// Removes the first that is due; `None`: whenever that is.
    pub(crate) fn take_due(&mut self, now: Option<Instant>) -> Option<(Key, End)> {
        let first = self.ends.first_entry()?;
        let is_due = now.is_none_or(|now| first.key().0 <= now);
        is_due.then(|| first.remove())
    }

    /// Returns whether the end of a registration of `key` is held back.
    pub(crate) fn is_registering(&self, key: Key) -> bool {
        self.ends.values().any(|(of, end)| *of == key && matches!(end, End::Registration(_)))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn first(&self) -> Option<Instant> {
        self.ends.first_key_value().map(|((at, _), _)| *at)
    }
}
