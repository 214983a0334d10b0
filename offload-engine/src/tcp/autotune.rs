//! Receive window autotuning: dynamic right-sizing with the rules of Linux (`tcp_rcv_space_adjust`).
//!
//! A window of one bandwidth-delay product keeps a sender busy; twice that also while a lost segment is repaired. So
//! the limit grows to twice the bytes that the consumer takes per RTT, and ahead of a sender in slow start, up to
//! [`super::Config::rcv_wnd_max`]. A slow consumer counts by its rate and gets no larger window. The limit never
//! shrinks, and stops growing once the host has set it (CH-UPD-5; Linux: SO_RCVBUF).
//!
//! The RTT is the smaller of two estimates, both of which err upward. One is the smoothed age of the timestamp echoed
//! by a full-sized segment (RFC 7323 §4.1; at least its tick, 1 ms). The other is the time in which the peer fills a
//! newly advertised window.

use super::seq::Position;
use crate::time::{Duration, Instant};

/// Bytes per RTT that every window allows for: the initial window of RFC 6928.
const INITIAL_SPACE: u64 = 14_600;
/// Segments added to twice the bytes of an RTT.
const SLACK_SEGMENTS: u64 = 16;

/// RTT estimates of the receiver.
#[derive(Debug, Default)]
struct RttEstimate {
    /// Smoothed estimate by timestamps.
    echoed: Option<Duration>,
    /// TSecr of the last sample; each value gives one sample.
    last_echo: Option<u32>,
    /// Smallest estimate by windows.
    window: Option<Duration>,
    /// Right edge of the window being measured, and the time it was advertised.
    crossing: Option<(Position, Instant)>,
}

impl RttEstimate {
    #[inline]
    fn estimate(&self) -> Option<Duration> {
        match (self.echoed, self.window) {
            (Some(echoed), Some(window)) => Some(echoed.min(window)),
            (echoed, window) => echoed.or(window),
        }
    }
}

/// Autotuning of one connection's receive window.
#[derive(Debug)]
pub(super) struct Autotune {
    /// Largest limit in bytes; 0 if the limit does not grow.
    limit_max: u64,
    rtt: RttEstimate,
    /// Start of the round in which `consumed` bytes were taken.
    since: Option<Instant>,
    consumed: u64,
    /// Maximum number of bytes taken per RTT so far.
    space: u64,
}

impl Autotune {
    pub(super) fn new(limit_max: u32) -> Self {
        Self {
            limit_max: u64::from(limit_max),
            rtt: RttEstimate::default(),
            since: None,
            consumed: 0,
            space: INITIAL_SPACE,
        }
    }

    /// Stops autotuning because the host has set the limit.
    pub(super) fn stop(&mut self) {
        self.limit_max = 0;
    }

