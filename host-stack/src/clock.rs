//! Time: from the node's clock to smoltcp's, and the TCP timestamp clock.
//!
//! smoltcp takes TSval from a plain `fn() -> u32`, with no room for a connection's or a host's own
//! state. So each poll of a host first writes its timestamp into a thread-local, and the generator
//! reads it. A host is polled by one thread at a time, and the clock stands still within a poll, hence
//! every host sees its own, monotonic clock, also when several share a process or a thread.

use core::cell::Cell;

use offload_engine::time::Instant;

std::thread_local! {
    static TSVAL: Cell<u32> = const { Cell::new(0) };
}

/// The timestamp clock of a host (RFC 7323 §5.4): milliseconds plus a random offset.
///
/// A connection that moves to the target takes its current value along (`ts_time`), and the target
/// continues it. The clock that an uploaded connection finds here has gone on meanwhile, but the target's
/// thread may look at its watch a little later than the host's: so the clock stands still at the value that came along
/// until its own time has passed that ([`TimestampClock::catch_up`]), and the peer's PAWS check never sees it step
/// back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimestampClock {
    offset: u32,
    /// Not before this, while it lies ahead.
    floor: Option<u32>,
}

impl TimestampClock {
    pub(crate) const fn new(offset: u32) -> Self {
        Self { offset, floor: None }
    }

    /// The TSval of a segment sent at `now`.
    pub(crate) const fn at(self, now: Instant) -> u32 {
        // Wraps every 49.7 days, as the option does.
        let value = self.offset.wrapping_add(now.as_millis() as u32);
        match self.floor {
            Some(floor) if is_ahead(floor, value) => floor,
            _ => value,
        }
    }

    /// Makes `now` the time that smoltcp's sockets put into their segments on this thread.
    pub(crate) fn show(&mut self, now: Instant) {
        let value = self.at(now);
        // Kept longer it would lie ahead again after half of the option's range.
        self.floor = self.floor.filter(|floor| *floor == value);
        TSVAL.set(value);
    }

    /// A connection comes back with its clock at `value`.
    pub(crate) fn catch_up(&mut self, now: Instant, value: u32) {
        if is_ahead(value, self.at(now)) {
            self.floor = Some(value);
        }
        self.show(now);
    }
}

const fn is_ahead(value: u32, of: u32) -> bool {
    value.wrapping_sub(of).cast_signed() > 0
}

/// smoltcp's `TcpTimestampGenerator`.
pub(crate) fn tsval() -> u32 {
    TSVAL.get()
}

/// Our time as smoltcp's, in whole microseconds.
pub(crate) fn to_smoltcp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

/// smoltcp's time as ours; its "at once" is a moment in the past.
pub(crate) fn from_smoltcp(at: smoltcp::time::Instant) -> Instant {
    Instant::from_micros(u64::try_from(at.total_micros()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use offload_engine::time::Duration;

    use super::*;

    // RFC 7323 §5.4: what a connection brings along is not undercut, and the clock goes on from there.
    #[test]
    fn the_clock_waits_for_its_own_time() {
        let mut clock = TimestampClock::new(u32::MAX - 1);
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        clock.show(at(1));
        assert_eq!(tsval(), u32::MAX);
        clock.catch_up(at(1), 5);
        assert_eq!(tsval(), 5, "ahead, beyond the wrap");
        clock.catch_up(at(2), 3);
        assert_eq!((tsval(), clock.at(at(7))), (5, 5));
        clock.show(at(8));
        assert_eq!((tsval(), clock.floor), (6, None));
    }
}
