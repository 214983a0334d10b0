//! Pacing: the window is spread over the RTT.
//!
//! The rate is a little more than a window per smoothed RTT, so that the window and not the pacer limits a long
//! transfer. It is 2 windows per RTT while the window doubles, 1.2 later (the ratios of Linux). Data is sent in quanta
//! worth one millisecond, at least two segments and at most a GSO packet (64 KiB). After a quantum nothing is sent
//! until it has drained at that rate. A late wake-up shortens the next intervals by up to half; it never enlarges a
//! quantum.
//!
//! ACKs, probes and the first retransmission of a recovery episode are not paced: pacing must not cause a timeout.
//! Without an RTT sample, or without a congestion window, there is no rate.

use crate::time::{Duration, Instant};

/// Largest quantum in bytes, unless two segments are more.
const QUANTUM_BYTES_MAX: u64 = 64 * 1024;
/// Smallest quantum, in segments.
const QUANTUM_SEGMENTS_MIN: u64 = 2;
/// Quanta in a second.
const QUANTA_PER_SECOND: u64 = 1_000;
/// Longest delay that a transmission causes for the next one. An RTT forged by a peer's echo, or a window of one
/// segment, must not stall a connection.
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Percent of a window per RTT while the window doubles.
const SLOW_START_PERCENT: u128 = 200;
/// Percent of a window per RTT in congestion avoidance, and in the round before it.
const AVOIDANCE_PERCENT: u128 = 120;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Bytes per second, not 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rate(u64);

impl Rate {
    /// Rate for a window. `None` without a window or an RTT.
    pub(super) fn new(cwnd: u64, ssthresh: Option<u64>, srtt: Duration) -> Option<Self> {
        if cwnd == u64::MAX || srtt.is_zero() {
            return None;
        }
        let doubles = ssthresh.is_none_or(|ssthresh| cwnd < ssthresh / 2);
        let percent = if doubles { SLOW_START_PERCENT } else { AVOIDANCE_PERCENT };
        let rate = u128::from(cwnd) * percent * NANOS_PER_SECOND / 100 / srtt.as_nanos();
        Some(Self(u64::try_from(rate).unwrap_or(u64::MAX).max(1)))
    }

    pub(super) const fn bytes_per_second(self) -> u64 {
        self.0
    }

    fn time_for(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * NANOS_PER_SECOND / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn quantum(self, mss: u64) -> u64 {
        let least = QUANTUM_SEGMENTS_MIN * mss;
        (self.0 / QUANTA_PER_SECOND).clamp(least, QUANTUM_BYTES_MAX.max(least))
    }
}

/// Pacing state: time of the next quantum.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Time at which the sent bytes have drained.
    drained_at: Instant,
    /// Bytes sent of the current quantum.
    sent: u64,
    /// Delay of the start of the current quantum.
    late: Duration,
}

impl Pacer {
    pub(super) const fn new(now: Instant) -> Self {
        Self { drained_at: now, sent: 0, late: Duration::ZERO }
    }

    /// Returns the bytes that may be sent now, in whole segments.
    ///
    /// # Errors
    /// Returns the time before which nothing may be sent.
    pub(super) fn room(&mut self, now: Instant, rate: Rate, mss: u64) -> Result<u64, Instant> {
        if now >= self.drained_at {
            self.sent = 0;
            self.late = now - self.drained_at;
        }
        let left = rate.quantum(mss).saturating_sub(self.sent);
        if left < mss { Err(self.drained_at) } else { Ok(left - left % mss) }
    }

    /// Records the transmission of `bytes` now.
    pub(super) fn sent(&mut self, now: Instant, rate: Rate, bytes: u64) {
        let interval = rate.time_for(bytes).min(INTERVAL_MAX);
        let shorter = self.late.min(interval / 2);
        self.late -= shorter;
        self.sent = self.sent.saturating_add(bytes);
        self.drained_at = self.drained_at.max(now) + (interval - shorter);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MSS: u64 = 1448;
    const MILLI: Duration = Duration::from_millis(1);

    // Ratios of Linux: twice the window per RTT while it doubles, then 1.2 times.
    #[test]
    fn rate_is_window_per_rtt() {
        let rate = |cwnd, ssthresh, srtt| Rate::new(cwnd, ssthresh, srtt).map(|rate| rate.0);
        assert_eq!(rate(100_000, None, MILLI * 10), Some(20_000_000));
        assert_eq!(rate(100_000, Some(200_001), MILLI * 10), Some(12_000_000));
        assert_eq!(rate(100_000, Some(200_002), MILLI * 10), Some(20_000_000));
        assert_eq!(rate(100_000, None, Duration::ZERO), None);
        assert_eq!(rate(u64::MAX, None, MILLI), None);
        assert_eq!(rate(1, None, Duration::from_secs(100)), Some(1));
    }

    // One millisecond of data, between two segments and a GSO packet.
    #[test]
    fn quantum_is_bounded() {
        assert_eq!(Rate(1_000_000).quantum(MSS), 2 * MSS);
        assert_eq!(Rate(10_000_000).quantum(MSS), 10_000);
        assert_eq!(Rate(10_000_000_000).quantum(MSS), 65_536);
        assert_eq!(Rate(1).quantum(60_000), 120_000);
    }

    // A minimal rate delays by at most one second.
    #[test]
    fn minimal_rate_delay_is_bounded() {
        let mut pacer = Pacer::new(Instant::ZERO);
        pacer.sent(Instant::ZERO, Rate(1), 2 * MSS);
        let due = Instant::ZERO + INTERVAL_MAX;
        assert_eq!(pacer.room(Instant::from_millis(999), Rate(1), MSS), Err(due));
        assert_eq!(pacer.room(due, Rate(1), MSS), Ok(2 * MSS));
    }

    proptest! {
        // However late the wake-ups: a burst is at most a quantum. While the delay is less than half of an interval,
        // the rate is kept.
        #[test]
        fn late_wakeups_keep_burst_limit_and_rate(
            rate in 100_000u64..1_000_000_000,
            late in prop::collection::vec(0u32..100, 20..100),
        ) {
            let rate = Rate(rate);
            let quantum = rate.quantum(MSS);
            let mut pacer = Pacer::new(Instant::ZERO);
            let (mut now, mut total) = (Instant::ZERO, 0);
            for late in &late {
                let mut burst = 0;
                let due = loop {
                    match pacer.room(now, rate, MSS) {
                        Ok(room) => {
                            prop_assert!(room >= MSS);
                            burst += MSS;
                            pacer.sent(now, rate, MSS);
                        }
                        Err(due) => break due,
                    }
                };
                prop_assert!(burst <= quantum && burst > quantum - MSS, "{} of {}", burst, quantum);
                prop_assert!(due > now);
                total += burst;
                now = due + rate.time_for(burst) * *late / 250;
            }
            // The last quantum has not drained yet, and its delay may still be compensated.
            let expected = rate.time_for(total + quantum);
            prop_assert!(now - Instant::ZERO <= expected + Duration::from_micros(1), "{:?}", now);
        }
    }
}
