//! What may go wrong, in numbers, and the text form of it.
#![forbid(unsafe_code)]

use std::{
    str::FromStr,
    string::{String, ToString},
};

use crate::time::Duration;

/// Longest delay.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// How badly one direction treats its frames. The default leaves them alone.
///
/// As text, a list such as `drop=1,reorder=0.5,delay=20ms,rate=100mbit,seed=7`: percentages for
/// `drop`, `duplicate`, `reorder` and `corrupt`; `us`, `ms` or `s` after a delay; `bit`, `kbit`,
/// `mbit` or `gbit` (per second, powers of ten) after a rate.
///
/// ```
/// use offload_engine::link::Impairments;
///
/// let lossy: Impairments = "drop=1.5,delay=20ms".parse().unwrap();
/// assert_eq!(lossy.drop_pct, 1.5);
/// let error = "drop=101".parse::<Impairments>().unwrap_err();
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
    /// Frames with one bit flipped, percent.
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
    #[error("rate of 0 bit/s carries nothing; use drop=100 to lose every frame")]
    Rate,
    /// An item of a list that is not understood.
    #[error(
        "impairment {item:?} is not understood: expected drop, duplicate, reorder or corrupt=percent, \
         delay=number and us, ms or s, rate=number and bit, kbit, mbit or gbit, or seed=number"
    )]
    Syntax {
        /// The item.
        item: String,
    },
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

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "drop" => self.drop_pct = value.parse().ok()?,
            "duplicate" => self.duplicate_pct = value.parse().ok()?,
            "reorder" => self.reorder_pct = value.parse().ok()?,
            "corrupt" => self.corrupt_pct = value.parse().ok()?,
            "delay" => self.delay = delay(value)?,
            "rate" => self.rate_bps = Some(rate(value)?),
            "seed" => self.seed = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}

impl FromStr for Impairments {
    type Err = ImpairmentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut settings = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            item.split_once('=')
                .and_then(|(key, value)| settings.set(key.trim(), value.trim()))
                .ok_or_else(|| ImpairmentError::Syntax { item: item.to_string() })?;
        }
        settings.validate()?;
        Ok(settings)
    }
}

/// Splits `value` into a number and the factor that its unit stands for.
fn quantity(value: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((value.strip_suffix(unit)?, factor)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

fn delay(value: &str) -> Option<Duration> {
    // Longer units first: "ms" and "us" end in "s".
    let seconds = quantity(value, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)])?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn rate(value: &str) -> Option<u64> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)];
    // A float beyond the range becomes the largest integer, which is no limit either.
    quantity(value, &units).map(|bits| bits as u64)
}
