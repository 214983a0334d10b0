//! Log-linear histogram of times: fixed memory, constant relative error.
//!
//! Below 2^`LINEAR_BITS` ns each value has a bucket. Above, each power of two has 2^`LINEAR_BITS` buckets, so the error
//! is at most 1/128 (0.8 %).

use serde::Serialize;

/// Buckets per power of two, as a power of two.
const LINEAR_BITS: u32 = 7;
const LINEAR: u64 = 1 << LINEAR_BITS;
/// Times are limited to 2^40 ns (18 minutes).
const VALUE_BITS_MAX: u32 = 40;
const BUCKETS: usize = ((VALUE_BITS_MAX - LINEAR_BITS + 1) << LINEAR_BITS) as usize;

/// Part of an operation that is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// One direction: half of the round-trip time.
    HalfRoundTrip,
    /// The whole operation, including the response.
    Whole,
}

/// Histogram of times.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    samples: u64,
    sum: u64,
    min: u64,
    max: u64,
}

/// Summary of a histogram, nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// Number of samples.
    pub samples: u64,
    /// Minimum.
    pub min: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
    /// Lower bound and count of each nonempty bucket.
    pub histogram: Vec<(u64, u64)>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), samples: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

fn bucket_of(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    if bits <= LINEAR_BITS {
        return value as usize;
    }
    let shift = bits - 1 - LINEAR_BITS;
    (u64::from(shift) * LINEAR + (value >> shift)) as usize
}

/// Returns the lower bound of a bucket.
fn lower_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < LINEAR {
        return bucket;
    }
    let shift = bucket / LINEAR - 1;
    (LINEAR + bucket % LINEAR) << shift
}

impl Histogram {
    /// Adds a sample.
    pub fn record(&mut self, value_ns: u64) {
        let value = value_ns.min((1 << VALUE_BITS_MAX) - 1);
        self.counts[bucket_of(value)] += 1;
        self.samples += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Returns the number of samples.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the largest value of the bucket that contains the percentile `per_mille`/1000, within min..=max.
    fn percentile(&self, per_mille: u64) -> u64 {
        let rank = (self.samples * per_mille).div_ceil(1000).max(1);
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return (lower_bound(bucket + 1) - 1).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// Returns the summary; `None` without samples.
    pub fn latency(&self) -> Option<Latency> {
        if self.samples == 0 {
            return None;
        }
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Some(Latency {
            samples: self.samples,
            min: self.min,
            mean: self.sum as f64 / self.samples as f64,
            p50: self.percentile(500),
            p90: self.percentile(900),
            p99: self.percentile(990),
            p999: self.percentile(999),
            max: self.max,
            histogram: filled.map(|(bucket, count)| (lower_bound(bucket), *count)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bucket_bounds_enclose_value(value in 0_u64..1 << VALUE_BITS_MAX) {
            let bucket = bucket_of(value);
            prop_assert!(bucket < BUCKETS);
            let (low, next) = (lower_bound(bucket), lower_bound(bucket + 1));
            prop_assert!(low <= value && value < next);
            prop_assert!(next - low <= 1 + value / 128, "{low}..{next}");
        }

        #[test]
        fn percentiles_match_sorted_list(values in prop::collection::vec(0_u64..1 << 41, 1..300)) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.record(*value));
            let mut sorted: Vec<_> =
                values.iter().map(|value| (*value).min((1 << VALUE_BITS_MAX) - 1)).collect();
            sorted.sort_unstable();
            let summary = histogram.latency().unwrap();
            prop_assert_eq!(summary.samples, values.len() as u64);
            prop_assert_eq!((summary.min, summary.max), (sorted[0], sorted[sorted.len() - 1]));
            for (per_mille, got) in [(500, summary.p50), (900, summary.p90), (990, summary.p99), (999, summary.p999)] {
                let exact = sorted[(sorted.len() * per_mille).div_ceil(1000) - 1];
                prop_assert!(got >= exact && got <= exact + exact / 128 + 1, "{per_mille}: {got}, {exact}");
            }
            prop_assert_eq!(summary.histogram.iter().map(|(_, count)| count).sum::<u64>(), summary.samples);
            prop_assert!(summary.histogram.is_sorted());
        }
    }

    #[test]
    fn empty_histogram_has_no_latency() {
        assert_eq!(Histogram::default().latency(), None);
    }
}