    /// RTT estimate of the receiver.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.estimate()
    }

    /// Processes a full-sized segment that echoes `echo`, sent `age` ago.
    #[inline]
    pub(super) fn on_echo(&mut self, echo: u32, age: Duration) {
        if self.rtt.last_echo == Some(echo) {
            return;
        }
        self.rtt.last_echo = Some(echo);
        self.rtt.echoed = Some(self.rtt.echoed.map_or(age, |rtt| (rtt * 7 + age) / 8));
    }

    /// Processes an advance of RCV.NXT to `nxt`; `edge` is the right edge of the window.
    #[inline]
    pub(super) fn on_data(&mut self, now: Instant, nxt: Position, edge: Position) {
        match self.rtt.crossing {
            Some((edge, _)) if nxt < edge => return,
            Some((_, since)) if now > since => {
                let time = now - since;
                self.rtt.window = Some(self.rtt.window.map_or(time, |rtt| rtt.min(time)));
            }
            _ => {}
        }
        self.rtt.crossing = (edge > nxt).then_some((edge, now));
    }

    /// Counts `bytes` taken by the consumer. Returns a new limit, at most once per RTT, if the rate exceeds all
    /// previous rates.
    #[inline]
    pub(super) fn on_consumed(&mut self, now: Instant, bytes: u64, mss: u64) -> Option<u64> {
        if self.limit_max == 0 {
            return None;
        }
        self.consumed = self.consumed.saturating_add(bytes);
        let since = *self.since.get_or_insert(now);
        let rtt = self.rtt.estimate()?;
        if now < since + rtt || now <= since {
            return None;
        }
        let elapsed = now - since;
        let consumed = core::mem::take(&mut self.consumed);
        self.since = Some(now);
        let taken = u128::from(consumed) * rtt.as_nanos() / elapsed.as_nanos();
        let taken = u64::try_from(taken).unwrap_or(u64::MAX);
        if taken <= self.space {
            return None;
        }
        let wanted = taken.saturating_mul(2).saturating_add(SLACK_SEGMENTS * mss);
        // A sender in slow start sends twice as much in the next round: grow ahead of it.
        let growth = wanted.saturating_mul(taken - self.space) / self.space;
        self.space = taken;
        Some(wanted.saturating_add(growth.saturating_mul(2)).min(self.limit_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::SeqNum;

    const MAX: u32 = 4 * 1024 * 1024;

    fn at(offset: u64) -> Position {
        Position::first(SeqNum(7)) + offset
    }

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    // Twice the bytes of an RTT, 16 segments, and the expected growth of slow start.
    #[test]
    fn window_grows_with_consumed_bytes() {
        let mut tune = Autotune::new(MAX);
        tune.on_echo(1, Duration::from_millis(10));
        assert_eq!(tune.on_consumed(ms(0), 14_600, 1000), None, "first call starts the round");
        assert_eq!(tune.on_consumed(ms(9), 0, 1000), None, "less than an RTT");
        assert_eq!(tune.on_consumed(ms(10), 14_600, 1000), Some((29_200 * 2 + 16_000) * 3));
        assert_eq!(
            tune.on_consumed(ms(20), 29_200, 1000),
            None,
            "rate does not exceed the previous one"
        );
        assert_eq!(tune.on_consumed(ms(30), 10 << 20, 1000), Some(u64::from(MAX)));
    }

    // A consumer that rarely takes many bytes is slow: bytes are scaled to the RTT.
    #[test]
    fn slow_consumer_window_does_not_grow() {
        let mut tune = Autotune::new(MAX);
        tune.on_echo(1, Duration::from_millis(10));
        assert_eq!(tune.on_consumed(ms(0), 0, 1000), None);
        for second in 1..10 {
            assert_eq!(tune.on_consumed(ms(1000 * second), 256 * 1024, 1000), None);
        }
    }

    // Without an RTT estimate, or after the host has set the limit, the window does not grow.
    #[test]
    fn window_growth_needs_rtt_and_autotuning() {
        let mut tune = Autotune::new(MAX);
        assert_eq!(tune.on_consumed(ms(0), 1 << 20, 1000), None);
        assert_eq!(tune.on_consumed(ms(10), 1 << 20, 1000), None);
        tune.on_echo(1, Duration::from_millis(1));
        tune.stop();
        assert_eq!(tune.on_consumed(ms(20), 1 << 20, 1000), None);
    }

    // RFC 7323 §4.1: one smoothed sample per echo; the window estimate is used if it is smaller.
    #[test]
    fn smaller_rtt_estimate_is_used() {
        let mut tune = Autotune::new(MAX);
        tune.on_data(ms(5), at(0), at(1000));
        tune.on_data(ms(6), at(999), at(2000));
        assert_eq!(tune.rtt(), None);
        tune.on_data(ms(9), at(1000), at(2000));
        assert_eq!(tune.rtt(), Some(Duration::from_millis(4)));
        tune.on_data(ms(20), at(2000), at(3000));
        assert_eq!(tune.rtt(), Some(Duration::from_millis(4)), "longer window time is ignored");
        tune.on_echo(1, Duration::from_millis(1));
        tune.on_echo(1, Duration::from_millis(3));
        assert_eq!(tune.rtt(), Some(Duration::from_millis(1)));
        tune.on_echo(2, Duration::from_millis(3));
        assert_eq!(tune.rtt(), Some(Duration::from_micros(1_250)));
    }
}
