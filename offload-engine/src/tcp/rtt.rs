//! Round-trip time and the retransmission time-out (RFC 6298).
//!
//! Times are nanoseconds inside, so a path of 100 us gets a true estimate although timestamps tick
//! in milliseconds. The chimney carries 8 x SRTT and 4 x RTTVAR in ticks of 1 ms.

use crate::time::Duration;

/// RTO before the first sample (RFC 6298 2.1).
const RTO_INITIAL: Duration = Duration::from_secs(1);
/// Largest exponent of the back-off; `rto_max` is reached long before.
const BACKOFF_MAX: u32 = 16;

/// The estimator of one connection.
#[derive(Debug)]
pub(super) struct RttEstimator {
    srtt: Option<Duration>,
    rttvar: Duration,
    min: Option<Duration>,
    rto_min: Duration,
    rto_max: Duration,
    backoff: u32,
}

impl RttEstimator {
    pub(super) const fn new(rto_min: Duration, rto_max: Duration) -> Self {
        Self { srtt: None, rttvar: Duration::ZERO, min: None, rto_min, rto_max, backoff: 0 }
    }

    /// Continues from a carried estimate: `srtt8` is 8 x SRTT, `rttvar4` is 4 x RTTVAR, in ms.
    pub(super) fn import(&mut self, srtt8: u16, rttvar4: u16) {
        if srtt8 != 0 {
            self.srtt = Some(Duration::from_micros(u64::from(srtt8) * 1_000 / 8));
            self.rttvar = Duration::from_micros(u64::from(rttvar4) * 1_000 / 4);
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
    pub(super) fn sample(&mut self, rtt: Duration) {
        self.backoff = 0;
        self.min = Some(self.min.map_or(rtt, |min| min.min(rtt)));
        let Some(srtt) = self.srtt else {
            self.srtt = Some(rtt);
            self.rttvar = rtt / 2;
            return;
        };
        self.rttvar = (self.rttvar * 3 + srtt.abs_diff(rtt)) / 4;
        self.srtt = Some((srtt * 7 + rtt) / 8);
    }

    /// The time-out before back-off.
    pub(super) fn base_rto(&self) -> Duration {
        self.srtt
            .map_or(RTO_INITIAL, |srtt| srtt + self.rttvar * 4)
            .clamp(self.rto_min, self.rto_max)
    }

    /// The time-out shifted left by `exponent`, bounded.
    pub(super) fn rto_shifted(&self, exponent: u32) -> Duration {
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

    /// Smallest sample so far.
    pub(super) const fn min(&self) -> Option<Duration> {
        self.min
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
        rtt.sample(Duration::from_millis(100));
        assert_eq!(rtt.srtt(), Some(Duration::from_millis(100)));
        assert_eq!(rtt.rto(), Duration::from_millis(300));
        rtt.sample(Duration::from_millis(180));
        assert_eq!(rtt.srtt(), Some(Duration::from_millis(110)));
        assert_eq!(rtt.rttvar(), Some(Duration::from_micros(57_500)));
        assert_eq!(rtt.rto(), Duration::from_millis(340));
        rtt.back_off();
        assert_eq!(rtt.rto(), Duration::from_millis(680));
        for _ in 0..40 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), Duration::from_secs(60));
        rtt.sample(Duration::from_millis(110));
        assert_eq!(rtt.rto(), Duration::from_micros(282_500));
        assert_eq!(rtt.min(), Some(Duration::from_millis(100)));
    }

    #[test]
    fn a_short_path_gets_the_floor() {
        let mut rtt = estimator();
        rtt.sample(Duration::from_micros(90));
        assert_eq!(rtt.rto(), Duration::from_millis(200));
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
        short.sample(Duration::from_micros(90));
        assert_eq!(short.export(), (1, 1));
    }
}
