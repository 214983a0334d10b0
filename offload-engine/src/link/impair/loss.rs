//! Loss model: independent losses, or bursts.
//!
//! Bursts follow Gilbert's channel (1960), as in `netem loss gemodel p r`. It has a good state without loss and a bad
//! state in which every frame is lost. A burst continues with probability 1 - 1/mean. A burst starts after a good frame
//! with the probability that results in the configured share of losses.
#![forbid(unsafe_code)]

use oorandom::Rand64;

#[derive(Debug)]
pub(super) struct Loss {
    /// Share of lost frames in percent.
    share_pct: f64,
    /// Probability in percent that the frame after a lost one arrives. `None` without bursts.
    end_pct: Option<f64>,
    /// True if the previous frame was lost.
    in_burst: bool,
}

impl Loss {
    /// Creates a model. A `burst_mean` of zero disables bursts.
    pub(super) fn new(share_pct: f64, burst_mean: f64) -> Self {
        let has_bursts = burst_mean >= 1.0 && share_pct > 0.0 && share_pct < 100.0;
        Self { share_pct, end_pct: has_bursts.then_some(100.0 / burst_mean), in_burst: false }
    }

    /// True if the next frame is lost.
    pub(super) fn drops_next(&mut self, random: &mut Rand64) -> bool {
        let Some(end_pct) = self.end_pct else { return roll(random, self.share_pct) };
        // In the long run as many bursts start as end: share * end == (1 - share) * begin.
        let begin_pct = self.share_pct * end_pct / (100.0 - self.share_pct);
        self.in_burst = roll(random, if self.in_burst { 100.0 - end_pct } else { begin_pct });
        self.in_burst
    }
}

/// Returns true with a probability of `pct` percent.
pub(super) fn roll(random: &mut Rand64, pct: f64) -> bool {
    pct > 0.0 && random.rand_float() * 100.0 < pct
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: usize = 400_000;

    /// Returns the number of lost frames, and the lengths of the bursts.
    fn run(share_pct: f64, burst_mean: f64, seed: u128) -> (usize, std::vec::Vec<usize>) {
        let (mut loss, mut random) = (Loss::new(share_pct, burst_mean), Rand64::new(seed));
        let (mut lost, mut bursts, mut run) = (0, std::vec::Vec::new(), 0);
        for _ in 0..FRAMES {
            if loss.drops_next(&mut random) {
                (lost, run) = (lost + 1, run + 1);
            } else if run > 0 {
                bursts.push(run);
                run = 0;
            }
        }
        (lost, bursts)
    }

    /// Share and mean burst match the settings within five standard deviations. The share follows a Markov chain with
    /// two states, and the length a geometric distribution.
    #[test]
    fn loss_share_and_mean_burst_match_settings() {
        for (share_pct, mean) in [(0.1, 5.0), (1.0, 3.0), (5.0, 10.0), (50.0, 2.0), (10.0, 1.0)] {
            let (lost, bursts) = run(share_pct, mean, 7);
            let (share, end) = (share_pct / 100.0, 1.0 / mean);
            let begin = share * end / (1.0 - share);
            let memory = 1.0 - begin - end;
            let frames = FRAMES as f64;
            let variance = frames * share * (1.0 - share) * (1.0 + memory) / (1.0 - memory);
            let error = (lost as f64 - frames * share).abs();
            assert!(error <= 5.0 * variance.sqrt(), "{share_pct} % by {mean}: {lost} lost");
            let found = bursts.iter().sum::<usize>() as f64 / bursts.len() as f64;
            let deviation = (mean * (mean - 1.0) / bursts.len() as f64).sqrt();
            assert!((found - mean).abs() <= 5.0 * deviation, "{share_pct} % by {mean}: {found}");
        }
    }

    /// Without bursts losses are independent: runs have the mean 1 / (1 - share).
    #[test]
    fn losses_without_bursts_are_independent() {
        let (lost, bursts) = run(20.0, 0.0, 3);
        let mean = bursts.iter().sum::<usize>() as f64 / bursts.len() as f64;
        assert!((79_000..81_000).contains(&lost), "{lost}");
        assert!((1.24..1.26).contains(&mean), "{mean}");
    }

    #[test]
    fn loss_of_0_and_100_percent_is_exact() {
        assert_eq!(run(100.0, 5.0, 1), (FRAMES, std::vec::Vec::new()));
        assert_eq!(run(0.0, 5.0, 1), (0, std::vec::Vec::new()));
    }
}
