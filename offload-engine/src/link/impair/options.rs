//! What may go wrong, in numbers.
#![forbid(unsafe_code)]

use crate::time::Duration;

/// Bytes that wait for a rate-limited wire if nothing else is said: 1000 frames of 1514, the queue of
/// a TAP.
pub const RATE_QUEUE_BYTES_MAX: u64 = 1_514_000;
/// Longest delay.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Longest mean burst of losses, frames.
const BURST_MEAN_MAX: f64 = 10_000.0;

/// What may wait before a rate-limited wire, the frame that is being sent included. More is lost: the
/// last frame to come is the one (tail drop).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueLimit {
    /// So many bytes, frames counted from their Ethernet header to their last byte; not zero.
    Bytes(u64),
    /// So many frames; not zero.
    Frames(u32),
}

impl Default for QueueLimit {
    /// [`RATE_QUEUE_BYTES_MAX`].
    fn default() -> Self {
        Self::Bytes(RATE_QUEUE_BYTES_MAX)
    }
}

/// How badly one direction treats its frames. The default leaves them alone.
///
/// ```
/// use offload_engine::link::Impairments;
///
/// let lossy = Impairments { drop_pct: 1.5, seed: 7, ..Impairments::default() };
/// assert_eq!(lossy.validate(), Ok(()));
/// let error = Impairments { drop_pct: 101.0, ..lossy }.validate().unwrap_err();
/// assert_eq!(error.to_string(), "drop of 101 % is not within 0 to 100");
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Impairments {
    /// Frames lost, percent.
    pub drop_pct: f64,
    /// Frames lost in a row, on average: 1 to 10,000. Zero: each frame is lost or not for itself.
    ///
    /// Gilbert's channel: in its bad state every frame is lost, in its good state none; both states last
    /// geometrically distributed times, such that [`Self::drop_pct`] of all frames are lost.
    pub burst_mean: f64,
    /// Frames that arrive twice, percent.
    pub duplicate_pct: f64,
    /// Frames held back behind later ones, percent.
    pub reorder_pct: f64,
    /// Frames with one bit of their IP packet flipped, percent. What no checksum above Ethernet covers, the
    /// FCS would: a frame without IP is lost instead.
    pub corrupt_pct: f64,
    /// Time that every frame travels; at most 60 s.
    pub delay: Duration,
    /// The delay varies by as much in either direction, uniformly; at most the delay. Order is kept: a
    /// frame that would overtake arrives with the one before it.
    pub jitter: Duration,
    /// Bits per second that the wire carries, counting each frame from its Ethernet header to its
    /// last byte; not zero. `None`: no limit.
    pub rate_bps: Option<u64>,
    /// What may wait before a wire that has a rate.
    pub queue: QueueLimit,
    /// What the dice start from: the same frames and seed give the same fate.
    pub seed: u64,
}

/// An impairment that makes no sense.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImpairmentError {
    /// A percentage is not within 0 to 100, or no number.
    #[error("{what} of {value} % is not within 0 to 100")]
    Percentage {
        /// Which.
        what: &'static str,
        /// The value given.
        value: f64,
    },
    /// The mean burst is out of range, or no number.
    #[error("burst of {mean} frames is not within 1 to {BURST_MEAN_MAX}")]
    Burst {
        /// The mean given.
        mean: f64,
    },
    /// Between two bursts at least one frame arrives, so short bursts cannot lose most frames.
    #[error(
        "drop of {drop_pct} % in bursts of {mean} frames cannot be: at most {drop_pct_max:.1} %"
    )]
    BurstTooShort {
        /// The percentage given.
        drop_pct: f64,
        /// The mean given.
        mean: f64,
        /// What bursts of that mean can lose.
        drop_pct_max: f64,
    },
    /// The delay is too long.
    #[error("delay of {delay:?} is longer than {DELAY_MAX:?}")]
    Delay {
        /// The delay given.
        delay: Duration,
    },
    /// Frames would arrive before they were sent.
    #[error("jitter of {jitter:?} is more than the delay of {delay:?}")]
    Jitter {
        /// The jitter given.
        jitter: Duration,
        /// The delay given.
        delay: Duration,
    },
    /// A rate of zero would carry nothing.
    #[error("rate of 0 bit/s carries nothing")]
    Rate,
    /// A queue without room would let nothing pass.
    #[error("queue of 0 lets nothing pass")]
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

    /// Whether frames pass untouched: burst and queue alone do nothing.
    pub fn is_none(&self) -> bool {
        let without_effect = Self::default();
        let Self { burst_mean, queue, seed, .. } = without_effect;
        Self { burst_mean, queue, seed, ..*self } == without_effect
    }

    /// Whether it matters to frames that they are as large as the wire's: dice are thrown for each, or
    /// the wire takes its time for each. A delay alone is the same for all.
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
