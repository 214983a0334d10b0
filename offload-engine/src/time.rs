//! Time as an argument: the protocol cores never read a clock.
//!
//! [`Instant`] counts nanoseconds from an arbitrary origin: the start of a node on a device, zero in a simulation.
//! Durations are [`core::time::Duration`].

pub use core::time::Duration;
use core::{
    fmt,
    ops::{Add, AddAssign, Sub},
};

/// Minimum lateness at which an expired time limit is extended by [`CATCH_UP`].
const OVERDUE_MIN: Duration = Duration::from_millis(100);
/// Time in which a process that was stopped reads what has arrived meanwhile.
const CATCH_UP: Duration = Duration::from_millis(100);

/// Point in time, in nanoseconds since the node's origin. Never decreases within one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// Origin.
    pub const ZERO: Self = Self(0);

    /// Creates the time `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Creates the time `micros` microseconds after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// Creates the time `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the new time of this time limit, which has expired, if the loop is late by 100 ms or more. A process
    /// that was stopped resumes with expired limits, and with frames or messages that have arrived in time. The
    /// caller extends a limit only once: a loop may be late each time.
    #[must_use]
    pub fn extended_if_overdue(self, now: Self) -> Option<Self> {
        (self + OVERDUE_MIN <= now).then(|| now + CATCH_UP)
    }

    /// Returns the time `nanos` nanoseconds later.
    pub(crate) const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Time since `earlier`. Zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Variant of [`Instant::saturating_since`] in nanoseconds.
    pub(crate) const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Nanoseconds of `duration`. `u64::MAX` for 584 years and more.
pub(crate) const fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(duration.subsec_nanos() as u64)
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        self.after(nanos(rhs))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, rhs: Self) -> Duration {
        self.saturating_since(rhs)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The extended limit is not late again if the loop runs at that time.
    #[test]
    fn overdue_limit_is_extended_once() {
        let limit = Instant::from_millis(1000);
        assert_eq!(limit.extended_if_overdue(Instant::from_millis(1000)), None);
        assert_eq!(limit.extended_if_overdue(Instant::from_millis(1099)), None);
        let extended = limit.extended_if_overdue(Instant::from_millis(31_000)).unwrap();
        assert_eq!(extended, Instant::from_millis(31_100));
        assert_eq!(extended.extended_if_overdue(extended), None);
    }
}
