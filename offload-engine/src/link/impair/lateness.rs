//! Distribution of the lateness of frames, in 256 counters.
#![forbid(unsafe_code)]

use crate::time::Duration;

/// Buckets: four per power of two of nanoseconds, so a quantile is at most 25 % too high.
const BUCKETS: usize = 64 * 4;

/// Differences between the times that frames were due and sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lateness {
    counts: [u64; BUCKETS],
    count: u64,
    max: Duration,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], count: 0, max: Duration::ZERO }
    }
}

impl Lateness {
    /// Adds one value.
    pub(super) fn add(&mut self, late: Duration) {
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(late);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Largest value.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Returns the value not exceeded by `share` (0.0 to 1.0) of all values, at most 25 % too high. `None` without
    /// values.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        let at = self.counts.iter().position(|&count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Duration::from_nanos(bucket_end(at)).min(self.max))
    }
}

/// Returns the bucket of a value: one each below four nanoseconds, otherwise selected by the first three bits.
fn bucket(nanos: u64) -> usize {
    match nanos.checked_ilog2() {
        None | Some(0 | 1) => nanos as usize,
        Some(exponent) => {
            let quarter = (nanos >> (exponent - 2)) & 3;
            exponent as usize * 4 + quarter as usize
        }
    }
}

/// Largest value of a bucket.
fn bucket_end(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let (exponent, quarter) = ((bucket / 4) as u32, (bucket % 4) as u128);
    let end = (5 + quarter) << (exponent.max(2) - 2);
    u64::try_from(end - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_end_is_within_25_percent() {
        for nanos in (0..2000).chain([50_000, 1_000_000_007, u64::MAX / 3, u64::MAX]) {
            let end = bucket_end(bucket(nanos));
            assert!(end >= nanos && end - nanos <= nanos / 4, "{nanos}: {end}");
        }
    }

    #[test]
    fn quantiles_are_within_25_percent() {
        let mut lateness = Lateness::default();
        assert_eq!((lateness.quantile(0.5), lateness.count()), (None, 0));
        for micros in 1..=100 {
            lateness.add(Duration::from_micros(micros));
        }
        let within = |share, low, high| {
            let found = lateness.quantile(share).unwrap();
            assert!((low..=high).contains(&found.as_micros()), "{share}: {found:?}");
        };
        within(0.5, 50, 62);
        within(0.99, 99, 100);
        within(0.0, 1, 1);
        assert_eq!(lateness.quantile(1.0), Some(Duration::from_micros(100)));
        assert_eq!((lateness.max(), lateness.count()), (Duration::from_micros(100), 100));
    }
}
