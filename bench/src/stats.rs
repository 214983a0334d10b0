//! Medians and their ratios.

use serde::Serialize;

/// Median and range of several samples of one metric.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Summary {
    /// Median; of an even number of samples the mean of the two middle ones.
    pub(super) median: f64,
    /// Minimum.
    pub(super) min: f64,
    /// Maximum.
    pub(super) max: f64,
    /// Number of samples.
    pub(super) samples: usize,
}

impl Summary {
    /// Summarizes the finite values of `values`; `None` if there are none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let samples = sorted.len();
        let upper = sorted[samples / 2];
        let median =
            if samples % 2 == 1 { upper } else { f64::midpoint(sorted[samples / 2 - 1], upper) };
        Some(Self { median, min, max, samples })
    }
}

/// Ratio of medians, with the minimum and maximum ratio within a round.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Ratio {
    /// Ratio of the medians.
    pub(super) ratio: f64,
    /// Minimum ratio within a round; the ratio itself if no round has both values.
    pub(super) min: f64,
    /// Maximum ratio within a round.
    pub(super) max: f64,
}

impl Ratio {
    /// Computes the ratio `one` divided by `other` of values by round. `None` if one has no values.
    pub(super) fn of(one: &[(u32, f64)], other: &[(u32, f64)]) -> Option<Self> {
        let median = |of: &[(u32, f64)]| Summary::of(of.iter().map(|&(_, value)| value));
        let ratio = median(one)?.median / median(other)?.median;
        let in_round = one.iter().filter_map(|&(round, value)| {
            let &(_, beside) = other.iter().find(|&&(it, _)| it == round)?;
            Some(value / beside)
        });
        let paired = Summary::of(in_round);
        ratio.is_finite().then(|| Self {
            ratio,
            min: paired.map_or(ratio, |it| it.min),
            max: paired.map_or(ratio, |it| it.max),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn medians_are_computed() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN]), None);
        let odd = Summary::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.samples), (2.0, 1.0, 3.0, 3));
        assert_eq!(Summary::of([4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of([7.0, f64::INFINITY]).unwrap().samples, 1);
    }

    #[test]
    fn ratio_uses_medians_and_range_uses_rounds() {
        let one = [(1, 10.0), (2, 20.0), (3, 30.0)];
        let other = [(1, 10.0), (2, 10.0), (4, 40.0)];
        let ratio = Ratio::of(&one, &other).unwrap();
        assert_eq!((ratio.ratio, ratio.min, ratio.max), (2.0, 1.0, 2.0));
        assert_eq!(Ratio::of(&one, &[]), None);
        assert_eq!(Ratio::of(&one, &[(1, 0.0)]), None, "no division by 0");
        let apart = Ratio::of(&[(1, 4.0)], &[(2, 2.0)]).unwrap();
        assert_eq!((apart.ratio, apart.min, apart.max), (2.0, 2.0, 2.0));
    }

    proptest! {
        #[test]
        fn median_is_within_range(values in prop::collection::vec(-1e12..1e12_f64, 1..20)) {
            let summary = Summary::of(values.iter().copied()).unwrap();
            prop_assert!(summary.min <= summary.median && summary.median <= summary.max);
            let below = values.iter().filter(|&&it| it <= summary.median).count();
            let above = values.iter().filter(|&&it| it >= summary.median).count();
            prop_assert!(2 * below >= values.len() && 2 * above >= values.len());
        }
    }
}
