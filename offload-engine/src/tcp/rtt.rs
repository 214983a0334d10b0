//! Round-trip time and retransmission timeout (RFC 6298).
//!
//! Times are nanoseconds internally, so that a path of 100 us has an accurate estimate although timestamps tick in
//! milliseconds. The chimney transfers 8 x SRTT and 4 x RTTVAR in ticks of 1 ms.

use crate::time::{Duration, Instant, nanos};

/// RTO before the first sample (RFC 6298 §2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);
/// Largest exponent of the backoff; `rto_max` is reached long before.
const BACKOFF_MAX: u32 = 16;

/// Largest sample in nanoseconds; eight of them do not overflow.
const SAMPLE_MAX: u64 = u64::MAX / 8;

/// Minimum time that the smallest RTT is kept; at most twice as long (RFC 8985 §6.2 step 1 requires a window; Linux
/// uses 300 s).
const MIN_WINDOW: Duration = Duration::from_secs(150);

/// Windowed minimum of the RTT samples: a route change to a longer path takes effect.
#[derive(Debug, Default)]
struct RecentMin {
    since: Instant,
    current: Option<Duration>,
    previous: Option<Duration>,
    /// Smaller of `current` and `previous`; read for each segment.
    least: Option<Duration>,
}

impl RecentMin {
    /// Adds a sample. Returns true if the minimum may have changed.
    fn sample(&mut self, now: Instant, rtt: Duration) -> bool {
        if now >= self.since + MIN_WINDOW {
            let is_recent = now < self.since + MIN_WINDOW * 2;
            self.previous = self.current.take().filter(|_| is_recent);
            self.since = now;
        } else if self.current.is_some_and(|current| current <= rtt) {
            return false;
        }
        self.current = Some(rtt);
        self.least = Some(self.previous.map_or(rtt, |previous| previous.min(rtt)));
        true
    }
}

/// RTT estimator of one connection. Times are nanoseconds; each acknowledgment gives a sample.
#[derive(Debug)]
pub(super) struct RttEstimator {
    srtt: Option<u64>,
    rttvar: u64,
    min: RecentMin,
    rto_min: u64,
    rto_max: u64,
    /// Timeout before backoff. As in Linux, `rto_min` bounds the variance term instead of the whole RTO (RFC 6298
    /// §2.4). On a path without jitter RTTVAR approaches 0, and a peer's delayed ACK would cause a timeout.
    base_rto: u64,
    backoff: u32,
}

impl RttEstimator {
    pub(super) fn new(rto_min: Duration, rto_max: Duration) -> Self {
        let base_rto = nanos(RTO_INITIAL.clamp(rto_min, rto_max));
        let (rto_min, rto_max) = (nanos(rto_min), nanos(rto_max));
        let min = RecentMin::default();
        Self { srtt: None, rttvar: 0, min, rto_min, rto_max, base_rto, backoff: 0 }
    }

    /// Imports an estimate: `srtt8` is 8 x SRTT, `rttvar4` is 4 x RTTVAR, in ms.
    pub(super) fn import(&mut self, srtt8: u16, rttvar4: u16) {
        if srtt8 != 0 {
            self.srtt = Some(u64::from(srtt8) * 1_000 / 8 * 1_000);
            self.rttvar = u64::from(rttvar4) * 1_000 / 4 * 1_000;
            self.update_rto();
        }
    }

    /// Exports 8 x SRTT, never 0 once there is a sample, and 4 x RTTVAR, in ms.
    pub(super) fn export(&self) -> (u16, u16) {
        let scaled = |value: u64, factor: u64| {
            u16::try_from(value.saturating_mul(factor).div_ceil(1_000_000)).unwrap_or(u16::MAX)
        };
        match self.srtt {
            Some(srtt) => (scaled(srtt, 8).max(1), scaled(self.rttvar, 4)),
            None => (0, 0),
        }
    }

    /// Adds a sample (RFC 6298 §2.2, §2.3) and resets the backoff. Returns true if the minimum may have changed.
    pub(super) fn sample(&mut self, now: Instant, rtt: Duration) -> bool {
        self.backoff = 0;
        let is_min = self.min.sample(now, rtt);
        let rtt = nanos(rtt).min(SAMPLE_MAX);
        let (srtt, rttvar) = match self.srtt {
            None => (rtt, rtt / 2),
            Some(srtt) => ((srtt * 7 + rtt) / 8, (self.rttvar * 3 + srtt.abs_diff(rtt)) / 4),
        };
        (self.srtt, self.rttvar) = (Some(srtt), rttvar);
        self.update_rto();
        is_min
    }

    fn update_rto(&mut self) {
        let rto = self.srtt.map_or(nanos(RTO_INITIAL), |srtt| {
            srtt.saturating_add(self.rttvar.saturating_mul(4).max(self.rto_min))
        });
        self.base_rto = rto.clamp(self.rto_min, self.rto_max);
    }

    /// Timeout shifted left by `exponent`, bounded.
    pub(super) fn rto_shifted(&self, exponent: u32) -> Duration {
        Duration::from_nanos(self.shifted(exponent))
    }

