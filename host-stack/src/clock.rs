//! Clocks: conversion to smoltcp's time, and the TCP timestamp clock.
//!
//! smoltcp reads TSval from a plain `fn() -> u32` without any state of a connection or host. So each poll of a host
//! first stores its timestamp in a thread-local, which the generator reads. A host is polled by one thread at a time,
//! and the clock is constant within a poll. So every host has its own monotonic clock, even if several share a process
//! or a thread.

use core::cell::Cell;

use offload_engine::time::Instant;

std::thread_local! {
    static TSVAL: Cell<u32> = const { Cell::new(0) };
}

/// Timestamp clock of a host (RFC 7323 §5.4): milliseconds plus a random offset.
///
/// An offloaded connection carries its current value (`ts_time`), and the target continues it. After an upload the
/// host's clock has advanced too, but the target's thread may have read the time slightly later than the host. So the
/// clock is held at the uploaded value until its own time has passed it ([`TimestampClock::catch_up`]). The peer's PAWS
/// check never sees it decrease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimestampClock {
    offset: u32,
    /// Minimum value while it is ahead of the clock.
    floor: Option<u32>,
}

impl TimestampClock {
    pub(crate) const fn new(offset: u32) -> Self {
        Self { offset, floor: None }
    }

    /// TSval of a segment sent at `now`.
    pub(crate) const fn at(self, now: Instant) -> u32 {
        // Wraps every 49.7 days, like the option.
        let value = self.offset.wrapping_add(now.as_millis() as u32);
        match self.floor {
            Some(floor) if is_ahead(floor, value) => floor,
            _ => value,
        }
    }

    /// Sets the TSval of smoltcp's sockets on this thread for `now`.
    pub(crate) fn set_tsval(&mut self, now: Instant) {
        let value = self.at(now);
        // If kept longer, it would be ahead again after half of the option's range.
        self.floor = self.floor.filter(|floor| *floor == value);
        TSVAL.set(value);
    }

    /// Adopts the clock value of an uploaded connection.
    pub(crate) fn catch_up(&mut self, now: Instant, value: u32) {
        if is_ahead(value, self.at(now)) {
            self.floor = Some(value);
        }
        self.set_tsval(now);
    }
}

const fn is_ahead(value: u32, of: u32) -> bool {
    value.wrapping_sub(of).cast_signed() > 0
}

/// Implements smoltcp's `TcpTimestampGenerator`.
pub(crate) fn tsval() -> u32 {
    TSVAL.get()
}

/// Converts to smoltcp's time, in whole microseconds.
pub(crate) fn to_smoltcp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

/// Converts from smoltcp's time; its "at once" is a time in the past.
pub(crate) fn from_smoltcp(at: smoltcp::time::Instant) -> Instant {
    Instant::from_micros(u64::try_from(at.total_micros()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use offload_engine::time::Duration;

    use super::*;

    // RFC 7323 §5.4: the clock does not go below the value of an uploaded connection, and continues from it.
    #[test]
    fn clock_is_held_until_its_own_time() {
        let mut clock = TimestampClock::new(u32::MAX - 1);
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        clock.set_tsval(at(1));
        assert_eq!(tsval(), u32::MAX);
        clock.catch_up(at(1), 5);
        assert_eq!(tsval(), 5, "ahead, beyond the wrap");
        clock.catch_up(at(2), 3);
        assert_eq!((tsval(), clock.at(at(7))), (5, 5));
        clock.set_tsval(at(8));
        assert_eq!((tsval(), clock.floor), (6, None));
    }
}
