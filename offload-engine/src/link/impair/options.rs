//! What may go wrong, in numbers.
#![forbid(unsafe_code)]

use crate::time::Duration;

/// Longest delay.
const DELAY_MAX: Duration = Duration::from_secs(60);

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
    /// Frames that arrive twice, percent.
    pub duplicate_pct: f64,
    /// Frames held back behind later ones, percent.
    pub reorder_pct: f64,
    /// Frames with one bit of their IP packet flipped, percent. What no checksum above Ethernet covers, the
    /// FCS would: a frame without IP is lost instead.
    pub corrupt_pct: f64,
    /// Time that every frame travels; at most 60 s.
    pub delay: Duration,
    /// Bits per second that the wire carries, counting each frame from its Ethernet header to its
    /// last byte; not zero. `None`: no limit.
    pub rate_bps: Option<u64>,
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
    /// The delay is too long.
    #[error("delay of {delay:?} is longer than {DELAY_MAX:?}")]
    Delay {
        /// The delay given.
        delay: Duration,
    },
    /// A rate of zero would carry nothing.
    #[error("rate of 0 bit/s carries nothing")]
    Rate,
}

impl Impairments {
    /// Checks every range.
    ///
    /// # Errors
    /// The first setting out of its range.
    pub fn validate(&self) -> Result<(), ImpairmentError> {
        let Self { drop_pct, duplicate_pct, reorder_pct, corrupt_pct, delay, rate_bps, seed: _ } =
            *self;
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
        if delay > DELAY_MAX {
            return Err(ImpairmentError::Delay { delay });
        }
        if rate_bps == Some(0) {
            return Err(ImpairmentError::Rate);
        }
        Ok(())
    }

    /// Whether frames pass untouched.
    pub fn is_none(&self) -> bool {
        Self { seed: 0, ..*self } == Self::default()
    }
}
