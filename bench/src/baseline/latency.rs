//! Latency samples and their distribution.

use serde::Serialize;

/// Buckets per octave of the histogram, as a power of two: the width of a bucket is at most an eighth of its value.
const BUCKETS_PER_OCTAVE_BITS: u32 = 3;

/// Limit of stored samples: more than a run of 10 s produces.
const SAMPLES_MAX: usize = 8_000_000;

/// Samples, in memory allocated before the run.
#[derive(Debug)]
pub(super) struct Samples {
    ns: Vec<u32>,
}

impl Samples {
    /// Creates the buffer with capacity for one sample per microsecond.
    pub(super) fn with_room_for(seconds: f64) -> Self {
        let room = ((seconds * 1e6) as usize).clamp(1000, SAMPLES_MAX);
        // Touched, so that there are no page faults during the run.
        let mut ns = vec![u32::MAX; room];
        ns.clear();
        Self { ns }
    }

    /// Adds a sample, up to the capacity.
    pub(super) fn push(&mut self, ns: u32) {
        if self.ns.len() < self.ns.capacity() {
            self.ns.push(ns);
        }
    }

    /// Returns the distribution of the samples divided by `divisor`; `None` without samples.
    pub(super) fn distribution(mut self, divisor: u32) -> Option<Latency> {
        self.ns.sort_unstable();
        let (first, last) = (*self.ns.first()?, *self.ns.last()?);
        let scale = |ns: u32| f64::from(ns) / f64::from(divisor);
        let count = self.ns.len();
        let at = |percent: f64| {
            let rank = (count as f64 * percent / 100.0).ceil() as usize;
            scale(self.ns[rank.clamp(1, count) - 1])
        };
        let sum: u64 = self.ns.iter().map(|&ns| u64::from(ns)).sum();
        let mut histogram: Vec<(u32, u64)> = Vec::new();
        for &ns in &self.ns {
            let bound = lower_bound(ns / divisor);
            match histogram.last_mut() {
                Some((last, count)) if *last == bound => *count += 1,
                _ => histogram.push((bound, 1)),
            }
        }
        Some(Latency {
            samples: count,
            min: scale(first),
            mean: sum as f64 / count as f64 / f64::from(divisor),
            p50: at(50.0),
            p90: at(90.0),
            p99: at(99.0),
            p999: at(99.9),
            max: scale(last),
            histogram,
        })
    }
}

/// Latency distribution, nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) samples: usize,
    pub(super) min: f64,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
    /// Lower bound and count of each nonempty bucket.
    pub(super) histogram: Vec<(u32, u64)>,
}

/// Returns the lower bound of the bucket of `value`.
const fn lower_bound(value: u32) -> u32 {
    let bits = u32::BITS - value.leading_zeros();
    let shift = bits.saturating_sub(BUCKETS_PER_OCTAVE_BITS + 1);
    value >> shift << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ns: impl IntoIterator<Item = u32>, divisor: u32) -> Option<Latency> {
        let mut samples = Samples::with_room_for(0.0);
        ns.into_iter().for_each(|ns| samples.push(ns));
        samples.distribution(divisor)
    }

    #[test]
    fn percentiles_are_samples() {
        let latency = of((1..=1000).rev().map(|n| 2 * n), 2).unwrap();
        assert_eq!((latency.samples, latency.min, latency.max), (1000, 1.0, 1000.0));
        assert_eq!((latency.p50, latency.p90), (500.0, 900.0));
        assert_eq!((latency.p99, latency.p999), (990.0, 999.0));
        assert!((latency.mean - 500.5).abs() < 1e-9);
    }

    #[test]
    fn one_sample_is_every_percentile() {
        let latency = of([7], 1).unwrap();
        assert_eq!((latency.p50, latency.p999, latency.mean), (7.0, 7.0, 7.0));
        assert_eq!(latency.histogram, [(7, 1)]);
        assert_eq!(of([], 1), None);
    }

    #[test]
    fn bucket_width_is_an_eighth() {
        let latency = of([0, 15, 16, 17, 18, 1000, 1023, 1024, u32::MAX], 1).unwrap();
        let expected = [(0, 1), (15, 1), (16, 2), (18, 1), (960, 2), (1024, 1), (0xf000_0000, 1)];
        assert_eq!(latency.histogram, expected);
        for value in (0..100_000).step_by(37) {
            let bound = lower_bound(value);
            assert!(bound <= value && value - bound <= value / 8, "{value}");
        }
    }

    #[test]
    fn samples_beyond_the_capacity_are_dropped() {
        let mut samples = Samples::with_room_for(0.0);
        (0..2000).for_each(|ns| samples.push(ns));
        assert_eq!(samples.distribution(1).unwrap().samples, 1000);
    }
}
