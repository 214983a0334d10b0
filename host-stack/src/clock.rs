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

/// The timestamp clock of a host (RFC 7323 s5.4): milliseconds plus a random offset.
///
/// A connection that moves to the target takes its current value along (`ts_time`), and the target
/// continues it; the clock that an uploaded connection finds here has gone on meanwhile, so the
/// peer's PAWS check never sees it step back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimestampClock {
    offset: u32,
}

impl TimestampClock {
    pub(crate) const fn new(offset: u32) -> Self {
        Self { offset }
    }

    /// The TSval of a segment sent at `now`.
    pub(crate) const fn at(self, now: Instant) -> u32 {
        // Wraps every 49.7 days, as the option does.
        self.offset.wrapping_add(now.as_millis() as u32)
    }

    /// Makes `now` the time that smoltcp's sockets put into their segments on this thread.
    pub(crate) fn show(self, now: Instant) {
        TSVAL.set(self.at(now));
    }
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
