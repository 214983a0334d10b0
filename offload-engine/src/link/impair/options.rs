//! Settings of impairments, and their ranges.
#![forbid(unsafe_code)]

use crate::time::Duration;

/// Default queue of a rate-limited wire in bytes: 1000 frames of 1514, the queue of a TAP.
pub const RATE_QUEUE_BYTES_MAX: u64 = 1_514_000;
/// Longest delay.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Longest mean burst of losses in frames.
const BURST_MEAN_MAX: f64 = 10_000.0;

/// Queue limit of a rate-limited wire, including the frame being sent. Further frames are lost (tail drop).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueLimit {
    /// Bytes, counted from the Ethernet header to the last byte of each frame; not zero.
    Bytes(u64),
    /// Frames; not zero.
    Frames(u32),
}

impl Default for QueueLimit {
    /// [`RATE_QUEUE_BYTES_MAX`].
    fn default() -> Self {
        Self::Bytes(RATE_QUEUE_BYTES_MAX)
    }
}

/// Impairments of one direction. The default has none.
///
/// ```
/// use offload_engine::link::Impairments;
///
/// let lossy = Impairments { drop_pct: 1.5, seed: 7, ..Impairments::default() };
/// assert_eq!(lossy.validate(), Ok(()));
/// let error = Impairments { drop_pct: 101.0, ..lossy }.validate().unwrap_err();
/// assert_eq!(error.to_string(), "drop of 101 %: expected 0 to 100");
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Impairments {
    /// Frames lost, percent.
    pub drop_pct: f64,
    /// Mean number of consecutive losses: 1 to 10,000. Zero makes losses independent.
    ///
    /// Gilbert's channel: in its bad state every frame is lost, in its good state none. The durations of both states
    /// are geometrically distributed, such that [`Self::drop_pct`] of all frames are lost.
    pub burst_mean: f64,
    /// Frames that arrive twice, percent.
    pub duplicate_pct: f64,
    /// Frames reordered after later ones, percent.
    pub reorder_pct: f64,
    /// Frames with one bit of their IP packet flipped, percent. A frame without IP is lost instead: no checksum above
    /// Ethernet covers it, but the FCS does.
    pub corrupt_pct: f64,
    /// Delay of every frame; at most 60 s.
    pub delay: Duration,
    /// Variation of the delay in either direction, uniformly distributed; at most the delay. Order is kept: a frame
    /// that would overtake arrives with the previous one.
    pub jitter: Duration,
    /// Rate of the wire in bit/s, counting each frame from its Ethernet header to its last byte; not zero. `None` is
    /// unlimited.
    pub rate_bps: Option<u64>,
    /// Queue limit of a rate-limited wire.
    pub queue: QueueLimit,
    /// Seed of the random numbers: the same frames and seed give the same outcome.
    pub seed: u64,
}

/// Invalid impairment.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImpairmentError {
    /// A percentage is not within 0 to 100, or not a number.
    #[error("{what} of {value} %: expected 0 to 100")]
    Percentage {
        /// Name of the setting.
        what: &'static str,
        /// Value given.
        value: f64,
    },
    /// The mean burst is out of range, or not a number.
    #[error("burst of {mean} frames: expected 1 to {BURST_MEAN_MAX}")]
    Burst {
        /// Mean given.
        mean: f64,
    },
    /// At least one frame arrives between two bursts, so short bursts cannot lose most frames.
    #[error(
        "drop of {drop_pct} % in bursts of {mean} frames: expected at most {drop_pct_max:.1} %"
    )]
    BurstTooShort {
        /// Percentage given.
        drop_pct: f64,
        /// Mean given.
        mean: f64,
        /// Largest percentage that bursts of that mean can lose.
        drop_pct_max: f64,
    },
    /// The delay is too long.
    #[error("delay of {delay:?}: expected at most {DELAY_MAX:?}")]
    Delay {
        /// Delay given.
        delay: Duration,
    },
    /// The jitter exceeds the delay: frames would arrive before they were sent.
    #[error("jitter of {jitter:?}: expected at most the delay of {delay:?}")]
    Jitter {
        /// Jitter given.
        jitter: Duration,
        /// Delay given.
        delay: Duration,
    },
    /// The rate is zero.
    #[error("rate of 0 bit/s: expected at least 1")]
    Rate,
    /// The queue limit is zero.
    #[error("queue of 0: expected at least 1")]
    Queue,
}

impl Impairments {
    /// Checks every range.
    ///
    /// # Errors
    /// The first setting out of its range.
    pub fn validate(&self) -> Result<(), ImpairmentError> {
        let Self {
            drop_pct,
            burst_mean,
            duplicate_pct,
            reorder_pct,
            corrupt_pct,
            delay,
            jitter,
            rate_bps,
            queue,
            seed: _,
        } = *self;
        let percentages = [
            ("drop", drop_pct),
            ("duplicate", duplicate_pct),
            ("reorder", reorder_pct),
            ("corrupt", corrupt_pct),
        ];
        for (what, value) in percentages {
            // A NaN is in no range.
            if !(0.0..=100.0).contains(&value) {
                return Err(ImpairmentError::Percentage { what, value });
            }
        }
        validate_burst(drop_pct, burst_mean)?;
        if delay > DELAY_MAX {
            return Err(ImpairmentError::Delay { delay });
        }
        if jitter > delay {
            return Err(ImpairmentError::Jitter { jitter, delay });
        }
        if rate_bps == Some(0) {
            return Err(ImpairmentError::Rate);
        }
        match queue {
            QueueLimit::Bytes(0) | QueueLimit::Frames(0) => Err(ImpairmentError::Queue),
            _ => Ok(()),
        }
    }

    /// True if frames pass unchanged. Burst and queue alone have no effect.
    pub fn is_none(&self) -> bool {
        let without_effect = Self::default();
        let Self { burst_mean, queue, seed, .. } = without_effect;
        Self { burst_mean, queue, seed, ..*self } == without_effect
    }

    /// True if frames must have the wire's size, because losses or transmission times apply to each. A delay alone is
    /// the same for all sizes.
    pub(super) fn cuts(&self) -> bool {
        !Self { delay: Duration::ZERO, ..*self }.is_none()
    }
}

fn validate_burst(drop_pct: f64, mean: f64) -> Result<(), ImpairmentError> {
    if mean == 0.0 {
        return Ok(());
    }
    if !(1.0..=BURST_MEAN_MAX).contains(&mean) {
        return Err(ImpairmentError::Burst { mean });
    }
    let drop_pct_max = 100.0 * mean / (mean + 1.0);
    if drop_pct > drop_pct_max && drop_pct < 100.0 {
        return Err(ImpairmentError::BurstTooShort { drop_pct, mean, drop_pct_max });
    }
    Ok(())
}
