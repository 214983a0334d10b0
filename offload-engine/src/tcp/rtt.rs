//! Round-trip time and the retransmission time-out (RFC 6298).
//!
//! Times are nanoseconds inside, so a path of 100 us gets a true estimate although timestamps tick
//! in milliseconds. The chimney carries 8 x SRTT and 4 x RTTVAR in ticks of 1 ms.

use crate::time::{Duration, Instant};

/// RTO before the first sample (RFC 6298 2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);
/// Largest exponent of the back-off; `rto_max` is reached long before.
const BACKOFF_MAX: u32 = 16;

/// For how long, at least, the smallest RTT is remembered; twice as long at most (RFC 8985 s6.2 step 1 asks for a
/// window; Linux has 300 s).
const MIN_WINDOW: Duration = Duration::from_secs(150);

/// The smallest sample of the recent past: a route that has become longer is noticed.
#[derive(Debug, Default)]
struct RecentMin {
    since: Instant,
    current: Option<Duration>,
    previous: Option<Duration>,
}

impl RecentMin {
    fn sample(&mut self, now: Instant, rtt: Duration) {
        let age = now - self.since;
        if age >= MIN_WINDOW {
            self.previous = self.current.take().filter(|_| age < MIN_WINDOW * 2);
            self.since = now;
        }
        self.current = Some(self.current.map_or(rtt, |min| min.min(rtt)));
    }

    fn get(&self) -> Option<Duration> {
        self.current.into_iter().chain(self.previous).min()
    }
}

/// The estimator of one connection.
#[derive(Debug)]
pub(super) struct RttEstimator {
    srtt: Option<Duration>,
    rttvar: Duration,
    min: RecentMin,
    rto_min: Duration,
    rto_max: Duration,
    /// The time-out before back-off: computed with each sample, asked for with each segment.
    base_rto: Duration,
    backoff: u32,
}

impl RttEstimator {
    pub(super) fn new(rto_min: Duration, rto_max: Duration) -> Self {
        let base_rto = RTO_INITIAL.clamp(rto_min, rto_max);
        let (rttvar, min) = (Duration::ZERO, RecentMin::default());
        Self { srtt: None, rttvar, min, rto_min, rto_max, base_rto, backoff: 0 }
    }

    /// Continues from a carried estimate: `srtt8` is 8 x SRTT, `rttvar4` is 4 x RTTVAR, in ms.
    pub(super) fn import(&mut self, srtt8: u16, rttvar4: u16) {
        if srtt8 != 0 {
            self.srtt = Some(Duration::from_micros(u64::from(srtt8) * 1_000 / 8));
            self.rttvar = Duration::from_micros(u64::from(rttvar4) * 1_000 / 4);
            self.derive();
        }
    }

    /// The carried form: 8 x SRTT, never 0 once there is a sample, and 4 x RTTVAR, in ms.
    pub(super) fn export(&self) -> (u16, u16) {
        let scaled = |value: Duration, factor: u128| {
            u16::try_from((value.as_nanos() * factor).div_ceil(1_000_000)).unwrap_or(u16::MAX)
        };
        match self.srtt {
            Some(srtt) => (scaled(srtt, 8).max(1), scaled(self.rttvar, 4)),
            None => (0, 0),
        }
    }

    /// Takes a sample (RFC 6298 2.2, 2.3) and ends the back-off.
    pub(super) fn sample(&mut self, now: Instant, rtt: Duration) {
        self.backoff = 0;
        self.min.sample(now, rtt);
        match self.srtt {
            None => {
                self.srtt = Some(rtt);
                self.rttvar = rtt / 2;
            }
            Some(srtt) => {
                self.rttvar = (self.rttvar * 3 + srtt.abs_diff(rtt)) / 4;
                self.srtt = Some((srtt * 7 + rtt) / 8);
            }
        }
        self.derive();
    }

    fn derive(&mut self) {
        self.base_rto = self
            .srtt
            .map_or(RTO_INITIAL, |srtt| srtt + (self.rttvar * 4).max(self.rto_min))
            .clamp(self.rto_min, self.rto_max);
    }

    /// The time-out before back-off. The least of it stands beside SRTT, as in Linux: on a path without jitter
    /// RTTVAR goes to nothing, and a peer's delayed ACK would look like a loss. RFC 6298 2.4 has it count in all.
    pub(super) const fn base_rto(&self) -> Duration {
        self.base_rto
    }

    /// The time-out shifted left by `exponent`, bounded.
    pub(super) fn rto_shifted(&self, exponent: u32) -> Duration {
        if exponent == 0 {
            return self.base_rto;
        }
        self.base_rto().saturating_mul(1 << exponent.min(BACKOFF_MAX)).min(self.rto_max)
    }

    /// The time-out now (RFC 6298 2.4, 5.5).
    pub(super) fn rto(&self) -> Duration {
        self.rto_shifted(self.backoff)
    }

    /// Doubles the time-out (RFC 6298 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Sets the back-off of a connection taken over in the middle of retransmitting.
    pub(super) fn set_backoff(&mut self, exponent: u8) {
        self.backoff = u32::from(exponent).min(BACKOFF_MAX);
    }

    pub(super) const fn srtt(&self) -> Option<Duration> {
        self.srtt
    }

    pub(super) fn rttvar(&self) -> Option<Duration> {
        self.srtt.map(|_| self.rttvar)
    }

    /// Smallest sample of the last 150 s at least, 300 s at most.
    pub(super) fn min(&self) -> Option<Duration> {
        self.min.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimator() -> RttEstimator {
        RttEstimator::new(Duration::from_millis(200), Duration::from_secs(60))
    }

    // RFC 6298 2.1 to 2.5, 5.5.
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

    // RFC 8985 s6.2 step 1: a longer route is noticed.
    #[test]
    fn the_smallest_sample_is_forgotten() {
        let mut rtt = estimator();
        let (short, long) = (Duration::from_millis(5), Duration::from_millis(50));
        rtt.sample(Instant::from_millis(10), short);
        rtt.sample(Instant::from_millis(149_000), long);
        assert_eq!(rtt.min(), Some(short));
        rtt.sample(Instant::from_millis(160_000), long);
        assert_eq!(rtt.min(), Some(short), "150 s at least");
        rtt.sample(Instant::from_millis(311_000), long);
        assert_eq!(rtt.min(), Some(long), "and 300 s at most");
    }

    #[test]
    fn a_short_path_gets_the_floor() {
        let mut rtt = estimator();
        rtt.sample(Instant::ZERO, Duration::from_micros(90));
        assert_eq!(rtt.rto(), Duration::from_micros(200_090));
    }

    // Chimney s3.6: 8 x SRTT and 4 x RTTVAR in ticks; 0 only without a sample.
    #[test]
    fn the_carried_form_round_trips() {
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