    #[inline]
    fn shifted(&self, exponent: u32) -> u64 {
        self.base_rto.saturating_mul(1 << exponent.min(BACKOFF_MAX)).min(self.rto_max)
    }

    /// Current timeout (RFC 6298 §2.4, §5.5).
    pub(super) fn rto(&self) -> Duration {
        self.rto_shifted(self.backoff)
    }

    /// Expiry of a retransmission timer started at `now`.
    #[inline]
    pub(super) fn timeout(&self, now: Instant) -> Instant {
        now.after(self.shifted(self.backoff))
    }

    /// Doubles the timeout (RFC 6298 §5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Sets the backoff of a connection offloaded during retransmission.
    pub(super) fn set_backoff(&mut self, exponent: u8) {
        self.backoff = u32::from(exponent).min(BACKOFF_MAX);
    }

    pub(super) fn srtt(&self) -> Option<Duration> {
        self.srtt.map(Duration::from_nanos)
    }

    pub(super) fn rttvar(&self) -> Option<Duration> {
        self.srtt.map(|_| Duration::from_nanos(self.rttvar))
    }

    /// Smallest sample of the last 150 s to 300 s.
    pub(super) fn min(&self) -> Option<Duration> {
        self.min.least
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn estimator() -> RttEstimator {
        RttEstimator::new(Duration::from_millis(200), Duration::from_secs(60))
    }

    proptest! {
        // RFC 6298 §2.3, compared with `Duration` arithmetic.
        #[test]
        fn estimates_match_duration_arithmetic(
            first in 0u64..10_000_000_000,
            samples in prop::collection::vec(0u64..10_000_000_000, 0..20),
        ) {
            let mut rtt = estimator();
            let first = Duration::from_nanos(first);
            rtt.sample(Instant::ZERO, first);
            let (mut srtt, mut rttvar, mut least) = (first, first / 2, first);
            for sample in samples.into_iter().map(Duration::from_nanos) {
                rtt.sample(Instant::ZERO, sample);
                rttvar = (rttvar * 3 + srtt.abs_diff(sample)) / 4;
                srtt = (srtt * 7 + sample) / 8;
                least = least.min(sample);
            }
            prop_assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(srtt), Some(rttvar)));
            let rto = srtt + (rttvar * 4).max(Duration::from_millis(200));
            prop_assert_eq!(rtt.rto(), rto.min(Duration::from_secs(60)));
            prop_assert_eq!(rtt.timeout(Instant::ZERO), Instant::ZERO + rtt.rto());
            prop_assert_eq!(rtt.min(), Some(least));
        }
    }

    // RFC 6298 §2.1 to §2.5, §5.5.
    #[test]
    fn rto_follows_rfc_6298() {
        let mut rtt = estimator();
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        rtt.sample(Instant::ZERO, Duration::from_millis(100));
        assert_eq!(rtt.srtt(), Some(Duration::from_millis(100)));
        assert_eq!(rtt.rto(), Duration::from_millis(300));
        rtt.sample(Instant::ZERO, Duration::from_millis(180));
        assert_eq!(rtt.srtt(), Some(Duration::from_millis(110)));
        assert_eq!(rtt.rttvar(), Some(Duration::from_micros(57_500)));
        assert_eq!(rtt.rto(), Duration::from_millis(340));
        rtt.back_off();
        assert_eq!(rtt.rto(), Duration::from_millis(680));
        for _ in 0..40 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), Duration::from_secs(60));
        rtt.sample(Instant::ZERO, Duration::from_millis(110));
        assert_eq!(rtt.rto(), Duration::from_millis(310));
        assert_eq!(rtt.min(), Some(Duration::from_millis(100)));
    }

    // RFC 8985 §6.2 step 1: a longer route takes effect.
    #[test]
    fn minimum_rtt_expires() {
        let mut rtt = estimator();
        let (short, long) = (Duration::from_millis(5), Duration::from_millis(50));
        rtt.sample(Instant::from_millis(10), short);
        rtt.sample(Instant::from_millis(149_000), long);
        assert_eq!(rtt.min(), Some(short));
        rtt.sample(Instant::from_millis(160_000), long);
        assert_eq!(rtt.min(), Some(short), "minimum kept for at least 150 s");
        rtt.sample(Instant::from_millis(311_000), long);
        assert_eq!(rtt.min(), Some(long), "minimum kept for at most 300 s");
    }

    #[test]
    fn short_path_rto_has_floor() {
        let mut rtt = estimator();
        rtt.sample(Instant::ZERO, Duration::from_micros(90));
        assert_eq!(rtt.rto(), Duration::from_micros(200_090));
    }

    // Chimney §3.6: 8 x SRTT and 4 x RTTVAR in ticks; 0 only without a sample.
    #[test]
    fn exported_estimate_round_trips() {
        let mut rtt = estimator();
        assert_eq!(rtt.export(), (0, 0));
        rtt.import(80, 20);
        assert_eq!(rtt.srtt(), Some(Duration::from_millis(10)));
        assert_eq!(rtt.export(), (80, 20));
        let mut short = estimator();
        short.sample(Instant::ZERO, Duration::from_micros(90));
        assert_eq!(short.export(), (1, 1));
    }
}
